"""A small network for features: dense layers, each with batch norm and leaky ReLU."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from mixmatch.networks.wide_resnet import WithFeatures, linear

SLOPE = 0.1
MOMENTUM = 0.05
"""How fast batch norm's running statistics follow a batch: runs on features are short."""


class Layer(nn.Module):
    """Dense, batch norm, leaky ReLU."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, width, bias=False)  # batch norm adds one
        self.norm = nn.BatchNorm1d(width, momentum=MOMENTUM)
        nn.init.kaiming_normal_(self.dense.weight, a=SLOPE)

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(self.norm(self.dense(x)), SLOPE)


class MLP(WithFeatures):
    """`depth` hidden layers of `width` units. Takes features (N, F), gives logits (N, classes)."""

    def __init__(self, num_classes: int, features: int, width: int = 256, depth: int = 2) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Layer(features if i == 0 else width, width) for i in range(depth)))
        self.feature_size = width
        self.head = linear(width, num_classes, nn.init.xavier_uniform_)

    @staticmethod
    def size(num_classes: int, features: int, width: int = 256, depth: int = 2) -> int:
        return features * width + (depth - 1) * width**2 + depth * 2 * width + (width + 1) * num_classes

    def features(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.layers(x)
        return hidden

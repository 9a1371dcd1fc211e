"""A small network for features: dense layers with batch norm, as in the paper's networks with leaky ReLU."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

SLOPE = 0.1
MOMENTUM = 0.05
"""How fast batch norm's running statistics follow a batch: runs on features are short."""


class Layer(nn.Module):
    """Dense, batch norm, leaky ReLU."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, width, bias=False)  # batch norm has one
        self.norm = nn.BatchNorm1d(width, momentum=MOMENTUM)
        nn.init.kaiming_normal_(self.dense.weight, a=SLOPE)

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(self.norm(self.dense(x)), SLOPE)


class MLP(nn.Module):
    """`depth` hidden layers of `width` units. Takes features (N, F), gives logits (N, classes)."""

    def __init__(self, num_classes: int, features: int, width: int = 256, depth: int = 2) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Layer(features if i == 0 else width, width) for i in range(depth)))
        self.head = nn.Linear(width, num_classes)
        nn.init.xavier_uniform_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layers(x))
        return logits

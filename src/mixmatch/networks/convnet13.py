"""The 13-layer convolutional network of the paper's appendix, as the authors built it.

Unlike its predecessors it has no dropout, noise or weight normalization, and batch norm comes after the activation.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from mixmatch.networks.wide_resnet import MOMENTUM, WithFeatures, batch_norm, linear

SLOPE = 0.2


class Layer(nn.Module):
    """Convolution, leaky ReLU, batch norm, in this order."""

    def __init__(self, in_channels: int, channels: int, size: int, padding: int, momentum: float) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, channels, size, padding=padding)
        self.norm = batch_norm(channels, momentum)
        nn.init.xavier_uniform_(self.conv.weight)
        nn.init.zeros_(self.conv.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(F.leaky_relu(self.conv(x), SLOPE))
        return y


def _shapes(f: int) -> list[tuple[int, int, int]]:
    """Channels, kernel size and padding of each layer."""
    return [(f, 3, 1)] * 3 + [(2 * f, 3, 1)] * 3 + [(4 * f, 3, 0), (2 * f, 1, 0), (f, 1, 0)]


class ConvNet13(WithFeatures):
    """Three layers at each of three sizes, the last without padding and then 1x1; mean over the image; dense.

    Takes (N, C, H, W) in [-1, 1] of at least 12x12 pixels, gives logits (N, classes).
    """

    def __init__(self, num_classes: int, in_channels: int = 3, filters: int = 128, momentum: float = MOMENTUM) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i, (channels, size, padding) in enumerate(_shapes(filters)):
            if i in (3, 6):
                layers.append(nn.MaxPool2d(2))
            layers.append(Layer(in_channels, channels, size, padding, momentum))
            in_channels = channels
        self.layers = nn.Sequential(*layers)
        self.feature_size = filters
        self.head = linear(filters, num_classes, nn.init.xavier_uniform_)

    @staticmethod
    def size(num_classes: int, in_channels: int = 3, filters: int = 128, **_: float) -> int:
        total = (filters + 1) * num_classes
        for channels, size, _padding in _shapes(filters):
            total += channels * (in_channels * size * size + 3)  # the bias and batch norm's two
            in_channels = channels
        return total

    def features(self, x: Tensor) -> Tensor:
        maps: Tensor = self.layers(x)
        return maps.mean(dim=(2, 3))

"""Wide ResNet as the paper's authors built it, down to the details that move error rates.

Where it differs from the textbook network: convolutions have biases; leaky ReLU with slope 0.1; batch norm with
epsilon 1e-3 and momentum 0.001; fan-out initialization; only the very first block activates its shortcut; stride-2
convolutions pad at the bottom and right alone, as TensorFlow does on even sizes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SLOPE = 0.1


class Conv(nn.Conv2d):
    """A convolution that pads as TensorFlow's "SAME": the odd pixel of padding goes to the bottom and right."""

    def __init__(self, in_channels: int, out_channels: int, size: int, stride: int = 1) -> None:
        super().__init__(in_channels, out_channels, size, stride, padding=size // 2 if stride == 1 else 0)
        nn.init.normal_(self.weight, std=math.sqrt(2 / (size * size * out_channels)))
        nn.init.zeros_(self.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        stride, size = self.stride[0], self.kernel_size[0]
        if stride > 1 and size > 1:
            bottom, right = (max((-(-n // stride) - 1) * stride + size - n, 0) for n in x.shape[-2:])
            x = F.pad(x, (right // 2, right - right // 2, bottom // 2, bottom - bottom // 2))
        return super().forward(x)


MOMENTUM = 0.001
"""How fast batch norm's running statistics follow a batch: 0.999 in TensorFlow's terms, made for very long runs."""


def batch_norm(channels: int, momentum: float) -> nn.BatchNorm2d:
    """Batch norm with TensorFlow's epsilon."""
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=momentum)


class Block(nn.Module):
    """A pre-activation residual block."""

    def __init__(self, in_channels: int, channels: int, stride: int, activate_shortcut: bool, momentum: float) -> None:
        super().__init__()
        self.activate_shortcut = activate_shortcut
        self.norm1 = batch_norm(in_channels, momentum)
        self.conv1 = Conv(in_channels, channels, 3, stride)
        self.norm2 = batch_norm(channels, momentum)
        self.conv2 = Conv(channels, channels, 3)
        self.shortcut = Conv(in_channels, channels, 1, stride) if in_channels != channels else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = F.leaky_relu(self.norm1(x), SLOPE)
        residual: Tensor = self.conv2(F.leaky_relu(self.norm2(self.conv1(h)), SLOPE))
        shortcut: Tensor = self.shortcut(h if self.activate_shortcut else x)
        return shortcut + residual


@torch.no_grad()
def glorot_normal_(weight: Tensor) -> None:
    """TensorFlow's Glorot normal: cut off at two deviations, widened so that a variance of 2 / (in + out) is left."""
    std = math.sqrt(2 / sum(weight.shape)) / 0.87962566103423978
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def linear(inputs: int, outputs: int, init: Callable[[Tensor], object] = glorot_normal_) -> nn.Linear:
    """A linear layer whose bias starts at zero; by default its weights start as in the authors' Wide ResNet."""
    layer = nn.Linear(inputs, outputs)
    init(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class WithFeatures(nn.Module, ABC):
    """A network that offers its features and classifies them by one linear layer, `head`."""

    feature_size: int
    head: nn.Linear
    size: Callable[..., int]
    """How many parameters such a network has, of the arguments it is built with. Known before it is built, so that a
    name that somebody else wrote cannot fill the memory."""

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """What enters the last layer, (N, feature_size)."""

    def classify(self, features: Tensor) -> Tensor:
        """Logits (N, classes) of features."""
        logits: Tensor = self.head(features)
        return logits

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.features(x))


def _conv(inputs: int, outputs: int, size: int) -> int:
    """The parameters of a convolution with biases."""
    return outputs * (inputs * size * size + 1)


class WideResNet(WithFeatures):
    """`scales` stages of `repeat` blocks; stage s has `filters` * 2^s channels and, after the first, halves the image.

    WRN-28-2 is filters=32, repeat=4, scales=3. Takes (N, C, H, W) in [-1, 1], gives logits (N, classes).
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int = 3,
        filters: int = 32,
        repeat: int = 4,
        scales: int = 3,
        momentum: float = MOMENTUM,
    ) -> None:
        super().__init__()
        self.stem = Conv(in_channels, 16, 3)
        blocks, channels = [], 16
        for scale in range(scales):
            for block in range(repeat):
                first = block == 0
                blocks.append(
                    Block(
                        channels,
                        filters << scale,
                        stride=2 if first and scale > 0 else 1,
                        activate_shortcut=first and scale == 0,
                        momentum=momentum,
                    )
                )
                channels = filters << scale
        self.blocks = nn.Sequential(*blocks)
        self.norm = batch_norm(channels, momentum)
        self.feature_size = channels
        self.head = linear(channels, num_classes)

    @staticmethod
    def size(
        num_classes: int, in_channels: int = 3, filters: int = 32, repeat: int = 4, scales: int = 3, **_: float
    ) -> int:
        total, channels = _conv(in_channels, 16, 3), 16
        for scale in range(scales):
            wide = filters << scale
            first = 2 * channels + _conv(channels, wide, 3) + (_conv(channels, wide, 1) if channels != wide else 0)
            further = (repeat - 1) * (2 * wide + _conv(wide, wide, 3))
            total += first + further + repeat * (2 * wide + _conv(wide, wide, 3))
            channels = wide
        return total + 2 * channels + (channels + 1) * num_classes

    def features(self, x: Tensor) -> Tensor:
        h = self.blocks(self.stem(x))
        return F.leaky_relu(self.norm(h), SLOPE).mean(dim=(2, 3))

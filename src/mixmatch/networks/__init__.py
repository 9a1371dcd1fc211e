"""The networks by name. `build` is the one way to make one; any other `torch.nn.Module` works with the methods too."""

from __future__ import annotations

import re
from typing import Any

from torch import nn

from mixmatch.errors import MixMatchError, unknown
from mixmatch.networks.wide_resnet import WideResNet

__all__ = ["NETWORKS", "WideResNet", "build"]

NETWORKS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "wrn-small": ({"filters": 32, "repeat": 1, "scales": 2, "momentum": 0.05}, (1, 8, 8)),
    "wrn-28-2": ({"filters": 32, "repeat": 4}, (3, 32, 32)),
    "wrn-28-large": ({"filters": 135, "repeat": 4}, (3, 32, 32)),
    "wrn-28-2-stl10": ({"filters": 32, "repeat": 4, "scales": 4}, (3, 96, 96)),
}
"""Name -> how wide and deep, and the input shape the paper uses it with. `wrn-D-W` works for any D = 6n + 4 too."""


def build(name: str, num_classes: int, input_shape: tuple[int, ...] | None = None) -> nn.Module:
    """Make a network with fresh weights, drawn from torch's global generator.

    Args:
        name: one of `NETWORKS`, or `wrn-D-W` for a Wide ResNet of depth D = 6n + 4 and width factor W.
        num_classes: how many logits it gives.
        input_shape: (channels, height, width); None is the shape the paper uses the network with.

    >>> sum(p.numel() for p in build("wrn-28-2", num_classes=10).parameters())
    1469642
    """
    if num_classes < 2:
        raise MixMatchError(f"a classifier needs at least two classes, not {num_classes}")
    arguments, paper_shape = NETWORKS.get(name) or _wide_resnet(name)
    shape = paper_shape if input_shape is None else input_shape
    if len(shape) != 3 or min(shape) < 1:
        raise MixMatchError(f"network '{name}' takes images of shape (channels, height, width), not {shape}")
    return WideResNet(num_classes, in_channels=shape[0], **arguments)


def _wide_resnet(name: str) -> tuple[dict[str, Any], tuple[int, ...]]:
    match = re.fullmatch(r"wrn-(\d+)-(\d+)", name)
    if match is None:
        raise unknown("network", name, NETWORKS)
    depth, width = int(match[1]), int(match[2])
    if depth < 10 or (depth - 4) % 6 or width < 1:
        raise MixMatchError(f"network '{name}': a Wide ResNet's depth is 10, 16, 22, 28 ... and its width 1 or more")
    return {"filters": 16 * width, "repeat": (depth - 4) // 6}, (3, 32, 32)

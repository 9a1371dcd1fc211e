"""The networks by name. `build` is the one way to make one; any other `torch.nn.Module` works with the methods too."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from mixmatch.errors import MixMatchError, unknown
from mixmatch.networks.convnet13 import ConvNet13
from mixmatch.networks.frozen import ON, Embedded, build_frozen
from mixmatch.networks.heads import WithHeads
from mixmatch.networks.mlp import MLP
from mixmatch.networks.timm_backbone import build_timm
from mixmatch.networks.wide_resnet import WideResNet

__all__ = ["MLP", "NETWORKS", "ConvNet13", "Embedded", "Plan", "WideResNet", "WithHeads", "build"]


def scales_for(size: int) -> int:
    """Stages for images of a size: the last one sees 8x8 to 16x16 pixels, for images of 16x16 to 255x255."""
    return max(2, min(5, size.bit_length() - 3))


class Plan(NamedTuple):
    """How to build a network."""

    kind: type[nn.Module]
    arguments: dict[str, Any]
    shape: tuple[int, ...] = (3, 32, 32)
    """The paper's inputs for it: (channels, height, width), or (features,)."""
    smallest: int = 1
    """Images must be at least this high and wide."""
    scales: Callable[[int], int] | None = None
    """The argument `scales`, if it follows the size of the images."""


NETWORKS: dict[str, Plan] = {
    "wrn-small": Plan(WideResNet, {"filters": 32, "repeat": 1, "scales": 2, "momentum": 0.05}, (1, 8, 8)),
    "wrn-28-2": Plan(WideResNet, {"filters": 32, "repeat": 4}),
    "wrn-28-large": Plan(WideResNet, {"filters": 135, "repeat": 4}),
    "wrn-28-2-stl10": Plan(WideResNet, {"filters": 32, "repeat": 4, "scales": 4}, (3, 96, 96)),
    "wrn-auto": Plan(WideResNet, {"filters": 32, "repeat": 2, "momentum": 0.01}, scales=scales_for),
    "cnn13": Plan(ConvNet13, {"filters": 128}, smallest=12),
    "cnn13-32": Plan(ConvNet13, {"filters": 32}, smallest=12),
    "mlp": Plan(MLP, {}, (64,)),
}
"""The networks with a name; `wrn-D-W` works for any depth D = 6n + 4 and width W too. `wrn-auto` is for user images and
has more stages for larger ones; `mlp` is for features."""


TIMM_FAMILIES = (
    *("beit", "convmixer", "convnext", "deit", "densenet", "dpn", "efficientformer", "efficientnet", "ghostnet"),
    *("hrnet", "inception", "maxvit", "mixer", "mnasnet", "mobilenet", "mobilevit", "nfnet", "poolformer", "regnet"),
    *("repvgg", "res2net", "resmlp", "resnest", "resnet", "resnext", "seresnet", "swin", "tf_efficientnet", "tiny_vit"),
    *("vgg", "vit", "wide_resnet", "xception"),
)
"""What well-known models of timm begin with, to recognize a name without its prefix where timm is not installed."""


def build(
    name: str, num_classes: int, input_shape: tuple[int, ...] | None = None, weights: str | Path | None = None
) -> nn.Module:
    """Make a network with fresh weights, drawn from torch's global generator.

    Args:
        name: one of `NETWORKS`, `wrn-D-W` for a Wide ResNet of depth D = 6n + 4 and width factor W, or `timm:NAME` for
            a model of the timm library, if that is installed; `FEATURES>NAME` is a network on frozen features, whose
            weights the caller fills in.
        num_classes: how many logits it gives.
        input_shape: (channels, height, width), or (features,) for `mlp`; None is the paper's for this network.
        weights: a file of weights that a timm model starts from.

    >>> sum(p.numel() for p in build("wrn-28-2", num_classes=10).parameters())
    1469642
    """
    if num_classes < 2:
        raise MixMatchError(f"a classifier needs at least two classes, not {num_classes}")
    if ON in name:
        features, _, head = name.partition(ON)
        frozen: Any = build_frozen(features, input_shape or (3, 32, 32), pretrained=False)
        return Embedded(frozen, build(head, num_classes, (frozen.feature_size,)))
    if name.startswith("timm:"):
        return build_timm(name, num_classes, input_shape, weights)
    if weights:
        raise MixMatchError(f"weights= is for networks of timm (timm:NAME), not for '{name}'")
    plan = NETWORKS.get(name) or _wide_resnet(name)
    shape = plan.shape if input_shape is None else input_shape
    if len(shape) != len(plan.shape) or min(shape) < 1:
        wanted = (
            "images of shape (channels, height, width)" if len(plan.shape) == 3 else "features of shape (features,)"
        )
        raise MixMatchError(f"network '{name}' takes {wanted}, not {tuple(shape)}")
    if len(shape) == 1:
        return plan.kind(num_classes, shape[0], **plan.arguments)
    size = min(shape[1:])
    if size < plan.smallest:
        raise MixMatchError(f"network '{name}' takes images of at least {plan.smallest}x{plan.smallest}, not {shape}")
    sized = {} if plan.scales is None else {"scales": plan.scales(size)}
    return plan.kind(num_classes, in_channels=shape[0], **plan.arguments, **sized)


def _wide_resnet(name: str) -> Plan:
    match = re.fullmatch(r"wrn-(\d+)-(\d+)", name)
    if match is None:
        if (model := name.lower().replace("-", "_")).startswith(TIMM_FAMILIES):
            raise MixMatchError(
                f"unknown network '{name}': did you mean 'timm:{model}', a model of the timm library? "
                f"(known without it: {', '.join(sorted(NETWORKS))})"
            )
        raise unknown("network", name, NETWORKS)
    depth, width = int(match[1]), int(match[2])
    if depth < 10 or (depth - 4) % 6 or width < 1:
        raise MixMatchError(f"network '{name}': a Wide ResNet's depth is 10, 16, 22, 28 ... and its width 1 or more")
    return Plan(WideResNet, {"filters": 16 * width, "repeat": (depth - 4) // 6})

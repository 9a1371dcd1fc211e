"""The networks by name. `build` is the one way to make one; any other `torch.nn.Module` works with the methods too."""

from __future__ import annotations

import math
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
from mixmatch.networks.wide_resnet import WideResNet, WithFeatures

__all__ = ["MLP", "NETWORKS", "ConvNet13", "Embedded", "Plan", "WideResNet", "WithHeads", "build"]


LARGEST = 2**30
"""Parameters of a network that is built by name, at most: 4 GiB, and as much again for each thing training keeps."""

DEEPEST = 1000
"""Layers of a Wide ResNet, at most. It takes memory of its own, however narrow they are."""

TOO_LARGE = f"more than the {LARGEST:,} that are possible: choose a smaller one with network="

LARGEST_INPUT = 2**28
"""Numbers in one image or row, at most: 16,384 x 16,384 gray pixels."""


def scales_for(size: int) -> int:
    """Stages for images of a size: the last one sees 8x8 to 16x16 pixels, for images of 16x16 to 255x255."""
    return max(2, min(5, size.bit_length() - 3))


class Plan(NamedTuple):
    """How to build a network."""

    kind: type[WithFeatures]
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
    name: str,
    num_classes: int,
    input_shape: tuple[int, ...] | None = None,
    weights: str | Path | None = None,
    *,
    most: int | None = None,
) -> nn.Module:
    """Make a network with fresh weights, drawn from torch's global generator.

    Args:
        name: one of `NETWORKS`, `wrn-D-W` for a Wide ResNet of depth D = 6n + 4 and width factor W, or `timm:NAME` for
            a model of the timm library, if that is installed; `FEATURES>NAME` is a network on frozen features, whose
            weights the caller fills in.
        num_classes: how many logits it gives.
        input_shape: (channels, height, width), or (features,) for `mlp`; None is the paper's for this network.
        weights: a file of weights that a timm model starts from.
        most: how many parameters it may have, where that is known: as many as there are weights to fill in.

    >>> sum(p.numel() for p in build("wrn-28-2", num_classes=10).parameters())
    1469642
    """
    if num_classes < 2:
        raise MixMatchError(f"a classifier needs at least two classes, not {num_classes}")
    _check_input(name, input_shape)
    if ON in name:
        features, _, head = name.partition(ON)
        frozen: Any = build_frozen(features, input_shape or (3, 32, 32), pretrained=False)
        return Embedded(frozen, build(head, num_classes, (frozen.feature_size,), most=most))
    if name.startswith("timm:"):
        return build_timm(name, num_classes, input_shape, weights)
    if weights:
        raise MixMatchError(f"weights= is for networks of timm (timm:NAME), not for '{name}'")
    plan = NETWORKS.get(name) or _wide_resnet(name)
    arguments = _arguments(name, plan, input_shape)
    parameters = plan.kind.size(num_classes, **arguments)
    if parameters > (LARGEST if most is None else min(most, LARGEST)):
        raise MixMatchError(
            f"network '{name}' has {parameters:,} parameters for inputs {tuple(input_shape or plan.shape)}, "
            + (f"more than the {most:,} weights there are" if most is not None and most < LARGEST else TOO_LARGE)
        )
    return plan.kind(num_classes, **arguments)


def count(name: str, num_classes: int, input_shape: tuple[int, ...]) -> int | None:
    """How many parameters a network has, without building it; None for one that is not defined here."""
    plan = NETWORKS.get(name) or (_wide_resnet(name) if name.startswith("wrn-") else None)
    if plan is None:
        return None
    _check_input(name, input_shape)
    return plan.kind.size(num_classes, **_arguments(name, plan, input_shape))


def _arguments(name: str, plan: Plan, input_shape: tuple[int, ...] | None) -> dict[str, Any]:
    """What a network is built with, besides the number of classes."""
    shape = plan.shape if input_shape is None else input_shape
    if len(shape) != len(plan.shape) or min(shape) < 1:
        wanted = (
            "images of shape (channels, height, width)" if len(plan.shape) == 3 else "features of shape (features,)"
        )
        raise MixMatchError(f"network '{name}' takes {wanted}, not {tuple(shape)}")
    arguments: dict[str, Any] = {"features": shape[0], **plan.arguments}
    if len(shape) == 3:
        size = min(shape[1:])
        if size < plan.smallest:
            least = f"{plan.smallest}x{plan.smallest}"
            raise MixMatchError(f"network '{name}' takes images of at least {least}, not {shape}")
        sized = {} if plan.scales is None else {"scales": plan.scales(size)}
        arguments = {"in_channels": shape[0], **plan.arguments, **sized}
    return arguments


def _check_input(name: str, shape: tuple[int, ...] | None) -> None:
    """Refuse an invalid shape, or one with more numbers than an image can have."""
    if shape is None:
        return
    if not all(isinstance(n, int) and not isinstance(n, bool) for n in shape):
        raise MixMatchError(f"network '{name}' takes inputs of a shape of whole numbers, not {tuple(shape)}")
    if math.prod(shape) > LARGEST_INPUT:
        raise MixMatchError(f"inputs of shape {tuple(shape)} are more than {LARGEST_INPUT:,} numbers each, the limit")


def _wide_resnet(name: str) -> Plan:
    match = re.fullmatch(r"wrn-(\d{1,9})-(\d{1,9})", name)
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
    if depth > DEEPEST:
        raise MixMatchError(
            f"network '{name}': a Wide ResNet's depth is at most {DEEPEST:,}: choose another with network="
        )
    return Plan(WideResNet, {"filters": 16 * width, "repeat": (depth - 4) // 6})


def unwrapped(network: nn.Module) -> nn.Module:
    """The network itself, if it is given compiled, or in a wrapper that spreads it over devices: both train its very
    parameters, and would give them other names."""
    while True:
        inner = getattr(network, "_orig_mod", None)  # what torch.compile leaves
        if inner is None and isinstance(network, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = network.module
        if not isinstance(inner, nn.Module):
            return network
        network = inner

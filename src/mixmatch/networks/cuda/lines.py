"""Convolutions line by line (`line_kernels`): where they run, and how they are launched."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from mixmatch.networks.cuda.tiles import LineTile, Work

disabled: set[torch.device] = set()
"""Devices on which the kernel did not run."""

ROWS = 64
"""Output channels, for both pixels where two are computed together: the rows of Hopper's matrix product."""


def runs_on(device: torch.device) -> bool:
    """Whether a device has the tensor cores of Hopper, and Triton its lower level."""
    return device not in disabled and _has_hopper(device)


@cache
def _has_hopper(device: torch.device) -> bool:
    if device.type != "cuda" or torch.version.hip is not None or torch.cuda.get_device_capability(device)[0] != 9:
        return False
    try:
        return find_spec("triton.experimental.gluon.language.nvidia.hopper") is not None
    except ModuleNotFoundError:  # a version of Triton without one of the packages above it
        return False


def suits(work: Work, in_channels: int, out_channels: int, pixels_per_row: int) -> bool:
    """Whether the kernel is made for a convolution of 3x3 with stride 1: its weights have to fit shared memory."""
    return work is not Work.WEIGHTS and in_channels in (32, 64) and pixels_per_row * out_channels == ROWS


def convolve(
    x: Tensor,
    weights: Tensor,
    extra: Tensor | None,
    y: Tensor,
    pixels_per_row: int,
    transposed: bool,
    tile: LineTile,
    *arguments: Any,
    **options: Any,
) -> None:
    """Launch the kernel for x, y and `extra` (N, H, W, C), which is y where there is none; the weights are as
    `kernels.convolve_tma` takes them."""
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from mixmatch.networks.cuda.line_kernels import convolve_lines  # imports Triton

    def descriptor(values: Tensor, *block: int) -> Any:
        layout = NVMMASharedLayout(min(128, values.element_size() * block[-1]), 16, rank=len(block))
        return TensorDescriptor.from_tensor(values, list(block), layout)

    def lines(values: Tensor, columns: int) -> Any:
        rows = values.shape[2] // pixels_per_row
        images = values.view(len(values), values.shape[1], rows, pixels_per_row * values.shape[3])
        return descriptor(images, tile.images, 1, rows, columns)

    size, into, out = x.shape[1], x.shape[3], y.shape[3]
    matrix = (
        descriptor(weights.view(into, -1), into, ROWS) if transposed else descriptor(weights.view(ROWS, -1), ROWS, into)
    )
    results = lines(y, ROWS)
    convolve_lines[(len(x) // tile.images * (size // tile.lines),)](
        lines(x, into),
        matrix,
        results if extra is None else lines(extra, ROWS),
        results,
        *arguments,
        H=size,
        W=size,
        IN_C=into,
        OUT_C=out,
        PIXELS_PER_ROW=pixels_per_row,
        IMAGES=tile.images,
        LINES=tile.lines,
        SLOTS=tile.slots,
        num_warps=tile.warps,
        **options,
    )

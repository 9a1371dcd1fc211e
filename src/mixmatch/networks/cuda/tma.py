"""Copies by the GPU's Tensor Memory Accelerator (TMA, from Hopper on): where it is used, and in which blocks."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from mixmatch.networks.cuda.tiles import Work

disabled: set[torch.device] = set()
"""Devices on which the kernels with TMA did not run."""


def uses_tma(device: torch.device) -> bool:
    """Whether kernels use TMA on a device. On a CPU, Triton's interpreter stands in for it."""
    return device not in disabled and _has_tma(device)


@cache
def _has_tma(device: torch.device) -> bool:
    if find_spec("triton.tools.tensor_descriptor") is None or torch.version.hip is not None:
        return False
    return device.type == "cpu" or torch.cuda.get_device_capability(device) >= (9, 0)


def enough_channels(work: Work, in_channels: int, out_channels: int) -> bool:
    """Whether TMA is faster for so many channels, by what was measured; they must fill tiles, so be a power of two."""
    enough = min(in_channels, out_channels) >= 64 if work is Work.WEIGHTS else in_channels >= 32
    return enough and in_channels & (in_channels - 1) == 0


def block_of(rows: int, size: int, pixels_per_row: int = 1) -> tuple[int, int, int] | None:
    """The block (images, lines, rows of a line) that has as many rows as a tile; None if no block does."""
    rows_per_line = size // pixels_per_row
    lines = rows // rows_per_line
    if rows_per_line & (rows_per_line - 1) or rows % rows_per_line or max(lines, size) % min(lines, size):
        return None
    return max(1, lines // size), min(lines, size), rows_per_line


def descriptor(x: Tensor, *block: int) -> Any:
    """A tensor as TMA takes it, to be copied in blocks of a shape."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(x, list(block))

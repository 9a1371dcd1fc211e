"""The tile that each kernel computes at a time: what was measured as fastest, else a guess."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Literal, NamedTuple


class Work(StrEnum):
    """What is computed of a convolution: its output, the gradient of its input, or that of its weights."""

    FORWARD = "forward"
    BACKWARD = "backward"
    WEIGHTS = "weights"


class ConvTile(NamedTuple):
    """Rows (pixels), columns (output channels) and input channels of a tile, warps, and pipeline stages."""

    bm: int
    bn: int
    bk: int
    warps: int
    stages: int


class WeightTile(NamedTuple):
    """Adjacent taps, rows (pixels) and output channels of a tile, the parts that rows are divided into, warps, and
    pipeline stages."""

    taps: int
    bm: int
    bn: int
    parts: int
    warps: int
    stages: int


class LineTile(NamedTuple):
    """Images and lines of a program that walks down lines, the lines that its ring holds, and warps."""

    images: int
    lines: int
    slots: int
    warps: int


TILES: dict[str, list[int]] = json.loads(Path(__file__).with_name("tiles.json").read_text())
"""What was fastest on a busy H200, by `key`: the numbers of a `ConvTile`; or of a `WeightTile` or `LineTile` with the
programs that should run at a time in the place of parts, or of lines. `benchmarks/tune_kernels.py` finds them."""

By = Literal["", "tma", "lines"]
"""Which kernels: those that run anywhere, those with TMA, or those that walk down lines."""


def key(work: Work, by: By, kernel: int, in_channels: int, out_channels: int, pixels_per_row: int) -> str:
    """The name in `TILES` of a computation; channels in and out are those of the computation, so backwards they are
    exchanged."""
    return f"{by} {work} {kernel} {in_channels} {out_channels} {pixels_per_row}".lstrip()


def conv_tile(
    work: Work, tma: bool, rows: int, kernel: int, in_channels: int, out_channels: int, pixels_per_row: int = 1
) -> ConvTile:
    """The tile for a convolution, forwards or backwards; its rows must divide the `rows` of a batch."""
    inputs = in_channels * (pixels_per_row + 2 if pixels_per_row > 1 and not tma else 1)
    guess = (128, min(64, out_channels * pixels_per_row), min(64, max(16, 1 << (inputs - 1).bit_length())), 4, 3)
    found = TILES.get(key(work, "tma" if tma else "", kernel, in_channels, out_channels, pixels_per_row), guess)
    bm, bn, bk, warps, stages = found
    return ConvTile(min(bm, rows & -rows), bn, bk, warps, stages)


def weight_tile(
    tma: bool, rows: int, kernel: int, in_channels: int, out_channels: int, pixels_per_row: int = 1
) -> WeightTile:
    """The tile for the gradient of a convolution's weights, from `rows` in all."""
    columns = pixels_per_row * out_channels
    guess = (kernel if in_channels <= 32 and not tma else 1, 64, min(64, columns), 264, 4, 3)
    found = TILES.get(key(Work.WEIGHTS, "tma" if tma else "", kernel, in_channels, out_channels, pixels_per_row), guess)
    taps, bm, bn, programs, warps, stages = found
    bm = min(bm, rows & -rows)
    tiles, parts = kernel * (kernel // taps) * (columns // bn), 1
    while tiles * parts < programs and rows % (2 * parts * bm) == 0:
        parts *= 2
    return WeightTile(taps, bm, bn, parts, warps, stages)


def line_tile(
    work: Work, images: int, divisible: int, size: int, in_channels: int, out_channels: int, pixels_per_row: int
) -> LineTile | None:
    """The tile for a convolution line by line of so many images, whose images must divide `divisible`; None where the
    other kernels are used, because they are faster or nobody has measured it, because the rows of a line are no
    power of two, as the block of a copy must be, or because a program has fewer lines, with the one above and the one
    below, than its ring: nothing would wait for the copies of the others."""
    found = TILES.get(key(work, "lines", 3, in_channels, out_channels, pixels_per_row))
    rows = size // pixels_per_row
    if found is None or divisible % found[0] or rows & (rows - 1):
        return None
    together, programs, slots, warps = found
    lines = size
    while images // together * (size // lines) < programs and lines % 2 == 0 and lines > slots:
        lines //= 2
    return LineTile(together, lines, slots, warps) if lines + 2 >= slots else None


def pointwise_rows(rows: int, channels: int) -> int:
    """Rows of a tile for what is done to each value by itself."""
    return min(8192 // channels, rows & -rows)

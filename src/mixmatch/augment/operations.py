"""Pillow's image operations for a whole batch: another operation for each image, the same bytes as Pillow's.

Exactly one operation is done to each image, so three stages that are neutral unless asked for do any of them: a look-up
table per image and channel, a gather that moves pixels, and a blend with a gray or smoothed image. No stage waits for
the device, and no shape depends on data. Numbers of an image (angles, slopes) are in float64, which MPS does not have:
there they are in float32, and a pixel in some thousands may come from its neighbor or be one level off.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

OPERATIONS = (
    "identity", "autocontrast", "equalize", "rotate", "solarize", "color", "contrast", "brightness", "sharpness",
    "shear_x", "shear_y", "translate_x", "translate_y", "posterize",
)  # fmt: skip
"""In the order of their numbers. What an operation's amount means:

- rotate: degrees counterclockwise; shear: pixels per pixel; translate: pixels by which the view moves
- posterize: bits that are kept; solarize: values from this one on are inverted
- color, contrast, brightness, sharpness: the factor of Pillow's `ImageEnhance`
- autocontrast, equalize: the share of the result in a blend with the image, 1 for the operation itself
"""

NUMBER = {name: number for number, name in enumerate(OPERATIONS)}


class Plan(NamedTuple):
    """What is asked of each stage, one entry (...) per image."""

    factor: Tensor
    """Of brightness and contrast, float32."""
    contrast: Tensor
    """Whether that is around the mean of the image, not around black."""
    kept: Tensor
    """The bits that posterize keeps, as a mask."""
    threshold: Tensor
    """Of solarize."""
    autocontrast: Tensor
    equalize: Tensor
    share: Tensor
    """Of the table in a blend with the image, float32."""
    blend: Tensor
    """Factor of color and sharpness, float32."""
    color: Tensor
    affine: Tensor
    """(..., 6): a pixel comes from column a0 x + a1 y + a2 and row a3 x + a4 y + a5, in 1/65536 of a pixel."""
    opaque: Tensor
    """Whether the operation knows no transparency, so that what an earlier one left empty becomes black."""


def exact(device: torch.device) -> torch.dtype:
    """The type for numbers of an image."""
    return torch.float32 if device.type == "mps" else torch.float64


def chosen(operation: Tensor, *names: str) -> Tensor:
    """Whether the operation is one of these."""
    found = operation == NUMBER[names[0]]
    for name in names[1:]:
        found = found | (operation == NUMBER[name])
    return found


def plan(operation: Tensor, amount: Tensor, height: int, width: int) -> Plan:
    """What operations by number (...) and their amounts (...) ask for in images of this size."""

    def of(neutral: float, *names: str) -> Tensor:
        return torch.where(chosen(operation, *names), amount, neutral)

    bits = of(8, "posterize").to(torch.int32)
    return Plan(
        factor=of(1, "brightness", "contrast").float(),
        contrast=chosen(operation, "contrast"),
        kept=255 - ((1 << (8 - bits)) - 1),
        threshold=of(256, "solarize").to(torch.int32),
        autocontrast=chosen(operation, "autocontrast"),
        equalize=chosen(operation, "equalize"),
        share=of(1, "autocontrast", "equalize").float(),
        blend=of(1, "color", "sharpness").float(),
        color=chosen(operation, "color"),
        affine=_affine(operation, amount, height, width),
        opaque=chosen(operation, "autocontrast", "equalize", "posterize", "solarize"),
    )


def _affine(operation: Tensor, amount: Tensor, height: int, width: int) -> Tensor:
    """Pillow's matrices in its fixed point numbers. It moves by whole pixels in another way, which gives the same."""
    rotate = chosen(operation, "rotate")
    angle = torch.where(rotate, amount, 0) * (-math.pi / 180)
    cos, sin = angle.cos(), angle.sin()
    across = torch.where(chosen(operation, "shear_x"), amount, sin)
    down = torch.where(chosen(operation, "shear_y"), amount, -sin)
    x, y = rotate * (width / 2), rotate * (height / 2)
    right = torch.where(chosen(operation, "translate_x"), (amount + 0.5).floor(), x - cos * x - across * y)
    below = torch.where(chosen(operation, "translate_y"), (amount + 0.5).floor(), y - down * x - cos * y)
    numbers = (cos, across, right + (cos + across) / 2, down, cos, below + (down + cos) / 2)
    return (torch.stack(numbers, -1) * 65536 + 0.5).floor().to(torch.int32)


def blend(first: Tensor, second: Tensor, share: Tensor) -> Tensor:
    """Pillow's `Image.blend` of integers, in float32 and cut off, not rounded. The product is clamped, which changes
    nothing, so that no compiler joins it with the sum: that would round once where Pillow rounds twice."""
    product = (share * (second - first)).clamp(-1024, 1024)
    return (first + product).clamp(0, 255).to(torch.uint8)


def gray(images: Tensor) -> Tensor:
    """Pillow's luminance of uint8 (..., C), 1 or 3 channels, as int32 (...)."""
    wide = images.to(torch.int32)
    if images.shape[-1] == 1:
        return wide[..., 0]
    red, green, blue = wide.unbind(-1)
    return (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16


def tables(images: Tensor, luminance: Tensor, asked: Plan) -> Tensor:
    """The look-up tables uint8 (N, 256, C) for images uint8 (N, P, C) with `luminance` (N, P)."""
    count, pixels, channels = images.shape
    values = torch.arange(256, dtype=torch.int32, device=images.device)

    mean = (2 * luminance.sum(1, dtype=torch.int32) + pixels) // (2 * pixels)
    center = torch.where(asked.contrast, mean, 0)[:, None]
    table = blend(center, values, asked.factor[:, None]).to(torch.int32) & asked.kept[:, None]
    table = torch.where(table < asked.threshold[:, None], table, 255 - table)[:, :, None]

    histogram = torch.zeros(count, 256, channels, dtype=torch.int32, device=images.device)
    one = torch.ones((), dtype=torch.int32, device=images.device).expand(images.shape)
    histogram = histogram.scatter_add(1, images.long(), one)
    upto = histogram.cumsum(1, dtype=torch.int32)
    values = values[:, None]

    low, high = (upto == 0).sum(1, keepdim=True), (upto < pixels).sum(1, keepdim=True)
    span = (high - low).clamp(min=1).to(exact(images.device))
    scale = torch.full_like(span, 255) / span  # 255 / span would round twice
    stretched = (values * scale).clamp(max=2**20) - low * scale  # clamped for the reason that blend has
    stretched = torch.where(high > low, stretched.to(torch.int32).clamp(0, 255), values)

    step = torch.where(upto < pixels, upto, 0).amax(1, keepdim=True) // 255
    even = (step // 2 + upto - histogram) // step.clamp(min=1)
    even = torch.where(step > 0, even.clamp(max=255), values)

    table = torch.where(asked.autocontrast[:, None, None], stretched, table)
    table = torch.where(asked.equalize[:, None, None], even, table)
    return blend(values, table, asked.share[:, None, None])


def smooth(images: Tensor) -> Tensor:
    """Pillow's filter SMOOTH of uint8 (N, H, W, C) as int16: 3x3 weights, five times the center, edges as they are."""
    wide = images.to(torch.int16)
    if min(images.shape[1:3]) < 3:
        return wide
    rows = wide[:, :-2] + wide[:, 1:-1] + wide[:, 2:]
    total = rows[:, :, :-2] + rows[:, :, 1:-1] + rows[:, :, 2:] + 4 * wide[:, 1:-1, 1:-1]
    return _with_edges(wide, torch.div(2 * total + 13, 26, rounding_mode="floor"))


def _with_edges(wide: Tensor, inner: Tensor) -> Tensor:
    """The inner part of images (N, H, W, C) replaced."""
    edge = (wide.shape[1] - inner.shape[1]) // 2
    padded = F.pad(inner, (0, 0, edge, edge, edge, edge))
    inside = [
        (torch.arange(size, device=wide.device) >= edge) & (torch.arange(size, device=wide.device) < size - edge)
        for size in wide.shape[1:3]
    ]
    return torch.where((inside[0][:, None] & inside[1])[:, :, None], padded, wide)


def sources(affine: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Where each pixel comes from (N, H W), and whether that is inside the image."""
    row, column = (torch.arange(size, dtype=torch.int32, device=affine.device) for size in (height, width))
    a = affine[:, :, None, None]
    x = (a[:, 2] + a[:, 1] * row[:, None] + a[:, 0] * column) >> 16
    y = (a[:, 5] + a[:, 4] * row[:, None] + a[:, 3] * column) >> 16
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    return torch.where(inside, y * width + x, 0).flatten(1), inside.flatten(1)


def apply(images: Tensor, asked: Plan, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Do one operation to each of uint8 images (N, H, W, C). Where a moved image leaves a pixel empty it is black, and
    no longer `valid` (N, H W)."""
    count, height, width, channels = images.shape
    pixels = images.flatten(1, 2)
    luminance = gray(pixels)
    source, inside = sources(asked.affine, height, width)
    source = source.long()
    moved = torch.where(inside[:, :, None], pixels.gather(1, source[:, :, None].expand_as(pixels)), 0)
    moved = tables(pixels, luminance, asked).gather(1, moved.long())
    moved = torch.where(inside[:, :, None], moved, 0)
    of = asked.color[:, None, None]
    other = torch.where(of, luminance[:, :, None].to(torch.int16), smooth(images).flatten(1, 2))
    out = blend(other, moved.to(torch.int16), asked.blend[:, None, None]).view(count, height, width, channels)
    return out, (inside & valid.gather(1, source)) | asked.opaque[:, None]

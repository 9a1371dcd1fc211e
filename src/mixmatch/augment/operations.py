"""Pillow's image operations for a whole batch: another operation for each image, the same bytes as Pillow's.

Exactly one operation is done to each image, so three stages that are neutral unless asked for do any of them: a look-up
table per image and channel, a gather that moves pixels, and a blend with a gray or smoothed image. No stage waits for
the device, and no shape depends on data. Numbers of an image (angles, slopes) are in float64, which MPS does not have:
there they are in float32, and a pixel in some thousands may come from its neighbor or be one level off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

OPERATIONS = (
    "identity", "autocontrast", "equalize", "rotate", "solarize", "color", "contrast", "brightness", "sharpness",
    "shear_x", "shear_y", "translate_x", "translate_y", "posterize", "invert", "blur", "smooth", "rescale", "cutout",
)  # fmt: skip
"""In the order of their numbers. What an operation's amount means:

- rotate: degrees counterclockwise; shear: pixels per pixel; translate: pixels by which the view moves
- posterize: bits that are kept; solarize: values from this one on are inverted
- color, contrast, brightness, sharpness: the factor of Pillow's `ImageEnhance`
- autocontrast, equalize, invert: the share of the result in a blend with the image, 1 for the operation itself

`apply` does these; blur and smooth, rescale and cutout have a function of their own.
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


def amount_of(operation: Tensor, amounts: Mapping[str, Tensor]) -> Tensor:
    """The amount of the operations by number (...), given that of each operation (...); 1 where none is given."""
    one = torch.ones_like(next(iter(amounts.values())))
    every = torch.stack([amounts.get(name, one) for name in OPERATIONS], -1)
    return every.gather(-1, operation[..., None])[..., 0]


def plan(operation: Tensor, amount: Tensor, height: int, width: int) -> Plan:
    """What operations by number (...) and their amounts (...) ask for in images of this size."""

    def of(neutral: float, *names: str) -> Tensor:
        return torch.where(chosen(operation, *names), amount, neutral)

    bits = of(8, "posterize").to(torch.int32)
    return Plan(
        factor=of(1, "brightness", "contrast").float(),
        contrast=chosen(operation, "contrast"),
        kept=255 - ((1 << (8 - bits)) - 1),
        threshold=torch.where(chosen(operation, "invert"), 0, of(256, "solarize")).to(torch.int32),
        autocontrast=chosen(operation, "autocontrast"),
        equalize=chosen(operation, "equalize"),
        share=of(1, "autocontrast", "equalize", "invert").float(),
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
    """Pillow's luminance of uint8 (N, C, ...), 1 or 3 channels, as int32 (N, ...)."""
    wide = images.to(torch.int32)
    if images.shape[1] == 1:
        return wide[:, 0]
    red, green, blue = wide.unbind(1)
    return (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16


def tables(images: Tensor, luminance: Tensor, asked: Plan) -> Tensor:
    """The look-up tables uint8 (N, C, 256) for images uint8 (N, C, P) with `luminance` (N, P)."""
    count, channels, pixels = images.shape
    values = torch.arange(256, dtype=torch.int32, device=images.device)

    mean = (2 * luminance.sum(1, dtype=torch.int32) + pixels) // (2 * pixels)
    center = torch.where(asked.contrast, mean, 0)[:, None]
    table = blend(center, values, asked.factor[:, None]).to(torch.int32) & asked.kept[:, None]
    table = torch.where(table < asked.threshold[:, None], table, 255 - table)[:, None]

    histogram = torch.zeros(count, channels, 256, dtype=torch.int32, device=images.device)
    one = torch.ones((), dtype=torch.int32, device=images.device).expand(images.shape)
    histogram = histogram.scatter_add(2, images.long(), one)
    upto = histogram.cumsum(2, dtype=torch.int32)

    low, high = (upto == 0).sum(2, keepdim=True), (upto < pixels).sum(2, keepdim=True)
    span = (high - low).clamp(min=1).to(exact(images.device))
    scale = torch.full_like(span, 255) / span  # 255 / span would round twice
    stretched = (values * scale).clamp(max=2**20) - (low * scale).clamp(max=2**20)  # clamped as blend's product is
    stretched = torch.where(high > low, stretched.to(torch.int32).clamp(0, 255), values)

    step = torch.where(upto < pixels, upto, 0).amax(2, keepdim=True) // 255
    even = (step // 2 + upto - histogram) // step.clamp(min=1)
    even = torch.where(step > 0, even.clamp(max=255), values)

    table = torch.where(asked.autocontrast[:, None, None], stretched, table)
    table = torch.where(asked.equalize[:, None, None], even, table)
    return blend(values, table, asked.share[:, None, None])


def smooth(images: Tensor) -> Tensor:
    """Pillow's filter SMOOTH of uint8 (N, C, H, W) as int16: 3x3 weights, five times the center, edges as they are."""
    out = images.to(torch.int16)
    if min(images.shape[2:]) >= 3:
        inner = out[:, :, 1:-1, 1:-1]
        out = _with_inner(out, 1, torch.div(2 * (_box(out, 3) + 4 * inner) + 13, 26, rounding_mode="floor"))
    return out


def blur(images: Tensor) -> Tensor:
    """Pillow's filter BLUR of uint8 (N, C, H, W) as int16: the mean of a 5x5 ring, edges as they are."""
    out = images.to(torch.int16)
    if min(images.shape[2:]) >= 5:
        ring = _box(out, 5) - _box(out[:, :, 1:-1, 1:-1], 3)
        out = _with_inner(out, 2, (ring + 8) >> 4)
    return out


def _box(wide: Tensor, size: int) -> Tensor:
    """Sums over squares that lie inside: (N, C, H, W) to (N, C, H - size + 1, W - size + 1)."""
    height, width = wide.shape[2] - size + 1, wide.shape[3] - size + 1
    rows = sum((wide[:, :, i : i + height] for i in range(1, size)), wide[:, :, :height])
    return sum((rows[:, :, :, i : i + width] for i in range(1, size)), rows[:, :, :, :width])


def _with_inner(wide: Tensor, edge: int, inner: Tensor) -> Tensor:
    """The images with all but their edges replaced."""
    out = wide.clone()
    out[:, :, edge:-edge, edge:-edge] = inner
    return out


def sources(affine: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Where each pixel comes from (N, H W), and whether that is inside the image."""
    row, column = (torch.arange(size, dtype=torch.int32, device=affine.device) for size in (height, width))
    a = affine[:, :, None, None]
    x = (a[:, 2] + a[:, 1] * row[:, None] + a[:, 0] * column) >> 16
    y = (a[:, 5] + a[:, 4] * row[:, None] + a[:, 3] * column) >> 16
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    return torch.where(inside, y * width + x, 0).flatten(1), inside.flatten(1)


def apply(images: Tensor, asked: Plan, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Do one operation to each of uint8 images (N, C, H, W). Where a moved image leaves a pixel empty it is black, and
    no longer `valid` (N, H W)."""
    pixels = images.flatten(2)
    luminance = gray(pixels)
    source, inside = sources(asked.affine, *images.shape[2:])
    source = source.long()
    moved = pixels.gather(2, source[:, None].expand_as(pixels))
    moved = tables(pixels, luminance, asked).gather(2, moved.long())
    moved = torch.where(inside[:, None], moved, 0)
    other = torch.where(asked.color[:, None, None], luminance[:, None].to(torch.int16), smooth(images).flatten(2))
    out = blend(other, moved.to(torch.int16), asked.blend[:, None, None]).view_as(images)
    return out, (inside & valid.gather(1, source)) | asked.opaque[:, None]


def soften(images: Tensor, operation: Tensor, share: Tensor) -> Tensor:
    """Blend uint8 images (N, C, H, W) whose operation is blur or smooth with their filtered form."""
    softer = torch.where(chosen(operation, "blur")[:, None, None, None], blur(images), smooth(images))
    share = torch.where(chosen(operation, "blur", "smooth"), share, 0).float()
    return blend(images.to(torch.int16), softer, share[:, None, None, None])


def hide(images: Tensor, center: Tensor, side: Tensor) -> Tensor:
    """Make a square of uint8 images (N, C, H, W) gray (127): `side` (N,) wide, less one if odd, around a `center`
    (N, 2) between 0 and 1."""
    half = (side // 2)[:, None]
    covered = []
    for size, place in zip(images.shape[2:], center.to(exact(center.device)).unbind(1), strict=True):
        distance = torch.arange(size, device=images.device) - (place[:, None] * size).long()
        covered.append((distance >= -half) & (distance < half))
    return images.masked_fill((covered[0][:, :, None] & covered[1][:, None, :])[:, None], 127)


FILTERS = ("lanczos", "bicubic", "bilinear", "box", "hamming", "nearest")
"""Pillow's ways to resize, by number."""


def rescale(images: Tensor, operation: Tensor, margin: Tensor, way: Tensor) -> Tensor:
    """Cut a `margin` (N,), a share of the size up to 1/4, off each side of uint8 images (N, C, H, W) whose operation is
    rescale, and resize what is left by the filter with this number. Along each axis that is a product with a matrix of
    Pillow's fixed point weights, whole numbers which float64 adds exactly.

    One rounding is not Pillow's: `nearest` adds up positions in steps, and where one is exactly on the border between
    two pixels its sum may fall short of it. That cannot happen if the size is a power of two."""
    asked = chosen(operation, "rescale")
    margin, way = torch.where(asked, margin, 0), torch.where(asked, way, FILTERS.index("nearest"))
    height, width = images.shape[2:]
    matrices = {size: _resizing(size, margin) for size in {height, width}}
    across, down = (matrices[size][way, (margin * size).round().long()] for size in (width, height))
    out = _rounded(torch.einsum("nchw,nxw->nchx", images.to(margin.dtype), across))
    return _rounded(torch.einsum("nchw,nyh->ncyw", out, down)).to(torch.uint8)


def _rounded(sums: Tensor) -> Tensor:
    return ((sums + 2**21) / 2**22).floor().clamp(0, 255)


def _resizing(size: int, like: Tensor) -> Tensor:
    """The weights of the pixels before for each pixel after, in 1/2^22: (filters, margins from 0 on, size, size)."""
    place = torch.arange(size, device=like.device, dtype=like.dtype)
    margin = torch.arange(-(-size // 4) + 1, device=like.device, dtype=like.dtype)[:, None, None]
    left = size - 2 * margin
    before, after = place - margin, place[:, None] + 0.5
    distance = before + 0.5 - (after * (left / torch.full_like(left, size))).clamp(max=2**20)  # clamped as in blend
    far = distance.abs()
    near = torch.where(far < 1, (1.5 * far - 2.5) * far * far + 1, -0.5 * (((far - 5) * far + 8) * far - 4))
    window = 0.5400000214576721 + 0.46000000834465027 * (math.pi * far).cos()  # Pillow has 0.54 and 0.46 in float32
    weights = {
        "lanczos": torch.sinc(distance) * torch.sinc(distance / 3) * ((distance >= -3) & (distance < 3)),
        "bicubic": near * (far < 2),
        "bilinear": (1 - far).clamp(min=0),
        "box": (distance > -0.5) & (distance <= 0.5),
        "hamming": torch.sinc(far) * window * (far < 1),
        "nearest": before == (after * left / size + 2**-20).floor(),
    }
    every = torch.stack([weights[name].to(like.dtype) for name in FILTERS]) * ((before >= 0) & (before < left))
    every = every / every.sum(3, keepdim=True) * 2**22
    return torch.where(every < 0, (every - 0.5).ceil(), (every + 0.5).floor())

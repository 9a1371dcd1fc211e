"""Augmentation of whole batches on any device: what to do is drawn as numbers, doing it is arithmetic.

The same draws give the same images on every device, because only integers decide where a pixel comes from. Features
get the paper's other augmentation, Gaussian noise (Section 3.1), and lose some of their values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from mixmatch.data.source import Features, Source
from mixmatch.draws import Draws
from mixmatch.errors import MixMatchError


class Augmentation(Protocol):
    """Draws what to do to rows, and does it."""

    def draw(self, rng: np.random.Generator, views: int, count: int) -> Draws:
        """Draw `views` augmentations of each of `count` rows."""
        ...

    def __call__(self, inputs: Tensor, draws: Mapping[str, Tensor]) -> Tensor:
        """Rows (B, ...) as a pool holds them to float32 (views, B, ...) as a network takes them."""
        ...


def augmentation(source: Source, *, pad: int, flip: bool, noise: float, mask: float) -> Augmentation:
    """The augmentation for a source: crops and flips of images, noise and masks for features."""
    if isinstance(source.train, Features):
        if pad or flip:
            raise MixMatchError("pad and flip are for images, but the data holds features: use noise and mask")
        return NoiseMask(source.train.features.shape[1], noise, mask)
    if noise or mask:
        raise MixMatchError("noise and mask are for features, but the data holds images: use pad and flip")
    crop = CropFlip(pad, flip)
    try:
        crop.check(*source.image_shape[:2])
    except ValueError as error:
        raise MixMatchError(str(error)) from None
    return crop


def unaugmented(inputs: Tensor) -> Tensor:
    """Rows as a pool holds them, as a network takes them."""
    return to_unit_range(inputs) if inputs.dtype == torch.uint8 else inputs


def to_unit_range(images: Tensor) -> Tensor:
    """uint8 pixels (..., H, W, C) as float32 in [-1, 1], (..., C, H, W) in channels-last memory order."""
    return images.to(torch.float32).mul_(2 / 255).sub_(1).movedim(-1, -3)


def reflect(index: Tensor, size: int) -> Tensor:
    """Where a position outside 0 ... size - 1 comes from when the image is mirrored at its edge pixels."""
    index = index.abs()
    return torch.where(index >= size, 2 * (size - 1) - index, index)


@dataclass(frozen=True)
class CropFlip:
    """Flip left to right with probability 1/2 (if `flip`), then mirror-pad by `pad` and crop back at a random place."""

    pad: int
    flip: bool

    def check(self, height: int, width: int) -> None:
        """A mirror cannot show more than the image behind it."""
        if not 0 <= self.pad < min(height, width):
            raise ValueError(f"pad must be between 0 and {min(height, width) - 1} for {height}x{width} images")

    def draw(self, rng: np.random.Generator, views: int, count: int) -> Draws:
        """Draw `views` augmentations of each of `count` images."""
        offset = rng.integers(0, 2 * self.pad + 1, (views, count, 2), dtype=np.int64)
        flip = rng.integers(0, 2, (views, count), dtype=np.int64)
        return {"offset": offset, "flip": flip if self.flip else np.zeros_like(flip)}

    def __call__(self, inputs: Tensor, draws: Mapping[str, Tensor]) -> Tensor:
        """uint8 (B, H, W, C) to float32 (views, B, C, H, W) in [-1, 1]."""
        count, height, width, _ = inputs.shape
        device = inputs.device
        dy, dx = draws["offset"].unbind(-1)
        rows = reflect(torch.arange(height, device=device) + dy[..., None] - self.pad, height)
        columns = reflect(torch.arange(width, device=device) + dx[..., None] - self.pad, width)
        columns = torch.where(draws["flip"][..., None] == 1, width - 1 - columns, columns)
        image = torch.arange(count, device=device)[:, None, None]
        return to_unit_range(inputs[image, rows[..., :, None], columns[..., None, :]])


@dataclass(frozen=True)
class NoiseMask:
    """Add Gaussian noise of deviation `noise` to standardized features, then set a share `mask` of them to 0, which is
    their mean."""

    features: int
    noise: float
    mask: float

    def draw(self, rng: np.random.Generator, views: int, count: int) -> Draws:
        """Draw `views` augmentations of each of `count` rows."""
        shape = (views, count, self.features)
        noise = rng.standard_normal(shape, np.float32) * np.float32(self.noise)
        return {"noise": noise, "kept": rng.random(shape, np.float32) >= self.mask}

    def __call__(self, inputs: Tensor, draws: Mapping[str, Tensor]) -> Tensor:
        """float32 (B, F) to float32 (views, B, F)."""
        return (inputs + draws["noise"]) * draws["kept"]

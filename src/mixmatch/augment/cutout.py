"""A simple strong augmentation of images: crop and flip, then hide a square (DeVries and Taylor, 2017)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mixmatch.augment.crop_flip import CropFlip
from mixmatch.draws import Draws


@dataclass(frozen=True)
class Cutout:
    """After a crop and flip, a square of half the image's shorter side becomes gray. Its center is anywhere in the
    image, so a part of it may lie outside."""

    crop: CropFlip
    height: int
    width: int

    def draw(self, rng: np.random.Generator, views: int, count: int) -> Draws:
        center = rng.integers(0, (self.height, self.width), (views, count, 2), dtype=np.int64)
        return {**self.crop.draw(rng, views, count), "center": center}

    def __call__(self, inputs: Tensor, draws: Mapping[str, Tensor]) -> Tensor:
        """uint8 (B, H, W, C) to float32 (views, B, C, H, W) in [-1, 1]."""
        images = self.crop(inputs, draws)
        y, x = draws["center"].unbind(-1)
        rows, columns = self._inside(y, self.height), self._inside(x, self.width)
        hidden = rows[..., :, None] & columns[..., None, :]
        return images.masked_fill(hidden[..., None, :, :], 0.0)

    def _inside(self, center: Tensor, size: int) -> Tensor:
        """Which of `size` positions the square around `center` (...) covers: (..., size)."""
        side = min(self.height, self.width) // 2
        start = center[..., None] - side // 2
        position = torch.arange(size, device=center.device)
        return (position >= start) & (position < start + side)

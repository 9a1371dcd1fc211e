"""The paper's augmentation of images: random flips and crops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mixmatch.augment.base import to_unit_range
from mixmatch.draws import Draws
from mixmatch.errors import MixMatchError


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
            raise MixMatchError(f"pad must be between 0 and {min(height, width) - 1} for {height}x{width} images")

    def draw(self, rng: np.random.Generator, views: int, count: int) -> Draws:
        offset = rng.integers(0, 2 * self.pad + 1, (views, count, 2), dtype=np.int64)
        flip = rng.integers(0, 2, (views, count), dtype=np.int64)
        return {"offset": offset, "flip": flip if self.flip else np.zeros_like(flip)}

    def __call__(self, inputs: Tensor, draws: Mapping[str, Tensor]) -> Tensor:
        """uint8 (B, H, W, C) to float32 (views, B, C, H, W) in [-1, 1]."""
        return to_unit_range(self.crop(inputs, draws))

    def crop(self, inputs: Tensor, draws: Mapping[str, Tensor]) -> Tensor:
        """uint8 (B, H, W, C) to uint8 (views, B, H, W, C)."""
        count, height, width, _ = inputs.shape
        device = inputs.device
        dy, dx = draws["offset"].unbind(-1)
        rows = reflect(torch.arange(height, device=device) + dy[..., None] - self.pad, height)
        columns = reflect(torch.arange(width, device=device) + dx[..., None] - self.pad, width)
        columns = torch.where(draws["flip"][..., None] == 1, width - 1 - columns, columns)
        image = torch.arange(count, device=device)[:, None, None]
        return inputs[image, rows[..., :, None], columns[..., None, :]]

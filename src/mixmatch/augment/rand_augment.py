"""RandAugment (Cubuk et al., 2020) as FixMatch uses it: a few random operations of random strength, then cutout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mixmatch.augment import operations
from mixmatch.augment.base import to_unit_range
from mixmatch.augment.crop_flip import CropFlip
from mixmatch.draws import Draws

OPERATIONS = operations.OPERATIONS[:14]

LEVELS = range(1, 10)


@dataclass(frozen=True)
class RandAugment:
    """Random operations of 14 on each image, and a square that is hidden, as one of three programs does it.

    - `fixmatch`: FixMatch's authors. After crop and flip 2 operations, each with probability 1/2, in 9 levels. Empty
      and hidden pixels are gray (0 in [-1, 1]); those an operation left empty are black if autocontrast, equalize,
      posterize or solarize follows. The square has 16 pixels.
    - `kekmodel`: FixMatch-pytorch. The same number of operations; color, contrast, brightness and sharpness are only
      reduced, posterize is weaker. Empty pixels are black; the square has 17 pixels and is gray (127).
    - `torchssl`: TorchSSL. Before crop and flip 3 operations, always, at levels without steps. Empty pixels are black;
      the square has up to half the width and the color (125, 123, 114).

    Translations of `fixmatch` and squares of fixed size are meant for 32 pixels: smaller images get proportionally
    less.
    """

    crop: CropFlip = CropFlip(0, False)  # noqa: RUF009 (never written to)
    variant: Literal["fixmatch", "kekmodel", "torchssl"] = "fixmatch"

    def draw(self, rng: np.random.Generator, views: int, count: int) -> Draws:
        steps = self.variant != "torchssl"
        shape = (views, count, 2 if steps else 3)
        draws = self.crop.draw(rng, views, count)
        draws["operation"] = rng.integers(0, len(OPERATIONS), shape, dtype=np.int8)
        draws["center"] = rng.random((views, count, 2), np.float32)
        if steps:
            draws["level"] = rng.integers(LEVELS.start, LEVELS.stop, shape, dtype=np.int8)
            draws["negative"] = rng.integers(0, 2, shape, dtype=np.int8)
            draws["applied"] = rng.integers(0, 2, shape, dtype=np.int8)
        else:
            draws["level"] = rng.random(shape, np.float32)
            draws["side"] = rng.random((views, count), np.float32)
        return draws

    def __call__(self, inputs: Tensor, draws: Mapping[str, Tensor]) -> Tensor:
        """uint8 (B, H, W, C) to float32 (views, B, C, H, W) in [-1, 1]."""
        views, count = draws["offset"].shape[:2]
        own = {name: draw.flatten(0, 1) for name, draw in draws.items()}
        if self.variant == "torchssl":
            images = inputs.movedim(3, 1).expand(views, -1, -1, -1, -1).flatten(0, 1)
        else:
            images = self.crop.crop(inputs, draws).flatten(0, 1).movedim(3, 1).contiguous()
        images, empty = self._operate(images, own)
        hidden = self._square(images, own)
        if self.variant == "kekmodel":
            images = images.masked_fill(hidden[:, None], 127)
        elif self.variant == "torchssl":
            channels = zip(images.unbind(1), (125, 123, 114) if images.shape[1] == 3 else (123,), strict=True)
            images = torch.stack([channel.masked_fill(hidden, value) for channel, value in channels], 1)
        images = images.movedim(1, 3).contiguous()
        if self.variant == "torchssl":
            images = self.crop.crop(images, {name: own[name][None] for name in ("offset", "flip")})
        out = to_unit_range(images.view(views, count, *inputs.shape[1:]))
        if self.variant == "fixmatch":
            out = out.masked_fill((hidden | empty).view(views, count, 1, *inputs.shape[1:3]), 0)
        return out

    def _operate(self, images: Tensor, draws: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The operations of draws (N, ...) on uint8 images (N, C, H, W), and which pixels (N, H, W) are empty."""
        height, width = images.shape[2:]
        operation = draws["operation"].long()
        amount = operations.amount_of(operation, self.amounts(draws, height, width))
        if "applied" in draws:
            operation = operation * draws["applied"]
        asked = operations.plan(operation, amount, height, width)
        valid = torch.ones_like(images[:, 0], dtype=torch.bool).flatten(1)
        for slot in range(operation.shape[1]):
            images, valid = operations.apply(images, operations.Plan(*(part[:, slot] for part in asked)), valid)
        return images, ~valid.view_as(images[:, 0])

    def amounts(self, draws: Mapping[str, Tensor], height: int, width: int) -> dict[str, Tensor]:
        """The amount that each operation would have at the drawn levels."""
        drawn = draws["level"]
        level, size = drawn.to(operations.exact(drawn.device)), {"translate_x": width, "translate_y": height}
        if self.variant == "torchssl":
            around = 2 * level - 1
            enhance = 0.05 + 0.9 * level
            amounts = {"rotate": 30 * around, "solarize": (256 * level).ceil(), "posterize": (4 + 4 * level).floor()}
            amounts |= dict.fromkeys(("shear_x", "shear_y"), 0.3 * around)
            amounts |= {name: 0.3 * around * pixels for name, pixels in size.items()}
        else:
            whole = drawn.long()
            sign = 1 - 2 * draws["negative"].long()
            amounts = {"rotate": 3 * whole * sign, "solarize": 256 - 256 * whole // 10}
            amounts |= dict.fromkeys(("shear_x", "shear_y"), 0.03 * level * sign)
            if self.variant == "fixmatch":
                enhance = 0.1 + 0.18 * level
                amounts["posterize"] = 4 - 4 * whole // 10
                amounts |= {name: sign * (whole * min(pixels, 32) // 32) for name, pixels in size.items()}
            else:
                enhance = 0.05 + 0.09 * level
                amounts["posterize"] = 4 + 4 * whole // 10
                amounts |= {name: sign * _thirtieths(whole, pixels) for name, pixels in size.items()}
        amounts |= dict.fromkeys(("color", "contrast", "brightness", "sharpness"), enhance)
        return {name: amount.to(level.dtype) for name, amount in amounts.items()}

    def _square(self, images: Tensor, draws: Mapping[str, Tensor]) -> Tensor:
        """Which pixels (N, H, W) the hidden square covers."""
        height, width = images.shape[2:]
        side = min(16, min(height, width) // 2)
        rows, columns = (
            self._covered(draws, center, size, width, side)
            for center, size in zip(draws["center"].unbind(-1), (height, width), strict=True)
        )
        return rows[:, :, None] & columns[:, None, :]

    def _covered(self, draws: Mapping[str, Tensor], center: Tensor, size: int, width: int, side: int) -> Tensor:
        """Which of `size` positions the square covers: (N, size)."""
        place = torch.arange(size, device=center.device)
        center = center.to(operations.exact(center.device))[:, None]
        if self.variant == "fixmatch":
            start = (center * size).floor() - side // 2
            return (place >= start) & (place < start + side // 2 * 2)
        # Both ports draw a rectangle with Pillow, which includes its end, and cut it off at one side only.
        if self.variant == "kekmodel":
            start, length = (center * size - side / 2).clamp(min=0).floor(), side
            return (place >= start) & (place <= start + length)
        drawn = 0.5 * width * draws["side"].to(center.dtype)[:, None]
        center = size - (size - 1) * center  # from 1, not from 0: NumPy's uniform(size) begins at size and ends at 1
        start = (center - drawn / 2).clamp(min=0).floor()
        return (place >= start) & (place <= (start + drawn).floor()) & (drawn > 0)


def _thirtieths(level: Tensor, size: int) -> Tensor:
    """int(level * 0.3 / 10 * size) as Python has it in float64, for levels 1 to 9: one less than the exact result where
    that is a whole number and the float is just below."""
    less = sum(1 << m for m in LEVELS if int(m * 0.3 / 10 * size) < 3 * m * size // 100)
    return 3 * level * size // 100 - ((less >> level) & 1)

"""What an augmentation is: it draws numbers on the CPU, and applies them to a batch on any device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from mixmatch.draws import Draws


class Augmentation(Protocol):
    """Draws what to do to rows, and does it."""

    def draw(self, rng: np.random.Generator, views: int, count: int) -> Draws:
        """Draw `views` augmentations of each of `count` rows."""

    def __call__(self, inputs: Tensor, draws: Mapping[str, Tensor]) -> Tensor:
        """Rows (B, ...) as a pool holds them to float32 (views, B, ...) as a network takes them."""


@runtime_checkable
class Adaptive(Augmentation, Protocol):
    """An augmentation that learns how strong it may be. Its state is among the draws of each call."""

    def state(self, device: torch.device) -> dict[str, Tensor]:
        """What it knows before the first step."""

    def draw_probe(self, rng: np.random.Generator, count: int) -> Draws:
        """Draw a random augmentation of each of `count` rows, to learn from."""

    def probe(self, inputs: Tensor, draws: Mapping[str, Tensor]) -> Tensor:
        """Apply it to rows (B, ...): (1, B, ...)."""

    def learned(self, state: Mapping[str, Tensor], draws: Mapping[str, Tensor], proximity: Tensor) -> dict[str, Tensor]:
        """The state after a probe: `proximity` (B,) is how near the predictions were to the labels, 1 for the
        same."""


def unaugmented(inputs: Tensor) -> Tensor:
    """Rows as a pool holds them, as a network takes them."""
    return to_unit_range(inputs) if inputs.dtype == torch.uint8 else inputs


def to_unit_range(images: Tensor) -> Tensor:
    """uint8 pixels (..., H, W, C) as float32 in [-1, 1], (..., C, H, W) in channels-last memory order."""
    return images.to(torch.float32).mul_(2 / 255).sub_(1).movedim(-1, -3)

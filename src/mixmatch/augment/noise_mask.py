"""Augmentation of features: Gaussian noise (the paper's Section 3.1), values hidden at random, and where features were
computed from augmented images, a choice among those."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mixmatch.draws import Draws


@dataclass(frozen=True)
class NoiseMask:
    """Take one of a row's `choices` at random, if it has several; add Gaussian noise of deviation `noise` to its
    standardized features; set a share `mask` of them to 0, which is their mean."""

    features: int
    noise: float
    mask: float
    choices: int = 0

    def draw(self, rng: np.random.Generator, views: int, count: int) -> Draws:
        shape = (views, count, self.features)
        noise = rng.standard_normal(shape, np.float32) * np.float32(self.noise)
        draws: Draws = {"noise": noise, "kept": rng.random(shape, np.float32) >= self.mask}
        if self.choices:
            draws["choice"] = rng.integers(0, self.choices, shape[:2])
        return draws

    def __call__(self, inputs: Tensor, draws: Mapping[str, Tensor]) -> Tensor:
        """float32 (B, F), or (B, choices, F), to float32 (views, B, F)."""
        if self.choices:
            inputs = inputs[torch.arange(len(inputs), device=inputs.device), draws["choice"]]
        return (inputs + draws["noise"]) * draws["kept"]

"""Augmentation of features: Gaussian noise (the paper's Section 3.1), and values hidden at random."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from mixmatch.draws import Draws


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

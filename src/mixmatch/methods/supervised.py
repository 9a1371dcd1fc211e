"""Supervised training on the labeled images alone: what every other method must beat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from mixmatch import functional
from mixmatch.draws import Draws
from mixmatch.methods.base import Batch, Metrics, Predictor, Progress


@dataclass(frozen=True)
class Supervised:
    """Cross-entropy on augmented labeled images; the unlabeled ones are not looked at."""

    smoothing: float = 0.0
    """How far a target moves from its class towards all classes alike."""

    unlabeled_views = 0
    wants_noise = False

    def draw(self, rng: np.random.Generator, batch_size: int) -> Draws:
        return {}

    def loss(
        self, model: Predictor, batch: Batch, draws: Mapping[str, Tensor], progress: Progress
    ) -> tuple[Tensor, Metrics]:
        p = batch.y - self.smoothing * (batch.y - 1 / batch.y.shape[-1])
        loss = functional.labeled_loss(model(batch.x, stats="update"), p)
        return loss, {"loss": loss}

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

    unlabeled_views = 0

    def draw(self, rng: np.random.Generator, batch_size: int) -> Draws:
        return {}

    def loss(
        self, model: Predictor, batch: Batch, draws: Mapping[str, Tensor], progress: Progress
    ) -> tuple[Tensor, Metrics]:
        loss = functional.labeled_loss(model(batch.x, stats="update"), batch.y)
        return loss, {"loss": loss}

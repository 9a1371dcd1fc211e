"""Supervised training on the labeled images alone: what every other method must beat."""

from __future__ import annotations

from dataclasses import dataclass

from mixmatch import functional
from mixmatch.methods.base import Batch, Method, Predictor, Progress, Step, Tensors, setting


@dataclass(frozen=True)
class Supervised(Method):
    """Cross-entropy on augmented labeled images; unlabeled data is not used."""

    smoothing: float = setting(
        0.0, "Label smoothing: how far targets move towards the uniform distribution.", within=(0, 1), search=(0, 0.3)
    )

    def loss(self, model: Predictor, batch: Batch, draws: Tensors, progress: Progress, state: Tensors) -> Step:
        p = batch.y - self.smoothing * (batch.y - 1 / batch.y.shape[-1])
        loss = functional.labeled_loss(model(batch.x, stats="update"), p)
        return Step(loss, {"loss": loss})

"""Pi-Model (Laine and Aila, 2017): two augmentations of one image should get the same prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from mixmatch import functional
from mixmatch.draws import Draws
from mixmatch.methods.base import Batch, Metrics, Predictor, Progress, both


@dataclass(frozen=True)
class PiModel:
    """The second view is trained towards the first one's prediction; no gradient flows through the first."""

    consistency_weight: float = 10.0
    """Weight of the unlabeled loss."""
    warmup: float = 0.4
    """Part of the training over which that weight rises linearly from 0."""

    unlabeled_views = 2
    wants_noise = False

    def draw(self, rng: np.random.Generator, batch_size: int) -> Draws:
        return {}

    def loss(
        self, model: Predictor, batch: Batch, draws: Mapping[str, Tensor], progress: Progress
    ) -> tuple[Tensor, Metrics]:
        (fixed,), (logits_x, logits_u) = both(model, [batch.u[0]], [batch.x, batch.u[1]])
        target = fixed.softmax(dim=-1)
        loss_x = functional.labeled_loss(logits_x, batch.y)
        loss_u = functional.unlabeled_loss(logits_u, target)
        weight = self.consistency_weight * functional.linear_ramp(progress.step, self.warmup * progress.total)
        loss = loss_x + weight * loss_u
        return loss, {"loss": loss, "loss_x": loss_x, "loss_u": loss_u, "confidence": target.amax(dim=-1).mean()}

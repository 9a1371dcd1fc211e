"""Mean Teacher (Tarvainen and Valpola, 2017): the averaged weights teach the live ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from mixmatch import functional
from mixmatch.draws import Draws
from mixmatch.methods.base import Batch, Metrics, Predictor, Progress, both


@dataclass(frozen=True)
class MeanTeacher:
    """The live weights' prediction on one view is trained towards the averaged weights' on another.

    The teacher normalizes with batch statistics, and its average is the one that is evaluated.
    """

    consistency_weight: float = 50.0
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
        (taught,), (logits_x, logits_u) = both(model, [batch.u[0]], [batch.x, batch.u[1]], "ema")
        target = taught.softmax(dim=-1)
        loss_x = functional.labeled_loss(logits_x, batch.y)
        loss_u = functional.unlabeled_loss(logits_u, target)
        weight = self.consistency_weight * functional.linear_ramp(progress.step, self.warmup * progress.total)
        loss = loss_x + weight * loss_u
        return loss, {"loss": loss, "loss_x": loss_x, "loss_u": loss_u, "confidence": target.amax(dim=-1).mean()}

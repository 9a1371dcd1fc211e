"""Interpolation Consistency Training (Verma et al., 2019): a mix of images should get the mix of their predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from mixmatch import functional
from mixmatch.draws import Draws
from mixmatch.methods.base import Batch, Metrics, Predictor, Progress, both


@dataclass(frozen=True)
class ICT:
    """Targets are the averaged weights' predictions, mixed like the images; labeled images are not mixed."""

    consistency_weight: float = 50.0
    """Weight of the unlabeled loss."""
    alpha: float = 0.5
    """MixUp's Beta(alpha, alpha)."""
    warmup: float = 0.4
    """Part of the training over which the weight rises linearly from 0."""

    unlabeled_views = 1
    wants_noise = False

    def draw(self, rng: np.random.Generator, batch_size: int) -> Draws:
        return {"lam": rng.beta(self.alpha, self.alpha, batch_size).astype(np.float32)}

    def loss(
        self, model: Predictor, batch: Batch, draws: Mapping[str, Tensor], progress: Progress
    ) -> tuple[Tensor, Metrics]:
        u = batch.u[0]
        mixed = functional.mix(u, u.flip(0), draws["lam"])
        (taught,), (logits_x, logits_u) = both(model, [u], [batch.x, mixed], "ema")
        q = taught.softmax(dim=-1)
        target = functional.mix(q, q.flip(0), draws["lam"])
        loss_x = functional.labeled_loss(logits_x, batch.y)
        loss_u = functional.unlabeled_loss(logits_u, target)
        weight = self.consistency_weight * functional.linear_ramp(progress.step, self.warmup * progress.total)
        loss = loss_x + weight * loss_u
        return loss, {"loss": loss, "loss_x": loss_x, "loss_u": loss_u, "confidence": q.amax(dim=-1).mean()}

"""MixUp as a semi-supervised method (Zhang et al., 2018, used as in the paper's Section 4.2.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from mixmatch import functional
from mixmatch.draws import Draws
from mixmatch.methods.base import Batch, Metrics, Predictor, Progress, both


@dataclass(frozen=True)
class MixUp:
    """Labeled images are mixed with labeled, unlabeled with unlabeled ones, whose targets are the predictions.

    Each image's partner is the one at its place in the reversed batch. There is no weight and no ramp.
    """

    alpha: float = 0.75
    """MixUp's Beta(alpha, alpha)."""
    keep_order: bool = True
    """Whether max(lambda, 1 - lambda) is used, as the authors' code does; without it this is the MixUp paper's."""

    unlabeled_views = 1
    wants_noise = False

    def draw(self, rng: np.random.Generator, batch_size: int) -> Draws:
        lam_x, lam_u = rng.beta(self.alpha, self.alpha, (2, batch_size)).astype(np.float32)
        return {"lam_x": lam_x, "lam_u": lam_u}

    def loss(
        self, model: Predictor, batch: Batch, draws: Mapping[str, Tensor], progress: Progress
    ) -> tuple[Tensor, Metrics]:
        u = batch.u[0]
        x, p = functional.mixup(batch.x, batch.y, batch.x.flip(0), batch.y.flip(0), draws["lam_x"], self.keep_order)
        mixed = functional.mix(u, u.flip(0), draws["lam_u"], self.keep_order)
        (guess,), (logits_x, logits_u) = both(model, [u], [x, mixed])
        q = guess.softmax(dim=-1)
        targets = functional.mix(q, q.flip(0), draws["lam_u"], self.keep_order)
        loss_x = functional.labeled_loss(logits_x, p)
        loss_u = functional.labeled_loss(logits_u, targets)
        loss = loss_x + loss_u
        return loss, {"loss": loss, "loss_x": loss_x, "loss_u": loss_u, "confidence": q.amax(dim=-1).mean()}

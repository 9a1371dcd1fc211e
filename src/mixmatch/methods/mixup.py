"""MixUp as a semi-supervised method (Zhang et al., 2018, used as in the paper's Section 4.2.1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mixmatch import functional
from mixmatch.draws import Draws
from mixmatch.methods.base import Batch, Method, Predictor, Progress, Step, Tensors, setting, targets_and_logits


@dataclass(frozen=True)
class MixUp(Method):
    """Labeled images are mixed with labeled, unlabeled with unlabeled ones, whose targets are the predictions.

    Each image's partner is the one at its place in the reversed batch. There is no weight and no ramp.
    """

    alpha: float = setting(0.75, "MixUp's Beta(alpha, alpha).", above=0, search=(0.1, 2, "log"))
    keep_order: bool = setting(
        True, "Use max(lambda, 1 - lambda), as the authors' code does; without it, lambda is as in the MixUp paper."
    )

    views = ("weak",)

    def draw(self, rng: np.random.Generator, batch_size: int) -> Draws:
        lam_x, lam_u = rng.beta(self.alpha, self.alpha, (2, batch_size)).astype(np.float32)
        return {"lam_x": lam_x, "lam_u": lam_u}

    def loss(self, model: Predictor, batch: Batch, draws: Tensors, progress: Progress, state: Tensors) -> Step:
        u = batch.u[0]
        x, p = functional.mixup(batch.x, batch.y, batch.x.flip(0), batch.y.flip(0), draws["lam_x"], self.keep_order)
        mixed = functional.mix(u, u.flip(0), draws["lam_u"], self.keep_order)
        (guess,), (logits_x, logits_u) = targets_and_logits(model, [u], [x, mixed])
        q = guess.softmax(dim=-1)
        targets = functional.mix(q, q.flip(0), draws["lam_u"], self.keep_order)
        loss_x = functional.labeled_loss(logits_x, p)
        loss_u = functional.labeled_loss(logits_u, targets)
        loss = loss_x + loss_u
        return Step(loss, {"loss": loss, "loss_x": loss_x, "loss_u": loss_u, "confidence": q.amax(dim=-1).mean()})

"""Interpolation Consistency Training (Verma et al., 2019): a mix of images should get the mix of their predictions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mixmatch import functional
from mixmatch.draws import Draws
from mixmatch.methods.base import Batch, Method, Predictor, Progress, Step, Tensors, setting, targets_and_logits


@dataclass(frozen=True)
class ICT(Method):
    """Targets are the averaged weights' predictions, mixed like the images; labeled images are not mixed."""

    consistency_weight: float = setting(50.0, "Weight of the unlabeled loss.", least=0, search=10)
    alpha: float = setting(0.5, "MixUp's Beta(alpha, alpha).", above=0, search=(0.1, 2, "log"))
    warmup: float = setting(
        0.4, "Part of the training over which that weight rises linearly from 0.", within=(0, 1), of_steps=bool
    )

    views = ("weak",)

    def draw(self, rng: np.random.Generator, batch_size: int) -> Draws:
        return {"lam": rng.beta(self.alpha, self.alpha, batch_size).astype(np.float32)}

    def loss(self, model: Predictor, batch: Batch, draws: Tensors, progress: Progress, state: Tensors) -> Step:
        u = batch.u[0]
        mixed = functional.mix(u, u.flip(0), draws["lam"])
        (taught,), (logits_x, logits_u) = targets_and_logits(model, [u], [batch.x, mixed], "ema")
        q = taught.softmax(dim=-1)
        target = functional.mix(q, q.flip(0), draws["lam"])
        loss_x = functional.labeled_loss(logits_x, batch.y)
        loss_u = functional.unlabeled_loss(logits_u, target)
        loss = loss_x + self.consistency_weight * progress.ramp(self.warmup) * loss_u
        return Step(loss, {"loss": loss, "loss_x": loss_x, "loss_u": loss_u, "confidence": q.amax(dim=-1).mean()})

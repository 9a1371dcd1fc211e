"""Supervised training with MixUp on the labeled images: the paper's fully supervised rows use it on all labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mixmatch import functional
from mixmatch.draws import Draws
from mixmatch.methods.base import Batch, Method, Predictor, Progress, Step, Tensors, setting


@dataclass(frozen=True)
class SupervisedMixUp(Method):
    """Cross-entropy on labeled images mixed with the reversed batch; unlabeled data is not used."""

    alpha: float = setting(0.5, "MixUp's Beta(alpha, alpha).", above=0, search=(0.1, 2, "log"))
    keep_order: bool = setting(
        True, "Use max(lambda, 1 - lambda), as the authors' code does; without it, lambda is as in the MixUp paper."
    )

    def draw(self, rng: np.random.Generator, batch_size: int) -> Draws:
        return {"lam": rng.beta(self.alpha, self.alpha, batch_size).astype(np.float32)}

    def loss(self, model: Predictor, batch: Batch, draws: Tensors, progress: Progress, state: Tensors) -> Step:
        x, p = functional.mixup(batch.x, batch.y, batch.x.flip(0), batch.y.flip(0), draws["lam"], self.keep_order)
        loss = functional.labeled_loss(model(x, stats="update"), p)
        return Step(loss, {"loss": loss})

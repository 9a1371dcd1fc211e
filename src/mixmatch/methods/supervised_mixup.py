"""Supervised training with MixUp on the labeled images: the paper's fully supervised rows use it on all labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from mixmatch import functional
from mixmatch.draws import Draws
from mixmatch.methods.base import Batch, Metrics, Predictor, Progress


@dataclass(frozen=True)
class SupervisedMixUp:
    """Cross-entropy on labeled images mixed with the reversed batch; the unlabeled ones are not looked at."""

    alpha: float = 0.5
    """MixUp's Beta(alpha, alpha)."""
    keep_order: bool = True
    """Whether max(lambda, 1 - lambda) is used, as the authors' code does; without it this is the MixUp paper's."""

    unlabeled_views = 0
    wants_noise = False

    def draw(self, rng: np.random.Generator, batch_size: int) -> Draws:
        return {"lam": rng.beta(self.alpha, self.alpha, batch_size).astype(np.float32)}

    def loss(
        self, model: Predictor, batch: Batch, draws: Mapping[str, Tensor], progress: Progress
    ) -> tuple[Tensor, Metrics]:
        x, p = functional.mixup(batch.x, batch.y, batch.x.flip(0), batch.y.flip(0), draws["lam"], self.keep_order)
        loss = functional.labeled_loss(model(x, stats="update"), p)
        return loss, {"loss": loss}

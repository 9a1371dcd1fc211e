"""FixMatch (Sohn et al., 2020): a confident prediction for the weak view is the label of the strong one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from mixmatch import functional
from mixmatch.draws import Draws
from mixmatch.methods import pseudo_labels as shared
from mixmatch.methods.base import Batch, DataInfo, Method, Predictor, Progress, Step, Tensors, setting


@dataclass(frozen=True)
class FixMatch(Method):
    """The live weights guess, with batch statistics. The loss is averaged over all unlabeled images, not only over the
    confident ones."""

    threshold: float = setting(0.95, "Predictions at least this confident become labels.", within=(0, 1))
    lambda_u: float = setting(1.0, "Weight of the unlabeled loss.", least=0)
    ratio: int = setting(7, shared.RATIO, least=1)
    align: str = setting("none", shared.ALIGN, metavar=shared.ALIGN_CHOICES)
    prediction_decay: float = setting(0.999, shared.DECAY, within=(0, 1))
    balance: shared.Balance = setting("none", shared.BALANCE, of_steps=shared.is_balanced)
    passes: shared.Passes = setting("official", shared.PASSES)

    views = ("weak", "strong")
    run_defaults = shared.RECIPE

    def __post_init__(self) -> None:
        shared.frequencies(self.align)

    @property
    def heads(self) -> Mapping[str, int]:
        return shared.plain_head(self.balance)

    def draw(self, rng: np.random.Generator, batch_size: int) -> Draws:
        return shared.balance_draws(self.balance, rng, batch_size, self.ratio)

    def state(self, data: DataInfo) -> dict[str, Tensor]:
        return {**shared.alignment(self.align, data), **shared.balance_shares(self.balance, data)}

    def loss(self, model: Predictor, batch: Batch, draws: Tensors, progress: Progress, state: Tensors) -> Step:
        z, balanced = shared.predict(model, batch.x, batch.u, self.passes, self.balance)
        q, changed = shared.aligned(self.align, z.weak.softmax(dim=-1), z.x, progress, state, self.prediction_decay)
        confidence, label = q.max(dim=-1)
        mask = (confidence >= self.threshold).to(q.dtype)
        loss_x = functional.labeled_loss(z.x, batch.y)
        loss_u = functional.pseudo_label_loss(z.strong, label, mask)
        loss = loss_x + self.lambda_u * loss_u + shared.balanced_loss(balanced, batch.y, draws, progress, state)
        metrics = {"loss": loss, "loss_x": loss_x, "loss_u": loss_u, "confidence": confidence.mean()}
        return Step(loss, {**metrics, "mask": mask.mean()}, changed)

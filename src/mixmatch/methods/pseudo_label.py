"""Pseudo-Label (Lee, 2013): confident predictions become labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from mixmatch import functional
from mixmatch.draws import Draws
from mixmatch.methods.base import Batch, Metrics, Predictor, Progress, several


@dataclass(frozen=True)
class PseudoLabel:
    """Cross-entropy of unlabeled images against their own most likely class, where it is likely enough."""

    consistency_weight: float = 1.0
    """Weight of the unlabeled loss."""
    threshold: float = 0.95
    """A prediction above this is confident."""
    masking: Literal["official", "intended"] = "official"
    """`official` is what produced the paper's numbers: a broadcast in the authors' code trains on all images,
    scaled by the batch's confident fraction. `intended` trains on the confident images alone."""
    warmup: float = 0.4
    """Part of the training over which the weight rises linearly from 0."""

    unlabeled_views = 1
    wants_noise = False

    def draw(self, rng: np.random.Generator, batch_size: int) -> Draws:
        return {}

    def loss(
        self, model: Predictor, batch: Batch, draws: Mapping[str, Tensor], progress: Progress
    ) -> tuple[Tensor, Metrics]:
        logits_x, logits = several(model, [batch.x, batch.u[0]], stats="update")
        loss_x = functional.labeled_loss(logits_x, batch.y)
        probability, label = logits.detach().softmax(dim=-1).max(dim=-1)
        confident = (probability > self.threshold).to(logits.dtype)
        each = F.cross_entropy(logits, label, reduction="none")
        loss_u = each.mean() * confident.mean() if self.masking == "official" else (each * confident).mean()
        weight = self.consistency_weight * functional.linear_ramp(progress.step, self.warmup * progress.total)
        loss = loss_x + weight * loss_u
        return loss, {"loss": loss, "loss_x": loss_x, "loss_u": loss_u, "confidence": probability.mean()}

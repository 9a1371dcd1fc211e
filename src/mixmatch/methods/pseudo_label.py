"""Pseudo-Label (Lee, 2013): confident predictions become labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F

from mixmatch import functional
from mixmatch.methods.base import Batch, Method, Predictor, Progress, Step, Tensors, forward_each, setting


@dataclass(frozen=True)
class PseudoLabel(Method):
    """Cross-entropy of unlabeled images against their own most likely class, where it is likely enough."""

    consistency_weight: float = setting(1.0, "Weight of the unlabeled loss.", least=0, search=10)
    threshold: float = setting(0.95, "Predictions above this become labels.", within=(0, 1), search=(0.5, 0.99))
    masking: Literal["official", "intended"] = setting(
        "official",
        "`official` is what produced the paper's numbers: a broadcast in the authors' code trains on all images, "
        "scaled by the batch's confident fraction. `intended` trains on the confident images alone.",
    )
    warmup: float = setting(
        0.4, "Part of the training over which the weight rises linearly from 0.", within=(0, 1), of_steps=bool
    )

    views = ("weak",)

    def loss(self, model: Predictor, batch: Batch, draws: Tensors, progress: Progress, state: Tensors) -> Step:
        logits_x, logits = forward_each(model, [batch.x, batch.u[0]], stats="update")
        loss_x = functional.labeled_loss(logits_x, batch.y)
        probability, label = logits.detach().softmax(dim=-1).max(dim=-1)
        confident = (probability > self.threshold).to(logits.dtype)
        each = F.cross_entropy(logits, label, reduction="none")
        loss_u = each.mean() * confident.mean() if self.masking == "official" else (each * confident).mean()
        loss = loss_x + self.consistency_weight * progress.ramp(self.warmup) * loss_u
        return Step(loss, {"loss": loss, "loss_x": loss_x, "loss_u": loss_u, "confidence": probability.mean()})

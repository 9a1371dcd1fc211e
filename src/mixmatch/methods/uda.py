"""UDA, Unsupervised Data Augmentation (Xie et al., 2019): the strong view should get the weak one's prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from mixmatch import functional
from mixmatch.methods import pseudo_labels as shared
from mixmatch.methods.base import Batch, Predictor, Progress, Step, Tensors, setting


@dataclass(frozen=True)
class UDA(shared.PseudoLabeling):
    """As in its authors' code, with FixMatch's optimizer and averaging: soft targets from the live weights, for images
    whose prediction is confident before it is sharpened."""

    threshold: float = setting(
        0.8, "Predictions more confident than this are learned from.", within=(0, 1), search=(0.5, 0.99)
    )
    T: float = setting(0.4, "Sharpening temperature.", least=0, search=(0.1, 1))
    tsa: Literal["none", "linear", "exp", "log"] = setting(
        "none",
        "Training signal annealing: leave out labeled images whose class is more probable than a limit, which rises "
        "over the run from 1 / L to 1 along this curve.",
        of_steps=lambda tsa: tsa != "none",
    )
    align: str = setting("none", shared.ALIGN, metavar=shared.ALIGN_CHOICES)

    def loss(self, model: Predictor, batch: Batch, draws: Tensors, progress: Progress, state: Tensors) -> Step:
        z, balanced = self.predict(model, batch.x, batch.u)
        q, changed = self.aligned(z.weak.softmax(dim=-1), z.x, progress, state)
        confidence = q.amax(dim=-1)
        mask = (confidence > self.threshold).to(q.dtype)
        loss_x = self.labeled_loss(z.x, batch.y, progress)
        divergence = F.kl_div(F.log_softmax(z.strong, dim=-1), functional.sharpen(q, self.T), reduction="none").sum(-1)
        loss_u = (mask * divergence).mean()
        loss = loss_x + self.lambda_u * loss_u + self.balanced_loss(balanced, batch.y, draws, progress, state)
        metrics = {"loss": loss, "loss_x": loss_x, "loss_u": loss_u, "confidence": confidence.mean()}
        return Step(loss, {**metrics, "mask": mask.mean()}, changed)

    def labeled_loss(self, logits: Tensor, y: Tensor, progress: Progress) -> Tensor:
        """The mean cross-entropy, with annealing over the labeled images that are not yet too probable."""
        if self.tsa == "none":
            return functional.labeled_loss(logits, y)
        t = progress.ramp(1.0)
        part = {"linear": t, "exp": (5 * (t - 1)).exp(), "log": 1 - (-5 * t).exp()}[self.tsa]
        limit = part * (1 - 1 / y.shape[-1]) + 1 / y.shape[-1]
        each = -(y * F.log_softmax(logits, dim=-1)).sum(dim=-1)
        kept = (torch.exp(-each.detach()) <= limit).to(y.dtype)
        return (kept * each).sum() / kept.sum().clamp_min(1)

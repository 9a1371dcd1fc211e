"""AdaMatch (Berthelot et al., 2021): FixMatch with aligned predictions and a threshold relative to labeled images."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from mixmatch import functional
from mixmatch.draws import Draws
from mixmatch.methods import pseudo_labels as shared
from mixmatch.methods.base import Batch, Predictor, Progress, Step, Tensors, setting


@dataclass(frozen=True)
class AdaMatch(shared.PseudoLabeling):
    """By default as in USB, whose numbers for CIFAR and SVHN are the published ones. The authors' own code, made for
    unlabeled images from elsewhere, has `interpolate`, `strong_labeled` and `ramp_up` too."""

    threshold: float = setting(
        0.95,
        "Predictions become labels if their confidence is at least this times the mean confidence for labeled images.",
        within=(0, 1),
        search=(0.5, 0.99),
    )
    align: str = setting("model", shared.ALIGN, metavar=shared.ALIGN_CHOICES)
    interpolate: bool = setting(
        False,
        "Random logit interpolation: between the logits of labeled images in a batch of their own and in one "
        "with the unlabeled images.",
    )
    strong_labeled: bool = setting(False, "Learn from strong augmentations of labeled images too.")
    ramp_up: bool = setting(
        False, "Let the weight of the unlabeled loss rise from 0 over the first half of the run.", of_steps=bool
    )

    def draw(self, rng: np.random.Generator, batch_size: int) -> Draws:
        draws = super().draw(rng, batch_size)
        if self.interpolate:
            draws["towards"] = rng.random((1 + self.strong_labeled) * batch_size, np.float32)
        return draws

    def loss(self, model: Predictor, batch: Batch, draws: Tensors, progress: Progress, state: Tensors) -> Step:
        x, y = batch.x, batch.y
        if self.strong_labeled:
            x, y = torch.cat([x, batch.x_strong]), torch.cat([y, y])
        z, balanced = self.predict(model, x, batch.u)
        if self.interpolate:
            alone = model(x, with_heads=tuple(self.heads))[:, -y.shape[1] :]  # of the plain head, if there is one
            z = z._replace(x=torch.lerp(z.x, alone, draws["towards"].unsqueeze(1).to(alone.dtype)))
        weak_x = z.x[: len(batch.x)].detach()
        q, changed = self.aligned(z.weak.softmax(dim=-1), weak_x, progress, state)
        confidence, label = q.max(dim=-1)
        mask = (confidence >= self.threshold * weak_x.softmax(dim=-1).amax(dim=-1).mean()).to(q.dtype)
        loss_x = functional.labeled_loss(z.x, y)
        loss_u = functional.pseudo_label_loss(z.strong, label, mask)
        risen = 0.5 - 0.5 * torch.cos(math.pi * progress.ramp(0.5)) if self.ramp_up else 1.0
        loss = loss_x + self.lambda_u * risen * loss_u
        loss = loss + self.balanced_loss(balanced, batch.y, draws, progress, state)
        metrics = {"loss": loss, "loss_x": loss_x, "loss_u": loss_u, "confidence": confidence.mean()}
        return Step(loss, {**metrics, "mask": mask.mean()}, changed)

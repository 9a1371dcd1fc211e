"""SoftMatch (Chen et al., 2023): every pseudo-label counts, the less the further its confidence is below average."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mixmatch import functional
from mixmatch.methods import pseudo_labels as shared
from mixmatch.methods.base import Batch, DataInfo, Predictor, Progress, Step, Tensors, setting


@dataclass(frozen=True)
class SoftMatch(shared.PseudoLabeling):
    """Weights are a Gaussian cut off at the mean: moving averages of confidence and of its variance, which are updated
    before a step uses them. Alignment affects only the weights; labels come from the unaligned predictions."""

    n_sigma: float = setting(
        2.0, "The Gaussian's deviation is that of the confidence divided by this.", above=0, search=(1, 4)
    )
    align: str = setting("uniform", shared.ALIGN, metavar=shared.ALIGN_CHOICES)

    def state(self, data: DataInfo) -> dict[str, Tensor]:
        mean = torch.full_like(data.prior[0], 1 / data.classes)
        gaussian = {"mean": mean, "variance": torch.ones_like(mean)}
        return {**gaussian, **super().state(data)}

    def loss(self, model: Predictor, batch: Batch, draws: Tensors, progress: Progress, state: Tensors) -> Step:
        z, balanced = self.predict(model, batch.x, batch.u)
        q = z.weak.softmax(dim=-1)
        confidence, label = q.max(dim=-1)
        spread = (confidence - confidence.mean()).square().sum() / max(1, len(confidence) - 1)
        mean = functional.moving_average(state["mean"], confidence.mean(), self.prediction_decay)
        variance = functional.moving_average(state["variance"], spread, self.prediction_decay)
        aligned, changed = self.aligned(q, z.x, progress, state)
        below = (aligned.amax(dim=-1) - mean).clamp_max(0)
        # Where nothing varies any more it is 0: then its floor decides, far above what rounding makes of a confidence.
        weight = torch.exp(-below.square() * self.n_sigma**2 / (2 * variance.clamp_min(1e-12)))
        loss_x = functional.labeled_loss(z.x, batch.y)
        loss_u = functional.pseudo_label_loss(z.strong, label, weight)
        loss = loss_x + self.lambda_u * loss_u + self.balanced_loss(balanced, batch.y, draws, progress, state)
        metrics = {"loss": loss, "loss_x": loss_x, "loss_u": loss_u, "confidence": confidence.mean()}
        return Step(loss, {**metrics, "mask": weight.mean()}, {**changed, "mean": mean, "variance": variance})

"""FreeMatch (Wang et al., 2023): thresholds that follow the network's confidence, and a loss for fair predictions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mixmatch import functional
from mixmatch.errors import MixMatchError
from mixmatch.methods import pseudo_labels as shared
from mixmatch.methods.base import Batch, DataInfo, Predictor, Progress, Step, Tensors, setting


@dataclass(frozen=True)
class FreeMatch(shared.PseudoLabeling):
    """One threshold for all classes is the moving average of confidence; a class's own is lower if that class is
    predicted less than the most frequent one. The averages are updated before a step uses them."""

    fairness: float = setting(
        0.01, "Weight of the loss that keeps predictions spread over the classes.", least=0, search=10
    )
    least_threshold: float = setting(0.0, "No class has a threshold below this.", within=(0, 1))
    most_threshold: float = setting(1.0, "No class has a threshold above this.", within=(0, 1))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.least_threshold > self.most_threshold:
            raise MixMatchError(
                f"least_threshold={self.least_threshold:g} must not be above most_threshold={self.most_threshold:g}"
            )

    def state(self, data: DataInfo) -> dict[str, Tensor]:
        uniform = torch.full_like(data.prior, 1 / data.classes)
        averages = {"confidence": uniform[0], "predicted": uniform, "histogram": uniform}
        return {**averages, **super().state(data)}

    def loss(self, model: Predictor, batch: Batch, draws: Tensors, progress: Progress, state: Tensors) -> Step:
        z, balanced = self.predict(model, batch.x, batch.u)
        q = z.weak.softmax(dim=-1)
        confidence, label = q.max(dim=-1)
        new = {"confidence": confidence.mean(), "predicted": q.mean(dim=0), "histogram": _one_hot(label, q).mean(dim=0)}
        averages = {n: functional.moving_average(state[n], value, self.prediction_decay) for n, value in new.items()}
        predicted = averages["predicted"]
        threshold = averages["confidence"] * predicted / predicted.amax()
        threshold = threshold.clamp(self.least_threshold, self.most_threshold)
        mask = (confidence >= threshold[label]).to(q.dtype)
        loss_x = functional.labeled_loss(z.x, batch.y)
        loss_u = functional.pseudo_label_loss(z.strong, label, mask)
        loss_f = fairness_loss(z.strong, mask, predicted, averages["histogram"])
        loss = loss_x + self.lambda_u * loss_u + self.fairness * loss_f
        loss = loss + self.balanced_loss(balanced, batch.y, draws, progress, state)
        metrics = {"loss": loss, "loss_x": loss_x, "loss_u": loss_u, "confidence": confidence.mean()}
        return Step(loss, {**metrics, "mask": mask.mean(), "fairness": loss_f}, averages)


def fairness_loss(logits: Tensor, mask: Tensor, predicted: Tensor, histogram: Tensor) -> Tensor:
    """Self-adaptive fairness: sum over classes of N(predicted / histogram) * log N(p / h), where p is the mean
    prediction for the masked rows of `logits` (N, L), h how often each class is the likeliest there, and N divides by
    the sum. A class that is never the likeliest counts 0; without a masked row the loss is 0."""
    p = logits.softmax(dim=-1)
    count = mask.sum().clamp_min(1)
    mean = (mask.unsqueeze(1) * p).sum(dim=0) / count
    likeliest = (mask.unsqueeze(1) * _one_hot(p.argmax(dim=-1), p)).sum(dim=0) / count
    expected, found = _relative(predicted, histogram), _relative(mean, likeliest)
    return (expected * torch.log(found + 1e-12)).sum() * (mask.sum() > 0)


def _relative(p: Tensor, histogram: Tensor) -> Tensor:
    ratio = torch.where(histogram > 0, p / histogram.clamp_min(1e-12), 0.0)
    return ratio / ratio.sum().clamp_min(1e-12)


def _one_hot(label: Tensor, like: Tensor) -> Tensor:
    return F.one_hot(label, like.shape[-1]).to(like.dtype)

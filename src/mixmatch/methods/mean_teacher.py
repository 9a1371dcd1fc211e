"""Mean Teacher (Tarvainen and Valpola, 2017): the averaged weights teach the live ones."""

from __future__ import annotations

from dataclasses import dataclass

from mixmatch import functional
from mixmatch.methods.base import Batch, Method, Predictor, Progress, Step, Tensors, setting, targets_and_logits


@dataclass(frozen=True)
class MeanTeacher(Method):
    """The live weights' prediction on one view is trained towards the averaged weights' on another.

    The teacher normalizes with batch statistics, and its average is the one that is evaluated.
    """

    consistency_weight: float = setting(50.0, "Weight of the unlabeled loss.", least=0, search=10)
    warmup: float = setting(
        0.4, "Part of the training over which that weight rises linearly from 0.", within=(0, 1), of_steps=bool
    )

    views = ("weak", "weak")

    def loss(self, model: Predictor, batch: Batch, draws: Tensors, progress: Progress, state: Tensors) -> Step:
        (taught,), (logits_x, logits_u) = targets_and_logits(model, [batch.u[0]], [batch.x, batch.u[1]], "ema")
        target = taught.softmax(dim=-1)
        loss_x = functional.labeled_loss(logits_x, batch.y)
        loss_u = functional.unlabeled_loss(logits_u, target)
        loss = loss_x + self.consistency_weight * progress.ramp(self.warmup) * loss_u
        return Step(loss, {"loss": loss, "loss_x": loss_x, "loss_u": loss_u, "confidence": target.amax(dim=-1).mean()})

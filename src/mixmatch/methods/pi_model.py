"""Pi-Model (Laine and Aila, 2017): two augmentations of one image should get the same prediction."""

from __future__ import annotations

from dataclasses import dataclass

from mixmatch import functional
from mixmatch.methods.base import Batch, Method, Predictor, Progress, Step, Tensors, setting, targets_and_logits


@dataclass(frozen=True)
class PiModel(Method):
    """The second view is trained towards the first one's prediction; no gradient flows through the first."""

    consistency_weight: float = setting(10.0, "Weight of the unlabeled loss.", least=0, search=10)
    warmup: float = setting(
        0.4, "Part of the training over which that weight rises linearly from 0.", within=(0, 1), of_steps=bool
    )

    views = ("weak", "weak")

    def loss(self, model: Predictor, batch: Batch, draws: Tensors, progress: Progress, state: Tensors) -> Step:
        (fixed,), (logits_x, logits_u) = targets_and_logits(model, [batch.u[0]], [batch.x, batch.u[1]])
        target = fixed.softmax(dim=-1)
        loss_x = functional.labeled_loss(logits_x, batch.y)
        loss_u = functional.unlabeled_loss(logits_u, target)
        loss = loss_x + self.consistency_weight * progress.ramp(self.warmup) * loss_u
        return Step(loss, {"loss": loss, "loss_x": loss_x, "loss_u": loss_u, "confidence": target.amax(dim=-1).mean()})

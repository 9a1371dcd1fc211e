"""FixMatch (Sohn et al., 2020): a confident prediction for the weak view is the label of the strong one."""

from __future__ import annotations

from dataclasses import dataclass

from mixmatch import functional
from mixmatch.methods import pseudo_labels as shared
from mixmatch.methods.base import Batch, Predictor, Progress, Step, Tensors, setting


@dataclass(frozen=True)
class FixMatch(shared.PseudoLabeling):
    """The live weights guess, with batch statistics. The loss is averaged over all unlabeled images, not only over the
    confident ones."""

    threshold: float = setting(
        0.95, "Predictions at least this confident become labels.", within=(0, 1), search=(0.5, 0.99)
    )
    align: str = setting("none", shared.ALIGN, metavar=shared.ALIGN_CHOICES)

    def loss(self, model: Predictor, batch: Batch, draws: Tensors, progress: Progress, state: Tensors) -> Step:
        z, balanced = self.predict(model, batch.x, batch.u)
        q, changed = self.aligned(z.weak.softmax(dim=-1), z.x, progress, state)
        confidence, label = q.max(dim=-1)
        mask = (confidence >= self.threshold).to(q.dtype)
        loss_x = functional.labeled_loss(z.x, batch.y)
        loss_u = functional.pseudo_label_loss(z.strong, label, mask)
        loss = loss_x + self.lambda_u * loss_u + self.balanced_loss(balanced, batch.y, draws, progress, state)
        metrics = {"loss": loss, "loss_x": loss_x, "loss_u": loss_u, "confidence": confidence.mean()}
        return Step(loss, {**metrics, "mask": mask.mean()}, changed)

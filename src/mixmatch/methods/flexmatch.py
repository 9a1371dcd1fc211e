"""FlexMatch (Zhang et al., 2021): FixMatch with a lower threshold for classes that are learned more slowly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from mixmatch import functional
from mixmatch.methods import pseudo_labels as shared
from mixmatch.methods.base import Batch, DataInfo, Predictor, Progress, Step, Tensors, setting


@dataclass(frozen=True)
class FlexMatch(shared.PseudoLabeling):
    """How far a class is learned is estimated by how many unlabeled images were last predicted confidently as that
    class. Each unlabeled row's last confident label is kept for that, -1 until there is one."""

    threshold: float = setting(
        0.95, "Predictions at least this confident are remembered; also the threshold of the best learned class.",
        within=(0, 1), search=(0.5, 0.99),
    )  # fmt: skip
    mapping: Literal["convex", "linear", "concave"] = setting(
        "convex", "How a class's threshold grows as the class is learned."
    )
    threshold_warmup: bool = setting(
        True, "Keep thresholds low as long as most unlabeled images have no confident label yet."
    )
    align: str = setting("none", shared.ALIGN, metavar=shared.ALIGN_CHOICES)

    def state(self, data: DataInfo) -> dict[str, Tensor]:
        counts = torch.zeros(data.classes + 1, dtype=torch.int64, device=data.device)
        counts[0] = data.unlabeled  # of label -1
        return {
            "labels": torch.full((data.unlabeled,), -1, device=data.device),
            "counts": counts,
            "learned": torch.zeros_like(data.prior),
            **super().state(data),
        }

    def loss(self, model: Predictor, batch: Batch, draws: Tensors, progress: Progress, state: Tensors) -> Step:
        z, balanced = self.predict(model, batch.x, batch.u)
        q, changed = self.aligned(z.weak.softmax(dim=-1), z.x, progress, state)
        confidence, label = q.max(dim=-1)
        mask = (confidence >= self.threshold * self.mapped(state["learned"])[label]).to(q.dtype)
        loss_x = functional.labeled_loss(z.x, batch.y)
        loss_u = functional.pseudo_label_loss(z.strong, label, mask)
        loss = loss_x + self.lambda_u * loss_u + self.balanced_loss(balanced, batch.y, draws, progress, state)
        metrics = {"loss": loss, "loss_x": loss_x, "loss_u": loss_u, "confidence": confidence.mean()}
        changed |= self.remembered(state, batch.rows, label, confidence >= self.threshold)
        return Step(loss, {**metrics, "mask": mask.mean()}, changed)

    def mapped(self, learned: Tensor) -> Tensor:
        """The part of the threshold (L,) that a class has, from how far it is learned."""
        if self.mapping == "convex":
            return learned / (2 - learned)
        return learned if self.mapping == "linear" else torch.log1p(learned) / math.log(2)

    def remembered(self, state: Tensors, rows: Tensor, label: Tensor, confident: Tensor) -> dict[str, Tensor]:
        """The state after this step, whose thresholds came from the steps before it. Of a row that occurs twice in a
        batch the later label stays."""
        labels, counts = state["labels"], state["counts"]
        place = torch.arange(len(rows), device=rows.device)
        last = torch.full_like(labels, -1).scatter_reduce(0, rows, torch.where(confident, place, -1), "amax")[rows]
        old = labels[rows]
        new = torch.where(last >= 0, label[last.clamp_min(0)], old)
        once = (last == place).unsqueeze(1)
        counts = counts + (once * (F.one_hot(new + 1, len(counts)) - F.one_hot(old + 1, len(counts)))).sum(dim=0)
        return {"labels": labels.scatter(0, rows, new), "counts": counts, "learned": self.learned(state, counts)}

    def learned(self, state: Tensors, counts: Tensor) -> Tensor:
        """How far each class is learned (L,), from how many rows have which label."""
        largest = (counts if self.threshold_warmup else counts[1:]).amax().clamp_min(1)
        learned = counts[1:].to(state["learned"].dtype) / largest
        # As in the authors' code nothing is learned about classes while all rows have the same label.
        return torch.where(counts.amax() < len(state["labels"]), learned, state["learned"])

    def combine(self, state: Tensors, groups: Sequence[Tensors]) -> dict[str, Tensor]:
        """Groups may share a row, so the labels are counted anew."""
        changed = super().combine(state, groups)
        labels = changed["labels"]
        counts = torch.zeros_like(state["counts"]).scatter_add(0, labels + 1, torch.ones_like(labels))
        return {**changed, "counts": counts, "learned": self.learned(state, counts)}

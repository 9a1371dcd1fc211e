"""One step's loss, as a function of tensors: augment the rows, make a batch, ask the method."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mixmatch.augment import Augmentation
from mixmatch.methods.base import Batch, Method, Predictor, Progress, Step, Tensors


@dataclass(frozen=True)
class Objective:
    """The part of a step that does not change: method, augmentation, classes, length. Hashable, so that compiled code
    can be shared."""

    method: Method
    weak: Augmentation
    strong: Augmentation
    classes: int
    steps: int

    def loss(
        self, model: Predictor, labels: Tensor, x: Tensor, u: Tensor | None, draws: Tensors, state: Tensors
    ) -> Step:
        """The loss for the fetched rows `x` and `u` and the draws of a step. Nothing here waits for the device."""
        inputs = self.weak(x, under("x/", draws))[0]
        batch = Batch(
            x=inputs,
            y=F.one_hot(labels, self.classes).to(inputs.dtype),
            u=inputs.new_empty(0) if u is None else self._views(u, draws),
            rows=labels.new_empty(0) if u is None else draws["rows"],
            x_strong=self.strong(x, under("xs/", draws))[0] if self.method.strong_labeled else inputs.new_empty(0),
        )
        return self.method.loss(model, batch, under("method/", draws), Progress(draws["step"], self.steps), state)

    def _views(self, u: Tensor, draws: Tensors) -> Tensor:
        """The unlabeled rows in each of the method's views (views, mu B, ...)."""
        views = self.method.views
        if "strong" not in views:
            return self.weak(u, under("u/", draws))
        strong = iter(self.strong(u, under("s/", draws)))
        weak = iter(self.weak(u, under("u/", draws))) if "weak" in views else iter(())
        return torch.stack([next(strong if view == "strong" else weak) for view in views])


def under(prefix: str, draws: Tensors) -> dict[str, Tensor]:
    """The draws whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): value for name, value in draws.items() if name.startswith(prefix)}


@torch.no_grad()
def account(sums: Tensor, values: list[Tensor], first_bad: Tensor, loss: Tensor, step: Tensor) -> None:
    """Add a step's metrics to their sums, and if its loss is the first that is not finite, keep its number."""
    if values:
        sums.add_(torch.stack([value.to(sums.dtype) for value in values]))
    bad = ~torch.isfinite(loss) & (first_bad < 0)
    first_bad.copy_(torch.where(bad, step.long(), first_bad))

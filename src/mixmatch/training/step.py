"""One step's loss, as a function of tensors: augment the rows, make a batch, ask the method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mixmatch.augment import Adaptive, Augmentation
from mixmatch.methods.base import Batch, Method, Predictor, Progress, Step, Tensors, combine

AUGMENTATION = "augmentation/"
"""What the names of an adaptive augmentation's state begin with, among the method's."""


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
        strong = {name: value for name, value in state.items() if name.startswith(AUGMENTATION)}
        state = {name: value for name, value in state.items() if name not in strong}
        learned = under(AUGMENTATION, strong)
        inputs = self.weak(x, under("x/", draws))[0]
        batch = Batch(
            x=inputs,
            y=F.one_hot(labels, self.classes).to(inputs.dtype),
            u=inputs.new_empty(0) if u is None else self._views(u, draws, learned),
            rows=labels.new_empty(0) if u is None else draws["rows"],
            x_strong=self.strong(x, {**under("xs/", draws), **learned})[0]
            if self.method.strong_labeled
            else inputs.new_empty(0),
        )
        progress = Progress(draws["step"], self.steps)
        step = self.method.loss(model, batch, under("method/", draws), progress, state)
        if isinstance(self.strong, Adaptive):
            adapted = self._adapt(self.strong, model, x, batch.y, under("probe/", draws), learned)
            step = step._replace(state={**step.state, **{f"{AUGMENTATION}{n}": value for n, value in adapted.items()}})
        return step

    @torch.no_grad()
    def combine(self, state: Tensors, groups: Sequence[Tensors]) -> dict[str, Tensor]:
        """The state after a step, from what each of its groups made of it."""
        adapted = [{n: value for n, value in group.items() if n.startswith(AUGMENTATION)} for group in groups]
        own = [{n: value for n, value in group.items() if n not in adapted[0]} for group in groups]
        return {**(self.method.combine(state, own) if own[0] else {}), **combine(state, adapted)}

    def augmentation_state(self, device: torch.device) -> dict[str, Tensor]:
        """What an adaptive augmentation has learned before the first step: nothing."""
        state = self.strong.state(device) if isinstance(self.strong, Adaptive) else {}
        return {f"{AUGMENTATION}{name}": value for name, value in state.items()}

    @torch.no_grad()
    def _adapt(
        self, strong: Adaptive, model: Predictor, x: Tensor, y: Tensor, draws: Tensors, learned: Tensors
    ) -> dict[str, Tensor]:
        """What the augmentation has learned after this step, from how near the averaged model's predictions for
        augmented labeled rows come to their labels."""
        probs = model(strong.probe(x, draws)[0], weights="ema", stats="running").softmax(dim=-1)
        return strong.learned(learned, draws, 1 - 0.5 * (probs - y).abs().sum(dim=-1))

    def _views(self, u: Tensor, draws: Tensors, learned: Tensors) -> Tensor:
        """The unlabeled rows in each of the method's views (views, mu B, ...)."""
        views = self.method.views
        if "strong" not in views:
            return self.weak(u, under("u/", draws))
        strong = iter(self.strong(u, {**under("s/", draws), **learned}))
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

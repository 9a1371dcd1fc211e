"""The contract of a method: from a batch and the method's state to a loss, as a pure function.

A method is a frozen dataclass. Its fields are its settings, declared with `setting`; class attributes say what it needs
from the run. `docs/adding-a-method.md` builds one.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from mixmatch import functional
from mixmatch.declare import setting
from mixmatch.draws import Draws

__all__ = [
    "Batch",
    "DataInfo",
    "Method",
    "Metrics",
    "Predictor",
    "Progress",
    "Step",
    "Tensors",
    "forward_each",
    "setting",
    "targets_and_logits",
]

Strength = Literal["weak", "strong"]
Weights = Literal["live", "ema"]
Stats = Literal["batch", "update", "running"]

Tensors = Mapping[str, Tensor]

Metrics = Mapping[str, Tensor | float]
"""Named scalars, to be averaged and shown. Kept on the device, they make nothing wait."""


class Batch(NamedTuple):
    """What a step learns from: B labeled and mu B unlabeled rows, augmented. Images have pixels in [-1, 1]."""

    x: Tensor
    """Labeled, weakly augmented (B, ...)."""
    y: Tensor
    """Their labels, one-hot (B, L)."""
    u: Tensor
    """Unlabeled (views, mu B, ...), in the order of `Method.views`; empty for a method without views."""
    rows: Tensor
    """Which unlabeled rows these are (mu B,), numbered from 0."""
    x_strong: Tensor = torch.empty(0)
    """Labeled, strongly augmented (B, ...); empty for a method without `strong_labeled`."""


class Step(NamedTuple):
    """What a method returns: the loss to minimize, what to report of it, and the state that changed."""

    loss: Tensor
    metrics: Metrics
    state: Tensors = {}  # noqa: RUF012 (never written to)


class DataInfo(NamedTuple):
    """What a method may know about the data when it makes its state."""

    classes: int
    unlabeled: int
    """Number of unlabeled rows."""
    prior: Tensor
    """Class frequencies among the labeled rows (L,), on the device."""
    device: torch.device


class Progress(NamedTuple):
    """Steps taken so far, as a scalar on the device, and how many there will be."""

    step: Tensor
    total: int

    def ramp(self, part: float) -> Tensor:
        """Rises linearly from 0 to 1 over this part of the training."""
        return functional.linear_ramp(self.step, part * self.total)


class Predictor(Protocol):
    """What a method may ask of the network; see `mixmatch.training.model.Model`."""

    def __call__(
        self,
        x: Tensor,
        weights: Weights = "live",
        stats: Stats = "batch",
        full_precision: bool = False,
        head: str | None = None,
        with_heads: Sequence[str] = (),
    ) -> Tensor: ...


class Method(ABC):
    """A semi-supervised method. Subclasses are frozen dataclasses whose fields are the method's settings."""

    ratio: int = 1
    """Unlabeled rows per labeled one (mu). A method may declare it as a setting."""
    noise: ClassVar[bool] = False
    """Whether it needs standard normal noise of the shape of a view, as the draw `noise`."""
    strong_labeled: bool = False
    """Whether it needs the labeled rows in a strong augmentation too, as `Batch.x_strong`."""
    run_defaults: ClassVar[Mapping[str, Any]] = {}
    """Settings of the run that this method wants instead of the data set's, unless a preset for both or the user says
    otherwise."""

    @property
    def views(self) -> tuple[Strength, ...]:
        """Augmentations of each unlabeled row, by strength; () if unlabeled data is not used. Most methods set it as a
        class attribute: `views = ("weak", "strong")`."""
        return ()

    @property
    def heads(self) -> Mapping[str, int]:
        """Further outputs on the network's features, name to size, 0 for one per class: `model(x, head="rotation")`.
        A class attribute will do: `heads = {"rotation": 4}`."""
        return {}

    def draw(self, rng: np.random.Generator, batch_size: int) -> Draws:
        """Everything random it needs for one step, beyond the choice of rows and their augmentation."""
        return {}

    def state(self, data: DataInfo) -> dict[str, Tensor]:
        """Its state before the first step: named tensors on `data.device`. The engine owns and saves them."""
        return {}

    def combine(self, state: Tensors, groups: Sequence[Tensors]) -> dict[str, Tensor]:
        """The state after a step whose batch has several groups, from what each of them, in order, made of `state`. See
        the function `combine` for what it is by default."""
        return combine(state, groups)

    @abstractmethod
    def loss(self, model: Predictor, batch: Batch, draws: Tensors, progress: Progress, state: Tensors) -> Step:
        """The loss of one step. A pure function: state goes in and comes out, and nothing waits for the device."""


def combine(state: Tensors, groups: Sequence[Tensors]) -> dict[str, Tensor]:
    """What groups made of `state`, each entry by itself: the mean over the groups that changed it, of whole numbers the
    last change. So an average is that over all groups, and a table keeps what each group entered for its rows."""
    combined = {}
    for name in groups[0]:
        before, after = state[name], torch.stack([group[name] for group in groups])
        changed = after != before
        if after.is_floating_point():
            mean = torch.where(changed, after, 0).sum(dim=0) / changed.sum(dim=0).clamp_min(1)
            combined[name] = torch.where(changed.any(dim=0), mean.to(before.dtype), before)
        else:
            combined[name] = before
            for value in after:
                combined[name] = torch.where(value != before, value, combined[name])
    return combined


def method_settings(method: Method) -> dict[str, Any]:
    """The settings of a method object, by name, as JSON keeps them."""
    values: dict[str, Any] = dataclasses.asdict(method) if dataclasses.is_dataclass(method) else {}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def forward_each(
    model: Predictor,
    batches: Sequence[Tensor],
    weights: Weights = "live",
    stats: Stats = "batch",
    with_heads: Sequence[str] = (),
) -> list[Tensor]:
    """A pass over each batch, normalized with its own statistics. `stats` applies to the first batch; the others leave
    the running statistics alone. A model that can do all of it at once implements `forward_each` itself, which may
    return None where it cannot."""
    if (at_once := getattr(model, "forward_each", None)) is not None:
        logits: list[Tensor] | None = at_once(batches, weights, stats, with_heads)
        if logits is not None:
            return logits
    more: dict[str, Any] = {"with_heads": with_heads} if with_heads else {}
    return [model(x, weights=weights, stats=stats if i == 0 else "batch", **more) for i, x in enumerate(batches)]


def targets_and_logits(
    model: Predictor,
    targets: Sequence[Tensor],
    learned: Sequence[Tensor],
    weights: Weights = "live",
    *,
    with_heads: Sequence[str] = (),
    joint: bool = False,
) -> tuple[list[Tensor], list[Tensor]]:
    """Forward `targets` without gradient, using `weights`, and `learned` with gradient. The first learned batch updates
    batch norm's running statistics. If `joint`, all batches are one, with the live weights and one batch norm; a model
    may leave out the gradients that reach the targets through its statistics. The outputs of `with_heads`
    follow the classifier's (N, L + ...). A model that can do all of it at once implements `targets_and_logits` itself,
    which may return None where it cannot."""
    if (at_once := getattr(model, "targets_and_logits", None)) is not None:
        logits: tuple[list[Tensor], list[Tensor]] | None = at_once(targets, learned, weights, with_heads, joint)
        if logits is not None:
            return logits
    if joint:
        (all_logits,) = forward_each(model, [torch.cat([*learned, *targets])], stats="update", with_heads=with_heads)
        rows = torch.split(all_logits, [len(x) for x in (*learned, *targets)])
        return [guess.detach() for guess in rows[len(learned) :]], list(rows[: len(learned)])
    with torch.no_grad():
        guesses = forward_each(model, targets, weights, with_heads=with_heads)
    return guesses, forward_each(model, learned, stats="update", with_heads=with_heads)

"""What a method is: a pure function from a batch to a loss, and the settings that shape it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from mixmatch.draws import Draws

Weights = Literal["live", "ema"]
Stats = Literal["batch", "update", "running"]

Metrics = dict[str, Tensor]
"""Named scalars on the device, to be averaged and shown."""


class Batch(NamedTuple):
    """Images in [-1, 1]: labeled `x` (B, C, H, W) with one-hot `y` (B, L), unlabeled `u` (views, B, C, H, W)."""

    x: Tensor
    y: Tensor
    u: Tensor


class Progress(NamedTuple):
    """Where training stands: the number of steps done so far, as a scalar on the device, and how many there will be."""

    step: Tensor
    total: int


class Predictor(Protocol):
    """What a method may ask of the network; see `mixmatch.training.model.Model`."""

    def __call__(
        self, x: Tensor, weights: Weights = "live", stats: Stats = "batch", full_precision: bool = False
    ) -> Tensor: ...


def several(
    model: Predictor, batches: Sequence[Tensor], weights: Weights = "live", stats: Stats = "batch"
) -> list[Tensor]:
    """A pass over each batch with its own statistics; `stats` is for the first, the others leave the running ones
    alone. A model that can take batches of one size together, with the same outcome, has a method of this name."""
    together = getattr(model, "several", None)
    if together is not None:
        logits: list[Tensor] = together(batches, weights, stats)
        return logits
    return [model(x, weights=weights, stats=stats if i == 0 else "batch") for i, x in enumerate(batches)]


def both(
    model: Predictor, targets: Sequence[Tensor], learned: Sequence[Tensor], weights: Weights = "live"
) -> tuple[list[Tensor], list[Tensor]]:
    """Passes over batches that only targets come from, with these weights and without gradient; and over batches that
    are learned from, the first of which updates the running statistics. A model that can take all of them together,
    with the same outcome, has a method of this name."""
    together = getattr(model, "both", None)
    if together is not None:
        logits: tuple[list[Tensor], list[Tensor]] = together(targets, learned, weights)
        return logits
    with torch.no_grad():
        guesses = several(model, targets, weights)
    return guesses, several(model, learned, stats="update")


class Method(Protocol):
    """A semi-supervised method. Implementations are frozen dataclasses whose fields are the method's settings."""

    @property
    def unlabeled_views(self) -> int:
        """How many augmentations of each unlabeled image it wants; 0 if it does not use them."""
        ...

    @property
    def wants_noise(self) -> bool:
        """Whether it needs standard normal noise of the shape of a view, as the draw `noise`."""
        ...

    def draw(self, rng: np.random.Generator, batch_size: int) -> Draws:
        """Everything random it needs for one step, beyond the images and their augmentation."""
        ...

    def loss(
        self, model: Predictor, batch: Batch, draws: Mapping[str, Tensor], progress: Progress
    ) -> tuple[Tensor, Metrics]:
        """The loss of one step and what to report of it. No hidden state, no waiting for the device."""
        ...

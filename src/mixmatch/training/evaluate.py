"""How good a network is: the error on held-out rows, with averaged weights and the live batch-norm statistics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from mixmatch.augment import unaugmented
from mixmatch.data.pool import on_device
from mixmatch.data.source import UNKNOWN
from mixmatch.networks.precision import full_fp32
from mixmatch.training.model import Model

REPORTED = 20
"""The paper reports the median over this many last evaluations."""

LEAST_VALID = 50
"""Validation rows needed for their error to be shown next to that on test rows: with fewer, a single row is more than 2
points."""


class Evaluation(NamedTuple):
    """Error in percent, mean cross-entropy, and over how many images or rows."""

    error: float
    loss: float
    images: int


ROWS, VALUES = 1024, 1024 * 32 * 32 * 3
"""The most rows that an accelerator gets at once, and the most values."""


def piece_rows(shape: Sequence[int], device: torch.device) -> int:
    """How many rows of a shape are sent to a device at once."""
    if device.type == "cpu":
        return 64  # small pieces stay in a processor's cache
    return max(1, min(ROWS, VALUES // max(1, math.prod(shape))))


def predict_logits(
    forward: Callable[[Tensor], Tensor], inputs: npt.NDArray[Any] | Tensor, device: torch.device
) -> Iterator[Tensor]:
    """Logits (n, L) for uint8 images (N, H, W, C) or features (N, F), piece by piece and unaugmented."""
    size = piece_rows(inputs.shape[1:], device)
    for start in range(0, len(inputs), size):
        piece = inputs[start : start + size]
        # A copy: a network may work in place.
        rows = piece.clone() if isinstance(piece, Tensor) else torch.from_numpy(np.array(piece)).to(device)
        with torch.no_grad(), full_fp32():
            logits = forward(unaugmented(rows))
        yield logits


class HeldOut(NamedTuple):
    """Labeled rows to evaluate a model on, and their classes on the device."""

    inputs: npt.NDArray[Any] | Tensor
    labels: Tensor

    @staticmethod
    def of(
        inputs: npt.NDArray[Any], labels: npt.NDArray[np.int64], rows: npt.NDArray[np.int64], device: torch.device
    ) -> HeldOut | None:
        """Those of `rows` whose class is known; None if there are none."""
        rows = rows[labels[rows] != UNKNOWN]
        if len(rows) == 0:
            return None
        every = len(rows) == len(inputs) and bool((rows == np.arange(len(rows))).all())
        chosen = inputs if every else inputs[rows]  # the inputs themselves may be larger than memory
        return HeldOut(on_device(chosen, device), torch.from_numpy(np.array(labels[rows], np.int64)).to(device))


def evaluate(model: Model, held_out: HeldOut, between: Callable[[], None] = lambda: None) -> Evaluation:
    """The error over the rows. `between` is called between pieces."""
    truth = held_out.labels
    device = truth.device
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    exact = torch.float32 if device.type == "mps" else torch.float64  # which MPS does not have
    loss = torch.zeros((), dtype=exact, device=device)
    start = 0
    for logits in predict_logits(lambda x: model(x, weights="ema", stats="running"), held_out.inputs, device):
        target = truth[start : start + len(logits)]
        wrong += (logits.argmax(dim=-1) != target).sum()
        loss += F.cross_entropy(logits, target, reduction="sum").to(exact)
        start += len(logits)
        between()
    return Evaluation(error=100 * wrong.item() / start, loss=loss.item() / start, images=start)


def reported_error(errors: list[float]) -> tuple[float, int]:
    """The paper's number, the median of the last 20 evaluations or of all if there are fewer, and how many it is of.

    Never the best on the test set: that would be choosing the model by the answers.
    """
    last = errors[-REPORTED:]
    return float(np.median(last)), len(last)

"""How good a network is: the error on held-out rows, with averaged weights and the live batch-norm statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from mixmatch.data.augment import unaugmented
from mixmatch.data.source import UNKNOWN
from mixmatch.training.model import Model

REPORTED = 20
"""The paper reports the median over this many last evaluations."""


class Evaluation(NamedTuple):
    """Error in percent, mean cross-entropy, and over how many images or rows."""

    error: float
    loss: float
    images: int


def predict_logits(
    forward: Callable[[Tensor], Tensor], inputs: npt.NDArray[Any], device: torch.device
) -> Iterator[Tensor]:
    """Logits (n, L) for uint8 images (N, H, W, C) or features (N, F), piece by piece and unaugmented."""
    size = 64 if device.type == "cpu" else 1000  # small pieces stay in a processor's cache
    for start in range(0, len(inputs), size):
        piece = torch.from_numpy(np.array(inputs[start : start + size])).to(device)
        with torch.no_grad():
            yield forward(unaugmented(piece))


def evaluate(
    model: Model,
    inputs: npt.NDArray[Any],
    labels: npt.NDArray[np.int64],
    device: torch.device,
    between: Callable[[], None] = lambda: None,
) -> Evaluation | None:
    """The error over the rows whose class is known; None if there are none. `between` is called between batches."""
    known = labels != UNKNOWN
    if not known.any():
        return None
    if not known.all():
        inputs, labels = inputs[known], labels[known]
    truth = torch.from_numpy(np.ascontiguousarray(labels, np.int64)).to(device)
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    exact = torch.float32 if device.type == "mps" else torch.float64  # which MPS does not have
    loss = torch.zeros((), dtype=exact, device=device)
    start = 0
    for logits in predict_logits(lambda x: model(x, weights="ema", stats="running"), inputs, device):
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

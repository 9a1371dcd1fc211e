"""What FixMatch and its successors share: their settings, the pass over their three kinds of rows, distribution
alignment, and the auxiliary balanced classifier. Each method is a page of its own beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mixmatch import functional
from mixmatch.draws import Draws
from mixmatch.errors import MixMatchError
from mixmatch.methods.base import DataInfo, Method, Predictor, Progress, Tensors, setting, targets_and_logits

RECIPE: Mapping[str, Any] = {
    "optimizer": "sgd",
    "learning_rate": 0.03,
    "schedule": "cosine-7/16",
    "weight_decay": 5e-4,
    "unlabeled": "all",
    "strong": "randaugment",
}
"""The settings of the run that FixMatch and its successors want."""

Passes = Literal["official", "fused"]

CONFIDENT = 0.95
"""Predictions of the balanced classifier at least this confident become labels."""


class Logits(NamedTuple):
    """Logits of the labeled rows (B, L) and of the weak and strong views (mu B, L); the weak ones are constants."""

    x: Tensor
    weak: Tensor
    strong: Tensor


ALIGN = (
    "Class frequencies that predictions are scaled towards: `none`; `labels`, those of the labels; `uniform`; `model`, "
    "the average prediction for labeled images; or the frequencies themselves, by class, as in 0.5,0.3,0.2."
)
ALIGN_CHOICES = "NAME|P1,P2,..."


def frequencies(align: str, *, model: bool = True) -> list[float]:
    """The class frequencies in the setting `align`, empty if it is a name; or an error that says what it must be."""
    names = ["none", "labels", "uniform", *(["model"] if model else [])]
    if align in names:
        return []
    try:
        given = [float(part) for part in str(align).split(",")]  # of an object it may be anything
    except ValueError:
        given = []
    if len(given) < 2 or not all(math.isfinite(p) and p >= 0 for p in given) or sum(given) == 0:
        raise MixMatchError(
            f"align={align!r} must be one of {', '.join(names)}, or a frequency of at least 0 for each class, as in "
            "0.5,0.3,0.2"
        )
    return [p / sum(given) for p in given]


def aligned_to(align: str, data: DataInfo) -> Tensor:
    """The class frequencies (L,) to align to, before the first step."""
    given = frequencies(align)
    if given and len(given) != data.classes:
        raise MixMatchError(f"align={align!r} has {len(given)} frequencies, but there are {data.classes} classes")
    if align == "labels":
        return data.prior.clone()
    return data.prior.new_tensor(given) if given else torch.full_like(data.prior, 1 / data.classes)


@dataclass(frozen=True, kw_only=True)
class PseudoLabeling(Method):
    """A method that learns the strong view's label from the weak view, with FixMatch's recipe. Subclasses say which
    labels count, and how much."""

    lambda_u: float = setting(1.0, "Weight of the unlabeled loss.", least=0, search=10)
    ratio: int = setting(7, "Unlabeled images per labeled one (mu).", least=1, limit=1024)
    prediction_decay: float = setting(
        0.999, "Decay of the moving averages over predictions; less for a run of few steps.", within=(0, 1)
    )
    balance: Literal["none", "abc"] = setting(
        "none",
        "For uneven labels: `abc` trains the classifier on all classes equally, and a second one with the method's "
        "own loss.",
        of_steps=lambda balance: balance != "none",  # a share of rows falls over the run
    )
    passes: Passes = setting(
        "official",
        "`official` learns from one batch of all images, with one batch norm. On CUDA `fused` leaves out the gradients "
        "that reach the weak views through its statistics, which is faster; elsewhere it is the same.",
    )

    align = "none"  # a method may declare it as a setting
    views = ("weak", "strong")
    run_defaults = RECIPE

    def __post_init__(self) -> None:
        frequencies(self.align)

    @property
    def heads(self) -> Mapping[str, int]:
        """The network's own classifier is the balanced one, which is evaluated; the method's own loss trains another
        head."""
        return {"plain": 0} if self.balance == "abc" else {}

    def draw(self, rng: np.random.Generator, batch_size: int) -> Draws:
        """For the balanced classifier a number in [0, 1) for each labeled and each unlabeled row: it counts if its
        class's share is above it."""
        if self.balance == "none":
            return {}
        numbers = rng.random((1 + self.ratio) * batch_size, np.float32)
        return {"keep_x": numbers[:batch_size], "keep_u": numbers[batch_size:]}

    def state(self, data: DataInfo) -> dict[str, Tensor]:
        """For distribution alignment its target and the average prediction for unlabeled rows; for the balanced
        classifier the share of each class's rows that counts: N_min / N_c, all of a class without labels."""
        state = dict[str, Tensor]()
        if self.align != "none":
            uniform = torch.full_like(data.prior, 1 / data.classes)
            state |= {"target": aligned_to(self.align, data), "predicted": uniform}
        if self.balance != "none":
            least = torch.where(data.prior > 0, data.prior, torch.inf).amin()
            state["share"] = torch.where(data.prior > 0, least / data.prior, 1.0)
        return state

    def predict(self, model: Predictor, x: Tensor, u: Tensor) -> tuple[Logits, Logits | None]:
        """Logits for the method's own loss and, with a balanced classifier, those for `balanced_loss`.

        The weak views share batch norm's statistics with the others. In the official pass gradients reach them through
        the statistics, although their logits are constants; in the fused one, where kernels run it, they do not.
        """
        weak, strong = u
        heads = tuple(self.heads)
        if self.passes == "official":
            logits = model(torch.cat([x, weak, strong]), stats="update", with_heads=heads)
            z = Logits(logits[: len(x)], logits[len(x) : -len(strong)].detach(), logits[-len(strong) :])
        else:
            learned = [torch.cat([x, strong])]
            (guess,), (logits,) = targets_and_logits(model, [weak], learned, with_heads=heads, joint=True)
            z = Logits(logits[: len(x)], guess, logits[len(x) :])
        if not heads:
            return z, None
        balanced, plain = zip(*(rows.chunk(2, dim=-1) for rows in z), strict=True)
        return Logits(*plain), Logits(*balanced)

    def aligned(
        self, q: Tensor, logits_x: Tensor, progress: Progress, state: Tensors
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The predictions `q` for weak views, aligned, and the state that changed. The averages are updated with this
        step first; that of `q` begins with the first batch's mean."""
        if self.align == "none":
            return q, {}
        mean = q.mean(dim=0)
        average = functional.moving_average(state["predicted"], mean, self.prediction_decay)
        changed = {"predicted": torch.where(progress.step == 0, mean, average)}
        if self.align == "model":
            mean_x = logits_x.detach().softmax(dim=-1).mean(dim=0)
            changed["target"] = functional.moving_average(state["target"], mean_x, self.prediction_decay)
        return functional.align(q, {**state, **changed}["target"], changed["predicted"]), changed

    def balanced_loss(
        self, z: Logits | None, y: Tensor, draws: Tensors, progress: Progress, state: Tensors
    ) -> Tensor | float:
        """The loss of the auxiliary balanced classifier (Lee et al., 2021): FixMatch's, but of each class only a share
        of its rows counts, of unlabeled rows one that falls from all to N_min / N_c over the run."""
        if z is None:
            return 0.0
        share = state["share"]
        kept_x = draws["keep_x"] < (y * share).sum(dim=-1)
        loss_x = functional.pseudo_label_loss(z.x[: len(y)], y, kept_x.to(y.dtype))
        confidence, label = z.weak.softmax(dim=-1).max(dim=-1)
        kept_u = (confidence >= CONFIDENT) & (draws["keep_u"] < 1 - progress.ramp(1.0) * (1 - share[label]))
        return loss_x + functional.pseudo_label_loss(z.strong, label, kept_u.to(y.dtype))

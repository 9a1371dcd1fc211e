"""A watch on a run's guesses: it says at once when training on unlabeled rows goes wrong, and what to change."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mixmatch.settings import Settings

SAMPLE = 256
"""Unlabeled rows that are predicted at each evaluation, the same ones each time: a share is known to 3 points."""

QUIET_STEPS, QUIET_PART = 100, 0.05
"""Steps, and the part of a run, before which one class may take all: the averages have to settle first."""

ONE_CLASS = 0.85
"""How far the share of the commonest guess may be on the way from its share among the labels (0) to all rows (1)."""

LOST = 0.5
"""How far the labeled loss may rise from its minimum (0) towards that of guessing (1)."""


class Watch:
    """Two signs of a collapse, in which wrong guesses teach themselves until every row is taken for one class.

    One class takes almost all: its share of the guesses is 85 % of the way from the share of the commonest class among
    the labels to 1. With four classes of equal size that is 89 %; where 95 % of the labels are of one class, 99 %. So
    uneven labels alone raise no alarm.

    The labeled loss rises: it is halfway from its minimum to that of guessing, the logarithm of the number of classes.
    Nothing but the growing weight of the unlabeled loss makes it rise so far. This sign comes first, because the
    averaged weights, which are the ones that guess here, follow the live ones later.

    A sign is reported when it appears, and again only if it was half gone in between. It depends only on the records of
    evaluations, so the watch of a resumed run reads the earlier ones first.
    """

    def __init__(
        self, settings: Settings, classes: Sequence[str], labels: npt.NDArray[np.int64], noun: str = "image"
    ) -> None:
        """`labels` are the classes of the labeled rows."""
        self._settings, self._noun = settings, noun
        self._common = float(np.bincount(labels).max() / len(labels))
        self._guessing, self._lowest = math.log(len(classes)), math.inf
        self._reported = {"share": False, "loss": False}

    def look(self, record: Mapping[str, Any], commonest: str = "") -> list[str]:
        """What an evaluation gives reason to say. `commonest` is the class that `guess_share` is of."""
        step, share, loss = record["step"], record.get("guess_share"), record.get("loss_x")
        signs: dict[str, tuple[float, str]] = {}
        if share is not None and step >= max(QUIET_STEPS, QUIET_PART * self._settings.steps):
            signs["share"] = (
                (share - self._common) / max(1 - self._common, 1e-9) / ONE_CLASS,
                f"{100 * share:.0f} % of the unlabeled {self._noun}s are taken for '{commonest}' at step {step:,}",
            )
        if loss is not None and self._lowest < self._guessing:
            signs["loss"] = (
                (loss - self._lowest) / (self._guessing - self._lowest) / LOST,
                f"the loss of the labeled {self._noun}s rose from {self._lowest:.2f} to {loss:.2f} at step {step:,}",
            )
        if loss is not None:
            self._lowest = min(self._lowest, loss)
        new = [text for name, (extent, text) in signs.items() if extent >= 1 and not self._reported[name]]
        for name, (extent, _) in signs.items():
            self._reported[name] = extent >= (0.5 if self._reported[name] else 1)
        return [f"{text}: the run may be collapsing; {self._advice()}" for text in new]

    def _advice(self) -> str:
        """What to change, in words that fit the command line and Python."""
        values = self._settings.method_settings
        weight = next((name for name in values if name.startswith("lambda") or name.endswith("weight")), None)
        if weight is None:
            return "if it stays so, stop it and train with more labels or steps"
        return f"if it stays so, stop it and train with a lower {weight} (now {values[weight]:g}) or more steps"

"""Did the unlabeled data help? The same labels and budget with and without it, and an honest interval."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mixmatch.classifier import Classifier
from mixmatch.data.source import Rows
from mixmatch.draws import generator

RESAMPLES = 2000


class Gain(NamedTuple):
    """Test errors in percent, and the 95 % interval of their difference over resampled test images."""

    error: float
    baseline: float
    low: float
    high: float
    images: int
    noun: str = "image"

    @property
    def sentence(self) -> str:
        """What the unlabeled images brought, in plain words."""
        points, what = self.baseline - self.error, f"{self.noun}s"
        numbers = (
            f"{self.baseline:.1f} % test error with the labels alone, {self.error:.1f} % with unlabeled {what} too, "
            f"a difference of {points:+.1f} points (95 % interval {self.low:+.1f} to {self.high:+.1f}, "
            f"{self.images:,} test {what})"
        )
        if self.low > 0:
            return f"The unlabeled {what} helped: {numbers}."
        if self.high < 0:
            return f"The unlabeled {what} did harm: {numbers}."
        return f"It cannot be told whether the unlabeled {what} helped: {numbers}."


def gain(model: Classifier, baseline: Classifier, test: Rows) -> Gain:
    """Compare two classifiers on the same test rows by a paired bootstrap."""
    wrong = _wrong(model, test)
    without = _wrong(baseline, test)
    difference = 100 * (without.astype(np.float64) - wrong)
    draws, rows = generator(0, "bootstrap", 0), len(test)
    means = [difference[draws.integers(0, rows, rows)].mean() for _ in range(RESAMPLES)]  # all at once take gigabytes
    low, high = np.percentile(means, [2.5, 97.5])
    return Gain(100 * float(wrong.mean()), 100 * float(without.mean()), float(low), float(high), rows, test.noun)


def _wrong(model: Classifier, test: Rows) -> npt.NDArray[np.bool_]:
    wrong: npt.NDArray[np.bool_] = model.probabilities(test.inputs).argmax(axis=1) != test.labels
    return wrong

"""Did the unlabeled data help? The error with and without it, and a confidence interval of the difference."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mixmatch.classifier import Classifier
from mixmatch.data.source import Rows
from mixmatch.draws import generator

RESAMPLES = 2000
"""Bootstrap samples of the test rows."""


class Gain(NamedTuple):
    """Test errors in percent, and the 95 % interval of their difference over resampled test rows."""

    error: float
    """Of the model."""
    baseline: float
    """Of the model that was trained on the labels alone."""
    low: float
    high: float
    images: int
    """How many test images or rows there are."""
    noun: str = "image"
    """What a row is called: image or row."""

    @property
    def points(self) -> float:
        """Percentage points that the unlabeled data takes off the test error."""
        return self.baseline - self.error

    @property
    def sentence(self) -> str:
        """What the unlabeled data changed, in plain words."""
        rows, low, high = f"{self.noun}s", self.low, self.high
        difference = f"{abs(self.points):.1f} points {'less' if self.points >= 0 else 'more'} error"
        if low > 0:
            return f"The unlabeled {rows} helped: {difference} (95 % interval {low:.1f} to {high:.1f})."
        if high < 0:
            return f"The unlabeled {rows} hurt: {difference} (95 % interval {-high:.1f} to {-low:.1f})."
        interval = f"95 % interval from {abs(low):.1f} more to {high:.1f} less"
        return f"No clear difference with unlabeled {rows}: {difference} ({interval})."


def measure_gain(model: Classifier, baseline: Classifier, test: Rows) -> Gain:
    """Compare two classifiers on the same test rows."""
    wrong, alone = (each.probabilities(test.inputs).argmax(axis=1) != test.labels for each in (model, baseline))
    return compare_errors(wrong, alone, test.noun)


def compare_errors(wrong: npt.NDArray[np.bool_], wrong_baseline: npt.NDArray[np.bool_], noun: str = "image") -> Gain:
    """The gain by a paired bootstrap: which rows the model predicts wrong, and which the baseline."""
    difference = 100 * (wrong_baseline.astype(np.float64) - wrong)
    draws, rows = generator(0, "bootstrap", 0), len(wrong)
    # One sample at a time: all of them at once would take gigabytes.
    means = [difference[draws.integers(0, rows, rows)].mean() for _ in range(RESAMPLES)]
    low, high = np.percentile(means, [2.5, 97.5])
    errors = 100 * float(wrong.mean()), 100 * float(wrong_baseline.mean())
    return Gain(*errors, float(low), float(high), rows, noun)

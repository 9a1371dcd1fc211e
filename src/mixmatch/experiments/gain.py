"""Did the unlabeled images help? The same labels and budget with and without them, and an honest interval."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mixmatch.classifier import Classifier
from mixmatch.data.source import Images
from mixmatch.draws import generator

RESAMPLES = 2000


class Gain(NamedTuple):
    """Test errors in percent, and the 95 % interval of their difference over resampled test images."""

    error: float
    baseline: float
    low: float
    high: float
    images: int

    @property
    def sentence(self) -> str:
        """What the unlabeled images brought, in plain words."""
        points = self.baseline - self.error
        numbers = (
            f"{self.baseline:.1f} % test error with the labels alone, {self.error:.1f} % with unlabeled images too, "
            f"a difference of {points:+.1f} points (95 % interval {self.low:+.1f} to {self.high:+.1f}, "
            f"{self.images:,} test images)"
        )
        if self.low > 0:
            return f"The unlabeled images helped: {numbers}."
        if self.high < 0:
            return f"The unlabeled images did harm: {numbers}."
        return f"It cannot be told whether the unlabeled images helped: {numbers}."


def gain(model: Classifier, baseline: Classifier, test: Images) -> Gain:
    """Compare two classifiers on the same test images by a paired bootstrap."""
    wrong = _wrong(model, test)
    without = _wrong(baseline, test)
    difference = 100 * (without.astype(np.float64) - wrong)
    picks = generator(0, "bootstrap", 0).integers(0, len(test), (RESAMPLES, len(test)))
    low, high = np.percentile(difference[picks].mean(axis=1), [2.5, 97.5])
    return Gain(100 * float(wrong.mean()), 100 * float(without.mean()), float(low), float(high), len(test))


def _wrong(model: Classifier, test: Images) -> npt.NDArray[np.bool_]:
    wrong: npt.NDArray[np.bool_] = model.predict_proba(test.images).argmax(axis=1) != test.labels
    return wrong

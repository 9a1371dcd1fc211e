"""The gain from unlabeled images and its sentence, against a bootstrap written here."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from mixmatch.data.source import Rows
from mixmatch.draws import generator
from mixmatch.training.gain import RESAMPLES, Gain, measure_gain


class Fixed:
    """Predicts what it was made with."""

    def __init__(self, predicted: np.ndarray) -> None:
        self.predicted = predicted

    def probabilities(self, images: np.ndarray) -> np.ndarray:
        return np.eye(3)[self.predicted]


def compare(wrong: int, wrong_alone: int, count: int = 400) -> Gain:
    labels = np.arange(count) % 3
    first, second = labels.copy(), labels.copy()
    first[:wrong] = (first[:wrong] + 1) % 3
    second[:wrong_alone] = (second[:wrong_alone] + 1) % 3
    test = Rows(np.zeros((count, 1, 1, 1), np.uint8), labels.astype(np.int64))
    return measure_gain(Fixed(first), Fixed(second), test)  # type: ignore[arg-type]


def test_errors_and_interval() -> None:
    result = compare(40, 100)
    assert (result.error, result.baseline, result.images) == (10, 25, 400)
    # The difference is 1 for 60 of 400 images and 0 else: its mean has a standard error of sqrt(.15 * .85 / 400).
    spread = 100 * 1.96 * np.sqrt(0.15 * 0.85 / 400)
    assert result.low == pytest.approx(15 - spread, abs=0.4)
    assert result.high == pytest.approx(15 + spread, abs=0.4)


def test_interval_of_all_resamples_drawn_at_once() -> None:
    result = compare(40, 100, 401)
    difference = np.repeat([0.0, 100.0, 0.0], [40, 60, 301])
    picks = generator(0, "bootstrap", 0).integers(0, 401, (RESAMPLES, 401))
    assert [result.low, result.high] == np.percentile(difference[picks].mean(axis=1), [2.5, 97.5]).tolist()


def test_many_test_rows_take_little_memory() -> None:
    tracemalloc.start()
    try:
        compare(1000, 2000, 20_000)
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("wrong", "alone", "says"),
    [(40, 100, "helped:"), (100, 40, "hurt:"), (50, 51, "No clear difference with unlabeled images: ")],
)
def test_sentence(wrong: int, alone: int, says: str) -> None:
    assert says in compare(wrong, alone).sentence


def test_sentence_has_the_numbers() -> None:
    text = Gain(error=4.04, baseline=24.5, low=18.0, high=22.9, images=500).sentence
    assert text == "The unlabeled images helped: 20.5 points less error (95 % interval 18.0 to 22.9)."
    text = Gain(error=24.5, baseline=20.0, low=-6.0, high=-2.5, images=500).sentence
    assert text == "The unlabeled images hurt: 4.5 points more error (95 % interval 2.5 to 6.0)."
    text = Gain(error=20.0, baseline=19.5, low=-2.0, high=1.0, images=500, noun="row").sentence
    assert text == (
        "No clear difference with unlabeled rows: 0.5 points more error (95 % interval from 2.0 more to 1.0 less)."
    )

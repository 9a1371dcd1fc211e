"""What a report counts, against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mixmatch import measure


def test_confusion_and_scores() -> None:
    labels, predicted = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 0, 1, 1, 0, 0])
    counts = measure.confusion(labels, predicted, 4)
    assert counts.tolist() == [[2, 1, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    first, second, third, none = measure.class_scores(counts)
    assert first.images == 3
    assert first.error == pytest.approx(100 / 3)
    assert first.precision == pytest.approx(50)  # 2 of the 4 predicted
    assert first.recall == pytest.approx(200 / 3)
    assert second == (2, 50, 50, 50)
    assert third == (1, 100, None, 0)  # never predicted
    assert none == (0, None, None, None)


def test_most_confused_takes_the_worst_pairs_both_ways_together() -> None:
    counts = np.diag([9] * 6)
    counts[0, 1] = 3
    counts[4, 5], counts[5, 4] = 2, 2  # 4 together: the worst pair
    counts[2, 3] = 1
    assert measure.most_confused(counts, 6).tolist() == [0, 1, 2, 3, 4, 5]
    assert measure.most_confused(counts, 5).tolist() == [0, 1, 4, 5]  # no room for both 2 and 3
    assert measure.most_confused(counts, 3).tolist() == [4, 5]
    assert measure.most_confused(np.diag([9] * 6), 3).tolist() == [0, 1]
    assert measure.top_mistakes(counts, 2) == [(0, 1, 3), (4, 5, 2)]
    assert measure.top_mistakes(np.diag([9] * 6), 2) == []


def calibration(probabilities: np.ndarray, labels: np.ndarray, bins: int = measure.BINS) -> measure.Calibration:
    return measure.reliability(probabilities.max(axis=1), probabilities.argmax(axis=1) == labels, bins)


def test_calibration_by_hand() -> None:
    # Of 5 bins: (0.4, 0.6] has 0.6 right and 0.5 wrong, (0.8, 1] has 0.9 right and 1.0 right.
    probabilities = np.array([[0.6, 0.4], [0.5, 0.5], [0.1, 0.9], [1.0, 0.0]])
    found = calibration(probabilities, np.array([0, 1, 1, 0]), bins=5)
    assert [(round(b.low, 6), b.images) for b in found.bins] == [(0.4, 2), (0.8, 2)]
    assert found.bins[0].confidence == pytest.approx(0.55)
    assert found.bins[0].accuracy == pytest.approx(0.5)
    assert found.error == pytest.approx((2 * 0.05 + 2 * 0.05) / 4)
    assert found.accuracy == 0.75
    assert found.confidence == pytest.approx(0.75)  # right on the whole, and still off in each bin
    assert measure.BINS == 15


def test_a_sure_and_right_model_has_no_calibration_error() -> None:
    assert calibration(np.eye(3), np.arange(3)).error == 0
    assert calibration(np.eye(3), np.array([1, 2, 0])).error == 1


def test_confident_mistakes_surest_first() -> None:
    predicted, sure = np.array([0, 0, 1, 1]), np.array([0.6, 0.9, 0.8, 0.7])
    assert measure.confident_mistakes(predicted, sure, np.array([1, 1, 1, 0])).tolist() == [1, 3, 0]
    assert measure.confident_mistakes(predicted, sure, predicted).tolist() == []


def test_suspect_labels_are_those_another_class_is_as_sure_of_as_of_its_own() -> None:
    labels = np.array([0, 0, 0, 1, 1, 1])
    predicted = np.array([0, 1, 1, 1, 1, 0])
    confidence = np.array([0.9, 0.85, 0.6, 0.95, 0.8, 0.6])
    of_label = np.array([0.9, 0.15, 0.4, 0.95, 0.8, 0.4])
    # Class 0 has 0.4833 on average, class 1 has 0.7167: rows 1 and 5 reach that of the class predicted, row 2 does not.
    assert measure.suspect_labels(labels, predicted, confidence, of_label).tolist() == [1, 5]


def test_uncertainty_is_entropy_as_part_of_the_largest() -> None:
    found = measure.uncertainty(np.array([[0.5, 0.5, 0, 0], [0.25, 0.25, 0.25, 0.25], [1, 0, 0, 0]]))
    assert found == pytest.approx([0.5, 1, 0])  # log 2 / log 4
    one = measure.uncertainty(np.array([[0.9, 0.1]]))
    assert one[0] == pytest.approx(-(0.9 * math.log2(0.9) + 0.1 * math.log2(0.1)))


def test_diverse_is_farthest_first_and_never_the_same_twice() -> None:
    line = np.array([[0.0], [1.0], [10.0], [4.0], [10.0]])
    even = np.ones(5)
    even[1] = 1.001  # the start
    assert measure.diverse(line, even, 3).tolist() == [1, 2, 3]
    assert measure.diverse(line, even, 99).tolist() == [1, 2, 3, 0]  # 4 is a copy of 2
    assert measure.diverse(line, np.array([0.1, 1, 0, 0.5, 0]), 3).tolist() == [1, 3, 0]  # the certain ones never
    assert measure.diverse(np.empty((0, 1)), np.empty(0), 3).tolist() == []


def test_share_interval_is_wilsons() -> None:
    # 19 of 500: (0.038 + 0.0038415) / 1.0076829 -+ 1.95996 sqrt(0.038 * 0.962 / 500 + 0.0038415 / 2000) / 1.0076829
    assert measure.share_interval(19, 500) == pytest.approx((2.4460, 5.8585), abs=1e-4)
    assert measure.share_interval(0, 10)[0] == pytest.approx(0, abs=1e-9)
    assert measure.share_interval(0, 10)[1] == pytest.approx(27.75, abs=0.01)


def blob(center: tuple[float, ...], rows: int, seed: int) -> np.ndarray:
    return measure.unit(np.random.default_rng(seed).normal(center, 0.1, (rows, 3)).astype(np.float32))


A, B, JUNK = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)


def test_what_is_near_unlabeled_rows_and_far_from_labels_may_be_of_no_class() -> None:
    labeled = np.concatenate([blob(A, 15, 1), blob(B, 15, 2)])
    held_out = np.concatenate([blob(A, 40, 3), blob(B, 40, 4)])
    unlabeled = np.concatenate([blob(A, 100, 5), blob(B, 100, 6), blob(JUNK, 50, 7)])
    scores, known = measure.unlike_labeled(unlabeled, labeled, held_out)
    assert scores.shape == (250,)
    assert known.shape == (30 + 80,)

    def exact(row: np.ndarray, others: np.ndarray, k: int) -> float:
        return float(np.sort(np.linalg.norm(others - row, axis=1))[k - 1])

    share = round(3 * 250 / 30)
    assert scores[7] == pytest.approx(
        exact(unlabeled[7], labeled, 3) - exact(unlabeled[7], np.delete(unlabeled, 7, 0), share), abs=1e-3
    )
    assert known[7] == pytest.approx(
        exact(labeled[7], np.delete(labeled, 7, 0), 3) - exact(labeled[7], unlabeled, share), abs=1e-3
    )
    assert known[37] == pytest.approx(exact(held_out[7], labeled, 3) - exact(held_out[7], unlabeled, share), abs=1e-3)
    found = measure.of_no_class(scores, known)
    assert set(range(200, 250)) <= set(found.tolist())
    assert set(found[:50].tolist()) == set(range(200, 250))  # before any that are of a class
    assert len(found) < 75


def test_where_all_are_of_a_class_none_is_listed() -> None:
    labeled = np.concatenate([blob(A, 15, 1), blob(B, 15, 2)])
    unlabeled = np.concatenate([blob(A, 100, 5), blob(B, 100, 6)])
    scores, known = measure.unlike_labeled(unlabeled, labeled, np.empty((0, 3)))
    assert known.shape == (30,)
    assert len(measure.of_no_class(scores, known)) == 0


def test_it_takes_clearly_more_than_one_in_twenty() -> None:
    known = np.linspace(0, 1, 101)
    for beyond, listed in ((20, 0), (200, 200)):
        scores = np.concatenate([np.full(1000 - beyond, 0.5), np.linspace(2, 3, beyond)])
        found = measure.of_no_class(scores, known)
        assert len(found) == listed
    assert found[0] == 999  # the likeliest

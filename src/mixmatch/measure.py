"""How good a classifier's predictions are, and which images to label next: pure functions of arrays.

Throughout, `labels` is int (N,) and `probabilities` float (N, L) with rows that sum to 1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

BINS = 15
"""Of equal width, as in Guo et al. (2017), "On Calibration of Modern Neural Networks"."""


class ClassScore(NamedTuple):
    """One class: how many images it has, and percentages; None where there is nothing to take a share of."""

    images: int
    error: float | None
    precision: float | None
    recall: float | None


class Bin(NamedTuple):
    """Predictions of similar confidence: their number, mean confidence and accuracy (0 to 1)."""

    low: float
    high: float
    images: int
    confidence: float
    accuracy: float


class Calibration(NamedTuple):
    """`error` is the expected calibration error, 0 to 1; `bins` are those that are not empty."""

    error: float
    confidence: float
    accuracy: float
    bins: tuple[Bin, ...]


def confusion(labels: Ints, predicted: Ints, num_classes: int) -> Ints:
    """Counts (L, L): row the true class, column the predicted one."""
    counts = np.bincount(labels * num_classes + predicted, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes).astype(np.int64)


def class_scores(counts: Ints) -> list[ClassScore]:
    """Error, precision and recall of each class, from a confusion matrix."""
    scores = []
    for c in range(len(counts)):
        images, guessed, right = int(counts[c].sum()), int(counts[:, c].sum()), int(counts[c, c])
        recall = 100 * right / images if images else None
        error = 100 * (images - right) / images if images else None
        scores.append(ClassScore(images, error, 100 * right / guessed if guessed else None, recall))
    return scores


def most_confused(counts: Ints, most: int) -> Ints:
    """At most `most` classes, in their order: those of the pairs most often taken for one another."""
    if len(counts) <= most:
        return np.arange(len(counts), dtype=np.int64)
    both = counts + counts.T
    first, second = np.triu_indices(len(counts), k=1)
    chosen: dict[int, None] = {}
    for pair in np.argsort(-both[first, second], kind="stable"):
        new = [c for c in (int(first[pair]), int(second[pair])) if c not in chosen]
        if both[first[pair], second[pair]] == 0 or len(chosen) + len(new) > most:
            break
        chosen.update(dict.fromkeys(new))
    for c in range(len(counts)):  # hardly any mistakes: fill up
        if len(chosen) < min(most, 2):
            chosen.setdefault(c)
    return np.array(sorted(chosen), np.int64)


def top_mistakes(counts: Ints, most: int) -> list[tuple[int, int, int]]:
    """The commonest mistakes as (true class, predicted class, how often), commonest first."""
    wrong = counts - np.diag(np.diag(counts))
    order = np.argsort(-wrong.ravel(), kind="stable")[:most]
    found = [(int(i) // len(counts), int(i) % len(counts), int(wrong.ravel()[i])) for i in order]
    return [(true, taken, n) for true, taken, n in found if n > 0]


def reliability(confidence: Floats, is_right: npt.NDArray[np.bool_], bins: int = BINS) -> Calibration:
    """The expected calibration error: how far confidence, the probability of each predicted class, is from accuracy,
    averaged over bins of equal width.

    A prediction of confidence c lies in the bin with low < c <= high.
    """
    right = is_right.astype(np.float64)
    which = np.digitize(confidence, np.arange(1, bins) / bins, right=True)
    found = []
    for b in range(bins):
        inside = which == b
        if inside.any():
            means = float(confidence[inside].mean()), float(right[inside].mean())
            found.append(Bin(b / bins, (b + 1) / bins, int(inside.sum()), *means))
    error = sum(b.images * abs(b.accuracy - b.confidence) for b in found) / len(right)
    return Calibration(error, float(confidence.mean()), float(right.mean()), tuple(found))


def suspect_labels(labels: Ints, predicted: Ints, confidence: Floats, of_label: Floats) -> Ints:
    """Row numbers of labels that may be wrong, most suspect first, from predictions by models that did not learn them.

    A label is suspect if another class is at least as probable as that class is, on average, for rows that are labeled
    with it: the confident joint of Northcutt et al. (2021), "Confident Learning". `confidence` is the probability of
    the class predicted, `of_label` that of the label.
    """
    usual = {int(c): float(of_label[labels == c].mean()) for c in np.unique(labels)}
    enough = np.array([usual.get(int(c), 1.0) for c in predicted])
    suspect = np.flatnonzero((predicted != labels) & (confidence >= enough))
    return suspect[np.argsort((of_label - confidence)[suspect], kind="stable")]


def confident_mistakes(predicted: Ints, confidence: Floats, labels: Ints) -> Ints:
    """Row numbers of the wrong predictions, surest first."""
    wrong = np.flatnonzero(predicted != labels)
    return wrong[np.argsort(-confidence[wrong], kind="stable")]


def uncertainty(probabilities: Floats) -> Floats:
    """The entropy of each prediction as a share of the largest possible: 0 is certain, 1 a plain guess. (N,)"""
    if probabilities.shape[1] < 2:
        return np.zeros(len(probabilities))
    logs = np.log(np.clip(probabilities, 1e-300, 1.0))
    entropy: Floats = -(probabilities * logs).sum(axis=1) / math.log(probabilities.shape[1])
    return np.clip(entropy, 0.0, 1.0)


def diverse(features: Floats, weights: Floats, most: int) -> Ints:
    """Greedy farthest points: the row of most weight, then always the one with the largest weight x distance to those
    chosen. The first n of a larger choice are the choice of size n; copies of a chosen row are never chosen.
    """
    if len(features) == 0 or most < 1:
        return np.empty(0, np.int64)
    chosen = [int(weights.argmax())]
    distance = np.linalg.norm(features - features[chosen[0]], axis=1)
    while len(chosen) < most:
        following = int((weights * distance).argmax())
        if weights[following] * distance[following] <= 0:
            break
        chosen.append(following)
        distance = np.minimum(distance, np.linalg.norm(features - features[following], axis=1))
    return np.array(chosen, np.int64)


def unit(rows: npt.NDArray[np.float32]) -> Floats:
    """Rows scaled to length 1."""
    exact = rows.astype(np.float64)
    scaled: Floats = exact / np.maximum(np.linalg.norm(exact, axis=1, keepdims=True), 1e-12)
    return scaled


NEIGHBORS, BEYOND = 3, 0.05
"""The rank of the labeled neighbor whose distance counts, and the share of rows of a class that are listed, too."""


def unlike_labeled(unlabeled: Floats, labeled: Floats, held_out: Floats) -> tuple[Floats, Floats]:
    """How unlike anything labeled each unlabeled row is (N,), and each row that is known to be of a class: the labeled
    ones, without themselves, then those held out.

    It is the distance to the third nearest labeled row minus the distance to the unlabeled row of the same relative
    rank: high where unlabeled rows lie close together and no labeled ones are near. All rows are features of length 1.
    `benchmarks/no_class.py` compares it with other scores.
    """
    k = min(NEIGHBORS, len(labeled) - 1)
    share = max(1, round(k * len(unlabeled) / len(labeled)))
    scores = (
        _distance(unlabeled, labeled, k) - _distance(unlabeled, unlabeled, min(share + 1, len(unlabeled))),
        _distance(labeled, labeled, k + 1) - _distance(labeled, unlabeled, share),
        _distance(held_out, labeled, k) - _distance(held_out, unlabeled, share),
    )
    return scores[0], np.concatenate(scores[1:])


def _distance(rows: Floats, others: Floats, k: int) -> Floats:
    """From each row to the k-th nearest of the others; a row that is among them is its own first."""
    single, pieces = others.astype(np.float32).T, [np.empty(0)]  # twice as fast, and exact enough
    for start in range(0, len(rows), 512):
        squared = 2 - 2 * rows[start : start + 512].astype(np.float32) @ single
        pieces.append(np.sqrt(np.maximum(np.partition(squared, k - 1, axis=1)[:, k - 1], 0)))
    return np.concatenate(pieces)


def of_no_class(scores: Floats, known: Floats) -> Ints:
    """Row numbers of what may be of no class, likeliest first: more unlike anything labeled than 95 % of the rows that
    are known to be of a class. None if these are not clearly more than 5 % of the rows, with 95 % intervals that do not
    overlap: then the score cannot tell."""
    limit = np.quantile(known, 1 - BEYOND)
    beyond = np.flatnonzero(scores > limit)
    expected = share_interval(int((known > limit).sum()), len(known))[1]
    if share_interval(len(beyond), len(scores))[0] <= expected:
        return beyond[:0]
    return beyond[np.argsort(-scores[beyond], kind="stable")]


def share_interval(part: int, total: int) -> tuple[float, float]:
    """The 95 % interval (Wilson's) of a share, in percent."""
    z = 1.959964
    share, z2 = part / total, z * z / total
    center = (share + z2 / 2) / (1 + z2)
    half = z * math.sqrt(share * (1 - share) / total + z2 / (4 * total)) / (1 + z2)
    return 100 * max(0.0, center - half), 100 * min(1.0, center + half)

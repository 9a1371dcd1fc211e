"""Labels that may be wrong: those that similar pictures contradict, and near copies with different labels. No torch.

A model repeats the labels it has learned, wrong ones too. So each label is predicted without using it, in two ways: by
the labels of its ten nearest neighbors, and by logistic regressions over five folds, each on the other four. Their
geometric mean is about as precise as the better of the two, or more so (`benchmarks/label_check.py`).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mixmatch import measure
from mixmatch.draws import generator
from mixmatch.measure import Ints
from mixmatch.text import count as counted
from mixmatch.text import listed

Floats = npt.NDArray[np.floating]
Mask = npt.NDArray[np.bool_]

NEIGHBORS, FOLDS = 10, 5
LEAST = 5
"""Labels a class must have for them to be checked."""
MOST_LABELS = 20_000
"""Labels that are checked, drawn at random where there are more: what keeps the time to a minute."""
WARMTH, FLOOR = 0.1, 1e-3
"""Neighbors are weighted by exp(cosine / 0.1); and the probability of a class without any neighbor."""
SHARE = 0.1
"""The largest share of the labels that is listed: if more are contradicted, the predictions are what is weak."""

NEAR = 0.2
"""How far apart the fingerprints of near copies are at most, as a share of their contrast."""
NOISE = 2.0
"""Steps of brightness that are taken for noise: plain pictures have no contrast to take a share of."""
DIRECTIONS = 12


class Suspect(NamedTuple):
    """A label that may be wrong."""

    row: int
    label: int
    likely: int
    """The class it may be instead."""
    probability: float
    """Of that class."""
    reason: str


class Conflict(NamedTuple):
    """Near copies with different labels."""

    rows: tuple[int, ...]
    labels: tuple[int, ...]
    reason: str


def suspects(
    features: Floats,
    labels: Ints,
    *,
    classes: Sequence[str],
    exclude: Mask | None = None,
    most: int = 200,
    seed: int = 0,
) -> list[Suspect]:
    """Labels that may be wrong, most suspect first; none where too little is known to doubt any.

    A label is suspect if another class is at least as probable as it is on average for rows labeled with it
    (`measure.suspect_labels`). Classes with fewer than five labels are left out.

    Args:
        features: (N, D), of all pictures: by their pixels, or a model's.
        labels: (N,), -1 where there is none.
        classes: their names.
        exclude: labels to leave out.
    """
    rows = np.flatnonzero(labels >= 0 if exclude is None else (labels >= 0) & ~exclude)
    rows = rows[np.bincount(labels[rows], minlength=1)[labels[rows]] >= LEAST]
    if len(rows) > MOST_LABELS:
        rows = np.sort(generator(seed, "suspects", 0).permutation(rows)[:MOST_LABELS])
        rows = rows[np.bincount(labels[rows])[labels[rows]] >= LEAST]
    kinds, given = np.unique(labels[rows], return_inverse=True)
    if len(kinds) < 2:
        return []
    chosen = _fewer(np.asarray(features[rows], np.float64))
    by_neighbors, agreeing = neighbors(measure.unit(chosen), given, len(kinds))
    by_folds = folds(chosen, given, seed)
    both = np.sqrt(by_neighbors * by_folds)
    both /= both.sum(axis=1, keepdims=True)
    predicted, confidence = both.argmax(axis=1), both.max(axis=1)
    commonest = np.bincount(given).max()
    if measure.share_interval(int((predicted != given).sum()), len(given))[1] >= 100 * (1 - commonest / len(given)):
        return []  # no better than guessing
    doubted = measure.suspect_labels(given, predicted, confidence, both[np.arange(len(given)), given])
    found = []
    for i in doubted[: min(most, max(1, round(SHARE * len(given))))]:
        near, of, likely = agreeing[i, predicted[i]], agreeing[i].sum(), classes[kinds[predicted[i]]]
        says = f"a model that never saw this label gives {likely} {by_folds[i, predicted[i]]:.0%}"
        reason = f"{near} of the {of} labeled pictures most like it are {likely}, and {says}"
        found.append(
            Suspect(int(rows[i]), int(kinds[given[i]]), int(kinds[predicted[i]]), float(confidence[i]), reason)
        )
    return found


def neighbors(unit: Floats, labels: Ints, num_classes: int) -> tuple[Floats, Ints]:
    """Of each row, the probabilities (N, L) by the labels of its nearest other rows, and how many of these have each
    label (N, L). Rows have length 1."""
    number, single = min(NEIGHBORS, len(unit) - 1), unit.astype(np.float32)
    weights, votes = np.zeros((len(unit), num_classes)), np.zeros((len(unit), num_classes), np.int64)
    for start in range(0, len(unit), 512):
        rows = np.arange(start, min(start + 512, len(unit)))
        cosine = single[rows] @ single.T
        cosine[np.arange(len(rows)), rows] = -np.inf
        nearest = np.argpartition(-cosine, number - 1, axis=1)[:, :number]
        weight = np.exp((np.take_along_axis(cosine, nearest, axis=1) - 1) / WARMTH)
        np.add.at(weights, (rows[:, None], labels[nearest]), weight)
        np.add.at(votes, (rows[:, None], labels[nearest]), 1)
    weights += FLOOR * weights.sum(axis=1, keepdims=True) + 1e-12
    return weights / weights.sum(axis=1, keepdims=True), votes


def folds(features: Floats, labels: Ints, seed: int) -> Floats:
    """Probabilities (N, L) by logistic regressions that were fitted without the row's fold."""
    from sklearn.exceptions import ConvergenceWarning  # takes a second to import
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    split = StratifiedKFold(FOLDS, shuffle=True, random_state=seed % 2**32)
    model = LogisticRegression(C=0.1, max_iter=200)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # nearly there is near enough
        found = cross_val_predict(
            model, features / max(float(features.std()), 1e-12), labels, cv=split, method="predict_proba"
        )
    probabilities: Floats = found
    return probabilities


def _fewer(features: Floats) -> Floats:
    """At most 64 directions, those in which the rows differ most: a model's features may be thousands."""
    if features.shape[1] <= 64:
        return features
    from sklearn.decomposition import PCA

    fewer: Floats = PCA(min(64, len(features)), svd_solver="randomized", random_state=0).fit_transform(features)
    return fewer


def near_copies(fingerprints: npt.NDArray[np.uint8], rows: Ints | None = None) -> list[tuple[int, ...]]:
    """Groups of pictures that are the same but for size, encoding or brightness: a picture, and those near it.

    Args:
        fingerprints: (N, 288), by `features.fingerprint`.
        rows: the pictures to look at; by default all. Those that could not be read must not be among them.
    """
    from scipy.spatial import KDTree

    rows = np.arange(len(fingerprints), dtype=np.int64) if rows is None else rows
    if len(rows) < 2:
        return []
    units = np.concatenate([_contrasts(fingerprints[rows[i : i + 4096]]) for i in range(0, len(rows), 4096)])
    # Orthogonal directions: pictures that are near in all are near in these, so none is missed, and a tree finds them
    # fast.
    sample = units[generator(0, "near copies", 0).permutation(len(units))[:2000]]
    directions = np.linalg.svd(sample - sample.mean(axis=0), full_matrices=False)[2][:DIRECTIONS]
    places = units @ directions.T
    tree = KDTree(places)
    grouped, groups = np.zeros(len(rows), bool), []
    for first in range(len(rows)):
        if grouped[first]:
            continue
        near = np.array(tree.query_ball_point(places[first], NEAR + 1e-6), np.int64)
        near = near[np.linalg.norm(units[near] - units[first], axis=1) <= NEAR]
        grouped[near] = True
        if len(near) > 1:
            groups.append(tuple(sorted(rows[near].tolist())))
    return groups


def _contrasts(fingerprints: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Brightness and tints without their means, scaled to length 1 where there is contrast."""
    gray, tint = fingerprints[:, :256].astype(np.float32), fingerprints[:, 256:].astype(np.float32) - 128
    gray -= gray.mean(axis=1, keepdims=True)
    whole = np.concatenate([gray, 4 * tint], axis=1)  # a cell of a tint is as large as 16 of brightness
    noise = gray.shape[1] * NOISE**2
    scaled: npt.NDArray[np.float32] = whole / np.sqrt((whole**2).sum(axis=1, keepdims=True) + noise)
    return scaled


def conflicts(groups: Sequence[tuple[int, ...]], labels: Ints, classes: Sequence[str]) -> list[Conflict]:
    """The groups of near copies whose labels differ, without their unlabeled members."""
    found = []
    for group in groups:
        labeled = tuple(row for row in group if labels[row] >= 0)
        given = tuple(int(labels[row]) for row in labeled)
        if len(set(given)) > 1:
            names = listed(dict.fromkeys(classes[label] for label in given))
            reason = f"{counted(len(labeled), 'near copy', 'near copies')}, labeled {names}"
            found.append(Conflict(labeled, given, reason))
    return found

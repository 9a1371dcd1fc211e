"""Which pictures to label next, each with the reason in words. Pure functions of arrays; no torch.

Before there is a model: the most typical picture of each group of like pictures that has no label yet (TypiClust,
Hacohen, Dekel, Weinshall 2022). Once there is one: pictures it is unsure of, far from one another, and a share drawn at
random, because a model does not know what it has never seen. `benchmarks/label_next.py` compares rules.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mixmatch import measure
from mixmatch.draws import generator
from mixmatch.text import count as counted

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating]
Mask = npt.NDArray[np.bool_]

SAMPLE = 10_000
"""Pictures that are looked at, drawn at random where there are more: what keeps the time to a few seconds."""
MOST_GROUPS, NEIGHBORS = 500, 20
RANDOM = 0.1
"""The share that is drawn at random once there is a model."""
SURPRISE = "drawn at random: no model knows what it has never seen"
CANDIDATES = 10
"""Times as many pictures, the most unsure ones, among which those far from one another are chosen."""


class Suggestion(NamedTuple):
    """A picture to label."""

    row: int
    rule: str
    """`typical`, `unsure` or `random`."""
    reason: str


def suggest(
    features: Floats,
    labels: Ints,
    *,
    count: int = 20,
    exclude: Mask | None = None,
    probabilities: Floats | None = None,
    classes: Sequence[str] = (),
    seed: int = 0,
) -> list[Suggestion]:
    """At most `count` pictures to label next, best first. The same arguments give the same pictures.

    Args:
        features: (N, D), of all pictures: by their pixels, or a model's.
        labels: (N,), -1 where there is none.
        exclude: pictures that must not be suggested; labeled ones are not in any case.
        probabilities: (N, L), what a model predicts; rows of NaN for pictures it has not seen. None without a model.
        classes: the names of the L classes.
    """
    allowed = labels < 0 if exclude is None else (labels < 0) & ~exclude
    if probabilities is not None:
        predicted = allowed & np.isfinite(probabilities).all(axis=1)
        if predicted.any():
            return _after(features, allowed, predicted, probabilities, classes, count, seed)
    return _before(features, labels, allowed, count, seed)


def _before(features: Floats, labels: Ints, allowed: Mask, count: int, seed: int) -> list[Suggestion]:
    rng = generator(seed, "suggest typical", 0)
    free, labeled = np.flatnonzero(allowed), np.flatnonzero(labels >= 0)
    share = SAMPLE // 2 if len(free) > SAMPLE // 2 else SAMPLE - len(free)
    labeled = _some(labeled, share, rng)
    sample = _some(free, SAMPLE - len(labeled), rng)
    scale = len(free) / max(len(sample), 1)
    found = typical(measure.unit(features[sample]), measure.unit(features[labeled]), count, seed)
    about = "about " if scale > 1 else ""
    return [
        Suggestion(
            int(sample[place]),
            "typical",
            f"typical of a group of {about}{counted(round(size * scale), 'picture')} "
            + (f"with {counted(covered, 'label')}" if covered else "without a label"),
        )
        for place, size, covered in found
    ]


def typical(free: Floats, labeled: Floats, count: int, seed: int) -> list[tuple[int, int, int]]:
    """Rows of `free`, each with the size of its group and how many of `labeled` lie in it.

    All rows are put into as many groups as there will be labels (k-means). From the groups with the fewest labels, the
    largest first, comes the row that is nearest to its neighbors in the group.
    """
    from sklearn.cluster import KMeans  # takes a second to import
    from sklearn.exceptions import ConvergenceWarning

    count = min(count, len(free))
    if count < 1:
        return []
    together = np.concatenate([free, labeled]).astype(np.float32)
    groups = min(len(labeled) + count, MOST_GROUPS, len(together))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # copies: fewer groups than asked for
        assigned = KMeans(groups, n_init=1, max_iter=30, tol=1e-3, random_state=seed % 2**32).fit(together).labels_
    sizes = np.bincount(assigned[: len(free)], minlength=groups)
    covered = np.bincount(assigned[len(free) :], minlength=groups)
    left = [np.flatnonzero(assigned[: len(free)] == group) for group in range(groups)]
    found: list[tuple[int, int, int]] = []
    while len(found) < count:
        group = max((g for g in range(groups) if len(left[g])), key=lambda g: (-covered[g], len(left[g])))
        rows = left[group]
        best = int(rows[_typicality(free[rows]).argmax()])
        found.append((best, int(sizes[group]), int(covered[group])))
        covered[group] += 1
        left[group] = rows[rows != best]
    return found


def _typicality(rows: Floats) -> Floats:
    """How near each row is to its nearest 20 neighbors: minus the mean distance. (N,)"""
    number = min(NEIGHBORS, len(rows) - 1)
    if number < 1:
        return np.zeros(len(rows))
    found = []
    for start in range(0, len(rows), 512):
        piece = rows[start : start + 512]
        squares = (piece**2).sum(axis=1)[:, None] + (rows**2).sum(axis=1) - 2 * piece @ rows.T
        nearest = np.partition(squares, number, axis=1)[:, : number + 1]  # itself among them, at 0
        found.append(-np.sqrt(np.maximum(nearest, 0)).sum(axis=1) / number)
    return np.concatenate(found)


def _after(
    features: Floats,
    allowed: Mask,
    predicted: Mask,
    probabilities: Floats,
    classes: Sequence[str],
    count: int,
    seed: int,
) -> list[Suggestion]:
    rng = generator(seed, "suggest unsure", 0)
    count = min(count, int(allowed.sum()))
    at_random = rng.permutation(np.flatnonzero(allowed))[: int(np.ceil(RANDOM * count))]
    rows = _some(np.setdiff1d(np.flatnonzero(predicted), at_random), SAMPLE, rng)
    chosen = rows[unsure(features[rows], probabilities[rows], count - len(at_random))]
    found = [Suggestion(int(row), "unsure", _doubt(probabilities[row], classes)) for row in chosen]
    drawn = [Suggestion(int(row), "random", SURPRISE) for row in at_random]
    every = max(1, round(1 / RANDOM))
    for place, suggestion in enumerate(drawn):  # spread over the list: people stop before its end
        found.insert(min(len(found), (place + 1) * every - 1), suggestion)
    return found


def unsure(features: Floats, probabilities: Floats, count: int) -> Ints:
    """Rows with uncertain predictions that are far from one another, best first."""
    score = measure.uncertainty(probabilities.astype(np.float64))
    candidates = np.argsort(-score, kind="stable")[: CANDIDATES * count]
    return candidates[measure.diverse(measure.unit(features[candidates]), score[candidates], count)]


def _doubt(probabilities: Floats, classes: Sequence[str]) -> str:
    first, second = np.argsort(-probabilities, kind="stable")[:2]
    if len(classes) <= max(first, second):
        return "the model is unsure"
    return f"unsure: {classes[first]} {probabilities[first]:.0%} or {classes[second]} {probabilities[second]:.0%}"


def _some(rows: Ints, most: int, rng: np.random.Generator) -> Ints:
    return rows if len(rows) <= most else np.sort(rng.permutation(rows)[:most])

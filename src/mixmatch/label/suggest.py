"""Which pictures to label next, each with the reason in words. Pure functions of arrays; no torch.

With few labels: the typical picture of each group of similar pictures that has no label yet. Once there is a model and
five labels per class: pictures for which two classes are about as likely, from different groups, and a share drawn at
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
from mixmatch.measure import Ints
from mixmatch.text import count as counted

Floats = npt.NDArray[np.floating]
Mask = npt.NDArray[np.bool_]

SAMPLE = 10_000
"""Pictures that are considered, drawn at random if there are more, to keep the time to a few seconds."""
MOST_GROUPS = 500
MODEL_FROM = 5
"""Labels per class from which on a model chooses; with fewer, groups choose better."""
RANDOM = 0.1
"""The share that is drawn at random once there is a model."""
SURPRISE = "drawn at random: no model knows what it has never seen"
CANDIDATES = 10
"""From this many times as many pictures, the most unsure ones, those far from one another are chosen."""


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
    if probabilities is not None and (labels >= 0).sum() >= MODEL_FROM * probabilities.shape[1]:
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
    """Rows of `free`, each with the size of its group and how many of `labeled` are in that.

    All rows are put into as many groups as there will be labels (k-means). From the groups with the fewest labels, the
    largest first, comes the row nearest to the center.
    """
    count = min(count, len(free))
    if count < 1:
        return []
    assigned, distance = _groups(np.concatenate([free, labeled]), min(len(labeled) + count, MOST_GROUPS), seed)
    mine, groups = assigned[: len(free)], int(assigned.max()) + 1
    sizes = np.bincount(assigned, minlength=groups)
    covered = np.bincount(assigned[len(free) :], minlength=groups)
    nearest = np.argsort(distance[: len(free)], kind="stable")
    left = [nearest[mine[nearest] == group].tolist() for group in range(groups)]
    found: list[tuple[int, int, int]] = []
    while len(found) < count:
        group = max((g for g in range(groups) if left[g]), key=lambda g: (-covered[g], len(left[g])))
        found.append((left[group].pop(0), int(sizes[group]), int(covered[group])))
        covered[group] += 1
    return found


def _groups(rows: Floats, number: int, seed: int) -> tuple[Ints, Floats]:
    """Of each row its group, of at most so many, and its distance to the group's center."""
    from sklearn.cluster import KMeans  # takes a second to import
    from sklearn.exceptions import ConvergenceWarning

    single = rows.astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # copies: fewer groups than asked for
        found = KMeans(min(number, len(rows)), n_init=1, max_iter=50, random_state=seed % 2**32).fit(single)
    return found.labels_.astype(np.int64), np.linalg.norm(single - found.cluster_centers_[found.labels_], axis=1)


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
    chosen = rows[unsure(measure.unit(features[rows]), probabilities[rows], count - len(at_random), seed)]
    found = [Suggestion(int(row), "unsure", _doubt(probabilities[row], classes)) for row in chosen]
    every = max(1, round(1 / RANDOM))
    for place, row in enumerate(at_random):  # spread over the list: people stop before its end
        found.insert(min(len(found), (place + 1) * every - 1), Suggestion(int(row), "random", SURPRISE))
    return found


def unsure(features: Floats, probabilities: Floats, count: int, seed: int) -> Ints:
    """Rows with two classes about as likely, most unsure first: of those with the smallest margins, the smallest of
    each of as many groups as rows are wanted."""
    count = min(count, len(features))
    if count < 1:
        return np.empty(0, np.int64)
    margin = margins(probabilities)
    candidates = np.argsort(margin, kind="stable")[: CANDIDATES * count]
    assigned, _ = _groups(features[candidates], count, seed)
    first = np.sort(np.unique(assigned, return_index=True)[1])
    rest = np.setdiff1d(np.arange(len(candidates)), first)[: count - len(first)]  # copies leave groups empty
    chosen: Ints = candidates[np.concatenate([first, rest])]
    return chosen


def margins(probabilities: Floats) -> Floats:
    """How much likelier the likeliest class is than the next. (N,)"""
    if probabilities.shape[1] < 2:
        return np.ones(len(probabilities))
    second, first = np.partition(probabilities, -2, axis=1)[:, -2:].T
    apart: Floats = first - second
    return apart


def _doubt(probabilities: Floats, classes: Sequence[str]) -> str:
    first, second = np.argsort(-probabilities, kind="stable")[:2]
    if len(classes) <= max(first, second):
        return "the model is unsure"
    return f"unsure: {classes[first]} {probabilities[first]:.0%} or {classes[second]} {probabilities[second]:.0%}"


def _some(rows: Ints, most: int, rng: np.random.Generator) -> Ints:
    return rows if len(rows) <= most else np.sort(rng.permutation(rows)[:most])

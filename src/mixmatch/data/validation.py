"""Data as a search for settings may see it: evaluated on validation rows, and without any test rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from mixmatch.data.opened import Basis, Data
from mixmatch.data.source import UNKNOWN
from mixmatch.data.split import Indices
from mixmatch.draws import generator
from mixmatch.errors import MixMatchError

FOLDS = 5
"""Models that cross-validation trains, at most: each learns from four fifths of the labels."""

OPTION = "validation"
"""The name in a run's `data_options`: `{}`, or `{"fold": 0, "folds": 5}`."""


def number_of_folds(data: Data) -> int:
    """How many models cross-validation takes; 0 if no class has two labels."""
    counts = np.bincount(data.source.train.labels[data.split.labeled])
    return int(min(FOLDS, counts[counts > 1].sum()))


def assign_folds(labels: Indices, folds: int, seed: int) -> Indices:
    """A fold for each label, so that each class is spread evenly; -1 where a class has a single label."""
    assigned, random, next_fold = np.full(len(labels), -1, np.int64), generator(seed, "folds", 0), 0
    for c in np.unique(labels):
        rows = random.permutation(np.flatnonzero(labels == c))
        if len(rows) > 1:
            assigned[rows] = (next_fold + np.arange(len(rows))) % folds
            next_fold += len(rows)
    return assigned


def for_validation(data: Data, option: Any, seed: int) -> Data:
    """The data without its test rows. What is evaluated on are the validation rows of the split, or of user data the
    labeled rows of one fold, which are then not trained on, not even as unlabeled ones."""
    source, split = data.source, data.split
    match option:  # which may come from anybody's config.json
        case {"fold": int(fold), "folds": int(folds)} if 0 <= fold < folds <= FOLDS:
            labels = source.train.labels[split.labeled]
            held = np.sort(split.labeled[assign_folds(labels, folds, seed) == fold])
            unlabeled = split.unlabeled[~np.isin(split.unlabeled, held)]
            split = replace(split, labeled=np.setdiff1d(split.labeled, held), unlabeled=unlabeled, valid=held)
        case {} if not option:
            pass
        case _:
            raise MixMatchError(
                f"{OPTION} in data_options must be {{}} or name a fold of at most {FOLDS}, not {option!r}"
            )
    known = split.valid[source.train.labels[split.valid] != UNKNOWN]
    nothing = np.empty(0, np.int64)
    return replace(
        data,
        source=replace(source, test=source.test.take(nothing)),
        split=replace(split, valid=known, test=nothing),
        basis=Basis(
            missing=f"a trial of a search holds no test {source.noun}s; train with its best settings to have some"
        ),
    )

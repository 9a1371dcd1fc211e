"""Data that is open: read once, split, and handed on to whoever needs it, with what a model is evaluated on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mixmatch.data.source import UNKNOWN, Source
from mixmatch.data.split import Split
from mixmatch.data.user.rows import UserData
from mixmatch.draws import generator

MIN_LABELS = 10
"""Labels that every class needs before some of them are held out."""

HELD_OUT = 0.2
"""The share of them that is."""


@dataclass(frozen=True)
class Basis:
    """What a model is evaluated on, in words. If there is nothing, `missing` says why and what would help.

    >>> Basis("the 40 test images").sentence
    'Evaluated on the 40 test images.'
    """

    on: str = ""
    missing: str = ""

    @property
    def sentence(self) -> str:
        text = f"evaluated on {self.on}" if self.on else self.missing
        return f"{text[:1].upper()}{text[1:]}."


@dataclass(frozen=True)
class Data:
    """A data set and its split. `user` is what was read, if it is a user's own data: file names and findings."""

    source: Source
    split: Split
    basis: Basis
    user: UserData | None = None


def to_data(user: UserData, seed: int) -> Data:
    """User data with its split, and what a model is evaluated on.

    Test rows are used if there are any. Else, if every class has at least 10 labels, a fifth of each class's is held
    out: not trained on, not even as unlabeled rows. With fewer labels there is nothing to evaluate on: holding some
    out would take away the few there are, and a handful of test rows says next to nothing.
    """
    train, test, labeled = user.train, user.test, user.labeled
    # Only image files are sorted into folders; the images of an array are not.
    place = "images under test/" if user.sizes is not None else f"test {user.noun}s"
    if len(test):
        basis = Basis(f"the {len(test):,} {place}")
    else:
        counts = np.bincount(train.labels[labeled], minlength=len(user.classes))
        if counts.min() >= MIN_LABELS:
            held = _stratified(train.labels, labeled, seed)
            labeled = np.setdiff1d(labeled, held)
            test = train.take(held)
            basis = Basis(f"{len(held):,} labeled {user.noun}s held out, a fifth of each class")
        else:
            fewest = user.classes[int(counts.argmin())]
            basis = Basis(
                missing=f"too few labels to evaluate: '{fewest}' has {counts.min()}, and it takes {MIN_LABELS} of each "
                f"class to hold some out; add labels, or labeled {place}"
            )
    source = Source(user.name, user.classes, train, test, encoding=user.encoding)
    split = Split(labeled, user.unlabeled, np.empty(0, np.int64), np.arange(len(test), dtype=np.int64))
    return Data(source, split, basis, user)


def _stratified(labels: np.ndarray, labeled: np.ndarray, seed: int) -> np.ndarray:
    """A fifth of each class's labeled rows, at random but the same for the same seed."""
    rng = generator(seed, "hold out", 0)
    held = []
    for c in range(int(labels.max(initial=UNKNOWN)) + 1):
        rows = labeled[labels[labeled] == c]
        held.append(rng.permutation(rows)[: round(HELD_OUT * len(rows))])
    return np.sort(np.concatenate(held))

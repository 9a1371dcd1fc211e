"""Opened data: read once, split, and passed on to all that need it, with what a model is evaluated on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mixmatch.data.source import UNKNOWN, Source
from mixmatch.data.split import Split
from mixmatch.data.user.rows import UserData
from mixmatch.draws import generator

MIN_LABELS = 10
"""Labels a class needs before some of them are held out."""

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
    left_out: tuple[str, ...] = ()
    """Classes that are not evaluated: they have too few labels to hold some out."""
    held_out: bool = False
    """Whether these are labels held out from training."""

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


def to_data(user: UserData, seed: int, hold_out: str) -> Data:
    """User data with its split, and what a model is evaluated on.

    Test rows are used if there are any. Otherwise a fifth of the labels of each class with at least 10 is held out: not
    trained on, not even as unlabeled rows. A class with fewer keeps them all: it needs them more to learn from, and a
    row or two would say next to nothing.

    Args:
        hold_out: `two-classes` holds nothing out if fewer than two classes have 10 labels, because an error on one
            class says next to nothing; `all-classes` if any class has fewer; `large-classes` holds out of one class,
            too, as some earlier versions did; `none` holds nothing out.
    """
    train, test, labeled = user.train, user.test, user.labeled
    place = f"images under {user.test_folder}/" if user.test_folder else f"test {user.noun}s"
    counts = np.bincount(train.labels[labeled], minlength=len(user.classes))
    small = tuple(name for name, n in zip(user.classes, counts, strict=True) if n < MIN_LABELS)
    needed = {"large-classes": 1, "two-classes": 2}.get(hold_out, len(user.classes))
    if len(test):
        basis = Basis(f"the {len(test):,} {place}")
    elif hold_out == "none":
        basis = Basis(missing=f"nothing was held out to evaluate on, as hold_out=none says; add labeled {place}")
    elif len(user.classes) - len(small) < needed:
        most = np.sort(counts)[-needed]  # of the last class that has to reach 10
        of = {"large-classes": "a class", "two-classes": "two classes"}.get(hold_out, "each class")
        basis = Basis(
            missing=f"too few labels to evaluate: '{user.classes[counts.tolist().index(most)]}' has {most}, and it "
            f"takes {MIN_LABELS} of {of} to hold some out; add labels, or labeled {place}"
        )
    else:
        held = _stratified(train.labels, labeled, seed)
        labeled = np.setdiff1d(labeled, held)
        test = train.take(held)
        of = f"each class with at least {MIN_LABELS} labels" if small else "each class"
        basis = Basis(f"{len(held):,} labeled {user.noun}s held out, a fifth of {of}", left_out=small, held_out=True)
    source = Source(user.name, user.classes, train, test, encoding=user.encoding)
    split = Split(labeled, user.unlabeled, np.empty(0, np.int64), np.arange(len(test), dtype=np.int64))
    return Data(source, split, basis, user)


def _stratified(labels: np.ndarray, labeled: np.ndarray, seed: int) -> np.ndarray:
    """A fifth of the labeled rows of each class that has enough, at random but the same for the same seed."""
    rng = generator(seed, "hold out", 0)
    held = []
    for c in range(int(labels.max(initial=UNKNOWN)) + 1):
        rows = rng.permutation(labeled[labels[labeled] == c])
        if len(rows) >= MIN_LABELS:
            held.append(rows[: round(HELD_OUT * len(rows))])
    return np.sort(np.concatenate(held))

"""User data to train on: who is labeled, who is not, and which rows judge the result."""

from __future__ import annotations

import numpy as np

from mixmatch.data.source import UNKNOWN, Source
from mixmatch.data.split import Split
from mixmatch.data.user.rows import UserData, UserImages, UserTable
from mixmatch.draws import generator

ENOUGH = 10
"""Labels a class needs before some of them are held out."""

PART = 0.2
"""How many of them are."""


def to_source(own: UserData, seed: int) -> tuple[Source, Split, str]:
    """The data as a source and its split, and one line on what it is judged by.

    Test rows are used if there are any. Else, if every class has at least 10 labels, a fifth of each class's is held
    out: not trained on, not even as unlabeled rows. With fewer labels there is nothing to judge by: holding some
    out would take away what little there is and tell next to nothing.
    """
    train, test = own.train, own.test
    labeled = own.labeled
    noun = train.noun
    under_test = isinstance(own, UserImages) and own.sizes is not None  # of an array, sizes in files are not known
    if len(test):
        basis = f"judged by the {len(test):,} " + ("images under test/" if under_test else f"test {noun}s")
    else:
        counts = np.bincount(train.labels[labeled], minlength=len(own.classes))
        if counts.min() >= ENOUGH:
            held = _stratified(train.labels, labeled, seed)
            labeled = np.setdiff1d(labeled, held)
            test = train.take(held)
            basis = f"judged by {len(held):,} labeled {noun}s held out, a fifth of each class"
        else:
            least = own.classes[int(counts.argmin())]
            basis = (
                f"too few labels to judge: '{least}' has {counts.min()}, and it takes {ENOUGH} of each class to hold "
                "some out; add labels, or labeled " + ("images under test/" if under_test else f"test {noun}s")
            )
    encoding = own.encoding if isinstance(own, UserTable) else None
    source = Source(own.name, own.classes, train, test, encoding=encoding)
    everything = np.arange(len(test), dtype=np.int64)
    return source, Split(labeled, own.unlabeled, np.empty(0, np.int64), everything), basis


def _stratified(labels: np.ndarray, labeled: np.ndarray, seed: int) -> np.ndarray:
    """A fifth of each class's labeled rows, at random but the same for the same seed."""
    rng = generator(seed, "hold out", 0)
    held = []
    for c in range(int(labels.max(initial=UNKNOWN)) + 1):
        rows = labeled[labels[labeled] == c]
        held.append(rng.permutation(rows)[: round(PART * len(rows))])
    return np.sort(np.concatenate(held))

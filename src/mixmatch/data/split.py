"""Which images are labeled: the official procedure of the paper's authors, and the split as an object.

The authors' script shuffles each class with NumPy's legacy generator and then deals labels out so that the classes
keep their proportions, which makes their splits exactly reproducible.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np
import numpy.typing as npt

from mixmatch.data.source import UNKNOWN, Source
from mixmatch.draws import generator
from mixmatch.errors import MixMatchError

Indices = npt.NDArray[np.int64]

SEEDS = 2**32
"""How many seeds NumPy's legacy generator knows."""


@dataclass(frozen=True)
class Split:
    """Row numbers: `labeled`, `unlabeled` and `valid` into a source's training images, `test` into its test images."""

    labeled: Indices
    unlabeled: Indices
    valid: Indices
    test: Indices

    @property
    def hash(self) -> str:
        """A short name for exactly this split: equal for equal splits, whatever machine made them."""
        digest = hashlib.sha256()
        for part in (self.labeled, self.unlabeled, self.valid, self.test):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(np.ascontiguousarray(part, dtype="<i8").tobytes())
        return digest.hexdigest()[:16]

    def counts(self) -> dict[str, int]:
        """How many images each part has."""
        return {name: len(getattr(self, name)) for name in ("labeled", "unlabeled", "valid", "test")}


def labeled_split(labels: npt.NDArray[np.integer], num_labels: int, seed: int, balanced: bool = False) -> Indices:
    """The images that get a label, by the official procedure: row numbers, in the order in which they are dealt out.

    Each class is shuffled (seed 0: is not), then labels go one by one to the class that lags furthest behind its
    share, which is its frequency, or the same for all if `balanced`. The first n of a larger set with the same seed
    are the set of size n.

    Args:
        labels: the class of each training image (N,), -1 where it is unlabeled.
        num_labels: how many images to label.
        seed: the paper uses 1 to 5.
    """
    labels = np.asarray(labels)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"labels must be one whole number per image, not {labels.dtype} of shape {labels.shape}")
    rows = [np.flatnonzero(labels == c) for c in range(int(labels.max(initial=0)) + 1)]
    total = sum(map(len, rows))
    if num_labels < 1:
        raise MixMatchError(f"{num_labels} labels asked for: ask for at least one per class")
    if num_labels > total:
        raise MixMatchError(f"{num_labels:,} labels asked for, but there are only {total:,} images with one")
    if not 0 <= seed < SEEDS:
        raise MixMatchError(f"the seed {seed:,} must be at least 0 and below {SEEDS:,}: choose another")
    if seed:
        random = np.random.RandomState(seed)
        for r in rows:
            random.shuffle(r)
    share = _shares(rows, balanced)
    taken = [0] * len(rows)
    chosen = []
    for c in islice(_turns(share), num_labels):
        if taken[c] == len(rows[c]) == 0:
            raise MixMatchError(f"there are no training images of class {c}: leave the class out")
        if taken[c] == len(rows[c]):
            raise MixMatchError(
                f"{num_labels:,} labels need more than the {len(rows[c]):,} images of class {c}: ask for fewer labels"
            )
        chosen.append(rows[c][taken[c]])
        taken[c] += 1
    return np.array(chosen, np.int64)


def make_split(
    source: Source,
    labels: int | Literal["all"],
    seed: int,
    valid: int = 0,
    unlabeled: Literal["rest", "all"] = "rest",
    imbalance: float = 1.0,
) -> Split:
    """Split a source as the paper does: `labels` labeled images, the rest unlabeled but for `valid` held out ones.

    The held-out images are the first of the unlabeled ones in the official order, or, when all images are labeled, the
    first in the file. Of a source with published folds (STL-10) fold number `seed` is the labeled set when as many
    labels are asked for as a fold has.

    Args:
        unlabeled: "rest" leaves labeled images out of the unlabeled set, as the MixMatch authors do. "all" puts every
            image there that is not held out, as the FixMatch authors do.
        imbalance: above 1, only the images of `long_tail` are used, and labels are dealt out in proportion to what
            each class has left of them. Test images stay as they are.
    """
    if unlabeled not in ("rest", "all"):
        raise MixMatchError(f"unlabeled={unlabeled!r} must be 'rest' or 'all'")
    tailed = imbalance != 1
    kept = long_tail(source.train.labels, imbalance, seed) if tailed else np.arange(len(source.train))
    known, balanced = source.train.labels[kept], source.balanced and not tailed
    labelable = np.flatnonzero(known != UNKNOWN)
    test = np.arange(len(source.test), dtype=np.int64)
    if labels == "all" or labels == len(labelable):
        labeled, rest = labelable, np.flatnonzero(known == UNKNOWN)
        if len(rest) == 0:
            labeled, rest = labelable[valid:], labelable[:valid]
    else:
        if tailed and labels > len(labelable):
            raise MixMatchError(
                f"{labels:,} labels asked for, but imbalance={imbalance:g} leaves {len(labelable):,} images with one"
            )
        fold = None if tailed else _fold(source, labels, seed)
        labeled = labeled_split(known, labels, seed, balanced) if fold is None else fold
        rest = _official_order(known, labeled, balanced)
    if not 0 <= valid <= len(rest):
        raise MixMatchError(f"cannot hold out {valid:,} images for validation: {len(rest):,} are not labeled")
    missing = sorted(set(range(len(source.classes))) - set(known[labeled].tolist()))
    if missing:
        names = ", ".join(source.classes[c] for c in missing[:5]) + (" ..." if len(missing) > 5 else "")
        raise MixMatchError(
            f"{len(labeled):,} labels leave {len(missing)} of the {len(source.classes)} classes without any ({names}): "
            "ask for more labels"
        )
    held_out = rest[:valid]
    others = rest[valid:] if unlabeled == "rest" else np.setdiff1d(np.arange(len(known)), held_out)
    return Split(labeled=kept[labeled], unlabeled=kept[others], valid=kept[held_out], test=test)


def long_tail(labels: npt.NDArray[np.integer], imbalance: float, seed: int) -> Indices:
    """The rows that are left when the classes are thinned out to a long tail: in file order, chosen by the seed.

    Class c of L keeps N imbalance^(-c / (L - 1)) images, rounded down, as in Cui et al., 2019, and the work on
    imbalanced semi-supervised learning. N is as large as the data allows: on CIFAR-10, all 5,000 images of class 0 and
    with an imbalance of 100, 50 of class 9. Images of unknown class are all kept.

    >>> labels = np.repeat(np.arange(3), 100)
    >>> np.bincount(labels[long_tail(labels, 25, seed=1)])
    array([100,  20,   4])
    """
    rows = [np.flatnonzero(labels == c) for c in range(int(labels.max(initial=0)) + 1)]
    share = float(imbalance) ** -(np.arange(len(rows)) / max(len(rows) - 1, 1))
    largest = min(len(r) / s for r, s in zip(rows, share, strict=True))
    counts = np.floor(largest * share + 1e-9).astype(int)
    if not counts.all():
        c = int(np.argmin(counts))
        raise MixMatchError(f"imbalance={imbalance:g} leaves no image of class {c}: choose a smaller one")
    random = generator(seed, "long tail", 0)
    kept = [random.permutation(r)[:n] for r, n in zip(rows, counts, strict=True)]
    return np.sort(np.concatenate([*kept, np.flatnonzero(labels == UNKNOWN)]))


def _shares(rows: list[Indices], balanced: bool) -> npt.NDArray[np.float64]:
    counts = np.array([len(r) for r in rows], np.float64)
    return np.ones_like(counts) if balanced else counts / counts.max()


def _turns(share: npt.NDArray[np.float64]) -> Iterator[int]:
    """Whose turn it is, on and on: that of the class which lags furthest behind its share."""
    taken, most, behind = np.zeros_like(share), 1.0, np.empty_like(share)
    while True:  # in place, as there is a turn per image
        np.subtract(share, np.divide(taken, most, out=behind), out=behind)
        turn = int(behind.argmax())
        yield turn
        taken[turn] += 1
        most = max(most, taken[turn])


def _fold(source: Source, labels: int, seed: int) -> Indices | None:
    """The published fold, if there are folds of this size. Seed s is line s from 0, as in the authors' script."""
    if source.missing_folds is not None and labels == source.missing_folds[0]:
        raise MixMatchError(
            f"the sets of {labels:,} labels of {source.name} are published in {source.missing_folds[1]}: put it "
            "next to its images"
        )
    if not source.folds or labels != len(source.folds[0]):
        return None
    if not 0 <= seed < len(source.folds):
        raise MixMatchError(
            f"{source.name} has published label sets of {labels:,} for seeds 0 to {len(source.folds) - 1}, not {seed}"
        )
    return source.folds[seed]


def _official_order(labels: npt.NDArray[np.int64], labeled: Indices, balanced: bool) -> Indices:
    """The unlabeled images in the order of the authors' files, in which classes take turns by their share.

    Only the first `valid` of them depend on this order: they are the held-out images.
    """
    classes = np.where(labels == UNKNOWN, 0, labels)  # the authors gave STL-10's unlabeled images class 0
    share = _shares([np.flatnonzero(classes == c) for c in range(int(classes.max()) + 1)], balanced)
    unlabeled = np.setdiff1d(np.arange(len(labels)), labeled)
    waiting = [deque(unlabeled[classes[unlabeled] == c].tolist()) for c in range(len(share))]
    order: list[int] = []
    for turn in _turns(share):
        if not waiting[turn]:
            break
        order.append(waiting[turn].popleft())
    for left in waiting:
        order.extend(left)
    return np.array(order, np.int64)

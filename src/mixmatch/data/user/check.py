"""What a person should know of their data before training on it: each finding in plain words, with what to do."""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from mixmatch.data.source import UNKNOWN
from mixmatch.data.user.rows import Finding, Severity, UserData, UserImages
from mixmatch.text import count, listed, tally

FEW_LABELS = 4
WIDE = 3
"""Sides beyond this ratio lose much when they are squeezed into a square."""

SAMPLE = 2000
"""Rows that labeled and unlabeled data are compared by."""

ENOUGH = 20
"""Rows of either kind below which a comparison says nothing."""

THUMBNAIL = 8
FOLDS = 5


def findings(own: UserData) -> list[Finding]:
    """Everything worth telling of the data: what reading it found (`own.findings`), then what looking at it finds."""
    return [*own.findings, counts(own), *few_labels(own), *duplicates(own), *shapes_and_modes(own), likeness(own)]


# ------------------------------------------------------------------------------------------------------------ labels


def counts(own: UserData) -> Finding:
    """How many rows of each kind."""
    train, test = _per_class(own, own.labeled), _per_class(own, own.tested)
    message = (
        f"{count(len(own.labeled), f'labeled {_noun(own)}')} of {count(len(own.classes), 'class', 'classes')} "
        f"({tally(train, 10)}), {len(own.unlabeled):,} unlabeled, {len(own.tested):,} to test on"
    )
    if len(own.tested):
        message += f" ({tally(test, 10)})"
    return Finding("counts", message, severity="info")


def few_labels(own: UserData) -> Iterator[Finding]:
    few = {label: n for label, n in _per_class(own, own.labeled).items() if n < FEW_LABELS}
    if few:
        yield Finding(
            "few-labels",
            f"{count(len(few), 'class', 'classes')} with fewer than {FEW_LABELS} labels: {tally(few, 10)}",
            tuple(own.files[row] for row in own.labeled if own.classes[own.labels[row]] in few),
            f"label at least {FEW_LABELS} of each class; 10 are needed to hold some out and judge the result",
        )


def _noun(own: UserData) -> str:
    return "image" if isinstance(own, UserImages) else "row"


def _per_class(own: UserData, rows: npt.NDArray[np.int64]) -> dict[str, int]:
    numbers = np.bincount(own.labels[rows], minlength=len(own.classes)) if len(rows) else [0] * len(own.classes)
    return dict(zip(own.classes, map(int, numbers), strict=True))


# -------------------------------------------------------------------------------------------------------- duplicates


@dataclass(frozen=True)
class Copies:
    """A kind of duplicates, and what to say of them."""

    kind: str
    message: str
    advice: str
    severity: Severity


COPIES = {
    "labeled": Copies(
        "duplicate-labeled",
        "labeled twice or more",
        "remove the copies: they pass for more labels than there are",
        "warning",
    ),
    "unlabeled": Copies("duplicate-unlabeled", "twice or more in the unlabeled data", "nothing to do", "info"),
    "tested": Copies(
        "duplicate-test",
        "twice or more in the test set",
        "remove the copies: the test counts them more than once",
        "warning",
    ),
    "both": Copies(
        "labeled-and-unlabeled",
        "labeled and unlabeled as well",
        "remove the unlabeled copies: else what is held out for a test is seen in training",
        "warning",
    ),
    "leak": Copies(
        "test-in-training",
        "in the test set and in the training data",
        "remove them from one of the two: the test would be too good to be true",
        "error",
    ),
    "conflict": Copies(
        "conflicting-labels",
        "under different labels",
        "look at them and keep the right label",
        "warning",
    ),
}


def duplicates(own: UserData) -> Iterator[Finding]:
    """Rows that are equal in every number once they are decoded, by where they are."""
    kind = _kinds(own)
    found: defaultdict[str, list[list[int]]] = defaultdict(list)
    for group in equal_rows(own.inputs):
        members = Counter(kind[row] for row in group)
        conflict = len({int(own.labels[row]) for row in group} - {UNKNOWN}) > 1
        for name, n in members.items():
            if n > 1 and not (conflict and name == "labeled"):
                found[name].append([row for row in group if kind[row] == name])
        if members["labeled"] and members["unlabeled"]:
            found["both"].append([row for row in group if kind[row] != "tested"])
        if members["tested"] and members.total() > members["tested"]:
            found["leak"].append(group)
        if conflict:
            found["conflict"].append([row for row in group if own.labels[row] != UNKNOWN])
    for name, copies in COPIES.items():
        if groups := found[name]:
            examples = listed((" = ".join(_named(own, row) for row in group[:3]) for group in groups), 2)
            yield Finding(
                copies.kind,
                f"{count(len(groups), _noun(own))} {copies.message} ({examples})",
                tuple(own.files[row] for group in groups for row in group),
                copies.advice,
                copies.severity,
            )


def equal_rows(inputs: npt.NDArray[np.generic]) -> list[list[int]]:
    """Groups of two or more rows with the same content. Reads row by row: the array may be larger than memory."""
    groups: defaultdict[bytes, list[int]] = defaultdict(list)
    for row, values in enumerate(inputs):
        groups[hashlib.blake2b(np.ascontiguousarray(values).tobytes(), digest_size=16).digest()].append(row)
    return [group for group in groups.values() if len(group) > 1]


def _kinds(own: UserData) -> list[str]:
    kind = ["tested"] * len(own)
    for name, rows in (("labeled", own.labeled), ("unlabeled", own.unlabeled)):
        for row in rows.tolist():
            kind[row] = name
    return kind


def _named(own: UserData, row: int) -> str:
    """A row with its label, which its name need not tell."""
    label = own.labels[row]
    return own.files[row] if label == UNKNOWN else f"{own.files[row]} ({own.classes[label]})"


# -------------------------------------------------------------------------------------------------- shapes and modes


def shapes_and_modes(own: UserData) -> Iterator[Finding]:
    """Image files whose form fits the others or the network badly."""
    if not isinstance(own, UserImages) or own.sizes is None:
        return
    sizes = own.sizes
    shorter, longer = sizes.min(axis=1), sizes.max(axis=1)
    target = own.images.shape[1]

    def files(rows: npt.NDArray[np.bool_]) -> tuple[str, ...]:
        return tuple(own.files[row] for row in np.flatnonzero(rows))

    def example(rows: npt.NDArray[np.bool_]) -> str:
        row = int(np.flatnonzero(rows)[0])
        return f"{own.files[row]}, {sizes[row, 0]:,} x {sizes[row, 1]:,}"

    if (wide := longer > WIDE * shorter).any():
        message = f"{count(int(wide.sum()), 'image')} more than {WIDE} times as long as wide, squeezed into a square"
        advice = "crop them to what matters"
        yield Finding("odd-shape", f"{message} ({example(wide)})", files(wide), advice)
    if (small := 4 * shorter < target).any():
        message = f"{count(int(small.sum()), 'image')} less than a quarter of the {target} pixels they are enlarged to"
        advice = "remove them if they show too little, or choose a smaller --image-size"
        yield Finding("small", f"{message} ({example(small)})", files(small), advice)
    modes = Counter(own.modes)
    if len(modes) > 1:
        usual, _ = modes.most_common(1)[0]
        kind = "gray" if own.images.shape[3] == 1 else "color"
        yield Finding(
            "mixed-modes",
            f"images of several modes, all read as {kind}: {tally(modes)}",
            tuple(file for file, mode in zip(own.files, own.modes, strict=True) if mode != usual),
            "nothing to do, unless the mode goes with the class: then a network may learn it instead",
            "info",
        )


# ---------------------------------------------------------------------------------------------------------- likeness


def likeness(own: UserData) -> Finding:
    """Whether labeled and unlabeled data can be told apart, which they should not be.

    A logistic regression on small thumbnails (or features) tries to. Its score, on rows it was not fitted to, is how
    often it knows which of a pair is the labeled one: half of the time where they are alike.
    """
    smaller = min(len(own.labeled), len(own.unlabeled))
    if smaller < ENOUGH:
        message = f"too few labeled or unlabeled {_noun(own)}s ({smaller}) to tell how alike they are"
        return Finding("likeness", message, (), f"with {ENOUGH} of each they can be compared", "info")
    labeled, unlabeled = _sample(own.labeled, own.unlabeled)
    score = told_apart(_small(own, labeled), _small(own, unlabeled))
    # What chance alone reaches: the deviation of the rank statistic between two samples of one population.
    chance = float(np.sqrt((len(labeled) + len(unlabeled) + 1) / (12 * len(labeled) * len(unlabeled))))
    told = f"shown one of each, a simple model tells which is which {100 * score:.0f} % of the time (guessing: 50 %)"
    if score <= max(0.6, 0.5 + 2 * chance):
        return Finding("likeness", f"labeled and unlabeled data look alike: {told}", (), "nothing to do", "info")
    if score <= 0.8:
        message = f"labeled and unlabeled data differ somewhat: {told}"
        advice = "see whether both come from the same source, with classes in the same proportions"
        return Finding("likeness", message, (), advice, "info")
    advice = (
        f"label {_noun(own)}s drawn at random from the unlabeled ones, or remove what belongs to none of the classes: "
        "else the unlabeled data may do harm"
    )
    return Finding("likeness", f"labeled and unlabeled data differ: {told}", (), advice)


def told_apart(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float:
    """The cross-validated area under the ROC curve of a logistic regression between the rows of `a` and of `b`."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x = np.concatenate([a, b])
    y = np.repeat([0, 1], [len(a), len(b)])
    # Strong regularization: there are often fewer rows than pixels.
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, class_weight="balanced", max_iter=200))
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fit that stops early is good enough here
        return float(cross_val_score(model, x, y, cv=folds, scoring="roc_auc").mean())


def _sample(a: npt.NDArray[np.int64], b: npt.NDArray[np.int64]) -> Iterable[npt.NDArray[np.int64]]:
    """At most `SAMPLE` rows in all, half of each kind where there are enough."""
    random = np.random.default_rng(0)
    take = min(len(a), max(SAMPLE // 2, SAMPLE - len(b)))
    for rows, n in ((a, take), (b, min(len(b), SAMPLE - take))):
        yield np.sort(random.choice(rows, n, replace=False))


def _small(own: UserData, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Rows as short vectors: thumbnails of images, features as they are."""
    if not isinstance(own, UserImages):
        return np.asarray(own.inputs[rows], np.float64)
    return np.stack([_thumbnail(own.images[row]) for row in rows])


def _thumbnail(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    layers = [Image.fromarray(np.ascontiguousarray(image[..., c])) for c in range(image.shape[2])]
    small = [np.asarray(layer.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX)) for layer in layers]
    return np.stack(small).astype(np.float64).ravel()

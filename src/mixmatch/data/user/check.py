"""What a user should know about their data before training on it: findings in plain words, each with what to do."""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from PIL import Image

from mixmatch.data.opened import MIN_LABELS
from mixmatch.data.source import UNKNOWN
from mixmatch.data.user.columns import Names
from mixmatch.data.user.rows import Finding, UserData
from mixmatch.text import count, listed, tally

FEW_LABELS = 4
UNEVEN = 5
"""The ratio of labels of the largest class to those of the smallest from which on it is mentioned."""

WIDE = 3
"""Sides beyond this ratio lose much when they are squeezed into a square."""

SAMPLE = 2000
"""Rows that are compared at most, labeled and unlabeled ones in all."""

MIN_COMPARED = 20
"""Rows of either kind below which a comparison says nothing."""

PIECE = 8 << 20
"""Bytes of rows that are examined at once."""

THUMBNAIL = 8
FOLDS = 5


def findings(data: UserData) -> Iterator[Finding]:
    """All findings as they are found: those of reading the data (`data.findings`), then those of examining its rows,
    the quick ones first."""
    yield from data.findings
    yield counts(data)
    for look in (few_labels, similar_names, uneven, shapes_and_modes, duplicates):
        yield from look(data)
    yield likeness(data)


# ------------------------------------------------------------------------------------------------------------ labels


def counts(data: UserData) -> Finding:
    """How many rows of each kind."""
    train, test = _per_class(data, data.labeled), _per_class(data, data.tested)
    message = (
        f"{count(len(data.labeled), f'labeled {data.noun}')} of {count(len(data.classes), 'class', 'classes')} "
        f"({tally(train, 10)}), {len(data.unlabeled):,} unlabeled, {len(data.tested):,} to test on"
    )
    if len(data.tested):
        message += f" ({tally(test, 10)})"
    return Finding("counts", message, severity="info")


def few_labels(data: UserData) -> Iterator[Finding]:
    few = {label: n for label, n in _per_class(data, data.labeled).items() if n < FEW_LABELS}
    if few:
        yield Finding(
            "few-labels",
            f"{count(len(few), 'class', 'classes')} with fewer than {FEW_LABELS} labels: {tally(few, 10)}",
            tuple(data.files[row] for row in data.labeled if data.classes[data.labels[row]] in few),
            f"label at least {FEW_LABELS} of each class; with {MIN_LABELS}, some are held out to evaluate the model",
        )


def similar_names(data: UserData) -> Iterator[Finding]:
    """Classes that are probably the same, because somebody typed its name in two ways."""
    spellings = defaultdict(list)
    for name in data.classes:
        spellings["".join(name.casefold().split())].append(f"'{name}'")
    if found := [" and ".join(names) for names in spellings.values() if len(names) > 1]:
        message = f"classes whose names differ in case or spaces alone: {listed(found)}"
        yield Finding("similar-names", message, advice="if they are the same, give them one name")


def uneven(data: UserData) -> Iterator[Finding]:
    """Labels so uneven that training should make up for it: else rare classes are hardly ever predicted."""
    counts = _per_class(data, data.labeled)
    most, fewest = max(counts, key=counts.__getitem__), min(counts, key=counts.__getitem__)
    if not 0 < UNEVEN * counts[fewest] <= counts[most]:
        return
    if not len(data.unlabeled):
        advice = "try label_sampling=balanced, which draws every class equally often"
    else:
        advice = "if unlabeled data does not help, try lambda_u=1, which gives guesses less weight"
        if data.is_images:
            advice += "; or from pixels, on a GPU, method=fixmatch balance=abc, which trains on all classes equally"
    yield Finding(
        "uneven-classes",
        f"classes are uneven: '{most}' has {count(counts[most], 'label')}, '{fewest}' has {counts[fewest]}",
        advice=advice,
        severity="info",
    )


def _per_class(data: UserData, rows: npt.NDArray[np.int64]) -> dict[str, int]:
    numbers = np.bincount(data.labels[rows], minlength=len(data.classes))
    return dict(zip(data.classes, numbers.tolist(), strict=True))


# -------------------------------------------------------------------------------------------------------- duplicates


COPIES = {
    "labeled": Finding(
        "duplicate-labeled",
        "labeled twice or more",
        advice="remove the copies: they count as more labels than there are",
    ),
    "unlabeled": Finding(
        "duplicate-unlabeled", "twice or more in the unlabeled data", advice="nothing to do", severity="info"
    ),
    "tested": Finding(
        "duplicate-test",
        "twice or more in the test set",
        advice="remove the copies: the test counts them more than once",
    ),
    "both": Finding(
        "labeled-and-unlabeled",
        "labeled and unlabeled as well",
        advice="remove the unlabeled copies: without a test part, labeled ones are held out to evaluate on, and their "
        "copies are trained on",
    ),
    "leak": Finding(
        "test-in-training",
        "in the test set and in the training data",
        advice="remove them from one of the two: else the test error is too low",
        severity="error",
    ),
    "conflict": Finding("conflicting-labels", "under different labels", advice="look at them and keep the right label"),
}
"""What to say of each kind of duplicates; the message follows their number."""


def duplicates(data: UserData) -> Iterator[Finding]:
    """Rows that are equal in every number once they are decoded, by where they are."""
    kind = Names(("tested", "labeled", "unlabeled"), np.zeros(len(data), np.int32))
    kind.codes[data.labeled], kind.codes[data.unlabeled] = 1, 2
    found: defaultdict[str, list[list[int]]] = defaultdict(list)
    for group in equal_rows(data.inputs):
        members = Counter(kind[row] for row in group)
        conflict = len({int(data.labels[row]) for row in group} - {UNKNOWN}) > 1
        for name, n in members.items():
            if n > 1 and not (conflict and name == "labeled"):
                found[name].append([row for row in group if kind[row] == name])
        if members["labeled"] and members["unlabeled"]:
            found["both"].append([row for row in group if kind[row] != "tested"])
        if members["tested"] and members.total() > members["tested"]:
            found["leak"].append(group)
        if conflict:
            found["conflict"].append([row for row in group if data.labels[row] != UNKNOWN])
    for name, copies in COPIES.items():
        if groups := found[name]:
            examples = listed((" = ".join(_named(data, row) for row in group[:3]) for group in groups), 2)
            message = f"{count(len(groups), data.noun)} {copies.message} ({examples})"
            yield replace(copies, message=message, files=tuple(data.files[row] for group in groups for row in group))


def equal_rows(inputs: npt.NDArray[np.generic]) -> list[list[int]]:
    """Groups of two or more rows with the same content. Reads piece by piece: the array may be larger than memory."""
    keys = _keys(inputs)
    order = np.argsort(keys, kind="stable")
    alike = keys[order[1:]] == keys[order[:-1]]
    candidates = np.unique(np.concatenate([order[1:][alike], order[:-1][alike]]))
    groups: defaultdict[bytes, list[int]] = defaultdict(list)
    for row in candidates.tolist():
        groups[hashlib.blake2b(np.ascontiguousarray(inputs[row]).tobytes(), digest_size=16).digest()].append(row)
    return [group for group in groups.values() if len(group) > 1]


def _keys(inputs: npt.NDArray[np.generic]) -> npt.NDArray[np.uint64]:
    """A number for each row, the same for equal rows and hardly ever for others: a sum of its words, each times an odd
    number of its own. Examining a million rows one by one takes 15 seconds; this takes one."""
    size = inputs[:1].nbytes
    factors = np.random.default_rng(0).integers(2**63, size=-(-size // 8), dtype=np.uint64) * 2 + 1
    keys = np.empty(len(inputs), np.uint64)
    step = max(1, PIECE // max(1, size))
    for start in range(0, len(inputs), step):
        piece = np.ascontiguousarray(inputs[start : start + step])
        words = np.zeros((len(piece), 8 * len(factors)), np.uint8)
        words[:, :size] = piece.reshape(len(piece), -1).view(np.uint8)
        keys[start : start + step] = words.view(np.uint64) @ factors
    return keys


def _named(data: UserData, row: int) -> str:
    """A row with its label, which need not be part of its name."""
    label = data.labels[row]
    return data.files[row] if label == UNKNOWN else f"{data.files[row]} ({data.classes[label]})"


# -------------------------------------------------------------------------------------------------- shapes and modes


def shapes_and_modes(data: UserData) -> Iterator[Finding]:
    """Image files whose form fits the others or the network badly."""
    if data.sizes is None:
        return
    shorter, longer, target = data.sizes.min(axis=1), data.sizes.max(axis=1), data.inputs.shape[1]
    wide = f"more than {WIDE} times as long as wide, squeezed into a square"
    small = f"less than a quarter of the {target} pixels they are enlarged to"
    for kind, are, what, advice in (
        ("odd-shape", longer > WIDE * shorter, wide, "crop them to what matters"),
        ("small", 4 * shorter < target, small, "remove them if they show too little, or choose a smaller image_size="),
    ):
        if rows := np.flatnonzero(are).tolist():
            width, height = data.sizes[rows[0]]
            message = f"{count(len(rows), 'image')} {what} ({data.files[rows[0]]}, {width:,} x {height:,})"
            yield Finding(kind, message, tuple(data.files[row] for row in rows), advice)
    modes = Counter(data.modes)
    if len(modes) > 1:
        usual, _ = modes.most_common(1)[0]
        kind = "gray" if data.inputs.shape[3] == 1 else "color"
        yield Finding(
            "mixed-modes",
            f"images of several modes, all read as {kind}: {tally(modes)}",
            tuple(file for file, mode in zip(data.files, data.modes, strict=True) if mode != usual),
            "nothing to do, unless the mode depends on the class: then a network may learn it instead",
            "info",
        )


# ---------------------------------------------------------------------------------------------------------- likeness


def likeness(data: UserData) -> Finding:
    """Whether a simple model can tell labeled from unlabeled data. It should not be able to.

    The model is a logistic regression on small thumbnails (or features). Its score, on rows it was not fitted to, is
    how often it picks the labeled one of a pair: half of the time where they are alike.
    """
    smaller = min(len(data.labeled), len(data.unlabeled))
    if smaller < MIN_COMPARED:
        message = f"too few labeled or unlabeled {data.noun}s ({smaller}) to compare them"
        return Finding("likeness", message, (), f"a comparison takes {MIN_COMPARED} of each", "info")
    labeled, unlabeled = _sample(data.labeled, data.unlabeled)
    compared, without = _compared(data)
    score = separability(_small(data, labeled, compared), _small(data, unlabeled, compared))
    # What chance alone reaches: the deviation of the rank statistic between two samples of one population.
    chance = float(np.sqrt((len(labeled) + len(unlabeled) + 1) / (12 * len(labeled) * len(unlabeled))))
    how_often = (
        f"shown one of each{without}, a simple model tells which is which {100 * score:.0f} % of the time (guessing: "
        "50 %)"
    )
    if score <= max(0.6, 0.5 + 2 * chance):
        return Finding("likeness", f"labeled and unlabeled data look alike: {how_often}", (), "nothing to do", "info")
    if score <= 0.8:
        message = f"labeled and unlabeled data differ somewhat: {how_often}"
        advice = "see whether both come from the same source, with classes in the same proportions"
        return Finding("likeness", message, (), advice, "info")
    advice = (
        f"label {data.noun}s drawn at random from the unlabeled ones, or remove what belongs to none of the classes: "
        "else the unlabeled data may do harm"
    )
    return Finding("likeness", f"labeled and unlabeled data differ: {how_often}", (), advice)


def separability(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float:
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


def _compared(data: UserData) -> tuple[npt.NDArray[np.bool_], str]:
    """Which features of a table are compared, and in words what is not: a column of identifiers tells rows apart that
    are alike, and has a finding of its own."""
    ids = {name for finding in data.findings if finding.kind == "row-number" for name in finding.files}
    columns = data.encoding.columns if data.encoding is not None else ()
    compared = np.array([column.name not in ids for column in columns for _ in column.features], bool)
    if not ids or not compared.any():
        return np.ones(len(compared), bool), ""
    return compared, f" (without {listed(map(repr, sorted(ids)))})"


def _small(data: UserData, rows: npt.NDArray[np.int64], compared: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Rows as short vectors: thumbnails of images, the compared features of a table."""
    if not data.is_images:
        features = np.asarray(data.inputs[rows], np.float64)
        return features[:, compared] if len(compared) else features
    return np.stack([_thumbnail(data.inputs[row]) for row in rows])


def _thumbnail(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    layers = [Image.fromarray(np.ascontiguousarray(image[..., c])) for c in range(image.shape[2])]
    small = [np.asarray(layer.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX)) for layer in layers]
    return np.stack(small).astype(np.float64).ravel()

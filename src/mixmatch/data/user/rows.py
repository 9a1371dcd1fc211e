"""What a person's own data looks like once it is read, and what was found on the way.

The readers are `folder` (image files), `arrays` (.npz, .npy) and `table` (CSV, Parquet). All of them give rows in the
order train, then test, so that each part is a slice: of a memory-mapped file nothing is copied.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from mixmatch.data.source import UNKNOWN, Features, Images, Rows
from mixmatch.errors import MixMatchError
from mixmatch.text import count, listed

if TYPE_CHECKING:
    from mixmatch.data.user.table import Encoding

Labels = npt.NDArray[np.int64]
Part = Literal["train", "test"]
Severity = Literal["info", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """Something a person should know of their data, and what to do about it."""

    kind: str
    """A short name for programs, such as "unreadable"."""
    message: str
    files: tuple[str, ...] = ()
    """All files (or rows) it is about; the message names the first few."""
    advice: str = ""
    severity: Severity = "warning"

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "kind": self.kind,
            "severity": self.severity,
            "message": self.message,
            "advice": self.advice,
            "files": list(self.files),
        }


@dataclass(frozen=True, kw_only=True)
class UserData(ABC):
    """What images and features have in common: N rows, train before test, each with a label or `UNKNOWN`."""

    name: str
    classes: tuple[str, ...]
    """In the order of the labels."""
    labels: Labels
    """int64 (N,), `UNKNOWN` where there is none. Test rows always have one."""
    files: tuple[str, ...]
    """Where each row comes from: a path relative to the folder, "x[3]" of an array, "line 7" of a table."""
    part: tuple[Part, ...]
    findings: tuple[Finding, ...] = ()
    """What reading it found. `inspect.findings` looks further."""

    def __post_init__(self) -> None:
        if not len(self.inputs) == len(self.labels) == len(self.files) == len(self.part):
            raise ValueError("inputs, labels, files and part must have one entry for each row")
        if list(self.part) != sorted(self.part, reverse=True):
            raise ValueError("train rows come before test rows")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    @abstractmethod
    def inputs(self) -> npt.NDArray[Any]:
        """The rows as a network gets them: `images` or `features`."""

    @property
    @abstractmethod
    def train(self) -> Rows: ...

    @property
    @abstractmethod
    def test(self) -> Rows:
        """Possibly empty: then a part of the labeled rows has to be held out."""

    @property
    def num_train(self) -> int:
        return self.part.count("train")

    @property
    def labeled(self) -> Labels:
        """Row numbers of the training rows with a label."""
        return np.flatnonzero(self.labels[: self.num_train] != UNKNOWN)

    @property
    def unlabeled(self) -> Labels:
        """Row numbers of the training rows without one."""
        return np.flatnonzero(self.labels[: self.num_train] == UNKNOWN)

    @property
    def tested(self) -> Labels:
        """Row numbers of the test rows."""
        return np.arange(self.num_train, len(self), dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class UserImages(UserData):
    """Images of one size, and what their files were like before."""

    images: npt.NDArray[np.uint8]
    """uint8 (N, H, W, C), memory-mapped where they come from files."""
    sizes: npt.NDArray[np.int32] | None = None
    """(N, 2): width and height of each image in its file; None where all came in this size."""
    modes: tuple[str, ...] = ()
    """Pillow's name for how each file keeps a pixel: "RGB", "L" (gray), "P" (palette), "RGBA" ..."""

    @property
    def inputs(self) -> npt.NDArray[Any]:
        return self.images

    @property
    def train(self) -> Images:
        return Images(self.images[: self.num_train], self.labels[: self.num_train])

    @property
    def test(self) -> Images:
        return Images(self.images[self.num_train :], self.labels[self.num_train :])


@dataclass(frozen=True, kw_only=True)
class UserTable(UserData):
    """A matrix of standardized features, and how new rows are brought into the same form."""

    features: npt.NDArray[np.float32]
    """float32 (N, F)."""
    encoding: Encoding

    @property
    def inputs(self) -> npt.NDArray[Any]:
        return self.features

    @property
    def train(self) -> Features:
        return Features(self.features[: self.num_train], self.labels[: self.num_train])

    @property
    def test(self) -> Features:
        return Features(self.features[self.num_train :], self.labels[self.num_train :])


@dataclass(frozen=True)
class Numbered:
    """Labels as numbers, once the classes are known."""

    classes: tuple[str, ...]
    rows: npt.NDArray[np.int64]
    """Which rows are used, train before test; the others are test rows that cannot be scored."""
    labels: Labels
    """Of those rows."""
    part: tuple[Part, ...]
    findings: tuple[Finding, ...] = field(default=())


def number_labels(
    labels: Sequence[str | None],
    part: Sequence[Part],
    files: Sequence[str],
    name: str,
    classes: Sequence[str] | None = None,
    *,
    noun: str,
    how: str,
) -> Numbered:
    """Give each class a number, and refuse data that nothing can be learned from.

    The classes are those of the labeled training rows, sorted, unless `classes` lists them. Test rows without a label,
    or with one that no training row has, cannot be scored: they are left out and named.

    Args:
        labels: the class of each row, None where it is not known.
        noun: what a row is called in messages: "image" or "row".
        how: what a person does to label some rows and not others; ends the errors.
    """
    seen = {label for label, p in zip(labels, part, strict=True) if p == "train" and label is not None}
    if not seen:
        raise MixMatchError(f"{name} has no labeled {noun}s to train on: {how}")
    if classes is None:
        classes = sorted(seen)
    elif strangers := sorted(seen - set(classes)):
        raise MixMatchError(f"{name} has the label '{strangers[0]}', which is not among its classes: {listed(classes)}")
    if len(seen) == 1:
        raise MixMatchError(f"{name} has labels of one class only ('{min(seen)}'): it takes at least two to train on")
    found = list(_unusable(labels, part, files, classes, seen, noun))
    left_out = {row for _, rows in found for row in rows}
    order = sorted(set(range(len(part))) - left_out, key=lambda row: (part[row] == "test", row))
    number = {label: i for i, label in enumerate(classes)} | {None: UNKNOWN}
    numbers = np.array([number[labels[row]] for row in order], np.int64)
    kept = tuple(part[row] for row in order)
    findings = [finding for finding, _ in found]
    if not (numbers == UNKNOWN).any():
        findings.append(
            Finding(
                "no-unlabeled",
                f"{name} has no unlabeled {noun}s, so there is nothing for semi-supervised learning to use",
                advice=f"train with --method supervised, or add unlabeled data ({how})",
            )
        )
    return Numbered(tuple(classes), np.array(order, np.int64), numbers, kept, tuple(findings))


def _unusable(
    labels: Sequence[str | None],
    part: Sequence[Part],
    files: Sequence[str],
    classes: Sequence[str],
    seen: set[str],
    noun: str,
) -> Iterable[tuple[Finding, list[int]]]:
    """What is wrong with the labels of some rows, and which rows cannot be used for it."""
    known = set(classes)
    test = [row for row, p in enumerate(part) if p == "test"]
    if rows := [row for row in test if labels[row] is None]:
        where = tuple(files[row] for row in rows)
        message = f"{count(len(rows), f'test {noun}')} without a label: left out ({listed(where)})"
        yield Finding("unlabeled-test", message, where, "label them, or move them to the unlabeled data"), rows
    if rows := [row for row in test if labels[row] is not None and labels[row] not in known]:
        strange = sorted({str(labels[row]) for row in rows})
        message = (
            f"{count(len(rows), f'test {noun}')} of {'a class' if len(strange) == 1 else 'classes'} that no labeled "
            f"training {noun} has: left out ({listed(strange)}; the classes are {listed(classes)})"
        )
        advice = "check the spelling, or label some training data of that class"
        yield Finding("unknown-class", message, tuple(files[row] for row in rows), advice, "error"), rows
    if empty := [label for label in classes if label not in seen]:
        message = f"no labeled {noun} to learn {'the class' if len(empty) == 1 else 'the classes'} {listed(empty)} from"
        yield Finding("empty-class", message, (), f"label some {noun}s of it, or leave it out of the classes"), []

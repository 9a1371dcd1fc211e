"""What user data looks like once it is read: its rows, its classes as numbers, and what was found in it.

The readers are `folder` (image files), `arrays` (.npz, .npy) and `table` (CSV, Parquet). All of them give rows in the
order train, then test, so that each part is a slice: of a memory-mapped file nothing is copied.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from mixmatch.data.source import UNKNOWN, Rows
from mixmatch.data.user.columns import Places
from mixmatch.errors import MixMatchError
from mixmatch.text import count, listed

if TYPE_CHECKING:
    from mixmatch.data.user.encoding import Encoding

Part = Literal["train", "test"]
Severity = Literal["info", "warning", "error"]
WHOLE = re.compile(r"-?\d+")


@dataclass(frozen=True)
class Finding:
    """Something a user should know about their data, and what to do about it."""

    kind: str
    """A short name for programs, such as "unreadable"."""
    message: str
    files: tuple[str, ...] = ()
    """All files (or rows) it is about; the message names the first few."""
    advice: str = ""
    severity: Severity = "warning"

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {**asdict(self), "files": list(self.files)}


@dataclass(frozen=True, kw_only=True)
class UserData(Rows):
    """N rows, train before test (which always have a label), and what is known of where they come from.

    Images are memory-mapped where they come from files.
    """

    name: str
    classes: tuple[str, ...]
    """In the order of the labels."""
    files: Sequence[str]
    """Where each row comes from: a path relative to the folder, "x[3]" of an array, "line 7" of a table."""
    part: tuple[Part, ...]
    findings: tuple[Finding, ...] = ()
    """What reading it found. `check.findings` looks further."""
    sizes: npt.NDArray[np.int32] | None = None
    """Of image files (N, 2): width and height of each before it was resized."""
    modes: tuple[str, ...] = ()
    """Of image files, Pillow's name for how each keeps a pixel: "RGB", "L" (gray), "P" (palette), "RGBA" ..."""
    test_folder: str | None = None
    """Of image files, the folder that test images are sorted into, if they are sorted."""
    encoding: Encoding | None = None
    """Of features, how new rows become features like these."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not len(self) == len(self.files) == len(self.part):
            raise ValueError("inputs, labels, files and part must have one entry for each row")
        if "train" in self.part[self.part.count("train") :]:
            raise ValueError("train rows come before test rows")

    @property
    def train(self) -> Rows:
        return Rows(self.inputs[: self.num_train], self.labels[: self.num_train])

    @property
    def test(self) -> Rows:
        """Possibly empty: then a part of the labeled rows has to be held out."""
        return Rows(self.inputs[self.num_train :], self.labels[self.num_train :])

    @property
    def num_train(self) -> int:
        return self.part.count("train")

    @property
    def labeled(self) -> npt.NDArray[np.int64]:
        """Row numbers of the training rows with a label."""
        return np.flatnonzero(self.labels[: self.num_train] != UNKNOWN)

    @property
    def unlabeled(self) -> npt.NDArray[np.int64]:
        """Row numbers of the training rows without one."""
        return np.flatnonzero(self.labels[: self.num_train] == UNKNOWN)

    @property
    def tested(self) -> npt.NDArray[np.int64]:
        """Row numbers of the test rows."""
        return np.arange(self.num_train, len(self), dtype=np.int64)

    def with_unlabeled(self, most: int) -> UserData:
        """All rows of features but for unlabeled ones beyond the first so many."""
        rows = np.sort(np.concatenate([self.labeled, self.unlabeled[:most], self.tested]))
        part = tuple(self.part[row] for row in rows)
        taken = {"inputs": self.inputs[rows], "labels": self.labels[rows], "part": part}
        return replace(self, **taken, files=[self.files[row] for row in rows])


@dataclass(frozen=True)
class Numbered:
    """The rows that are used, with labels as numbers, once the classes are known."""

    name: str
    classes: tuple[str, ...]
    rows: npt.NDArray[np.int64]
    """Which they are, train before test; the others are test rows that cannot be scored."""
    labels: npt.NDArray[np.int64]
    files: Sequence[str]
    part: tuple[Part, ...]
    findings: tuple[Finding, ...]

    def with_inputs(self, inputs: npt.NDArray[Any], findings: Iterable[Finding] = (), **known: Any) -> UserData:
        """The data, given the inputs of these rows, what reading them found, and what else is `known` of them."""
        return UserData(
            inputs,
            self.labels,
            name=self.name,
            classes=self.classes,
            files=self.files,
            part=self.part,
            findings=(*findings, *self.findings),
            **known,
        )


def number_labels(
    labels: Sequence[str | None],
    part: Sequence[Part],
    files: Sequence[str],
    name: str,
    classes: Sequence[str] | None = None,
    *,
    noun: str,
    how: str,
    order: Callable[[Iterable[str]], list[str]] = sorted,
) -> Numbered:
    """Give each class a number, and refuse data that nothing can be learned from.

    The classes are those of the labeled training rows, in `order`, unless `classes` lists them. Test rows without a
    label, or with one that no training row has, cannot be scored: they are left out and named.

    Args:
        labels: the class of each row, None where it is unlabeled.
        noun: what a row is called in messages: "image" or "row".
        how: how to label some rows and not others; ends the error messages.
    """
    seen = {label for label, p in zip(labels, part, strict=True) if p == "train" and label is not None}
    if not seen:
        raise MixMatchError(f"{name} has no labeled {noun}s to train on: {how}")
    if classes is None:
        classes = order(seen)
    elif strangers := sorted(seen - set(classes)):
        raise MixMatchError(f"{name} has the label '{strangers[0]}', which is not among its classes: {listed(classes)}")
    if len(seen) == 1:
        raise MixMatchError(f"{name} has labels of one class only ('{min(seen)}'): it takes at least two to train on")
    findings = []
    number: dict[str | None, int] = {label: i for i, label in enumerate(classes)}
    test = [row for row, p in enumerate(part) if p == "test"]
    unlabeled = tuple(files[row] for row in test if labels[row] is None)
    unknown = [row for row in test if labels[row] is not None and labels[row] not in number]
    if unlabeled:
        message = f"{count(len(unlabeled), f'test {noun}')} without a label: left out ({listed(unlabeled)})"
        findings.append(Finding("unlabeled-test", message, unlabeled, "label them, or move them to the unlabeled data"))
    if unknown:
        strange = sorted({str(labels[row]) for row in unknown})
        message = (
            f"{count(len(unknown), f'test {noun}')} of {'a class' if len(strange) == 1 else 'classes'} that no labeled "
            f"training {noun} has: left out ({listed(strange)}; the classes are {listed(classes)})"
        )
        advice = "check the spelling, or label some training data of that class"
        findings.append(Finding("unknown-class", message, tuple(files[row] for row in unknown), advice, "error"))
    if empty := [label for label in classes if label not in seen]:
        message = f"no labeled {noun} to learn {'the class' if len(empty) == 1 else 'the classes'} {listed(empty)} from"
        advice = f"label some {noun}s of it, or leave it out of the classes"
        findings.append(Finding("empty-class", message, (), advice))
    is_train = np.fromiter((p == "train" for p in part), bool, len(part))
    tested = np.array([row for row in test if labels[row] in number], np.int64)
    rows = np.concatenate([np.flatnonzero(is_train), tested])
    numbers = np.fromiter((number.get(label, UNKNOWN) for label in labels), np.int64, len(labels))[rows]
    if not (numbers == UNKNOWN).any():
        message = f"{name} has no unlabeled {noun}s, so there is nothing for semi-supervised learning to use"
        advice = f"train with the supervised method, or add unlabeled data ({how})"
        findings.append(Finding("no-unlabeled", message, (), advice))
    kept = tuple(part[row] for row in rows)
    return Numbered(name, tuple(classes), rows, numbers, _take(files, rows), kept, tuple(findings))


def match_labels(
    labels: Sequence[str | None],
    part: Sequence[Part],
    files: Sequence[str],
    name: str,
    classes: Sequence[str],
    *,
    noun: str,
) -> Numbered:
    """The rows that a model of these classes can be evaluated on: its test rows, or all if there are none, but those
    without a label or of another class, which are left out and named. Labels are matched by name."""
    candidates = [row for row, p in enumerate(part) if p == "test"] or list(range(len(part)))
    unlabeled = tuple(files[row] for row in candidates if labels[row] is None)
    number = {label: i for i, label in enumerate(classes)}
    strange = [row for row in candidates if labels[row] is not None and labels[row] not in number]
    rows = [row for row in candidates if labels[row] in number]
    names = sorted({str(labels[row]) for row in strange})
    if not rows:
        have = f"its labels are {listed(names)}" if names else "it has no labels"
        raise MixMatchError(
            f"{name} has no {noun} of a class that the model knows: {have}, and the model's classes are "
            f"{listed(classes, 10)}"
        )
    findings = []
    if unlabeled:
        message = f"{count(len(unlabeled), noun)} without a label: left out ({listed(unlabeled)})"
        findings.append(Finding("unlabeled-test", message, unlabeled, "nothing to do, or label them", "info"))
    if strange:
        message = (
            f"{count(len(strange), noun)} of {'a class' if len(names) == 1 else 'classes'} that the model does not "
            f"know: left out ({listed(names)}; its classes are {listed(classes)})"
        )
        advice = "check the spelling, or train with that class"
        findings.append(Finding("unknown-class", message, tuple(files[row] for row in strange), advice))
    numbers, used = np.array([number[str(labels[row])] for row in rows], np.int64), np.array(rows, np.int64)
    tested: list[Part] = ["test"] * len(rows)
    return Numbered(name, tuple(classes), used, numbers, _take(files, used), tuple(tested), tuple(findings))


def _take(files: Sequence[str], rows: npt.NDArray[np.int64]) -> Sequence[str]:
    return files[rows] if isinstance(files, Places) else tuple(files[row] for row in rows)


def class_order(classes: Iterable[str]) -> list[str]:
    """Numbers by value, names by name.

    >>> class_order({"10", "2", "-1"}), class_order({"10", "2", "--1"})
    (['-1', '2', '10'], ['--1', '10', '2'])
    """
    classes = sorted(classes)
    return sorted(classes, key=Decimal) if all(WHOLE.fullmatch(c) for c in classes) else classes

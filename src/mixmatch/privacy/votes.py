"""The teachers' votes: counts per query and class, read from `.npy`, `.npz` or CSV and checked.

Only counts go further. Every check is made before anything is answered or charged.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mixmatch import storage
from mixmatch.data.user.arrays import load_arrays
from mixmatch.data.user.columns import is_number
from mixmatch.errors import MixMatchError
from mixmatch.privacy.checks import PrivacyError, check_known
from mixmatch.text import count

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
FORMATS = ("counts", "labels")
REFUSED = -1
MOST = 2**30
"""Bytes of a file, at most: 13 million queries of 10 classes in a .npy file."""


@dataclass(frozen=True)
class Votes:
    """The votes of `teachers` teachers on N queries: `counts` (N, classes), each row summing to `teachers`."""

    counts: Counts
    teachers: int

    @property
    def queries(self) -> int:
        return len(self.counts)

    @property
    def classes(self) -> int:
        return int(self.counts.shape[1])

    @property
    def sha256(self) -> str:
        """A hash of the votes themselves: the same whether they were read from .npy or from CSV."""
        return array_sha256(self.counts.astype("<i8"))


def from_counts(counts: npt.ArrayLike, teachers: int | None = None, *, name: str = "the votes") -> Votes:
    """Votes from counts (N, classes). Rows must sum to the number of teachers.

    >>> from_counts([[3, 0], [1, 2]]).teachers
    3
    """
    whole = _whole_numbers(counts, name)
    if whole.shape[1] < 2:
        raise PrivacyError(f"{name}: one column; votes need a column for each of at least two classes")
    if (whole < 0).any():
        raise PrivacyError(f"{name}: row {_first((whole < 0).any(axis=1))} has a negative number of votes")
    sums = whole.sum(axis=1)
    if teachers is None:
        values, times = np.unique(sums, return_counts=True)
        expected = int(values[times.argmax()])
    else:
        expected = teachers
    if (sums != expected).any():
        row = _first(sums != expected)
        hint = "" if teachers is not None else "; for a row of labels per teacher give votes_format=labels"
        raise PrivacyError(f"{name}: row {row} sums to {sums[row]} votes, not to the {expected} teachers{hint}")
    if expected < 1:
        raise PrivacyError(f"{name}: no teacher voted")
    return Votes(whole, expected)


def from_labels(
    labels: npt.ArrayLike, num_classes: int | None = None, teachers: int | None = None, *, name: str = "the votes"
) -> Votes:
    """Votes from one label per teacher and query (teachers, N). Classes are 0..num_classes-1.

    >>> from_labels([[0, 1], [0, 0], [0, 1]]).counts.tolist()
    [[3, 0], [1, 2]]
    """
    whole = _whole_numbers(labels, name)
    if (whole < 0).any():
        raise PrivacyError(f"{name}: teacher {_first((whole < 0).any(axis=1))} has a negative label")
    classes = max(2, int(whole.max()) + 1) if num_classes is None else num_classes
    if classes < 2:
        raise PrivacyError(f"{classes} classes: votes need at least two")
    if (whole >= classes).any():
        raise PrivacyError(f"{name}: a label is {whole.max()}, but there are {classes} classes (0..{classes - 1})")
    if teachers is not None and teachers != len(whole):
        raise PrivacyError(f"{name}: {len(whole)} rows of labels, but {teachers} teachers")
    queries = np.arange(whole.shape[1]) * classes
    flat = np.bincount((whole + queries).ravel(), minlength=classes * whole.shape[1])
    return Votes(flat.reshape(-1, classes).astype(np.int64), len(whole))


def read_votes(
    path: Path, votes_format: str = "counts", *, teachers: int | None = None, num_classes: int | None = None
) -> Votes:
    """Read a vote file: counts (N, classes), or labels (teachers, N) with `votes_format="labels"`."""
    check_known("format of votes", votes_format, FORMATS)
    matrix = read_matrix(path)
    if votes_format == "labels":
        return from_labels(matrix, num_classes, teachers, name=str(path))
    votes = from_counts(matrix, teachers, name=str(path))
    if num_classes is not None and num_classes != votes.classes:
        raise PrivacyError(f"{path}: {votes.classes} columns, but {num_classes} classes")
    return votes


def vote_classes(path: Path, votes: Votes) -> list[str] | None:
    """The names of the classes voted for, from the description beside a vote file, if there is one of these votes."""
    try:
        about = storage.read_json(path.with_suffix(".json"), follow=True)
    except (OSError, ValueError):
        return None
    if not isinstance(about, dict) or about.get("votes_sha256") != votes.sha256:
        return None
    classes = about.get("classes")
    return classes if isinstance(classes, list) and len(classes) == votes.classes else None


def read_probabilities(path: Path, votes: Votes) -> Floats:
    """A student's class probabilities (N, classes), a row per query of the vote file."""
    matrix = np.asarray(read_matrix(path), dtype=np.float64)
    if matrix.shape != votes.counts.shape:
        raise PrivacyError(f"{path}: shape {matrix.shape}, but the votes have {votes.counts.shape}")
    if not np.isfinite(matrix).all() or (matrix < 0).any() or (np.abs(matrix.sum(axis=1) - 1) > 1e-3).any():
        raise PrivacyError(f"{path}: every row must be probabilities that sum to 1")
    return np.asarray(matrix / matrix.sum(axis=1, keepdims=True))


def read_rows(path: Path, votes: Votes) -> npt.NDArray[np.int64]:
    """Row numbers of queries, in the order they are asked."""
    rows = read_integers(path)
    if not len(rows):
        raise PrivacyError(f"{path}: no row numbers")
    outside = (rows < 0) | (rows >= votes.queries)
    if outside.any():
        raise PrivacyError(f"{path}: row {rows[_first(outside)]} is not in the votes (0..{votes.queries - 1})")
    return rows


def read_labels(path: Path, votes: Votes) -> npt.NDArray[np.int64]:
    """The true classes, one for each row of the vote file."""
    labels = read_integers(path)
    if len(labels) != votes.queries:
        raise PrivacyError(f"{path}: {len(labels)} labels, but {votes.queries} rows of votes")
    if ((labels < 0) | (labels >= votes.classes)).any():
        raise PrivacyError(f"{path}: labels must be classes 0..{votes.classes - 1}")
    return labels


def read_integers(path: Path) -> npt.NDArray[np.int64]:
    """A list of whole numbers from `.npy`, `.npz`, JSON or text."""
    if path.suffix == ".json":
        content = read_json(path)
        values = content.get("label", content.get("labels")) if isinstance(content, dict) else content
        if not isinstance(values, list) or not all(isinstance(v, int) and not isinstance(v, bool) for v in values):
            raise PrivacyError(f'{path}: it must hold a list of whole numbers, or {{"label": [...]}}')
        return np.array(values, dtype=np.int64)
    matrix = read_matrix(path, dimensions=(1, 2))
    if matrix.ndim == 2 and 1 not in matrix.shape:
        raise PrivacyError(f"{path}: shape {matrix.shape}, not a list of whole numbers")
    return _whole_numbers(matrix.reshape(-1, 1), str(path)).ravel()


def read_json(path: Path) -> Any:
    """What a JSON file holds."""
    with reading(path):
        return storage.read_json(path, follow=True)


def read_matrix(path: Path, dimensions: tuple[int, ...] = (2,)) -> npt.NDArray[Any]:
    """A matrix of numbers from `.npy`, `.npz` (its only array) or CSV (a header line is skipped). No pickles."""
    with reading(path):
        matrix = _load_numpy(path) if path.suffix in (".npy", ".npz") else _load_csv(path)
    if matrix.ndim not in dimensions or not matrix.size:
        raise PrivacyError(f"{path}: shape {matrix.shape}, not a matrix of numbers")
    if not (np.issubdtype(matrix.dtype, np.integer) or np.issubdtype(matrix.dtype, np.floating)):
        raise PrivacyError(f"{path}: {matrix.dtype} values, not numbers")
    return matrix


def array_sha256(array: npt.NDArray[Any]) -> str:
    """A hash of shape and values."""
    digest = hashlib.sha256(repr(array.shape).encode())
    digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _load_numpy(path: Path) -> npt.NDArray[Any]:
    try:
        arrays = load_arrays(path)
    except MixMatchError as error:
        raise PrivacyError(str(error)) from None
    if len(arrays) != 1:
        names = f" ({', '.join(arrays)})" if arrays else ""
        raise PrivacyError(f"{path}: it holds {count(len(arrays), 'array')}{names}, not one")
    return next(iter(arrays.values()))


def _load_csv(path: Path) -> npt.NDArray[np.float64]:
    with path.open(newline="") as file:
        lines = [(number, line) for number, line in enumerate(csv.reader(file), 1) if any(map(str.strip, line))]
    if lines and not any(is_number(cell) for cell in lines[0][1]):
        lines = lines[1:]
    rows = []
    for number, line in lines:
        if not all(is_number(cell) for cell in line) or len(line) != len(lines[0][1]):
            raise PrivacyError(f"{path}: line {number} is not {len(lines[0][1])} numbers")
        rows.append([float(cell) for cell in line])
    return np.array(rows, dtype=np.float64)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Whatever is wrong with a file that is read is one line."""
    try:
        storage.check_plain(path, MOST)
        yield
    except FileNotFoundError:
        raise PrivacyError(f"{path} does not exist") from None
    except MixMatchError:
        raise
    except OSError as error:
        raise PrivacyError(f"{path} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # a damaged file makes NumPy, zipfile and json raise all sorts
        raise PrivacyError(f"{path} cannot be read: {' '.join(str(error).split()) or type(error).__name__}") from None


def _whole_numbers(values: npt.ArrayLike, name: str) -> Counts:
    given = np.asarray(values)
    if given.ndim != 2 or not given.size:
        raise PrivacyError(f"{name}: shape {given.shape}, not a matrix of votes")
    numbers = given.astype(np.float64)
    if not np.isfinite(numbers).all():
        raise PrivacyError(f"{name}: row {_first(~np.isfinite(numbers).all(axis=1))} has a value that is not a number")
    whole = numbers == np.rint(numbers)
    if not whole.all():
        row = _first(~whole.all(axis=1))
        value = numbers[row][~whole[row]][0]
        raise PrivacyError(f"{name}: row {row} has the value {value:g}; votes are whole numbers")
    if (np.abs(numbers) > 2**53).any():
        raise PrivacyError(f"{name}: a value is too large")
    return given.astype(np.int64)


def _first(mask: Any) -> int:
    return int(np.argmax(mask))

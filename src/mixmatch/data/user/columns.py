"""A table with compact columns: text as indices into a list of the distinct values, numbers out of memory until
they are needed."""

from __future__ import annotations

import difflib
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count as counting
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from mixmatch.errors import MixMatchError, explaining
from mixmatch.text import listed

Matrix = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?", "#n/a"})
"""What stands for a missing value, in upper or lower case."""

IN_MEMORY = 16 << 20
"""Bytes of numbers that are kept in memory; more of them go to a temporary file."""


def is_missing(value: str) -> bool:
    return value.lower() in MISSING


def is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


class Names(Sequence[str]):
    """Text, row by row. Each distinct value is stored once: a million rows of fifty cities take four megabytes."""

    def __init__(self, values: Sequence[str], codes: npt.NDArray[np.int32]) -> None:
        self.values, self.codes = values, codes

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice | Rows) -> Names: ...
    def __getitem__(self, row: int | slice | Rows) -> str | Names:
        codes: Any = self.codes[row]
        return Names(self.values, codes) if isinstance(row, slice | np.ndarray) else self.values[codes]

    def __iter__(self) -> Iterator[str]:
        return map(self.values.__getitem__, self.codes.tolist())

    def counts(self) -> Counter[str]:
        """How often each occurs, in the order of first occurrence."""
        used, first, numbers = np.unique(self.codes, return_index=True, return_counts=True)
        order = np.argsort(first)
        pairs = zip(used[order].tolist(), numbers[order].tolist(), strict=True)
        return Counter({self.values[code]: n for code, n in pairs})

    def each(self, function: Callable[[str], Any], kind: Any) -> npt.NDArray[Any]:
        """A function of every row, called once for each distinct text."""
        used = np.unique(self.codes)
        result = np.zeros(len(self.values), kind)
        result[used] = [function(self.values[code]) for code in used.tolist()]
        return result[self.codes]


class Places(Sequence[str]):
    """What rows are called by where they are: "line 7"."""

    def __init__(self, before: str, lines: Sequence[int] | Rows) -> None:
        self._before, self._lines = before, lines

    def __len__(self) -> int:
        return len(self._lines)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice | Rows) -> Places: ...
    def __getitem__(self, row: int | slice | Rows) -> str | Places:
        if isinstance(row, slice):  # of a range, which is not written out
            return Places(self._before, self._lines[row])
        if isinstance(row, np.ndarray):
            return Places(self._before, np.asarray(self._lines)[row])
        return f"{self._before}{self._lines[row]}"


class NamesBuilder:
    """Collects text block by block."""

    def __init__(self) -> None:
        self._place: defaultdict[str, int] = defaultdict(counting().__next__)
        self._codes: list[npt.NDArray[np.int32]] = []

    def add(self, cells: Sequence[str]) -> None:
        self._codes.append(np.fromiter(map(self._place.__getitem__, cells), np.int32, len(cells)))

    def add_coded(self, values: Sequence[str], codes: npt.NDArray[np.int32]) -> None:
        places = np.fromiter(map(self._place.__getitem__, values), np.int32, len(values))
        self._codes.append(places[codes] if len(values) else codes.astype(np.int32))

    def build(self) -> Names:
        codes = np.concatenate(self._codes) if self._codes else np.empty(0, np.int32)
        return Names(list(self._place), codes)


def as_column(values: Any) -> Names | Matrix:
    """A column of a list or of another library's table: numbers if it has a numeric type, else text."""
    if isinstance(values, Names):
        return values
    if not isinstance(values, list | tuple | np.ndarray):
        values = np.asarray(values)
    if isinstance(values, np.ndarray) and values.dtype.kind in "fiu":
        return values.astype(np.float64)
    builder = NamesBuilder()
    builder.add([_written(value) for value in values])
    return builder.build()


def _written(value: Any) -> str:
    """
    >>> [_written(value) for value in ("a", None, float("nan"), 3, np.float64(2.5))]
    ['a', '', '', '3', '2.5']
    """
    return "" if value is None or value != value else str(value)


class NumberStore:
    """Columns of numbers that come in blocks of rows and are read one at a time."""

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._rows: list[int] = []
        self._file = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115

    def __del__(self) -> None:
        self._file.close()

    def add(self, block: Sequence[Matrix]) -> None:
        """The next rows of every column."""
        remedy = "free some space there, or name another folder with TMPDIR"
        with explaining(f"cannot keep a table's numbers in {tempfile.gettempdir()}", remedy):
            for column in block:
                self._file.write(column.tobytes())
        self._rows.append(len(block[0]) if block else 0)

    def column(self, number: int) -> Matrix:
        """All rows of a column."""
        pieces, start = [np.empty(0)], 0
        for rows in self._rows:
            self._file.seek(8 * (start + number * rows))
            pieces.append(np.frombuffer(self._file.read(8 * rows)))
            start += self._columns * rows
        return np.concatenate(pieces)


class Selected(Mapping[str, "Names | Matrix"]):
    """Some rows of some columns, which are read when they are asked for."""

    def __init__(self, names: Iterable[str], column: Callable[[str], Names | Matrix], rows: Rows | None = None) -> None:
        self._names, self._column, self._rows = dict.fromkeys(names), column, rows

    def __getitem__(self, name: str) -> Names | Matrix:
        values = self._column(name)
        return values if self._rows is None else values[self._rows]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True)
class Table:
    """A table, column by column. A column is read when it is asked for."""

    path: Path
    header: tuple[str, ...]
    lines: Sequence[int]
    """Where each row is in the file, for messages."""
    read: Callable[[str], Names | Matrix]

    def __len__(self) -> int:
        return len(self.lines)

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self.header)

    def column(self, name: str, parameter: str = "") -> Names | Matrix:
        """The column of that name; `parameter` chooses another."""
        self.require(name, parameter)
        return self.read(name)

    def require(self, name: str, parameter: str = "") -> None:
        """Refuse a name that is not there, without reading the column: with the nearest name, and the parameter."""
        if name in self._names:
            return
        near = difflib.get_close_matches(name, self.header, n=1, cutoff=0.6)
        hint = f": did you mean '{near[0]}'?" if near else ""
        other = f"; name the right one with {parameter}" if parameter else ""
        raise MixMatchError(f"{self.path} has no column '{name}'{hint} (it has {listed(self.header, 8)}){other}")

    def text(self, name: str, parameter: str = "") -> Names:
        """A column that was asked for as text."""
        column = self.column(name, parameter)
        assert isinstance(column, Names)
        return column

    def select(self, names: Iterable[str], rows: Rows | None = None) -> Selected:
        """Some rows of some columns, for an encoding."""
        return Selected(names, self.column, rows)

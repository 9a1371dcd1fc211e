"""CSV files, a megabyte at a time, by two parsers that agree.

Python's parses everything. pyarrow's is several times faster; where it is installed, it gets the pieces of a file that
leave no room for interpretation: no quotes, no rows that are empty or of another length, numbers in the columns of
numbers. Whatever it rejects goes to the other, whose result counts.
"""

from __future__ import annotations

import csv
import importlib
import io
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from mixmatch.data.user.columns import MISSING, Matrix, Names, NamesBuilder, NumberStore, Table, is_missing
from mixmatch.errors import MixMatchError, explaining
from mixmatch.text import count, from_cell

MARKS = {",": "a comma", ";": "a semicolon", "\t": "a tab"}
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
NULLS = sorted({spelled for word in MISSING for spelled in (word, word.upper(), word.capitalize())} | {"NaN"})
"""The spellings of it that pyarrow knows; others are left to Python."""

PIECE = 1 << 20
MOST_LINE = 1 << 26
"""Bytes of a line: 100,000 cells of 600."""
LONGEST = csv.field_size_limit()
"""Characters of a cell that Python's parser takes."""


@cache
def _arrow() -> Any:
    """pyarrow with its parser, or None where it is not installed."""
    try:
        importlib.import_module("pyarrow.csv")
        return importlib.import_module("pyarrow")
    except ImportError:
        return None


class Block(NamedTuple):
    """Some rows: where each ends in the file, and their columns: text, numbers, or None where numbers were expected and
    there is something else."""

    lines: Sequence[int]
    columns: Sequence[Names | list[str] | Matrix | None]


def read_csv(path: Path, text: Collection[str] | None = None) -> Table:
    """A CSV file in UTF-8 with a header; commas, semicolons (then decimal commas too) or tabs between its fields.

    Args:
        text: columns that are wanted as they are written, also if all their cells are numbers; by default all are.
    """
    lines = _Lines(io.BytesIO())
    try:
        with explaining(f"cannot read {path}"), path.open("rb") as file:
            lines = _Lines(file)
            table = _collect(_Reader(path, lines), text)
    except UnicodeDecodeError:
        raise MixMatchError(f"cannot read {path}: it is not text in UTF-8; save it as CSV (UTF-8)") from None
    except csv.Error as error:
        if "field larger" in str(error):
            raise MixMatchError(
                f"{path} line {lines.number} has a cell of more than {LONGEST:,} characters: shorten it, or close its "
                "quote if it was never closed"
            ) from None
        raise MixMatchError(f"cannot read {path} line {lines.number}: {error}") from None
    if isinstance(table, set):  # numbers up to some row, and then not: what they look like is needed after all
        return read_csv(path, {*(text or ()), *table})
    if len(table) == 0:
        raise MixMatchError(f"{path} has a header but no rows")
    return table


def _collect(reader: _Reader, text: Collection[str] | None) -> Table | set[str]:
    """The table, in which columns that are wanted as text, and those that are no numbers, are `Names`; or the columns
    that turned out to hold more than numbers when it was too late."""
    header, lines = reader.header, list[npt.NDArray[np.int64]]()
    as_text = [text is None or name in text for name in header]
    builders: dict[int, NamesBuilder] = {}
    places, late, store = dict[int, int](), set[str](), NumberStore(0)
    for block in reader.blocks(as_text):
        if not lines:
            as_text[:] = [isinstance(cells, list | Names) for cells in block.columns]
            builders = {i: NamesBuilder() for i, is_text in enumerate(as_text) if is_text}
            places = {i: k for k, i in enumerate(i for i, is_text in enumerate(as_text) if not is_text)}
            store = NumberStore(len(places))
        lines.append(np.array(block.lines, np.int64))
        for i, builder in builders.items():
            cells = block.columns[i]
            if isinstance(cells, Names):
                builder.add_coded(cells.values, cells.codes)
            elif isinstance(cells, list):
                builder.add(cells)
        late |= {header[i] for i in places if block.columns[i] is None}
        if not late:
            store.add([cells for i in places if isinstance(cells := block.columns[i], np.ndarray)])
    if late:
        return late
    names = {header[i]: builder.build() for i, builder in builders.items()}
    numbers = {header[i]: place for i, place in places.items()}

    def column(name: str) -> Names | Matrix:
        return names[name] if name in names else store.column(numbers[name])

    everything = np.concatenate(lines) if lines else np.empty(0, np.int64)
    return Table(reader.path, header, cast("Sequence[int]", everything), column)


class _Lines(Iterator[str]):
    """The lines of a file, read in pieces that end with a line."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._text, self._end = file, io.StringIO(), 0
        self._encoding = "utf-8-sig"
        self.number = 0
        """Lines taken so far."""

    def piece(self) -> bytes:
        """What is left of the current piece, or the next one; nothing at the end."""
        return self._text.read().encode() or self._next()

    def put_back(self, piece: bytes) -> None:
        self._text = io.StringIO(piece.decode(), newline="")
        self._end = self._text.seek(0, io.SEEK_END)
        self._text.seek(0)

    def used_up(self) -> bool:
        return self._text.tell() >= self._end

    def __next__(self) -> str:
        line = self._text.readline()
        if not line:
            self.put_back(self._next())
            line = self._text.readline()
        if not line:
            raise StopIteration
        self.number += 1
        return line

    def _next(self) -> bytes:
        piece = self._file.read(PIECE)
        piece += self._file.readline(MOST_LINE)
        if len(piece) > MOST_LINE and not piece.endswith(b"\n"):
            raise csv.Error(f"a line has more than {MOST_LINE:,} bytes")
        if self._encoding != "utf-8":
            piece = piece.removeprefix(b"\xef\xbb\xbf")
            self._encoding = "utf-8"
        return piece


class _Reader:
    """A CSV file whose header is read."""

    def __init__(self, path: Path, lines: _Lines) -> None:
        self.path, self.lines = path, lines
        first = self.lines.piece()
        self.lines.put_back(first)
        start = next(self.lines, "")
        self.lines.put_back(first)
        self.lines.number = 0
        self.delimiter = max(MARKS, key=lambda mark: _fields(start, mark))
        self.header = tuple(from_cell(name.strip()) for name in next(self._rows(), []))
        check_header(path, self.header)

    def blocks(self, as_text: Sequence[bool]) -> Iterator[Block]:
        """The rows. After the first block, `as_text` says which columns are text."""
        first = True
        while piece := self.lines.piece():
            block = None if first else self._by_arrow(piece, as_text)
            if block is None:
                self.lines.put_back(piece)
                block = self._by_python(as_text, first)
            if len(block.lines):
                first = False
                yield block

    def _rows(self) -> Iterator[list[str]]:
        return csv.reader(self.lines, delimiter=self.delimiter)

    def _by_python(self, as_text: Sequence[bool], first: bool) -> Block:
        """Rows up to the end of the piece, and of a cell that goes beyond it."""
        rows, lines = [], []
        for row in self._rows():
            if any(map(str.strip, row)):
                if len(row) != len(self.header):
                    fields, mark = count(len(row), "field"), MARKS[self.delimiter]
                    raise MixMatchError(
                        f"{self.path} line {self.lines.number} has {fields}, but the header {len(self.header)}: "
                        f"correct the line (a value with {mark} in it needs quotes)"
                    )
                rows.append(row)
                lines.append(self.lines.number)
            if self.lines.used_up():
                break
        columns: list[list[str] | Matrix | None] = []
        for cells, is_text in zip(zip(*rows, strict=True), as_text, strict=bool(rows)):
            numbers = None if is_text else self._numbers(cells)
            columns.append([*map(self._cell, cells)] if is_text or (first and numbers is None) else numbers)
        return Block(lines, columns)

    def _cell(self, cell: str) -> str:
        cell = cell.strip()
        if self.delimiter == ";" and DECIMAL_COMMA.fullmatch(cell):
            return cell.replace(",", ".")
        return from_cell(cell)

    def _numbers(self, cells: Sequence[str]) -> Matrix | None:
        """Cells as numbers, NaN where they are missing; None if they are something else."""
        try:
            numbers = np.fromiter(map(float, cells), np.float64, len(cells))
            if not np.isnan(numbers).any():
                return numbers
        except ValueError:
            pass
        values = {cell: _number(self._cell(cell)) for cell in set(cells)}
        if None in values.values():
            return None
        return np.fromiter(map(values.__getitem__, cells), np.float64, len(cells))

    def _by_arrow(self, piece: bytes, as_text: Sequence[bool]) -> Block | None:
        """The rows of a piece if it is a plain one, else None."""
        arrow, mark = _arrow(), self.delimiter
        if arrow is None or b'"' in piece or b"\0" in piece or piece.count(b"\r") != piece.count(b"\r\n"):
            return None
        if mark == ";" and b"," in piece:  # perhaps a decimal comma
            return None
        ends = np.flatnonzero(np.frombuffer(piece, np.uint8) == ord("\n")) + 1
        ends = ends if piece.endswith(b"\n") else np.append(ends, len(piece))
        if np.diff(ends, prepend=0).max() > LONGEST:
            return None
        names = [str(i) for i in range(len(self.header))]
        kinds = {name: arrow.string() if text else arrow.float64() for name, text in zip(names, as_text, strict=True)}
        try:
            table = arrow.csv.read_csv(
                arrow.BufferReader(piece),
                arrow.csv.ReadOptions(column_names=names, use_threads=False, block_size=len(piece) + 1),
                arrow.csv.ParseOptions(delimiter=mark, quote_char=False, ignore_empty_lines=False),
                arrow.csv.ConvertOptions(column_types=kinds, null_values=NULLS, strings_can_be_null=False),
            )
        except arrow.ArrowInvalid:
            return None
        if table.num_rows != len(ends):
            return None
        columns: list[Names | Matrix] = []
        empty = np.ones(len(ends), bool)
        for column, is_text in zip(table.columns, as_text, strict=True):
            cells = self._from_arrow(column.combine_chunks(), is_text)
            if cells is None:
                return None
            columns.append(cells)
            if empty.any():
                empty &= cells.each(lambda cell: not cell, bool) if isinstance(cells, Names) else np.isnan(cells)
        if empty.any():
            return None
        lines = range(self.lines.number + 1, self.lines.number + 1 + len(ends))
        self.lines.number += len(ends)
        return Block(lines, columns)

    def _from_arrow(self, column: Any, is_text: bool) -> Names | Matrix | None:
        if is_text:
            coded = column.dictionary_encode()
            return Names([*map(self._cell, coded.dictionary.to_pylist())], _array(coded.indices, np.int32))
        numbers = _array(column, np.float64)
        if nulls := column.null_count:
            known = np.unpackbits(np.frombuffer(column.buffers()[0], np.uint8), bitorder="little")[column.offset :]
            numbers = np.where(known[: len(numbers)], numbers, np.nan)
        return numbers if int(np.isnan(numbers).sum()) == nulls else None


def _array(column: Any, kind: type[np.generic]) -> npt.NDArray[Any]:
    """The values of a column. pyarrow's own `to_numpy` imports pandas, where that is installed: 50 MB."""
    return np.frombuffer(column.buffers()[1], kind, len(column), column.offset * np.dtype(kind).itemsize)


def check_header(path: Path, header: Sequence[str]) -> None:
    if not any(header):
        raise MixMatchError(f"{path} is empty: it needs a header and rows")
    if twice := [name for name, n in Counter(header).items() if n > 1]:
        raise MixMatchError(f"{path} has several columns named '{twice[0]}'")


def _fields(line: str, mark: str) -> int:
    try:
        return len(next(csv.reader([line], delimiter=mark), []))
    except csv.Error:  # a long header, cut in the wrong places
        return 0


def _number(cell: str) -> float | None:
    if is_missing(cell):
        return np.nan
    try:
        number = float(cell)
    except ValueError:
        return None
    return None if np.isnan(number) else number

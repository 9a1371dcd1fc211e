"""Predictions as CSV, JSON or Parquet."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import islice
from typing import IO, Any

import numpy as np

from mixmatch.errors import not_installed
from mixmatch.predict.files import Failure, Row
from mixmatch.text import csv_line

FIXED = ("file", "class", "probability")
"""The columns of every table of predictions."""
ERROR = "error"
"""The last column where files that cannot be read have rows, too."""
ROW_GROUP = 16_384
"""Predictions that are written to a Parquet file at once, at most."""
NUMBERS = 1 << 22
"""Numbers that are written at once: with 10,000 classes, those of 400 predictions."""


class Format(StrEnum):
    """How predictions are written."""

    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


def check_parquet() -> None:
    """Refuse Parquet where its package is missing, before anything is predicted."""
    try:
        importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise not_installed("format=parquet", "pyarrow", "tables", ", or use csv") from None


def write(
    kind: Format,
    out: IO[Any],
    rows: Iterable[Row],
    classes: Sequence[str],
    id_column: str | None = None,
    *,
    errors: bool = False,
) -> None:
    """Write rows as they come.

    Args:
        out: a text file; for Parquet a binary one.
        id_column: the name of a first column, with the id of each row.
        errors: whether there is a last column for what is wrong with a file.
    """
    if id_column in FIXED:
        id_column = f"{id_column} (id)"
    writers: dict[Format, Callable[..., None]] = {Format.CSV: _csv, Format.JSON: _json, Format.PARQUET: _parquet}
    writers[kind](out, rows, classes, id_column, errors)


def _csv(out: IO[str], rows: Iterable[Row], classes: Sequence[str], id_column: str | None, errors: bool) -> None:
    last = [ERROR] if errors else []
    # Numbers need no quotes. One text of all of them is made three times as fast as each by itself, and of many classes
    # nothing else takes as long.
    numbers, end = ",".join(["%.6g"] * (1 + len(classes))), ",\n" if errors else "\n"
    out.write(csv_line([*([] if id_column is None else [id_column]), *FIXED, *classes, *last]))
    for row in rows:
        if isinstance(row, Failure):
            out.write(csv_line([row.file, *[""] * (2 + len(classes)), row.error]))
            continue
        start = csv_line([row.file, row.class_name] if id_column is None else [row.id, row.file, row.class_name])[:-1]
        out.write(f"{start},{numbers % (row.probability, *row.probabilities.tolist())}{end}")


def _json(out: IO[str], rows: Iterable[Row], classes: Sequence[str], id_column: str | None, errors: bool) -> None:
    """A list, one prediction per line."""
    before = "[\n"
    by_class = ", ".join(f"{json.dumps(name).replace('%', '%%')}: %r" for name in dict.fromkeys(classes))
    for row in rows:
        # One text of all numbers is made twice as fast as each by itself.
        if isinstance(row, Failure):
            text = json.dumps({"file": row.file, ERROR: row.error})
        else:
            best = {"file": row.file, "class": row.class_name, "probability": row.probability}
            text = json.dumps(best if id_column is None else {id_column: row.id, **best})[:-1]
            text += f', "probabilities": {{{by_class % tuple(row.probabilities.tolist())}}}}}'
        out.write(before + text)
        before = ",\n"
    out.write("\n]\n" if before == ",\n" else "[]\n")


def _parquet(out: IO[bytes], rows: Iterable[Row], classes: Sequence[str], id_column: str | None, errors: bool) -> None:
    """The columns of the CSV file, the numbers in full. A class that is called like another column gets a suffix."""
    arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    first = dict.fromkeys([*([] if id_column is None else [id_column]), *FIXED[:2]], arrow.string())
    fixed, last = first | {FIXED[2]: arrow.float64()}, {ERROR: arrow.string()} if errors else {}
    names = [f"{name} (class)" if name in {**fixed, **last} else name for name in map(_text, classes)]
    schema = arrow.schema([*fixed.items(), *((name, arrow.float64()) for name in names), *last.items()])
    remaining = iter(rows)
    with parquet.ParquetWriter(out, schema) as writer:
        while some := list(islice(remaining, max(1, min(ROW_GROUP, NUMBERS // len(classes))))):
            columns = _columns(some, len(classes), id_column is not None, errors)
            # What cannot be read has no numbers: null.
            arrays = [arrow.array(c, field.type, from_pandas=True) for c, field in zip(columns, schema, strict=True)]
            writer.write_table(arrow.Table.from_arrays(arrays, schema=schema))


def _columns(rows: Sequence[Row], classes: int, ids: bool, errors: bool) -> Iterator[Sequence[Any] | np.ndarray]:
    unknown = np.full(classes, math.nan)
    if ids:
        yield [None if isinstance(row, Failure) else row.id for row in rows]
    yield [_text(row.file) for row in rows]
    yield [None if isinstance(row, Failure) else _text(row.class_name) for row in rows]
    yield [math.nan if isinstance(row, Failure) else row.probability for row in rows]
    yield from np.stack([unknown if isinstance(row, Failure) else row.probabilities for row in rows]).T
    if errors:
        yield [row.error if isinstance(row, Failure) else None for row in rows]


def _text(name: str) -> str:
    """The name of a file, or of a class that is one: it may hold bytes that are no text."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

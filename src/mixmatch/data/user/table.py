"""CSV and Parquet files as user data: their rows become a matrix of features."""

from __future__ import annotations

import csv
import difflib
import importlib
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from mixmatch.data.source import UNKNOWN
from mixmatch.data.user.encoding import Encoding, fit, is_missing
from mixmatch.data.user.rows import (
    WHOLE,
    Finding,
    Numbered,
    Part,
    UserData,
    class_order,
    match_labels,
    number_labels,
)
from mixmatch.errors import MixMatchError
from mixmatch.text import count, from_cell, listed

MARKS = {",": "a comma", ";": "a semicolon", "\t": "a tab"}
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")


# ----------------------------------------------------------------------------------------------- reading the file


@dataclass(frozen=True)
class TextTable:
    """A table of text, column by column."""

    path: Path
    header: tuple[str, ...]
    columns: tuple[Sequence[str], ...]
    lines: Sequence[int]
    """Where each row is in the file, for messages."""

    def __len__(self) -> int:
        return len(self.lines)

    def column(self, name: str, parameter: str = "") -> Sequence[str]:
        """The column of that name, or an error with the nearest name, and the parameter that chooses another."""
        if name in self.header:
            return self.columns[self.header.index(name)]
        near = difflib.get_close_matches(name, self.header, n=1, cutoff=0.6)
        hint = f": did you mean '{near[0]}'?" if near else ""
        other = f"; name the right one with {parameter}" if parameter else ""
        raise MixMatchError(f"{self.path} has no column '{name}'{hint} (it has {listed(self.header, 8)}){other}")


def read_csv(path: Path) -> TextTable:
    """A CSV file in UTF-8 with a header; commas, semicolons (then decimal commas too) or tabs between its fields."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            delimiter = max(MARKS, key=lambda mark: len(next(csv.reader([first], delimiter=mark), [])))
            file.seek(0)
            reader = csv.reader(file, delimiter=delimiter)
            header = tuple(from_cell(name.strip()) for name in next(reader, []))
            _check_header(path, header)
            columns: tuple[list[str], ...] = tuple([] for _ in header)
            lines: list[int] = []
            for row in reader:
                if not any(map(str.strip, row)):
                    continue
                if len(row) != len(header):
                    fields = count(len(row), "field")
                    raise MixMatchError(
                        f"{path} line {reader.line_num} has {fields}, but the header {len(header)}: correct the line "
                        f"(a value with {MARKS[delimiter]} in it needs quotes)"
                    )
                lines.append(reader.line_num)
                for column, value in zip(columns, row, strict=True):
                    column.append(_cell(value, delimiter))
    except OSError as error:
        raise MixMatchError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise MixMatchError(f"cannot read {path}: it is not text in UTF-8; save it as CSV (UTF-8)") from None
    except csv.Error as error:
        raise MixMatchError(f"cannot read {path} line {reader.line_num}: {error}") from None
    if not lines:
        raise MixMatchError(f"{path} has a header but no rows")
    return TextTable(path, header, columns, lines)


def read_parquet(path: Path) -> TextTable:
    """A Parquet file, its values as text."""
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise MixMatchError(
            f"reading {path} takes pyarrow, which is not installed: pip install 'mixmatch[tables]', or save it as CSV"
        ) from None
    try:
        table = parquet.read_table(path)
    except OSError as error:
        raise MixMatchError(f"cannot read {path}: {error.strerror or error}") from None
    except Exception as error:  # pyarrow's own, which cannot be named without importing it
        raise MixMatchError(f"cannot read {path}: {str(error).splitlines()[0]}") from None
    header = tuple(map(str, table.column_names))
    _check_header(path, header)
    for field in table.schema:
        if field.type.num_fields:
            raise MixMatchError(f"{path} column '{field.name}' holds a {field.type}: spread it over columns of numbers")
    if table.num_rows == 0:
        raise MixMatchError(f"{path} has no rows")
    columns = tuple(
        ["" if value is None else str(value).strip() for value in column.to_pylist()] for column in table.columns
    )
    return TextTable(path, header, columns, range(1, table.num_rows + 1))


def _cell(value: str, delimiter: str) -> str:
    value = value.strip()
    return value.replace(",", ".") if delimiter == ";" and DECIMAL_COMMA.fullmatch(value) else from_cell(value)


def _check_header(path: Path, header: Sequence[str]) -> None:
    if not any(header):
        raise MixMatchError(f"{path} is empty: it needs a header and rows")
    if twice := [name for name, n in Counter(header).items() if n > 1]:
        raise MixMatchError(f"{path} has several columns named '{twice[0]}'")


# -------------------------------------------------------------------------------------------------------- the table


def read_rows(path: str | os.PathLike[str]) -> TextTable:
    """A CSV or Parquet file, by its suffix."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise MixMatchError(f"there is no file {path}")
    return read_parquet(path) if path.suffix.lower() in (".parquet", ".pq") else read_csv(path)


def read_table(
    path: str | os.PathLike[str],
    *,
    label_column: str = "label",
    part_column: str | None = None,
    id_column: str | None = None,
    ignore: Sequence[str] = (),
) -> UserData:
    """A CSV or Parquet file as a matrix of features.

    Args:
        label_column: the class of each row; empty means unlabeled.
        part_column: "train" (or empty) or "test" for each row; without it there are no test rows.
        id_column: what rows are called, instead of by their line; no feature.
        ignore: columns that are no features.
    """
    table = read_rows(path)
    labels = _labels(table.column(label_column, "label_column="))
    part = _parts(table, part_column)
    for name in ignore:
        table.column(name)  # a name that is not there is a mistake
    names = row_names(table, id_column)
    skipped = {label_column, part_column, id_column, *ignore}
    features = {name: table.column(name) for name in table.header if name not in skipped}
    if not features:
        raise MixMatchError(f"{table.path} has no columns beside '{label_column}': there is nothing to learn from")
    numbered = number_labels(
        labels,
        part,
        names,
        table.path.name,
        noun="row",
        how=f"fill in some of column '{label_column}', at least one row of every class, and leave the others empty",
        order=class_order,
    )
    train = [row for row, p in zip(numbered.rows, numbered.part, strict=True) if p == "train"]
    encoding, findings = fit({name: [values[row] for row in train] for name, values in features.items()})
    if not encoding.columns:
        raise MixMatchError(f"{table.path} has no column to learn from: {findings[0].message}")
    return UserData(
        name=table.path.name,
        classes=numbered.classes,
        inputs=encoding.apply({name: [values[row] for row in numbered.rows] for name, values in features.items()}),
        labels=numbered.labels,
        files=tuple(names[row] for row in numbered.rows),
        part=numbered.part,
        findings=(
            *findings,
            *_repeated_ids(names, id_column),
            *_odd_labels(numbered, label_column),
            *numbered.findings,
        ),
        encoding=replace(encoding, id_column=id_column),
    )


def read_labeled_table(
    path: Path,
    classes: Sequence[str],
    encoding: Encoding,
    *,
    label_column: str = "label",
    part_column: str | None = None,
    id_column: str | None = None,
) -> UserData:
    """The labeled rows of a CSV or Parquet file, encoded as for a model of these classes: the test rows if there is a
    part column, else all."""
    table = read_rows(path)
    labels, part = _labels(table.column(label_column, "label_column=")), _parts(table, part_column)
    names = row_names(table, id_column or (encoding.id_column if encoding.id_column in table.header else None))
    numbered = match_labels(labels, part, names, table.path.name, classes, noun="row")
    columns = {name: table.column(name) for name in table.header}
    return UserData(
        name=table.path.name,
        classes=numbered.classes,
        inputs=encoding.apply({name: [values[row] for row in numbered.rows] for name, values in columns.items()}),
        labels=numbered.labels,
        files=tuple(names[row] for row in numbered.rows),
        part=numbered.part,
        findings=numbered.findings,
        encoding=encoding,
    )


def row_names(table: TextTable, id_column: str | None = None) -> list[str]:
    """What rows are called: by a column, or where that is empty by where they are in the file."""
    kind = "row" if isinstance(table.lines, range) else "line"
    places = [f"{kind} {line}" for line in table.lines]
    if id_column is None:
        return places
    return [name or place for name, place in zip(table.column(id_column, "id_column="), places, strict=True)]


def _repeated_ids(names: Sequence[str], id_column: str | None) -> list[Finding]:
    repeated = tuple(name for name, n in Counter(names).items() if n > 1)
    if not repeated:
        return []
    message = f"{count(len(repeated), 'value')} of column '{id_column}' in more than one row ({listed(repeated)})"
    advice = "nothing to do, unless they are copies: then remove them"
    return [Finding("repeated-id", message, repeated, advice, "info")]


def _labels(values: Sequence[str]) -> list[str | None]:
    """Labels by name. Programs that know no missing integer write 1.0 for class 1."""
    whole = all(WHOLE.fullmatch(value.removesuffix(".0")) for value in values if value)
    return [(value.removesuffix(".0") if whole else value) or None for value in values]


def _parts(table: TextTable, part_column: str | None) -> list[Part]:
    if part_column is None:
        return ["train"] * len(table)
    values = table.column(part_column)
    for line, value in zip(table.lines, values, strict=True):
        if value not in ("", "train", "test"):
            raise MixMatchError(
                f"{table.path} line {line}: column '{part_column}' is '{value}', but must be train, test or empty"
            )
    return cast("list[Part]", [value or "train" for value in values])


def _odd_labels(numbered: Numbered, column: str) -> list[Finding]:
    findings, classes = [], numbered.classes
    odd = [label for label in classes if is_missing(label) or label.casefold() in ("-1", "unlabeled", "unlabelled")]
    if odd:
        message = f"the label '{odd[0]}' is taken for a class"
        findings.append(Finding("class-name", message, (), "if it means that there is no label, leave the cell empty"))
    labeled = int((numbered.labels != UNKNOWN).sum())
    if len(classes) > max(10, labeled / 2):
        message = f"column '{column}' has {len(classes):,} different labels in {count(labeled, 'labeled row')}"
        advice = "if they are no classes, choose another column with label_column=, or group them, such as low and high"
        findings.append(Finding("many-classes", message, (), advice))
    return findings

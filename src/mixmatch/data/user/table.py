"""CSV and Parquet files as user data: their rows become a matrix of features."""

from __future__ import annotations

import importlib
import os
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from mixmatch.data.source import UNKNOWN
from mixmatch.data.user.columns import Matrix, Names, NamesBuilder, Places, Table, is_missing
from mixmatch.data.user.csv_file import check_header, read_csv
from mixmatch.data.user.encoding import Encoding, fit, is_same
from mixmatch.data.user.rows import WHOLE, Finding, Numbered, Part, UserData, class_order, match_labels, number_labels
from mixmatch.errors import MixMatchError, first_line, not_installed
from mixmatch.text import count, listed

# ----------------------------------------------------------------------------------------------- reading the file


def read_parquet(path: Path, text: Collection[str] | None = None) -> Table:
    """A Parquet file, its values as text."""
    try:
        arrow: Any = importlib.import_module("pyarrow")
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise not_installed(f"reading {path}", "pyarrow", "tables", ", or save it as CSV") from None
    try:
        file = parquet.ParquetFile(path)
    except OSError as error:
        raise MixMatchError(f"cannot read {path}: {error.strerror or error}") from None
    except Exception as error:  # pyarrow's own, which cannot be named without importing it
        raise MixMatchError(f"cannot read {path}: {first_line(error)}") from None
    schema = file.schema_arrow
    header = tuple(map(str, schema.names))
    check_header(path, header)
    if (rows := file.metadata.num_rows) == 0:
        raise MixMatchError(f"{path} has no rows")

    def column(name: str) -> Names | Matrix:
        where = f"cannot read {path}: column '{name}'"
        if (kind := schema.field(name).type).num_fields:
            raise MixMatchError(
                f"{path} column '{name}' holds a {kind}: spread it over columns of numbers, or leave it out with "
                f"ignore='{name}'"
            )
        try:
            values = file.read(columns=[name])[name]
        except (OSError, arrow.ArrowException) as error:
            raise MixMatchError(f"{where} is damaged ({first_line(error)})") from None
        numeric = arrow.types.is_floating(values.type) or arrow.types.is_integer(values.type)
        if numeric and text is not None and name not in text:
            return np.asarray(values.cast(arrow.float64(), safe=False).to_numpy(), np.float64)
        builder = NamesBuilder()
        try:
            builder.add(["" if value is None else str(value).strip() for value in values.to_pylist()])
        except (OverflowError, ValueError) as error:  # times outside of Python's, unknown time zones, damaged text
            raise MixMatchError(
                f"{where} of type {values.type} has a value that Python cannot represent ({first_line(error)}): "
                f"correct it, or leave the column out with ignore='{name}'"
            ) from None
        return builder.build()

    return Table(path, header, range(1, rows + 1), column)


# -------------------------------------------------------------------------------------------------------- the table


def read_rows(path: str | os.PathLike[str], text: Collection[str] | None = None) -> Table:
    """A CSV or Parquet file, by its suffix.

    Args:
        text: columns that are wanted as they are written, also if all their cells are numbers; by default all are.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise MixMatchError(f"there is no file {path}")
    return read_parquet(path, text) if path.suffix.lower() in (".parquet", ".pq") else read_csv(path, text)


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
        id_column: a column that names rows, instead of their line; not a feature.
        ignore: columns that are not features.
    """
    given = {name for name in (label_column, part_column, id_column) if name is not None}
    table = read_rows(path, given)
    labels = _labels(table.text(label_column, "label_column="))
    part = _parts(table, part_column)
    for name in ignore:
        table.require(name)  # a name that is not there is a mistake
    names = row_names(table, id_column)
    skipped = {*given, *ignore}
    features = [name for name in table.header if name not in skipped]
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
    train = numbered.rows[: numbered.part.count("train")]
    if same := [name for name, values in table.select(features, train).items() if is_same(values)]:
        table = read_rows(path, {*given, *same})  # what is said about them is how they are written
    encoding, findings = fit(table.select(features, train))
    if not encoding.columns:
        raise MixMatchError(f"{table.path} has no column to learn from: {findings[0].message}")
    return numbered.with_inputs(
        encoding.apply(table.select(features, numbered.rows)),
        (*findings, *_repeated_ids(names, id_column), *_odd_labels(numbered, label_column)),
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
    given = {name for name in (label_column, part_column, id_column, encoding.id_column) if name is not None}
    table = read_rows(path, {*given, *encoding.categorical})
    labels, part = _labels(table.text(label_column, "label_column=")), _parts(table, part_column)
    names = row_names(table, id_column or (encoding.id_column if encoding.id_column in table.header else None))
    numbered = match_labels(labels, part, names, table.path.name, classes, noun="row")
    return numbered.with_inputs(encoding.apply(table.select(table.header, numbered.rows)), encoding=encoding)


def row_names(table: Table, id_column: str | None = None, before: str = "") -> Sequence[str]:
    """The names of rows: from a column or, where that is empty, from their place in the file."""
    places = Places(f"{before}{'row' if isinstance(table.lines, range) else 'line'} ", table.lines)
    if id_column is None:
        return places
    return [name or place for name, place in zip(table.text(id_column, "id_column="), places, strict=True)]


def _repeated_ids(names: Sequence[str], id_column: str | None) -> list[Finding]:
    if id_column is None:
        return []
    repeated = tuple(name for name, n in Counter(names).items() if n > 1)
    if not repeated:
        return []
    message = f"{count(len(repeated), 'value')} of column '{id_column}' in more than one row ({listed(repeated)})"
    advice = "nothing to do, unless they are copies: then remove them"
    return [Finding("repeated-id", message, repeated, advice, "info")]


def _labels(column: Names) -> list[str | None]:
    """Labels by name. Programs that know no missing integer write 1.0 for class 1."""
    whole = all(WHOLE.fullmatch(value.removesuffix(".0")) for value in column.values if value)
    labels = [(value.removesuffix(".0") if whole else value) or None for value in column.values]
    return [labels[code] for code in column.codes.tolist()]


def _parts(table: Table, part_column: str | None) -> list[Part]:
    if part_column is None:
        return ["train"] * len(table)
    values = table.text(part_column)
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

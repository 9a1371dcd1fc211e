"""Tables of a person's own features: CSV or Parquet rows as a matrix, and the encoding that does it again for new rows.

Numbers are standardized, categories become one column each, missing values are filled in and counted.
"""

from __future__ import annotations

import csv
import difflib
import importlib
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from mixmatch.data.source import UNKNOWN
from mixmatch.data.user.rows import Finding, Numbered, Part, UserTable, number_labels
from mixmatch.errors import MixMatchError
from mixmatch.text import count, listed, tally

Matrix = npt.NDArray[np.float64]
Values = Sequence[str] | Matrix
"""A column: text as it stands in the file ("" where it is missing), or numbers (NaN where they are)."""

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?", "#n/a"})
MOST_CATEGORIES = 50
"""Categories of one column that get a feature of their own; rarer ones share one."""

EVERY_ROW = 10
"""Rows from which on names that are all different are taken for identifiers, not for categories."""

MARKS = {",": "a comma", ";": "a semicolon", "\t": "a tab"}
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
WHOLE = re.compile(r"-?\d+")


# ----------------------------------------------------------------------------------------------- reading the file


@dataclass(frozen=True)
class CsvFile:
    """A table of text, column by column."""

    path: Path
    header: tuple[str, ...]
    columns: tuple[Sequence[str], ...]
    lines: Sequence[int]
    """Where each row is in the file, for messages."""

    def __len__(self) -> int:
        return len(self.lines)

    def column(self, name: str, option: str = "") -> Sequence[str]:
        """The column of that name, or an error that names the nearest, and the option that names another."""
        if name in self.header:
            return self.columns[self.header.index(name)]
        near = difflib.get_close_matches(name, self.header, n=1, cutoff=0.6)
        hint = f": did you mean '{near[0]}'?" if near else ""
        other = f"; name the right one with {option}" if option else ""
        raise MixMatchError(f"{self.path} has no column '{name}'{hint} (it has {listed(self.header, 8)}){other}")


def read_csv(path: Path) -> CsvFile:
    """A CSV file in UTF-8 with a header; commas, semicolons (then decimal commas too) or tabs between its fields."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            delimiter = _delimiter(file.readline())
            file.seek(0)
            reader = csv.reader(file, delimiter=delimiter)
            header = tuple(name.strip() for name in next(reader, []))
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
    return CsvFile(path, header, columns, lines)


def read_parquet(path: Path) -> CsvFile:
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
    columns = tuple([_text(value) for value in column.to_pylist()] for column in table.columns)
    return CsvFile(path, header, columns, range(1, table.num_rows + 1))


def _text(value: object) -> str:
    return "" if value is None else str(value).strip()


def _delimiter(line: str) -> str:
    return max(MARKS, key=lambda mark: len(next(csv.reader([line], delimiter=mark), [])))


def _cell(value: str, delimiter: str) -> str:
    value = value.strip()
    return value.replace(",", ".") if delimiter == ";" and DECIMAL_COMMA.fullmatch(value) else value


def _check_header(path: Path, header: Sequence[str]) -> None:
    if not any(header):
        raise MixMatchError(f"{path} is empty: it needs a header and rows")
    if twice := [name for name, n in Counter(header).items() if n > 1]:
        raise MixMatchError(f"{path} has several columns named '{twice[0]}'")


# ----------------------------------------------------------------------------------------------------- the encoding


@dataclass(frozen=True)
class Numeric:
    """A column of numbers: missing ones become the median, then mean 0 and standard deviation 1."""

    name: str
    median: float
    mean: float
    std: float

    @property
    def features(self) -> list[str]:
        return [self.name]

    def apply(self, values: Values) -> Matrix:
        """(N, 1)"""
        numbers = numbers_of(values, self.name)
        return ((np.where(np.isnan(numbers), self.median, numbers) - self.mean) / self.std)[:, None]


@dataclass(frozen=True)
class Categorical:
    """A column of names: a feature each. A missing one ("") is a category of its own."""

    name: str
    categories: tuple[str, ...]
    other: bool
    """Whether the last feature is for every other category; without it they are 0 everywhere."""

    @property
    def features(self) -> list[str]:
        own = [f"{self.name}={category or '(missing)'}" for category in self.categories]
        return [*own, f"{self.name}=(other)"] if self.other else own

    def apply(self, values: Values) -> Matrix:
        """(N, number of features)"""
        place = {category: i for i, category in enumerate(self.categories)}
        elsewhere = len(place)
        hot = np.zeros((len(values), elsewhere + 1))
        places = [place.get(_category(value), elsewhere) for value in map(str, values)]
        hot[np.arange(len(values)), places] = 1
        return hot[:, : elsewhere + self.other]


@dataclass(frozen=True)
class Encoding:
    """How rows become features, as plain values: what is learned from the training rows and used for all others."""

    columns: tuple[Numeric | Categorical, ...]

    @property
    def feature_names(self) -> list[str]:
        return [name for column in self.columns for name in column.features]

    def apply(self, table: Mapping[str, Values]) -> npt.NDArray[np.float32]:
        """The features (N, F) of a table, given by column name. Columns that training did not use are ignored."""
        missing = [column.name for column in self.columns if column.name not in table]
        if len(missing) == len(self.columns) > 1:
            raise MixMatchError(
                f"the rows have none of the {len(missing):,} columns that the model was trained with "
                f"({listed(missing)}): is it another table, or is the model of an array?"
            )
        if missing:
            raise MixMatchError(f"the rows have no column '{missing[0]}', which the model was trained with")
        return np.concatenate([column.apply(table[column.name]).astype(np.float32) for column in self.columns], axis=1)

    def apply_matrix(self, x: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """The features (N, F) of a matrix of the same F numeric columns."""
        numeric = [column for column in self.columns if isinstance(column, Numeric)]
        if len(numeric) < len(self.columns) or x.ndim != 2 or x.shape[1] != len(numeric):
            raise MixMatchError(f"the features have shape {x.shape}, but the model takes (N, {len(self.columns)})")
        refuse_infinite(x, "the features")
        median, mean, std = (np.array([getattr(c, what) for c in numeric]) for what in ("median", "mean", "std"))
        out = np.empty(x.shape, np.float32)
        for start in range(0, len(x), 4096):  # in pieces: float64 copies of everything are not needed at once
            piece = np.asarray(x[start : start + 4096], np.float64)
            out[start : start + 4096] = (np.where(np.isnan(piece), median, piece) - mean) / std
        return out

    def to_dict(self) -> dict[str, Any]:
        """For JSON; `from_dict` is its inverse."""
        return {"columns": [{"kind": type(column).__name__.lower(), **asdict(column)} for column in self.columns]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Encoding:
        columns: list[Numeric | Categorical] = []
        for column in values["columns"]:
            settings = {key: value for key, value in column.items() if key != "kind"}
            if column["kind"] == "numeric":
                columns.append(Numeric(**settings))
            else:
                columns.append(Categorical(**settings | {"categories": tuple(settings["categories"])}))
        return cls(tuple(columns))


def fit(table: Mapping[str, Sequence[str]]) -> tuple[Encoding, list[Finding]]:
    """The encoding learned from training rows of text, and what was odd about them."""
    columns: list[Numeric | Categorical] = []
    findings: list[Finding] = []
    missing: dict[str, int] = {}
    for name, values in table.items():
        column, finding = fit_column(name, values)
        if column is not None:
            columns.append(column)
            if gaps := sum(map(is_missing, values)):
                missing[name] = gaps
        if finding is not None:
            findings.append(finding)
    findings += missing_values(missing, len(next(iter(table.values()), [])))
    return Encoding(tuple(columns)), findings


def fit_column(name: str, values: Sequence[str]) -> tuple[Numeric | Categorical | None, Finding | None]:
    """How a column is encoded, or None where it says nothing."""
    known = [value for value in values if not is_missing(value)]
    distinct = Counter(known)
    if len(distinct) + (len(known) < len(values)) < 2:
        message = f"column '{name}' is " + (f"'{known[0]}' in every row" if known else "empty") + ": left out"
        return None, Finding("constant-column", message, (name,), "nothing to do, or fill it in", "info")
    if all(map(_is_number, distinct)) and known:
        column = fit_numbers([name], numbers_of(values, name)[:, None])[0]
        return column, _row_number(name, values)
    if len(distinct) > max(MOST_CATEGORIES, len(known) / 2) or len(distinct) == len(known) >= EVERY_ROW:
        return None, _free_text(name, distinct)
    return fit_categories(name, values), _almost_numbers(name, distinct)


def fit_numbers(names: Sequence[str], x: npt.NDArray[Any]) -> list[Numeric]:
    """Median, mean and standard deviation of each column of a matrix (N, F), NaN where a value is missing.

    Mean and deviation are those of the filled column, so that the features of the training rows have exactly 0 and 1.
    """
    columns = []
    for name, values in zip(names, np.asarray(x).T, strict=True):
        known = values[~np.isnan(values)].astype(np.float64)
        median = float(np.median(known)) if len(known) else 0.0
        filled = np.where(np.isnan(values), median, values).astype(np.float64)
        mean, std = float(filled.mean()), float(filled.std())
        constant = std <= 1e-12 * max(1.0, abs(mean))  # what is left of a constant is rounding
        columns.append(Numeric(name, median, mean, 1.0 if constant else std))
    return columns


def fit_categories(name: str, values: Iterable[str]) -> Categorical:
    """The most frequent categories by name; a missing value never counts as rare."""
    counts = Counter(map(_category, values))
    ranked = sorted((value for value in counts if value), key=lambda value: (-counts[value], value))
    kept = sorted(ranked[:MOST_CATEGORIES])
    return Categorical(name, tuple([""] * ("" in counts) + kept), other=len(ranked) > MOST_CATEGORIES)


def missing_values(missing: Mapping[str, int], rows: int) -> list[Finding]:
    """What was filled in: the number of missing values of each column that has any."""
    if not missing:
        return []
    total = count(sum(missing.values()), "missing value")
    message = (
        f"{total} in {count(len(missing), 'column')} ({tally(missing)}): "
        "numbers become the median, names a category of their own"
    )
    much = max(missing.values()) > rows / 2
    advice = "leave out columns that are mostly empty" if much else "nothing to do, or fill them in"
    return [Finding("missing-values", message, tuple(missing), advice, "warning" if much else "info")]


def refuse_infinite(x: npt.NDArray[Any], what: str) -> None:
    """Infinity is not a missing value but a mistake, such as a division by zero."""
    if infinite := int(np.isinf(x).sum()):
        be, them = ("is", "it") if infinite == 1 else ("are", "them")
        raise MixMatchError(
            f"{count(infinite, 'value')} of {what} {be} infinite: correct {them}, or leave {them} out as missing"
        )


def is_missing(value: str) -> bool:
    return value.lower() in MISSING


def numbers_of(values: Values, name: str) -> Matrix:
    """A column as float64 (N,), NaN where it is missing."""
    if isinstance(values, np.ndarray):
        numbers = np.asarray(values, np.float64)
    else:
        numbers = np.array([_number(value, name) for value in values], np.float64)
    refuse_infinite(numbers, f"column '{name}'")
    return numbers


def _number(value: str, name: str) -> float:
    if is_missing(value):
        return math.nan
    try:
        return float(value)
    except ValueError:
        raise MixMatchError(f"column '{name}' holds numbers, but one value is '{value}'") from None


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _category(value: str) -> str:
    return "" if is_missing(value) else value


def _row_number(name: str, values: Sequence[str]) -> Finding | None:
    """Sorted by class, as tables often are, the number of a row gives its class away, also once they are shuffled."""
    numbers = numbers_of(values, name)
    if len(numbers) < 20 or not (numbers == np.rint(numbers)).all() or len(np.unique(numbers)) < len(numbers):
        return None
    steps = np.diff(numbers)
    named = re.search(r"(^|[\W_])id$", name, re.IGNORECASE)
    if not (named or (steps > 0).all() or np.ptp(numbers) < 2 * len(numbers)):
        return None
    what = "counts the rows" if (steps == 1).all() else "has another whole number in every row, as identifiers do"
    message = f"column '{name}' {what}: a network may learn it instead of the data"
    return Finding("row-number", message, (name,), f"leave the column out (--ignore '{name}')")


def _almost_numbers(name: str, distinct: Counter[str], outcome: str = "taken for names") -> Finding | None:
    """A column of numbers but for a few values, such as "n.d."."""
    strange = [value for value in distinct if not _is_number(value)]
    if len(strange) >= len(distinct) / 10:
        return None
    message = f"column '{name}' holds numbers, but also {listed(map(repr, strange))}: {outcome}"
    return Finding("mixed-column", message, (name,), "correct these values, or leave them empty")


def _free_text(name: str, distinct: Counter[str]) -> Finding:
    if almost := _almost_numbers(name, distinct, "left out"):
        return almost
    message = f"column '{name}' has {len(distinct):,} different values, too many for categories: left out"
    advice = "if it is text, use its embedding; if a date, a number such as days; if an identifier, nothing to do"
    return Finding("free-text", message, (name,), advice)


# -------------------------------------------------------------------------------------------------------- the table


def read_rows(path: str | os.PathLike[str]) -> CsvFile:
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
    ignore: Sequence[str] = (),
) -> UserTable:
    """A CSV or Parquet file as a matrix of features.

    Args:
        label_column: the class of each row; empty means unlabeled.
        part_column: "train" (or empty) or "test" for each row; without it there are no test rows.
        ignore: columns that are no features.
    """
    table = read_rows(path)
    labels = _labels(table.column(label_column, "--label-column"))
    part = _parts(table, part_column)
    for name in ignore:
        table.column(name)  # a name that is not there is a mistake
    skipped = {label_column, part_column, *ignore}
    features = {name: table.column(name) for name in table.header if name not in skipped}
    if not features:
        raise MixMatchError(f"{table.path} has no columns beside '{label_column}': there is nothing to learn from")
    names = [f"{'row' if isinstance(table.lines, range) else 'line'} {line}" for line in table.lines]
    numbered = number_labels(
        labels,
        part,
        names,
        table.path.name,
        in_order({label for label, p in zip(labels, part, strict=True) if label is not None and p == "train"}),
        noun="row",
        how=f"fill in some of column '{label_column}', at least one row of every class, and leave the others empty",
    )
    train = [row for row, p in zip(numbered.rows, numbered.part, strict=True) if p == "train"]
    encoding, findings = fit({name: [values[row] for row in train] for name, values in features.items()})
    if not encoding.columns:
        raise MixMatchError(f"{table.path} has no column to learn from: {findings[0].message}")
    return UserTable(
        name=table.path.name,
        classes=numbered.classes,
        features=encoding.apply({name: [values[row] for row in numbered.rows] for name, values in features.items()}),
        labels=numbered.labels,
        files=tuple(names[row] for row in numbered.rows),
        part=numbered.part,
        findings=(*findings, *_odd_labels(numbered, label_column), *numbered.findings),
        encoding=encoding,
    )


def _labels(values: Sequence[str]) -> list[str | None]:
    """Labels by name. Programs that know no missing integer write 1.0 for class 1."""
    whole = all(WHOLE.fullmatch(value.removesuffix(".0")) for value in values if value)
    return [(value.removesuffix(".0") if whole else value) or None for value in values]


def in_order(classes: Iterable[str]) -> list[str]:
    """Numbers by value, names by name.

    >>> in_order({"10", "2", "-1"}), in_order({"10", "2", "--1"})
    (['-1', '2', '10'], ['--1', '10', '2'])
    """
    classes = sorted(classes)
    return sorted(classes, key=int) if all(WHOLE.fullmatch(c) for c in classes) else classes


def _parts(table: CsvFile, part_column: str | None) -> list[Part]:
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
        advice = "if they are no classes, name another column (--label-column), or group them, such as in low and high"
        findings.append(Finding("many-classes", message, (), advice))
    return findings

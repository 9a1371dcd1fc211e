"""How columns of numbers and names become features, learned from training rows and applied to all others.

Numbers are standardized, categories become one feature each, missing values are filled in and counted.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mixmatch.data.user.rows import Finding
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
        names = [f"{self.name}={category or '(missing)'}" for category in self.categories]
        return [*names, f"{self.name}=(other)"] if self.other else names

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
    id_column: str | None = None
    """The column that names each row; no feature."""

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
        columns = [{"kind": type(column).__name__.lower(), **asdict(column)} for column in self.columns]
        return {"columns": columns} if self.id_column is None else {"columns": columns, "id_column": self.id_column}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Encoding:
        columns: list[Numeric | Categorical] = []
        for column in values["columns"]:
            settings = {key: value for key, value in column.items() if key != "kind"}
            if column["kind"] == "numeric":
                columns.append(Numeric(**settings))
            else:
                columns.append(Categorical(**settings | {"categories": tuple(settings["categories"])}))
        return cls(tuple(columns), values.get("id_column"))


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
    advice = f"leave the column out with ignore='{name}', or with id_column='{name}', which keeps it in predictions"
    return Finding("row-number", message, (name,), advice)


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

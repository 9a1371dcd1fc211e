"""How columns of numbers and names become features, learned from training rows and applied to all others.

Numbers are standardized, categories become one feature each, missing values are filled in and counted.
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mixmatch.data.user.columns import Matrix, Names, as_column, is_missing, is_number
from mixmatch.data.user.rows import Finding
from mixmatch.errors import MixMatchError
from mixmatch.text import count, listed, tally

Values = Sequence[str] | Matrix
"""A column: text as it stands in the file ("" where it is missing), or numbers (NaN where they are)."""

Out = npt.NDArray[Any]
MOST_CATEGORIES = 50
"""Categories of one column that get a feature of their own; rarer ones share one."""

LARGEST = 1e30
"""Standard deviations from the mean that a feature may be: beyond, a network's outputs may overflow."""

EVERY_ROW = 10
"""The number of rows from which on names that are all different are taken for identifiers, not for categories."""


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

    def fill(self, values: Values, out: Out) -> None:
        """Write the features (N, 1) of a column."""
        numbers = numbers_of(values, self.name)
        out[:, 0] = standardized(numbers, self.median, self.mean, self.std, f"column '{self.name}'")


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

    def fill(self, values: Values, out: Out) -> None:
        """Write the features (N, number of features) of a column."""
        place = {category: i for i, category in enumerate(self.categories)}
        names = as_names(values)
        if names is not values:  # of another library, which may have made 3.0 of 3 because some are missing
            names = Names([n if n in place else n.removesuffix(".0") for n in names.values], names.codes)
        places = names.each(lambda value: place.get(_category(value), len(place)), np.int64)
        rows = np.flatnonzero(places < out.shape[1])
        out[:] = 0
        out[rows, places[rows]] = 1


@dataclass(frozen=True)
class Encoding:
    """How rows become features, as plain values: what is learned from the training rows and used for all others."""

    columns: tuple[Numeric | Categorical, ...]
    id_column: str | None = None
    """The column that names each row; no feature."""

    @property
    def feature_names(self) -> list[str]:
        return [name for column in self.columns for name in column.features]

    @property
    def categorical(self) -> list[str]:
        """The columns that are wanted as they are written, also where all their cells are numbers."""
        return [column.name for column in self.columns if isinstance(column, Categorical)]

    def apply(self, table: Mapping[str, Values]) -> npt.NDArray[np.float32]:
        """The features (N, F) of a table, given by column name. Columns that training did not use are ignored."""
        missing = [column.name for column in self.columns if column.name not in table]
        if len(missing) == len(self.columns) > 1:
            raise MixMatchError(
                f"the rows have none of the {len(missing):,} columns that the model was trained with "
                f"({listed(missing)}): is it another table, or was the model trained on an array?"
            )
        if missing:
            raise MixMatchError(f"the rows have no column '{missing[0]}', which the model was trained with")
        out, start = np.empty((0, 0), np.float32), 0
        for column in self.columns:
            values = table[column.name]
            if start == 0:
                out = np.empty((len(values), sum(len(each.features) for each in self.columns)), np.float32)
            if len(values) != len(out):
                raise MixMatchError(
                    f"column '{column.name}' has {count(len(values), 'row')}, but column '{self.columns[0].name}' has "
                    f"{len(out):,}"
                )
            width = len(column.features)
            column.fill(values, out[:, start : start + width])
            start += width
        return out

    def apply_matrix(self, x: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """The features (N, F) of a matrix of the same F numeric columns."""
        numeric = [column for column in self.columns if isinstance(column, Numeric)]
        if self.categorical:
            named = f"its columns by name, because some hold no numbers ({listed(self.categorical)})"
            raise MixMatchError(f"the model takes a table, {named}: it cannot be given a matrix")
        if x.ndim != 2 or x.shape[1] != len(numeric):
            raise MixMatchError(f"the features have shape {x.shape}, but the model takes (N, {len(numeric)})")
        refuse_infinite(x, "the features")
        median, mean, std = (np.array([getattr(c, what) for c in numeric]) for what in ("median", "mean", "std"))
        out = np.empty(x.shape, np.float32)
        for start in range(0, len(x), 4096):  # in pieces: float64 copies of everything are not needed at once
            piece = np.asarray(x[start : start + 4096], np.float64)
            out[start : start + 4096] = standardized(piece, median, mean, std, "the features")
        return out

    def to_dict(self) -> dict[str, Any]:
        """For JSON; `from_dict` is its inverse, but for a `ValueError` where it is something else."""
        columns = [{"kind": type(column).__name__.lower(), **asdict(column)} for column in self.columns]
        return {"columns": columns} if self.id_column is None else {"columns": columns, "id_column": self.id_column}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Encoding:
        columns: list[Numeric | Categorical] = []
        for column in values["columns"]:
            settings = {key: value for key, value in column.items() if key != "kind"}
            if column["kind"] == "numeric":
                columns.append(Numeric(**settings))
                numbers, names = [settings[name] for name in ("median", "mean", "std")], [settings["name"]]
            else:
                columns.append(Categorical(**settings | {"categories": tuple(settings["categories"])}))
                numbers, names = [settings["other"]], [settings["name"], *settings["categories"]]
            if not all(isinstance(n, int | float) and abs(n) <= sys.float_info.max for n in numbers):
                raise ValueError("a column has numbers that are none")
            if not all(isinstance(name, str) for name in names):
                raise ValueError("a column has names that are none")
        if not isinstance(id_column := values.get("id_column"), str | None):
            raise ValueError("its column of ids has no name")
        return cls(tuple(columns), id_column)


def fit(table: Mapping[str, Values]) -> tuple[Encoding, list[Finding]]:
    """The encoding learned from training rows, and what was odd about them. Numbers that are the same in every row are
    better given as text: how they are written is part of what is said about them."""
    columns: list[Numeric | Categorical] = []
    findings: list[Finding] = []
    missing: dict[str, int] = {}
    rows = 0
    for name, given in table.items():
        values = as_column(given)
        rows = len(values)
        column, finding = fit_column(name, values)
        if column is not None:
            columns.append(column)
            if gaps := _gaps(values):
                missing[name] = gaps
        if finding is not None:
            findings.append(finding)
    findings += missing_values(missing, rows)
    return Encoding(tuple(columns)), findings


def fit_column(name: str, values: Names | Matrix) -> tuple[Numeric | Categorical | None, Finding | None]:
    """How a column is encoded, or None where it says nothing."""
    known = len(values) - _gaps(values)
    if known == 0:
        return None, _constant(name, "empty")
    if isinstance(values, np.ndarray) and is_same(values):
        return None, _constant(name, f"'{values[0]:g}' in every row")
    if isinstance(values, np.ndarray):
        return _fit_numbers(name, values)
    distinct = Counter({value: n for value, n in values.counts().items() if not is_missing(value)})
    if len(distinct) == 1 and known == len(values):
        return None, _constant(name, f"'{values[0]}' in every row")
    if all(map(is_number, distinct)):
        return _fit_numbers(name, values)
    if len(distinct) > max(MOST_CATEGORIES, known / 2) or len(distinct) == known >= EVERY_ROW:
        return None, _free_text(name, distinct)
    return fit_categories(name, values), _almost_numbers(name, distinct)


def _fit_numbers(name: str, values: Names | Matrix) -> tuple[Numeric, Finding | None]:
    numbers = numbers_of(values, name)
    return fit_numbers([name], numbers[:, None])[0], _row_number(name, numbers)


def _constant(name: str, what: str) -> Finding:
    advice = "nothing to do, or fill it in"
    return Finding("constant-column", f"column '{name}' is {what}: left out", (name,), advice, "info")


def is_same(values: Names | Matrix) -> bool:
    """Whether a column of numbers has one value in every row."""
    return isinstance(values, np.ndarray) and len(values) > 0 and bool((values == values[0]).all())


def _gaps(values: Names | Matrix) -> int:
    missing = values.each(is_missing, bool) if isinstance(values, Names) else np.isnan(values)
    return int(missing.sum())


def fit_numbers(names: Sequence[str], x: npt.NDArray[Any]) -> list[Numeric]:
    """Median, mean and standard deviation of each column of a matrix (N, F), NaN where a value is missing.

    Mean and deviation are those of the filled column, so that the features of the training rows have exactly 0 and 1.
    """
    columns = []
    for name, values in zip(names, np.asarray(x).T, strict=True):
        known = values[~np.isnan(values)].astype(np.float64)
        median = _median(known) if len(known) else 0.0
        filled = np.where(np.isnan(values), median, values).astype(np.float64)
        mean, std = _mean_and_deviation(filled)
        constant = std <= 1e-12 * max(1.0, abs(mean))  # what is left of a constant is rounding
        columns.append(Numeric(name, median, mean, 1.0 if constant else std))
    return columns


def _median(values: Matrix) -> float:
    with np.errstate(over="ignore"):
        median = float(np.median(values))
    return median if np.isfinite(median) else 2 * float(np.median(values / 2))


def _mean_and_deviation(values: Matrix) -> tuple[float, float]:
    """Also for numbers so large that their sum, or that of their squares, overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = float(values.mean()), float(values.std())
    if np.isfinite([mean, std]).all() or not np.isfinite(values).all():
        return mean, std
    largest = float(np.abs(values).max())
    return float((values / largest).mean()) * largest, float((values / largest).std()) * largest


def standardized(numbers: Matrix, median: Any, mean: Any, std: Any, what: str) -> Matrix:
    """Numbers as features, the median where they are missing. Values above `LARGEST` may overflow in a network, so they
    are refused."""
    with np.errstate(over="ignore"):
        out: Matrix = (np.where(np.isnan(numbers), median, numbers) - mean) / std
    too_large = ~(np.abs(out) <= LARGEST)
    if n := int(too_large.sum()):
        raise _mistaken(n, what, f"far too large ({float(numbers[too_large][0]):g})")
    return out


def fit_categories(name: str, values: Sequence[str]) -> Categorical:
    """The most frequent categories by name; a missing value never counts as rare."""
    counts = Counter[str]()
    for value, n in as_names(values).counts().items():
        counts[_category(value)] += n
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
        raise _mistaken(infinite, what, "infinite")


def _mistaken(n: int, what: str, how: str) -> MixMatchError:
    be, them = ("is", "it") if n == 1 else ("are", "them")
    return MixMatchError(f"{count(n, 'value')} of {what} {be} {how}: correct {them}, or leave {them} out as missing")


def numbers_of(values: Values, name: str) -> Matrix:
    """A column as float64 (N,), NaN where it is missing."""
    column = as_column(values)
    if isinstance(column, Names):
        fits = column.each(lambda value: is_missing(value) or is_number(value), bool)
        if not fits.all():
            raise MixMatchError(f"column '{name}' holds numbers, but one value is '{column[int(fits.argmin())]}'")
        column = column.each(lambda value: math.nan if is_missing(value) else float(value), np.float64)
    refuse_infinite(column, f"column '{name}'")
    return column


def as_names(values: Values) -> Names:
    """A column as text."""
    if isinstance(values, Names):
        return values
    column = as_column([*values] if isinstance(values, list | tuple) else np.asarray(values).astype(object))
    assert isinstance(column, Names)
    return column


def _category(value: str) -> str:
    return "" if is_missing(value) else value


def _row_number(name: str, numbers: Matrix) -> Finding | None:
    """In a table sorted by class, as many are, the number of a row reveals its class, even after shuffling."""
    if len(numbers) < 20 or not (numbers == np.rint(numbers)).all() or len(np.unique(numbers)) < len(numbers):
        return None
    steps = np.diff(numbers)
    named = re.search(r"(^|[\W_])id$", name, re.IGNORECASE)
    if not (named or (steps > 0).all() or np.ptp(numbers) < 2 * len(numbers)):
        return None
    what = "counts the rows" if (steps == 1).all() else "has a different whole number in every row, as identifiers do"
    message = f"column '{name}' {what}: a network may learn it instead of the data"
    advice = f"leave the column out with ignore='{name}', or with id_column='{name}', which keeps it in predictions"
    return Finding("row-number", message, (name,), advice)


def _almost_numbers(name: str, distinct: Counter[str], outcome: str = "taken for names") -> Finding | None:
    """A column of numbers but for a few values, such as "n.d."."""
    strange = [value for value in distinct if not is_number(value)]
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

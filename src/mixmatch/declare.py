"""Settings that describe themselves.

A setting is declared once, as a field of a dataclass: its default, its help, its range or choices, whether it decides
what experiment a run is, whether its effect depends on the number of steps, and where `tune` searches for a better
value. Checks, command-line options, the estimator's parameters, config files, search spaces and the tables in the docs
all come from that declaration.

>>> @dataclasses.dataclass(frozen=True)
... class Example:
...     K: int = setting(2, "Augmentations per image.", least=1)
>>> [(s.name, s.default, s.help) for s in settings_of(Example).values()]
[('K', 2, 'Augmentations per image.')]
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from numbers import Real
from typing import Any, Literal, NamedTuple

from mixmatch.errors import MixMatchError

_KEY = "mixmatch.setting"


class Range(NamedTuple):
    """Numbers to search among, both ends included, evenly or on a log scale."""

    low: float
    high: float
    log: bool = False

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}{', log scale' if self.log else ''}"


class Times(NamedTuple):
    """Numbers around the default, whatever that is for a data set, on a log scale: from the default divided by `factor`
    to the default times `factor`."""

    factor: float

    def __str__(self) -> str:
        return f"default / {self.factor:g} to default x {self.factor:g}, log scale"


@dataclass(frozen=True)
class Setting:
    """One declared setting. `kind` is its type: bool, int, float, str, a Literal, or a union of these and None."""

    name: str
    kind: Any
    default: Any
    help: str
    least: float | None = None
    above: float | None = None
    most: float | None = None
    limit: float | None = None
    """The largest number that can make sense: more is a mistake, or somebody's attempt to fill the memory."""
    experiment: bool = True
    """Whether runs that differ in it are different experiments."""
    of_steps: Callable[[Any], bool] | None = None
    """Whether a value makes training depend on the total number of steps; None if no value does."""
    metavar: str | None = None
    group: str | None = None
    """The panel of `--help` it is shown in, if not its class's."""
    search: Range | Times | None = None
    """Where `tune` searches, if nothing else is said."""

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The members of a union; the type itself if it is none."""
        union = typing.get_origin(self.kind) in (typing.Union, types.UnionType)
        return typing.get_args(self.kind) if union else (self.kind,)

    @property
    def choices(self) -> tuple[str, ...]:
        """The names it may be, if it is chosen from a list."""
        return tuple(str(c) for k in self.kinds if typing.get_origin(k) is Literal for c in typing.get_args(k))

    def check(self, value: Any) -> Any:
        """The value in the declared type, or an error that says what it must be."""
        for kind in self.kinds:
            good, result = self._fits(value, kind)
            if good:
                return result
        if self.limit is not None and _is_number(value) and value > self.limit:
            raise MixMatchError(f"{self.name}={_short(value)} must be at most {self.limit:,}")
        quotes = ", in quotes" if str in self.kinds and not isinstance(value, str) else ""
        raise MixMatchError(f"{self.name}={_short(value)} must be {self.wanted}{quotes}")

    def parse(self, text: str) -> Any:
        """The value of a text from the command line, checked."""
        value: Any = text
        if text not in self.choices and str not in self.kinds:
            if int in self.kinds and re.fullmatch(r"[1-9]\d{0,2}(,\d{3})+", text):  # 4,000; but 0,5 is a mistake
                text = text.replace(",", "")
            for kind in (float, int):  # a whole number where it is one
                if float in self.kinds or kind in self.kinds:
                    with contextlib.suppress(ValueError):
                        value = kind(text)
        return self.check(value)

    @property
    def wanted(self) -> str:
        """What a value must be, in words."""
        words = []
        for kind in self.kinds:
            if typing.get_origin(kind) is Literal:
                names = typing.get_args(kind)
                words.append(f"one of {', '.join(map(str, names))}" if len(names) > 1 else repr(names[0]))
            elif kind is bool:
                words.append("true or false")
            elif kind is str:
                shown = self.metavar or ""
                words.append("a file" if shown == "FILE" else shown.replace("|", " or ") if "|" in shown else "a name")
            elif kind in (int, float):
                words.append(self._range("whole number" if kind is int else "number"))
        return " or ".join(words)

    def _range(self, noun: str) -> str:
        if self.most is not None:
            low = self.least if self.least is not None else self.above
            return f"a {noun} between {low:g} and {self.most:g}" + (", not 0" if self.least is None else "")
        if self.above is not None:
            return f"a {noun} above {self.above:g}"
        return f"a {noun} of at least {self.least:g}" if self.least is not None else f"a finite {noun}"

    def _fits(self, value: Any, kind: Any) -> tuple[bool, Any]:
        if kind is type(None):
            return value is None, None
        if typing.get_origin(kind) is Literal:
            return isinstance(value, str) and value in typing.get_args(kind), value
        if kind in (bool, str):
            return isinstance(value, kind), value
        if kind not in (int, float):  # a container, whose owner checks it
            return isinstance(value, typing.get_origin(kind) or kind), value
        if not _is_number(value):
            return False, value
        number = float(value)
        if kind is int and not number.is_integer():
            return False, value
        within = (
            (self.least is None or number >= self.least)
            and (self.above is None or number > self.above)
            and (self.most is None or number <= self.most)
            and (self.limit is None or number <= self.limit)
        )
        return within, int(number) if kind is int else number


def _is_number(value: Any) -> bool:
    """Whether it is a finite number that a float can hold."""
    try:
        return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
    except OverflowError:  # a whole number of hundreds of digits
        return False


def _short(value: Any) -> str:
    """A value as an error shows it."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # thousands of digits
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 200 else f"{text[:196]} ..."


def setting(
    default: Any,
    help: str,
    *,
    least: float | None = None,
    above: float | None = None,
    within: tuple[float, float] | None = None,
    limit: float | None = None,
    experiment: bool = True,
    of_steps: Callable[[Any], bool] | None = None,
    metavar: str | None = None,
    group: str | None = None,
    search: tuple[float, float] | tuple[float, float, Literal["log"]] | float | None = None,
) -> Any:
    """Declare a setting of a run, a method or a reader, as the default of a dataclass field.

    Args:
        default: its value if none is given.
        help: one sentence, shown by `--help` and in the docs.
        least, above, within: the range of a number: at least, more than, or between two values.
        limit: what it cannot sensibly exceed; not part of its description.
        experiment: whether runs that differ in it are different experiments. Off for what only changes how fast or
            how visibly the same thing is computed.
        of_steps: of a value, whether it makes training depend on the total number of steps. Such a run cannot be
            continued to another number of steps.
        metavar: what stands for the value in `--help`.
        group: the panel of `--help` it is shown in.
        search: where `tune` searches for a better value, unless the setting is off, that is, 0: `(low, high)`,
            `(low, high, "log")`, or a factor around the default, as 10 for a tenth of it to ten times it.

    Choices come from the field's type, `Literal[...]`.
    """
    low, high = within or (least, None)
    space: Range | Times | None = None
    if search is not None:
        space = Range(search[0], search[1], len(search) == 3) if isinstance(search, tuple) else Times(search)
    about = {
        "help": help, "least": low, "above": above, "most": high, "limit": limit, "experiment": experiment,
        "of_steps": of_steps, "metavar": metavar, "group": group, "search": space,
    }  # fmt: skip
    if isinstance(default, dict | list | set):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata={_KEY: about})
    return dataclasses.field(default=default, metadata={_KEY: about})


@cache
def settings_of(cls: type) -> dict[str, Setting]:
    """The settings that a dataclass declares, by name, its own before those of its base; none of another class."""
    for name, value in (item for base in cls.__mro__ for item in vars(base).items()):
        if isinstance(value, dataclasses.Field):  # what @dataclass would have replaced with the default
            raise MixMatchError(
                f"{cls.__name__} declares the setting '{name}' but is not a dataclass: put @dataclass(frozen=True) "
                f"above it, and a type after the name, as in {name}: float = setting(...)"
            )
    if not dataclasses.is_dataclass(cls):
        return {}
    hints = typing.get_type_hints(cls)
    return {
        f.name: Setting(
            f.name, hints[f.name], None if f.default is dataclasses.MISSING else f.default, **f.metadata[_KEY]
        )
        for f in sorted(dataclasses.fields(cls), key=lambda f: f.name not in vars(cls).get("__annotations__", {}))
        if _KEY in f.metadata
    }

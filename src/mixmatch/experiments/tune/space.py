"""Where `tune` searches: for each setting a range or a list of values, declared with the setting or asked for.

>>> parse("lambda_u=1..100:log", {"lambda_u": settings.of_run()["learning_rate"]})
('lambda_u', Range(low=1.0, high=100.0, log=True))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mixmatch import methods, settings
from mixmatch.declare import Range, Setting, Times
from mixmatch.errors import MixMatchError, unknown
from mixmatch.settings import Settings

DIGITS = 4
"""Digits of a number that is tried: so the number shown is the number used."""

NOT_SEARCHED = {
    "method": "compare methods with mixmatch compare",
    "labels": "it decides what is learned from",
    "seed": "a lucky seed is no setting: it decides every random draw",
    "valid": "trials are compared on the same validation images",
    "hold_out": "trials are compared on the same labels",
    "imbalance": "it decides what is learned from",
    "steps": "longer runs are better and cost more: choose it with steps=",
    "eval_every": "trials are compared at the same steps",
}
"""Settings of a run that are not searched, and why."""


class Choices(NamedTuple):
    """Values to search among."""

    values: tuple[Any, ...]

    def __str__(self) -> str:
        return ", ".join(map(str, self.values))


Space = Mapping[str, Range | Choices]


def default_space(base: Settings, fixed: Sequence[str]) -> dict[str, Range | Choices]:
    """What is searched by default: the settings that declare a range, except those that were given a value and those
    that are off. A range that lacks the default is widened up to it."""
    values = settings.flat(base)
    space: dict[str, Range | Choices] = {}
    for name, declared in declared_settings(base.method).items():
        search, value = declared.search, values[name]
        if search is None or name in fixed or not value:
            continue
        if isinstance(search, Times):
            search = Range(value / search.factor, value * search.factor, log=True)
        space[name] = Range(min(search.low, value), max(search.high, value), search.log)
    return space


def declared_settings(method: str) -> dict[str, Setting]:
    """Those of the method, then those of the run."""
    return {**methods.declared(method), **settings.of_run()}


def space_of(
    base: Settings, fixed: Sequence[str], searched: Sequence[str] = (), only: bool = False
) -> dict[str, Range | Choices]:
    """Where to search: by default, and what was asked for in texts such as `T=0.1..1` instead or in addition.

    Args:
        base: the settings of the trial that has the defaults.
        fixed: names of settings that were given a value. One that is searched nevertheless has it in trial 0.
        only: search nothing but what was asked for.
    """
    declared = declared_settings(base.method)
    asked = dict(parse(text, declared) for text in searched)
    if only and not asked:
        raise MixMatchError("only=True needs search=: say what to search")
    space = {**({} if only else default_space(base, fixed)), **asked}
    if not space:
        raise MixMatchError("nothing to search: say what with search=, as in learning_rate=1e-4..1e-2:log")
    return space


def parse(text: str, declared: Mapping[str, Setting]) -> tuple[str, Range | Choices]:
    """A setting and where to search it, from `NAME=LOW..HIGH`, `NAME=LOW..HIGH:log` or `NAME=a,b,c`."""
    name, equals, where = (part.strip() for part in text.partition("="))
    name = name.replace("-", "_")
    if not equals or not name or not where:
        raise _unreadable(text)
    if name not in declared:
        raise unknown("setting", name, declared)
    if name in NOT_SEARCHED:
        raise MixMatchError(f"{name} is not searched: {NOT_SEARCHED[name]}")
    return name, (_range if ".." in where else _choices)(text, where, declared[name])


def _unreadable(text: str) -> MixMatchError:
    return MixMatchError(f"cannot search '{text}': it is not NAME=LOW..HIGH, NAME=LOW..HIGH:log or NAME=a,b,c")


def _choices(text: str, where: str, setting: Setting) -> Choices:
    try:
        values = tuple(_value(setting, each.strip()) for each in where.split(","))
    except MixMatchError:
        if "," in where:
            raise
        raise _unreadable(text) from None  # a range in another spelling, such as 1-4
    if len(set(values)) < len(values):
        raise MixMatchError(f"cannot search '{text}': a value is there twice")
    return Choices(values)


def _range(text: str, where: str, setting: Setting) -> Range:
    ends, colon, scale = where.partition(":")
    low, _, high = (part.strip() for part in ends.partition(".."))
    if (colon and scale.strip() != "log") or not {int, float} & set(setting.kinds):
        raise _unreadable(text)
    try:
        space = Range(float(low), float(high), log=bool(colon))
    except ValueError:
        raise _unreadable(text) from None
    for end in (space.low, space.high):
        setting.check(end)
    if space.low >= space.high or (space.log and space.low <= 0):
        above = ", and on a log scale above 0" if space.log else ""
        raise MixMatchError(f"cannot search '{text}': the first number must be below the second{above}")
    return space


def _value(setting: Setting, text: str) -> Any:
    if bool in setting.kinds and text.lower() in ("true", "false", "yes", "no"):
        return text.lower() in ("true", "yes")
    return setting.parse(text)


def contains(where: Range | Choices, value: Any) -> bool:
    return value in where.values if isinstance(where, Choices) else where.low <= value <= where.high


def is_whole(name: str, method: str) -> bool:
    """Whether a setting is a whole number."""
    kinds = declared_settings(method)[name].kinds
    return int in kinds and float not in kinds


def rounded(value: Any, where: Range | Choices) -> Any:
    """The value that is tried for one that was suggested: with a few digits, and within its range."""
    if not isinstance(value, float) or isinstance(where, Choices):
        return value
    return min(max(float(f"{value:.{DIGITS}g}"), where.low), where.high)

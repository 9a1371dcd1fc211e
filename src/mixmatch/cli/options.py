"""Options that several commands share, and how values are parsed."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import is_dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from mixmatch.data.user.reading import Reading
from mixmatch.declare import Setting, settings_of
from mixmatch.errors import MixMatchError
from mixmatch.terminal import Screen
from mixmatch.text import printable

DataName = Annotated[
    str, typer.Argument(metavar="DATA", help="A data set ([b]mixmatch data list[/b]), or a path to your own data.")
]
DataDir = Annotated[
    Path | None, typer.Option(help="Where the data files are (default: $MIXMATCH_DATA, else ~/.cache/mixmatch/data).")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]


def ray_cluster(what: str, panel: str | None = None) -> Any:
    """The option that does something on a Ray cluster."""
    about = f"{what} a Ray cluster: one started here, a running one, or the one at an address."
    return typer.Option("--ray", metavar="local|auto|ADDRESS", help=about, rich_help_panel=panel)


RayCluster = Annotated[str | None, ray_cluster("Spread the runs over")]
Part = Annotated[
    str | None, typer.Option(metavar="K/N", help="Do the K-th of N parts of the runs, for example in a Slurm array.")
]
Strict = Annotated[bool, typer.Option("--strict", help="Refuse data files that are not the published ones.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Moved = Annotated[Path | None, typer.Option("--data", help="Where the run's own data is now, if it has moved.")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, as written by train --out.")]


USER_DATA = "Your own data"
LONGEST = 14
"""Characters of a list of choices that stands for the value of an option."""


def expand_options(function: Callable[..., None], panels: Sequence[Panel] = ()) -> Callable[..., None]:
    """The command as typer sees it: options in place of the parameters of `function` that stand for several.

    A parameter that is a dataclass stands for its fields. The parameter `settings` stands for the declared settings of
    the panels; it gets those that were given, checked by their declarations.
    """
    groups: dict[str, tuple[list[inspect.Parameter], Callable[..., Any]]] = {}
    ordered = []
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        kind = parameter.annotation
        if name == "settings":
            groups[name] = [_option(s, panel) for panel in panels for s in panel.settings.values()], _given
        elif is_dataclass(kind) and isinstance(kind, type):
            groups[name] = list(inspect.signature(kind, eval_str=True).parameters.values()), kind
        ordered += groups[name][0] if name in groups else [parameter.replace(kind=parameter.KEYWORD_ONLY)]

    def command(**values: Any) -> None:
        for name, (options, build) in groups.items():
            values[name] = build(**{option.name: values.pop(option.name, option.default) for option in options})
        function(**values)

    command.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in ordered}
    command.__doc__ = function.__doc__
    return command


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, [])}


class Panel(NamedTuple):
    """Settings that the help shows together. Hidden ones are parsed all the same, to be refused with a reason."""

    title: str | None
    settings: Mapping[str, Setting]
    hidden: bool = False
    varying: Container[str] = ()
    """Settings whose default depends on the data, so that the help shows none."""


READING = Panel(USER_DATA, settings_of(Reading))
"""How user data is read."""

with_reading = partial(expand_options, panels=[READING])
"""For a command that also reads user data."""


def _option(setting: Setting, panel: Panel) -> inspect.Parameter:
    flag = f"--{setting.name.replace('_', '-')}"
    switch, several = bool in setting.kinds, setting.default == ()
    help = setting.help
    metavar = setting.metavar or "|".join(setting.choices) or f"<{setting.kinds[0].__name__}>"
    if len(metavar) > LONGEST and "|" in metavar:  # a wider column would leave little room for the text
        if not all(f"`{choice}`" in help for choice in setting.choices):
            help = f"{help} One of {metavar.replace('|', ', ')}."
        metavar = "NAME"
    if setting.default not in (None, (), "") and setting.name not in panel.varying:
        help += rf" \[default: {setting.default}]"
    about = typer.Option(
        f"{flag}/--no{flag[1:]}" if switch else flag,
        help=help,
        metavar=None if switch else metavar,
        parser=None if switch or several else setting.parse,
        rich_help_panel=panel.title,
        hidden=panel.hidden,
        show_default=False,
    )
    kind: Any = bool if switch else list[str] if several else Any
    annotation: Any = Annotated[kind if kind is Any else kind | None, about]
    return inspect.Parameter(setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def parse_part(value: str | None) -> slice:
    """Which runs of a list are a part of it: every N-th, so that parts are alike.

    >>> list(range(10))[parse_part("2/4")]
    [1, 5, 9]
    """
    if value is None:
        return slice(None)
    number, _, count = value.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise MixMatchError(f"--part {value} must be K/N, part K of N: 1/20, 2/20, ..., 20/20")
    return slice(int(number) - 1, None, int(count))


def console() -> Screen:
    """Standard output. A pipe has no width: it is $COLUMNS, else one that does not fold tables."""
    screen = Screen(highlight=False, emoji=False)
    known = screen.is_terminal or "COLUMNS" in os.environ
    return screen if known else Screen(highlight=False, emoji=False, width=140)


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2))


def show(text: str, end: str = "\n") -> None:
    """Text on standard output, as it is on a terminal and elsewhere."""
    print(printable(text, lines=True), end=end, flush=True)


def say(text: str) -> None:
    print(printable(text, lines=True), file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """A warning on standard error: a terminal breaks it between words, elsewhere it is one line."""
    screen = Screen(stderr=True, highlight=False, emoji=False)
    screen.print(f"warning: {text}", markup=False, soft_wrap=not screen.is_terminal)

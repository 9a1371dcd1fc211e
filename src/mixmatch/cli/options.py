"""Options that several commands share, and how values are parsed."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand

from mixmatch.errors import MixMatchError

DataDir = Annotated[
    Path | None,
    typer.Option(help="Where the data files are (default: $MIXMATCH_DATA, else ~/.cache/mixmatch/data)."),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Strict = Annotated[bool, typer.Option("--strict", help="Refuse data files that are not the published ones.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, as train --out made it.")]


OWN = "Your own data"
LabelsFile = Annotated[
    Path | None,
    typer.Option(help="Images: a CSV of file and label. Of a .npy file: a .npy file.", rich_help_panel=OWN),
]
ImageSize = Annotated[
    int | None,
    typer.Option(help="Images: pixels to resize to (default: chosen from the images).", rich_help_panel=OWN),
]
LabelColumn = Annotated[
    str | None, typer.Option(help="A table: the column with the label (default: label).", rich_help_panel=OWN)
]
PartColumn = Annotated[
    str | None, typer.Option(help="A table: a column that is 'test' in rows to judge by.", rich_help_panel=OWN)
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN", help="A table: a column that is no feature.", rich_help_panel=OWN),
]


class ManyValues(TyperCommand):
    """A command whose repeatable options take several values at once: `--seeds 1 2 3` is `--seeds 1 --seeds 2 ...`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        repeatable = {name for p in self.params if getattr(p, "multiple", False) for name in p.opts}
        spread: list[str] = []
        option: str | None = None
        for i, arg in enumerate(args):
            if arg.startswith("-") and not arg[1:2].isdigit():
                option = arg if arg in repeatable else None
            elif option is not None and args[i - 1] != option:
                spread.append(option)
            spread.append(arg)
        return super().parse_args(ctx, spread)


def unwrapped(text: str) -> str:
    """A help text whose paragraphs are wrapped by the terminal, not by the source.

    >>> unwrapped("What it does.\\n\\n    More of it,\\n    and more.\\n\\n      mixmatch train\\n    ")
    'What it does.\\n\\nMore of it, and more.\\n\\nmixmatch train'
    """
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in inspect.cleandoc(text).split("\n\n"))


def parse_labels(value: str | None) -> int | str | None:
    """A number of labels, or 'all'."""
    if value is None or value == "all":
        return value
    try:
        return int(value.replace(",", "").replace("_", ""))
    except ValueError:
        raise MixMatchError(f"--labels {value} must be a number or 'all'") from None


def console() -> Console:
    """Standard output. A pipe has no width, so tables get one that does not fold them."""
    screen = Console(highlight=False, emoji=False)
    return screen if screen.is_terminal else Console(highlight=False, emoji=False, width=140)


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2))

"""Commands as typer shows and parses them. The list of commands needs no more than this, so it comes at once."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any, get_args

from typer.core import TyperCommand

from mixmatch.errors import MixMatchError


class PlainFlags:
    """Part of a command: its help shows a flag without a type, and one that can be negated as `--[no-]flip`. In columns
    of their own, types and negations would leave a terminal of 80 characters little room for the text."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params

    def format_help(self, ctx: Any, formatter: Any) -> None:
        negatable = [param for param in self.get_params(ctx) if param.secondary_opts]
        before = [(param.opts, param.secondary_opts) for param in negatable]
        for param in negatable:
            param.opts, param.secondary_opts = [f"--[no-]{param.opts[0][2:]}"], []
        try:
            super().format_help(ctx, formatter)  # type: ignore[misc]
        finally:
            for param, names in zip(negatable, before, strict=True):
                param.opts, param.secondary_opts = names


class PlainCommand(PlainFlags, TyperCommand):
    """A command as the command line shows it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """A path that is empty, as a shell's unset variable leaves it, would be taken for the current folder."""
        given, _, _ = self.make_parser(ctx).parse_args(list(args))
        kinds = inspect.signature(self.callback, eval_str=True).parameters if self.callback else {}
        for param in self.get_params(ctx):
            is_path = param.name in kinds and _holds_path(kinds[param.name].annotation)
            value = given.get(param.name) if is_path else None
            values = value if isinstance(value, list | tuple) else [value]
            if any(isinstance(each, str) and not each.strip() for each in values):
                name = param.opts[0] if param.opts[0].startswith("-") else param.metavar or param.name.upper()
                raise MixMatchError(f"{name} is empty: give a path")
        return super().parse_args(ctx, args)


def _holds_path(kind: Any) -> bool:
    """Whether a parameter's type is that of a path, or of none or several of them."""
    return kind is Path or any(map(_holds_path, get_args(kind)))


class ManyValues(PlainCommand):
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
    """A help text whose paragraphs are wrapped by the terminal, not by the source. A line that is indented by two, such
    as an example, stays a line of its own: `\\b` asks typer for that, and keeps its indent.

    >>> unwrapped("What it does.\\n\\n    More of it,\\n    and more:\\n      mixmatch a\\n      mixmatch b\\n    ")
    'What it does.\\n\\n\\x08More of it, and more:\\n\\x08  mixmatch a\\n\\x08  mixmatch b'
    """
    paragraphs = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        about, *lines = (" ".join(part.split()) for part in re.split(r"\n(?=  \S)", paragraph))
        paragraphs.append("\b" + "\n\b  ".join([about, *lines]) if lines else about)
    return "\n\n".join(paragraphs)

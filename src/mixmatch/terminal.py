"""Where text leaves for people to read. Names of files and classes are other people's: their escape codes are shown and
not obeyed."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from mixmatch.text import printable


class Screen(Console):
    """A console of rich that obeys rich's own codes and no others."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text, lines=True), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text, lines=True), style, control)

    def on_broken_pipe(self) -> None:
        """As when anything else is written that nobody reads; rich would exit with 1."""
        raise BrokenPipeError


class Plain:
    """Text for a program, such as CSV, where it is a person who reads it: on a terminal."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out

    def write(self, text: str) -> int:
        return self._out.write(printable(text, lines=True))


def warn(text: str) -> None:
    """A warning of Python's, in a line."""
    warnings.warn(printable(text), stacklevel=2)

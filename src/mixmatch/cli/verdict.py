"""How a verdict looks on a terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from mixmatch.cli.options import console, show
from mixmatch.report.verdict import Verdict


def show_verdict(verdict: Verdict) -> None:
    """Each answer beside its question, then the next steps: in two columns on a terminal, in plain lines elsewhere."""
    steps = [("next" if i == 1 else "", f"{i}. {step}") for i, step in enumerate(verdict.next_steps, 1)]
    lines, screen = [*verdict.parts, *steps], console()
    if not screen.is_terminal:
        show("\n".join(f"{name + ': ' if name else '      '}{text}" for name, text in lines))
        return
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, text in lines:
        table.add_row(Text(name, "bold"), Text(text.replace(" %", "\u00a0%")))
    screen.print(table)

"""`mixmatch results`: the page of all results, and a run's error over its steps, from the records alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mixmatch.cli.options import say, show, warn
from mixmatch.errors import MixMatchError, explaining
from mixmatch.experiments import figures, headline, records
from mixmatch.experiments.headline import results_page

PICTURE = Path("images") / "error-over-minutes.png"
"""Where the figure of the page is, beside it."""


def results(
    folder: Annotated[Path, typer.Option("--results", help="Folder of the records.")] = Path("results"),
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write here, not to standard output.")] = None,
    curve: Annotated[
        Path | None, typer.Option(help="Instead, draw the error of this record or run over its steps, to --output.")
    ] = None,
) -> None:
    """Write the page of all results, or draw a run's error over its steps, from the records alone.

    With --output the page's figure, error over minutes, is written to images/ beside it.

    Examples:
      mixmatch results --output docs/results.md
      mixmatch results --curve runs/cifar --output cifar.png
    """
    if curve is not None:
        if output is None or output.suffix.lower() not in (".png", ".svg", ".pdf"):
            raise MixMatchError("--curve needs a picture to draw: --output FILE, which ends in .png, .svg or .pdf")
        record = curve / "result.json" if curve.is_dir() else curve
        if not record.exists():
            unfinished = "is no finished run: finish it with train --resume" if curve.is_dir() else "does not exist"
            raise MixMatchError(f"{curve} {unfinished}")
        figures.curve(records.load(record), output)
        say(f"wrote {output}")
        return
    if not folder.is_dir():
        raise MixMatchError(f"there is no folder of records {folder}")
    found = records.load_all(folder, warn)
    if output is None:
        show(results_page(found), end="")
        return
    picture = PICTURE if headline.to_draw(found) else None
    if picture is not None:
        headline.draw(found, output.parent / picture)
        say(f"wrote {output.parent / picture}")
    with explaining(f"cannot write {output}"):
        output.write_text(results_page(found, picture))
    say(f"wrote {output}")

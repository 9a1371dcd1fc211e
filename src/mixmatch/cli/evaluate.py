"""`mixmatch evaluate`: the test error of a trained run, or its error on new labeled data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from mixmatch import report
from mixmatch.cli import with_options
from mixmatch.cli.options import DataDir, Device, Json, Moved, Run, Strict, console, print_json, warn, with_reading
from mixmatch.text import printable
from mixmatch.training.progress import bar


@with_reading
def evaluate(
    run: Run,
    settings: dict[str, Any],
    path: Annotated[
        Path | None, typer.Argument(metavar="DATA", help="New labeled data: a folder, an array or a table.")
    ] = None,
    moved: Moved = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    strict: Strict = False,
    as_json: Json = False,
) -> None:
    """Evaluate a run's averaged model on its test images, or on new labeled data.

    An unfinished run is evaluated at its newest checkpoint. Without test images, the result of cross-validation is
    shown. New data is a folder (DIR/CLASS/*), an array (.npz, .npy) or a table (.csv, .parquet) as for train; if it has
    a test part, that part is used. Classes are matched by name.

    Examples:
      mixmatch evaluate runs/cifar --data-dir ~/data
      mixmatch evaluate runs/digits-mixmatch-20-seed1 --json
      mixmatch evaluate runs/photos new-photos/
      mixmatch evaluate runs/patients 2026.csv --label-column diagnosis
      mixmatch evaluate runs/photos --data /mnt/photos  # its own data has moved there
    """
    with bar("reading images", shown=path is not None) as progress:
        evaluation = report.evaluate(
            run,
            path,
            data=moved,
            data_dir=data_dir,
            strict=strict,
            device=device,
            warn=lambda text: warn(with_options(text)),
            progress=progress,
            **settings,
        )
    if as_json:
        print_json(evaluation.to_dict())
        return
    table = Table("class", f"{evaluation.verdict.noun}s", "error %", box=box.SIMPLE)
    for name, *numbers in evaluation.table():
        table.add_row(Text(printable(name)), *numbers)  # its width is known before it is shown
    screen = console()
    screen.print(table)
    screen.print(str(evaluation), markup=False, soft_wrap=not screen.is_terminal)

"""`mixmatch compare`: methods on the same labels, as one table and one picture."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from mixmatch import settings as settings_
from mixmatch.cli import with_options
from mixmatch.cli.options import (
    READING,
    DataDir,
    DataName,
    Device,
    Json,
    Panel,
    Part,
    RayCluster,
    console,
    expand_options,
    parse_part,
    print_json,
    show,
    warn,
)
from mixmatch.data import is_path
from mixmatch.errors import unknown
from mixmatch.execution.executor import executor_for
from mixmatch.experiments.compare import SHARED, plot, reported, summarize
from mixmatch.experiments.compare import compare as run_all
from mixmatch.methods import METHODS
from mixmatch.text import count
from mixmatch.training.evaluate import REPORTED

RUN = Panel(None, {name: settings_.of_run()[name] for name in SHARED}, varying=SHARED)


@partial(expand_options, panels=[RUN, READING])
def compare(
    data: DataName,
    settings: dict[str, Any],
    methods: Annotated[list[str], typer.Option(help="Methods to train.")] = [  # noqa: B006
        "supervised",
        "mixmatch",
    ],
    seeds: Annotated[list[int], typer.Option(help="One run of each method per seed.")] = [1],  # noqa: B006
    out: Annotated[Path | None, typer.Option(help="Folder for the runs (default: runs/compare-DATA).")] = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    ray: RayCluster = None,
    part: Part = None,
    as_json: Json = False,
) -> None:
    """Train several methods on the same labels and compare their errors.

    Runs that are finished already are not trained again, interrupted ones are resumed.

    Examples:
      mixmatch compare digits --labels 20
      mixmatch compare digits --labels 20 --seeds 1 2 3
      mixmatch compare cifar10 --labels 250 --methods supervised mixmatch --steps 8192
      mixmatch compare patients.csv --label-column diagnosis --seeds 1 2 3
      mixmatch compare cifar10 --labels 250 --seeds 1 2 3 4 5 --ray auto
    """
    for method in methods:
        if method not in METHODS:
            raise unknown("method", method, METHODS)
    folder = out or Path("runs") / f"compare-{Path(data).resolve().name if is_path(data) else data}"
    given = {name: settings.pop(name) for name in RUN.settings if name in settings}
    share, executor = parse_part(part), executor_for(ray, warn)
    records = run_all(
        data, methods, seeds, folder, settings, device=device, data_dir=data_dir, executor=executor, part=share,
        spelled=with_options, warn=warn, **given,
    )  # fmt: skip
    rows = summarize(records)
    if part is None:
        plot(records, folder / "error.png")
    if as_json:
        print_json({"rows": rows, "records": records})
        return
    if part is not None:  # other parts may still be at work
        print(f"part {part}: {count(len(records), 'run')} finished; the same command without --part shows all of them")
        return
    table = Table("method", box=box.SIMPLE)
    for column in ("labels", "seeds", "test error, %", "seconds per run"):
        table.add_column(column, justify="right")
    for row in rows:
        deviation = "" if row["deviation"] is None else f" ± {row['deviation']:.2f}"
        seeds_text = " ".join(map(str, row["seeds"]))
        table.add_row(
            row["method"], f"{row['labels']:,}", seeds_text, f"{row['error']:.2f}{deviation}", f"{row['seconds']:.1f}"
        )
    console().print(table)
    if reported(records) == "error":
        show(f"test error: of each run the median of its last {REPORTED} evaluations")
    elif not is_path(data):
        show(f"test error: at the end of each run, since some have fewer than {REPORTED} evaluations")
    show(f"error over minutes and steps: {folder / 'error.png'}")

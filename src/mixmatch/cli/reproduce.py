"""`mixmatch reproduce`: the paper's tables and figures with our runs beside its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from mixmatch.augment import weak_augmentation
from mixmatch.classifier import load_run
from mixmatch.cli import in_command
from mixmatch.cli.options import (
    DataDir,
    Device,
    Json,
    Part,
    RayCluster,
    Strict,
    console,
    parse_part,
    print_json,
    say,
    show,
    warn,
)
from mixmatch.errors import MixMatchError, explaining, unknown
from mixmatch.execution.executor import executor_for
from mixmatch.experiments import figures, paper_tables, records
from mixmatch.experiments.reproduce import Planned, choose, estimate, finished, plan, run_all, state
from mixmatch.experiments.tables import TABLES
from mixmatch.methods import declared
from mixmatch.settings import Precision, of_run
from mixmatch.storage import replace_durably
from mixmatch.text import count, duration, listed
from mixmatch.training.device import pick_device
from mixmatch.training.opening import open_run
from mixmatch.training.progress import bar
from mixmatch.training.record import NAMED_BY
from mixmatch.training.run import Record, RunFolder

PLOTTED = ("cifar10", "svhn", "svhn-extra")
FIGURE = "label-guessing"


def reproduce(
    table: Annotated[str, typer.Argument(metavar="TABLE", help=f"One of {', '.join(TABLES)}, or {FIGURE}.")],
    labels: Annotated[list[str], typer.Option(help="Only these counts of labels.")] = [],  # noqa: B006
    methods: Annotated[list[str], typer.Option(help="Only these methods.")] = [],  # noqa: B006
    seeds: Annotated[list[int], typer.Option(help="These seeds instead of the paper's.")] = [],  # noqa: B006
    steps: Annotated[int | None, typer.Option(help="Another number of steps than the paper's 2^20.")] = None,
    passes: Annotated[str | None, typer.Option(help="Of MixMatch and its successors: official or fused.")] = None,
    precision: Annotated[Precision | None, typer.Option(help="By default bf16 where it is faster.")] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="With pate: labels from the first 250 queries (answers, the default) or as the authors chose "
            "them (official)."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs with an estimated time, train none.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("runs/reproduce"),
    results: Annotated[Path, typer.Option(help="Folder for records, report and figures.")] = Path("results"),
    run: Annotated[Path | None, typer.Option(help=f"With {FIGURE}: the run whose guesses are shown.")] = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    ray: RayCluster = None,
    part: Part = None,
    strict: Strict = False,
    as_json: Json = False,
) -> None:
    """Train the runs of one of the paper's tables and report them beside the paper's numbers.

    Finished runs are skipped, interrupted ones resumed, failed ones reported at the end. Records made on other
    machines count too: copy them into the results folder. Runs with another number of steps, other seeds or fused
    passes are reported without a verdict.

    Examples:
      mixmatch reproduce cifar10 --dry-run
      mixmatch reproduce cifar10 --labels 250 500 --methods mixmatch vat --seeds 1 2 3
      mixmatch reproduce ablation --labels 250 --steps 16384
      mixmatch reproduce pate --methods mixmatch --split official
      mixmatch reproduce cifar10 --ray auto
      mixmatch reproduce cifar10 --part 3/20
      mixmatch reproduce label-guessing --run runs/cifar
    """
    if table == FIGURE:
        others = {"labels": labels, "methods": methods, "seeds": seeds, "steps": steps, "passes": passes}
        others |= {"precision": precision, "split": split, "dry_run": dry_run, "ray": ray, "part": part}
        _label_guessing(run, others, results, data_dir, device)
        return
    if table not in TABLES:
        raise unknown("table", table, [*TABLES, FIGURE])
    chosen = TABLES[table]
    counts: list[Any] = [of_run()["labels"].parse(number) for number in labels]
    settings = _passes(passes, [row.method for row, _ in choose(chosen, counts, methods, split)])
    runs = plan(chosen, counts, methods, seeds, steps, split, precision, **settings)[parse_part(part)]
    executor = executor_for(ray, warn)
    extra = [number for number in counts if all(number not in row.targets for row in chosen.rows)]
    for number in extra:
        say(f"the paper has no number for {number} labels: there will be nothing to compare with")
    if dry_run:
        _list(table, runs, out, results, device, as_json)
        return
    failed = run_all(
        runs,
        out,
        results,
        lambda text: say(in_command(text)),
        data_dir=data_dir,
        device=device,
        strict=strict,
        executor=executor,
    )
    known = records.load_all(results, warn)
    ours = [record for record in (finished(run, known) for run in runs) if record is not None]
    if part is None:
        text = _report(table, known, ours, extra, steps, results)
    else:  # other parts may still be at work
        text = f"part {part}: {len(ours)} of {len(runs)} runs finished; the same command without --part reports all"
    if as_json:
        reasons = [{"run": planned.name, "reason": reason} for planned, reason in failed]
        print_json({"records": ours, "failed": reasons})
    else:
        show(text)
        if part is None:
            say(f"report: {results / f'{table}.md'}")
    for reason in dict.fromkeys(reason for _, reason in failed):
        names = [planned.name for planned, why in failed if why == reason]
        say(f"failed: {listed(names)}: {in_command(reason)}")
    if failed:
        raise typer.Exit(1)


def _passes(passes: str | None, methods: Sequence[str]) -> dict[str, str]:
    """The setting, if it is given: refused where a method does not have it."""
    if passes is None:
        return {}
    having = dict.fromkeys(method for method in methods if "passes" in declared(method))
    if set(methods) - having.keys():
        instead = f"add --methods {' '.join(having)}" if having else "leave it out"
        raise MixMatchError(f"--passes is for methods with that setting: {instead}")
    return {"passes": passes}


def _report(
    name: str, known: list[Record], ours: list[Record], extra: list[Any], steps: int | None, results: Path
) -> str:
    """Write the table, and the figure it has, and return the text."""
    table = TABLES[name]
    parts = [f"# {table.title}", paper_tables.LEGEND, paper_tables.table_markdown(table, known, extra, steps)]
    if others := paper_tables.not_in([table], ours, extra, steps):
        parts += ["## Other runs", paper_tables.OTHER, *paper_tables.other_runs(others)]
    text = "\n\n".join(parts) + "\n"
    with explaining(f"cannot write the report to {results}"):
        replace_durably(results / f"{name}.md", text.encode())
        if name in PLOTTED:
            figures.error_by_labels(table, table.title.split(",")[0], known, results / f"{name}.png", steps)
    return text


def _list(name: str, runs: list[Planned], out: Path, results: Path, device: str, as_json: bool) -> None:
    known = records.load_all(results, warn)
    with bar("timing a few steps of each method") as counted:
        seconds = estimate(runs, pick_device(device), counted)
    rows: list[dict[str, Any]] = [
        {
            "table": name,
            "row": run.row.name,
            **{name: getattr(run.settings, name) for name in NAMED_BY},
            "state": state(run, known, out),
            "seconds": round(took, 1),
            "settings": run.settings.to_dict(),
        }
        for run, took in zip(runs, seconds, strict=True)
    ]
    if as_json:
        print_json({"runs": rows})
        return
    shown = Table("row", "data", "labels", "seed", "steps", "time", "state", box=box.SIMPLE)
    settings: dict[str, None] = {}
    for row in rows:
        of_method = " ".join(f"{key}={value}" for key, value in row["settings"]["method_settings"].items())
        of_run = f"{row['settings']['network']} weight_decay={row['settings']['weight_decay']}"
        settings[f"{row['row']}, {row['data']}: {of_run} {of_method}"] = None
        shown.add_row(
            row["row"], row["data"], str(row["labels"]), str(row["seed"]), f"{row['steps']:,}",
            duration(row["seconds"]), row["state"],
        )  # fmt: skip
    left = sum(row["seconds"] for row in rows if row["state"] != "finished")
    console().print(shown)
    show("\n".join(settings))
    console().print(f"{count(len(rows), 'run')}, about {duration(left)} left on this machine, by a short trial")


def _label_guessing(
    run: Path | None, others: dict[str, Any], results: Path, data_dir: Path | None, device: str
) -> None:
    """Draw the figure; `others` are the options for runs, of which none may be given."""
    if given := [name for name, value in others.items() if value not in (None, [], False)]:
        raise MixMatchError(f"{given[0]}= is for runs, and {FIGURE} is drawn from one: leave it out")
    if run is None:
        raise MixMatchError(f"{FIGURE} shows a trained model's guesses: name its run folder with --run")
    folder = RunFolder(run)
    settings = folder.settings()
    data = open_run(folder, data_dir=data_dir)
    source, split = data.source, data.split
    if not source.train.is_images:
        raise MixMatchError(f"{FIGURE} shows an image, but {settings.data} holds features")
    image = source.test.inputs[split.test[0]] if len(split.test) else source.train.inputs[0]
    augment = weak_augmentation(
        source.input_shape, pad=settings.pad, flip=settings.flip, noise=settings.noise, mask=settings.mask
    )
    K, T = settings.method_settings.get("K", 2), settings.method_settings.get("T", 0.5)
    path = results / f"{FIGURE}.png"
    figures.label_guessing(load_run(run, device), image, augment, K, T, settings.seed, path)
    show(str(path))

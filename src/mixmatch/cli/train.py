"""`mixmatch train`: few labels in, a trained and saved classifier out."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from mixmatch import methods
from mixmatch.classifier import load_run
from mixmatch.cli.data_check import read_with_bar
from mixmatch.cli.options import (
    READING,
    USER_DATA,
    DataDir,
    Json,
    Panel,
    Strict,
    console,
    expand_options,
    print_json,
)
from mixmatch.data import Reading, is_path
from mixmatch.data.opened import Data
from mixmatch.errors import MixMatchError
from mixmatch.execution.here import run_one
from mixmatch.report import write_report
from mixmatch.settings import BASIC, Settings, from_dict, of_run, read_file, resolve, updated
from mixmatch.text import duration
from mixmatch.training.evaluate import REPORTED
from mixmatch.training.gain import Gain, measure_gain
from mixmatch.training.plan import plan
from mixmatch.training.progress import Quiet
from mixmatch.training.run import Record, RunFolder
from mixmatch.training.session import Work, kind_of, user_data

RUN, SETTINGS = "Run", "Settings (default: what the paper used for this data set)"


def build(args: Sequence[str]) -> Callable[..., None]:
    """The command, with the settings of the method that its arguments choose as options."""
    method = _method(args)
    run = {name: setting for name, setting in of_run().items() if setting.group != BASIC}
    basic = {name: setting for name, setting in of_run().items() if setting.group == BASIC}
    chosen = methods.declared(method)
    others = {n: s for name in methods.METHODS for n, s in methods.declared(name).items() if n not in chosen}
    title = f"Settings of {method} (other methods: mixmatch train --method NAME --help)"
    panels = [Panel(None, basic), Panel(SETTINGS, run), Panel(title, chosen), READING, Panel(None, others, hidden=True)]
    return expand_options(train, panels)


def _method(args: Sequence[str]) -> str:
    """The method that the arguments name, or the file or run they start from; MixMatch if none does."""
    given = {}
    for option in ("--method", "--config", "--out"):
        for i, arg in enumerate(args):
            if arg.startswith(f"{option}="):
                given[option] = arg.partition("=")[2]
            elif arg == option and i + 1 < len(args):
                given[option] = args[i + 1]
    name: Any = given.get("--method")
    try:
        if name is None and "--config" in given:
            name = read_file(Path(given["--config"]))[0].get("method")
        if name is None and "--out" in given:
            name = json.loads((Path(given["--out"]) / "config.json").read_text())["settings"]["method"]
    except (MixMatchError, OSError, ValueError, KeyError, TypeError):
        pass  # said when the command runs
    return name if name in methods.METHODS else "mixmatch"


def train(
    data: Annotated[
        str,
        typer.Argument(metavar="DATA", help="A data set ([b]mixmatch data list[/b]), or a path to your own."),
    ],
    settings: dict[str, Any],
    out: Annotated[
        Path | None, typer.Option(help="Run folder (default: runs/DATA-METHOD-LABELS-seedSEED).", rich_help_panel=RUN)
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out, if there is one.", rich_help_panel=RUN)
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Start from these settings: a run's config.json, or TOML.", rich_help_panel=RUN
        ),
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="Resume from this checkpoint, not the newest.", rich_help_panel=RUN)
    ] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option(help="Steps between checkpoints (default: one per minute).", rich_help_panel=RUN)
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.", rich_help_panel=RUN)] = "auto",
    compile: Annotated[
        bool | None, typer.Option(help="Compile steps for speed (default: long runs on CUDA).", rich_help_panel=RUN)
    ] = None,
    data_dir: DataDir = None,
    strict: Strict = False,
    baseline: Annotated[
        bool, typer.Option(help="Also train on the labels alone and show the difference.", rich_help_panel=USER_DATA)
    ] = True,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.", rich_help_panel=RUN)] = False,
    as_json: Json = False,
) -> None:
    """Train a classifier from few labels and many unlabeled images, or rows of a table.

    A run is a folder. Stop it with Ctrl-C and continue with --resume: it ends as if it had never been stopped.

    Examples:

      mixmatch train digits --labels 20

      mixmatch train cifar10 --data-dir ~/data --labels 250 --out runs/cifar

      mixmatch train cifar10 --out runs/cifar --resume

      mixmatch train cifar10 --config runs/cifar/config.json --seed 2 --out runs/cifar-2

      mixmatch train svhn --method supervised --labels all --precision bf16

      mixmatch train photos/ --out runs/photos  # photos/CLASS/* labeled, photos/unlabeled/*

      mixmatch train patients.csv --label-column diagnosis  # empty where it is not known

      mixmatch train embeddings.npz  # x: numbers, y: classes, -1 where not known
    """
    reading = {name: settings.pop(name) for name in READING.settings if name in settings}
    work = plan(
        data,
        settings,
        reading,
        out=out,
        resume=resume,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        config=config,
        device=device,
        compile=compile,
        data_dir=data_dir,
        strict=strict,
        reporter=Quiet() if quiet else None,
    )
    if not is_path(data):
        _show(run_one(work), work.job.out, as_json)
        return
    opened = _open(work, quiet)
    record = run_one(replace(work, data=opened))
    run = from_dict(record["settings"])
    # A run on the labels alone shows what the unlabeled data is worth, if it was used and there is a test.
    compared = baseline and len(opened.split.test) > 0 and bool(run.build_method().views)
    difference = _gain(work, run, opened) if compared else None
    verdict = opened.basis.sentence if difference is None else f"{difference.sentence} {opened.basis.sentence}"
    page = write_report(work.job.out, data=opened, gain=difference, device=device)[1]
    _show(record, work.job.out, as_json, {"verdict": verdict, "report": str(page)})


def _open(work: Work, quiet: bool) -> Data:
    """Read user data once, with a bar. Before a run begins, say what was left out of it."""
    settings, run = work.job.settings, RunFolder(work.job.out)
    if run.exists():
        before = from_dict(run.config()["settings"])
        settings = replace(before, data_options={**before.data_options, **settings.data_options})
    read = read_with_bar(Path(work.job.settings.data), Reading.of(settings.data_options), shown=not quiet)
    opened = user_data(read, settings)
    if not run.exists():
        for finding in read.findings:
            text = f"{finding.message}: {finding.advice}" if finding.advice else finding.message
            if finding.kind != "no-unlabeled":
                if finding.severity != "info":
                    print(f"warning: {text}", file=sys.stderr)
            elif settings.build_method().views and settings.unlabeled != "all":
                raise MixMatchError(text)
    return opened


def _gain(work: Work, settings: Settings, data: Data) -> Gain:
    """Train on the labels alone, in `baseline/`, with the same settings of the run, and measure the difference."""
    job, kind = work.job, kind_of(settings.data)
    default = resolve(settings.data, {"method": settings.method}, kind)
    # What a resumed run was given is not given again: then it is what differs from the defaults.
    changed = {n: getattr(settings, n) for n in of_run() if getattr(settings, n) != getattr(default, n)}
    alike = {n: getattr(settings, n) for n in job.given or () if n in of_run()}
    given = {**changed, **alike, "method": "supervised"}
    alone = updated(resolve(settings.data, given, kind), {"data_options": settings.data_options})
    folder = job.out / "baseline"
    again = replace(job, settings=alone, out=folder, given=tuple(given), resume=True, checkpoint=None)
    run_one(replace(work, job=again, data=data))
    return measure_gain(load_run(job.out, job.device), load_run(folder, job.device), data.source.test)


def _show(record: Record, folder: Path, as_json: bool, more: Mapping[str, str] | None = None) -> None:
    if as_json:
        print_json({**record, **(more or {})})
        return
    screen = console()
    if record["error"] is not None:
        screen.print(
            f"test error [bold]{record['last_error']:.2f} %[/bold] after {record['steps']:,} steps and "
            f"{duration(record['seconds'])}{_median(record['error'], record['median_of'])}",
            soft_wrap=True,
        )
    if more is not None:
        screen.print(f"{more['verdict']}\nreport: {more['report']}", soft_wrap=True, markup=False)
    screen.print(f"model: {folder / 'model.safetensors'}", soft_wrap=True, markup=False)


def _median(error: float, count: int) -> str:
    """The paper's number. Of a short run it is of all evaluations, the first ones too, so it is not the one to report.

    >>> _median(4, 1), _median(4, 5)
    ('', '; the median of all 5 evaluations is 4.00 %')
    """
    if count == 1:
        return ""
    if count < REPORTED:
        return f"; the median of all {count} evaluations is {error:.2f} %"
    return f"; the number to report, the median of the last {count} evaluations, is [bold]{error:.2f} %[/bold]"

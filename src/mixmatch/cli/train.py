"""`mixmatch train`: few labels in, a trained and saved classifier out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from mixmatch import methods
from mixmatch.api import train_user_data
from mixmatch.cli import with_options
from mixmatch.cli.options import (
    READING,
    USER_DATA,
    DataDir,
    DataName,
    Json,
    Panel,
    Strict,
    console,
    expand_options,
    print_json,
    show,
    warn,
)
from mixmatch.cli.report import show_verdict
from mixmatch.data import is_path
from mixmatch.errors import MixMatchError
from mixmatch.execution.here import run_one
from mixmatch.presets import DATA, DATA_METHOD, USER, USER_METHOD
from mixmatch.settings import BASIC, of_run, read_file
from mixmatch.storage import read_json
from mixmatch.text import duration
from mixmatch.training.evaluate import REPORTED
from mixmatch.training.plan import plan
from mixmatch.training.progress import Quiet, bar
from mixmatch.training.run import Record
from mixmatch.training.torchrun import leads

SETTINGS = "Settings (where no default is shown: the paper's for this data set)"
run_option = partial(typer.Option, rich_help_panel="Run")
data_option = partial(typer.Option, rich_help_panel=USER_DATA)


def build(args: Sequence[str]) -> Callable[..., None]:
    """The command, with the settings of the method that its arguments choose as options."""
    return expand_options(train, panels(args, "train"))


def panels(args: Sequence[str], command: str) -> list[Panel]:
    """All settings of a run as options, those of the method that the arguments choose among them."""
    method = _method(args)
    run = {name: setting for name, setting in of_run().items() if setting.group != BASIC}
    basic = {name: setting for name, setting in of_run().items() if setting.group == BASIC}
    chosen = methods.declared(method)
    others = {n: s for name in methods.METHODS for n, s in methods.declared(name).items() if n not in chosen}
    title = f"Settings of {method} (other methods: mixmatch {command} --method NAME --help)"
    varying = _varying(method)
    return [
        Panel(None, basic, varying=varying),
        Panel(SETTINGS, run, varying=varying),
        Panel(title, chosen, varying=varying),
        READING,
        Panel(None, others, hidden=True),
    ]


def _varying(method: str) -> set[str]:
    """Settings whose default depends on the data or the device."""
    of_method = [values for (_, name), values in [*DATA_METHOD.items(), *USER_METHOD.items()] if name == method]
    tables = [*DATA.values(), *USER.values(), *of_method, methods.METHODS[method].run_defaults]
    return {"precision"}.union(*tables)


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
            name = read_json(Path(given["--out"]) / "config.json")["settings"]["method"]
    except (MixMatchError, OSError, ValueError, KeyError, TypeError):
        pass  # said when the command runs
    return name if name in methods.METHODS else "mixmatch"


def train(
    data: DataName,
    settings: dict[str, Any],
    out: Annotated[
        Path | None, run_option(help="Run folder (default: in runs/, named by data, method, labels and seed).")
    ] = None,
    resume: Annotated[
        bool, run_option("--resume", help="Continue the run in --out, if there is one. DATA may have moved.")
    ] = False,
    config: Annotated[
        Path | None, run_option(metavar="FILE", help="Start from these settings: a run's config.json, or TOML.")
    ] = None,
    checkpoint: Annotated[str | None, run_option(help="Resume from this checkpoint, not the newest.")] = None,
    checkpoint_every: Annotated[
        int | None, run_option(help="Steps between checkpoints (default: one per minute).")
    ] = None,
    device: Annotated[str, run_option(help="auto, cpu, cuda or mps.")] = "auto",
    compile: Annotated[bool | None, run_option(help="Compile steps for speed (default: long runs on CUDA).")] = None,
    data_dir: DataDir = None,
    strict: Strict = False,
    baseline: Annotated[bool, data_option(help="Also train on the labels alone and show the difference.")] = True,
    cross_validate: Annotated[
        bool | None,
        data_option(
            help="Also train without each fold of the labels, to evaluate and to find wrong labels (default: for "
            "features, if nothing else evaluates the model)."
        ),
    ] = None,
    quiet: Annotated[bool, run_option("--quiet", help="Show no progress.")] = False,
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
      mixmatch train photos/ --out runs/photos  # photos/CLASS/, photos/unlabeled/
      mixmatch train patients.csv --label-column diagnosis  # empty if not known
      mixmatch train embeddings.npz  # x: numbers, y: classes, -1 where not known
      torchrun --nproc-per-node 4 -m mixmatch train photos/ --batch-size 256 --groups 4
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
    work = replace(work, note=with_options(work.note), shared=True)
    if not is_path(data):
        record = run_one(work)
        if leads():
            _show(record, work.job.out, as_json)
        return
    record, report, page = train_user_data(
        work,
        baseline=baseline,
        cross_validate=cross_validate,
        bar=partial(bar, shown=not quiet and leads()),
        warn=lambda text: warn(with_options(text)) if leads() else None,
    )
    if report is None:
        return
    if as_json:
        print_json(record)
        return
    show_verdict(report.verdict)
    show(f"trained: {record['steps']:,} steps in {duration(record['seconds'])}")
    show(f"report: {page}")
    show(f"model: {work.job.out / 'model.safetensors'}")


def _show(record: Record, folder: Path, as_json: bool) -> None:
    """The outcome on a published data set: the paper's number."""
    if as_json:
        print_json(record)
        return
    if record["error"] is not None:
        console().print(
            f"test error [bold]{record['last_error']:.2f} %[/bold] after {record['steps']:,} steps and "
            f"{duration(record['seconds'])}{_median(record['error'], record['median_of'])}",
            soft_wrap=True,
        )
    show(f"model: {folder / 'model.safetensors'}")


def _median(error: float, count: int) -> str:
    """The paper's number. A short run has none: its median would be of the first evaluations too.

    >>> _median(4, 19), _median(4, 20)
    ('', '; the number to report, the median of the last 20 evaluations, is [bold]4.00 %[/bold]')
    """
    if count < REPORTED:
        return ""
    return f"; the number to report, the median of the last {count} evaluations, is [bold]{error:.2f} %[/bold]"

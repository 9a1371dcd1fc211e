"""`mixmatch tune`: better settings for a method on your data, found on validation data alone."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from mixmatch.cli import in_command
from mixmatch.cli.options import (
    READING,
    DataDir,
    DataName,
    Device,
    Json,
    RayCluster,
    Strict,
    console,
    expand_options,
    print_json,
    say,
    show,
    warn,
)
from mixmatch.cli.train import panels
from mixmatch.execution.executor import executor_for
from mixmatch.experiments.tune.driver import tune as run_sweep
from mixmatch.experiments.tune.results import Result, Trial
from mixmatch.training.progress import Quiet, on_stderr

sweep_option = partial(typer.Option, rich_help_panel="Sweep")
SHOWN = 20
"""Trials that the table has; trials.csv has all."""


def build(args: Sequence[str]) -> Callable[..., None]:
    """The command, with all settings as options: those given are not searched."""
    return expand_options(tune, panels(args, "tune"))


def tune(
    data: DataName,
    *,
    trials: Annotated[
        int | None, sweep_option(help="How many trials, including the defaults (default: 20 without --minutes).")
    ] = None,
    minutes: Annotated[float | None, sweep_option(help="Start no trial that would end later than this.")] = None,
    search: Annotated[
        list[str],
        sweep_option(
            metavar="NAME=WHERE",
            help="What to search: NAME=LOW..HIGH, NAME=LOW..HIGH:log or NAME=a,b,c, in addition to what the method "
            "declares.",
        ),
    ] = [],  # noqa: B006
    only: Annotated[bool, sweep_option("--only", help="Search only what --search names.")] = False,
    out: Annotated[Path | None, sweep_option(help="Folder of the sweep (default: runs/tune-DATA-METHOD).")] = None,
    config: Annotated[Path | None, sweep_option(help="Start from the settings in this file.")] = None,
    checkpoint_every: Annotated[
        int | None, sweep_option(help="Steps between checkpoints (default: one per minute).")
    ] = None,
    settings: dict[str, Any],
    data_dir: DataDir = None,
    device: Device = "auto",
    ray: RayCluster = None,
    strict: Strict = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    as_json: Json = False,
) -> None:
    """Search for better settings of a method on validation data alone.

    The first trial has the defaults. The others are suggested by Optuna, and stopped early if they do worse than most.
    Published data sets are validated on 5,000 images, or on --valid N; your own data by cross-validation over its
    labels. Test data is never used. The same command continues a sweep that was stopped; a larger --trials extends it.
    The best settings are in best.toml, for mixmatch train --config.

    Examples:
      mixmatch tune digits --labels 20 --trials 12
      mixmatch tune patients.csv --label-column diagnosis --minutes 30
      mixmatch tune cifar10 --labels 250 --method fixmatch --steps 16384 --trials 40 --ray auto
      mixmatch tune digits --only --search lambda_u=1..300:log K=1,2,3
      mixmatch train digits --config runs/tune-digits-mixmatch/best.toml --out runs/tuned
    """
    reading = {name: settings.pop(name) for name in READING.settings if name in settings}
    result = run_sweep(
        data,
        settings,
        reading,
        out=out,
        search=search,
        only=only,
        trials=trials,
        minutes=minutes,
        executor=executor_for(ray, warn),
        say=(lambda text: None) if quiet else lambda text: say(in_command(text)),
        reporter=(lambda suffix: Quiet()) if quiet else on_stderr,
        config=config,
        checkpoint_every=checkpoint_every,
        device=device,
        data_dir=data_dir,
        strict=strict,
    )
    if as_json:
        print_json(result.to_dict())
    else:
        _show(data, result)
    failed = [trial for trial in result.trials if trial.state == "failed"]
    for trial in failed:
        say(f"failed: trial {trial.number}: {in_command(trial.reason)}; the same command tries it again")
    if failed:
        raise typer.Exit(1)


def _show(data: str, result: Result) -> None:
    trials = list(result.trials)
    left_out = [trial for trial in trials[SHOWN:] if not trial.is_default]
    table = Table(box=box.SIMPLE)
    table.add_column("trial", no_wrap=True)
    table.add_column("error\n%", justify="right", no_wrap=True)
    table.add_column("stopped\nat step", justify="right")
    for name in result.best.settings:
        table.add_column(name.replace("_", "_\n"), justify="right", no_wrap=True)  # folded where it can be read
    for trial in (trial for trial in trials if trial not in left_out):
        table.add_row(*_row(trial), style="bold" if trial is result.best else None)
    console().print(table)
    if left_out:
        show(f"and {len(left_out):,} more in {result.out / 'trials.csv'}")
    show(f"compared by {result.chosen_by}\n{result.conclusion}")
    if result.warning is not None:
        warn(result.warning)
    show(f"error over each setting: {result.out / 'slices.png'}")
    command = f"mixmatch train {shlex.quote(data)} --config {shlex.quote(str(result.out / 'best.toml'))}"
    show(f"train with the {'defaults, which are the best' if result.best.is_default else 'best'}: {command}")


def _row(trial: Trial) -> list[str]:
    ended = {"finished": "", "stopped": f"{trial.steps:,}"}.get(trial.state, trial.state)
    values = [f"{value:.3g}" if isinstance(value, float) else str(value) for value in trial.settings.values()]
    error = "" if trial.error is None else f"{trial.error:.2f}"
    return [f"{trial.number}{' defaults' if trial.is_default else ''}", error, ended, *map(escape, values)]

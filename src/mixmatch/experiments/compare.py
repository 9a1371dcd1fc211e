"""Methods side by side: the same data, the same labels, the same budget, so that the difference is the method."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mixmatch import plotting
from mixmatch import settings as settings_
from mixmatch.data import Reading, is_path, read_user_data
from mixmatch.errors import MixMatchError
from mixmatch.execution.executor import Executor, Here
from mixmatch.experiments.records import minutes
from mixmatch.methods import build, name_of
from mixmatch.methods.base import Method, method_settings
from mixmatch.training.evaluate import REPORTED
from mixmatch.training.job import Work
from mixmatch.training.opening import refuse_changed, say_findings, user_data
from mixmatch.training.plan import plan
from mixmatch.training.progress import Reporter, on_stderr
from mixmatch.training.run import Record, RunFolder
from mixmatch.training.session import resumed

SHARED = ("labels", "steps", "batch_size", "features")
"""Settings that all runs of a comparison have alike, whatever their methods."""


def compare(
    data: str,
    methods: Sequence[str | Method],
    seeds: Sequence[int],
    out: str | Path,
    reading: Mapping[str, Any] | None = None,
    *,
    device: str = "auto",
    data_dir: str | Path | None = None,
    reporter: Reporter | None = None,
    executor: Executor | None = None,
    part: slice = slice(None),
    spelled: Callable[[str], str] = str,
    warn: Callable[[str], None] = warnings.warn,
    **settings: Any,
) -> list[Record]:
    """Train each method with each seed, in `out`/METHOD-seedSEED: side by side on a GPU, else one after the other.

    Finished runs are kept, interrupted ones resumed. A number of steps that differs from a run's is refused, since it
    would replace an earlier comparison. Data without test rows is refused before anything is trained.

    Args:
        data: a built-in name or a path to user data, which is read once.
        methods: names, or `Method` objects of your own classes.
        reading: how user data is read.
        executor: who does the runs; by default this machine.
        part: which of the runs to do.
        spelled: how messages at the start of a run name settings.
        warn: receives what was left out of user data.
        **settings: of the runs, the same for every method.
    """
    labels, out = _labels(methods), Path(out)
    runs = [(label, seed) for label in labels for seed in seeds][part]
    folders = {(label, seed): out / f"{label.replace(':', '-')}-seed{seed}" for label, seed in runs}
    for folder in folders.values():
        if folder.is_symlink():
            raise MixMatchError(f"{folder} is a link, which is not followed here: put the folder itself in its place")
    reading = _same_reading([RunFolder(folder) for folder in folders.values()], reading)
    work = list[Work]()
    for (label, seed), folder in folders.items():
        given = {**settings, "method": labels[label], "seed": seed}
        shared: dict[str, Any] = {"resume": True, "device": device, "data_dir": data_dir}
        shown = reporter or (on_stderr(f" seed {seed}") if len(seeds) > 1 else None)
        each = plan(data, given, reading, out=folder, reporter=shown, **shared)
        work.append(replace(each, note="" if work else spelled(each.note)))  # once is enough
    unfinished = [each for each in work if not _finished(each, settings.get("steps"))]
    _refuse_mixed(work)
    if unfinished and is_path(data):
        read = read_user_data(Path(data), Reading.of(unfinished[0].job.settings.data_options))
        basis = user_data(read, unfinished[0].job.settings).basis
        if basis.missing:
            raise MixMatchError(f"{data} cannot be used to compare methods: {basis.missing}")
        first = unfinished[0]
        if not RunFolder(first.job.out).exists():
            say_findings(read, first.job.settings, first.method or first.job.settings.build_method(), warn)
        for run in (RunFolder(each.job.out) for each in work if each not in unfinished):
            refuse_changed(run, run.config(), user_data(read, run.settings(), device))
        for each in unfinished:
            each.data, each.reads_again = lambda settings: user_data(read, settings), True
    outcomes = dict((executor or Here()).run(work))
    records = []
    for number, (label, _) in enumerate(folders):
        outcome = outcomes[number]
        if isinstance(outcome, Exception):
            raise outcome
        records.append({**outcome, "method": label})
    return records


def _labels(methods: Sequence[str | Method]) -> dict[str, str | Method]:
    """Methods by their names in the comparison; objects also by their settings, if names are not enough."""
    names = [method if isinstance(method, str) else name_of(method) for method in methods]
    labels: dict[str, str | Method] = {}
    for name, method in zip(names, methods, strict=True):
        if isinstance(method, str):
            labels[name] = method
            continue
        others = [m for n, m in zip(names, methods, strict=True) if n == name and m is not method]
        default = [m if isinstance(m, Method) else build(m, {}) for m in others]
        values = method_settings(method)
        differ = [n for n, v in values.items() if any(method_settings(m)[n] != v for m in default)]
        label = "-".join([name, *(f"{n}={values[n]}" for n in differ)])
        if label in labels:
            raise MixMatchError(f"the method {label} is there twice: leave one out")
        labels[label] = method
    return labels


def _same_reading(runs: Sequence[RunFolder], reading: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """How user data is read: by default as in the existing runs."""
    there = [run.config()["settings"].get("data_options", {}) for run in runs if run.exists()]
    known = there if reading is None or not reading else [*there, dict(reading)]
    for other in known[1:]:
        if other != known[0]:
            raise MixMatchError(
                f"runs of this comparison read the data in two ways ({known[0]} and {other}): use another out="
            )
    return known[0] if known else reading


def _finished(work: Work, steps: int | None) -> bool:
    """Whether a run of the comparison is finished. One that does not fit it is refused, before another begins."""
    run = RunFolder(work.job.out)
    if not run.exists():
        return False
    if steps not in (None, made := run.config()["settings"]["steps"]):
        raise MixMatchError(
            f"{run.path} was made with other settings (steps: {made} -> {steps}): choose another folder with out="
        )
    resumed(work.job, run, work.method)  # an error if it has other settings
    result = run.result()
    if result is not None and result["error"] is None:
        raise MixMatchError(f"{run.path} was not evaluated on anything: choose another folder with out=")
    return result is not None


def _refuse_mixed(work: Sequence[Work]) -> None:
    """Runs that are there have settings that may not be given again: others would be shown beside them."""
    runs = [RunFolder(each.job.out) for each in work]
    made = [run.settings() if run.exists() else each.job.settings for run, each in zip(runs, work, strict=True)]
    wanted = [settings for run, settings in zip(runs, made, strict=True) if not run.exists()] or made
    for run, settings in zip(runs, made, strict=True):
        same = replace(settings, **{name: getattr(wanted[0], name) for name in SHARED})
        if different := settings_.differences(settings, same):
            raise MixMatchError(
                f"{run.path} was made with other settings ({'; '.join(different)}): give those again, or choose "
                "another folder with out="
            )


def reported(records: Sequence[Record]) -> str:
    """Which number of the records is compared: the paper's, a median; on user data, or if some runs have too few
    evaluations for it, the error of the finished models."""
    paper = all(record["median_of"] == REPORTED and not is_path(record["data"]) for record in records)
    return "error" if paper else "last_error"


def summarize(records: Sequence[Record]) -> list[dict[str, Any]]:
    """One row per method: mean test error, its deviation over the seeds, mean seconds per run."""
    rows, number = [], reported(records)
    for method in dict.fromkeys(record["method"] for record in records):
        group = [record for record in records if record["method"] == method]
        errors = [record[number] for record in group]
        rows.append(
            {
                "method": method,
                "labels": group[0]["split"]["labeled"],
                "seeds": [record["seed"] for record in group],
                "error": statistics.mean(errors),
                "deviation": statistics.stdev(errors) if len(errors) > 1 else None,
                "seconds": statistics.mean(record["seconds"] for record in group),
            }
        )
    return rows


def plot(records: Sequence[Record], path: Path) -> None:
    """Test error over minutes and over steps: a thin line per run, a thick one for the mean of a method's runs."""
    methods = list(dict.fromkeys(record["method"] for record in records))
    height = max(4.2, 0.25 * len(methods))
    figure, panels = plotting.pyplot().subplots(1, 2, sharey=True, figsize=(11, height), layout="constrained")
    (by_time, by_step), ends, shown = panels, [], reported(records)
    for number, method in enumerate(methods):
        style = plotting.line_style(number)
        group = [record for record in records if record["method"] == method]
        errors = [[point["error"] for point in r["curve"]] for r in group]
        error = statistics.mean(r[shown] for r in group)
        steps, times = [[point["step"] for point in r["curve"]] for r in group], list(map(minutes, group))
        for axes, places in ((by_time, times), (by_step, steps)):
            for place, values in zip(places, errors, strict=True):
                axes.plot(place, values, **style, linewidth=0.7, alpha=0.35)
            axes.plot(_mean(places), _mean(errors), **style, linewidth=2.2)
        by_time.plot(_mean(times)[-1], _mean(errors)[-1], "o", color=style["color"], markersize=5)
        ends.append((_mean(errors)[-1], f"{method} {error:.1f} %", style["color"]))
    by_step.set_ylim(bottom=0)
    plotting.name_line_ends(by_step, ends, gap=0.23 / height, fontweight="bold")
    first = records[0]
    by_time.set_title(f"{first['data']}, {first['split']['labeled']:,} labels", loc="left")
    by_time.set(xlabel="minutes of training", ylabel="test error, %")
    by_step.set(xlabel="steps")
    if shown == "error":  # a line ends at the last one
        by_step.set_title("beside each line: median of the last 20 evaluations", loc="left")
    by_time.set_xlim(left=0)
    by_step.set_xlim(0, max(point["step"] for point in first["curve"]))
    for axes in panels:
        plotting.tidy(axes)
    plotting.save(figure, path)


def _mean(rows: Sequence[Sequence[float]]) -> list[float]:
    """The mean of each column."""
    return [statistics.mean(column) for column in zip(*rows, strict=True)]

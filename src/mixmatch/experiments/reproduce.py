"""Reproduce a table: plan its runs, estimate their time, train those that are not finished."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mixmatch.data import SOURCES, SourceInfo
from mixmatch.data.opened import Basis, Data
from mixmatch.data.pate import load_test
from mixmatch.data.published.files import choose as choose_layout
from mixmatch.data.published.files import complete, data_folder, fetch
from mixmatch.data.source import Rows, Source
from mixmatch.data.split import make_split
from mixmatch.declare import settings_of
from mixmatch.errors import MixMatchError, explaining, unknown
from mixmatch.execution.executor import Executor, Here
from mixmatch.experiments import records as records_
from mixmatch.experiments.tables import Row, Table, label_count
from mixmatch.methods import METHODS
from mixmatch.settings import Labels, Precision, Settings, flat, of_run
from mixmatch.training import progress
from mixmatch.training.device import default_precision
from mixmatch.training.job import Job, Work
from mixmatch.training.progress import Reporter
from mixmatch.training.record import NAMED_BY
from mixmatch.training.run import Record, RunFolder
from mixmatch.training.timing import Trial, trial


@dataclass(frozen=True)
class Planned:
    """One run of a table."""

    row: Row
    settings: Settings
    precision: Precision | None = None
    """None if the device decides; then a run in either precision counts."""

    @property
    def name(self) -> str:
        """A folder name that tells runs apart, whichever tables they serve. It follows from the settings that are not
        at their defaults, so that a setting which a later version adds does not change it."""
        s = self.settings
        record = {name: getattr(s, name) for name in NAMED_BY}
        declared = {**of_run(), **settings_of(type(s.build_method()))}
        chosen = {n: v for n, v in flat(s).items() if n not in declared or v != declared[n].default}
        name = records_.file_name({**record, "settings": chosen}).removesuffix(".json")
        return name if self.precision is None else f"{name}-{self.precision}"


def choose(
    table: Table, labels: Sequence[Labels] = (), methods: Sequence[str] = (), split: str | None = None
) -> list[tuple[Row, Labels]]:
    """The cells of a table, or of a part of it. Counts of labels that the paper does not have are for every method.

    Args:
        split: of a PATE table, the rows with the labels of this split; by default "answers".
    """
    for method in methods:
        if method not in METHODS:
            raise unknown("method", method, METHODS)
    in_table = {row.method for row in table.rows}
    for method in methods:
        if method not in in_table:
            raise MixMatchError(f"method '{method}' is not in this table (it has: {', '.join(sorted(in_table))})")
    splits = sorted({row.split for row in table.rows if row.split is not None})
    if split is not None and split not in splits:
        known = f"one of {', '.join(splits)}" if splits else "for the table pate only"
        raise MixMatchError(f"split={split}: it is {known}")
    not_in_paper = [n for n in labels if n != "all" and all(n not in row.targets for row in table.rows)]
    cells: list[tuple[Row, Labels]] = []
    for row in table.rows:
        if (methods and row.method not in methods) or row.split not in (None, split or "answers"):
            continue
        cells += [(row, n) for n in row.targets if not labels or n in labels]
        if "all" not in row.targets:
            cells += [(row, n) for n in not_in_paper]
    if not cells:
        raise MixMatchError("nothing to run: no row of this table has these methods and labels")
    return cells


def plan(
    table: Table,
    labels: Sequence[Labels] = (),
    methods: Sequence[str] = (),
    seeds: Sequence[int] = (),
    steps: int | None = None,
    split: str | None = None,
    precision: Precision | None = None,
    **settings: Any,
) -> list[Planned]:
    """The runs of the cells that `choose` gives, with the paper's seeds and number of steps unless others are given."""
    if precision is not None:
        settings["precision"] = precision
    return [
        Planned(row, row.run_settings(count, steps, seed=seed, **settings), precision)
        for row, count in choose(table, labels, methods, split)
        for seed in seeds or row.seeds_of(count)
    ]


def finished(run: Planned, records: Sequence[Record]) -> Record | None:
    """The record of a run that was finished before, here or elsewhere."""
    apart = ("precision",) if run.precision is None else ()
    wanted = records_.experiment(run.settings, apart)
    ours = (record for record in records if record["seed"] == run.settings.seed)
    return next((record for record in ours if records_.experiment_of(record, apart) == wanted), None)


def state(run: Planned, records: Sequence[Record], runs_folder: Path) -> str:
    if finished(run, records):
        return "finished"
    return "interrupted" if RunFolder(runs_folder / run.name).exists() else "to do"


def run_all(
    runs: Sequence[Planned],
    runs_folder: Path,
    records_folder: Path,
    say: Callable[[str], None],
    reporter: Callable[[], Reporter] | None = None,
    *,
    device: str = "auto",
    data_dir: Path | None = None,
    strict: bool = False,
    side_by_side: int | None = None,
    executor: Executor | None = None,
) -> list[tuple[Planned, str]]:
    """Train what is not finished, by default here and as many side by side as the device allows.

    A run that fails does not stop the rest; returns those with the reason. Runs on this machine whose data is missing,
    and cannot be downloaded, are not begun.
    """
    records = records_.load_all(records_folder, warn=lambda message: None)
    numbers, heads, todo = {}, {}, {}
    for place, run in enumerate(runs, 1):
        numbers[run.name] = f"{place}/{len(runs)}"
        count = label_count(run.settings.labels)
        heads[run.name] = f"[{numbers[run.name]}] {run.row.name}, {count} labels, seed {run.settings.seed}"
        if finished(run, records):
            say(f"{heads[run.name]}: finished before")
        else:
            todo[run.name] = run
    waiting, executor = list(todo.values()), executor or Here(side_by_side)
    if waiting:
        executor.places(device)  # without the device or the cluster, nothing is written
    with explaining(f"cannot write to {records_folder}", "choose another folder with results="):
        records_folder.mkdir(parents=True, exist_ok=True)
    unfinished = [run for run in waiting if not RunFolder(runs_folder / run.name).finished()]
    missing = _missing(unfinished, data_dir, strict) if isinstance(executor, Here) else {}
    for data, reason in missing.items():
        say(f"{data}: {reason}")
    failed = [(run, missing[run.settings.data]) for run in unfinished if run.settings.data in missing]
    waiting = [run for run in waiting if all(run is not each for each, _ in failed)]
    # Rows may differ in a setting that a progress bar does not show, such as K: the number tells them apart.
    work = []
    for run in waiting:
        given = tuple(name for name in flat(run.settings) if name != "precision" or run.precision is not None)
        out = runs_folder / run.name
        job = Job(run.settings, out, given, resume=True, device=device, data_dir=data_dir, strict=strict)
        work.append(Work(job, reporter=reporter() if reporter else progress.on_stderr(f" {numbers[run.name]}")))
    for number, outcome in executor.run(work, started=lambda number: say(heads[waiting[number].name])):
        run = waiting[number]
        if isinstance(outcome, Exception):  # the other runs continue
            reason = str(outcome) if isinstance(outcome, MixMatchError) else f"{type(outcome).__name__}: {outcome}"
            say(f"{heads[run.name]}: failed: {reason}")
            failed.append((run, reason))
            continue
        try:
            records_.save(outcome, records_folder)
        except OSError as error:
            reason = f"its record cannot be written to {records_folder} ({error.strerror or error})"
            say(f"{heads[run.name]}: {reason}: free some space and start again; finished runs are not trained again")
            failed.append((run, reason))
    return failed


def _missing(runs: Sequence[Planned], data_dir: Path | None, strict: bool) -> dict[str, str]:
    """Why the data of some of these runs cannot be had, by its name. What can be downloaded is."""
    reasons, folder = {}, data_folder(data_dir)
    for data in dict.fromkeys(run.settings.data for run in runs):
        try:
            if data not in SOURCES:  # the images of a student, which are fewer files
                load_test(data.removesuffix("-test"), data_dir, strict=strict)
            elif not complete(layout := choose_layout(SOURCES[data].layouts, folder), folder):
                fetch(layout, folder, strict=strict)
        except MixMatchError as error:
            reasons[data] = str(error)
        except OSError:  # the run says more
            pass
    return reasons


TIME_NEUTRAL = (
    *("data", "data_options", "labels", "valid", "unlabeled", "imbalance", "flip", "steps", "eval_every", "schedule"),
    *("learning_rate", "momentum", "weight_decay", "ema_decay", "lambda_u"),
)
"""Settings that do not change how long a step takes. Of the data only the shape of the images does."""


def estimate(
    runs: Sequence[Planned], device: torch.device, counted: Callable[[int, int], None] = lambda done, total: None
) -> list[float]:
    """Seconds that each run will take, by a trial on random images. Runs that take the same time per step share one.

    Args:
        counted: called with how many trials are done, and how many there are.
    """
    alike: dict[Any, list[int]] = {}
    for place, run in enumerate(runs):
        key = records_.experiment(run.settings, TIME_NEUTRAL), _published(run.settings).image_shape
        alike.setdefault(key, []).append(place)
    seconds = [0.0] * len(runs)
    for done, places in enumerate(alike.values()):
        counted(done, len(alike))
        tried = _trial(runs[places[0]], device)
        for place in places:
            settings = runs[place].settings
            evaluation = tried.evaluation * _published(settings).test
            seconds[place] = replace(tried, settings=settings, evaluation=evaluation).seconds
    return seconds


def _published(settings: Settings) -> SourceInfo:
    return SOURCES[settings.data.removesuffix("-test")]


def _trial(run: Planned, device: torch.device) -> Trial:
    """Seconds per step, and per image of an evaluation, from a few steps on random images of the right shape."""
    info = _published(run.settings)
    rng, count = np.random.default_rng(0), max(256, 2 * info.classes)
    pixels = rng.integers(0, 256, (count, *info.image_shape), np.uint8)
    images = Rows(pixels, np.arange(count, dtype=np.int64) % info.classes)
    source = Source("random", tuple(map(str, range(info.classes))), images, images)
    precision = run.precision or default_precision(run.settings, device, source.input_shape)
    # On a CPU the time grows with the batch, so a few steps with a small one will do; on a GPU it does not.
    on_cuda = device.type == "cuda"
    least = max(1, 8 // run.settings.build_method().ratio)
    batch = run.settings.batch_size if on_cuda else min(least, run.settings.batch_size)
    small = replace(run.settings, batch_size=batch, labels=info.classes, valid=0, precision=precision, data_options={})
    data = Data(source, make_split(source, info.classes, seed=1), Basis("random images"))
    tried = trial(small, data, device, steps=20 if on_cuda else 3)
    scale = run.settings.batch_size / batch
    return replace(tried, step=tried.step * scale, evaluation=tried.evaluation / count)

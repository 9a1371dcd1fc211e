"""Reproduce a table: the runs it needs, skipping what is done; on a GPU several are trained side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mixmatch import api, networks
from mixmatch.data import SOURCES
from mixmatch.data.source import Images, Source
from mixmatch.data.split import make_split
from mixmatch.errors import MixMatchError, unknown
from mixmatch.experiments import records as records_
from mixmatch.experiments.tables import TABLES, Row, Table, full_steps
from mixmatch.methods import METHODS
from mixmatch.settings import Labels, Settings, resolve
from mixmatch.training import progress
from mixmatch.training.progress import Reporter
from mixmatch.training.run import Record, RunFolder
from mixmatch.training.trainer import Trainer


@dataclass(frozen=True)
class Planned:
    """One run of a table."""

    row: Row
    settings: Settings

    @property
    def name(self) -> str:
        """A folder name that tells runs apart, whichever tables they serve."""
        s = self.settings
        record = {"data": s.data, "method": s.method, "labels": s.labels, "seed": s.seed, "steps": s.steps}
        return records_.file_name({**record, "settings": s.to_dict()}).removesuffix(".json")


def find_table(name: str) -> Table:
    if name not in TABLES:
        raise unknown("table", name, TABLES)
    return TABLES[name]


def plan(
    table: Table,
    labels: Sequence[Labels] = (),
    methods: Sequence[str] = (),
    seeds: Sequence[int] = (),
    steps: int | None = None,
    **settings: Any,
) -> list[Planned]:
    """The runs of a table, or of a part of it. Counts of labels the paper does not have are run for every method."""
    for method in methods:
        if method not in METHODS:
            raise unknown("method", method, METHODS)
    in_table = {row.method for row in table.rows}
    not_in_paper = [n for n in labels if n != "all" and all(n not in row.targets for row in table.rows)]
    for method in methods:
        if method not in in_table:
            raise MixMatchError(f"method '{method}' is not in this table (it has: {', '.join(sorted(in_table))})")
    runs = []
    for row in table.rows:
        if methods and row.method not in methods:
            continue
        counts = [n for n in row.targets if not labels or n in labels]
        if "all" not in row.targets:
            counts += not_in_paper
        for count in counts:
            for seed in seeds or row.seeds_for.get(count, row.seeds):
                budget = full_steps(row.data) if steps is None else steps
                given = {"method": row.method, "labels": count, "seed": seed, "steps": budget}
                resolved = resolve(row.data, {**row.settings, **given, **settings})
                runs.append(Planned(row, replace(resolved, data_options=row.part)))
    if not runs:
        raise MixMatchError("nothing to run: no row of this table has these methods and labels")
    return runs


def finished(run: Planned, records: Sequence[Record]) -> Record | None:
    """The record of a run that was done already, here or elsewhere."""
    wanted = records_.experiment(run.settings)
    for record in records:
        if (record["seed"], record["steps"]) != (run.settings.seed, run.settings.steps):
            continue
        if records_.experiment_of(record) == wanted:
            return record
    return None


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
    **options: Any,
) -> list[tuple[Planned, str]]:
    """Train what is not finished. A run that fails does not stop the rest; returns those with the reason."""
    try:
        records_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MixMatchError(f"cannot write to {records_folder}: {error.strerror}; choose another --results") from None
    records = records_.load_all(records_folder, warn=lambda message: None)
    numbers = {run.name: f"{number}/{len(runs)}" for number, run in enumerate(runs, 1)}
    heads = {
        run.name: f"[{numbers[run.name]}] {run.row.name}, {_count(run.settings.labels)}, seed {run.settings.seed}"
        for run in runs
    }
    todo: dict[str, Planned] = {}
    for run in runs:
        if finished(run, records):
            say(f"{heads[run.name]}: finished before")
        else:
            todo[run.name] = run
    waiting = list(todo.values())
    failed: list[tuple[Planned, str]] = []

    def ended(number: int, outcome: Record | Exception) -> None:
        run = waiting[number]
        if isinstance(outcome, Exception):  # whatever it is, the other runs can go on
            reason = str(outcome) if isinstance(outcome, MixMatchError) else f"{type(outcome).__name__}: {outcome}"
            say(f"{heads[run.name]}: failed: {reason}")
            failed.append((run, reason))
            return
        try:
            records_.save(outcome, records_folder)
        except OSError as error:
            reason = f"its record cannot be written to {records_folder} ({error.strerror or error})"
            say(f"{heads[run.name]}: {reason}: make room, then start again; finished runs cost nothing")
            failed.append((run, reason))

    # Rows may differ in what a bar does not show, such as K: their number tells them apart.
    shown = {run.name: reporter() if reporter else progress.on_stderr(f" {numbers[run.name]}") for run in waiting}
    jobs = [_job(run, runs_folder, shown[run.name], **options) for run in waiting]
    api.train_many(jobs, started=lambda number: say(heads[waiting[number].name]), ended=ended)
    return failed


def _job(run: Planned, runs_folder: Path, reporter: Reporter, **options: Any) -> dict[str, Any]:
    values = run.settings.to_dict()
    data, of_method = values.pop("data"), values.pop("method_settings")
    values["part"] = values.pop("data_options")
    values.pop("precision")  # the device's, unless the options say otherwise
    folder = runs_folder / run.name
    return {"data": data, "out": folder, "resume": True, "reporter": reporter, **values, **of_method, **options}


def _count(labels: Labels) -> str:
    return "all labels" if labels == "all" else f"{labels:,} labels"


class Estimator:
    """Seconds a run will take, from a few steps on made-up images of the right shape. Alike runs are tried once."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._known: dict[tuple[Any, ...], tuple[float, float]] = {}

    def seconds(self, settings: Settings) -> float:
        of_method = sorted(settings.method_settings.items())
        key = (settings.data, settings.method, settings.network, settings.batch_size, *of_method)
        if key not in self._known:
            self._known[key] = self._trial(settings)
        step, evaluation = self._known[key]
        return settings.steps * step + max(1, settings.steps // settings.eval_every) * evaluation

    def _trial(self, settings: Settings) -> tuple[float, float]:
        """Seconds for a step and for an evaluation."""
        # A processor's time grows with the batch, so a small one will do; a GPU's does not.
        batch = settings.batch_size if self.device.type == "cuda" else min(8, settings.batch_size)
        info = SOURCES[settings.data.removesuffix("-test")]
        random = np.random.default_rng(0)
        shape, count = info.image_shape, max(256, 2 * info.classes)
        images = Images(
            random.integers(0, 256, (count, *shape), np.uint8), np.arange(count, dtype=np.int64) % info.classes
        )
        source = Source("trial", tuple(map(str, range(info.classes))), images, images)
        small = resolve(
            settings.data,
            {
                "method": settings.method,
                "network": settings.network,
                "batch_size": batch,
                "labels": info.classes,
                "valid": 0,
                **settings.method_settings,
            },
        )
        small = replace(small, precision=api.default_precision(small, self.device, source.input_shape))
        network = networks.build(settings.network, info.classes, source.input_shape)
        split, on_cuda = make_split(source, info.classes, seed=1), self.device.type == "cuda"
        trainer = Trainer(small, source, split, network, self.device, record=on_cuda)
        steps = 32 if on_cuda else 1  # recorded steps follow each other closely
        trainer.advance(steps)
        best = min(_timed(lambda: trainer.advance(trainer.step + steps), self.device) for _ in range(2)) / steps
        evaluation = _timed(lambda: trainer.evaluate(), self.device) * info.test / count
        return best * settings.batch_size / batch, evaluation


def _timed(work: Callable[[], object], device: torch.device) -> float:
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began

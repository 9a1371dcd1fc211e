"""Training teachers and students: ordinary runs, on a GPU several side by side."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mixmatch.data import is_path
from mixmatch.execution.executor import Executor, Here
from mixmatch.settings import resolve
from mixmatch.storage import PRIVATE, replace_durably
from mixmatch.text import duration
from mixmatch.training.job import Job, Work
from mixmatch.training.progress import Reporter
from mixmatch.training.run import Record

Say = Callable[[str], None]


def silent(text: str) -> None:
    """Says nothing."""


@dataclass(frozen=True)
class RunOptions:
    """How runs are trained. None of it changes what they learn."""

    resume: bool = False
    checkpoint_every: int | None = None
    device: str = "auto"
    data_dir: Path | None = None
    strict: bool = False
    reporter: Callable[[], Reporter] | None = None
    """Makes each run's reporter; by default a progress bar on a terminal."""
    executor: Executor | None = None
    """Who does the runs; by default this machine."""


def make_run(
    data: str, out: Path, given: Mapping[str, Any], data_options: Mapping[str, Any], options: RunOptions
) -> Work:
    """A run on the part of a data set that `data_options` describes. A setting that is None is not given."""
    given = {name: value for name, value in given.items() if value is not None}
    settings = resolve(data, given, "images" if is_path(data) else None)
    job = Job(
        replace(settings, data_options=dict(data_options)),
        out,
        tuple(given),
        resume=options.resume,
        checkpoint_every=options.checkpoint_every,
        device=options.device,
        data_dir=options.data_dir,
        strict=options.strict,
    )
    return Work(job, reporter=options.reporter() if options.reporter else None)


def train_runs(
    runs: Sequence[Work],
    noun: str,
    say: Say = silent,
    finished: Callable[[Record], None] = lambda record: None,
    executor: Executor | None = None,
) -> list[Record]:
    """Train the runs. Those already finished are not trained again. One that fails does not stop the others; its error
    is raised when all have ended, the first of several.

    Args:
        noun: what a run is called in progress messages.
        finished: called with each record as soon as there is one.
        executor: who does the runs; by default this machine.
    """
    done = 0
    began = time.monotonic()

    def started(number: int) -> None:
        left = (time.monotonic() - began) / max(1, done) * (len(runs) - done)
        say(f"{noun} {number + 1} of {len(runs)}" + (f", {duration(left)} left" if done else ""))

    records: dict[int, Record] = {}
    failed: dict[int, Exception] = {}
    with closing((executor or Here()).run(runs, started)) as outcomes:
        for number, outcome in outcomes:
            done += 1
            if isinstance(outcome, Exception):
                say(f"{noun} {number + 1} failed: {outcome}")
                failed[number] = outcome
            else:
                records[number] = outcome
                finished(outcome)
    if failed:
        raise failed[min(failed)]
    return [records[number] for number in range(len(runs))]


def write_record(path: Path, record: Record) -> None:
    """Write a record that only its owner may read: it says what was found in private data."""
    replace_durably(path, (json.dumps(record, indent=1) + "\n").encode(), PRIVATE)

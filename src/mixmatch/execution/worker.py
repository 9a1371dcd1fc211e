"""Jobs in another process: what is sent there, what comes back.

Only plain values travel. Models and metrics stay in the run folders, which both sides see.
"""

from __future__ import annotations

import json
import math
import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

import mixmatch
from mixmatch.errors import MixMatchError
from mixmatch.execution import here
from mixmatch.execution.here import SIDE_BY_SIDE, Outcome
from mixmatch.training import session
from mixmatch.training.job import Job, Work
from mixmatch.training.progress import Reporter
from mixmatch.training.run import Busy, RunFolder, RunRecord
from mixmatch.training.stop import Interrupted

BUSY_SECONDS = 120.0
"""How long to wait for a folder that another process holds: one of an earlier attempt may be about to end."""

ENVIRONMENT = ("MIXMATCH_DATA", "OMP_NUM_THREADS")
"""What of the environment a run depends on."""

Order = Mapping[str, Any]
Answer = Mapping[str, Any]


# ---------------------------------------------------------------- on the side that asks


def can_travel(work: Work) -> bool:
    """Whether a job alone is enough to do the work: objects of this process are not sent."""
    return work.network is None and work.method is None and (work.data is None or work.reads_again)


def to_send(work: Work) -> Job:
    """The job as another process gets it. Once begun it may be resumed by yet another, so what `resume` is for, not to
    continue what is there already, is checked here."""
    if not can_travel(work):
        raise MixMatchError(
            "a network, a method or a Source of your own stays in this process: name what is installed on every "
            "machine and data on disk, or leave ray= out"
        )
    job, run = work.job, RunFolder(work.job.out)
    if not job.resume and run.continues(False):
        session.resumed(job, run, None)  # an error
    return replace(job, resume=True)


def group(jobs: Sequence[tuple[int, Job]], places: int, limit: int | None) -> list[list[tuple[int, Job]]]:
    """Jobs in groups to do side by side, at least one for each place if there are enough of them.

    >>> [len(each) for each in group([(number, None) for number in range(12)], 2, None)]
    [5, 5, 2]
    >>> [len(each) for each in group([(number, None) for number in range(4)], 8, None)]
    [1, 1, 1, 1]
    """
    size = max(1, min(limit or SIDE_BY_SIDE, math.ceil(len(jobs) / max(1, places))))
    return [list(jobs[first : first + size]) for first in range(0, len(jobs), size)]


def order(jobs: Sequence[tuple[int, Job]], device: str, threads: int | None, limit: int | None = None) -> Order:
    """What a process is to do, as plain JSON."""
    return {
        "jobs": [[number, replace(job, device=device).to_dict()] for number, job in jobs],
        "threads": threads,
        "limit": limit,
        "folder": str(Path.cwd()),
        "environment": {name: os.environ.get(name) for name in ENVIRONMENT},
        "version": mixmatch.__version__,
    }


def outcome_of(answer: Answer) -> Outcome:
    if "record" in answer:
        return RunRecord(answer["record"])
    if answer["trace"] is None:
        return MixMatchError(answer["error"])
    error = RuntimeError(answer["error"])
    error.add_note(answer["trace"])
    return error


# ---------------------------------------------------------------- on the side that does it


class Notes(Reporter):
    """Keeps what a run has to say."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


def do(order: Order) -> Iterator[tuple[int, Answer]]:
    """Do the jobs of an order; yields the number of each and its answer as it ends."""
    waiting = {number: Job.from_dict(job) for number, job in order["jobs"]}
    try:
        _settle(order)
    except MixMatchError as error:
        yield from ((number, _answer(error)) for number in waiting)
        return
    until = time.monotonic() + BUSY_SECONDS
    while waiting:
        notes = {number: Notes() for number in waiting}
        numbers, work = list(waiting), [Work(job, reporter=notes[number]) for number, job in waiting.items()]
        for place, outcome in here.run(work, order["limit"]):
            number = numbers[place]
            if not isinstance(outcome, Busy) or time.monotonic() > until:
                del waiting[number]
                yield number, {**_answer(outcome), "notes": notes[number].texts}
        if waiting:
            time.sleep(1)


def _settle(order: Order) -> None:
    """Be where the command was given, with its data and its number of threads."""
    if order["version"] != mixmatch.__version__:
        raise MixMatchError(
            f"{platform.node()} has mixmatch {mixmatch.__version__}, the command is of {order['version']}: install "
            "the same version on every machine"
        )
    try:
        os.chdir(order["folder"])
    except OSError as error:
        raise MixMatchError(
            f"{platform.node()} cannot open {order['folder']} ({error.strerror}): give the command in a folder that "
            "all machines share"
        ) from None
    for name, value in order["environment"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if order["threads"] is not None:
        torch.set_num_threads(order["threads"])


def _answer(outcome: Outcome) -> dict[str, Any]:
    if not isinstance(outcome, Exception):
        return {"record": dict(outcome)}
    if isinstance(outcome, MixMatchError):
        return {"error": str(outcome), "trace": None}
    trace = "".join(traceback.format_exception(outcome)).rstrip()
    return {"error": f"{type(outcome).__name__}: {outcome}", "trace": trace}


def main() -> None:
    """A process that takes orders from standard input, a line of JSON each, and answers on standard output. When the
    input ends, so does the process; runs under way are saved first."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints
    orders: SimpleQueue[str | None] = SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            orders.put(line)
        orders.put(None)
        os.kill(os.getpid(), signal.SIGTERM)  # which ends this process at once if no run is under way

    threading.Thread(target=read, daemon=True).start()
    try:
        while (line := orders.get()) is not None:
            for number, answer in do(json.loads(line)):
                print(json.dumps([number, answer]), file=answers, flush=True)
    except Interrupted as stopped:
        sys.exit(128 + stopped.signal)


if __name__ == "__main__":
    main()

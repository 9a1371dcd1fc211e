"""A small sweep for tests, and a driver that is killed again and again: `python sweeps.py FOLDER`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mixmatch.execution.executor import Here
from mixmatch.execution.here import Outcome
from mixmatch.experiments.tune.driver import tune
from mixmatch.experiments.tune.results import Result
from mixmatch.training.device import threads
from mixmatch.training.job import Work
from mixmatch.training.progress import Quiet, Reporter

STEPS, TRIALS = 30, 8
GIVEN = {
    "method": "supervised", "labels": 20, "steps": STEPS, "eval_every": 5, "batch_size": 4, "network": "wrn-10-1",
    "ema_decay": 0.8, "learning_rate": 1e-5,
}  # fmt: skip
SEARCH = ["learning_rate=1e-6..0.05:log", "weight_decay=0..0.1", "label_sampling=uniform,balanced"]


def sweep(out: Path, trials: int = TRIALS, **options: Any) -> Result:
    options = {"search": SEARCH, "only": True, "device": "cpu", **options}
    options.setdefault("reporter", lambda beside: Quiet())
    given = {**GIVEN, **options.pop("given", {})}
    with threads(1):
        return tune(options.pop("data", "digits"), given, out=out, trials=trials, **options)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Killer(Here):
    """Dies at a moment: before a trial is done, in the middle of it, or when it is done and nobody knows yet."""

    def __init__(self, moment: str, trial: int) -> None:
        super().__init__()
        self._moment, self._folder = moment, f"trial-{trial:03}"

    def run(self, work: Sequence[Work], started: Any = lambda number: None) -> Iterator[tuple[int, Outcome]]:
        at = any(each.job.out.name == self._folder for each in work)
        if at and self._moment == "asked":
            die()
        for number, outcome in super().run(work, started):
            if at and self._moment == "done":
                die()
            yield number, outcome


class Deadly(Reporter):
    """Dies at the second evaluation, which a checkpoint precedes."""

    def __init__(self) -> None:
        self._evaluated = 0

    def evaluated(self, record: Any) -> None:
        self._evaluated += 1
        if self._evaluated == 2:
            die()


def killed(out: Path, moment: str, trial: int) -> None:
    """Continue the sweep in a process that dies at the moment."""
    pid = os.fork()
    if pid == 0:
        options: dict[str, Any] = {"checkpoint_every": 5}
        if moment == "suggested":  # between two values of a trial
            from optuna.trial import Trial

            plain = Trial.suggest_float

            def suggest(self: Trial, name: str, *args: Any, **kwargs: Any) -> float:
                if self.number == trial and name == "weight_decay":
                    die()
                return plain(self, name, *args, **kwargs)

            Trial.suggest_float = suggest
        elif moment == "training":
            options["reporter"] = lambda beside: Deadly() if beside == f" trial {trial}" else Quiet()
        sweep(out, executor=Killer(moment, trial), **options)
        os._exit(1)  # it should have died
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), (moment, status)


MOMENTS = [("asked", 0), ("suggested", 2), ("training", 3), ("done", 4), ("done", 5)]
"""When the driver dies, and with which trial. The last is one that was stopped."""

if __name__ == "__main__":
    for moment, trial in MOMENTS:
        killed(Path(sys.argv[1]), moment, trial)

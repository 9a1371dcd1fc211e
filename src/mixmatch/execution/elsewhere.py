"""Runs that other processes do: send the jobs, follow the folders, take the answers."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence

from mixmatch.errors import MixMatchError
from mixmatch.execution.here import Outcome, Started
from mixmatch.execution.worker import Answer, outcome_of, to_send
from mixmatch.training import checkpoint, progress
from mixmatch.training.job import Job, Work
from mixmatch.training.run import RunFolder
from mixmatch.training.stop import Interrupted, Stop

LOOK_SECONDS = 1.0
"""How often the folders of the runs are looked at."""

Answers = Callable[[float], Iterable[tuple[int, Answer]]]
"""Waits for answers, so many seconds at most."""


class Elsewhere(ABC):
    """An executor whose runs are in other processes."""

    @abstractmethod
    def sending(self, jobs: Sequence[tuple[int, Job]]) -> contextlib.AbstractContextManager[Answers]:
        """Send jobs. At the end of the context what is still under way is asked to save and stop, and waited for."""

    def run(
        self, work: Sequence[Work], started: Started = lambda number: None
    ) -> Generator[tuple[int, Outcome], None, None]:
        jobs = []
        for number, each in enumerate(work):
            try:
                jobs.append((number, to_send(each)))
            except MixMatchError as error:
                started(number)
                yield number, error
        if not jobs:
            return
        stop, left = Stop(), len(jobs)
        follower = Follower(work, started)
        # Ray has a way of its own with signals, so listening begins after it.
        with self.sending(jobs) as answers, contextlib.closing(follower), stop.listening():
            stop.runs += 1  # so that a request to stop is noted
            while left:
                for number, answer in answers(LOOK_SECONDS):
                    left -= 1
                    follower.ended(number, answer.get("notes", ()))
                    yield number, outcome_of(answer)
                follower.look()
                if stop.signal is not None:
                    raise Interrupted(stop.signal, 0)


class Follower:
    """Shows runs by what they write: evaluations and checkpoints. Call `look` every second or so."""

    def __init__(self, work: Sequence[Work], started: Started) -> None:
        self._runs, self._started = {number: Followed(each) for number, each in enumerate(work)}, started

    def look(self) -> None:
        for number in list(self._runs):
            self._look(number)

    def _look(self, number: int) -> None:
        run = self._runs[number]
        with contextlib.suppress(OSError, MixMatchError):  # being written, or on a file server that is slow today
            if run.shown:
                run.look()
            elif run.begun():
                self._started(number)
                run.begin()

    def ended(self, number: int, notes: Sequence[str] = ()) -> None:
        """Show the last of a run; of one that was over before it was seen, that it began."""
        if self._runs[number].shown:
            self._look(number)
        else:
            self._started(number)
        self._runs.pop(number).end(notes)

    def close(self) -> None:
        for run in self._runs.values():
            run.end()


class Followed:
    """One run."""

    def __init__(self, work: Work) -> None:
        self._work, self._run = work, RunFolder(work.job.out)
        self._reporter = progress.Quiet()
        self._attempt = self._step = 0
        with contextlib.suppress(OSError):  # a folder one may not look into: the run will say so
            self._attempt, self._step = self._run.attempt(), self._saved()
        self._evaluated, self._size, self._values = self._step, -1, dict[str, float]()
        self.shown = False

    def begun(self) -> bool:
        """Whether a process has begun with it since this was made."""
        return self._run.attempt() > self._attempt

    def begin(self) -> None:
        settings = self._work.job.settings
        self._reporter = self._work.reporter or progress.on_stderr(f" {settings.labels} seed {settings.seed}")
        self.shown, self._attempt = True, self._run.attempt()
        self._reporter.start(f"{settings.data} {settings.method}", self._step, settings.steps)
        if self._work.note:
            self._reporter.note(self._work.note)

    def look(self) -> None:
        attempt = self._run.attempt()
        if attempt > self._attempt:
            self._attempt, self._evaluated, self._step = attempt, self._saved(), self._saved()
            self._reporter.note(f"its process or machine was lost: resumed at step {self._step:,} by another")
        size = (self._run.path / "metrics.jsonl").stat().st_size
        if size != self._size:
            self._size = size
            for record in self._run.metrics():
                if record["step"] > self._evaluated:
                    self._evaluated = record["step"]
                    self._values = {n: v for n, v in record.items() if n.startswith("loss") or n == "confidence"}
                    self._advance(record["step"])
                    self._reporter.evaluated(record)
        self._advance(self._saved())

    def _advance(self, step: int) -> None:
        if step > self._step:
            self._step = step
            self._reporter.steps(step, self._values)

    def _saved(self) -> int:
        """The step of the newest checkpoint, 0 before the first."""
        found = checkpoint.list_checkpoints(self._run.checkpoints)
        return max(0, checkpoint.step_of(found[0])) if found else 0

    def end(self, notes: Sequence[str] = ()) -> None:
        for text in notes:
            self._reporter.note(text)
        self._reporter.close()

"""Runs that other processes do: send the jobs, follow the folders, take the answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, closing

from mixmatch.errors import MixMatchError
from mixmatch.execution.follow import Follower
from mixmatch.execution.here import Outcome, Started
from mixmatch.execution.worker import Answer, outcome_of, to_send
from mixmatch.training.job import Job, Work
from mixmatch.training.stop import Interrupted, Stop

LOOK_SECONDS = 1.0
"""How often the folders of the runs are looked at."""

Answers = Callable[[float], Iterable[tuple[int, Answer]]]
"""Waits for answers, so many seconds at most."""


class Elsewhere(ABC):
    """An executor whose runs are in other processes."""

    @abstractmethod
    def sending(self, jobs: Sequence[tuple[int, Job]]) -> AbstractContextManager[Answers]:
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
        with self.sending(jobs) as answers, closing(follower), stop.listening():
            stop.runs += 1  # so that a request to stop is noted
            while left:
                for number, answer in answers(LOOK_SECONDS):
                    left -= 1
                    follower.ended(number, answer.get("notes", ()))
                    yield number, outcome_of(answer)
                follower.look()
                if stop.signal is not None:
                    raise Interrupted(stop.signal, 0)

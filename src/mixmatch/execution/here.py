"""Lists of jobs on this machine's device, side by side: runs take turns, a few dozen steps each.

On a GPU a turn only hands work over, each run to a stream of its own, and the streams run at the same time: where one
run's kernels leave a part of the GPU idle, another's fill it.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import traceback
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from mixmatch.errors import MixMatchError, chain
from mixmatch.training.device import OutOfMemory, own_generator, pick_device
from mixmatch.training.job import Work
from mixmatch.training.run import RunRecord
from mixmatch.training.session import running
from mixmatch.training.stop import Interrupted, Stop

SIDE_BY_SIDE = 5
"""How many runs share a GPU if its memory allows. The paper has five seeds per cell."""

Run = Generator[None, None, RunRecord]
Outcome = RunRecord | Exception
Started = Callable[[int], None]


def run(
    work: Sequence[Work], limit: int | None = None, started: Started = lambda number: None
) -> Generator[tuple[int, Outcome], None, None]:
    """Do jobs side by side on one device; yields the number and the outcome of each as it ends.

    Each ends as it would have ended alone: bit for bit on a CPU, and on a GPU up to the rounding differences that any
    two runs there have. One that fails does not stop the others.

    Args:
        work: the jobs.
        limit: how many at a time; by default as many as are worth it and fit into memory, on a CPU one.
        started: called with the number of a job when it begins.

    Yields:
        The number of a job with its record, or with the error that ended it.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, when every run has saved a checkpoint.
    """
    devices = {pick_device(each.job.device) for each in work}
    gpu = next((device for device in devices if device.type == "cuda"), None)
    scheduler = Scheduler(limit if limit is not None else 1 if gpu is None else SIDE_BY_SIDE, gpu)
    stop = Stop()
    own = [id(each.network) for each in work if each.network is not None]
    if len(set(own)) < len(own):
        raise MixMatchError("two runs cannot train the same network object: give each a copy of its own")
    begun: dict[int, Mapping[str, Any]] = {}

    def make(number: int) -> Run:
        each = work[number]
        network = each.network
        if number in begun:  # there was too little memory for it next to others; now it resumes from its checkpoint
            each = replace(each, job=replace(each.job, resume=True))
            if network is not None:
                network.load_state_dict(begun[number])
        elif scheduler.limit > 1:
            begun[number] = copy.deepcopy(network.state_dict()) if network is not None else {}
        return running(each, stop, scheduler.limit > 1)

    with own_generator(*devices), stop.listening():
        yield from scheduler.run(len(work), make, stop, started)


def run_all(work: Sequence[Work], limit: int | None = None, started: Started = lambda number: None) -> list[Outcome]:
    """Do jobs side by side, as `run` does; returns the outcome of each, in their order."""
    outcomes = dict(run(work, limit, started))
    return [outcomes[number] for number in range(len(work))]


def run_one(work: Work) -> RunRecord:
    """Do one job; its error is raised."""
    (outcome,) = run_all([work], limit=1)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


class Scheduler:
    """Lets at most `limit` runs take turns until all are done. `gpu` is the one they share, if it is one."""

    def __init__(self, limit: int, gpu: torch.device | None = None) -> None:
        self.limit = max(1, limit)
        self._gpu = gpu
        self._needed = 0

    def run(
        self, count: int, make: Callable[[int], Run], stop: Stop, started: Started
    ) -> Generator[tuple[int, Outcome], None, None]:
        """Do the runs `make` makes for 0 to `count` - 1; see `run`."""
        waiting, active = deque(range(count)), dict[int, Run]()
        interrupted: Interrupted | None = None
        try:
            while active or (waiting and not stop()):
                if waiting and not stop() and len(active) < self.limit and (not active or self._room()):
                    number = waiting.popleft()
                    started(number)
                    active[number] = make(number)
                for number, run in list(active.items()):
                    before, outcome = self._memory(), _turn(run)
                    if outcome is not None:
                        del active[number]
                    if isinstance(outcome, Interrupted):
                        interrupted = outcome
                    elif isinstance(outcome, OutOfMemory) and active:  # it may do with fewer next to it
                        self.limit = len(active)
                        waiting.appendleft(number)
                        self._free(outcome)
                    elif outcome is not None:
                        yield number, outcome
                        # The last error's frames are kept for a debugger, unless other runs need the memory they hold.
                        needed = active or waiting or isinstance(outcome, OutOfMemory)
                        if needed or (self._gpu is not None and not isinstance(outcome, Exception)):
                            self._free(outcome)
                    self._needed = max(self._needed, before - self._memory())
        finally:  # left over where an error is not a run's own, such as a second Ctrl-C: let go of their folders
            for run in active.values():
                run.close()
        if interrupted is not None:
            raise interrupted
        if waiting:  # asked to stop between two runs
            assert stop.signal is not None
            raise Interrupted(stop.signal, 0)

    def _room(self) -> bool:
        """Whether there is memory for one more run like those before."""
        return self._needed == 0 or self._memory() > 1.25 * self._needed

    def _memory(self) -> int:
        """Bytes of the GPU that are free, or a lot where there is none."""
        return 2**60 if self._gpu is None else torch.cuda.mem_get_info(self._gpu)[0]

    def _free(self, outcome: Outcome) -> None:
        """Give the memory of a run that ended back; an error holds on to it by its traceback."""
        for error in chain(outcome if isinstance(outcome, Exception) else None):
            traceback.clear_frames(error.__traceback__)
        gc.collect()
        if self._gpu is not None:
            with contextlib.suppress(RuntimeError):  # not worth the other runs
                torch.cuda.empty_cache()


def _turn(run: Run) -> Outcome | None:
    """Let a run take its next steps; returns how it ended, None if it goes on."""
    try:
        next(run)
    except StopIteration as last:
        record: RunRecord = last.value
        return record
    except Exception as error:
        return error
    return None

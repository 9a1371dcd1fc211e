"""Several runs on one device, side by side: they take turns, a few dozen steps each.

On a GPU a turn only hands work over, each run to a stream of its own, and the streams run at the same time: where one
run's kernels leave a part of the GPU idle, another's fill it.
"""

from __future__ import annotations

import contextlib
import gc
import traceback
from collections import deque
from collections.abc import Callable, Generator

import torch
from torch import nn

from mixmatch.errors import OutOfMemory, chain
from mixmatch.training.run import Record
from mixmatch.training.trainer import Interrupted, Stop

SIDE_BY_SIDE = 5
"""How many runs share a GPU if its memory allows. The paper has five seeds to a cell."""

Run = Generator[None, None, Record]
Outcome = Record | Exception


class Turns:
    """Lets at most `limit` runs take turns until all are done. `gpu` is the one they share, if it is one."""

    def __init__(self, limit: int, gpu: torch.device | None = None) -> None:
        self.limit = max(1, limit)
        self._gpu = gpu
        self._needed = 0

    def take(
        self,
        count: int,
        make: Callable[[int], Run],
        stop: Stop,
        started: Callable[[int], None],
        ended: Callable[[int, Outcome], None],
    ) -> list[Outcome]:
        """Do the runs `make` makes for 0 to `count` - 1. See `mixmatch.api.train_many`."""
        waiting, active = deque(range(count)), dict[int, Run]()
        outcomes: dict[int, Outcome] = {}
        interrupted: Interrupted | None = None

        def end(number: int, outcome: Outcome) -> None:
            del active[number]
            if isinstance(outcome, OutOfMemory) and active:  # it may do with fewer beside it
                self.limit = len(active)
                waiting.appendleft(number)
            else:
                outcomes[number] = outcome
                ended(number, outcome)
            # The frames of an error that nothing waits behind are left to a debugger, unless they hold what was short.
            ended_well = not isinstance(outcome, Exception)
            if active or waiting or isinstance(outcome, OutOfMemory) or (ended_well and self._gpu is not None):
                self._free(outcome)

        try:
            while active or (waiting and not stop()):
                if waiting and not stop() and len(active) < self.limit and (not active or self._room()):
                    number = waiting.popleft()
                    started(number)
                    active[number] = make(number)
                for number, run in list(active.items()):
                    before = self._memory()
                    try:
                        next(run)
                    except StopIteration as last:
                        end(number, last.value)
                    except Interrupted as error:
                        interrupted = error
                        del active[number]
                    except Exception as error:
                        end(number, error)
                    self._needed = max(self._needed, before - self._memory())
        finally:  # left over where an error is not a run's own, such as a second Ctrl-C: let go of their folders
            for run in active.values():
                run.close()
        if interrupted is not None:
            raise interrupted
        if waiting:  # asked to stop between two runs
            assert stop.signal is not None
            raise Interrupted(stop.signal, 0)
        return [outcomes[number] for number in range(count)]

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


def draws_itself(network: nn.Module) -> bool:
    """Whether a network has randomness of its own, as far as one can tell from its layers."""
    return any("drop" in type(module).__name__.lower() for module in network.modules())

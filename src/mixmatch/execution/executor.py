"""Who does a list of runs: this machine or a cluster. `reproduce`, `compare`, teachers, students do not know which."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Protocol

import torch

from mixmatch import terminal
from mixmatch.execution import here
from mixmatch.execution.here import SIDE_BY_SIDE, Outcome, Started
from mixmatch.execution.processes import Processes
from mixmatch.execution.ray import Ray
from mixmatch.execution.worker import can_travel
from mixmatch.training.device import pick_device
from mixmatch.training.job import Work


class Executor(Protocol):
    """Does jobs, each in its folder."""

    def run(self, work: Sequence[Work], started: Started = ...) -> Generator[tuple[int, Outcome], None, None]:
        """Yield the number of each job and its record, or the error that ended it, as it ends.

        Args:
            work: the jobs.
            started: called with the number of a job when it begins.

        Raises:
            Interrupted: after Ctrl-C or SIGTERM, when the runs have saved their checkpoints.
        """

    def places(self, device: str) -> int:
        """How many jobs for such a device it does at a time, if memory allows."""


class Here:
    """This machine: on one device side by side, on several GPUs a process for each."""

    def __init__(self, side_by_side: int | None = None, devices: Sequence[str] | None = None) -> None:
        """
        Args:
            side_by_side: how many share a device; by default as many as are worth it and fit into memory, on a CPU one.
            devices: a process for each of these; by default for each GPU, if there are several.
        """
        self._limit, self._devices = side_by_side, devices

    def run(
        self, work: Sequence[Work], started: Started = lambda number: None
    ) -> Generator[tuple[int, Outcome], None, None]:
        devices = self._devices if self._devices is not None else gpus({each.job.device for each in work})
        if len(devices) > 1 and len(work) > 1 and all(map(can_travel, work)):
            return Processes(devices, self._limit).run(work, started)
        return here.run(work, self._limit, started)

    def places(self, device: str) -> int:
        devices = self._devices if self._devices is not None else gpus({device})
        kind = pick_device(device).type if not devices else devices[0].partition(":")[0]
        return max(1, len(devices)) * (self._limit or (SIDE_BY_SIDE if kind == "cuda" else 1))


def gpus(wanted: set[str]) -> list[str]:
    """The GPUs to use if these are the devices of the jobs: none where a job names one, or a CPU."""
    if wanted not in ({"auto"}, {"cuda"}) or pick_device(*wanted).type != "cuda":
        return []
    return [f"cuda:{number}" for number in range(torch.cuda.device_count())]


def executor_for(ray: str | None = None, warn: Callable[[str], None] = terminal.warn) -> Executor:
    """This machine, or the Ray cluster at an address; `local` starts one here, `auto` finds one."""
    return Here() if ray is None else Ray(ray, warn)

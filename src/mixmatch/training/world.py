"""One run over several processes that torchrun started: which of them this is, and what they tell each other.

A step's batch consists of groups (`Settings.groups`); process r of R computes groups r, r + R, ... of each step. What
the groups give is averaged over all of them, so results do not depend on the number of processes: to the last bit over
gloo, where it is added in the order of the groups, and up to rounding over NCCL. A process that is alone is a World
too, with nothing to tell.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from mixmatch.errors import MixMatchError
from mixmatch.training.torchrun import attempt, started_processes

T = TypeVar("T")

PATIENCE = timedelta(hours=1)
"""How long the others wait for one, which may evaluate or write meanwhile. A process that dies is noticed at once."""


class World:
    """The processes of a run, as one of them sees it: a single one."""

    rank, size = 0, 1
    backend: str | None = None

    @property
    def leads(self) -> bool:
        """Whether this process locks the run folder, writes, evaluates and shows progress: one of them does."""
        return self.rank == 0

    def gather(self, tensors: Sequence[Tensor]) -> list[list[Tensor]]:
        """These tensors of every process, in the order of their ranks."""
        return [list(tensors)]

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their sums over the processes."""

    def numbers(self, number: float) -> list[float]:
        """A number of every process, in the order of their ranks. Does not wait for the device."""
        return [number]

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process. Does not wait for the device."""
        return any(self.numbers(flag))

    def barrier(self) -> None:
        """Wait until all processes are here."""
        self.numbers(0)

    def from_leader(self, value: T) -> T:
        """The leading process's value."""
        return value

    def check(self, groups: int) -> None:
        """Refuse groups that cannot be divided evenly."""
        if groups % self.size:
            raise MixMatchError(
                f"{self.size} processes cannot divide groups={groups} evenly: use groups={self.size} or a multiple "
                "of it, or another number of processes"
            )


class Processes(World):
    """Several processes, connected by torch.distributed: gloo for what is on the CPU, NCCL between GPUs."""

    def __init__(self, device: torch.device) -> None:
        if device.type not in ("cpu", "cuda"):
            raise MixMatchError(f"several processes cannot share a run on device={device.type}: use cpu or cuda")
        if device.type == "cuda":
            torch.cuda.set_device(device)
        self.backend = "nccl" if device.type == "cuda" else "gloo"
        backends = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        with _explained():
            store, self.rank, self.size = _meeting_point()
            # Under a name of its own, or addresses would be found of processes that are gone.
            store = dist.PrefixStore(f"{attempt()}-{next(_joined)}", store)  # type: ignore[attr-defined]
            dist.init_process_group(backends, store=store, rank=self.rank, world_size=self.size, timeout=PATIENCE)

    def gather(self, tensors: Sequence[Tensor]) -> list[list[Tensor]]:
        if not tensors:
            return [[] for _ in range(self.size)]
        # As bytes, so that all of it is one message, whatever the types.
        mine = torch.cat([t.detach().contiguous().reshape(-1).view(torch.uint8) for t in tensors])
        every = mine.new_empty(self.size, len(mine))
        with _explained():
            dist.all_gather(list(every.unbind()), mine)
        lengths = [t.numel() * t.element_size() for t in tensors]
        return [
            [
                part.clone().view(t.dtype).reshape(t.shape)
                for part, t in zip(torch.split(row, lengths), tensors, strict=True)
            ]
            for row in every
        ]

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        for dtype in dict.fromkeys(t.dtype for t in tensors):  # in an order that all processes share
            alike = [t for t in tensors if t.dtype == dtype]
            flat = torch.cat([t.reshape(-1) for t in alike])
            with _explained():
                dist.all_reduce(flat)
            for t, total in zip(alike, torch.split(flat, [t.numel() for t in alike]), strict=True):
                t.copy_(total.view_as(t))

    def numbers(self, number: float) -> list[float]:
        return [each.item() for (each,) in self.gather([torch.tensor(float(number), dtype=torch.float64)])]

    def from_leader(self, value: T) -> T:
        box = [value]
        with _explained():
            dist.broadcast_object_list(box, device=torch.device("cpu"))
        return box[0]


class Total:
    """Sums of tensors over the groups of a step, in all processes. Over gloo they are added in the order of the
    groups; over NCCL each process adds up its own, and the sums are exchanged once."""

    def __init__(self, world: World) -> None:
        self._world, self._sums = world, list[Tensor]()
        self._gathers = world.backend != "nccl"

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Add what a group gives. All processes are at their group of the same round."""
        for each in self._world.gather(tensors) if self._gathers else [list(tensors)]:
            if self._sums:
                torch._foreach_add_(self._sums, each)
            else:
                self._sums = [t.detach().clone() for t in each]

    def mean(self, groups: int) -> list[Tensor]:
        """The means over all groups."""
        if not self._gathers:
            self._world.sum_(self._sums)
        torch._foreach_div_(self._sums, groups)
        return self._sums


_joined = itertools.count()
"""How often this process has joined the others: for each run anew."""


@cache
def _meeting_point() -> tuple[Any, int, int]:
    """Where the processes leave their addresses, which of them this is, and how many there are."""
    meeting: tuple[Any, int, int] = next(dist.rendezvous("env://", timeout=PATIENCE))  # type: ignore[attr-defined]
    return meeting


@contextlib.contextmanager
def joined(device: torch.device, several: bool = True) -> Iterator[World]:
    """The processes that torchrun started, if it did and `several` are to share a run; else this one alone."""
    if not several or started_processes() == 1:
        yield World()
        return
    world = Processes(device)
    yield world  # after an error the others may never come: no more waiting for them
    world.barrier()
    gc.collect()  # a graph that calls NCCL has to go before NCCL does
    dist.destroy_process_group()


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """A process that cannot reach the others says so in one line."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise  # said by who captures
        why = next(iter(str(error).splitlines()), "")[:160]
        raise MixMatchError(
            f"the other processes of this run cannot be reached ({why}): see what ended them, then resume"
        ) from None

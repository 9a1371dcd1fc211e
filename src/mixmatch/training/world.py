"""One run over several processes that torchrun started: which of them this is, and what they exchange.

A step's batch consists of groups (`Settings.groups`); process r of R computes groups r, r + R, ... of each step. The
results of the groups are averaged over all of them, so results do not depend on the number of processes: to the last
bit over gloo, where it is added in the order of the groups, and up to rounding over NCCL. A single process is a World,
too, with nothing to exchange.
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

    def average_(self, tensors: Sequence[Tensor]) -> None:
        """Replace contiguous tensors by their means over the processes."""

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

    def average_(self, tensors: Sequence[Tensor]) -> None:
        with _explained():
            for tensor in tensors:
                dist.all_reduce(tensor, dist.ReduceOp.AVG)

    def numbers(self, number: float) -> list[float]:
        return [each.item() for (each,) in self.gather([torch.tensor(float(number), dtype=torch.float64)])]

    def from_leader(self, value: T) -> T:
        box = [value]
        with _explained():
            dist.broadcast_object_list(box, device=torch.device("cpu"))
        return box[0]


class Total:
    """Sums of tensors over the groups of a step, in all processes. Over gloo they are added in the order of the
    groups; over NCCL each process adds up its own, and the sums are exchanged once.

    They lie in one buffer for each type: a GPU copies, sends and divides all of them by a few kernels.
    """

    def __init__(self, world: World) -> None:
        self._world, self._sums, self._like = world, list[Tensor](), list[Tensor]()
        self._gathers = world.backend != "nccl"

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Add what a group gives. All processes are at their group of the same round."""
        self._like = self._like or [torch.empty_like(t, device="meta") for t in tensors]
        given = [_joint(alike, like) for alike, like in zip(by_type(tensors), by_type(self._like), strict=True)]
        for each in self._world.gather(given) if self._gathers else [given]:
            if self._sums:
                torch._foreach_add_(self._sums, each)
            else:
                self._sums = each

    def mean(self, groups: int) -> list[Tensor]:
        """The means over all groups."""
        if not self._gathers:
            self._world.average_(self._sums)
            groups //= self._world.size
        if groups > 1:
            torch._foreach_div_(self._sums, groups)
        found = {total.dtype: _parts(total, like) for total, like in zip(self._sums, by_type(self._like), strict=True)}
        return [next(found[like.dtype]) for like in self._like]


def by_type(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """The tensors of each type. PyTorch works on many tensors by one kernel only if they are alike in that."""
    return [[t for t in tensors if t.dtype == dtype] for dtype in dict.fromkeys(t.dtype for t in tensors)]


def _joint(tensors: Sequence[Tensor], like: Sequence[Tensor]) -> Tensor:
    """Tensors of a type, copied one after the other into a buffer."""
    buffer = tensors[0].new_empty(sum(t.numel() for t in tensors))
    torch._foreach_copy_(list(_parts(buffer, like)), list(tensors))
    return buffer


def _parts(buffer: Tensor, like: Sequence[Tensor]) -> Iterator[Tensor]:
    """What tensors become in a buffer: with the strides that they have, so that copies are of whole memory."""
    start = 0
    for each in like:
        yield buffer.as_strided(each.shape, each.stride(), start)
        start += each.numel()


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

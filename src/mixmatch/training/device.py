"""Where and how a run computes: the device and its stream, the precision, compiled or not, the number of threads, the
generator of random numbers."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import nn

from mixmatch import terminal
from mixmatch.errors import MixMatchError
from mixmatch.settings import Precision, Settings
from mixmatch.training.torchrun import started_processes

COMPILE_FROM = 4096
"""Compile by default on CUDA from this many steps on: compiling takes about a minute."""


class OutOfMemory(MixMatchError, torch.OutOfMemoryError):
    """The device does not have enough free memory for this run right now."""


class Speed(NamedTuple):
    """How steps are taken: compiled, and as a CUDA graph."""

    compile: bool
    graph: bool


def pick_device(name: str | torch.device) -> torch.device:
    """A device by name; `auto` is the best there is."""
    name = str(name)
    if started_processes() > 1 and torch.cuda.is_available() and name in ("auto", "cuda"):
        name = f"cuda:{_own_gpu()}"
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return torch.device(next(kind for kind in ("cuda", "mps", "cpu") if available[kind]))
    kind = name.partition(":")[0]
    if kind not in available:
        raise MixMatchError(f"unknown device '{name}': use auto, cpu, cuda or mps")
    if not available[kind]:
        raise MixMatchError(f"device '{name}' is not available here: use device=cpu")
    try:
        return torch.device(name)
    except RuntimeError:
        raise MixMatchError(f"unknown device '{name}': use auto, cpu, cuda or mps") from None


def _own_gpu() -> int:
    """The number of the GPU of this process, one of several that torchrun has started on this machine."""
    number, there = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if number >= there:
        raise MixMatchError(
            f"torchrun started {number + 1} processes or more here, but there are {there} GPUs, one for each: start "
            f"{there}, or use device=cpu"
        )
    return number


def default_precision(settings: Settings, device: torch.device, input_shape: Sequence[int]) -> Precision:
    """bf16 where it is faster: for images on CUDA, and on a processor with instructions for it if they are not tiny."""
    if settings.network == "mlp" or len(input_shape) != 3:
        return "fp32"
    if device.type == "cpu":
        known = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
        return "bf16" if known is not None and known() and min(input_shape[1:]) >= 24 else "fp32"
    return "bf16" if device.type == "cuda" else "fp32"


def default_speed(steps: int, device: torch.device, compile: bool | None) -> Speed:
    """How to take steps, if `compile` does not say."""
    if compile is not None:
        return Speed(compile, compile)
    on_cuda = device.type == "cuda"
    return Speed(on_cuda and steps >= COMPILE_FROM, on_cuda)


def has_own_randomness(network: nn.Module) -> bool:
    """Whether a network draws random numbers itself, as far as its layers show."""
    layers = (module for module in network.modules() if "drop" in type(module).__name__.lower())
    return any(getattr(layer, "p", getattr(layer, "drop_prob", 1)) != 0 for layer in layers)


def default_threads(input_shape: Sequence[int], device: torch.device) -> int | None:
    """How many threads to compute with on a CPU: what PyTorch chooses, but one for features, whose steps are so short
    that threads wait longer for each other than they save (benchmarks/threads.py). None for a process that drives a
    GPU."""
    if device.type != "cpu":
        return None
    return 1 if len(input_shape) == 1 and "OMP_NUM_THREADS" not in os.environ else torch.get_num_threads()


@contextlib.contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Compute with this many threads on the CPU; None leaves it as it is."""
    before = torch.get_num_threads()
    if count is not None and count != before:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


@contextlib.contextmanager
def explained_shortage(device: torch.device, saved_in: Callable[[], str | None]) -> Iterator[None]:
    """Replace PyTorch's long out-of-memory message with one line that says what to do."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        more = re.search(r"Tried to allocate ([\d.]+ \w+)", str(error))
        wanted = f" (it wanted {more[1]} more)" if more else ""
        folder = saved_in()
        again = f"resume (what was saved is in {folder})" if folder else "try again"
        raise OutOfMemory(
            f"{device} has too little memory for this run{wanted}: make room and {again}, or begin anew with smaller "
            "batches or a smaller network"
        ) from error


_idle: dict[int, list[torch.cuda.Stream]] = {}
"""Streams of each GPU whose owners are gone. Libraries keep memory for every stream they have seen, so streams are
reused."""


def stream_for(owner: object, device: torch.device) -> torch.cuda.Stream:
    """A stream that no other owner gets as long as this one lives, up to the 32 that PyTorch has."""
    idle = _idle.setdefault(device.index or 0, [])
    try:
        stream = idle.pop()
    except IndexError:
        # A high priority: side streams of the kernels (`mixmatch.networks.cuda`) fill the gaps.
        stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
    weakref.finalize(owner, idle.append, stream)
    return stream


_turn = threading.RLock()
"""The right to use PyTorch's generator, which all threads of a process share."""


@contextlib.contextmanager
def own_generator(*devices: torch.device) -> Iterator[None]:
    """Use PyTorch's generator, on the CPU and on those devices that are GPUs, exclusively; afterwards it is restored.

    A training seeds it for initial weights and for layers such as dropout. Two trainings in two threads would draw from
    each other's numbers, so the second waits for the first: both end as they would have ended alone.
    """
    if not _turn.acquire(blocking=False):
        terminal.warn("another thread of this process is training: this one waits for it, so that both are exact")
        _turn.acquire()
    try:
        with torch.random.fork_rng(devices=[device for device in devices if device.type == "cuda"]):
            yield
    finally:
        _turn.release()


def seed_generator(seed: int, device: torch.device) -> None:
    """As `torch.manual_seed`, which on a CPU would also note where it was called from for each kind of GPU that is not
    in use: a tenth of a small network's step."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)

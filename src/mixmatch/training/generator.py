"""PyTorch's generator of random numbers, which all threads of a process share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from mixmatch import terminal

_turn = threading.RLock()


@contextmanager
def own_generator(*devices: torch.device) -> Iterator[None]:
    """Have the generator, on the CPU and on those of the devices that are GPUs, to oneself; afterwards it is as it was.

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

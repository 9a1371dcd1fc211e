"""A CUDA stream for each trainer, so that several can share a GPU."""

from __future__ import annotations

import weakref

import torch

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

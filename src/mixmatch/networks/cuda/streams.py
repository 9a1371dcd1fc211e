"""Work on a second CUDA stream, beside that of the current one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch


@cache
def _side_stream(main: int, device: torch.device, priority: int) -> torch.cuda.Stream:
    """The one side stream of this priority for a main stream, by its handle."""
    return torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]


class SideStream:
    """Runs work on a side stream that is joined on exit. `urgent` gives it the priority of the main stream; else it
    runs where the main stream leaves the GPU idle. On a CPU the work is done at once."""

    def __init__(self, device: torch.device, urgent: bool = False) -> None:
        self._main: torch.cuda.Stream | None = None
        self._running: list[Any] = []
        if device.type == "cuda":
            self._main = torch.cuda.current_stream(device)
            self._side = _side_stream(self._main.cuda_stream, device, -1 if urgent else 0)

    def __enter__(self) -> SideStream:
        return self

    def run(self, work: Callable[..., object], *arguments: Any) -> None:
        """Do work that writes its results to tensors among its arguments: memory that it allocates itself belongs to
        the side stream."""
        if self._main is None:
            work(*arguments)
            return
        # Kept until the streams are joined: memory freed now would be reused by the main stream while this work runs.
        self._running.append((work, arguments))
        self._side.wait_stream(self._main)
        with torch.cuda.stream(self._side):
            work(*arguments)

    def __exit__(self, *error: object) -> None:
        """Join. A side stream without work is not part of a graph that is being captured, and to wait for it would end
        the capture."""
        if self._main is not None and self._running:
            self._main.wait_stream(self._side)

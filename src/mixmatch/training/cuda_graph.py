"""A step captured once as a CUDA graph and then replayed: hundreds of kernels start with one call, without waiting.

The draws of a chunk of steps lie in fixed places on the device, one row of bytes per step; the graph reads the row that
a cursor on the device points to, and moves it on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mixmatch.errors import chain
from mixmatch.methods.base import Tensors
from mixmatch.training.compile import reason

WARM_UP = 3
"""Steps taken one by one before capture: libraries choose kernels and the optimizer makes its state."""

ALIGNED = 16
"""Bytes at whose multiples compiled code wants its inputs to begin."""


class Place(NamedTuple):
    """Where a draw lies in a row of bytes, and what it is."""

    start: int
    end: int
    dtype: torch.dtype
    shape: torch.Size


class GraphedStep:
    """A callable that takes one step, replayed from a CUDA graph.

    Args:
        body: takes a step, given the step's tensors by name: its draws, and the inputs of `step`.
        prepare: called before capture.
        note: receives a message if the step cannot be captured; then it is called as it is.
        device, stream: where the step runs.
        chunk: the most steps whose draws are loaded at once.
        anywhere: whether a flag of this process is set in any process of this run. A step that one of them cannot
            capture is captured by none.
    """

    def __init__(
        self,
        body: Callable[[dict[str, Tensor]], None],
        prepare: Callable[[], None],
        note: Callable[[str], None],
        device: torch.device,
        stream: torch.cuda.Stream | None,
        chunk: int,
        anywhere: Callable[[bool], bool] = bool,
    ) -> None:
        self._body, self._prepare, self._note, self._anywhere = body, prepare, note, anywhere
        self._device, self._stream, self._chunk = device, stream, chunk
        self._cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self._rows = torch.empty(0, device=device)
        self._places: dict[str, Place] = {}
        self._inputs: dict[str, Tensor] = {}
        self._taken = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def load(self, draws: Tensors) -> None:
        """Copy the draws of the coming steps, stacked, to where the graph reads them."""
        count = len(next(iter(draws.values())))
        if not self._places:
            end = 0
            for name, values in draws.items():
                size = values[0].numel() * values.element_size()
                self._places[name] = Place(end, end + size, values.dtype, values.shape[1:])
                end += -(-size // ALIGNED) * ALIGNED
            self._rows = torch.empty(self._chunk, end, dtype=torch.uint8, device=self._device)
        rows = torch.empty(count, self._rows.shape[1], dtype=torch.uint8, pin_memory=self._rows.is_cuda)
        for name, place in self._places.items():
            rows[:, place.start : place.end] = draws[name].contiguous().view(torch.uint8).reshape(count, -1)
        self._rows[:count].copy_(rows, non_blocking=True)
        self._cursor.zero_()

    def step(self, inputs: Mapping[str, Tensor]) -> None:
        """Take a step with the next row of draws and these further tensors, which are copied to fixed places."""
        for name, value in inputs.items():
            if name in self._inputs:
                self._inputs[name].copy_(value, non_blocking=True)
            else:
                self._inputs[name] = value
        if self._taken == WARM_UP:
            self._capture()
        if self._graph is None:
            self._take()
        else:
            self._graph.replay()
        self._taken += 1

    @property
    def replays(self) -> bool:
        """Whether the step has been captured."""
        return self._graph is not None

    @property
    def settled(self) -> bool:
        """Whether steps are as fast as they will be."""
        return self._taken > WARM_UP

    def _capture(self) -> None:
        self._prepare()
        graph, pool, why = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle(), ""
        try:
            with torch.cuda.graph(graph, pool, stream=self._stream, capture_error_mode="thread_local"):
                self._take()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # a network that looks at its values cannot be captured
            _end_pool(pool, self._device)
            for cause in chain(error):  # an error on leaving an unfinished capture hides why it is unfinished
                if isinstance(cause, torch.OutOfMemoryError):
                    raise cause from None
            why = reason(error)
        if self._anywhere(bool(why)):
            why = why or "in another process"
            self._note(f"the step cannot be captured as a graph ({why}): training continues without, more slowly")
        else:
            self._graph = graph

    def _take(self) -> None:
        row = self._rows.index_select(0, self._cursor)[0]
        draws = {name: row[p.start : p.end].view(p.dtype).reshape(p.shape) for name, p in self._places.items()}
        self._body({**draws, **self._inputs})
        self._cursor += 1


def _end_pool(pool: Any, device: torch.device) -> None:
    """PyTorch (2.11) believes that a capture which could not be ended is still under way, and frees no memory."""
    with contextlib.suppress(RuntimeError, AttributeError):
        torch._C._cuda_endAllocateToPool(device.index or 0, pool)  # an error if it was ended
        torch._C._cuda_releasePool(device.index or 0, pool)

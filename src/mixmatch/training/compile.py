"""A step made fast, and still the same step: compiled, and on CUDA recorded once as a graph that is then replayed.

`compiled` turns the loss of a step into one compiled function of tensors, which all runs that differ only in their
data and seed share. `Recorded` keeps the draws of a chunk of steps in fixed places on the device, records a step that
reads them there, and replays it: a replay starts hundreds of kernels with one call and waits for nothing.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixmatch.augment.augment import Augmentation
from mixmatch.data.cache import cache_folder
from mixmatch.data.published.files import data_folder
from mixmatch.errors import chain
from mixmatch.methods.base import Batch, Method, Metrics, Predictor, Progress
from mixmatch.networks.cuda import wide_resnet as fused
from mixmatch.settings import Precision
from mixmatch.training.model import Passes

if TYPE_CHECKING:
    from mixmatch.training.trainer import Trainer

Tensors = Mapping[str, Tensor]

WARM_UP = 3
"""Steps taken one by one before one is recorded: they let libraries choose kernels and the optimizer make its state."""


@dataclass(frozen=True)
class Recipe:
    """All of a step but the tensors: what is done to a batch to get its loss."""

    method: Method
    augment: Augmentation
    classes: int
    steps: int

    def loss(
        self, model: Predictor, labels: Tensor, x: Tensor, u: Tensor | None, draws: Tensors
    ) -> tuple[Tensor, Metrics]:
        """The loss for fetched inputs and the draws of a step; nothing here waits for the device."""
        inputs = self.augment(x, under("x/", draws))[0]
        batch = Batch(
            x=inputs,
            y=F.one_hot(labels, self.classes).to(inputs.dtype),
            u=inputs.new_empty(0) if u is None else self.augment(u, under("u/", draws)),
        )
        return self.method.loss(model, batch, under("method/", draws), Progress(draws["step"], self.steps))


def under(prefix: str, draws: Tensors) -> dict[str, Tensor]:
    """The draws whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): value for name, value in draws.items() if name.startswith(prefix)}


def reason(error: Exception) -> str:
    """What an error of the compiler's says, in short: its messages are pages long."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}"[:160]


# ---------------------------------------------------------------- compiled

Loss = Callable[[Tensors, Tensors, Tensor, Tensor, "Tensor | None", Tensors], tuple[Tensor, Metrics]]
"""(parameters and buffers, their averages, labels, x, u, draws) to the loss and what to report of it."""

_known: dict[tuple[Any, ...], Loss] = {}


def compiled(
    recipe: Recipe,
    network: nn.Module,
    precision: Precision,
    name: str | None = None,
    shape: fused.Shape | None = None,
) -> Loss:
    """The loss of a step, compiled when first called. Networks of the same `name` (and so shape) share one."""
    shapes = tuple((key, tuple(value.shape)) for key, value in network.state_dict().items())
    key = (recipe, precision, name, shapes, shape)
    if name is not None and key in _known:
        return _known[key]
    keep_compiled_code()
    # A network of its own: compiled code switches it between training and evaluation, and goes by which it finds.
    network = copy.deepcopy(network) if name is not None else network

    def loss(
        tensors: Tensors, ema: Tensors, labels: Tensor, x: Tensor, u: Tensor | None, draws: Tensors
    ) -> tuple[Tensor, Metrics]:
        return recipe.loss(Passes(network, ema, precision, tensors, shape), labels, x, u, draws)

    # The limit is on one piece of code, which here serves every method and network of the process.
    torch._dynamo.config.cache_size_limit = max(256, torch._dynamo.config.cache_size_limit)
    fast: Loss = torch.compile(loss, fullgraph=True, dynamic=False)
    if name is not None:
        _known[key] = fast
    return fast


@torch.no_grad()
def account(sums: Tensor, values: list[Tensor], first_bad: Tensor, loss: Tensor, step: Tensor) -> None:
    """Add a step's metrics to their sums, and if its loss is the first that is not finite, keep its number."""
    sums.add_(torch.stack([value.to(sums.dtype) for value in values]))
    bad = ~torch.isfinite(loss) & (first_bad < 0)
    first_bad.copy_(torch.where(bad, step.long(), first_bad))


@cache
def compiled_account() -> Callable[[Tensor, list[Tensor], Tensor, Tensor, Tensor], None]:
    return torch.compile(account, fullgraph=True, dynamic=False)


def keep_compiled_code() -> None:
    """Keep what is compiled for the next start, beside the data sets, unless a place is chosen already or none of ours
    can be written to: then the compiler has one of its own."""
    if "TORCHINDUCTOR_CACHE_DIR" in os.environ:
        return
    folder = cache_folder(data_folder()) / "compiled"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)


# ---------------------------------------------------------------- recorded


ALIGNED = 16
"""Bytes at whose multiples compiled code wants its inputs to begin."""


class Place(NamedTuple):
    """Where in a row of bytes a draw lies, and what it is."""

    start: int
    end: int
    dtype: torch.dtype
    shape: torch.Size


class Recorded:
    """The steps of a trainer on CUDA, replayed from a recording."""

    def __init__(self, trainer: Trainer, chunk: int) -> None:
        self._trainer = trainer
        self._chunk = chunk
        self._cursor = torch.zeros(1, dtype=torch.int64, device=trainer.device)
        self._rows = torch.empty(0, device=trainer.device)
        self._places: dict[str, Place] = {}
        self._x: Tensor | None = None
        self._u: Tensor | None = None
        self._noise: Tensor | None = None
        self._taken = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def load(self, draws: Tensors) -> None:
        """Copy the draws of the coming steps, stacked, to where the recording reads them: a row of bytes for each."""
        count = len(draws["step"])
        if not self._places:
            end = 0
            for name, values in draws.items():
                size = values[0].numel() * values.element_size()
                self._places[name] = Place(end, end + size, values.dtype, values.shape[1:])
                end += -(-size // ALIGNED) * ALIGNED
            self._rows = torch.empty(self._chunk, end, dtype=torch.uint8, device=self._trainer.device)
        rows = torch.empty(count, self._rows.shape[1], dtype=torch.uint8, pin_memory=self._rows.is_cuda)
        for name, place in self._places.items():
            rows[:, place.start : place.end] = draws[name].contiguous().view(torch.uint8).reshape(count, -1)
        self._rows[:count].copy_(rows, non_blocking=True)
        self._cursor.zero_()

    def step(self, x: Tensor | None, u: Tensor | None, noise: Tensor | None) -> None:
        """Take a step: with these rows if the images are not on the device, and this noise if the method wants any."""
        self._x, self._u = _into(self._x, x), _into(self._u, u)
        self._noise = _into(self._noise, noise)
        if self._taken == WARM_UP:
            self._record()
        if self._graph is None:
            self._body()
        else:
            self._graph.replay()
        self._taken += 1

    @property
    def replays(self) -> bool:
        """Whether there is a recording."""
        return self._graph is not None

    @property
    def settled(self) -> bool:
        """Whether steps go as fast as they will."""
        return self._taken > WARM_UP

    def _record(self) -> None:
        trainer = self._trainer
        trainer.optimizer.zero_grad(set_to_none=True)  # the recording makes its own
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        try:
            with torch.cuda.graph(graph, pool, stream=trainer.stream, capture_error_mode="thread_local"):
                self._body()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # a network that looks at its values cannot be recorded
            _end_pool(pool, trainer.device)
            for behind in chain(error):  # an error on leaving an unfinished recording hides why it is unfinished
                if isinstance(behind, torch.OutOfMemoryError):
                    raise behind from None
            trainer.note(f"the step cannot be recorded ({reason(error)}): training goes on without, more slowly")
        else:
            self._graph = graph

    def _body(self) -> None:
        trainer = self._trainer
        row = self._rows.index_select(0, self._cursor)[0]
        draws = {name: row[p.start : p.end].view(p.dtype).reshape(p.shape) for name, p in self._places.items()}
        trainer.rate.copy_(draws.pop("rate"))
        x, u = self._x, self._u
        if trainer.pool.resident:
            x = trainer.pool.fetch(draws["labeled"])
            u = trainer.pool.fetch(draws["unlabeled"]) if "unlabeled" in draws else None
        assert x is not None
        if self._noise is not None:
            draws["method/noise"] = self._noise
        trainer.take_step(x, u, draws)
        self._cursor += 1


def _end_pool(pool: Any, device: torch.device) -> None:
    """PyTorch (2.11) takes a recording that could not be ended for one under way, and frees no memory any more."""
    with contextlib.suppress(RuntimeError, AttributeError):
        torch._C._cuda_endAllocateToPool(device.index or 0, pool)  # an error if it was ended
        torch._C._cuda_releasePool(device.index or 0, pool)


def _into(place: Tensor | None, value: Tensor | None) -> Tensor | None:
    """`value` in its fixed place."""
    if value is None or place is None:
        return value
    return place.copy_(value, non_blocking=True)

"""A step's loss, compiled: one function of tensors, shared by all runs that differ only in their data and seed."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from mixmatch.data.cache import user_cache
from mixmatch.methods.base import Step, Tensors
from mixmatch.networks import cuda
from mixmatch.settings import Precision
from mixmatch.training.model import Forward
from mixmatch.training.step import Objective, account

Loss = Callable[[Tensors, Tensors, Tensor, Tensor, "Tensor | None", Tensors, Tensors], Step]
"""(parameters and buffers, their averages, labels, x, u, draws, state) to the step."""

_known: dict[tuple[Any, ...], Loss] = {}


def compiled(
    objective: Objective,
    network: nn.Module,
    precision: Precision,
    name: str | None = None,
    shape: cuda.Shape | None = None,
) -> Loss:
    """The loss of a step, compiled when first called. Networks of the same `name` and shape share one."""
    shapes = tuple((key, tuple(value.shape)) for key, value in network.state_dict().items())
    key = (objective, precision, name, shapes, shape)
    try:
        hash(key)
    except TypeError:  # a method from outside with a setting that cannot be compared: its code is its own
        name = None
    if name is not None and key in _known:
        return _known[key]
    keep_compiled_code()
    # A network of its own: compiled code toggles the module's training mode and guards on it.
    network = copy.deepcopy(network) if name is not None else network

    def loss(
        tensors: Tensors, ema: Tensors, labels: Tensor, x: Tensor, u: Tensor | None, draws: Tensors, state: Tensors
    ) -> Step:
        return objective.loss(Forward(network, ema, precision, tensors, shape), labels, x, u, draws, state)

    # The limit is on one piece of code, which here serves every method and network of the process.
    torch._dynamo.config.cache_size_limit = max(256, torch._dynamo.config.cache_size_limit)
    fast: Loss = torch.compile(loss, fullgraph=True, dynamic=False)
    if name is not None:
        _known[key] = fast
    return fast


@cache
def compiled_account() -> Callable[[Tensor, list[Tensor], Tensor, Tensor, Tensor], None]:
    return torch.compile(account, fullgraph=True, dynamic=False)


def keep_compiled_code() -> None:
    """Keep compiled code for the next start, in the user's own cache, unless a folder is chosen already or ours cannot
    be written to: then the compiler uses its own. Never next to the data, which may come from anybody: it would run."""
    if "TORCHINDUCTOR_CACHE_DIR" in os.environ:
        return
    folder = user_cache() / "compiled"
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)


def reason(error: Exception) -> str:
    """The first line of a compiler's error, whose messages are pages long."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}"[:160]

"""Optimizers and learning-rate schedules by name. Weight decay is on kernels alone."""

from __future__ import annotations

import inspect
import math
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from mixmatch.settings import Schedule, Settings

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)


def build_optimizer(network: nn.Module, settings: Settings, rate: Tensor | None = None) -> torch.optim.Optimizer:
    """The optimizer that the settings name, for all parameters that are trained.

    `adam` is AdamW: it multiplies by 1 - learning_rate * weight_decay, as the authors do. `sgd` has Nesterov momentum
    and adds weight_decay times the weight to the gradient. Only parameters with two or more dimensions decay:
    convolution and dense kernels, not biases or batch norm.

    With a `rate` on the device, a step can be captured as a CUDA graph that reads it.
    """
    parameters = [p for p in network.parameters() if p.requires_grad]
    kernels = [p for p in parameters if p.dim() >= 2]
    others = [p for p in parameters if p.dim() < 2]
    groups = [{"params": kernels, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    lr = settings.learning_rate if rate is None else rate
    if settings.optimizer == "sgd":
        momentum = settings.momentum
        sgd = _light(torch.optim.SGD)(groups, lr, momentum=momentum, nesterov=momentum > 0, fused=True)
        if momentum > 0:  # zeros are what it begins with; it cannot make them for some parameters later
            for p in parameters:
                sgd.state[p]["momentum_buffer"] = torch.zeros_like(p)
        return sgd
    return _light(torch.optim.AdamW)(groups, lr, fused=True, capturable=rate is not None)


def _light(kind: type[Kind]) -> type[Kind]:
    """An optimizer that does not import PyTorch's compiler, which takes a third of the time a run needs to start.

    PyTorch wraps these methods for code that is compiled. Here they never are; `step` still needs no gradients.
    """
    plain = {name: inspect.unwrap(getattr(kind, name)) for name in ("add_param_group", "zero_grad", "step")}
    return cast("type[Kind]", type(kind.__name__, (kind,), plain | {"step": torch.no_grad()(plain["step"])}))


def learning_rate(schedule: Schedule, base: float, step: int, total: int) -> float:
    """The rate for the step after `step` done ones. `cosine` and `linear` fall from `base` to nearly 0, `cosine-7/16`
    (FixMatch) to base * cos(7 pi / 16), a fifth of it."""
    if schedule == "cosine":
        return base * 0.5 * (1 + math.cos(math.pi * step / total))
    if schedule == "cosine-7/16":
        return base * math.cos(7 * math.pi * step / (16 * total))
    return base * (1 - step / total) if schedule == "linear" else base


def optimizer_state(network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What the optimizer keeps for each parameter, as `key.parameter`, whichever optimizer it is. A parameter that has
    had no gradient has none."""
    return {
        f"{key}.{name}": torch.as_tensor(value)
        for name, p in network.named_parameters()
        for key, value in optimizer.state.get(p, {}).items()
        if value is not None
    }


def load_optimizer_state(
    network: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Tensor], step: int
) -> None:
    """Restore what `optimizer_state` returned. Checkpoints of earlier versions do not say how many steps Adam has taken
    for each parameter: then it is `step`."""
    kept: dict[str, dict[str, Tensor]] = {}
    for full, value in state.items():
        key, _, name = full.partition(".")
        kept.setdefault(name, {})[key] = value
    for name, p in network.named_parameters():
        if name not in kept:
            continue
        values = kept[name]
        if "exp_avg" in values and "step" not in values:
            values["step"] = torch.tensor(float(step))
        # Moments get the memory layout of their parameter, counters stay scalars.
        optimizer.state[p] = {
            key: torch.zeros_like(p).copy_(value) if value.shape == p.shape else value.to(p.device, torch.float32)
            for key, value in values.items()
        }

"""Adam with decoupled weight decay on kernels alone, at a constant learning rate unless asked otherwise."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from mixmatch.settings import Schedule, Settings


def build_optimizer(network: nn.Module, settings: Settings, rate: Tensor | None = None) -> torch.optim.AdamW:
    """AdamW multiplies by 1 - learning_rate * weight_decay, as the authors do, here only parameters with two or more
    dimensions: convolution and dense kernels, not biases or batch norm.

    With a `rate` on the device, a step can be recorded as a CUDA graph that reads it.
    """
    parameters = [p for p in network.parameters() if p.requires_grad]
    kernels = [p for p in parameters if p.dim() >= 2]
    others = [p for p in parameters if p.dim() < 2]
    groups = [{"params": kernels, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    if rate is not None:
        return torch.optim.AdamW(groups, lr=rate, fused=True, capturable=True)
    return torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)


def learning_rate(schedule: Schedule, base: float, step: int, total: int) -> float:
    """The rate for the step after `step` done ones. `cosine` and `linear` fall from `base` to nearly 0."""
    if schedule == "cosine":
        return base * 0.5 * (1 + math.cos(math.pi * step / total))
    return base * (1 - step / total) if schedule == "linear" else base


def optimizer_state(network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Adam's moments by parameter name, and how many steps each has taken: a parameter that had no gradient took
    none."""
    return {
        f"{what}.{name}": optimizer.state[p][what]
        for name, p in network.named_parameters()
        if p in optimizer.state
        for what in ("exp_avg", "exp_avg_sq", "step")
    }


def load_optimizer_state(
    network: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Tensor], step: int
) -> None:
    """Put what `optimizer_state` gave back; after `step` steps, where it does not know how many."""
    for name, p in network.named_parameters():
        if f"exp_avg.{name}" in state:
            moments = {m: torch.zeros_like(p).copy_(state[f"{m}.{name}"]) for m in ("exp_avg", "exp_avg_sq")}
            count = torch.tensor(float(state.get(f"step.{name}", step)), dtype=torch.float32, device=p.device)
            optimizer.state[p] = {"step": count, **moments}

"""A network during training: its live weights, their moving average, and what each pass does to batch norm.

The paper's results depend on which weights a pass uses and on which passes touch batch norm's running statistics, so
every call says both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from mixmatch.methods.base import Stats, Weights
from mixmatch.settings import Precision


class Model:
    """Any `torch.nn.Module` with the exponential moving average of its trainable parameters.

    Called as `model(x, weights=..., stats=...)`:

    - `weights="live"` are those the optimizer trains; `"ema"` their moving average, without gradient.
    - `stats="batch"` normalizes with the batch's own statistics and leaves the running ones alone, `"update"` also
      updates them, `"running"` normalizes with them, as a finished classifier does.

    Batch norm's running statistics are never averaged: an evaluation uses the averaged weights with the live ones.
    """

    def __init__(self, network: nn.Module, ema_decay: float = 0.999, precision: Precision = "fp32") -> None:
        self.network = network
        self.ema_decay = ema_decay
        self.precision = precision
        self.ema = {name: p.detach().clone() for name, p in network.named_parameters() if p.requires_grad}
        self._norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]

    def __call__(
        self, x: Tensor, weights: Weights = "live", stats: Stats = "batch", full_precision: bool = False
    ) -> Tensor:
        """Logits (N, L) in float32 for images (N, C, H, W). `full_precision` rules out bf16 and TF32 for this pass."""
        with self._statistics(stats), self._numbers(x.device, full_precision):
            if weights == "live":
                logits: Tensor = self.network(x)
            else:
                with torch.no_grad():
                    logits = functional_call(self.network, self.ema, (x,))
        return logits.float() if logits.dtype == torch.bfloat16 else logits

    @torch.no_grad()
    def update_ema(self) -> None:
        """Move the average one step towards the live weights: ema = decay * ema + (1 - decay) * live."""
        live = dict(self.network.named_parameters())
        torch._foreach_lerp_(list(self.ema.values()), [live[name] for name in self.ema], 1 - self.ema_decay)

    @contextmanager
    def _statistics(self, stats: Stats) -> Iterator[None]:
        self.network.train(stats != "running")
        if stats != "batch":
            yield
            return
        # In training mode a batch-norm layer that does not track statistics normalizes with the batch's and
        # touches nothing else.
        tracked = [norm.track_running_stats for norm in self._norms]
        for norm in self._norms:
            norm.track_running_stats = False
        try:
            yield
        finally:
            for norm, was in zip(self._norms, tracked, strict=True):
                norm.track_running_stats = was

    @contextmanager
    def _numbers(self, device: torch.device, full_precision: bool) -> Iterator[None]:
        if full_precision and device.type == "cuda":
            before = torch.backends.cudnn.allow_tf32
            torch.backends.cudnn.allow_tf32 = False
            try:
                yield
            finally:
                torch.backends.cudnn.allow_tf32 = before
        elif self.precision == "bf16" and not full_precision:
            with torch.autocast(device.type, dtype=torch.bfloat16):
                yield
        else:
            yield

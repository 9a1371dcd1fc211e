"""A network during training: its live weights, their moving average, and what each pass does to batch norm.

The paper's results depend on which weights a pass uses and on which passes touch batch norm's running statistics, so
every call says both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from mixmatch.methods.base import Stats, Weights
from mixmatch.networks import cuda
from mixmatch.settings import Precision


class Forward:
    """Forward passes of any `torch.nn.Module` over a batch.

    Called as `forward(x, weights=..., stats=...)`:

    - `weights="live"` are those the optimizer trains; `"ema"` their moving average, without gradient.
    - `stats="batch"` normalizes with the batch's own statistics and leaves the running ones alone, `"update"` also
      updates them, `"running"` normalizes with them, as a finished classifier does.

    `tensors` stand in for the network's own parameters and buffers, if given: so one network, and what was compiled
    for it, serves many runs. With a `shape`, passes in bf16 are by the kernels of `mixmatch.networks.cuda`.
    """

    def __init__(
        self,
        network: nn.Module,
        ema: Mapping[str, Tensor],
        precision: Precision,
        tensors: Mapping[str, Tensor] | None = None,
        shape: cuda.Shape | None = None,
    ) -> None:
        self.network, self.ema, self.precision, self.tensors = network, dict(ema), precision, tensors
        self.shape = shape
        self._norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]

    def __call__(
        self,
        x: Tensor,
        weights: Weights = "live",
        stats: Stats = "batch",
        full_precision: bool = False,
        head: str | None = None,
        with_heads: Sequence[str] = (),
    ) -> Tensor:
        """Logits (N, L) in float32 for images (N, C, H, W). `full_precision` rules out bf16 for this pass; a `head`
        gives the outputs of one of the method's heads instead; those of `with_heads` follow the logits."""
        lower = self.precision == "bf16" and not full_precision
        which: dict[str, Any] = {} if head is None else {"head": head}
        if with_heads:
            which["with_heads"] = tuple(with_heads)
        if head is None and lower and stats != "running" and self._can_fuse([x]):
            return self._fused([x], weights, stats, with_heads=with_heads)[1][0]
        with self._statistics(stats), torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=lower):
            if weights == "ema":
                with torch.no_grad():
                    logits: Tensor = functional_call(self.network, {**(self.tensors or {}), **self.ema}, (x,), which)
            elif self.tensors is not None:
                logits = functional_call(self.network, dict(self.tensors), (x,), which)
            else:
                logits = self.network(x, **which)
        return logits.float() if logits.dtype == torch.bfloat16 else logits

    def forward_each(
        self,
        batches: Sequence[Tensor],
        weights: Weights = "live",
        stats: Stats = "batch",
        with_heads: Sequence[str] = (),
    ) -> list[Tensor] | None:
        """What `methods.base.forward_each` returns, by kernels at once; None if they cannot."""
        if stats == "running" or not self._can_fuse(batches):
            return None
        return self._fused(batches, weights, stats, with_heads=with_heads)[1]

    def targets_and_logits(
        self,
        targets: Sequence[Tensor],
        learned: Sequence[Tensor],
        weights: Weights = "live",
        with_heads: Sequence[str] = (),
        joint: bool = False,
    ) -> tuple[list[Tensor], list[Tensor]] | None:
        """What `methods.base.targets_and_logits` returns, by kernels at once; None if they cannot. If `joint`, they
        leave out the gradients that reach the targets through batch norm's statistics."""
        if self.shape is None or not self._can_fuse(targets, learned):
            return None
        if joint and not cuda.fits(self.shape, [sum(map(len, [*learned, *targets]))]):
            return None
        return self._fused(learned, "live", "update", targets, "live" if joint else weights, with_heads, joint)

    def _can_fuse(self, *kinds: Sequence[Tensor]) -> bool:
        """Whether kernels can take the batches of each kind together: they must be of one size."""
        if self.precision != "bf16" or self.shape is None:
            return False
        alike = all(len(x) == len(batches[0]) for batches in kinds for x in batches)
        return alike and all(cuda.fits(self.shape, [len(x) for x in batches]) for batches in kinds)

    def _fused(
        self,
        learned: Sequence[Tensor],
        weights: Weights,
        stats: Stats,
        targets: Sequence[Tensor] = (),
        target_weights: Weights = "live",
        with_heads: Sequence[str] = (),
        joint: bool = False,
    ) -> tuple[list[Tensor], list[Tensor]]:
        assert self.shape is not None
        live = self.tensors
        if live is None:
            live = {**dict(self.network.named_parameters()), **dict(self.network.named_buffers())}
        averaged = {**live, **self.ema}
        tensors, target_tensors = averaged if weights == "ema" else live, averaged if target_weights == "ema" else None
        with torch.no_grad() if weights == "ema" else nullcontext():
            return cuda.forward(
                self.network,
                self.shape,
                tensors,
                targets,
                learned,
                update=stats == "update",
                target_tensors=target_tensors,
                with_heads=with_heads,
                joint=joint,
            )

    @contextmanager
    def _statistics(self, stats: Stats) -> Iterator[None]:
        training = stats != "running"
        if self.network.training != training:
            self.network.train(training)
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


class Model(Forward):
    """A network with the exponential moving average of its trainable parameters.

    Batch norm's running statistics are never averaged: an evaluation uses the averaged weights with the live ones.
    """

    def __init__(
        self,
        network: nn.Module,
        ema_decay: float = 0.999,
        precision: Precision = "fp32",
        shape: cuda.Shape | None = None,
    ) -> None:
        ema = {name: p.detach().clone() for name, p in network.named_parameters() if p.requires_grad}
        super().__init__(network, ema, precision, shape=shape)
        self.ema_decay = ema_decay

    @torch.no_grad()
    def update_ema(self, share: Tensor | None = None) -> None:
        """Move the average one step towards the live weights: ema = decay * ema + (1 - decay) * live.

        `share` stands in for 1 - decay where that changes from step to step: a scalar on the device, so that a CUDA
        graph can read it.
        """
        named: Mapping[str, Tensor] = dict(self.network.named_parameters())
        ema, live = list(self.ema.values()), [named[name] for name in self.ema]
        if share is None:
            torch._foreach_lerp_(ema, live, 1 - self.ema_decay)
        else:  # a lerp by a tensor waits for the device
            way = torch._foreach_sub(live, ema)
            torch._foreach_mul_(way, share)
            torch._foreach_add_(ema, way)


def warm_decay(decay: float, step: int) -> float:
    """The decay of the average after `step` earlier updates, warmed up: it never spans more than about a tenth of the
    steps so far, so that the initial weights are soon forgotten.

    >>> [round(warm_decay(0.99, step), 3) for step in (0, 10, 90, 10000)]
    [0.1, 0.55, 0.91, 0.99]
    """
    return min(decay, (1 + step) / (10 + step))

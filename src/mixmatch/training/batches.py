"""What the steps of a run learn from: which rows, how they are augmented, and the rows themselves."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from mixmatch.augment import Adaptive
from mixmatch.data.pool import Pool
from mixmatch.data.source import Source
from mixmatch.data.split import Split
from mixmatch.draws import BalancedSampler, Draws, Sampler, generator, torch_seed
from mixmatch.methods.base import Tensors
from mixmatch.settings import Settings
from mixmatch.training.model import warm_decay
from mixmatch.training.optimizer import learning_rate
from mixmatch.training.step import Objective

Rows = tuple[Tensor, Tensor | None, Tensors]
"""The labeled and unlabeled rows of a batch, fetched, and its draws."""


class Batches:
    """The batches of a run, step by step. Everything random in them is a function of the seed and the step."""

    def __init__(
        self, settings: Settings, source: Source, split: Split, objective: Objective, pool: Pool, groups: range
    ) -> None:
        """`groups` are those of a step's batch that this process computes."""
        self.settings, self.objective, self.pool = settings, objective, pool
        self._split, self._groups, self._shape, self._device = split, groups, source.input_shape, pool.device
        self._size = settings.batch_size // settings.groups
        seed, size = settings.seed, self._size
        self._labeled = (
            BalancedSampler(source.train.labels[split.labeled], size, seed, "labeled")
            if settings.label_sampling == "balanced"
            else Sampler(len(split.labeled), size, seed, "labeled")
        )
        count = objective.method.ratio * size
        self._unlabeled = Sampler(max(len(split.unlabeled), 1), count, seed, "unlabeled")

    def draw(self, step: int, group: int = 0) -> Draws:
        """All random draws for a group of a step: which rows, how they are augmented, and what the method needs. They
        are the draws of a run whose steps are the groups, in their order."""
        draws = self._draw(step * self.settings.groups + group)
        draws["step"] = np.array(step, np.float32)
        return draws

    def _draw(self, step: int) -> Draws:
        method, weak, strong = self.objective.method, self.objective.weak, self.objective.strong
        size, count = self._size, method.ratio * self._size
        draws: Draws = {"labeled": self._split.labeled[self._labeled.rows(step)]}

        def add(prefix: str, stream: str, draw: Callable[..., Draws], *sizes: int) -> None:
            drawn = draw(generator(self.settings.seed, stream, step), *sizes)
            draws.update({f"{prefix}/{name}": values for name, values in drawn.items()})

        add("x", "augment labeled", weak.draw, 1, size)
        if method.strong_labeled:
            add("xs", "augment labeled strongly", strong.draw, 1, size)
        if method.views:
            draws["rows"] = self._unlabeled.rows(step)
            draws["unlabeled"] = self._split.unlabeled[draws["rows"]]
            if views := method.views.count("weak"):
                add("u", "augment unlabeled", weak.draw, views, count)
            if views := method.views.count("strong"):
                add("s", "augment unlabeled strongly", strong.draw, views, count)
        if isinstance(strong, Adaptive):
            add("probe", "probe", strong.draw_probe, size)
        add("method", "method", method.draw, size)
        return draws

    def chunk(self, first: int, count: int, graphed: bool) -> dict[str, Tensor]:
        """The draws of `count` steps, stacked, in host memory, and what else changes from step to step: the share of
        the live weights in their average while it warms up and, for a graph, the learning rate."""
        steps = [
            {
                f"{self.prefix(group)}{name}": draw
                for group in self._groups
                for name, draw in self.draw(step, group).items()
            }
            for step in range(first, first + count)
        ]
        chunk = {name: torch.from_numpy(np.stack([draws[name] for draws in steps])) for name in steps[0]}
        if graphed:
            chunk["rate"] = torch.tensor([self.rate(first + i) for i in range(count)], dtype=torch.float32)
        if self.settings.ema_warmup:
            shares = [1 - warm_decay(self.settings.ema_decay, first + i) for i in range(count)]
            chunk["ema_share"] = torch.tensor(shares, dtype=torch.float32)
        return chunk

    def inputs(self, chunk: Tensors, i: int, step: int) -> dict[str, Tensor]:
        """What a step needs in addition to its draws: rows that are not on the device, and noise if the method wants
        any."""
        inputs: dict[str, Tensor] = {}
        for group in self._groups:
            prefix = self.prefix(group)
            if not self.pool.resident:
                inputs[f"{prefix}x"] = self.pool.fetch(chunk[f"{prefix}labeled"][i])
                if f"{prefix}unlabeled" in chunk:
                    inputs[f"{prefix}u"] = self.pool.fetch(chunk[f"{prefix}unlabeled"][i])
            if self.objective.method.noise:
                inputs[f"{prefix}method/noise"] = self.noise(step * self.settings.groups + group)
        return inputs

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        settings = self.settings
        return learning_rate(settings.schedule, settings.learning_rate, step, settings.steps)

    def noise(self, step: int) -> Tensor:
        """Standard normal noise, one view of the unlabeled rows large: too much to copy, so drawn on the device."""
        shape = (self.objective.method.ratio * self._size, *self._shape)
        source = torch.Generator(self._device).manual_seed(torch_seed(self.settings.seed, "noise", step))
        return torch.randn(shape, generator=source, device=self._device)

    def fetched(self, draws: dict[str, Tensor]) -> Rows:
        """The rows of a group: those among its tensors, or those that its draws name."""
        x, u = (draws.pop(name, None) for name in ("x", "u"))
        if x is None:
            x = self.pool.fetch(draws["labeled"])
            u = self.pool.fetch(draws["unlabeled"]) if "unlabeled" in draws else None
        return x, u, draws

    def prefix(self, group: int) -> str:
        """The prefix of a group's tensors among those of a step: empty, if it is this process's only group."""
        return f"{group}/" if len(self._groups) > 1 else ""

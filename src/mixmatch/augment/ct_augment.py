"""CTAugment (Berthelot et al., 2020, ReMixMatch): RandAugment that learns how strong each operation may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mixmatch.augment import operations
from mixmatch.augment.base import to_unit_range
from mixmatch.augment.crop_flip import CropFlip
from mixmatch.augment.operations import FILTERS, OPERATIONS
from mixmatch.draws import Draws

DEPTH = 2
BINS = {"identity": (), "posterize": (8,), "rescale": (17, len(FILTERS))}
"""Into how many bins the parameters of an operation are divided; the others have one parameter with 17."""


@dataclass(frozen=True)
class CTAugment:
    """After a crop and flip, 2 of 19 operations, then a gray square of half the image's shorter side if `cutout`, as in
    FixMatch; ReMixMatch has none.

    Each parameter of an operation, between 0 and 1, is divided into bins with a rate each: how near predictions came to
    the labels in images that were augmented so. Bins whose rate is at least `threshold` of the highest are used, in
    proportion to their rates. All 19 operations are as in the authors' code for FixMatch. So the translations move
    nothing: there they are by at most 0.3 pixels, which nearest sampling rounds to 0, and that made the numbers.
    """

    crop: CropFlip = CropFlip(0, False)  # noqa: RUF009 (never written to)
    cutout: bool = True
    threshold: float = 0.80
    decay: float = 0.99

    def state(self, device: torch.device) -> dict[str, Tensor]:
        """The rates (operations, parameters, bins): 1 at first, -1 where there is no such bin."""
        bins = torch.tensor([(*BINS.get(name, (17,)), 0, 0)[:2] for name in OPERATIONS], device=device)
        exists = torch.arange(17, device=device) < bins[:, :, None]
        return {"rates": torch.where(exists, 1.0, -1.0)}

    def draw(self, rng: np.random.Generator, views: int, count: int) -> Draws:
        """Draw `views` augmentations of each of `count` images, up to what the state decides."""
        return {**self._draw(rng, views, count), "bin": rng.random((views, count, DEPTH, 2), np.float32)}

    def draw_probe(self, rng: np.random.Generator, count: int) -> Draws:
        """Draw an augmentation of each of `count` images, all strengths equally likely."""
        return self._draw(rng, 1, count)

    def _draw(self, rng: np.random.Generator, views: int, count: int) -> Draws:
        return {
            **self.crop.draw(rng, views, count),
            "operation": rng.integers(0, len(OPERATIONS), (views, count, DEPTH), dtype=np.int8),
            "level": rng.random((views, count, DEPTH, 2), np.float32),
            "center": rng.random((views, count, DEPTH + 1, 2), np.float32),
        }

    def __call__(self, inputs: Tensor, draws: Mapping[str, Tensor]) -> Tensor:
        """uint8 (B, H, W, C) to float32 (views, B, C, H, W) in [-1, 1]. The state is among the draws."""
        return to_unit_range(self._operate(inputs, draws, self.levels(draws), self.cutout))

    def probe(self, inputs: Tensor, draws: Mapping[str, Tensor]) -> Tensor:
        """uint8 (B, H, W, C) to float32 (1, B, C, H, W) in [-1, 1], for draws of `draw_probe`."""
        level = draws["level"]
        return to_unit_range(self._operate(inputs, draws, level.to(operations.exact(level.device)), False))

    def levels(self, draws: Mapping[str, Tensor]) -> Tensor:
        """The parameters (views, B, slots, 2), by the rates among the draws: a bin, and a place in it. What an
        operation has no use for is any number."""
        dtype = operations.exact(draws["rates"].device)
        rates = draws["rates"].to(dtype)
        weights = torch.where(rates >= 0, rates + (1 - self.decay), 0)
        weights = torch.where(weights >= self.threshold * weights.amax(2, keepdim=True), weights, 0)
        upto = weights.cumsum(2)
        upto = upto / upto[:, :, -1:].clamp(min=1e-12)
        operation = draws["operation"].long()
        number = (draws["bin"][..., None] >= upto[operation]).sum(-1)
        return (number + draws["level"].to(dtype)) / _bins(rates)[operation].clamp(min=1)

    def learned(self, state: Mapping[str, Tensor], draws: Mapping[str, Tensor], proximity: Tensor) -> dict[str, Tensor]:
        """The state after a probe: `proximity` (B,) is how near the predictions were to the labels, 1 for the same.

        The authors' code takes the images in turn: rate <- decay rate + (1 - decay) proximity. What was added early
        decays by what comes later to the same bin, so all of it is one sum."""
        rates = state["rates"]
        operation, level = draws["operation"][0].long().flatten(), draws["level"][0].flatten(0, 1)
        bins = _bins(rates)[operation]
        number = (level.to(operations.exact(rates.device)) * bins * 0.999).long()
        every_operation, _, every_bin = (torch.arange(size, device=rates.device) for size in rates.shape)
        in_bin = (every_bin == number[:, :, None]) & (bins > 0)[:, :, None]
        hit = (every_operation == operation[:, None])[:, :, None, None] & in_bin[:, None]
        upto = hit.to(rates.dtype).cumsum(0)
        total = upto[-1]
        added = torch.where(hit, proximity.to(rates.dtype).repeat_interleave(DEPTH)[:, None, None, None], 0)
        added = (added * self.decay ** (total - upto)).sum(0)
        return {"rates": rates * self.decay**total + (1 - self.decay) * added}

    def _operate(self, inputs: Tensor, draws: Mapping[str, Tensor], levels: Tensor, cutout: bool) -> Tensor:
        """uint8 (B, H, W, C) to uint8 (views, B, H, W, C)."""
        cropped = self.crop.crop(inputs, draws)
        images = cropped.flatten(0, 1).movedim(3, 1).contiguous()
        height, width = images.shape[2:]
        shorter = min(height, width)
        operation, center = (draws[name].flatten(0, 1) for name in ("operation", "center"))
        operation, (level, second) = operation.long(), levels.flatten(0, 1).unbind(-1)
        asked = operations.plan(operation, operations.amount_of(operation, _amounts(level)), height, width)
        valid = torch.ones_like(images[:, 0], dtype=torch.bool).flatten(1)
        for slot in range(DEPTH):
            this, share = operation[:, slot], level[:, slot]
            images, _ = operations.apply(images, operations.Plan(*(part[:, slot] for part in asked)), valid)
            images = operations.soften(images, this, share)
            images = operations.rescale(images, this, 0.25 * share, (second[:, slot] * 5.99).long())
            side = torch.where(operations.chosen(this, "cutout"), 1 + (share * shorter * 0.499).long(), 0)
            images = operations.hide(images, center[:, slot], side)
        if cutout:
            images = operations.hide(images, center[:, DEPTH], torch.full_like(side, 1 + int(shorter * 0.499)))
        return images.movedim(1, 3).reshape(cropped.shape)


def _bins(rates: Tensor) -> Tensor:
    """How many bins each parameter of each operation has (operations, parameters)."""
    return (rates >= 0).sum(2)


def _amounts(level: Tensor) -> dict[str, Tensor]:
    """The amount that each operation would have at levels between 0 and 1."""
    around = 2 * level - 1
    amounts = dict.fromkeys(("color", "contrast", "brightness", "sharpness"), 0.1 + 1.9 * level)
    amounts |= dict.fromkeys(("shear_x", "shear_y", "translate_x", "translate_y"), 0.3 * around)
    amounts |= dict.fromkeys(("autocontrast", "equalize", "invert"), level)
    amounts |= {"rotate": (45 * around).round(), "posterize": 1 + (7.999 * level).floor()}
    return amounts | {"solarize": (255.999 * level).floor()}

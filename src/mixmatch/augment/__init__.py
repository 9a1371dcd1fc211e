"""Augmentation of whole batches on any device: what to do is drawn as numbers, doing it is arithmetic.

The same draws give the same images on every device, because only integers decide where a pixel comes from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from mixmatch.augment.base import Adaptive, Augmentation, to_unit_range, unaugmented
from mixmatch.augment.crop_flip import CropFlip
from mixmatch.augment.ct_augment import CTAugment
from mixmatch.augment.cutout import Cutout
from mixmatch.augment.noise_mask import NoiseMask
from mixmatch.augment.rand_augment import RandAugment
from mixmatch.errors import MixMatchError

__all__ = [
    "STRONG",
    "Adaptive",
    "Augmentation",
    "CTAugment",
    "CropFlip",
    "Cutout",
    "NoiseMask",
    "RandAugment",
    "strong_augmentation",
    "to_unit_range",
    "unaugmented",
    "weak_augmentation",
]


STRONG: dict[str, Callable[[CropFlip], Augmentation]] = {
    "randaugment": RandAugment,
    "kekmodel": partial(RandAugment, variant="kekmodel"),
    "torchssl": partial(RandAugment, variant="torchssl"),
    "ctaugment": CTAugment,
    "ctaugment-only": partial(CTAugment, cutout=False),
}
"""Strong augmentations that operate on colors, by name."""


def weak_augmentation(
    input_shape: tuple[int, ...],
    *,
    pad: int,
    flip: bool,
    noise: float,
    mask: float,
    embedded: bool = False,
    choices: int = 0,
) -> CropFlip | NoiseMask:
    """Crops and flips of images (C, H, W), noise and masks for features (F,).

    Args:
        embedded: the features are of images, which were cropped and flipped before.
        choices: how many features each row has to choose from, if several.
    """
    if len(input_shape) == 1:
        if (pad or flip) and not embedded:
            raise MixMatchError("pad and flip are for images, but the data holds features: use noise and mask")
        return NoiseMask(input_shape[0], noise, mask, choices)
    if noise or mask:
        raise MixMatchError("noise and mask are for features, but the data holds images: use pad and flip")
    crop = CropFlip(pad, flip)
    crop.check(*input_shape[1:])
    return crop


def strong_augmentation(
    weak: CropFlip | NoiseMask, input_shape: tuple[int, ...], strong: str = "cutout"
) -> Augmentation:
    """What is stronger than the weak augmentation: for images by name; in features twice the noise, and masks twice."""
    if isinstance(weak, NoiseMask):
        return replace(weak, noise=2 * weak.noise, mask=1 - (1 - weak.mask) ** 2)
    if strong == "cutout":
        return Cutout(weak, *input_shape[1:])
    if strong not in STRONG:
        raise MixMatchError(f"strong={strong!r} is not one of cutout, {', '.join(STRONG)}")
    if input_shape[0] not in (1, 3):
        raise MixMatchError(
            f"strong={strong} is for 1 or 3 channels, but images have {input_shape[0]}: use strong=cutout"
        )
    return STRONG[strong](weak)

"""Cutout pixel by pixel against a loop in NumPy, and which strong augmentation a weak one gets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from mixmatch.augment import CropFlip, Cutout, NoiseMask, strong_augmentation
from mixmatch.draws import generator


def by_hand(image: np.ndarray, pad: int, offset: np.ndarray, flip: int, center: np.ndarray) -> np.ndarray:
    """One image (H, W, C) uint8: flip, mirror-pad, crop, scale to [-1, 1], then hide a square; channels first."""
    height, width, channels = image.shape
    image = image[:, ::-1] if flip else image
    image = np.pad(image, ((pad, pad), (pad, pad), (0, 0)), mode="reflect")
    out = np.empty((channels, height, width))
    side = min(height, width) // 2
    top, left = center[0] - side // 2, center[1] - side // 2
    for c in range(channels):
        for y in range(height):
            for x in range(width):
                hidden = top <= y < top + side and left <= x < left + side
                out[c, y, x] = 0 if hidden else int(image[y + offset[0], x + offset[1], c]) * 2 / 255 - 1
    return out


@pytest.mark.parametrize(
    ("pad", "height", "width", "channels"), [(0, 4, 4, 1), (2, 6, 9, 3), (2, 9, 6, 3), (1, 5, 5, 2), (0, 1, 1, 1)]
)
def test_every_place_of_the_square(pad: int, height: int, width: int, channels: int) -> None:
    rng = np.random.default_rng(height)
    images = rng.integers(0, 256, (2, height, width, channels), dtype=np.uint8)
    center = np.array([[(y, x)] * 2 for y in range(height) for x in range(width)])
    views = len(center)
    offset, flip = rng.integers(0, 2 * pad + 1, (views, 2, 2)), rng.integers(0, 2, (views, 2))
    draws = {name: torch.from_numpy(value) for name, value in (("offset", offset), ("flip", flip), ("center", center))}
    before = images.copy()
    out = Cutout(CropFlip(pad, True), height, width)(torch.from_numpy(images), draws)
    assert out.shape == (views, 2, channels, height, width)
    assert out.dtype == torch.float32
    np.testing.assert_array_equal(images, before)
    for view in range(views):
        for i in range(2):
            expected = by_hand(images[i], pad, offset[view, i], flip[view, i], center[view, i])
            np.testing.assert_allclose(out[view, i].numpy(), expected, atol=2e-7, rtol=0)


def test_each_image_of_each_view_has_a_place_of_its_own_anywhere_in_the_image() -> None:
    height, width, count = 3, 5, 6000
    draws = Cutout(CropFlip(1, True), height, width).draw(generator(1, "strong", 0), 2, count)
    assert draws.keys() == {"offset", "flip", "center"}
    assert draws["center"].shape == (2, count, 2)
    for y, x in (view.T for view in draws["center"]):
        counts = np.bincount(y * width + x, minlength=height * width)
        assert len(counts) == height * width
        assert y.max() == height - 1
        assert stats.chisquare(counts).pvalue > 1e-3
    same = (draws["center"][0] == draws["center"][1]).all(axis=1).sum()
    expected = count / (height * width)
    assert abs(same - expected) < 5 * np.sqrt(expected)
    again = Cutout(CropFlip(1, True), height, width).draw(generator(1, "strong", 0), 2, count)
    assert all(np.array_equal(draws[name], again[name]) for name in draws)


def test_images_get_cutout_over_their_weak_augmentation() -> None:
    weak = CropFlip(2, True)
    assert strong_augmentation(weak, (3, 6, 9)) == Cutout(weak, 6, 9)


@pytest.mark.parametrize(("mask", "strong"), [(0.2, 0.36), (0.7, 0.91)])
def test_features_get_twice_the_noise_and_masks(mask: float, strong: float) -> None:
    made = strong_augmentation(NoiseMask(4, 0.3, mask), (4,))
    assert isinstance(made, NoiseMask)
    assert (made.features, made.noise) == (4, 0.6)
    assert made.mask == pytest.approx(strong)  # hidden unless it is kept twice


def test_strong_features_by_hand() -> None:
    x = np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32)
    weak = NoiseMask(4, 0.3, 0.2)
    strong = strong_augmentation(weak, (4,))
    drawn = strong.draw(generator(1, "strong", 0), 2, 500)
    out = strong(torch.from_numpy(x), {name: torch.from_numpy(value) for name, value in drawn.items()}).numpy()
    assert out.shape == (2, 500, 4)
    hidden = out == 0
    assert hidden.mean() == pytest.approx(0.36, abs=0.03)
    assert np.std((out - x)[~hidden]) == pytest.approx(0.6, abs=0.03)

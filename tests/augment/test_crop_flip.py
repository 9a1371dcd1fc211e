"""Augmentation against NumPy: flip, pad by reflection, crop, scale."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mixmatch.augment import CropFlip, to_unit_range
from mixmatch.augment.crop_flip import reflect
from mixmatch.errors import MixMatchError


def expected_view(image: np.ndarray, pad: int, dy: int, dx: int, flip: int) -> np.ndarray:
    """One image (H, W, C) uint8: flip first, then pad and crop; channels first in [-1, 1]."""
    height, width, _ = image.shape
    if flip:
        image = image[:, ::-1]
    padded = np.pad(image, ((pad, pad), (pad, pad), (0, 0)), mode="reflect")
    crop = padded[dy : dy + height, dx : dx + width]
    return crop.transpose(2, 0, 1).astype(np.float64) * 2 / 255 - 1


def as_pixels(view: torch.Tensor) -> np.ndarray:
    """Back to the bytes, so that images can be compared exactly."""
    return np.rint((view.numpy().astype(np.float64) + 1) * 127.5).astype(np.int64)


def random_images(seed: int, *shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def tensors(draws: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(value) for name, value in draws.items()}


def check_against_numpy(images: torch.Tensor, pad: int, offset: np.ndarray, flip: np.ndarray) -> None:
    out = CropFlip(pad, flip=True)(images, tensors({"offset": offset, "flip": flip}))
    views, count = flip.shape
    _, height, width, channels = images.shape
    assert out.shape == (views, count, channels, height, width)
    assert out.dtype == torch.float32
    for k in range(views):
        for b in range(count):
            expected = expected_view(images[b].numpy(), pad, *offset[k, b], flip[k, b])
            np.testing.assert_allclose(out[k, b].numpy(), expected, atol=2e-7, rtol=0)
            np.testing.assert_array_equal(as_pixels(out[k, b]), np.rint((expected + 1) * 127.5))


@pytest.mark.parametrize(
    ("pad", "height", "width", "channels"),
    [(4, 8, 8, 3), (4, 32, 32, 3), (3, 5, 9, 3), (3, 9, 5, 3), (4, 8, 8, 1), (7, 8, 8, 2), (0, 6, 7, 3), (0, 1, 1, 1)],
)
def test_every_offset_and_both_flips_are_numpys_pad_and_crop(pad, height, width, channels):
    images = random_images(pad, 2, height, width, channels)
    places = [(dy, dx) for dy in range(2 * pad + 1) for dx in range(2 * pad + 1)]
    offset = np.array([[(dy, dx)] * 2 for dy, dx in places * 2])
    flip = np.repeat([0, 1], len(places))[:, None] * np.ones((1, 2), np.int64)
    check_against_numpy(images, pad, offset, flip)


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_each_view_of_each_image_follows_its_own_draw(data):
    height, width = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    pad = data.draw(st.integers(0, min(height, width) - 1))
    views, count = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    images = random_images(int(rng.integers(2**31)), count, height, width, 3)
    check_against_numpy(
        images, pad, rng.integers(0, 2 * pad + 1, (views, count, 2)), rng.integers(0, 2, (views, count))
    )


def test_stl10s_padding_of_12():
    rng = np.random.default_rng(12)
    offset = rng.integers(0, 25, (6, 3, 2))
    offset[:4, 0] = [(0, 0), (0, 24), (24, 0), (24, 24)]
    check_against_numpy(random_images(12, 3, 96, 96, 3), 12, offset, rng.integers(0, 2, (6, 3)))


def test_a_row_of_pixels_by_hand():
    # 0 1 2 flipped is 2 1 0; mirrored by 2 it is 0 1 2 1 0 1 2; the crop at column 1 is 1 2 1.
    image = torch.tensor([0, 1, 2], dtype=torch.uint8).reshape(1, 1, 3, 1).expand(1, 3, 3, 1)
    draws = {"offset": torch.tensor([[[2, 1]]]), "flip": torch.tensor([[1]])}
    assert as_pixels(CropFlip(2, flip=True)(image, draws)[0, 0, 0, 0]).tolist() == [1, 2, 1]


def test_reflection_does_not_repeat_the_edge():
    assert reflect(torch.arange(-3, 7), 4).tolist() == [3, 2, 1, 0, 1, 2, 3, 2, 1, 0]


# What is drawn


def test_all_81_offsets_and_both_flips_are_equally_likely():
    draws = CropFlip(4, flip=True).draw(np.random.default_rng(0), 2, 20_000)
    assert draws["offset"].shape == (2, 20_000, 2)
    assert draws["flip"].shape == (2, 20_000)
    for view in range(2):
        (dy, dx), flip = draws["offset"][view].T, draws["flip"][view]
        assert dy.min() == dx.min() == flip.min() == 0
        assert dy.max() == dx.max() == 8
        assert flip.max() == 1
        counts = np.bincount((dy * 9 + dx) * 2 + flip, minlength=162)
        assert len(counts) == 162
        assert counts.min() > 0
        assert stats.chisquare(counts).pvalue > 1e-3


def test_the_views_of_an_image_are_drawn_independently():
    draws = CropFlip(4, flip=True).draw(np.random.default_rng(1), 2, 20_000)
    same = (draws["offset"][0] == draws["offset"][1]).all(axis=1) & (draws["flip"][0] == draws["flip"][1])
    expected = 20_000 / 162
    assert abs(same.sum() - expected) < 5 * np.sqrt(expected)
    first, second = (draws["offset"][view] @ np.array([9, 1]) for view in range(2))
    table = np.zeros((9, 9))
    np.add.at(table, (first // 9, second // 9), 1)
    assert stats.chi2_contingency(table).pvalue > 1e-3


def test_k_copies_of_a_batch_are_different_images():
    augment = CropFlip(4, flip=True)
    images = random_images(0, 64, 32, 32, 3)
    out = augment(images, tensors(augment.draw(np.random.default_rng(2), 2, 64)))
    differ = (out[0] != out[1]).flatten(1).any(dim=1)
    assert differ.sum() >= 60


def test_without_flip_nothing_is_flipped():
    augment = CropFlip(4, flip=False)
    draws = augment.draw(np.random.default_rng(3), 2, 5000)
    assert not draws["flip"].any()
    counts = np.bincount(draws["offset"][0] @ np.array([9, 1]), minlength=81)
    assert stats.chisquare(counts).pvalue > 1e-3


def test_pad_0_without_flip_gives_the_image_back():
    augment = CropFlip(0, flip=False)
    images = random_images(4, 5, 6, 7, 3)
    out = augment(images, tensors(augment.draw(np.random.default_rng(4), 3, 5)))
    for view in out:
        np.testing.assert_array_equal(as_pixels(view), images.permute(0, 3, 1, 2).numpy())


# What comes out


def test_pixels_are_scaled_to_minus_1_and_1_exactly():
    pixels = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16, 1)
    scaled = to_unit_range(pixels)
    assert scaled.shape == (1, 1, 16, 16)
    assert scaled.dtype == torch.float32
    values = scaled.flatten().numpy().astype(np.float64)
    assert values[0] == -1
    assert values[255] == 1
    np.testing.assert_allclose(values, np.arange(256) * 2 / 255 - 1, atol=2e-7, rtol=0)
    assert (np.diff(values) > 0).all()
    assert pixels.flatten().tolist() == list(range(256))


def test_a_view_is_channels_last_in_memory():
    augment = CropFlip(4, flip=True)
    out = augment(random_images(5, 8, 16, 16, 3), tensors(augment.draw(np.random.default_rng(5), 2, 8)))
    for view in out:
        assert view.is_contiguous(memory_format=torch.channels_last)
    assert to_unit_range(random_images(6, 8, 16, 16, 3)).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("pad", "height", "width"), [(0, 1, 1), (4, 5, 5), (4, 32, 32), (12, 96, 96), (3, 4, 100)])
def test_a_pad_below_the_image_size_is_accepted(pad, height, width):
    CropFlip(pad, flip=True).check(height, width)
    np.pad(np.zeros((height, width)), pad, mode="reflect")


@pytest.mark.parametrize(
    ("pad", "height", "width", "most"), [(-1, 8, 8, 7), (8, 8, 8, 7), (4, 4, 32, 3), (4, 32, 4, 3)]
)
def test_a_pad_the_mirror_cannot_show_is_refused(pad, height, width, most):
    with pytest.raises(MixMatchError, match=rf"pad must be between 0 and {most} for {height}x{width} images"):
        CropFlip(pad, flip=True).check(height, width)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_gpu_gives_the_same_images_for_the_same_draws():
    augment = CropFlip(4, flip=True)
    images = random_images(7, 64, 32, 32, 3)
    draws = tensors(augment.draw(np.random.default_rng(7), 2, 64))
    on_gpu = augment(images.cuda(), {name: value.cuda() for name, value in draws.items()})
    assert on_gpu.is_cuda
    assert torch.equal(on_gpu.cpu(), augment(images, draws))

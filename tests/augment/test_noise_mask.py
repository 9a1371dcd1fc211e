"""The augmentation of features against NumPy, and which augmentation a source gets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from mixmatch.augment import CropFlip, NoiseMask, unaugmented, weak_augmentation
from mixmatch.data.pool import Pool
from mixmatch.data.source import Rows, Source
from mixmatch.draws import generator
from mixmatch.errors import MixMatchError

NONE: dict[str, Any] = {"pad": 0, "flip": False, "noise": 0.0, "mask": 0.0}


def features(rows: int = 6, columns: int = 4) -> Rows:
    return Rows(np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32), np.zeros(rows, np.int64))


def images() -> Rows:
    return Rows(np.zeros((6, 5, 5, 1), np.uint8), np.zeros(6, np.int64))


def test_noise_is_added_and_what_is_masked_is_zero() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    noise = np.full((2, 2, 3), 0.5, np.float32)
    kept = np.array([[[1, 1, 0], [0, 1, 1]], [[1, 0, 1], [1, 1, 1]]], bool)
    out = NoiseMask(3, 9.0, 9.0)(torch.from_numpy(x), {"noise": torch.tensor(noise), "kept": torch.tensor(kept)})
    expected = [[[0.5, 1.5, 0], [0, 4.5, 5.5]], [[0.5, 0, 2.5], [3.5, 4.5, 5.5]]]
    np.testing.assert_array_equal(out.numpy(), expected)


def test_draws_have_the_deviation_and_share_that_are_asked_for() -> None:
    draws = NoiseMask(50, 0.3, 0.2).draw(generator(1, "augment", 0), 2, 1000)
    assert draws["noise"].shape == draws["kept"].shape == (2, 1000, 50)
    assert draws["noise"].dtype == np.float32
    assert np.mean(draws["noise"]) == pytest.approx(0, abs=0.004)  # 4 standard errors
    assert np.std(draws["noise"]) == pytest.approx(0.3, abs=0.003)
    assert np.mean(draws["kept"]) == pytest.approx(0.8, abs=0.005)
    again = NoiseMask(50, 0.3, 0.2).draw(generator(1, "augment", 0), 2, 1000)
    np.testing.assert_array_equal(draws["noise"], again["noise"])


def test_nothing_asked_for_is_nothing_done() -> None:
    x = torch.from_numpy(features().inputs)
    augment = NoiseMask(4, 0.0, 0.0)
    draws = {name: torch.from_numpy(draw) for name, draw in augment.draw(generator(1, "a", 0), 3, 6).items()}
    assert torch.equal(augment(x, draws), x.expand(3, 6, 4))
    assert torch.equal(unaugmented(x), x)


def test_a_source_gets_its_own_augmentation() -> None:
    of_features = Source("t", ("a",), features(), features(0)).input_shape
    assert weak_augmentation(of_features, **{**NONE, "noise": 0.5, "mask": 0.25}) == NoiseMask(4, 0.5, 0.25)
    of_images = Source("t", ("a",), images(), images()).input_shape
    assert weak_augmentation(of_images, **{**NONE, "pad": 2, "flip": True}) == CropFlip(2, True)


@pytest.mark.parametrize(
    ("part", "given", "says"),
    [
        (features, {"pad": 2}, "pad and flip are for images"),
        (features, {"flip": True}, "pad and flip are for images"),
        (images, {"noise": 0.1}, "noise and mask are for features"),
        (images, {"mask": 0.1}, "noise and mask are for features"),
        (images, {"pad": 5}, "pad must be between 0 and 4"),
    ],
)
def test_settings_of_the_other_kind_are_refused(part: Any, given: dict[str, Any], says: str) -> None:
    with pytest.raises(MixMatchError, match=says):
        weak_augmentation(Source("t", ("a",), part(), part()).input_shape, **{**NONE, **given})


def test_a_pool_of_features() -> None:
    x = features().inputs
    for resident in (False, True):
        pool = Pool(x, torch.device("cpu"), resident=resident)
        np.testing.assert_array_equal(pool.fetch(torch.tensor([4, 0, 4])).numpy(), x[[4, 0, 4]])
    with pytest.raises(ValueError, match="float32"):
        Pool(x.astype(np.float64), torch.device("cpu"))


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (np.zeros((3, 0), np.float32), "features must be float32"),
        (np.zeros((3, 2)), "features must be float32"),
        (np.full((3, 2), np.nan, np.float32), "no finite numbers"),
        (np.zeros((2, 2), np.float32), "each of the 2 rows"),
    ],
)
def test_features_that_are_refused(x: np.ndarray, says: str) -> None:
    with pytest.raises(MixMatchError, match=says):
        Rows(x, np.zeros(3, np.int64))


def test_rows_of_different_width_are_refused() -> None:
    with pytest.raises(MixMatchError, match="train rows of shape"):
        Source("t", ("a",), features(6, 4), features(6, 3))

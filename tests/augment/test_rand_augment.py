"""RandAugment: whole draws against Pillow, image by image, and what is drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pillow_reference as pillow
import pytest
import torch
from scipy import stats

from mixmatch.augment import Adaptive, CropFlip, Cutout, NoiseMask, RandAugment, strong_augmentation
from mixmatch.augment.rand_augment import OPERATIONS
from mixmatch.draws import generator
from mixmatch.errors import MixMatchError

VARIANTS = ("fixmatch", "kekmodel", "torchssl")


def tensors(draws: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(value) for name, value in draws.items()}


def expected(variant: str, image: np.ndarray, pad: int, draws: dict[str, Any]) -> np.ndarray:
    """Channels first, in [-1, 1]."""
    out = getattr(pillow, variant)(image, pad, draws)
    out = out if variant == "fixmatch" else out / 127.5 - 1
    return out.transpose(2, 0, 1)


def check(variant: Any, images: np.ndarray, pad: int, views: int, seed: int, **changed: np.ndarray) -> None:
    augment = RandAugment(CropFlip(pad, True), variant)
    draws = {**augment.draw(generator(seed, "strong", 0), views, len(images)), **changed}
    out = augment(torch.from_numpy(images), tensors(draws))
    assert out.dtype == torch.float32
    assert out.shape == (views, len(images), images.shape[3], *images.shape[1:3])
    for view in range(views):
        for i, image in enumerate(images):
            own = {name: draw[view, i] for name, draw in draws.items()}
            np.testing.assert_allclose(out[view, i], expected(variant, image, pad, own), atol=2e-7, err_msg=str(own))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", [(32, 32, 3), (32, 32, 1), (21, 34, 3), (100, 50, 3), (8, 8, 1)], ids=str)
def test_whole_draws_give_pillows_images(variant: str, shape: tuple[int, int, int]) -> None:
    check(variant, pillow.images(*shape), min(4, *shape[:2]), views=20, seed=shape[0])


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_pair_of_operations(variant: str) -> None:
    images = pillow.images(32, 32, 3)[:2]
    views, slots = 14 * 14, 3 if variant == "torchssl" else 2
    pairs = np.stack([np.divmod(np.arange(views), 14)] * 2, -1).transpose(1, 2, 0)
    operation = np.concatenate([pairs, pairs[:, :, :1]], 2)[:, :, :slots].astype(np.int8)
    applied = {} if variant == "torchssl" else {"applied": np.ones_like(operation)}
    check(variant, images, 4, views, 5, operation=operation, **applied)


def test_an_empty_pixel_is_gray_unless_an_operation_without_transparency_follows() -> None:
    image = torch.full((1, 32, 32, 3), 200, dtype=torch.uint8)
    augment = RandAugment()
    draws = tensors(augment.draw(generator(0, "strong", 0), 1, 1))
    draws |= {"center": torch.full((1, 1, 2), 0.99), "negative": torch.zeros(1, 1, 2, dtype=torch.int8)}
    draws |= {"applied": torch.ones(1, 1, 2, dtype=torch.int8), "level": torch.full((1, 1, 2), 5, dtype=torch.int8)}
    corner = {}
    for name in OPERATIONS:
        numbers = [OPERATIONS.index("translate_x"), OPERATIONS.index(name)]
        draws["operation"] = torch.tensor(numbers, dtype=torch.int8).view(1, 1, 2)
        corner[name] = augment(image, draws)[0, 0, :, 0, 31].tolist()
    opaque = ("autocontrast", "equalize", "posterize", "solarize")
    assert all(corner[name] == ([-1.0] * 3 if name in opaque else [0.0] * 3) for name in OPERATIONS)


def test_levels_at_every_step() -> None:
    level = torch.arange(1, 10, dtype=torch.int8)
    negative = torch.tensor([0, 1] * 4 + [0], dtype=torch.int8)
    draws, sign = {"level": level, "negative": negative}, [1, -1] * 4 + [1]

    def of(variant: Any, name: str, size: int = 32) -> list[float]:
        return RandAugment(variant=variant).amounts(draws, size, size)[name].tolist()

    assert of("fixmatch", "posterize") == [4, 4, 3, 3, 2, 2, 2, 1, 1]
    assert of("kekmodel", "posterize") == [4, 4, 5, 5, 6, 6, 6, 7, 7]
    assert of("fixmatch", "solarize") == of("kekmodel", "solarize") == [231, 205, 180, 154, 128, 103, 77, 52, 26]
    assert of("fixmatch", "translate_x", 96) == of("fixmatch", "translate_x") == [m * s for m, s in enumerate(sign, 1)]
    assert of("kekmodel", "translate_y") == [0, -1, 2, -3, 4, -5, 6, -7, 8]
    for size in range(1, 400):  # also where 0.03 m times the size is whole, or just below in float64
        by_python = [int(s * (m * 0.3 / 10) * size) for m, s in enumerate(sign, 1)]
        assert of("kekmodel", "translate_x", size) == by_python
    for variant, width, least in (("fixmatch", 1.8, 0.1), ("kekmodel", 0.9, 0.05)):
        for name in pillow.ENHANCE:
            found = np.float32(of(variant, name))
            assert found.tolist() == np.float32([m * width / 10 + least for m in range(1, 10)]).tolist()


# What is drawn


def test_operations_levels_signs_and_places_are_equally_likely() -> None:
    draws = RandAugment(CropFlip(4, True)).draw(generator(1, "strong", 0), 2, 20_000)
    for view in range(2):
        for slot in range(2):
            operation, level, negative, applied = (
                draws[name][view, :, slot].astype(int) for name in ("operation", "level", "negative", "applied")
            )
            cells = ((operation * 9 + level - 1) * 2 + negative) * 2 + applied
            counts = np.bincount(cells, minlength=14 * 9 * 4)
            assert len(counts) == 14 * 9 * 4
            assert stats.chisquare(counts).pvalue > 1e-3
        assert stats.kstest(draws["center"][view].ravel(), "uniform").pvalue > 1e-3
    pairs = draws["operation"][:, :, 0].astype(int) * 14 + draws["operation"][:, :, 1]
    assert stats.chisquare(np.bincount(pairs.ravel(), minlength=196)).pvalue > 1e-3


def test_what_torchssl_draws() -> None:
    draws = RandAugment(variant="torchssl").draw(generator(1, "strong", 0), 2, 5000)
    assert draws["operation"].shape == draws["level"].shape == (2, 5000, 3)
    assert draws["side"].shape == (2, 5000)
    assert stats.chisquare(np.bincount(draws["operation"].ravel())).pvalue > 1e-3
    for name in ("level", "side", "center"):
        assert draws[name].dtype == np.float32
        assert stats.kstest(draws[name].ravel(), "uniform").pvalue > 1e-3


def test_the_same_generator_draws_the_same() -> None:
    first, again = (RandAugment().draw(generator(3, "strong", 7), 2, 50) for _ in range(2))
    assert all(np.array_equal(first[name], again[name]) for name in first)


# In a step


@pytest.mark.parametrize(("variant", "backend"), [("fixmatch", "aot_eager"), ("torchssl", "eager")])
def test_it_compiles_into_one_graph(variant: Any, backend: str) -> None:
    augment = RandAugment(CropFlip(2, True), variant)
    images = torch.from_numpy(pillow.images(12, 10, 3))
    draws = tensors(augment.draw(generator(1, "strong", 0), 2, len(images)))
    fast = torch.compile(augment.__call__, fullgraph=True, backend=backend)
    assert torch.equal(fast(images, draws), augment(images, draws))


def test_the_inputs_stay_as_they_are() -> None:
    images = pillow.images(9, 9, 3)
    before = images.copy()
    augment = RandAugment()
    augment(torch.from_numpy(images), tensors(augment.draw(generator(1, "strong", 0), 3, len(images))))
    np.testing.assert_array_equal(images, before)


def test_strong_augmentations_by_name() -> None:
    weak = CropFlip(2, True)
    assert strong_augmentation(weak, (3, 9, 8)) == strong_augmentation(weak, (3, 9, 8), "cutout") == Cutout(weak, 9, 8)
    assert strong_augmentation(weak, (3, 9, 8), "randaugment") == RandAugment(weak)
    assert strong_augmentation(weak, (1, 9, 8), "kekmodel") == RandAugment(weak, "kekmodel")
    assert hash(strong_augmentation(weak, (1, 9, 8), "torchssl")) == hash(RandAugment(weak, "torchssl"))
    assert isinstance(strong_augmentation(NoiseMask(4, 0.1, 0.1), (4,), "randaugment"), NoiseMask)
    with pytest.raises(MixMatchError, match="1 or 3 channels, but images have 2: use strong=cutout"):
        strong_augmentation(weak, (2, 9, 8), "randaugment")
    with pytest.raises(MixMatchError, match="strong='blur' is not one of cutout, randaugment"):
        strong_augmentation(weak, (3, 9, 8), "blur")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["randaugment", "kekmodel", "torchssl", "ctaugment"])
def test_a_gpu_gives_the_same_bytes_compiled_and_captured(name: str) -> None:
    augment = strong_augmentation(CropFlip(4, True), (3, 32, 32), name)
    images = torch.from_numpy(pillow.images(32, 32, 3)).repeat(40, 1, 1, 1)
    on_gpu = images.cuda()
    fast = torch.compile(augment.__call__, fullgraph=True, dynamic=False)
    given: dict[str, torch.Tensor] = {}
    for step in range(10):
        draws = tensors(augment.draw(generator(step, "strong", step), 2, len(images)))
        if isinstance(augment, Adaptive):
            draws |= augment.state(torch.device("cpu"))
        expected, given = augment(images, draws), {key: value.cuda() for key, value in draws.items()}
        for way in (augment.__call__, fast):
            assert (way(on_gpu, given).cpu() - expected).abs().max() < 1e-6
    for way in (augment.__call__, fast):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = way(on_gpu, given)
        graph.replay()
        assert (out.cpu() - expected).abs().max() < 1e-6

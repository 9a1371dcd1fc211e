"""CTAugment: whole draws against Pillow, how the rates decide and how they are learned, against loops in NumPy."""

from __future__ import annotations

import numpy as np
import pillow_reference as pillow
import pytest
import torch
from scipy import stats

from mixmatch.augment import Adaptive, CropFlip, CTAugment, strong_augmentation
from mixmatch.augment.operations import OPERATIONS
from mixmatch.draws import generator

BINS = {"identity": [], "posterize": [8], "rescale": [17, 6]}


def bins(number: int) -> list[int]:
    return BINS.get(OPERATIONS[number], [17])


def tensors(draws: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(value) for name, value in draws.items()}


def some_rates(seed: int) -> torch.Tensor:
    """Rates between 0.5 and 1, so that some bins are below the threshold and some above."""
    initial = CTAugment().state(torch.device("cpu"))["rates"]
    drawn = torch.from_numpy(np.random.default_rng(seed).uniform(0.5, 1, initial.shape).astype(np.float32))
    return torch.where(initial > 0, drawn, initial)


def expected_levels(draws: dict[str, np.ndarray], rates: np.ndarray) -> np.ndarray:
    """By a loop: the bins that are allowed, one of them, a place in it."""
    levels = np.full(draws["level"].shape, 0.5)
    for place in np.ndindex(draws["operation"].shape):
        number = draws["operation"][place]
        for parameter, size in enumerate(bins(number)):
            p = rates[number, parameter, :size].astype(np.float64) + 0.01
            p /= p.max()
            p[p < 0.8] = 0
            upto = np.cumsum(p / p.sum())
            chosen = int(np.searchsorted(upto, draws["bin"][place][parameter], side="right"))
            levels[place][parameter] = (chosen + float(draws["level"][place][parameter])) / size
    return levels


def check(
    out: torch.Tensor, images: np.ndarray, draws: dict[str, np.ndarray], levels: np.ndarray, hidden: bool
) -> None:
    for view, i in np.ndindex(out.shape[:2]):
        own = {name: draw[view, i] for name, draw in draws.items()}
        expected = pillow.ctaugment(images[i], 2, own, levels[view, i], hidden)
        expected = expected.transpose(2, 0, 1) / 127.5 - 1
        np.testing.assert_allclose(out[view, i], expected, atol=2e-7, err_msg=f"{own} {levels[view, i]}")


@pytest.mark.parametrize("shape", [(32, 32, 3), (32, 32, 1), (16, 34, 3), (8, 8, 1)], ids=str)
def test_whole_draws_give_pillows_images(shape: tuple[int, int, int]) -> None:
    images, augment, rates = pillow.images(*shape), CTAugment(CropFlip(2, True)), some_rates(1)
    draws = augment.draw(generator(shape[1], "strong", 0), 30, len(images))
    levels = expected_levels(draws, rates.numpy())
    out = augment(torch.from_numpy(images), {**tensors(draws), "rates": rates})
    assert out.dtype == torch.float32
    assert out.shape == (30, len(images), shape[2], *shape[:2])
    check(out, images, draws, levels, hidden=True)
    bare = CTAugment(CropFlip(2, True), cutout=False)
    check(bare(torch.from_numpy(images), {**tensors(draws), "rates": rates})[:5], images, draws, levels, hidden=False)


def test_a_probe_gives_pillows_images_without_the_last_square() -> None:
    images, augment = pillow.images(32, 32, 3).repeat(20, 0), CTAugment(CropFlip(2, True))
    draws = augment.draw_probe(generator(2, "probe", 0), len(images))
    out = augment.probe(torch.from_numpy(images), tensors(draws))
    assert out.shape == (1, len(images), 3, 32, 32)
    check(out, images, draws, draws["level"].astype(np.float64), hidden=False)


def test_translations_move_nothing_as_in_the_authors_code() -> None:
    images, augment = torch.from_numpy(pillow.images(16, 16, 3)), CTAugment(cutout=False)
    draws = tensors(augment.draw_probe(generator(3, "probe", 0), len(images)))
    draws["operation"] = torch.full_like(draws["operation"], OPERATIONS.index("translate_x"))
    out = augment.probe(images, draws)
    assert torch.equal(out, CropFlip(0, False)(images, draws))


# The rates


def test_only_bins_near_the_best_are_used_in_proportion_to_their_rates() -> None:
    augment, count, number = CTAugment(), 40_000, OPERATIONS.index("posterize")
    rates = augment.state(torch.device("cpu"))["rates"]
    rates[number, 0, :8] = torch.tensor([0.2, 0.8, 0.99, 0.9, 0.78, 0.85, 0.95, 0.0])
    draws = augment.draw(generator(4, "strong", 0), 1, count)
    draws["operation"][:] = number
    levels = augment.levels({**tensors(draws), "rates": rates})[..., 0].numpy()
    counts = np.bincount((levels.ravel() * 8).astype(int), minlength=8)
    weights = np.array([0, 0.81, 1.0, 0.91, 0, 0.86, 0.96, 0])  # with 0.01 more; 0.78 + 0.01 is below 0.8
    used = weights > 0
    assert counts[~used].sum() == 0
    assert stats.chisquare(counts[used], counts.sum() * weights[used] / weights.sum()).pvalue > 1e-3
    assert stats.kstest(levels.ravel() * 8 % 1, "uniform").pvalue > 1e-3


def test_at_first_all_strengths_are_equally_likely() -> None:
    augment = CTAugment()
    draws = augment.draw(generator(5, "strong", 0), 1, 20_000)
    levels = augment.levels({**tensors(draws), **augment.state(torch.device("cpu"))}).numpy()
    counts = np.bincount(draws["operation"].ravel())
    assert len(counts) == len(OPERATIONS) == 19
    assert stats.chisquare(counts).pvalue > 1e-3
    for number in range(19):
        for parameter in range(len(bins(number))):
            drawn = levels[draws["operation"] == number][:, parameter]
            assert stats.kstest(drawn, "uniform").pvalue > 1e-4
    second = draws["operation"] == OPERATIONS.index("rescale")
    assert stats.chisquare(np.bincount((levels[second][:, 1] * 5.99).astype(int))).pvalue > 1e-3


@pytest.mark.parametrize("count", [1, 64, 1000])
def test_rates_are_learned_image_by_image(count: int) -> None:
    augment, rates = CTAugment(), some_rates(6)
    draws = augment.draw_probe(generator(6, "probe", 0), count)
    draws["level"][0, 0, 0] = (0, 1 - 2**-24)
    if count == 64:
        draws["operation"][0, :40] = OPERATIONS.index("rescale")  # many to the same bins
    proximity = np.random.default_rng(6).uniform(0, 1, count).astype(np.float32)
    expected = rates.numpy().astype(np.float64)
    for i in range(count):
        for slot in range(2):
            number = draws["operation"][0, i, slot]
            for parameter, size in enumerate(bins(number)):
                hit = int(float(draws["level"][0, i, slot, parameter]) * size * 0.999)
                expected[number, parameter, hit] = 0.99 * expected[number, parameter, hit] + 0.01 * proximity[i]
    new = augment.learned({"rates": rates}, tensors(draws), torch.from_numpy(proximity))["rates"]
    assert new.dtype == torch.float32
    np.testing.assert_allclose(new.numpy(), expected, atol=2e-6)
    assert not np.allclose(new.numpy(), rates.numpy(), atol=1e-4)


def test_what_the_engine_sees() -> None:
    augment = strong_augmentation(CropFlip(2, True), (3, 12, 12), "ctaugment")
    assert augment == CTAugment(CropFlip(2, True))
    assert hash(augment) == hash(CTAugment(CropFlip(2, True)))
    bare = strong_augmentation(CropFlip(2, True), (3, 12, 12), "ctaugment-only")
    assert bare == CTAugment(CropFlip(2, True), cutout=False)
    assert isinstance(augment, Adaptive)
    state = augment.state(torch.device("cpu"))
    assert [(rates[rates >= 0] == 1).sum().item() for rates in state["rates"]] == [sum(bins(n)) for n in range(19)]


def test_it_compiles_into_one_graph() -> None:
    augment, images = CTAugment(CropFlip(2, True)), torch.from_numpy(pillow.images(8, 6, 3))
    draws = {**tensors(augment.draw(generator(7, "strong", 0), 2, len(images))), "rates": some_rates(7)}
    fast = torch.compile(augment.__call__, fullgraph=True, backend="eager")
    assert torch.equal(fast(images, draws), augment(images, draws))
    probe = tensors(augment.draw_probe(generator(7, "probe", 0), 5))
    learn = torch.compile(augment.learned, fullgraph=True, backend="eager")
    near = torch.linspace(0, 1, 5)
    assert torch.equal(learn(draws, probe, near)["rates"], augment.learned(draws, probe, near)["rates"])

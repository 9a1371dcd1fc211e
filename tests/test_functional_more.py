"""Divergence and entropy, which VAT needs, against SciPy in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import special, stats

from mixmatch import functional
from mixmatch.functional import entropy, kl_divergence


def logits(seed: int, *shape: int, scale: float = 3.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(scale=scale, size=shape)


@pytest.mark.parametrize("shape", [(1, 2), (7, 4), (3, 5, 10), (64, 100)])
def test_kl_is_the_mean_of_scipys_over_rows(shape):
    a, b = logits(1, *shape), logits(2, *shape)
    p, q = special.softmax(a, axis=-1), special.softmax(b, axis=-1)
    expected = special.rel_entr(p, q).sum(axis=-1).mean()
    found = kl_divergence(torch.from_numpy(a), torch.from_numpy(b))
    assert found.shape == ()
    assert found.item() == pytest.approx(expected, rel=1e-11)
    assert found.item() != pytest.approx(special.rel_entr(q, p).sum(axis=-1).mean(), rel=1e-3)


@pytest.mark.parametrize("shape", [(1, 2), (7, 4), (3, 5, 10), (64, 100)])
def test_entropy_is_the_mean_of_scipys_over_rows(shape):
    a = logits(3, *shape)
    expected = stats.entropy(special.softmax(a, axis=-1), axis=-1).mean()
    assert entropy(torch.from_numpy(a)).item() == pytest.approx(expected, rel=1e-11)


def test_by_hand():
    """KL of (3/4, 1/4) from (1/2, 1/2) is 3/4 ln 3 - ln 2; the entropy of (1/4 x 4) is 2 ln 2."""
    a, b = torch.tensor([[3.0, 1.0]], dtype=torch.float64).log(), torch.zeros(1, 2, dtype=torch.float64)
    assert kl_divergence(a, b).item() == pytest.approx(0.75 * math.log(3) - math.log(2), rel=1e-14)
    assert kl_divergence(b, a).item() == pytest.approx(math.log(2) - 0.5 * math.log(3), rel=1e-14)
    assert entropy(torch.full((5, 4), 7.0)).item() == pytest.approx(2 * math.log(2), rel=1e-6)


def test_logits_are_up_to_a_constant_of_the_row():
    a, b = (torch.from_numpy(logits(seed, 6, 5)) for seed in (4, 5))
    shift = torch.arange(6.0, dtype=torch.float64)[:, None] * 10
    assert kl_divergence(a + shift, b - shift).item() == pytest.approx(kl_divergence(a, b).item(), rel=1e-12)
    assert entropy(a + shift).item() == pytest.approx(entropy(a).item(), rel=1e-12)


def test_equal_distributions_have_no_divergence():
    a = torch.from_numpy(logits(6, 9, 3))
    assert kl_divergence(a, a).item() == 0


def test_gradients_agree_with_finite_differences():
    a, b = (torch.from_numpy(logits(seed, 4, 3, scale=1.0)).requires_grad_() for seed in (7, 8))
    assert torch.autograd.gradcheck(kl_divergence, (a, b))
    assert torch.autograd.gradcheck(entropy, (a,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_logits_stay_finite(dtype):
    """A certain row has entropy 0; certain rows that disagree by 2,000 diverge by 2,000, in both directions."""
    a = torch.tensor([[1000.0, -1000.0]], dtype=dtype, requires_grad=True)
    b = torch.tensor([[-1000.0, 1000.0]], dtype=dtype, requires_grad=True)
    for value, expected in ((kl_divergence(a, b), 2000.0), (kl_divergence(b, a), 2000.0), (entropy(a), 0.0)):
        assert value.item() == expected
        value.backward()
    assert a.grad.isfinite().all()
    assert b.grad.isfinite().all()


# ---------------------------------------------------------------- pseudo-labels


def test_pseudo_labels_are_averaged_over_all_rows() -> None:
    logits = torch.tensor([[0.6, 0.4], [0.2, 0.8], [0.5, 0.5]], dtype=torch.float64).log()
    weight = torch.tensor([1.0, 0.5, 0.0]).double()
    expected = -(math.log(0.6) + 0.5 * math.log(0.8)) / 3
    hard = functional.pseudo_label_loss(logits, torch.tensor([0, 1, 0]), weight)
    soft = functional.pseudo_label_loss(logits, torch.tensor([[1, 0], [0, 1], [1, 0]]).double(), weight)
    assert hard.item() == pytest.approx(expected, rel=1e-12)
    assert soft.item() == pytest.approx(expected, rel=1e-12)


def test_alignment_moves_predictions_towards_the_target() -> None:
    q = torch.tensor([[0.6, 0.4], [0.9, 0.1]]).double()
    target, predicted = torch.tensor([0.5, 0.5]).double(), torch.tensor([0.75, 0.25]).double()
    # 0.6 * 2 / 3 = 0.4 and 0.4 * 2 = 0.8; 0.9 * 2 / 3 = 0.6 and 0.1 * 2 = 0.2
    expected = torch.tensor([[1 / 3, 2 / 3], [0.75, 0.25]]).double()
    torch.testing.assert_close(functional.align(q, target, predicted), expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(functional.align(q, predicted, predicted), q)
    never = functional.align(q, target, torch.tensor([1.0, 0.0]).double())
    assert torch.isfinite(never).all()  # a class that is never predicted


def test_a_moving_average() -> None:
    assert functional.moving_average(torch.tensor(2.0), torch.tensor(4.0), 0.75).item() == 2.5

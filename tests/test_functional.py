"""The paper's equations against NumPy in float64, written here from the paper's text."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from mixmatch.functional import (
    guess_labels,
    interleave,
    labeled_loss,
    linear_ramp,
    mixmatch,
    mixup,
    sharpen,
    unlabeled_loss,
)

seeds = st.integers(0, 2**32 - 1)
LOW_PRECISION = [torch.bfloat16, torch.float16]


def distributions(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Random distributions over the last axis, some entries exactly zero."""
    raw = rng.random(shape) * (rng.random(shape) < 0.8)
    raw[..., rng.integers(shape[-1])] += 0.1
    return raw / raw.sum(axis=-1, keepdims=True)


def softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def equation_7(p: np.ndarray, T: float) -> np.ndarray:
    powered = p ** (1 / T)
    return powered / powered.sum(axis=-1, keepdims=True)


# Sharpening


def test_sharpen_by_hand():
    # 0.5^2, 0.3^2, 0.2^2 = 0.25, 0.09, 0.04, which sum to 0.38.
    sharp = sharpen(torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), T=0.5)
    np.testing.assert_allclose(sharp.numpy(), [25 / 38, 9 / 38, 4 / 38], rtol=1e-14)


@settings(deadline=None, max_examples=100)
@given(seeds, st.integers(1, 5), st.integers(2, 12), st.floats(0.05, 4))
def test_sharpen_is_equation_7(seed, rows, L, T):
    p = distributions(np.random.default_rng(seed), rows, L)
    np.testing.assert_allclose(sharpen(torch.from_numpy(p), T).numpy(), equation_7(p, T), rtol=1e-9, atol=1e-300)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.floats(0, 1, width=32), min_size=2, max_size=10).filter(lambda p: max(p) > 1e-3),
    st.floats(0, 2) | st.sampled_from([0.0, 1e-300, 1e-40, 1e-3]),
    st.sampled_from([torch.float64, torch.float32, *LOW_PRECISION]),
)
def test_sharpen_keeps_a_distribution_and_the_order_of_its_entries(raw, T, dtype):
    p = torch.tensor(raw, dtype=torch.float64)
    p = (p / p.sum()).to(dtype)
    sharp = sharpen(p, T)
    assert sharp.dtype == dtype
    assert sharp.isfinite().all()
    assert (sharp >= 0).all()
    assert sharp.double().sum().item() == pytest.approx(1, abs=len(raw) * torch.finfo(dtype).eps)
    ascending = p.argsort()
    assert (sharp[ascending].diff() >= 0).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *LOW_PRECISION])
@pytest.mark.parametrize("T", [0, 1e-320, 1e-40, 1e-8, 0.01, 0.5, 1, 100])
def test_one_hot_rows_stay_exactly_one_hot(dtype, T):
    eye = torch.eye(4, dtype=dtype)
    assert torch.equal(sharpen(eye, T), eye)


@pytest.mark.parametrize("dtype", [torch.float32, *LOW_PRECISION])
def test_a_small_temperature_does_not_underflow_to_a_row_of_zeros(dtype):
    # 0.01^100 is 1e-200, which float32 cannot hold: every entry of a plain p^(1/T) would vanish.
    flat = torch.full((100,), 0.01, dtype=dtype)
    np.testing.assert_allclose(sharpen(flat, 0.01).double().numpy(), 0.01, rtol=0.005)


@pytest.mark.parametrize("dtype", LOW_PRECISION)
def test_low_precision_loses_only_the_rounding_of_its_input_and_output(dtype):
    p = torch.from_numpy(distributions(np.random.default_rng(0), 50, 10)).to(dtype)
    expected = equation_7(p.double().numpy(), 0.5)
    np.testing.assert_allclose(
        sharpen(p, 0.5).double().numpy(), expected, rtol=torch.finfo(dtype).eps, atol=torch.finfo(dtype).tiny
    )


def test_temperature_1_changes_nothing():
    p = torch.from_numpy(distributions(np.random.default_rng(1), 20, 7))
    np.testing.assert_allclose(sharpen(p, 1).numpy(), p.numpy(), rtol=1e-14)


@pytest.mark.parametrize("T", [0, 1e-6, 1e-300])
def test_temperature_towards_0_is_one_hot_at_the_largest_entry(T):
    p = torch.tensor([[0.2, 0.5, 0.3], [0.34, 0.33, 0.33]])
    assert torch.equal(sharpen(p, T), torch.tensor([[0.0, 1, 0], [1, 0, 0]]))


def test_temperature_0_shares_among_equals():
    p = torch.tensor([[0.4, 0.2, 0.4], [0.25, 0.25, 0.5]])
    assert torch.equal(sharpen(p, 0), torch.tensor([[0.5, 0, 0.5], [0, 0, 1]]))


@pytest.mark.parametrize("T", [-1, -1e-9, math.nan, -math.inf])
def test_a_temperature_below_0_is_refused(T):
    with pytest.raises(ValueError, match="temperature"):
        sharpen(torch.tensor([0.5, 0.5]), T)


@pytest.mark.parametrize("shape", [(5,), (1, 5), (3, 5), (2, 3, 5), (0, 5)])
def test_sharpen_works_on_any_batch_shape(shape):
    p = torch.from_numpy(distributions(np.random.default_rng(2), *shape)) if 0 not in shape else torch.empty(shape)
    sharp = sharpen(p, 0.5)
    assert sharp.shape == shape
    np.testing.assert_allclose(sharp.numpy(), equation_7(p.numpy(), 0.5), rtol=1e-12)


def test_sharpen_leaves_its_input_alone():
    p = torch.tensor([0.6, 0.4])
    sharpen(p, 0.5)
    assert p.tolist() == torch.tensor([0.6, 0.4]).tolist()


# Guessing labels


def test_guess_labels_by_hand():
    # Average (0.6, 0.4); squares 0.36, 0.16, which sum to 0.52. Sharpening first would give about (0.59, 0.41).
    probs = torch.tensor([[[0.8, 0.2]], [[0.4, 0.6]]], dtype=torch.float64)
    np.testing.assert_allclose(guess_labels(probs, T=0.5).numpy(), [[36 / 52, 16 / 52]], rtol=1e-14)


@settings(deadline=None, max_examples=50)
@given(seeds, st.integers(1, 4), st.integers(1, 6), st.integers(2, 11), st.floats(0.1, 2))
def test_guess_labels_averages_then_sharpens(seed, K, B, L, T):
    probs = distributions(np.random.default_rng(seed), K, B, L)
    q = guess_labels(torch.from_numpy(probs), T)
    assert q.shape == (B, L)
    for b in range(B):
        q_bar = sum(probs[k, b] for k in range(K)) / K
        np.testing.assert_allclose(q[b].numpy(), equation_7(q_bar, T), rtol=1e-9, atol=1e-300)


def test_no_gradient_flows_through_a_guess():
    logits = torch.randn(2, 3, 4, requires_grad=True)
    q = guess_labels(logits.softmax(-1), 0.5)
    assert not q.requires_grad
    assert q.grad_fn is None


# MixUp


@settings(deadline=None, max_examples=50)
@given(seeds, st.integers(1, 6), st.integers(2, 5), st.booleans())
def test_mixup_is_equations_8_to_11_with_one_lambda_per_example(seed, B, L, keep_order):
    rng = np.random.default_rng(seed)
    x1, x2 = rng.normal(size=(2, B, 3, 2, 2))
    p1, p2 = distributions(rng, 2, B, L)
    lam = rng.beta(0.75, 0.75, B)
    x, p = mixup(*map(torch.from_numpy, (x1, p1, x2, p2, lam)), keep_order=keep_order)
    for b in range(B):
        used = max(lam[b], 1 - lam[b]) if keep_order else lam[b]
        np.testing.assert_allclose(x[b].numpy(), used * x1[b] + (1 - used) * x2[b], rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(p[b].numpy(), used * p1[b] + (1 - used) * p2[b], rtol=1e-12, atol=1e-14)


@settings(deadline=None, max_examples=50)
@given(seeds, st.integers(1, 8))
def test_keep_order_stays_nearer_to_the_first_image(seed, B):
    rng = np.random.default_rng(seed)
    x1, x2 = torch.from_numpy(rng.normal(size=(2, B, 12)))
    p = torch.full((B, 2), 0.5, dtype=torch.float64)
    lam = torch.from_numpy(rng.random(B))
    mixed, _ = mixup(x1, p, x2, p, lam)
    assert ((mixed - x1).norm(dim=1) <= (mixed - x2).norm(dim=1) + 1e-12).all()


def test_vanilla_mixup_uses_lambda_as_drawn():
    x1, x2 = torch.zeros(2, 1), torch.ones(2, 1)
    p1, p2 = torch.tensor([[1.0, 0], [1, 0]]), torch.tensor([[0.0, 1], [0, 1]])
    lam = torch.tensor([0.25, 0.75])
    x, p = mixup(x1, p1, x2, p2, lam, keep_order=False)
    assert x.tolist() == [[0.75], [0.25]]
    assert p.tolist() == [[0.25, 0.75], [0.75, 0.25]]
    x, p = mixup(x1, p1, x2, p2, lam)
    assert x.tolist() == [[0.25], [0.25]]
    assert p.tolist() == [[0.75, 0.25], [0.75, 0.25]]


@pytest.mark.parametrize("shape", [(), (1,), (2,), (4,), (3, 1), (1, 3)])
def test_a_lambda_of_the_wrong_shape_is_refused(shape):
    x, p = torch.zeros(3, 4), torch.zeros(3, 2)
    with pytest.raises(ValueError, match=r"\(3,\)"):
        mixup(x, p, x, p, torch.full(shape, 0.5))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *LOW_PRECISION])
def test_the_images_dtype_is_kept_whatever_lambda_is_drawn_in(dtype):
    x, p = torch.ones(2, 3, 2, 2, dtype=dtype), torch.full((2, 2), 0.5)
    mixed, targets = mixup(x, p, x, p, torch.tensor([0.3, 0.9], dtype=torch.float64))
    assert mixed.dtype == dtype
    assert targets.dtype == torch.float32


def test_whole_number_targets_are_mixed_not_truncated():
    # torch.nn.functional.one_hot gives int64.
    p = F.one_hot(torch.tensor([0, 1]), 2)
    x = torch.zeros(2, 1)
    _, mixed = mixup(x, p, x, p.flip(0), torch.tensor([0.75, 0.75]))
    assert mixed.tolist() == [[0.75, 0.25], [0.25, 0.75]]
    u, q = torch.zeros(1, 2, 1), torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    _, p_mixed, _, q_mixed = mixmatch(x, p, u, q, torch.full((4,), 0.75), torch.tensor([2, 3, 0, 1]))
    assert p_mixed.tolist() == [[0.875, 0.125], [0.125, 0.875]]
    assert q_mixed.tolist() == [[[0.625, 0.375], [0.375, 0.625]]]


# MixMatch


def algorithm_1(x, p, u, q, lam, perm):
    """Lines 10 to 14 one example at a time; u[k][b], and the union runs over all b of the first copy, then the next."""
    K, B = len(u), len(x)
    hat_x = [(x[b], p[b]) for b in range(B)]
    hat_u = [(u[k][b], q[b]) for k in range(K) for b in range(B)]
    union = hat_x + hat_u
    W = [union[perm[i]] for i in range(len(union))]

    def mix(first, second, drawn):
        larger = max(drawn, 1 - drawn)
        return tuple(larger * a + (1 - larger) * b for a, b in zip(first, second, strict=True))

    x_prime = [mix(hat_x[i], W[i], lam[i]) for i in range(B)]
    u_prime = [mix(hat_u[i], W[i + B], lam[i + B]) for i in range(K * B)]
    return x_prime, u_prime


@settings(deadline=None, max_examples=60)
@given(seeds, st.integers(1, 6), st.integers(1, 4), st.integers(2, 7))
def test_mixmatch_is_algorithm_1(seed, B, K, L):
    rng = np.random.default_rng(seed)
    x, u = rng.normal(size=(B, 3, 2, 2)), rng.normal(size=(K, B, 3, 2, 2))
    p, q = np.eye(L)[rng.integers(L, size=B)], distributions(rng, B, L)
    lam, perm = rng.beta(0.75, 0.75, B + K * B), rng.permutation(B + K * B)
    x_prime, u_prime = algorithm_1(x, p, u, q, lam, perm)
    mixed_x, mixed_p, mixed_u, mixed_q = mixmatch(*map(torch.from_numpy, (x, p, u, q, lam, perm)))
    assert mixed_x.shape == x.shape
    assert mixed_p.shape == (B, L)
    assert mixed_u.shape == u.shape
    assert mixed_q.shape == (K, B, L)
    for b in range(B):
        np.testing.assert_allclose(mixed_x[b].numpy(), x_prime[b][0], rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(mixed_p[b].numpy(), x_prime[b][1], rtol=1e-12, atol=1e-14)
        for k in range(K):
            np.testing.assert_allclose(mixed_u[k, b].numpy(), u_prime[k * B + b][0], rtol=1e-12, atol=1e-14)
            np.testing.assert_allclose(mixed_q[k, b].numpy(), u_prime[k * B + b][1], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("case", ["identity permutation", "lambda 1", "lambda 0"])
def test_nothing_to_mix_with_gives_the_inputs_back(case):
    rng = np.random.default_rng(4)
    B, K, L = 5, 2, 3
    x, u = torch.from_numpy(rng.normal(size=(B, 3, 2, 2))), torch.from_numpy(rng.normal(size=(K, B, 3, 2, 2)))
    p, q = torch.from_numpy(distributions(rng, B, L)), torch.from_numpy(distributions(rng, B, L))
    n = B + K * B
    lam = torch.from_numpy(rng.random(n))
    perm = torch.from_numpy(rng.permutation(n))
    if case == "identity permutation":
        perm = torch.arange(n)
    else:
        lam = torch.full((n,), float(case[-1]), dtype=torch.float64)  # max(0, 1 - 0) is 1 as well
    out = mixmatch(x, p, u, q, lam, perm)
    for got, expected in zip(out, (x, p, u, torch.stack([q, q])), strict=True):
        np.testing.assert_allclose(got.numpy(), expected.numpy(), rtol=1e-14, atol=1e-15)


# Interleaving


def tagged(count: int, rows: int) -> list[torch.Tensor]:
    """Batches whose rows say where they come from: (batch, row)."""
    return [torch.stack([torch.full((rows,), b), torch.arange(rows)], dim=1) for b in range(count)]


def origins(batch: torch.Tensor) -> list[int]:
    return batch[:, 0].tolist()


def test_interleave_for_the_papers_batch():
    x, u1, u2 = tagged(3, 64)
    first, second, third = interleave([x, u1, u2])
    assert torch.equal(first, torch.cat([x[0:21], u1[21:42], u2[42:64]]))
    assert torch.equal(second, torch.cat([u1[0:21], x[21:42], u1[42:64]]))
    assert torch.equal(third, torch.cat([u2[0:42], x[42:64]]))


@pytest.mark.parametrize(
    ("K", "sizes"), [(1, [32, 32]), (2, [21, 21, 22]), (3, [16, 16, 16, 16]), (4, [12, 13, 13, 13, 13])]
)
def test_group_sizes_for_batches_of_64(K, sizes):
    first = interleave(tagged(K + 1, 64))[0]
    assert np.bincount(origins(first), minlength=K + 1).tolist() == sizes
    assert origins(first) == sorted(origins(first))


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 40), st.integers(0, 6))
def test_interleave_undoes_itself_and_loses_no_row(B, K):
    batches = tagged(K + 1, B)
    mixed = interleave(batches)
    assert [len(batch) for batch in mixed] == [B] * (K + 1)
    assert sorted(map(tuple, torch.cat(mixed).tolist())) == sorted(map(tuple, torch.cat(batches).tolist()))
    for batch in mixed:
        assert batch[:, 1].tolist() == list(range(B))  # a row keeps its place and changes its batch
    for again, batch in zip(interleave(mixed), batches, strict=True):
        assert torch.equal(again, batch)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 100), st.integers(1, 6))
def test_the_first_batch_is_a_fair_sample_of_all(B, K):
    counts = np.bincount(origins(interleave(tagged(K + 1, B))[0]), minlength=K + 1)
    assert counts.max() - counts.min() <= 1
    assert (np.diff(counts) >= 0).all()  # the remainder goes to the last groups


# Losses


def test_labeled_loss_by_hand():
    # Logits (0, 0) predict one half each: the loss is log 2 whatever the target.
    logits = torch.zeros(3, 2, dtype=torch.float64)
    p = torch.tensor([[1.0, 0], [0.5, 0.5], [0.2, 0.8]], dtype=torch.float64)
    assert labeled_loss(logits, p).item() == pytest.approx(math.log(2), rel=1e-14)


@settings(deadline=None, max_examples=50)
@given(seeds, st.integers(1, 8), st.integers(2, 12))
def test_labeled_loss_is_equation_3(seed, B, L):
    rng = np.random.default_rng(seed)
    logits, p = 3 * rng.normal(size=(B, L)), distributions(rng, B, L)
    expected = -sum(p[b, c] * np.log(softmax(logits)[b, c]) for b in range(B) for c in range(L)) / B
    loss = labeled_loss(torch.from_numpy(logits), torch.from_numpy(p)).item()
    assert loss == pytest.approx(expected, rel=1e-10)
    assert loss == pytest.approx(F.cross_entropy(torch.from_numpy(logits), torch.from_numpy(p)).item(), rel=1e-10)


def test_labeled_loss_of_hard_labels_is_torchs_cross_entropy():
    torch.manual_seed(0)
    logits, labels = torch.randn(16, 5, dtype=torch.float64), torch.randint(5, (16,))
    p = F.one_hot(labels, 5).double()
    assert labeled_loss(logits, p).item() == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-12)


def test_labeled_loss_of_large_logits_is_finite():
    logits = torch.tensor([[1e4, -1e4]])
    assert labeled_loss(logits, torch.tensor([[0.0, 1]])).item() == 2e4


def test_unlabeled_loss_by_hand():
    # Prediction (1/2, 1/2) against (1, 0): squares 1/4 + 1/4, over L = 2 classes 1/4. The other row fits exactly.
    logits = torch.zeros(2, 2, dtype=torch.float64)
    q = torch.tensor([[1.0, 0], [0.5, 0.5]], dtype=torch.float64)
    assert unlabeled_loss(logits, q).item() == pytest.approx(0.125, rel=1e-14)


@settings(deadline=None, max_examples=50)
@given(seeds, st.integers(1, 4), st.integers(1, 6), st.integers(2, 12))
def test_unlabeled_loss_is_equation_4_over_rows_and_classes(seed, K, B, L):
    rng = np.random.default_rng(seed)
    logits, q = 3 * rng.normal(size=(K, B, L)), distributions(rng, K, B, L)
    predicted = softmax(logits)
    norms = [np.linalg.norm(q[k, b] - predicted[k, b]) ** 2 for k in range(K) for b in range(B)]
    expected = sum(norms) / (L * K * B)
    assert unlabeled_loss(torch.from_numpy(logits), torch.from_numpy(q)).item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("loss", [labeled_loss, unlabeled_loss])
def test_gradients_agree_with_finite_differences(loss):
    rng = np.random.default_rng(5)
    logits = torch.from_numpy(rng.normal(size=(4, 5))).requires_grad_()
    targets = torch.from_numpy(distributions(rng, 4, 5)).requires_grad_()
    assert torch.autograd.gradcheck(loss, (logits, targets))


def test_the_gradient_of_the_labeled_loss_is_prediction_minus_target():
    rng = np.random.default_rng(6)
    logits, p = rng.normal(size=(4, 5)), distributions(rng, 4, 5)
    leaf = torch.from_numpy(logits).requires_grad_()
    labeled_loss(leaf, torch.from_numpy(p)).backward()
    np.testing.assert_allclose(leaf.grad.numpy(), (softmax(logits) - p) / 4, rtol=1e-10, atol=1e-15)


# The ramp


@pytest.mark.parametrize(
    ("step", "expected"), [(0, 0.0), (1, 1 / 16384), (4096, 0.25), (16383, 16383 / 16384), (16384, 1.0), (10**6, 1.0)]
)
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.float64])
def test_the_ramp_is_linear_over_16384_steps(step, expected, dtype):
    assert linear_ramp(torch.tensor(step, dtype=dtype), 16384).item() == expected


def test_a_ramp_of_length_0_is_over_at_once():
    assert linear_ramp(torch.tensor(0), 0).item() == 1
    assert linear_ramp(torch.tensor([0.0, 5.0]), 0).tolist() == [1, 1]

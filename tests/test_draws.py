"""Draws are a pure function of (seed, stream, step), and a sampler covers every row once per pass."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mixmatch import draws
from mixmatch.draws import BalancedSampler, Sampler, generator, shuffled, torch_seed

any_seed = st.integers(0, 2**63)
any_stream = st.text(max_size=20)
any_step = st.integers(0, 2**40)


def words(seed: int, stream: str, step: int, count: int = 8) -> list[int]:
    return generator(seed, stream, step).integers(2**63, size=count).tolist()


@settings(deadline=None, max_examples=50)
@given(any_seed, any_stream, any_step)
def test_the_same_arguments_give_the_same_draws_whatever_was_drawn_before(seed, stream, step):
    first = words(seed, stream, step)
    generator(seed, stream, step).random(1000)
    words(seed + 1, stream, step)
    words(seed, stream + "x", step + 1)
    np.random.default_rng().random()
    assert words(seed, stream, step) == first


@settings(deadline=None, max_examples=50)
@given(any_seed, any_stream, any_step, any_seed, any_stream, any_step)
def test_another_seed_stream_or_step_gives_other_draws(seed, stream, step, seed2, stream2, step2):
    others = {(seed2, stream, step), (seed, stream2, step), (seed, stream, step2)} - {(seed, stream, step)}
    here = set(words(seed, stream, step))
    for other in others:
        assert here.isdisjoint(words(*other))


@pytest.mark.parametrize(("a", "b"), [((1, "1/x"), (11, "/x")), ((1, "2"), (12, "")), ((0, "a"), (0, "A"))])
def test_seed_and_stream_are_not_run_together(a, b):
    assert words(*a, 0) != words(*b, 0)


def test_neighboring_steps_do_not_overlap_however_much_each_draws():
    # A counter that moved on by one block per step would give step 1 what step 0 draws a little later.
    drawn = [words(0, "mix", step, count=5000) for step in range(5)]
    assert len({word for step in drawn for word in step}) == 5 * 5000


def test_steps_are_uncorrelated():
    first = np.array([generator(7, "lambda", step).random() for step in range(4000)])
    assert stats.kstest(first, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 4 / np.sqrt(len(first))


def test_draws_do_not_depend_on_the_process():
    # Python's own hash of a text differs from process to process; ours must not.
    code = "from mixmatch.draws import generator; print(generator(3, 'mixup', 5).integers(2**63, size=8).tolist())"
    other = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    environment = {**os.environ, "PYTHONHASHSEED": other, "PYTHONPATH": os.pathsep.join(sys.path)}
    out = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == str(words(3, "mixup", 5))


@settings(deadline=None, max_examples=100)
@given(any_seed, any_stream, any_step)
def test_torch_seed_fits_torch(seed, stream, step):
    value = torch_seed(seed, stream, step)
    assert type(value) is int
    assert 0 <= value < 2**63
    assert value == torch_seed(seed, stream, step)


def test_torch_seeds_use_all_63_bits_and_are_distinct():
    values = [torch_seed(0, "init", step) for step in range(500)]
    assert len(set(values)) == 500
    assert stats.kstest(np.array(values, np.float64) / 2**63, "uniform").pvalue > 1e-3
    assert torch_seed(0, "init") == torch_seed(0, "init", 0)


# The sampler


@settings(deadline=None, max_examples=80)
@given(st.integers(1, 50), st.integers(1, 120), st.integers(0, 1000))
def test_each_pass_has_every_row_exactly_once_and_passes_join_without_a_gap(size, batch_size, seed):
    sampler = Sampler(size, batch_size, seed, "labeled")
    steps = 4 * size // batch_size + 3
    batches = [sampler.rows(step) for step in range(steps)]
    assert all(len(batch) == batch_size for batch in batches)
    stream = np.concatenate(batches)
    for start in range(0, len(stream) - size + 1, size):
        assert sorted(stream[start : start + size].tolist()) == list(range(size))
    rest = stream[len(stream) // size * size :]
    assert len(set(rest.tolist())) == len(rest)
    counts = np.bincount(stream, minlength=size)
    assert counts.max() - counts.min() <= 1


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 30), st.integers(1, 70), st.integers(0, 1000), st.lists(st.integers(0, 40), min_size=1, max_size=30)
)
def test_rows_depend_on_the_step_alone(size, batch_size, seed, order):
    in_turn = Sampler(size, batch_size, seed, "unlabeled")
    expected = [in_turn.rows(step).tolist() for step in range(41)]
    jumping = Sampler(size, batch_size, seed, "unlabeled")
    for step in order:
        assert jumping.rows(step).tolist() == expected[step]


def test_a_batch_may_be_larger_than_the_data():
    rows = Sampler(3, 64, 0, "labeled").rows(0)
    assert len(rows) == 64
    assert np.bincount(rows).tolist() in ([22, 21, 21], [21, 22, 21], [21, 21, 22])


def test_a_caller_may_change_the_rows_it_got():
    sampler = Sampler(10, 10, 0, "labeled")
    sampler.rows(0)[:] = -1
    assert sorted(sampler.rows(0).tolist()) == list(range(10))


def test_passes_streams_and_seeds_are_shuffled_differently():
    def orders(seed: int, stream: str) -> list[tuple[int, ...]]:
        return [tuple(Sampler(20, 20, seed, stream).rows(step).tolist()) for step in range(5)]

    all_orders = orders(0, "labeled") + orders(0, "unlabeled") + orders(1, "labeled")
    assert len(set(all_orders)) == 15
    assert tuple(range(20)) not in all_orders


def test_every_row_is_equally_likely_at_every_place():
    size, passes = 6, 3000
    sampler = Sampler(size, size, 42, "labeled")
    seen = np.zeros((size, size))
    for step in range(passes):
        seen[np.arange(size), sampler.rows(step)] += 1
    for place in range(size):
        assert stats.chisquare(seen[place]).pvalue > 1e-3


# The balanced sampler


class_sizes = st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any)


@settings(deadline=None, max_examples=60)
@given(class_sizes, st.integers(1, 40), st.integers(0, 1000))
def test_every_class_is_drawn_equally_often_and_so_is_every_row_of_it(sizes, batch_size, seed):
    classes = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    sampler = BalancedSampler(classes, batch_size, seed, "labeled")
    there = sum(size > 0 for size in sizes)
    steps = 3 * max(sizes) * there // batch_size + 2
    batches = [sampler.rows(step) for step in range(steps)]
    assert all(len(batch) == batch_size and batch.dtype == np.int64 for batch in batches)
    stream = np.concatenate(batches)
    for start in range(0, len(stream) - there + 1, there):  # every class once in each round
        assert len(set(classes[stream[start : start + there]].tolist())) == there
    for c in np.unique(classes):
        rows = np.bincount(stream[classes[stream] == c], minlength=len(classes))[classes == c]
        assert rows.max() - rows.min() <= 1


@settings(deadline=None, max_examples=40)
@given(class_sizes, st.integers(1, 40), st.integers(0, 1000), st.lists(st.integers(0, 40), min_size=1, max_size=20))
def test_balanced_rows_depend_on_the_step_alone(sizes, batch_size, seed, order):
    classes = np.repeat(np.arange(len(sizes)), sizes)
    in_turn = BalancedSampler(classes, batch_size, seed, "labeled")
    expected = [in_turn.rows(step).tolist() for step in range(41)]
    jumping = BalancedSampler(classes, batch_size, seed, "labeled")
    for step in order:
        assert jumping.rows(step).tolist() == expected[step]


def test_balanced_draws_are_shuffled_and_differ_by_seed():
    classes = np.repeat(np.arange(3), [50, 20, 5])

    def drawn(seed):
        sampler = BalancedSampler(classes, 6, seed, "labeled")
        return [sampler.rows(step).tolist() for step in range(20)]

    assert drawn(1) != drawn(2)
    rounds = {tuple(classes[batch[half : half + 3]].tolist()) for batch in drawn(1) for half in (0, 3)}
    assert len(rounds) == 6  # every order of the classes


# ---------------------------------------------------------------- shuffles that are not listed


def places(size: int, seed: int = 0, step: int = 0) -> np.ndarray:
    return shuffled(np.arange(size, dtype=np.uint64), size, generator(seed, "rows", step))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 16, 17, 100, 1024, 1025, 4095, 70_001])
def test_a_computed_shuffle_is_a_permutation_and_each_place_is_its_own(size):
    whole = places(size)
    assert np.array_equal(np.sort(whole), np.arange(size))
    some = np.array([0, size // 2, size - 1], np.uint64)
    assert np.array_equal(shuffled(some, size, generator(0, "rows", 0)), whole[some.astype(int)])


def test_every_order_of_few_rows_is_equally_likely():
    orders = [tuple(places(4, step=step)) for step in range(9600)]
    counts = np.unique(np.array(orders) @ [1000, 100, 10, 1], return_counts=True)[1]
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 1e-3


def test_places_of_a_computed_shuffle_are_uniform_and_unrelated():
    size, epochs = 1000, 2000
    rows = np.array([places(size, step=step) for step in range(epochs)])
    for place in (0, 1, 499, 999):
        counts = np.bincount(rows[:, place] // 50, minlength=20)
        assert stats.chisquare(counts).pvalue > 1e-3
    pairs = np.bincount(rows[:, 10] // 200 * 5 + rows[:, 11] // 200, minlength=25)
    assert stats.chisquare(pairs).pvalue > 1e-3
    # As often as by chance does a row stay where it was, and does its neighbor follow it.
    assert stats.poisson.sf((rows == np.arange(size)).sum() - 1, epochs) > 1e-3
    assert stats.poisson.sf((np.diff(rows, axis=1) == 1).sum() - 1, epochs) > 1e-3


def test_a_sampler_of_many_rows_lists_none_and_covers_each_once_per_epoch(monkeypatch):
    huge = Sampler(5 * 10**9, 64, 1, "unlabeled")
    first = huge.rows(10**6)
    assert len(set(first.tolist())) == 64
    assert first.max() > 2**32
    assert np.array_equal(Sampler(5 * 10**9, 64, 1, "unlabeled").rows(10**6), first)
    listed = Sampler(1000, 64, 1, "unlabeled").rows(3)
    monkeypatch.setattr(draws, "LISTED", 500)
    sampler = Sampler(1000, 64, 1, "unlabeled")
    assert not np.array_equal(sampler.rows(3), listed)
    rows = np.concatenate([sampler.rows(step) for step in range(47)])
    assert [sorted(rows[start : start + 1000].tolist()) for start in (0, 1000, 2000)] == [list(range(1000))] * 3
    assert not np.array_equal(rows[:1000], rows[1000:2000])

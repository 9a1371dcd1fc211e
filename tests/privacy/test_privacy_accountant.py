"""The accountant against published and independently computed numbers."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import norm

from mixmatch.errors import MixMatchError
from mixmatch.privacy import accountant
from mixmatch.privacy.accountant import Accountant, Epsilon, default_orders, to_epsilon
from mixmatch.privacy.mechanisms import ConfidentGNMax, GNMax, InteractiveGNMax, LNMax

MATRIX = np.array([[250 - 2 * i, 2 * i - i // 2, i // 2, *[0] * 7] for i in range(100)])
SVHN_ROW_2 = [0, 233, 1, 0, 16, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("logq", "sigma", "order", "expected"),
    [
        (-1, 40, 10, 0.00625),
        (-5, 40, 2, 0.00125),
        (-5, 40, 10, 0.0020864807926273187),
        (-10, 40, 10, 2.37478333428187e-05),
        (-20, 40, 10, 2.00895881795341e-09),
        (-20, 40, 32, 6.98883969017077e-08),
        (-50, 40, 28, 1.01697156071523e-19),
        (-3, 40, 28, 0.017499167970275072),
        (-10, 100, 20.5, 8.63755892792955e-06),
        (-300, 15, 250, 1.1090262440945138),
        (-2.8, 1.5, 1.1, 0.48888888888888893),
        (-9.6, 1500, 1.1, 4.888888888888889e-07),
    ],
)
def test_gnmax_bound_is_the_reference(logq, sigma, order, expected):
    assert accountant.rdp_gnmax(logq, sigma, order)[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("sigma", "order", "start"),
    [
        *zip([1.5] * 3, (1.1, 2.5, 32), (2.8, 2.6, 427), strict=True),
        *zip([15] * 4, (1.1, 2.5, 32, 250), (4.8, 4.0, 4.7, 275), strict=True),
        *zip([1500] * 4, (1.1, 2.5, 32, 250), (9.6, 8.8, 6.0, 4), strict=True),
        *zip([15000] * 4, (1.1, 2.5, 32, 250), (12, 11.2, 8.6, 6.4), strict=True),
    ],
)
def test_where_the_data_dependent_bound_begins(sigma, order, start):
    independent = order / sigma**2
    q0 = math.exp(-start)
    above = [q0 + step for step in (0.1, 0.2, 0.3, 0.4)]
    assert accountant.rdp_gnmax(np.log(above), sigma, order)[:, 0] == pytest.approx(np.full(4, independent), rel=1e-12)
    halved = accountant.rdp_gnmax(-start - math.log(2) * np.arange(8), sigma, order)[:, 0]
    assert halved[0] <= independent
    assert (np.diff(halved) < 0).all()


@pytest.mark.parametrize(
    "bad", [(0.1, 40, 2), (float("nan"), 40, 2), (-1, -40, 2), (-1, 0, 2), (-1, 40, 1), (-1, 40, 0.5)]
)
def test_impossible_parameters_are_refused(bad):
    with pytest.raises(ValueError) as error:
        accountant.rdp_gnmax(*bad)
    assert isinstance(error.value, MixMatchError)


def test_an_outcome_that_never_changes_costs_nothing():
    assert accountant.rdp_gnmax(-np.inf, 40, [2, 10]).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("counts", "logq", "rdp"),
    [
        ([250, *[0] * 9], -10.019228294289038, (1.527357262762e-05, 2.333177856721e-05, 1.261018932134e-04)),
        ([200, 50, *[0] * 8], -5.1791523112595685, (0.00125, 0.0017894407739674, 0.0047374856518275)),
        ([130, 120, *[0] * 8], -0.6615187454878643, (2 / 1600, 10 / 1600, 28 / 1600)),
        ([25] * 10, math.log(0.9), (2 / 1600, 10 / 1600, 28 / 1600)),
        (SVHN_ROW_2, -8.43882611204903, (6.762707221729e-05, 9.891404545684e-05, 4.344469314981e-04)),
    ],
)
def test_histograms(counts, logq, rdp):
    assert accountant.logq_gnmax(counts, 40) == pytest.approx(logq, rel=1e-12)
    found = accountant.rdp_gnmax(accountant.logq_gnmax(counts, 40), 40, [2, 10, 28])
    assert found == pytest.approx(rdp, rel=1e-11)
    wide = accountant.rdp_gnmax(accountant.logq_gnmax(counts, 100), 100, [2, 10, 28])
    assert wide == pytest.approx(np.array([2, 10, 28]) / 1e4, rel=1e-15)


@pytest.mark.parametrize(
    ("threshold", "largest", "expected"),
    [
        (200, 250, 0.5987063256829237),
        (200, 233, 0.5655280089719352),
        (200, 200, 0.5),
        (200, 25, 0.19078695285251066),
        (300, 250, 0.4012936743170763),
    ],
)
def test_probability_of_an_answer(threshold, largest, expected):
    counts = np.array([[largest, *np.full(5, 0)]])
    found = accountant.log_answer_probability(counts, ConfidentGNMax(threshold, 200, 40))
    assert np.exp(found[0]) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize(
    ("gamma", "logq", "orders", "rdp"),
    [
        (1 / 20, -9.014921134357142, (2, 8, 20), (2.55736302e-05, 3.03920525e-05, 4.91499315e-05)),
        (1 / 40, -3.3288565834370814, (2, 8, 20), (0.0025, 0.00394172171849625, 0.004651635369479185)),
    ],
)
def test_laplace(gamma, logq, orders, rdp):
    found = accountant.logq_lnmax([250, *[0] * 9], gamma)
    assert found == pytest.approx(logq, rel=1e-12)
    assert accountant.rdp_lnmax(found, gamma, orders) == pytest.approx(rdp, rel=1e-8)


@pytest.mark.parametrize(
    ("sigma1", "delta", "answered", "expected", "everything", "unchecked", "independent"),
    [
        (
            150, 1e-5, 41.02543933, (0.90347299, 26, 0.72643175), (1.48222325, 17.5, 1.23597025),
            (1.44333436, 17.5), (1.16066324, 21.5),
        ),
        (
            200, 1e-6, 43.14999893, (1.00726302, 28, 0.84015407), (1.59895503, 19, 1.37191584),
            (1.57520503, 19), (1.27700899, 23),
        ),
    ],
)  # fmt: skip
def test_the_self_contained_matrix(sigma1, delta, answered, expected, everything, unchecked, independent):
    book = Accountant(ConfidentGNMax(200, sigma1, 40))
    book.charge(MATRIX)
    assert book.expected_answered == pytest.approx(answered, rel=1e-8)
    for charging, (classic, order, improved) in {"expected": expected, "all": everything}.items():
        assert book.epsilon(delta, charging) == (pytest.approx(classic, rel=1e-7), order)
        assert book.epsilon(delta, charging, conversion="improved").value == pytest.approx(improved, rel=1e-7)
    assert book.epsilon(delta, "expected", "data-independent") == (
        pytest.approx(independent[0], rel=1e-7),
        independent[1],
    )
    plain = Accountant(GNMax(40))
    plain.charge(MATRIX)
    assert plain.epsilon(delta, "expected") == (pytest.approx(unchecked[0], rel=1e-7), unchecked[1])
    assert plain.epsilon(delta, "expected") == plain.epsilon(delta, "all") == plain.epsilon(delta, "realised")


def test_the_reference_orders():
    orders = default_orders(GNMax(40))
    assert (orders[0], orders[197], orders[198], orders[-1], len(orders)) == (2, 100.5, 100, pytest.approx(500), 298)
    assert default_orders(LNMax(0.1)).tolist() == list(range(2, 10))


# -- independent computations ------------------------------------------------------------------------------------------


def high_precision(logq: float, sigma: float, order: float) -> float:
    """Theorem 6 in 60 digits, straight from its statement."""
    with mpmath.workdps(60):
        s, a, q = mpmath.mpf(sigma), mpmath.mpf(order), mpmath.exp(mpmath.mpf(logq))
        independent = a / s**2
        mu2 = s * mpmath.sqrt(-mpmath.log(q))
        mu1 = mu2 + 1
        e1, e2 = mu1 / s**2, mu2 / s**2
        if not (mu1 > a and mu2 > 1 and -mpmath.log(q) > e2):
            return float(independent)
        if q > mpmath.exp((mu2 - 1) * e2) / (mu1 / (mu1 - 1) * mu2 / (mu2 - 1)) ** mu2:
            return float(independent)
        big_a = (1 - q) / (1 - (q * mpmath.exp(e2)) ** ((mu2 - 1) / mu2))
        big_b = mpmath.exp(e1) / q ** (1 / (mu1 - 1))
        return float(min(independent, mpmath.log((1 - q) * big_a ** (a - 1) + q * big_b ** (a - 1)) / (a - 1)))


@settings(max_examples=300, deadline=None)
@given(st.floats(-600, -0.01), st.floats(0.5, 2000), st.floats(1.05, 500))
def test_gnmax_bound_in_sixty_digits(logq, sigma, order):
    found = accountant.rdp_gnmax(logq, sigma, order)[0]
    assert found == pytest.approx(high_precision(logq, sigma, order), rel=1e-9, abs=1e-17)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 3000), min_size=2, max_size=12).filter(any), st.floats(0.5, 300))
def test_q_in_forty_digits(counts, sigma):
    with mpmath.workdps(40):
        top = counts.index(max(counts))
        q = sum(mpmath.erfc((counts[top] - n) / (2 * mpmath.mpf(sigma))) / 2 for i, n in enumerate(counts) if i != top)
        expected = float(mpmath.log(min(q, 1 - mpmath.mpf(1) / len(counts))))
    assert accountant.logq_gnmax(counts, sigma) == pytest.approx(expected, rel=1e-10)


def winners(counts: np.ndarray, sigma: float) -> np.ndarray:
    """The exact distribution of GNMax's answer, by the trapezoid rule (spectrally accurate here)."""
    z = np.linspace(-22, 22, 6001)
    return np.array([
        np.trapezoid(
            norm.pdf(z) * np.prod([norm.cdf(z + (n - other) / sigma) for k, other in enumerate(counts) if k != j], 0), z
        )
        for j, n in enumerate(counts)
    ])  # fmt: skip


@pytest.mark.parametrize("sigma", [4.0, 10.0, 25.0])
@pytest.mark.parametrize("counts", [[60, 20, 20], [95, 5, 0], [100, 0, 0], [40, 35, 25], [80, 20, 0]])
def test_the_bound_holds_for_every_neighbor(counts, sigma):
    here = winners(np.array(counts), sigma)
    orders = np.array([1.5, 2, 4, 8, 16])
    bound = accountant.rdp_gnmax(accountant.logq_gnmax(counts, sigma), sigma, orders)
    assert math.log(here[1] + here[2]) <= accountant.logq_gnmax(counts, sigma) + 1e-9
    for source in range(3):
        for target in range(3):
            if source == target or not counts[source]:
                continue
            moved = np.array(counts)
            moved[source] -= 1
            moved[target] += 1
            there = winners(moved, sigma)
            for order, limit in zip(orders, bound, strict=True):
                divergence = logsumexp(order * np.log(here) + (1 - order) * np.log(there)) / (order - 1)
                assert divergence <= limit * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize(("threshold", "sigma", "teachers"), [(200, 200, 250), (16, 2, 30), (60, 10, 100)])
def test_the_check_costs_no_less_than_it_reveals(threshold, sigma, teachers):
    """The outcome of the check is one bit: its exact divergence between neighbors is below the bound."""
    v = np.arange(teachers + 1)
    passed = norm.logsf((threshold - v) / sigma)
    failed = norm.logcdf((threshold - v) / sigma)
    for order in (2.0, 10.0, 28.0):
        bound = accountant.rdp_threshold(v - threshold, sigma, order)[:, 0]
        for here, there in ((slice(1, None), slice(0, -1)), (slice(0, -1), slice(1, None))):
            terms = [order * log[here] + (1 - order) * log[there] for log in (passed, failed)]
            divergence = np.logaddexp(*terms) / (order - 1)
            assert (divergence <= bound[here] * (1 + 1e-9) + 1e-15).all()
    if threshold == 200:  # here the data-independent value is always the smaller
        assert bound == pytest.approx(np.full(251, 28 / (2 * 200**2)))


@pytest.mark.parametrize(("over", "order"), [(200, 300), (-200, 300), (300, 300), (290, 250)])
def test_a_check_that_all_but_surely_passes_is_not_free(over, order):
    """Passing with probability 1 in floating point: refusing is e^-800 likely and at a high order costs in full."""
    found = accountant.rdp_threshold(over, 5, order)[0]
    with mpmath.workdps(60):
        logq = float(mpmath.log(mpmath.erfc(abs(over) / (5 * mpmath.sqrt(2))) / 2))
    assert found == pytest.approx(high_precision(logq, 5 * 2**0.5, order), rel=1e-9)
    assert found > 1


def test_distribution_of_answers():
    for counts, sigma in [
        ([60, 20, 20], 20),
        ([40, 35, 25], 20),
        ([100, 0, 0], 20),
        ([40, 35, 25], 1),
        ([90, 80, *range(60)], 5),
    ]:
        found = accountant.answer_distribution(np.array([counts]), GNMax(sigma))[0]
        assert found == pytest.approx(winners(np.array(counts), sigma), abs=1e-9)
    found = accountant.answer_distribution(np.array([[40, 35]]), LNMax(0.1))[0]
    assert found == pytest.approx([1 - 2.5 / (4 * math.exp(0.5)), 2.5 / (4 * math.exp(0.5))], abs=2e-6)


# -- properties --------------------------------------------------------------------------------------------------------

histograms = st.lists(st.integers(0, 200), min_size=2, max_size=8).filter(any)


@settings(max_examples=150, deadline=None)
@given(histograms, st.floats(2, 200), st.floats(0.01, 2))
def test_data_dependent_never_costs_more(counts, sigma, gamma):
    for mechanism in (GNMax(sigma), ConfidentGNMax(100, sigma, sigma / 2), LNMax(gamma)):
        book = Accountant(mechanism)
        book.charge(np.array([counts]))
        for charging in ("expected", "all"):
            low, high = book.rdp(charging), book.rdp(charging, "data-independent")
            assert (low >= 0).all()
            assert (low <= high * (1 + 1e-12)).all()
        assert (book.rdp("expected") <= book.rdp("all") * (1 + 1e-12)).all()


@settings(max_examples=100, deadline=None)
@given(st.floats(-300, -0.7), st.floats(0.01, 5), st.floats(2, 300))
def test_less_doubt_costs_less(logq, step, sigma):
    orders = default_orders(GNMax(sigma))
    now, surer = (accountant.rdp_gnmax(value, sigma, orders) for value in (logq, logq - step))
    assert (surer <= now * (1 + 1e-9) + 1e-16).all()
    now, surer = (accountant.rdp_lnmax(value, 2 / sigma, [2, 4, 9]) for value in (logq, logq - step))
    assert (surer <= now * (1 + 1e-9) + 1e-16).all()


def test_composition_adds_up():
    mechanism = ConfidentGNMax(200, 150, 40)
    answered = np.arange(100) % 3 == 0
    whole, parts = Accountant(mechanism), Accountant(mechanism)
    whole.charge(MATRIX, answered)
    for i in range(100):
        parts.charge(MATRIX[i : i + 1], answered[i : i + 1])
    for charging in accountant.CHARGING:
        for bound in accountant.BOUNDS:
            assert parts.rdp(charging, bound) == pytest.approx(whole.rdp(charging, bound), rel=1e-12)
    assert (whole.queries, whole.answered) == (parts.queries, parts.answered) == (100, 34)
    by_hand = 100 * 14 / (2 * 150**2) + 34 * 14 / 40**2
    assert whole.rdp("realised", "data-independent")[24] == pytest.approx(by_hand)


def test_realised_scatters_around_expected_as_said():
    mechanism = ConfidentGNMax(200, 150, 40)
    book = Accountant(mechanism, [14])
    book.charge(MATRIX)
    of = accountant.costs(mechanism, MATRIX, [14])
    draws = np.random.default_rng(0).random((4000, 100)) < of.answer_probability
    totals = of.check.sum() + draws @ of.answer[:, 0]
    assert totals.mean() == pytest.approx(book.rdp("expected")[0], abs=4 * totals.std() / 4000**0.5)
    assert totals.std() == pytest.approx(book.deviation(14), rel=0.05)


def test_more_delta_costs_less_and_improved_is_better():
    orders = default_orders(GNMax(40))
    rdp = orders * 0.01
    values = [to_epsilon(rdp, orders, delta).value for delta in (1e-9, 1e-6, 1e-3)]
    assert values == sorted(values, reverse=True)
    for delta in (1e-9, 1e-6, 1e-3):
        assert to_epsilon(rdp, orders, delta, "improved").value < to_epsilon(rdp, orders, delta).value
    # By hand: at order 10, 0.1 + ln(1e6) / 9.
    assert to_epsilon([0.1], [10], 1e-6) == Epsilon(pytest.approx(0.1 + math.log(1e6) / 9), 10)


@pytest.mark.parametrize("delta", [0, 1, -1e-6, 2, float("nan")])
def test_delta_must_be_a_probability(delta):
    with pytest.raises(MixMatchError, match="delta"):
        to_epsilon([0.1], [10], delta)


def test_realised_needs_answers():
    book = Accountant(ConfidentGNMax(200, 150, 40))
    book.charge(MATRIX)
    with pytest.raises(MixMatchError, match="realised"):
        book.epsilon(1e-6, "realised")


def test_interactive_with_an_ignorant_student_is_a_higher_threshold():
    """A student of equal probabilities takes M/m off every count."""
    student = np.full(MATRIX.shape, 0.1)
    interactive, confident = Accountant(InteractiveGNMax(150, 60, 40)), Accountant(ConfidentGNMax(175, 60, 40))
    interactive.charge(MATRIX, None, student)
    confident.charge(MATRIX)
    assert interactive.expected_answered == pytest.approx(confident.expected_answered)
    assert interactive.epsilon(1e-5, "expected") == confident.epsilon(1e-5, "expected")


def test_interactive_charges_for_the_margin_over_the_student():
    counts = np.array([[90, 10, 0]])
    student = np.array([[0.4, 0.35, 0.25]])
    found = accountant.log_answer_probability(counts, InteractiveGNMax(30, 15, 40), student)
    assert np.exp(found[0]) == pytest.approx(norm.sf((30 - 50) / 15))  # 90 - 100 * 0.4
    with pytest.raises(MixMatchError, match="baseline="):
        accountant.log_answer_probability(counts, InteractiveGNMax(30, 15, 40))


def test_large_gamma_is_pure_privacy_at_worst():
    """Where the 2017 code takes a logarithm of a negative number, the pure bound holds."""
    found = accountant.rdp_lnmax(math.log(0.45), 1.0, [2, 3, 9])
    assert found == pytest.approx(accountant.rdp_lnmax_independent(1.0, [2, 3, 9]))

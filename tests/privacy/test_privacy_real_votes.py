"""The published figures on the votes of 250 SVHN teachers, and conversions against dp-accounting.

The votes and the authors' noisy labels are public; MIXMATCH_PATE names the folder they are in.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest

from mixmatch.privacy import accountant, smooth
from mixmatch.privacy.accountant import Accountant, default_orders, to_epsilon
from mixmatch.privacy.answers import read_for_votes
from mixmatch.privacy.mechanisms import ConfidentGNMax, GNMax, LNMax
from mixmatch.privacy.votes import read_votes

FOLDER = Path(os.environ.get("MIXMATCH_PATE", ""))
FILES = ("svhn_250_teachers.npy", "svhn-noisy-labels-t200-s200-n40.json")
real = pytest.mark.skipif(
    not os.environ.get("MIXMATCH_PATE") or not all((FOLDER / name).is_file() for name in FILES),
    reason=f"MIXMATCH_PATE does not name a folder with {' and '.join(FILES)}",
)
MECHANISM = ConfidentGNMax(200, 200, 40)


@pytest.fixture(scope="module")
def votes():
    path = FOLDER / FILES[0]
    published = "96b6497af4304283e666b7e963c8f4b86ef3355b34b2d6f9b250666d8d9dde3f"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == published
    return read_votes(path, teachers=250)


@real
def test_the_paper_s_headline(votes):
    rows = np.arange(250)
    answers = read_for_votes(FOLDER / FILES[1], votes, rows)
    book = Accountant(MECHANISM)
    book.charge(votes.counts[rows], answers.by_teachers)
    assert book.expected_answered == pytest.approx(134.70, abs=0.005)
    assert book.answered == 138
    at = {order: int(np.flatnonzero(book.orders == order)[0]) for order in (10, 28)}
    assert book.rdp("expected")[at[28]] == pytest.approx(0.46042398795317, rel=1e-12)
    assert book.rdp("expected")[at[10]] == pytest.approx(0.16731466955585, rel=1e-12)
    assert book.rdp("realised")[at[28]] == pytest.approx(0.48380178798734, rel=1e-12)
    assert book.rdp("all")[at[28]] == pytest.approx(1.06120892207105, rel=1e-12)
    for charging, bound, classic, order, improved in [
        ("expected", "data-dependent", 0.97211, 28, 0.80561),
        ("realised", "data-dependent", 0.99526, 27.5, 0.82692),
        ("all", "data-dependent", 1.46989, 20, 1.25472),
        ("realised", "data-independent", 2.3118, 13.5, None),
        ("all", "data-independent", 3.12770, 10.5, None),
    ]:
        assert book.epsilon(1e-6, charging, bound) == (pytest.approx(classic, abs=6e-6), order)
        if improved:
            found = book.epsilon(1e-6, charging, bound, "improved").value
            assert found == pytest.approx(improved, abs=6e-6)
    assert book.epsilon(1e-6, "expected", conversion="improved").order == 25.5


@real
def test_the_check_alone(votes):
    orders = default_orders(MECHANISM)
    check = accountant.costs(MECHANISM, votes.counts[:250], orders).check.sum(axis=0)
    assert check[np.flatnonzero(orders == 28)[0]] == pytest.approx(0.0875, rel=1e-12)
    assert to_epsilon(check, orders, 1e-6) == (pytest.approx(0.41869, abs=6e-6), 67.5)


@real
def test_epsilon_against_queries(votes):
    published = {
        100: 0.6373, 150: 0.7918, 200: 0.8718, 250: 0.9721, 500: 1.3606, 1000: 1.9570,
        2000: 2.8869, 4000: 4.1392, 7500: 5.8615, 10000: 6.9028,
    }  # fmt: skip
    book = Accountant(MECHANISM)
    for queries, epsilon in published.items():
        book.charge(votes.counts[book.queries : queries])
        assert book.epsilon(1e-6, "expected").value == pytest.approx(epsilon, abs=6e-5)
        if queries in (100, 10000):
            assert book.epsilon(1e-6, "expected").order == {100: 37, 10000: 6}[queries]


@real
@pytest.mark.parametrize(
    ("gamma", "queries", "epsilon"), [(0.1, 500, 5.0413), (0.1, 1000, 8.1917), (0.05, 500, 4.372), (0.05, 1000, 6.433)]
)
def test_lnmax_by_the_2017_recipe(votes, gamma, queries, epsilon):
    book = Accountant(LNMax(gamma))
    book.charge(votes.counts[:queries])
    assert book.epsilon(1e-6, "expected").value == pytest.approx(epsilon, abs=6e-5 if gamma == 0.1 else 6e-4)
    # The recipe as the 2017 program has it, with its own arithmetic.
    total = np.zeros(8)
    eps = 2 * gamma
    for counts in votes.counts[:queries].astype(float):
        gaps = gamma * (counts.max() - np.delete(counts, counts.argmax()))
        q = min(float(((2 + gaps) / (4 * np.exp(gaps))).sum()), 0.9)
        for moment in range(1, 9):
            t = (1 - q) * ((1 - q) / (1 - np.exp(eps) * q)) ** moment + q * np.exp(eps * moment)
            dependent = np.log(t) if q < 0.5 else eps * moment
            total[moment - 1] += min(0.5 * eps**2 * moment * (moment + 1), dependent, eps * moment)
    by_hand = min((total[moment - 1] - np.log(1e-6)) / moment for moment in range(1, 9))
    assert book.epsilon(1e-6, "expected").value == pytest.approx(by_hand, rel=1e-10)


@real
def test_the_sanitized_epsilon(votes):
    subset = type(votes)(votes.counts[:250], 250)
    found = smooth.sanitize(MECHANISM, subset, 28.0, 1e-6, "expected")
    assert found.epsilon == pytest.approx(1.385, abs=5e-4)
    assert found.sd == pytest.approx(0.322, abs=5e-4)
    assert found.smooth_sensitivity == pytest.approx(0.03396, abs=5e-6)
    assert found.beta == pytest.approx(0.0175)
    assert found.sigma_ss == pytest.approx(9.487, abs=5e-4)


@real
def test_the_votes_are_the_published_ones(votes):
    assert votes.counts.shape == (26032, 10)
    histogram = np.bincount(votes.counts.argmax(axis=1)).tolist()
    assert histogram == [1758, 5211, 4300, 2875, 2620, 2367, 1904, 2002, 1379, 1616]
    assert (votes.counts.max(axis=1) / 250).mean() == pytest.approx(0.882, abs=5e-4)
    assert (votes.counts.max(axis=1) == 250).mean() == pytest.approx(0.335, abs=5e-4)


@real
def test_the_authors_answers(votes):
    labels = np.array(json.loads((FOLDER / FILES[1]).read_text())["label"])
    for queries, answered in {
        100: 56,
        150: 81,
        200: 109,
        250: 138,
        500: 266,
        1000: 525,
        2000: 1059,
        10000: 5371,
    }.items():
        assert (labels[:queries] >= 0).sum() == answered
    given = labels[:10000] >= 0
    plurality = (votes.counts[:10000].argmax(axis=1) - 1) % 10  # the authors number digit 0 as class 9
    assert (labels[:10000] == plurality)[given].mean() == pytest.approx(0.973, abs=5e-4)


# -- dp-accounting -----------------------------------------------------------------------------------------------------

CROSS_CHECKS = [  # noise multiplier, times, delta, improved, order, classic
    (1.0, 1, 1e-5, 4.728507, 5.4, 5.298526),
    (40 / 2**0.5, 138, 1e-6, 1.978044, 12, 2.270232),
    (200.0, 250, 1e-6, 0.334934, 57, 0.419706),
    (5.0, 1, 1e-6, 0.899939, 24, None),
]
DP_ACCOUNTING_ORDERS = np.array([1 + x / 10 for x in range(1, 100)] + list(range(11, 64)) + [128, 256, 512, 1024])


@pytest.mark.parametrize(("z", "times", "delta", "improved", "order", "classic"), CROSS_CHECKS)
def test_gaussian_mechanisms_as_dp_accounting_has_them(z, times, delta, improved, order, classic):
    """Recorded from dp-accounting 0.6.0 with its default orders. A Gaussian of multiplier z is GNMax(sqrt2 z)."""
    rdp = times * accountant.rdp_gnmax_independent(2**0.5 * z, DP_ACCOUNTING_ORDERS)
    found = to_epsilon(rdp, DP_ACCOUNTING_ORDERS, delta, "improved")
    assert found == (pytest.approx(improved, abs=6e-7), pytest.approx(order))
    if classic:
        assert to_epsilon(rdp, DP_ACCOUNTING_ORDERS, delta).value == pytest.approx(classic, abs=6e-7)


def test_improved_conversion_is_dp_accounting_s():
    rdp_module = pytest.importorskip("dp_accounting.rdp", reason="dp-accounting is not installed")
    matrix = np.array([[250 - 2 * i, 2 * i - i // 2, i // 2, *[0] * 7] for i in range(100)])
    for mechanism in (ConfidentGNMax(200, 150, 40), GNMax(40), GNMax(7), LNMax(0.1)):
        book = Accountant(mechanism)
        book.charge(matrix)
        for delta in (1e-9, 1e-6, 1e-2):
            curve = book.rdp("expected")
            theirs, order = rdp_module.compute_epsilon(book.orders, curve, delta)
            ours = to_epsilon(curve, book.orders, delta, "improved")
            assert ours == (pytest.approx(theirs, rel=1e-12), order)


@pytest.mark.parametrize(("z", "times", "delta", "improved", "order", "classic"), CROSS_CHECKS)
def test_data_independent_costs_are_dp_accounting_s(z, times, delta, improved, order, classic):
    dp_accounting = pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")
    theirs = pytest.importorskip("dp_accounting.rdp").RdpAccountant()
    theirs.compose(dp_accounting.GaussianDpEvent(z), times)
    epsilon, at = theirs.get_epsilon_and_optimal_order(delta)
    assert epsilon == pytest.approx(improved, abs=6e-7)
    assert at == pytest.approx(order)
    orders = np.array(theirs._orders)
    ours = times * accountant.rdp_gnmax_independent(2**0.5 * z, orders[orders > 1])
    assert to_epsilon(ours, orders[orders > 1], delta, "improved").value == pytest.approx(epsilon, rel=1e-9)

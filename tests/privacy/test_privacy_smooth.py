"""Smooth sensitivity and the GNSS release against the published code's numbers and against brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mixmatch.errors import MixMatchError
from mixmatch.privacy import accountant, smooth
from mixmatch.privacy.mechanisms import ConfidentGNMax, GNMax, LNMax
from mixmatch.privacy.votes import from_counts

MATRIX = np.array([[250 - 2 * i, 2 * i - i // 2, i // 2, *[0] * 7] for i in range(100)])


@pytest.mark.parametrize(
    ("sigma", "order", "q0", "q1"),
    [
        (40, 28, -2.999906289505647, -3.101586554272462),
        (40, 14, -3.4029724173980505, -3.509119876353988),
        (40, 7.5, -3.941573180160814, -4.053446298275283),
        (40, 15.5, -3.3266187115522463, -3.431932568950688),
        (100, 20.5, -3.8638961556005893, -3.908182836805531),
    ],
)
def test_crossing_points(sigma, order, q0, q1):
    assert smooth.log_q0(sigma, order) == pytest.approx(q0, rel=1e-10)
    assert smooth.log_q1(sigma, order, 10) == pytest.approx(q1, rel=1e-10)
    assert accountant.rdp_gnmax(q0 + 1e-6, sigma, order)[0] == order / sigma**2
    assert accountant.rdp_gnmax(q0 - 1e-6, sigma, order)[0] < order / sigma**2


def test_local_sensitivity_of_gnmax():
    right = smooth.local_sensitivity_gnmax([10, 0, 0], 0.5, 1.5)
    assert right == pytest.approx([3.13503646e-17, 1.60178280e-08, 5.90681786e-03, *[5.99981308] * 7], rel=1e-6)
    left = smooth.local_sensitivity_gnmax([1000, 500, 300, 200, 0], 250, 10)
    assert (left[:298] == 0).all()
    assert left[298:] == pytest.approx([2.77693450548e-7, 2.10853979548e-6, *[2.73113623988e-6] * 1700], rel=1e-6)


def test_local_sensitivity_of_the_check():
    found = smooth.local_sensitivity_threshold(20, 30, 16, 2, 10)
    published = [
        0, 0, 0, 1.484541288e-4, 0.01478268704, 0.03941532411, 0.06457756967, 0.0901543266, 0.1160540003, 0.1421804524,
        0.1421804524, 1.484541288e-4, 0.01478268704, 0.03941532411, 0.06457756967, 0.0901543266, 0.1160540003,
        0.1421804524, 0.1683021063, 0.1931278604,
    ]  # fmt: skip
    assert found[:20] == pytest.approx(published, rel=1e-6, abs=1e-12)
    # The published code stops one short of v = 0, whose only neighbor is v = 1.
    table = accountant.rdp_threshold(np.arange(31) - 16, 2, 10)[:, 0]
    assert found[20] == pytest.approx(table[0] - table[1] if table[0] > table[1] else table[1] - table[0])
    assert (found[21:] == 0).all()


@pytest.mark.parametrize(
    ("threshold", "margin", "published"),
    [
        (2, 20, [0.160212079, 0.207021132, 0.207021132, 0.193127860, 0.168302106, 0.142180452, 0.116054002]),
        (10.1, 20, [0.0620410301, 0.0875807131, 0.113451958, 0.139561671, 0.1657074530, 0.1908244840, 0.2070270720]),
    ],
)
def test_local_sensitivity_of_other_checks(threshold, margin, published):
    found = smooth.local_sensitivity_threshold(margin, 30, threshold, 2, 10)
    assert found[:7] == pytest.approx(published, rel=1e-6)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [((20, 10, 25.0), "C6"), ((30, 10, 25.0), None)] + [((40, 10, order), None) for order in (7.5, 14.0, 15.5, 28.0)],
)
def test_conditions_c5_and_c6(parameters, expected):
    assert smooth.failing_condition(*parameters) == expected


@pytest.mark.parametrize(
    ("beta", "sigma", "order", "expected"),
    [
        (0.0175, 9.487, 28, 0.4127744725452839),
        (0.0533, 4.88, 7.5, 0.5354731829145675),
        (0.0329, 6.23, 14, 0.5183929399476159),
    ],
)
def test_cost_of_the_release(beta, sigma, order, expected):
    assert smooth.gnss_cost(beta, sigma, order) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("order", [1, 0.5, 25, 30])
def test_an_order_outside_its_range_is_refused(order):
    with pytest.raises(MixMatchError, match=r"outside \(1, 1/\(2 beta\)\)"):
        smooth.gnss_cost(0.02, 9, order)


def test_the_self_contained_matrix():
    mechanism, votes = ConfidentGNMax(200, 150, 40), from_counts(MATRIX)
    weights = np.exp(accountant.log_answer_probability(MATRIX, mechanism))
    local = smooth.total_local_sensitivity(mechanism, votes, 14.0, weights)
    assert local[0] == pytest.approx(0.0033224261, rel=1e-7)
    assert local.max() == pytest.approx(0.0274832390, rel=1e-7)
    assert smooth.smooth_sensitivity(0.03, local) == pytest.approx(0.00601295255, rel=1e-7)


def test_no_neighbor_differs_by_more_than_the_local_sensitivity():
    """Brute force over every histogram of 40 teachers and 3 classes and each of its neighbors."""
    sigma, order, teachers = 8.0, 4.0, 40
    assert smooth.failing_condition(sigma, 3, order) is None
    cells = [(a, b, teachers - a - b) for a in range(teachers + 1) for b in range(teachers + 1 - a)]
    cost = dict(zip(cells, accountant.rdp_gnmax(accountant.logq_gnmax(cells, sigma), sigma, order)[:, 0], strict=True))
    moves = [(i, j) for i in range(3) for j in range(3) if i != j]

    def neighbors(cell):
        for i, j in moves:
            moved = list(cell)
            moved[i] -= 1
            moved[j] += 1
            if tuple(moved) in cost:
                yield tuple(moved)

    truth = {cell: max(abs(cost[cell] - cost[other]) for other in neighbors(cell)) for cell in cells}
    for cell in cells[::7]:
        bound = np.maximum.accumulate(smooth.local_sensitivity_gnmax(cell, sigma, order))
        for other, difference in truth.items():
            distance = sum(max(0, b - a) for a, b in zip(cell, other, strict=True))
            assert difference <= bound[min(distance, teachers - 1)] * (1 + 1e-9) + 1e-15


@pytest.mark.parametrize(
    ("mechanism", "order"),
    [
        (GNMax(1.0), 2.0),
        (GNMax(0.8), 1.5),
        (GNMax(1.5), 2.0),
        (GNMax(2.0), 1.5),
        (ConfidentGNMax(6, 2.5, 1.5), 2.0),
        (ConfidentGNMax(4, 1.7, 0.8), 1.5),
    ],
)
def test_what_is_released_is_as_smooth_as_its_noise(mechanism, order):
    """Brute force over all votes of 10 teachers: the noise covers every difference and shrinks by e^-beta a vote."""
    teachers, beta = 10, 0.4 / order
    cells = np.array([(a, b, teachers - a - b) for a in range(teachers + 1) for b in range(teachers + 1 - a)])
    found = [
        smooth.sanitize(mechanism, from_counts(cell[None]), order, 1e-5, "all", parameters=(beta, 3.0))
        for cell in cells
    ]
    rdp, noise = np.array([f.rdp for f in found]), np.array([f.smooth_sensitivity for f in found])
    distance = np.abs(cells[:, None] - cells[None]).sum(axis=2) // 2
    local = np.array([np.abs(rdp - rdp[i])[distance[i] == 1].max() for i in range(len(cells))])
    assert local.max() > 0.01
    assert (np.exp(-beta * distance) * local <= noise[:, None] * (1 + 1e-9) + 1e-14).all()
    assert (noise[:, None] <= math.exp(beta) * noise[None] * (1 + 1e-9) + 1e-14)[distance == 1].all()


def test_release_adds_noise_of_the_stated_scale():
    mechanism, votes = ConfidentGNMax(200, 150, 40), from_counts(MATRIX)
    answered = np.arange(100) % 2 == 0
    mean = smooth.sanitize(mechanism, votes, 14.0, 1e-5, answered, parameters=(0.03, 6.0))
    assert mean.sd == pytest.approx(6 * mean.smooth_sensitivity)
    assert mean.epsilon == pytest.approx(mean.rdp + smooth.gnss_cost(0.03, 6.0, 14.0) + math.log(1e5) / 13)

    improved = smooth.sanitize(
        mechanism, votes, 14.0, 1e-5, answered, parameters=(0.03, 6.0), conversion="improved"
    ).epsilon
    rdp = mean.rdp + smooth.gnss_cost(0.03, 6.0, 14.0)
    assert improved == pytest.approx(rdp + math.log(13 / 14) - math.log(14e-5) / 13)

    class OneDeviation:
        def normal(self, loc, scale, size):
            return np.full(size, loc + scale)

    drawn = smooth.sanitize(mechanism, votes, 14.0, 1e-5, answered, parameters=(0.03, 6.0), noise=OneDeviation())
    assert drawn.epsilon == pytest.approx(mean.epsilon + mean.sd)


def test_where_nothing_depends_on_the_votes_nothing_is_added():
    found = smooth.sanitize(GNMax(100), from_counts(MATRIX), 20.5, 1e-5, "all")
    assert (found.sd, found.cost) == (0, 0)
    assert found.rdp == pytest.approx(100 * 20.5 / 1e4)


def test_what_cannot_be_sanitized_is_refused():
    votes = from_counts(MATRIX)
    with pytest.raises(MixMatchError, match="C6"):
        smooth.sanitize(GNMax(20), votes, 25.0, 1e-5, "all")
    with pytest.raises(MixMatchError, match="lnmax"):
        smooth.sanitize(LNMax(0.1), votes, 5.0, 1e-5, "all")

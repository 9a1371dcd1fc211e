"""Publishing a data-dependent epsilon: smooth sensitivity and the GNSS release (Appendix B of arXiv 1802.08908).

A data-dependent epsilon is computed from private votes, so it may reveal something about them. Added noise, scaled to
how fast it can change from one data set to its neighbors, makes it safe to publish at an additional cost. One Rényi
order is fixed beforehand.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtri_exp

from mixmatch.privacy.accountant import (
    costs,
    epsilons,
    log_answer_probability,
    logq_gnmax,
    rdp_gnmax,
    rdp_gnmax_independent,
    rdp_threshold,
    theorem6,
)
from mixmatch.privacy.checks import PrivacyError, check_delta, positive
from mixmatch.privacy.mechanisms import Checked, GNMax, LNMax, Mechanism, Noise, answer_scale, margins
from mixmatch.privacy.votes import Floats, Votes


def bound_unchecked(logq: npt.ArrayLike, sigma: float, order: float) -> Floats:
    """Theorem 6 without its conditions, for ln q <= ln q0 only."""
    lq = np.asarray(logq, dtype=np.float64)
    mu2 = sigma * np.sqrt(-lq)
    return np.asarray(theorem6(lq, sigma, mu2 + 1, mu2, order)[1] / (order - 1))


def rdp_below_q0(logq: npt.ArrayLike, sigma: float, order: float) -> Floats:
    """The function whose sensitivity is bounded: the data-dependent bound below q0, the data-independent above."""
    lq = np.asarray(logq, dtype=np.float64)
    logq0 = log_q0(sigma, order)
    independent = rdp_gnmax_independent(sigma, order)[0]
    return np.where(lq >= logq0, independent, bound_unchecked(np.minimum(lq, logq0), sigma, order))


@lru_cache(maxsize=256)
def log_q0(sigma: float, order: float) -> float:
    """ln of the q at which the data-dependent bound overtakes the data-independent one."""
    positive("sigma", sigma)
    independent = rdp_gnmax_independent(sigma, order)[0]

    def excess(logq: float) -> float:
        return float(bound_unchecked(logq, sigma, order)) - float(independent)

    # The largest q for which Theorem 6 can apply at all: mu2 > 1, mu1 > order, -ln q > eps2.
    high = min(-((1 + 1 / sigma) ** 2), -(((order - 0.99) / sigma) ** 2), -1 / sigma**2)
    if excess(high) < 0:
        return high
    low = 2 * high
    while excess(low) > 0:
        low *= 1.5
        if low < -1e6:
            raise PrivacyError(f"at order {order:g} the data-dependent bound is of no use for sigma {sigma:g}")
    return float(brentq(excess, low, high, xtol=1e-14, rtol=1e-14))


def log_upper(logq: npt.ArrayLike, sigma: float, classes: int) -> Floats:
    """ln B_U(q): the largest q of a neighbor (Proposition 11)."""
    return np.minimum(0.0, _moved(logq, classes, math.sqrt(2) / sigma))


def log_lower(logq: npt.ArrayLike, sigma: float, classes: int) -> Floats:
    """ln B_L(q): the smallest q of a neighbor (Proposition 11)."""
    return _moved(logq, classes, -math.sqrt(2) / sigma)


def _moved(logq: npt.ArrayLike, classes: int, step: float) -> Floats:
    """(m-1)/2 erfc(erfcinv(2q/(m-1)) - step/sqrt 2) in log space, as a normal tail."""
    tail = np.asarray(logq, dtype=np.float64) - math.log(classes - 1)
    return np.asarray(math.log(classes - 1) + log_ndtr(ndtri_exp(tail) + step))


def log_q1(sigma: float, order: float, classes: int) -> float:
    """ln q1 = ln B_L(q0): between q1 and q0 the local sensitivity bound is constant."""
    return float(log_lower(log_q0(sigma, order), sigma, classes))


def local_sensitivity(logq: npt.ArrayLike, sigma: float, order: float, classes: int) -> Floats:
    """A bound on how much a neighbor's RDP can differ, for queries with ln q `logq` (Algorithm 3)."""
    lq = np.asarray(logq, dtype=np.float64)
    low, high = log_q1(sigma, order, classes), log_q0(sigma, order)
    flat = (lq >= low) & (lq <= high)
    lq = np.where(flat, low, lq)
    here = rdp_below_q0(lq, sigma, order)
    # B_U(q1) is q0, where the bound may jump: not a rounding error below it.
    above = rdp_below_q0(np.where(flat, high, log_upper(lq, sigma, classes)), sigma, order)
    below = rdp_below_q0(log_lower(lq, sigma, classes), sigma, order)
    return np.maximum(above - here, here - below)


def local_sensitivity_gnmax(counts: npt.ArrayLike, sigma: float, order: float) -> Floats:
    """The largest local sensitivity at distance d = 0..teachers-1 from one query's votes (Algorithms 4 and 5).

    The votes walk, one a step, toward the q where sensitivity is largest; from there on it is flat.
    """
    votes = sorted((int(n) for n in np.asarray(counts)), reverse=True)
    teachers, classes = sum(votes), len(votes)
    low, high = log_q1(sigma, order, classes), log_q0(sigma, order)
    result = np.full(teachers, float(local_sensitivity(low, sigma, order, classes)))
    logq = float(logq_gnmax(votes, sigma))
    if low <= logq <= high:
        return result
    left = logq > high
    path = _widen(votes) if left else _narrow(votes)
    lqs = logq_gnmax(path, sigma)
    arrived = np.flatnonzero(lqs <= high if left else lqs >= low)
    steps = min(teachers, int(arrived[0]) + 1 if len(arrived) else len(lqs))
    result[:steps] = local_sensitivity(lqs[:steps], sigma, order, classes)
    return result


def _widen(votes: list[int]) -> npt.NDArray[np.int64]:
    """Histograms with a vote moved from the second to the first at each step, until the second has none."""
    votes, path = list(votes), [list(votes)]
    while votes[1] > 0:
        votes = [votes[0] + 1, *sorted([votes[1] - 1, *votes[2:]], reverse=True)]
        path.append(votes)
    return np.array(path)


def _narrow(votes: list[int]) -> npt.NDArray[np.int64]:
    """Histograms with a vote moved from the first to the second at each step, until they meet."""
    path = [list(votes)]
    while path[-1][0] > path[-1][1]:
        first, second, *rest = path[-1]
        path.append([first - 1, second + 1, *rest])
    return np.array(path)


def local_sensitivity_threshold(margin: float, teachers: int, threshold: float, sigma: float, order: float) -> Floats:
    """The local sensitivity of the check at distance exactly d = 0..teachers-1, from its table over 0..teachers.

    Unlike the published code, both ends of the table are counted.
    """
    table = rdp_threshold(np.arange(teachers + 1) - threshold, sigma, order)[:, 0]
    changes = np.abs(np.diff(table))
    at = np.maximum(np.concatenate([changes, [0.0]]), np.concatenate([[0.0], changes]))
    start = int(np.clip(margin, 0, teachers))
    distances = np.arange(teachers)
    up = np.where(start + distances <= teachers, at[np.minimum(start + distances, teachers)], 0.0)
    down = np.where(start - distances >= 0, at[np.maximum(start - distances, 0)], 0.0)
    return np.maximum(up, down)


def failing_condition(sigma: float, classes: int, order: float) -> str | None:
    """Which of C5 and C6, on which the bounds above rest (Appendix B.4.2), does not hold on a fine grid of ln q.

    C5: the bound does not fall in q on (0, q0). C6: nor does its difference to the bound at B_U(q), on (0, B_L(q0)).
    """
    high, low = log_q0(sigma, order), log_q1(sigma, order, classes)
    if not _never_falls(bound_unchecked(high - np.geomspace(700, 1e-9, 20_000), sigma, order)):
        return "C5"
    lq = low - np.geomspace(700, 1e-9, 20_000)
    above = np.minimum(log_upper(lq, sigma, classes), high)
    differences = bound_unchecked(above, sigma, order) - bound_unchecked(lq, sigma, order)
    return None if _never_falls(differences) else "C6"


def _never_falls(values: Floats) -> bool:
    steps = np.diff(values)
    return bool((steps >= -1e-12 * np.abs(values[1:]) - 1e-300).all())


def answer_is_independent(teachers: int, classes: int, sigma: float, order: float) -> bool:
    """Whether even unanimous teachers cost as much as any: then nothing about an answer's cost is sensitive."""
    unanimous = [teachers] + [0] * (classes - 1)
    return bool(rdp_gnmax(logq_gnmax(unanimous, sigma), sigma, order)[0] >= rdp_gnmax_independent(sigma, order)[0])


def total_local_sensitivity(
    mechanism: GNMax | Checked, votes: Votes, order: float, weights: Floats, probabilities: Floats | None = None
) -> Floats:
    """Local sensitivity of the total RDP at distances 0..teachers-1: check + weight * answer, summed over queries.

    A query may be nearer than d when another is at d, so each query counts with its largest value up to d.
    """
    total = np.zeros(votes.teachers)
    sigma = answer_scale(mechanism)
    rows, which = np.unique(np.sort(votes.counts, axis=1), axis=0, return_inverse=True)
    if answer_is_independent(votes.teachers, votes.classes, sigma, order):
        rows, which, weights = rows[:0], which[:0], weights[:0]
    for row, weight in zip(rows, np.bincount(which.ravel(), weights=weights, minlength=len(rows)), strict=True):
        total += weight * np.maximum.accumulate(local_sensitivity_gnmax(row, sigma, order))
    if isinstance(mechanism, GNMax):
        return total
    checks = np.zeros(votes.teachers)
    margin = margins(votes.counts, probabilities, mechanism)
    for value, times in zip(*np.unique(margin, return_counts=True), strict=True):
        local = local_sensitivity_threshold(value, votes.teachers, mechanism.threshold, mechanism.sigma1, order)
        checks += times * np.maximum.accumulate(local)
    return total + checks


def smooth_sensitivity(beta: float, local: Floats) -> float:
    """max_d e^(-beta d) LS(d)."""
    return float((np.exp(-beta * np.arange(len(local))) * local).max())


def gnss_cost(beta: float, sigma: float, order: float) -> float:
    """RDP of publishing a number with noise of scale sigma times its beta-smooth sensitivity (Theorem 23)."""
    positive("beta", beta)
    positive("sigma_ss", sigma)
    if not 1 < order < 1 / (2 * beta):
        raise PrivacyError(f"order {order:g} is outside (1, 1/(2 beta)) = (1, {1 / (2 * beta):g}) for beta {beta:g}")
    return order * math.exp(2 * beta) / sigma**2 + (beta * order - math.log1p(-2 * order * beta) / 2) / (order - 1)


class Parameters(NamedTuple):
    beta: float
    sigma_ss: float
    smooth_sensitivity: float


def choose_parameters(local: Floats, order: float) -> Parameters:
    """The beta and sigma_ss that make the release smallest, chosen by looking at the votes: for reporting only.

    Minimizes cost + 2 SS sigma_ss (two deviations of the noise) over the reference's grid of beta, with the closed form
    of sigma_ss for each.
    """
    best, found = math.inf, Parameters(0.4 / order, 1.0, 0.0)
    for beta in np.arange(0.3, 0.495, 0.01) / order:
        ss = smooth_sensitivity(beta, local)
        if ss <= 0:
            return Parameters(float(beta), math.inf, 0.0)
        sigma = (order * math.exp(2 * beta) / ss) ** (1 / 3)
        cost = gnss_cost(beta, sigma, order) + 2 * ss * sigma
        if cost < best:
            best, found = cost, Parameters(float(beta), sigma, ss)
    return found


class Release(NamedTuple):
    """A sanitized epsilon. `epsilon` is the published number (its mean, where no noise was drawn), `sd` its noise."""

    epsilon: float
    sd: float
    cost: float
    rdp: float
    order: float
    beta: float
    sigma_ss: float
    smooth_sensitivity: float


def sanitize(
    mechanism: Mechanism,
    votes: Votes,
    order: float,
    delta: float,
    answered: npt.NDArray[np.bool_] | str,
    *,
    parameters: tuple[float, float] | None = None,
    probabilities: Floats | None = None,
    noise: Noise | None = None,
    conversion: str = "classic",
) -> Release:
    """The GNSS release of the total RDP at `order`, as epsilon.

    `answered` is who was answered (a mask), "all", or "expected", the reference's figure, whose weights are themselves
    data-dependent and not covered by the analysis: for reporting only. `parameters` are (beta, sigma_ss), fixed without
    looking at the votes; None chooses the best ones, for reporting only. Without `noise` the mean is returned.
    """
    check_delta(delta)
    if isinstance(mechanism, LNMax):
        raise PrivacyError("smooth sensitivity is known for the Gaussian mechanisms, not for lnmax")
    if parameters is not None:
        gnss_cost(*parameters, order)  # an order out of range is an error before any work
    sigma = answer_scale(mechanism)
    flat = answer_is_independent(votes.teachers, votes.classes, sigma, order)
    if not flat and (failing := failing_condition(sigma, votes.classes, order)):
        raise PrivacyError(
            f"condition {failing} does not hold for sigma {sigma:g}, {votes.classes} classes, order {order:g}: "
            "choose another order"
        )
    if isinstance(answered, str):
        expected = np.exp(log_answer_probability(votes.counts, mechanism, probabilities))
        weights = expected if answered == "expected" else np.ones_like(expected)
    else:
        weights = np.asarray(answered, dtype=np.float64)
    of = costs(mechanism, votes.counts, [order], probabilities)
    # Not of.answer: for small sigma Theorem 6 also helps somewhat above q0, which the sensitivity does not cover.
    answer = of.answer[:, 0] if flat else rdp_below_q0(logq_gnmax(votes.counts, sigma), sigma, order)
    rdp = float((of.check[:, 0] + weights * answer).sum())
    local = total_local_sensitivity(mechanism, votes, order, weights, probabilities)
    if parameters is None:
        beta, sigma_ss, ss = choose_parameters(local, order)
    else:
        (beta, sigma_ss), ss = parameters, smooth_sensitivity(parameters[0], local)
    cost = 0.0 if math.isinf(sigma_ss) else gnss_cost(beta, sigma_ss, order)
    sd = 0.0 if ss == 0 else ss * sigma_ss
    drawn = 0.0 if noise is None or sd == 0 else float(noise.normal(0.0, sd, 1)[0])
    epsilon = float(epsilons(np.array([rdp + drawn + cost]), np.array([order]), delta, conversion)[0])
    return Release(epsilon, sd, cost, rdp, order, beta, sigma_ss, ss)

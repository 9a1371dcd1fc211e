"""What answers cost: Rényi differential privacy (RDP) of each query, in log space, and its conversion to epsilon.

Propositions, theorems and algorithms are those of Papernot et al. 2018 (arXiv 1802.08908) unless another paper is
named. Arrays of costs are (queries, orders).
"""

from __future__ import annotations

import math
from itertools import product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, logsumexp, ndtr

from mixmatch.privacy.checks import PrivacyError, check_delta, check_known, positive
from mixmatch.privacy.mechanisms import GNMax, LNMax, Mechanism, answer_scale, margins
from mixmatch.privacy.votes import Counts, Floats

CHARGING = ("expected", "realised", "all")
BOUNDS = ("data-dependent", "data-independent")
CONVERSIONS = ("classic", "improved")
BLOCK = 1024  # queries at a time: a matrix of costs has a column for each of 298 orders


def default_orders(mechanism: Mechanism) -> Floats:
    """The orders of the reference analysis: 2, 2.5, ..., 100.5 and 100 log-spaced ones from 100 to 500.

    LNMax follows the 2017 recipe instead, the moments l = 1..8, which are the orders l + 1.
    """
    if isinstance(mechanism, LNMax):
        return np.arange(2.0, 10.0)
    return np.concatenate([np.arange(2, 101, 0.5), np.geomspace(100, 500, 100)])


def log1mexp(x: Floats) -> Floats:
    """log(1 - e^x) for x <= 0, without cancellation."""
    with np.errstate(divide="ignore"):
        return np.where(x < -1, np.log1p(-np.exp(np.minimum(x, -1.0))), np.log(-np.expm1(np.maximum(x, -1.0))))


# -- the probability of an outcome that is not the plurality ----------------------------------------------------------


def logq_gnmax(counts: npt.ArrayLike, sigma: float) -> Floats:
    """ln of a bound on Pr[GNMax answers anything but the plurality], for counts (..., classes) (Proposition 7)."""
    gaps, classes = _gaps(counts)
    return _union_bound(log_ndtr(-gaps / (math.sqrt(2) * positive("sigma", sigma))), classes)


def logq_lnmax(counts: npt.ArrayLike, gamma: float) -> Floats:
    """The same for LNMax: Pr[j beats j*] <= (2 + gamma gap) / (4 e^(gamma gap)) (2017, Lemma 4)."""
    gaps, classes = _gaps(counts)
    scaled = positive("gamma", gamma) * gaps
    return _union_bound(np.log(2 + scaled) - math.log(4) - scaled, classes)


def log_answer_probability(counts: Counts, mechanism: Mechanism, probabilities: Floats | None = None) -> Floats:
    """ln Pr[the teachers answer] for queries (N, classes): 0 where there is no check."""
    if isinstance(mechanism, LNMax | GNMax):
        return np.zeros(len(counts))
    margin = margins(counts, probabilities, mechanism)
    return np.asarray(log_ndtr((margin - mechanism.threshold) / mechanism.sigma1), dtype=np.float64)


def answer_distribution(counts: Counts, mechanism: Mechanism) -> Floats:
    """Pr[the noisy maximum is class j] for queries (N, classes): a one-dimensional integral over class j's own noise.

    Pr[j] = E prod_k F(Z + (n_j - n_k) / scale): by the trapezoid rule for Gaussian noise, where it is all but exact,
    and by Gauss-Legendre over the quantiles of each half for Laplace noise.
    """
    laplace = isinstance(mechanism, LNMax)
    scale = answer_scale(mechanism)
    if laplace:
        nodes, half = np.polynomial.legendre.leggauss(150)
        z, weights = np.log((nodes + 1) / 2), np.concatenate([half, half]) / 2
        z = np.concatenate([z, -z])
    else:
        z = np.linspace(-10, 10, 201)
        weights = 2 * np.exp(-(z**2) / 2)
    result = np.empty(counts.shape)
    for start in range(0, len(counts), BLOCK):
        block = counts[start : start + BLOCK] / scale
        for j in range(counts.shape[1]):
            moved = z + (block[:, j, None] - np.delete(block, j, axis=1))[:, :, None]
            tails = np.where(moved < 0, np.exp(-np.abs(moved)) / 2, 1 - np.exp(-np.abs(moved)) / 2)
            below = tails if laplace else ndtr(moved)
            result[start : start + BLOCK, j] = below.prod(axis=1) @ weights / 2
    return np.asarray(result / result.sum(axis=1, keepdims=True))


def _gaps(counts: npt.ArrayLike) -> tuple[Floats, int]:
    """How far every class but the plurality is behind it."""
    ordered = np.sort(np.asarray(counts, dtype=np.float64), axis=-1)
    return ordered[..., -1:] - ordered[..., :-1], ordered.shape[-1]


def _union_bound(log_terms: Floats, classes: int) -> Floats:
    return np.minimum(logsumexp(log_terms, axis=-1), math.log1p(-1 / classes))


# -- RDP of one query --------------------------------------------------------------------------------------------------


def rdp_gnmax_independent(sigma: float, orders: npt.ArrayLike) -> Floats:
    """alpha / sigma^2: a Gaussian mechanism of sensitivity sqrt(2) (Proposition 8)."""
    return _orders(orders) / positive("sigma", sigma) ** 2


def rdp_gnmax(logq: npt.ArrayLike, sigma: float, orders: npt.ArrayLike) -> Floats:
    """RDP of GNMax for queries whose ln q is `logq` (...,) -> (..., orders) (Theorem 6 with Proposition 10).

    Where the theorem's conditions fail, and wherever it is smaller, the data-independent bound. The sum
    (1-q) A^(alpha-1) + q B^(alpha-1) is formed from logarithms, as its terms overflow.
    """
    alpha = _orders(orders)
    independent = rdp_gnmax_independent(sigma, alpha)
    lq = _log_probabilities(logq)
    fixed = np.isneginf(lq)  # an outcome that never changes costs nothing
    lq = np.where(fixed, -1.0, np.minimum(lq, -1e-300))
    mu2 = sigma * np.sqrt(-lq)
    mu1 = mu2 + 1
    valid, log_s = theorem6(lq, sigma, mu1, mu2, alpha)
    bound = np.where(valid, np.minimum(log_s / (alpha - 1), independent), independent)
    return np.where(fixed, 0.0, bound)


def theorem6(
    lq: Floats, sigma: float, mu1: Floats, mu2: Floats, alpha: Floats | float
) -> tuple[npt.NDArray[np.bool_], Floats]:
    """Whether Theorem 6 applies, and ln[(1-q) A^(alpha-1) + q B^(alpha-1)] (of no meaning where it does not)."""
    eps1, eps2 = mu1 / sigma**2, mu2 / sigma**2
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        lemma9 = (mu2 - 1) * eps2 - mu2 * (np.log1p(1 / (mu1 - 1)) + np.log1p(1 / (mu2 - 1)))
        valid = (mu1 > alpha) & (mu2 > 1) & (-lq > eps2) & (lq <= lemma9)
        log_a = log1mexp(lq) - log1mexp(np.minimum((lq + eps2) * (1 - 1 / mu2), 0.0))
        log_b = eps1 - lq / (mu1 - 1)
        return valid, np.logaddexp(log1mexp(lq) + (alpha - 1) * log_a, lq + (alpha - 1) * log_b)


def rdp_threshold_independent(sigma: float, orders: npt.ArrayLike) -> Floats:
    """alpha / (2 sigma^2): the largest count moves by at most 1, not sqrt(2)."""
    return rdp_gnmax_independent(math.sqrt(2) * positive("sigma1", sigma), orders)


def rdp_threshold(over: npt.ArrayLike, sigma: float, orders: npt.ArrayLike) -> Floats:
    """RDP of the check for queries that are `over` the threshold by so much: q is the rarer of its outcomes.

    As a tail of its own: one minus the other outcome is 0 in floating point where q is still large enough to cost.
    """
    lq = log_ndtr(-np.abs(np.asarray(over, dtype=np.float64)) / positive("sigma1", sigma))
    return rdp_gnmax(lq, math.sqrt(2) * sigma, orders)


def rdp_lnmax_independent(gamma: float, orders: npt.ArrayLike) -> Floats:
    """min(eps0^2 alpha / 2, eps0) of a pure eps0 = 2 gamma mechanism (2017, Theorems 2 and 3)."""
    eps0 = 2 * positive("gamma", gamma)
    return np.minimum(eps0**2 / 2 * _orders(orders), eps0)


def rdp_lnmax(logq: npt.ArrayLike, gamma: float, orders: npt.ArrayLike) -> Floats:
    """RDP of LNMax (...,) -> (..., orders): the 2017 log moment of l = alpha - 1, divided by l (2017, Theorem 3).

    The theorem asks for q <= 1 / (1 + e^eps0); beyond, its expression is never the smallest.
    """
    alpha = _orders(orders)
    independent = rdp_lnmax_independent(gamma, alpha)
    eps0 = 2 * gamma
    lq = _log_probabilities(logq)
    valid = lq <= -np.logaddexp(0.0, eps0)
    lq = np.where(valid, lq, -eps0 - 1.0)
    log_rest = log1mexp(lq)
    log_t = np.logaddexp(log_rest + (alpha - 1) * (log_rest - log1mexp(lq + eps0)), lq + (alpha - 1) * eps0)
    return np.where(valid, np.minimum(log_t / (alpha - 1), independent), independent)


def _log_probabilities(logq: npt.ArrayLike) -> Floats:
    lq = np.asarray(logq, dtype=np.float64)[..., None]
    if (lq > 0).any() or np.isnan(lq).any():
        raise PrivacyError("ln q is above 0: q must be a probability")
    return lq


def _orders(orders: npt.ArrayLike) -> Floats:
    alpha = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    if not (np.isfinite(alpha) & (alpha > 1)).all():
        raise PrivacyError(f"order {alpha[~(alpha > 1)][:1].tolist() or alpha.tolist()}: orders must be above 1")
    return alpha


# -- composition and conversion ----------------------------------------------------------------------------------------


class Epsilon(NamedTuple):
    value: float
    order: float


def to_epsilon(rdp: npt.ArrayLike, orders: npt.ArrayLike, delta: float, conversion: str = "classic") -> Epsilon:
    """The smallest (epsilon, delta) guarantee that an RDP curve gives, and the order it is found at.

    classic: RDP + ln(1/delta) / (alpha - 1) (Mironov 2017, Proposition 3), as all PATE papers have it. improved:
    RDP + ln(1 - 1/alpha) - ln(delta alpha) / (alpha - 1) (Canonne, Kamath and Steinke 2020, Proposition 12).
    """
    alpha = _orders(orders)
    values = epsilons(np.asarray(rdp, dtype=np.float64), alpha, delta, conversion)
    best = int(values.argmin())
    return Epsilon(max(0.0, float(values[best])), float(alpha[best]))


def epsilons(rdp: Floats, orders: Floats, delta: float, conversion: str = "classic") -> Floats:
    """The guarantee at every order, for curves (..., orders)."""
    check_known("conversion", conversion, CONVERSIONS)
    check_delta(delta)
    if conversion == "classic":
        return np.asarray(rdp - math.log(delta) / (orders - 1))
    return np.asarray(rdp + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1))


class Costs(NamedTuple):
    """What each of N queries costs: the check (N, orders), an answer (N, orders), and the chance of one (N,)."""

    check: Floats
    answer: Floats
    answer_probability: Floats


def costs(
    mechanism: Mechanism,
    counts: Counts,
    orders: npt.ArrayLike,
    probabilities: Floats | None = None,
    bound: str = "data-dependent",
) -> Costs:
    """The costs of queries (N, classes) under a mechanism."""
    check_known("bound", bound, BOUNDS)
    alpha = _orders(orders)
    dependent = bound == "data-dependent"
    log_answered = log_answer_probability(counts, mechanism, probabilities)
    check = np.zeros((len(counts), len(alpha)))
    if isinstance(mechanism, LNMax):
        independent = rdp_lnmax_independent(mechanism.gamma, alpha)
        answer = rdp_lnmax(logq_lnmax(counts, mechanism.gamma), mechanism.gamma, alpha) if dependent else independent
    else:
        sigma = answer_scale(mechanism)
        independent = rdp_gnmax_independent(sigma, alpha)
        answer = rdp_gnmax(logq_gnmax(counts, sigma), sigma, alpha) if dependent else independent
        if not isinstance(mechanism, GNMax):
            s1, over = mechanism.sigma1, margins(counts, probabilities, mechanism) - mechanism.threshold
            check += rdp_threshold(over, s1, alpha) if dependent else rdp_threshold_independent(s1, alpha)
    return Costs(check, np.broadcast_to(answer, check.shape), np.exp(log_answered))


def charged(of: Costs, charging: str, answered: npt.NDArray[np.bool_] | None = None) -> Floats:
    """What N queries are charged (N, orders), in one of three ways.

    expected: check + Pr[answered] * answer, the figure of the papers; it depends on the votes through the probability.
    realised: check + answer if it was answered, what an online accountant shows; formally a privacy filter.
    all: check + answer for every query, plain adaptive composition, which needs no further argument.
    """
    check_known("way of charging", charging, CHARGING)
    if charging == "expected":
        weights = of.answer_probability
    elif charging == "all":
        weights = np.ones(len(of.check))
    elif answered is None:
        raise PrivacyError("the realised charge needs the answers")
    else:
        weights = np.asarray(answered, dtype=np.float64)
    return of.check + weights[:, None] * of.answer


class Accountant:
    """Adds up queries, in all ways of charging at once; `epsilon` may be asked at any time."""

    def __init__(self, mechanism: Mechanism, orders: npt.ArrayLike | None = None) -> None:
        self.mechanism = mechanism
        self.orders = _orders(default_orders(mechanism) if orders is None else orders)
        self.queries = 0
        self.expected_answered = 0.0
        self.answered: int | None = 0
        self._variance = np.zeros_like(self.orders)
        self._rdp = {(charging, bound): np.zeros_like(self.orders) for charging in CHARGING for bound in BOUNDS}

    def charge(
        self, counts: Counts, answered: npt.NDArray[np.bool_] | None = None, probabilities: Floats | None = None
    ) -> None:
        """Charge queries (N, classes); `answered` (N,) says which the teachers answered, where that is known."""
        if answered is None and isinstance(self.mechanism, LNMax | GNMax):
            answered = np.ones(len(counts), dtype=bool)
        for start, bound in product(range(0, len(counts), BLOCK), BOUNDS):
            part = slice(start, start + BLOCK)
            known = None if answered is None else answered[part]
            chances = None if probabilities is None else probabilities[part]
            of = costs(self.mechanism, counts[part], self.orders, chances, bound)
            for charging in CHARGING:
                if charging != "realised" or known is not None:
                    self._rdp[charging, bound] += charged(of, charging, known).sum(axis=0)
            if bound == "data-dependent":
                p = of.answer_probability
                self._variance += ((p * (1 - p))[:, None] * of.answer**2).sum(axis=0)
                self.expected_answered += float(p.sum())
        self.queries += len(counts)
        if answered is None or self.answered is None:
            self.answered = None
        else:
            self.answered += int(answered.sum())

    def rdp(self, charging: str, bound: str = "data-dependent") -> Floats:
        """The total so far at every order."""
        check_known("way of charging", charging, CHARGING)
        check_known("bound", bound, BOUNDS)
        if charging == "realised" and self.answered is None:
            raise PrivacyError("the realised charge needs the answers")
        return self._rdp[charging, bound]

    def epsilon(
        self, delta: float, charging: str, bound: str = "data-dependent", conversion: str = "classic"
    ) -> Epsilon:
        """The guarantee so far, and the order it is found at."""
        if not self.queries:
            return Epsilon(0.0, float(self.orders[-1]))
        return to_epsilon(self.rdp(charging, bound), self.orders, delta, conversion)

    def deviation(self, order: float) -> float:
        """How far the realised total at an order strays from the expected one: which queries pass is chance."""
        return float(np.sqrt(self._variance[int(np.abs(self.orders - order).argmin())]))

"""The mechanisms by Monte Carlo: rates of answers and refusals, and the noise itself. All seeds are fixed."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import kstest, laplace, norm

from mixmatch.errors import MixMatchError
from mixmatch.privacy import mechanisms
from mixmatch.privacy.accountant import answer_distribution, log_answer_probability
from mixmatch.privacy.mechanisms import ConfidentGNMax, GNMax, InteractiveGNMax, LNMax, SystemNoise, build, noise_for

COUNTS = np.array([120, 80, 50, 0])
DRAWS = 20_000


def sigmas(probability: float, draws: int = DRAWS) -> float:
    """Four standard deviations of a rate."""
    return 4 * (probability * (1 - probability) / draws) ** 0.5 + 1e-12


def rates(mechanism, noise, probabilities=None, draws=DRAWS):
    outcomes = [mechanism.answer(COUNTS, noise, probabilities) for _ in range(draws)]
    by_teachers = np.array([outcome.by_teachers for outcome in outcomes])
    labels = np.array([outcome.label for outcome in outcomes])
    return by_teachers, labels


@pytest.mark.parametrize("mechanism", [LNMax(0.02), GNMax(40)])
def test_answers_are_distributed_as_computed(mechanism):
    by_teachers, labels = rates(mechanism, np.random.default_rng(1))
    assert by_teachers.all()
    expected = answer_distribution(COUNTS[None], mechanism)[0]
    for label, probability in enumerate(expected):
        assert (labels == label).mean() == pytest.approx(probability, abs=sigmas(probability))


@pytest.mark.parametrize("threshold", [60, 120, 180])
def test_confident_answers_as_often_as_computed(threshold):
    mechanism = ConfidentGNMax(threshold, 50, 40)
    by_teachers, labels = rates(mechanism, np.random.default_rng(2))
    expected = norm.sf((threshold - 120) / 50)
    assert np.exp(log_answer_probability(COUNTS[None], mechanism))[0] == pytest.approx(expected)
    assert by_teachers.mean() == pytest.approx(expected, abs=sigmas(expected))
    assert ((labels == -1) == ~by_teachers).all()
    right = answer_distribution(COUNTS[None], mechanism)[0, 0]
    assert (labels[by_teachers] == 0).mean() == pytest.approx(right, abs=sigmas(right, by_teachers.sum()))


@pytest.mark.parametrize(("student", "keeps"), [([0.02, 0.95, 0.02, 0.01], True), ([0.3, 0.4, 0.2, 0.1], False)])
def test_interactive_asks_where_teachers_disagree_with_the_student(student, keeps):
    mechanism = InteractiveGNMax(60, 50, 40, confidence=0.9)
    p = np.array(student)
    by_teachers, labels = rates(mechanism, np.random.default_rng(3), p)
    margin = np.floor(max(COUNTS - 250 * p) + 0.5)
    expected = norm.sf((60 - margin) / 50)
    assert by_teachers.mean() == pytest.approx(expected, abs=sigmas(expected))
    assert set(labels[~by_teachers].tolist()) == ({1} if keeps else {-1})


def test_a_vote_moves_the_check_by_one_at_most():
    """Also where a probability is a rounding error away from half a vote."""
    mechanism = InteractiveGNMax(10, 5, 5)
    for half in (0.115, np.nextafter(0.115, 0), np.nextafter(0.115, 1), 0.285, 0.435, 0.565):
        student = np.array([[half, 1 - half]])
        counts = np.array([[n, 100 - n] for n in range(101)])
        margin = mechanisms.margins(counts, np.repeat(student, 101, axis=0), mechanism)
        assert np.abs(np.diff(margin)).max() <= 1
        exact = [
            max(math.floor(n - 100 * Fraction(p) + Fraction(1, 2)) for n, p in zip(row, student[0], strict=True))
            for row in counts.tolist()
        ]
        assert np.abs(margin - exact).max() <= 1  # 100 p itself is rounded


@pytest.mark.parametrize("noise", [SystemNoise(), np.random.default_rng(4)])
def test_noise_has_the_stated_scale(noise):
    normal = noise.normal(0.0, 40.0, DRAWS)
    assert normal.std() == pytest.approx(40, rel=0.03)
    assert normal.mean() == pytest.approx(0, abs=5 * 40 / DRAWS**0.5)
    assert kstest(normal, norm(0, 40).cdf).pvalue > 1e-6
    heavy = noise.laplace(0.0, 20.0, DRAWS)
    assert np.abs(heavy).mean() == pytest.approx(20, rel=0.04)
    assert kstest(heavy, laplace(0, 20).cdf).pvalue > 1e-6


def test_noise_in_the_mechanisms_has_the_stated_scale():
    """With two classes GNMax is a coin of known bias: the difference of two draws has deviation sqrt(2) sigma."""
    counts = np.array([130, 100])
    generator = np.random.default_rng(5)
    for mechanism, expected in [
        (GNMax(30), norm.cdf(30 / (30 * 2**0.5))),
        (LNMax(1 / 30), 1 - (2 + 1) / (4 * np.e)),
    ]:
        wins = np.mean([mechanism.answer(counts, generator).label == 0 for _ in range(100_000)])
        assert wins == pytest.approx(expected, abs=sigmas(expected, 100_000))  # 5 % more or less noise would show


def test_a_seed_makes_the_noise_a_function_of_the_query():
    one, again, other = noise_for(7, 3), noise_for(7, 3), noise_for(7, 4)
    first = one.normal(0, 1, 5)
    assert (first == again.normal(0, 1, 5)).all()
    assert (first != other.normal(0, 1, 5)).all()


def test_without_a_seed_noise_never_repeats():
    assert isinstance(noise_for(None, 3), SystemNoise)
    assert (noise_for(None, 3).normal(0, 1, 5) != noise_for(None, 3).normal(0, 1, 5)).all()
    assert "never publish" in mechanisms.SEED_WARNING


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("gnmax", {"sigma": 0.0}, "sigma is 0"),
        ("gnmax", {"sigma": -1.0}, "sigma is -1"),
        ("gnmax", {"sigma": float("nan")}, "sigma is nan"),
        ("gnmax", {"sigma": float("inf")}, "sigma is inf"),
        ("gnmax", {}, "needs sigma="),
        ("gnmax", {"sigma": 40.0, "threshold": 200.0}, "threshold= does not go with gnmax"),
        ("lnmax", {"gamma": 0.0}, "gamma is 0"),
        ("lnmax", {"gamma": 1e300}, r"gamma is 1e\+300: it must lie between 1e-12 and 1e\+12"),
        ("gnmax", {"sigma": 1e-300}, "sigma is 1e-300: it must lie between"),
        ("confident-gnmax", {"threshold": 200.0, "sigma1": 1e300, "sigma2": 40.0}, r"sigma1 is 1e\+300"),
        ("confident-gnmax", {"threshold": 200.0, "sigma2": 40.0}, "threshold= needs its noise: give sigma1="),
        ("confident-gnmax", {"sigma1": 200.0, "sigma2": 40.0}, "needs threshold="),
        ("confident-gnmax", {"threshold": 200.0, "sigma1": 0.0, "sigma2": 40.0}, "sigma1 is 0"),
        ("confident-gnmax", {"threshold": 200.0, "sigma1": 200.0, "sigma2": 0.0}, "sigma2 is 0"),
        ("confident-gnmax", {"threshold": float("nan"), "sigma1": 200.0, "sigma2": 40.0}, "threshold is nan"),
        ("interactive-gnmax", {"threshold": 9.0, "sigma1": 9.0, "sigma2": 9.0, "confidence": 2.0}, "confidence is 2"),
        ("gmax", {"sigma": 40.0}, "did you mean 'gnmax'"),
    ],
)
def test_impossible_mechanisms_are_refused(name, parameters, message):
    with pytest.raises(MixMatchError, match=message) as error:
        build(name, **parameters)
    assert "\n" not in str(error.value)


def test_mechanisms_by_name():
    assert build("lnmax", gamma=0.1, sigma=None) == LNMax(0.1)
    assert build("interactive-gnmax", threshold=5.0, sigma1=1.0, sigma2=2.0).confidence == 0.9

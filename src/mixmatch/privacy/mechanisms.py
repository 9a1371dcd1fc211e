"""How a query is answered: the noisy maximum of the teachers' votes, with or without a check that they agree.

LNMax is of Papernot et al. 2017 (arXiv 1610.05755), the GNMax family of Papernot et al. 2018 (arXiv 1802.08908).
Noise comes from the operating system. A seeded generator is for experiments: anyone who knows the seed can
remove the noise, so a published seed voids the guarantee.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from mixmatch.draws import generator
from mixmatch.privacy.checks import PrivacyError, check_known, positive
from mixmatch.privacy.votes import REFUSED, Counts, Floats

SEED_WARNING = (
    "the noise is seeded: anyone who learns the seed can remove the noise, so never publish it with the answers; "
    "for a real release leave the seed out, and the operating system's randomness is used"
)


class Noise(Protocol):
    """Where noise comes from: `SystemNoise`, or NumPy's own generator with a seed."""

    def normal(self, loc: float, scale: float, size: int) -> npt.NDArray[np.float64]: ...

    def laplace(self, loc: float, scale: float, size: int) -> npt.NDArray[np.float64]: ...


class SystemNoise:
    """Noise from the operating system's randomness (os.urandom): no state, nothing to seed, nothing to replay."""

    _random = random.SystemRandom()

    def normal(self, loc: float, scale: float, size: int) -> Floats:
        return np.array([self._random.normalvariate(loc, scale) for _ in range(size)])

    def laplace(self, loc: float, scale: float, size: int) -> Floats:
        draw = self._random.expovariate
        return np.array([loc + scale * (draw(1.0) - draw(1.0)) for _ in range(size)])


def noise_for(seed: int | None, query: int) -> Noise:
    """The noise for one query: the system's, or with a seed a pure function of (seed, query)."""
    return SystemNoise() if seed is None else generator(seed, "pate", query)


class Answer(NamedTuple):
    """The answer to a query: a label (-1: refused) and who gave it: "teachers", "student" or "" (refused).

    Only a label by the teachers costs more than the check.
    """

    label: int
    source: str

    @property
    def by_teachers(self) -> bool:
        return self.source == "teachers"


REFUSAL = Answer(REFUSED, "")


class _Parameters:
    """Refuses parameters that mean nothing; all but two are scales of noise."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name == "threshold" and not np.isfinite(value):
                raise PrivacyError(f"threshold is {value:g}: it must be a number")
            if name == "confidence" and not 0 < value <= 1:
                raise PrivacyError(f"confidence is {value:g}: it must lie in (0, 1]")
            if name not in ("threshold", "confidence"):
                positive(name, value)


@dataclass(frozen=True)
class LNMax(_Parameters):
    """argmax_j n_j + Lap(1/gamma) (2017, Section 2.1). Every query is answered."""

    name: ClassVar[str] = "lnmax"
    gamma: float

    def answer(self, counts: Counts, noise: Noise, probabilities: Floats | None = None) -> Answer:
        return Answer(int(np.argmax(counts + noise.laplace(0.0, 1 / self.gamma, len(counts)))), "teachers")


@dataclass(frozen=True)
class GNMax(_Parameters):
    """argmax_j n_j + N(0, sigma^2) (2018, Section 4.1). Every query is answered."""

    name: ClassVar[str] = "gnmax"
    sigma: float

    def answer(self, counts: Counts, noise: Noise, probabilities: Floats | None = None) -> Answer:
        return Answer(_noisy_max(counts, self.sigma, noise), "teachers")


@dataclass(frozen=True)
class ConfidentGNMax(_Parameters):
    """If max_j n_j + N(0, sigma1^2) >= threshold, GNMax(sigma2); else refused (2018, Algorithm 1)."""

    name: ClassVar[str] = "confident-gnmax"
    threshold: float
    sigma1: float
    sigma2: float

    def answer(self, counts: Counts, noise: Noise, probabilities: Floats | None = None) -> Answer:
        if not _passes(counts.max(), self.threshold, self.sigma1, noise):
            return REFUSAL
        return Answer(_noisy_max(counts, self.sigma2, noise), "teachers")


@dataclass(frozen=True)
class InteractiveGNMax(_Parameters):
    """Ask the teachers only where they disagree with a student (2018, Algorithm 2).

    If max_j (n_j - M p_j) + N(0, sigma1^2) >= threshold, for the student's probabilities p and M teachers,
    GNMax(sigma2); else, if max_j p_j > confidence, the student keeps its own label, which is free; else refused.
    """

    name: ClassVar[str] = "interactive-gnmax"
    threshold: float
    sigma1: float
    sigma2: float
    confidence: float = 0.9

    def answer(self, counts: Counts, noise: Noise, probabilities: Floats | None = None) -> Answer:
        margin = margins(counts[None], None if probabilities is None else probabilities[None], self)[0]
        if _passes(margin, self.threshold, self.sigma1, noise):
            return Answer(_noisy_max(counts, self.sigma2, noise), "teachers")
        assert probabilities is not None
        if probabilities.max() > self.confidence:
            return Answer(int(probabilities.argmax()), "student")
        return REFUSAL


Mechanism = LNMax | GNMax | ConfidentGNMax | InteractiveGNMax
Checked = ConfidentGNMax | InteractiveGNMax
MECHANISMS: dict[str, type[Mechanism]] = {m.name: m for m in (LNMax, GNMax, ConfidentGNMax, InteractiveGNMax)}


def build(name: str, **parameters: float | None) -> Mechanism:
    """A mechanism from its name and parameters; None is a parameter not given.

    >>> build("gnmax", sigma=40.0, gamma=None)
    GNMax(sigma=40.0)
    """
    check_known("mechanism", name, MECHANISMS)
    kind = MECHANISMS[name]
    wanted = [field.name for field in fields(kind)]
    given = {key: value for key, value in parameters.items() if value is not None}
    for key in given:
        if key not in wanted:
            raise PrivacyError(f"{key}= does not go with {name}, which takes {_names(wanted)}")
    missing = [key for key in wanted if key not in given and key != "confidence"]
    if missing and "threshold" in given and "sigma1" in missing:
        raise PrivacyError("threshold= needs its noise: give sigma1=")
    if missing:
        raise PrivacyError(f"{name} needs {_names(missing)}")
    return kind(**given)


def describe(mechanism: Mechanism) -> dict[str, Any]:
    """Name and parameters, for a record."""
    return {"mechanism": mechanism.name, "parameters": asdict(mechanism)}


def answer_scale(mechanism: Mechanism) -> float:
    """The scale of the noise on the votes themselves: sigma, sigma2 or 1/gamma."""
    if isinstance(mechanism, LNMax):
        return 1 / mechanism.gamma
    return mechanism.sigma if isinstance(mechanism, GNMax) else mechanism.sigma2


def margins(counts: Counts, probabilities: Floats | None, mechanism: Checked) -> Floats:
    """What the check compares with the threshold, for queries (N, classes): max_j n_j or max_j (n_j - M p_j).

    A fraction is rounded (halves up, so that the value still moves by at most 1 between neighbors), which lets smooth
    sensitivity be computed over whole numbers.
    """
    if isinstance(mechanism, ConfidentGNMax):
        return np.asarray(counts.max(axis=1), dtype=np.float64)
    if probabilities is None:
        raise PrivacyError("interactive-gnmax needs a student's probabilities: give baseline=")
    teachers = counts.sum(axis=1, keepdims=True)
    expected = np.ceil(teachers * probabilities - 0.5)  # rounded before votes come in, so that neighbors differ by 1
    return np.asarray((counts - expected).max(axis=1))


def _passes(value: float, threshold: float, sigma: float, noise: Noise) -> bool:
    return bool(value + noise.normal(0.0, sigma, 1)[0] >= threshold)


def _noisy_max(counts: Counts, sigma: float, noise: Noise) -> int:
    return int(np.argmax(counts + noise.normal(0.0, sigma, len(counts))))


def _names(names: list[str]) -> str:
    return ", ".join(f"{name}=" for name in names)

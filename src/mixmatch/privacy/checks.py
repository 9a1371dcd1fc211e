"""Checks shared by the privacy modules."""

from __future__ import annotations

import math
from collections.abc import Collection

from mixmatch.errors import MixMatchError, unknown


class PrivacyError(MixMatchError, ValueError):
    """A parameter or a file that would make the privacy guarantee meaningless. Nothing has been charged."""


LEAST, MOST = 1e-12, 1e12
"""Costs can be computed between these limits; no use is known for values beyond them."""


def positive(name: str, value: float) -> float:
    """`value`, if it is a positive number whose square neither overflows nor underflows."""
    if not (math.isfinite(value) and value > 0):
        raise PrivacyError(f"{name} is {value:g}: it must be a positive number")
    if not LEAST <= value <= MOST:
        raise PrivacyError(f"{name} is {value:g}: it must lie between {LEAST:g} and {MOST:g}")
    return float(value)


def check_known(what: str, name: str, known: Collection[str]) -> None:
    """Refuse a name that is not among those known."""
    if name not in known:
        raise unknown(what, name, known)


def check_delta(delta: float) -> float:
    """`delta`, if it is a probability that means something."""
    if not 0 < delta < 1:
        raise PrivacyError(f"delta is {delta:g}: it must lie between 0 and 1 (less than 1 / the private records)")
    return float(delta)

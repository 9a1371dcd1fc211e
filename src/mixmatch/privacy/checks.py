"""Checks shared by the privacy modules."""

from __future__ import annotations

import math

from mixmatch.errors import MixMatchError


class PrivacyError(MixMatchError, ValueError):
    """A parameter or a file that would make the privacy guarantee meaningless. Nothing has been charged."""


def positive(name: str, value: float) -> float:
    """`value`, if it is a positive finite number."""
    if not (math.isfinite(value) and value > 0):
        raise PrivacyError(f"{name} is {value:g}: it must be a positive number")
    return float(value)


def check_delta(delta: float) -> float:
    """`delta`, if it is a probability that means something."""
    if not 0 < delta < 1:
        raise PrivacyError(f"delta is {delta:g}: it must lie between 0 and 1 (less than 1 / the private records)")
    return float(delta)

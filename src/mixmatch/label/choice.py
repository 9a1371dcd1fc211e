"""The features that pictures are compared by, as the user chooses."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from mixmatch.errors import MixMatchError, not_installed, unknown

RUN, PIXELS, BASIC, TIMM = "run", "pixels", "basic", "timm:"


class Choice(NamedTuple):
    """By which features pictures are compared: those of the newest `run`, once there is one; of their `pixels`; or of a
    network, `basic` or `timm:NAME` with weights from a file."""

    features: str = RUN
    weights: Path | None = None

    def check(self) -> None:
        """Refuse what cannot work, before anything starts. Whether a model exists is known only once it is loaded."""
        is_timm = self.features.startswith(TIMM) and self.features != TIMM
        if not is_timm and self.features not in (RUN, PIXELS, BASIC):
            raise unknown("features", self.features, [RUN, PIXELS, BASIC, f"{TIMM}NAME"])
        if not is_timm:
            if self.weights is not None:
                raise MixMatchError(f"weights= is for features={TIMM}NAME: leave it out")
        elif find_spec("timm") is None:
            raise not_installed(f"features={self.features}", "timm", "timm")
        elif self.weights is not None and not self.weights.is_file():
            raise MixMatchError(f"there is no file weights={self.weights}")

    @property
    def computed(self) -> str:
        """Those that are computed for all pictures, whether there is a run or not."""
        return PIXELS if self.features == RUN else self.features

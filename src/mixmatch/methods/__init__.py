"""The methods by name. A new one is one file here and one line below."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Mapping
from typing import Any

from mixmatch.errors import MixMatchError, unknown
from mixmatch.methods.base import Batch, Method, Progress
from mixmatch.methods.ict import ICT
from mixmatch.methods.mean_teacher import MeanTeacher
from mixmatch.methods.mixmatch import MixMatch
from mixmatch.methods.mixup import MixUp
from mixmatch.methods.pi_model import PiModel
from mixmatch.methods.pseudo_label import PseudoLabel
from mixmatch.methods.supervised import Supervised
from mixmatch.methods.supervised_mixup import SupervisedMixUp
from mixmatch.methods.vat import VAT

__all__ = ["METHODS", "Batch", "Method", "Progress", "build", "settings_of"]

METHODS: dict[str, type[Method]] = {
    "mixmatch": MixMatch,
    "supervised": Supervised,
    "supervised-mixup": SupervisedMixUp,
    "pi-model": PiModel,
    "mean-teacher": MeanTeacher,
    "pseudo-label": PseudoLabel,
    "mixup": MixUp,
    "vat": VAT,
    "ict": ICT,
}


def settings_of(name: str) -> dict[str, Any]:
    """A method's settings and their defaults."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return {f.name: f.default for f in dataclasses.fields(typing.cast(Any, METHODS[name]))}


def build(name: str, settings: Mapping[str, Any]) -> Method:
    """Make a method with these settings, checking their names, types and ranges."""
    known = settings_of(name)
    for setting in settings:
        if setting not in known:
            raise unknown(f"setting of method '{name}'", setting, known or ["none"])
    cls = METHODS[name]
    hints = typing.get_type_hints(cls)
    checked = {setting: _checked(name, setting, value, hints[setting]) for setting, value in settings.items()}
    return cls(**checked)


def _checked(method: str, setting: str, value: Any, kind: Any) -> Any:
    """Settings are counts (at least 1, or 0 for a ramp), amounts (finite, not negative), switches or choices."""
    wrong = f"{method}: {setting}={value!r} "
    if typing.get_origin(kind) is typing.Literal:
        choices = typing.get_args(kind)
        if value not in choices:
            raise MixMatchError(f"{wrong}is not one of {', '.join(map(str, choices))}")
        return value
    if kind is bool:
        if not isinstance(value, bool):
            raise MixMatchError(f"{wrong}must be true or false")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise MixMatchError(f"{wrong}must be a finite number")
    if kind is int and value != int(value):
        raise MixMatchError(f"{wrong}must be a whole number")
    least, most = (1 if setting == "K" else 0), (1 if setting in ("threshold", "smoothing", "warmup") else math.inf)
    if value > most or value < least or (value == 0 and setting in ("alpha", "xi", "epsilon")):
        wanted = f"between {least} and {most}" if most < math.inf else f"{least} or more"
        raise MixMatchError(f"{wrong}must be {'more than 0' if setting in ('alpha', 'xi', 'epsilon') else wanted}")
    return kind(value)

"""The methods by name. A new one is one file here and one line below."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mixmatch.declare import Setting, settings_of
from mixmatch.errors import MixMatchError, unknown
from mixmatch.methods.adamatch import AdaMatch
from mixmatch.methods.base import Batch, DataInfo, Method, Progress, Step, setting
from mixmatch.methods.fixmatch import FixMatch
from mixmatch.methods.flexmatch import FlexMatch
from mixmatch.methods.freematch import FreeMatch
from mixmatch.methods.ict import ICT
from mixmatch.methods.mean_teacher import MeanTeacher
from mixmatch.methods.mixmatch import MixMatch
from mixmatch.methods.mixup import MixUp
from mixmatch.methods.pi_model import PiModel
from mixmatch.methods.pseudo_label import PseudoLabel
from mixmatch.methods.remixmatch import ReMixMatch
from mixmatch.methods.softmatch import SoftMatch
from mixmatch.methods.supervised import Supervised
from mixmatch.methods.supervised_mixup import SupervisedMixUp
from mixmatch.methods.uda import UDA
from mixmatch.methods.vat import VAT

__all__ = ["CUSTOM", "METHODS", "Batch", "DataInfo", "Method", "Progress", "Step", "build", "declared", "setting"]

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
    "uda": UDA,
    "remixmatch": ReMixMatch,
    "fixmatch": FixMatch,
    "flexmatch": FlexMatch,
    "freematch": FreeMatch,
    "softmatch": SoftMatch,
    "adamatch": AdaMatch,
}

CUSTOM = "custom:"
"""What the name of a method from outside the package begins with: its class's name follows."""


def find(name: object) -> type[Method]:
    """The class of a method, or an error that names the nearest."""
    if isinstance(name, str) and name in METHODS:
        return METHODS[name]
    if isinstance(name, type):
        raise MixMatchError(f"method={name.__name__} is a class: give an object of it, {name.__name__}(...)")
    if str(name).startswith(CUSTOM):
        own = str(name).removeprefix(CUSTOM)
        raise MixMatchError(f"the method {own} is not part of mixmatch: pass the object, train(method={own}(...))")
    raise unknown("method", str(name), METHODS)


def name_of(method: Method) -> str:
    """The name of a method object: that of `METHODS`, or `custom:Class`."""
    names = {cls: name for name, cls in METHODS.items()}
    return names.get(type(method), f"{CUSTOM}{type(method).__name__}")


def declared(name: str) -> dict[str, Setting]:
    """The settings of a method, by name; none are known of one from outside the package."""
    return {} if str(name).startswith(CUSTOM) else settings_of(find(name))


def build(name: str, values: Mapping[str, Any]) -> Method:
    """Make a method with these settings, which are checked; the others are at their defaults."""
    return find(name)(**checked(name, values))


def checked(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a method in their declared types, or an error that names the one that is wrong."""
    known = declared(name)
    for given in values:
        if given not in known:
            raise unknown("setting", given, known, of=f"method '{name}'")
    return {given: known[given].check(value) for given, value in values.items()}

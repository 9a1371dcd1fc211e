"""A run's settings: one frozen dataclass, told in full by the run's config.json, and the paper's presets as tables."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mixmatch import methods
from mixmatch.errors import MixMatchError, unknown

Precision = Literal["fp32", "bf16"]
Schedule = Literal["constant", "cosine", "linear"]
Labels = int | Literal["all"]
Kind = Literal["images", "features"]


@dataclass(frozen=True)
class Settings:
    """Everything that decides what a run learns. The defaults are the paper's."""

    data: str
    method: str = "mixmatch"
    labels: Labels = 250
    seed: int = 1
    """Decides who is labeled, the initial weights and every draw."""
    valid: int = 0
    """Unlabeled images held out for validation."""
    network: str = "wrn-28-2"
    weights: str = ""
    """A file that a timm network starts from."""
    steps: int = 2**20
    batch_size: int = 64
    learning_rate: float = 0.002
    schedule: Schedule = "constant"
    weight_decay: float = 0.02
    """Each step multiplies kernels by 1 - weight_decay * learning_rate."""
    ema_decay: float = 0.999
    pad: int = 4
    """Pixels by which an image is mirror-padded before the random crop."""
    flip: bool = False
    """Whether images are flipped left to right at random."""
    noise: float = 0.0
    """Deviation of the Gaussian noise that is added to standardized features."""
    mask: float = 0.0
    """Share of the features of a row that are hidden at random."""
    precision: Precision = "fp32"
    eval_every: int = 1024
    data_options: dict[str, Any] = field(default_factory=dict)
    """How own data is read: labels_file, image_size, label_column, part_column, ignore. Of PATE: shard or student."""
    method_settings: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def build_method(self) -> methods.Method:
        return methods.build(self.method, self.method_settings)


DATA_PRESETS: dict[str, dict[str, Any]] = {
    "digits": {"labels": 20, "network": "wrn-small", "pad": 1, "steps": 1000, "ema_decay": 0.99, "eval_every": 20},
    "cifar10": {"labels": 250, "valid": 1, "pad": 4, "flip": True},
    "cifar100": {"labels": 10000, "valid": 1, "pad": 4, "flip": True, "network": "wrn-28-large"},
    "svhn": {"labels": 250, "valid": 1, "pad": 4},
    "svhn-extra": {"labels": 250, "valid": 1, "pad": 4},
    "stl10": {"labels": 1000, "valid": 1, "pad": 12, "flip": True, "network": "wrn-28-2-stl10"},
    "digits-test": {"steps": 600, "eval_every": 10},
    "svhn-test": {"labels": 138, "steps": 2**17},
}
"""What a data set asks for, whatever the method: its augmentation, network and protocol. NAME-test, the public images
of a PATE student (Section 4.3), is as NAME but for what is said here."""

OWN: dict[Kind, dict[str, Any]] = {
    "images": {
        "labels": "all",
        "network": "wrn-auto",
        "steps": 4096,
        "ema_decay": 0.995,
        "eval_every": 64,
        "passes": "fused",
    },
    "features": {
        "labels": "all",
        "network": "mlp",
        "steps": 1024,
        "ema_decay": 0.99,
        "eval_every": 32,
        "weight_decay": 5.0,
        "pad": 0,
        "noise": 0.3,
        "mask": 0.2,
        "alpha": 0.2,
        "lambda_u": 10.0,
        "passes": "fused",
    },
}
"""For a person's own data: images take a run of an afternoon on a laptop, features one of seconds. The weight of the
unlabeled loss rises over a third of it. How the numbers for features were chosen: docs/user-data.md."""

METHOD_PRESETS: dict[tuple[str, str], dict[str, Any]] = {
    ("digits", "mixmatch"): {"ramp": 333, "passes": "fused"},
    ("digits", "vat"): {"epsilon": 0.87},  # 6 on 32x32x3 is as much a pixel
    #
    ("cifar10", "mixmatch"): {"alpha": 0.75, "lambda_u": 75.0},
    ("cifar10", "ict"): {"alpha": 0.75, "consistency_weight": 1000.0},
    ("cifar10", "mean-teacher"): {"consistency_weight": 50.0, "weight_decay": 0.2},
    ("cifar10", "mixup"): {"alpha": 0.75},
    ("cifar10", "pi-model"): {"consistency_weight": 20.0},
    ("cifar10", "pseudo-label"): {"consistency_weight": 1.0},
    ("cifar10", "supervised-mixup"): {"alpha": 0.5, "weight_decay": 0.002},
    #
    ("cifar100", "mixmatch"): {"alpha": 0.75, "lambda_u": 150.0, "weight_decay": 0.04},
    ("cifar100", "supervised-mixup"): {"alpha": 0.5, "weight_decay": 0.002},
    #
    ("svhn", "mixmatch"): {"alpha": 0.75, "lambda_u": 250.0},
    ("svhn", "ict"): {"alpha": 0.5, "consistency_weight": 20.0},
    ("svhn", "mean-teacher"): {"consistency_weight": 150.0},
    ("svhn", "mixup"): {"alpha": 0.25},
    ("svhn", "pi-model"): {"consistency_weight": 5.0, "weight_decay": 0.2},
    ("svhn", "pseudo-label"): {"consistency_weight": 2.0},
    ("svhn", "supervised-mixup"): {"alpha": 0.5, "weight_decay": 0.002},
    #
    ("svhn-extra", "mixmatch"): {"alpha": 0.25, "lambda_u": 250.0},
    ("svhn-extra", "ict"): {"alpha": 0.5, "consistency_weight": 20.0},
    ("svhn-extra", "mean-teacher"): {"consistency_weight": 180.0},
    ("svhn-extra", "mixup"): {"alpha": 0.25},
    ("svhn-extra", "pi-model"): {"consistency_weight": 5.0, "weight_decay": 0.2},
    ("svhn-extra", "pseudo-label"): {"consistency_weight": 2.0},
    ("svhn-extra", "supervised-mixup"): {"alpha": 0.5, "weight_decay": 0.002},
    #
    ("stl10", "mixmatch"): {"alpha": 0.75, "lambda_u": 50.0},
    #
    ("digits-test", "mixmatch"): {"lambda_u": 25.0, "ramp": 200},  # a pool of 250 images: 100 is too much
    ("svhn-test", "mixmatch"): {"alpha": 0.75, "lambda_u": 75.0, "weight_decay": 0.04},
}
"""What produced the paper's numbers (data set, method): settings of the run and of the method alike."""


def resolve(data: str, given: Mapping[str, Any], own: Kind | None = None) -> Settings:
    """The settings for a data set: the paper's, unless given. Names that are not settings are refused.

    A person's `own` images or features start from `OWN` instead.

    >>> resolve("cifar10", {"labels": 4000}).method_settings["lambda_u"]
    75.0
    """
    method = given.get("method", "mixmatch")
    of_method = methods.settings_of(method)
    of_run = {f.name for f in dataclasses.fields(Settings)} - {"data", "data_options", "method_settings"}
    for name in given:
        if name not in of_run and name not in of_method:
            others = [other for other in methods.METHODS if name in methods.settings_of(other)]
            if others:
                raise MixMatchError(f"unknown setting of method '{method}' '{name}': it is one of {', '.join(others)}")
            raise unknown(f"setting of method '{method}'", name, [*of_run, *of_method])
    presets = OWN[own] if own else _presets(data, method)
    values = {**of_method, **presets, **given}
    if own and "ramp" not in given and _whole(values["steps"]):
        values["ramp"] = values["steps"] // 3
    settings = Settings(
        data=data,
        **{name: value for name, value in values.items() if name in of_run},
        method_settings={name: values[name] for name in of_method},
    )
    return check(settings)


def _presets(data: str, method: str) -> dict[str, Any]:
    of_data = {**DATA_PRESETS.get(data, {}), **METHOD_PRESETS.get((data, method), {})}
    base = data.removesuffix("-test")
    return of_data if base == data else {**_presets(base, method), "valid": 0, **of_data}


def check(settings: Settings) -> Settings:
    """The same settings if they make sense; an error that names the setting and its value if not."""
    hints = typing.get_type_hints(Settings)
    least = {"seed": 0, "valid": 0, "pad": 0, "steps": 1, "batch_size": 1, "eval_every": 1}
    for name, value in settings.to_dict().items():
        kind = hints[name]
        if name == "labels":
            good, wanted = value == "all" or (_whole(value) and value >= 1), "a count of at least 1, or 'all'"
        elif typing.get_origin(kind) is Literal:
            good, wanted = value in typing.get_args(kind), f"one of {', '.join(typing.get_args(kind))}"
        elif kind is int:
            good, wanted = _whole(value) and value >= least[name], f"a whole number of at least {least[name]}"
        elif kind is float:
            top = 1.0 if name in ("ema_decay", "mask") else math.inf
            number = isinstance(value, int | float) and not isinstance(value, bool)
            good = number and math.isfinite(value) and 0 <= value <= top
            wanted = "between 0 and 1" if top == 1 else "a finite number, 0 or more"
        else:
            wants: dict[Any, str] = {bool: "true or false", str: "a name"}
            good = isinstance(value, kind if kind in wants else dict)
            wanted = wants.get(kind, "names with their values")
        if not good:
            raise MixMatchError(f"{name}={value!r} must be {wanted}")
    settings.build_method()
    return settings


def from_dict(values: Mapping[str, Any]) -> Settings:
    """Settings as `to_dict` wrote them, also by an earlier version: a setting of the method that it did not have yet
    is at its default, which is what it did. A name that is not known is refused."""
    known = {f.name for f in dataclasses.fields(Settings)}
    for name in values:
        if name not in known:
            raise unknown("setting", name, known)
    if "data" not in values:
        raise MixMatchError("the settings name no data set")
    given = values.get("method_settings", {})
    if isinstance(given, Mapping):
        given = {**methods.settings_of(values.get("method", "mixmatch")), **given}
    return check(Settings(**{**values, "method_settings": given}))


def differences(a: Settings, b: Settings) -> list[str]:
    """What differs, as lines like 'steps: 100 -> 200'."""
    flat_a, flat_b = ({**_flat(s), **_flat(s)["data_options"]} for s in (a, b))
    names = [*flat_a, *(name for name in flat_b if name not in flat_a)]
    return [
        f"{name}: {_short(flat_a.get(name, 'not set'))} -> {_short(flat_b.get(name, 'not set'))}"
        for name in names
        if name != "data_options" and flat_a.get(name) != flat_b.get(name)
    ]


def made_for_its_steps(settings: Settings) -> str | None:
    """Why a run of so many steps is not the beginning of a longer one; None if it is."""
    if settings.schedule != "constant":
        return f"its learning rate follows them (schedule {settings.schedule})"
    if settings.method_settings.get("warmup"):
        return f"the unlabeled weight of {settings.method} rises over a part of them (warmup)"
    return None


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:56]} ..."


def _flat(settings: Settings) -> dict[str, Any]:
    values = settings.to_dict()
    of_method = values.pop("method_settings")
    return {**values, **of_method}


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)

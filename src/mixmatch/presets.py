"""The papers' values, and ours for user data, as tables. A value for a method never reaches another method."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Kind = Literal["images", "features"]
"""What user data holds: images, or rows of numbers."""


class PartOfSteps(NamedTuple):
    """A preset that follows the number of steps: steps // divisor."""

    divisor: int


DATA: dict[str, dict[str, Any]] = {
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

PSEUDO_LABELS = ("uda", "fixmatch", "flexmatch", "freematch", "softmatch", "adamatch")
"""Methods with FixMatch's recipe."""

SHORT: dict[str, Any] = {"ratio": 2, "prediction_decay": 0.99}
"""For these methods in a run of few, cheap steps: averages over a thousand steps would come too late."""

DATA_METHOD: dict[tuple[str, str], dict[str, Any]] = {
    ("digits", "mixmatch"): {"ramp": 333, "passes": "fused"},
    ("digits", "vat"): {"epsilon": 0.87},  # 6 on 32x32x3 is as much per pixel
    ("digits", "remixmatch"): {"K": 2, "ramp": 333, "passes": "fused"},
    **{("digits", method): SHORT for method in PSEUDO_LABELS},
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
    ("cifar100", "remixmatch"): {"network": "wrn-28-8"},
    **{("cifar100", method): {"network": "wrn-28-8", "weight_decay": 0.001} for method in PSEUDO_LABELS},
    #
    ("svhn", "mixmatch"): {"alpha": 0.75, "lambda_u": 250.0},
    ("svhn", "ict"): {"alpha": 0.5, "consistency_weight": 20.0},
    ("svhn", "mean-teacher"): {"consistency_weight": 150.0},
    ("svhn", "mixup"): {"alpha": 0.25},
    ("svhn", "pi-model"): {"consistency_weight": 5.0, "weight_decay": 0.2},
    ("svhn", "pseudo-label"): {"consistency_weight": 2.0},
    ("svhn", "supervised-mixup"): {"alpha": 0.5, "weight_decay": 0.002},
    ("svhn", "freematch"): {"least_threshold": 0.9, "most_threshold": 0.95},
    #
    ("svhn-extra", "mixmatch"): {"alpha": 0.25, "lambda_u": 250.0},
    ("svhn-extra", "ict"): {"alpha": 0.5, "consistency_weight": 20.0},
    ("svhn-extra", "mean-teacher"): {"consistency_weight": 180.0},
    ("svhn-extra", "mixup"): {"alpha": 0.25},
    ("svhn-extra", "pi-model"): {"consistency_weight": 5.0, "weight_decay": 0.2},
    ("svhn-extra", "pseudo-label"): {"consistency_weight": 2.0},
    ("svhn-extra", "supervised-mixup"): {"alpha": 0.5, "weight_decay": 0.002},
    ("svhn-extra", "freematch"): {"least_threshold": 0.9, "most_threshold": 0.95},
    #
    ("stl10", "mixmatch"): {"alpha": 0.75, "lambda_u": 50.0},
    ("stl10", "remixmatch"): {"K": 4},
    #
    ("digits-test", "mixmatch"): {"lambda_u": 25.0, "ramp": 200},  # a pool of 250 images: 100 is too much
    ("svhn-test", "mixmatch"): {"alpha": 0.75, "lambda_u": 75.0, "weight_decay": 0.04},
}
"""What produced the papers' numbers (data set, method): settings of the run and of the method alike."""

USER: dict[Kind, dict[str, Any]] = {
    "images": {
        "labels": "all",
        "hold_out": "two-classes",
        "network": "wrn-auto",
        "steps": 4096,
        "ema_decay": 0.995,
        "ema_warmup": True,
        "eval_every": 64,
    },
    "features": {
        "labels": "all",
        "hold_out": "all-classes",  # else they are cross-validated, which takes seconds
        "network": "mlp",
        "steps": 1024,
        "ema_decay": 0.99,
        "ema_warmup": True,
        "eval_every": 32,
        "weight_decay": 5.0,
        "pad": 0,
        "noise": 0.3,
        "mask": 0.2,
    },
}
"""For user data, whatever the method: images take an afternoon on a laptop, features seconds. How the numbers for
features were chosen: docs/user-data-measured.md."""

EMBEDDED: dict[str, Any] = {n: value for n, value in USER["features"].items() if n != "labels"}
"""For frozen features of images, published or not: as for other features, but for which rows are labeled."""

EMBEDDED_METHOD: dict[str, dict[str, Any]] = {"supervised": {"weight_decay": 0.5}}
"""For frozen features of images and a method. At 2, as for tables, weights vanish within a thousand steps."""

USER_METHOD: dict[tuple[Kind, str], dict[str, Any]] = {
    ("images", "mixmatch"): {"lambda_u": 10.0, "passes": "fused", "ramp": PartOfSteps(3)},  # 100 collapses short runs
    ("images", "remixmatch"): {"K": 2, "passes": "fused", "ramp": PartOfSteps(3)},
    **{("images", method): {**SHORT, "passes": "fused"} for method in PSEUDO_LABELS},  # a quarter faster on a GPU
    ("features", "supervised"): {"weight_decay": 2.0},  # at 5, weights vanish once the few labels are learned
    ("features", "mixmatch"): {"alpha": 0.2, "lambda_u": 10.0, "passes": "fused", "ramp": PartOfSteps(3)},
    ("features", "remixmatch"): {"K": 2, "lambda_r": 0.0, "passes": "fused", "ramp": PartOfSteps(3)},
    **{("features", method): SHORT for method in PSEUDO_LABELS},
}
"""For user data and a method."""


def of_data(data: str, kind: Kind | None) -> dict[str, Any]:
    """The preset of a published data set by name, or of user data of a `kind`, for every method."""
    if kind is not None:
        return USER[kind]
    base = data.removesuffix("-test")
    return DATA.get(data, {}) if base == data else {**of_data(base, None), "valid": 0, **DATA.get(data, {})}


def of_method(data: str, kind: Kind | None, method: str) -> dict[str, Any]:
    """The preset for one method on that data."""
    if kind is not None:
        return USER_METHOD.get((kind, method), {})
    base = data.removesuffix("-test")
    values = DATA_METHOD.get((data, method), {})
    return values if base == data else {**of_method(base, None, method), **values}

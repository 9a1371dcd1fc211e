"""MixMatch: train a classifier from few labels and many unlabeled images."""

from __future__ import annotations

__version__ = "0.2.0"

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mixmatch import functional
    from mixmatch.api import load, train
    from mixmatch.estimator import LabeledKFold, MixMatchClassifier
    from mixmatch.export import export_model
    from mixmatch.predict import predict_files, predict_shards
    from mixmatch.report import evaluate, write_report

__all__ = [
    "LabeledKFold",
    "MixMatchClassifier",
    "__version__",
    "evaluate",
    "export_model",
    "functional",
    "load",
    "predict_files",
    "predict_shards",
    "train",
    "write_report",
]

_HOMES = {
    "LabeledKFold": "estimator",
    "MixMatchClassifier": "estimator",
    "evaluate": "report",
    "export_model": "export",
    "load": "api",
    "predict_files": "predict",
    "predict_shards": "predict",
    "train": "api",
    "write_report": "report",
}


def __getattr__(name: str) -> Any:
    """PyTorch and scikit-learn are imported only where they are used: they take seconds."""
    if name in _HOMES:
        return getattr(import_module(f"mixmatch.{_HOMES[name]}"), name)
    if not name.startswith("_") and find_spec(f"mixmatch.{name}") is not None:
        return import_module(f"mixmatch.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

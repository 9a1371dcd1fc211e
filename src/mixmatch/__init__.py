"""MixMatch: train a classifier from few labels and many unlabeled images."""

from __future__ import annotations

__version__ = "0.1.0"

from typing import TYPE_CHECKING, Any

from mixmatch import functional
from mixmatch.api import load, train

if TYPE_CHECKING:
    from mixmatch.estimator import LabeledKFold, MixMatchClassifier

__all__ = ["LabeledKFold", "MixMatchClassifier", "__version__", "functional", "load", "train"]


def __getattr__(name: str) -> Any:
    """scikit-learn is imported only where it is used: it takes a second."""
    if name in ("LabeledKFold", "MixMatchClassifier"):
        from mixmatch import estimator

        return getattr(estimator, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

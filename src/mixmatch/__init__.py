"""MixMatch: train a classifier from few labels and many unlabeled images."""

__version__ = "0.1.0"

from mixmatch import functional
from mixmatch.api import load, train

__all__ = ["__version__", "functional", "load", "train"]

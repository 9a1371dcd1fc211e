"""Callbacks: what follows a run from outside, such as MLflow, Weights & Biases or a class of your own."""

from mixmatch.callbacks.base import Callback, Started
from mixmatch.callbacks.mlflow import MLflow
from mixmatch.callbacks.wandb import WandB

__all__ = ["Callback", "MLflow", "Started", "WandB"]

"""A trained classifier: the averaged model of a run, one file that holds all it takes to use it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import safetensors
import torch
from torch import Tensor, nn

from mixmatch import networks
from mixmatch.errors import MixMatchError
from mixmatch.training.checkpoint import replace_durably, to_bytes
from mixmatch.training.evaluate import predict_logits

NORMALIZATION = "pixel * 2 / 255 - 1"


class Classifier:
    """Predicts classes of uint8 images (N, H, W, C).

    Attributes:
        classes: their names, in the order of the probabilities.
        input_shape: (channels, height, width) of the images it takes.
    """

    def __init__(
        self, network: nn.Module, name: str, classes: tuple[str, ...], input_shape: tuple[int, int, int]
    ) -> None:
        self.network = network.eval()
        self.name, self.classes, self.input_shape = name, classes, input_shape

    def predict_proba(self, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
        """Probabilities (N, classes)."""
        channels, height, width = self.input_shape
        if images.dtype != np.uint8 or images.shape[1:] != (height, width, channels):
            raise MixMatchError(
                f"the model takes uint8 images of shape (N, {height}, {width}, {channels}), "
                f"not {images.dtype} {images.shape}"
            )
        device = next(self.network.parameters()).device
        logits = predict_logits(self.network, images, device)
        pieces = [piece.double().softmax(dim=-1).cpu().numpy() for piece in logits]
        return np.concatenate(pieces) if pieces else np.empty((0, len(self.classes)))

    def predict(self, images: npt.NDArray[np.uint8]) -> list[str]:
        """Class names (N)."""
        return [self.classes[c] for c in self.predict_proba(images).argmax(axis=1)]

    def save(self, path: Path) -> None:
        metadata = {
            "format": "mixmatch-1",
            "network": self.name,
            "classes": json.dumps(self.classes),
            "input_shape": json.dumps(self.input_shape),
            "normalization": NORMALIZATION,
        }
        replace_durably(path, to_bytes(self.network.state_dict(), metadata))

    @classmethod
    def load(cls, path: Path, device: torch.device, network: nn.Module | None = None) -> Classifier:
        """Read what `save` wrote. A network that is not one of ours has to be given, its weights are then filled in."""
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                about: dict[str, str] = file.metadata() or {}
                tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if about.get("format") != "mixmatch-1":
                raise MixMatchError(f"{path} is not a model of mixmatch")
            name, classes = about["network"], tuple(json.loads(about["classes"]))
            shape = tuple(json.loads(about["input_shape"]))
        except FileNotFoundError:
            raise MixMatchError(f"there is no model at {path}") from None
        except (safetensors.SafetensorError, OSError, ValueError, KeyError) as error:
            raise MixMatchError(f"{path} cannot be read as a model ({error})") from None
        return cls.filled(path, tensors, name, classes, shape, device, network)

    @classmethod
    def filled(
        cls,
        path: Path,
        tensors: Mapping[str, Tensor],
        name: str,
        classes: tuple[str, ...],
        shape: tuple[int, int, int],
        device: torch.device,
        network: nn.Module | None = None,
    ) -> Classifier:
        """The network of that name, or the one given, with these weights, which were read from `path`."""
        if network is None:
            if name.startswith("custom:"):
                raise MixMatchError(f"{path} is of a network of your own, {name[7:]}: pass it to load()")
            network = networks.build(name, len(classes), shape)
        try:
            network.load_state_dict(tensors)
        except RuntimeError as error:
            raise MixMatchError(f"{path} does not fit its network ({str(error).splitlines()[0]})") from None
        return cls(network.to(device), name, classes, shape)

"""A trained classifier: the averaged model of a run, one file that holds all it takes to use it."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors
import torch
from torch import Tensor, nn

from mixmatch import networks
from mixmatch.data.user.table import Encoding, Values
from mixmatch.errors import MixMatchError
from mixmatch.storage import replace_durably
from mixmatch.training.checkpoint import to_bytes
from mixmatch.training.evaluate import predict_logits

NORMALIZATION = "pixel * 2 / 255 - 1"


class Classifier:
    """Predicts classes of uint8 images (N, H, W, C), or of rows of a table or matrix.

    Attributes:
        classes: their names, in the order of the probabilities.
        input_shape: (channels, height, width) of the images it takes, or (features,).
        encoding: how rows become features; None for images, and for features that are used as they are.
    """

    def __init__(
        self,
        network: nn.Module,
        name: str,
        classes: tuple[str, ...],
        input_shape: tuple[int, ...],
        encoding: Encoding | None = None,
    ) -> None:
        self.network = network.eval()
        self.name, self.classes, self.input_shape, self.encoding = name, classes, input_shape, encoding

    def predict_proba(self, x: npt.NDArray[Any] | Mapping[str, Values]) -> npt.NDArray[np.float64]:
        """Probabilities (N, classes) of uint8 images (N, H, W, C), of a matrix of numbers (N, columns) as they were
        before training, or of a table's columns by name."""
        return self.probabilities(self.encode(x))

    def predict(self, x: npt.NDArray[Any] | Mapping[str, Values]) -> list[str]:
        """Class names (N)."""
        return [self.classes[c] for c in self.predict_proba(x).argmax(axis=1)]

    def encode(self, x: npt.NDArray[Any] | Mapping[str, Values]) -> npt.NDArray[Any]:
        """Rows as `probabilities` takes them: numbers are standardized, categories encoded, gaps filled as in training.
        Images stay as they are."""
        if isinstance(x, np.ndarray):
            return x if self.encoding is None else self.encoding.apply_matrix(x)
        if self.encoding is None:
            what = "images" if len(self.input_shape) == 3 else "arrays"
            raise MixMatchError(f"the model takes {what}, not tables")
        return self.encoding.apply(x)

    def probabilities(self, inputs: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Probabilities (N, classes) of rows as a `Source` holds them: uint8 images, or features already encoded."""
        rows: tuple[int, ...]
        if len(self.input_shape) == 3:
            channels, height, width = self.input_shape
            kind, what, rows = "uint8", "images", (height, width, channels)
        else:
            kind, what, rows = "float32", "features", self.input_shape
        if inputs.dtype != kind or inputs.shape[1:] != rows:
            raise MixMatchError(
                f"the model takes {kind} {what} of shape (N, {', '.join(map(str, rows))}), "
                f"not {inputs.dtype} {inputs.shape}"
            )
        device = next(self.network.parameters()).device
        logits = predict_logits(self.network, inputs, device)
        pieces = [piece.double().softmax(dim=-1).cpu().numpy() for piece in logits]
        return np.concatenate(pieces) if pieces else np.empty((0, len(self.classes)))

    def __getstate__(self) -> dict[str, Any]:
        """Pickled on a machine with a GPU, a classifier opens on one without."""
        return {**self.__dict__, "network": copy.deepcopy(self.network).cpu()}

    def save(self, path: Path) -> None:
        metadata = {
            "format": "mixmatch-1",
            "network": self.name,
            "classes": json.dumps(self.classes),
            "input_shape": json.dumps(self.input_shape),
        }
        if len(self.input_shape) == 3:
            metadata["normalization"] = NORMALIZATION
        if self.encoding is not None:
            metadata["encoding"] = json.dumps(self.encoding.to_dict())
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
            encoding = Encoding.from_dict(json.loads(about["encoding"])) if "encoding" in about else None
        except FileNotFoundError:
            raise MixMatchError(f"there is no model at {path}") from None
        except (safetensors.SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise MixMatchError(f"{path} cannot be read as a model ({error})") from None
        return cls.filled(path, tensors, name, classes, shape, device, network, encoding)

    @classmethod
    def filled(
        cls,
        path: Path,
        tensors: Mapping[str, Tensor],
        name: str,
        classes: tuple[str, ...],
        shape: tuple[int, ...],
        device: torch.device,
        network: nn.Module | None = None,
        encoding: Encoding | None = None,
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
        return cls(network.to(device), name, classes, shape, encoding)

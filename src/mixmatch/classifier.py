"""A trained classifier: the averaged model of a run. It is saved as one file that holds everything needed to use it."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import safetensors
import torch
from torch import Tensor, nn

from mixmatch import networks
from mixmatch.data.user.encoding import Encoding, Values
from mixmatch.errors import MixMatchError
from mixmatch.networks.frozen import ON, Embedded
from mixmatch.storage import replace_durably
from mixmatch.training.checkpoint import to_bytes
from mixmatch.training.device import pick_device
from mixmatch.training.evaluate import predict_logits
from mixmatch.training.run import RunFolder

NORMALIZATION = "pixel * 2 / 255 - 1"


class ModelInfo(NamedTuple):
    """A model without its weights: the name of its network, what it takes and what it gives."""

    network: str
    classes: tuple[str, ...]
    input_shape: tuple[int, ...]
    encoding: Encoding | None

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> ModelInfo:
        """From the names and values that are in a run's config.json."""
        encoding = Encoding.from_dict(values["encoding"]) if "encoding" in values else None
        return ModelInfo(values["network"], tuple(values["classes"]), tuple(values["input_shape"]), encoding)


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
        """Probabilities (N, classes) of rows as a `Source` holds them: uint8 images, or features already encoded; of a
        network on frozen features, either."""
        rows: tuple[int, ...]
        if isinstance(self.network, Embedded) and inputs.ndim == 2:
            kind, what, rows = "float32", "features", tuple(self.network.get_buffer("mean").shape)
        elif len(self.input_shape) == 3:
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
        """Read what `save` wrote. A network that is not built in has to be given; it gets the weights of the file."""
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                metadata: dict[str, str] = file.metadata() or {}
                tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if metadata.get("format") != "mixmatch-1":
                raise MixMatchError(f"{path} is not a model of mixmatch")
            parts = ("classes", "input_shape", "encoding")
            info = ModelInfo.from_dict(
                {"network": metadata["network"]}
                | {name: json.loads(metadata[name]) for name in parts if name in metadata}
            )
        except FileNotFoundError:
            raise MixMatchError(f"there is no model at {path}") from None
        except (safetensors.SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise MixMatchError(f"{path} cannot be read as a model ({error})") from None
        return cls.from_tensors(tensors, info, path, device, network)

    @classmethod
    def from_tensors(
        cls,
        tensors: Mapping[str, Tensor],
        info: ModelInfo,
        path: Path,
        device: torch.device,
        network: nn.Module | None = None,
    ) -> Classifier:
        """A classifier with these weights, in `network` or else in one built by name. `path` is for messages."""
        name = info.network
        if network is None:
            if name.startswith("custom:"):
                raise MixMatchError(f"{path} is of a network of your own, {name[7:]}: pass it to load()")
            network = networks.build(name, len(info.classes), info.input_shape)
        names = network.state_dict()
        try:  # a checkpoint also holds a method's further heads, which are of use in training alone
            network.load_state_dict({k: t for k, t in tensors.items() if k in names or not k.startswith("heads.")})
        except RuntimeError as error:
            raise MixMatchError(f"{path} does not fit its network ({str(error).splitlines()[0]})") from None
        return cls(network.to(device), name, info.classes, info.input_shape, info.encoding)


def load_run(path: str | Path, device: str = "auto", network: nn.Module | None = None) -> Classifier:
    """The classifier of a run folder or of a model.safetensors file. An unfinished run gives its newest checkpoint.

    Args:
        path: the folder or the file.
        device: `auto`, `cpu`, `cuda` or `mps`.
        network: the network that was trained, if it is not one that is built by name; it gets the weights.
    """
    where, path = pick_device(device), Path(path)
    if path.is_file():
        return Classifier.load(path, where, network)
    run = RunFolder(path)
    config = run.config()
    if run.model.exists():
        return Classifier.load(run.model, where, network)
    saved = run.load_checkpoint()
    if saved is None:
        raise MixMatchError(f"{path} has no model yet: its training has not reached a checkpoint")
    if not isinstance(config["settings"].get("network"), str):
        raise MixMatchError(f"{path / 'config.json'} is damaged: its settings name no network")
    settings = config["settings"]
    named = {**config, "network": settings["network"]}
    if settings.get("features", "none") != "none":
        named |= {"network": f"{settings['features']}{ON}{settings['network']}", "input_shape": config["image_shape"]}
    info = ModelInfo.from_dict(named)
    return Classifier.from_tensors({**saved.weights, **saved.ema}, info, path, where, network)

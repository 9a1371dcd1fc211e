"""A trained classifier: the averaged model of a run. It is saved as one file that holds everything needed to use it."""

from __future__ import annotations

import copy
import json
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from mixmatch import networks
from mixmatch.data.user.encoding import Encoding, Values
from mixmatch.data.user.images import UnreadableImage, decode_image, parallel_map, quiet_pillow
from mixmatch.errors import MixMatchError, first_line
from mixmatch.networks.frozen import ON, Embedded, build_frozen
from mixmatch.storage import parse_json, replace_durably
from mixmatch.text import count, html_table, listed
from mixmatch.training import tensors as tensors_
from mixmatch.training.device import pick_device
from mixmatch.training.evaluate import predict_logits
from mixmatch.training.run import RunFolder

NORMALIZATION = "pixel * 2 / 255 - 1"

FILES = 256
"""Image files that the network gets at once."""

PathLike = str | os.PathLike[str]
Inputs = npt.NDArray[Any] | Mapping[str, Values] | PathLike | Sequence[PathLike]
"""Rows to predict."""


class UnreadableModel(MixMatchError):
    """A file that cannot be used as a model."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} cannot be read as a model ({why}): copy it anew, or train it again")
        self.why = why


class ModelInfo(NamedTuple):
    """A model without its weights: the name of its network, its inputs and its outputs."""

    network: str
    classes: tuple[str, ...]
    input_shape: tuple[int, ...]
    encoding: Encoding | None

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> ModelInfo:
        """From the names and values that are in a run's config.json."""
        encoding = Encoding.from_dict(values["encoding"]) if "encoding" in values else None
        network, classes, shape = values["network"], values["classes"], values["input_shape"]
        if not isinstance(network, str):
            raise ValueError("it names no network")
        if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
            raise ValueError("its classes are not a list of names")
        if not isinstance(shape, list) or len(shape) not in (1, 3) or not all(type(n) is int for n in shape):
            raise ValueError("its inputs have no shape")
        return ModelInfo(network, tuple(classes), tuple(shape), encoding)

    @property
    def most(self) -> int:
        """Bytes that a file of its weights may have: what its network needs, and some more."""
        parameters = networks.count(self.network, len(self.classes), self.input_shape)
        return tensors_.MOST if parameters is None else 16 * parameters + 2**26


class Classifier:
    """Predicts classes of images, as uint8 arrays (N, H, W, C) or files, or of rows of a table or matrix.

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

    def predict_proba(self, x: Inputs) -> npt.NDArray[np.float64]:
        """Probabilities (N, classes) of uint8 images (N, H, W, C) or of N paths of image files; of a matrix of numbers
        (N, columns) as they were before training, or of a table's columns by name."""
        files = _paths(x)
        return self.probabilities(self.encode(x)) if files is None else self._of_files(files)

    def predict(self, x: Inputs) -> list[str]:
        """Class names (N) for the same inputs."""
        return [self.classes[c] for c in self.predict_proba(x).argmax(axis=1)]

    def encode(self, x: Any) -> npt.NDArray[Any]:
        """Rows as `probabilities` takes them: numbers are standardized, categories encoded, gaps filled as in training.
        Images stay as they are."""
        columns = _columns(x)
        if columns is not None and self.encoding is not None:
            names = [column.name for column in self.encoding.columns]
            # A model of an array knows columns by their places; the table may call them anything.
            by_place = names == [str(i) for i in range(len(names))] and not any(name in columns for name in names)
            if not (by_place and len(columns) == len(names)):
                return self.encoding.apply(columns)
            x = np.stack([np.asarray(column, np.float64) for column in columns.values()], axis=1)
        elif columns is None and not isinstance(x, np.ndarray):
            x = _array(x)
        if not isinstance(x, np.ndarray):
            raise MixMatchError(f"the model takes {self.takes}, not {_described(x)}")
        if self.encoding is not None:
            return self.encoding.apply_matrix(x)
        return x

    @property
    def takes(self) -> str:
        """What can be predicted, in words."""
        if len(self.input_shape) == 3:
            channels, height, width = self.input_shape
            return f"images, uint8 (N, {height}, {width}, {channels}), or paths of image files"
        if self.encoding is None:
            return f"features, float32 (N, {self.input_shape[0]})"
        names = [column.name for column in self.encoding.columns]
        matrix = "" if self.encoding.categorical else f"a matrix of numbers (N, {len(names)}), or "
        return f"{matrix}a table's columns by name ({listed(names)})"

    def __repr__(self) -> str:
        classes = count(len(self.classes), "class", "classes")
        return f"Classifier({self.name}; {classes}: {listed(self.classes, 5)}; takes {self.takes})"

    def _repr_html_(self) -> str:
        classes = f"{len(self.classes):,}: {listed(self.classes, 10)}"
        return html_table([("network", self.name), ("classes", classes), ("takes", self.takes)])

    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of what image files are decoded to. Refused where files do not have them."""
        channels, height, width = self.input_shape
        if channels not in (1, 3):
            raise MixMatchError(f"image files have 1 or 3 channels, but the model takes {channels}")
        return height, width, channels

    def _of_files(self, files: Sequence[Path]) -> npt.NDArray[np.float64]:
        """Probabilities (N, classes) of image files, decoded on all cores."""
        if len(self.input_shape) == 1:
            raise MixMatchError(f"the model takes {self.takes}; mixmatch.predict_files reads files of rows")
        (height, width, channels), large = self.image_shape(), threading.Lock()
        for path in files:
            if path.is_dir():
                raise MixMatchError(f"{path} is a folder: mixmatch.predict_files predicts the images in it")
            if not path.exists():
                raise MixMatchError(f"there is no file {path}")

        def decode(file: Path) -> npt.NDArray[np.uint8]:
            try:
                return decode_image(file, height, width, channels, large)[0]
            except UnreadableImage as error:
                more = "mixmatch.predict_files leaves such files out"
                raise MixMatchError(f"cannot read {file}: {error}; {more}") from None

        pieces = [np.empty((0, len(self.classes)))]
        with quiet_pillow(), closing(parallel_map(decode, files, 2 * FILES)) as images:
            while batch := list(islice(images, FILES)):
                pieces.append(self.probabilities(np.stack(batch)))
        return np.concatenate(pieces)

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
        found = np.concatenate(pieces) if pieces else np.empty((0, len(self.classes)))
        if (bad := np.flatnonzero(np.isnan(found).any(axis=1))).size:
            raise MixMatchError(
                f"the model gives no number for {count(len(bad), what[:-1])}, the first of them {bad[0]}: its values "
                "are far from those it was trained on, or the model is damaged"
            )
        return found

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
        replace_durably(path, tensors_.to_bytes(self.network.state_dict(), metadata))

    @classmethod
    def load(
        cls, path: Path, device: torch.device, network: nn.Module | None = None, *, follow: bool = True
    ) -> Classifier:
        """Read what `save` wrote. A network that is not built in has to be given; it gets the weights of the file.

        Args:
            follow: whether `path` may be a link. Not in a run folder, which may come from anyone.
        """
        try:
            metadata = tensors_.read_metadata(path, follow=follow)
            if metadata.get("format") != "mixmatch-1":
                raise MixMatchError(f"{path} is not a model of mixmatch: name a run folder or its model.safetensors")
            parts = ("classes", "input_shape", "encoding")
            info = ModelInfo.from_dict(
                {"network": metadata["network"]}
                | {name: parse_json(metadata[name]) for name in parts if name in metadata}
            )
            tensors, _ = tensors_.read(path, info.most if network is None else tensors_.MOST, follow=follow)
        except FileNotFoundError:
            raise MixMatchError(f"there is no model at {path}: name a run folder or its model.safetensors") from None
        except OSError as error:
            raise UnreadableModel(path, error.strerror or str(error)) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnreadableModel(path, str(error)) from None
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
        features, on, head = name.rpartition(ON)
        if network is None:
            if head.startswith("custom:"):
                raise MixMatchError(f"{path} is of a network of your own, {head[7:]}: pass it, load(network=...)")
            weights = sum(tensor.numel() for tensor in tensors.values())
            network = networks.build(name, len(info.classes), info.input_shape, most=weights)
        else:
            network = networks.unwrapped(network)
            if on:
                network = Embedded(build_frozen(features, info.input_shape, pretrained=False), network)
        names = network.state_dict()
        try:  # a checkpoint also holds a method's further heads, which are of use in training alone
            network.load_state_dict({k: t for k, t in tensors.items() if k in names or not k.startswith("heads.")})
        except (RuntimeError, TypeError) as error:
            raise UnreadableModel(path, f"it does not fit its network: {first_line(error)}") from None
        return cls(network.to(device), name, info.classes, info.input_shape, info.encoding)


def _paths(x: Any) -> list[Path] | None:
    """The files, if it is a path, or a list or an array of paths."""
    if isinstance(x, str | os.PathLike):
        return [Path(x)]
    if isinstance(x, np.ndarray):
        return [Path(path) for path in x] if x.dtype.kind == "U" and x.ndim == 1 else None
    listed = isinstance(x, list | tuple) and all(isinstance(path, str | os.PathLike) for path in x)
    return [Path(path) for path in x] if listed else None


def _columns(x: Any) -> Mapping[str, Any] | None:
    """A table's columns by name, if it is one: a dict, or a table of pandas, polars or pyarrow."""
    if isinstance(x, Mapping):
        return x
    names = next((getattr(x, name) for name in ("column_names", "columns") if hasattr(x, name)), None)
    if names is None or callable(names):
        return None
    return {str(name): x[name] for name in names}


def _array(x: Any) -> Any:
    """Lists of numbers, or of arrays, and tensors as an array; images as uint8 if their values are such. Anything else
    stays as it is."""
    try:
        array = np.asarray(x)
    except (ValueError, TypeError):
        return x
    if array.dtype.kind not in "biuf" or array.ndim < 2:
        return x
    if array.ndim > 2 and array.dtype.kind in "iu" and array.size and array.min() >= 0 and array.max() <= 255:
        return array.astype(np.uint8)
    return array


def _described(x: Any) -> str:
    """
    >>> _described([1, 2]), _described({}), _described(3)
    ('a list of int', 'a table', 'int')
    """
    if _columns(x) is not None:
        return "a table"
    name = type(x).__name__
    return f"a {name} of {type(x[0]).__name__}" if isinstance(x, list | tuple) and x else name


def load_run(path: str | Path, device: str | torch.device = "auto", network: nn.Module | None = None) -> Classifier:
    """The classifier of a run folder (of its newest checkpoint if unfinished) or of a model.safetensors file.

    Args:
        path: the folder or the file.
        device: `auto`, `cpu`, `cuda` or `mps`.
        network: the network that was trained, if it is not one that is built by name; it gets the weights.
    """
    where, path = pick_device(device), Path(path)
    if path.is_file():
        _verify_alone(path)
        return Classifier.load(path, where, network)
    run = RunFolder(path)
    config = run.config()
    if os.path.lexists(run.model) or run.finished():
        run.verify(run.model.name)
        try:
            return Classifier.load(run.model, where, network, follow=False)
        except UnreadableModel as error:
            raise run.damaged(run.model.name, error.why, "cannot be read as a model") from None
    return _of_checkpoint(run, config, where, network)


def _of_checkpoint(
    run: RunFolder, config: Mapping[str, Any], device: torch.device, network: nn.Module | None
) -> Classifier:
    """The classifier of an unfinished run's newest checkpoint."""
    saved = run.load_checkpoint()
    if saved is None:
        raise MixMatchError(
            f"{run.path} has no model yet: its training has not reached a checkpoint; continue it with resume=True"
        )
    if not isinstance(config["settings"].get("network"), str):
        raise run.damaged("config.json", "its settings name no network")
    settings = config["settings"]
    named = {**config, "network": settings["network"]}
    if settings.get("features", "none") != "none":
        features = f"{settings['features']}{ON}{settings['network']}"
        named |= {"network": features, "input_shape": config.get("image_shape")}
    try:
        info = ModelInfo.from_dict(named)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise run.damaged("config.json", str(error)) from None
    return Classifier.from_tensors({**saved.weights, **saved.ema}, info, run.path, device, network)


def _verify_alone(path: Path) -> None:
    """Check a model that is named by itself, if it lies in its run folder and there is a result to check it against."""
    run = RunFolder(path.parent)
    try:
        run.result()
    except MixMatchError:  # damaged: then the model alone is what still works
        return
    if path.name == run.model.name and run.exists():
        run.verify(path.name)

"""Models of the timm library as networks: `timm:NAME`, with weights from a local file if one is given.

timm is optional (`pip install 'mixmatch[timm]'`) and imported only here, when a model of it is looked up.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError  # what weights_only=True refuses a file with
from typing import Any

import safetensors
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from mixmatch.errors import MixMatchError, first_line, not_installed
from mixmatch.storage import check_plain

PREFIX = "timm:"
SMALLEST = 160
"""Pixels to which smaller images are enlarged for frozen features, if a model takes any size: what it has learned are
patterns of photographs about as large."""


class Backbone(nn.Module):
    """A timm model that takes pixels in [-1, 1], as every network here, and normalizes them as timm's weights expect.

    Takes (N, C, H, W), gives logits (N, classes). It offers its features (`mixmatch.networks.heads`) if the model ends
    in one linear layer; a few of timm's end in a convolution or in two layers, and have no `feature_size` here.
    """

    feature_size: int

    def __init__(self, model: nn.Module, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.model: Any = model
        if isinstance(last := self._last_layer(), nn.Linear):
            self.feature_size = last.in_features
        self.register_buffer("scale", (0.5 / std)[:, None, None])
        self.register_buffer("shift", ((0.5 - mean) / std)[:, None, None])

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(self._normalized(x))
        return logits

    def features(self, x: Tensor) -> Tensor:
        """What enters the last layer, (N, feature_size)."""
        maps: Tensor = self.model.forward_features(self._normalized(x))
        pooled: Tensor = self.model.forward_head(maps, pre_logits=True)
        return pooled

    def classify(self, features: Tensor) -> Tensor:
        """Logits (N, classes) of features."""
        logits: Tensor = self._last_layer()(features)
        return logits

    def _last_layer(self) -> Any:
        return self.model.get_classifier() if hasattr(self.model, "get_classifier") else None

    def _normalized(self, x: Tensor) -> Tensor:
        return x * self.get_buffer("scale") + self.get_buffer("shift")


def build_timm(
    name: str, num_classes: int, input_shape: tuple[int, ...] | None, weights: str | Path | None = None
) -> Backbone:
    """The timm model `timm:NAME` for these classes and images.

    Args:
        name: with its prefix.
        num_classes: how many logits it gives.
        input_shape: (channels, height, width); None is what the model was made for.
        weights: a .safetensors or .pth file of this model's weights, under timm's names. If it has another number of
            classes, the last layer starts fresh. If images do not have 3 channels, timm sums or repeats the kernels of
            the first layer.
    """
    timm, model = find(name)
    made_for = timm.get_pretrained_cfg(model)
    channels, height, width = input_shape or made_for.input_size
    options: dict[str, Any] = {"num_classes": num_classes, "in_chans": channels, "pretrained": weights is not None}
    if made_for.fixed_input_size:
        options["img_size"] = (height, width)
    tensors = read_weights(Path(weights)) if weights is not None else {}
    if weights is not None:
        options["pretrained_cfg_overlay"] = {"state_dict": dict(tensors)}
    try:
        made = timm.create_model(model, **options)
        with torch.no_grad():
            made.eval()(torch.zeros(1, channels, height, width))
    except (RuntimeError, ValueError, TypeError, AssertionError, KeyError) as error:
        what = f"cannot be filled from {weights}" if weights is not None else "does not work"
        images = f"images {(channels, height, width)}"
        raise MixMatchError(f"network '{name}' {what} for {images}: {first_line(error)}") from None
    if weights is not None:
        _check_complete(name, made, made_for.classifier, tensors, weights)
    return Backbone(made.train(), *_statistics(made_for, channels))


class Frozen(nn.Module):
    """A timm model without its last layer. Takes pixels in [-1, 1], enlarges small images to `size`, gives what would
    enter the last layer, (N, feature_size)."""

    def __init__(self, backbone: Backbone, size: int, feature_size: int) -> None:
        super().__init__()
        self.backbone, self.size, self.feature_size = backbone, size, feature_size

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.size:
            x = F.interpolate(x, (self.size, self.size), mode="bilinear", align_corners=False)
        return self.backbone.features(x)


def build_frozen_timm(
    name: str, input_shape: tuple[int, ...], weights: str | Path | None = None, *, pretrained: bool = True
) -> Frozen:
    """The timm model `timm:NAME` as a source of features for images (channels, height, width).

    Args:
        weights: a .safetensors or .pth file of its weights under timm's names; None is timm's own, which it downloads.
        pretrained: False leaves the weights as they fall, for a caller who fills them in.
    """
    timm, model = find(name)
    made_for = timm.get_pretrained_cfg(model)
    own = made_for.input_size[-1]
    size = own if made_for.fixed_input_size else min(own, max(SMALLEST, *input_shape[1:]))
    tensors = read_weights(Path(weights)) if weights is not None else {}
    options: dict[str, Any] = {"num_classes": 0, "in_chans": input_shape[0], "pretrained": pretrained}
    if weights is not None:
        options["pretrained_cfg_overlay"] = {"state_dict": dict(tensors)}
    try:
        made = timm.create_model(model, **options).eval()
        with torch.no_grad():
            maps = made.forward_features(torch.zeros(1, input_shape[0], size, size))
            feature_size = made.forward_head(maps, pre_logits=True).shape[1]
    except Exception as error:  # a download may fail in many ways
        what = f"cannot be filled from {weights}" if weights is not None else "cannot be had"
        remedy = "" if weights is not None else "; give a file of its weights with weights=, or use features=basic"
        raise MixMatchError(f"features '{name}' {what}: {first_line(error)}{remedy}") from None
    if weights is not None:
        _check_complete(name, made, made_for.classifier, tensors, weights)
    mean, std = _statistics(made_for, input_shape[0])
    return Frozen(Backbone(made, mean, std), size, feature_size)


def find(name: str) -> tuple[Any, str]:
    """timm, and the name of one of its models without the prefix."""
    try:
        timm: Any = importlib.import_module("timm")
    except Exception as error:  # a torchvision that was built for another torch raises a RuntimeError
        if isinstance(error, ModuleNotFoundError) and error.name == "timm":
            raise not_installed(f"'{name}'", "timm", "timm") from None
        raise MixMatchError(
            f"'{name}' needs timm, which cannot be imported ({first_line(error)}): install torch and torchvision that "
            "were built for each other, from the same place"
        ) from None
    model = name.removeprefix(PREFIX)
    if not timm.is_model(model):
        near = difflib.get_close_matches(model, timm.list_models(), n=1, cutoff=0.5)
        hint = f": did you mean '{PREFIX}{near[0]}'?" if near else ""
        raise MixMatchError(f"timm {timm.__version__} has no model '{model}'{hint}")
    return timm, model


def _statistics(made_for: Any, channels: int) -> tuple[Tensor, Tensor]:
    """Mean and deviation of the pixels that a model was trained on, for so many channels."""
    mean, std = (torch.tensor(values) for values in (made_for.mean, made_for.std))
    return (mean, std) if len(mean) == channels else (mean.mean().repeat(channels), std.mean().repeat(channels))


def _check_complete(
    name: str, made: nn.Module, last: str | tuple[str, ...] | None, tensors: Mapping[str, Tensor], weights: str | Path
) -> None:
    """Refuse a file that fills only a part of the model, all but the last layer: timm would accept it."""
    heads = tuple(f"{layer}." for layer in ([last] if isinstance(last, str) else last or ()))
    wanted = [key for key, _ in made.named_parameters() if not key.startswith(heads)]
    if missing := [key for key in wanted if key not in tensors]:
        raise MixMatchError(
            f"network '{name}' cannot be filled from {weights}: of {len(wanted)} tensors it lacks {len(missing)}, "
            f"such as '{missing[0]}'; is it of another model?"
        )


def read_weights(path: Path) -> Mapping[str, Tensor]:
    """The tensors of a .safetensors file, or of a .pth one as long as it holds nothing else."""
    try:
        check_plain(path)
        if path.suffix == ".safetensors":
            return load_file(path)
        loaded: Any = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise MixMatchError(f"there is no file {path}") from None
    except UnpicklingError:
        raise MixMatchError(
            f"{path} holds more than tensors, and loading it could run any code: save the weights as .safetensors"
        ) from None
    except (OSError, RuntimeError, EOFError, safetensors.SafetensorError) as error:
        raise MixMatchError(f"{path} cannot be read as weights ({first_line(error)})") from None
    while isinstance(loaded, Mapping) and (inner := next((k for k in ("state_dict", "model") if k in loaded), None)):
        loaded = loaded[inner]
    if not isinstance(loaded, Mapping) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise MixMatchError(f"{path} holds no weights by name: save a state_dict of the model")
    return {name.removeprefix("module."): value for name, value in loaded.items()}

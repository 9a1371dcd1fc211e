"""A trained classifier for other programs: an ONNX file that takes raw pixels or numbers, or weights as safetensors.

Both are written whole or not at all, the ONNX file only if onnxruntime gives the same probabilities as torch.
"""

from __future__ import annotations

import copy
import importlib
import io
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor, nn

from mixmatch import __version__
from mixmatch.augment import to_unit_range
from mixmatch.classifier import NORMALIZATION, Classifier, load_run
from mixmatch.data.user.encoding import Numeric
from mixmatch.errors import MixMatchError, explaining, not_installed, unknown
from mixmatch.storage import refuse_device, replace_durably

TOLERANCE = 1e-4
"""How far a probability of the exported model may be from the classifier's."""

CHECKED = (1, 17)
"""Batch sizes at which they are compared; the graph is traced with another."""

TRACED = 2
"""The batch size the graph is traced with."""


class FromPixels(nn.Module):
    """uint8 images (N, H, W, C) to probabilities (N, classes): normalization and softmax are part of the graph."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network(to_unit_range(images))
        return logits.softmax(dim=-1)


class FromNumbers(nn.Module):
    """float32 features (N, F), not standardized and NaN where missing, to probabilities (N, classes)."""

    def __init__(self, network: nn.Module, columns: Sequence[tuple[float, float, float]]) -> None:
        super().__init__()
        self.network = network
        for name, values in zip(("median", "mean", "std"), zip(*columns, strict=True), strict=True):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float64))  # a mean may be far from 0

    def forward(self, features: Tensor) -> Tensor:
        filled = torch.where(torch.isnan(features), self.get_buffer("median"), features.double())
        standardized = (filled - self.get_buffer("mean")) / self.get_buffer("std")
        logits: Tensor = self.network(standardized.float())
        return logits.softmax(dim=-1)


Format = Literal["onnx", "safetensors"]
"""What a model can be exported as."""


class Exported(NamedTuple):
    """The file, and the largest difference of a probability between onnxruntime and torch; None for safetensors."""

    path: Path
    difference: float | None


def export_model(
    run: str | Path | Classifier,
    path: str | Path | None = None,
    format: str = "onnx",
    *,
    network: nn.Module | None = None,
) -> Exported:
    """Write a run's model as one file for other programs.

        mixmatch.export_model("runs/photos", "photos.onnx")

    Args:
        run: a run folder, a model.safetensors file, or a classifier from `mixmatch.load`.
        path: the file; by default in this folder, called like the run.
        format: `onnx` takes uint8 images (N, height, width, channels) or features (N, F) and gives probabilities
            (N, classes); `safetensors` is the weights, for torch, as model.safetensors in a run folder.
        network: the network that was trained, if it is not one that is built by name.
    """
    if format not in get_args(Format):
        raise unknown("format", format, get_args(Format))
    if path is None:
        if isinstance(run, Classifier):
            raise MixMatchError("name the file with path=: a classifier has no name")
        path = Path(f"{Path(run).stem if Path(run).is_file() else Path(run).resolve().name}.{format}")
    path = Path(path)
    with explaining(f"cannot write {path}"):
        refuse_device(path)
    classifier = run if isinstance(run, Classifier) else load_run(run, "cpu", copy.deepcopy(network))
    if format == "onnx":
        return Exported(path, to_onnx(classifier, path))
    with explaining(f"cannot write {path}"):
        classifier.save(path)
    return Exported(path, None)


def to_onnx(classifier: Classifier, path: Path) -> float:
    """One ONNX file for any batch size, with the weights in it.

    Returns:
        The largest difference of a probability between onnxruntime and the classifier.

    Raises:
        MixMatchError: if a package is missing, if the network cannot be exported, or if the two differ by more than
            `TOLERANCE`. Then nothing is written.
    """
    runtime = _onnxruntime()
    content = _onnx_bytes(classifier)
    difference = _difference(classifier, content, runtime)
    if not difference <= TOLERANCE:  # refuses NaN, too
        raise MixMatchError(
            f"the exported model gives other probabilities than the classifier (they differ by {difference:.2g}, more "
            f"than {TOLERANCE:g}): nothing is written"
        )
    with explaining(f"cannot write {path}"):
        replace_durably(path, content)
    return difference


def preprocessing(classifier: Classifier) -> str:
    """What `mixmatch predict` does to an image file or a row before the network sees it, in words."""
    if len(classifier.input_shape) == 1:
        return (
            f"Pass float32 values of shape (N, {classifier.input_shape[0]}), a column for each of 'features' in their "
            "order: the number itself, NaN where it is missing; for a feature 'column=category' 1 where the column is "
            "of that category, else 0 ('(missing)' where it is empty, '(other)' for every category without a feature). "
            "Do not standardize: the graph itself fills in medians, subtracts means, divides by deviations, and "
            "computes the softmax."
        )
    channels, height, width = classifier.input_shape
    color = {1: "gray (L)", 3: "RGB"}.get(channels, f"{channels} channels")
    return (
        "Take the first frame, turn it upright by its EXIF orientation, lay it over white where it is transparent, "
        f"reduce it to 8 bits per channel, convert it to {color}, and resize the whole image, whatever the ratio of "
        f"its sides, to width {width} and height {height} with antialiasing (Pillow: BICUBIC, reducing_gap=3; JPEGs "
        f"are decoded at the smallest scale that keeps twice that size). Pass uint8 values 0 to 255 of shape "
        f"(N, {height}, {width}, {channels}). Do not normalize: the graph itself computes {NORMALIZATION}, and the "
        "softmax."
    )


def _graph(classifier: Classifier) -> tuple[nn.Module, str, Tensor]:
    """The module to export, the name of its input, and an example input."""
    network = copy.deepcopy(classifier.network).cpu()
    if len(classifier.input_shape) == 1:
        module: nn.Module = FromNumbers(network, _columns(classifier))
        return module.eval(), "features", torch.zeros(TRACED, *classifier.input_shape)
    channels, height, width = classifier.input_shape
    return FromPixels(network).eval(), "images", torch.zeros(TRACED, height, width, channels, dtype=torch.uint8)


def _columns(classifier: Classifier) -> list[tuple[float, float, float]]:
    """Median, mean and deviation of each feature; categories, and features without an encoding, stay as they are."""
    if classifier.encoding is None:
        return [(0.0, 0.0, 1.0)] * classifier.input_shape[0]
    return [
        (column.median, column.mean, column.std) if isinstance(column, Numeric) else (0.0, 0.0, 1.0)
        for column in classifier.encoding.columns
        for _ in column.features
    ]


def _onnx_bytes(classifier: Classifier) -> bytes:
    module, name, example = _graph(classifier)
    try:
        with _quiet():
            program = torch.onnx.export(
                module,
                (example,),
                dynamo=True,
                input_names=[name],
                output_names=["probabilities"],
                dynamic_shapes={name: {0: torch.export.Dim("batch")}},
                external_data=False,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        reason = str(error.__cause__ or error).strip().splitlines()
        raise MixMatchError(
            f"network '{classifier.name}' cannot be exported to ONNX: {reason[0] if reason else type(error).__name__}"
        ) from error
    if program is None:
        raise RuntimeError("torch.onnx.export gave nothing")
    model: Any = program.model_proto
    about = {
        "mixmatch_version": __version__,
        "network": classifier.name,
        "classes": json.dumps(classifier.classes),
        "input": f"{name}: {str(example.dtype).removeprefix('torch.')} (N, {', '.join(map(str, example.shape[1:]))})",
        "output": f"probabilities: float32 (N, {len(classifier.classes)}), in the order of classes",
        "preprocessing": preprocessing(classifier),
    }
    if name == "images":
        about["image_shape"] = json.dumps(list(example.shape[1:]))
    elif classifier.encoding is not None:
        about["features"] = json.dumps(classifier.encoding.feature_names)
        about["encoding"] = json.dumps(classifier.encoding.to_dict())
    for key, value in about.items():
        model.metadata_props.add(key=key, value=value)
    content: bytes = model.SerializeToString()
    return content


def _difference(classifier: Classifier, content: bytes, runtime: Any) -> float:
    """The largest difference of a probability, over random images or features."""
    _, name, example = _graph(classifier)
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    numbers = np.random.default_rng(0)
    largest = []
    for size in CHECKED:
        shape = (size, *example.shape[1:])
        if name == "images":
            inputs = raw = numbers.integers(0, 256, shape, np.uint8)
        else:
            inputs = numbers.standard_normal(shape, np.float32)
            _, mean, std = np.array(_columns(classifier)).T
            raw = (inputs * std + mean).astype(np.float32)
            inputs = ((raw - mean) / std).astype(np.float32)  # with the rounding errors of `raw`
        (probabilities,) = session.run(["probabilities"], {name: raw})
        largest.append(np.abs(probabilities - classifier.probabilities(inputs)).max())
    return float(np.max(largest))  # keeps a NaN, unlike Python's max


def _onnxruntime() -> Any:
    """onnxruntime, if every package that the export needs is installed."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        try:
            module = importlib.import_module(name)
        except ImportError:
            raise not_installed("exporting to ONNX", name, "onnx") from None
    return module


@contextmanager
def _quiet() -> Iterator[None]:
    """Hides the exporter's warnings and prints, which are for its developers. Failures are raised."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)

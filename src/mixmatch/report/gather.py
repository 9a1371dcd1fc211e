"""What a report says about a finished run: its model, evaluated on the test rows and on the unlabeled rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mixmatch.classifier import Classifier, load_run
from mixmatch.data.opened import Basis, Data
from mixmatch.data.source import UNKNOWN, Rows
from mixmatch.data.split import Split
from mixmatch.draws import generator
from mixmatch.errors import MixMatchError
from mixmatch.methods import METHODS
from mixmatch.networks.heads import offers_features
from mixmatch.report import measure
from mixmatch.report.measure import Calibration, ClassScore, Floats, Ints
from mixmatch.training.evaluate import predict_logits
from mixmatch.training.gain import Gain, measure_gain
from mixmatch.training.run import Record, RunFolder
from mixmatch.training.session import open_data, open_run

SHOWN = 24
"""Thumbnails of each kind."""

MOST_SUGGESTIONS = 100
"""Images suggested for labeling, at most."""

CANDIDATES = 4
"""The suggestions are chosen from this many times as many, the most uncertain."""

SAMPLE = 20_000
"""Unlabeled images that are predicted; of more, a random part."""

PIECE = 1024
"""Images read from a file at once."""


@dataclass(frozen=True)
class Shown:
    """An image or row to show: its pixels (H, W, C) if it has any, where it comes from, and what the model predicts."""

    pixels: np.ndarray | None
    name: str
    predicted: str
    probability: float
    true: str | None = None
    score: float | None = None


@dataclass(frozen=True)
class Evaluated:
    """The model on its test images."""

    images: int
    wrong: int
    confusion: Ints
    scores: list[ClassScore]
    calibration: Calibration
    mistakes: list[Shown]

    @property
    def error(self) -> float:
        return 100 * self.wrong / self.images


@dataclass(frozen=True)
class Unlabeled:
    """The model on the unlabeled images."""

    total: int
    sample: int
    """How many of them were predicted."""
    right: float | None
    """Percent, if the data set knows their classes."""
    suggestions: list[Shown]
    """For labeling, best first."""


@dataclass(frozen=True)
class Report:
    """Everything the page shows."""

    run: Path
    user_data: bool
    """Whether rows are called by their files, not by their numbers in a published data set."""
    noun: str
    """What a row is called: image or row."""
    record: Record
    classes: tuple[str, ...]
    labels: list[int]
    """Labeled training images of each class."""
    uses_unlabeled: bool
    """Whether the method learns from unlabeled images; one from outside the package is assumed to."""
    verdict: str
    """The sentence the page begins with."""
    basis: Basis
    metrics: list[Record]
    baseline: list[Record]
    """Evaluations of the labels-only run, if there is one."""
    gain: Gain | None
    evaluated: Evaluated | None
    unlabeled: Unlabeled


def gather(
    path: Path,
    data: Data | Callable[[], Data] | None = None,
    gain: Gain | None = None,
    *,
    data_dir: Path | None = None,
    device: str = "auto",
) -> Report:
    """Load a finished run and its data, predict, and count. The arguments are those of `report.write_report`."""
    run = RunFolder(path)
    config, record = run.config(), run.result()
    if record is None:
        raise MixMatchError(f"{path} is not finished: end its training with resume=True, then report")
    model = load_run(path, device)
    if data is None:
        data = open_run(run, lambda settings: open_data(settings, data_dir))
    elif not isinstance(data, Data):
        data = data()
    source, split, method = data.source, data.split, record["method"]
    train_name, test_name = _names(data)

    known = split.test[source.test.labels[split.test] != UNKNOWN]
    baseline = RunFolder(path / "baseline")
    has_baseline = baseline.exists() and baseline.result() is not None and baseline.config()["split"] == config["split"]
    if gain is None and has_baseline and len(known):
        test = source.test if len(known) == len(source.test) else source.test.take(known)
        gain = measure_gain(model, load_run(baseline.path, device), test)
    evaluated = _evaluate(model, source.test, known, test_name) if len(known) else None
    return Report(
        run=path,
        user_data=data.user is not None,
        noun=source.noun,
        record=record,
        classes=source.classes,
        labels=np.bincount(source.train.labels[split.labeled], minlength=len(source.classes)).tolist(),
        uses_unlabeled=method not in METHODS or bool(METHODS[method]().views),
        verdict=_verdict(evaluated, gain, data.basis, source.noun),
        basis=data.basis,
        metrics=run.metrics(),
        baseline=baseline.metrics() if has_baseline else [],
        gain=gain,
        evaluated=evaluated,
        unlabeled=_unlabeled(model, source.train, split, config["settings"]["seed"], train_name),
    )


def _verdict(evaluated: Evaluated | None, gain: Gain | None, basis: Basis, noun: str) -> str:
    """The sentence the page begins with."""
    if evaluated is None:
        return basis.sentence if basis.missing else f"There is no test error: no test {noun} has a label."
    if gain is not None:
        return f"{gain.sentence} {basis.sentence}"
    low, high = measure.share_interval(evaluated.wrong, evaluated.images)
    return (
        f"The test error is {evaluated.error:.1f} %: {evaluated.wrong:,} of {evaluated.images:,} test {noun}s are "
        f"predicted wrong (95 % interval {low:.1f} to {high:.1f} %)."
    )


Name = Callable[[int], str]


def _names(data: Data) -> tuple[Name, Name]:
    """What the training and the test rows are called: by their files, or by their numbers in a published data set."""
    if data.user is None:
        return str, str
    files, tested = data.user.files, data.user.tested
    if len(tested) == 0:
        tested = np.setdiff1d(data.user.labeled, data.split.labeled)  # held out, in this order
    return lambda row: files[row], lambda row: files[int(tested[row])]


def _shown(model: Classifier, part: Rows, row: int, name: Name, probabilities: Floats, **more: Any) -> Shown:
    pixels = np.array(part.inputs[row]) if part.is_images else None
    top = int(probabilities.argmax())
    return Shown(pixels, name(row), model.classes[top], float(probabilities[top]), **more)


def _evaluate(model: Classifier, test: Rows, rows: Ints, name: Name) -> Evaluated:
    labels = test.labels[rows]
    probabilities = predict_rows(model, test.inputs, rows)
    predicted = probabilities.argmax(axis=1)
    counts = measure.confusion(labels, predicted, len(model.classes))
    mistakes = [
        _shown(model, test, int(rows[i]), name, probabilities[i], true=model.classes[labels[i]])
        for i in measure.confident_mistakes(probabilities, labels, SHOWN)
    ]
    scores = measure.class_scores(counts)
    wrong = int((predicted != labels).sum())
    return Evaluated(len(rows), wrong, counts, scores, measure.calibration(probabilities, labels), mistakes)


def _unlabeled(model: Classifier, train: Rows, split: Split, seed: int, name: Name) -> Unlabeled:
    rows = split.unlabeled
    if len(rows) > SAMPLE:
        rows = np.sort(generator(seed, "report", 0).permutation(rows)[:SAMPLE])
    if len(rows) == 0:
        return Unlabeled(0, 0, None, [])
    probabilities = predict_rows(model, train.inputs, rows)
    known = train.labels[rows] != UNKNOWN
    right = probabilities.argmax(axis=1)[known] == train.labels[rows][known]
    score = measure.uncertainty(probabilities)
    most = min(len(rows), MOST_SUGGESTIONS, max(12, len(rows) // 20))
    candidates = np.argsort(-score, kind="stable")[: CANDIDATES * most]
    features = penultimate(model, train.inputs, rows[candidates])
    if features is None:
        features = probabilities[candidates]
    chosen = candidates[measure.diverse(features, score[candidates], most)]
    suggestions = [_shown(model, train, int(rows[i]), name, probabilities[i], score=float(score[i])) for i in chosen]
    return Unlabeled(len(split.unlabeled), len(rows), 100 * float(right.mean()) if known.any() else None, suggestions)


def predict_rows(model: Classifier, inputs: np.ndarray, rows: Ints) -> Floats:
    """Probabilities of these rows of inputs that may be larger than memory."""
    pieces = [model.probabilities(inputs[rows[i : i + PIECE]]) for i in range(0, len(rows), PIECE)]
    return np.concatenate(pieces) if pieces else np.empty((0, len(model.classes)))


def penultimate(model: Classifier, inputs: np.ndarray, rows: Ints) -> Floats | None:
    """The network's features, scaled to length 1. For a network that offers none it is what its last linear layer
    gets; None if it does not end in one."""
    network: Any = model.network
    seen: list[Tensor] = []

    def keep(features: Tensor) -> None:
        seen.append(features.detach().to("cpu", torch.float32))

    if offers_features(network):
        device = next(network.parameters()).device
        for i in range(0, len(rows), PIECE):
            for piece in predict_logits(network.features, inputs[rows[i : i + PIECE]], device):
                keep(piece)
    elif layers := [module for module in network.modules() if isinstance(module, nn.Linear)]:
        hook = layers[-1].register_forward_pre_hook(lambda _, inputs: keep(inputs[0]))
        try:
            predict_rows(model, inputs, rows)
        finally:
            hook.remove()
    if any(piece.ndim != 2 for piece in seen) or sum(map(len, seen)) != len(rows):
        return None
    features = torch.cat(seen).double().numpy()
    length = np.linalg.norm(features, axis=1, keepdims=True)
    scaled: Floats = features / np.maximum(length, 1e-12)
    return scaled

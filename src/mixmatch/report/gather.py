"""What a report tells of a finished run: its model, put to its data once more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from mixmatch import api
from mixmatch.classifier import Classifier
from mixmatch.data.source import UNKNOWN, Images, Rows
from mixmatch.data.split import Split
from mixmatch.draws import generator
from mixmatch.errors import MixMatchError
from mixmatch.report import measure
from mixmatch.report.measure import Calibration, ClassScore, Floats, Ints
from mixmatch.settings import Settings, from_dict
from mixmatch.training.gain import Gain, gain
from mixmatch.training.run import Record, RunFolder

SHOWN = 24
"""Thumbnails of each kind."""

WORTH = 100
"""Images in the list of those worth labeling, at most."""

AMONG = 4
"""They are chosen among this many times as many, the most uncertain."""

LOOKED_AT = 20_000
"""Unlabeled images that are looked at; of more, a random part."""

PIECE = 1024
"""Images read from a file at once."""


@dataclass(frozen=True)
class Shown:
    """An image or row to show: its pixels (H, W, C) if it has any, where it comes from, and what the model says."""

    pixels: np.ndarray | None
    name: str
    predicted: str
    probability: float
    true: str | None = None
    score: float | None = None


@dataclass(frozen=True)
class Judged:
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
    looked_at: int
    right: float | None
    """Percent, where their classes are known after all."""
    worth: list[Shown]
    """To label next, the first first."""


@dataclass(frozen=True)
class Report:
    """Everything the page shows."""

    run: Path
    own: bool
    noun: str
    """What a row is called: image or row."""
    record: Record
    classes: tuple[str, ...]
    labels: list[int]
    """Labeled training images of each class."""
    verdict: str
    basis: str
    metrics: list[Record]
    baseline: list[Record]
    """Evaluations of the labels-only run, if there is one."""
    gain: Gain | None
    judged: Judged | None
    unlabeled: Unlabeled


def gather(path: Path, data_dir: Path | None = None, device: str = "auto") -> Report:
    """Load a finished run and its data, predict, and count."""
    run = RunFolder(path)
    config, record = run.config(), run.result()
    if record is None:
        again = f"mixmatch train {config['settings']['data']} --out {path} --resume"
        raise MixMatchError(f"{path} is not finished: go on with {again}, then report")
    settings = from_dict(config["settings"])
    model = api.load(path, device=device)
    source, split, basis = api.data_of_run(run, data_dir)
    train_names, test_names = _names(settings, split)

    known = split.test[source.test.labels[split.test] != UNKNOWN]
    alone = RunFolder(path / "baseline")
    has_baseline = alone.exists() and alone.result() is not None and alone.config()["split"] == config["split"]
    judged: Judged | None = None
    brought: Gain | None = None
    if len(known):
        judged = _judge(model, source.test, known, test_names)
        if has_baseline:
            whole = len(known) == len(source.test)
            test = source.test if whole else source.test.take(known)
            brought = gain(model, api.load(alone.path, device=device), test)
    return Report(
        run=path,
        own=api.is_path(settings.data),
        noun=source.noun,
        record=record,
        classes=source.classes,
        labels=np.bincount(source.train.labels[split.labeled], minlength=len(source.classes)).tolist(),
        verdict=_verdict(judged, brought, basis, source.noun),
        basis=basis,
        metrics=run.metrics(),
        baseline=alone.metrics() if has_baseline else [],
        gain=brought,
        judged=judged,
        unlabeled=_unlabeled(model, source.train, split, settings.seed, train_names),
    )


def _verdict(judged: Judged | None, brought: Gain | None, basis: str, noun: str) -> str:
    """The sentence the page begins with."""
    if judged is None:
        few = "too few labels to judge: "
        start = "There are too few labels" if basis.startswith(few) else "There is nothing"
        return f"{start} to judge this model by: {basis.removeprefix(few)}."
    if brought is not None:
        return f"{brought.sentence} {basis[0].upper()}{basis[1:]}."
    low, high = measure.share_interval(judged.wrong, judged.images)
    return (
        f"The test error is {judged.error:.1f} %: {judged.wrong:,} of {judged.images:,} test {noun}s are taken for "
        f"another class (95 % interval {low:.1f} to {high:.1f} %)."
    )


Name = Callable[[int], str]


def _names(settings: Settings, split: Split) -> tuple[Name, Name]:
    """What the training and the test rows are called: by their files, or by their numbers in a published data set."""
    if not api.is_path(settings.data):
        return str, str
    own = api.open_user_data(settings)
    files = own.files
    tested = own.tested
    if len(tested) == 0:
        tested = np.setdiff1d(own.labeled, split.labeled)  # held out, in this order
    return lambda row: files[row], lambda row: files[int(tested[row])]


def _pixels(part: Rows, row: int) -> np.ndarray | None:
    return np.array(part.images[row]) if isinstance(part, Images) else None


def _judge(model: Classifier, test: Rows, rows: Ints, name: Name) -> Judged:
    labels = test.labels[rows]
    probabilities = predict(model, test.inputs, rows)
    predicted = probabilities.argmax(axis=1)
    counts = measure.confusion(labels, predicted, len(model.classes))
    mistakes = [
        Shown(
            _pixels(test, int(rows[i])),
            name(int(rows[i])),
            model.classes[predicted[i]],
            float(probabilities[i, predicted[i]]),
            true=model.classes[labels[i]],
        )
        for i in measure.confident_mistakes(probabilities, labels, SHOWN)
    ]
    scores = measure.class_scores(counts)
    wrong = int((predicted != labels).sum())
    return Judged(len(rows), wrong, counts, scores, measure.calibration(probabilities, labels), mistakes)


def _unlabeled(model: Classifier, train: Rows, split: Split, seed: int, name: Name) -> Unlabeled:
    rows = split.unlabeled
    if len(rows) > LOOKED_AT:
        rows = np.sort(generator(seed, "report", 0).permutation(rows)[:LOOKED_AT])
    if len(rows) == 0:
        return Unlabeled(0, 0, None, [])
    probabilities = predict(model, train.inputs, rows)
    known = train.labels[rows] != UNKNOWN
    right = probabilities.argmax(axis=1)[known] == train.labels[rows][known]
    score = measure.uncertainty(probabilities)
    most = min(len(rows), WORTH, max(12, len(rows) // 20))
    candidates = np.argsort(-score, kind="stable")[: AMONG * most]
    features = penultimate(model, train.inputs, rows[candidates])
    if features is None:
        features = probabilities[candidates]
    chosen = candidates[measure.diverse(features, score[candidates], most)]
    worth = [
        Shown(
            _pixels(train, int(rows[i])),
            name(int(rows[i])),
            model.classes[int(probabilities[i].argmax())],
            float(probabilities[i].max()),
            score=float(score[i]),
        )
        for i in chosen
    ]
    return Unlabeled(len(split.unlabeled), len(rows), 100 * float(right.mean()) if known.any() else None, worth)


def predict(model: Classifier, inputs: np.ndarray, rows: Ints) -> Floats:
    """Probabilities of these rows of inputs that may be larger than memory."""
    pieces = [model.probabilities(inputs[rows[i : i + PIECE]]) for i in range(0, len(rows), PIECE)]
    return np.concatenate(pieces) if pieces else np.empty((0, len(model.classes)))


def penultimate(model: Classifier, inputs: np.ndarray, rows: Ints) -> Floats | None:
    """What the last linear layer gets, scaled to length 1; None for a network that does not end in one."""
    layers = [module for module in model.network.modules() if isinstance(module, nn.Linear)]
    if not layers:
        return None
    seen: list[Tensor] = []

    def keep(_: nn.Module, inputs: Sequence[Tensor]) -> None:
        seen.append(inputs[0].detach().to("cpu", torch.float32))

    hook = layers[-1].register_forward_pre_hook(keep)
    try:
        predict(model, inputs, rows)
    finally:
        hook.remove()
    if any(piece.ndim != 2 for piece in seen) or sum(map(len, seen)) != len(rows):
        return None
    features = torch.cat(seen).double().numpy()
    length = np.linalg.norm(features, axis=1, keepdims=True)
    scaled: Floats = features / np.maximum(length, 1e-12)
    return scaled

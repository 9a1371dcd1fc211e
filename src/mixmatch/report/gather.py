"""What a report says about a finished run: its model, evaluated on the test rows and on the unlabeled rows."""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mixmatch import measure
from mixmatch.classifier import Classifier, load_run
from mixmatch.data.embedding import embed
from mixmatch.data.opened import Data
from mixmatch.data.source import UNKNOWN, Rows
from mixmatch.data.split import Split
from mixmatch.data.user.images import UnreadableImage, thumbnail
from mixmatch.data.user.rows import UserData
from mixmatch.draws import generator
from mixmatch.errors import MixMatchError
from mixmatch.measure import Calibration, ClassScore, Floats, Ints
from mixmatch.methods import METHODS
from mixmatch.networks.frozen import BASIC
from mixmatch.networks.heads import offers_features
from mixmatch.report.verdict import Findings, Verdict, favorite, guessing, next_steps
from mixmatch.text import html_table
from mixmatch.training.cross_validate import OutOfFold, load_cross_validation
from mixmatch.training.device import pick_device
from mixmatch.training.evaluate import predict_logits
from mixmatch.training.gain import Gain, compare_errors, measure_gain
from mixmatch.training.opening import open_run
from mixmatch.training.run import Record, RunFolder, baseline_of

SHOWN = 24
"""Thumbnails of each kind."""

MOST_SUGGESTIONS = 100
"""Images suggested for labeling, at most."""

CANDIDATES = 4
"""The suggestions are chosen from this many times as many images, the most uncertain ones."""

SAMPLE = 20_000
"""Unlabeled images that are predicted; if there are more, a random part."""

NO_CLASS_SAMPLE = 4000
"""Unlabeled images among which those of no class are looked for: all are compared with all."""

HELD = 1000
"""Test images that they are compared with, at most."""

LEAST_COMPARED = 20
"""Numbers of labeled and unlabeled images below which that says nothing."""

PIECE = 1024
"""Images read from a file at once."""

THUMBNAIL = 96
"""Pixels; larger images are shown smaller."""


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
    """The model on its test images, or on its labels in cross-validation."""

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
class NoClass:
    """Unlabeled images that may show none of the classes."""

    sample: int
    """How many were looked at."""
    listed: list[Shown]
    """Likeliest first; none where the score cannot tell."""


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
    said: Ints
    """How often each class is predicted."""
    no_class: NoClass | None = None
    """Those that may show none of the classes; None of published data, where all do, and where there are too few
    rows to tell."""


@dataclass(frozen=True, repr=False)
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
    verdict: Verdict
    """What the page begins with."""
    metrics: list[Record]
    baseline: list[Record]
    """Evaluations of the labels-only run, if there is one."""
    gain: Gain | None
    evaluated: Evaluated | None
    unlabeled: Unlabeled
    suspects: list[Shown] | None = None
    """Labels that may be wrong, most suspect first; None without cross-validation by models better than guessing."""

    def __repr__(self) -> str:
        return f"<Report on {self.run}: {self.verdict.how_good}>"

    def _repr_html_(self) -> str:
        steps = [("next", step) for step in self.verdict.next_steps]
        return html_table([("run", str(self.run)), *self.verdict.parts, *steps])


def gather(
    path: Path,
    data: Data | str | Path | None = None,
    gain: Gain | None = None,
    *,
    data_dir: str | Path | None = None,
    device: str | torch.device = "auto",
    network: nn.Module | None = None,
) -> Report:
    """Load a finished run and its data, predict, and count. The arguments are those of `report.write_report`."""
    run = RunFolder(path)
    config, record = run.config(), run.result()
    if record is None:
        raise MixMatchError(f"{path} is not finished: end its training with resume=True, then report")
    model = load_run(path, device, copy.deepcopy(network))
    if not isinstance(data, Data):
        data = open_run(run, data, data_dir, device=device)
    source, split = data.source, data.split
    evaluated, verdict = evaluate_run(path, data, model)
    baseline = RunFolder(baseline_of(path))
    has_baseline = baseline.exists() and baseline.result() is not None and baseline.config()["split"] == config["split"]
    if gain is None and has_baseline and evaluated is not None and not verdict.cross_validated:
        gain = measure_gain(model, load_run(baseline.path, device, copy.deepcopy(network)), _tested(data))
    folds, folds_alone = (load_cross_validation(folder, data) for folder in (path, baseline.path))
    if verdict.cross_validated and folds is not None and folds_alone is not None:
        gain = compare_errors(folds.wrong, folds_alone.wrong, source.noun)
    train = _Part.of_training(data, Path(config["settings"]["data"]))
    labels = np.bincount(source.train.labels[split.labeled], minlength=len(source.classes))
    unlabeled = _unlabeled(model, train, data, config["settings"]["seed"], device)
    suspects = None if folds is None else _suspects(train, folds)
    method = record["method"]
    said = [(unlabeled.said, labels)]
    if evaluated is not None and not verdict.cross_validated:  # where it is, other models said it
        said.append((evaluated.confusion.sum(axis=0), evaluated.confusion.sum(axis=1)))
    verdict = replace(
        verdict,
        gain=gain,
        uses_unlabeled=method not in METHODS or bool(METHODS[method]().views),
        favorite=favorite(source.classes, *said),
    )
    found = Findings(
        source.classes,
        labels.tolist(),
        scores=() if evaluated is None else evaluated.scores,
        suspects=[each.name for each in suspects or ()],
        suggestions=len(unlabeled.suggestions),
        no_class=0 if unlabeled.no_class is None else len(unlabeled.no_class.listed),
        features=config["settings"].get("features", "none") if source.noun == "image" else None,
        steps=record["steps"],
        lambda_u=record["settings"].get("method_settings", {}).get("lambda_u"),
    )
    return Report(
        run=path,
        user_data=data.user is not None,
        noun=source.noun,
        record=record,
        classes=source.classes,
        labels=labels.tolist(),
        verdict=replace(verdict, next_steps=next_steps(verdict, found)),
        metrics=run.metrics(),
        baseline=baseline.metrics() if has_baseline else [],
        gain=gain,
        evaluated=evaluated,
        unlabeled=unlabeled,
        suspects=suspects,
    )


def evaluate_run(path: Path, data: Data, model: Classifier, shown: int = SHOWN) -> tuple[Evaluated | None, Verdict]:
    """The model of a run on its test rows or, where there are none, what cross-validation found; None if there is
    neither. The verdict has what is known from that alone. `shown` is how many mistakes to show."""
    source, rows, folder = data.source, _known(data), Path(RunFolder(path).config()["settings"]["data"])
    verdict = Verdict(data.basis, source.noun, places=1 if data.user is not None else 2)
    if len(rows):
        probabilities = predict_rows(model, source.test.inputs, rows)
        truth, predicted, confidence = source.test.labels[rows], probabilities.argmax(axis=1), probabilities.max(axis=1)
        part = _Part.of_test(data, folder)
    elif (folds := load_cross_validation(path, data)) is not None:
        rows, truth, predicted, confidence = folds.rows, folds.labels, folds.predicted, folds.probability
        part = _Part.of_training(data, folder)
        verdict = replace(verdict, basis=folds.basis(source.noun), cross_validated=True)
    else:
        return None, verdict
    counts = measure.confusion(truth, predicted, len(source.classes))
    worst = measure.confident_mistakes(predicted, confidence, truth)[:shown]
    verdict = verdict.of(truth, predicted, source.classes)
    evaluated = Evaluated(
        verdict.images,
        verdict.wrong,
        counts,
        measure.class_scores(counts),
        measure.reliability(confidence, predicted == truth),
        part.listed(rows[worst], predicted[worst], confidence[worst], true=truth[worst]),
    )
    return evaluated, verdict


def _known(data: Data) -> Ints:
    """Test rows that have a label."""
    known: Ints = data.split.test[data.source.test.labels[data.split.test] != UNKNOWN]
    return known


def _tested(data: Data) -> Rows:
    test, known = data.source.test, _known(data)
    return test if len(known) == len(test) else test.take(known)


@dataclass(frozen=True)
class _Part:
    """Training or test rows, with their names: by files, or by numbers in a published data set."""

    classes: tuple[str, ...]
    rows: Rows
    user: UserData | None = None
    numbers: Ints | None = None
    """Which rows of the user data they are; None if it is all of them, from the first on."""
    folder: Path | None = None
    """Where the files of images are."""

    @staticmethod
    def of_training(data: Data, folder: Path) -> _Part:
        return _Part(data.source.classes, data.source.train, data.user, None, folder)

    @staticmethod
    def of_test(data: Data, folder: Path) -> _Part:
        classes, test, user = data.source.classes, data.source.test, data.user
        if user is None:
            return _Part(classes, test)
        held = np.setdiff1d(user.labeled, data.split.labeled)  # in this order
        return _Part(classes, test, user, user.tested if len(user.tested) else held, folder)

    def name(self, row: int) -> str:
        if self.user is None:
            return str(row)
        return self.user.files[row if self.numbers is None else int(self.numbers[row])]

    def pixels(self, row: int) -> np.ndarray | None:
        """From the file, if the row has one that can be read; else as the network gets them, if they are pixels."""
        if self.user is not None and self.user.sizes is not None and self.folder is not None:
            with contextlib.suppress(UnreadableImage):
                return thumbnail(self.folder / self.name(row), THUMBNAIL)
        return np.array(self.rows.images[row]) if self.rows.images is not None else None

    def listed(
        self, rows: Ints, predicted: Ints, probability: Floats, true: Ints | None = None, score: Floats | None = None
    ) -> list[Shown]:
        """What to show of these rows: of the first ones their pixels, too."""
        return [
            Shown(
                self.pixels(row) if place < SHOWN else None,
                self.name(row),
                self.classes[predicted[place]],
                float(probability[place]),
                None if true is None else self.classes[true[place]],
                None if score is None else float(score[place]),
            )
            for place, row in enumerate(rows.tolist())
        ]


def _suspects(train: _Part, folds: OutOfFold) -> list[Shown] | None:
    """Labels that may be wrong; None if the models know too little to doubt one: no more than a guess would."""
    error = measure.share_interval(int(folds.wrong.sum()), len(folds.wrong))[1]
    if error >= guessing(folds.labels, train.classes)[1]:
        return None
    worst = measure.suspect_labels(folds.labels, folds.predicted, folds.probability, folds.label_probability)
    return train.listed(folds.rows[worst], folds.predicted[worst], folds.probability[worst], true=folds.labels[worst])


def _unlabeled(model: Classifier, train: _Part, data: Data, seed: int, device: str | torch.device) -> Unlabeled:
    rows = everything = _without_label(data.split)
    if len(rows) > SAMPLE:
        rows = np.sort(generator(seed, "report", 0).permutation(rows)[:SAMPLE])
    if len(rows) == 0:
        return Unlabeled(0, 0, None, [], np.zeros(len(model.classes), np.int64))
    inputs, labels = train.rows.inputs, train.rows.labels[rows]
    probabilities = predict_rows(model, inputs, rows)
    predicted, known = probabilities.argmax(axis=1), labels != UNKNOWN
    right = predicted[known] == labels[known]
    score = measure.uncertainty(probabilities)
    most = min(len(rows), MOST_SUGGESTIONS, max(12, len(rows) // 20))
    candidates = np.argsort(-score, kind="stable")[: CANDIDATES * most]
    features = penultimate(model, inputs, rows[candidates])
    if features is None:
        features = probabilities[candidates]
    best = candidates[measure.diverse(features, score[candidates], most)]
    suggestions = train.listed(rows[best], predicted[best], probabilities[best].max(axis=1), score=score[best])
    said = np.bincount(predicted, minlength=len(model.classes))
    share = 100 * float(right.mean()) if known.any() else None
    no_class = None if data.user is None else _no_class(model, train, data, seed, device)
    return Unlabeled(len(everything), len(rows), share, suggestions, said, no_class)


def _without_label(split: Split) -> Ints:
    """The unlabeled rows; a method may use the labeled ones as such, too."""
    return split.unlabeled[~np.isin(split.unlabeled, split.labeled)]


def _no_class(model: Classifier, train: _Part, data: Data, seed: int, device: str | torch.device) -> NoClass | None:
    split, source = data.split, data.source
    rows = generator(seed, "no class", 0).permutation(_without_label(split))[:NO_CLASS_SAMPLE]
    if min(len(rows), len(split.labeled)) < LEAST_COMPARED:
        return None
    # Not the network's own features: it has learned to take each image for one of the classes.
    some = replace(
        source,
        train=source.train.take(np.concatenate([rows, split.labeled])),
        test=source.test.take(_known(data)[:HELD]),
    )
    if some.train.is_images:
        some = embed(some, BASIC, views=1, device=pick_device(device))
    unlabeled, labeled = np.split(measure.unit(some.train.inputs), [len(rows)])
    scores, known = measure.unlike_labeled(unlabeled, labeled, measure.unit(some.test.inputs))
    found = measure.of_no_class(scores, known)
    probabilities = predict_rows(model, train.rows.inputs, rows[found])
    predicted, probability = probabilities.argmax(axis=1), probabilities.max(axis=1)
    return NoClass(len(rows), train.listed(rows[found], predicted, probability, score=scores[found]))


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
    return measure.unit(torch.cat(seen).numpy())

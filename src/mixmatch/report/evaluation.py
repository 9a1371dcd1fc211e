"""How good a trained model is: on the test rows of its run, or on new labeled data."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mixmatch import measure, terminal
from mixmatch.classifier import Classifier, load_run
from mixmatch.data import TABLES, Reading, read_labeled
from mixmatch.data.opened import Basis
from mixmatch.data.user.rows import Finding, UserData
from mixmatch.errors import MixMatchError
from mixmatch.measure import ClassScore, Ints
from mixmatch.report.gather import evaluate_run, predict_rows
from mixmatch.report.verdict import Verdict
from mixmatch.text import html_table
from mixmatch.training.opening import open_run
from mixmatch.training.run import RunFolder


@dataclass(frozen=True, repr=False)
class Evaluation:
    """A model's predictions counted. Errors are in percent."""

    run: Path
    data: str
    """What it was evaluated on: a data set or a path."""
    classes: tuple[str, ...]
    confusion: Ints
    """Counts (L, L): row the true class, column the predicted one."""
    verdict: Verdict
    """The error, and how far to trust it, in sentences."""
    findings: tuple[Finding, ...] = ()
    """What was left out of new data."""

    @property
    def error(self) -> float:
        return 100 * self.verdict.wrong / self.verdict.images

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the error."""
        return self.verdict.interval

    @property
    def per_class(self) -> dict[str, ClassScore]:
        """Rows, error, precision and recall of each class."""
        return dict(zip(self.classes, measure.class_scores(self.confusion), strict=True))

    def to_dict(self) -> dict[str, Any]:
        """For JSON: what `mixmatch evaluate --json` prints."""
        verdict, details = self.verdict, self.verdict.to_dict()
        return {
            "run": str(self.run),
            "data": self.data,
            "images": verdict.images,
            "wrong": verdict.wrong,
            "error": verdict.error,
            **{name: details[name] for name in ("interval", "guessing_error", "cross_validated")},
            "per_class": {name: score.error for name, score in self.per_class.items()},
            "findings": [finding.as_dict() for finding in self.findings],
        }

    def table(self) -> list[tuple[str, str, str]]:
        """Name, number of rows and error of each class, as text."""
        places = self.verdict.places
        return [
            (name, f"{score.images:,}", "–" if score.error is None else f"{score.error:.{places}f}")
            for name, score in self.per_class.items()
        ]

    def __str__(self) -> str:
        return f"{self.verdict.how_good}\n{self.verdict.trust}"

    def __repr__(self) -> str:
        return f"<Evaluation of {self.run} on {self.data}: {self.verdict.how_good}>"

    def _repr_html_(self) -> str:
        sentences = html_table([("how good", self.verdict.how_good), ("trust", self.verdict.trust)])
        return sentences + html_table(self.table(), ("class", f"{self.verdict.noun}s", "error %"))


def evaluate(
    run: str | Path,
    new: str | Path | None = None,
    *,
    data: str | Path | None = None,
    data_dir: str | Path | None = None,
    strict: bool = False,
    device: str | torch.device = "auto",
    network: nn.Module | None = None,
    warn: Callable[[str], None] = terminal.warn,
    progress: Callable[[int, int], None] | None = None,
    **reading: Any,
) -> Evaluation:
    """Evaluate a run's averaged model on its test rows or, where there are none, by what cross-validation found; or on
    new labeled data. An unfinished run is evaluated at its newest checkpoint.

        evaluation = mixmatch.evaluate("runs/photos", "new-photos/")
        print(evaluation.error, evaluation.interval, evaluation.per_class["cat"].error)

    Args:
        run: a run folder; for new data, a model.safetensors file does as well.
        new: new labeled data: a folder (`DIR/CLASS/*`), an array (.npz, .npy) or a table (.csv, .parquet), as for
            `train`. If it has a test part, that part is used. Classes are matched by name.
        data: where the run's own data is now, if it has moved.
        data_dir: where the files of a published data set are.
        strict: refuse data files that are not the published ones.
        device: `auto`, `cpu`, `cuda` or `mps`.
        network: the network that was trained, if it is not one that is built by name.
        warn: called with what was left out of new data.
        progress: called with the number of new images read, and of all.
        **reading: how new data is read: `labels_file`, `label_column`, `part_column` or `id_column`. The label column
            of a table is that of the run, unless one is given.

    Raises:
        MixMatchError: if there is nothing to evaluate on, or the data is not the run's.
    """
    run, classifier = Path(run), load_run(run, device, copy.deepcopy(network))
    if new is None:
        for option in reading:
            raise MixMatchError(f"{option}= is for new data: name it after the run")
        folder = RunFolder(run)
        name = folder.config()["settings"]["data"]
        opened = open_run(folder, data, data_dir, strict=strict, device=device)
        evaluated, verdict = evaluate_run(run, opened, classifier, shown=0)
        if evaluated is None:
            raise MixMatchError(f"{name} has no test {opened.source.noun}s: {opened.basis.missing}")
        return Evaluation(run, name, classifier.classes, evaluated.confusion, verdict)
    if data is not None:
        raise MixMatchError("data= is where the run's own data is, and there is new data: give one of them")
    rows = _read(run, classifier, Path(new), reading, progress)
    for finding in rows.findings:
        if finding.severity != "info":
            warn(f"{finding.message}: {finding.advice}")
    predicted = predict_rows(classifier, rows.inputs, rows.tested).argmax(axis=1)
    truth = rows.labels[rows.tested]
    if _has_learned(run, Path(new), len(truth)):
        warn(
            f"{new} is what the run has learned from, so its error there says little: leave it out to evaluate on the "
            f"run's test {rows.noun}s"
        )
    basis = Basis(f"the {len(truth):,} labeled {rows.noun}s of {new}")
    verdict = Verdict(basis, rows.noun).of(truth, predicted, classifier.classes)
    counts = measure.confusion(truth, predicted, len(classifier.classes))
    return Evaluation(run, str(new), classifier.classes, counts, verdict, rows.findings)


def _has_learned(run: Path, new: Path, rows: int) -> bool:
    """Whether new data is the run's own, and more of it than its test rows."""
    if run.is_file():
        return False
    config = RunFolder(run).config()
    data = str(config["settings"].get("data"))
    places = [Path(data), Path(str(config.get("folder") or ""), data)]
    return new.resolve() in [place.resolve() for place in places] and rows > config["split"].get("test", 0)


def _read(
    run: Path,
    classifier: Classifier,
    path: Path,
    reading: Mapping[str, Any],
    progress: Callable[[int, int], None] | None,
) -> UserData:
    """New labeled data as the model takes it."""
    before = {} if run.is_file() else RunFolder(run).config()["settings"].get("data_options", {})
    if path.suffix.lower() in TABLES and "label_column" in before:
        reading = {"label_column": before["label_column"], **reading}
    how = Reading.of(reading)
    return read_labeled(path, classifier.classes, classifier.input_shape, classifier.encoding, how, progress=progress)

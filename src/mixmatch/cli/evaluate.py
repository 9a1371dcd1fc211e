"""`mixmatch evaluate`: the test error of a trained run, or its error on new labeled data."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from mixmatch import api
from mixmatch.classifier import Classifier, load_run
from mixmatch.cli import with_options
from mixmatch.cli.data_check import bar
from mixmatch.cli.options import DataDir, Device, Json, Moved, Run, Strict, console, print_json, with_reading
from mixmatch.data import TABLES, Reading, read_labeled
from mixmatch.data.opened import Basis
from mixmatch.data.user.rows import Finding, UserData
from mixmatch.errors import MixMatchError
from mixmatch.report import measure
from mixmatch.report.gather import evaluate_run, predict_rows
from mixmatch.report.verdict import Verdict, guessing
from mixmatch.training.run import RunFolder


@with_reading
def evaluate(
    run: Run,
    settings: dict[str, Any],
    path: Annotated[
        Path | None,
        typer.Argument(metavar="DATA", help="New labeled data: a folder, an array or a table."),
    ] = None,
    moved: Moved = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    strict: Strict = False,
    as_json: Json = False,
) -> None:
    """Evaluate a run's averaged model on its test images, or on new labeled data.

    An unfinished run is evaluated at its newest checkpoint. Without test images it is what cross-validation found. New
    data is a folder (DIR/CLASS/*), an array (.npz, .npy) or a table (.csv, .parquet) as for train; if it has a test
    part, that part is used. Classes are matched by name.

    Examples:

      mixmatch evaluate runs/cifar --data-dir ~/data

      mixmatch evaluate runs/digits-mixmatch-20-seed1 --json

      mixmatch evaluate runs/photos new-photos/

      mixmatch evaluate runs/patients 2026.csv --label-column diagnosis

      mixmatch evaluate runs/photos --data /mnt/photos  # its own data has moved there
    """
    classifier = load_run(run, device)
    if path is not None:
        if moved is not None:
            raise MixMatchError("--data is where the run's own data is, DATA is new data: give one of them")
        new = _read(run, classifier, path, settings)
        predicted = predict_rows(classifier, new.inputs, new.tested).argmax(axis=1)
        truth = new.labels[new.tested]
        counts = measure.confusion(truth, predicted, len(classifier.classes))
        commonest, error = guessing(truth, classifier.classes)
        verdict = Verdict(
            Basis(f"the {len(truth):,} labeled {new.noun}s of {path}"), new.noun, len(truth),
            int((predicted != truth).sum()), commonest, error,
        )  # fmt: skip
        _show(run, str(path), classifier.classes, measure.class_scores(counts), verdict, as_json, new.findings)
        return
    for option in settings:
        raise MixMatchError(f"{option}= is for new data: name it after the run")
    data = RunFolder(run).config()["settings"]["data"]
    opened = api.open_run(run, data_dir, strict=strict, data=moved)
    evaluated, verdict = evaluate_run(run, opened, classifier, shown=0)
    if evaluated is None:
        raise MixMatchError(f"{data} has no test {opened.source.noun}s: {opened.basis.sentence}")
    _show(run, data, classifier.classes, evaluated.scores, verdict, as_json)


def _show(
    run: Path,
    data: str,
    classes: Sequence[str],
    scores: Sequence[measure.ClassScore],
    verdict: Verdict,
    as_json: bool,
    findings: Sequence[Finding] = (),
) -> None:
    """Print the error of each class and of all."""
    per_class = dict(zip(classes, scores, strict=True))
    if as_json:
        details = verdict.to_dict()
        more = {name: details[name] for name in ("interval", "guessing_error", "cross_validated")}
        about = {"run": str(run), "data": data, "images": verdict.images, "wrong": verdict.wrong}
        errors = {name: score.error for name, score in per_class.items()}
        found = [finding.as_dict() for finding in findings]
        print_json({**about, "error": verdict.error, **more, "per_class": errors, "findings": found})
        return
    table = Table("class", f"{verdict.noun}s", "error %", box=box.SIMPLE)
    for name, score in per_class.items():
        error = "–" if score.error is None else f"{score.error:.{verdict.places}f}"
        table.add_row(Text(name), f"{score.images:,}", error)
    screen = console()
    screen.print(table)
    screen.print(f"{verdict.how_good}\n{verdict.trust}", markup=False, soft_wrap=not screen.is_terminal)


def _read(run: Path, classifier: Classifier, path: Path, settings: dict[str, Any]) -> UserData:
    """New labeled data as the model takes it. The label column of a table is that of the run, unless one is given."""
    before = {} if run.is_file() else RunFolder(run).config()["settings"].get("data_options", {})
    if path.suffix.lower() in TABLES and "label_column" in before:
        settings = {"label_column": before["label_column"], **settings}
    with bar("reading images") as progress:
        read = read_labeled(
            path,
            classifier.classes,
            classifier.input_shape,
            classifier.encoding,
            Reading(**settings),
            progress=progress,
        )
    for finding in read.findings:
        if finding.severity != "info":
            print(f"warning: {finding.message}: {with_options(finding.advice)}", file=sys.stderr)
    return read

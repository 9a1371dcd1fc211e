"""`mixmatch evaluate`: the error of a run's model on the test images."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from mixmatch import api
from mixmatch.classifier import load_run
from mixmatch.cli.options import DataDir, Device, Json, Run, Strict, console, print_json
from mixmatch.data.source import UNKNOWN
from mixmatch.errors import MixMatchError
from mixmatch.report import measure
from mixmatch.report.gather import predict_rows
from mixmatch.training.run import RunFolder


def evaluate(
    run: Run, data_dir: DataDir = None, device: Device = "auto", strict: Strict = False, as_json: Json = False
) -> None:
    """Evaluate a run's averaged model on its data set's test images.

    An unfinished run is evaluated at its newest checkpoint.

    Examples:

      mixmatch evaluate runs/cifar --data-dir ~/data

      mixmatch evaluate runs/digits-mixmatch-20-seed1 --json
    """
    data = RunFolder(run).config()["settings"]["data"]
    classifier = load_run(run, device)
    opened = api.open_run(run, data_dir, strict=strict)
    source, split = opened.source, opened.split
    labels = source.test.labels
    rows = split.test[labels[split.test] != UNKNOWN]
    if len(rows) == 0:
        raise MixMatchError(f"{data} has no test {source.noun}s: {opened.basis.sentence}")
    predicted = predict_rows(classifier, source.test.inputs, rows).argmax(axis=1)
    scores = measure.class_scores(measure.confusion(labels[rows], predicted, len(source.classes)))
    wrong = int((predicted != labels[rows]).sum())
    result: dict[str, Any] = {
        "run": str(run),
        "data": data,
        "images": len(rows),
        "wrong": wrong,
        "error": 100 * wrong / len(rows),
        "per_class": {name: score.error for name, score in zip(source.classes, scores, strict=True)},
    }
    if as_json:
        print_json(result)
        return
    table = Table("class", f"{source.noun}s", "error %", box=box.SIMPLE)
    for name, score in zip(source.classes, scores, strict=True):
        table.add_row(Text(name), f"{score.images:,}", "–" if score.error is None else f"{score.error:.2f}")
    screen = console()
    screen.print(table)
    screen.print(
        f"test error [bold]{result['error']:.2f} %[/bold] ({result['wrong']:,} of {result['images']:,} {source.noun}s)"
    )

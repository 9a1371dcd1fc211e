"""`mixmatch evaluate`: the error of a run's model on the test images."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from mixmatch import api
from mixmatch.cli.options import DataDir, Device, Json, Run, Strict, console, print_json
from mixmatch.errors import MixMatchError
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
    classifier = api.load(run, device=device)
    source, split, basis = api.data_of_run(RunFolder(run), data_dir, strict=strict)
    if len(split.test) == 0:
        raise MixMatchError(f"{data} has no test {source.noun}s: {basis}")
    labels = source.test.labels[split.test]
    predicted = classifier.probabilities(source.test.inputs[split.test]).argmax(axis=1)
    wrong = predicted != labels
    counts = np.bincount(labels, minlength=len(source.classes))
    missed = np.bincount(labels[wrong], minlength=len(source.classes))
    per_class = {
        name: 100 * int(missed[c]) / int(counts[c]) if counts[c] else None for c, name in enumerate(source.classes)
    }
    result: dict[str, Any] = {
        "run": str(run),
        "data": data,
        "images": len(labels),
        "wrong": int(wrong.sum()),
        "error": 100 * int(wrong.sum()) / len(labels),
        "per_class": per_class,
    }
    if as_json:
        print_json(result)
        return
    table = Table("class", f"{source.noun}s", "error %", box=box.SIMPLE)
    for name, count in zip(source.classes, counts, strict=True):
        error = per_class[name]
        table.add_row(Text(name), f"{count:,}", "–" if error is None else f"{error:.2f}")
    screen = console()
    screen.print(table)
    screen.print(
        f"test error [bold]{result['error']:.2f} %[/bold] ({result['wrong']:,} of {result['images']:,} {source.noun}s)"
    )

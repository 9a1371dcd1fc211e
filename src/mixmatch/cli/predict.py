"""`mixmatch predict`: classes and probabilities for a person's own image files."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import track

from mixmatch import api
from mixmatch.classifier import Classifier
from mixmatch.cli.options import Device, Run
from mixmatch.data.images import find_images, read_image
from mixmatch.errors import MixMatchError

BATCH = 256


def predict(
    run: Run,
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Image files, or folders of them.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write here, not to standard output.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of CSV.")] = False,
    device: Device = "auto",
) -> None:
    """Predict the classes of image files, as CSV or JSON with every class's probability.

    Files that cannot be read are named on standard error, the others predicted, and the exit code is 1.

    Examples:

      mixmatch predict runs/cifar photo.jpg

      mixmatch predict runs/cifar photos/ --output predictions.csv

      mixmatch predict runs/cifar photos/ --json
    """
    classifier = api.load(run, device=device)
    files = find_images(paths)
    unreadable: list[str] = []
    try:
        with output.open("w", newline="") if output else nullcontext(sys.stdout) as out:
            rows = _predict(classifier, files, unreadable)
            if as_json:
                _write_json(out, rows)
            else:
                _write_csv(out, rows, classifier.classes)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise MixMatchError(f"cannot write {output or 'the output'}: {error.strerror}") from None
    if unreadable:
        raise typer.Exit(1)


def _predict(classifier: Classifier, files: list[Path], unreadable: list[str]) -> Iterator[dict[str, Any]]:
    """A row per readable file, batch by batch; names of the others are printed and collected."""
    quiet = len(files) <= BATCH or not sys.stderr.isatty()
    starts = track(range(0, len(files), BATCH), "predicting", console=Console(stderr=True), disable=quiet)
    for start in starts:
        images, readable = [], []
        for file in files[start : start + BATCH]:
            try:
                images.append(read_image(file, classifier.input_shape))
                readable.append(file)
            except MixMatchError as error:
                print(f"warning: {error}", file=sys.stderr)
                unreadable.append(str(file))
        if not images:
            continue
        for file, probabilities in zip(readable, classifier.predict_proba(np.stack(images)), strict=True):
            best = int(probabilities.argmax())
            yield {
                "file": str(file),
                "class": classifier.classes[best],
                "probability": float(probabilities[best]),
                "probabilities": dict(zip(classifier.classes, map(float, probabilities), strict=True)),
            }


def _write_json(out: IO[str], rows: Iterator[dict[str, Any]]) -> None:
    """A list, a row a line, written as the rows come."""
    before = "[\n"
    for row in rows:
        out.write(before + json.dumps(row))
        before = ",\n"
    out.write("\n]\n" if before == ",\n" else "[]\n")


def _write_csv(out: IO[str], rows: Iterator[dict[str, Any]], classes: tuple[str, ...]) -> None:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["file", "class", "probability", *classes])
    for row in rows:
        probabilities = [f"{p:.6g}" for p in row["probabilities"].values()]
        writer.writerow([row["file"], row["class"], f"{row['probability']:.6g}", *probabilities])

"""`mixmatch predict`: classes and probabilities for image files, arrays or tables, written as they come."""

from __future__ import annotations

import csv
import importlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import IO, Annotated, Any

import numpy as np
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mixmatch.classifier import load_run
from mixmatch.cli.options import Device, Run, say
from mixmatch.data import TABLES
from mixmatch.data.user.images import quiet_pillow
from mixmatch.errors import MixMatchError
from mixmatch.predict import Prediction, holds_rows, predict_files
from mixmatch.terminal import Plain, Screen
from mixmatch.text import count, to_cell

FEW = 16
"""For so few files no bar is shown."""
FIXED = ("file", "class", "probability")
"""The columns of every table of predictions."""
ROW_GROUP = 16_384
"""Predictions that are written to a Parquet file at once."""


class Format(StrEnum):
    """How predictions are written."""

    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


class Sort(StrEnum):
    """The order of predictions, if not that of the files."""

    UNCERTAIN = "uncertain"


def predict(
    run: Run,
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH", help="Image files, or folders of them; arrays or tables."),
    ],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write here, not to standard output.")] = None,
    kind: Annotated[
        Format | None,
        typer.Option("--format", help=r"Default: csv. parquet takes pip install 'mixmatch\[tables]' and --output."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    sort: Annotated[
        Sort | None,
        typer.Option(help="uncertain: the least certain first; then nothing is written before all is predicted."),
    ] = None,
    id_column: Annotated[
        str | None,
        typer.Option(help="A table: the column that names each row (default: the one that training had)."),
    ] = None,
    device: Device = "auto",
) -> None:
    """Predict the classes of image files, or of rows, as CSV, JSON or Parquet with every class's probability.

    Predictions are written as they come, in the order of the files. Files that cannot be read are named on standard
    error, the others predicted, and the exit code is 1. Columns of a table are found by name, in any order.

    Examples:

      mixmatch predict runs/cifar photo.jpg

      mixmatch predict runs/cifar photos/ --output predictions.csv

      mixmatch predict runs/cifar photos/ --sort uncertain | head

      mixmatch predict runs/cifar photos/ --format parquet --output predictions.parquet

      mixmatch predict runs/patients new.csv --id-column patient
    """
    if as_json and kind not in (None, Format.JSON):
        raise MixMatchError(f"--json and --format {kind} contradict each other")
    kind = Format.JSON if as_json else kind or Format.CSV
    _check_output(kind, output)
    classifier = load_run(run, device)
    # Predictions that scroll by on the same terminal are progress enough, and would break a bar.
    shown = output is not None or sort is not None or not sys.stdout.isatty()
    bar = _Bar("row" if holds_rows(paths[0]) else "image", shown)
    own = classifier.encoding.id_column if classifier.encoding is not None else None
    named = id_column or (own if any(path.suffix.lower() in TABLES for path in paths) else None)
    predictions = predict_files(classifier, paths, id_column=id_column, on_error=bar.unreadable, progress=bar.progress)
    try:
        with quiet_pillow(), closing(predictions), closing(bar):
            rows = _least_certain_first(predictions) if sort else predictions
            written = _write(kind, output, rows, classifier.classes, named)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise MixMatchError(f"cannot write {output or 'the output'}: {error.strerror or error}") from None
    if output is not None:
        say(f"wrote {count(written, 'prediction')} to {output}")
    if bar.warned:
        raise typer.Exit(1)


def _least_certain_first(predictions: Iterable[Prediction]) -> Iterator[Prediction]:
    """Nothing is predicted before the first is asked for, so that the output is opened first."""
    yield from sorted(predictions, key=lambda p: p.probability)


class _Bar:
    """A bar on a terminal, and a line on standard error for each file that cannot be read."""

    def __init__(self, noun: str, shown: bool) -> None:
        self.console = Screen(stderr=True)
        self.shown = shown and sys.stderr.isatty() and not self.console.is_dumb_terminal
        self.warned = False
        columns = (
            TextColumn("[bold]predicting"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("rows" if noun == "row" else "files"),
            TextColumn(f"{{task.fields[speed]:,.0f}} {noun}s/s"),
            TimeRemainingColumn(elapsed_when_finished=True),
        )
        # Standard output is for the predictions: rich would take it over.
        self.bar = Progress(*columns, console=self.console, redirect_stdout=False, redirect_stderr=False)
        self.task = self.bar.add_task("", speed=0)

    def progress(self, done: int, total: int) -> None:
        if self.shown and total > FEW:
            self.bar.start()
            self.bar.update(self.task, completed=done, total=total)
            task = self.bar.tasks[0]
            self.bar.update(self.task, speed=task.finished_speed or task.speed or 0)

    def unreadable(self, file: Path, reason: str) -> None:
        self.warned = True
        line = f"warning: cannot read {file}: {reason}"
        self.console.print(line, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        if self.bar.live.is_started:
            self.bar.stop()


def _check_output(kind: Format, output: Path | None) -> None:
    """Refuse what cannot be written, before anything is predicted."""
    if kind is not Format.PARQUET:
        return
    try:
        importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise MixMatchError(
            "--format parquet takes pyarrow, which is not installed: pip install 'mixmatch[tables]', or use csv"
        ) from None
    if output is None:
        raise MixMatchError("--format parquet is not for standard output: name a file with --output")


def _write(
    kind: Format, output: Path | None, rows: Iterable[Prediction], classes: Sequence[str], id_column: str | None
) -> int:
    """Write predictions to a file, or to standard output, with the id of each row first if there is a column of ids;
    returns how many. The file is opened before the first prediction is taken."""
    written = 0

    def counted() -> Iterator[Prediction]:
        nonlocal written
        for written, row in enumerate(rows, 1):  # noqa: B007
            yield row

    if id_column in FIXED:
        id_column = f"{id_column} (id)"
    with _target(output, binary=kind is Format.PARQUET) as out:
        if kind is Format.CSV:
            _write_csv(out, counted(), classes, id_column)
        elif kind is Format.JSON:
            _write_json(out, counted(), classes, id_column)
        else:
            _write_parquet(out, counted(), classes, id_column)
    return written


@contextmanager
def _target(output: Path | None, *, binary: bool) -> Iterator[Any]:
    """A Parquet file is of no use before its end is written, so it gets its name only then."""
    if output is None:
        # A terminal would obey the escape codes of a file's name; a program wants the name as it is.
        yield Plain(sys.stdout) if sys.stdout.isatty() else sys.stdout
    elif not binary:
        with output.open("w", encoding="utf-8", errors="surrogateescape", newline="") as out:
            yield out
    else:
        part = output.with_name(f".{output.name}.writing")
        try:
            with part.open("wb") as raw:
                yield raw
            part.replace(output)
        finally:
            part.unlink(missing_ok=True)


def _write_csv(out: IO[str], rows: Iterable[Prediction], classes: Sequence[str], id_column: str | None) -> None:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(to_cell, [*([] if id_column is None else [id_column]), *FIXED, *classes]))
    for file, class_name, probability, probabilities, row_id in rows:
        named = map(to_cell, [file, class_name] if id_column is None else [row_id, file, class_name])
        writer.writerow([*named, f"{probability:.6g}", *(f"{p:.6g}" for p in probabilities)])


def _write_json(out: IO[str], rows: Iterable[Prediction], classes: Sequence[str], id_column: str | None) -> None:
    """A list, one prediction per line."""
    before = "[\n"
    for file, class_name, probability, probabilities, row_id in rows:
        named = {} if id_column is None else {id_column: row_id}
        by_class = dict(zip(classes, map(float, probabilities), strict=True))
        row = {"file": file, "class": class_name, "probability": probability, "probabilities": by_class}
        out.write(before + json.dumps({**named, **row}))
        before = ",\n"
    out.write("\n]\n" if before == ",\n" else "[]\n")


def _write_parquet(out: IO[bytes], rows: Iterable[Prediction], classes: Sequence[str], id_column: str | None) -> None:
    """The columns of the CSV file, the numbers in full. A class that is called like another column gets a suffix."""
    arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    named = [] if id_column is None else [id_column]
    fixed = dict.fromkeys([*named, *FIXED[:2]], arrow.string()) | {FIXED[2]: arrow.float64()}
    names = [f"{name} (class)" if name in fixed else name for name in classes]
    schema = arrow.schema([*fixed.items(), *((name, arrow.float64()) for name in names)])
    remaining = iter(rows)
    with parquet.ParquetWriter(out, schema) as writer:
        while some := list(islice(remaining, ROW_GROUP)):
            files, class_names, best, probabilities, ids = zip(*some, strict=True)
            # A file's name may hold bytes that are no text.
            files = tuple(file.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for file in files)
            columns = [*([ids] if named else []), files, class_names, best, *np.stack(probabilities).T]
            arrays = [arrow.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            writer.write_table(arrow.Table.from_arrays(arrays, schema=schema))

"""`mixmatch predict`: classes and probabilities for a person's own image files, arrays or tables."""

from __future__ import annotations

import csv
import importlib
import json
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from enum import StrEnum
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from mixmatch import api
from mixmatch.classifier import Classifier
from mixmatch.cli.options import Device, Run
from mixmatch.data import ARRAYS, TABLES
from mixmatch.data.user.arrays import read_matrix, to_images
from mixmatch.data.user.folder import available_cores
from mixmatch.data.user.images import UnreadableImage, decode, find_images, quiet_pillow
from mixmatch.data.user.table import read_rows
from mixmatch.errors import MixMatchError

BATCH = 256
AHEAD = 2
"""Batches that are decoded while the network works on one."""

FEW = 16
"""So many files are done before a bar is of use."""

Batch = list[tuple[Path, npt.NDArray[np.uint8] | str]]
"""Files and their pixels, or why there are none."""

ROWS = (*ARRAYS, *TABLES)
Advance = Callable[[int], None]
Warn = Callable[[str], None]
Writer = Callable[[IO[Any], Iterable["Prediction"], tuple[str, ...]], None]


class Format(StrEnum):
    """How predictions are written."""

    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


class Sort(StrEnum):
    """The order of predictions, if not that of the files."""

    UNCERTAIN = "uncertain"


class Prediction(NamedTuple):
    """A file (or a row of one) and the probabilities of its classes."""

    file: Path | str
    probabilities: npt.NDArray[np.float64]

    @property
    def certainty(self) -> float:
        return float(self.probabilities.max())


def predict(
    run: Run,
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="Image files, or folders of them; arrays or tables."),
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

      mixmatch predict runs/patients new.csv
    """
    if as_json and kind not in (None, Format.JSON):
        raise MixMatchError(f"--json and --format {kind} contradict each other")
    kind = Format.JSON if as_json else kind or Format.CSV
    write: Writer
    if kind is Format.PARQUET:
        write = partial(_write_parquet, _parquet(output))
    else:
        write = _write_json if kind is Format.JSON else _write_csv
    classifier = api.load(run, device=device)
    unreadable: list[Path] = []
    work = _of_rows(classifier, paths) or _of_images(classifier, paths, unreadable)
    # Rows that pass on the same terminal are progress enough, and would tear a bar apart.
    watched = output is not None or sort is not None or not sys.stdout.isatty()
    try:
        with _target(output, binary=kind is Format.PARQUET) as out, _bar(work, shown=watched) as (advance, warn):
            predictions = work.predict(advance, warn)
            with quiet_pillow(), closing(predictions):
                rows = sorted(predictions, key=lambda p: p.certainty) if sort else predictions
                write(out, rows, classifier.classes)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise MixMatchError(f"cannot write {output or 'the output'}: {error.strerror or error}") from None
    if unreadable:
        raise typer.Exit(1)


# ------------------------------------------------------------------------------------------------------- predicting


class Work(NamedTuple):
    """How much there is to predict, of what, and how."""

    total: int
    noun: str
    predict: Callable[[Advance, Warn], Generator[Prediction]]


def _of_images(classifier: Classifier, paths: list[Path], unreadable: list[Path]) -> Work:
    if len(classifier.input_shape) == 1:
        raise MixMatchError(f"the model takes rows of a table or an array, not images: give {' or '.join(ROWS)} files")
    channels = classifier.input_shape[0]
    if channels not in (1, 3):
        raise MixMatchError(f"image files have 1 or 3 channels, but the model takes {channels}")
    files = find_images(paths)
    return Work(len(files), "image", partial(_predict, classifier, files, unreadable))


def _of_rows(classifier: Classifier, paths: list[Path]) -> Work | None:
    """Arrays and tables, which are read whole; None where the paths are others."""
    if not any(path.suffix.lower() in ROWS and not path.is_dir() for path in paths):
        return None
    found: list[tuple[list[str], npt.NDArray[Any]]] = []
    for path in paths:
        if path.suffix.lower() not in ROWS:
            raise MixMatchError(f"{path} is no {' or '.join(ROWS)} file: predict it apart from the others")
        found.append(_read_rows(classifier, path))

    def predict(advance: Advance, warn: Warn) -> Generator[Prediction]:
        for names, inputs in found:
            for start in range(0, len(names), BATCH):
                probabilities = classifier.probabilities(inputs[start : start + BATCH])
                yield from map(Prediction, names[start : start + BATCH], probabilities)
                advance(len(probabilities))

    return Work(sum(len(names) for names, _ in found), "row", predict)


def _read_rows(classifier: Classifier, path: Path) -> tuple[list[str], npt.NDArray[Any]]:
    """The names of a file's rows, and the rows as the classifier takes them."""
    try:
        if path.suffix.lower() in TABLES:
            table = read_rows(path)
            kind = "row" if isinstance(table.lines, range) else "line"
            return (
                [f"{path} {kind} {line}" for line in table.lines],
                classifier.encode(dict(zip(table.header, table.columns, strict=True))),
            )
        x = read_matrix(path)
        inputs = classifier.encode(x if x.ndim == 2 else to_images([x], path.name)[0])
        classifier.probabilities(inputs[:1])  # refuses another shape before anything is written
        return [f"{path} row {row}" for row in range(len(x))], inputs
    except MixMatchError as error:
        told = str(error)
        raise MixMatchError(told if str(path) in told else f"{path}: {told}") from None


def _predict(
    classifier: Classifier,
    files: list[Path],
    unreadable: list[Path],
    advance: Advance,
    warn: Warn,
) -> Generator[Prediction]:
    """A prediction per readable file, batch by batch; the others are named and collected."""
    with closing(_decoded(files, classifier.input_shape)) as batches:
        for batch in batches:
            images, readable = [], []
            for file, pixels in batch:
                if isinstance(pixels, str):
                    warn(f"warning: cannot read {file}: {pixels}")
                    unreadable.append(file)
                else:
                    images.append(pixels)
                    readable.append(file)
            if images:
                probabilities = classifier.predict_proba(np.stack(images))
                yield from map(Prediction, readable, probabilities)
            advance(len(batch))


def _decoded(files: list[Path], shape: tuple[int, ...]) -> Generator[Batch]:
    """Batches of files with their pixels, or why there are none, decoded ahead on all cores.

    `folder.in_order` decodes only a few images ahead: less than the network takes at once, so that the
    cores would stand still while it works.
    """
    channels, height, width = shape
    large = threading.Lock()

    def read(some: list[Path]) -> Batch:
        found: Batch = []
        for file in some:
            try:
                found.append((file, decode(file, height, width, channels, large)[0]))
            except UnreadableImage as error:
                found.append((file, str(error)))
        return found

    threads = ThreadPoolExecutor(available_cores(), "decode")

    def submit(batch: list[Path]) -> list[Future[Batch]]:
        return [threads.submit(read, some) for some in _pieces(batch, FEW)]

    try:
        batches = _pieces(files, BATCH)
        waiting = deque(map(submit, islice(batches, 1 + AHEAD)))
        while waiting:
            yield [pair for piece in waiting.popleft() for pair in piece.result()]
            waiting.extend(map(submit, islice(batches, 1)))
    finally:
        threads.shutdown(wait=True, cancel_futures=True)


def _pieces(files: list[Path], size: int) -> Iterator[list[Path]]:
    return (files[start : start + size] for start in range(0, len(files), size))


# --------------------------------------------------------------------------------------------------------- progress


class _Speed(ProgressColumn):
    def __init__(self, noun: str) -> None:
        super().__init__()
        self.noun = noun

    def render(self, task: Task) -> Text:
        return Text(f"{task.finished_speed or task.speed or 0:,.0f} {self.noun}s/s")


@contextmanager
def _bar(work: Work, shown: bool) -> Iterator[tuple[Advance, Warn]]:
    """A bar on a terminal; gives how to advance it, and how to print a line on standard error beside it."""
    console = Console(stderr=True)
    if not (shown and work.total > FEW and sys.stderr.isatty() and not console.is_dumb_terminal):
        yield lambda _: None, lambda line: print(line, file=sys.stderr)
        return
    columns = (
        TextColumn("[bold]predicting"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("files" if work.noun == "image" else "rows"),
        _Speed(work.noun),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    # Standard output is for the predictions: rich would take it over.
    with Progress(*columns, console=console, redirect_stdout=False, redirect_stderr=False) as bar:
        task = bar.add_task("", total=work.total)
        yield (
            lambda files: bar.advance(task, files),
            lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True),
        )


# ---------------------------------------------------------------------------------------------------------- writing


@contextmanager
def _target(output: Path | None, *, binary: bool) -> Iterator[IO[Any]]:
    """What to write to. A Parquet file is of no use before its end is written, so it gets its name only then."""
    if output is None:
        with nullcontext(sys.stdout) as out:
            yield out
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


def _write_json(out: IO[str], rows: Iterable[Prediction], classes: tuple[str, ...]) -> None:
    """A list, a row a line, written as the rows come."""
    before = "[\n"
    for file, probabilities in rows:
        best = int(probabilities.argmax())
        row = {
            "file": str(file),
            "class": classes[best],
            "probability": float(probabilities[best]),
            "probabilities": dict(zip(classes, map(float, probabilities), strict=True)),
        }
        out.write(before + json.dumps(row))
        before = ",\n"
    out.write("\n]\n" if before == ",\n" else "[]\n")


def _write_csv(out: IO[str], rows: Iterable[Prediction], classes: tuple[str, ...]) -> None:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["file", "class", "probability", *classes])
    for file, probabilities in rows:
        best = int(probabilities.argmax())
        writer.writerow([str(file), classes[best], f"{probabilities[best]:.6g}", *(f"{p:.6g}" for p in probabilities)])


def _parquet(output: Path | None) -> tuple[Any, Any]:
    """pyarrow and its Parquet module, asked for before anything is predicted."""
    try:
        modules = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise MixMatchError(
            "--format parquet takes pyarrow, which is not installed: pip install 'mixmatch[tables]', or use csv"
        ) from None
    if output is None:
        raise MixMatchError("--format parquet is not for standard output: name a file with --output")
    return modules


def _write_parquet(
    modules: tuple[Any, Any], out: IO[bytes], rows: Iterable[Prediction], classes: tuple[str, ...]
) -> None:
    """The columns of the CSV file, the numbers in full. A class that is called like another column gets a suffix."""
    arrow, parquet = modules
    fixed = {"file": arrow.string(), "class": arrow.string(), "probability": arrow.float64()}
    names = [f"{name} (class)" if name in fixed else name for name in classes]
    schema = arrow.schema([*fixed.items(), *((name, arrow.float64()) for name in names)])
    remaining = iter(rows)
    with parquet.ParquetWriter(out, schema) as writer:
        while some := list(islice(remaining, 64 * BATCH)):
            table = np.stack([row.probabilities for row in some])
            best = table.argmax(axis=1)
            # A file's name may hold bytes that are no text.
            files = [str(row.file).encode("utf-8", "surrogateescape").decode("utf-8", "replace") for row in some]
            columns = [files, [classes[c] for c in best], table.max(axis=1), *table.T]
            arrays = [arrow.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            writer.write_table(arrow.Table.from_arrays(arrays, schema=schema))

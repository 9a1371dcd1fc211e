"""Predict the classes of files: images, also by folders, globs and addresses; arrays (.npy, .npz); tables (.csv,
.parquet)."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from mixmatch.classifier import Classifier, load_run
from mixmatch.data import ARRAYS, TABLES
from mixmatch.data.user.arrays import read_matrix, to_images
from mixmatch.data.user.images import UnreadableImage, decode_image, parallel_chunks, quiet_pillow
from mixmatch.data.user.listing import contents, find_images, is_address
from mixmatch.data.user.table import read_rows, row_names
from mixmatch.errors import MixMatchError
from mixmatch.text import printable

ROWS = (*ARRAYS, *TABLES)
"""The endings of files that hold rows."""

AHEAD = 2
"""Batches that are decoded while the network works on one."""

OnError = Callable[[Any, str], None]
"""Called with a `Path` (of an address: text) and the reason."""
Progress = Callable[[int, int], None]
Decoded = tuple[str, npt.NDArray[np.uint8] | str]
"""A file and its pixels, or why there are none."""


class Prediction(NamedTuple):
    """What the model says of one file, or of one row of a file."""

    file: str
    """The path; for a row also its place in the file, as in "new.csv line 3"."""
    class_name: str
    """The most probable class."""
    probability: float
    """The probability of that class."""
    probabilities: npt.NDArray[np.float64]
    """Of every class, float64 (L,), in the order of `Classifier.classes`."""
    id: str | None = None
    """The row's id, from the table's id column."""


class Failure(NamedTuple):
    """A file that could not be read."""

    file: str
    error: str


Row = Prediction | Failure


def predict_files(
    run: str | Path | Classifier,
    paths: str | Path | Iterable[str | Path],
    *,
    device: str | torch.device = "auto",
    network: nn.Module | None = None,
    id_column: str | None = None,
    batch_size: int = 256,
    on_error: OnError | None = None,
    progress: Progress | None = None,
) -> Generator[Prediction, None, None]:
    """Predict image files, folders of them, or the rows of arrays and tables, one after the other as they are read.

        for prediction in mixmatch.predict_files("runs/photos", ["photos/new"]):
            print(prediction.file, prediction.class_name, prediction.probability)

    Images are decoded on all cores while the network works. Columns of a table are found by name, in any order.

    Args:
        run: a run folder, a model.safetensors file, or a classifier from `mixmatch.load`.
        paths: image files, folders, globs, and addresses of them such as s3://bucket/photos; or arrays and tables.
        device: `auto`, `cpu`, `cuda` or `mps`; a classifier stays where it is.
        network: the network that was trained, if it is not one that is built by name.
        id_column: of a table, the column that names each row; by default the one that training had, where there is one.
        batch_size: how many rows the network gets at once.
        on_error: called with each image file that cannot be read, and the reason; by default that is a warning. The
            other files are still predicted.
        progress: called with the number of files (or rows) done, and of all.

    Returns:
        An iterator of predictions in the order of the files; those of a folder are in order of name.

    Raises:
        MixMatchError: before anything is predicted, if the model or the paths cannot be used.
    """
    if batch_size < 1:
        raise MixMatchError(f"batch_size={batch_size} must be 1 or more")
    classifier = run if isinstance(run, Classifier) else load_run(run, device, network)
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    for path in given:
        if not isinstance(path, str | os.PathLike):
            raise MixMatchError(
                f"paths must be files and folders, not {type(path).__name__}; load(run).predict_proba takes arrays and "
                "tables"
            )
    if any(map(holds_rows, given)):
        total, batches = _row_batches(classifier, list(map(Path, given)), batch_size, id_column)
    else:
        image_shape(classifier)  # refuses at once what the batches would refuse late
        files = list(find_images(given))
        total, batches = len(files), predict_images(classifier, files, batch_size)
    return _predictions(batches, total, on_error, progress)


def holds_rows(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a file of rows, not an image or a folder."""
    return os.fspath(path).lower().endswith(ROWS) and not is_address(path) and not Path(path).is_dir()


def _predictions(
    batches: Generator[list[Row], None, None], total: int, on_error: OnError | None, progress: Progress | None
) -> Generator[Prediction, None, None]:
    done = 0
    if progress is not None:
        progress(done, total)
    with closing(batches):
        while True:
            with quiet_pillow():
                batch = next(batches, None)
            if batch is None:
                return
            for file, reason in (row for row in batch if isinstance(row, Failure)):
                if on_error is not None:
                    on_error(file if is_address(file) else Path(file), reason)
                else:
                    warnings.warn(printable(f"cannot read {file}: {reason}"), stacklevel=2)
            yield from (row for row in batch if isinstance(row, Prediction))
            done += len(batch)
            if progress is not None:
                progress(done, total)


def _prediction(
    classifier: Classifier, name: str, probabilities: npt.NDArray[np.float64], row_id: str | None = None
) -> Prediction:
    best = int(probabilities.argmax())
    return Prediction(name, classifier.classes[best], float(probabilities[best]), probabilities, row_id)


# -------------------------------------------------------------------------------------------------- arrays and tables


def _row_batches(
    classifier: Classifier, files: list[Path], batch_size: int, id_column: str | None
) -> tuple[int, Generator[list[Row], None, None]]:
    """The number of rows, and batches of predictions. The files are read whole, before the first prediction."""
    found: list[tuple[Sequence[str], Sequence[str | None], npt.NDArray[Any]]] = []
    for file in files:
        if file.suffix.lower() not in ROWS:
            raise MixMatchError(f"{file} is not a {' or '.join(ROWS)} file: predict it apart from the others")
        found.append(_read_rows(classifier, file, id_column))

    def batches() -> Generator[list[Row], None, None]:
        for names, ids, inputs in found:
            for start in range(0, len(names), batch_size):
                part = slice(start, start + batch_size)
                rows = zip(names[part], classifier.probabilities(inputs[part]), ids[part], strict=True)
                yield [_prediction(classifier, *row) for row in rows]

    return sum(len(names) for names, *_ in found), batches()


def _read_rows(
    classifier: Classifier, file: Path, id_column: str | None
) -> tuple[Sequence[str], Sequence[str | None], npt.NDArray[Any]]:
    """All rows of a file: what they are called, their ids, and themselves as the classifier takes them."""
    try:
        if file.suffix.lower() in TABLES:
            encoding = classifier.encoding
            own = encoding.id_column if encoding is not None else None
            written = encoding.categorical if encoding is not None else []
            table = read_rows(file, {*written, *(name for name in (own, id_column) if name is not None)})
            id_column = id_column or (own if own in table.header else None)
            ids = [None] * len(table) if id_column is None else table.text(id_column, "id_column=")
            inputs = classifier.encode(table.select(table.header))
            return row_names(table, before=f"{file} "), ids, inputs
        x = read_matrix(file)
        inputs = classifier.encode(x if x.ndim == 2 else to_images([x], file.name)[0])
        classifier.probabilities(inputs[:1])  # refuses another shape before anything is written
        return [f"{file} row {row}" for row in range(len(x))], [None] * len(x), inputs
    except MixMatchError as error:
        message = str(error)
        raise MixMatchError(message if str(file) in message else f"{file}: {message}") from None


# --------------------------------------------------------------------------------------------------------------- images


def image_shape(classifier: Classifier) -> tuple[int, int, int]:
    """(height, width, channels) of the images that a classifier takes; refused if it takes rows."""
    if len(classifier.input_shape) == 1:
        raise MixMatchError(f"the model takes rows of a table or an array, not images: give {' or '.join(ROWS)} files")
    return classifier.image_shape()


def predict_images(
    classifier: Classifier, files: Sequence[str], batch_size: int, workers: int | None = None
) -> Generator[list[Row], None, None]:
    """What the model says of image files, in their order and in batches, decoded ahead on all cores."""
    height, width, channels = image_shape(classifier)
    with closing(decoded(files, classifier.input_shape, batch_size, workers)) as batches:
        for batch in batches:
            pixels = [content for _, content in batch if not isinstance(content, str)]
            images = np.array(pixels, np.uint8).reshape(-1, height, width, channels)
            found = iter(classifier.probabilities(images))
            yield [
                Failure(file, content) if isinstance(content, str) else _prediction(classifier, file, next(found))
                for file, content in batch
            ]


def decoded(
    files: Sequence[str], shape: tuple[int, ...], batch_size: int, workers: int | None = None
) -> Generator[list[Decoded], None, None]:
    """Batches of files and their pixels, decoded on all cores, `AHEAD` of them before they are asked for."""
    channels, height, width = shape
    large = threading.Lock()

    def read(names: Sequence[str]) -> list[Decoded]:
        found: list[Decoded] = []
        for name, content in zip(names, contents(names), strict=True):
            try:
                if isinstance(content, UnreadableImage):
                    raise content
                found.append((name, decode_image(content, height, width, channels, large)[0]))
            except UnreadableImage as error:
                found.append((name, str(error)))
        return found

    with closing(parallel_chunks(read, files, AHEAD * batch_size, workers)) as results:
        while batch := list(islice(results, batch_size)):
            yield batch

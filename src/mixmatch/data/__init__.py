"""Data sets as arrays. `load("cifar10")` reads a published data set, downloading it the first time.

`SOURCES` describes each: what it holds, where its files come from and which reader they have. `read_user_data` reads
user data.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mixmatch.data.published import cifar, digits, stl10, svhn
from mixmatch.data.published.files import Layout, Warn, choose, data_folder, fetch, print_warning
from mixmatch.data.source import UNKNOWN, Rows, Source
from mixmatch.data.user.arrays import input_axes, read_arrays, read_labeled_arrays
from mixmatch.data.user.encoding import Encoding
from mixmatch.data.user.folder import read_folder, read_labeled_folder
from mixmatch.data.user.reading import Reading
from mixmatch.data.user.rows import UserData
from mixmatch.data.user.shards import is_shards, read_shards
from mixmatch.data.user.table import read_labeled_table, read_table
from mixmatch.errors import MixMatchError, nearest, unknown
from mixmatch.storage import can_be_path

__all__ = [
    "SOURCES",
    "UNKNOWN",
    "Reading",
    "Rows",
    "Source",
    "SourceInfo",
    "holds_features",
    "is_path",
    "is_published",
    "is_shards",
    "load",
    "read_labeled",
    "read_shards",
    "read_user_data",
    "source_info",
]

ARRAYS, TABLES = (".npz", ".npy"), (".csv", ".parquet", ".pq")


@dataclass(frozen=True)
class SourceInfo:
    """A data set as it is published."""

    title: str
    classes: int
    image_shape: tuple[int, int, int]
    """(H, W, C)"""
    train: int
    """Labeled images to train on."""
    test: int
    loader: Callable[[Path, Layout, bool], Source]
    """Reads the files of a layout from the data folder; if it is strict, without the cache there."""
    unlabeled: int = 0
    """Unlabeled images to train on."""
    layouts: tuple[Layout, ...] = ((),)
    """The forms it is published in; the first is downloaded."""
    download_mb: int = 0


SOURCES: dict[str, SourceInfo] = {
    "digits": SourceInfo("scikit-learn digits", 10, (8, 8, 1), 1297, 500, digits.load),
    "cifar10": SourceInfo(
        "CIFAR-10", 10, (32, 32, 3), 50_000, 10_000, cifar.CIFAR10.load,
        layouts=cifar.CIFAR10.layouts, download_mb=170,
    ),
    "cifar100": SourceInfo(
        "CIFAR-100", 100, (32, 32, 3), 50_000, 10_000, cifar.CIFAR100.load,
        layouts=cifar.CIFAR100.layouts, download_mb=169,
    ),
    "svhn": SourceInfo(
        "SVHN", 10, (32, 32, 3), 73_257, 26_032, svhn.load, layouts=(svhn.LAYOUT,), download_mb=246
    ),
    "svhn-extra": SourceInfo(
        "SVHN+Extra", 10, (32, 32, 3), 604_388, 26_032, svhn.load,
        layouts=(svhn.LAYOUT_EXTRA,), download_mb=1576,
    ),
    "stl10": SourceInfo(
        "STL-10", 10, (96, 96, 3), 5_000, 8_000, stl10.load,
        unlabeled=100_000, layouts=(stl10.LAYOUT,), download_mb=2640,
    ),
}  # fmt: skip


def source_info(name: str) -> SourceInfo:
    """The entry of `SOURCES` by name, or an error with the nearest name."""
    if name not in SOURCES:
        if not name.strip():
            raise MixMatchError("data is empty: give a name (digits, cifar10, ...) or a path")
        if Path(name).exists():
            raise unknown("data set", name, SOURCES)
        if os.sep in name or Path(name).suffix:
            raise MixMatchError(f"there is no file or folder {name}")
        near = nearest(name, SOURCES)
        hint = f": did you mean '{near}'?" if near else f" (data sets: {', '.join(sorted(SOURCES))})"
        raise MixMatchError(f"'{name}' is neither a data set nor a file or folder{hint}")
    return SOURCES[name]


def load(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    strict: bool = False,
    download: bool = True,
    warn: Warn = print_warning,
) -> Source:
    """The data set of that name, from the data folder (else MIXMATCH_DATA, else ~/.cache/mixmatch/data).

    Missing files are downloaded unless `download` is off. Files that are not the published ones are used with a
    warning; `strict` makes that an error. Images are memory-mapped from a cache of decoded ones.

    >>> load("digits").train.inputs.shape
    (1297, 8, 8, 1)
    """
    info = source_info(name)
    folder = data_folder(data_dir)
    layout = choose(info.layouts, folder)
    try:
        fetch(layout, folder, strict=strict, download=download, warn=warn)
        return info.loader(folder, layout, strict)
    except OSError as error:
        raise MixMatchError(f"cannot read {error.filename or name}: {error.strerror or error}") from error


def read_user_data(
    path: Path, reading: Reading | None = None, *, progress: Callable[[int, int], None] | None = None
) -> UserData:
    """User data: a folder of images, or of shards of them, an array (.npz, .npy) or a table (.csv, .parquet).

    Args:
        reading: how to read it. A setting that is for another kind of data is an error.
        progress: called with the number of images read, and of all.
    """
    given = {} if reading is None else reading.given
    if is_shards(path):
        _check_given(given, path, "folder of shards")
        return read_shards(path)
    if path.is_dir():
        _check_given(given, path, "folder of images", "labels_file", "image_size", "channels")
        return read_folder(path, **given, progress=progress)
    if not path.exists():
        raise MixMatchError(f"there is no file or folder {path}")
    if path.suffix.lower() in ARRAYS:
        _check_given(given, path, "file of arrays", "labels_file")
        return read_arrays(path, **given)
    if path.suffix.lower() in TABLES:
        _check_given(given, path, "table", "label_column", "part_column", "id_column", "ignore")
        return read_table(path, **given)
    raise MixMatchError(f"{path} is not a folder of images, nor a .npz, .npy, .csv or .parquet file")


def read_labeled(
    path: Path,
    classes: Sequence[str],
    input_shape: Sequence[int],
    encoding: Encoding | None = None,
    reading: Reading | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> UserData:
    """New labeled data for a trained model: rows in the form it takes, all of them in the test part.

    A folder (DIR/CLASS/*), an array or a table, as for `read_user_data`. If the data has a test part, only that is
    read. Classes are matched by name; rows of other classes, and unlabeled ones, are left out and named in `findings`.

    Args:
        classes, input_shape, encoding: the model's.
        reading: how to read it.
    """
    given = {} if reading is None else reading.given
    for name in ("image_size", "channels", "ignore"):
        if name in given:
            raise MixMatchError(f"{name}= follows from the model that is evaluated: leave it out")
    takes = "images" if len(input_shape) == 3 else "rows of a table or an array"
    if is_shards(path):
        raise MixMatchError(f"{path} is a folder of shards: give the folder of images that it was made of")
    if path.is_dir():
        if len(input_shape) != 3:
            raise MixMatchError(f"the model takes {takes}, not a folder of images")
        _check_given(given, path, "folder of images", "labels_file")
        return read_labeled_folder(path, classes, input_shape, **given, progress=progress)
    if not path.exists():
        raise MixMatchError(f"there is no file or folder {path}")
    if path.suffix.lower() in ARRAYS:
        _check_given(given, path, "file of arrays", "labels_file")
        return read_labeled_arrays(path, classes, encoding, **given)
    if path.suffix.lower() not in TABLES:
        raise MixMatchError(f"{path} is not a folder of images, nor a .npz, .npy, .csv or .parquet file")
    if encoding is None:
        raise MixMatchError(f"the model takes {takes}, not a table such as {path}")
    _check_given(given, path, "table", "label_column", "part_column", "id_column")
    return read_labeled_table(path, classes, encoding, **given)


def is_published(data: str) -> bool:
    """Whether it is the name of a published data set, or of the public part of one, as in "svhn-test"."""
    return data.removesuffix("-test") in SOURCES


def is_path(data: str) -> bool:
    """Whether a name is a path to user data."""
    return bool(data.strip()) and not is_published(data) and can_be_path(data) and Path(data).exists()


def holds_features(path: Path) -> bool:
    """Whether user data is rows of features, not images, as far as the kind of file and the shape of an array show."""
    if path.suffix.lower() in ARRAYS and path.is_file():
        return input_axes(path) == 2
    return path.suffix.lower() in TABLES and path.is_file()


def _check_given(given: Iterable[str], path: Path, kind: str, *known: str) -> None:
    for name in given:
        if name not in known:
            raise MixMatchError(f"{name}= is not for a {kind} such as {path}")

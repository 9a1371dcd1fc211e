"""The parts of a data set that PATE learns from: shards of the private images, and a pool of the public ones.

`data_options` of a run's settings says which part is the run's: "shard" for a teacher, "student" for a student. So a
teacher or a student can be resumed, evaluated and reported like any other run.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mixmatch.data import SOURCES, Reading, holds_features, is_path, read_user_data
from mixmatch.data import load as load_data
from mixmatch.data.opened import Basis, Data
from mixmatch.data.published import svhn
from mixmatch.data.published.files import data_folder, fetch
from mixmatch.data.source import UNKNOWN, Rows, Source
from mixmatch.data.split import Indices, Split
from mixmatch.data.user.arrays import CONVERTED, read_matrix
from mixmatch.draws import generator
from mixmatch.errors import MixMatchError

if TYPE_CHECKING:
    from mixmatch.settings import Settings

HALF = "half"


# -- a teacher's shard -------------------------------------------------------------------------------------------------


def cut(rows: Indices, teachers: int, seed: int, contiguous: bool = False) -> list[Indices]:
    """Disjoint shards of equal size, by a seeded permutation, or in file order as PATE 2017 and 2018 cut theirs.

    As in theirs, the remainder of the division is in no shard.
    """
    if teachers < 1:
        raise MixMatchError(f"{teachers} teachers: there must be at least one")
    size = len(rows) // teachers
    if size == 0:
        raise MixMatchError(f"{len(rows):,} private images cannot be cut into {teachers:,} shards: use fewer teachers")
    order = rows if contiguous else generator(seed, "shards", 0).permutation(rows)
    return [order[k * size : (k + 1) * size] for k in range(teachers)]


def labeled_rows(source: Source) -> Indices:
    """The private images: those with a label."""
    return np.flatnonzero(source.train.labels != UNKNOWN)


@lru_cache(maxsize=1)
def read_shards(
    data: str, folder: Path, strict: bool, reading: Reading, teachers: int, seed: int, contiguous: bool
) -> tuple[Source, list[Indices]]:
    """The data set whose training images are private, and the rows of each teacher. Read and cut once for all.

    Args:
        folder: where the data files are.
        reading: how user data is read.
    """
    source = _read_private(data, reading) if is_path(data) else load_data(data, folder, strict=strict)
    return source, cut(labeled_rows(source), teachers, seed, contiguous)


def _read_private(data: str, reading: Reading) -> Source:
    """A user's private images. How one is read may not depend on the others: each image would then affect every
    teacher, and no epsilon would hold."""
    if holds_features(Path(data)):
        raise MixMatchError(
            f"{data} holds features, which are standardized by all rows, so that each private row would affect every "
            "teacher: teachers learn from images only"
        )
    user = read_user_data(Path(data), reading)
    if any(finding.kind == CONVERTED for finding in user.findings):
        raise MixMatchError(
            f"the images of {data} are not uint8: their scale is determined from all of them, so that each private "
            "image would affect every teacher; save them as uint8"
        )
    return Source(user.name, user.classes, user.train, user.test)


def open_shard(settings: Settings, data_dir: str | Path | None, *, strict: bool = False) -> Data:
    """What one teacher learns from: its shard alone. The first `labels` images of it are labeled."""
    shard = settings.data_options["shard"]
    reading = Reading(**{name: value for name, value in settings.data_options.items() if name != "shard"})
    source, shards = read_shards(
        settings.data, data_folder(data_dir), strict, reading, shard["teachers"], shard["seed"], shard["contiguous"]
    )
    rows, nothing = shards[shard["number"]], np.empty(0, np.int64)
    own = Source(source.name, source.classes, source.train.take(rows), source.train.take(nothing))
    everything = np.arange(len(rows), dtype=np.int64)
    labeled = len(rows) if settings.labels == "all" else settings.labels
    split = Split(everything[:labeled], everything[labeled:], nothing, nothing)
    return Data(own, split, Basis(missing="teachers are not evaluated; only their votes are used"))


# -- public images -----------------------------------------------------------------------------------------------------


def public_images(name: str, data_dir: str | Path | None = None, *, strict: bool = False) -> Rows:
    """Images by name: "NAME-test" or "NAME-train" of a data set, or a .npy file of uint8 images (N, H, W, C)."""
    if Path(name).suffix == ".npy":
        images = read_matrix(Path(name))
        return Rows(images, np.full(len(images), UNKNOWN, np.int64))
    base, _, part = name.rpartition("-")
    if base not in SOURCES or part not in ("test", "train"):
        known = ", ".join(f"{known}-test" for known in SOURCES)
        raise MixMatchError(f"unknown public images '{name}': give {known}, NAME-train, or a .npy file of images")
    if part == "test":
        return load_test(base, data_dir, strict=strict)[0]
    return load_data(base, data_dir, strict=strict).train


def load_test(name: str, data_dir: str | Path | None = None, *, strict: bool = False) -> tuple[Rows, tuple[str, ...]]:
    """The test images of a data set and its classes. Of SVHN only the file of its test images is needed."""
    return _load_test(name, data_folder(data_dir), strict)


@lru_cache(maxsize=2)
def _load_test(name: str, folder: Path, strict: bool) -> tuple[Rows, tuple[str, ...]]:
    """Cached, because ten students learn from the same images."""
    if name not in ("svhn", "svhn-extra"):
        source = load_data(name, folder, strict=strict)
        return source.test, source.classes
    try:
        fetch((svhn.TEST,), folder, strict=strict)
        return svhn.load_test(folder, strict), svhn.CLASSES
    except OSError as error:
        raise MixMatchError(f"cannot read {error.filename or name}: {error.strerror or error}") from error


# -- a student's pool --------------------------------------------------------------------------------------------------


def pool_rows(pool: int | str, count: int) -> Indices:
    """The public images that a student learns from: the first `pool`, or a random half. It is evaluated on the rest."""
    if pool == HALF:
        return np.sort(generator(0, "pool", 0).permutation(count)[: count // 2])
    if not isinstance(pool, int) or not 2 <= pool < count:
        raise MixMatchError(f"pool={pool}: there are {count:,} public images, and some must be left to evaluate on")
    return np.arange(pool)


def student_options(pool: int | str, rows: Indices, labels: Indices, valid: Indices | None = None) -> dict[str, Any]:
    """A student's `data_options`: the size of its pool and the answers to learn from, as `open_student` reads them."""
    kept: dict[str, Any] = {"pool": pool, "rows": rows.tolist(), "answers": labels.tolist()}
    return {"student": kept if valid is None else {**kept, "valid": valid.tolist()}}


def open_student(settings: Settings, data_dir: str | Path | None, *, strict: bool = False) -> Data:
    """What a student learns from: its pool, with the answers as labels. No true class is among them."""
    given = settings.data_options["student"]
    if settings.labels != len(given["rows"]):
        raise MixMatchError(f"labels={settings.labels}: the student has {len(given['rows']):,} answers to learn from")
    public, classes = load_test(settings.data.removesuffix("-test"), data_dir, strict=strict)
    pool = pool_rows(given["pool"], len(public))
    test = np.setdiff1d(np.arange(len(public)), pool)
    labeled, valid = (np.searchsorted(pool, given.get(name, [])) for name in ("rows", "valid"))
    labels = np.full(len(pool), UNKNOWN, np.int64)
    labels[labeled] = given["answers"]
    source = Source(settings.data, classes, replace(public.take(pool), labels=labels), public.take(test))
    unlabeled = np.setdiff1d(np.arange(len(pool)), np.concatenate([labeled, valid]))
    split = Split(labeled, unlabeled, valid, np.arange(len(test), dtype=np.int64))
    return Data(source, split, Basis(on=f"the {len(test):,} images that are not in its pool"))

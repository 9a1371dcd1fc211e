"""STL-10: 5,000 labeled and 100,000 unlabeled images of 96x96 to train on, 8,000 to test on, ten published folds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from mixmatch.data.cache import cached_array
from mixmatch.data.published.files import (
    Archive,
    Layout,
    Published,
    checked_labels,
    count_records,
    damaged,
    read_text,
    records,
)
from mixmatch.data.source import UNKNOWN, Rows, Source

ARCHIVE = Archive(
    "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
    "91f7769df0f17e558f3565bffb0c7dfb",
    "stl10_binary.tar.gz",
)
FOLDER = "stl10_binary"
FOLD_FILE = "fold_indices.txt"
LAYOUT: Layout = (
    Published(f"{FOLDER}/train_X.bin", "918c2871b30a85fa023e0c44e0bee87f", ARCHIVE),
    Published(f"{FOLDER}/train_y.bin", "5a34089d4802c674881badbb80307741", ARCHIVE),
    Published(f"{FOLDER}/test_X.bin", "7f263ba9f9e0b06b93213547f721ac82", ARCHIVE),
    Published(f"{FOLDER}/test_y.bin", "36f9794fa4beb8a2c72628de14fa638e", ARCHIVE),
    Published(f"{FOLDER}/unlabeled_X.bin", "5242ba1fed5e4be9e1e742405eb56ca4", ARCHIVE),
    Published(f"{FOLDER}/{FOLD_FILE}", None, ARCHIVE, optional=True),
    Published(f"{FOLDER}/class_names.txt", None, ARCHIVE, optional=True),
)
CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
SIDE = 96
IMAGE = 3 * SIDE * SIDE


def load(folder: Path, layout: Layout, strict: bool = False) -> Source:
    where = folder / FOLDER
    train, unlabeled, test = (where / f"{part}_X.bin" for part in ("train", "unlabeled", "test"))
    known, test_labels = _labels(train, where / "train_y.bin"), _labels(test, where / "test_y.bin")
    labels = np.concatenate([known, np.full(count_records(unlabeled, IMAGE), UNKNOWN)])
    folds = _folds(where / FOLD_FILE, len(known))
    return Source(
        name="stl10",
        classes=_class_names(where / "class_names.txt"),
        train=Rows(_decoded(folder, "stl10-train", [train, unlabeled], len(labels), strict), labels),
        test=Rows(_decoded(folder, "stl10-test", [test], len(test_labels), strict), test_labels),
        folds=folds,
        missing_folds=None if folds else (1000, FOLD_FILE),
        balanced=True,
    )


def _decoded(folder: Path, name: str, paths: list[Path], count: int, strict: bool) -> npt.NDArray[np.uint8]:
    pieces = (piece for path in paths for piece in records(path, IMAGE))
    # The files are written column by column, as MATLAB keeps images: (N, C, W, H).
    images = (piece.reshape(-1, 3, SIDE, SIDE).transpose(0, 3, 2, 1) for piece in pieces)
    return cached_array(folder, name, paths, (count, SIDE, SIDE, 3), images, strict)


def _labels(images: Path, path: Path) -> npt.NDArray[np.int64]:
    """The labels in a file, as many as there are images in the other."""
    labels, expected = count_records(path, 1), count_records(images, IMAGE)
    if labels != expected:
        raise damaged(images, f"holds {expected:,} images for {labels:,} labels")
    return checked_labels(path, np.fromfile(path, np.uint8).astype(np.int64) - 1, len(CLASSES))


def _class_names(path: Path) -> tuple[str, ...]:
    names = tuple(read_text(path).split()) if path.is_file() else CLASSES
    if len(names) != len(CLASSES):
        raise damaged(path, f"holds {len(names)} class names, not {len(CLASSES)}")
    return names


def _folds(path: Path, labeled: int) -> tuple[npt.NDArray[np.int64], ...]:
    """One line per fold: the indices, from 0, of its labeled images among the 5,000."""
    if not path.is_file():
        return ()
    try:
        lines = [line.split() for line in read_text(path).splitlines()]
        folds = tuple(np.array(line, np.int64) for line in lines if line)
    except ValueError:
        raise damaged(path, "holds something other than indices") from None
    if not folds or any(fold.min() < 0 or fold.max() >= labeled for fold in folds):
        raise damaged(path, f"holds no folds or indices outside the {labeled:,} labeled images")
    return folds

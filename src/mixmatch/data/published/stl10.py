"""STL-10: 5,000 labeled and 100,000 unlabeled images of 96x96 to train on, 8,000 to test on, ten published folds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mixmatch.data.cache import decoded
from mixmatch.data.published.files import Archive, Layout, Published, checked_labels, count_records, damaged, records
from mixmatch.data.source import UNKNOWN, Images, Source

ARCHIVE = Archive(
    "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
    "91f7769df0f17e558f3565bffb0c7dfb",
    "stl10_binary.tar.gz",
)
FOLDER = "stl10_binary"
LAYOUT: Layout = (
    Published(f"{FOLDER}/train_X.bin", "918c2871b30a85fa023e0c44e0bee87f", ARCHIVE),
    Published(f"{FOLDER}/train_y.bin", "5a34089d4802c674881badbb80307741", ARCHIVE),
    Published(f"{FOLDER}/test_X.bin", "7f263ba9f9e0b06b93213547f721ac82", ARCHIVE),
    Published(f"{FOLDER}/test_y.bin", "36f9794fa4beb8a2c72628de14fa638e", ARCHIVE),
    Published(f"{FOLDER}/unlabeled_X.bin", "5242ba1fed5e4be9e1e742405eb56ca4", ARCHIVE),
    Published(f"{FOLDER}/fold_indices.txt", None, ARCHIVE, optional=True),
    Published(f"{FOLDER}/class_names.txt", None, ARCHIVE, optional=True),
)
CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
SIDE = 96
IMAGE = 3 * SIDE * SIDE


def load(folder: Path, layout: Layout) -> Source:
    where = folder / FOLDER
    labels = _labels(where / "train_y.bin")
    train = [where / "train_X.bin", where / "unlabeled_X.bin"]
    labeled, unlabeled = (count_records(path, IMAGE) for path in train)
    _agree(train[0], labeled, len(labels))
    test_labels = _labels(where / "test_y.bin")
    tested = count_records(where / "test_X.bin", IMAGE)
    _agree(where / "test_X.bin", tested, len(test_labels))
    return Source(
        name="stl10",
        classes=_class_names(where / "class_names.txt"),
        train=Images(
            _decoded(folder, "stl10-train", train, labeled + unlabeled),
            np.concatenate([labels, np.full(unlabeled, UNKNOWN)]),
        ),
        test=Images(_decoded(folder, "stl10-test", [where / "test_X.bin"], tested), test_labels),
        folds=_folds(where / "fold_indices.txt", labeled),
        balanced=True,
    )


def _decoded(folder: Path, name: str, paths: list[Path], count: int) -> npt.NDArray[np.uint8]:
    return decoded(folder, name, paths, (count, SIDE, SIDE, 3), _images(paths))


def _images(paths: list[Path]) -> Iterator[npt.NDArray[np.uint8]]:
    for path in paths:
        for piece in records(path, IMAGE):
            # The file is written column by column, as MATLAB keeps images: (N, C, W, H).
            yield piece.reshape(-1, 3, SIDE, SIDE).transpose(0, 3, 2, 1)


def _labels(path: Path) -> npt.NDArray[np.int64]:
    count_records(path, 1)
    return checked_labels(path, np.fromfile(path, np.uint8).astype(np.int64) - 1, len(CLASSES))


def _agree(path: Path, images: int, labels: int) -> None:
    if images != labels:
        raise damaged(path, f"holds {images:,} images for {labels:,} labels")


def _class_names(path: Path) -> tuple[str, ...]:
    names = tuple(path.read_text(errors="replace").split()) if path.is_file() else CLASSES
    if len(names) != len(CLASSES):
        raise damaged(path, f"holds {len(names)} class names, not {len(CLASSES)}")
    return names


def _folds(path: Path, labeled: int) -> tuple[npt.NDArray[np.int64], ...]:
    """One line a fold: the indices, from 0, of its labeled images among the 5,000."""
    if not path.is_file():
        return ()
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
        folds = tuple(np.array(line, np.int64) for line in lines if line)
    except ValueError:
        raise damaged(path, "holds something other than indices") from None
    if not folds or any(fold.min() < 0 or fold.max() >= labeled for fold in folds):
        raise damaged(path, f"holds no folds or indices outside the {labeled:,} labeled images")
    return folds

"""STL-10 from tiny files in its binary format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixmatch.data import UNKNOWN, load
from mixmatch.errors import MixMatchError

FOLDS = [[0, 2, 3], [5, 1, 4]]


def images(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 96, 96, 3), np.uint8)


def column_major(pixels: np.ndarray) -> bytes:
    """Red, green, blue; each written column after column."""
    return b"".join(image[:, :, channel].tobytes(order="F") for image in pixels for channel in range(3))


TRAIN, TEST, UNLABELED = images(0, 6), images(1, 3), images(2, 160)
LABELS, TEST_LABELS = [1, 10, 3, 3, 2, 7], [10, 1, 5]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    where = tmp_path / "stl10_binary"
    where.mkdir()
    (where / "train_X.bin").write_bytes(column_major(TRAIN))
    (where / "test_X.bin").write_bytes(column_major(TEST))
    (where / "unlabeled_X.bin").write_bytes(column_major(UNLABELED))
    (where / "train_y.bin").write_bytes(bytes(LABELS))
    (where / "test_y.bin").write_bytes(bytes(TEST_LABELS))
    (where / "fold_indices.txt").write_text("".join(" ".join(map(str, fold)) + " \n" for fold in FOLDS))
    (where / "class_names.txt").write_text("\n".join("abcdefghij") + "\n")
    return tmp_path


def quiet_load(folder: Path) -> Any:
    return load("stl10", folder, download=False, warn=lambda _: None)


def test_stl10(folder: Path) -> None:
    source = quiet_load(folder)
    assert source.name == "stl10"
    assert source.balanced
    assert source.classes == tuple("abcdefghij")
    assert source.image_shape == (96, 96, 3)
    np.testing.assert_array_equal(source.train.inputs, np.concatenate([TRAIN, UNLABELED]))
    assert source.train.labels.tolist() == [label - 1 for label in LABELS] + [UNKNOWN] * len(UNLABELED)
    assert source.train.labels.dtype == np.int64
    np.testing.assert_array_equal(source.test.inputs, TEST)
    assert source.test.labels.tolist() == [label - 1 for label in TEST_LABELS]
    assert [fold.tolist() for fold in source.folds] == FOLDS
    assert all(fold.dtype == np.int64 for fold in source.folds)


def test_without_the_small_files(folder: Path) -> None:
    (folder / "stl10_binary/fold_indices.txt").unlink()
    (folder / "stl10_binary/class_names.txt").unlink()
    source = quiet_load(folder)
    assert source.folds == ()
    assert source.missing_folds == (1000, "fold_indices.txt")
    assert source.classes[:3] == ("airplane", "bird", "car")
    assert len(source.classes) == 10


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("train_X.bin", b"", "is empty"),
        ("unlabeled_X.bin", column_major(UNLABELED)[:-1], "not a multiple of 27,648"),
        ("test_X.bin", column_major(TEST[:2]), "2 images for 3 labels"),
        ("train_y.bin", bytes([1, 11, 3, 3, 2, 7]), "class 10 of 0 to 9"),
        ("test_y.bin", bytes([0, 1, 2]), "class -1 of 0 to 9"),
        ("test_y.bin", b"", "is empty"),
        ("fold_indices.txt", b"0 1 x\n", "something other than indices"),
        ("fold_indices.txt", b"0 1 6\n", "outside the 6 labeled"),
        ("fold_indices.txt", b"", "no folds"),
        ("class_names.txt", b"cat\n", "1 class names, not 10"),
    ],
)
def test_damage(name: str, content: bytes, why: str, folder: Path) -> None:
    path = folder / "stl10_binary" / name
    path.write_bytes(content)
    with pytest.raises(MixMatchError) as error:
        quiet_load(folder)
    assert why in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_file_names_the_archive(folder: Path) -> None:
    (folder / "stl10_binary/unlabeled_X.bin").unlink()
    with pytest.raises(MixMatchError, match=r"stl10_binary\.tar\.gz is missing and downloads are off; get http://ai\."):
        quiet_load(folder)

"""A person's .npz and .npy files: images and feature matrices, and labels in every usual form."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

from mixmatch.data.packed import read_packed
from mixmatch.data.source import UNKNOWN
from mixmatch.data.user.arrays import input_axes, read_arrays, read_matrix
from mixmatch.data.user.encoding import Encoding
from mixmatch.data.user.rows import UserData
from mixmatch.errors import MixMatchError

random = np.random.default_rng(0)
IMAGES = random.integers(0, 256, (6, 8, 5, 3)).astype(np.uint8)
FEATURES = random.normal(3, 7, (6, 4)).astype(np.float32)
Y = np.array([0, 1, 2, -1, -1, 0])


def npz(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "own.npz", **arrays)
    return folder / "own.npz"


def kinds(user: UserData) -> list[str]:
    return [finding.kind for finding in user.findings]


def images_of(path: Path, **options: Any) -> UserData:
    user = read_arrays(path, **options)
    assert user.is_images
    return user


def features_of(path: Path, **options: Any) -> UserData:
    user = read_arrays(path, **options)
    assert user.encoding is not None
    return user


# ----------------------------------------------------------------------------------------------------------- images


def test_images(tmp_path: Path) -> None:
    user = images_of(npz(tmp_path, x=IMAGES, y=Y, x_test=IMAGES[:2], y_test=[2, 1]))
    np.testing.assert_array_equal(user.inputs, np.concatenate([IMAGES, IMAGES[:2]]))
    assert user.labels.tolist() == [0, 1, 2, UNKNOWN, UNKNOWN, 0, 2, 1]
    assert user.labels.dtype == np.int64
    assert user.classes == ("0", "1", "2")
    assert user.part == ("train",) * 6 + ("test",) * 2
    assert user.files[5:7] == ("x[5]", "x_test[0]")
    assert user.findings == ()
    np.testing.assert_array_equal(user.test.inputs, IMAGES[:2])


def test_gray_images(tmp_path: Path) -> None:
    user = images_of(npz(tmp_path, images=IMAGES[..., 0], labels=Y))
    np.testing.assert_array_equal(user.inputs, IMAGES[..., :1])


@pytest.mark.parametrize(
    "convert",
    [
        lambda x: x.astype(np.float32) / 255,
        lambda x: x.astype(np.float64),
        lambda x: x.astype(np.float16) / 255,
        lambda x: x.astype(np.int64),
        lambda x: x + np.where(x < 255, 0.25, 0),
    ],
    ids=["unit", "float64", "half", "int64", "rounded"],
)
def test_numbers_become_uint8(convert: Any, tmp_path: Path) -> None:
    user = images_of(npz(tmp_path, x=convert(IMAGES), y=Y))
    np.testing.assert_array_equal(user.inputs, IMAGES)
    assert user.inputs.dtype == np.uint8
    assert kinds(user) == ["converted"]


def test_test_images_share_the_scale(tmp_path: Path) -> None:
    """A dark test set with values up to 1 in 0..255 is dark, not in 0..1."""
    user = images_of(npz(tmp_path, x=IMAGES.astype(float), y=Y, x_test=np.ones((1, 8, 5, 3)), y_test=[0]))
    assert (user.test.inputs == 1).all()


def test_channels_first(tmp_path: Path) -> None:
    user = images_of(npz(tmp_path, x=IMAGES.transpose(0, 3, 1, 2), y=Y))
    np.testing.assert_array_equal(user.inputs, IMAGES)
    assert kinds(user) == ["channels-first"]


def test_npy_is_mapped(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", IMAGES)
    np.save(tmp_path / "y.npy", Y)
    user = images_of(tmp_path / "x.npy", labels_file=tmp_path / "y.npy")
    assert isinstance(user.inputs, np.memmap)
    assert user.labels.tolist() == Y.tolist()


# --------------------------------------------------------------------------------------------------------- features


def test_features_are_standardized_by_the_training_rows(tmp_path: Path) -> None:
    test = FEATURES[:3] + 100
    user = features_of(npz(tmp_path, X=FEATURES, y=Y, X_test=test, y_test=[0, 1, 2]))
    scaler = StandardScaler().fit(FEATURES.astype(np.float64))
    np.testing.assert_allclose(user.inputs[:6], scaler.transform(FEATURES), atol=1e-5)
    np.testing.assert_allclose(user.inputs[6:], scaler.transform(test), rtol=1e-5)
    assert user.inputs.dtype == np.float32
    again = Encoding.from_dict(user.encoding.to_dict())
    np.testing.assert_array_equal(again.apply_matrix(test), user.inputs[6:])
    with pytest.raises(MixMatchError, match=r"shape \(3, 3\), but the model takes \(N, 4\)"):
        again.apply_matrix(test[:, :3])


def test_missing_features(tmp_path: Path) -> None:
    x = np.array([[1.0, 5], [2, np.nan], [9, 5], [np.nan, 5]])
    user = features_of(npz(tmp_path, features=x, y=[0, 1, -1, -1]))
    first = np.array([1.0, 2, 9, 2])  # the median of 1, 2, 9 is 2
    np.testing.assert_allclose(user.inputs[:, 0], (first - first.mean()) / first.std(), rtol=1e-6)
    np.testing.assert_array_equal(user.inputs[:, 1], 0)
    missing, constant = user.findings
    assert missing.kind == "missing-values"
    assert "2 missing values in 2 columns" in missing.message
    assert (constant.kind, constant.severity, constant.files) == ("constant-column", "info", ("1",))


def test_unlabeled_rows_of_their_own(tmp_path: Path) -> None:
    user = features_of(npz(tmp_path, x=FEATURES[:2], y=[0, 1], x_unlabeled=FEATURES[2:]))
    assert user.labels.tolist() == [0, 1] + [UNKNOWN] * 4
    assert user.inputs.mean(axis=0) == pytest.approx(0, abs=1e-6)


# ----------------------------------------------------------------------------------------------------------- labels


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        (np.array([0.0, 1, 2, np.nan, -1, 0]), ("0", "1", "2")),
        (np.array(["a", "b", "c", "", " ", "a"]), ("a", "b", "c")),
        (np.array([b"a", b"b", b"c", b"", b"", b"a"]), ("a", "b", "c")),
        (np.array([2, 5, 10, -1, -1, 2]), ("2", "5", "10")),
        (Y[:, None].astype(np.int8), ("0", "1", "2")),
    ],
    ids=["nan", "text", "bytes", "any numbers", "column"],
)
def test_labels(y: Any, classes: tuple[str, ...], tmp_path: Path) -> None:
    user = read_arrays(npz(tmp_path, x=FEATURES, y=y))
    assert user.classes == classes
    assert user.labels.tolist() == [0, 1, 2, UNKNOWN, UNKNOWN, 0]


def test_classes_by_number_and_by_name(tmp_path: Path) -> None:
    names = ["zebra", "ant", "cat"]
    for y in (Y, np.array(["zebra", "ant", "cat", "", "", "zebra"])):
        user = read_arrays(npz(tmp_path, x=FEATURES, y=y, classes=names))
        assert user.classes == ("zebra", "ant", "cat")
        assert user.labels.tolist() == Y.tolist()


def test_class_nobody_labeled(tmp_path: Path) -> None:
    user = read_arrays(npz(tmp_path, x=FEATURES, y=Y, classes=["a", "b", "c", "d"]))
    assert user.classes == ("a", "b", "c", "d")
    assert kinds(user) == ["empty-class"]


def test_test_rows_that_cannot_be_scored(tmp_path: Path) -> None:
    user = features_of(npz(tmp_path, x=FEATURES, y=Y, x_test=FEATURES, y_test=[0, -1, 7, 1, 2, 1]))
    assert user.files[6:] == ("x_test[0]", "x_test[3]", "x_test[4]", "x_test[5]")
    assert user.labels[6:].tolist() == [0, 1, 2, 1]
    assert {f.kind: (f.severity, f.files) for f in user.findings} == {
        "unlabeled-test": ("warning", ("x_test[1]",)),
        "unknown-class": ("error", ("x_test[2]",)),
    }
    np.testing.assert_array_equal(user.inputs[7], user.inputs[3])
    pixels = images_of(npz(tmp_path, x=IMAGES, y=Y, x_test=IMAGES, y_test=[0, -1, 7, 1, 2, 1]))
    np.testing.assert_array_equal(pixels.test.inputs, IMAGES[[0, 3, 4, 5]])


def test_no_unlabeled(tmp_path: Path) -> None:
    user = read_arrays(npz(tmp_path, x=FEATURES, y=np.abs(Y)))
    assert kinds(user) == ["no-unlabeled"]


# ----------------------------------------------------------------------------------------------------------- errors


def test_names_that_are_almost_numbers(tmp_path: Path) -> None:
    user = read_arrays(npz(tmp_path, x=FEATURES, y=["--1", "10", "2", "", "", "2"]))
    assert user.classes == ("--1", "10", "2")


@pytest.mark.parametrize(
    ("arrays", "why"),
    [
        ({"z": FEATURES}, r"has no array 'x' \(it has z\)"),
        ({"x": FEATURES}, "has no labels 'y'"),
        ({"x": FEATURES, "y": Y[:5]}, r"x with 6 rows, but labels of shape \(5,\)"),
        ({"x": FEATURES, "y": np.eye(6)}, r"labels of shape \(6, 6\)"),
        ({"x": FEATURES, "y": np.full(6, -1)}, "has no labeled rows"),
        ({"x": FEATURES, "y": [1, -1, 1, -1, 1, -1]}, r"one class only \('1'\)"),
        ({"x": FEATURES, "y": [0.5, 1, 2, 3, 4, 5]}, "labels are real numbers"),
        ({"x": FEATURES, "y": [b"a", b"caf\xe9"] * 3}, r"the name b'caf\\xe9' of a class is not UTF-8: save the names"),
        ({"x": FEATURES, "y": Y, "classes": [b"a", b"b", b"\xff"]}, r"the name b'\\xff' of a class is not UTF-8"),
        ({"x": FEATURES, "y": Y, "classes": ["a", "b"]}, r"has the label 2, but its classes are 0 to 1 \(a, b\)"),
        ({"x": FEATURES, "y": list("abcabc"), "classes": ["a", "b"]}, "the label 'c', which is not among its classes"),
        ({"x": FEATURES, "y": Y, "x_test": FEATURES}, "only one of 'x_test' and 'y_test'"),
        ({"x": FEATURES, "y": Y, "x_test": IMAGES, "y_test": Y}, "rows of different shapes"),
        ({"x": FEATURES[:, 0], "y": Y}, r"x of shape \(6,\)"),
        ({"x": FEATURES[:0], "y": Y[:0]}, r"x of shape \(0, 4\), which is empty"),
        ({"x": np.ones((6, 4)), "y": Y}, "the same values in every row"),
        ({"x": FEATURES.astype(complex), "y": Y}, "must hold real numbers"),
        ({"x": np.full((6, 4), "a"), "y": Y}, "must hold real numbers"),
        ({"x": np.where(FEATURES.max() <= FEATURES, np.inf, FEATURES), "y": Y}, "1 value of the features is infinite"),
        ({"x": IMAGES - 1000.0, "y": Y}, "values from -1000 to"),
        ({"x": IMAGES * 4.0, "y": Y}, r"bring them into 0..1 or 0..255"),
        ({"x": np.full((6, 8, 8), np.nan), "y": Y}, "384 values that are no number"),
    ],
)
def test_errors(arrays: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(MixMatchError, match=why) as caught:
        read_arrays(npz(tmp_path, **arrays))
    assert "\n" not in str(caught.value)


def test_labels_in_another_kind_of_file(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", FEATURES)
    (tmp_path / "y.csv").write_text("label\na\nb\n")
    with pytest.raises(MixMatchError, match=r"cannot read .*y.csv: it is damaged or no .npz or .npy file"):
        read_arrays(tmp_path / "x.npy", labels_file=tmp_path / "y.csv")


class Touch:
    """What a malicious file would hold: loading it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    trap = np.array([Touch(tmp_path / "trapped")], object)
    np.save(tmp_path / "trap.npy", trap, allow_pickle=True)
    np.savez(tmp_path / "trap.npz", x=trap, y=Y)
    (tmp_path / "raw.npy").write_bytes(pickle.dumps(Touch(tmp_path / "trapped")))
    for name in ("trap.npy", "trap.npz", "raw.npy"):
        with pytest.raises(MixMatchError, match=r"holds Python objects|damaged"):
            read_arrays(tmp_path / name)
    assert not (tmp_path / "trapped").exists()


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(MixMatchError, match=r"there is no file .*nowhere.npz"):
        read_arrays(tmp_path / "nowhere.npz")
    whole = npz(tmp_path, x=FEATURES, y=Y).read_bytes()
    for content in (b"", b"text", whole[:100], whole[:-30]):
        (tmp_path / "bad.npz").write_bytes(content)
        with pytest.raises(MixMatchError, match="cannot read"):
            read_arrays(tmp_path / "bad.npz")
    np.save(tmp_path / "x.npy", FEATURES)
    with pytest.raises(MixMatchError, match="give labels_file="):
        read_arrays(tmp_path / "x.npy")


# ---------------------------------------------------------------------------------------------------- damaged files


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_flipped_bits_are_read_or_one_line(tmp_path: Path, save: Any) -> None:
    path = tmp_path / "own.npz"
    save(path, x=IMAGES, y=Y)
    content, rng = path.read_bytes(), np.random.default_rng(0)
    refused: list[str] = []
    for _ in range(250):
        damaged = bytearray(content)
        damaged[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            read_arrays(path)
        except MixMatchError as error:
            refused.append(str(error))
    assert 50 < len(refused) < 250
    assert not any("\n" in line for line in refused)


def test_members_that_cannot_be_unpacked_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    np.savez(path, x=IMAGES, y=Y)
    content = path.read_bytes()
    reasons = {
        (6, 1): "it is encrypted; unpack it",
        (8, 99): "it is compressed in a way that is not known here; save it with numpy.savez_compressed",
        (8, 14): "it is damaged or no",  # LZMA, which it is not
    }
    for (offset, value), reason in reasons.items():
        damaged = bytearray(content)
        for mark, further in ((b"PK\x03\x04", 0), (b"PK\x01\x02", 2)):
            place = content.find(mark)
            while place >= 0:
                damaged[place + offset + further] = value
                place = content.find(mark, place + 1)
        path.write_bytes(damaged)
        with pytest.raises(MixMatchError, match=reason):
            read_arrays(path)


@pytest.mark.filterwarnings("error")
def test_a_header_that_lies_is_one_line(tmp_path: Path) -> None:
    for shape in (f"({2**62}, 8, 5, 3)", "(999999999999, 8, 5, 3)", "(-6, 8, 5, 3)", "(6, 8, 5, 9**9)", "(" * 200):
        header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(246) + b"\n"
        array = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + IMAGES.tobytes()
        with zipfile.ZipFile(tmp_path / "own.npz", "w") as file:
            file.writestr("x.npy", array)
        (tmp_path / "own.npy").write_bytes(array)
        for name in ("own.npz", "own.npy"):
            with pytest.raises(MixMatchError, match="cannot read"):
                read_arrays(tmp_path / name)
            assert input_axes(tmp_path / name) in (0, 4)


def test_members_that_are_no_arrays_are_left_out(tmp_path: Path) -> None:
    path = npz(tmp_path, x=np.eye(4), y=[0, 1, 0, 1])
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("X", "of another program")
    assert read_arrays(path).classes == ("0", "1")
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x", "of another program")
    for read in (read_arrays, read_matrix):
        with pytest.raises(MixMatchError, match="has no array 'x'"):
            read(path)
    assert read_packed(path) is None


def test_what_unpacks_to_far_more_than_it_is_asks_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "own.npz"
    np.savez_compressed(path, x=np.zeros((6, 1024, 1024, 3), np.uint8), y=Y)
    monkeypatch.setenv("MIXMATCH_UNPACK_GB", "0.01")
    with pytest.raises(
        MixMatchError, match=r"unpacks to 0.0 GB, .* times its size: if that is right, set MIXMATCH_UNP"
    ):
        read_arrays(path)
    monkeypatch.setenv("MIXMATCH_UNPACK_GB", "much")
    with pytest.raises(MixMatchError, match="MIXMATCH_UNPACK_GB is 'much', but must be a number of gigabytes"):
        read_arrays(path)
    monkeypatch.setenv("MIXMATCH_UNPACK_GB", "1")
    assert read_arrays(path).inputs.shape == (6, 1024, 1024, 3)

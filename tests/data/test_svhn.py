"""SVHN out of MATLAB files written by scipy, compressed and not, and the real files where they are at hand."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from mixmatch.data import SOURCES, load
from mixmatch.data.published import svhn
from mixmatch.errors import MixMatchError

Part = tuple[np.ndarray, np.ndarray]


def part(seed: int, count: int) -> Part:
    """Images (N, 32, 32, 3) that deflate a little, as photographs do, and MATLAB's labels 1 to 10."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 16, (count, 32, 32, 3), np.uint8) * np.uint8(17), rng.integers(1, 11, count)


def write(path: Path, images: np.ndarray, labels: np.ndarray, *, compressed: bool = True, order: str = "Xy") -> None:
    variables = {"X": images.transpose(1, 2, 3, 0), "y": labels.astype(np.uint8)[:, None]}
    savemat(path, {name: variables[name] for name in order}, do_compression=compressed)


def write_all(folder: Path, **options: Any) -> dict[str, Part]:
    parts = {"train": part(0, 11), "test": part(1, 5), "extra": part(2, 8)}
    for name, (images, labels) in parts.items():
        write(folder / f"{name}_32x32.mat", images, labels, **options)
    return parts


def quiet_load(name: str, folder: Path) -> Any:
    return load(name, folder, download=False, warn=lambda _: None)


def expect(found: Any, *parts: Part) -> None:
    np.testing.assert_array_equal(found.inputs, np.concatenate([images for images, _ in parts]))
    np.testing.assert_array_equal(found.labels, np.concatenate([labels for _, labels in parts]) - 1)
    assert found.labels.dtype == np.int64


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("order", ["Xy", "yX"])
def test_svhn(compressed: bool, order: str, tmp_path: Path) -> None:
    parts = write_all(tmp_path, compressed=compressed, order=order)
    source = quiet_load("svhn", tmp_path)
    assert source.name == "svhn"
    assert source.classes == ("1", "2", "3", "4", "5", "6", "7", "8", "9", "0")
    assert source.image_shape == (32, 32, 3)
    expect(source.train, parts["train"])
    expect(source.test, parts["test"])
    extra = quiet_load("svhn-extra", tmp_path)
    assert extra.name == "svhn-extra"
    expect(extra.train, parts["train"], parts["extra"])
    expect(extra.test, parts["test"])


@pytest.mark.parametrize("compressed", [True, False])
def test_read_in_pieces(compressed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(svhn, "PIECE", 10_000)
    parts = write_all(tmp_path, compressed=compressed)
    expect(quiet_load("svhn-extra", tmp_path).train, parts["train"], parts["extra"])


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("count", [1, 2, 4, 5])
def test_few_images(compressed: bool, count: int, tmp_path: Path) -> None:
    """One image has no fourth dimension, up to four labels are kept inside their tag."""
    write_all(tmp_path)
    images, labels = part(5, count)
    variables = {"X": images.transpose(1, 2, 3, 0), "y": labels.astype(np.uint8)[:, None]}
    if count == 1:
        variables["X"] = variables["X"][..., 0]
    savemat(tmp_path / "test_32x32.mat", variables, do_compression=compressed)
    expect(quiet_load("svhn", tmp_path).test, (images, labels))


@pytest.mark.parametrize("kind", [np.uint8, np.int32, np.float64, np.uint16])
def test_labels_of_any_type_and_other_variables(kind: type, tmp_path: Path) -> None:
    parts = write_all(tmp_path)
    images, labels = parts["test"]
    others = {"about": "house numbers", "cell": np.array([1, "x"], object)}
    variables = others | {"X": images.transpose(1, 2, 3, 0), "y": labels.astype(kind)[:, None]}
    savemat(tmp_path / "test_32x32.mat", variables)
    expect(quiet_load("svhn", tmp_path).test, parts["test"])


def test_digit_zero_is_class_nine(tmp_path: Path) -> None:
    write_all(tmp_path)
    write(tmp_path / "test_32x32.mat", part(0, 3)[0], np.array([10, 1, 9]))
    source = quiet_load("svhn", tmp_path)
    assert source.test.labels.tolist() == [9, 0, 8]
    assert [source.classes[label] for label in source.test.labels] == ["0", "1", "9"]


def test_missing_file_says_where_to_put_it(tmp_path: Path) -> None:
    write_all(tmp_path)
    (tmp_path / "extra_32x32.mat").unlink()
    with pytest.raises(MixMatchError) as error:
        quiet_load("svhn-extra", tmp_path)
    url = "http://ufldl.stanford.edu/housenumbers/extra_32x32.mat"
    assert f"get {url} and put it at {tmp_path / 'extra_32x32.mat'}" in str(error.value)


def test_download_and_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way, with the download itself replaced by a copy."""
    from mixmatch.data.published import files

    published, folder = tmp_path / "published", tmp_path / "data"
    published.mkdir()
    parts = write_all(published)
    layout = tuple(
        dataclasses.replace(file, md5=hashlib.md5((published / file.path).read_bytes()).hexdigest())
        for file in svhn.LAYOUT
    )
    monkeypatch.setitem(SOURCES, "svhn", dataclasses.replace(SOURCES["svhn"], layouts=(layout,)))
    monkeypatch.delenv("MIXMATCH_OFFLINE", raising=False)
    monkeypatch.setattr(
        files, "_retrieve", lambda url, path, title: path.write_bytes((published / url.rsplit("/")[-1]).read_bytes())
    )
    source = load("svhn", folder)
    expect(source.train, parts["train"])
    assert sorted(path.name for path in folder.iterdir() if path.is_file()) == ["test_32x32.mat", "train_32x32.mat"]

    # Decoded images that come with the right files, and are others, are not believed by a strict check.
    [decoded] = (folder / ".mixmatch-cache").glob("svhn-train-*.npy")
    honest = np.load(decoded)
    np.save(decoded, 255 - honest)
    assert not np.array_equal(load("svhn", folder).train.inputs, honest)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    for _ in range(2):
        expect(load("svhn", folder, strict=True).train, parts["train"])
    assert len(list((tmp_path / "home").rglob("svhn-train-*.npy"))) == 1


# Damage


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("order", ["Xy", "yX"])
def test_every_cut_is_one_error(compressed: bool, order: str, tmp_path: Path) -> None:
    write_all(tmp_path, compressed=compressed, order=order)
    path = tmp_path / "test_32x32.mat"
    content = path.read_bytes()
    for size in [0, 1, 127, 128, 130, 140, 160, 200, 250, 1000, len(content) // 2, len(content) - 9, len(content) - 4]:
        path.write_bytes(content[:size])
        with pytest.raises(MixMatchError) as error:
            quiet_load("svhn", tmp_path)
        assert str(path) in str(error.value)
        assert "delete it or put the published file there" in str(error.value)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("seed", range(40))
def test_a_changed_byte_never_goes_unnoticed_when_compressed(seed: int, tmp_path: Path) -> None:
    parts = write_all(tmp_path)
    path = tmp_path / "test_32x32.mat"
    content = bytearray(path.read_bytes())
    at = 128 + int(np.random.default_rng(seed).integers(len(content) - 128))
    content[at] ^= 1 << (seed % 8)
    path.write_bytes(bytes(content))
    try:
        source = quiet_load("svhn", tmp_path)
    except MixMatchError:
        return
    expect(source.test, parts["test"])  # a bit that zlib does not use


def test_wrong_contents(tmp_path: Path) -> None:
    write_all(tmp_path)
    path = tmp_path / "test_32x32.mat"
    images, labels = part(0, 6)
    x, y = images.transpose(1, 2, 3, 0), labels[:, None]
    cases: list[tuple[dict[str, Any], str]] = [
        ({"X": x}, "no variable y"),
        ({"y": y}, "no variable X"),
        ({"X": x, "y": y[:5]}, "6 images for 5 labels"),
        ({"X": x, "y": y * 0}, "labels out of range"),
        ({"X": x, "y": y + 10}, "labels out of range"),
        ({"X": x.astype(float), "y": y}, "not 32x32x3xN bytes"),
        ({"X": x[:31], "y": y}, "not 32x32x3xN bytes"),
        ({"X": x[..., :0], "y": y[:0]}, "is empty"),
        ({"X": x, "y": y * 1j}, "labels that are not numbers"),
    ]
    for variables, why in cases:
        savemat(path, variables)
        with pytest.raises(MixMatchError) as error:
            quiet_load("svhn", tmp_path)
        assert why in str(error.value)
        assert str(path) in str(error.value)


def test_other_kinds_of_file(tmp_path: Path) -> None:
    write_all(tmp_path)
    path = tmp_path / "test_32x32.mat"
    content = path.read_bytes()
    cases = {
        "HDF5": b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(384) + b"\x89HDF\r\n\x1a\n",
        "cut short or damaged": content[:124] + b"\x01\x00MI" + content[128:],
        "Unknown mat file type": b"<html>404</html>" * 20,
    }
    for why, other in cases.items():
        path.write_bytes(other)
        with pytest.raises(MixMatchError, match=why):
            quiet_load("svhn", tmp_path)


def test_a_stream_that_ends_before_its_matrix(tmp_path: Path) -> None:
    """A complete zlib stream with too little in it must end in an error, not in a loop."""
    write_all(tmp_path, compressed=False, order="yX")
    path = tmp_path / "test_32x32.mat"
    content = path.read_bytes()
    body = zlib.compress(content[128:-4000])
    path.write_bytes(content[:128] + (15).to_bytes(4, "little") + len(body).to_bytes(4, "little") + body)
    with pytest.raises(MixMatchError, match=r"test_32x32\.mat"):
        quiet_load("svhn", tmp_path)


def test_a_size_that_no_file_of_its_length_can_hold_is_refused_before_it_is_read(tmp_path: Path) -> None:
    write_all(tmp_path, compressed=False)
    path = tmp_path / "test_32x32.mat"
    content = path.read_bytes()
    huge = (10**8).to_bytes(4, "little")
    sizes = b"\x20\0\0\0\x20\0\0\0\3\0\0\0"  # 32, 32, 3 and then the number of images; 5 and 1 for the labels
    changed = content.replace(sizes + b"\5\0\0\0", sizes + huge).replace(b"\5\0\0\0\1\0\0\0", huge + b"\1\0\0\0")
    path.write_bytes(changed)
    with pytest.raises(MixMatchError, match="100,000,000 images do not fit in it"):
        quiet_load("svhn", tmp_path)


# The real thing

REAL = Path(os.environ.get("MIXMATCH_DATA", "nowhere"))
SHA256 = {
    "train": "2ad6a4d495b01bbee807888f2c432ea3d33b94330a2d0feb0120ca20c8993b82",
    "test": "a2abccfbdf457b8d7a2d6f2fc54ce3d1df8a5979f409ffe120e189c216a1d32a",
}
COUNTS = {
    "train": [13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659, 4948],
    "test": [5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595, 1744],
}


@pytest.mark.skipif(
    not all((REAL / f"{title}_32x32.mat").is_file() for title in SHA256),
    reason="no train_32x32.mat and test_32x32.mat in $MIXMATCH_DATA",
)
def test_real_svhn() -> None:
    source = quiet_load("svhn", REAL)
    for title, found in (("train", source.train), ("test", source.test)):
        assert hashlib.sha256(found.inputs).hexdigest() == SHA256[title]
        assert np.bincount(found.labels).tolist() == COUNTS[title]
    assert (len(source.train), len(source.test)) == (73_257, 26_032)

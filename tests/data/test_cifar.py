"""CIFAR-10 and CIFAR-100 in both layouts, from tiny files written here, and the real CIFAR-10 where it is at hand."""

from __future__ import annotations

import hashlib
import os
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixmatch.data import load
from mixmatch.data.published import cifar
from mixmatch.errors import MixMatchError

BATCHES = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def batch(seed: int, count: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 32, 32, 3), np.uint8), rng.integers(0, classes, count)


def planes(images: np.ndarray) -> np.ndarray:
    """All red, then all green, then all blue, row by row: how CIFAR stores an image."""
    return np.concatenate([images[..., channel].reshape(len(images), 1024) for channel in range(3)], axis=1)


def quiet_load(name: str, folder: Path) -> Any:
    return load(name, folder, download=False, warn=lambda _: None)


def expect(part: Any, batches: list[tuple[np.ndarray, np.ndarray]]) -> None:
    np.testing.assert_array_equal(part.inputs, np.concatenate([images for images, _ in batches]))
    np.testing.assert_array_equal(part.labels, np.concatenate([labels for _, labels in batches]))
    assert part.inputs.dtype == np.uint8
    assert part.labels.dtype == np.int64


def python2_pickle(entries: dict[str, Any]) -> bytes:
    """What Python 2.7's cPickle.dump(..., protocol=2) and numpy 1.x wrote: str as raw bytes, no unicode anywhere."""

    def dump(value: Any) -> bytes:
        if isinstance(value, str):
            raw = value.encode()
            return b"U" + bytes([len(raw)]) + raw if len(raw) < 256 else b"T" + struct.pack("<i", len(raw)) + raw
        if isinstance(value, int):
            return b"K" + bytes([value]) if value < 256 else b"M" + struct.pack("<H", value)
        if isinstance(value, list):
            return b"](" + b"".join(map(dump, value)) + b"e"
        if isinstance(value, dict):
            return b"}(" + b"".join(dump(key) + dump(item) for key, item in value.items()) + b"u"
        assert isinstance(value, np.ndarray)
        rows, columns = value.shape
        return (
            b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
            + (b"(K\x01" + dump(rows) + dump(columns) + b"\x86")
            + b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
            + (b"\x89T" + struct.pack("<i", value.nbytes) + value.tobytes() + b"tb")
        )

    return b"\x80\x02" + dump(entries) + b"."


def python_files(folder: Path, how: str, count: int = 7) -> list[tuple[np.ndarray, np.ndarray]]:
    where = folder / "cifar-10-batches-py"
    where.mkdir(parents=True, exist_ok=True)
    batches = [batch(seed, count + seed, 10) for seed in range(6)]
    for name, (images, labels) in zip(BATCHES, batches, strict=True):
        entries = {
            "batch_label": f"batch {name}",
            "labels": labels.tolist(),
            "data": planes(images),
            "filenames": [f"{label}_s_{i:06}.png" for i, label in enumerate(labels)],
        }
        (where / name).write_bytes(dumped(entries, how))
    names = {"num_cases_per_batch": 7, "label_names": list(CLASSES), "num_vis": 3072}
    (where / "batches.meta").write_bytes(dumped(names, how))
    return batches


def dumped(entries: dict[str, Any], how: str) -> bytes:
    if how == "python 2":
        return python2_pickle(entries)
    kind, protocol = how.split()
    content = {key.encode() if kind == "bytes" else key: value for key, value in entries.items()}
    return pickle.dumps(content, protocol=int(protocol))


def binary_files(folder: Path, count: int = 7) -> list[tuple[np.ndarray, np.ndarray]]:
    where = folder / "cifar-10-batches-bin"
    where.mkdir(parents=True, exist_ok=True)
    batches = [batch(10 + seed, count + seed, 10) for seed in range(6)]
    for name, (images, labels) in zip(BATCHES, batches, strict=True):
        records = b"".join(bytes([y]) + x.tobytes() for x, y in zip(planes(images), labels, strict=True))
        (where / f"{name}.bin").write_bytes(records)
    return batches


HOWS = ["python 2", "bytes 2", "str 2", "bytes 3", "str 3", "bytes 4", "str 4"]


@pytest.mark.parametrize("how", HOWS)
def test_cifar10_python(how: str, tmp_path: Path) -> None:
    batches = python_files(tmp_path, how)
    source = quiet_load("cifar10", tmp_path)
    assert (source.name, source.classes, source.image_shape) == ("cifar10", CLASSES, (32, 32, 3))
    expect(source.train, batches[:5])
    expect(source.test, batches[5:])


@pytest.mark.parametrize("how", ["python 2", "str 2", "bytes 4"])
def test_more_images_than_are_copied_at_a_time(how: str, tmp_path: Path) -> None:
    batches = python_files(tmp_path, how, count=1100)
    source = quiet_load("cifar10", tmp_path)
    expect(source.train, batches[:5])
    expect(source.test, batches[5:])


@pytest.mark.parametrize("count", [5, 400])
def test_an_array_in_fortran_order(count: int, tmp_path: Path) -> None:
    python_files(tmp_path, "bytes 2")
    images, labels = batch(3, count, 10)
    entries = {"labels": labels.tolist(), "data": np.asfortranarray(planes(images))}
    (tmp_path / "cifar-10-batches-py/test_batch").write_bytes(pickle.dumps(entries, protocol=2))
    expect(quiet_load("cifar10", tmp_path).test, [(images, labels)])


def test_cifar10_binary(tmp_path: Path) -> None:
    batches = binary_files(tmp_path)
    source = quiet_load("cifar10", tmp_path)
    assert source.classes == CLASSES
    expect(source.train, batches[:5])
    expect(source.test, batches[5:])
    (tmp_path / "cifar-10-batches-bin/batches.meta.txt").write_text("\n".join("abcdefghij") + "\n\n")
    assert quiet_load("cifar10", tmp_path).classes == tuple("abcdefghij")


@pytest.mark.parametrize("layout", ["python", "binary"])
@pytest.mark.parametrize("named", [True, False])
def test_cifar100_uses_the_fine_labels(layout: str, named: bool, tmp_path: Path) -> None:
    names = [f"thing_{i}" for i in range(100)]
    parts = {"train": batch(1, 12, 100), "test": batch(2, 5, 100)}
    where = tmp_path / ("cifar-100-python" if layout == "python" else "cifar-100-binary")
    where.mkdir()
    for part, (images, labels) in parts.items():
        coarse = (labels // 5).tolist()
        if layout == "python":
            entries = {"data": planes(images), "coarse_labels": coarse, "fine_labels": labels.tolist()}
            (where / part).write_bytes(python2_pickle(entries))
        else:
            rows = zip(coarse, labels, planes(images), strict=True)
            (where / f"{part}.bin").write_bytes(b"".join(bytes([c, y]) + x.tobytes() for c, y, x in rows))
    if named and layout == "python":
        (where / "meta").write_bytes(python2_pickle({"fine_label_names": names, "coarse_label_names": ["x"]}))
    elif named:
        (where / "fine_label_names.txt").write_text("\n".join(names))
    source = quiet_load("cifar100", tmp_path)
    assert source.name == "cifar100"
    assert source.classes == tuple(names if named else map(str, range(100)))
    expect(source.train, [parts["train"]])
    expect(source.test, [parts["test"]])


def test_whichever_layout_is_there_is_read(tmp_path: Path) -> None:
    python = python_files(tmp_path, "python 2")
    expect(quiet_load("cifar10", tmp_path).test, python[5:])
    binary = binary_files(tmp_path)
    expect(quiet_load("cifar10", tmp_path).test, binary[5:])


def test_the_archive_of_either_layout_is_enough(tmp_path: Path) -> None:
    batches = python_files(tmp_path / "elsewhere", "python 2")
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "elsewhere/cifar-10-batches-py", "cifar-10-batches-py")
    warnings: list[str] = []
    source = load("cifar10", tmp_path, download=False, warn=warnings.append)
    expect(source.train, batches[:5])
    assert len(warnings) == 7, "the archive and six batches are not the published ones"


def test_nothing_there_names_the_binary_archive(tmp_path: Path) -> None:
    with pytest.raises(MixMatchError, match=r"cifar-10-binary\.tar\.gz is missing.*get https://www\.cs\.toronto\.edu"):
        quiet_load("cifar10", tmp_path)


# Pickles that are not what they seem


class Runs:
    """Pickles as a call that makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(5))
def test_a_pickle_that_runs_something_is_refused(protocol: int, tmp_path: Path) -> None:
    python_files(tmp_path, "python 2")
    path = tmp_path / "cifar-10-batches-py/data_batch_3"
    path.write_bytes(pickle.dumps({"data": Runs(tmp_path / "ran")}, protocol=protocol))
    with pytest.raises(MixMatchError) as error:
        quiet_load("cifar10", tmp_path)
    assert str(path) in str(error.value)
    if protocol >= 2:
        assert f"{os.name}.mkdir" in str(error.value)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "evil",
    [
        b"cos\nsystem\n(S'touch RAN'\ntR.",
        b"(S'touch RAN'\nios\nsystem\n.",
        b"\x80\x02cbuiltins\neval\nX\x03\x00\x00\x001+1\x85R.",
        b"\x80\x02cnumpy\nload\nX\x01\x00\x00\x00x\x85R.",
        b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00xX\x05\x00\x00\x00rot13\x86R.",
        b"\x80\x02c_codecs\ndecode\nX\x01\x00\x00\x00x\x85R.",
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\ndtype\nK\x00\x85U\x01b\x87R.",
        b"\x80\x02cnumpy\nndarray\nK\x05\x85R.",
        b"\x80\x02cnumpy\nndarray\n)\x81.",
        b"\x80\x02cnumpy\nndarray\n}U\x01aK\x01sb.",
        b"\x80\x04\x8c\x05numpy\x8c\x10lib.format.sys.x\x93.",
        b"\x80\x02\x82\x01.",
        b"Pid\n.",
        b"\x80\x02}r\xff\xff\xff\x7f.",  # a memo that would take 32 GB
        b"\x80\x03B\xff\xff\xff\xffx.",  # 4 GB in a file of 10 bytes
        b"\x80\x04\x8e\x00\x00\x00\x00\x00\x01\x00\x00x.",
    ],
)
def test_hand_made_evil(evil: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "test_batch"
    path.write_bytes(evil)
    with pytest.raises(MixMatchError) as error:
        cifar._unpickled(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "RAN").exists()


# Damage


def test_every_cut_of_a_pickle_is_one_error(tmp_path: Path) -> None:
    python_files(tmp_path, "python 2")
    path = tmp_path / "cifar-10-batches-py/test_batch"
    content = path.read_bytes()
    for size in [*range(0, 400, 7), len(content) // 2, len(content) - 5000, len(content) - 1]:
        path.write_bytes(content[:size])
        with pytest.raises(MixMatchError) as error:
            quiet_load("cifar10", tmp_path)
        assert str(path) in str(error.value)
        assert "delete it or put the published file there" in str(error.value)


def test_a_large_pickle_cut_within_its_pixels(tmp_path: Path) -> None:
    python_files(tmp_path, "python 2", count=400)
    path = tmp_path / "cifar-10-batches-py/test_batch"
    path.write_bytes(path.read_bytes()[:1_200_000])
    with pytest.raises(MixMatchError, match="test_batch is cut short"):
        quiet_load("cifar10", tmp_path)


def changed(**changes: Any) -> dict[str, Any]:
    images, labels = batch(0, 4, 10)
    return {"data": planes(images), "labels": labels.tolist()} | changes


@pytest.mark.parametrize(
    "entries",
    [
        changed(labels=[0, 1, 2, 10]),
        changed(labels=[0, 1, 2, -1]),
        changed(labels=[0, 1, 2]),
        changed(labels=[0, 1, 2, "3"]),
        changed(labels=[], data=np.zeros((0, 3072), np.uint8)),
        changed(labels=3),
        changed(data=np.zeros((4, 3072), np.int16)),
        changed(data=np.zeros((4, 3, 1024), np.uint8)),
        changed(data=np.zeros((4, 3000), np.uint8)),
        changed(data=b"pixels"),
        {"labels": [0]},
        [1, 2, 3],
    ],
)
def test_wrong_contents(entries: Any, tmp_path: Path) -> None:
    python_files(tmp_path, "python 2")
    path = tmp_path / "cifar-10-batches-py/test_batch"
    path.write_bytes(pickle.dumps(entries, protocol=2))
    with pytest.raises(MixMatchError) as error:
        quiet_load("cifar10", tmp_path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_pixels_fewer_than_the_shape_says(tmp_path: Path) -> None:
    python_files(tmp_path, "python 2")
    path = tmp_path / "cifar-10-batches-py/test_batch"
    for fortran in (b"\x89T", b"\x88T"):
        content = python2_pickle(changed()).replace(
            b"\x89T" + struct.pack("<i", 4 * 3072), fortran + struct.pack("<i", 5)
        )
        start = content.index(fortran + struct.pack("<i", 5)) + 6
        path.write_bytes(content[: start + 5] + content[start + 4 * 3072 :])
        with pytest.raises(MixMatchError, match="5 bytes of pixels, not 12,288"):
            quiet_load("cifar10", tmp_path)


def test_a_file_too_large_for_cifar_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "test_batch"
    with path.open("wb") as file:
        file.truncate(cifar.MOST_BYTES + 1)
    with pytest.raises(MixMatchError, match="too large for a CIFAR pickle"):
        cifar._unpickled(path)


@pytest.mark.parametrize("damage", ["empty", "cut", "label"])
def test_damaged_binary(damage: str, tmp_path: Path) -> None:
    binary_files(tmp_path)
    path = tmp_path / "cifar-10-batches-bin/data_batch_2.bin"
    content = path.read_bytes()
    path.write_bytes({"empty": b"", "cut": content[:-1], "label": b"\x0a" + content[1:]}[damage])
    why = {"empty": "is empty", "cut": "not a multiple of 3,073", "label": "class 10 of 0 to 9"}[damage]
    with pytest.raises(MixMatchError, match=rf"data_batch_2\.bin .*{why}.*; delete it"):
        quiet_load("cifar10", tmp_path)


def test_wrong_number_of_class_names(tmp_path: Path) -> None:
    binary_files(tmp_path)
    (tmp_path / "cifar-10-batches-bin/batches.meta.txt").write_text("cat\ndog\n")
    with pytest.raises(MixMatchError, match=r"batches\.meta\.txt holds 2 class names, not 10"):
        quiet_load("cifar10", tmp_path)


# The real thing

REAL = Path(os.environ.get("MIXMATCH_DATA", "nowhere")) / "cifar-10-batches-bin"
SHA256 = {
    "train": "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
    "test": "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
}


@pytest.mark.skipif(not (REAL / "test_batch.bin").is_file(), reason="no cifar-10-batches-bin in $MIXMATCH_DATA")
def test_real_cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    warnings: list[str] = []
    source = load("cifar10", strict=True, download=False, warn=warnings.append)
    assert warnings == []
    assert source.classes == CLASSES
    for title, part, names in (("train", source.train, BATCHES[:5]), ("test", source.test, BATCHES[5:])):
        raw = np.concatenate([np.fromfile(REAL / f"{name}.bin", np.uint8).reshape(-1, 3073) for name in names])
        pixels = np.stack([raw[:, 1 + 1024 * channel :][:, :1024] for channel in range(3)], axis=-1)
        assert hashlib.sha256(pixels.tobytes()).hexdigest() == SHA256[title]
        assert hashlib.sha256(part.inputs).hexdigest() == SHA256[title]
        np.testing.assert_array_equal(part.labels, raw[:, 0])
        assert np.bincount(part.labels).tolist() == [len(part) // 10] * 10
    assert (len(source.train), len(source.test)) == (50_000, 10_000)

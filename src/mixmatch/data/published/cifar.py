"""CIFAR-10 and CIFAR-100 in both layouts they are published in: binary records, and Python pickles, of which nothing
that they may ask to run is run."""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

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
from mixmatch.data.source import Rows, Source
from mixmatch.errors import MixMatchError

IMAGE = 3 * 32 * 32
MOST_BYTES = 512 << 20
"""No pickle of CIFAR's is larger: CIFAR-100's images are 154 MB, half as much again where they are kept as text."""
Pixels = npt.NDArray[np.uint8]
T = TypeVar("T")


def _layout(archive_name: str, archive_md5: str, folder: str, names: str, md5s: dict[str, str]) -> Layout:
    archive = Archive(f"https://www.cs.toronto.edu/~kriz/{archive_name}", archive_md5, archive_name)
    files = [Published(f"{folder}/{file}", md5, archive) for file, md5 in md5s.items()]
    return (*files, Published(f"{folder}/{names}", None, archive, optional=True))


CIFAR10_BINARY = _layout(
    "cifar-10-binary.tar.gz",
    "c32a1d4ab5d03f1284b67883e8d87530",
    "cifar-10-batches-bin",
    "batches.meta.txt",
    {
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    },
)
CIFAR10_PYTHON = _layout(
    "cifar-10-python.tar.gz",
    "c58f30108f718f92721af3b95e74349a",
    "cifar-10-batches-py",
    "batches.meta",
    {
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    },
)
CIFAR100_BINARY = _layout(
    "cifar-100-binary.tar.gz",
    "03b5dce01913d631647c71ecec9e9cb8",
    "cifar-100-binary",
    "fine_label_names.txt",
    {"train.bin": "6172c7755cfe09b2fe270c85cebc1b15", "test.bin": "4499cfba6c016c1be1438163640a0898"},
)
CIFAR100_PYTHON = _layout(
    "cifar-100-python.tar.gz",
    "eb9058c3a382ffc7106e4002c42a8d85",
    "cifar-100-python",
    "meta",
    {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
)


@dataclass(frozen=True)
class Kind:
    """What sets the two data sets apart."""

    name: str
    layouts: tuple[Layout, ...]
    classes: tuple[str, ...]
    """Their names, where no file has them."""
    label_bytes: int
    """Bytes before the pixels of a binary record; the last of them is the class (CIFAR-100: coarse, then fine)."""
    labels_key: str
    names_key: str

    def load(self, folder: Path, layout: Layout, strict: bool = False) -> Source:
        paths = [folder / file.path for file in layout if not file.optional]
        test = [path for path in paths if path.name.startswith("test")]
        train = [path for path in paths if path not in test]
        return Source(
            name=self.name,
            classes=_class_names(self, folder / layout[-1].path),
            train=_images(self, folder, f"{self.name}-train", train, strict),
            test=_images(self, folder, f"{self.name}-test", test, strict),
        )


CIFAR10 = Kind(
    name="cifar10",
    layouts=(CIFAR10_BINARY, CIFAR10_PYTHON),
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    label_bytes=1,
    labels_key="labels",
    names_key="label_names",
)
CIFAR100 = Kind(
    name="cifar100",
    layouts=(CIFAR100_BINARY, CIFAR100_PYTHON),
    classes=tuple(str(index) for index in range(100)),
    label_bytes=2,
    labels_key="fine_labels",
    names_key="fine_label_names",
)


Batch = tuple[npt.NDArray[np.int64], Iterable[Pixels]]
"""One file: its labels, and its images as rows of 3,072 bytes, those of a binary file read when asked for."""


def _images(kind: Kind, folder: Path, name: str, paths: list[Path], strict: bool) -> Rows:
    read = _binary_batch if paths[0].suffix == ".bin" else _python_batch
    batches = [read(kind, path) for path in paths]
    labels = np.concatenate([labels for labels, _ in batches])
    pieces = (rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1) for _, images in batches for rows in images)
    return Rows(cached_array(folder, name, paths, (len(labels), 32, 32, 3), pieces, strict), labels)


def _class_names(kind: Kind, path: Path) -> tuple[str, ...]:
    if not path.is_file():
        return kind.classes
    if path.suffix == ".txt":
        names = tuple(read_text(path).split())
    else:
        names = tuple(_text(name) for name in _entry(path, _unpickled(path), kind.names_key, list))
    if len(names) != len(kind.classes):
        raise damaged(path, f"holds {len(names)} class names, not {len(kind.classes)}")
    return names


def _binary_batch(kind: Kind, path: Path) -> Batch:
    size = kind.label_bytes + IMAGE
    count_records(path, size)
    labels = np.concatenate([piece[:, kind.label_bytes - 1].copy() for piece in records(path, size)])
    rows = (piece[:, kind.label_bytes :] for piece in records(path, size))
    return checked_labels(path, labels, len(kind.classes)), rows


def _python_batch(kind: Kind, path: Path) -> Batch:
    contents = _unpickled(path)
    array = _entry(path, contents, "data", _Array)
    labels = _entry(path, contents, kind.labels_key, list)
    if not all(type(label) is int for label in labels):
        raise damaged(path, "holds labels that are not numbers")
    if not labels or array.shape != (len(labels), IMAGE):
        raise damaged(path, f"holds images {array.shape} for {len(labels):,} labels")
    if len(array.data) != len(labels) * IMAGE:
        raise damaged(path, f"holds {len(array.data):,} bytes of pixels, not {len(labels) * IMAGE:,}")
    rows = np.frombuffer(array.data, np.uint8).reshape(array.shape, order="F" if array.fortran else "C")
    return checked_labels(path, labels, len(kind.classes)), np.array_split(rows, range(1000, len(rows), 1000))


# The pickles. The few names that such a file may load stand for methods of ours: nothing that a file names is imported,
# and numpy's own functions, which trust what they are given, are not called.

_NAMES = {
    ("numpy.core.multiarray", "_reconstruct"): "new_array",
    ("numpy._core.multiarray", "_reconstruct"): "new_array",
    ("numpy", "ndarray"): "array_class",
    ("numpy", "dtype"): "new_dtype",
    ("_codecs", "encode"): "encode",
}


class _DType:
    """Unsigned bytes, the only type of number that CIFAR's arrays have."""

    def __setstate__(self, state: object) -> None:
        """Byte order and alignment, which bytes do not have."""


@dataclass
class _Array:
    """A numpy array of bytes: what a pickle says of it."""

    shape: tuple[int, int] = (0, 0)
    fortran: bool = False
    data: bytes = b""

    def __setstate__(self, state: object) -> None:
        match state:
            case (_, (int() as rows, int() as size), _DType(), bool() as fortran, bytes() as data):
                self.shape, self.fortran, self.data = (rows, size), fortran, data
            case _:
                raise pickle.UnpicklingError("an array that is not bytes in two dimensions")


class _Unpickler(pickle.Unpickler):
    """Loads a CIFAR pickle, and refuses one that asks for anything else."""

    array_class = "ndarray"

    def __init__(self, file: BinaryIO, path: Path) -> None:
        super().__init__(file, encoding="bytes")
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMES:
            raise MixMatchError(
                f"{self._path} asks to load {module}.{name}, which no CIFAR file holds, and was refused; "
                "delete it or put the published file there"
            )
        return getattr(self, _NAMES[module, name])

    def new_array(self, kind: str, shape: object, code: object) -> _Array:
        if kind != self.array_class:
            raise pickle.UnpicklingError("not an array")
        return _Array()

    def new_dtype(self, name: object, align: object, copy: object) -> _DType:
        if name not in ("u1", b"u1"):
            raise pickle.UnpicklingError("not an array of bytes")
        return _DType()

    def encode(self, text: str, encoding: str) -> bytes:
        """Python 3 writes bytes in protocol 2 as text."""
        if encoding != "latin1":
            raise pickle.UnpicklingError("not an array of bytes")
        return text.encode(encoding)


def _unpickled(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    if size == 0:
        raise damaged(path, "is empty")
    if size > MOST_BYTES:
        raise damaged(path, f"is too large for a CIFAR pickle ({size:,} bytes)")
    try:
        with path.open("rb") as file:
            # What asks for more memory than its size warrants is refused before anything is loaded.
            for operation, argument, _ in pickletools.genops(file):
                if "PUT" in operation.name and argument is not None and not 0 <= argument < size:
                    raise pickle.UnpicklingError("a memo of impossible length")
            file.seek(0)
            contents = _Unpickler(file, path).load()
        return {_text(key): value for key, value in contents.items() if isinstance(key, str | bytes)}
    except (MixMatchError, OSError):
        raise
    except Exception as error:  # a damaged pickle can fail in any operation it asks for
        raise damaged(path, "is cut short or damaged (not a CIFAR pickle)") from error


def _entry(path: Path, contents: dict[str, Any], key: str, kind: type[T]) -> T:
    value = contents.get(key)
    if not isinstance(value, kind):
        raise damaged(path, f"holds no {key}")
    return value


def _text(value: object) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)

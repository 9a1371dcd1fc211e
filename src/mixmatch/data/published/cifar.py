"""CIFAR-10 and CIFAR-100 in both layouts they are published in: binary records, and Python pickles read without ever
running what a pickle may ask to run."""

from __future__ import annotations

import codecs
import enum
import pickle
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NamedTuple, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from mixmatch.data.cache import decoded
from mixmatch.data.published.files import (
    PIECE,
    Archive,
    Layout,
    Published,
    checked_labels,
    count_records,
    damaged,
    records,
)
from mixmatch.data.source import Images, Source
from mixmatch.errors import MixMatchError

IMAGE = 3 * 32 * 32
Pixels = npt.NDArray[np.uint8]
T = TypeVar("T")


def _layout(archive: Archive, folder: str, names: str, md5s: dict[str, str]) -> Layout:
    files = [Published(f"{folder}/{file}", md5, archive) for file, md5 in md5s.items()]
    return (*files, Published(f"{folder}/{names}", None, archive, optional=True))


def _archive(name: str, md5: str) -> Archive:
    return Archive(f"https://www.cs.toronto.edu/~kriz/{name}", md5, name)


CIFAR10_BINARY = _layout(
    _archive("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
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
    _archive("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
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
    _archive("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
    "cifar-100-binary",
    "fine_label_names.txt",
    {"train.bin": "6172c7755cfe09b2fe270c85cebc1b15", "test.bin": "4499cfba6c016c1be1438163640a0898"},
)
CIFAR100_PYTHON = _layout(
    _archive("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),
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
    """Their names, where no file tells them."""
    label_bytes: int
    """Bytes before the pixels of a binary record; the last of them is the class (CIFAR-100: coarse, then fine)."""
    labels_key: str
    names_key: str

    def load(self, folder: Path, layout: Layout) -> Source:
        paths = [folder / file.path for file in layout if not file.optional]
        test = [path for path in paths if path.name.startswith("test")]
        train = [path for path in paths if path not in test]
        return Source(
            name=self.name,
            classes=_class_names(self, folder / layout[-1].path),
            train=_images(self, folder, f"{self.name}-train", train),
            test=_images(self, folder, f"{self.name}-test", test),
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


class _Batch(NamedTuple):
    """One file: its labels, and its images as rows of 3,072 bytes, read when asked for."""

    labels: npt.NDArray[np.int64]
    rows: Iterator[Pixels]


def _images(kind: Kind, folder: Path, name: str, paths: list[Path]) -> Images:
    read = _binary_batch if paths[0].suffix == ".bin" else _python_batch
    batches = [read(kind, path) for path in paths]
    labels = np.concatenate([batch.labels for batch in batches])
    pieces = (rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1) for batch in batches for rows in batch.rows)
    return Images(decoded(folder, name, paths, (len(labels), 32, 32, 3), pieces), labels)


def _class_names(kind: Kind, path: Path) -> tuple[str, ...]:
    if not path.is_file():
        return kind.classes
    if path.suffix == ".txt":
        names = tuple(path.read_text(errors="replace").split())
    else:
        names = tuple(_text(name) for name in _entry(path, _unpickled(path), kind.names_key, list))
    if len(names) != len(kind.classes):
        raise damaged(path, f"holds {len(names)} class names, not {len(kind.classes)}")
    return names


def _binary_batch(kind: Kind, path: Path) -> _Batch:
    size = kind.label_bytes + IMAGE
    count_records(path, size)
    labels = np.concatenate([piece[:, kind.label_bytes - 1].copy() for piece in records(path, size)])
    rows = (piece[:, kind.label_bytes :] for piece in records(path, size))
    return _Batch(checked_labels(path, labels, len(kind.classes)), rows)


def _python_batch(kind: Kind, path: Path) -> _Batch:
    contents = _unpickled(path)
    array = _entry(path, contents, "data", _Array)
    labels = _entry(path, contents, kind.labels_key, list)
    if not all(type(label) is int for label in labels):
        raise damaged(path, "holds labels that are not numbers")
    if not labels or array.shape != (len(labels), IMAGE):
        raise damaged(path, f"holds images {array.shape} for {len(labels):,} labels")
    return _Batch(checked_labels(path, labels, len(kind.classes)), _array_rows(path, array))


# The pickles. Only the opcodes that such files are made of are known, and the few functions they name stand for
# themselves: nothing named in a file is ever imported or called. The pixels are not read but remembered as a span of
# the file, so that they are never in memory as a whole.


class _Name(enum.Enum):
    """The functions and classes a CIFAR pickle names."""

    RECONSTRUCT = enum.auto()
    NDARRAY = enum.auto()
    DTYPE = enum.auto()
    ENCODE = enum.auto()


_NAMES = {
    ("numpy.core.multiarray", "_reconstruct"): _Name.RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _Name.RECONSTRUCT,
    ("numpy", "ndarray"): _Name.NDARRAY,
    ("numpy", "dtype"): _Name.DTYPE,
    ("_codecs", "encode"): _Name.ENCODE,
}

_OPCODES = {
    *(pickle.PROTO, pickle.FRAME, pickle.STOP),
    *(pickle.MARK, pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
    *(pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS, pickle.EMPTY_DICT, pickle.SETITEM, pickle.SETITEMS),
    *(pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE, pickle.BINGET, pickle.LONG_BINGET),
    *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE),
    *(pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1),
    *(pickle.SHORT_BINSTRING, pickle.SHORT_BINBYTES, pickle.SHORT_BINUNICODE),
    *(pickle.GLOBAL, pickle.STACK_GLOBAL),
}
"""What pickle itself may do here, of protocols 2 to 4; the rest is done below or not at all."""

_BIG = 1 << 20


@dataclass(frozen=True)
class _Span:
    """Bytes left in the file. Python 3 writes bytes in protocol 2 as text: latin-1, in utf-8."""

    start: int
    size: int
    utf8: bool


@dataclass(frozen=True)
class _DType:
    name: str


@dataclass
class _Array:
    """A numpy array of bytes that was not made."""

    shape: tuple[int, int] = (0, 0)
    fortran: bool = False
    data: bytes | _Span = b""


class _Unpickler(pickle._Unpickler):
    stack: list[Any]
    append: Callable[[Any], None]
    read: Callable[[int], bytes]
    _unframer: Any
    dispatch: ClassVar[dict[int, Any]] = {code[0]: pickle._Unpickler.dispatch[code[0]] for code in _OPCODES}

    def __init__(self, file: BinaryIO, path: Path) -> None:
        super().__init__(file, encoding="bytes")
        self._open, self._path, self._end = file, path, path.stat().st_size

    def find_class(self, module: str, name: str) -> _Name:
        return _NAMES.get((module, name)) or self._refuse(f"{module}.{name}")

    def _refuse(self, what: str) -> NoReturn:
        raise MixMatchError(
            f"{self._path} asks to load {what}, which no CIFAR file holds, and was refused; "
            "delete it or put the published file there"
        )

    def load_reduce(self) -> None:
        arguments = self.stack.pop()
        match self.stack.pop(), arguments:
            case _Name.RECONSTRUCT, (_Name.NDARRAY, _, _):
                self.append(_Array())
            case _Name.DTYPE, (name, _, _):
                self.append(_DType(_text(name)))
            case _Name.ENCODE, (_Span(utf8=True) as span, "latin1"):
                self.append(span)
            case _Name.ENCODE, (str() as text, "latin1"):
                self.append(text.encode("latin1"))
            case name, _:
                self._refuse(f"something by {name}")

    def load_build(self) -> None:
        state = self.stack.pop()
        match self.stack[-1], state:
            case _DType(), _:
                pass
            case _Array() as array, (
                _,
                (int() as n, int() as size),
                _DType("u1"),
                bool(order),
                bytes() | _Span() as data,
            ):
                array.shape, array.fortran, array.data = (n, size), order, data
            case _:
                raise pickle.UnpicklingError("an array that is not bytes in two dimensions")

    def _payload(self, size: int, utf8: bool = False) -> bytes | _Span:
        if size < 0 or size > self._end:
            raise EOFError
        if size < _BIG or self._unframer.current_frame:
            return self.read(size)
        span = _Span(self._open.tell(), size, utf8)
        if span.start + size > self._end:
            raise EOFError
        self._open.seek(size, 1)
        return span

    def _load_bytes(self, length: str) -> None:
        (size,) = struct.unpack(length, self.read(struct.calcsize(length)))
        self.append(self._payload(size))

    def _load_text(self, length: str) -> None:
        (size,) = struct.unpack(length, self.read(struct.calcsize(length)))
        text = self._payload(size, utf8=True)
        self.append(text if isinstance(text, _Span) else str(text, "utf-8"))

    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.BINSTRING[0]] = lambda self: self._load_bytes("<i")
    dispatch[pickle.BINBYTES[0]] = lambda self: self._load_bytes("<I")
    dispatch[pickle.BINBYTES8[0]] = lambda self: self._load_bytes("<Q")
    dispatch[pickle.BINUNICODE[0]] = lambda self: self._load_text("<I")
    dispatch[pickle.BINUNICODE8[0]] = lambda self: self._load_text("<Q")


def _unpickled(path: Path) -> dict[str, Any]:
    if path.stat().st_size == 0:
        raise damaged(path, "is empty")
    try:
        with path.open("rb") as file:
            contents = _Unpickler(file, path).load()
        return {_text(key): value for key, value in contents.items()}
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


def _array_rows(path: Path, array: _Array) -> Iterator[Pixels]:
    count, size = array.shape
    seen, rest = 0, bytearray()
    for piece in _array_bytes(path, array.data):
        seen += len(piece)
        rest += piece
        if not array.fortran:
            whole = len(rest) // size * size
            yield np.frombuffer(rest, np.uint8, whole).reshape(-1, size)
            rest = rest[whole:]
    if seen != count * size:
        raise damaged(path, f"holds {seen:,} bytes of pixels, not {count * size:,}")
    if array.fortran:
        columns = np.frombuffer(rest, np.uint8).reshape(size, count)
        yield from (columns[:, start : start + 1000].T for start in range(0, count, 1000))


def _array_bytes(path: Path, data: bytes | _Span) -> Iterator[bytes]:
    if isinstance(data, bytes):
        yield data
        return
    decoder = codecs.getincrementaldecoder("utf-8")()
    with path.open("rb") as file:
        file.seek(data.start)
        for done in range(0, data.size, PIECE):
            piece = file.read(min(PIECE, data.size - done))
            try:
                yield decoder.decode(piece).encode("latin1") if data.utf8 else piece
            except UnicodeError:
                raise damaged(path, "is damaged (its pixels are not bytes)") from None

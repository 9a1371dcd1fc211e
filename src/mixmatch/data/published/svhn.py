"""SVHN, the house numbers, out of MATLAB files: `X` is read as a stream, since the extra images would fill the memory
of a small machine."""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from mixmatch.data.cache import decoded
from mixmatch.data.published.files import PIECE, Layout, Published, checked_labels, damaged
from mixmatch.data.source import Images, Source

URL = "http://ufldl.stanford.edu/housenumbers"
TRAIN = Published("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373", f"{URL}/train_32x32.mat")
TEST = Published("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3", f"{URL}/test_32x32.mat")
EXTRA = Published("extra_32x32.mat", "a93ce644f1a588dc4d68dda5feec44a7", f"{URL}/extra_32x32.mat")
LAYOUT: Layout = (TRAIN, TEST)
LAYOUT_EXTRA: Layout = (TRAIN, TEST, EXTRA)

CLASSES = tuple("1234567890")
"""Label 10 stands for the digit 0, and the paper's code takes the label minus one: the digit 0 is class 9."""
IMAGE = 32 * 32 * 3


def load(folder: Path, layout: Layout) -> Source:
    """Train, with extra after it where the layout has that."""
    train = [folder / file.path for file in layout if file.path != TEST.path]
    name = "svhn-extra" if len(train) > 1 else "svhn"
    return Source(
        name=name,
        classes=CLASSES,
        train=_images(folder, f"{name}-train", train),
        test=load_test(folder),
    )


def load_test(folder: Path) -> Images:
    return _images(folder, "svhn-test", [folder / TEST.path])


def _images(folder: Path, name: str, paths: Sequence[Path]) -> Images:
    labels = [_labels(path) for path in paths]
    for path, own in zip(paths, labels, strict=True):
        if (count := _count(path)) != len(own):
            raise damaged(path, f"holds {count:,} images for {len(own):,} labels")
    together = np.concatenate(labels)
    pieces = (piece for path in paths for piece in _pixels(path))
    return Images(decoded(folder, name, paths, (len(together), 32, 32, 3), pieces), together)


def _labels(path: Path) -> npt.NDArray[np.int64]:
    with _variable(path, "y") as y:
        values = np.frombuffer(y.read(y.size), _NUMBERS[y.kind])
    if len(values) == 0:
        raise damaged(path, "is empty")
    return checked_labels(path, values.astype(np.int64) - 1, len(CLASSES))


def _count(path: Path) -> int:
    with _variable(path, "X") as x:
        return x.size // IMAGE


def _pixels(path: Path) -> Iterator[npt.NDArray[np.uint8]]:
    with _variable(path, "X") as x:
        for start in range(0, x.size, step := PIECE // IMAGE * IMAGE):
            piece = np.frombuffer(x.read(min(step, x.size - start)), np.uint8)
            # MATLAB keeps (32, 32, 3, N) with the first index fastest: read in order that is (N, C, W, H).
            yield piece.reshape(-1, 3, 32, 32).transpose(0, 3, 2, 1)
        x.finish()


# MATLAB 5 files: a header of 128 bytes, then elements, each a tag (type, bytes) and a body. A variable is an element
# of type 14 made of elements (flags, dimensions, name, numbers), or a zlib stream, type 15, that holds one such.

_MATRIX, _COMPRESSED = 14, 15
_NUMBERS = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}

Read = Callable[[int], bytes]


@dataclass(frozen=True)
class _Matrix:
    """A variable whose `size` bytes of numbers, of type `kind`, are next to be read."""

    name: str
    kind: int
    size: int
    read: Read
    finish: Callable[[], None] = lambda: None
    """Called after all is read, raises an error if a checksum says that it was not what was written."""


@contextmanager
def _variable(path: Path, name: str) -> Iterator[_Matrix]:
    """The variable of that name, open for reading. Whatever is wrong with the file becomes one error that names it."""
    try:
        with path.open("rb") as file:
            _check_header(file, path)
            yield next(matrix for matrix in _matrices(file) if matrix.name == name)
    except StopIteration:
        raise damaged(path, f"holds no variable {name}") from None
    except (EOFError, zlib.error, struct.error, ValueError, KeyError) as error:
        raise damaged(path, f"is cut short or damaged ({str(error) or 'it ends too early'})") from error


def _check_header(file: BinaryIO, path: Path) -> None:
    header = file.read(128)
    if not header:
        raise damaged(path, "is empty")
    if header.startswith((b"\x89HDF", b"MATLAB 7.3")):
        raise damaged(path, "is a MATLAB 7.3 (HDF5) file, not the version 5 that SVHN is published in")
    if header[126:] == b"MI":
        raise damaged(path, "is a big-endian MATLAB file, not the little-endian one that SVHN is published in")
    if header[124:] != b"\x00\x01IM":
        raise damaged(path, "is not a MATLAB file")


def _matrices(file: BinaryIO) -> Iterator[_Matrix]:
    total = os.fstat(file.fileno()).st_size
    while tag := file.read(8):
        kind, size = struct.unpack("<II", tag)
        if (end := file.tell() + size) > total:
            raise EOFError
        if kind == _COMPRESSED:
            inflated = _Inflated(file, size)
            if struct.unpack("<I", inflated.read(8)[:4])[0] == _MATRIX:
                yield replace(_matrix(inflated.read), finish=inflated.finish)
        elif kind == _MATRIX:
            yield _matrix(lambda count: _exactly(file, count))
        file.seek(end)


def _matrix(read: Read) -> _Matrix:
    flags = struct.unpack("<II", _element(read))[0]
    shape = np.frombuffer(_element(read), "<i4").tolist()
    name = _element(read).decode("latin1")
    kind, size, inside = _tag(read)
    if name in ("X", "y"):
        width = np.dtype(_NUMBERS[kind]).itemsize
        if flags & 0x0800 or size != width * math.prod(shape):
            raise ValueError(f"the numbers of {name} are not those of an array {shape}")
        if name == "X" and (kind != 2 or shape[:3] != [32, 32, 3]):
            raise ValueError(f"X is {shape}, not 32x32x3xN bytes")
    return _Matrix(name, kind, size, read if inside is None else lambda count: inside[:count])


def _element(read: Read) -> bytes:
    _, size, inside = _tag(read)
    if inside is not None:
        return inside
    if size > 4096:
        raise ValueError("a header of impossible length")
    return read(size + -size % 8)[:size]


def _tag(read: Read) -> tuple[int, int, bytes | None]:
    """Type, number of bytes and, for a body of up to four bytes, which is kept in the tag itself, that body."""
    tag = read(8)
    kind, size = struct.unpack("<HH", tag[:4])
    if size:
        return kind, size, tag[4 : 4 + size]
    kind, size = struct.unpack("<II", tag)
    return kind, size, None


def _exactly(file: BinaryIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) < count:
        raise EOFError
    return data


class _Inflated:
    """Reads a zlib stream of `size` bytes from the file, holding no more than a piece of it."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._left = file, size
        self._zlib = zlib.decompressobj()
        self._waiting = b""

    def read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            if not self._waiting and self._left:
                self._waiting = _exactly(self._file, min(self._left, 1 << 16))
                self._left -= len(self._waiting)
            piece = self._zlib.decompress(self._waiting, count - len(data))
            self._waiting = self._zlib.unconsumed_tail
            if not piece and not self._waiting and (self._zlib.eof or not self._left):
                raise EOFError
            data += piece
        return bytes(data)

    def finish(self) -> None:
        """Run into the end of the stream, where zlib compares its checksum."""
        self._zlib.decompress(self._waiting + self._file.read(self._left), 8)
        if not self._zlib.eof:
            raise EOFError

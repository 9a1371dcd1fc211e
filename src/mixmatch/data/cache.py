"""Decoded images, kept on disk as plain .npy files and memory-mapped, so that a data set larger than memory loads at
once and the second start decodes nothing."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from mixmatch.errors import MixMatchError, explaining
from mixmatch.storage import check_plain, digest, open_own, temporary, try_lock

FORMAT = 1
"""Part of every key: raise it when decoding changes, so that old caches are not used."""

QUIET = 10.0
"""Seconds. What was written to more recently may be another machine's, whose lock not every file system shows."""


def user_cache() -> Path:
    """The user's own cache, which nobody else writes to."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "mixmatch"


def cache_folder(data_dir: Path, *, strict: bool = False) -> Path:
    """`DATA/.mixmatch-cache`, or a separate folder under the user's cache if the data folder is read-only, if there is
    a link in that place, or if a `strict` check must not trust a cache that came with the data."""
    beside = data_dir / ".mixmatch-cache"
    if not strict and not beside.is_symlink() and _writable(beside):
        return beside
    # The name holds the data folder's path: two read-only folders must not evict each other's images.
    return user_cache() / "decoded" / digest(str(data_dir.resolve()))


def cached_array(
    data_dir: Path,
    name: str,
    sources: Sequence[Path],
    shape: tuple[int, ...],
    pieces: Iterable[npt.NDArray[np.uint8]],
    strict: bool = False,
) -> npt.NDArray[np.uint8]:
    """The uint8 array of this `shape` whose rows `pieces` yields in order, memory-mapped from the cache.

    `pieces` is read only if the `sources` (path, size and modification time) have not been decoded before under this
    `name`; files of older versions are removed. If `strict`, a cache beside the data is not used.
    """
    stats = [(os.path.relpath(path, data_dir), path.stat()) for path in sources]
    key = digest(json.dumps([FORMAT, name, [(path, s.st_size, s.st_mtime_ns) for path, s in stats]]))
    file_name = f"{name}-{key}.npy"
    if not strict and (array := mapped(data_dir / ".mixmatch-cache" / file_name, shape)) is not None:
        return array
    path = cache_folder(data_dir, strict=strict) / file_name
    if (array := mapped(path, shape)) is not None:
        return array
    remove_abandoned(path)
    size = f"{int(np.prod(shape)) / 1e6:,.0f} MB of decoded images"
    with new_file(path, size, "choose another data folder") as part:
        write_rows(part, shape, pieces)
    remove_abandoned(path)  # again: what a process wrote that was killed just before is quiet by now
    for stale in earlier(path):
        stale.unlink(missing_ok=True)
    if (array := mapped(path, shape)) is None:
        raise MixMatchError(f"the data files of {name} changed while they were read; start again")
    return array


@contextmanager
def new_file(path: Path, what: str, remedy: str) -> Iterator[Path]:
    """A temporary name that becomes `path` once the file is written, whole or not at all."""
    with (
        explaining(f"cannot keep {what} in {path.parent}", f"free some space there or {remedy}"),
        temporary(path) as part,
    ):
        yield part
        part.replace(path)


def write_rows(path: Path, shape: tuple[int, ...], pieces: Iterable[npt.NDArray[np.uint8]]) -> None:
    """Write a .npy file of the uint8 rows in `pieces`. There may be fewer than `shape` says; the file says how many."""
    # Plain writes, not a writable memory map: dirty mapped pages count as resident memory, and a full disk
    # would end the process with a bus error instead of an exception.
    written = 0
    with path.open("xb") as file:
        try_lock(file.fileno())  # for `remove_abandoned`
        begin = _write_header(file, shape)
        for piece in pieces:
            file.write(np.ascontiguousarray(piece).data)
            written += len(piece)
        file.seek(0)
        if _write_header(file, (written, *shape[1:])) != begin:  # NumPy leaves room for the rows to grow
            raise RuntimeError("the header of a .npy file changed its length")


def mapped(path: Path, shape: tuple[int, ...] | None = None) -> npt.NDArray[np.uint8] | None:
    """The array of bytes in a .npy file, memory-mapped; None if there is none, or none of this shape."""
    try:
        check_plain(path)
        array: npt.NDArray[np.uint8] = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception:  # a damaged header makes NumPy raise nearly everything
        return None
    return array if array.dtype == np.uint8 and shape in (None, array.shape) else None


def earlier(path: Path) -> list[Path]:
    """Files that differ from `path` in the hash at the end of their names: what older versions of the sources left."""
    name = path.stem.rpartition("-")[0]
    return [file for file in path.parent.glob(f"{name}-{'[0-9a-f]' * 16}.npy") if file != path]


def remove_abandoned(path: Path) -> None:
    """Remove what killed processes had written of `path`, and of what older versions of the sources were to be."""
    pattern = f".{path.stem.rpartition('-')[0]}-{'[0-9a-f]' * 16}.npy.{'[0-9a-f]' * 32}.part"
    for part in path.parent.glob(pattern):
        with suppress(OSError):
            if _quiet(part):
                with os.fdopen(open_own(part), "rb") as file:
                    abandoned = try_lock(file.fileno()) and _quiet(part)  # not one that has just got its last bytes
                if abandoned:
                    part.unlink()


def _quiet(path: Path) -> bool:
    return time.time() - path.lstat().st_mtime > QUIET


def _write_header(file: BinaryIO, shape: tuple[int, ...]) -> int:
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return file.tell()


def _writable(folder: Path) -> bool:
    try:
        with temporary(folder / "probe") as probe:
            probe.touch()
    except OSError:
        return False
    return True

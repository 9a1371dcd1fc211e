"""Decoded images, kept on disk as plain .npy files and memory-mapped, so that a data set larger than memory loads at
once and the second start decodes nothing."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mixmatch.errors import MixMatchError
from mixmatch.storage import temporary

FORMAT = 1
"""Part of every key: raise it when decoding changes, and old caches are not used."""


def cache_folder(data_dir: Path) -> Path:
    """`DATA/.mixmatch-cache`, or a folder of its own under the user's cache where the data folder is read-only."""
    beside = data_dir / ".mixmatch-cache"
    if _writable(beside):
        return beside
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    # The name holds the data folder's path: two read-only folders must not evict each other's images.
    return home / "mixmatch" / "decoded" / _digest(str(data_dir.resolve()))


def decoded(
    data_dir: Path,
    name: str,
    sources: Sequence[Path],
    shape: tuple[int, ...],
    pieces: Iterable[npt.NDArray[np.uint8]],
) -> npt.NDArray[np.uint8]:
    """The uint8 array of this `shape` whose rows `pieces` yields in order, memory-mapped from the cache.

    `pieces` is read only if the `sources` (path, size and time of change) have not been decoded before under this
    `name`; what an older version of them left is removed.
    """
    file_name = f"{name}-{_key(data_dir, name, sources)}.npy"
    if (array := _mapped(data_dir / ".mixmatch-cache" / file_name, shape)) is not None:
        return array
    folder = cache_folder(data_dir)
    path = folder / file_name
    if (array := _mapped(path, shape)) is not None:
        return array
    try:
        with temporary(path) as part:
            _write(part, shape, pieces)
            part.replace(path)
    except OSError as error:
        raise MixMatchError(
            f"cannot keep {int(np.prod(shape)) / 1e6:,.0f} MB of decoded images in {folder}: "
            f"{error.strerror or error}; free some space there or choose another data folder"
        ) from error
    for stale in folder.glob(f"{name}-{'[0-9a-f]' * 16}.npy"):
        if stale != path:
            stale.unlink(missing_ok=True)
    if (array := _mapped(path, shape)) is None:
        raise MixMatchError(f"the data files of {name} changed while they were read; start again")
    return array


def _write(path: Path, shape: tuple[int, ...], pieces: Iterable[npt.NDArray[np.uint8]]) -> None:
    # Plain writes, not a writable memory map: dirty mapped pages count as resident memory, and a full disk
    # would end the process with a bus error instead of an exception.
    with path.open("xb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for piece in pieces:
            file.write(np.ascontiguousarray(piece).data)


def _mapped(path: Path, shape: tuple[int, ...]) -> npt.NDArray[np.uint8] | None:
    try:
        array: npt.NDArray[np.uint8] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return array if array.shape == shape and array.dtype == np.uint8 else None


def _key(data_dir: Path, name: str, sources: Sequence[Path]) -> str:
    stats = [(os.path.relpath(path, data_dir), path.stat()) for path in sources]
    return _digest(json.dumps([FORMAT, name, [(path, s.st_size, s.st_mtime_ns) for path, s in stats]]))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _writable(folder: Path) -> bool:
    try:
        with temporary(folder / "probe") as probe:
            probe.touch()
    except OSError:
        return False
    return True

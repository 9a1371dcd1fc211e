"""Files that survive a crash: whole or not there at all, and locks between processes."""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

A_DAY = 24 * 3600


BINARY = getattr(os, "O_BINARY", 0)
"""What Windows needs to be told when a file is opened by `os.open`."""

PRIVATE = 0o600
"""The mode of a file that only its owner may read."""


def write_durably(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a new file and wait until it is on the disk. One that is there already, or a link, is an error."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_durably(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a file so that at every moment either the old content or the new is there, whole. A link is replaced, not
    followed."""
    part = _unforeseeable(path)
    try:
        write_durably(part, content, mode)
        part.replace(path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder last. Windows neither needs nor allows it."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def temporary(path: Path) -> Iterator[Path]:
    """A name beside `path` that no other process uses, gone at the end unless it was renamed to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = _unforeseeable(path)
    try:
        yield part
    finally:
        part.unlink(missing_ok=True)


def _unforeseeable(path: Path) -> Path:
    """A new name beside `path`. Those that processes left which were killed are removed after a day."""
    for orphan in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        with suppress(OSError):  # a younger one may still be at work
            if time.time() - orphan.stat().st_mtime > A_DAY:
                orphan.unlink()
    return path.with_name(f".{path.name}.{uuid4().hex}.part")


def try_lock(handle: int) -> bool:
    try:
        if os.name == "posix":
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
    except OSError:
        return False
    return True

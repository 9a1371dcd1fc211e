"""Files that survive a crash, whole or not there at all; files of strangers, read with care; locks between processes.

A folder may come from anyone. What is read in it are plain files of a bounded size: a link is not followed, a pipe is
not waited for, a device is not drained. What is removed or written in it stays in it.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any
from uuid import uuid4

A_DAY = 24 * 3600

TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{32}\.part")
"""What a file is called while it is written."""

MOST_JSON = 128 * 2**20
"""Bytes of a JSON file, at most: parsed it takes up to 24 times as much."""

DEEPEST = 64
"""How deep JSON may be nested. Python's own limit is where it crashes, not where it makes sense."""


BINARY = getattr(os, "O_BINARY", 0)
"""What Windows needs to be told when a file is opened by `os.open`."""

PRIVATE = 0o600
"""The mode of a file that only its owner may read."""


CAREFUL = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | BINARY
"""How a file is opened that may be anything: a link is an error, and a pipe without a writer is not waited for."""


class NotPlain(OSError):
    """There is something, but no file of its own that can be read; `strerror` says what."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(errno.EINVAL, what, str(path))


def open_plain(path: Path, most: int, *, follow: bool = False) -> BufferedReader:
    """Open a plain file of at most `most` bytes for reading.

    Args:
        follow: whether it may be a link. Only for a file that the user named, never for one found in a folder.
    """
    return os.fdopen(_plain(path, os.O_RDONLY, most, follow=follow), "rb")


def open_own(path: Path, mode: int = 0o666, *, most: int | None = None, follow: bool = False) -> int:
    """A handle to read a file and append to it, made if there is none. A link or a pipe in its place is an error."""
    return _plain(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, most, mode, follow=follow)


def _plain(path: Path, flags: int, most: int | None = None, mode: int = 0o666, *, follow: bool = False) -> int:
    careful = CAREFUL & ~getattr(os, "O_NOFOLLOW", 0) if follow else CAREFUL
    if not follow and path.is_symlink():  # the flag says it too, where there is one
        raise NotPlain(path, "it is a link, which is not followed here: put the file itself in its place")
    try:
        handle = os.open(path, flags | careful, mode)
    except IsADirectoryError:
        raise NotPlain(path, os.strerror(errno.EISDIR)) from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a pipe or a socket
            raise NotPlain(path, "it is not a plain file") from None
        raise
    about = os.fstat(handle)
    if stat.S_ISDIR(about.st_mode):
        wrong = os.strerror(errno.EISDIR)
    elif not stat.S_ISREG(about.st_mode):
        wrong = "it is not a plain file"
    elif most is not None and about.st_size > most:
        wrong = f"it has {about.st_size:,} bytes, more than the {most:,} that such a file may have"
    else:
        return handle
    os.close(handle)
    raise NotPlain(path, wrong)


def check_plain(path: Path, most: int = sys.maxsize) -> None:
    """An error if a file that the user named is a pipe or a device, or has more than `most` bytes, for libraries that
    open files themselves."""
    open_plain(path, most, follow=True).close()


def read_plain(path: Path, most: int, *, follow: bool = False) -> bytes:
    """The content of a plain file of at most `most` bytes."""
    with open_plain(path, most, follow=follow) as file:
        return file.read()


def digest(text: str) -> str:
    """The beginning of the hash of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def file_sha256(path: Path, most: int = sys.maxsize, *, follow: bool = False) -> str:
    """The hash of a plain file of at most `most` bytes."""
    with open_plain(path, most, follow=follow) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path, most: int = MOST_JSON, *, follow: bool = False) -> Any:
    """What a plain JSON file holds. A `ValueError` says why it cannot be read as such."""
    return parse_json(read_plain(path, most, follow=follow))


def parse_json(text: str | bytes) -> Any:
    """Like `json.loads`, but what is nested too deep to work with is a `ValueError`."""
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    level = [content]
    for _ in range(DEEPEST):
        level = [inner for each in level if isinstance(each, list | dict) for inner in _values(each)]
        if not level:
            return content
    raise ValueError("it is nested too deep")


def _values(container: list[Any] | dict[str, Any]) -> list[Any]:
    """The lists and dictionaries in a list or a dictionary."""
    values = container.values() if isinstance(container, dict) else container
    if not {list, dict} & set(map(type, values)):  # the fastest look at a million numbers
        return []
    return [value for value in values if isinstance(value, list | dict)]


def can_be_path(value: object) -> bool:
    """Whether something can be a path: text that the system can encode, without a zero in it, and not too long."""
    try:
        path = os.fsencode(value) if isinstance(value, str) else b"\0"
    except UnicodeEncodeError:
        return False
    return b"\0" not in path and len(path) < 4096 and max(map(len, path.split(b"/"))) <= 255


def refuse_link(folder: Path) -> None:
    """An error if there is a link in the place of a folder: what is written or removed there would be elsewhere."""
    if folder.is_symlink():
        raise NotPlain(folder, "it is a link, which is not followed here: put the folder itself in its place")


def remove_folder(folder: Path) -> None:
    """Remove a folder at once: a crash leaves it whole, or under a hidden name. A link is removed, not followed."""
    if folder.is_symlink() or not folder.is_dir():
        folder.unlink()
        return
    doomed = folder.with_name(f"{DOOMED}{uuid4().hex}")
    folder.rename(doomed)
    sync_folder(folder.parent)
    shutil.rmtree(doomed, ignore_errors=True)


def remove_doomed(folder: Path) -> None:
    """Remove what a crash during `remove_folder` left in a folder."""
    for left in folder.glob(f"{DOOMED}*"):
        discard(left)


def discard(path: Path) -> None:
    """Remove what is there, if anything is: a folder with all that is in it, or else it alone, be it a link or a pipe
    (`shutil.rmtree` would wait for somebody to write to it)."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


DOOMED = ".removing-"
"""What the name of a folder begins with that is being removed."""


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


def refuse_device(path: Path) -> None:
    """An error if there is a device or a pipe in the place that a user names. What is renamed to that place when it is
    written would take it away; an administrator would take /dev/null away from all programs."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise NotPlain(path, "it is not a plain file")


def keep_alone(path: Path, most: int) -> None:
    """Before a file is appended to: one with a second name elsewhere (a hard link) gets a content of its own, so that
    the other, such as a backup, stays as it is."""
    with suppress(FileNotFoundError):
        if path.lstat().st_nlink > 1:
            replace_durably(path, read_plain(path, most))


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


def remove_orphans(folder: Path) -> None:
    """Remove what processes left in a folder that were killed as they wrote a file which was written since, or a day
    ago. What is still being written is younger than the file that is there."""
    for part in folder.glob(".*.part"):
        if (name := TEMPORARY.fullmatch(part.name)) is not None:
            with suppress(OSError):
                changed = part.lstat().st_mtime
                if time.time() - changed > A_DAY or changed < (folder / name[1]).lstat().st_mtime:
                    part.unlink()


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

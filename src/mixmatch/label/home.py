"""Where the labels of a folder are kept, which process holds them, and the token that admits a page. Imports nothing
large: a server starts with it."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedWriter
from pathlib import Path
from typing import Any

from mixmatch.errors import MixMatchError, explaining
from mixmatch.label.log import NAME as LOG
from mixmatch.storage import digest, open_own, read_json, refuse_link, temporary, try_lock

HIDDEN = ".mixmatch-labels"
"""The folder in which everything is kept, inside of the folder of pictures."""
LOCK = "lock"
RECORD = "server.json"
"""Port and token, for its owner alone: the next start takes them again, so that an open page goes on."""
MOST_RECORD = 1 << 16
"""Bytes that it may have."""
ADDRESS = re.compile(r"http://[A-Za-z0-9._:\[\]-]{1,255}/\?token=[A-Za-z0-9_-]{1,128}")


class AlreadyServed(MixMatchError):
    """Another process serves this folder; `address` is where."""

    def __init__(self, message: str, address: str | None) -> None:
        super().__init__(message)
        self.address = address


def home_of(root: Path) -> Path:
    """`FOLDER/.mixmatch-labels`, or where the folder cannot be written to, a place under the user's own data. (Not the
    user's cache: caches are deleted, labels must not be.) Labels that are in one of the two stay there."""
    beside, apart = root / HIDDEN, _apart(root)
    _refuse_links(beside)
    try:
        with temporary(beside / "probe") as probe:
            probe.touch()
    except OSError as error:
        reason = error.strerror or error
        if _has_labels(beside):
            raise MixMatchError(
                f"there are labels in {beside}, which cannot be written to ({reason}): make it writable (its owner, "
                "its permissions, room on its disk), then start again"
            ) from None
        if apart is None:
            raise MixMatchError(
                f"cannot keep labels in {root} ({reason}), and you have no home folder: name one in XDG_DATA_HOME"
            ) from None
        return apart
    if apart is None or _has_labels(beside) or not _has_labels(apart):
        return beside
    with suppress(OSError):
        beside.rmdir()
    return apart


def note_of(root: Path, home: Path) -> str | None:
    """A message about where the labels are kept, if that is not where one would look for them."""
    beside, apart = root / HIDDEN, _apart(root)
    if home == apart:
        if not os.access(root, os.W_OK):
            return f"{root} cannot be written to: labels are kept in {home}"
        move = f"to keep them with the pictures, stop, then move that folder to {beside}"
        return f"labels are kept in {home}, where they were begun; {move}"
    if apart is not None and _has_labels(apart):
        return f"there are other labels of this folder in {apart}: import its labels.csv to have both, then remove it"
    return None


def _apart(root: Path) -> Path | None:
    try:
        data = Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser()
    except RuntimeError:  # a container's user without a home
        return None
    return data / "mixmatch" / "labels" / digest(str(root.resolve()))


def _has_labels(home: Path) -> bool:
    try:
        (home / LOG).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # it cannot be looked into: there may be
        return os.path.lexists(home)
    return True


def check_links(home: Path) -> None:
    """Refuse a link in the place of a folder that things are kept in: they would be read and written elsewhere."""
    kept = [home / name for name in ("copies", "thumbnails", "thinking", "trainings", "runs", "export")]
    _refuse_links(home, *kept)
    _refuse_links(*(inner for folder in kept for inner in folder.glob("*")))


def _refuse_links(*folders: Path) -> None:
    try:
        for folder in folders:
            refuse_link(folder)
    except OSError as error:
        raise MixMatchError(f"cannot keep labels in {error.filename}: {error.strerror}") from None


@contextmanager
def locked(home: Path) -> Iterator[Callable[[], bool]]:
    """Hold a folder's labels against other servers; `AlreadyServed` names the one that has them. Yields a function that
    says whether they are held still: a lock that was removed is made again, unless another server has made its own."""
    with ExitStack() as files:
        with explaining(f"cannot keep labels in {home}"):
            file = files.enter_context(_lock_file(home))

        def held() -> bool:
            nonlocal file
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), (home / LOCK).lstat()):
                    return True
            again = files.enter_context(_lock_file(home))
            if try_lock(again.fileno()):
                file = again
                return True
            again.close()
            return False

        for _ in range(20):  # one that is just ending takes a moment
            if try_lock(file.fileno()):
                break
            time.sleep(0.05)
        else:
            address = read_record(home).get("address")
            where = f" at {address}" if address else ""
            raise AlreadyServed(f"this folder is being labeled already{where}", address)
        yield held


def _lock_file(home: Path) -> BufferedWriter:
    home.mkdir(parents=True, exist_ok=True)
    return os.fdopen(open_own(home / LOCK), "ab")


def read_record(home: Path) -> dict[str, Any]:
    try:
        record = read_json(home / RECORD, MOST_RECORD)
    except (OSError, ValueError):
        return {}
    if not isinstance(record, dict):
        return {}
    address = record.get("address")
    known = isinstance(address, str) and ADDRESS.fullmatch(address)  # it is printed, and opened in the browser
    return record | {"address": address if known else None}


def token_at(place: list[Any], record: Mapping[str, Any]) -> str:
    """The token of the last time, if that was at the same place: a folder that came from elsewhere brings one that
    others know."""
    known = record.get("token") if record.get("place") == place else None
    return known if isinstance(known, str) and known else secrets.token_urlsafe(32)

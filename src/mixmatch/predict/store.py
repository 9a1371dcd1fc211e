"""A folder whose files appear whole or not at all: on a disk, or behind an address such as s3://bucket/classes.

On a disk the folder may have been left by anyone: no link in it is followed, and only plain files are read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mixmatch.data.user.listing import is_address, open_address, reason
from mixmatch.errors import MixMatchError
from mixmatch.storage import (
    NotPlain,
    read_plain,
    refuse_link,
    remove_orphans,
    replace_durably,
    temporary,
    write_durably,
)

MOST = 2**28
"""Bytes of a file that is read: a list of a million files or two."""


class Store:
    """Small files by name. It can be sent to another process."""

    def __init__(self, where: str | Path) -> None:
        if str(where).startswith(("file://", "local://")):  # by fsspec no file would appear whole, nor any folder
            where = open_address(str(where))[1]
        self.where = str(where).rstrip("/") if is_address(where) else str(Path(where).absolute())
        self._remote = is_address(where)

    def names(self, folder: str) -> set[str]:
        """Of the plain files in a folder of it."""
        found: set[str] = set()
        with self._saying("read"):
            if self._remote:
                system, path = open_address(f"{self.where}/{folder}")
                found = {name.rpartition("/")[2] for name in system.ls(path, detail=False)}
            else:
                with os.scandir(self._place(f"{folder}/*" if folder else "*").parent) as entries:
                    found = {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}
        return found

    def others(self, own: str) -> list[str]:
        """What else there is than the folder `own` and hidden files."""
        found: list[str] = []
        with self._saying("read"):
            if self._remote:
                system, path = open_address(self.where)
                listed = {name.rstrip("/") for name in system.ls(path, detail=False)}
                found = [name.rpartition("/")[2] for name in listed - {path.rstrip("/")}]  # some list the folder too
            else:
                found = [entry.name for entry in Path(self.where).iterdir()]
        return sorted(name for name in found if name != own and not name.startswith("."))

    def read(self, name: str) -> bytes | None:
        """The content of a file, None if there is none."""
        content: bytes | None = None
        with self._saying("read"):
            if self._remote:
                system, path = open_address(f"{self.where}/{name}")
                content = system.cat_file(path)
            else:
                content = read_plain(self._place(name), MOST)
        return content

    def write(self, name: str, content: bytes) -> None:
        """Replace a file. Object stores have no half-written ones; on a disk it is renamed when it is written."""
        with self._saying("write"):
            if self._remote:
                system, path = open_address(f"{self.where}/{name}")
                system.pipe_file(path, content)
            else:
                file = self._place(name)
                file.parent.mkdir(parents=True, exist_ok=True)
                replace_durably(file, content)

    def write_first(self, name: str, content: bytes) -> None:
        """Write a file unless there is one, even if another process is about to. (Object stores may let both write: the
        last one's stays.)"""
        if self._remote:
            if self.read(name) is None:
                self.write(name, content)
            return
        with self._saying("write"):
            file = self._place(name)
            with temporary(file) as part:
                write_durably(part, content)
                try:
                    file.hardlink_to(part)
                except FileExistsError:
                    return
                except OSError:  # some file systems have no links
                    if not file.exists():
                        part.replace(file)

    def tidy(self, folder: str) -> None:
        """Remove what killed processes left in a folder of it. Object stores have nothing of the kind."""
        if not self._remote:
            with self._saying("write"):
                remove_orphans(self._place(f"{folder}/*" if folder else "*").parent)

    def _place(self, name: str) -> Path:
        """Where a file is on the disk. An error if a folder on the way there is a link."""
        folder = Path(self.where)
        for part in Path(name).parts[:-1]:
            refuse_link(folder := folder / part)
        return Path(self.where, name)

    @contextmanager
    def _saying(self, what: str) -> Iterator[None]:
        """What is not there is left to the caller; other errors are one line."""
        try:
            yield
        except FileNotFoundError as error:
            if what == "write":
                raise MixMatchError(f"cannot write to {self.where}: {reason(error)}") from None
        except MixMatchError:
            raise
        except NotPlain as error:
            raise MixMatchError(f"cannot {what} {error.filename}: {error.strerror}") from None
        except Exception as error:  # each file system has errors of its own
            raise MixMatchError(f"cannot {what} {self.where}: {reason(error)}") from None

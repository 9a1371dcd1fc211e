"""Which image files are meant by paths, folders, globs and addresses such as s3://bucket/photos, and their content.

Names come one by one, so that a list of millions need not be in memory: only the names in one folder are, and what a
glob finds. Addresses are read through fsspec, which knows s3://, gs://, hdfs:// and many more.
"""

from __future__ import annotations

import glob
import importlib
import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mixmatch.data.user.images import SUFFIXES, UnreadableImage
from mixmatch.data.user.tree import OTHER_FORMATS, is_hidden
from mixmatch.errors import MixMatchError, explaining

ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://")
EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "hdfs": "tables"}
"""The extra of this package that an address needs."""

Content = Path | io.BytesIO | UnreadableImage
"""A file on a disk, what is behind an address, or why it cannot be had."""


def is_address(path: str | os.PathLike[str]) -> bool:
    """
    >>> is_address("s3://bucket/photos"), is_address("photos/new")
    (True, False)
    """
    return ADDRESS.match(os.fspath(path)) is not None


def find_images(paths: Iterable[str | os.PathLike[str]], *, once: bool = False) -> Iterator[str]:
    """The names of the image files that are meant, folders in order of name.

    A path is a file, whatever its name, a folder, or a glob. Of folders, and of what a glob finds, files that are named
    like images are taken, what is hidden is not. Images of formats that cannot be read, a folder that may
    not be read and a link to nothing are among them, too, so that reading them says why.

    Args:
        once: full names, each once, even if paths overlap.
    """
    before: set[str] = set()
    for given in [os.fspath(path) for path in paths]:
        if not given.strip():  # it would be the current folder
            raise MixMatchError("a path is empty: give that of a file or a folder")
        place = _Address(given) if is_address(given) else _Disk(given)
        for path in place.matches():
            full = place.full(path)
            for name in place.images(path):
                named = place.full(name) if once else name
                if not (once and any(above in before for above in _above(named))):
                    yield named
            before.add(full)


def contents(names: Sequence[str]) -> list[Content]:
    """What is to be decoded of each file. Those behind addresses are read, all of them at the same time where the file
    system can do that; those on a disk are left to the decoder, which need not read all of a large JPEG."""
    found: list[Content] = [Path(name) for name in names]
    systems: dict[int, tuple[Any, list[int], list[str]]] = {}
    for number, name in enumerate(names):
        if is_address(name):
            system, path = open_address(name)
            _, numbers, paths = systems.setdefault(id(system), (system, [], []))
            numbers.append(number)
            paths.append(path)
    for system, numbers, paths in systems.values():
        for number, read in zip(numbers, system.cat_ranges(paths, None, None, on_error="return"), strict=True):
            found[number] = UnreadableImage(reason(read)) if isinstance(read, Exception) else io.BytesIO(read)
    return found


def open_address(address: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it."""
    scheme = address.partition("://")[0]
    try:
        # Without its cache: it would keep every name it has ever listed.
        system, path = importlib.import_module("fsspec.core").url_to_fs(address, use_listings_cache=False)
    except ImportError as error:
        extra = f"pip install 'mixmatch[{EXTRAS[scheme]}]'" if scheme in EXTRAS else reason(error)
        raise MixMatchError(f"{scheme}:// needs another package: {extra}") from None
    except Exception as error:  # each file system has errors of its own
        raise MixMatchError(f"cannot open {address}: {reason(error)}") from None
    return system, path


def reason(error: Exception) -> str:
    """An error of a file system in one line."""
    text = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return "there is no such file" if isinstance(error, FileNotFoundError) else text.splitlines()[0]


def _above(name: str) -> Iterator[str]:
    """A name and the folders it is in."""
    while name:
        yield name
        name = name.rpartition("/")[0]


class _Disk:
    """A path on this machine, or a glob."""

    def __init__(self, given: str) -> None:
        self._given = given

    def matches(self) -> list[str]:
        path = Path(self._given)
        if path.exists() or path.is_symlink():
            return [self._given]
        if not glob.has_magic(self._given):
            raise MixMatchError(f"there is no file or folder {self._given}")
        names = glob.iglob(self._given, recursive=True)  # noqa: PTH207
        return _meant(self._given, ((name, os.path.isdir(name)) for name in names))  # noqa: PTH112

    def full(self, name: str) -> str:
        return os.path.abspath(name).replace(os.sep, "/")  # noqa: PTH100 (Path keeps ..)

    def images(self, path: str) -> Iterator[str]:
        if not os.path.isdir(path):  # noqa: PTH112
            yield path
            return
        with explaining(f"cannot read {path}"):
            os.scandir(path).close()
        empty = True
        for name in _below(path):
            empty = False
            yield name
        if empty:
            raise MixMatchError(f"there are no images in {path} (looked for {', '.join(SUFFIXES)})")


def _below(folder: str) -> Iterator[str]:
    """The image files below a folder, and what cannot be read: folders that may not be, links to nothing. Links to
    folders are not followed."""
    try:
        with os.scandir(folder) as found:
            inside = sorted((e.name, e.is_dir(follow_symlinks=False)) for e in found if _is_wanted(e))
    except OSError:
        yield folder
        return
    for name, is_folder in inside:
        path = os.path.join(folder, name)  # noqa: PTH118 (a Path for each of millions would take longer than listing)
        if is_folder:
            yield from _below(path)
        else:
            yield path


def _is_wanted(entry: os.DirEntry[str]) -> bool:
    if is_hidden(entry.name):
        return False
    if entry.is_dir(follow_symlinks=False):
        return True
    return _is_image(entry.name) and (entry.is_file() or not os.path.exists(entry.path))  # noqa: PTH110


class _Address:
    """A path or a glob on a file system that fsspec knows."""

    def __init__(self, given: str) -> None:
        self._given, (self._system, self._path) = given, open_address(given)

    def matches(self) -> list[str]:
        try:
            if self._system.exists(self._path):
                return [self._path]
            if not glob.has_magic(self._path):
                raise MixMatchError(f"there is no file or folder {self._given}")
            found = self._system.glob(self._path, detail=True)
        except MixMatchError:
            raise
        except Exception as error:
            raise MixMatchError(f"cannot read {self._given}: {reason(error)}") from None
        return _meant(self._given, ((name, about["type"] == "directory") for name, about in found.items()))

    def full(self, name: str) -> str:
        return str(self._system.unstrip_protocol(name))

    def images(self, path: str) -> Iterator[str]:
        empty = True
        try:
            if not self._system.isdir(path):
                yield self.full(path)
                return
            for name in self._below(path):
                empty = False
                yield self.full(name)
        except Exception as error:
            raise MixMatchError(f"cannot read {self._given}: {reason(error)}") from None
        if empty:
            raise MixMatchError(f"there are no images in {self._given} (looked for {', '.join(SUFFIXES)})")

    def _below(self, folder: str) -> Iterator[str]:
        inside = sorted((about["name"], about["type"] == "directory") for about in self._system.ls(folder, detail=True))
        for name, is_folder in inside:
            if is_hidden(_last(name)):
                continue
            if is_folder:
                yield from self._below(name)
            elif _is_image(name):
                yield name


def _meant(given: str, found: Iterable[tuple[str, bool]]) -> list[str]:
    """Of what a glob finds, names and whether they are folders: the images, and the folders to look into."""
    deep = "**" in given  # finds what is in folders by itself
    wanted = (name for name, is_folder in found if _is_image(name) or (is_folder and not deep))
    names = sorted(name for name in wanted if not is_hidden(_last(name)))
    if not names:
        raise MixMatchError(f"{given} finds no images (looked for {', '.join(SUFFIXES)})")
    return names


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _is_image(name: str) -> bool:
    return name.lower().endswith((*SUFFIXES, *OTHER_FORMATS))

"""Which image files lie in a folder, before any of them is opened."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from mixmatch.data.user.images import HEIC, SUFFIXES, Identity
from mixmatch.data.user.rows import Finding, Part
from mixmatch.errors import MixMatchError
from mixmatch.text import count, listed, tally

HEIC_SUFFIXES = tuple(chain.from_iterable(HEIC.values()))
OTHER_FORMATS = tuple(
    suffix
    for suffix in (*HEIC_SUFFIXES, ".avif", ".jp2", ".psd", ".svg", ".dng", ".cr2", ".nef", ".arw", ".ppm", ".tga")
    if suffix not in SUFFIXES
)
"""Image formats that cannot be read; worth a warning, unlike other skipped files."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An image file and what is known of it before it is opened."""

    file: str
    """Relative to the folder, with forward slashes."""
    size: int
    changed: int
    """Nanoseconds since 1970."""
    label: str | None = None
    part: Part = "train"

    @property
    def identity(self) -> Identity:
        return self.file, self.size, self.changed


@dataclass(frozen=True)
class Tree:
    """What lies in a folder."""

    entries: tuple[Entry, ...]
    folders: tuple[str, ...]
    others: tuple[str, ...]
    """Files that are not images."""
    unreadable: tuple[tuple[str, str], ...]
    """Folders and links that lead nowhere, and why."""
    not_followed: tuple[str, ...]
    """Links to folders that are read anyway."""


def scan(root: Path, found: Callable[[Entry], bool] | None = None) -> Tree:
    """The image files below `root`, following links, each real folder once; hidden files are skipped.

    `found` is called with each at once, for callers that do not want to wait for the last of 100,000; if it returns
    False, the image is left out.
    """
    if not root.exists():
        raise MixMatchError(f"there is no folder {root}")
    if not root.is_dir():
        raise MixMatchError(f"{root} is not a folder")
    entries, read, others, unreadable, not_followed = [], [], [], [], []
    # Links wait until all real folders are read: an image is found in its own place, not where a link leads to it.
    folders, links = deque([""]), deque[str]()
    visited: set[tuple[int, int]] = set()
    while folders or links:
        folder = (folders or links).popleft()
        try:
            status = (root / folder).stat()
            if (status.st_dev, status.st_ino) in visited:
                not_followed.append(folder)
                continue
            visited.add((status.st_dev, status.st_ino))
            with os.scandir(root / folder) as items:
                inside = sorted(items, key=lambda item: item.name)
        except OSError as error:
            if not folder:
                raise MixMatchError(f"cannot read {root}: {error.strerror or error}") from None
            unreadable.append((folder, error.strerror or str(error)))
            continue
        read.append(folder)
        for item in inside:
            file = f"{folder}/{item.name}" if folder else item.name
            try:
                if is_hidden(item.name):
                    continue
                if item.is_dir():
                    (links if item.is_symlink() else folders).append(file)
                elif not item.name.lower().endswith(SUFFIXES):
                    others.append(file)
                else:
                    status = item.stat()
                    entry = Entry(file, status.st_size, status.st_mtime_ns)
                    if found is None or found(entry):
                        entries.append(entry)
            except OSError as error:
                unreadable.append((file, error.strerror or str(error)))
    return Tree(tuple(entries), tuple(read), tuple(others), tuple(unreadable), tuple(not_followed))


def is_hidden(name: str) -> bool:
    """Whether a file or folder was not made by a person: what systems hide, or leave behind.

    >>> is_hidden("._cat.jpg"), is_hidden("__MACOSX"), is_hidden("cat.jpg")
    (True, True, False)
    """
    return name.startswith(".") or name.lower() in ("thumbs.db", "desktop.ini", "__macosx")


def left_out(tree: Tree) -> Iterator[Finding]:
    """What of a folder is left out, and why."""
    if tree.unreadable:
        message = f"cannot read {listed(f'{file} ({reason})' for file, reason in tree.unreadable)}: left out"
        advice = "give yourself permission to read it (chmod), or mend the link"
        yield Finding("unreadable-folder", message, tuple(file for file, _ in tree.unreadable), advice)
    if links := tree.not_followed:
        message = f"{count(len(links), 'link')} to a folder that is read anyway: not followed ({listed(links)})"
        yield Finding("link", message, links, "nothing is lost: every folder is read once", "info")
    if pictures := [file for file in tree.others if file.lower().endswith(OTHER_FORMATS)]:
        suffixes = Counter(Path(file).suffix.lower() for file in pictures)
        message = f"{count(len(pictures), 'image')} of a format that is not read: left out ({tally(suffixes)})"
        advice = "convert them to JPEG or PNG"
        if suffixes.keys() & set(HEIC_SUFFIXES):
            advice = f"pip install 'mixmatch[heic]' to read HEIC, or {advice}"
        yield Finding("format", message, tuple(pictures), advice)
    if rest := [file for file in tree.others if not file.lower().endswith(OTHER_FORMATS)]:
        message = f"{count(len(rest), 'file')} that {'is' if len(rest) == 1 else 'are'} no image: left out"
        yield Finding("not-images", f"{message} ({listed(rest)})", tuple(rest), "nothing to do", "info")

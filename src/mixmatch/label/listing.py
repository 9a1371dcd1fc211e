"""The pictures of a folder by number. A picture keeps its number over rescans and restarts, so that a page that was
left open, or closed with labels still waiting in it, means the same pictures afterwards.

The list is kept beside the labels. The next start shows it at once and looks for changes afterwards.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from mixmatch.label.events import all_inside, whole
from mixmatch.storage import digest, read_json, replace_durably

if TYPE_CHECKING:
    from mixmatch.data.user.tree import Entry

NAME = "listing.json"
FORMAT = 1
MOST = 2**30
"""Bytes of a list that is read: some ten million files."""


class Listing:
    """Files by number, with the size and time of change that tell whether a file is still the same."""

    def __init__(self) -> None:
        self.id = uuid4().hex[:10]
        """Another one means that numbers mean other pictures."""
        self.changes = 0
        """How often files were found changed or gone: pages then fetch their pictures again."""
        self.files: list[str] = []
        self.sizes, self.times = array("q"), array("q")
        self.numbers: dict[str, int] = {}
        self.gone: set[int] = set()
        self.is_kept = False
        """Whether it is on the disk as it is now."""
        self._order: list[int] | None = None

    def __len__(self) -> int:
        return len(self.files)

    @property
    def version(self) -> str:
        return f"{self.id}.{self.changes}"

    def add(self, entry: Entry) -> bool:
        """Take in a file that was found. Returns whether it is new, or not what it was."""
        n = self.numbers.get(entry.file)
        if n is None:
            self.numbers[entry.file] = len(self.files)
            self.files.append(entry.file)
            self.sizes.append(entry.size)
            self.times.append(entry.changed)
            self._order, self.is_kept = None, False
            return True
        same = self.sizes[n] == entry.size and self.times[n] == entry.changed
        self.sizes[n], self.times[n] = entry.size, entry.changed
        if n in self.gone or not same:
            self.gone.discard(n)
            self.changes += 1
            self.is_kept = False
            return True
        return False

    def take(self, entries: Sequence[Entry], seen: bytearray) -> bool:
        """Take in files that were found, and note them as `seen`, by number. Returns whether any is new, or not what it
        was."""
        changed = [self.add(entry) for entry in entries]
        seen.extend(bytes(len(self) - len(seen)))
        for entry in entries:
            seen[self.numbers[entry.file]] = True
        return any(changed)

    def only(self, seen: bytearray) -> list[int]:
        """Mark as gone whatever a finished scan has not `seen`, by number; returns the numbers that went just now."""
        went = [n for n in range(len(self.files)) if not seen[n] and n not in self.gone]
        if went:
            self.gone.update(went)
            self.changes += 1
            self.is_kept = False
        return went

    def identity(self, n: int) -> str:
        """A short text that changes with the file."""
        return digest(json.dumps([self.files[n], self.sizes[n], self.times[n]]))

    def in_order(self) -> list[int]:
        """All numbers in the order of names as people sort them: img2 before img10."""
        if self._order is None:
            keys = [_natural(file) for file in self.files]
            self._order = sorted(range(len(keys)), key=keys.__getitem__)
        return self._order

    def save(self, folder: Path) -> None:
        content = {
            "format": FORMAT,
            "listing": self.id,
            "changes": self.changes,
            "files": self.files,
            "sizes": self.sizes.tolist(),
            "times": self.times.tolist(),
            "gone": sorted(self.gone),
            "order": self.in_order(),
        }
        replace_durably(folder / NAME, json.dumps(content, separators=(",", ":")).encode())
        self.is_kept = True


def load_listing(folder: Path) -> Listing:
    """The list as it was kept, or an empty one: it only saves time, and page and log know files by name, too."""
    listing = Listing()
    try:
        content = read_json(folder / NAME, MOST)
        if content["format"] != FORMAT:
            return listing
        files = content["files"]
        listing.sizes, listing.times = array("q", content["sizes"]), array("q", content["times"])
        listing.numbers = {file: n for n, file in enumerate(files)}
        if not len(files) == len(listing.sizes) == len(listing.times) == len(listing.numbers):
            return Listing()
        listing.id, listing.changes, listing.files = content["listing"], content["changes"], files
        listing.gone = set(content["gone"])
        if not (_ID.fullmatch(listing.id) and whole(listing.changes) and all_inside(files)):
            return Listing()
        if not all(type(n) is int and 0 <= n < len(files) for n in listing.gone):
            return Listing()
        order = content.get("order", [])
        if sorted(order) == list(range(len(files))):
            listing._order = order
        listing.is_kept = True
    except (OSError, ValueError, KeyError, TypeError, OverflowError, AttributeError):
        return Listing()
    return listing


_ID = re.compile(r"[0-9a-f]{1,40}")
_DIGITS = re.compile(r"\d+")


def _natural(name: str) -> str:
    """
    >>> sorted(["b/img10.jpg", "b/img2.jpg", "B/img1.jpg"], key=_natural)
    ['B/img1.jpg', 'b/img2.jpg', 'b/img10.jpg']
    """
    return _DIGITS.sub(lambda digits: digits[0].zfill(12), name.casefold())

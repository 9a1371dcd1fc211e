"""Small pictures for the page: made by a few processes that can be ended, and kept."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

from mixmatch.errors import MixMatchError
from mixmatch.storage import read_plain, temporary

THUMB, LARGE = 256, 1600
"""Pixels of the longer side, in the grid and alone."""
SECONDS = 15.0
"""That a picture may take."""
WAIT = 30.0
"""Seconds that a request waits for a free process."""
THUMBNAILS = "thumbnails"
"""The folder they are kept in."""
MEMORY = 16 << 20
DISK = 1 << 30
"""Bytes of pictures that are kept, in memory and on disk. The browser keeps its own, too."""


class CannotShow(MixMatchError):
    """There is no picture of the file; the message says why."""


class Busy(MixMatchError):
    """It takes too long at the moment."""


class Decoder:
    """One process that makes pictures, one after the other."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False

    def start(self) -> None:
        """Start the process, without waiting for it."""
        if self._process is None:
            self._process, self._ready = _start(), False

    def ask(self, path: Path, side: int) -> tuple[dict[str, Any], bytes]:
        self.start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if not self._ready:
                process.stdout.readline()  # until it has begun, which takes as long as it takes
                self._ready = True
            # A process that takes too long is ended, whatever it does: then there is nothing more to read.
            late = threading.Timer(SECONDS, process.kill)
            late.start()
            try:
                process.stdin.write(json.dumps([str(path), side]).encode() + b"\n")
                process.stdin.flush()
                head = json.loads(process.stdout.readline())
                jpeg = process.stdout.read(head["bytes"])
            finally:
                late.cancel()
            if len(jpeg) == head["bytes"]:
                return head, jpeg
        except (OSError, ValueError):
            pass
        self.close()
        raise CannotShow(f"it takes longer than {SECONDS:.0f} s to decode, or more memory than there is")

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()
            self._process.wait()
            self._process = None


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "mixmatch.label.decode"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the server, which ends them
    )


MOST_KEPT = 1 << 24
"""Bytes of one that is read from the disk."""


def read_kept(cache: Path, key: str, side: int) -> bytes | None:
    """A picture that was kept on disk, if it is there and whole."""
    with suppress(OSError):
        found = read_plain(_place(cache, key, side), MOST_KEPT)
        if found.startswith(b"\xff\xd8") and found.endswith(b"\xff\xd9"):
            return found
    return None


def _place(cache: Path, key: str, side: int) -> Path:
    return cache / key[:2] / f"{key}-{side}"  # without .jpg: a program that looks for images shall not find these


class Pictures:
    """Pictures by a key that changes with the file; made when they are first asked for."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._free: queue.LifoQueue[Decoder] = queue.LifoQueue()
        self._decoders = [Decoder() for _ in range(min(4, os.cpu_count() or 1))]
        for decoder in self._decoders:
            self._free.put(decoder)
        self._lock = threading.Lock()
        self._recent: OrderedDict[str, bytes] = OrderedDict()
        self._held = 0
        self._room: int | None = None

    def get(self, path: Path, key: str, side: int) -> bytes:
        """The picture of a file as a JPEG. `key` stands for the file as it is now."""
        name = f"{key}-{side}"
        if (found := self.recent(key, side)) is not None:
            return found
        if (found := read_kept(self._cache, key, side)) is not None:
            self._remember(name, found)
            return found
        head, jpeg = self._ask(path, side)
        if "error" in head:
            raise CannotShow(str(head["error"]))
        self._remember(name, jpeg)
        if side <= THUMB:
            self._keep(_place(self._cache, key, side), jpeg)
        return jpeg

    def prepare(self) -> None:
        """Start one of the processes now: the first page asks for pictures soon."""
        self._decoders[-1].start()

    def size(self, path: Path) -> tuple[int, int]:
        """Width and height of an image file."""
        head, _ = self._ask(path, 0)
        if "error" in head:
            raise CannotShow(str(head["error"]))
        return head["width"], head["height"]

    def close(self) -> None:
        for decoder in self._decoders:
            decoder.close()

    def _ask(self, path: Path, side: int) -> tuple[dict[str, Any], bytes]:
        try:
            decoder = self._free.get(timeout=WAIT)
        except queue.Empty:
            raise Busy("too many pictures are asked for at once: try again") from None
        try:
            return decoder.ask(path, side)
        finally:
            self._free.put(decoder)

    def recent(self, key: str, side: int) -> bytes | None:
        """A picture that is in memory: nobody has to wait for it."""
        name = f"{key}-{side}"
        with self._lock:
            if name in self._recent:
                self._recent.move_to_end(name)
                return self._recent[name]
        return None

    def _remember(self, name: str, jpeg: bytes) -> None:
        with self._lock:
            if name not in self._recent:
                self._recent[name] = jpeg
                self._held += len(jpeg)
            while self._held > MEMORY:
                self._held -= len(self._recent.popitem(last=False)[1])

    def _keep(self, path: Path, jpeg: bytes) -> None:
        """On disk, while there is room: what cannot be kept is made again."""
        with self._lock:
            if self._room is None:
                self._room = DISK - _size(self._cache)
            if self._room < len(jpeg):
                return
            self._room -= len(jpeg)
        with suppress(OSError), temporary(path) as part:
            part.write_bytes(jpeg)
            part.replace(path)


def _size(folder: Path) -> int:
    """Bytes in the files of a folder of folders."""
    total = 0
    with suppress(OSError):
        for inner in os.scandir(folder):
            if inner.is_dir():
                total += sum(item.stat().st_size for item in os.scandir(inner.path))
    return total

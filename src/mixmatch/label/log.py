"""The labels on disk: an append-only file of events, one JSON object per line, there before anyone is told "saved".

Nothing is ever changed or removed in it. A process that is killed, or a power cut, can leave at most a torn last line,
which was never acknowledged: it is cut off and kept beside the log. A damaged line in the middle stops nothing either:
it is set aside, named, and everything else is read.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mixmatch.errors import MixMatchError, explaining
from mixmatch.label.events import all_usual, check_event
from mixmatch.storage import keep_alone, open_own, read_plain, replace_durably, sync_folder, temporary
from mixmatch.text import count, listed

Event = dict[str, Any]

NAME = "log.jsonl"
ASIDE = "set-aside.txt"
"""Beside the log: lines that could not be read, so that nothing is thrown away."""
COPIES = "copies"
MOST = 2**30
"""Bytes of a log that is read: some millions of labels. So it never has more lines, and no event's number is further
ahead of its line: what is read back, whoever wrote it, leaves room for all numbers that follow."""
TOGETHER = 50
"""Lines that are parsed at once: few enough that their objects are still in the processor's cache when they are
used."""
DAYS = 7
"""Daily copies of the log that are kept."""


class DiskFull(MixMatchError):
    """Labels could not be written. Nothing was changed; the same request can be sent again."""


class Log:
    """The log of one folder, open for appending. One process at a time: the caller holds the folder's lock."""

    def __init__(self, folder: Path) -> None:
        self.path, self.folder = folder / NAME, folder
        self.notes: list[str] = []
        """The damage that was found, one line each."""
        self.last = 0
        """The highest number of an event, also of one that could not be used."""
        self.holds: Callable[[], bool] = lambda: True
        """Whether no other server has the folder."""
        self._copied = ""
        with explaining(f"cannot write the labels to {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            keep_alone(self.path, MOST)
            self._handle = open_own(self.path, most=MOST)
            sync_folder(folder)
        self._length = 0

    def read(self, apply: Callable[[Event], object]) -> None:
        """Hand every event to `apply`, in order. A line that is not an event, or that `apply` cannot use (it raises
        ValueError, KeyError or TypeError), is set aside."""
        with explaining(f"cannot read the labels in {self.path}"):
            content = self.content()
        if self._length:  # read again: what is behind was never acknowledged, and the next write cuts it off
            content = content[: self._length]
        whole = content.rfind(b"\n") + 1
        if torn := content[whole:]:
            self._set_aside([torn])
            with explaining(f"cannot cut off the torn last line of {self.path}"):
                os.ftruncate(self._handle, whole)
                os.fsync(self._handle)
            self._note(f"the last line of {self.path} was torn (a crash while it was written) and has been cut off")
        damaged: list[tuple[int, bytes]] = []
        collecting = gc.isenabled()
        gc.disable()  # hundreds of thousands of small objects come, and none goes
        try:
            self._replay(content[:whole].splitlines(), apply, damaged)
        finally:
            if collecting:
                gc.enable()
        self._report(damaged)
        self._length = whole

    def _replay(
        self, lines: Sequence[bytes], apply: Callable[[Event], object], damaged: list[tuple[int, bytes]]
    ) -> None:
        for start in range(0, len(lines), TOGETHER):
            piece = lines[start : start + TOGETHER]
            events = [_event(line) for line in piece]
            checked = all_usual(events)
            for number, (line, event) in enumerate(zip(piece, events, strict=True), start + 1):
                try:
                    if event is None or event["seq"] > number + MOST:
                        raise ValueError
                    if event["seq"] > self.last:
                        self.last = event["seq"]
                    if not checked:
                        check_event(event)
                    apply(event)
                except (ValueError, KeyError, TypeError, IndexError, RecursionError):
                    damaged.append((number, line))

    def _report(self, damaged: Sequence[tuple[int, bytes]]) -> None:
        if damaged:
            known = self._aside()
            self._set_aside([line for _, line in damaged if line not in known])
            where = listed((f"line {number}" for number, _ in damaged), 5)
            have = "is" if len(damaged) == 1 else "are"
            self._note(
                f"{count(len(damaged), 'line')} of {self.path} {have} damaged and set aside in {ASIDE} ({where}); "
                "everything else was read"
            )

    def check(self) -> None:
        """Refuse what could not be written, nor taken back: another program has shortened the file. And what would not
        be read again: another server has the folder, or another file is in this one's place."""
        try:
            own, held = os.fstat(self._handle), self.holds()
            named = self.path.lstat() if os.path.lexists(self.path) else own
        except OSError as error:
            raise DiskFull(_why(self.folder, error)) from None
        if not held:
            raise DiskFull(
                f"labels are not saved here any more: {self.folder} or its lock was removed, and another server labels "
                "this folder now; use its page"
            )
        if not os.path.samestat(own, named):
            raise DiskFull(f"{self.path} was replaced by another program: start again to label on with that")
        if own.st_size < self._length:
            raise DiskFull(
                f"{self.path} was shortened by another program: put it back (there are copies in "
                f"{self.folder / COPIES}) and start again"
            )

    def append(self, events: Iterable[Event]) -> None:
        """Write events and wait until they are on the disk. After an error the log is as it was before."""
        data = b"".join(json.dumps(event, separators=(",", ":")).encode() + b"\n" for event in events)
        self.check()
        try:
            if not os.path.lexists(self.path):
                self._restore()
            if os.fstat(self._handle).st_size > self._length:
                os.ftruncate(self._handle, self._length)  # what an earlier failure left
            view = memoryview(data)
            while view:
                view = view[os.write(self._handle, view) :]
            flush(self._handle)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._handle, self._length)
            raise DiskFull(_why(self.folder, error)) from None
        self._length += len(data)

    def copy_daily(self, now: float | None = None) -> None:
        """Copy the log once a day, and keep the newest copies. A second disk error is no reason to stop labeling."""
        day = time.strftime("%Y-%m-%d", time.localtime(now))
        if day == self._copied or self._length == 0:
            return
        copies = self.folder / COPIES
        try:
            if not (target := copies / f"log-{day}.jsonl").exists():
                with temporary(target) as part:
                    shutil.copyfile(self.path, part)
                    part.replace(target)
            for old in sorted(copies.glob("log-*.jsonl"))[:-DAYS]:
                old.unlink(missing_ok=True)
        except OSError:
            return
        self._copied = day

    def close(self) -> None:
        """Whoever still writes finds no file, and none that another has opened since under the same number."""
        handle, self._handle = self._handle, -1
        os.close(handle)

    def content(self) -> bytes:
        """All of the file, also of one that was removed while it is open."""
        os.lseek(self._handle, 0, os.SEEK_SET)
        with os.fdopen(os.dup(self._handle), "rb") as file:
            return file.read()

    def _restore(self) -> None:
        """Somebody removed or moved the log. What is open is still whole: it is written again, and goes on there."""
        content = self.content()
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_durably(self.path, content)
        os.close(self._handle)
        self._handle = open_own(self.path)

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _aside(self) -> set[bytes]:
        path = self.folder / ASIDE
        try:
            return set(read_plain(path, MOST).splitlines())
        except OSError:
            return set()

    def _set_aside(self, lines: Sequence[bytes]) -> None:
        if not lines:
            return
        try:
            keep_alone(self.folder / ASIDE, MOST)
            with os.fdopen(open_own(self.folder / ASIDE), "ab") as file:
                for line in lines:
                    file.write(line)
                    file.write(b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise MixMatchError(
                f"{self.path} is damaged, and what cannot be read cannot be set aside in {self.folder / ASIDE}: "
                f"{error.strerror or error}; nothing was changed"
            ) from None


_parse = json.JSONDecoder().raw_decode  # what json.loads calls, without looking for blanks first


def _event(line: bytes) -> Event | None:
    """What a line says, None if it is no event."""
    try:
        text = line.decode()
        if not (text.startswith("{") and text.endswith("}")):  # an editor leaves blanks, and a mark where a file begins
            text = text.removeprefix("\ufeff").strip()
        event, end = _parse(text)
    except (ValueError, RecursionError):
        return None
    return event if end == len(text) and type(event) is dict and type(event.get("seq")) is int else None


def flush(handle: int) -> None:
    """Wait until a file is on the disk. A Mac's fsync does not wait for the disk's own cache; this does."""
    if sys.platform == "darwin":
        import fcntl

        with suppress(OSError):  # a network disk does not know it
            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)  # type: ignore[attr-defined, unused-ignore]
            return
    os.fsync(handle)


def _why(folder: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full: labels cannot be saved in {folder}; make room, then it continues by itself"
    return f"labels cannot be saved in {folder}: {error.strerror or error}; fix that, then it continues by itself"

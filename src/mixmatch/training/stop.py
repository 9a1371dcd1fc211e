"""Graceful stopping: Ctrl-C and SIGTERM are noted, and a run ends at the next moment at which it can be saved."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


class Interrupted(Exception):
    """The run was asked to stop and did, with a checkpoint. `signal` is the signal's number."""

    def __init__(self, number: int, step: int) -> None:
        super().__init__(number)
        self.signal, self.step = number, step


class Stop:
    """Notes a request to stop (Ctrl-C, SIGTERM) so that the loop can end gracefully; a second one ends it at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.runs = 0
        """How many runs are under way. While there is none, a request to stop has its usual effect, at once."""

    def __call__(self) -> bool:
        return self.signal is not None

    def check(self) -> None:
        """Raise if asked to stop."""
        if self.signal is not None:
            raise Interrupted(self.signal, 0)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread may handle signals; elsewhere the caller stops the run
            return

        def note(number: int, frame: FrameType | None) -> None:
            if self.runs:
                self.signal = number
                signal.signal(number, before[number])
            elif callable(before[number]):
                before[number](number, frame)
            else:
                signal.signal(number, before[number])
                signal.raise_signal(number)

        before: dict[int, Any] = {}
        for number in (int(signal.SIGINT), int(signal.SIGTERM)):
            handler = signal.getsignal(number)
            if handler in (signal.SIG_IGN, None):  # nohup and the like: whoever started us wants it ignored
                continue
            before[number] = handler
            signal.signal(number, note)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def stop_at_once() -> None:
    """Until `stop_as_usual`, Ctrl-C ends the process with one line: while programs are imported, it comes out of
    compiled modules as any error, or as none. Where it is ignored, it stays so."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def stop_as_usual() -> None:
    """Ctrl-C is an exception again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: object) -> None:
    os.write(2, b"stopped\n")
    os._exit(128 + number)

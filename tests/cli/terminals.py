"""A terminal that remembers what was written to it."""

from __future__ import annotations

import os
import threading

import pytest

pty = pytest.importorskip("pty", reason="there are no pseudo-terminals")
termios = pytest.importorskip("termios", reason="there are no pseudo-terminals")


class Terminal:
    """Give `end` to whoever writes, then `read`."""

    def __init__(self, columns: int = 80) -> None:
        self._ours, self.end = pty.openpty()
        termios.tcsetwinsize(self.end, (24, columns))
        self._seen = b""
        self._reader = threading.Thread(target=self._follow)  # whoever writes waits for a reader
        self._reader.start()

    def _follow(self) -> None:
        while True:
            try:
                piece = os.read(self._ours, 65536)
            except OSError:  # how Linux says that the other side is closed
                return
            if not piece:
                return
            self._seen += piece

    def read(self) -> str:
        """Everything, once all who write have ended."""
        os.close(self.end)
        self._reader.join(timeout=300)
        os.close(self._ours)
        return self._seen.decode()

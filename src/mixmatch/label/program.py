"""Programs the server starts: each reads what to do from a JSON file and leaves its answer in another.

So nothing heavy is ever imported by the server, whatever a program does to itself stays there, and it can be stopped.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mixmatch.errors import MixMatchError
from mixmatch.storage import read_json, read_plain, replace_durably

MOST = 2**30
"""Bytes of a question or an answer."""
MOST_OUTPUT = 2**26


class Program:
    """A Python module that runs in a process of its own, its output in a file."""

    def __init__(self, arguments: Sequence[str], output: Path) -> None:
        """Everything else goes first, where the system can."""
        output.parent.mkdir(parents=True, exist_ok=True)
        self.output = output
        output.unlink(missing_ok=True)  # what a link leads to is not written to
        with output.open("xb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the server, which stops its programs in order
                env=os.environ | {"COLUMNS": "200"},
            )
        if hasattr(os, "setpriority"):
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self._process.pid, 10)

    @property
    def pid(self) -> int:
        return self._process.pid

    def running(self) -> bool:
        return self._process.poll() is None

    def wait(self, seconds: float | None = None) -> int | None:
        """The exit status, None if it has not ended by then."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> None:
        """Ask it to end in order."""
        if self.running():
            with suppress(OSError):
                self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        if self.running():
            self._process.kill()
        self._process.wait()

    def last_words(self) -> str:
        """The line that says why it failed."""
        if (status := self._process.poll()) is not None and status < 0:
            return f"it was ended from outside ({signal.strsignal(-status)}), for example because memory ran out"
        try:
            lines = read_plain(self.output, MOST_OUTPUT).decode(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        said = next((line for line in reversed(lines) if line.startswith("error: ")), lines[-1] if lines else "")
        return said.removeprefix("error: ")[:500] or "it ended without a message"


def call(module: str, asked: Mapping[str, Any], folder: Path, name: str) -> tuple[Program, Path]:
    """Start a program that is asked something; its answer will be in the file."""
    question, answer = folder / f"{name}.asked.json", folder / f"{name}.answer.json"
    folder.mkdir(parents=True, exist_ok=True)
    answer.unlink(missing_ok=True)
    replace_durably(question, json.dumps(dict(asked)).encode())
    return Program([module, str(question), str(answer)], folder / f"{name}.output.txt"), answer


def answering(answer: Any) -> None:
    """The main function of such a program: `answer` gets the question and returns what goes into the file."""
    question, place = map(Path, sys.argv[1:3])
    try:
        found = answer(read_json(question, MOST))
    except MixMatchError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    replace_durably(place, json.dumps(found).encode())


def read_answer(path: Path) -> Any:
    """What a program answered, None if it did not."""
    try:
        return read_json(path, MOST)
    except (OSError, ValueError):
        return None

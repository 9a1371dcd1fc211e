"""Processes for tests that are forked from one with everything imported, so that each starts in no time.

That one has not trained: a process that has cannot be forked. What only a new Python can show is for other tests.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(
    ["torch.utils.tensorboard", "pytest", "mixmatch.api", "mixmatch.cli", "mixmatch.cli.train"]
)


class Fork:
    """A function in a process of its own. `output` is the file with what it says on standard error."""

    def __init__(
        self, function: Callable[..., Any], *arguments: Any, output: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.output = output
        output.write_bytes(b"")
        given = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **(environment or {})}
        self.process = _server.Process(target=_call, args=(function, arguments, str(output), given))
        self.process.start()

    def send_signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def is_alive(self) -> bool:
        return self.process.is_alive()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def ended(self, seconds: float) -> tuple[int, str]:
        """How it ended, negative for a signal, and what it said on standard error. It does not hang."""
        self.process.join(seconds)
        hangs = self.process.is_alive()
        self.kill()
        assert not hangs, f"it hangs: {self.output.read_text()}"
        assert self.process.exitcode is not None
        return self.process.exitcode, self.output.read_text()


def ended(forks: Sequence[Fork], seconds: float) -> list[tuple[int, str]]:
    """How each ended, and what it said. None is left, whatever happens."""
    try:
        return [fork.ended(seconds) for fork in forks]
    finally:
        for fork in forks:
            fork.kill()


def wait_until(true: Callable[[], bool], seconds: float = 120) -> None:
    """Until something is so that another process does."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "its moment never came"
        time.sleep(0.002)


def fork(work: Callable[[], object], output: Path, *, append: bool = False) -> int:
    """Do something in a process that is forked from this one, which has everything imported, for the programs that
    attack. What it prints goes to a file. Returns its number; it ends with what the work returns, if that is one."""
    if child := os.fork():
        return child
    code = 1
    try:
        handle = os.open(output, os.O_WRONLY | os.O_CREAT | (os.O_APPEND if append else os.O_TRUNC))
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        returned = work()
        code = returned if isinstance(returned, int) else 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def command(*words: object) -> None:
    """A command of mixmatch, in this process; a `SystemExit` if it fails."""
    from mixmatch.cli import main

    sys.argv = ["mixmatch", *map(str, words)]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise


def _call(function: Callable[..., Any], arguments: tuple[Any, ...], output: str, environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    handle = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(handle, 2)
    function(*arguments)

"""Kill a run before each of its changes to the disk, one after the other, resume it, and compare it with one that was
left alone.

python tests/kill_points.py [--way first|longer|back] [--every N]

The ways: a run from its beginning; a finished run that is given more steps; a run that goes back to a checkpoint. A
change is opening a file to write, flushing it, renaming, removing, making a folder: the system is asked for each by one
of a few functions, and the process ends at once, as by kill -9, instead of the k-th call. Processes are forked from one
that has everything imported, so a point takes a second. Ends with 0 only if all ends are the same.
"""

from __future__ import annotations

import argparse
import builtins
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from forks import fork
from soak import differences, warm

CHANGES = ("rename", "replace", "unlink", "remove", "rmdir", "mkdir", "fsync", "truncate", "ftruncate", "link")
"""Functions of `os` that others are made of: those of pathlib, shutil and this package."""

SETTINGS: dict[str, Any] = {"steps": 7, "eval_every": 3, "checkpoint_every": 2, "batch_size": 8, "device": "cpu"}
PLAIN = {"resume": True, "checkpoint_every": 2, "device": "cpu"}
"""As a user continues whatever there is: the run's own settings."""

MORE = {**SETTINGS, "steps": 11, "resume": True}
BACK = {**SETTINGS, "resume": True, "checkpoint": "step-00000006"}
WAYS: dict[str, tuple[dict[str, Any] | None, dict[str, Any], list[dict[str, Any]]]] = {
    "first": (None, {**SETTINGS, "resume": True}, [{**SETTINGS, "resume": True}]),
    "longer": (SETTINGS, MORE, [MORE, PLAIN]),
    "back": (SETTINGS, BACK, [BACK, PLAIN]),
}
"""What is done before, what is killed, and each of the ways to resume after that."""


def kill_before(k: int, counted: Path | None = None) -> None:
    """Let this process end before its k-th change to the disk; or count the changes, into a file."""
    made = 0

    def change() -> None:
        nonlocal made
        made += 1
        if made == k:
            os.kill(os.getpid(), signal.SIGKILL)
        if counted is not None:
            plain_write(handle, b".")

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def counts(*arguments: Any, **options: Any) -> Any:
            change()
            return function(*arguments, **options)

        return counts

    def os_open(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            change()
        return plain_os_open(path, flags, *arguments, **options)

    def opened(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if set(mode) & set("wax+"):
            change()
        return plain_open(file, mode, *arguments, **options)

    def fdopen(handle: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if set(mode) & set("wax+"):
            change()  # the file is there, and empty
        return plain_fdopen(handle, mode, *arguments, **options)

    plain_os_open, plain_open, plain_fdopen, plain_write = os.open, builtins.open, os.fdopen, os.write
    handle = -1 if counted is None else os.open(counted, os.O_WRONLY | os.O_CREAT)
    for name in CHANGES:
        setattr(os, name, counting(getattr(os, name)))
    os.open, builtins.open, os.fdopen = os_open, opened, fdopen  # type: ignore[assignment]


def train(folder: Path, options: dict[str, Any], k: int = 0, counted: Path | None = None) -> int:
    """Train in a process of its own; how it ended, as `os.waitstatus_to_exitcode` has it."""
    import mixmatch

    def work() -> None:
        if k or counted is not None:
            kill_before(k, counted)
        mixmatch.train("digits", out=folder, **options)

    output = folder.with_suffix(".output")
    code = os.waitstatus_to_exitcode(os.waitpid(fork(work, output), 0)[1])
    if code > 0:
        print(output.read_text(), end="", flush=True)
    return code


def kill_points(way: str, folder: Path, every: int = 1, first: int = 1) -> Iterator[tuple[int, int, list[str]]]:
    """Kill at every n-th point of a way; yields the point, how many there are, and what differs at the end."""
    before, killed, resumes = WAYS[way]
    begun, alone = folder / "begun", folder / "alone"
    if before is not None:
        assert train(begun, before) == 0
    copy(begun, alone)
    assert train(alone, killed, counted=folder / "count") == 0
    total = len((folder / "count").read_bytes())
    for k in range(first, total + 1, every):
        problems = []
        for number, resume in enumerate(resumes):
            here = folder / f"{k}-{number}"
            copy(begun, here)
            if (code := train(here, killed, k)) != -signal.SIGKILL:
                problems.append(f"not killed, ended with {code}")
            if (code := train(here, resume)) != 0:
                problems.append(f"the run after it ended with {code}")
            elif resume != PLAIN or differences(begun, here):  # killed before anything had changed
                problems += differences(alone, here)
            shutil.rmtree(here)
        yield k, total, problems


def copy(a: Path, b: Path) -> None:
    if a.exists():
        shutil.copytree(a, b)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--way", choices=[*WAYS], action="append")
    parser.add_argument("--every", type=int, default=1, help="only every n-th point")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="mixmatch-kill-points-") as folder:
        warm(Path(folder))
    bad = 0
    for way in options.way or WAYS:
        with tempfile.TemporaryDirectory(prefix="mixmatch-kill-points-") as folder:
            tried = total = 0
            for k, total, problems in kill_points(way, Path(folder), options.every):
                tried += 1
                bad += bool(problems)
                print(f"{way}: point {k} of {total}", end="\r", flush=True)
                if problems:
                    print(f"{way}: point {k} of {total}: {'; '.join(problems)}", flush=True)
            print(f"{way}: {tried} of {total} points tried", flush=True)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()

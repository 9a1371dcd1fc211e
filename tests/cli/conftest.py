"""The command as a user runs it: a process of its own, or, where only what it says matters, `main` in this one."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TextIO

import pytest

from mixmatch.cli import main

ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "MIXMATCH_DATA", "COLUMNS")} | {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MIXMATCH_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",
}


def heed_interrupts() -> None:
    """As for a command typed at a terminal: a shell that starts tests in the background has them ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def start() -> Callable[..., subprocess.Popen[str]]:
    """Start `mixmatch ...` and leave it running."""

    def start(*arguments: object, **options: object) -> subprocess.Popen[str]:
        given = {"env": ENVIRONMENT, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
        given.setdefault("preexec_fn", heed_interrupts)
        return subprocess.Popen([sys.executable, "-m", "mixmatch", *map(str, arguments)], **given)

    return start


@pytest.fixture(scope="session")
def run(start: Callable[..., subprocess.Popen[str]]) -> Callable[..., Result]:
    """Run `mixmatch ...` as a process to its end."""

    def run(*arguments: object, **options: object) -> Result:
        process = start(*arguments, **options)
        out, err = process.communicate(timeout=300)
        return Result(process.returncode, out, err)

    return run


@pytest.fixture(scope="session")
def here() -> Callable[..., Result]:
    """Run `mixmatch ...` in this process: a start costs seconds. With a `stream`, both outputs are written there."""

    def here(*arguments: object, cwd: Path | None = None, stream: TextIO | None = None) -> Result:
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="", write_through=True) for _ in range(2))
        code = None
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.redirect_stdout(stream or out),
            contextlib.redirect_stderr(stream or err),
        ):
            patch.setenv("MIXMATCH_OFFLINE", "1")
            patch.delenv("MIXMATCH_DATA", raising=False)
            patch.setattr(sys, "argv", ["mixmatch", *map(str, arguments)])
            if cwd is not None:
                patch.chdir(cwd)
            try:
                main()
            except SystemExit as stopped:
                code = stopped.code
        said = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
        return Result(int(code or 0), *said)

    return here


@pytest.fixture
def call(here: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    """The same, in an empty folder if nothing else is said."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return here


@pytest.fixture(scope="session")
def different() -> Callable[[Path, Path], list[str]]:
    """What two finished runs differ in: models, last checkpoints and metrics, bit by bit but for the clock."""

    def metrics(folder: Path) -> list[dict[str, float]]:
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]

    def different(a: Path, b: Path) -> list[str]:
        tensors = [*sorted((a / "checkpoint").glob("step-*/*.safetensors")), a / "model.safetensors"]
        newest = max((a / "checkpoint").glob("step-*"))
        names = [str(f.relative_to(a)) for f in tensors if f.parent in (newest, a)]
        assert len(names) == 4
        found = [name for name in names if (a / name).read_bytes() != (b / name).read_bytes()]
        return found + (["metrics.jsonl"] if metrics(a) != metrics(b) else [])

    return different

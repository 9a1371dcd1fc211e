"""A short form of `make fuzz`: every outcome is success or one line."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch  # noqa: F401  before processes are forked that would each import it

import fuzz


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked, and their memory bounded")
def test_hostile_and_damaged_files() -> None:
    """The same cases each time; `make fuzz` draws new ones."""
    command = [sys.executable, str(Path(__file__).with_name("fuzz.py")), "--seed", "1", "--cases", "24"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    others = "2 image, 2 table, 2 array, 1 ledger, 1 label, 1 shards, 1 predictions, 1 sweep, 1 driver"
    assert f"GOOD: 0 of 24 cases (12 folder, {others})" in result.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked, and their memory bounded")
def test_what_counts_as_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = tmp_path / "outside"
    deeds: dict[str, Callable[[], object]] = {
        "it did what it may not: open": lambda: (tmp_path / "new.txt").write_text("x"),
        "it did what it may not: os.rename": lambda: Path("here.txt").rename(outside / "there.txt"),
        "it did what it may not: os.remove": (outside / "diary.txt").unlink,
        "it did what it may not: subprocess.Popen": lambda: subprocess.run(["true"], check=False),
        "it loaded a pickle": lambda: pickle.loads(b"N."),
        "it printed control characters": lambda: os.write(1, b"\x1b[31mred"),
        "it filled the memory": lambda: sys.exit(2 if os.write(2, f"error: {fuzz.FULL}".encode()) else 0),
        "it ended with 1": lambda: sys.exit(1),
        "a traceback": lambda: os.write(2, b"Traceback"),
        "0 lines of error": lambda: sys.exit(2),
        "by signal": lambda: os.kill(os.getpid(), signal.SIGKILL),
    }
    for wrong, deed in deeds.items():
        monkeypatch.setitem(fuzz.KINDS, "table", lambda made, here, rng, deed=deed: [deed])
        found = fuzz.attempt("table", 1, None, tmp_path)
        assert found is not None, wrong
        assert wrong in found
    monkeypatch.setitem(fuzz.KINDS, "table", lambda made, here, rng: [Path("mine.txt").touch])
    assert fuzz.attempt("table", 1, None, tmp_path) is None

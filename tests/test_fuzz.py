"""A short form of `make fuzz`: every outcome is success or one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked, and their memory bounded")
def test_hostile_and_damaged_files() -> None:
    """The same cases each time; `make fuzz` draws new ones."""
    command = [sys.executable, str(Path(__file__).with_name("fuzz.py")), "--seed", "1", "--cases", "24"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    others = "2 image, 2 table, 2 array, 1 ledger, 1 label, 1 shards, 1 predictions, 1 sweep, 1 driver"
    assert f"GOOD: 0 of 24 cases (12 folder, {others})" in result.stdout

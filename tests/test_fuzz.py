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
    assert "GOOD: 0 of 24 cases (12 folder, 3 image, 3 table, 2 array, 2 ledger, 2 label)" in result.stdout

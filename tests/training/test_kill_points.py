"""Killed at any change to the disk, a run resumes to the end it would have had: some of the points of each way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "kill_points.py"


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked")
def test_some_points_of_each_way() -> None:
    """`python tests/kill_points.py` tries all."""
    command = [sys.executable, str(SCRIPT), "--every", "41"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert result.returncode == 0, result.stdout
    for way in ("first", "longer", "back"):
        assert f"{way}: " in result.stdout

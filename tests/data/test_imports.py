"""`mixmatch data list` starts at once: what takes long to import is imported where it is used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """if True:
    import sys
    import mixmatch.errors
    before = set(sys.modules)
    import mixmatch.measure, mixmatch.label.check, mixmatch.label.features, mixmatch.label.suggest
    import mixmatch.data, mixmatch.data.opened, mixmatch.data.split, mixmatch.data.user.check
    mixmatch.data.load("digits")
    print(*{"torch", "scipy", "sklearn", "requests"} & (set(sys.modules) - before))
"""

CHECK = """if True:
    import sys
    from mixmatch.cli import command_line
    from mixmatch.data.user import csv_file
    csv_file.PIECE = 100  # several pieces, the later ones for pyarrow
    command_line()(["data", "check", sys.argv[1], "--no-trial"], standalone_mode=False)
    print(*{"torch", "pandas"} & set(sys.modules))
"""


def test_data_imports_nothing_slow() -> None:
    assert run(PROGRAM) == [""]


def test_a_table_is_checked_without_pytorch_and_pandas(tmp_path: Path) -> None:
    """They take more memory than most tables. Too few labels to compare: scikit-learn may import pandas."""
    path = tmp_path / "t.csv"
    path.write_text(
        "a,b,label\n" + "".join(f"{i % 7},{i % 5 or ''},{'' if i % 8 else 'xy'[i % 16 // 8]}\n" for i in range(80))
    )
    *findings, imported = run(CHECK, str(path))
    assert "10 labeled rows of 2 classes" in " ".join(findings)
    assert imported == ""


def run(program: str, *arguments: str) -> list[str]:
    """The lines that a program prints, run by itself."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    return done.stdout.removesuffix("\n").split("\n")

"""The examples in the pages on own data and on scikit-learn run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mixmatch.data import read_user_data

DOCS = Path(__file__).parents[1] / "docs"


def python(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


def run(code: str, folder: Path) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("number", "name", "shape"), [(0, "text.npz", 32), (1, "audio.npz", 48)])
def test_embeddings(number: int, name: str, shape: int, tmp_path: Path) -> None:
    run(python("user-data.md")[number], tmp_path)
    user = read_user_data(tmp_path / name)
    assert user.inputs.shape[1] == shape
    assert len(user.labeled) == 40
    assert len(user.unlabeled) > 300
    assert len(user.tested) > 150
    assert len(user.classes) == 4


@pytest.mark.parametrize("number", [0, 1])
def test_scikit_learn(number: int, tmp_path: Path) -> None:
    code = re.sub(r"(steps=\d+, )?random_state=0\)", "steps=15, random_state=0)", python("sklearn.md")[number])
    assert "steps=15" in code
    assert run(code, tmp_path)

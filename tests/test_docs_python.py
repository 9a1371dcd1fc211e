"""The page on Python, run as it stands but for the number of steps."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import mixmatch

PAGE = (Path(__file__).parents[1] / "docs" / "python.md").read_text()


def picture(path: Path, bright: bool, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 60, (36, 40, 3)) + (180 if bright else 20)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).save(path)


def test_the_page_runs(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    for i in range(24):
        name = ("cat", "dog")[i % 2]
        picture(tmp_path / "photos" / name / f"{i}.png", i % 2 == 0, i)
        picture(tmp_path / "photos" / "unlabeled" / f"{i}.png", i % 2 == 0, 100 + i)
        picture(tmp_path / "new-labeled" / name / f"{i}.png", i % 2 == 0, 200 + i)
        picture(tmp_path / "new" / f"{i:02}.png", i % 2 == 0, 300 + i)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    code = "".join(blocks).replace('out="runs/photos"', 'out="runs/photos", steps=20, device="cpu"')
    assert "steps=20" in code
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MIXMATCH_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("<run: data photos/, method mixmatch, labels 20, seed 1, error ")
    assert lines[2] == "runs/photos/report.html"
    assert next(line for line in lines if line.startswith("Classifier(")) in PAGE
    assert str(mixmatch.load(tmp_path / "runs" / "photos").predict(sorted((tmp_path / "new").iterdir()))) in lines
    assert (tmp_path / "photos.onnx").exists()


def test_the_page_names_everything_public() -> None:
    apart = {"functional", "MixMatchClassifier", "LabeledKFold", "__version__"}  # have pages of their own
    assert {name for name in mixmatch.__all__ if f"mixmatch.{name}(" not in PAGE} == apart

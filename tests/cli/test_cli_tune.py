"""`mixmatch tune`: a table with the defaults marked, files, JSON, and a sweep that the same command continues."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("optuna", reason="Optuna is not installed: pip install 'mixmatch[tune]'")

Call = Callable[..., Any]
TUNE = [
    "tune", "few.npz", "--method", "supervised", "--steps", 6, "--eval-every", 3, "--batch-size", 4, "--network", "mlp",
    "--learning-rate", 1e-9, "--device", "cpu", "--only", "--search", "learning-rate=0.001..0.1:log", "mask=0.1,0.2",
]  # fmt: skip


def test_a_sweep_from_beginning_to_end(call: Call) -> None:
    c = np.arange(30) % 2
    x = np.random.default_rng(0).normal(size=(len(c), 4)) + 3 * c[:, None]
    np.savez("few.npz", x=x, y=np.where(np.arange(len(c)) < 4, c, -1))
    first = call(*TUNE, "--trials", 1)
    assert first.code == 0
    assert "train with the defaults, which are the best: mixmatch train few.npz --config " in first.out
    result = call(*TUNE, "--trials", 2)
    assert result.code == 0, result.err
    folder = Path("runs/tune-few.npz-supervised")
    assert "trial 0" not in result.err.replace("(trial 0)", "")  # it was done before
    assert "few.npz supervised trial 1 fold 4/4: " in result.err
    rows = {words[0]: words[1:] for line in result.out.splitlines() if (words := line.split()) and words[0] in "01"}
    assert rows["0"][0] == "defaults"
    assert rows["0"][2:] == ["1e-09", "0.2"]
    assert "compared by the error on 4 labeled rows, each predicted by one of 4 models" in result.out
    assert f"train with the best: mixmatch train few.npz --config {folder / 'best.toml'}" in result.out

    answer = json.loads((again := call(*TUNE, "--trials", 2, "--json", "--quiet")).out)
    assert again.err == ""
    assert answer["config"] == str(folder / "best.toml")
    assert {trial["number"] for trial in answer["trials"]} == {0, 1}
    assert answer["defaults"]["settings"] == {"learning_rate": 1e-9, "mask": 0.2}
    assert answer["best"] == answer["trials"][0]
    assert ("warning: 4 rows are too few to tell" in result.err) == (answer["difference"] is not None)
    assert answer["chosen_by"] in result.out

    trained = call("train", "few.npz", "--config", folder / "best.toml", "--out", "best", "--device", "cpu", "--json")
    assert trained.code == 0, trained.err
    assert json.loads(trained.out)["settings"]["learning_rate"] == answer["best"]["settings"]["learning_rate"]


def test_errors(call: Call) -> None:
    np.savez("labeled.npz", x=np.random.default_rng(0).normal(size=(20, 4)), y=np.arange(20) % 2)
    result = call("tune", "labeled.npz", "--out", "new")
    assert (result.code, result.out) == (2, "")
    assert "unlabeled" in result.err
    assert not Path("new").exists()
    for words, message in {
        ("--search", "lambda_v=1..2"): "unknown setting 'lambda_v': did you mean 'lambda_u'?",
        ("--search", "T="): "cannot search 'T=': it is not NAME=LOW..HIGH, NAME=LOW..HIGH:log or NAME=a,b,c",
        ("--device", "nowhere"): "unknown device 'nowhere'",
        ("--only",): "--only needs --search: say what to search",
        ("--valid", "0"): "--valid 0 leaves no validation images to compare trials on: leave it out",
        ("--trials", "0"): "--trials 0 must be above 0",
        ("--minutes", "-1"): "--minutes -1.0 must be above 0",
        ("--labels", "9"): "ask for more labels",
    }.items():
        result = call("tune", "digits", *words, "--out", "new")
        assert (result.code, result.out) == (2, ""), result.err
        assert message in result.err
        assert len(result.err.splitlines()) == 1
        assert not Path("new").exists()

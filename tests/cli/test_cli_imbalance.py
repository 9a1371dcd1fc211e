"""`--imbalance`: published data with a long tail, recorded, resumed, and refused where it means nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mixmatch
from mixmatch.data import load
from mixmatch.data.pate import student_options
from mixmatch.data.split import make_split
from mixmatch.errors import MixMatchError
from mixmatch.settings import from_dict
from mixmatch.training.opening import open_data

Call = Callable[..., Any]
TAIL = [
    "train",
    "digits",
    "--labels",
    40,
    "--imbalance",
    10,
    "--batch-size",
    4,
    "--eval-every",
    2,
    "--network",
    "wrn-10-1",
]


def test_a_long_tailed_run_is_recorded_and_resumes_to_the_same_weights(call: Call, tmp_path: Path) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    assert call(*TAIL, "--steps", 4, "--out", whole).code == 0
    assert call(*TAIL, "--steps", 2, "--out", halves).code == 0
    assert call("train", "digits", "--steps", 4, "--out", halves, "--resume").code == 0
    assert (whole / "model.safetensors").read_bytes() == (halves / "model.safetensors").read_bytes()
    config, digits = json.loads((whole / "config.json").read_text()), load("digits")
    split = make_split(digits, 40, 1, imbalance=10)
    assert config["settings"]["imbalance"] == 10
    assert config["split"]["hash"] == split.hash
    counts = np.bincount(digits.train.labels[config["split"]["labeled_rows"]])
    assert counts.sum() == 40
    assert counts[0] >= 5 * counts[-1]
    assert config["split"]["test"] == 500
    refused = call("train", "digits", "--imbalance", 20, "--out", halves, "--resume")
    assert refused.code == 2
    assert "imbalance: 10.0 -> 20.0" in refused.err


def test_it_is_for_published_data_alone(call: Call, tmp_path: Path) -> None:
    table = tmp_path / "mine.csv"
    table.write_text("a,label\n" + "".join(f"{i * i % 7},{['x', 'y', ''][i % 3]}\n" for i in range(60)))
    refused = call("train", table, "--imbalance", 10, "--out", tmp_path / "run")
    assert refused.code == 2
    assert refused.err == "error: --imbalance is for published data sets, not for your own data: leave it out\n"
    student = student_options("half", np.arange(4), np.arange(4))
    values = {"data": "digits-test", "labels": 4, "data_options": student, "imbalance": 10}
    with pytest.raises(MixMatchError, match="imbalance= is not for PATE"):
        open_data(from_dict(values))
    source = load("digits")
    with pytest.raises(MixMatchError, match="imbalance= contradicts split="):
        mixmatch.train(source, split=make_split(source, 20, 1), imbalance=10, out=tmp_path / "b")
    with pytest.raises(MixMatchError, match=r"imbalance=0\.5 must be a number of at least 1"):
        mixmatch.train("digits", imbalance=0.5, out=tmp_path / "c")

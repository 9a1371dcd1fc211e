"""Training on features: every method, small data, exact resume, and the default settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import mixmatch
from mixmatch.data.source import UNKNOWN, Rows, Source
from mixmatch.errors import MixMatchError
from mixmatch.methods import METHODS
from mixmatch.settings import resolve
from mixmatch.training.progress import Quiet

FAST: dict[str, Any] = {"steps": 12, "eval_every": 4, "batch_size": 8, "device": "cpu", "reporter": Quiet()}


def source(train: int = 40, test: int = 30, labeled: int = 9, columns: int = 5) -> Source:
    """Three classes, apart in the first two columns; only the first `labeled` rows have a label."""
    rng = np.random.default_rng(0)

    def part(count: int) -> Rows:
        labels = np.arange(count) % 3
        x = rng.normal(size=(count, columns)) * 0.3
        x[:, 0] += np.array([-1, 0, 1])[labels]
        x[:, 1] += np.array([0, 1, 0])[labels]
        return Rows(x.astype(np.float32), labels.astype(np.int64))

    made = Source("rows", ("a", "b", "c"), part(train), part(test))
    made.train.labels[labeled:] = UNKNOWN
    return made


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains(method: str, tmp_path: Path) -> None:
    record = mixmatch.train(source(), method=method, out=tmp_path / "run", **FAST)
    assert record["settings"]["network"] == "mlp"
    assert record["labels"] == "all"
    unlabeled = 40 if METHODS[method].run_defaults.get("unlabeled") == "all" else 31
    assert record["split"] | {"hash": ""} == {"hash": "", "labeled": 9, "unlabeled": unlabeled, "valid": 0, "test": 30}
    model = mixmatch.load(tmp_path / "run", device="cpu")
    assert model.input_shape == (5,)
    wrong = (model.probabilities(source().test.inputs).argmax(axis=1) != source().test.labels).mean()
    assert record["last_error"] == pytest.approx(100 * wrong)


def test_it_learns_from_unlabeled_rows(tmp_path: Path) -> None:
    record = mixmatch.train(source(train=200, test=200), out=tmp_path / "run", **{**FAST, "steps": 150})
    assert record["last_error"] < 10  # the classes overlap a little; guessing is 67


def test_a_batch_larger_than_the_data(tmp_path: Path) -> None:
    record = mixmatch.train(source(train=6, test=0, labeled=3), out=tmp_path / "run", **{**FAST, "batch_size": 64})
    assert record["error"] is None
    assert np.isfinite(mixmatch.load(tmp_path / "run", device="cpu").probabilities(source().test.inputs)).all()


def test_a_batch_of_one(tmp_path: Path) -> None:
    """Batch norm cannot normalize a single row; a network without it can learn from one."""
    with pytest.raises(MixMatchError, match="batch_size=1: the batch norm of mlp needs at least 2 rows"):
        mixmatch.train(source(), out=tmp_path / "run", passes="official", **{**FAST, "batch_size": 1})
    assert not (tmp_path / "run").exists()
    mixmatch.train(source(), out=tmp_path / "fused", passes="fused", **{**FAST, "batch_size": 1})
    mixmatch.train(source(), network=nn.Linear(5, 3), out=tmp_path / "run", **{**FAST, "batch_size": 1})


def test_a_stopped_run_ends_where_it_would_have_ended(tmp_path: Path) -> None:
    class StopAt(Quiet):
        def steps(self, step: int, values: Any) -> None:
            if step >= 8:
                raise KeyboardInterrupt

    mixmatch.train(source(), out=tmp_path / "whole", **FAST)
    options = {**FAST, "checkpoint_every": 4}
    with pytest.raises(KeyboardInterrupt):
        mixmatch.train(source(), out=tmp_path / "cut", **{**options, "reporter": StopAt()})
    assert not (tmp_path / "cut" / "model.safetensors").exists()
    mixmatch.train(source(), out=tmp_path / "cut", resume=True, **options)
    a, b = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut"))
    assert a == b


def test_resuming_with_another_noise_is_refused(tmp_path: Path) -> None:
    mixmatch.train(source(), out=tmp_path / "run", noise=0.25, **FAST)
    with pytest.raises(MixMatchError, match=r"noise: 0\.25 -> 0\.5"):
        mixmatch.train(source(), out=tmp_path / "run", resume=True, noise=0.5, **FAST)


def test_a_network_of_ones_own(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))
    mixmatch.train(source(), network=network, out=tmp_path / "run", **FAST)
    with pytest.raises(MixMatchError, match=r"does not take features of shape \(N, 5\)"):
        mixmatch.train(source(), network=nn.Linear(4, 3), out=tmp_path / "other", **FAST)


def test_the_ramp_is_a_third_of_the_steps_of_own_data() -> None:
    for kind in ("images", "features"):
        assert resolve("x", {"steps": 300}, kind).method_settings["ramp"] == 100
        assert resolve("x", {"steps": 300, "ramp": 7}, kind).method_settings["ramp"] == 7
    assert resolve("x", {}, "images").method_settings["ramp"] == 1365
    assert resolve("x", {"steps": 300}).method_settings["ramp"] == 16384


@pytest.mark.parametrize(("name", "value"), [("mask", 1.5), ("mask", -0.1), ("noise", -1.0), ("noise", float("nan"))])
def test_bad_values(name: str, value: float) -> None:
    with pytest.raises(MixMatchError, match=f"{name}="):
        resolve("x", {name: value}, "features")

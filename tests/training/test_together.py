"""Runs side by side: each ends as it would have ended alone."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import mixmatch
from mixmatch import api
from mixmatch.data.source import Images, Source
from mixmatch.errors import MixMatchError
from mixmatch.training.engine import Interrupted, Stop
from mixmatch.training.progress import Quiet
from mixmatch.training.together import Turns, draws_itself


def source() -> Source:
    rng = np.random.default_rng(0)
    images = Images(rng.integers(0, 256, (60, 8, 8, 1), np.uint8), np.arange(60, dtype=np.int64) % 3)
    return Source("tiny", ("a", "b", "c"), images, images)


def job(out: Path, seed: int, **given: Any) -> dict[str, Any]:
    settings = {"method": "mixmatch", "labels": 12, "batch_size": 6, "pad": 1, "steps": 70, "eval_every": 30}
    more = {"network": "wrn-10-1", "device": "cpu", "reporter": Quiet()}
    return {"data": source(), "out": out, "seed": seed, **settings, **more, **given}


def test_each_run_is_bit_for_bit_what_it_is_alone(tmp_path: Path) -> None:
    jobs = [job(tmp_path / f"beside{seed}", seed) for seed in (1, 2, 3)]
    jobs[1]["method"] = "vat"
    events: list[Any] = []
    records = api.train_together(
        jobs, 3, lambda number: events.append(f"start {number}"), lambda number, outcome: events.append(f"end {number}")
    )
    assert events[:3] == ["start 0", "start 1", "start 2"]
    assert sorted(events[3:]) == ["end 0", "end 1", "end 2"]
    for number, beside in enumerate(records):
        assert isinstance(beside, dict)
        alone = mixmatch.train(**{**jobs[number], "out": tmp_path / f"alone{number}"})
        assert beside["curve"] == alone["curve"]
        ours = load_file(jobs[number]["out"] / "model.safetensors")
        for name, value in load_file(tmp_path / f"alone{number}" / "model.safetensors").items():
            assert torch.equal(ours[name], value), name


def test_a_run_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    jobs = [job(tmp_path / "a", 1, steps=6), job(tmp_path / "b", 1, labels=1000), job(tmp_path / "c", 2, steps=6)]
    first, second, third = api.train_together(jobs, 2)
    assert isinstance(first, dict)
    assert isinstance(third, dict)
    assert isinstance(second, MixMatchError)


def test_an_interruption_saves_every_run(tmp_path: Path) -> None:
    class Stops(Quiet):
        def steps(self, step: int, values: Any) -> None:
            if step >= 32:
                signal.raise_signal(signal.SIGINT)

    jobs = [job(tmp_path / "a", 1), job(tmp_path / "b", 2, reporter=Stops()), job(tmp_path / "c", 3)]
    jobs += [job(tmp_path / "d", 4)]
    with pytest.raises(Interrupted):
        api.train_together(jobs, 3)
    assert not (tmp_path / "d").exists()
    whole = api.train_together([job(tmp_path / f"whole{seed}", seed) for seed in (1, 2)], 1)
    resumed = api.train_together([job(tmp_path / name, seed, resume=True) for name, seed in (("a", 1), ("b", 2))], 2)
    for ours, theirs in zip(resumed, whole, strict=True):
        assert isinstance(ours, dict)
        assert isinstance(theirs, dict)
        assert ours["curve"] == theirs["curve"]


def test_what_does_not_fit_beside_others_is_tried_with_fewer() -> None:
    begun: list[tuple[int, int]] = []
    turns = Turns(3)

    def make(number: int) -> Any:
        begun.append((number, turns.limit))
        if number == 2 and turns.limit > 2:
            raise torch.OutOfMemoryError
        for _ in range(9):
            yield
        return {"number": number}

    outcomes = turns.take(4, make, Stop(), lambda number: None, lambda number, outcome: None)
    assert outcomes == [{"number": number} for number in range(4)]
    assert (2, 3) in begun
    assert (2, 2) in begun
    assert turns.limit == 2


def test_randomness_of_its_own() -> None:
    assert draws_itself(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)))
    assert not draws_itself(mixmatch.networks.build("wrn-10-1", 3, (1, 8, 8)))

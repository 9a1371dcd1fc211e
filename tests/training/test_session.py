"""Jobs as plain values, and what a run keeps of how it was computed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import mixmatch
from mixmatch.settings import resolve
from mixmatch.training.device import default_threads
from mixmatch.training.job import Job
from mixmatch.training.progress import Quiet
from mixmatch.training.run import RunFolder
from mixmatch.training.trainer import Trainer


@pytest.mark.parametrize(
    "job",
    [
        Job(resolve("digits", {}), Path("runs/a")),
        Job(
            resolve("cifar10", {"method": "vat", "labels": "all", "xi": 0.1}),
            Path("runs/b"),
            given=("labels", "xi"),
            resume=True,
            checkpoint="step-00000005",
            checkpoint_every=5,
            device="cpu",
            compile=False,
            data_dir=Path("data"),
            strict=True,
        ),
    ],
)
def test_a_job_as_json_and_back(job: Job) -> None:
    assert Job.from_dict(json.loads(json.dumps(job.to_dict()))) == job


def test_what_was_chosen() -> None:
    settings = resolve("digits", {})
    assert Job(settings, Path("a")).chosen("labels")  # by default all of it
    some = Job(settings, Path("a"), given=("labels",))
    assert some.chosen("labels")
    assert not some.chosen("seed")


def test_threads_are_recorded_and_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits depend on the number of threads, so a run keeps it wherever it is resumed."""
    used: list[int] = []
    take_step = Trainer.take_step

    def noted(trainer: Trainer, *arguments: Any) -> None:
        used.append(torch.get_num_threads())
        take_step(trainer, *arguments)

    monkeypatch.setattr(Trainer, "take_step", noted)
    given: dict[str, Any] = {"labels": 20, "batch_size": 4, "eval_every": 2, "device": "cpu", "reporter": Quiet()}
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        mixmatch.train("digits", out=tmp_path, steps=2, **given)
        assert RunFolder(tmp_path).config()["threads"] == 2
        torch.set_num_threads(1)
        record = mixmatch.train("digits", out=tmp_path, steps=4, resume=True, **given)
        assert record["hardware"]["threads"] == 2
        assert set(used) == {2}
        assert torch.get_num_threads() == 1  # the caller's is as it was
    finally:
        torch.set_num_threads(before)


def test_features_train_with_one_thread_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert default_threads((64,), torch.device("cpu")) == 1
    assert default_threads((3, 32, 32), torch.device("cpu")) == 8
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert default_threads((64,), torch.device("cpu")) == 8
    assert default_threads((64,), torch.device("cuda")) is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "10000 None"), ({"OMP_WAIT_POLICY": "PASSIVE"}, "None PASSIVE"), ({"GOMP_SPINCOUNT": "5"}, "5 None")],
)
def test_threads_do_not_spin_for_long(given: dict[str, str], expected: str) -> None:
    """On a busy machine that makes steps many times slower (benchmarks/threads.py). What the user sets is kept."""
    program = (
        "import os, sys; sys.argv = ['mixmatch', '--version']\n"
        "from mixmatch.__main__ import main\n"
        "assert 'torch' not in sys.modules\n"
        "try: main()\n"
        "except SystemExit: print(os.environ.get('GOMP_SPINCOUNT'), os.environ.get('OMP_WAIT_POLICY'))"
    )
    unset = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    done = subprocess.run([sys.executable, "-c", program], env={**unset, **given}, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == expected

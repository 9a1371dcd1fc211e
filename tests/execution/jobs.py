"""Small runs for tests of executors, and a driver that can be killed: `python jobs.py ADDRESS FOLDER KIND`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mixmatch.execution import here
from mixmatch.execution.ray import Ray
from mixmatch.training import checkpoint
from mixmatch.training.device import threads
from mixmatch.training.job import Work
from mixmatch.training.plan import plan
from mixmatch.training.progress import Quiet
from mixmatch.training.stop import Interrupted

STEPS = 240
"""Enough to be killed in the middle on a fast machine."""
SEEDS = (1, 2, 3)


def tiny(out: Path, seed: int = 1, **given: Any) -> Work:
    settings = {"labels": 20, "seed": seed, "steps": STEPS, "eval_every": 80, "network": "wrn-10-1", "batch_size": 4}
    every = given.pop("checkpoint_every", 10)
    return plan(
        "digits", settings | given, out=out, device="cpu", checkpoint_every=every, resume=True, reporter=Quiet()
    )


def undisturbed(folder: Path) -> dict[int, bytes]:
    """The models that the seeds give, trained in this process."""
    with threads(1):
        outcomes = here.run_all([tiny(folder / str(seed), seed) for seed in SEEDS])
    assert all(isinstance(outcome, dict) for outcome in outcomes), outcomes
    return models(folder)


def models(folder: Path) -> dict[int, bytes]:
    return {seed: (folder / str(seed) / "model.safetensors").read_bytes() for seed in SEEDS}


def saved(run: Path) -> bool:
    return bool(checkpoint.list_checkpoints(run / "checkpoint"))


def wait_until(true: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "its moment never came"
        time.sleep(0.02)


if __name__ == "__main__":
    address, folder, kind = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    work = [tiny(folder / str(seed), seed) for seed in SEEDS]
    if kind == "endless":
        work = [tiny(folder / "endless", steps=10**6, checkpoint_every=10**6)]
    try:
        for number, outcome in Ray(address).run(work):
            print(number, "record" if isinstance(outcome, dict) else outcome, flush=True)
    except Interrupted as stopped:
        sys.exit(128 + stopped.signal)

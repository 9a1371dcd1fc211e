"""Small runs for tests of executors, and a driver on a cluster that can be killed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
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

LONG, SHORT = 240, 30
"""Enough to be killed in the middle on a fast machine, and to be a run at all."""
RUNS = {1: SHORT, 2: LONG, 3: LONG}
"""Steps by seed."""


def tiny(out: Path, seed: int = 1, **given: Any) -> Work:
    settings = {"labels": 20, "seed": seed, "steps": RUNS[seed], "network": "wrn-10-1", "batch_size": 4}
    settings |= {"eval_every": LONG // 2}
    every = given.pop("checkpoint_every", 10)
    return plan(
        "digits", settings | given, out=out, device="cpu", checkpoint_every=every, resume=True, reporter=Quiet()
    )


def undisturbed(folder: Path, seeds: Sequence[int] = tuple(RUNS), **given: Any) -> dict[int, bytes]:
    """The models that the seeds give, trained in this process."""
    with threads(1):
        outcomes = here.run_all([tiny(folder / str(seed), seed, **given) for seed in seeds])
    assert all(isinstance(outcome, dict) for outcome in outcomes), outcomes
    return models(folder, seeds)


def models(folder: Path, seeds: Sequence[int]) -> dict[int, bytes]:
    return {seed: (folder / str(seed) / "model.safetensors").read_bytes() for seed in seeds}


def saved(run: Path) -> bool:
    return bool(checkpoint.list_checkpoints(run / "checkpoint"))


def driver(address: str, work: list[Work], ended: Path) -> None:
    """Do work on a cluster; note in a file what has ended."""
    try:
        with ended.open("w", buffering=1) as file:
            for number, outcome in Ray(address).run(work):
                print(number, "record" if isinstance(outcome, dict) else outcome, file=file)
    except Interrupted as stopped:
        sys.exit(128 + stopped.signal)

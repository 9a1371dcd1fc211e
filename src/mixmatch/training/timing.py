"""What training will take, from a few steps of it: time and memory, measured before anything is begun."""

from __future__ import annotations

import os
import statistics
import sys
import time
from dataclasses import dataclass

import torch

from mixmatch import settings as settings_
from mixmatch.data.opened import Data, to_data
from mixmatch.data.user.rows import Finding, UserData
from mixmatch.errors import MixMatchError
from mixmatch.presets import Kind
from mixmatch.settings import Settings
from mixmatch.text import duration
from mixmatch.training.device import pick_device
from mixmatch.training.session import completed, prepare

STEPS = 20


@dataclass(frozen=True)
class Trial:
    """What a few steps took, on which device."""

    settings: Settings
    step: float
    """Seconds of a step, the median: the first ones are slower."""
    evaluation: float
    """Seconds of an evaluation."""
    memory: int | None
    """Bytes: what the process held at its peak, or on CUDA what the device did."""
    device: torch.device

    @property
    def seconds(self) -> float:
        """Of a whole run."""
        evaluations = -(-self.settings.steps // self.settings.eval_every)
        return self.settings.steps * self.step + evaluations * self.evaluation


def cost(user: UserData, device: str = "auto") -> Finding:
    """What training on user data takes with the default settings, as a finding, or why it cannot be done."""
    try:
        kind: Kind = "images" if user.is_images else "features"
        data, where = to_data(user, seed=1), pick_device(device)
        trials = []
        for method in ("mixmatch", "supervised")[len(data.split.unlabeled) == 0 :]:
            settings = settings_.resolve(user.name, {"method": method}, kind)
            trials.append(trial(completed(settings, lambda name: False, data.source, where, kind), data, where))
    except (MixMatchError, RuntimeError, MemoryError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        advice = "fix what it says, or try smaller images or batches with image_size= or batch_size="
        return Finding("trial", f"a trial of {STEPS} steps failed: {reason}", (), advice, "error")
    return Finding(
        "cost", describe(trials, len(data.split.test) > 0), (), "steps= changes the time in proportion", "info"
    )


def trial(settings: Settings, data: Data, device: torch.device, steps: int = STEPS) -> Trial:
    """Take a few steps and evaluate once."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        trainer = prepare(settings, data, device, graph=device.type == "cuda")
        seconds = []
        for step in range(1, steps + 1):
            began = time.perf_counter()
            trainer.advance(step)
            trainer.check_finite()  # waits for the device
            seconds.append(time.perf_counter() - began)
        began = time.perf_counter()
        trainer.evaluate()
        evaluation = time.perf_counter() - began
    return Trial(settings, statistics.median(seconds), evaluation, _peak(device), device)


def describe(trials: list[Trial], evaluated: bool) -> str:
    """The trials in words: the method's, then the labels-only baseline that `train` runs to measure the gain."""
    first = trials[0]
    message = (
        f"training takes about {duration(first.seconds)} on this machine's {first.device.type.upper()}: "
        f"{first.settings.steps:,} steps of {1000 * first.step:.0f} ms with {first.settings.network}, from a trial of "
        f"{STEPS} steps"
    )
    if len(trials) > 1 and evaluated:
        message += f"; the baseline on the labels alone {duration(trials[1].seconds)} more"
    peaks = [t.memory for t in trials if t.memory is not None]
    if peaks:
        of_device = first.device.type == "cuda"
        message += f"; memory {max(peaks) / 2**20:,.0f} MB at its peak{' on the GPU' if of_device else ''}"
    return message


def _peak(device: torch.device) -> int | None:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    if os.name != "posix":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

"""What training will take, from a few steps of it: time and memory, told before anything is begun."""

from __future__ import annotations

import os
import statistics
import sys
import time
from dataclasses import dataclass, replace

import torch

from mixmatch import networks
from mixmatch import settings as settings_
from mixmatch.api import default_precision, pick_device
from mixmatch.data.source import Source
from mixmatch.data.split import Split
from mixmatch.data.user.hold_out import to_source
from mixmatch.data.user.rows import Finding, UserData, UserTable
from mixmatch.draws import torch_seed
from mixmatch.errors import MixMatchError
from mixmatch.settings import Settings
from mixmatch.text import duration
from mixmatch.training.trainer import Trainer

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


def cost(own: UserData, device: str = "auto") -> Finding:
    """What training on own data takes with the default settings, as a finding; also that it cannot be done, and why."""
    try:
        kind: settings_.Kind = "features" if isinstance(own, UserTable) else "images"
        source, split, _ = to_source(own, seed=1)
        where = pick_device(device)
        trials = []
        for method in ("mixmatch", "supervised")[len(split.unlabeled) == 0 :]:
            settings = settings_.resolve(own.name, {"method": method}, kind)
            if kind == "images":
                settings = replace(settings, pad=min(source.image_shape[:2]) // 8)
            settings = replace(settings, precision=default_precision(settings, where, source.input_shape))
            trials.append(trial(settings, source, split, where))
    except (MixMatchError, RuntimeError, MemoryError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        advice = "fix what it says, or try smaller images or batches: --image-size, --batch-size"
        return Finding("trial", f"a trial of {STEPS} steps failed: {reason}", (), advice, "error")
    return Finding("cost", told(trials, len(split.test) > 0), (), "--steps changes the time in proportion", "info")


def trial(settings: Settings, source: Source, split: Split, device: torch.device) -> Trial:
    """Take 20 steps and evaluate once."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(torch_seed(settings.seed, "init"))
        network = networks.build(settings.network, len(source.classes), source.input_shape)
        trainer = Trainer(settings, source, split, network, device, record=device.type == "cuda")
        seconds = []
        for step in range(1, STEPS + 1):
            began = time.perf_counter()
            trainer.advance(step)
            trainer.check_finite()  # waits for the device
            seconds.append(time.perf_counter() - began)
        began = time.perf_counter()
        trainer.evaluate()
        evaluation = time.perf_counter() - began
    return Trial(settings, statistics.median(seconds), evaluation, _peak(device), device)


def told(trials: list[Trial], judged: bool) -> str:
    """The trials in words: the method's own, then the labels-only baseline that `train` runs for a verdict."""
    first = trials[0]
    message = (
        f"training takes about {duration(first.seconds)} on this machine's {first.device.type.upper()}: "
        f"{first.settings.steps:,} steps of {1000 * first.step:.0f} ms with {first.settings.network}, from a trial of "
        f"{STEPS} steps"
    )
    if len(trials) > 1 and judged:
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

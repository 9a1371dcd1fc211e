"""Estimates of the time and memory that training will take, from a few steps of it."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from mixmatch import settings as settings_
from mixmatch.data.opened import Data, to_data
from mixmatch.data.split import Split
from mixmatch.data.user.reading import IMAGE_SIZES
from mixmatch.data.user.rows import Finding, UserData
from mixmatch.data.validation import number_of_folds
from mixmatch.errors import MixMatchError, first_line
from mixmatch.presets import Kind
from mixmatch.settings import Settings
from mixmatch.text import in_words
from mixmatch.training.choose import choose_features
from mixmatch.training.device import default_threads, own_generator, pick_device
from mixmatch.training.opening import embedded
from mixmatch.training.session import completed, prepare

STEPS = 20
"""Steps of a trial at most."""

BUDGET = 15.0
"""Seconds that a trial of user data takes in all, unless two steps take longer."""

WITHIN = 600.0
"""Seconds after which a first run should end."""

LEAST_STEPS = 200
SMALL = IMAGE_SIZES[0]
"""Pixels of the images of a first run, where larger ones take too long."""

FEW = 32
"""Labeled, unlabeled and test images that are embedded to see how long it takes."""

TEST_ROWS = 256
"""Test rows that a trial evaluates on; the time for all of them follows from it."""

Progress = Callable[[int], None]
"""Called with the number of steps taken so far."""


@dataclass(frozen=True)
class Trial:
    """What a few steps took, on which device."""

    settings: Settings
    step: float
    """Seconds of a step, the median of all but the first, which is slower."""
    evaluation: float
    """Seconds of an evaluation."""
    memory: int | None
    """Bytes: what the process held at its peak, or on CUDA what the device did."""
    device: torch.device
    taken: int = 0
    """How many steps were measured; 0 if it was derived from another trial."""

    @property
    def seconds(self) -> float:
        """Of a whole run."""
        evaluations = -(-self.settings.steps // self.settings.eval_every)
        return self.settings.steps * self.step + evaluations * self.evaluation


class FirstRun(NamedTuple):
    """Settings with which `train` ends soon, None where they are the defaults, and the seconds it then takes."""

    image_size: int | None
    steps: int | None
    seconds: float


@dataclass(frozen=True)
class Cost:
    """What `train` takes: trials of the method, and of the baseline on the labels alone if `train` runs it too."""

    usual: Trial
    """With the default settings."""
    small: Trial | None = None
    """With images of `SMALL` pixels, if the usual ones are larger."""
    baseline: float | None = None
    """A step of the baseline as a share of one of the method."""
    folds: int = 0
    """Of cross-validation: for each, the method and the baseline are trained once more, and no other baseline is."""
    embedding: float = 0.0
    """Seconds to compute the features of all images, if it learns from those."""

    def seconds(self, trial: Trial) -> float:
        """Of `train` as in a trial, the baseline or cross-validation included."""
        both = trial.seconds
        if self.baseline is not None:
            both += replace(trial, step=trial.step * self.baseline).seconds
        return self.embedding + (trial.seconds + self.folds * both if self.folds else both)

    def first_run(self, within: float = WITHIN) -> FirstRun:
        """The defaults if they end within so many seconds; else smaller images, and as many steps as do."""
        if (seconds := self.seconds(self.usual)) <= within:
            return FirstRun(None, None, seconds)
        trial, size = (self.usual, None) if self.small is None else (self.small, SMALL)
        if (seconds := self.seconds(trial)) <= within:
            return FirstRun(size, None, seconds)
        most = trial.settings.steps
        steps = min(max(LEAST_STEPS, int(most * within / seconds) // 100 * 100), most)
        return FirstRun(size, steps, self.seconds(replace(trial, settings=replace(trial.settings, steps=steps))))


def cost(
    user: UserData, device: str = "auto", *, sized: bool = False, progress: Progress | None = None, left_out: int = 0
) -> tuple[Finding, FirstRun | None]:
    """What training on user data takes with the default settings, as a finding, and a first run that ends soon; or
    why it cannot be done.

    Args:
        sized: the image size was chosen, so that no other is tried.
        left_out: bytes of rows that training will have and `user` has not.
    """
    try:
        found = measure(user, pick_device(device), sized=sized, progress=progress)
        found = replace(found, usual=_with_rows(found.usual, left_out))
    except (MixMatchError, RuntimeError, MemoryError) as error:
        advice = "fix what it says, or try smaller images or batches with image_size= or batch_size="
        return Finding("trial", f"a trial of a few steps failed: {first_line(error)}", (), advice, "error"), None
    return Finding("cost", describe(found), (), "steps= changes the time in proportion", "info"), found.first_run()


def measure(
    user: UserData,
    device: torch.device,
    *,
    sized: bool = False,
    progress: Progress | None = None,
    method: str = "mixmatch",
) -> Cost:
    """Try the default settings of a method, for `BUDGET` seconds in all.

    Large images are tried small first. If two steps of the usual size do not fit into the time that is left, their time
    is scaled up by the number of pixels.
    """
    began, done = time.perf_counter(), 0
    kind: Kind = "images" if user.is_images else "features"
    features = choose_features(device.type).features if user.is_images else "none"
    settings = settings_.resolve(user.name, {"features": features}, kind)
    data, embedding = to_data(user, 1, settings.hold_out), 0.0
    cheap = features != "none" or not user.is_images
    folds = number_of_folds(data) if cheap and not len(data.split.test) else 0
    if features != "none":
        data, embedding = _embedded(data, settings, device)
    methods = (method, "supervised") if len(data.split.unlabeled) else ("supervised",)

    def tried(method: str, data: Data, share: float) -> Trial:
        nonlocal done
        settings = settings_.resolve(user.name, {"method": method, "features": features}, kind)
        settings = completed(settings, lambda name: False, data.source, device, kind)
        counted = None if progress is None else lambda n, before=done: progress(before + n)
        fewer = replace(data, split=replace(data.split, test=data.split.test[:TEST_ROWS]))
        result = trial(settings, fewer, device, until=began + share * BUDGET, progress=counted)
        done += result.taken
        return replace(result, evaluation=result.evaluation * max(1.0, len(data.split.test) / TEST_ROWS))

    size = min(user.inputs.shape[1:3]) if data.source.train.is_images else 0
    large = size > SMALL and not sized
    least = to_data(replace(user, inputs=user.inputs[:, :SMALL, :SMALL]), 1, settings.hold_out) if large else data
    first = tried(methods[0], least, 0.4 if large else 0.8)
    baseline = None
    if len(methods) > 1 and (folds or len(data.split.test)):
        baseline = tried(methods[1], least, 0.5 if large else 1.0).step / first.step
    if not large:
        return Cost(first, None, baseline, folds, embedding)
    longer = (size / SMALL) ** 2
    if 3 * longer * first.step < BUDGET - (time.perf_counter() - began):
        return Cost(tried(methods[0], data, 0.9), first, baseline)
    usual = replace(first, step=longer * first.step, evaluation=longer * first.evaluation, memory=None, taken=0)
    return Cost(usual, first, baseline)


def trial(
    settings: Settings,
    data: Data,
    device: torch.device,
    steps: int = STEPS,
    *,
    until: float = float("inf"),
    progress: Progress | None = None,
) -> Trial:
    """Take a few steps and evaluate once. After two steps it ends where another would not end `until` that time."""
    with own_generator(device):
        threads = default_threads(data.source.input_shape, device)
        trainer = prepare(settings, data, device, graph=device.type == "cuda", threads=threads)
        seconds: list[float] = []
        while len(seconds) < steps and (len(seconds) < 2 or time.perf_counter() + seconds[-1] < until):
            began = time.perf_counter()
            trainer.advance(len(seconds) + 1)
            trainer.check_finite()  # waits for the device
            seconds.append(time.perf_counter() - began)
            if progress is not None:
                progress(len(seconds))
        began = time.perf_counter()
        trainer.evaluate()
        evaluation = time.perf_counter() - began
    return Trial(settings, statistics.median(seconds[1:] or seconds), evaluation, _peak(device), device, len(seconds))


def describe(cost: Cost) -> str:
    """The cost of the default settings, in words."""
    trial = cost.usual
    step = f"{trial.step:.1f} s" if trial.step >= 1 else f"{1000 * trial.step:.0f} ms"
    how = f"from {trial.taken} steps" if trial.taken else f"from steps with images of {SMALL}x{SMALL} pixels"
    features = f"{trial.settings.features} features of each image, then " if cost.embedding else ""
    message = (
        f"training with the default settings takes {in_words(cost.seconds(trial))} on this machine's "
        f"{trial.device.type.upper()}: {features}{trial.settings.steps:,} steps of {step} with "
        f"{trial.settings.network} ({how})"
    )
    if cost.baseline is not None:
        message += ", and the baseline on the labels alone"
    if cost.folds:
        both = "both " if cost.baseline is not None else ""
        message += f", {both}cross-validated over {cost.folds} folds of the labels"
    if trial.memory is not None:
        on_gpu = " on the GPU" if trial.device.type == "cuda" else ""
        message += f"; memory {trial.memory / 2**20:,.0f} MB at its peak{on_gpu}"
    return message


def _embedded(data: Data, settings: Settings, device: torch.device) -> tuple[Data, float]:
    """A few rows of the data with features in place of images, and how many seconds it takes to embed all of them."""
    split = data.split
    rows = np.sort(np.concatenate([split.labeled[:FEW], split.unlabeled[:FEW]]))
    labeled = np.isin(rows, split.labeled)
    test = data.source.test.take(split.test[:FEW])
    source = replace(data.source, train=data.source.train.take(rows), test=test)
    few = Split(np.flatnonzero(labeled), np.flatnonzero(~labeled), rows[:0], np.arange(len(test), dtype=np.int64))
    began = time.perf_counter()
    sample = embedded(replace(data, source=source, split=few), settings, device.type)
    images = len(rows) * settings.views + len(test)
    total = len(data.source.train) * settings.views + len(data.source.test)
    return sample, (time.perf_counter() - began) * total / images


def _with_rows(trial: Trial, left_out: int) -> Trial:
    """A trial with the memory that it would have taken with more rows."""
    if trial.memory is None or not left_out:
        return trial
    if trial.device.type == "cuda":
        return replace(trial, memory=trial.memory + left_out)
    now = trial.memory
    with suppress(OSError):  # elsewhere than on Linux the peak stands for it
        now = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    return replace(trial, memory=max(trial.memory, now + left_out))


def _peak(device: torch.device) -> int | None:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    if os.name != "posix":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

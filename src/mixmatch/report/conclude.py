"""What follows a run on user data: a run on the labels alone beside it, cross-validation, and the report with its
verdict."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

from mixmatch.classifier import load_run
from mixmatch.data.opened import Data
from mixmatch.data.validation import number_of_folds
from mixmatch.execution.here import run_one
from mixmatch.report.gather import Report
from mixmatch.report.write import write_report
from mixmatch.settings import Settings, of_run, resolve, updated
from mixmatch.training import progress
from mixmatch.training.cross_validate import cross_validate as validate
from mixmatch.training.device import pick_device
from mixmatch.training.gain import Gain, measure_gain
from mixmatch.training.job import Work
from mixmatch.training.opening import kind_of
from mixmatch.training.run import RunFolder, baseline_of
from mixmatch.training.session import completed


def conclude(
    work: Work, data: Data, *, baseline: bool = True, cross_validate: bool | None = None
) -> tuple[Report, Path]:
    """Say how good a finished run on user data is, and write its report.

    Args:
        work: the run. A network of its own is as it was before training: the baseline begins with it.
        data: its data, open.
        baseline: train on the labels alone, too, in `baseline/`: it shows what the unlabeled data is worth.
        cross_validate: train without each fold of the labels in turn. By default for features, which take seconds, if
            there is nothing else to evaluate the model on.

    Returns:
        The report, and where its page is.
    """
    job = work.job
    settings = RunFolder(job.out).settings()
    tested = len(data.split.test) > 0
    # Labels alone are of interest only if the method uses more.
    method = work.method or settings.build_method()
    alone = _alone(work, settings) if baseline and method.views else None
    if cross_validate is None:  # a network of one's own cannot be built anew
        cross_validate = (
            not tested and not data.source.train.is_images and work.network is None and number_of_folds(data) > 0
        )
    if cross_validate:
        device, reporter = pick_device(job.device), work.reporter or progress.on_stderr()
        validate(settings, data, device, job.out, method=work.method, reporter=reporter)
        if alone is not None and not tested:
            full = completed(alone[0], lambda name: name in alone[1], data.source, device, kind_of(job.settings.data))
            validate(full, data, device, baseline_of(job.out), reporter=reporter)
    gain = _gain(work, data, *alone) if alone is not None and tested else None
    report, page, _ = write_report(job.out, data=data, gain=gain, device=job.device, network=work.network)
    return report, page


def _alone(work: Work, settings: Settings) -> tuple[Settings, tuple[str, ...]]:
    """The settings of a run on the labels alone that is like this one, and which of them are given."""
    place = work.job.settings.data  # where the data of a resumed run is now
    kind = kind_of(place)
    # What it learns from decides on other defaults, so it is always given.
    default = resolve(place, {"method": work.method or settings.method, "features": settings.features}, kind)
    # What a resumed run was given is not given again: then it is what differs from the defaults.
    changed = {n: getattr(settings, n) for n in of_run() if getattr(settings, n) != getattr(default, n)}
    alike = {n: getattr(settings, n) for n in work.job.given or () if n in of_run()}
    given = {**changed, **alike, "features": settings.features, "method": "supervised"}
    return updated(resolve(place, given, kind), {"data_options": settings.data_options}), tuple(given)


def _gain(work: Work, data: Data, alone: Settings, given: tuple[str, ...]) -> Gain:
    """Train on the labels alone, in `baseline/`, and measure the difference."""
    job = work.job
    folder = baseline_of(job.out)
    again = replace(job, settings=alone, out=folder, given=given, resume=True, checkpoint=None)
    run_one(replace(work, job=again, data=data, method=None, network=copy.deepcopy(work.network), also=(), note=""))
    trained, baseline = (load_run(path, job.device, copy.deepcopy(work.network)) for path in (job.out, folder))
    return measure_gain(trained, baseline, data.source.test)

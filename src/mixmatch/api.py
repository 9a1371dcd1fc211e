"""Train, load: the two calls most people need. The command line is a thin layer over them, and over
`report.evaluate`, `report.write_report`, `predict.predict_files` and `export.export_model`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from mixmatch import data as data_
from mixmatch import methods, terminal
from mixmatch.callbacks.base import Callback, following
from mixmatch.classifier import Classifier, load_run
from mixmatch.data import Reading, is_path
from mixmatch.data.embedding import Callback as Shown
from mixmatch.data.opened import Data
from mixmatch.data.source import Source
from mixmatch.data.split import Split
from mixmatch.errors import MixMatchError, nearest, unknown
from mixmatch.execution import here
from mixmatch.methods.base import Method
from mixmatch.networks import timm_backbone
from mixmatch.report import Report, conclude
from mixmatch.settings import of_run
from mixmatch.training import opening, session
from mixmatch.training.cross_validate import possible_folds
from mixmatch.training.job import Work
from mixmatch.training.plan import plan
from mixmatch.training.progress import Reporter, bar
from mixmatch.training.run import RunFolder, RunRecord
from mixmatch.training.torchrun import leads

Bar = Callable[[str], AbstractContextManager[Shown | None]]
"""Shows work that counts rows, under a title."""


def train(
    data: str | Path | Source,
    *,
    method: str | Method | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    checkpoint: str | None = None,
    checkpoint_every: int | None = None,
    config: str | Path | None = None,
    network: str | nn.Module | None = None,
    device: str | torch.device = "auto",
    compile: bool | None = None,
    data_dir: str | Path | None = None,
    strict: bool = False,
    labels_file: str | Path | None = None,
    image_size: int | None = None,
    label_column: str | None = None,
    part_column: str | None = None,
    id_column: str | None = None,
    ignore: Sequence[str] | None = None,
    split: Split | None = None,
    baseline: bool | None = None,
    cross_validate: bool | None = None,
    reporter: Reporter | None = None,
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> RunRecord:
    """Train a classifier; the run is a folder with the model, its metrics and everything needed to resume.

    Your own data on disk is handled as by `mixmatch train`: a second run on the labels alone shows how much the
    unlabeled data helps, and the report with its verdict is written. That takes about twice as long; `baseline=False`
    skips the second run. On published data sets and a `Source`, only the model is trained.

    Args:
        data: a built-in name (`digits`, `cifar10`, ...), a folder of your own images, a file of your own arrays
            (.npz, .npy) or a table (.csv, .parquet), or a `Source` of your own arrays.
        method: a name of `mixmatch.methods.METHODS`, or a `Method` object of your own class.
        out: the run folder; by default `runs/DATA-METHOD-LABELS-seedSEED`.
        resume: continue the run in `out`. Settings not given are the run's own; different ones are refused, except
            `steps` if nothing else depends on it: a run, finished or not, can be extended or shortened.
        checkpoint: resume from this checkpoint instead of the newest.
        checkpoint_every: steps between checkpoints; by default one per minute.
        config: start from the settings in this file, a run's config.json or TOML; those given here win.
        network: a name for `mixmatch.networks.build`, or any `torch.nn.Module` that maps images (or features) to
            logits.
        device: `auto`, `cpu`, `cuda`, `mps`, or a `torch.device`.
        compile: compile the step for speed: by default on CUDA, if the run is long enough to pay off.
        data_dir: where the data files are; by default MIXMATCH_DATA or a cache folder.
        strict: refuse data files that are not the published ones.
        labels_file: user images: a CSV of file and label, instead of a folder per class; for a .npy file, another .npy
            file.
        image_size: user images: pixels to resize to; by default chosen from the images.
        label_column: a table: the column with the label, empty where there is none; by default `label`.
        part_column: a table: a column that is `test` for rows to evaluate on.
        id_column: a table: a column that names each row; not a feature, kept in predictions.
        ignore: a table: columns that are not features.
        split: which rows of a `Source` are labeled; by default the official procedure chooses `labels` of them.
        baseline: user data on disk: train on the labels alone, too, in `baseline/` of the run folder; by default yes.
        cross_validate: user data on disk: also train without each fold of the labels, to evaluate and to find wrong
            labels; by default for features, if nothing else evaluates the model.
        reporter: how to show progress; by default a progress bar on a terminal.
        callbacks: observers of the run: `mixmatch.callbacks.MLflow()`, `WandB()`, a `Callback` of your own.
        **settings: any of `mixmatch.settings.Settings` and of the method: `labels`, `seed`, `steps`, `batch_size`,
            `lambda_u`, ... Those not given have the paper's values for this data set.

    Returns:
        The record of the finished run, a dict. `record["last_error"]` is the test error of the model in percent,
        `record["error"]` the paper's number, the median of the last evaluations; both are None if there is nothing to
        evaluate on. For user data on disk it also has what `mixmatch train --json` prints: `verdict` (text),
        `verdict_details` (numbers and sentences) and `report` (where the page is).

    Raises:
        MixMatchError: for anything the caller can fix; too little memory on the device is also a
            `torch.OutOfMemoryError`.
        Interrupted: after Ctrl-C or SIGTERM, when a checkpoint is saved.
    """
    if not isinstance(data, str | Path | Source):
        raise MixMatchError(
            f"data must be a name, a path or a Source, not {type(data).__name__}; mixmatch.MixMatchClassifier takes "
            "arrays and tables of numbers as they are, and a file of them (.npz, .csv, .parquet) has a path"
        )
    data = str(data) if isinstance(data, Path) else data
    _check_names(settings)
    reading = {
        "labels_file": None if labels_file is None else str(labels_file),
        "image_size": image_size,
        "label_column": label_column,
        "part_column": part_column,
        "id_column": id_column,
        "ignore": list(ignore or ()) or None,
    }
    work = plan(
        data,
        {"method": method, "network": network, **settings},
        {name: value for name, value in reading.items() if value is not None},
        out=out,
        resume=resume,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        config=config,
        device=str(device),
        compile=compile,
        data_dir=data_dir,
        strict=strict,
        split=split,
        reporter=reporter,
    )
    on_disk = isinstance(data, str) and is_path(data)
    for name, given in {"baseline": baseline, "cross_validate": cross_validate}.items():
        if given and not on_disk:
            raise MixMatchError(f"{name}= is for your own data on disk, not for '{work.job.settings.data}'")
    with following(callbacks, work.job.out) as events:
        work = replace(work, shared=True, also=(events,))
        if on_disk:
            shown = partial(bar, shown=reporter is None and leads())
            trained = train_user_data(work, baseline=baseline is not False, cross_validate=cross_validate, bar=shown)
            record = trained.record
        else:
            record = here.run_one(work)
        events.finish(record)
    return record


class Trained(NamedTuple):
    """A run on user data: its record with the verdict, the report, and where its page is."""

    record: RunRecord
    report: Report | None
    """None in a process that does not lead: only one of several makes the report."""
    page: Path | None


def train_user_data(
    work: Work,
    *,
    baseline: bool = True,
    cross_validate: bool | None = None,
    bar: Bar,
    warn: Callable[[str], None] = terminal.warn,
) -> Trained:
    """Do a run on user data on disk, which is read once, and what follows it: see `report.conclude`."""
    data = _open(work, bar, warn)
    if cross_validate:  # refused before a model is trained, not after it
        possible_folds(data, by_name=work.network is None)
    untrained = copy.deepcopy(work.network)
    record = here.run_one(replace(work, data=data))
    if not leads():
        return Trained(record, None, None)
    work = replace(work, network=untrained, shared=False)
    report, page = conclude(work, data, baseline=baseline, cross_validate=cross_validate)
    verdict = {"verdict": report.verdict.text, "verdict_details": report.verdict.to_dict()}
    return Trained(RunRecord({**record, **verdict, "report": str(page)}), report, page)


def _open(work: Work, bar: Bar, warn: Callable[[str], None]) -> Data:
    """User data. Before a run begins, say what was left out of it."""
    settings, run = work.job.settings, RunFolder(work.job.out)
    began = run.continues(work.job.resume)
    if began:
        before = session.resumed(work.job, run, work.method)  # what cannot be resumed is refused before it is read
        settings = opening.located(before, run.config().get("folder"), settings.data)
    for name in (settings.network, settings.features):
        if name.startswith(timm_backbone.PREFIX):
            timm_backbone.find(name)  # what cannot be had is refused before the images are read
    with bar("reading images") as progress:
        read = data_.read_user_data(Path(settings.data), Reading.of(settings.data_options), progress=progress)
    if not began:
        opening.say_findings(read, settings, work.method or settings.build_method(), warn)
    with bar("embedding images") if settings.features != "none" else nullcontext() as progress:
        return opening.user_data(read, settings, work.job.device, progress)


def _check_names(settings: Iterable[str]) -> None:
    """A misspelled parameter of `train` is not taken for a setting."""
    parameters = set(train.__kwdefaults__ or ())
    known = {*of_run(), *(name for method in methods.METHODS for name in methods.declared(method))}
    for name in settings:
        if name not in known and nearest(name, known | parameters) in parameters - known:
            raise unknown("parameter", name, parameters)


def load(path: str | Path, *, device: str | torch.device = "auto", network: nn.Module | None = None) -> Classifier:
    """The classifier of a run folder (of its newest checkpoint if unfinished) or of a model.safetensors file."""
    return load_run(path, str(device), network)

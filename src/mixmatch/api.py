"""Train, load: the two calls most people need. The command line is a thin layer over them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from mixmatch.classifier import Classifier, load_run
from mixmatch.data.opened import Data
from mixmatch.data.source import Source
from mixmatch.data.split import Split
from mixmatch.execution import here
from mixmatch.methods.base import Method
from mixmatch.training import session
from mixmatch.training.plan import plan
from mixmatch.training.progress import Reporter
from mixmatch.training.run import Record, RunFolder


def train(
    data: str | Source,
    *,
    method: str | Method | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    checkpoint: str | None = None,
    checkpoint_every: int | None = None,
    config: str | Path | None = None,
    network: str | nn.Module | None = None,
    device: str = "auto",
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
    reporter: Reporter | None = None,
    **settings: Any,
) -> Record:
    """Train a classifier; the run is a folder that holds the model, its metrics and all it takes to resume.

    Args:
        data: a built-in name (`digits`, `cifar10`, ...), a folder of your own images, a file of your own arrays
            (.npz, .npy) or a table (.csv, .parquet), or a `Source` of your own arrays.
        method: a name of `mixmatch.methods.METHODS`, or a `Method` object of your own class.
        out: the run folder; by default `runs/DATA-METHOD-LABELS-seedSEED`.
        resume: continue the run in `out`. Settings not given are the run's own; others are refused, but for `steps`
            where nothing else depends on them: a run can be extended, finished or not, or shortened.
        checkpoint: resume from this checkpoint instead of the newest.
        checkpoint_every: steps between checkpoints; by default one per minute.
        config: start from the settings in this file, a run's config.json or TOML; those given here win.
        network: a name for `mixmatch.networks.build`, or any `torch.nn.Module` that maps images (or features) to
            logits.
        device: `auto`, `cpu`, `cuda`, `mps`.
        compile: compile the step for speed: by default on CUDA, where a run is long enough to repay it.
        data_dir: where the data files are; by default MIXMATCH_DATA or a cache folder.
        strict: refuse data files that are not the published ones.
        labels_file: user images: a CSV of file and label, instead of a folder per class; of a .npy file: a .npy file.
        image_size: user images: pixels to resize to; by default chosen from the images.
        label_column: a table: the column with the label, empty where there is none; by default `label`.
        part_column: a table: a column that is `test` for rows to evaluate on.
        id_column: a table: a column that names each row; no feature, kept in predictions.
        ignore: a table: columns that are no features.
        split: which rows of a `Source` are labeled; by default the official procedure chooses `labels` of them.
        reporter: what to show meanwhile; by default a progress bar on a terminal.
        **settings: any of `mixmatch.settings.Settings` and of the method: `labels`, `seed`, `steps`, `batch_size`,
            `lambda_u`, ... What is not given is what the paper used for this data set.

    Returns:
        The record of the finished run; `record["error"]` is the test error in percent, None if there is nothing to
        evaluate on.

    Raises:
        MixMatchError: for anything the caller can fix; too little memory on the device is also a
            `torch.OutOfMemoryError`.
        Interrupted: after Ctrl-C or SIGTERM, when a checkpoint is saved.
    """
    reading = {
        "labels_file": None if labels_file is None else str(labels_file),
        "image_size": image_size,
        "label_column": label_column,
        "part_column": part_column,
        "id_column": id_column,
        "ignore": list(ignore or ()) or None,
    }
    return here.run_one(
        plan(
            data,
            {"method": method, "network": network, **settings},
            {name: value for name, value in reading.items() if value is not None},
            out=out,
            resume=resume,
            checkpoint=checkpoint,
            checkpoint_every=checkpoint_every,
            config=config,
            device=device,
            compile=compile,
            data_dir=data_dir,
            strict=strict,
            split=split,
            reporter=reporter,
        )
    )


def load(path: str | Path, *, device: str = "auto", network: nn.Module | None = None) -> Classifier:
    """The classifier of a run folder or of a model.safetensors file. An unfinished run gives its newest checkpoint."""
    return load_run(path, device, network)


def open_run(
    path: str | Path,
    data_dir: str | Path | None = None,
    *,
    strict: bool = False,
    data: str | Path | None = None,
) -> Data:
    """The data that a run was trained on, read again; refused if it has changed. `data` is where user data is now, if
    it has moved."""
    opener = lambda settings: session.open_data(settings, data_dir, strict=strict)  # noqa: E731
    return session.open_run(RunFolder(Path(path)), opener, data)

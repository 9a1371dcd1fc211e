"""The data that settings name: read, split and embedded; and whether it has changed since a run was trained on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mixmatch import data as data_
from mixmatch.data import is_path
from mixmatch.data.cache import cache_folder
from mixmatch.data.embedding import Callback, embed
from mixmatch.data.opened import Basis, Data, to_data
from mixmatch.data.pate import open_shard, open_student
from mixmatch.data.published.files import data_folder
from mixmatch.data.source import Source, labels_sha256
from mixmatch.data.split import Split, make_split
from mixmatch.data.user.rows import UserData
from mixmatch.data.validation import OPTION as VALIDATION
from mixmatch.data.validation import for_validation
from mixmatch.errors import MixMatchError
from mixmatch.methods.base import Method
from mixmatch.presets import Kind
from mixmatch.settings import Settings
from mixmatch.training.device import pick_device
from mixmatch.training.run import Record, RunFolder


def kind_of(data: str) -> Kind | None:
    """Which presets for user data apply: those for images, those for features, or none."""
    if not is_path(data):
        return None
    return "features" if data_.holds_features(Path(data)) else "images"


def open_data(
    settings: Settings,
    data_dir: str | Path | None = None,
    *,
    strict: bool = False,
    device: str | torch.device = "auto",
    read: UserData | None = None,
) -> Data:
    """Read the data that the settings name, or the part of it that is a teacher's, a student's or a search's, and split
    it. User data that was `read` before is not read again."""
    if VALIDATION in settings.data_options:
        options = {name: value for name, value in settings.data_options.items() if name != VALIDATION}
        whole = open_data(replace(settings, data_options=options), data_dir, strict=strict, device=device, read=read)
        return for_validation(whole, settings.data_options[VALIDATION], settings.seed)
    for part, opener in (("shard", open_shard), ("student", open_student)):
        if part in settings.data_options:
            if settings.imbalance != 1:
                raise MixMatchError("imbalance= is not for PATE, whose shards and pools are given: leave it out")
            return opener(settings, data_dir, strict=strict)
    if not is_path(settings.data):
        if settings.hold_out != "all-classes":
            raise MixMatchError(f"hold_out= is for your own data, not for '{settings.data}': leave it out")
        source = data_.load(settings.data, data_dir, strict=strict)
        split = split_of(source, settings)
        data = Data(source, split, Basis(f"its {len(split.test):,} test images"))
        return embedded(data, settings, device, cache_folder(data_folder(data_dir), strict=strict))
    if read is None:
        read = data_.read_user_data(Path(settings.data), data_.Reading.of(settings.data_options))
    return user_data(read, settings, device)


def split_of(source: Source, settings: Settings) -> Split:
    """The split of a data set whose classes are known, as the settings say."""
    s = settings
    return make_split(source, s.labels, s.seed, s.valid, s.unlabeled, s.imbalance)


def embedded(
    data: Data,
    settings: Settings,
    device: str | torch.device = "auto",
    cache: Path | None = None,
    progress: Callback | None = None,
) -> Data:
    """The data with frozen features in place of images, if the settings ask for them."""
    if settings.features == "none":
        return data
    where = pick_device(device)
    source = embed(
        data.source, settings.features, settings.weights, views=settings.views, flip=settings.flip, device=where,
        cache=cache, progress=progress,
    )  # fmt: skip
    return replace(data, source=source)


def say_findings(read: UserData, settings: Settings, method: Method, warn: Callable[[str], None]) -> None:
    """Say what was left out of user data. A method that learns from unlabeled rows is refused where there are none."""
    for finding in read.findings:
        text = f"{finding.message}: {finding.advice}" if finding.advice else finding.message
        if finding.kind != "no-unlabeled":
            if finding.severity != "info":
                warn(text)
        elif method.views and settings.unlabeled != "all":
            raise MixMatchError(text)


def user_data(
    read: UserData, settings: Settings, device: str | torch.device = "auto", progress: Callback | None = None
) -> Data:
    """User data that was read, split as the settings say, embedded if they say so."""
    if settings.labels != "all" or settings.valid:
        raise MixMatchError(
            "labels= and valid= do not apply to your own data, whose labels are all used: leave them out"
        )
    if settings.imbalance != 1:
        raise MixMatchError("imbalance= is for published data sets, not for your own data: leave it out")
    place = Path(settings.data)
    cache = cache_folder(place if place.is_dir() else place.parent) if settings.features != "none" else None
    data = embedded(to_data(read, settings.seed, settings.hold_out), settings, device, cache, progress)
    if settings.unlabeled == "rest":
        return data
    everything = np.concatenate([data.split.labeled, data.split.unlabeled])
    return replace(data, split=replace(data.split, unlabeled=everything))


def open_run(
    run: RunFolder,
    data: str | Path | None = None,
    data_dir: str | Path | None = None,
    *,
    strict: bool = False,
    device: str | torch.device = "auto",
) -> Data:
    """The data of a run that was trained, at another place if `data` is given. Data that has changed since is refused:
    it would be split anew, and the run evaluated on what it has learned from."""
    config = run.config()
    settings = run.settings()
    if data is not None and data_.is_published(settings.data):
        raise MixMatchError(f"data= is for a run on your own data, but {run.path} is of '{settings.data}'")
    settings = located(settings, config.get("folder"), data)
    if not data_.is_published(settings.data) and not Path(settings.data).exists():
        raise MixMatchError(
            f"the data of {run.path} is not at {settings.data}: say where it is with data= (if it was a Source, only "
            "Python can open it)"
        )
    opened = open_data(settings, data_dir, strict=strict, device=device)
    refuse_changed(run, config, opened)
    return opened


def located(settings: Settings, folder: str | None, moved: str | Path | None = None) -> Settings:
    """The settings of a run with its files where they are now: as they are named, or in the `folder` where the run
    began. Data that has `moved` takes with it what lies inside."""
    began = Path(folder or "")

    def place(path: str) -> str:
        if moved is not None and (began / path).is_relative_to(began / settings.data):
            return str(Path(moved) / (began / path).relative_to(began / settings.data))
        return path if Path(path).exists() or not (began / path).exists() else str(began / path)

    options, labels_file = settings.data_options, settings.data_options.get("labels_file")
    if labels_file is not None:
        options = {**options, "labels_file": place(labels_file)}
    where = settings.data if data_.is_published(settings.data) else place(settings.data)
    return replace(settings, data=where, data_options=options)


def refuse_changed(run: RunFolder, config: Record, data: Data) -> None:
    if (what := changed(config, described(data))) is not None:
        raise MixMatchError(
            f"the data has changed since {run.path} was trained ({what}), so some of what it learned from might be "
            "among what it is evaluated on: train again in another folder"
        )


def described(data: Data) -> Record:
    """What a run's configuration says about its data."""
    source, split = data.source, data.split
    about = {
        "classes": list(source.classes),
        "input_shape": list(source.input_shape),
        "split": {"hash": split.hash, **split.counts(), "labeled_rows": split.labeled.tolist()},
        "labels_sha256": labels_sha256(source),
    }
    if source.embedding is not None:
        about["image_shape"] = list(source.embedding.input_shape)
    return about if source.encoding is None else {**about, "encoding": source.encoding.to_dict()}


def changed(before: Record, now: Record) -> str | None:
    """How the data differs from a run's configuration; None if it does not. Pixels are not compared:
    decoders differ from machine to machine."""
    if before["classes"] != now["classes"]:
        return f"classes {', '.join(map(str, before['classes']))} -> {', '.join(now['classes'])}"
    if before["input_shape"] != now["input_shape"]:
        return f"inputs of shape {tuple(before['input_shape'])} -> {tuple(now['input_shape'])}"
    if before["split"]["hash"] != now["split"]["hash"]:
        return "another split"
    if before.get("labels_sha256", now["labels_sha256"]) != now["labels_sha256"]:
        return "other labels"
    if not _alike(before.get("encoding"), now.get("encoding")):
        return "other features"
    return None


def _alike(a: Any, b: Any) -> bool:
    """Whether JSON values are equal, numbers up to the rounding differences of means between machines."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_alike(a[name], b[name]) for name in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_alike, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)
    return bool(a == b)

"""From what a user asks for to a job: settings by name, files and objects become one `Work`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from mixmatch import settings as settings_
from mixmatch.data import Reading, is_path, source_info
from mixmatch.data.opened import Basis, Data
from mixmatch.data.source import UNKNOWN, Source
from mixmatch.data.split import Split
from mixmatch.errors import MixMatchError
from mixmatch.methods.base import Method
from mixmatch.networks import unwrapped
from mixmatch.presets import Kind
from mixmatch.settings import Settings
from mixmatch.training import opening, session
from mixmatch.training.choose import choose_features
from mixmatch.training.job import Job, Work
from mixmatch.training.progress import Reporter
from mixmatch.training.run import RunFolder


def plan(
    data: str | Source,
    given: Mapping[str, Any],
    reading: Mapping[str, Any] | None = None,
    *,
    out: str | Path | None = None,
    config: str | Path | None = None,
    data_dir: str | Path | None = None,
    split: Split | None = None,
    reporter: Reporter | None = None,
    **options: Any,
) -> Work:
    """The job that `mixmatch.train` does, with all its settings. A setting of `given` that is None is not given;
    `reading` says how user data is read, `options` are those of `Job`."""
    given = {name: value for name, value in given.items() if value is not None}
    reading = dict(reading or {})
    if config is not None:
        from_file, how = settings_.read_file(Path(config), given.get("method"))
        given, reading = {**from_file, **given}, {**how, **reading}
    name = data if isinstance(data, str) else data.name
    if not name.strip():
        raise MixMatchError("data is empty: give a name (digits, cifar10, ...) or a path")
    _check_reading(data, reading)
    reading = {name: list(v) if isinstance(v, tuple) else v for name, v in Reading.of(reading).given.items()}
    method, network = given.get("method"), given.get("network")
    resumed = bool(options.get("resume")) and out is not None and RunFolder(Path(out)).exists()
    choice = None
    if not resumed and _kind(data) == "images" and not {"features", "network", "weights"} & given.keys():
        choice = choose_features(options.get("device", "auto"))
        given["features"] = choice.features
    if isinstance(network, nn.Module):
        network = unwrapped(network)
        given["network"] = f"{session.CUSTOM}{type(network).__name__}"
    if method is None and resumed and out is not None:
        given_method = RunFolder(Path(out)).config()["settings"].get("method")
        settings = settings_.resolve(name, {**given, "method": given_method}, _kind(data))
    else:
        settings = settings_.resolve(name, {**_of_split(data, split, given), **given}, _kind(data))
    settings = settings_.check(settings_.updated(settings, {"data_options": reading}))
    chosen = {*given, *(settings.method_settings if isinstance(method, Method) else ())}
    if isinstance(out, str) and not out.strip():
        raise MixMatchError("out is empty: name a folder, or leave it out")
    folder = Path(out) if out is not None else default_folder(settings)
    options["data_dir"] = None if data_dir is None else Path(data_dir)
    job = Job(settings, folder, tuple(sorted(chosen)), **options)
    return Work(
        job,
        data=None if isinstance(data, str) else lambda settings: _open_source(data, split, settings),
        network=network if isinstance(network, nn.Module) else None,
        method=method if isinstance(method, Method) else None,
        reporter=reporter,
        note=choice.why if choice is not None else "",
    )


def default_folder(settings: Settings) -> Path:
    """The default folder of a run."""
    if is_path(settings.data):
        data = Path(settings.data).resolve().name
    else:  # a Source may have any name
        data = re.sub(r"[^\w.+-]+", "-", settings.data)[:100].strip("-.") or "data"
    method = settings.method.replace(":", "-")
    return Path("runs") / f"{data}-{method}-{settings.labels}-seed{settings.seed}"


def _kind(data: str | Source) -> Kind | None:
    if isinstance(data, str):
        return opening.kind_of(data)
    return None if len(data.input_shape) == 3 else "features"


def _open_source(source: Source, split: Split | None, settings: Settings) -> Data:
    if split is not None and settings.unlabeled == "all":  # what the method asks for
        missing = split.labeled[~np.isin(split.labeled, split.unlabeled)]
        split = replace(split, unlabeled=np.concatenate([missing, split.unlabeled]))
    if split is None:
        split = opening.split_of(source, settings)
    return opening.embedded(Data(source, split, Basis(f"its {len(split.test):,} test {source.noun}s")), settings)


def _check_reading(data: str | Source, reading: Mapping[str, Any]) -> None:
    """How data is read is for user data on disk."""
    if not reading or (isinstance(data, str) and is_path(data)):
        return
    if isinstance(data, str):
        source_info(data)  # an error if there is no such data set either
    name = data if isinstance(data, str) else data.name
    given = " and ".join(f"{option}=" for option in reading)
    raise MixMatchError(f"{given} {'is' if len(reading) == 1 else 'are'} for your own data, not for '{name}'")


def _of_split(data: str | Source, split: Split | None, given: Mapping[str, Any]) -> dict[str, int]:
    """The settings that a split decides; others given for them are refused."""
    if split is None:
        return {}
    if isinstance(data, str):
        raise MixMatchError(f"split= is for a Source of your own, not for '{data}'")
    if "unlabeled" in given:
        raise MixMatchError("unlabeled= contradicts split=, which says which rows are unlabeled: leave it out")
    if given.get("imbalance", 1) != 1:
        raise MixMatchError("imbalance= contradicts split=, which says which rows are used: leave it out")
    for name, count in split.counts().items():
        rows, there = getattr(split, name), len(data.test if name == "test" else data.train)
        if count and not (rows.min() >= 0 and rows.max() < there):
            raise MixMatchError(f"the split's {name} rows go beyond the {there:,} of {data.name}")
    if len(split.labeled) == 0 or (data.train.labels[split.labeled] == UNKNOWN).any():
        raise MixMatchError(f"the split of {data.name} must have labeled rows, and each of them a label")
    decided = {"labels": len(split.labeled), "valid": len(split.valid)}
    for name, count in decided.items():
        if given.get(name, count) != count:
            raise MixMatchError(f"{name}={given[name]} contradicts the split, which has {count:,}")
    return decided

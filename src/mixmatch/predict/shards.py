"""Predict more files than one output should hold: a folder with one file of predictions per shard.

    DIR/part-000000.csv            the predictions of the first shard: a row for each of its files
    DIR/_plan/plan.json            what is predicted, by which model
    DIR/_plan/LIST/000000.json     the files of the first shard
    DIR/_plan/done/000000.json     it is finished; how many files it has, and how many of them cannot be read

The list of files is made once, then any process can do any shard, here or on a cluster. A shard's file appears whole
and under the same name whoever does it, so each file is in the output exactly once, however often the work is
interrupted and continued. Readers of Parquet folders skip names that begin with _.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import torch
from torch import nn

import mixmatch
from mixmatch.classifier import Classifier, load_run
from mixmatch.data.user.images import quiet_pillow
from mixmatch.data.user.listing import find_images, is_address
from mixmatch.errors import MixMatchError
from mixmatch.execution.ray import Place
from mixmatch.execution.ray_data import over_cluster
from mixmatch.predict.files import Failure, Progress, Row, holds_rows, image_shape, predict_images
from mixmatch.predict.formats import Format, check_parquet, write
from mixmatch.predict.store import Store
from mixmatch.storage import parse_json
from mixmatch.text import listed
from mixmatch.training.tensors import to_bytes

SHARD_SIZE = 10_000
"""Files per shard: a few minutes of work, and a few MB of predictions."""

PLAN = "_plan/plan.json"
DONE = "_plan/done"


class Summary(NamedTuple):
    """What is in the folder of predictions."""

    files: int
    """Rows in all, one for each file."""
    unreadable: int
    """How many of them say why a file cannot be read."""
    shards: int
    finished_before: int
    """Shards that were there already."""


class Plan(NamedTuple):
    """What is to be predicted, as it is in the folder."""

    names: str
    """The folder under `_plan` with the lists of files."""
    shards: int
    files: int
    about: dict[str, Any]

    def size(self, number: int) -> int:
        """Files of a shard."""
        size: int = self.about["shard_size"]
        return min(size, self.files - number * size)

    def makes_sense(self) -> bool:
        """Whether the numbers fit each other, and no folder elsewhere is named."""
        numbers = type(self.shards) is int and type(self.files) is int and self.files >= 0
        named = isinstance(self.names, str) and re.fullmatch("[0-9a-f]{32}", self.names) is not None
        return numbers and named and self.shards == -(-self.files // self.about["shard_size"])


def predict_shards(
    run: str | Path | Classifier,
    paths: str | Path | Iterable[str | Path],
    output_dir: str | Path,
    *,
    format: str = "csv",
    shard_size: int = SHARD_SIZE,
    device: str = "auto",
    network: nn.Module | None = None,
    ray: str | None = None,
    part: slice = slice(None),
    batch_size: int = 256,
    progress: Progress | None = None,
) -> Summary:
    """Predict image files into a folder of one file per shard, on this machine or on a Ray cluster.

        mixmatch.predict_shards("runs/photos", "s3://bucket/photos", "classes", ray="auto")

    After an interruption, the same call skips finished shards. A file that cannot be read has a row that says why.
    Files are named by their full paths, each once. The list of files is made once: files added later need another
    folder.

    Args:
        run: a run folder, a model.safetensors file, or a classifier from `mixmatch.load`.
        paths: image files, folders, globs, and addresses of them such as s3://bucket/photos.
        output_dir: the folder, or the address of one. Every machine of a cluster must see it under this name.
        format: `csv` or `parquet`.
        shard_size: files per shard.
        device: `auto`, `cpu`, `cuda` or `mps`; a classifier stays where it is unless it goes to a cluster.
        network: the network that was trained, if it is not one that is built by name.
        ray: `local` starts a Ray cluster on this machine, `auto` finds one, HOST:PORT is one.
        part: which of the shards to do.
        batch_size: how many images the network gets at once.
        progress: called with the number of files done, and of all.

    Raises:
        MixMatchError: for anything the caller can fix, also if the folder holds predictions of another model or of
            other paths.
    """
    for name, value in {"batch_size": batch_size, "shard_size": shard_size}.items():
        if value < 1:
            raise MixMatchError(f"{name}={value} must be 1 or more")
    if not str(output_dir).strip():
        raise MixMatchError("output_dir= is empty: give a path")
    if format not in ("csv", "parquet"):
        raise MixMatchError(f"format={format} is not for shards: use csv or parquet")
    if format == "parquet":
        check_parquet()
    given = [str(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    if rows := [path for path in given if holds_rows(path)]:
        raise MixMatchError(f"{rows[0]} holds rows: shards are for image files, leave output_dir= out")
    classifier = run if isinstance(run, Classifier) else load_run(run, device, network)
    image_shape(classifier)
    store, about = Store(output_dir), _about(classifier, given, format, shard_size)
    plan = _plan(store, about, given, shard_size)
    tallies = _finished(store, plan)
    before = len(tallies)
    shown = progress or (lambda done, total: None)
    done = sum(tally["files"] for tally in tallies.values())
    shown(done, plan.files)
    todo = [number for number in range(plan.shards)[part] if number not in tallies]
    each = Shards(classifier, store, plan, batch_size)
    if ray is None:
        finished: Iterator[dict[str, Any]] = (each(n, lambda more: shown(done + more, plan.files)) for n in todo)
    else:
        finished = over_cluster(ray, Sent(each), todo, device) if todo else iter(())
    for tally in finished:
        tallies[tally["shard"]] = tally
        done += tally["files"]
        shown(done, plan.files)
    for folder in ("", DONE):
        store.tidy(folder)
    unreadable = sum(tally["unreadable"] for tally in tallies.values())
    return Summary(done, unreadable, len(tallies), before)


# ---------------------------------------------------------------------------------------------------------- the plan


def _about(classifier: Classifier, paths: list[str], format: str, shard_size: int) -> dict[str, Any]:
    weights = hashlib.sha256(to_bytes(classifier.network.state_dict())).hexdigest()
    full = [path if is_address(path) else str(Path(path).absolute()) for path in paths]
    return {
        "model": weights,
        "classes": list(classifier.classes),
        "paths": full,
        "format": format,
        "shard_size": shard_size,
    }


def _plan(store: Store, about: dict[str, Any], paths: list[str], shard_size: int) -> Plan:
    """The plan that the folder has, or a new one. If two processes make one at the same time, both use the first."""
    others = store.others("_plan")  # looked for first: another process may be about to begin
    if (plan := _known(store, about)) is not None:
        return plan
    if others:
        raise MixMatchError(f"{store.where} holds other files ({listed(others, 3)}): choose another output_dir=")
    folder, files, shards = uuid4().hex, 0, 0
    names = find_images(paths, once=True)
    while some := list(islice(names, shard_size)):
        store.write(f"_plan/{folder}/{shards:06}.json", json.dumps(some).encode())
        files, shards = files + len(some), shards + 1
    store.write_first(PLAN, json.dumps(Plan(folder, shards, files, about)._asdict(), indent=1).encode())
    if (plan := _known(store, about)) is None:
        raise MixMatchError(f"{store.where} is gone again; is another program removing it?")
    return plan


def _known(store: Store, about: dict[str, Any]) -> Plan | None:
    if (content := store.read(PLAN)) is None:
        return None
    try:
        plan = Plan(**parse_json(content))
        differ = [name for name, value in about.items() if plan.about[name] != value]
        if not differ and not plan.makes_sense():
            raise ValueError("its numbers contradict each other")
    except (ValueError, TypeError, KeyError):
        raise MixMatchError(f"{store.where}/{PLAN} is damaged: choose another output_dir=") from None
    if differ:
        other = "classes" if differ[0] == "classes" else differ[0].replace("_", " ")
        raise MixMatchError(
            f"{store.where} holds predictions with {'other' if other.endswith('s') else 'another'} {other}: continue "
            "them with the same model, paths, format and shard size, or choose another output_dir="
        )
    if len(store.names(f"_plan/{plan.names}")) < plan.shards:  # before so many are counted
        raise _gone(store)
    return plan


def _gone(store: Store) -> MixMatchError:
    return MixMatchError(f"the list of files in {store.where}/_plan is gone; every machine must see that folder")


def _finished(store: Store, plan: Plan) -> dict[int, dict[str, Any]]:
    """What is noted of the shards that are there, by number."""
    noted, written = store.names(DONE), store.names("")
    numbers = [n for n in range(plan.shards) if f"{n:06}.json" in noted and _part(plan, n) in written]
    tallies = {n: _tally(store.read(f"{DONE}/{n:06}.json"), n, plan.size(n)) for n in numbers}
    return {number: tally for number, tally in tallies.items() if tally is not None}


def _tally(content: bytes | None, number: int, size: int) -> dict[str, Any] | None:
    """What is noted of a shard of so many files; None if that is damaged, and the shard is done again."""
    try:
        tally = parse_json(content or b"")
        unreadable = tally["unreadable"]
    except (ValueError, TypeError, KeyError):
        return None
    whole = tally == {"shard": number, "files": size, "unreadable": unreadable}
    return tally if whole and type(unreadable) is int and 0 <= unreadable <= size else None


def _part(plan: Plan, number: int) -> str:
    return f"part-{number:06}.{plan.about['format']}"


# ---------------------------------------------------------------------------------------------------------- a shard


@dataclass(frozen=True)
class Shards:
    """Does shards, one when it is called."""

    classifier: Classifier
    store: Store
    plan: Plan
    batch_size: int
    workers: int | None = None

    def __call__(self, number: int, progress: Callable[[int], None] = lambda done: None) -> dict[str, Any]:
        """Predict a shard, write it, and return what is noted of it."""
        listed = self.store.read(f"_plan/{self.plan.names}/{number:06}.json")
        if listed is None:
            raise _gone(self.store)
        rows: list[Row] = []
        files = self._files(number, listed)
        with quiet_pillow(), closing(predict_images(self.classifier, files, self.batch_size, self.workers)) as batches:
            for batch in batches:
                rows += batch
                if len(batch) == self.batch_size:
                    progress(len(rows))
        kind = Format(self.plan.about["format"])
        self.store.write(_part(self.plan, number), encoded(kind, rows, self.classifier.classes))
        unreadable = sum(isinstance(row, Failure) for row in rows)
        tally = {"shard": number, "files": len(rows), "unreadable": unreadable}
        self.store.write(f"{DONE}/{number:06}.json", json.dumps(tally).encode())
        return tally

    def _files(self, number: int, listed: bytes) -> list[str]:
        """The files of a shard, from its list."""
        try:
            files = parse_json(listed)
            if not isinstance(files, list) or len(files) != self.plan.size(number):
                raise ValueError("another number of files")
            for file in files:
                file.encode("utf-8", "surrogateescape")
        except (ValueError, AttributeError):
            place = f"{self.store.where}/_plan/{self.plan.names}/{number:06}.json"
            raise MixMatchError(f"{place} is damaged: choose another output_dir=") from None
        return files


def encoded(kind: Format, rows: Iterable[Row], classes: tuple[str, ...]) -> bytes:
    if kind is Format.PARQUET:
        content = io.BytesIO()
        write(kind, content, rows, classes, errors=True)
        return content.getvalue()
    text = io.StringIO(newline="")
    write(kind, text, rows, classes, errors=True)
    return text.getvalue().encode("utf-8", "surrogateescape")


@dataclass(frozen=True)
class Sent:
    """What a process of a cluster needs to do shards. The model travels with it: its run folder need not be shared."""

    shards: Shards
    version: str = mixmatch.__version__

    def __call__(self, place: Place) -> Shards:
        if self.version != mixmatch.__version__:
            raise MixMatchError(
                f"a node has mixmatch {mixmatch.__version__}, the command is of {self.version}: install the same "
                "version on every machine"
            )
        torch.set_num_threads(1)  # cores are for decoding
        self.shards.classifier.network.to(place.device)
        return replace(self.shards, workers=place.cores)

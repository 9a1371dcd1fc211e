"""Teachers: one ordinary run for each shard of the private images, and their votes on the public ones.

The shards are disjoint, so a private image touches one teacher and moves one vote: all privacy rests on that. A teacher
sees only the images of its shard. The output of this step is how many teachers voted for which class; the runs
themselves are models of private data and must stay where they are.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mixmatch import networks
from mixmatch.classifier import load_run
from mixmatch.data import Reading, is_path
from mixmatch.data.pate import labeled_rows, public_images, read_shards
from mixmatch.data.published.files import data_folder
from mixmatch.data.source import Rows, Source
from mixmatch.data.split import Indices
from mixmatch.data.user.reading import IMAGE_SIZES
from mixmatch.errors import MixMatchError, explaining
from mixmatch.methods import METHODS
from mixmatch.privacy.runs import RunOptions, Say, make_run, silent, train_runs, write_record
from mixmatch.privacy.votes import Votes, from_labels
from mixmatch.settings import resolve
from mixmatch.storage import PRIVATE, read_json, read_plain, refuse_link, replace_durably
from mixmatch.training import tensors
from mixmatch.training.device import pick_device
from mixmatch.training.job import Work
from mixmatch.training.run import Record, RunFolder

FORMAT = 1
STEPS = 3000
"""A teacher's steps, as in PATE 2017."""
IMAGE_SIZE = 32
"""Pixels on a side of private images in a folder, unless the public ones are of another size."""

NOTICE = """\
The models in this folder were trained on private data and can reveal it. Do not publish them, nor votes.npz next to
this folder: publish the noisy answers of `mixmatch pate label` and the student that learned from them.
"""


@dataclass(frozen=True)
class Plan:
    """Which images are private, how they are cut into shards, what the teachers learn and what they vote on."""

    data: str
    """The data set, or the path to user data, whose training images are private."""
    teachers: int
    queries: str | None = None
    """The public images: "NAME-test", "NAME-train" or a .npy file; by default the test images of `data`."""
    seed: int = 1
    """Decides the shards. Teacher k trains with seed + k."""
    contiguous: bool = False
    """Cut shards in file order."""
    labels: int | str = "all"
    """How many images of a shard are labeled, its first ones; the others are unlabeled."""
    image_size: int | None = None
    """Of a private folder: pixels to resize to; by default as the public images, or 32. It may not be chosen from the
    private ones."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the runs, as for `mixmatch.train`: `method`, `steps`, `network`, ... None is as if not given."""


class Voted(NamedTuple):
    """The votes, the file they are in, and its description."""

    votes: Votes
    path: Path
    about: Record


def train_teachers(plan: Plan, out: Path, options: RunOptions | None = None, say: Say = silent) -> Voted:
    """Train teachers on disjoint shards of private images and let them vote on public ones.

    Args:
        out: gets `shards.json`, `teachers/000` ... (private), `votes.npz` and `votes.json`.
        options: `resume` keeps the finished teachers that are in `out` and continues the others.
    """
    trained = _train(plan, out, options or RunOptions(), say)
    votes = from_labels(np.stack(trained.ballots), len(trained.about["classes"]))
    described = {
        **trained.about,
        "queries": votes.queries,
        "votes_sha256": votes.sha256,
        "settings": {**trained.records[0]["settings"], "data_options": {}},
        "private": "votes are private: publish only the noisy answers of pate label",
    }
    path = out / "votes.npz"
    _save(path, lambda file: np.savez_compressed(file, counts=votes.counts))
    write_record(out / "votes.json", described)
    return Voted(votes, path, described)


def train_part(plan: Plan, out: Path, part: slice, options: RunOptions | None = None, say: Say = silent) -> int:
    """Train some of the teachers, for example in a job of a Slurm array; returns how many.

    Other parts may be trained at the same time, and what is there is resumed. `train_teachers` with `resume` has all of
    them vote in the end.
    """
    return len(_train(plan, out, replace(options or RunOptions(), resume=True), say, part).records)


class _Trained(NamedTuple):
    """The records of teachers, their classes for the public images, and a description."""

    records: list[Record]
    ballots: list[npt.NDArray[np.int64]]
    about: Record


def _train(plan: Plan, out: Path, options: RunOptions, say: Say, part: slice = slice(None)) -> _Trained:
    given_public = (
        None if plan.queries is None else public_images(plan.queries, options.data_dir, strict=options.strict)
    )
    reading = _reading(plan, given_public)
    source, shards = read_shards(
        plan.data,
        data_folder(options.data_dir),
        options.strict,
        Reading(**reading),
        plan.teachers,
        plan.seed,
        plan.contiguous,
    )
    public = _checked_public(plan, source, given_public)
    runs = _runs(plan, out, reading, len(shards[0]), options)
    # Mistakes are found before anything is written.
    networks.build(runs[0].job.settings.network, len(source.classes), source.input_shape)
    pick_device(options.device)
    about = {**_shards_record(plan, source, shards), **reading}
    _begin(out, about, shards, options.resume)
    if left := len(labeled_rows(source)) - plan.teachers * len(shards[0]):
        say(f"private images in no shard: {left:,}")
    records = train_runs(runs[part], "teacher", say, executor=options.executor)
    say("the teachers vote" if part == slice(None) else "these teachers vote; votes are counted when all have")
    public_sha256 = inputs_sha256(public)
    ballots = [_vote(run.job.out, public, public_sha256, options.device) for run in runs[part]]
    described = {
        "format": FORMAT,
        "data": plan.data,
        "teachers": plan.teachers,
        "images_a_teacher": len(shards[0]),
        "classes": list(source.classes),
        "public": plan.queries or f"the test images of {plan.data}",
        "public_sha256": public_sha256,
        "private_sha256": about["data_sha256"],
        "shards_sha256": about["sha256"],
    }
    return _Trained(records, ballots, described)


# -- the data ----------------------------------------------------------------------------------------------------------


def _reading(plan: Plan, public: Rows | None) -> Record:
    """How to read a private folder: with the size and channels of the public images, or with fixed ones that depend on
    no image."""
    if not (is_path(plan.data) and Path(plan.data).is_dir()):
        if plan.image_size is not None:
            raise MixMatchError(f"image_size= is for a folder of your own images, not for '{plan.data}'")
        return {}
    if public is None:
        return {"image_size": IMAGE_SIZE if plan.image_size is None else plan.image_size, "channels": 3}
    height, width, channels = public.inputs.shape[1:]
    if height != width or not IMAGE_SIZES[0] <= height <= IMAGE_SIZES[-1] or channels not in (1, 3):
        raise MixMatchError(
            f"the public images are {height}x{width}x{channels}: images of a folder can be made like them only if they "
            f"are square, of {IMAGE_SIZES[0]} to {IMAGE_SIZES[-1]} pixels and gray or in color (1 or 3 channels)"
        )
    return {"image_size": height if plan.image_size is None else plan.image_size, "channels": channels}


def _checked_public(plan: Plan, source: Source, given: Rows | None) -> Rows:
    """The public images, if the teachers can vote on them."""
    public, private = source.test if given is None else given, source.train
    if len(public) == 0:
        raise MixMatchError(f"{plan.data} has no test images to vote on: give the public images with queries=")
    if public.inputs.shape[1:] != private.inputs.shape[1:] or public.inputs.dtype != private.inputs.dtype:
        raise MixMatchError(
            f"the public images are {public.inputs.dtype} {public.inputs.shape[1:]}, the private ones "
            f"{private.inputs.dtype} {private.inputs.shape[1:]}: teachers can vote on images like theirs only"
        )
    return public


def inputs_sha256(rows: Rows) -> str:
    """A hash of images or features, in pieces: they may be larger than memory."""
    digest = hashlib.sha256(repr((rows.inputs.dtype.str, rows.inputs.shape)).encode())
    for start in range(0, len(rows), 4096):
        digest.update(np.ascontiguousarray(rows.inputs[start : start + 4096]).data)
    return digest.hexdigest()


# -- the runs ----------------------------------------------------------------------------------------------------------


def _runs(plan: Plan, out: Path, reading: Record, size: int, options: RunOptions) -> list[Work]:
    """A run for each shard; a shard has `size` images."""
    given = {name: value for name, value in plan.settings.items() if value is not None}
    given = {"method": "supervised", "steps": STEPS, **given}
    given["labels"] = _labeled(plan.labels, size, given["method"])
    given["valid"] = 0
    given.setdefault("ema_decay", _ema_decay(plan.data, given["method"], given["steps"]))
    given.setdefault("eval_every", given["steps"])  # there is nothing to evaluate a teacher on
    shard = {"teachers": plan.teachers, "seed": plan.seed, "contiguous": plan.contiguous}
    return [
        make_run(
            plan.data,
            out / "teachers" / f"{number:03d}",
            {**given, "seed": plan.seed + number},
            {**reading, "shard": {"number": number, **shard}},
            options,
        )
        for number in range(plan.teachers)
    ]


def _labeled(labels: int | str, size: int, method: str) -> int | str:
    """How many images of a shard are labeled."""
    if labels == "all" or labels == size:
        if method in METHODS and METHODS[method]().views:
            raise MixMatchError(
                f"method '{method}' needs unlabeled images: label only some of a shard's {size:,} with labels=, "
                "or use method supervised"
            )
        return "all"
    if not isinstance(labels, int) or not 1 <= labels <= size:
        raise MixMatchError(f"labels={labels}: a shard has {size:,} images")
    return labels


def _ema_decay(data: str, method: str, steps: int) -> float:
    """Weights are averaged over a tenth of the training at most: a teacher's is short."""
    usual = 0.999 if is_path(data) else resolve(data, {"method": method}).ema_decay
    return min(usual, max(0.0, 1 - 10 / max(1, steps)))


def _shards_record(plan: Plan, source: Source, shards: Sequence[Indices]) -> Record:
    return {
        "format": FORMAT,
        "data": plan.data,
        "images": len(labeled_rows(source)),
        "data_sha256": inputs_sha256(source.train),
        "teachers": plan.teachers,
        "seed": plan.seed,
        "contiguous": plan.contiguous,
        "sha256": _rows_sha256(np.concatenate(shards)),
        "shard_sha256": [_rows_sha256(rows) for rows in shards],
    }


def _rows_sha256(rows: Indices) -> str:
    return hashlib.sha256(np.ascontiguousarray(rows, "<i8").tobytes()).hexdigest()


def _begin(out: Path, about: Record, shards: Sequence[Indices], resume: bool) -> None:
    """Write the shards to disk, or check that they are those of the teachers that are there already."""
    path = out / "shards.json"
    try:
        before = read_json(path)
    except FileNotFoundError:
        before = None
    except (OSError, ValueError) as error:
        raise MixMatchError(f"{path} cannot be read ({error})") from None
    if before is None:
        with explaining(f"cannot write to {out}", "choose another folder with out="):
            refuse_link(out / "teachers")
            for folder in (out, out / "teachers"):
                folder.mkdir(parents=True, exist_ok=True)
                folder.chmod(0o700)
            replace_durably(out / "teachers" / "PRIVATE.txt", NOTICE.encode())
            rows = {"shards": [rows.tolist() for rows in shards]}
            replace_durably(path, json.dumps({**about, **rows}).encode(), PRIVATE)
        return
    if not resume:
        raise MixMatchError(f"{out} holds teachers already: add resume=True, or choose another folder with out=")
    names = [name for name in about if before.get(name) != about[name]]
    if names:
        first = next((n for n in names if not n.endswith("sha256")), names[0])
        what = f"{first} {before.get(first)}, not {about[first]}" if not first.endswith("sha256") else "other images"
        raise MixMatchError(
            f"the teachers in {out} were begun with {what}: use the same to resume, or choose another folder with out="
        )


def _vote(folder: Path, public: Rows, public_sha256: str, device: str) -> npt.NDArray[np.int64]:
    """One teacher's classes for the public images. They are kept in its folder, and computed again only for a teacher
    that was trained further."""
    model_sha256 = hashlib.sha256(read_plain(RunFolder(folder).model, tensors.MOST)).hexdigest()
    path = folder / f"votes-{public_sha256[:16]}-{model_sha256[:8]}.npy"
    if path.exists():
        return np.asarray(np.load(io.BytesIO(read_plain(path, tensors.MOST)), allow_pickle=False))
    model = load_run(folder, device)
    pieces = [model.probabilities(public.inputs[i : i + 4096]).argmax(axis=1) for i in range(0, len(public), 4096)]
    ballot = np.concatenate(pieces).astype(np.int64)
    _save(path, lambda file: np.save(file, ballot))
    return ballot


def _save(path: Path, write: Callable[[io.BytesIO], None]) -> None:
    content = io.BytesIO()
    write(content)
    replace_durably(path, content.getvalue(), PRIVATE)

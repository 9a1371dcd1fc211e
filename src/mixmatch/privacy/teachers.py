"""Teachers: one ordinary run for each shard of the private images, and their votes on the public ones.

The shards are disjoint, so a private image touches one teacher and moves one vote: all privacy rests on that. A teacher
is given the images of its shard and nothing else. What leaves this step is how many teachers voted for which class;
the runs themselves are models of private data and must stay where they are.
"""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mixmatch import api, networks
from mixmatch.data import holds_features, read_user_data
from mixmatch.data import load as load_data
from mixmatch.data.published.files import data_folder
from mixmatch.data.source import UNKNOWN, Rows, Source
from mixmatch.data.split import Indices, Split
from mixmatch.data.user.folder import IMAGE_SIZES
from mixmatch.draws import generator
from mixmatch.errors import MixMatchError
from mixmatch.methods import METHODS
from mixmatch.privacy.public import public_images
from mixmatch.privacy.votes import Votes, from_labels
from mixmatch.settings import Settings, resolve
from mixmatch.storage import replace_durably
from mixmatch.text import duration
from mixmatch.training.progress import Reporter
from mixmatch.training.run import Record, RunFolder

FORMAT = 1
STEPS = 3000
"""A teacher's steps, as in PATE 2017."""
IMAGE_SIZE = 32
"""Pixels on a side of private images in a folder, unless the public ones are of another size."""

PRIVATE = """\
The models in this folder were trained on private data and tell of it. Do not publish them, nor votes.npz beside this
folder: publish the noisy answers of `mixmatch pate label` and the student that learned from them.
"""
Say = Callable[[str], None]


def cut(rows: Indices, teachers: int, seed: int, contiguous: bool = False) -> list[Indices]:
    """Disjoint shards of equal size, by a seeded permutation, or in file order as PATE 2017 and 2018 cut theirs.

    A rest smaller than the number of teachers is left over, as in theirs.
    """
    if teachers < 1:
        raise MixMatchError(f"{teachers} teachers: there must be at least one")
    size = len(rows) // teachers
    if size == 0:
        raise MixMatchError(f"{len(rows):,} private images cannot be cut into {teachers:,} shards: use fewer teachers")
    order = rows if contiguous else generator(seed, "shards", 0).permutation(rows)
    return [order[k * size : (k + 1) * size] for k in range(teachers)]


def open_shard(settings: Settings, data_dir: str | Path | None, *, strict: bool) -> tuple[Source, Split, str]:
    """What one teacher learns from: its shard alone, `labels` of it labeled. There is nothing to judge it by."""
    options = dict(settings.data_options)
    shard = options.pop("shard")
    source = _private(settings.data, data_folder(data_dir), strict, json.dumps(options, sort_keys=True))
    rows = cut(labelable(source), shard["teachers"], shard["seed"], shard["contiguous"])[shard["number"]]
    nothing = np.empty(0, np.int64)
    own = Source(source.name, source.classes, source.train.take(rows), source.train.take(nothing))
    everything = np.arange(len(rows), dtype=np.int64)
    labeled = len(rows) if settings.labels == "all" else settings.labels
    split = Split(everything[:labeled], everything[labeled:], nothing, nothing)
    return own, split, "a teacher is not judged: its vote alone leaves it"


def labelable(source: Source) -> Indices:
    """The private images: those with a label."""
    return np.flatnonzero(source.train.labels != UNKNOWN)


@lru_cache(maxsize=1)
def _private(data: str, folder: Path, strict: bool, options: str) -> Source:
    """The data set whose training images are private. Read once for all teachers.

    What becomes of an image may not depend on another one: that would reach every teacher, and no epsilon would hold.
    """
    if not api.is_path(data):
        return load_data(data, folder, strict=strict)
    if holds_features(Path(data)):
        raise MixMatchError(
            f"{data} holds features, which are standardized by all rows together, so that each private row would reach "
            "every teacher: teachers learn from images only"
        )
    own = read_user_data(Path(data), **json.loads(options))
    if any(finding.kind == "converted" for finding in own.findings):
        raise MixMatchError(
            f"the images of {data} are not uint8: what values mean is found out from all of them, so that each private "
            "image would reach every teacher; save them as uint8"
        )
    return Source(own.name, own.classes, own.train, own.test)


def _reading(data: str, public: Rows | None, image_size: int | None) -> Record:
    """How to read a private folder: in the size and channels of public images, or in ones that no image decides."""
    if not (api.is_path(data) and Path(data).is_dir()):
        if image_size is not None:
            raise MixMatchError(f"--image-size is for a folder of your own images, not for '{data}'")
        return {}
    if public is None:
        return {"image_size": IMAGE_SIZE if image_size is None else image_size, "channels": 3}
    height, width, channels = public.inputs.shape[1:]
    if height != width or not IMAGE_SIZES[0] <= height <= IMAGE_SIZES[-1] or channels not in (1, 3):
        raise MixMatchError(
            f"the public images are {height}x{width}x{channels}: images of a folder can be made like them only if they "
            f"are square, of {IMAGE_SIZES[0]} to {IMAGE_SIZES[-1]} pixels and gray or in color (1 or 3 channels)"
        )
    return {"image_size": height if image_size is None else image_size, "channels": channels}


def train_all(jobs: Sequence[dict[str, Any]], say: Say = lambda text: None) -> list[Record]:
    """Train the runs, on a GPU several side by side; a job is what `api.train` is called with. Finished runs cost
    nothing."""
    done = 0
    began = time.monotonic()

    def started(number: int) -> None:
        left = (time.monotonic() - began) / max(1, done) * (len(jobs) - done)
        say(f"teacher {number + 1} of {len(jobs)}" + (f", {duration(left)} left" if done else ""))

    def ended(number: int, outcome: Record | Exception) -> None:
        nonlocal done
        done += 1
        if isinstance(outcome, Exception):
            raise outcome

    return [record for record in api.train_many(jobs, started=started, ended=ended) if isinstance(record, dict)]


class Voted(NamedTuple):
    """The votes, the file they are in, and what is told about them."""

    votes: Votes
    path: Path
    about: Record


def train_teachers(
    data: str,
    teachers: int,
    out: Path,
    *,
    queries: str | None = None,
    seed: int = 1,
    contiguous: bool = False,
    labels: int | str = "all",
    method: str = "supervised",
    steps: int = STEPS,
    image_size: int | None = None,
    resume: bool = False,
    data_dir: Path | None = None,
    strict: bool = False,
    device: str = "auto",
    reporter: Callable[[], Reporter] | None = None,
    say: Say = lambda text: None,
    **settings: Any,
) -> Voted:
    """Train `teachers` teachers on disjoint shards of a data set's training images and let them vote.

    Args:
        data: the data set whose training images are private.
        out: gets `shards.json`, `teachers/000` ... (private), `votes.npz` and `votes.json`.
        queries: the public images, "NAME-test", "NAME-train" or a .npy file; by default the test images of `data`.
        labels: how many images of a shard are labeled, its first ones; the others are unlabeled.
        image_size: of a private folder: pixels to resize to; by default as the public images, or 32. It may not be
            chosen from the private ones.
        resume: go on with what is in `out`: finished teachers are kept, an interrupted one goes on.
        **settings: of the runs, as for `mixmatch.train`.
    """
    given_public = None if queries is None else public_images(queries, data_dir, strict=strict)
    reading = _reading(data, given_public, image_size)
    source = _private(data, data_folder(data_dir), strict, json.dumps(reading, sort_keys=True))
    shards = cut(labelable(source), teachers, seed, contiguous)
    public = source.test if given_public is None else given_public
    if len(public) == 0:
        raise MixMatchError(f"{data} has no test images to vote on: give the public images with --queries")
    if public.inputs.shape[1:] != source.train.inputs.shape[1:] or public.inputs.dtype != source.train.inputs.dtype:
        raise MixMatchError(
            f"the public images are {public.inputs.dtype} {public.inputs.shape[1:]}, the private ones "
            f"{source.train.inputs.dtype} {source.train.inputs.shape[1:]}: teachers can vote on images like theirs only"
        )
    count = _labeled(labels, len(shards[0]), method)
    given = {"steps": steps, **{name: value for name, value in settings.items() if value is not None}}
    given.setdefault("ema_decay", _ema_decay(data, method, given["steps"]))
    given.setdefault("eval_every", given["steps"])  # there is nothing to judge a teacher by
    _check(data, source, {"method": method, "labels": count, **given}, device)
    about = {**_shards_record(data, source, shards, seed, contiguous), **reading}
    _begin(out, about, shards, resume)
    if left := len(labelable(source)) - teachers * len(shards[0]):
        say(f"{left:,} private images are in no shard")
    jobs = [
        {
            "data": data,
            "out": _folder(out, number),
            "resume": resume,
            "part": {
                **reading,
                "shard": {"number": number, "teachers": teachers, "seed": seed, "contiguous": contiguous},
            },
            "labels": count,
            "valid": 0,
            "method": method,
            "seed": seed + number,
            "device": device,
            "data_dir": data_dir,
            "strict": strict,
            "reporter": reporter() if reporter else None,
            **given,
        }
        for number in range(teachers)
    ]
    records = train_all(jobs, say)
    say("the teachers vote")
    ballots = [_vote(_folder(out, number), public, device) for number in range(teachers)]
    votes = from_labels(np.stack(ballots), len(source.classes))
    described = {
        "format": FORMAT,
        "data": data,
        "teachers": teachers,
        "images_a_teacher": len(shards[0]),
        "classes": list(source.classes),
        "public": queries or f"the test images of {data}",
        "queries": votes.queries,
        "votes_sha256": votes.sha256,
        "public_sha256": inputs_sha256(public),
        "private_sha256": about["data_sha256"],
        "shards_sha256": about["sha256"],
        "settings": {**records[0]["settings"], "data_options": {}},
        "private": "votes are private: publish only the noisy answers of pate label",
    }
    return Voted(votes, _write_votes(out, votes, described), described)


def inputs_sha256(rows: Rows) -> str:
    """A hash of images or features, in pieces: they may be larger than memory."""
    digest = hashlib.sha256(repr((rows.inputs.dtype.str, rows.inputs.shape)).encode())
    for start in range(0, len(rows), 4096):
        digest.update(np.ascontiguousarray(rows.inputs[start : start + 4096]).data)
    return digest.hexdigest()


# -- pieces ------------------------------------------------------------------------------------------------------------


def _check(data: str, source: Source, given: dict[str, Any], device: str) -> None:
    """Find mistakes before anything is written down."""
    settings = resolve(data, given, api.kind_of(data))
    networks.build(settings.network, len(source.classes), source.input_shape)
    api.pick_device(device)


def _labeled(labels: int | str, size: int, method: str) -> int | str:
    """How many images of a shard are labeled."""
    if labels == "all" or labels == size:
        if method in METHODS and METHODS[method]().unlabeled_views:
            raise MixMatchError(
                f"method '{method}' needs unlabeled images: label only some of a shard's {size:,} with --labels, "
                "or use --method supervised"
            )
        return "all"
    if not isinstance(labels, int) or not 1 <= labels <= size:
        raise MixMatchError(f"--labels {labels}: a shard has {size:,} images")
    return labels


def _ema_decay(data: str, method: str, steps: int) -> float:
    """Averaged over a tenth of the training at most: a teacher's is short."""
    own = api.is_path(data)
    usual = 0.999 if own else resolve(data, {"method": method}).ema_decay
    return min(usual, max(0.0, 1 - 10 / max(1, steps)))


def _folder(out: Path, number: int) -> Path:
    return out / "teachers" / f"{number:03d}"


def _shards_record(data: str, source: Source, shards: Sequence[Indices], seed: int, contiguous: bool) -> Record:
    hashes = [_rows_sha256([rows]) for rows in shards]
    return {
        "format": FORMAT,
        "data": data,
        "images": len(labelable(source)),
        "data_sha256": inputs_sha256(source.train),
        "teachers": len(shards),
        "seed": seed,
        "contiguous": contiguous,
        "sha256": _rows_sha256(shards),
        "shard_sha256": hashes,
    }


def _rows_sha256(shards: Iterable[Indices]) -> str:
    digest = hashlib.sha256()
    for rows in shards:
        digest.update(np.ascontiguousarray(rows, "<i8").tobytes())
    return digest.hexdigest()


def _begin(out: Path, about: Record, shards: Sequence[Indices], resume: bool) -> None:
    """Write down the shards, or make sure that they are those of the teachers that are there already."""
    path = out / "shards.json"
    try:
        before = json.loads(path.read_text())
    except FileNotFoundError:
        before = None
    except (OSError, ValueError) as error:
        raise MixMatchError(f"{path} cannot be read ({error})") from None
    if before is None:
        try:
            (out / "teachers").mkdir(parents=True, exist_ok=True)
            (out / "teachers").chmod(0o700)
            (out / "teachers" / "PRIVATE.txt").write_text(PRIVATE)
            rows = {"shards": [rows.tolist() for rows in shards]}
            replace_durably(path, json.dumps({**about, **rows}).encode())
        except OSError as error:
            raise MixMatchError(f"cannot write to {out}: {error.strerror}; choose another --out") from None
        return
    if not resume:
        raise MixMatchError(f"{out} holds teachers already: go on with them (--resume), or choose another --out")
    names = [name for name in about if before.get(name) != about[name]]
    if names:
        first = next((n for n in names if not n.endswith("sha256")), names[0])
        what = f"{first} {before.get(first)}, not {about[first]}" if not first.endswith("sha256") else "other images"
        raise MixMatchError(
            f"the teachers in {out} were begun with {what}: go on with the same, or choose another --out"
        )


def _vote(folder: Path, public: Rows, device: str) -> npt.NDArray[np.int64]:
    """One teacher's classes for the public images; kept in its folder, so that they are asked for only once, unless it
    has learned more since."""
    model_sha256 = hashlib.sha256(RunFolder(folder).model.read_bytes()).hexdigest()
    path = folder / f"votes-{inputs_sha256(public)[:16]}-{model_sha256[:8]}.npy"
    if path.exists():
        return np.asarray(np.load(path, allow_pickle=False))
    model = api.load(folder, device=device)
    pieces = [model.probabilities(public.inputs[i : i + 4096]).argmax(axis=1) for i in range(0, len(public), 4096)]
    ballot = np.concatenate(pieces).astype(np.int64)
    _save(path, lambda file: np.save(file, ballot))
    return ballot


def _write_votes(out: Path, votes: Votes, about: Record) -> Path:
    path = out / "votes.npz"
    _save(path, lambda file: np.savez_compressed(file, counts=votes.counts))
    replace_durably(out / "votes.json", (json.dumps(about, indent=1) + "\n").encode())
    return path


def _save(path: Path, write: Callable[[io.BytesIO], None]) -> None:
    content = io.BytesIO()
    write(content)
    replace_durably(path, content.getvalue())

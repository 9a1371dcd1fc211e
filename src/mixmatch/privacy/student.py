"""The student: an ordinary run on public images, labeled where the teachers answered and nowhere else.

Pool and test come from one file, the test images of a data set: some are the pool, the others judge. The settings of
such a run hold the answers themselves (`data_options["student"]`), so it can be resumed, evaluated and reported like
any other.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mixmatch import api
from mixmatch.data.source import UNKNOWN, Images, Source
from mixmatch.data.split import Indices, Split, make_split
from mixmatch.draws import generator
from mixmatch.errors import MixMatchError
from mixmatch.privacy.answers import Asked, renumber, student_part
from mixmatch.privacy.public import load_test
from mixmatch.settings import Settings
from mixmatch.storage import replace_durably
from mixmatch.training.progress import Reporter
from mixmatch.training.run import Record

HALF = "half"
POOLS: dict[str, int | str] = {"svhn-test": 10_000}
"""How many of the test images are the pool, where it is published; of others, a random half, always the same."""

QUERIES = {"svhn-test": 250}
"""How many queries' answers the published result uses."""

SPLITS = ("answers", "official")

QUOTED = {
    "svhn-test": [
        {"student": "MixMatch (its paper, Section 4.3)", "accuracy": 95.21, "deviation": 0.17, "epsilon": 0.97},
        {"student": "VAT (Papernot et al., 2018)", "accuracy": 91.6, "deviation": None, "epsilon": 4.96},
    ]
}
QUOTED_NOTE = (
    "quoted: 0.97 is expected, data-dependent and not sanitised, and its labels came from the authors' split; 4.96 "
    "(3,098 answers) is as published, it does not come out of the public votes exactly"
)
Say = Callable[[str], None]


def open_student(settings: Settings, data_dir: str | Path | None, *, strict: bool) -> tuple[Source, Split, str]:
    """What a student learns from: its pool with the answers as labels. No true class is among them."""
    given = settings.data_options["student"]
    if settings.labels != len(given["rows"]):
        raise MixMatchError(f"labels={settings.labels}: the student has {len(given['rows']):,} answers to learn from")
    public, classes = load_test(settings.data.removesuffix("-test"), data_dir, strict=strict)
    pool = pool_rows(given["pool"], len(public))
    test = np.setdiff1d(np.arange(len(public)), pool)
    labeled, valid = (np.searchsorted(pool, given.get(name, [])) for name in ("rows", "valid"))
    labels = np.full(len(pool), UNKNOWN, np.int64)
    labels[labeled] = given["answers"]
    source = Source(settings.data, classes, replace(public.take(pool), labels=labels), public.take(test))
    unlabeled = np.setdiff1d(np.arange(len(pool)), np.concatenate([labeled, valid]))
    split = Split(labeled, unlabeled, valid, np.arange(len(test), dtype=np.int64))
    return source, split, f"judged by the {len(test):,} images that are not in its pool"


def pool_rows(pool: int | str, count: int) -> Indices:
    """The public images that are learned from: the first ones, or a random half. The others judge."""
    if pool == HALF:
        return np.sort(generator(0, "pool", 0).permutation(count)[: count // 2])
    if not isinstance(pool, int) or not 2 <= pool < count:
        raise MixMatchError(f"--pool {pool}: there are {count:,} public images, and some must be left to judge by")
    return np.arange(pool)


class Lesson(NamedTuple):
    """What a student is taught."""

    asked: Asked
    """The queries that the labels cost, all of them, refused ones too."""
    part: dict[str, Any]
    """What a run's settings keep of the answers."""
    about: Record


def prepare(
    data: str,
    asked: Asked,
    *,
    queries: int | None = None,
    pool: int | str | None = None,
    split: str = "answers",
    classes: str | None = None,
    data_dir: Path | None = None,
    strict: bool = False,
    warn: Say = lambda text: None,
) -> Lesson:
    """Check answers against the public images and choose the labels.

    Args:
        data: "NAME-test", the public images.
        asked: the answers.
        queries: use the answers to the first queries only.
        pool: how many images are the pool, or "half" for a random half; the others judge.
        split: "answers", exactly the answers to these queries; or "official", as many chosen the way the paper's
            authors did, by class and from all answers, which takes answers to later queries.
        classes: the order in which the answers number the classes.
    """
    if split not in SPLITS:
        raise MixMatchError(f"--split {split}: it is {' or '.join(SPLITS)}")
    base = data.removesuffix("-test")
    if base == data:
        raise MixMatchError(f"--data {data}: a student's public images are test images, such as svhn-test")
    public, names = load_test(base, data_dir, strict=strict)
    pool = POOLS.get(data, HALF) if pool is None else pool
    in_pool = pool_rows(pool, len(public))
    if asked.images is not None and asked.images not in (pool, len(public)):
        raise MixMatchError(
            f"there are {asked.images:,} answers, but {data} has {len(public):,} images: they are of other images"
        )
    sure = classes is not None or asked.classes is not None
    asked = renumber(asked, names, classes)
    if queries is None:
        queries = min(QUERIES.get(data, len(asked)), len(asked))
    chosen = asked.first(queries)
    if len(outside := np.setdiff1d(chosen.rows, in_pool)):
        which = "a random half" if pool == HALF else f"the first {pool:,} images"
        raise MixMatchError(f"query {outside[0]} is not in the pool, {which}: ask about others, or change --pool")
    count = int(chosen.answered.sum())
    if len(np.unique(chosen.labels[chosen.answered])) < 2:
        raise MixMatchError(
            f"{count} answers to {queries:,} queries are of fewer than two classes: a student needs more answers"
        )
    rows, valid = chosen.rows[chosen.answered], None
    if split == "official":
        chosen, rows, valid = _official(asked, len(in_pool), count, names)
    answers = dict(zip(chosen.rows.tolist(), chosen.labels.tolist(), strict=True))
    labels = np.array([answers[row] for row in rows.tolist()], np.int64)
    counts = np.bincount(labels, minlength=len(names))
    for name in (name for name, n in zip(names, counts, strict=True) if n == 0):
        warn(f"no answer is of class {name}: the student cannot learn it")
    right = public.labels[rows] == labels
    if right.mean() < 0.5:
        doubt = (
            f"only {100 * right.mean():.0f} % of the answers are the images' true classes: are they of other images, "
        )
        if not sure:
            raise MixMatchError(f"{doubt}or numbered otherwise? say which class is which with --classes")
        warn(f"{doubt}or numbered otherwise than said?")
    about = {
        "data": data,
        "split": split,
        "queries": len(chosen),
        "answered": int(chosen.answered.sum()),
        "labels": len(rows),
        "pool": len(in_pool),
        "test": len(public) - len(in_pool),
        "classes": list(names),
        "labels_by_class": counts.tolist(),
        "labels_right": 100 * float(right.mean()),
    }
    return Lesson(chosen, student_part(pool, rows, labels, valid), about)


def _official(asked: Asked, pool: int, count: int, names: Sequence[str]) -> tuple[Asked, Indices, Indices]:
    """As the authors' create_split: by class, in the proportions of all answers, in file order; one image held out.

    Returns the queries that this takes, up to the last image chosen; the images chosen; the one held out.
    """
    if not np.array_equal(asked.rows[:pool], np.arange(pool)):
        raise MixMatchError(
            f"--split official chooses among the answers to all {pool:,} images of the pool: give them with --answers"
        )
    labels = asked.labels[:pool]
    images = Images(np.zeros((pool, 1, 1, 1), np.uint8), labels)
    picked = make_split(Source("pool", tuple(names), images, images), count, seed=0, valid=1)
    return asked.first(int(picked.labeled.max()) + 1), picked.labeled, picked.valid


def train_students(
    lesson: Lesson,
    out: Path,
    *,
    method: str = "mixmatch",
    seed: int = 1,
    repeats: int = 1,
    resume: bool = False,
    say: Say = lambda text: None,
    reporter: Callable[[], Reporter] | None = None,
    finished: Callable[[Record], None] = lambda record: None,
    **options: Any,
) -> Record:
    """Train students on the same labels with the seeds `seed`, `seed` + 1, ...; each is the run `out`/METHOD-seedN.

    Args:
        finished: told of every record as soon as there is one.
        **options: as for `mixmatch.train`.

    Returns:
        Accuracies in percent with their mean and deviation, and what the students were taught.
    """
    if repeats < 1:
        raise MixMatchError(f"--repeats {repeats}: there must be at least one")
    records = []
    for number in range(repeats):
        if repeats > 1:
            say(f"student {number + 1} of {repeats}")
        record = api.train(
            lesson.about["data"],
            out=out / f"{method}-seed{seed + number}",
            resume=resume,
            part=lesson.part,
            labels=lesson.about["labels"],
            valid=len(lesson.part["student"].get("valid", [])),
            method=method,
            seed=seed + number,
            reporter=reporter() if reporter else None,
            **options,
        )
        finished(record)
        records.append(record)
    accuracies = [100 - record["error"] for record in records]
    return {
        **lesson.about,
        "method": method,
        "steps": records[0]["steps"],
        "seeds": [record["seed"] for record in records],
        "accuracies": accuracies,
        "accuracy": statistics.mean(accuracies),
        "deviation": statistics.stdev(accuracies) if repeats > 1 else None,
        "median_of": records[0]["median_of"],
        "runs": [str(out / f"{method}-seed{record['seed']}") for record in records],
    }


def write_summary(path: Path, summary: Record) -> None:
    replace_durably(path, (json.dumps(summary, indent=1) + "\n").encode())

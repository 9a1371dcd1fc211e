"""The student: an ordinary run on public images, labeled where the teachers answered and nowhere else.

Pool and test come from one file, the test images of a data set: the student learns from the pool and is evaluated on
the rest. The settings of such a run hold the answers themselves (`data_options["student"]`), so it can be resumed,
evaluated and reported like any other.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mixmatch.data.pate import HALF, load_test, pool_rows, student_options
from mixmatch.data.source import Rows
from mixmatch.data.split import Indices, labeled_split
from mixmatch.errors import MixMatchError
from mixmatch.privacy.answers import Answers, renumber
from mixmatch.privacy.runs import RunOptions, Say, make_run, silent, train_runs
from mixmatch.privacy.votes import REFUSED
from mixmatch.training.job import Work
from mixmatch.training.run import Record

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
    "quoted: 0.97 is expected, data-dependent and not sanitized, and its labels came from the authors' split; 4.96 "
    "(3,098 answers) is as published and cannot be reproduced exactly from the public votes"
)


@dataclass(frozen=True)
class Choice:
    """Which images are the pool and which answers become labels."""

    queries: int | None = None
    """Use the answers to the first queries only; by default as many as the published result, else all."""
    pool: int | str | None = None
    """How many images are the pool, the first ones, or "half" for a random half."""
    split: str = "answers"
    """"answers": exactly the answers to these queries. "official": as many, chosen the way the paper's authors did, by
    class and from all answers, which takes answers to later queries."""
    classes: str | None = None
    """The order in which the answers number the classes."""


class StudentLabels(NamedTuple):
    """The labels that a student learns from."""

    answers: Answers
    """All queries that were charged for the labels, including refused ones."""
    data_options: dict[str, Any]
    """The part of the answers that a run's settings keep."""
    about: Record


def prepare(
    data: str,
    answers: Answers,
    choice: Choice | None = None,
    *,
    data_dir: Path | None = None,
    strict: bool = False,
    warn: Say = silent,
) -> StudentLabels:
    """Check answers against the public images, `data` ("NAME-test"), and choose the labels."""
    choice = choice or Choice()
    if choice.split not in SPLITS:
        raise MixMatchError(f"split={choice.split}: it is {' or '.join(SPLITS)}")
    base = data.removesuffix("-test")
    if base == data:
        raise MixMatchError(f"data={data}: a student's public images are test images, such as svhn-test")
    public, names = load_test(base, data_dir, strict=strict)
    pool = POOLS.get(data, HALF) if choice.pool is None else choice.pool
    in_pool = pool_rows(pool, len(public))
    if answers.images is not None and answers.images not in (pool, len(public)):
        raise MixMatchError(
            f"there are {answers.images:,} answers, but {data} has {len(public):,} images: they are of other images"
        )
    numbered = renumber(answers, names, choice.classes)
    queries = min(QUERIES.get(data, len(answers)), len(answers)) if choice.queries is None else choice.queries
    asked = numbered.first(queries)
    _check_asked(asked, pool, in_pool)
    rows, valid = asked.rows[asked.answered], None
    if choice.split == "official":
        asked, rows, valid = _official(numbered, len(in_pool), len(rows))
    label_of = dict(zip(asked.rows.tolist(), asked.labels.tolist(), strict=True))
    labels = np.array([label_of[row] for row in rows.tolist()], np.int64)
    counts = np.bincount(labels, minlength=len(names))
    for name in (name for name, n in zip(names, counts, strict=True) if n == 0):
        warn(f"no answer is of class {name}: the student cannot learn it")
    numbering_known = choice.classes is not None or answers.classes is not None
    about = {
        "data": data,
        "split": choice.split,
        "queries": len(asked),
        "answered": int(asked.answered.sum()),
        "labels": len(rows),
        "pool": len(in_pool),
        "test": len(public) - len(in_pool),
        "classes": list(names),
        "labels_by_class": counts.tolist(),
        "labels_right": 100 * _share_right(public, rows, labels, numbering_known, warn),
    }
    return StudentLabels(asked, student_options(pool, rows, labels, valid), about)


def _check_asked(asked: Answers, pool: int | str, in_pool: Indices) -> None:
    """Check that the queries are about the pool, and that there are enough answers to learn from."""
    if len(outside := np.setdiff1d(asked.rows, in_pool)):
        which = "a random half" if pool == HALF else f"the first {pool:,} images"
        raise MixMatchError(f"query {outside[0]} is not in the pool, {which}: ask about others, or change pool=")
    if len(np.unique(asked.labels[asked.answered])) < 2:
        raise MixMatchError(
            f"{int(asked.answered.sum())} answers to {len(asked):,} queries are of fewer than two classes: a student "
            "needs more answers"
        )


def _share_right(public: Rows, rows: Indices, labels: Indices, numbering_known: bool, warn: Say) -> float:
    """The share of the labels that are true. A low one casts doubt on the images, or on the numbering of classes."""
    right = float((public.labels[rows] == labels).mean())
    if right < 0.5:
        doubt = f"only {100 * right:.0f} % of the answers are the images' true classes: are they of other images, "
        if not numbering_known:
            raise MixMatchError(f"{doubt}or numbered otherwise? say which class is which with classes=")
        warn(f"{doubt}or numbered otherwise than said?")
    return right


def _official(answers: Answers, pool: int, count: int) -> tuple[Answers, Indices, Indices]:
    """As the authors' create_split: by class, in the proportions of all answers, in file order; one image held out.

    Returns the queries that this takes, those about the whole pool; the images that get a label, and those held out.
    """
    if not np.array_equal(answers.rows[:pool], np.arange(pool)):
        raise MixMatchError(
            f"split=official chooses among the answers to all {pool:,} images of the pool: give them with answers="
        )
    labels = answers.labels[:pool]
    labeled = labeled_split(labels, count, seed=0)
    # Held out is the first of their unlabeled images, which begin with the most frequent class; if it has none left,
    # they go class by class, refused queries last.
    left = np.setdiff1d(np.arange(pool), labeled)
    frequent = np.bincount(labels[labels != REFUSED]).argmax()
    order = np.lexsort((labels[left], labels[left] == REFUSED, labels[left] != frequent))
    return answers.first(pool), labeled, left[order[:1]]


def student_runs(
    labels: StudentLabels,
    out: Path,
    method: str,
    seeds: Sequence[int],
    settings: Mapping[str, Any] | None,
    options: RunOptions,
) -> list[Work]:
    """The run of each student."""
    given = {
        **(settings or {}),
        "method": method,
        "labels": labels.about["labels"],
        "valid": len(labels.data_options["student"].get("valid", [])),
    }
    return [
        make_run(
            labels.about["data"], out / f"{method}-seed{seed}", {**given, "seed": seed}, labels.data_options, options
        )
        for seed in seeds
    ]


def train_students(
    labels: StudentLabels,
    out: Path,
    *,
    method: str = "mixmatch",
    seed: int = 1,
    repeats: int = 1,
    settings: Mapping[str, Any] | None = None,
    options: RunOptions | None = None,
    say: Say = silent,
    finished: Callable[[Record], None] = lambda record: None,
) -> Record:
    """Train students on the same labels with the seeds `seed`, `seed` + 1, ...; each is the run `out`/METHOD-seedN.

    Args:
        settings: of the runs, as for `mixmatch.train`; None is as if not given.
        finished: called with each record as soon as there is one.

    Returns:
        Accuracies in percent with their mean and deviation, and a description of the labels.
    """
    if repeats < 1:
        raise MixMatchError(f"repeats={repeats}: there must be at least one")
    options = options or RunOptions()
    runs = student_runs(labels, out, method, range(seed, seed + repeats), settings, options)
    records = train_runs(runs, "student", say if repeats > 1 else silent, finished, options.executor)
    accuracies = [100 - record["error"] for record in records]
    return {
        **labels.about,
        "method": method,
        "steps": records[0]["steps"],
        "seeds": [record["seed"] for record in records],
        "accuracies": accuracies,
        "accuracy": statistics.mean(accuracies),
        "deviation": statistics.stdev(accuracies) if repeats > 1 else None,
        "median_of": records[0]["median_of"],
        "runs": [str(run.job.out) for run in runs],
    }

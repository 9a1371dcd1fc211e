"""All of PATE in one go, small enough for a CPU: teachers, answers within the ledger, students, and what it cost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mixmatch.draws import generator
from mixmatch.errors import MixMatchError
from mixmatch.privacy import analysis, answers, student
from mixmatch.privacy.ledger import Budget, Ledger, answer_queries
from mixmatch.privacy.mechanisms import Mechanism, Outcome, describe
from mixmatch.privacy.public import load_test
from mixmatch.privacy.teachers import Voted, train_teachers
from mixmatch.privacy.votes import Answers, Votes
from mixmatch.storage import replace_durably
from mixmatch.training.progress import Reporter
from mixmatch.training.run import Record

METHODS = ("mixmatch", "supervised")


def run_all(
    data: str,
    out: Path,
    mechanism: Mechanism,
    *,
    teachers: int,
    queries: int,
    delta: float,
    pool: int | str = student.HALF,
    seed: int = 1,
    noise_seed: int | None = None,
    teacher: dict[str, Any],
    steps: int | None = None,
    resume: bool = False,
    data_dir: Path | None = None,
    device: str = "auto",
    say: Callable[[str], None] = lambda text: None,
    reporter: Callable[[], Reporter] | None = None,
) -> Record:
    """Teachers on the training images of `data`, questions about its test images, students on the answers.

    Args:
        out: gets all files of `train_teachers`, the ledger, `answers.json`, `students/`, `privacy.png`, `summary.json`.
        queries: how many images of the pool are asked about, chosen at random by the seed.
        noise_seed: seeds the noise of the answers, for experiments only.
        teacher: settings of the teachers' runs.
        steps: of the students.
    """
    budget = Budget(None, delta)
    budget.check()
    truth = load_test(data, data_dir)[0].labels
    in_pool = student.pool_rows(pool, len(truth))
    if not 1 <= queries <= len(in_pool):
        raise MixMatchError(f"--queries {queries}: the pool has {len(in_pool):,} images")
    common: dict[str, Any] = {"resume": resume, "data_dir": data_dir, "device": device, "reporter": reporter}
    # At random: the images of a file's beginning can be of one kind (digits: of a few writers).
    asked_rows = generator(seed, "queries", 0).permutation(in_pool)[:queries].tolist()
    voted = train_teachers(data, teachers, out, seed=seed, say=say, **common, **teacher)
    outcomes = _label(voted, mechanism, asked_rows, budget, noise_seed, out)
    privacy = _privacy(voted.votes, mechanism, outcomes, delta, truth, out)
    asked = answers.read(out / "answers.json")
    lesson = student.prepare(
        f"{data}-test", asked, pool=pool, data_dir=data_dir, warn=lambda text: say(f"warning: {text}")
    )
    students = {}
    for method in METHODS:
        say(f"the student: {method} on {lesson.about['labels']} answers")
        students[method] = student.train_students(
            lesson, out / "students", method=method, seed=seed, steps=steps, **common
        )
    summary = {
        "data": data,
        "private_images": teachers * voted.about["images_a_teacher"],
        "teachers": teachers,
        "images_a_teacher": voted.about["images_a_teacher"],
        **describe(mechanism),
        **{name: lesson.about[name] for name in ("pool", "test", "queries", "labels", "labels_right")},
        "plurality_right": 100 * float((voted.votes.counts[in_pool].argmax(axis=1) == truth[in_pool]).mean()),
        "privacy": privacy,
        "students": {
            method: {name: found[name] for name in ("accuracy", "steps", "runs")} for method, found in students.items()
        },
        "out": str(out),
    }
    student.write_summary(out / "summary.json", summary)
    return summary


def _label(
    voted: Voted, mechanism: Mechanism, queries: list[int], budget: Budget, seed: int | None, out: Path
) -> dict[int, Outcome]:
    """Ask about some images of the pool; a ledger keeps what was spent, so going on asks nothing twice."""
    with Ledger(voted.path.with_suffix(".ledger.jsonl"), voted.votes, mechanism) as book:
        outcomes = answer_queries(book, queries, budget, seed).outcomes
    labels = [-1] * voted.votes.queries
    for row, outcome in outcomes.items():
        labels[row] = outcome.label
    record = {"label": labels, "queries": list(outcomes), "classes": voted.about["classes"]}
    replace_durably(out / "answers.json", (json.dumps(record) + "\n").encode())
    return outcomes


def _privacy(
    votes: Votes, mechanism: Mechanism, outcomes: dict[int, Outcome], delta: float, truth: Any, out: Path
) -> Record:
    rows = np.array(list(outcomes), np.int64)
    given = Answers(
        np.array([outcome.label for outcome in outcomes.values()], np.int64),
        np.array([outcome.by_teachers for outcome in outcomes.values()], bool),
    )
    found = analysis.analyze(votes, mechanism, rows, delta, answers=given, labels=truth, points=200)
    analysis.plot(found.points, found.record, out / "privacy.png")
    return found.record

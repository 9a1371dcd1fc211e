"""All of PATE at once, small enough for a CPU: teachers, answers within the ledger, students, and the privacy cost."""

from __future__ import annotations

from pathlib import Path

from mixmatch.data.pate import HALF, load_test, pool_rows
from mixmatch.draws import generator
from mixmatch.errors import MixMatchError
from mixmatch.privacy import analysis, student
from mixmatch.privacy.answers import collect, to_json
from mixmatch.privacy.ledger import Budget, Ledger, answer_queries
from mixmatch.privacy.mechanisms import Mechanism, describe
from mixmatch.privacy.runs import RunOptions, Say, silent, write_record
from mixmatch.privacy.teachers import Plan, train_teachers
from mixmatch.storage import replace_durably
from mixmatch.training.run import Record

METHODS = ("mixmatch", "supervised")


def run_all(
    plan: Plan,
    out: Path,
    mechanism: Mechanism,
    *,
    queries: int,
    delta: float,
    noise_seed: int | None = None,
    steps: int | None = None,
    options: RunOptions | None = None,
    say: Say = silent,
) -> Record:
    """Teachers on the training images of a data set, queries about its test images, students on the answers.

    Args:
        plan: of the teachers. Its seed also decides which images of the pool are asked about, and is the students'.
        out: gets all files of `train_teachers`, the ledger, `answers.json`, `students/`, `privacy.png`, `summary.json`.
        queries: how many images of the pool are asked about.
        noise_seed: seeds the noise of the answers, for experiments only.
        steps: of the students.
    """
    options = options or RunOptions()
    budget = Budget(None, delta)
    budget.check()
    truth = load_test(plan.data, options.data_dir)[0].labels
    pool = pool_rows(HALF, len(truth))
    if not 1 <= queries <= len(pool):
        raise MixMatchError(f"queries={queries}: the pool has {len(pool):,} images")
    # At random: the first images of a file can be of one kind (digits: of a few writers).
    rows = generator(plan.seed, "queries", 0).permutation(pool)[:queries].tolist()
    voted = train_teachers(plan, out, options, say)
    # The ledger keeps what was spent, so that resuming asks nothing twice.
    with Ledger(voted.path.with_suffix(".ledger.jsonl"), voted.votes, mechanism) as ledger:
        given = answer_queries(ledger, rows, budget, noise_seed)
    answers = collect(given, voted.votes.queries, voted.about["classes"])
    replace_durably(out / "answers.json", to_json(answers).encode())
    asked = analysis.Queries(voted.votes, mechanism, answers.rows, delta, answers=answers)
    found = analysis.analyze(asked, labels=truth, points=200)
    analysis.plot(found.points, found.record, out / "privacy.png")
    labels = student.prepare(
        f"{plan.data}-test",
        answers,
        student.Choice(pool=HALF),
        data_dir=options.data_dir,
        warn=lambda text: say(f"warning: {text}"),
    )
    students = {}
    for method in METHODS:
        say(f"the student: {method} on {labels.about['labels']} answers")
        students[method] = student.train_students(
            labels, out / "students", method=method, seed=plan.seed, settings={"steps": steps}, options=options
        )
    summary = {
        "data": plan.data,
        "private_images": plan.teachers * voted.about["images_a_teacher"],
        "teachers": plan.teachers,
        "images_a_teacher": voted.about["images_a_teacher"],
        **describe(mechanism),
        **{name: labels.about[name] for name in ("pool", "test", "queries", "labels", "labels_right")},
        "plurality_right": 100 * float((voted.votes.counts[pool].argmax(axis=1) == truth[pool]).mean()),
        "privacy": found.record,
        "students": {
            method: {name: about[name] for name in ("accuracy", "steps", "runs")} for method, about in students.items()
        },
        "out": str(out),
    }
    write_record(out / "summary.json", summary)
    return summary

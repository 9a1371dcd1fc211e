"""`mixmatch pate teachers`, `student` and `run`: the parts of PATE that train."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from mixmatch.cli.options import DataDir, Device, Json, Strict, console, parse_labels, print_json
from mixmatch.cli.pate import Delta, Sigma1, Sigma2, Threshold
from mixmatch.errors import MixMatchError
from mixmatch.training.progress import Quiet

Resume = Annotated[bool, typer.Option("--resume", help="Go on with what is in --out; what is finished is kept.")]
QuietFlag = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
Network = Annotated[str | None, typer.Option(help="Their network (default: the data set's).")]
BatchSize = Annotated[int | None, typer.Option(help="Labeled images a step, and unlabeled ones.")]


def teachers(
    data: Annotated[str, typer.Argument(metavar="DATA", help="The data set whose training images are private.")],
    count: Annotated[int, typer.Option("--teachers", help="How many teachers, each with its own shard.")],
    out: Annotated[Path, typer.Option(help="Folder for shards, teachers and votes. Private.")],
    queries: Annotated[
        str | None,
        typer.Option(
            metavar="PUBLIC",
            help="The public images to vote on: NAME-test, NAME-train or a .npy file (default: DATA's test images).",
        ),
    ] = None,
    method: Annotated[str, typer.Option(help="How a teacher learns.")] = "supervised",
    network: Network = None,
    steps: Annotated[int, typer.Option(help="Steps of a teacher.")] = 3000,
    batch_size: BatchSize = None,
    learning_rate: Annotated[float | None, typer.Option(help="Adam's.")] = None,
    labels: Annotated[
        str,
        typer.Option(
            metavar="N|all",
            help="How many images of its shard a teacher knows the label of; the others are its unlabeled ones.",
        ),
    ] = "all",
    image_size: Annotated[
        int | None,
        typer.Option(help="A private folder: pixels to resize to (default: as the public images, or 32)."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides the shards; teacher k trains with seed + k.")] = 1,
    contiguous: Annotated[
        bool, typer.Option("--contiguous", help="Cut shards in file order, as PATE 2017 and 2018; no permutation.")
    ] = False,
    resume: Resume = False,
    device: Device = "auto",
    data_dir: DataDir = None,
    strict: Strict = False,
    quiet: QuietFlag = False,
    as_json: Json = False,
) -> None:
    """Train teachers on disjoint shards of private images and let them vote on public ones.

    OUT/teachers holds models of private data, OUT/shards.json and OUT/votes.npz tell of it too: publish none of them.
    Only votes go on, to [b]pate label[/b]; what may be published are its noisy answers and the student's model.

    Examples:

      mixmatch pate teachers digits --teachers 50 --steps 100 --batch-size 16 --out private/digits

      mixmatch pate teachers svhn-extra --teachers 250 --contiguous --network wrn-10-1 --out private/svhn --resume

      mixmatch pate teachers svhn --teachers 50 --method mixmatch --labels 200 --out private/svhn50
    """
    from mixmatch.privacy.teachers import train_teachers

    voted = train_teachers(
        data,
        count,
        out,
        queries=queries,
        seed=seed,
        contiguous=contiguous,
        labels=parse_labels(labels) or "all",
        method=method,
        steps=steps,
        image_size=image_size,
        resume=resume,
        data_dir=data_dir,
        strict=strict,
        device=device,
        reporter=Quiet,
        say=_quiet if quiet else _say,
        network=network,
        batch_size=batch_size,
        learning_rate=learning_rate,
    )
    if as_json:
        print_json({**voted.about, "votes": str(voted.path)})
        return
    about = voted.about
    console().print(
        f"{count:,} teachers with {about['images_a_teacher']:,} images each voted on {about['queries']:,} images\n"
        f"votes: {voted.path}\n"
        f"note: {out / 'teachers'} holds models of private data; publish neither it nor the votes",
        soft_wrap=True,
        markup=False,
    )


def student(
    answers: Annotated[
        Path | None,
        typer.Option(
            help="What pate label wrote, or a list of labels (default: the authors' answers to 250 queries, svhn-test)."
        ),
    ] = None,
    queries: Annotated[
        int | None, typer.Option(help="Use the answers to the first N queries (default: 250 on svhn-test, else all).")
    ] = None,
    data: Annotated[str, typer.Option(help="The public images, test images of a data set: NAME-test.")] = "svhn-test",
    pool: Annotated[
        str | None,
        typer.Option(
            metavar="N|half",
            help="Learn from the first N of them or a random half; the others judge (svhn-test 10000, else half).",
        ),
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(
            help="The classes in the order the answers number them: 0123456789, or cat,dog,... (not guessed)."
        ),
    ] = None,
    method: Annotated[str, typer.Option(help="How the student learns: mixmatch, vat, supervised, ...")] = "mixmatch",
    split: Annotated[
        str, typer.Option(help="answers: exactly these answers. official: as the authors' script, from later ones too.")
    ] = "answers",
    repeats: Annotated[int, typer.Option(help="How many students, with seeds SEED, SEED + 1, ...")] = 10,
    seed: Annotated[int, typer.Option(help="Of the first student; the labels are the same for all.")] = 1,
    steps: Annotated[int | None, typer.Option(help="Steps of a student (default: svhn-test 131,072).")] = None,
    network: Network = None,
    batch_size: BatchSize = None,
    eval_every: Annotated[int | None, typer.Option(help="Steps between evaluations.")] = None,
    checkpoint_every: Annotated[int | None, typer.Option(help="Steps between checkpoints.")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32 or bf16 (default: bf16 where it pays).")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the runs, METHOD-seedN each.")] = Path("runs/pate-student"),
    results: Annotated[Path | None, typer.Option(help="Also keep the records here, for mixmatch results.")] = None,
    votes: Annotated[Path | None, typer.Option(help="The votes, to tell what the answers cost.")] = None,
    threshold: Threshold = None,
    sigma1: Sigma1 = None,
    sigma2: Sigma2 = None,
    delta: Annotated[float | None, typer.Option(help="The delta of the guarantee.")] = None,
    resume: Resume = False,
    device: Device = "auto",
    data_dir: DataDir = None,
    strict: Strict = False,
    quiet: QuietFlag = False,
    as_json: Json = False,
) -> None:
    """Train students on public images of which the teachers labeled a few; refused queries stay unlabeled.

    By default the paper's setting (Section 4.3): the pool is the first 10,000 test images of SVHN, the labels are the
    answers to the first 250 queries, 138 of them, and the other 16,032 images judge.

    Examples:

      mixmatch pate student --repeats 10 --out runs/pate

      mixmatch pate student --answers svhn-noisy-labels-t200-s200-n40.json --votes svhn_250_teachers.npy
        --threshold 200 --sigma1 200 --sigma2 40 --delta 1e-6 --method vat

      mixmatch pate student --answers answers.json --data digits-test --repeats 3
    """
    from mixmatch.experiments import records
    from mixmatch.privacy import student as students
    from mixmatch.privacy.answers import authors, read

    cost = _cost_options(votes, threshold, sigma1, sigma2, delta)
    if answers is None and data != "svhn-test":
        raise MixMatchError(f"--data {data} needs the teachers' answers: give --answers")
    lesson = students.prepare(
        data,
        authors() if answers is None else read(answers),
        queries=queries,
        pool=int(pool) if pool is not None and pool.isdigit() else pool,
        split=split,
        classes=classes,
        data_dir=data_dir,
        strict=strict,
        warn=_warn,
    )
    privacy = None if votes is None else _privacy(lesson, votes, *cost)
    say = _quiet if quiet else _say
    say(_taught(lesson.about))
    summary = students.train_students(
        lesson,
        out,
        method=method,
        seed=seed,
        repeats=repeats,
        resume=resume,
        say=say,
        reporter=Quiet if quiet else None,
        finished=lambda record: None if results is None else _keep(records.save(record, results)),
        steps=steps,
        network=network,
        batch_size=batch_size,
        eval_every=eval_every,
        checkpoint_every=checkpoint_every,
        precision=precision,
        device=device,
        data_dir=data_dir,
        strict=strict,
    )
    quoted = students.QUOTED.get(data, [])
    summary |= {"privacy": privacy, "quoted": quoted} | ({"quoted_note": students.QUOTED_NOTE} if quoted else {})
    students.write_summary(out / f"{method}.json", summary)
    if as_json:
        print_json(summary)
        return
    _print_students(summary, out)


def run(
    out: Annotated[Path, typer.Option(help="Folder for everything.")] = Path("runs/pate-digits"),
    data: Annotated[
        str, typer.Option(help="Its training images are private, a random half of its test images public.")
    ] = "digits",
    count: Annotated[int, typer.Option("--teachers", help="How many teachers.")] = 50,
    teacher_steps: Annotated[int, typer.Option(help="Steps of a teacher.")] = 100,
    teacher_batch_size: Annotated[int, typer.Option(help="Batch size of a teacher.")] = 16,
    queries: Annotated[int, typer.Option(help="How many public images the teachers are asked about.")] = 80,
    threshold: Annotated[float, typer.Option(help="T: the votes it takes to be answered.")] = 30,
    sigma1: Annotated[float, typer.Option(help="Noise of the check against the threshold.")] = 20,
    sigma2: Annotated[float, typer.Option(help="Noise of the answer.")] = 7.5,
    delta: Delta = 1e-4,
    steps: Annotated[int | None, typer.Option(help="Steps of a student (default: the data set's).")] = None,
    seed: Annotated[int, typer.Option(help="Decides shards, weights and batches; not the noise.")] = 1,
    noise_seed: Annotated[
        int | None, typer.Option(help="Seed the noise, for experiments only; else the system's randomness.")
    ] = None,
    resume: Resume = False,
    device: Device = "auto",
    data_dir: DataDir = None,
    quiet: QuietFlag = False,
    as_json: Json = False,
) -> None:
    """All of PATE on a small data set: teachers, noisy answers, a MixMatch student and one on the answers alone.

    A demonstration: with so few teachers the privacy is weak, and the summary says how weak.

    Examples:

      mixmatch pate run --out runs/pate-digits

      mixmatch pate run --teachers 25 --threshold 15 --sigma1 10 --sigma2 4 --out runs/pate25
    """
    from mixmatch.privacy.mechanisms import SEED_WARNING, ConfidentGNMax
    from mixmatch.privacy.pipeline import run_all

    mechanism = ConfidentGNMax(threshold, sigma1, sigma2)
    if noise_seed is not None:
        _warn(SEED_WARNING)
    summary = run_all(
        data,
        out,
        mechanism,
        teachers=count,
        queries=queries,
        delta=delta,
        seed=seed,
        noise_seed=noise_seed,
        teacher={"steps": teacher_steps, "batch_size": teacher_batch_size},
        steps=steps,
        resume=resume,
        data_dir=data_dir,
        device=device,
        say=_quiet if quiet else _say,
        reporter=Quiet,
    )
    if as_json:
        print_json(summary)
        return
    _print_run(summary)


# -- privacy -----------------------------------------------------------------------------------------------------------


def _cost_options(
    votes: Path | None, threshold: float | None, sigma1: float | None, sigma2: float | None, delta: float | None
) -> tuple[Any, float]:
    """The mechanism and delta that --votes needs; without it they mean nothing."""
    from mixmatch.privacy.checks import check_delta
    from mixmatch.privacy.mechanisms import build

    if votes is None:
        if any(value is not None for value in (threshold, sigma1, sigma2, delta)):
            raise MixMatchError("--threshold, --sigma1, --sigma2 and --delta tell what answers cost: give --votes too")
        return None, 0.0
    if delta is None:
        raise MixMatchError("--votes needs --delta, less than 1 / the number of private records")
    return build("confident-gnmax", threshold=threshold, sigma1=sigma1, sigma2=sigma2), check_delta(delta)


def _privacy(lesson: Any, path: Path, mechanism: Any, delta: float) -> dict[str, Any]:
    """What the answers of a lesson cost, in every way of charging."""
    from mixmatch.privacy.analysis import analyze
    from mixmatch.privacy.votes import Answers, read_votes

    votes = read_votes(path)
    asked = lesson.asked
    if asked.rows.max() >= votes.queries:
        raise MixMatchError(f"{path} has votes on {votes.queries:,} images, but query {asked.rows.max()} was answered")
    return analyze(votes, mechanism, asked.rows, delta, answers=Answers(asked.labels, asked.answered)).record


# -- printing ----------------------------------------------------------------------------------------------------------


def _taught(about: dict[str, Any]) -> str:
    refused = about["queries"] - about["answered"]
    unused = about["answered"] - about["labels"]
    return (
        f"{about['queries']:,} queries, {refused:,} refused"
        + (f", {unused:,} answers not used" if unused else "")
        + f": {about['labels']:,} labels in a pool of {about['pool']:,} images, {about['labels_right']:.1f} % of them "
        f"right; judged by {about['test']:,} others"
    )


def _print_students(summary: dict[str, Any], out: Path) -> None:
    screen = console()
    screen.print(_taught(summary), soft_wrap=True)
    privacy = summary["privacy"]
    cost = "not computed (--votes)" if privacy is None else _epsilons(privacy)
    table = Table("student", "accuracy %", "epsilon", box=box.SIMPLE)
    students = f"{len(summary['seeds'])} students" if len(summary["seeds"]) > 1 else "one student"
    table.add_row(
        f"{summary['method']}, {students}, {summary['steps']:,} steps",
        _accuracy(summary["accuracy"], summary["deviation"]),
        cost,
    )
    for quoted in summary["quoted"]:
        table.add_row(
            f"{quoted['student']}, quoted", _accuracy(quoted["accuracy"], quoted["deviation"]), f"{quoted['epsilon']}"
        )
    screen.print(table)
    if privacy is not None:
        screen.print(f"note: {privacy['warning']}", soft_wrap=True)
    if summary["quoted"]:
        screen.print(f"note: {summary['quoted_note']}", soft_wrap=True)
    screen.print(f"runs: {out}", soft_wrap=True, markup=False)


def _print_run(summary: dict[str, Any]) -> None:
    privacy, students = summary["privacy"], summary["students"]
    parameters = ", ".join(f"{name} {value:g}" for name, value in summary["parameters"].items())
    lines = [
        f"private: {summary['private_images']:,} images, {summary['teachers']} teachers with "
        f"{summary['images_a_teacher']} each; without noise their vote is right on {summary['plurality_right']:.1f} % "
        f"of the public pool",
        f"asked: {summary['queries']} of {summary['pool']:,} public images by {summary['mechanism']} ({parameters}); "
        f"{summary['labels']} answered, {summary['labels_right']:.1f} % of the answers right",
        f"privacy at delta {privacy['delta']:g}: epsilon {_epsilons(privacy)}; for any votes at all "
        f"{privacy['epsilon_data_independent_all_charged']:.2f} (all charged), which may be published as it is",
        f"student, mixmatch on answers and unlabeled images: {students['mixmatch']['accuracy']:.1f} % right on "
        f"{summary['test']} other images",
        f"student, answers alone (supervised): {students['supervised']['accuracy']:.1f} %",
        f"note: {summary['teachers']} teachers hide one vote badly, so this privacy is weak; the paper's 250 teachers "
        "give 0.97 (expected)",
        f"everything: {summary['out']} (all but answers and students is private), picture: "
        f"{Path(summary['out']) / 'privacy.png'}",
    ]
    console().print("\n".join(lines), soft_wrap=True, markup=False)


def _epsilons(privacy: dict[str, Any]) -> str:
    return (
        f"{privacy['epsilon_expected']:.3f} expected, {privacy['epsilon_realised']:.3f} realised, "
        f"{privacy['epsilon_all_charged']:.3f} all charged"
    )


def _accuracy(mean: float, deviation: float | None) -> str:
    return f"{mean:.2f}" + ("" if deviation is None else f" ± {deviation:.2f}")


def _keep(path: Path) -> None:
    _say(f"record: {path}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _quiet(text: str) -> None: ...


def _warn(text: str) -> None:
    _say(f"warning: {text}")

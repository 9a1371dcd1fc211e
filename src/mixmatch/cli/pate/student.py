"""`mixmatch pate student`: learn from the answers and the unlabeled rest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from mixmatch.cli.options import Json, Part, Strict, console, expand_options, parse_part, print_json, say, show, warn
from mixmatch.cli.pate.options import (
    OF_ANSWERS,
    PUBLISHED,
    SAFE,
    All,
    BatchSize,
    Network,
    Sigma1,
    Sigma2,
    Threshold,
    TrainOptions,
    charged,
    in_words,
    show_part,
)
from mixmatch.errors import MixMatchError
from mixmatch.experiments import records
from mixmatch.privacy import student as students
from mixmatch.privacy.analysis import Queries, analyze
from mixmatch.privacy.answers import Answers, authors, read
from mixmatch.privacy.checks import check_delta
from mixmatch.privacy.mechanisms import Mechanism, build
from mixmatch.privacy.runs import train_runs, write_record
from mixmatch.privacy.votes import read_votes
from mixmatch.training.progress import Quiet
from mixmatch.training.run import Record


@dataclass(frozen=True, kw_only=True)
class CostOptions:
    """The votes, to compute what the answers cost."""

    votes: Annotated[Path | None, typer.Option(help="The votes, to show what the answers cost.")] = None
    threshold: Threshold = None
    sigma1: Sigma1 = None
    sigma2: Sigma2 = None
    delta: Annotated[float | None, typer.Option(help="The delta of the guarantee.")] = None

    def mechanism(self) -> Mechanism | None:
        """How the queries were answered; None without votes, where the other options have no meaning."""
        if self.votes is None:
            if any(value is not None for value in (self.threshold, self.sigma1, self.sigma2, self.delta)):
                raise MixMatchError(
                    "--threshold, --sigma1, --sigma2 and --delta are for computing the privacy cost: give --votes too"
                )
            return None
        if self.delta is None:
            raise MixMatchError("--votes needs --delta, less than 1 / the number of private records")
        mechanism = build("confident-gnmax", threshold=self.threshold, sigma1=self.sigma1, sigma2=self.sigma2)
        check_delta(self.delta)
        return mechanism

    def privacy(self, mechanism: Mechanism | None, answers: Answers) -> Record | None:
        """What the answers cost, in every way of charging."""
        if self.votes is None or self.delta is None or mechanism is None:
            return None
        votes, last = read_votes(self.votes), answers.rows.max()
        if last >= votes.queries:
            raise MixMatchError(f"{self.votes} has votes on {votes.queries:,} images, but query {last} was answered")
        return analyze(Queries(votes, mechanism, answers.rows, self.delta, answers=answers)).record


@expand_options
def student(
    training: TrainOptions,
    cost: CostOptions,
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
            help="Learn from the first N of them or a random half; evaluate on the others "
            "(svhn-test 10000, else half).",
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
        str,
        typer.Option(
            help="answers: exactly these answers. official: as in the authors' script, which also uses later ones."
        ),
    ] = "answers",
    repeats: Annotated[int, typer.Option(help="How many students, with seeds SEED, SEED + 1, ...")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of the first student; the labels are the same for all.")] = 1,
    steps: Annotated[int | None, typer.Option(help="Steps of a student (default: svhn-test 131,072).")] = None,
    network: Network = None,
    batch_size: BatchSize = None,
    eval_every: Annotated[int | None, typer.Option(help="Steps between evaluations.")] = None,
    checkpoint_every: Annotated[int | None, typer.Option(help="Steps between checkpoints.")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32 or bf16 (default: bf16 where it is faster).")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the runs, METHOD-seedN each.")] = Path("runs/pate-student"),
    results: Annotated[Path | None, typer.Option(help="Also keep the records here, for mixmatch results.")] = None,
    part: Part = None,
    strict: Strict = False,
    everything: All = False,
    as_json: Json = False,
) -> None:
    """Train students on public images of which the teachers labeled a few; refused queries stay unlabeled.

    By default the paper's setting (Section 4.3): the pool is the first 10,000 test images of SVHN, the labels are the
    answers to the first 250 queries, 138 of them, and the students are evaluated on the other 16,032 images.

    Examples:
      mixmatch pate student --repeats 10 --out runs/pate
      mixmatch pate student --answers svhn-noisy-labels-t200-s200-n40.json --votes svhn_250_teachers.npy
        --threshold 200 --sigma1 200 --sigma2 40 --delta 1e-6 --method vat
      mixmatch pate student --answers answers.json --data digits-test --repeats 3
    """
    mechanism, share = cost.mechanism(), parse_part(part)
    if answers is None and data != "svhn-test":
        raise MixMatchError(f"--data {data} needs the teachers' answers: give --answers")
    labels = students.prepare(
        data,
        authors() if answers is None else read(answers),
        students.Choice(queries, int(pool) if pool is not None and pool.isdigit() else pool, split, classes),
        data_dir=training.data_dir,
        strict=strict,
        warn=warn,
    )
    privacy = cost.privacy(mechanism, labels.answers)
    training.say(_describe(labels.about))
    settings = {
        "steps": steps,
        "network": network,
        "batch_size": batch_size,
        "eval_every": eval_every,
        "precision": precision,
    }
    options = training.build(Quiet if training.quiet else None, strict=strict, checkpoint_every=checkpoint_every)

    def finished(record: Record) -> None:
        if results is not None:
            say(f"record: {records.save(record, results)}")

    if part is not None:
        seeds = range(seed, seed + repeats)[share]
        runs = students.student_runs(labels, out, method, seeds, settings, replace(options, resume=True))
        show_part(part, len(train_runs(runs, "student", training.say, finished, options.executor)), "student", as_json)
        return
    summary = students.train_students(
        labels,
        out,
        method=method,
        seed=seed,
        repeats=repeats,
        settings=settings,
        options=options,
        say=training.say,
        finished=finished,
    )
    quoted = students.QUOTED.get(data, [])
    summary |= {"privacy": privacy, "quoted": quoted} | ({"quoted_note": students.QUOTED_NOTE} if quoted else {})
    write_record(out / f"{method}.json", summary)
    if as_json:
        print_json(summary)
        return
    _print(summary, SAFE if answers is None else OF_ANSWERS, out, everything)


def _describe(about: dict[str, Any]) -> str:
    refused = about["queries"] - about["answered"]
    unused = about["answered"] - about["labels"]
    return (
        f"{about['queries']:,} queries, {refused:,} refused"
        + (f", {unused:,} answers not used" if unused else "")
        + f": {about['labels']:,} labels in a pool of {about['pool']:,} images, {about['labels_right']:.1f} % of them "
        f"right; evaluated on {about['test']:,} others"
    )


def _print(summary: dict[str, Any], safe: str, out: Path, everything: bool) -> None:
    screen = console()
    screen.print(_describe(summary), soft_wrap=True)
    privacy = summary["privacy"]
    table = Table("student", "accuracy %", "epsilon", box=box.SIMPLE)
    count = f"{len(summary['seeds'])} students" if len(summary["seeds"]) > 1 else "one student"
    table.add_row(
        f"{summary['method']}, {count}, {summary['steps']:,} steps",
        _accuracy(summary),
        "not computed (--votes)" if privacy is None else f"{privacy[PUBLISHED]:.2f}",
    )
    for quoted in summary["quoted"]:
        table.add_row(f"{quoted['student']}, quoted", _accuracy(quoted), f"{quoted['epsilon']}")
    screen.print(table)
    if privacy is not None:
        screen.print(in_words(privacy, safe), soft_wrap=True)
    if privacy is not None and everything:
        screen.print(charged(privacy), soft_wrap=True)
        screen.print(f"note: {privacy['warning']}", soft_wrap=True)
    if summary["quoted"]:
        screen.print(f"note: {summary['quoted_note']}", soft_wrap=True)
    show(f"runs: {out}")


def _accuracy(of: dict[str, Any]) -> str:
    return f"{of['accuracy']:.2f}" + ("" if of["deviation"] is None else f" ± {of['deviation']:.2f}")

"""`mixmatch pate run`: all of PATE on a small data set, as an example."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mixmatch.cli.options import Json, expand_options, print_json, show, warn
from mixmatch.cli.pate.options import All, Delta, NoiseSeed, TrainOptions, charged, in_words
from mixmatch.privacy.analysis import parameters_text
from mixmatch.privacy.mechanisms import SEED_WARNING, ConfidentGNMax
from mixmatch.privacy.pipeline import run_all
from mixmatch.privacy.teachers import Plan
from mixmatch.training.progress import Quiet


@expand_options
def run(
    training: TrainOptions,
    out: Annotated[Path, typer.Option(help="Folder for everything.")] = Path("runs/pate-digits"),
    data: Annotated[
        str, typer.Option(help="Its training images are private, a random half of its test images public.")
    ] = "digits",
    count: Annotated[int, typer.Option("--teachers", help="How many teachers.")] = 50,
    teacher_steps: Annotated[int, typer.Option(help="Steps of a teacher.")] = 100,
    teacher_batch_size: Annotated[int, typer.Option(help="Batch size of a teacher.")] = 16,
    queries: Annotated[int, typer.Option(help="How many public images the teachers are asked about.")] = 80,
    threshold: Annotated[float, typer.Option(help="T: the votes needed for an answer.")] = 30,
    sigma1: Annotated[float, typer.Option(help="Noise of the check against the threshold.")] = 20,
    sigma2: Annotated[float, typer.Option(help="Noise of the answer.")] = 7.5,
    delta: Delta = 1e-4,
    steps: Annotated[int | None, typer.Option(help="Steps of a student (default: the data set's).")] = None,
    seed: Annotated[int, typer.Option(help="Decides shards, weights and batches; not the noise.")] = 1,
    noise_seed: NoiseSeed = None,
    everything: All = False,
    as_json: Json = False,
) -> None:
    """All of PATE on a small data set: teachers, noisy answers, a MixMatch student and one on the answers alone.

    A demonstration: with so few teachers the privacy is weak, and the summary says how weak.

    Examples:
      mixmatch pate run --out runs/pate-digits
      mixmatch pate run --teachers 25 --threshold 15 --sigma1 10 --sigma2 4 --out runs/pate25
    """
    mechanism = ConfidentGNMax(threshold, sigma1, sigma2)
    if noise_seed is not None:
        warn(SEED_WARNING)
    summary = run_all(
        Plan(data, count, seed=seed, settings={"steps": teacher_steps, "batch_size": teacher_batch_size}),
        out,
        mechanism,
        queries=queries,
        delta=delta,
        noise_seed=noise_seed,
        steps=steps,
        options=training.build(Quiet),
        say=training.say,
    )
    if as_json:
        print_json(summary)
        return
    _print(summary, everything)


def _print(summary: dict[str, Any], everything: bool) -> None:
    privacy, students = summary["privacy"], summary["students"]
    lines = [
        f"private: {summary['private_images']:,} images, {summary['teachers']} teachers with "
        f"{summary['images_a_teacher']} each; without noise their vote is right on {summary['plurality_right']:.1f} % "
        f"of the public pool",
        f"asked: {summary['queries']} of {summary['pool']:,} public images by {summary['mechanism']} "
        f"({parameters_text(summary)}); {summary['labels']} answered, {summary['labels_right']:.1f} % of the answers "
        "right",
        in_words(privacy),
        *([charged(privacy)] if everything else []),
        f"student, mixmatch on answers and unlabeled images: {students['mixmatch']['accuracy']:.1f} % right on "
        f"{summary['test']} other images",
        f"student, answers alone (supervised): {students['supervised']['accuracy']:.1f} %",
        f"note: {summary['teachers']} teachers hide one vote badly, so this privacy is weak; 250 teachers and 250 "
        "queries, as in the paper, give epsilon 3.13",
        f"everything: {summary['out']} (all but answers and students is private), picture: "
        f"{Path(summary['out']) / 'privacy.png'}",
    ]
    show("\n".join(lines))

"""`mixmatch pate teachers`: train teachers on private images and let them vote on public ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mixmatch.cli.options import Json, Part, Strict, expand_options, parse_part, print_json, show
from mixmatch.cli.pate.options import BatchSize, Network, TrainOptions, show_part
from mixmatch.privacy.teachers import STEPS, Plan, train_part, train_teachers
from mixmatch.settings import of_run
from mixmatch.training.progress import Quiet


@expand_options
def teachers(
    data: Annotated[str, typer.Argument(metavar="DATA", help="The data set whose training images are private.")],
    count: Annotated[int, typer.Option("--teachers", help="How many teachers, each with its own shard.")],
    out: Annotated[Path, typer.Option(help="Folder for shards, teachers and votes. Private.")],
    training: TrainOptions,
    queries: Annotated[
        str | None,
        typer.Option(
            metavar="PUBLIC",
            help="The public images to vote on: NAME-test, NAME-train or a .npy file (default: DATA's test images).",
        ),
    ] = None,
    method: Annotated[str, typer.Option(help="How a teacher learns.")] = "supervised",
    network: Network = None,
    steps: Annotated[int, typer.Option(help="Steps of a teacher.")] = STEPS,
    batch_size: BatchSize = None,
    learning_rate: Annotated[float | None, typer.Option(help="Learning rate of Adam.")] = None,
    labels: Annotated[
        str, typer.Option(metavar="N|all", help="How many images of a shard are labeled; the others are unlabeled.")
    ] = "all",
    image_size: Annotated[
        int | None, typer.Option(help="A private folder: pixels to resize to (default: as the public images, or 32).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides the shards; teacher k trains with seed + k.")] = 1,
    contiguous: Annotated[
        bool, typer.Option("--contiguous", help="Cut shards in file order, as PATE 2017 and 2018; no permutation.")
    ] = False,
    part: Part = None,
    strict: Strict = False,
    as_json: Json = False,
) -> None:
    """Train teachers on disjoint shards of private images and let them vote on public ones.

    OUT/teachers holds models of private data, and OUT/shards.json and OUT/votes.npz reveal it too: publish none of
    them. Only the votes are used further, by [b]pate label[/b]; its noisy answers and the student's model may be
    published.

    Examples:
      mixmatch pate teachers digits --teachers 50 --steps 100 --batch-size 16 --out private/digits
      mixmatch pate teachers svhn-extra --teachers 250 --contiguous --network wrn-10-1 --out private/svhn --resume
      mixmatch pate teachers svhn --teachers 50 --method mixmatch --labels 200 --out private/svhn50
      mixmatch pate teachers svhn-extra --teachers 250 --out private/svhn --part 3/20
    """
    share = parse_part(part)
    plan = Plan(
        data,
        count,
        queries,
        seed,
        contiguous,
        labels=of_run()["labels"].parse(labels),
        image_size=image_size,
        settings={
            "method": method,
            "steps": steps,
            "network": network,
            "batch_size": batch_size,
            "learning_rate": learning_rate,
        },
    )
    options = training.build(Quiet, strict=strict)
    if part is not None:
        show_part(part, train_part(plan, out, share, options, training.say), "teacher", as_json)
        return
    voted = train_teachers(plan, out, options, training.say)
    about = voted.about
    if as_json:
        print_json({**about, "votes": str(voted.path)})
        return
    show(
        f"{count:,} teachers with {about['images_a_teacher']:,} images each voted on {about['queries']:,} images\n"
        f"votes: {voted.path}\n"
        f"note: {out / 'teachers'} holds models of private data; publish neither it nor the votes"
    )

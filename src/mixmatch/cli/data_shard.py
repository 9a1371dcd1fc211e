"""`mixmatch data shard`: decode a folder of images once, into shards that train without being held in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mixmatch.cli.options import Json, print_json, ray_cluster, say, warn
from mixmatch.data.user.shards import SHARD_SIZE, left_out, unreadable_files
from mixmatch.execution.decode import shard_folder
from mixmatch.text import count, listed
from mixmatch.training.progress import bar


def shard(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A folder of images, as for train.")],
    out: Annotated[Path, typer.Option(help="The folder of shards to make, or to continue.")],
    labels_file: Annotated[str | None, typer.Option(help="A CSV of file and label.")] = None,
    image_size: Annotated[
        int | None, typer.Option(help="Pixels to resize to (default: chosen from the images).")
    ] = None,
    shard_size: Annotated[int, typer.Option(help="Images per shard.")] = SHARD_SIZE,
    processes: Annotated[
        int | None, typer.Option(help="How many decode at the same time (default: one per core).")
    ] = None,
    ray: Annotated[str | None, ray_cluster("Decode on")] = None,
    as_json: Json = False,
) -> None:
    """Decode a folder of images into memory-mapped shards, which train as the folder itself would.

    Files that cannot be read are left out and named. After a stop or a kill the same command continues, and it rebuilds
    damaged shards.

    Examples:
      mixmatch data shard photos/ --out photos-64 --image-size 64
      mixmatch train photos-64
      mixmatch data shard /shared/photos --out /shared/photos-64 --image-size 64 --ray auto
    """
    with bar("decoding images") as progress:
        done = shard_folder(
            data,
            out,
            labels_file=labels_file,
            image_size=image_size,
            shard_size=shard_size,
            processes=processes,
            ray=ray,
            progress=progress,
        )
    broken = dict(unreadable_files(out, done.shards)) if done.unreadable else {}
    findings = left_out(out)
    if as_json:
        about = {"unreadable_files": broken, "findings": [found.as_dict() for found in findings]}
        print_json({"out": str(out), **done._asdict(), **about})
    for found in findings:
        warn(f"{found.message}: {found.advice}" if found.advice else found.message)
    if broken:
        named = listed(f"{file}: {reason}" for file, reason in broken.items())
        warn(f"{count(len(broken), 'image')} cannot be read: left out ({named})")
    kept = f" ({done.finished_before:,} finished before)" if done.finished_before else ""
    say(f"{out}: {count(done.images, 'image')} in {count(done.shards, 'shard')}{kept}; train with mixmatch train {out}")

"""Decode a folder of images into shards, in processes of this machine or on a Ray cluster."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from mixmatch.data.user import shards
from mixmatch.data.user.images import cores
from mixmatch.data.user.shards import SHARD_SIZE, Order, Tally
from mixmatch.errors import MixMatchError
from mixmatch.execution.children import end_with_parent
from mixmatch.execution.ray import Place
from mixmatch.execution.ray_data import over_cluster


class Sharded(NamedTuple):
    """What a folder of shards holds."""

    images: int
    unreadable: int
    shards: int
    finished_before: int
    """Shards that were there already, with the pixels they were written with."""


def shard_folder(
    path: str | Path,
    out: str | Path,
    *,
    labels_file: str | None = None,
    image_size: int | None = None,
    shard_size: int = SHARD_SIZE,
    processes: int | None = None,
    ray: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Sharded:
    """Decode a folder of images, as `mixmatch train` would read it, into a folder of shards that it can train on.

    After an interruption, the same call keeps finished shards whose pixels still have their hash.

    Args:
        path: the folder of images.
        out: the folder of shards.
        labels_file, image_size: as for `mixmatch train`.
        shard_size: images per shard.
        processes: how many decode at the same time; by default one per core.
        ray: `local`, `auto` or HOST:PORT: on a Ray cluster, which must see both folders.
        progress: called with the number of files done, and of all.
    """
    folder = Path(out)
    order, count, files = shards.begin(Path(path), folder, labels_file, image_size, shard_size)
    if processes is not None and processes < 1:
        raise MixMatchError(f"processes={processes} must be 1 or more")
    tallies: list[Tally] = []
    for tally in _here(order, range(count), processes) if ray is None else _on_ray(ray, order, range(count)):
        tallies.append(tally)
        if progress is not None:
            progress(sum(each.images + each.unreadable for each in tallies), files)
    shards.finish(folder, count)
    images, unreadable = sum(each.images for each in tallies), sum(each.unreadable for each in tallies)
    return Sharded(images, unreadable, count, sum(each.kept for each in tallies))


def _here(order: Order, numbers: Sequence[int], processes: int | None) -> Iterator[Tally]:
    """In processes: each has a lock of Python's own, and writes its own file."""
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(processes or cores(), len(numbers)), spawn, end_with_parent)
    try:
        yield from pool.map(partial(shards.decode_shard, order), numbers)
    except BrokenProcessPool:
        raise MixMatchError(f"a process that decoded images was killed: {shards.AGAIN}") from None
    finally:
        pool.shutdown(cancel_futures=True)


def _on_ray(address: str, order: Order, numbers: Sequence[int]) -> Iterator[Tally]:
    for answer in over_cluster(address, partial(_decoder, order), numbers, "cpu"):
        yield Tally(**answer)


def _decoder(order: Order, place: Place) -> Callable[[int], dict[str, Any]]:
    return lambda number: shards.decode_shard(order, number, place.cores)._asdict()

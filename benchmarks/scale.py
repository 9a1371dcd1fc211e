"""What it costs to divide work, each way beside what it replaces, in one run on this machine.

    python benchmarks/scale.py                        # all three tables
    python benchmarks/scale.py --only exchange        # or groups, or ray
    python benchmarks/scale.py --device cpu --network wrn-10-1 --large wrn-10-1 --seconds 5 --steps 8

exchange: a step whose gradients are averaged over processes, of which there is one: over NCCL, inside the recorded step
(over gloo on a CPU). Beside it the same step without. The two take turns.

groups: a large network with a batch that is computed in groups of 64 images, one after the other, beside a batch of 64
and beside the whole batch as one group. The ratio is that of images per second.

ray: five runs by a Ray cluster on this machine, beside five side by side in one process (on a CPU one after the other).
The start of the cluster and of the processes in it, which import this package, is a column of its own, and so is what
the slowest run took by itself. Takes `mixmatch[ray]`.

Images are random. Ratios are to the first row of a table: below 1 is slower.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from step_time import SIZE, TURN, device_name, random_images, trainer

from mixmatch.execution.executor import Here
from mixmatch.execution.ray import Ray, connect, share_of
from mixmatch.settings import Settings, resolve
from mixmatch.training.device import default_precision, default_speed, pick_device
from mixmatch.training.job import Work
from mixmatch.training.plan import plan
from mixmatch.training.progress import Quiet
from mixmatch.training.session import completed, prepare
from mixmatch.training.trainer import Trainer
from mixmatch.training.world import Processes

GROUP = 64
"""Images of a group."""
RUNS = 5
REPEATS = 9

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("exchange", "groups", "ray"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--network", default="wrn-28-2", help="of the exchange and of the five runs")
    parser.add_argument("--large", default="wrn-28-large", help="the network of the groups")
    parser.add_argument("--groups", type=int, default=8, help="how many there are in the large batch")
    parser.add_argument("--group", type=int, default=GROUP, help="labeled images of a group, and of a batch elsewhere")
    parser.add_argument("--no-compile", action="store_true", help="for groups, whose network takes minutes to compile")
    parser.add_argument("--seconds", type=float, default=10.0, help="to spend on each row of the first two tables")
    parser.add_argument("--steps", type=int, default=8192, help="of each of the five runs")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--way", nargs=2, metavar=("WAY", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        print(json.dumps(five(args.way[0], Path(args.way[1]), args)))
        return
    device = pick_device(args.device)
    tables = {"exchange": exchange, "groups": groups, "ray": executors}
    found = {name: make(args, device) for name, make in tables.items() if args.only in (None, name)}
    if args.json:
        rows = [{"table": name, **row} for name, rows in found.items() for row in rows]
        print(json.dumps({"device": device_name(device), "rows": rows}, indent=1))
        return
    for name, rows in found.items():
        show(f"{name}, {device_name(device)}", rows)


def show(title: str, rows: list[Row]) -> None:
    columns = [key for key in rows[0] if key not in ("name", "notes")]
    table = Table("", *(key.replace("_", " ") for key in columns), title=title)
    for row in rows:
        cells = (row.get(key, "") for key in columns)
        table.add_row(row["name"], *(f"{cell:,.3f}" if isinstance(cell, float) else str(cell) for cell in cells))
    Console(width=120).print(table)
    for row in rows:
        for text in row["notes"]:
            print(f"{row['name']}: {text}")


# ---------------------------------------------------------------- steps


def settings_of(network: str, device: torch.device, batch_size: int, **given: Any) -> Settings:
    settings = resolve("cifar10", {"network": network, "batch_size": batch_size, "valid": 0, **given})
    return replace(settings, precision=default_precision(settings, device, (3, SIZE, SIZE)))


def in_turns(trainers: dict[str, Trainer], seconds: float, warm_up: int = TURN) -> dict[str, list[float]]:
    """Milliseconds per step of each, in blocks that they take in turns; their first steps are not counted."""

    def block(trainer: Trainer, count: int) -> float:
        began = time.perf_counter()
        trainer.advance(trainer.step + count)
        trainer.wait()
        return 1000 * (time.perf_counter() - began) / count

    few = warm_up if next(iter(trainers.values())).stream is not None else 1
    first = [[block(each, few), block(each, few)][1] for each in trainers.values()]
    count = max(1, round(1000 * seconds / REPEATS / max(first)))
    times: dict[str, list[float]] = {name: [] for name in trainers}
    for _ in range(REPEATS):
        for name, each in trainers.items():
            times[name].append(block(each, count))
    return times


def row_of(name: str, trainer: Trainer, times: list[float], notes: list[str]) -> Row:
    trainer.check_finite()
    how = {key: trainer.engine[key] for key in ("compiled", "recorded", "kernels")}
    return {"name": name, "ms_per_step": statistics.median(times), "least": min(times), **how, "notes": notes}


def exchange(args: argparse.Namespace, device: torch.device) -> list[Row]:
    if device.type == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())  # as in a process of several
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}
    world, settings, source = Processes(device), settings_of(args.network, device, args.group), random_images()
    worlds = {"without": None, f"over {world.backend}": world}
    notes = {name: list[str]() for name in worlds}
    trainers = {
        name: trainer(source, settings, device, device.type == "cuda", notes[name].append, one)
        for name, one in worlds.items()
    }
    times = in_turns(trainers, args.seconds)
    rows = [row_of(name, each, times[name], notes[name]) for name, each in trainers.items()]
    for row in rows:
        row["ratio"] = rows[0]["ms_per_step"] / row["ms_per_step"]
    trainers.clear()
    gc.collect()  # a graph that calls NCCL has to go before NCCL does
    dist.destroy_process_group()
    return rows


def groups(args: argparse.Namespace, device: torch.device) -> list[Row]:
    rows: list[Row] = []
    for count, number in ((1, 1), (args.groups, args.groups), (args.groups, 1)):
        name, notes = f"batch {count * args.group} in {number} group{'s' * (number > 1)}", list[str]()
        settings = settings_of(args.large, device, count * args.group, groups=number)
        try:
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            one = trainer(
                random_images(), settings, device, device.type == "cuda", notes.append, compile=not args.no_compile
            )
            row = row_of(name, one, in_turns({name: one}, args.seconds, warm_up=8)[name], notes)
            row["ratio"] = count * rows[0]["ms_per_step"] / row["ms_per_step"] if rows else 1.0
            row["peak_mib"] = torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else "-"
        except torch.OutOfMemoryError:
            row = {"name": name, "notes": ["too little memory"]}
        rows.append(row)
        one = None  # type: ignore[assignment]  # let go of before the next is made
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return rows


# ---------------------------------------------------------------- runs


def executors(args: argparse.Namespace, device: torch.device) -> list[Row]:
    """Each in a process of its own. The first is thrown away: it leaves compiled code for the others."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="b-") as folder:
        images = random_images().train
        few = np.where(np.arange(len(images)) < 1000, images.labels, -1)
        np.savez(Path(folder, "images.npz"), x=images.inputs, y=few)
        own = {"HOME": folder, "RAY_TMPDIR": folder, "RAY_AUTH_MODE": "disabled"}
        for way, name in {"warm up": "", "here": f"{RUNS} side by side", "ray": "--ray local"}.items():
            command = [sys.executable, __file__, *sys.argv[1:], "--way", way, folder]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | own)
            if name:
                rows.append({"name": name, **json.loads(done.stdout), "notes": []})
    for row in rows:
        row["ratio"] = rows[0]["seconds"] / row["seconds"]
    return rows


def five(way: str, folder: Path, args: argparse.Namespace) -> Row:
    """Do five runs in a folder; returns the seconds of a cluster's start, and those of the runs."""
    given = {"network": args.network, "batch_size": args.group, "steps": args.steps, "eval_every": args.steps}
    work = [
        plan(str(folder / "images.npz"), {**given, "seed": seed}, out=folder / way / str(seed), device=args.device)
        for seed in range(1, RUNS + 1)
    ]
    for each in work:
        each.reporter = Quiet()
    if way == "warm up":
        take_some(work[0])
        return {}
    began, start = time.perf_counter(), 0.0
    if way == "ray":
        ray = connect("local")
        share = share_of(ray, {args.device})
        # By default Ray ends a process after each task with a GPU; these are kept for the runs.
        task = ray.remote(**share.needs, max_calls=0)(nothing)
        ray.get([task.remote() for _ in range(share.places)])
        start = time.perf_counter() - began
    executor = Here() if way == "here" else Ray("local")
    outcomes = dict(executor.run(work))
    errors = [outcome for outcome in outcomes.values() if isinstance(outcome, Exception)]
    if errors:
        raise errors[0]
    seconds = time.perf_counter() - began - start
    slowest = max(outcome["seconds"] for outcome in outcomes.values() if not isinstance(outcome, Exception))
    return {"start_seconds": start, "seconds": seconds, "slowest_run": slowest}


def take_some(work: Work) -> None:
    """A few steps of a run, taken as it would take them."""
    settings, device = work.job.settings, pick_device(work.job.device)
    data = work.open(settings)
    settings = completed(settings, work.job.chosen, data.source, device, "images")
    speed = default_speed(settings.steps, device, None)
    prepare(settings, data, device, compile=speed.compile, graph=speed.graph).advance(min(8, settings.steps))


def nothing() -> None:
    """What a process of a cluster does before its first run."""
    importlib.import_module("mixmatch.execution.worker")


if __name__ == "__main__":
    main()

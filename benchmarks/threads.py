"""How many threads, and how they wait: the time of a training step on this CPU, idle and busy.

    python benchmarks/threads.py                        # about 3 minutes on 2 cores
    python benchmarks/threads.py --threads 1 4 16 --load 0 1 3 --json threads.json

OpenMP's threads wait for each other many times per step. Spinning meanwhile is quickest while every thread has a core
to itself, and slowest while it has not: the thread that is waited for gets no core. `--load N` starts N times as
many busy processes as there are cores. Each row is a process of its own, because waiting is chosen before PyTorch is
imported. The ratio is to one thread at the same load.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

TASKS = {
    "digits": ("wrn-small", (1, 8, 8), 64),
    "features": ("mlp", (64,), 64),
    "images 32x32": ("wrn-auto", (3, 32, 32), 64),
}
"""Name to network, input shape and batch size: the built-in data set, a table, a folder of small images."""


WAITS: dict[str, dict[str, str]] = {
    "spin": {},
    "short": {"GOMP_SPINCOUNT": "10000"},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
}
"""How threads wait: as OpenMP's default has it, spinning for a few microseconds at most (what `mixmatch` does), not
spinning at all."""


def measure(task: str, seconds: float) -> float:
    """Median milliseconds per MixMatch step, in this process."""
    import numpy as np
    import torch

    from mixmatch.data.opened import Basis, Data
    from mixmatch.data.source import Rows, Source
    from mixmatch.data.split import make_split
    from mixmatch.settings import resolve
    from mixmatch.training.session import prepare

    network, shape, batch = TASKS[task]
    rng = np.random.default_rng(0)
    count = 1024
    if len(shape) == 3:
        inputs: Any = rng.integers(0, 256, (count, *shape[1:], shape[0]), np.uint8)
    else:
        inputs = rng.standard_normal((count, *shape), np.float32)
    rows = Rows(inputs, np.arange(count) % 10)
    source = Source("made up", tuple("0123456789"), rows, rows.take(np.arange(10)))
    kind = "images" if len(shape) == 3 else "features"
    given = {"network": network, "batch_size": batch, "labels": 100}
    settings = resolve("made up", given, kind)  # type: ignore[arg-type]
    data = Data(source, make_split(source, 100, 1), Basis("test rows"))
    trainer = prepare(settings, data, torch.device("cpu"))
    trainer.advance(2)
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < 5 or (time.perf_counter() - began < seconds and len(times) < 400):
        start = time.perf_counter()
        trainer.advance(trainer.step + 1)
        times.append(time.perf_counter() - start)
        if time.perf_counter() - began > 4 * seconds:
            break
    return 1000 * statistics.median(times)


def in_process(task: str, threads: int, wait: str, seconds: float) -> float:
    env = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    env |= {"OMP_NUM_THREADS": str(threads), **WAITS[wait]}
    arguments = [sys.executable, __file__, "--measure", task, "--seconds", str(seconds)]
    answer = subprocess.run(arguments, env=env, capture_output=True, text=True, check=True)
    return float(answer.stdout)


def main() -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, 2, cores}))
    parser.add_argument("--load", type=int, nargs="+", default=[0, 3], help="busy processes per core")
    parser.add_argument("--wait", nargs="+", default=list(WAITS), choices=list(WAITS))
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seconds", type=float, default=4.0, help="per row")
    parser.add_argument("--json", help="also write the rows to this file")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(measure(given.measure, given.seconds))
        return
    rows: list[dict[str, Any]] = []
    print(f"{cores} cores\n")
    print(f"{'task':14}{'load':>6}{'threads':>9}  {'wait':9}{'ms per step':>12}{'ratio':>8}")
    for load in given.load:
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(load * cores)]
        try:
            for task in given.tasks:
                one: float | None = None
                for threads in given.threads:
                    for wait in given.wait if threads > 1 else ["short"]:
                        took = in_process(task, threads, wait, given.seconds)
                        one = one if one is not None else took
                        row = {"task": task, "load": load, "threads": threads, "wait": wait}
                        rows.append({**row, "ms_per_step": round(took, 3), "ratio": round(took / one, 3)})
                        print(f"{task:14}{load:6}{threads:9}  {wait:9}{took:12.2f}{took / one:8.2f}", flush=True)
        finally:
            for process in busy:
                process.kill()
    if given.json:
        with open(given.json, "w") as file:
            json.dump({"cores": cores, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()

"""The runs behind the headline numbers: a list that is worked through as GPU time allows, each run by exact resume.

    python benchmarks/long_runs.py                      # what is finished, what is on its way, what is left
    python benchmarks/long_runs.py --minutes 24         # work on the list for 24 minutes, then save and stop
    python benchmarks/long_runs.py --minutes 24 --side-by-side 2 --data-dir ~/data
    python benchmarks/long_runs.py --minutes 24 --method fixmatch --labels 40

Records of finished runs go to `results/`, the runs on their way are in `runs/long`. Copy a run's folder to go on with
it on another machine: its newest checkpoint is enough.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixmatch.errors import MixMatchError
from mixmatch.experiments import records, reproduce
from mixmatch.experiments.reproduce import Planned
from mixmatch.experiments.tables import Row, full_steps
from mixmatch.training import checkpoint
from mixmatch.training.run import Record, RunFolder
from mixmatch.training.stop import Interrupted

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Part:
    """Runs of a method in one cell, with its authors' settings but for `settings`."""

    data: str
    labels: int
    seeds: tuple[int, ...]
    steps: int
    method: str = "mixmatch"
    settings: tuple[tuple[str, Any], ...] = ()

    def runs(self) -> list[Planned]:
        row = Row(self.method, self.data, self.method, {}, dict(self.settings))
        return [Planned(row, row.run_settings(self.labels, self.steps, seed=seed)) for seed in self.seeds]


FUSED = (("passes", "fused"),)
PARTS = (
    Part("cifar10", 250, (2, 3, 4, 5), 2**20),
    Part("svhn", 250, (1,), 2**20),
    Part("cifar10", 4000, (1,), 2**20),
    *(Part(data, labels, (1, 2, 3), 2**16) for data in ("cifar10", "svhn") for labels in (250, 500, 1000, 2000, 4000)),
    # Does FixMatch learn the same in fused passes?
    Part("cifar10", 250, (1, 2, 3), 2**14, "fixmatch", FUSED),
    Part("cifar10", 250, (1, 2, 3), 2**14, "fixmatch"),
    # What came after MixMatch, in minutes: fused, because it does.
    *(Part("cifar10", 250, (1, 2, 3), 2**17, method, FUSED) for method in ("fixmatch", "softmatch")),
    *(
        Part("cifar10", 40, (1, 2, 3), 2**17, method, FUSED)
        for method in ("fixmatch", "flexmatch", "freematch", "softmatch", "adamatch")
    ),
    *(
        Part(data, labels, (1,), 2**16, method, FUSED)
        for data, labels in (("cifar10", 4000), ("svhn", 250), ("svhn", 40))
        for method in ("fixmatch", "softmatch")
    ),
)
"""In the order in which they are done."""


def state(run: Planned, known: list[Record], folder: Path) -> dict[str, Any]:
    """How far a run is, and its error as docs/results.md opens with it: the paper's median after all of its steps, else
    the newest."""
    done, ours = reproduce.finished(run, known), RunFolder(folder / run.name)
    name = {"method": run.settings.method, "data": run.settings.data, "labels": run.settings.labels}
    name |= {"passes": run.settings.method_settings.get("passes", ""), "seed": run.settings.seed}
    if done is not None:
        error = done["error" if done["steps"] == full_steps(run.settings.data) else "last_error"]
        return {**name, "steps": run.settings.steps, "at": done["steps"], "error": error, "state": "finished"}
    metrics = ours.metrics() if ours.exists() else []
    saved = checkpoint.list_checkpoints(ours.checkpoints) if ours.exists() else []
    at = int(saved[0].name.removeprefix("step-")) if saved else 0
    error = metrics[-1].get("test_error") if metrics else None
    return {
        **name, "steps": run.settings.steps, "at": at, "error": error, "state": "on its way" if at else "to do"
    }  # fmt: skip


def show(rows: list[dict[str, Any]]) -> None:
    print(f"{'method':<10}{'passes':<9}{'data':<8}{'labels':>6}{'seed':>5}{'steps':>10}{'at':>10}{'error %':>8}  state")
    for row in rows:
        error = "" if row["error"] is None else f"{row['error']:.2f}"
        print(
            f"{row['method']:<10}{row['passes']:<9}{row['data']:<8}{row['labels']:>6}{row['seed']:>5}"
            f"{row['steps']:>10,}{row['at']:>10,}{error:>8}  {row['state']}"
        )


def work(runs: list[Planned], options: argparse.Namespace) -> int:
    """Train what is left, for so many minutes. Returns how many runs failed."""
    timer = threading.Timer(60 * options.minutes, os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    timer.start()
    try:
        failed = reproduce.run_all(
            runs,
            options.runs,
            options.results,
            lambda line: print(line, file=sys.stderr),
            device=options.device,
            data_dir=options.data_dir,
            side_by_side=options.side_by_side,
        )
    except Interrupted:  # the time is up, or Ctrl-C: every run has saved a checkpoint
        return 0
    finally:
        timer.cancel()
    return len(failed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, help="work on the list for so long; without it, only show the list")
    parser.add_argument("--method", nargs="+", help="runs of these methods only")
    parser.add_argument("--labels", type=int, nargs="+", help="runs with so many labels only")
    parser.add_argument("--steps", type=int, nargs="+", help="runs of so many steps only")
    parser.add_argument("--seeds", type=int, nargs="+", help="runs with these seeds only")
    parser.add_argument("--passes", choices=("official", "fused"), help="runs with these passes only")
    parser.add_argument("--side-by-side", type=int, metavar="N", help="runs at a time; by default what fits the GPU")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "long", help="folder of the runs")
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="folder of the records")
    parser.add_argument("--data-dir", type=Path, help="folder of the data sets")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", action="store_true", help="print the list as JSON")
    options = parser.parse_args()
    wanted = [
        part
        for part in PARTS
        if part.method in (options.method or [part.method])
        and part.labels in (options.labels or [part.labels])
        and part.steps in (options.steps or [part.steps])
    ]
    runs = [
        run
        for part in wanted
        for run in part.runs()
        if run.settings.seed in (options.seeds or [run.settings.seed])
        and options.passes in (None, run.settings.method_settings.get("passes"))
    ]
    failed = 0
    try:
        if options.minutes is not None:
            failed = work(runs, options)
        known = records.load_all(options.results, lambda line: print(line, file=sys.stderr))
        rows = [state(run, known, options.runs) for run in runs]
    except MixMatchError as error:
        print(error, file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps({"rows": rows}, indent=1))
    else:
        show(rows)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

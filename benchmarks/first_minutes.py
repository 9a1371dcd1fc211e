"""The first ten minutes with one's own data: how good are the defaults, and are they ever worse than labels alone?

    python benchmarks/first_minutes.py --data-dir ~/data                    # what is left of the study, then the table
    python benchmarks/first_minutes.py --only photos-15 --ways now labels
    python benchmarks/first_minutes.py --methods --device cuda              # MixMatch's successors beside it
    python benchmarks/first_minutes.py --only photos-uneven --try method=fixmatch --try method=fixmatch,balance=abc
    python benchmarks/first_minutes.py --try lambda_u=10 --try lambda_u=10,ema_decay=0.97
    python benchmarks/first_minutes.py --table                              # the table alone

Small real tasks, three seeds each: folders cut from CIFAR-10 (4 classes; 4, 15 or 25 labels each) and SVHN (10 classes,
10 labels each), 1,500 unlabeled images and 400 test images; two of them again with classes that differ in size by a
factor of 10 (`uneven`; as many test images of each); digits; two tables; embeddings of CIFAR-10 by a pretrained
network (`--weights FILE` for timm:tf_efficientnet_lite0; left out without). A seed decides the classes, the labels and
the run.

Images are learned from in three ways: from basic features, and from the pixels for as many steps as two CPU cores take
in 1, 5 and 20 minutes (`PIXEL_STEPS`, at 0.2 s per step; on a GPU the same steps take seconds). Outcomes are kept in a
file, a line each, and are not computed again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # processes share the cores

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_wine

from mixmatch import data
from mixmatch.data.opened import Basis, Data
from mixmatch.data.source import Rows, Source
from mixmatch.data.split import Split
from mixmatch.data.user.encoding import Encoding, fit_numbers
from mixmatch.methods import METHODS
from mixmatch.presets import Kind
from mixmatch.settings import resolve
from mixmatch.training.device import pick_device
from mixmatch.training.opening import embedded
from mixmatch.training.session import completed, prepare

ROOT = Path(__file__).parents[1]
STATE = ROOT / "benchmarks" / "first_minutes.jsonl"
PIXEL_STEPS = {"1 min": 300, "5 min": 1500, "20 min": 6000}
BEFORE = {
    "images": {"lambda_u": 100.0, "ema_warmup": False, "ema_decay": 0.995},
    "features": {"lambda_u": 10.0, "ema_warmup": False, "ema_decay": 0.99},
}
"""The defaults of version 0.1, where they were others."""
SUCCESSORS = ["uda", "remixmatch", "fixmatch", "flexmatch", "freematch", "softmatch", "adamatch"]
"""Methods after MixMatch, which is `now`."""


class Task(NamedTuple):
    """Where rows come from; how many classes, labels per class, and unlabeled rows in all. With `uneven` classes this
    is so for the largest one, and the smallest one has that many times fewer labels and unlabeled rows."""

    source: str
    classes: int
    labels: int
    unlabeled: int = 1500
    test: int = 400
    uneven: int = 1

    def share(self, number: int) -> float:
        """How large a class is, beside the largest."""
        return float(self.uneven ** (-number / (self.classes - 1)))


TASKS = {
    "photos-4": Task("cifar10", 4, 4),
    "photos-15": Task("cifar10", 4, 15),
    "photos-25": Task("cifar10", 4, 25),
    "house-numbers-10": Task("svhn", 10, 10),
    "photos-uneven": Task("cifar10", 4, 30, 3000, uneven=10),
    "house-numbers-uneven": Task("svhn", 10, 30, 3000, uneven=10),
    "digits": Task("digits", 10, 2, 1000, 500),
    "breast-cancer": Task("breast cancer", 2, 8, 300, 200),
    "wine": Task("wine", 3, 4, 90, 60),
    "embeddings-4": Task("cifar10 embedded", 10, 4, 2000, 1000),
}


def rows_of(name: str, data_dir: Path | None) -> tuple[Rows, Rows, tuple[str, ...]]:
    """All rows to train on, and all to test on; of a table the same rows, which `cut` keeps apart."""
    if name in ("breast cancer", "wine"):
        table = (load_breast_cancer if name == "breast cancer" else load_wine)()
        encoding = Encoding(tuple(fit_numbers([str(i) for i in range(table.data.shape[1])], table.data)))
        rows = Rows(encoding.apply_matrix(table.data), table.target.astype(np.int64))
        return rows, rows, tuple(map(str, table.target_names))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source = data.load(name.split()[0], data_dir, warn=lambda text: None)
    return source.train, source.test, source.classes


def cut(task: Task, seed: int, data_dir: Path | None) -> Data:
    """A task as a person's data: `seed` decides the classes and which rows have a label."""
    train, test, names = rows_of(task.source, data_dir)
    rng = np.random.default_rng(seed)
    classes = rng.choice(len(names), task.classes, replace=False)
    if task.uneven == 1:
        classes = np.sort(classes)  # else the draw decides which are rare
    labeled, unlabeled, tested = [], [], []
    same = test is train
    for i, c in enumerate(classes):
        rows = rng.permutation(np.flatnonzero(train.labels == c))
        here = rng.permutation(np.flatnonzero(test.labels == c))
        share = round(task.test / task.classes if not same else task.test * len(rows) / len(train))
        if same:
            here, rows = rows[:share], rows[share:]
        tested.append(here[:share])
        labels = round(task.labels * task.share(i))
        labeled.append(rows[:labels])
        unlabeled.append(rows[labels:][: round(task.unlabeled / task.classes * task.share(i))])
    places = np.concatenate([*labeled, *unlabeled])
    count = sum(map(len, labeled))
    number = {int(c): i for i, c in enumerate(classes)}

    def part(of: Rows, chosen: np.ndarray) -> Rows:
        labels = np.array([number[int(of.labels[row])] for row in chosen], np.int64)
        return Rows(np.array(of.inputs[chosen]), labels)

    held = part(test, np.concatenate(tested))
    source = Source(task.source, tuple(names[c] for c in classes), part(train, places), held)
    every = np.arange(len(places), dtype=np.int64)
    split = Split(every[:count], every[count:], every[:0], np.arange(len(held), dtype=np.int64))
    return Data(source, split, Basis("test rows"))


class Cell(NamedTuple):
    """One run of the study."""

    task: str
    way: str
    """`now`, `before`, `labels`, a method's name, or settings as NAME=VALUE,NAME=VALUE."""
    budget: str
    """`features`, or a key of PIXEL_STEPS."""
    seed: int

    def given(self) -> dict[str, Any]:
        """The settings that are not the default."""
        embeds = TASKS[self.task].source.endswith("embedded")
        kind = "images" if self.budget in PIXEL_STEPS else "features"
        given: dict[str, Any] = {"seed": self.seed}
        if self.budget in PIXEL_STEPS:
            given["steps"] = PIXEL_STEPS[self.budget]
        elif embeds:
            given["features"] = "timm:tf_efficientnet_lite0"
        elif TASKS[self.task].source in ("cifar10", "svhn", "digits"):
            given["features"] = "basic"
        if self.way == "before":
            given |= BEFORE[kind]
        elif self.way == "labels":
            given["method"] = "supervised"
        elif self.way in METHODS:
            given["method"] = self.way
        elif self.way != "now":
            given |= {name: _value(text) for name, _, text in (pair.partition("=") for pair in self.way.split(","))}
        return given


def _value(text: str) -> Any:
    """A number or true and false, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def run(cell: Cell, data_dir: Path | None, weights: str, cache: Path, device: str) -> dict[str, Any]:
    """Train one cell; its test error in percent."""
    torch.set_num_threads(1)
    opened = cut(TASKS[cell.task], cell.seed, data_dir)
    kind: Kind = "images" if opened.source.train.is_images else "features"
    given = cell.given()
    if str(given.get("features", "")).startswith("timm:"):
        given["weights"] = weights
    settings = resolve("mine", given, kind)
    where = pick_device(device)
    settings = completed(settings, lambda name: name in given, opened.source, where, kind)
    began = time.monotonic()
    opened = embedded(opened, settings, device, cache)
    if settings.unlabeled == "all":  # as `mixmatch train` does with a person's data
        every = np.concatenate([opened.split.labeled, opened.split.unlabeled])
        opened = replace(opened, split=replace(opened.split, unlabeled=every))
    ready = time.monotonic()
    trainer = prepare(settings, opened, where, graph=where.type == "cuda")
    trainer.advance(settings.steps)
    test, _ = trainer.evaluate()
    assert test is not None
    took = {"embedding": round(ready - began, 1), "training": round(time.monotonic() - ready, 1)}
    return {**cell._asdict(), "error": test.error, "seconds": took, "steps": settings.steps}


def cells(args: argparse.Namespace) -> list[Cell]:
    ways = [*args.ways, *args.tried]
    found = []
    for task, way, seed in itertools.product(args.only or TASKS, ways, args.seeds):
        source = TASKS[task].source
        if source.endswith("embedded") and not args.weights:
            continue
        budgets = args.budgets if source in ("cifar10", "svhn") else [b for b in args.budgets if b == "features"]
        found += [Cell(task, way, budget, seed) for budget in budgets]
    return found


def table(outcomes: list[dict[str, Any]], ways: list[str]) -> str:
    """Markdown: a row for each task and budget, a column for each way, mean and deviation over the seeds."""
    lines = [f"| task | learned from | {' | '.join(ways)} |", f"|---|---|{'---|' * len(ways)}"]
    order = {name: i for i, name in enumerate([*TASKS, "features", *PIXEL_STEPS])}
    keys = sorted({(o["task"], o["budget"]) for o in outcomes}, key=lambda key: [order[part] for part in key])
    for task, budget in keys:
        texts = []
        for way in ways:
            here = [o["error"] for o in outcomes if (o["task"], o["budget"], o["way"]) == (task, budget, way)]
            spread = f" ± {statistics.stdev(here):.1f}" if len(here) > 1 else ""
            texts.append(f"{statistics.fmean(here):.1f}{spread}" if here else "")
        what = "pixels, " + budget if budget in PIXEL_STEPS else "features"
        lines.append(f"| {task} | {what} | {' | '.join(texts)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=TASKS, help="these tasks alone")
    parser.add_argument("--ways", nargs="*", default=["labels", "before", "now"])
    ways = ["labels", "now", *SUCCESSORS]
    parser.add_argument("--methods", dest="ways", action="store_const", const=ways, help=f"--ways {' '.join(ways)}")
    parser.add_argument("--try", dest="tried", action="append", default=[], metavar="NAME=VALUE,...")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--budgets", nargs="+", choices=["features", *PIXEL_STEPS], default=["features", *PIXEL_STEPS])
    parser.add_argument("--state", type=Path, default=STATE)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--weights", default="", help="of timm:tf_efficientnet_lite0, for the embeddings")
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/mixmatch/study"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--table", action="store_true", help="print the table of what is known")
    args = parser.parse_args()
    known = [json.loads(line) for line in args.state.read_text().splitlines()] if args.state.exists() else []
    done = {Cell(*(outcome[name] for name in Cell._fields)) for outcome in known}
    wanted = cells(args)
    left = [] if args.table else [cell for cell in wanted if cell not in done]
    cache = args.cache.expanduser()
    cache.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(args.processes) as pool, args.state.open("a") as file:
        jobs = [pool.submit(run, cell, args.data_dir, args.weights, cache, args.device) for cell in left]
        for number, job in enumerate(jobs, 1):
            outcome = job.result()
            known.append(outcome)
            file.write(json.dumps(outcome) + "\n")
            file.flush()
            print(f"{number}/{len(jobs)} {outcome}", file=sys.stderr)
    print(table([o for o in known if Cell(*(o[n] for n in Cell._fields)) in wanted], [*args.ways, *args.tried]))


if __name__ == "__main__":
    main()

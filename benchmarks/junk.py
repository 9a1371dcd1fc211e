"""Unlabeled images of no class, junk: how much do they cost each method, and does leaving them out help?

    python benchmarks/junk.py --data-dir ~/data                             # from basic features, on a CPU
    python benchmarks/junk.py --data-dir ~/data --pixels --device cuda      # from the pixels: minutes on a GPU
    python benchmarks/junk.py --table                                       # the table alone

Six classes are labeled. The unlabeled rows are of these classes, always the same ones, and junk of four others is added
until it is 0, 40 or 70 % of all. Each run is done twice: with all unlabeled rows, and without those that the report
would list as being of no class (`measure.of_no_class`), found before training from the inputs and the labels alone.
Outcomes are kept in a file, a line each, and are not computed again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from no_class import LABELS, TASKS, cut

from mixmatch import measure
from mixmatch.data.embedding import embed
from mixmatch.data.opened import Data
from mixmatch.settings import Settings, resolve
from mixmatch.training.device import pick_device
from mixmatch.training.opening import embedded
from mixmatch.training.session import completed, prepare

STATE = Path(__file__).with_suffix(".jsonl")
FEW = 5, 216
"""Of digits, which are few and easy: labels per class, and unlabeled rows of the classes in all."""


class Cell(NamedTuple):
    """One line of the study."""

    task: str
    learned: str
    """From `features` or `pixels`."""
    unlabeled: int
    share: float
    """How much of the unlabeled rows is junk."""
    method: str
    steps: int
    seed: int


def listed(data: Data) -> np.ndarray:
    """Which of the unlabeled rows look like no class, by the labels and the inputs alone."""
    source, split = data.source, data.split
    inputs = embed(source, "basic", views=1).train.inputs if source.train.is_images else source.train.inputs
    rows = measure.unit(inputs)
    scores = measure.unlike_labeled(rows[split.unlabeled], rows[split.labeled], rows[:0])
    return np.isin(np.arange(len(split.unlabeled)), measure.of_no_class(*scores))


def error(settings: Settings, data: Data, device: torch.device) -> float:
    """Test error in percent, learned as `mixmatch train` does."""
    if settings.unlabeled == "all":
        every = np.concatenate([data.split.labeled, data.split.unlabeled])
        data = replace(data, split=replace(data.split, unlabeled=every))
    trainer = prepare(settings, data, device, graph=device.type == "cuda")
    trainer.advance(settings.steps)
    test, _ = trainer.evaluate()
    assert test is not None
    return test.error


def run(cell: Cell, data_dir: Path | None, cache: Path, device: str) -> dict[str, Any]:
    """Train with all unlabeled rows, and without those that look like no class."""
    labels = FEW[0] if cell.task == "digits" else LABELS
    data, is_junk = cut(TASKS[cell.task], cell.seed, data_dir, labels, cell.unlabeled, cell.share)
    given: dict[str, Any] = {"seed": cell.seed, "method": cell.method, "steps": cell.steps}
    given["features"] = "basic" if cell.learned == "features" else "none"
    where = pick_device(device)
    settings = resolve("cut", given, "images")
    settings = completed(settings, lambda name: name in given, data.source, where, "images")
    data = embedded(data, settings, device, cache)
    out = listed(data)
    fewer = replace(data, split=replace(data.split, unlabeled=data.split.unlabeled[~out]))
    all_rows = error(settings, data, where)
    without = error(settings, fewer, where) if out.any() and cell.method != "supervised" else all_rows
    found = {"error": all_rows, "error_without": without, "left_out": int(out.sum()), "of": len(out)}
    return {**cell._asdict(), **found, "junk_left_out": int((out & is_junk).sum())}


def table(outcomes: list[dict[str, Any]], methods: list[str]) -> str:
    """Markdown: mean test error over the seeds with all unlabeled rows → without those that look like no class."""

    def cells(rows: list[dict[str, Any]]) -> list[str]:
        texts = []
        for method in methods:
            here = [o for o in rows if o["method"] == method]
            names = ["error"] if method == "supervised" else ["error", "error_without"]
            means = [f"{statistics.fmean(o[name] for o in here):.1f}" for name in names if here]
            texts.append(" → ".join(means))
        out, junk = sum(o["left_out"] for o in rows), sum(o["junk_left_out"] for o in rows)
        return [*texts, f"{100 * out / sum(o['of'] for o in rows):.0f}", f"{100 * junk / out:.0f}" if out else ""]

    head = ["task", "learned from", "junk, %", *methods, "left out, %", "of these junk, %"]
    lines = [head, ["---"] * len(head)]
    keys = list(dict.fromkeys((o["task"], o["learned"], o["unlabeled"], o["share"]) for o in outcomes))
    for key in keys:
        rows = [o for o in outcomes if (o["task"], o["learned"], o["unlabeled"], o["share"]) == key]
        lines.append([key[0], key[1], f"{100 * key[3]:.0f}", *cells(rows)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--only", nargs="+", choices=TASKS, default=["animals", "mixed", "digits"])
    parser.add_argument("--methods", nargs="+", default=["supervised", "mixmatch", "fixmatch", "softmatch", "adamatch"])
    parser.add_argument("--shares", nargs="+", type=float, default=[0.0, 0.4, 0.7])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--unlabeled", type=int, default=600, help=f"rows of the classes, in all; digits: {FEW[1]}")
    parser.add_argument("--pixels", action="store_true", help="learn from the pixels, not from basic features")
    parser.add_argument("--steps", type=int, help="by default 512 for features, 4,096 for pixels")
    parser.add_argument("--state", type=Path, default=STATE)
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/mixmatch/study"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--table", action="store_true", help="print the table of what is known")
    args = parser.parse_args()
    torch.set_num_threads(1)
    known = [json.loads(line) for line in args.state.read_text().splitlines()] if args.state.exists() else []
    done = {Cell(*(outcome[name] for name in Cell._fields)) for outcome in known}
    learned, steps = ("pixels", 4096) if args.pixels else ("features", 512)
    wanted = [
        Cell(task, learned, FEW[1] if task == "digits" else args.unlabeled, share, method, args.steps or steps, seed)
        for task, seed, share, method in itertools.product(args.only, args.seeds, args.shares, args.methods)
        if share == 0 or method != "supervised"  # unlabeled rows are nothing to it
    ]
    cache = args.cache.expanduser()
    cache.mkdir(parents=True, exist_ok=True)
    with args.state.open("a") as file:
        for cell in [] if args.table else [cell for cell in wanted if cell not in done]:
            outcome = run(cell, args.data_dir, cache, args.device)
            known.append(outcome)
            file.write(json.dumps(outcome) + "\n")
            file.flush()
            print(outcome, file=sys.stderr)
    found = {Cell(*(o[name] for name in Cell._fields)): o for o in known}
    print(table([found[cell] for cell in sorted(wanted, key=lambda c: c[:4]) if cell in found], args.methods))


if __name__ == "__main__":
    main()

"""What does the error on a fifth of the labels say about the folder, if a person or a model chose what to label?

    python benchmarks/label_exam.py [--labels 100] [--exam 50] [--seeds 20] [--json]

Handwritten digits, whose labels are all known, so that the true error on the pictures without a label is known too.
Labels are given in four ways; a fifth of them is held out and a model (LabelSpreading, from all pictures) learns from
the others. Shown are the error on that fifth, on an exam drawn at random beforehand and kept apart, and the true one:
means over seeds of what each says, and how far off it is on average.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.semi_supervised import LabelSpreading

Ints = NDArray[np.int64]
Choose = Callable[[NDArray[np.float64], Ints, Ints, int, np.random.Generator], Ints]


def at_random(x: NDArray[np.float64], y: Ints, rows: Ints, count: int, random: np.random.Generator) -> Ints:
    return random.choice(rows, count, replace=False)


def clear_ones(x: NDArray[np.float64], y: Ints, rows: Ints, count: int, random: np.random.Generator) -> Ints:
    """A person picks good examples: those nearest to the mean of their class, among a third of the folder."""
    seen = random.choice(rows, len(rows) // 3, replace=False)
    means = np.stack([x[rows][y[rows] == c].mean(0) for c in range(10)])
    far = ((x[seen] - means[y[seen]]) ** 2).sum(1)
    picked = [seen[y[seen] == c][np.argsort(far[y[seen] == c])[: count // 10]] for c in range(10)]
    return random.permutation(np.concatenate(picked))


def by_model(sure: bool) -> Choose:
    """A fifth at random, then what a model of those is most sure or unsure of."""

    def choose(x: NDArray[np.float64], y: Ints, rows: Ints, count: int, random: np.random.Generator) -> Ints:
        first = random.choice(rows, count // 5, replace=False)
        rest = np.setdiff1d(rows, first)
        confidence = spread(x, y, first).label_distributions_[rest].max(1)
        order = np.argsort(-confidence if sure else confidence, kind="stable")
        return random.permutation(np.concatenate([first, rest[order[: count - len(first)]]]))

    return choose


WAYS: dict[str, Choose] = {
    "at random": at_random,
    "clear examples, by hand": clear_ones,
    "what a model is sure of": by_model(sure=True),
    "what a model is unsure of": by_model(sure=False),
}


def spread(x: NDArray[np.float64], y: Ints, known: Ints) -> LabelSpreading:
    labels = np.full(len(y), -1)
    labels[known] = y[known]
    return LabelSpreading(kernel="knn", n_neighbors=7, max_iter=50).fit(x, labels)


def once(choose: Choose, labels: int, exam: int, seed: int) -> tuple[float, float, float]:
    """Percent: the error on a fifth of the labels, on the exam, and on all pictures without a label."""
    x, y = load_digits(return_X_y=True)
    x, y = x / 16, y.astype(np.int64)
    random = np.random.default_rng(seed)
    kept = random.choice(len(y), exam, replace=False)
    rows = np.setdiff1d(np.arange(len(y)), kept)
    chosen = choose(x, y, rows, labels, random)
    held, known = chosen[: labels // 5], chosen[labels // 5 :]
    wrong = spread(x, y, known).transduction_ != y
    return tuple(100 * float(wrong[part].mean()) for part in (held, kept, np.setdiff1d(rows, chosen)))  # type: ignore[return-value]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=int, default=100)
    parser.add_argument("--exam", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    for way, choose in WAYS.items():
        found = np.array([once(choose, args.labels, args.exam, seed) for seed in range(args.seeds)])
        fifth, exam, true = found.mean(0)
        off_fifth, off_exam = np.abs(found[:, :2] - found[:, 2:]).mean(0)
        rows.append(
            {"way": way, "fifth": fifth, "exam": exam, "true": true, "off_fifth": off_fifth, "off_exam": off_exam}
        )
    if args.json:
        print(json.dumps({"labels": args.labels, "exam": args.exam, "seeds": args.seeds, "rows": rows}, indent=1))
        return
    table = Table("labels were chosen", "a fifth says", "exam says", "true error", "fifth is off by", "exam is off by")
    for row in rows:
        numbers = (row[name] for name in ("fifth", "exam", "true", "off_fifth", "off_exam"))
        table.add_row(str(row["way"]), *(f"{value:.1f} %" for value in numbers))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()

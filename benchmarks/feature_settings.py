"""How the default settings for features were chosen: each of them changed alone, on digits and breast cancer.

    python benchmarks/feature_settings.py [--seeds 1 2 3 4 5] [--processes 2]

Splits and labels as in `sklearn_comparison.py`. Prints a Markdown table of mean test errors in percent, ± the deviation
over the seeds.
"""

from __future__ import annotations

import argparse
import os
import statistics
from concurrent.futures import ProcessPoolExecutor
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # processes share the cores

import numpy as np
from sklearn_comparison import few_labels

from mixmatch import MixMatchClassifier

CELLS = (("digits", 20), ("breast cancer", 30))
CHANGES: list[dict[str, Any]] = [
    {},
    {"lambda_u": 1.0},
    {"lambda_u": 100.0},
    {"alpha": 0.75},
    {"weight_decay": 0.02},
    {"weight_decay": 20.0},
    {"noise": 0.0},
    {"noise": 0.6},
    {"mask": 0.0},
    {"mask": 0.4},
    {"steps": 512},
    {"steps": 2048},
    {"method": "supervised", "weight_decay": 5.0},
]


def run(task: tuple[dict[str, Any], str, int, int]) -> float:
    """The test error in percent."""
    change, data, labels, seed = task
    X, y, X_test, y_test = few_labels(data, labels, seed)
    model = MixMatchClassifier(**change, random_state=seed).fit(X, y)
    return 100 * float(np.mean(model.predict(X_test) != y_test))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    args = parser.parse_args()
    tasks = [(change, *cell, seed) for change in CHANGES for cell in CELLS for seed in args.seeds]
    print(f"| | {' | '.join(f'{data}, {labels} labels' for data, labels in CELLS)} |\n{'|---' * (len(CELLS) + 1)}|")
    with ProcessPoolExecutor(args.processes) as pool:
        errors = pool.map(run, tasks)
        for change in CHANGES:
            name = ", ".join(f"{key} {value}" for key, value in change.items()) or "the defaults"
            cells = [[next(errors) for _ in args.seeds] for _ in CELLS]
            texts = [f"{statistics.fmean(cell):.1f} ± {statistics.pstdev(cell):.1f}" for cell in cells]
            print(f"| {name} | {' | '.join(texts)} |", flush=True)


if __name__ == "__main__":
    main()

"""MixMatchClassifier beside scikit-learn's semi-supervised classifiers: the same few labels, the same test rows.

    python benchmarks/sklearn_comparison.py [--labels 10 20 50] [--seeds 6 7 8 9 10] [--processes 2] [--json]

A seed decides which 30 % of the rows are for testing (stratified) and which of the others have a label (by class
frequency). Everyone gets the same rows, standardized, and its default settings; LabelSpreading, which lives on
distances, is shown with its other kernel, too, and with that on rows as they are. Prints a Markdown table of mean test
errors in percent, ± the deviation over the seeds; the best of each column is bold.

MixMatchClassifier's defaults were chosen on digits and breast cancer with seeds 1 to 5 (`feature_settings.py`), so the
default seeds here are others; wine was not looked at.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # processes share the cores

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier
from sklearn.svm import SVC

from mixmatch import MixMatchClassifier
from mixmatch.data.split import labeled_split

DATA: dict[str, Callable[..., Any]] = {"digits": load_digits, "breast cancer": load_breast_cancer, "wine": load_wine}


class Row(NamedTuple):
    """A classifier, for a seed, and whether it gets the unlabeled rows. (Our labels-only MLP does, to standardize by
    them, as the baseline of `mixmatch train` does; it does not learn from them.)"""

    make: Callable[[int], Any]
    unlabeled: bool


def standardized(make: Callable[[], Any]) -> Callable[[int], Any]:
    return lambda seed: make_pipeline(StandardScaler(), make())


METHODS = {
    "MixMatchClassifier": Row(lambda seed: MixMatchClassifier(random_state=seed), True),
    "SelfTrainingClassifier, logistic regression": Row(
        standardized(lambda: SelfTrainingClassifier(LogisticRegression(max_iter=1000))), True
    ),
    "SelfTrainingClassifier, SVC": Row(standardized(lambda: SelfTrainingClassifier(SVC(probability=True))), True),
    "LabelSpreading": Row(standardized(LabelSpreading), True),
    "LabelSpreading, knn": Row(standardized(lambda: LabelSpreading(kernel="knn")), True),
    "LabelSpreading, knn, rows as they are": Row(lambda seed: LabelSpreading(kernel="knn"), True),
    "the same MLP on the labels alone": Row(lambda seed: MixMatchClassifier("supervised", random_state=seed), True),
    "logistic regression on the labels alone": Row(standardized(lambda: LogisticRegression(max_iter=1000)), False),
}


class Task(NamedTuple):
    """One cell's run."""

    data: str
    labels: int
    method: str
    seed: int


def few_labels(data: str, labels: int, seed: int) -> tuple[Any, Any, Any, Any]:
    """Rows to train on with their labels, -1 for most, and rows to test on with theirs."""
    X, y = DATA[data](return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.3, random_state=seed, stratify=y)
    labeled = labeled_split(y.astype(np.int64), labels, seed)
    known = np.full_like(y, -1)
    known[labeled] = y[labeled]
    return X, known, X_test, y_test


def run(task: Task) -> tuple[float, float]:
    """The test error in percent, and the seconds it took to fit."""
    X, y, X_test, y_test = few_labels(task.data, task.labels, task.seed)
    row = METHODS[task.method]
    if not row.unlabeled:
        X, y = X[y >= 0], y[y >= 0]
    model = row.make(task.seed)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # convergence, deprecations
        model.fit(X, y)
        seconds = time.perf_counter() - began
        return 100 * float(np.mean(model.predict(X_test) != y_test)), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=int, nargs="+", default=[10, 20, 50])
    parser.add_argument("--seeds", type=int, nargs="+", default=[6, 7, 8, 9, 10])
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    tasks = [Task(d, n, m, s) for m in METHODS for d in DATA for n in args.labels for s in args.seeds]
    with ProcessPoolExecutor(args.processes) as pool:
        results = dict(zip(tasks, pool.map(run, tasks), strict=True))
    cells = [(data, n) for data in DATA for n in args.labels]
    rows = [
        {
            "method": method,
            "errors": {f"{d}, {n} labels": [results[Task(d, n, method, s)][0] for s in args.seeds] for d, n in cells},
            "seconds": statistics.median(results[Task(d, n, method, s)][1] for d, n in cells for s in args.seeds),
        }
        for method in METHODS
    ]
    if args.json:
        print(json.dumps({"seeds": args.seeds, "rows": rows}, indent=1))
        return
    print(table(rows))


def table(rows: list[dict[str, Any]]) -> str:
    """As Markdown."""
    columns = list(rows[0]["errors"])
    means = {column: [statistics.fmean(row["errors"][column]) for row in rows] for column in columns}
    lines = [f"| | {' | '.join(columns)} | seconds |", "|---" * (len(columns) + 2) + "|"]
    for i, row in enumerate(rows):
        texts = []
        for column in columns:
            text = f"{means[column][i]:.1f} ± {statistics.pstdev(row['errors'][column]):.1f}"
            texts.append(f"**{text}**" if means[column][i] == min(means[column]) else text)
        lines.append(f"| {row['method']} | {' | '.join(texts)} | {row['seconds']:.1f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

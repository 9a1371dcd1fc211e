"""What does it cost to check a large CSV file, and to write the predictions of many classes?

    python benchmarks/large_tables.py [--rows 1000000] [--columns 50] [--classes 10000] [--predictions 25000] [--json]

Each way runs in a process of its own. The first of each task is how it was done before: every cell of a table as text
in a list, every probability formatted by itself. Seconds are of processor time, which other programs on the machine
disturb less than the clock. Memory is what a process holds at its peak; "beyond imports" is less what it held at first.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import hashlib
import io
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
from rich.console import Console
from rich.table import Table

from mixmatch.cli import command_line
from mixmatch.data.user import csv_file
from mixmatch.data.user.check import equal_rows
from mixmatch.data.user.columns import is_missing
from mixmatch.data.user.encoding import fit_numbers
from mixmatch.data.user.table import read_table
from mixmatch.text import from_cell

if TYPE_CHECKING:
    from mixmatch.predict.files import Prediction

CHECK, PREDICT = "check a table", "write predictions"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--classes", type=int, default=10_000)
    parser.add_argument("--predictions", type=int, default=1_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", nargs=2, metavar=("WAY", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure[0], Path(args.measure[1]), args)))
        return
    with tempfile.TemporaryDirectory() as folder:
        write_table(Path(folder) / "rows.csv", args.rows, args.columns)
        sizes = [f"--{name}={getattr(args, name)}" for name in ("rows", "columns", "classes", "predictions")]
        rows: list[dict[str, Any]] = []
        for way, (task, _) in WAYS.items():
            command = [sys.executable, __file__, *sizes, "--measure", way, folder]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            rows.append({"task": task, "way": way, **json.loads(done.stdout)})
    for row in rows:
        before = next(other for other in rows if other["task"] == row["task"])
        row["ratio"] = before["seconds"] / row["seconds"]
        row["memory_ratio"] = before["beyond_mb"] / max(1, row["beyond_mb"])
    if args.json:
        print(json.dumps({"rows": rows}, indent=2))
        return
    table = Table("task", "way", "seconds", "MB", "beyond imports", "times as fast", "times as small")
    for row in rows:
        numbers = f"{row['seconds']:.1f}", f"{row['mb']:,.0f}", f"{row['beyond_mb']:,.0f}"
        ratios = f"{row['ratio']:.1f}", f"{row['memory_ratio']:.1f}"
        table.add_row(row["task"], row["way"], *numbers, *ratios)
    Console().print(f"{args.rows:,} rows of {args.columns} numbers; {args.predictions:,} of {args.classes:,} classes")
    Console(width=120).print(table)


def measure(way: str, folder: Path, args: argparse.Namespace) -> dict[str, float]:
    """Seconds of processor time and megabytes."""
    _, work = WAYS[way]
    before, start = _peak(), time.process_time()
    work(folder, args)
    return {"seconds": time.process_time() - start, "mb": _peak(), "beyond_mb": _peak() - before}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def write_table(path: Path, rows: int, columns: int) -> None:
    """Normal numbers of six digits; one row in a hundred has one of ten labels."""
    random = np.random.default_rng(0)
    with path.open("w", encoding="utf-8") as file:
        file.write(",".join([*(f"c{i}" for i in range(columns)), "label"]) + "\n")
        template = ",".join(["%.6f"] * columns)
        for row in range(rows):
            label = "abcdefghij"[row // 100 % 10] if row % 100 == 0 else ""
            file.write(f"{template % tuple(random.normal(size=columns))},{label}\n")


# ------------------------------------------------------------------------------------------------------------- tables


def check_lists(folder: Path, args: argparse.Namespace) -> None:
    """Every cell as text in a list, looked at again for each question, and rows compared one by one."""
    with (folder / "rows.csv").open(encoding="utf-8", newline="") as file:
        reader = csv.reader(file)
        header = next(reader)
        columns: list[list[str]] = [[] for _ in header]
        for row in reader:
            if any(map(str.strip, row)):
                for column, value in zip(columns, row, strict=True):
                    column.append(_cell(value))
    rows, features = list(range(len(columns[0]))), []
    for name, values in zip(header[:-1], columns[:-1], strict=True):
        chosen = [values[row] for row in rows]
        distinct = Counter([value for value in chosen if not is_missing(value)])
        assert all(float(value) == float(value) for value in distinct)
        (scale,) = fit_numbers([name], _numbers(chosen)[:, None])
        assert len(np.unique(_numbers(chosen))) > 1  # does it count the rows?
        assert sum(map(is_missing, chosen)) == 0
        applied = _numbers([values[row] for row in rows])
        features.append(((applied - scale.mean) / scale.std)[:, None].astype(np.float32))
    groups: defaultdict[bytes, list[int]] = defaultdict(list)
    for number, line in enumerate(np.concatenate(features, axis=1)):
        groups[hashlib.blake2b(line.tobytes(), digest_size=16).digest()].append(number)


def _numbers(values: list[str]) -> np.ndarray:
    return np.array([float("nan") if is_missing(value) else float(value) for value in values])


def _cell(value: str) -> str:
    return from_cell(value.strip())


def check_python(folder: Path, args: argparse.Namespace) -> None:
    with mock.patch.object(csv_file, "_arrow", return_value=None):
        check_arrow(folder, args)


def check_arrow(folder: Path, args: argparse.Namespace) -> None:
    equal_rows(read_table(folder / "rows.csv").inputs)


def check_command(*options: str) -> Callable[[Path, argparse.Namespace], None]:
    """All of `mixmatch data check`, with scikit-learn's comparison of labeled and unlabeled rows."""

    def work(folder: Path, args: argparse.Namespace) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            command_line()(["data", "check", str(folder / "rows.csv"), *options], standalone_mode=False)

    return work


# --------------------------------------------------------- predictions, whose code imports PyTorch and is imported late


def _predictions(args: argparse.Namespace) -> list[Prediction]:
    from mixmatch.predict.files import Prediction

    some = np.random.default_rng(0).dirichlet(np.full(args.classes, 0.1), min(100, args.predictions))
    best = some.argmax(axis=1)
    made = [Prediction(f"row {i}", str(best[i]), float(some[i, best[i]]), some[i]) for i in range(len(some))]
    return [made[i % len(made)] for i in range(args.predictions)]


def predict_one_by_one(folder: Path, args: argparse.Namespace) -> None:
    with (folder / "before.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        for row in _predictions(args):
            numbers = (f"{p:.6g}" for p in (row.probability, *row.probabilities))
            writer.writerow([row.file, row.class_name, *numbers])


def predict(name: str) -> Callable[[Path, argparse.Namespace], None]:
    def work(folder: Path, args: argparse.Namespace) -> None:
        from mixmatch.predict.formats import Format, write

        kind = Format(name)
        with (folder / f"after.{kind}").open("wb") as raw:
            file: Any = raw if kind is Format.PARQUET else io.TextIOWrapper(raw, "utf-8", newline="")
            write(kind, file, _predictions(args), [str(i) for i in range(args.classes)])
            file.flush()

    return work


WAYS: dict[str, tuple[str, Callable[[Path, argparse.Namespace], None]]] = {
    "lists of text": (CHECK, check_lists),
    "in pieces, Python's parser": (CHECK, check_python),
    "in pieces, with pyarrow": (CHECK, check_arrow),
    "mixmatch data check --no-trial": (CHECK, check_command("--no-trial")),
    "mixmatch data check": (CHECK, check_command()),
    "CSV, number by number": (PREDICT, predict_one_by_one),
    "CSV": (PREDICT, predict("csv")),
    "JSON": (PREDICT, predict("json")),
    "Parquet": (PREDICT, predict("parquet")),
}


if __name__ == "__main__":
    main()

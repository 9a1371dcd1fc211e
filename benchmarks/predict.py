"""How fast are folders of photos predicted: one output, shards here, shards on a Ray cluster of this machine?

    python benchmarks/predict.py [--images 20000] [--network wrn-10-1] [--json]

Writes that many JPEGs and predicts them, each way in a process of its own. What comes before the first predictions (the
list of files, the start of a cluster and of its processes) is a column of its own; images per second are counted from
there on, by the clock and by the processor time of all processes that take part ("per core"), which other programs on
the machine disturb less. The load of the machine stands beside them.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from decode import write_photos
from rich.console import Console
from rich.table import Table

WAYS = {
    "one": "one output (predict --output)",
    "shards": "shards (predict --output-dir)",
    "ray": "shards, --ray local",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--width", type=int, default=500)
    parser.add_argument("--height", type=int, default=375)
    parser.add_argument("--network", default="wrn-10-1", help="of 32 x 32 pixels; a small one shows the reading")
    parser.add_argument("--shard-size", type=int, help="default: a tenth of the images")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", nargs=2, metavar=("WAY", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    shard_size = args.shard_size or max(1, args.images // 10)
    if args.measure:
        way, folder = args.measure
        print(json.dumps(measure(way, Path(folder), args.network, shard_size)))
        return
    rows = []
    with tempfile.TemporaryDirectory(prefix="b-") as folder:
        (Path(folder) / "photos").mkdir()
        write_photos(Path(folder) / "photos", args.images, args.width, args.height)
        for way, title in WAYS.items():
            command = [sys.executable, __file__, "--measure", way, folder, "--network", args.network]
            command += ["--shard-size", str(shard_size)]
            own = {"HOME": folder, "RAY_TMPDIR": folder, "RAY_AUTH_MODE": "disabled"}
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | own)
            rows.append({"way": title, "load": os.getloadavg()[0], **json.loads(done.stdout)})
    for row in rows:
        row["ratio"] = row["images_per_second"] / rows[0]["images_per_second"]
        row["ratio_per_core"] = row["per_core"] / rows[0]["per_core"]
    if args.json:
        cores = len(os.sched_getaffinity(0))
        print(json.dumps({"cores": cores, "images": args.images, "network": args.network, "rows": rows}, indent=1))
        return
    title = f"{args.images:,} JPEGs of {args.width} x {args.height}, {args.network}"
    table = Table("", "images/s", "ratio", "per core", "ratio", "s before the first", "load", title=title)
    for row in rows:
        speeds = f"{row['images_per_second']:,.0f}", f"{row['ratio']:.2f}"
        per_core = f"{row['per_core']:,.0f}", f"{row['ratio_per_core']:.2f}"
        table.add_row(row["way"], *speeds, *per_core, f"{row['before']:.1f}", f"{row['load']:.1f}")
    Console(width=100).print(table)


def measure(way: str, folder: Path, network: str, shard_size: int) -> dict[str, float]:
    import torch

    import mixmatch
    from mixmatch.classifier import Classifier
    from mixmatch.networks import build

    torch.manual_seed(0)
    classes = tuple(map(str, range(10)))
    model = Classifier(build(network, 10, (3, 32, 32)), network, classes, (3, 32, 32))
    first: list[tuple[float, float, int]] = []
    began = time.perf_counter()

    def progress(done: int, total: int) -> None:
        if done and not first:
            first.append((time.perf_counter(), cpu_seconds(), done))

    photos = folder / "photos"
    if way == "one":
        with (folder / "one.csv").open("w", newline="") as out:
            writer = csv.writer(out)
            for prediction in mixmatch.predict_files(model, photos, progress=progress):
                writer.writerow([*prediction[:3], *prediction.probabilities])
    else:
        ray = "local" if way == "ray" else None
        mixmatch.predict_shards(model, photos, folder / way, shard_size=shard_size, ray=ray, progress=progress)
    ((at, used, done),) = first
    images = sum(1 for _ in photos.rglob("*.jpg")) - done
    seconds, cpu = time.perf_counter() - at, cpu_seconds() - used
    return {"images_per_second": images / seconds, "per_core": images / cpu, "before": at - began}


def cpu_seconds() -> float:
    """What this process and those below it have used. Those of a local Ray cluster are."""
    used, parents = dict[int, float](), dict[int, int]()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(fields[1])
            used[int(folder.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    below = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return sum(used[pid] for pid in below)


if __name__ == "__main__":
    main()

"""How fast is a folder of photos read, beside a plain Pillow loop?

    python benchmarks/decode.py [--images 20000] [--width 500 --height 375] [--json]

Writes that many JPEGs and reads them, each way in a process of its own. "per core" is images for each second of
processor time, which other programs on the machine disturb less than the clock. Memory is what a process holds at its
peak beyond what its imports took, without mapped files, which the system can drop at any time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

SIZE = 64
WAYS = {
    "pillow": "plain Pillow loop",
    "one": "read_folder, one core",
    "all": "read_folder, all cores",
    "processes": "the same decoding in processes",
    "second": "read_folder, second start",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--width", type=int, default=500)
    parser.add_argument("--height", type=int, default=375)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", nargs=2, metavar=("WAY", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        way, folder = args.measure
        print(json.dumps(measure(way, Path(folder))))
        return
    with tempfile.TemporaryDirectory() as folder:
        write_photos(Path(folder), args.images, args.width, args.height)
        rows = []
        for way, title in WAYS.items():
            command = [sys.executable, __file__, "--measure", way, folder]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            rows.append({"way": title, "images": args.images, **json.loads(done.stdout)})
    for row in rows:
        row["ratio"] = row["per_core"] / rows[0]["per_core"]
    if args.json:
        photo = {"width": args.width, "height": args.height, "read_at": SIZE}
        print(json.dumps({"cores": len(os.sched_getaffinity(0)), "photo": photo, "rows": rows}, indent=1))
        return
    table = Table("", "seconds", "images/s", "images/s per core", "ratio", "memory MB", title=f"{args.images:,} JPEGs")
    for row in rows:
        table.add_row(
            row["way"],
            f"{row['seconds']:.2f}",
            f"{row['images'] / row['seconds']:,.0f}",
            f"{row['per_core']:,.0f}",
            f"{row['ratio']:.2f}",
            f"{row['memory_mb']:.0f}",
        )
    Console(width=110).print(table)


def write_photos(folder: Path, images: int, width: int, height: int) -> None:
    """JPEGs with the spectrum of photos: large shapes, and noise as from a sensor. Twenty different ones in turn."""
    random = np.random.default_rng(0)
    contents = []
    for _ in range(min(images, 20)):
        shapes = Image.fromarray(random.integers(0, 256, (height // 40 + 2, width // 40 + 2, 3), np.uint8))
        smooth = np.asarray(shapes.resize((width, height), Image.Resampling.BICUBIC), np.int16)
        noisy = (smooth + random.integers(-12, 13, smooth.shape)).clip(0, 255).astype(np.uint8)
        path = folder / "photo.jpg"
        Image.fromarray(noisy).save(path, quality=88)
        contents.append(path.read_bytes())
        path.unlink()
    for name in ("a", "b", "unlabeled"):
        (folder / name).mkdir()
    for i in range(images):
        place = ("a", "b", "unlabeled", "unlabeled", "unlabeled")[i % 5]
        (folder / place / f"{i:06}.jpg").write_bytes(contents[i % len(contents)])


def measure(way: str, folder: Path) -> dict[str, float]:
    from mixmatch.data.user.folder import read_folder

    def read(cache: str) -> Callable[[Callable[..., None]], Any]:
        return lambda watch: read_folder(folder, image_size=SIZE, cache_dir=folder / cache, progress=watch)

    ways: dict[str, Callable[[Callable[..., None]], Any]] = {
        "pillow": lambda watch: pillow_loop(folder, watch),
        "one": read(".one"),
        "all": read(".all"),
        "processes": lambda watch: in_processes(folder, watch),
        "second": read(".all"),
    }
    if way == "one":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    Image.preinit()  # loads the decoders, whose memory is not of interest
    before = peak = anonymous_mb()

    def watch(done: int = 0, total: int = 0) -> None:
        nonlocal peak
        if done % 100 == 0:
            peak = max(peak, anonymous_mb())

    start, cpu = time.perf_counter(), cpu_seconds()
    result = ways[way](watch)
    seconds, used = time.perf_counter() - start, cpu_seconds() - cpu
    watch()
    return {"seconds": seconds, "per_core": len(result) / used, "memory_mb": peak - before}


def pillow_loop(folder: Path, watch: Callable[..., None]) -> list[np.ndarray]:
    """What one writes without thinking further."""
    images = []
    for i, path in enumerate(sorted(folder.rglob("*.jpg"))):
        images.append(plain(path))
        watch(i)
    return images


def plain(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BICUBIC))


def in_processes(folder: Path, watch: Callable[..., None]) -> list[np.ndarray]:
    """As `parallel_map`, with spawned processes in the place of threads."""

    def rows() -> Iterator[np.ndarray]:
        files = sorted(folder.rglob("*.jpg"))
        workers = len(os.sched_getaffinity(0))
        with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
            yield from pool.map(decoded, files, chunksize=8)

    return list(rows())


def decoded(path: Path) -> np.ndarray:
    from mixmatch.data.user.images import decode_image

    return decode_image(path, SIZE, SIZE, 3)[0]


def cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def anonymous_mb() -> float:
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) / 1000 if found else 0.0


if __name__ == "__main__":
    main()

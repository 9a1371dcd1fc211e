"""A person's folder of pictures, cut from CIFAR-10: a few classes, few labels, many unlabeled, a few odd files.

    python benchmarks/photos.py --data-dir ~/data --out photos       # then: mixmatch train photos
    python benchmarks/photos.py --data-dir ~/data --out work --seeds 1 2 3 4 --train basic

Which classes and pictures it has follows from the seed. As in real folders, formats and sizes are mixed, one file is
damaged, one is no picture, and one class has one label more. Test pictures come from the test images. `--train`
trains on several such folders and prints a table of errors and seconds.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mixmatch import data


def write(
    out: Path, name: str, classes: int, labels: int, unlabeled: int, test: int, seed: int, data_dir: Path | None
) -> None:
    """The folder `out`: OUT/CLASS/*, OUT/unlabeled/*, OUT/test/CLASS/*."""
    source = data.load(name, data_dir)
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.choice(len(source.classes), classes, replace=False))
    names = [source.classes[c] for c in chosen]
    print(f"{out}: {', '.join(names)}", file=sys.stderr)
    for number, c in enumerate(chosen):
        rows = rng.permutation(np.flatnonzero(source.train.labels == c))
        count = labels + (number == 0)
        place = out / names[number]
        _save([source.train.inputs[row] for row in rows[:count]], place, rng)
        share = unlabeled // classes
        _save([source.train.inputs[row] for row in rows[count : count + share]], out / "unlabeled", rng, f"{c}-")
        rows = rng.permutation(np.flatnonzero(source.test.labels == c))[: test // classes]
        _save([source.test.inputs[row] for row in rows], out / "test" / names[number], rng)
    (out / "unlabeled" / "damaged.jpg").write_bytes(b"\xff\xd8\xff\xe0 not a picture")
    (out / "notes.txt").write_text("pictures of the summer\n")


def _save(images: list[np.ndarray], folder: Path, rng: np.random.Generator, prefix: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    order = rng.permutation(len(images))
    for number, image in zip(order, images, strict=True):
        picture = Image.fromarray(image)
        kind = rng.random()
        if kind < 0.1:  # a few are larger
            picture = picture.resize((48, 48), Image.Resampling.BICUBIC)
        suffix = "png" if kind < 0.8 else "webp" if kind < 0.9 else "jpg"
        options = {"quality": 95} if suffix == "jpg" else {"lossless": True} if suffix == "webp" else {}
        picture.save(folder / f"{prefix}{number:04d}.{suffix}", **options)


def trained(folder: Path, features: str, weights: str | None) -> dict[str, Any]:
    """What `mixmatch train` says of the folder, and how long it took from start to report."""
    run = folder.parent / f"run-{folder.name}-{features.replace(':', '-')}"
    command = [sys.executable, "-m", "mixmatch", "train", str(folder), "--features", features, "--out", str(run)]
    command += ["--weights", weights] if weights and features.startswith("timm:") else []
    shutil.rmtree(folder / ".mixmatch-cache", ignore_errors=True)
    shutil.rmtree(run, ignore_errors=True)
    began = time.monotonic()
    done = subprocess.run([*command, "--json", "--quiet"], capture_output=True, text=True, check=True)
    details: dict[str, Any] = json.loads(done.stdout)["verdict_details"]
    return {"error": details["error"], "alone": details["baseline_error"], "seconds": time.monotonic() - began}


def study(args: argparse.Namespace) -> None:
    """Train on folders of several seeds, and print a Markdown table."""
    print("| features | test error, % | labels alone | seconds |\n|---|---|---|---|")
    for features in args.train:
        rows = []
        for seed in args.seeds:
            folder = args.out / f"photos-{seed}"
            if not folder.exists():
                write(folder, args.data, args.classes, args.labels, args.unlabeled, args.test, seed, args.data_dir)
            rows.append(trained(folder, features, args.weights))
            print(features, seed, rows[-1], file=sys.stderr)
        errors = [row["error"] for row in rows]
        each = " ".join(f"{error:.1f}" for error in errors)
        alone, seconds = (statistics.fmean(row[name] for row in rows) for name in ("alone", "seconds"))
        print(f"| {features} | **{statistics.fmean(errors):.1f}** ({each}) | {alone:.1f} | {seconds:.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("photos"), help="the folder, or where those of --train go")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--classes", type=int, default=4)
    parser.add_argument("--labels", type=int, default=15, help="per class")
    parser.add_argument("--unlabeled", type=int, default=1500, help="in all")
    parser.add_argument("--test", type=int, default=400, help="in all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="which pictures; the first, without --train")
    parser.add_argument("--train", nargs="+", default=[], metavar="FEATURES", help="train on these features, each seed")
    parser.add_argument("--weights", help="of a timm network, a file")
    args = parser.parse_args()
    if args.train:
        study(args)
    else:
        seed = args.seeds[0]
        write(args.out, args.data, args.classes, args.labels, args.unlabeled, args.test, seed, args.data_dir)


if __name__ == "__main__":
    main()

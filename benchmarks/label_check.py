"""How many wrong labels and near copies are found, where they were planted.

    python benchmarks/label_check.py --data-dir ~/data                 # wrong labels: 5 % are made wrong
    python benchmarks/label_check.py --data-dir ~/data --copies        # near copies: files written anew
    python benchmarks/label_check.py --data-dir ~/data --features      # neighbors by several embeddings of pixels
    python benchmarks/label_check.py --data-dir ~/data --speed         # seconds for 100,000 pictures

The folders are those of `label_next.py`. Precision is the share of what is listed that is wrong indeed, recall the
share of what is wrong that is listed; means over five seeds. All on the embedding that needs no torch.
"""

from __future__ import annotations

import argparse
import io
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import numpy.typing as npt
from label_next import cut, pixels, small
from PIL import Image, ImageEnhance
from sklearn.decomposition import PCA
from sklearn.neighbors import KNeighborsClassifier

from mixmatch import data, measure
from mixmatch.label import check
from mixmatch.label.features import GRID, compute, describe, fingerprint, load
from mixmatch.label.suggest import suggest

Floats = npt.NDArray[Any]
FOLDERS = ("digits", "photos", "house numbers")
WRONG = 0.05


def by_neighbors(vectors: Floats, labels: Floats, classes: int) -> Floats:
    return check.neighbors(measure.unit(vectors), labels, classes)[0]


def by_folds(vectors: Floats, labels: Floats, classes: int) -> Floats:
    return check.folds(vectors, labels, 0)


def listed(predict: Callable[[Floats, Floats, int], Floats], vectors: Floats, labels: Floats, classes: int) -> Floats:
    """What would be listed, most suspect first, if labels were predicted so."""
    p = predict(vectors, labels, classes)
    found = measure.suspect_labels(labels, p.argmax(axis=1), p.max(axis=1), p[np.arange(len(labels)), labels])
    return found[: max(1, round(check.SHARE * len(labels)))]


def by_both(vectors: Floats, labels: Floats, classes: int) -> Floats:
    """What the package does."""
    names = [str(c) for c in range(classes)]
    return np.array([each.row for each in check.suspects(vectors, labels, classes=names)], int)


def wrong_labels(args: argparse.Namespace) -> None:
    print("| folder | labels | by | listed | precision | recall |\n|---|---|---|---|---|---|")
    ways = {
        "neighbors": lambda *case: listed(by_neighbors, *case),
        "folds": lambda *case: listed(by_folds, *case),
        "both": by_both,
    }
    for folder in FOLDERS:
        scores: dict[tuple[int, str], list[tuple[float, ...]]] = {}
        for seed in args.seeds:
            source = cut(folder, seed, args.data_dir)
            every, classes, rng = pixels(source.train.inputs), len(source.classes), np.random.default_rng(seed)
            for number in (100, 300, 1000):
                rows = rng.permutation(len(every))[:number]
                labels, wrong = source.train.labels[rows].copy(), rng.permutation(number)[: round(WRONG * number)]
                labels[wrong] = (labels[wrong] + rng.integers(1, classes, len(wrong))) % classes
                kept = np.bincount(labels, minlength=classes)[labels] >= check.LEAST
                wrong = np.flatnonzero(np.isin(np.flatnonzero(kept), wrong))
                given = np.unique(labels[kept], return_inverse=True)[1]
                for name, way in ways.items():
                    found = way(every[rows][kept], given, int(given.max()) + 1)
                    right = np.isin(found, wrong).sum()
                    score = len(found), right / max(len(found), 1), right / max(len(wrong), 1)
                    scores.setdefault((number, name), []).append(score)
        for (number, name), values in sorted(scores.items(), key=lambda item: item[0][0]):
            count, precision, recall = np.mean(values, axis=0)
            print(f"| {folder} | {number:,} | {name} | {count:.0f} | {precision:.0%} | {recall:.0%} |")


def written_anew(image: Image.Image) -> dict[str, Image.Image]:
    """A picture as other files may hold it."""
    width, height = image.size
    file = io.BytesIO()
    image.save(file, "JPEG", quality=60)
    edge = 8 * width // 40
    return {
        "JPEG of quality 60": Image.open(file).convert("RGB"),
        "half the size": image.resize((width // 2, height // 2), Image.Resampling.BICUBIC),
        "3x as wide, 2x as high": image.resize((3 * width, 2 * height), Image.Resampling.LANCZOS),
        "a fifth brighter": ImageEnhance.Brightness(image).enhance(1.2),
        "1/40 cut off each side": image.resize((8 * width, 8 * height)).crop(
            (edge, edge, 8 * width - edge, 8 * height - edge)
        ),
    }


def copies(args: argparse.Namespace) -> None:
    """200 copies of each kind, each beside all pictures of the folder."""
    for folder in FOLDERS:
        source = cut(folder, args.seeds[0], args.data_dir)
        base = small(source.train.inputs)
        there = len(check.near_copies(fingerprint(base)))
        chosen = np.random.default_rng(0).permutation(len(base))[:200]
        made: dict[str, list[npt.NDArray[np.uint8]]] = {}
        for row in chosen:
            picture = source.train.inputs[row]
            image = Image.fromarray(picture[..., 0] if picture.shape[-1] == 1 else picture).convert("RGB")
            for name, copy in written_anew(image).items():
                made.setdefault(name, []).append(np.asarray(copy.resize((32, 32), Image.Resampling.BICUBIC)))
        texts = []
        for pictures in made.values():
            groups = check.near_copies(fingerprint(np.concatenate([base, np.stack(pictures)])))
            pairs = {(row, len(base) + i) for i, row in enumerate(chosen)}
            found = sum(any(a in group and b in group for group in groups) for a, b in pairs)
            texts.append(f"{found / len(chosen):.0%}")
        if folder == FOLDERS[0]:
            print(f"| folder | {' | '.join(made)} | groups before |\n|---|{'---|' * (len(made) + 1)}")
        print(f"| {folder}, {len(base):,} pictures | {' | '.join(texts)} | {there} |")


def features(args: argparse.Namespace) -> None:
    """The error of ten nearest neighbors, two thirds of the folder known."""
    print(f"| embedding | {' | '.join(FOLDERS)} |\n|---|{'---|' * len(FOLDERS)}")
    colors = 3 * GRID**2
    ways: dict[str, Callable[[Floats], Floats]] = {
        "raw pixels": lambda x: x.reshape(len(x), -1) / 255,
        "edges": lambda x: describe(x)[:, :-colors],
        "edges, colors half": describe,
        "edges, colors": lambda x: np.concatenate([describe(x)[:, :-colors], 2 * describe(x)[:, -colors:]], axis=1),
    }
    for name, way in ways.items():
        texts = []
        for folder in FOLDERS:
            errors = []
            for seed in args.seeds:
                source = cut(folder, seed, args.data_dir)
                whole = way(small(source.train.inputs))
                pca = PCA(64, random_state=0).fit(whole)
                unit = measure.unit(pca.transform(whole) / pca.explained_variance_**0.25)
                known, labels = 2 * len(unit) // 3, source.train.labels
                model = KNeighborsClassifier(10, weights="distance").fit(unit[:known], labels[:known])
                errors.append(100 - 100 * model.score(unit[known:], labels[known:]))
            texts.append(f"{np.mean(errors):.1f} ± {np.std(errors, ddof=1):.1f}")
        print(f"| {name} | {' | '.join(texts)} |")


def speed(args: argparse.Namespace) -> None:
    """CPU seconds for CIFAR-10 and its mirror images, from pixels in memory."""
    source = data.load("cifar10", args.data_dir, warn=lambda text: None)
    number, total = len(source.train), 2 * len(source.train)
    labels, none = np.tile(source.train.labels, 2), np.full(total, -1, np.int64)
    some = np.where(np.arange(total) % 250 == 0, labels, none)
    guesses = np.random.default_rng(0).dirichlet(np.full(10, 0.3), total).astype(np.float32)

    def read(row: int) -> npt.NDArray[np.uint8]:
        picture = np.array(source.train.inputs[row % number])
        return picture if row < number else picture[:, ::-1]

    def timed(name: str, work: Callable[[], Any]) -> Any:
        began = time.process_time()
        result = work()
        print(f"| {name} | {time.process_time() - began:.1f} |", flush=True)
        return result

    print(f"| {total:,} pictures | CPU seconds |\n|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        names, cache = [str(row) for row in range(total)], Path(folder, "features.npz")
        found = timed("features, first time", lambda: compute(read, names, cache))
        timed("features, from the cache", lambda: load(names, cache))
    timed("suggest 50, no label", lambda: suggest(found.vectors, none, count=50))
    timed("suggest 50, 400 labels", lambda: suggest(found.vectors, some, count=50))
    timed("suggest 50, a model", lambda: suggest(found.vectors, some, count=50, probabilities=guesses))
    timed("suspects, 400 labels", lambda: check.suspects(found.vectors, some, classes=source.classes))
    timed("suspects, 100,000 labels", lambda: check.suspects(found.vectors, labels, classes=source.classes))
    timed("near copies among 10,000", lambda: check.near_copies(found.fingerprints, np.arange(0, total, 10)))
    timed("near copies among 100,000", lambda: check.near_copies(found.fingerprints))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copies", dest="study", action="store_const", const=copies, default=wrong_labels)
    parser.add_argument("--features", dest="study", action="store_const", const=features)
    parser.add_argument("--speed", dest="study", action="store_const", const=speed)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--data-dir", type=Path)
    args = parser.parse_args()
    args.study(args)


if __name__ == "__main__":
    main()

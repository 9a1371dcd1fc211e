"""Which rule for what to label next gives the lowest error: a simulated person labels what it names.

    python benchmarks/label_next.py --data-dir ~/data                          # all rules, logistic regressions
    python benchmarks/label_next.py --data-dir ~/data --learner mixmatch       # the contenders, MixMatch
    python benchmarks/label_next.py --table                                    # the tables alone, of what is known
    python benchmarks/label_next.py --table --learner mixmatch

Folders of 1,300 to 1,500 pictures without a label: digits; four classes of CIFAR-10 (photos), six of them whose largest
is ten times the smallest (uneven photos); SVHN (house numbers). A seed decides the classes and the pictures. Round by
round the rule names pictures, their labels are revealed, and a learner is trained on all labels so far; its error is
that on 500 other pictures, of each class equally many. Rules that ask a model ask that learner, and have nothing to
ask in the first round: they begin at random.

Learners take 128 principal directions of the features that `mixmatch train photos/` takes on a CPU (basic): a logistic
regression on the labels alone; or MixMatch on labels and all other pictures, as `mixmatch train` does it with a table
of such numbers, 256 steps instead of 1,024. Rules look at these directions, too (`basic`), or at the embedding that
needs no torch (`pixels`, `mixmatch.label.features`). Outcomes are kept in a file, a line each, and are not computed
again.
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
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # processes share the cores

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from mixmatch import data, measure
from mixmatch.data.embedding import embed
from mixmatch.data.opened import Basis, Data
from mixmatch.data.source import Rows, Source
from mixmatch.data.split import Split
from mixmatch.label import suggest
from mixmatch.label.features import Projection, describe
from mixmatch.settings import resolve
from mixmatch.training.session import averaged, completed, prepare

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[Any]

ROOT = Path(__file__).parents[1]
STATE = ROOT / "benchmarks" / "label_next.jsonl"
COUNTS = {"logistic": (10, 20, 30, 40, 60, 80, 100, 120, 140, 160, 180, 200), "mixmatch": (20, 40, 80, 160)}
"""Labels after each round."""
SHOWN: dict[str, dict[str, tuple[int, ...]]] = {
    "logistic": {"10 to 40": COUNTS["logistic"][:4], "60 to 200": COUNTS["logistic"][4:]},
    "mixmatch": {str(count): (count,) for count in COUNTS["mixmatch"]},
}
"""What a column of the table is the mean of."""
STEPS = 256


class Task(NamedTuple):
    """Where pictures come from, how many classes and pictures, and how much larger the largest class is."""

    source: str
    classes: int
    pool: int
    ratio: float = 1.0
    test: int = 500


TASKS = {
    "digits": Task("digits", 10, 1297),
    "photos": Task("cifar10", 4, 1500),
    "uneven photos": Task("cifar10", 6, 1500, ratio=10),
    "house numbers": Task("svhn", 10, 1500),
}


# ------------------------------------------------------------------------------------------------ the folders


@lru_cache(maxsize=1)
def cut(name: str, seed: int, data_dir: Path | None) -> Source:
    """The pictures of a folder, in a random order, and those to test on."""
    task = TASKS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = data.load(task.source, data_dir, warn=lambda text: None)
    rng = np.random.default_rng(seed)
    classes = rng.choice(len(whole.classes), task.classes, replace=False)
    sizes = task.ratio ** -np.linspace(0, 1, task.classes) if task.ratio > 1 else np.ones(task.classes)
    sizes = np.round(task.pool * sizes / sizes.sum()).astype(int)
    pool, tested = [], []
    for c, size in zip(classes, sizes, strict=True):
        pool.append(rng.permutation(np.flatnonzero(whole.train.labels == c))[:size])
        tested.append(rng.permutation(np.flatnonzero(whole.test.labels == c))[: task.test // task.classes])
    number = {int(c): i for i, c in enumerate(classes)}

    def part(of: Rows, rows: Ints) -> Rows:
        labels = np.array([number[int(of.labels[row])] for row in rows], np.int64)
        return Rows(np.array(of.inputs[rows]), labels)

    names = tuple(whole.classes[c] for c in classes)
    every = rng.permutation(np.concatenate(pool))
    return Source(task.source, names, part(whole.train, every), part(whole.test, np.concatenate(tested)))


def small(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """As `decode_image` would read them from files: (N, 32, 32, 3)."""
    found = []
    for image in images:
        picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).convert("RGB")
        found.append(np.asarray(picture.resize((32, 32), Image.Resampling.BICUBIC)))
    return np.stack(found)


def pixels(images: npt.NDArray[np.uint8]) -> Floats:
    """The embedding that needs no torch."""
    described = describe(small(images))
    return Projection.fit(described, len(described))(described)


@dataclass(frozen=True)
class Folder:
    """The pictures of a task, as rules and learners see them."""

    source: Source
    """128 numbers instead of each picture."""
    features: dict[str, Floats]
    """What rules look at: rows of length 1, for each choice of features."""

    @staticmethod
    def of(task: str, seed: int, data_dir: Path | None) -> Folder:
        source = cut(task, seed, data_dir)
        basic = embed(source, "basic", views=1)
        pca = PCA(128, random_state=0).fit(basic.train.inputs)
        train, test = (pca.transform(part.inputs) for part in (basic.train, basic.test))
        scale = train.std()
        numbers = replace(
            source,
            train=Rows((train / scale).astype(np.float32), source.train.labels),
            test=Rows((test / scale).astype(np.float32), source.test.labels),
        )
        return Folder(numbers, {"pixels": measure.unit(pixels(source.train.inputs)), "basic": measure.unit(train)})


# ----------------------------------------------------------------------------------------------- the learners


class Learned(NamedTuple):
    """The error in percent, and the probabilities of all pictures of the folder."""

    error: float
    probabilities: Floats


def logistic(folder: Folder, labeled: Ints, seed: int) -> Learned:
    train, test, labels = folder.source.train.inputs, folder.source.test.inputs, folder.source.train.labels
    classes = len(folder.source.classes)
    seen = np.unique(labels[labeled])
    probabilities, predicted = np.zeros((len(train), classes)), np.full(len(test), seen[0])
    if len(seen) == 1:
        probabilities[:, seen] = 1.0
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = LogisticRegression(C=0.1, max_iter=100).fit(train[labeled], labels[labeled])
        probabilities[:, seen], predicted = model.predict_proba(train), model.predict(test)
    return Learned(100 * float((predicted != folder.source.test.labels).mean()), probabilities)


def mixmatch(folder: Folder, labeled: Ints, seed: int) -> Learned:
    torch.set_num_threads(1)
    source, where = folder.source, torch.device("cpu")
    every = np.arange(len(source.train), dtype=np.int64)  # the labeled ones are unlabeled ones, too, as in `train`
    split = Split(labeled, every, every[:0], np.arange(len(source.test), dtype=np.int64))
    given = {"seed": seed, "steps": STEPS}
    settings = completed(resolve("mine", given, "features"), lambda name: name in given, source, where, "features")
    trainer = prepare(settings, Data(source, split, Basis("test pictures")), where, graph=False)
    trainer.advance(STEPS)
    test, _ = trainer.evaluate()
    assert test is not None
    return Learned(test.error, averaged(trainer).probabilities(source.train.inputs))


LEARNERS: dict[str, Callable[[Folder, Ints, int], Learned]] = {"logistic": logistic, "mixmatch": mixmatch}


# -------------------------------------------------------------------------------------------------- the rules


@dataclass(frozen=True)
class Round:
    """What a rule may look at, and how many pictures it is to name."""

    features: Floats
    labels: Ints
    """-1 where nothing was revealed."""
    classes: int
    probabilities: Floats | None
    count: int
    seed: int

    @property
    def free(self) -> Ints:
        return np.flatnonzero(self.labels < 0)

    @property
    def labeled(self) -> Ints:
        return np.flatnonzero(self.labels >= 0)

    @property
    def random(self) -> np.random.Generator:
        return np.random.default_rng([self.seed, len(self.labeled)])


Rule = Callable[[Round], Ints]


def at_random(now: Round) -> Ints:
    return now.random.permutation(now.free)[: now.count]


def centers(now: Round) -> Ints:
    """What the package does with few labels: groups without a label, the largest first, the picture at the center."""
    found = suggest.typical(now.features[now.free], now.features[now.labeled], now.count, now.seed)
    return now.free[[place for place, _, _ in found]]


def typical(now: Round) -> Ints:
    """TypiClust (Hacohen, Dekel, Weinshall 2022): in each such group the picture nearest to its 20 neighbors."""
    together = np.concatenate([now.free, now.labeled])
    groups = KMeans(len(now.labeled) + now.count, n_init=1, random_state=now.seed).fit(now.features[together]).labels_
    mine, covered = groups[: len(now.free)], set(groups[len(now.free) :].tolist())
    chosen = []
    for group, _ in Counter(mine[~np.isin(mine, list(covered))].tolist()).most_common(now.count):
        rows = now.free[mine == group]
        distance = np.linalg.norm(now.features[rows][:, None] - now.features[rows], axis=2)
        chosen.append(rows[np.sort(distance, axis=1)[:, :21].mean(axis=1).argmin()])
    return np.array(chosen)


def farthest(now: Round) -> Ints:
    """The core-set of Sener and Savarese: always what is farthest from all that is labeled or chosen."""
    chosen = list(now.labeled) or [int(now.random.choice(now.free))]
    first = len(now.labeled)
    distance = np.min([np.linalg.norm(now.features - now.features[row], axis=1) for row in chosen], axis=0)
    while len(chosen) - first < now.count:
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, np.linalg.norm(now.features - now.features[chosen[-1]], axis=1))
    return np.array(chosen[first:])


def margin_of(probabilities: Floats) -> Floats:
    """1 is doubt between two classes, 0 is none."""
    return 1 - suggest.margins(probabilities)


def most(score: Callable[[Floats], Floats]) -> Rule:
    """The pictures of the highest score."""

    def rule(now: Round) -> Ints:
        if now.probabilities is None:
            return at_random(now)
        return now.free[np.argsort(-score(now.probabilities[now.free]), kind="stable")[: now.count]]

    return rule


def spread(score: Callable[[Floats], Floats]) -> Rule:
    """High scores, far from one another."""

    def rule(now: Round) -> Ints:
        if now.probabilities is None:
            return at_random(now)
        scores = score(now.probabilities[now.free])
        candidates = now.free[np.argsort(-scores, kind="stable")[: 10 * now.count]]
        weights = np.sort(scores)[::-1][: len(candidates)]
        return candidates[measure.diverse(now.features[candidates], weights, now.count)]

    return rule


def grouped(now: Round) -> Ints:
    """What the package does with a model: of the smallest margins, the smallest of each of as many groups."""
    if now.probabilities is None:
        return at_random(now)
    return now.free[suggest.unsure(now.features[now.free], now.probabilities[now.free], now.count, now.seed)]


def tenth_at_random(rule: Rule) -> Rule:
    def mixed(now: Round) -> Ints:
        drawn = at_random(replace(now, count=-(-now.count // 10)))
        labels = now.labels.copy()
        labels[drawn] = -2  # neither free nor labeled
        free = replace(now, count=now.count - len(drawn), labels=np.where(labels == -2, 0, labels))
        return np.concatenate([drawn, rule(free)])

    return mixed


def two(first: Rule, then: Rule, labels: int = suggest.MODEL_FROM) -> Rule:
    """One rule up to so many labels per class, another from there."""
    return lambda now: (first if len(now.labeled) < labels * now.classes else then)(now)


RULES: dict[str, Rule] = {
    "random": at_random,
    "typical": typical,
    "centers": centers,
    "farthest": farthest,
    "entropy": most(measure.uncertainty),
    "margin": most(margin_of),
    "entropy, spread": spread(measure.uncertainty),
    "margin, spread": spread(margin_of),
    "margin, grouped": grouped,
    "entropy, spread, 1/10 random": tenth_at_random(spread(measure.uncertainty)),
    "typical, then margin": two(typical, most(margin_of)),
    "centers, then margin": two(centers, most(margin_of)),
    "centers, then margin, spread": two(centers, spread(margin_of)),
    "centers, then margin, grouped": two(centers, grouped),
    "centers, then margin, grouped, 1/10 random": two(centers, tenth_at_random(grouped)),
    "the same from 2 labels per class": two(centers, tenth_at_random(grouped), 2),
    "the same from 10 labels per class": two(centers, tenth_at_random(grouped), 10),
}
BLIND = {"random", "entropy", "margin"}
"""Rules that do not look at features."""
TWICE = {"typical", "centers", "farthest", "margin, grouped", "centers, then margin, grouped, 1/10 random"}
"""Rules that are tried with both kinds of features."""
CONTENDERS = ["random", "centers", "centers, then margin, grouped, 1/10 random", "margin"]
"""Those that are tried with MixMatch."""


# -------------------------------------------------------------------------------------------------- the study


class Cell(NamedTuple):
    """One simulated person."""

    task: str
    rule: str
    features: str
    learner: str
    seed: int


def label(cell: Cell, data_dir: Path | None) -> dict[str, Any]:
    """Round by round, to the last; the error after each."""
    began = time.process_time()
    folder = _folder(cell.task, cell.seed, data_dir)
    truth, learner = folder.source.train.labels, LEARNERS[cell.learner]
    labels = np.full(len(truth), -1, np.int64)
    features = folder.features[cell.features if cell.features in folder.features else "pixels"]
    learned: Learned | None = None
    errors, classes = [], []
    for total in COUNTS[cell.learner]:
        count = total - int((labels >= 0).sum())
        asked = learned.probabilities if learned is not None else None
        rows = RULES[cell.rule](Round(features, labels, len(folder.source.classes), asked, count, cell.seed))
        if len(rows) < count:  # copies leave some groups empty
            left = np.setdiff1d(np.flatnonzero(labels < 0), rows)
            rows = np.concatenate([rows, np.random.default_rng(cell.seed).permutation(left)[: count - len(rows)]])
        assert len(set(rows.tolist())) == count
        assert (labels[rows] < 0).all()
        labels[rows] = truth[rows]
        learned = learner(folder, np.flatnonzero(labels >= 0), cell.seed)
        errors.append(round(learned.error, 3))
        classes.append(len(np.unique(labels[labels >= 0])))
    taken = round(time.process_time() - began, 1)
    return {**cell._asdict(), "labels": COUNTS[cell.learner], "errors": errors, "classes": classes, "seconds": taken}


@lru_cache(maxsize=1)
def _folder(task: str, seed: int, data_dir: Path | None) -> Folder:
    return Folder.of(task, seed, data_dir)


def cells(args: argparse.Namespace) -> list[Cell]:
    rules = args.rules or (list(RULES) if args.learner == "logistic" else CONTENDERS)
    found = []
    for seed, task, rule in itertools.product(args.seeds, args.only or TASKS, rules):
        chosen = args.features or (["pixels", "basic"] if rule in TWICE and args.learner == "logistic" else ["pixels"])
        found += [
            Cell(task, rule, features, args.learner, seed) for features in (["none"] if rule in BLIND else chosen)
        ]
    return found


def table(outcomes: list[dict[str, Any]], learner: str) -> str:
    """Markdown: a row for each rule, a column for each task and range of labels; mean and deviation over the seeds.

    In bold what is better than random by more than twice the standard error of the differences, in italics what is
    as clearly worse."""
    errors = {
        (o["task"], o["rule"], o["features"], o["seed"]): dict(zip(o["labels"], o["errors"], strict=True))
        for o in outcomes
    }
    tasks = [task for task in TASKS if any(key[0] == task for key in errors)]
    columns = [(task, name, counts) for task in tasks for name, counts in SHOWN[learner].items()]
    heads = [f"{task}, {name}" for task, name, _ in columns]
    lines = [f"| rule | features | {' | '.join(heads)} |", f"|---|---|{'---|' * len(heads)}"]
    rows = {(rule, features): None for _, rule, features, _ in errors}
    for rule, features in sorted(rows, key=lambda row: (list(RULES).index(row[0]), row[1] == "basic")):
        texts = []
        for task, _, counts in columns:
            seeds = [s for t, r, f, s in errors if (t, r, f) == (task, rule, features)]
            both = [
                [statistics.fmean(errors[task, *way, s][n] for n in counts) for s in seeds]
                for way in ((rule, features), ("random", "none"))
            ]
            texts.append(_marked(*both) if seeds else "")
        lines.append(f"| {rule} | {'' if features == 'none' else features} | {' | '.join(texts)} |")
    return "\n".join(lines)


def _marked(values: list[float], chance: list[float]) -> str:
    text = f"{statistics.fmean(values):.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")
    less = [b - a for a, b in zip(values, chance, strict=True)]
    sure = 2 * statistics.stdev(less) / len(less) ** 0.5 if len(less) > 1 else float("inf")
    if abs(statistics.fmean(less)) <= sure:
        return text
    return f"**{text}**" if statistics.fmean(less) > 0 else f"*{text}*"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=TASKS, help="these tasks alone")
    parser.add_argument("--rules", nargs="+", choices=RULES, help="these rules alone")
    parser.add_argument("--features", nargs="+", choices=["pixels", "basic"], help="what rules look at")
    parser.add_argument("--learner", choices=LEARNERS, default="logistic")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--state", type=Path, default=STATE)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--table", action="store_true", help="print the tables of what is known")
    args = parser.parse_args()
    known = [json.loads(line) for line in args.state.read_text().splitlines()] if args.state.exists() else []
    done = {Cell(*(outcome[name] for name in Cell._fields)) for outcome in known}
    wanted = cells(args)
    left = [] if args.table else [cell for cell in wanted if cell not in done]
    with ProcessPoolExecutor(args.processes) as pool, args.state.open("a") as file:
        outcomes = pool.map(label, left, [args.data_dir] * len(left))
        for number, outcome in enumerate(outcomes, 1):
            known.append(outcome)
            file.write(json.dumps(outcome) + "\n")
            file.flush()
            print(f"{number}/{len(left)} {outcome}", file=sys.stderr)
    asked = [o for o in known if Cell(*(o[n] for n in Cell._fields)) in wanted]
    print(table(asked, args.learner))


if __name__ == "__main__":
    main()

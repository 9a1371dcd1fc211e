"""Unlabeled images of no class: which score finds them?

    python benchmarks/no_class.py --data-dir ~/data                  # learns from basic features: minutes on a CPU
    python benchmarks/no_class.py --data-dir ~/data --pixels         # learns from the pixels: minutes on a GPU
    python benchmarks/no_class.py --only digits --seeds 1

Small real tasks. The labeled and the test images are of some classes only, the unlabeled images of these and of others,
the junk: 40 % of them. A model is trained as `mixmatch train` does by default. Then each score orders the unlabeled
images. The table has its area under the ROC curve, in percent: how often a piece of junk comes before an image of a
class (50 is guessing), and in parentheses the share of junk among the first 24, which are what the report shows. Scores
`of inputs` need no trained model: they are of the frozen features that it learns from, or of the basic ones.

The last lines are of the list in the report: what share of the unlabeled images is on it, how much of the list is junk,
how much of the junk is listed, and what share is listed where there is no junk: at most 5 % should be, or none.
"""

from __future__ import annotations

import argparse
import os
import statistics
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors

from mixmatch import data, measure
from mixmatch.augment import CropFlip
from mixmatch.data.embedding import embed
from mixmatch.data.opened import Basis, Data
from mixmatch.data.source import UNKNOWN, Rows, Source
from mixmatch.data.split import Split
from mixmatch.draws import generator
from mixmatch.measure import Floats
from mixmatch.presets import Kind
from mixmatch.report.gather import penultimate
from mixmatch.settings import resolve
from mixmatch.training.device import pick_device
from mixmatch.training.evaluate import predict_logits
from mixmatch.training.opening import embedded
from mixmatch.training.session import averaged, completed, prepare

LABELS, UNLABELED, TEST, SHARE = 25, 1500, 600, 0.4
"""Labels per class; unlabeled images of the classes and test images in all; how much of all unlabeled ones is junk."""
TOP = 24


class Task(NamedTuple):
    """The classes, and the data set and classes that junk comes from."""

    source: str
    classes: tuple[int, ...]
    junk: str
    junk_classes: tuple[int, ...]


TASKS = {
    "animals": Task("cifar10", (2, 3, 4, 5, 6, 7), "cifar10", (0, 1, 8, 9)),
    "mixed": Task("cifar10", (0, 1, 2, 3, 4, 5), "cifar10", (6, 7, 8, 9)),
    "house numbers": Task("cifar10", (2, 3, 4, 5, 6, 7), "svhn", tuple(range(10))),
    "svhn": Task("svhn", (0, 1, 2, 3, 4, 5), "svhn", (6, 7, 8, 9)),
    "digits": Task("digits", (0, 1, 2, 3, 4, 5), "digits", (6, 7, 8, 9)),
}
"""`animals`: vehicles are junk. `mixed`: two animals and two vehicles, where both kinds are classes too."""


class Case(NamedTuple):
    """A task that was trained on: the model's view of it, and which of the unlabeled rows are junk."""

    model: Any
    data: Data
    logits: Floats
    views: Floats
    """Probabilities, averaged over augmented views."""
    is_junk: np.ndarray
    error: float


# --------------------------------------------------------------------------------------------------------------- tasks


def load(name: str, data_dir: Path | None) -> Source:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return data.load(name, data_dir, warn=lambda text: None)


def cut(
    task: Task,
    seed: int,
    data_dir: Path | None,
    labels_each: int = LABELS,
    unlabeled_in_all: int = UNLABELED,
    share: float = SHARE,
) -> tuple[Data, np.ndarray]:
    """A task as a person's data, and which unlabeled rows are junk. The seed decides which images are in it."""
    rng = np.random.default_rng(seed)
    source, other = load(task.source, data_dir), load(task.junk, data_dir)
    labeled, unlabeled, tested = [], [], []
    for c in task.classes:
        rows = rng.permutation(np.flatnonzero(source.train.labels == c))
        labeled.append(rows[:labels_each])
        unlabeled.append(rows[labels_each:][: unlabeled_in_all // len(task.classes)])
        tested.append(rng.permutation(np.flatnonzero(source.test.labels == c))[: TEST // len(task.classes)])
    known, few = np.concatenate(unlabeled), np.flatnonzero(np.isin(other.train.labels, task.junk_classes))
    junk = rng.permutation(few)[: round(len(known) * share / (1 - share))]
    rows, test = np.concatenate([*labeled, known]), np.concatenate(tested)
    number = {c: i for i, c in enumerate(task.classes)}
    labels = [number[int(c)] for c in source.train.labels[rows]] + [UNKNOWN] * len(junk)
    inputs = np.concatenate([source.train.inputs[rows], other.train.inputs[junk]])
    held = Rows(np.array(source.test.inputs[test]), np.array([number[int(c)] for c in source.test.labels[test]]))
    names = tuple(source.classes[c] for c in task.classes)
    cut_out = Source(task.source, names, Rows(inputs, np.array(labels, np.int64)), held)
    every, count = np.arange(len(inputs)), labels_each * len(task.classes)
    split = Split(every[:count], every[count:], every[:0], np.arange(len(test)))
    is_junk = np.arange(len(every) - count) >= len(known)
    return Data(cut_out, split, Basis("test rows")), is_junk


def trained(task: Task, seed: int, method: str, pixels: bool, steps: int | None, data_dir: Path | None) -> Case:
    """The task, learned as `mixmatch train` does."""
    opened, is_junk = cut(task, seed, data_dir)
    kind: Kind = "images"
    given: dict[str, Any] = {"seed": seed, "method": method, "features": "none" if pixels else "basic"}
    if steps is not None:
        given["steps"] = steps
    device = pick_device("auto" if pixels else "cpu")
    settings = resolve(task.source + " cut", given, kind)
    images = opened.source.train.inputs
    opened = embedded(opened, settings, device.type)
    settings = completed(settings, lambda name: name in given, opened.source, device, kind)
    trainer = prepare(settings, opened, device, graph=device.type == "cuda")
    trainer.advance(settings.steps)
    on_test, _ = trainer.evaluate()
    assert on_test is not None
    model, rows, train = averaged(trainer), opened.split.unlabeled, opened.source.train
    logits = logits_of(model, train.inputs[rows])
    if train.views is not None:
        copies = [softmax(logits_of(model, train.views[rows, v])) for v in range(train.views.shape[1])]
    else:
        copies = [softmax(logits), *(softmax(logits_of(model, images[rows], seed, v)) for v in range(3))]
    return Case(model, opened, logits, np.mean(copies, axis=0), is_junk, on_test.error)


def logits_of(model: Any, inputs: np.ndarray, seed: int = 0, view: int | None = None) -> Floats:
    device = next(model.network.parameters()).device
    if view is not None:
        crop = CropFlip(min(inputs.shape[1:3]) // 8, flip=False)
        draws = crop.draw(generator(seed, "no class", view), 1, len(inputs))
        moved = crop(torch.from_numpy(np.array(inputs)), {k: torch.from_numpy(d) for k, d in draws.items()})[0]
        pieces = [model.network(piece.to(device)).detach() for piece in torch.split(moved, 256)]
    else:
        pieces = list(predict_logits(model.network, inputs, device))
    return torch.cat([piece.cpu() for piece in pieces]).double().numpy()


def softmax(logits: Floats) -> Floats:
    p: Floats = torch.softmax(torch.from_numpy(logits), 1).numpy()
    return p


# -------------------------------------------------------------------------------------------------------------- scores


def nearest(rows: Floats, others: Floats, k: int) -> Floats:
    """The distance to the k-th nearest of the others."""
    distances: Floats = NearestNeighbors(n_neighbors=k).fit(others).kneighbors(rows)[0][:, -1]
    return distances


def features(case: Case, of: str) -> tuple[Floats, Floats, Floats]:
    """Features of length 1 of the unlabeled, the labeled and the test rows: the network's, or what it learns from."""
    source, split = case.data.source, case.data.split
    if of == "network":
        whole = penultimate(case.model, source.train.inputs, np.arange(len(source.train)))
        test = penultimate(case.model, source.test.inputs, split.test)
        assert whole is not None
        assert test is not None
    else:
        source = embed(source, "basic", views=1) if source.train.is_images else source
        whole, test = measure.unit(source.train.inputs), measure.unit(source.test.inputs)
    return whole[split.unlabeled], whole[split.labeled], test


def label_distance(case: Case, of: str, k: int) -> Floats:
    unlabeled, labeled, _ = features(case, of)
    return nearest(unlabeled, labeled, k)


def mean_distance(case: Case) -> Floats:
    """To the nearest mean of a class's labeled rows."""
    unlabeled, labeled, _ = features(case, "network")
    labels = case.data.source.train.labels[case.data.split.labeled]
    means = np.stack([labeled[labels == c].mean(axis=0) for c in range(len(case.data.source.classes))])
    return nearest(unlabeled, means, 1)


def regression(case: Case, of: str) -> Floats:
    """The logit of a regression that tells unlabeled rows from labeled ones."""
    unlabeled, labeled, _ = features(case, of)
    model = LogisticRegression(C=1.0, class_weight="balanced", max_iter=500)
    model.fit(np.concatenate([unlabeled, labeled]), np.repeat([1, 0], [len(unlabeled), len(labeled)]))
    found: Floats = model.decision_function(unlabeled)
    return found


SCORES: dict[str, Callable[[Case], Floats]] = {
    "1 - largest probability": lambda case: 1 - softmax(case.logits).max(axis=1),
    "1 - largest probability, over views": lambda case: 1 - case.views.max(axis=1),
    "entropy": lambda case: measure.uncertainty(softmax(case.logits)),
    "entropy, over views": lambda case: measure.uncertainty(case.views),
    "minus the largest logit": lambda case: -case.logits.max(axis=1),
    "energy": lambda case: -torch.logsumexp(torch.from_numpy(case.logits), 1).numpy(),
    "nearest label, of the network": lambda case: label_distance(case, "network", 1),
    "5th nearest label, of the network": lambda case: label_distance(case, "network", 5),
    "nearest class mean, of the network": mean_distance,
    "nearest label, of inputs": lambda case: label_distance(case, "inputs", 1),
    "5th nearest label, of inputs": lambda case: label_distance(case, "inputs", 5),
    "labeled or not, of the network": lambda case: regression(case, "network"),
    "labeled or not, of inputs": lambda case: regression(case, "inputs"),
    "unlike labeled, of the network": lambda case: measure.unlike_labeled(*features(case, "network"))[0],
    "unlike labeled, of inputs": lambda case: measure.unlike_labeled(*features(case, "inputs"))[0],
}
"""The higher, the more it looks like junk. `unlike labeled` is near to unlabeled rows and far from labeled ones."""


def listed(case: Case) -> list[float]:
    """Of the report's list, in percent: its share, how much of it is junk, how much junk it has, its share without."""
    unlabeled, labeled, test = features(case, "inputs")
    on_list = np.isin(np.arange(len(unlabeled)), measure.of_no_class(*measure.unlike_labeled(unlabeled, labeled, test)))
    clean = measure.of_no_class(*measure.unlike_labeled(unlabeled[~case.is_junk], labeled, test))
    right = on_list & case.is_junk
    shares = (on_list.mean(), right.sum() / max(1, on_list.sum()), right.sum() / case.is_junk.sum())
    return [100 * float(share) for share in (*shares, len(clean) / (~case.is_junk).sum())]


LISTED = ("listed, %", "of these junk, %", "of the junk listed, %", "listed without junk, %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--only", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--method", default="mixmatch")
    parser.add_argument("--pixels", action="store_true", help="Learn from the pixels, not from basic features.")
    parser.add_argument("--steps", type=int)
    args = parser.parse_args()
    torch.set_num_threads(1)
    table: dict[str, list[str]] = {name: [] for name in SCORES}
    errors, of_list = [], {line: list[str]() for line in LISTED}
    for name in args.only:
        found: dict[str, list[tuple[float, float]]] = {score: [] for score in SCORES}
        cases, lists = [], []
        for seed in args.seeds:
            case = trained(TASKS[name], seed, args.method, args.pixels, args.steps, args.data_dir)
            cases.append(case.error)
            lists.append(listed(case))
            for score, of in SCORES.items():
                values = of(case)
                ahead = case.is_junk[np.argsort(-values, kind="stable")[:TOP]].mean()
                found[score].append((100 * float(roc_auc_score(case.is_junk, values)), 100 * float(ahead)))
        errors.append(f"{statistics.mean(cases):.1f}")
        for line, shares in zip(LISTED, zip(*lists, strict=True), strict=True):
            of_list[line].append(f"{statistics.mean(shares):.0f}")
        for score, pairs in found.items():
            area, ahead = (statistics.mean(column) for column in zip(*pairs, strict=True))
            table[score].append(f"{area:.0f} ({ahead:.0f})")
    print(f"| area under the ROC curve, % (junk among the first {TOP}, %) | {' | '.join(args.only)} |")
    print("|---" * (len(args.only) + 1) + "|")
    print(f"| *test error of the model, %* | {' | '.join(errors)} |")
    for line, cells in {**table, **of_list}.items():
        print(f"| {line} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()

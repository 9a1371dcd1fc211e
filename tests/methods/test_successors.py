"""The successors' steps against ones written here in float64, row by row, from their papers' equations, over several
steps, so that what they remember is compared too."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import mixmatch
from mixmatch.errors import MixMatchError
from mixmatch.methods import METHODS, Batch, DataInfo, Method, Progress, Step, build
from mixmatch.methods.remixmatch import rotations
from mixmatch.networks.heads import WithHeads
from mixmatch.settings import depends_on_steps, resolve
from mixmatch.training.checkpoint import TENSORS
from mixmatch.training.model import Model
from mixmatch.training.progress import Quiet
from mixmatch.training.run import RunFolder

L, B, UNLABELED, STEPS = 4, 6, 14, 5
SIX = ("uda", "fixmatch", "flexmatch", "freematch", "softmatch", "adamatch")
SEVEN = (*SIX, "remixmatch")
PRIOR = [0.5, 0.3, 0.2, 0.0]  # the last class has no labels
Memory = dict[str, Any]


# ---------------------------------------------------------------- a network that is one matrix


class Linear:
    """Logits are a linear map of the pixels, without batch norm: the losses alone are compared."""

    def __init__(self, seed: int = 0, columns: int = 2 * L, scale: float = 1.0) -> None:
        rng = np.random.default_rng(seed)
        self.matrix = torch.tensor(scale * rng.normal(size=(16, columns)), requires_grad=True)

    def __call__(
        self,
        x: Tensor,
        weights: str = "live",
        stats: str = "batch",
        full_precision: bool = False,
        head: str | None = None,
        with_heads: Sequence[str] = (),
    ) -> Tensor:
        assert weights == "live"
        assert stats in ("batch", "update")
        outputs = x.flatten(1) @ self.matrix
        if head is not None:
            return outputs[:, L:]
        return outputs if with_heads else outputs[:, :L]


def batch_of(step: int, views: int, ratio: int = 2) -> Batch:
    rng = np.random.default_rng([step, 5])
    x, x_strong = (torch.from_numpy(rng.uniform(-1, 1, (B, 1, 4, 4))) for _ in range(2))
    u = torch.from_numpy(rng.uniform(-1, 1, (views, ratio * B, 1, 4, 4)))
    y = torch.eye(L, dtype=torch.float64)[torch.from_numpy(rng.integers(0, 3, B))]
    return Batch(x, y, u, torch.from_numpy(rng.integers(0, UNLABELED, ratio * B)), x_strong)  # some rows twice


def info(prior: Sequence[float] = PRIOR) -> DataInfo:
    return DataInfo(len(prior), UNLABELED, torch.tensor(prior, dtype=torch.float64), torch.device("cpu"))


def drawn(method: Method, step: int) -> dict[str, Tensor]:
    draws = method.draw(np.random.default_rng([step, 6]), B)
    return {name: torch.from_numpy(value) for name, value in draws.items()}


def exactly(value: Any) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64)


def at(step: int, total: int = 2 * STEPS) -> Progress:
    return Progress(torch.tensor(float(step), dtype=torch.float64), total)


# ---------------------------------------------------------------- the equations, row by row


def softmax(z: Tensor) -> list[list[float]]:
    return [[math.exp(v) / sum(math.exp(w) for w in row) for v in row] for row in z.detach().tolist()]


def cross_entropy(target: Sequence[float], z: Tensor) -> Tensor:
    """Of one row, with a gradient."""
    return -(exactly(target) * (z - torch.log(torch.exp(z).sum()))).sum()


def one_hot(label: int) -> list[float]:
    return [float(c == label) for c in range(L)]


def best(row: Sequence[float]) -> tuple[float, int]:
    return max((value, -c) for c, value in enumerate(row))[0], int(np.argmax(row))


def means(rows: Sequence[Sequence[float]]) -> list[float]:
    return [sum(row[c] for row in rows) / len(rows) for c in range(L)]


def average(old: Any, new: Any, decay: float = 0.999) -> Any:
    if isinstance(old, list):
        return [decay * a + (1 - decay) * b for a, b in zip(old, new, strict=True)]
    return decay * old + (1 - decay) * new


def aligned(
    align: str, q: list[list[float]], q_x: list[list[float]], memory: Memory, decay: float = 0.999
) -> list[list[float]]:
    if align == "none":
        return q
    first = "predicted" not in memory
    memory["predicted"] = means(q) if first else average(memory["predicted"], means(q), decay)
    if align == "labels":
        target = PRIOR
    elif align == "model":
        memory["target"] = average(memory.get("target", [1 / L] * L), means(q_x), decay)
        target = memory["target"]
    elif align == "uniform":
        target = [1 / L] * L
    else:
        numbers = [float(part) for part in align.split(",")]
        target = [n / sum(numbers) for n in numbers]
    rows = [[p * (t + 1e-6) / (m + 1e-6) for p, t, m in zip(r, target, memory["predicted"], strict=True)] for r in q]
    return [[p / sum(row) for p in row] for row in rows]


class Rows:
    """What a step has: logits with gradients, and predictions for the weak views, which are constants."""

    def __init__(self, x: Tensor, weak: Tensor, strong: Tensor, y: Tensor, s: dict[str, Any]) -> None:
        self.x, self.weak, self.strong, self.s = x, weak.detach(), strong, s
        self.labels = [int(row.argmax()) for row in y]
        self.q, self.q_x = softmax(weak), softmax(x)
        self.decay = s.get("prediction_decay", 0.999)

    def labeled(self) -> Tensor:
        each = [cross_entropy(one_hot(c), z) for c, z in zip(self.labels, self.x, strict=True)]
        return sum(each) / len(each)  # type: ignore

    def unlabeled(self, targets: Sequence[Sequence[float]], weights: Sequence[float]) -> Tensor:
        """Divided by all rows, not by those that count."""
        each = [w * cross_entropy(t, z) for t, w, z in zip(targets, weights, self.strong, strict=True) if w > 0]
        return sum(each, torch.zeros((), dtype=torch.float64)) / len(self.strong)


Found = tuple[Tensor, Tensor, Tensor, float]
"""Loss, its labeled and unlabeled part, and the share of unlabeled rows that counts."""


def fixmatch(r: Rows, batch: Batch, memory: Memory, t: float, draws: Any) -> Found:
    q = aligned(r.s.get("align", "none"), r.q, r.q_x, memory, r.decay)
    weights = [float(best(row)[0] >= r.s.get("threshold", 0.95)) for row in q]
    loss_x, loss_u = r.labeled(), r.unlabeled([one_hot(best(row)[1]) for row in q], weights)
    return loss_x + r.s.get("lambda_u", 1.0) * loss_u, loss_x, loss_u, sum(weights) / len(weights)


def uda(r: Rows, batch: Batch, memory: Memory, t: float, draws: Any) -> Found:
    q = aligned(r.s.get("align", "none"), r.q, r.q_x, memory, r.decay)
    T = r.s.get("T", 0.4)
    sharp = [[p ** (1 / T) / sum(o ** (1 / T) for o in row) for p in row] for row in q]
    weights = [float(best(row)[0] > r.s.get("threshold", 0.8)) for row in q]
    entropies = [sum(-p * math.log(p) for p in row) for row in sharp]
    loss_u = r.unlabeled(sharp, weights) - sum(w * h for w, h in zip(weights, entropies, strict=True)) / len(weights)
    if (tsa := r.s.get("tsa", "none")) == "none":
        loss_x = r.labeled()
    else:
        part = {"linear": t, "exp": math.exp(5 * (t - 1)), "log": 1 - math.exp(-5 * t)}[tsa]
        limit = part * (1 - 1 / L) + 1 / L
        kept = [i for i, c in enumerate(r.labels) if r.q_x[i][c] <= limit]
        each = [cross_entropy(one_hot(r.labels[i]), r.x[i]) for i in kept]
        memory["left_out"] = memory.get("left_out", 0) + B - len(kept)
        loss_x = sum(each, 0 * r.x.sum()) / max(1, len(kept))
    return loss_x + loss_u, loss_x, loss_u, sum(weights) / len(weights)


def flexmatch(r: Rows, batch: Batch, memory: Memory, t: float, draws: Any) -> Found:
    q = aligned(r.s.get("align", "none"), r.q, r.q_x, memory, r.decay)
    tau = r.s.get("threshold", 0.95)
    table, beta = memory.setdefault("labels", [-1] * UNLABELED), memory.setdefault("learned", [0.0] * L)
    shape = {"convex": lambda b: b / (2 - b), "linear": lambda b: b, "concave": lambda b: math.log(b + 1) / math.log(2)}
    mapped = shape[r.s.get("mapping", "convex")]
    weights = [float(best(row)[0] >= tau * mapped(beta[best(row)[1]])) for row in q]
    loss_x, loss_u = r.labeled(), r.unlabeled([one_hot(best(row)[1]) for row in q], weights)
    for row, place in zip(q, batch.rows.tolist(), strict=True):
        if best(row)[0] >= tau:
            table[place] = best(row)[1]
    counts = {c: table.count(c) for c in range(-1, L)}
    if max(counts.values()) < UNLABELED:
        without = 0 if r.s.get("threshold_warmup", True) else 1
        largest = max(list(counts.values())[without:])
        memory["learned"] = [counts[c] / largest for c in range(L)]
    return loss_x + loss_u, loss_x, loss_u, sum(weights) / len(weights)


def freematch(r: Rows, batch: Batch, memory: Memory, t: float, draws: Any) -> Found:
    uniform = [1 / L] * L
    top = [best(row) for row in r.q]
    histogram = [sum(c == k for _, k in top) / len(top) for c in range(L)]
    tau = memory["confidence"] = average(memory.get("confidence", 1 / L), sum(v for v, _ in top) / len(top), r.decay)
    p = memory["predicted"] = average(memory.get("predicted", uniform), means(r.q), r.decay)
    h = memory["histogram"] = average(memory.get("histogram", uniform), histogram, r.decay)
    low, high = r.s.get("least_threshold", 0.0), r.s.get("most_threshold", 1.0)
    weights = [float(v >= min(max(tau * p[c] / max(p), low), high)) for v, c in top]
    loss_x, loss_u = r.labeled(), r.unlabeled([one_hot(c) for _, c in top], weights)
    loss = loss_x + loss_u
    kept = [i for i, w in enumerate(weights) if w]
    if kept:  # fairness
        predictions = torch.stack([torch.exp(r.strong[i]) / torch.exp(r.strong[i]).sum() for i in kept])
        likeliest = [int(row.argmax()) for row in predictions]
        wanted = [p[c] / h[c] for c in range(L)]
        wanted = [w / sum(wanted) for w in wanted]
        shares = [sum(k == c for k in likeliest) / len(kept) for c in range(L)]
        mean = predictions.sum(0) / len(kept)
        found = [mean[c] / shares[c] if shares[c] else 0 * mean[c] for c in range(L)]
        total = sum(found)
        loss = loss + r.s.get("fairness", 0.01) * sum(
            w * torch.log(f / total + 1e-12) for w, f in zip(wanted, found, strict=True)
        )
    return loss, loss_x, loss_u, sum(weights) / len(weights)


def softmatch(r: Rows, batch: Batch, memory: Memory, t: float, draws: Any) -> Found:
    top = np.array([best(row)[0] for row in r.q])
    mean = memory["mean"] = average(memory.get("mean", 1 / L), top.mean(), r.decay)
    variance = memory["variance"] = average(memory.get("variance", 1.0), top.var(ddof=1), r.decay)
    q = aligned(r.s.get("align", "uniform"), r.q, r.q_x, memory, r.decay)
    n = r.s.get("n_sigma", 2.0)
    weights = [math.exp(-(min(best(row)[0] - mean, 0) ** 2) / (2 * variance / n**2)) for row in q]
    loss_x, loss_u = r.labeled(), r.unlabeled([one_hot(best(row)[1]) for row in r.q], weights)
    return loss_x + loss_u, loss_x, loss_u, sum(weights) / len(weights)


def adamatch(r: Rows, batch: Batch, memory: Memory, t: float, draws: Any) -> Found:
    weak_x = r.q_x[:B]
    q = aligned(r.s.get("align", "model"), r.q, weak_x, memory, r.decay)
    limit = r.s.get("threshold", 0.95) * sum(best(row)[0] for row in weak_x) / B
    weights = [float(best(row)[0] >= limit) for row in q]
    loss_x, loss_u = r.labeled(), r.unlabeled([one_hot(best(row)[1]) for row in q], weights)
    risen = 0.5 - 0.5 * math.cos(min(math.pi, 2 * math.pi * t)) if r.s.get("ramp_up") else 1.0
    return loss_x + risen * loss_u, loss_x, loss_u, sum(weights) / len(weights)


REFERENCES: dict[str, Callable[..., Found]] = {
    "uda": uda,
    "fixmatch": fixmatch,
    "flexmatch": flexmatch,
    "freematch": freematch,
    "softmatch": softmatch,
    "adamatch": adamatch,
}


def balanced(z_x: Tensor, z_w: Tensor, z_s: Tensor, labels: list[int], draws: Any, t: float) -> Tensor:
    """The auxiliary balanced classifier's loss; its masks are drawn by comparing numbers in [0, 1)."""
    smallest = min(p for p in PRIOR if p > 0)
    share = [smallest / p if p > 0 else 1.0 for p in PRIOR]
    loss = torch.zeros((), dtype=torch.float64)
    for i, c in enumerate(labels):
        if draws["keep_x"][i].item() < share[c]:
            loss = loss + cross_entropy(one_hot(c), z_x[i]) / len(labels)
    for i, row in enumerate(softmax(z_w)):
        confidence, c = best(row)
        if confidence >= 0.95 and draws["keep_u"][i].item() < 1 - t * (1 - share[c]):
            loss = loss + cross_entropy(one_hot(c), z_s[i]) / len(z_w)
    return loss


CASES: list[tuple[str, dict[str, Any], str]] = [
    # Settings, and which unlabeled rows count.
    ("fixmatch", {}, "some"),
    ("fixmatch", {"threshold": 0.0, "lambda_u": 0.7}, "all"),
    ("fixmatch", {"threshold": 1.0}, "none"),
    ("fixmatch", {"threshold": 0.7, "align": "labels"}, "some"),
    ("fixmatch", {"threshold": 0.7, "align": "model"}, "some"),
    ("fixmatch", {"threshold": 0.7, "align": "4,3,2,1"}, "some"),
    ("uda", {}, "some"),
    ("uda", {"T": 0.9, "threshold": 0.6, "align": "uniform"}, "some"),
    ("uda", {"tsa": "linear"}, "some"),
    ("uda", {"tsa": "exp"}, "some"),
    ("uda", {"tsa": "log"}, "some"),
    ("flexmatch", {"threshold": 0.8}, "some"),
    ("flexmatch", {"threshold": 0.8, "threshold_warmup": False}, "some"),
    ("flexmatch", {"threshold": 0.8, "mapping": "linear", "align": "uniform"}, "some"),
    ("flexmatch", {"threshold": 0.8, "mapping": "concave"}, "some"),
    ("flexmatch", {"threshold": 1.0}, "all"),  # labels stay -1, thresholds 0
    ("freematch", {}, "all"),
    ("freematch", {}, "some"),
    ("freematch", {"fairness": 0.8}, "some"),
    ("freematch", {"fairness": 0.8, "least_threshold": 0.7, "most_threshold": 0.75}, "some"),
    ("freematch", {"fairness": 0.8, "least_threshold": 1.0}, "none"),
    ("softmatch", {}, "all"),
    ("softmatch", {}, "some"),
    ("softmatch", {"n_sigma": 3.0, "align": "model"}, "some"),
    ("softmatch", {"align": "none"}, "some"),
    ("adamatch", {}, "some"),
    ("adamatch", {"align": "labels", "ramp_up": True}, "some"),
    ("adamatch", {"strong_labeled": True}, "some"),
    ("freematch", {"prediction_decay": 0.3, "fairness": 0.5}, "some"),
    ("softmatch", {"prediction_decay": 0.3, "align": "model"}, "some"),
    ("fixmatch", {"threshold": 0.7, "prediction_decay": 0.3, "align": "model"}, "some"),
    *((name, {"balance": "abc", "threshold": 0.8}, "some") for name in SIX if name not in ("freematch", "softmatch")),
    *((name, {"balance": "abc"}, "some") for name in ("freematch", "softmatch")),
]
MIDWAY: dict[str, Memory] = {
    "freematch": {"confidence": 0.8, "predicted": [0.4, 0.3, 0.2, 0.1], "histogram": [0.5, 0.3, 0.15, 0.05]},
    "softmatch": {"mean": 0.8, "variance": 0.01},
}
"""Averages over a thousand steps, where a few steps from the start would not get; not for the cases "all"."""
NAMES = [" ".join([name, *(f"{key}={value}" for key, value in given.items())]) for name, given, _ in CASES]


@pytest.mark.parametrize("passes", ["official", "fused"])
@pytest.mark.parametrize(("name", "given", "counts"), CASES, ids=NAMES)
def test_its_steps_are_the_papers(name: str, given: dict[str, Any], counts: str, passes: str) -> None:
    method = build(name, {"ratio": 2, "passes": passes, **given})
    abc = given.get("balance") == "abc"
    memory = Memory(MIDWAY.get(name, {}) if counts != "all" else {})
    state = {**method.state(info()), **{key: exactly(value) for key, value in memory.items()}}
    counted = []
    for step in range(STEPS):
        batch, draws = batch_of(step, 2), drawn(method, step)
        ours, theirs = Linear(step, scale=1.3), Linear(step, scale=1.3)
        before = {key: value.clone() for key, value in state.items()}
        taken = method.loss(ours, batch, draws, at(step), state)
        taken.loss.backward()  # type: ignore[no-untyped-call]

        x, y = batch.x, batch.y
        if given.get("strong_labeled"):
            x, y = torch.cat([x, batch.x_strong]), torch.cat([y, y])
        z = [rows.flatten(1) @ theirs.matrix for rows in (x, *batch.u)]
        used = [rows[:, L:] if abc else rows[:, :L] for rows in z]
        rows = Rows(*used, y, given)
        t = step / (2 * STEPS)
        loss, loss_x, loss_u, share = REFERENCES[name](rows, batch, memory, t, draws)
        if abc:
            extra = balanced(*(each[:, :L] for each in z), rows.labels, draws, t)
            assert extra > 0
            loss = loss + extra
        loss.backward()  # type: ignore[no-untyped-call]

        close = {"rtol": 1e-9, "atol": 1e-12}
        found = [taken.loss, *(taken.metrics[key] for key in ("loss", "loss_x", "loss_u", "mask"))]
        for a, b in zip(found, (loss, loss, loss_x, loss_u, exactly(share)), strict=True):
            torch.testing.assert_close(a.detach(), b.detach(), **close)
        torch.testing.assert_close(ours.matrix.grad, theirs.matrix.grad, **close)
        assert all(torch.equal(value, before[key]) for key, value in state.items())  # it is not written to
        state = {**state, **taken.state}
        for key in memory.keys() & state.keys():
            torch.testing.assert_close(state[key].double(), exactly(memory[key]), **close)
        counted.append(share)
    if counts == "some":
        assert 0 < sum(counted) < STEPS
    else:
        assert counted == [{"all": 1.0, "none": 0.0}[counts]] * STEPS
    if name == "flexmatch":
        table = state["labels"].tolist()
        assert state["counts"].tolist() == [table.count(c) for c in range(-1, L)]
        assert given["threshold"] < 1 or table == [-1] * UNLABELED
    if given.get("tsa"):
        assert 0 < memory["left_out"] < STEPS * B


# ---------------------------------------------------------------- what only one of them does


def test_flexmatch_learns_nothing_about_classes_while_all_rows_have_one_label() -> None:
    method = build("flexmatch", {"ratio": 2, "threshold": 0.5})
    state = {**method.state(info()), "learned": exactly([0.1, 0.2, 0.3, 0.4])}
    model = Linear()
    with torch.no_grad():
        model.matrix.zero_()
        model.matrix[0, 2] = 50
    rows, u = torch.arange(UNLABELED - 2), torch.ones(2, UNLABELED - 2, 1, 4, 4).double()
    one = Batch(*batch_of(0, 2)[:2], u=u, rows=rows)
    state |= method.loss(model, one, {}, at(0), state).state
    assert state["labels"].tolist() == [2] * (UNLABELED - 2) + [-1] * 2
    assert state["learned"].tolist() == [0, 0, 1, 0]
    state |= method.loss(model, one._replace(rows=rows + 2), {}, at(1), state).state
    assert state["labels"].tolist() == [2] * UNLABELED
    assert state["counts"].tolist() == [0, 0, 0, UNLABELED, 0]
    assert state["learned"].tolist() == [0, 0, 1, 0]  # as it was: the authors' code leaves it alone
    state["learned"] = exactly([0.1, 0.2, 0.3, 0.4])
    assert method.loss(model, one, {}, at(2), state).state["learned"].tolist() == [0.1, 0.2, 0.3, 0.4]


def test_softmatchs_weights_stay_numbers_where_confidence_no_longer_varies() -> None:
    """All predictions alike, for so many steps that the average of their variance is 0."""
    method, batch, model = build("softmatch", {"ratio": 2, "align": "none"}), batch_of(0, 2), Linear()
    batch = batch._replace(u=torch.ones_like(batch.u))
    alike = float(model(batch.u[0])[0].detach().softmax(-1).max())
    for mean, weight in ((alike, 1.0), (alike + 0.1, 0.0)):
        state = {**method.state(info()), "mean": exactly(mean), "variance": exactly(0.0)}
        step = method.loss(model, batch, {}, at(1), state)
        assert step.metrics["mask"] == weight
        assert step.loss.isfinite()


@pytest.mark.parametrize("passes", ["official", "fused"])
@pytest.mark.parametrize("strong", [False, True])
def test_adamatch_interpolates_between_labeled_images_alone_and_among_the_others(passes: str, strong: bool) -> None:
    given = {"interpolate": True, "strong_labeled": strong, "ratio": 2, "passes": passes}
    method, batch = build("adamatch", given), batch_of(0, 2)
    draws, state = drawn(method, 0), method.state(info())
    labeled = (1 + strong) * B
    assert draws["towards"].shape == (labeled,)

    class Coupled(Linear):
        """What a batch norm does, in a word: outputs depend on which rows are in the batch."""

        def __call__(self, x: Tensor, *given: Any, **more: Any) -> Tensor:
            return super().__call__(x / len(x), *given, **more)

    ours, theirs = Coupled(scale=30.0), Coupled(scale=30.0)
    taken = method.loss(ours, batch, draws, at(0), state)
    taken.loss.backward()  # type: ignore[no-untyped-call]
    x, y = batch.x, batch.y
    if strong:
        x, y = torch.cat([x, batch.x_strong]), torch.cat([y, y])
    z = [(rows.flatten(1) / (labeled + 4 * B)) @ theirs.matrix[:, :L] for rows in (x, *batch.u)]
    alone = (x.flatten(1) / labeled) @ theirs.matrix[:, :L]
    between = torch.stack([z[0][i] + (alone[i] - z[0][i]) * draws["towards"][i].item() for i in range(labeled)])
    loss, *_, share = adamatch(Rows(between, z[1], z[2], y, given), batch, {}, 0.0, draws)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(taken.loss, loss, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(ours.matrix.grad, theirs.matrix.grad, rtol=1e-9, atol=1e-12)
    assert 0 < share < 1


@pytest.mark.parametrize("passes", ["official", "fused"])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"K": 1, "lambda_r": 0.0},
        {"align": "none", "strong_labeled": False},
        {"align": "1,2,3,4", "T": 0.9, "lambda_u": 1.1, "lambda_u1": 0.3, "lambda_r": 2.0},
    ],
)
def test_remixmatchs_steps_are_the_papers(given: dict[str, Any], passes: str) -> None:
    method = build("remixmatch", {"K": 3, "ramp": 4, "passes": passes, **given})
    K, T, turned = method.K, method.T, given.get("lambda_r", 0.5) > 0
    state = method.state(info())
    past = [[1 / L] * L] * 128
    numbers = {"none": None, "1,2,3,4": [0.1, 0.2, 0.3, 0.4]}.get(method.align, PRIOR)
    assert len(method.views) == K + 1
    assert method.heads == ({"rotation": 4} if turned else {})
    for step in range(3):
        batch, draws = batch_of(step, K + 1, ratio=1), drawn(method, step)
        ours, theirs = Linear(step, L + 4), Linear(step, L + 4)
        taken = method.loss(ours, batch, draws, at(step), state)
        taken.loss.backward()  # type: ignore[no-untyped-call]

        z = lambda rows, m=theirs.matrix: rows.flatten(1) @ m[:, :L]  # noqa: E731
        guess = softmax(z(batch.u[0]))
        q = guess
        if numbers is not None:
            mean = means(past)
            q = [[p * (t + 1e-6) / (m + 1e-6) for p, t, m in zip(row, numbers, mean, strict=True)] for row in q]
            past = [*past[1:], means(guess)]
        q = [[p ** (1 / T) / sum(o ** (1 / T) for o in row) for p in row] for row in q]
        x = batch.x_strong if method.strong_labeled else batch.x
        images = [*x, *(image for view in batch.u for image in view)]
        targets = [exactly(row) for row in [*batch.y.tolist(), *q * (K + 1)]]
        mixed = []
        for i, partner in enumerate(draws["perm"].tolist()):
            lam = max(draws["lam"][i].item(), 1 - draws["lam"][i].item())
            pair = [lam * kind[i] + (1 - lam) * kind[partner] for kind in (images, targets)]
            mixed.append(cross_entropy(pair[1], z(pair[0][None])[0]))
        loss_x, loss_u = sum(mixed[:B]) / B, sum(mixed[B:]) / len(mixed[B:])
        strong = batch.u[1]
        loss_u1 = sum(cross_entropy(row, each) for row, each in zip(q, z(strong), strict=True)) / B
        risen = min(1.0, step / 4)
        loss = loss_x + risen * (method.lambda_u * loss_u + method.lambda_u1 * loss_u1)
        expected = [loss, loss_x, loss_u, loss_u1]
        if turned:
            quarters = [0, 0, 2, 2, 1, 3]  # of six rows
            rotated = [torch.rot90(image, turn, (1, 2)) for image, turn in zip(strong, quarters, strict=True)]
            outputs = torch.stack(rotated).flatten(1) @ theirs.matrix[:, L:]
            loss_r = (
                sum(
                    cross_entropy([float(c == turn) for c in range(4)], row)
                    for turn, row in zip(quarters, outputs, strict=True)
                )
                / B
            )
            loss = loss + method.lambda_r * loss_r
            expected = [loss, loss_x, loss_u, loss_u1, loss_r]
        loss.backward()  # type: ignore[no-untyped-call]
        names = ["loss", "loss_x", "loss_u", "loss_u1", *(["loss_r"] if turned else [])]
        for key, value in zip(names, expected, strict=True):
            torch.testing.assert_close(taken.metrics[key].detach(), value.detach(), rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(ours.matrix.grad, theirs.matrix.grad, rtol=1e-6, atol=1e-8)
        state = {**state, **taken.state}
        if numbers is not None:
            torch.testing.assert_close(state["predicted"], exactly(past))


def test_images_that_are_not_square_are_turned_by_half() -> None:
    images = torch.arange(5 * 2 * 3.0).reshape(5, 1, 2, 3)
    turned, turns = rotations(images)
    assert turns.tolist() == [0, 0, 0, 2, 2]
    assert torch.equal(turned[:3], images[:3])
    assert torch.equal(turned[3:], images[3:].flip(2, 3))
    rows = torch.arange(10.0).reshape(5, 2)
    assert torch.equal(rotations(rows)[0], rows)


def test_rows_of_numbers_are_not_turned() -> None:
    method = build("remixmatch", {"K": 1})
    images = batch_of(0, 2, 1)
    batch = images._replace(x=images.x.flatten(1), u=images.u.flatten(2), x_strong=images.x_strong.flatten(1))
    model = Linear(columns=L + 4)
    method.loss(model, batch, drawn(method, 0), at(0), method.state(info())).loss.backward()
    assert (model.matrix.grad[:, L:] == 0).all()  # the head stays as it is, but has a gradient
    assert (model.matrix.grad[:, :L] != 0).any()


# ---------------------------------------------------------------- the passes


class Small(nn.Module):
    feature_size = 6

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.dense, self.norm, self.last = nn.Linear(16, 6), nn.BatchNorm1d(6, momentum=0.3), nn.Linear(6, L)

    def features(self, x: Tensor) -> Tensor:
        return nn.functional.leaky_relu(self.norm(self.dense(x.flatten(1))))

    def classify(self, features: Tensor) -> Tensor:
        logits: Tensor = self.last(features)
        return logits

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.features(x))


@pytest.mark.parametrize(("name", "given"), [*((name, {}) for name in SIX), ("adamatch", {"interpolate": True})])
@pytest.mark.parametrize("balance", ["none", "abc"])
def test_all_rows_are_one_batch(name: str, given: dict[str, Any], balance: str) -> None:
    """One that moves the running statistics; interpolation's labeled images alone do not."""
    grads = {}
    for passes in ("official", "fused"):
        method = build(name, {"ratio": 2, "passes": passes, "balance": balance, **given})
        network = Small().double()
        expected = Small().double().norm.train()
        model = Model(WithHeads(network, {"plain": L}).double() if balance == "abc" else network)
        batch = batch_of(0, 2)
        u = batch.u.clone().requires_grad_()
        step = method.loss(model, batch._replace(u=u), drawn(method, 0), at(0), method.state(info()))
        step.loss.backward()  # type: ignore[no-untyped-call]
        expected(network.dense(torch.cat([batch.x, *batch.u]).flatten(1)).detach())
        torch.testing.assert_close(network.norm.running_mean, expected.running_mean)
        torch.testing.assert_close(network.norm.running_var, expected.running_var)
        assert network.norm.num_batches_tracked == 1
        grads[passes] = u.grad
    assert (grads["official"][0] != 0).any()  # through the statistics of the batch
    torch.testing.assert_close(grads["fused"], grads["official"])  # where there are no kernels
    assert all((grad[1] != 0).any() for grad in grads.values()) or name in ("fixmatch", "uda")


def test_the_last_mixed_batch_updates_remixmatchs_statistics() -> None:
    method, batch = build("remixmatch", {"K": 1, "ramp": 0}), batch_of(0, 2, 1)
    network, draws = Small().double(), drawn(method, 0)
    model = Model(WithHeads(network, {"rotation": 4}).double())
    expected = Small().double()
    method.loss(model, batch, draws, at(0), method.state(info()))
    x, u = mixmatch.functional.mix_union(batch.x_strong, batch.u, draws["lam"], draws["perm"])
    expected.train()(mixmatch.functional.interleave([x, *u])[-1])
    torch.testing.assert_close(network.norm.running_mean, expected.norm.running_mean)
    assert network.norm.num_batches_tracked == 1


@pytest.mark.parametrize(
    ("name", "given"),
    [*((name, {}) for name in SEVEN), ("flexmatch", {"balance": "abc", "align": "model", "passes": "fused"})],
)
def test_it_compiles_as_one_graph(name: str, given: dict[str, Any]) -> None:
    """Nothing waits for the device, and no shape depends on the data."""
    torch._dynamo.reset()
    method = build(name, {**({"K": 2} if name == "remixmatch" else {"ratio": 2}), **given})
    network = Small().double()
    heads = {key: size or L for key, size in method.heads.items()}
    model = Model(WithHeads(network, heads).double() if heads else network)
    batch, draws, state = batch_of(0, len(method.views), method.ratio), drawn(method, 0), method.state(info())
    plain = method.loss(model, batch, draws, at(0), state)

    @torch.compile(fullgraph=True, backend="eager")
    def compiled(batch: Batch, draws: dict[str, Tensor], step: Tensor, state: dict[str, Tensor]) -> Step:
        return method.loss(model, batch, draws, Progress(step, 2 * STEPS), state)

    again = compiled(batch, draws, at(0).step, state)
    assert torch.equal(plain.loss, again.loss)
    assert all(torch.equal(plain.state[key], again.state[key]) for key in plain.state)


# ---------------------------------------------------------------- through the engine


def settings(**given: Any) -> dict[str, Any]:
    fixed = {"labels": 20, "batch_size": 4, "steps": 4, "eval_every": 4, "checkpoint_every": 2, "compile": False}
    return {**fixed, "network": "wrn-10-1", "device": "cpu", "reporter": Quiet(), **given}


class Crash(Quiet):
    def steps(self, step: int, values: Mapping[str, float]) -> None:
        if step >= 4:
            raise ZeroDivisionError


@pytest.mark.parametrize(
    ("name", "given"),
    [
        *((name, {}) for name in SEVEN),
        ("flexmatch", {"balance": "abc", "align": "labels"}),
        ("adamatch", {"interpolate": True, "strong_labeled": True, "ramp_up": True, "balance": "abc"}),
    ],
)
def test_it_trains_and_resumes_bit_for_bit(name: str, given: dict[str, Any], tmp_path: Path) -> None:
    small = {"K": 2} if name == "remixmatch" else {"ratio": 2}

    def train(out: str, **more: Any) -> dict[str, Any]:
        return mixmatch.train("digits", method=name, out=tmp_path / out, **{**settings(), **small, **given, **more})

    train("whole")
    with pytest.raises(ZeroDivisionError):
        train("parts", reporter=Crash())
    assert train("parts", resume=True)["steps"] == 4
    runs = [RunFolder(tmp_path / out).load_checkpoint() for out in ("whole", "parts")]
    for part in TENSORS:
        whole, parts = (getattr(run, part) for run in runs)
        assert whole.keys() == parts.keys()
        assert all(torch.equal(whole[key], parts[key]) for key in whole), part
    assert runs[0] is not None
    assert (len(runs[0].method) > 0) == (name not in ("fixmatch", "uda"))
    if name == "flexmatch":  # the labels of so many rows are remembered
        assert len(runs[0].method["labels"]) == len(mixmatch.data.load("digits").train)
    assert not [key for key in load_file(tmp_path / "whole" / "model.safetensors") if key.startswith("heads.")]
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    wanted = {"loss", "loss_x", "loss_u", "confidence", *([] if name == "remixmatch" else ["mask"])}
    assert all(wanted <= line.keys() for line in lines if "loss" in line)
    assert all(math.isfinite(line["loss"]) for line in lines if "loss" in line)


def test_the_balanced_classifier_is_the_one_that_is_evaluated() -> None:
    """Its loss trains the network's own classifier, the method's own loss the head beside it."""
    method, batch = build("fixmatch", {"balance": "abc", "ratio": 2}), batch_of(0, 2)
    model = Linear()
    draws = {key: torch.ones_like(value) for key, value in drawn(method, 0).items()}  # nothing is kept
    method.loss(model, batch, draws, at(0), method.state(info())).loss.backward()
    assert (model.matrix.grad[:, :L] == 0).all()
    assert (model.matrix.grad[:, L:] != 0).any()
    assert method.state(info())["share"].tolist() == pytest.approx([0.4, 2 / 3, 1, 1])


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize("name", ["fixmatch", "uda", "flexmatch", "softmatch", "adamatch", "remixmatch"])
@pytest.mark.parametrize("align", ["nonsense", "0.5", "0.5,x", "0.5,-1", "0,0", "", "nan,1"])
def test_a_wrong_alignment_gets_one_line(name: str, align: str) -> None:
    with pytest.raises(MixMatchError, match=r"^align=.* must be one of none, labels, uniform") as caught:
        build(name, {"align": align})
    assert "\n" not in str(caught.value)


def test_frequencies_for_another_number_of_classes_get_one_line(tmp_path: Path) -> None:
    with pytest.raises(MixMatchError, match=r"^align='0.5,0.3,0.2' has 3 frequencies, but there are 10 classes$"):
        mixmatch.train("digits", method="fixmatch", align="0.5,0.3,0.2", out=tmp_path / "run", **settings())
    with pytest.raises(MixMatchError, match="align='model' must be one of none, labels, uniform, or"):
        build("remixmatch", {"align": "model"})


def test_frequencies_as_a_list_get_one_line() -> None:
    with pytest.raises(MixMatchError, match=r"^align=\[0.5, 0.5\] must be NAME or P1,P2,..., in quotes$"):
        build("fixmatch", {"align": [0.5, 0.5]})
    with pytest.raises(MixMatchError, match=r"^align=\[0.5, 0.5\] must be one of none, .* as in 0.5,0.3,0.2$"):
        METHODS["fixmatch"](align=[0.5, 0.5])  # type: ignore[call-arg]


@pytest.mark.parametrize("name", SEVEN)
def test_settings_out_of_range_get_one_line(name: str) -> None:
    wrong: dict[str, Any] = {"lambda_u": -1, "passes": "both", "ratio": 0, "threshold": 1.5, "balance": "yes", "K": 0}
    known = {field.name for field in dataclasses.fields(METHODS[name])}
    for key in wrong.keys() & known:
        with pytest.raises(MixMatchError, match=f"^{key}=.* must be") as caught:
            resolve("cifar10", {"method": name, key: wrong[key]})
        assert "\n" not in str(caught.value)


def test_labels_are_not_balanced_twice() -> None:
    """The balanced classifier takes a share of each class's rows, which makes up for how often they are drawn."""
    with pytest.raises(MixMatchError, match=r"^balance=abc contradicts label_sampling=balanced: .*: leave one out$"):
        resolve("cifar10", {"method": "fixmatch", "balance": "abc", "label_sampling": "balanced"})


def test_freematchs_thresholds_have_room() -> None:
    with pytest.raises(MixMatchError, match=r"^least_threshold=0.9 must not be above most_threshold=0.5$"):
        build("freematch", {"least_threshold": 0.9, "most_threshold": 0.5})
    build("freematch", {"least_threshold": 0.9, "most_threshold": 0.9})


def test_what_depends_on_the_number_of_steps() -> None:
    for name in SIX:
        plain = {"method": name, "schedule": "constant"}
        assert depends_on_steps(resolve("cifar10", plain), METHODS[name]) is None
        assert depends_on_steps(resolve("cifar10", {**plain, "balance": "abc"}), METHODS[name])
        assert depends_on_steps(resolve("cifar10", {"method": name}), METHODS[name])  # the schedule
    assert depends_on_steps(resolve("cifar10", {"method": "remixmatch"}), METHODS["remixmatch"]) is None

"""What a graph of a step reads and writes, with a stand-in on the CPU that takes the step again instead."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mixmatch.data.pool import Pool
from mixmatch.data.source import Rows, Source
from mixmatch.data.split import make_split
from mixmatch.methods.base import Batch, DataInfo, Method, Step
from mixmatch.settings import resolve
from mixmatch.training import batches
from mixmatch.training import trainer as engine
from mixmatch.training.checkpoint import Checkpoint
from mixmatch.training.cuda_graph import WARM_UP, GraphedStep
from mixmatch.training.optimizer import build_optimizer
from mixmatch.training.trainer import Trainer

CPU = torch.device("cpu")
CHUNK = 10
"""Steps whose draws are made at once, fewer than in a run: a step of each kind is enough."""

STEPS = 2 * CHUNK + 9


class Again(GraphedStep):
    """As the graph does, it reads the fixed places and none of what `step` is given."""

    def _capture(self) -> None:
        self._prepare()
        take, inputs = self._take, dict(self._inputs)

        class Graph:
            def replay(graph) -> None:
                assert self._inputs.keys() == inputs.keys()
                assert all(self._inputs[name] is place for name, place in inputs.items())
                take()

        self._graph = Graph()  # type: ignore[assignment]


# ---------------------------------------------------------------- on its own


def graphed(
    body: Callable[[dict[str, Tensor]], None],
    kind: type[GraphedStep] = Again,
    chunk: int = 4,
    prepare: Callable[[], None] = lambda: None,
    note: Callable[[str], None] = lambda text: None,
) -> GraphedStep:
    return kind(body, prepare, note, CPU, None, chunk)


def test_each_step_gets_its_own_row_of_draws_in_shape_and_type() -> None:
    """Whatever their sizes, which are not multiples of where they are aligned."""
    rng = np.random.default_rng(0)
    draws = {
        "step": torch.arange(10, dtype=torch.float32),
        "kept": torch.from_numpy(rng.random((10, 3, 5)) < 0.5),
        "rows": torch.from_numpy(rng.integers(0, 99, (10, 7))),
        "lam": torch.from_numpy(rng.random((10, 3), np.float32)),
    }
    seen: list[dict[str, Tensor]] = []
    graph = graphed(lambda tensors: seen.append({name: value.clone() for name, value in tensors.items()}))
    for first, count in ((0, 4), (4, 2), (6, 4)):  # a chunk of fewer in between
        graph.load({name: values[first : first + count] for name, values in draws.items()})
        for i in range(count):
            graph.step({"x": torch.full((2,), float(first + i))})
    assert graph.replays
    assert len(seen) == 10
    for i, tensors in enumerate(seen):
        assert tensors.pop("x").tolist() == [i, i]
        assert tensors.keys() == draws.keys()
        for name, value in tensors.items():
            assert value.dtype == draws[name].dtype
            assert value.shape == draws[name].shape[1:]
            assert torch.equal(value, draws[name][i])


def test_the_step_is_captured_after_the_warm_up_once_and_prepared_for() -> None:
    events: list[str] = []
    graph = graphed(lambda tensors: events.append("step"), prepare=lambda: events.append("prepare"))
    settled = []
    for _ in range(2):
        graph.load({"step": torch.arange(4.0)})
        for _ in range(4):
            graph.step({})
            settled.append(graph.settled)
    assert events == ["step"] * WARM_UP + ["prepare"] + ["step"] * (8 - WARM_UP)
    assert settled == [False] * WARM_UP + [True] * (8 - WARM_UP)


def test_a_step_that_another_process_cannot_capture_is_captured_by_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.cuda, "graph", lambda *args, **given: contextlib.nullcontext())
    notes: list[str] = []
    asked: list[bool] = []

    def anywhere(failed: bool) -> bool:
        asked.append(failed)
        return True

    graph = GraphedStep(lambda tensors: None, lambda: None, notes.append, CPU, None, 9, anywhere)
    graph.load({"step": torch.arange(9.0)})  # where there is no CUDA a captured step is taken, too
    for _ in range(8):
        graph.step({})
    assert not graph.replays
    assert asked == [False]
    assert notes == [
        "the step cannot be captured as a graph (in another process): training continues without, more slowly"
    ]


@pytest.mark.parametrize("error", [RuntimeError("it looks at its values"), torch.OutOfMemoryError("too little")])
def test_only_what_cannot_be_captured_continues_without(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error on leaving an unfinished capture must not hide that there was too little memory for it."""
    capturing = False

    class Unfinished:
        def __init__(self, *args: Any, **given: Any) -> None: ...

        def __enter__(self) -> None:
            nonlocal capturing
            capturing = True

        def __exit__(self, *given: object) -> None:
            nonlocal capturing
            capturing = False
            raise RuntimeError("operation failed due to a previous error during capture")

    class Left:
        """As a stream that waits for another in a capture that cannot continue."""

        def __enter__(self) -> None: ...

        def __exit__(self, *given: object) -> None:
            raise RuntimeError("operation not permitted")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    ended: list[Any] = []
    for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
        monkeypatch.setattr(torch._C, name, lambda *given, name=name: ended.append((name, *given)), raising=False)
    monkeypatch.setattr(torch.cuda, "graph", Unfinished)
    taken: list[float] = []

    def body(tensors: dict[str, Tensor]) -> None:
        if capturing:
            with Left():
                raise error
        taken.append(tensors["step"].item())

    said: list[str] = []
    graph = graphed(body, GraphedStep, 8, note=said.append)
    graph.load({"step": torch.arange(8.0)})
    if isinstance(error, torch.OutOfMemoryError):
        for _ in range(WARM_UP):
            graph.step({})
        with pytest.raises(torch.OutOfMemoryError, match="too little"):
            graph.step({})
        assert said == []
        assert ended == [("_cuda_endAllocateToPool", 0, (0, 1)), ("_cuda_releasePool", 0, (0, 1))]
        return
    for _ in range(8):
        graph.step({})
    assert len(said) == 1
    assert "the step cannot be captured as a graph (RuntimeError: operation failed" in said[0]
    assert taken == list(range(8))
    assert not graph.replays


# ---------------------------------------------------------------- a trainer's steps


@dataclass(frozen=True)
class Counts(Method):
    """A method with a state: how often it has seen each unlabeled row, and an average of its guesses."""

    views = ("weak", "strong")

    def state(self, data: DataInfo) -> dict[str, Tensor]:
        return {"seen": torch.zeros(data.unlabeled, dtype=torch.int64), "average": data.prior.clone()}

    def loss(self, model: Any, batch: Batch, draws: Any, progress: Any, state: Any) -> Step:
        weak, strong = batch.u
        guess = model(weak).detach().softmax(1)
        loss = -(batch.y * model(batch.x, stats="update").log_softmax(1)).sum(1).mean()
        loss = loss - ((guess / (state["average"] + 0.1)) * model(strong).log_softmax(1)).sum(1).mean()
        seen = state["seen"].index_copy(0, batch.rows, state["seen"][batch.rows] + 1)
        return Step(loss, {"loss": loss}, {"seen": seen, "average": 0.9 * state["average"] + 0.1 * guess.mean(0)})


def trainer_for(graph: bool, resident: bool, **given: Any) -> Trainer:
    rng = np.random.default_rng(0)
    images = Rows(rng.integers(0, 256, (90, 6, 6, 1), np.uint8), np.arange(90, dtype=np.int64) % 3)
    data = Source("tiny", ("a", "b", "c"), images, images)
    settings = resolve("tiny", {"labels": 12, "batch_size": 6, "pad": 1, "steps": STEPS, "network": "mlp", **given})
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.BatchNorm1d(8), nn.LeakyReLU(), nn.Linear(8, 3))
    method = given["method"] if isinstance(given["method"], Method) else None
    trainer = Trainer(settings, data, make_split(data, 12, 1), network, CPU, method=method)
    if graph:
        trainer.optimizer = build_optimizer(network, settings, trainer.rate)
        trainer._graph = trainer._graphed()
    trainer.batches.pool = Pool(images.inputs, CPU, resident=resident)
    return trainer


def same(ours: Trainer, theirs: Trainer) -> None:
    assert ours.step == theirs.step
    for name, value in theirs.model.network.state_dict().items():
        torch.testing.assert_close(ours.model.network.state_dict()[name], value, rtol=0, atol=0)
    for name, value in theirs.model.ema.items():
        torch.testing.assert_close(ours.model.ema[name], value, rtol=0, atol=0)
    assert ours.state.keys() == theirs.state.keys()
    for name, value in theirs.state.items():
        assert torch.equal(ours.state[name], value), name
    for name, average in theirs.metrics().items():
        assert ours.metrics()[name] == average


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize(
    "given",
    [
        {"method": "mixmatch", "schedule": "cosine"},
        {"method": "vat", "xi": 0.01},
        {"method": "supervised"},
        {"method": "supervised", "optimizer": "sgd", "schedule": "cosine-7/16"},
        {"method": "mean-teacher", "ema_warmup": True},
        {"method": Counts()},
        {"method": "mixmatch", "groups": 3, "ema_warmup": True},
        {"method": "vat", "xi": 0.01, "groups": 2},
        {"method": Counts(), "groups": 3},
    ],
)
def test_replayed_steps_are_the_plain_steps(
    given: dict[str, Any], resident: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over chunks, a stop in the middle of one, an evaluation, and a checkpoint put back."""
    # The rate on the device is a float32, so the plain one's is rounded alike.
    exact = batches.learning_rate
    monkeypatch.setattr(engine, "CHUNK", CHUNK)
    monkeypatch.setattr(engine, "GraphedStep", Again)
    monkeypatch.setattr(batches, "learning_rate", lambda *args: float(np.float32(exact(*args))))
    ours, theirs = (trainer_for(graph, resident, **given) for graph in (True, False))
    left = 7

    def soon() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    ours.advance(CHUNK, soon)
    assert 0 < ours.step < CHUNK
    assert ours.engine["recorded"]
    theirs.advance(ours.step)
    same(ours, theirs)
    for trainer in (ours, theirs):
        trainer.evaluate()
        trainer.clear_metrics()
        trainer.advance(CHUNK + 5)
    same(ours, theirs)
    kept = copy.deepcopy(ours.checkpoint())
    ours.advance(CHUNK + 7)
    ours.restore(kept)
    assert not ours.engine["recorded"]
    for trainer in (ours, theirs):
        trainer.advance(STEPS)
    same(ours, theirs)
    assert ours.engine["recorded"]


def test_going_back_to_a_checkpoint_forgets_a_loss_that_was_not_finite() -> None:
    trainer = trainer_for(False, False, method="supervised")
    trainer.advance(2)
    kept = copy.deepcopy(trainer.checkpoint())
    with torch.no_grad():
        next(trainer.model.network.parameters()).fill_(float("nan"))
    trainer.advance(4)
    with pytest.raises(engine.NotFinite):
        trainer.check_finite()
    trainer.restore(kept)
    trainer.check_finite()


def test_a_checkpoint_without_moments_for_biases_resumes() -> None:
    """The kernels on CUDA give biases before batch norm no gradient, so Adam has no moments for them; and back."""
    trainer = trainer_for(False, False, method="supervised")
    trainer.advance(3)
    with_biases = copy.deepcopy(trainer.checkpoint())
    bias = {name for name in with_biases.optimizer if name.endswith(".1.bias")}
    assert len(bias) == 3  # two moments and how many steps
    moments = {name: value for name, value in with_biases.optimizer.items() if name not in bias}
    on_cpu = trainer_for(False, False, method="supervised")
    on_cpu.restore(Checkpoint(with_biases.weights, with_biases.ema, moments, with_biases.state))
    on_cpu.advance(6)
    assert on_cpu.checkpoint().optimizer.keys() == with_biases.optimizer.keys()
    trainer.advance(6)
    for name, value in trainer.model.network.state_dict().items():
        if not name.startswith("1.") and "running_mean" not in name:  # batch norm takes away what the bias adds
            torch.testing.assert_close(on_cpu.model.network.state_dict()[name], value, rtol=1e-3, atol=1e-4)

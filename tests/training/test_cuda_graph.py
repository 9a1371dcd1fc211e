"""What a recording of a step reads and writes, with a stand-in on the CPU that takes the step again instead."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from mixmatch.data.pool import Pool
from mixmatch.data.source import Images, Source
from mixmatch.data.split import make_split
from mixmatch.settings import resolve
from mixmatch.training import trainer as engine
from mixmatch.training.compile import Recorded
from mixmatch.training.optimizer import build_optimizer
from mixmatch.training.trainer import CHUNK, Trainer

CPU = torch.device("cpu")
STEPS = 2 * CHUNK + 9


class Again(Recorded):
    """As the recording does, it reads the fixed places and none of what `step` is given."""

    def _record(self) -> None:
        body, places = self._body, (self._x, self._u, self._noise)

        class Graph:
            def replay(graph) -> None:
                assert (self._x, self._u, self._noise) == places
                body()

        self._graph = Graph()  # type: ignore[assignment]


def trainer_for(recorded: bool, resident: bool, **given: Any) -> Trainer:
    rng = np.random.default_rng(0)
    images = Images(rng.integers(0, 256, (90, 6, 6, 1), np.uint8), np.arange(90, dtype=np.int64) % 3)
    data = Source("tiny", ("a", "b", "c"), images, images)
    settings = resolve("tiny", {"labels": 12, "batch_size": 6, "pad": 1, "steps": STEPS, "network": "mlp", **given})
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.BatchNorm1d(8), nn.LeakyReLU(), nn.Linear(8, 3))
    trainer = Trainer(settings, data, make_split(data, 12, 1), network, CPU)
    if recorded:
        trainer.optimizer = build_optimizer(network, settings, trainer.rate)
        trainer._recorded = Again(trainer, CHUNK)
    trainer.pool = Pool(images.images, CPU, resident=resident)
    return trainer


def same(ours: Trainer, theirs: Trainer) -> None:
    assert ours.step == theirs.step
    for name, value in theirs.model.network.state_dict().items():
        torch.testing.assert_close(ours.model.network.state_dict()[name], value, rtol=0, atol=0)
    for name, value in theirs.model.ema.items():
        torch.testing.assert_close(ours.model.ema[name], value, rtol=0, atol=0)
    for name, average in theirs.metrics().items():
        assert ours.metrics()[name] == average


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize(
    "given", [{"method": "mixmatch", "schedule": "cosine"}, {"method": "vat", "xi": 0.01}, {"method": "supervised"}]
)
def test_replayed_steps_are_the_plain_steps(
    given: dict[str, Any], resident: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over chunks, a stop in the middle of one, an evaluation, and a checkpoint put back."""
    # The rate on the device is a float32, so the plain one's is rounded alike.
    exact = engine.learning_rate
    monkeypatch.setattr(engine, "Recorded", Again)
    monkeypatch.setattr(engine, "learning_rate", lambda *args: float(np.float32(exact(*args))))
    ours, theirs = (trainer_for(recorded, resident, **given) for recorded in (True, False))
    left = 2 * 13

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


def test_a_checkpoint_without_moments_for_biases_goes_on() -> None:
    """The kernels on CUDA give biases before batch norm no gradient, so Adam has no moments for them; and back."""
    trainer = trainer_for(False, False, method="supervised")
    trainer.advance(3)
    with_biases = copy.deepcopy(trainer.checkpoint())
    bias = {name for name in with_biases.optimizer if name.endswith(".1.bias")}
    assert len(bias) == 3  # two moments and how many steps
    moments = {name: value for name, value in with_biases.optimizer.items() if name not in bias}
    on_cpu = trainer_for(False, False, method="supervised")
    on_cpu.restore(engine.Checkpoint(with_biases.weights, with_biases.ema, moments, with_biases.state))
    on_cpu.advance(6)
    assert on_cpu.checkpoint().optimizer.keys() == with_biases.optimizer.keys()
    trainer.advance(6)
    for name, value in trainer.model.network.state_dict().items():
        if not name.startswith("1.") and "running_mean" not in name:  # batch norm takes away what the bias adds
            torch.testing.assert_close(on_cpu.model.network.state_dict()[name], value, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("error", [RuntimeError("it looks at its values"), torch.OutOfMemoryError("too little")])
def test_only_what_cannot_be_recorded_goes_on_without(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error on leaving an unfinished recording must not hide that there was too little memory for it."""
    recording = False

    class Unfinished:
        def __init__(self, *args: Any, **given: Any) -> None: ...

        def __enter__(self) -> None:
            nonlocal recording
            recording = True

        def __exit__(self, *given: object) -> None:
            nonlocal recording
            recording = False
            raise RuntimeError("operation failed due to a previous error during capture")

    class Left:
        """As a stream that waits for another in a recording that cannot go on."""

        def __enter__(self) -> None: ...

        def __exit__(self, *given: object) -> None:
            raise RuntimeError("operation not permitted")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    ended: list[Any] = []
    for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
        monkeypatch.setattr(torch._C, name, lambda *given, name=name: ended.append((name, *given)), raising=False)
    monkeypatch.setattr(torch.cuda, "graph", Unfinished)
    trainer, said = trainer_for(False, True, method="supervised"), list[str]()
    trainer.optimizer = build_optimizer(trainer.model.network, trainer.settings, trainer.rate)
    trainer._recorded = Recorded(trainer, CHUNK)
    take_step = trainer.take_step

    def step(*args: Any) -> None:
        if recording:
            with Left():
                raise error
        take_step(*args)

    monkeypatch.setattr(trainer, "take_step", step)
    trainer.tell(said.append)
    if isinstance(error, torch.OutOfMemoryError):
        with pytest.raises(torch.OutOfMemoryError, match="too little"):
            trainer.advance(8)
        assert said == []
        assert ended == [("_cuda_endAllocateToPool", 0, (0, 1)), ("_cuda_releasePool", 0, (0, 1))]
        return
    trainer.advance(8)
    assert "the step cannot be recorded (RuntimeError: operation failed" in said[0]
    assert trainer.step == 8
    assert not trainer.engine["recorded"]

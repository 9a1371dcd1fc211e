"""On a GPU: every method becomes a graph and learns what it learns without, several share memory and give it back.

Skipped where there is none. On one: `python -m pytest tests/test_cuda.py`, a few minutes.
"""

from __future__ import annotations

import copy
import gc
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mixmatch import networks
from mixmatch.data.embedding import embed
from mixmatch.data.source import Rows, Source
from mixmatch.data.split import make_split
from mixmatch.execution import here
from mixmatch.methods import METHODS
from mixmatch.methods.base import Batch, DataInfo, Method, Step
from mixmatch.networks.wide_resnet import WideResNet
from mixmatch.settings import resolve
from mixmatch.training.evaluate import predict_logits
from mixmatch.training.job import Work
from mixmatch.training.plan import plan
from mixmatch.training.progress import Quiet
from mixmatch.training.run import RunFolder
from mixmatch.training.trainer import Trainer
from mixmatch.training.world import Processes, World

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

GPU, STEPS, MIB = torch.device("cuda"), 48, 2**20
CASES: list[dict[str, Any]] = [{"method": method} for method in METHODS if method != "vat"]
CASES += [{"method": "vat", "xi": 0.1}]  # at its default of 1e-6 rounding decides the direction
CASES += [{"method": "mixmatch", **more} for more in ({"passes": "fused"}, {"guess_weights": "ema"}, {"K": 1})]
CASES += [{"method": "mixmatch", "optimizer": "sgd", "learning_rate": 0.01, "schedule": "cosine-7/16"}]
CASES += [{"method": method, "ema_warmup": True} for method in ("mixmatch", "mean-teacher")]


def source() -> Source:
    """Classes differ in brightness, so there is something to learn."""
    rng = np.random.default_rng(0)
    labels = np.arange(600, dtype=np.int64) % 10
    bright = 20 * labels[:, None, None, None] + rng.integers(0, 56, (600, 32, 32, 3))
    images = Rows(bright.astype(np.uint8), labels)
    return Source("bright", tuple("abcdefghij"), images, images)


def settings(**given: Any) -> dict[str, Any]:
    return {"labels": 40, "steps": STEPS, "eval_every": STEPS, "network": "wrn-10-1", "valid": 0, **given}


def trainer_for(
    *,
    graph: bool,
    compile: bool = False,
    precision: Any = "bf16",
    network: nn.Module | None = None,
    device: torch.device = GPU,
    world: World | None = None,
    **given: Any,
) -> Trainer:
    wanted, data = resolve("cifar10", settings(precision=precision, **given)), source()
    torch.manual_seed(0)
    network = network or networks.build(wanted.network, 10, (3, 32, 32))
    method = given["method"] if isinstance(given["method"], Method) else None
    split = make_split(data, 40, 1)
    return Trainer(wanted, data, split, network, device, method=method, compile=compile, graph=graph, world=world)


def learned(trainer: Trainer, until: int = STEPS) -> dict[str, float]:
    """The averages over steps that were taken without anything to be said, but how long compiling took."""
    said: list[str] = []
    trainer.send_notes_to(said.append)
    trainer.advance(until)
    assert [text for text in said if not text.startswith("compiled the training step in")] == []
    trainer.check_finite()
    return trainer.metrics()


@pytest.mark.parametrize("given", CASES, ids=str)
def test_every_method_is_graphed_with_kernels_and_learns_the_same(given: dict[str, Any]) -> None:
    ours, theirs = (trainer_for(graph=graph, **given) for graph in (True, False))
    # Roundings move a few predictions over a threshold.
    near = 0.02 if "strong" in ours.objective.method.views else 0.005
    assert learned(ours) == pytest.approx(learned(theirs), rel=0.05, abs=near)
    assert ours.engine["recorded"]
    assert ours.engine["kernels"]
    assert not theirs.engine["recorded"]


@pytest.mark.parametrize(
    "given",
    [{"method": "mixmatch"}, {"method": "vat", "xi": 0.1}, {"method": "mean-teacher", "ema_warmup": True}],
    ids=str,
)
def test_networks_without_kernels_are_graphed(given: dict[str, Any]) -> None:
    ours, theirs = (trainer_for(graph=graph, precision="fp32", **given) for graph in (True, False))
    assert learned(ours) == pytest.approx(learned(theirs), rel=0.03, abs=1e-3)
    assert ours.engine["recorded"]
    assert not ours.engine["kernels"]


@pytest.mark.parametrize("given", [{"method": "mixmatch"}, {"method": "ict", "ema_warmup": True}], ids=str)
def test_the_default_is_compiled_too(given: dict[str, Any]) -> None:
    ours, theirs = (trainer_for(graph=fast, compile=fast, **given) for fast in (True, False))
    assert learned(ours) == pytest.approx(learned(theirs), rel=0.05, abs=0.005)
    assert {name for name, on in ours.engine.items() if on is True} == {"compiled", "recorded", "kernels"}


@pytest.mark.parametrize("groups", [1, 2])
def test_an_exchange_over_nccl_is_part_of_the_graph(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a process that is alone, but exchanges as if there were others."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}
    for name, value in where.items():
        monkeypatch.setenv(name, value)
    first = torch.device(GPU.type, 0)
    world = Processes(first)
    given: dict[str, Any] = {"graph": True, "method": "flexmatch", "groups": groups, "device": first}
    ours, theirs = trainer_for(world=world, **given), trainer_for(**given)
    assert learned(ours) == pytest.approx(learned(theirs), rel=0.05, abs=0.005)
    assert ours.engine["recorded"]
    assert ours.engine["backend"] == "nccl"
    del ours
    gc.collect()
    torch.distributed.destroy_process_group()


def test_averages_that_warm_up_are_those_of_plain_steps() -> None:
    """The decay of each step reaches the graph: float64 averages of the weights it has after each step."""
    trainer = trainer_for(graph=True, method="mixmatch", ema_warmup=True)
    live = dict(trainer.model.network.named_parameters())
    expected = {name: value.double() for name, value in trainer.model.ema.items()}
    for step in range(20):
        trainer.advance(step + 1)
        trainer.wait()
        decay = min(trainer.settings.ema_decay, (1 + step) / (10 + step))
        expected = {n: decay * value + (1 - decay) * live[n].detach().double() for n, value in expected.items()}
    assert trainer.engine["recorded"]
    for name, value in expected.items():
        torch.testing.assert_close(trainer.model.ema[name].double(), value, rtol=1e-4, atol=1e-6)


class Looks(WideResNet):
    """A network that looks at its values, which cannot be captured."""

    def forward(self, x: Tensor) -> Tensor:
        assert x.mean().item() < 1e9
        return super().forward(x)


def test_what_cannot_be_captured_trains_all_the_same_and_memory_is_freed() -> None:
    trainer, said = trainer_for(graph=True, network=Looks(10), method="supervised"), list[str]()
    trainer.send_notes_to(said.append)
    trainer.advance(STEPS)
    assert "the step cannot be captured as a graph" in said[0]
    assert len(said) == 1
    trainer.check_finite()
    del trainer
    gc.collect()
    torch.cuda.empty_cache()
    left = torch.cuda.memory_reserved()
    large = torch.empty(256 * MIB, dtype=torch.uint8, device=GPU)
    del large
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == left


@dataclass(frozen=True)
class Counts(Method):
    """How often it has seen each unlabeled row is its state."""

    views = ("weak", "strong")

    def state(self, data: DataInfo) -> dict[str, Tensor]:
        return {"seen": torch.zeros(data.unlabeled, dtype=torch.int64, device=data.device)}

    def loss(self, model: Any, batch: Batch, draws: Any, progress: Any, state: Any) -> Step:
        weak, strong = batch.u
        guess = model(weak).detach().softmax(1)
        loss = -(batch.y * model(batch.x, stats="update").log_softmax(1)).sum(1).mean()
        loss = loss - (guess * model(strong).log_softmax(1)).sum(1).mean()
        seen = state["seen"].index_copy(0, batch.rows, state["seen"][batch.rows] + 1)
        return Step(loss, {"loss": loss}, {"seen": seen})


@pytest.mark.parametrize("compile", [False, True])
def test_the_state_of_a_method_is_kept_by_a_graph(compile: bool) -> None:
    ours = trainer_for(graph=True, compile=compile, method=Counts())
    theirs = trainer_for(graph=False, method=Counts())
    assert learned(ours) == pytest.approx(learned(theirs), rel=0.05, abs=0.005)
    assert ours.engine["recorded"]
    assert theirs.state["seen"].sum() > 0
    assert torch.equal(ours.state["seen"], theirs.state["seen"])


def test_a_checkpoint_in_the_middle() -> None:
    whole, first, second = (trainer_for(graph=True, method="mixmatch") for _ in range(3))
    expected = learned(whole)
    learned(first, 20)
    second.restore(copy.deepcopy(first.checkpoint()))
    assert learned(second) == pytest.approx(expected, rel=0.05, abs=0.005)
    assert second.step == STEPS
    assert second.engine["recorded"]


def job(out: Path, seed: int, **given: Any) -> Work:
    where = {"device": "cuda", "reporter": Quiet()}  # so short a run is a graph, but not compiled
    return plan(source(), {"seed": seed, **settings(), "method": "mixmatch", **given}, out=out, **where)


def test_runs_side_by_side_end_as_they_do_alone(tmp_path: Path) -> None:
    methods = ["mixmatch", "mean-teacher", "supervised"]
    beside = here.run_all([job(tmp_path / name, 1, method=name) for name in methods])
    for name, record in zip(methods, beside, strict=True):
        assert isinstance(record, dict), record
        assert record["engine"]["recorded"]
        here.run_one(job(tmp_path / f"{name} alone", 1, method=name))
        ours, theirs = (RunFolder(tmp_path / folder).metrics()[-1] for folder in (name, f"{name} alone"))
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=0.05, abs=0.005)


def test_runs_that_are_over_give_their_memory_back(tmp_path: Path) -> None:
    """But for what libraries keep of each stream, which is used again."""
    taken: list[int] = []

    def started(number: int) -> None:
        gc.collect()
        taken.append(torch.cuda.memory_allocated() // MIB)

    here.run_all([job(tmp_path / str(seed), seed) for seed in range(6)], 1, started)
    assert max(taken[2:]) <= taken[1] + 4, taken


def test_what_does_not_fit_waits_for_the_others(tmp_path: Path) -> None:
    def starts(runs: int, name: str) -> list[int]:
        begun: list[int] = []
        jobs = [job(tmp_path / f"{name}{seed}", seed, steps=512) for seed in range(runs)]  # so long that all overlap
        records = here.run_all(jobs, 4, begun.append)
        assert all(isinstance(record, dict) for record in records), records
        return begun

    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_reserved()
    assert starts(1, "alone") == [0]
    alone, whole = torch.cuda.max_memory_reserved() - before, torch.cuda.get_device_properties(GPU).total_memory
    try:
        torch.cuda.set_per_process_memory_fraction((before + 2.5 * alone) / whole)
        assert len(starts(4, "beside")) > 4
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_features_and_predictions_are_those_of_a_cpu() -> None:
    """Without TF32, whose products have ten bits."""
    data = source()
    ours, theirs = (embed(data, "basic", views=2, device=device) for device in (GPU, torch.device("cpu")))
    assert np.abs(ours.train.inputs - theirs.train.inputs).max() < 1e-3
    torch.manual_seed(0)
    network = networks.build("wrn-10-1", 10, (3, 32, 32)).eval()
    logits, expected = (
        torch.cat([piece.cpu() for piece in predict_logits(copy.deepcopy(network).to(on), data.test.inputs, on)])
        for on in (GPU, torch.device("cpu"))
    )
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)

"""The compiled step against the plain one, in float64, where a difference is a mistake and not rounding."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fitting import fit
from torch import Tensor, nn

from mixmatch import networks
from mixmatch.augment import Augmentation
from mixmatch.data.source import Rows, Source
from mixmatch.data.split import make_split
from mixmatch.draws import Draws
from mixmatch.methods import METHODS
from mixmatch.settings import resolve
from mixmatch.training import compile as fast
from mixmatch.training import trainer as engine
from mixmatch.training.progress import Quiet
from mixmatch.training.run import RunFolder
from mixmatch.training.session import averaged
from mixmatch.training.step import Objective
from mixmatch.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("compiler")

CPU = torch.device("cpu")
SUCCESSORS = ("uda", "remixmatch", "fixmatch", "flexmatch", "freematch", "softmatch", "adamatch")
CASES: list[dict[str, Any]] = [{"method": method} for method in METHODS if method not in ("vat", *SUCCESSORS)]
CASES += [{"method": method, "strong": "cutout"} for method in SUCCESSORS if method != "remixmatch"]
CASES += [
    {"method": "remixmatch", "strong": "cutout", "K": 2, "lambda_r": 0.0}
]  # the network has no head for rotations
CASES += [{"method": "vat", "xi": 0.01}]  # at its default of 1e-6 rounding decides the direction, even in float64
CASES += [{"method": "mixmatch", "passes": "fused"}, {"method": "mixmatch", "guess_weights": "ema", "ema_warmup": True}]


def named(given: dict[str, Any]) -> str:
    return "-".join(map(str, given.values()))


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.LeakyReLU(0.1), nn.Flatten(), nn.Linear(4 * 36, 3)
    )


def dense() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.BatchNorm1d(4), nn.LeakyReLU(0.1), nn.Linear(4, 3))


def source() -> Source:
    rng = np.random.default_rng(0)
    images = Rows(rng.integers(0, 256, (60, 6, 6, 1), np.uint8), np.arange(60, dtype=np.int64) % 3)
    return Source("tiny", ("a", "b", "c"), images, images)


def trainer_for(make: Callable[[], nn.Module] = network, *, compile: bool = False, **given: Any) -> Trainer:
    settings = resolve("tiny", {"labels": 12, "batch_size": 6, "pad": 1, "steps": 9, "eval_every": 3, **given})
    torch.manual_seed(0)
    module = make()
    settings = replace(settings, network="custom:test")
    data = source()
    return Trainer(settings, data, make_split(data, 12, 1), module, CPU, compile=compile)


@dataclass(frozen=True)
class Double:
    """An augmentation that gives float64."""

    inner: Augmentation

    def draw(self, rng: np.random.Generator, views: int, count: int) -> Draws:
        return self.inner.draw(rng, views, count)

    def __call__(self, inputs: Tensor, draws: Mapping[str, Tensor]) -> Tensor:
        return self.inner(inputs, draws).double()


def in_double(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.double() if value.is_floating_point() else value for name, value in tensors.items()}


def with_double(objective: Objective) -> Objective:
    return replace(objective, weak=Double(objective.weak), strong=Double(objective.strong))


def one_step(compile: bool, seed: int = 0, loss: fast.Loss | None = None, **given: Any) -> dict[str, Tensor]:
    """The loss, metrics, gradients and batch-norm statistics of a step in float64."""
    trainer = trainer_for(**given)
    torch.manual_seed(seed)
    module = network().double()
    objective = with_double(trainer.objective)
    ema = {name: 0.9 * p.detach() for name, p in module.named_parameters()}
    draws = {name: values[0] for name, values in trainer.batches.chunk(4, 1, False).items()}
    x = trainer.batches.pool.fetch(draws["labeled"])
    u = trainer.batches.pool.fetch(draws["unlabeled"]) if "unlabeled" in draws else None
    labels = trainer.labels[draws["labeled"]]
    draws = in_double(draws)
    state = in_double(trainer.state)
    if objective.method.noise:
        draws["method/noise"] = trainer.batches.noise(4).double()
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    if compile:
        value, metrics, after = (loss or fast.compiled(objective, module, "fp32"))(
            tensors, ema, labels, x, u, draws, state
        )
    else:
        value, metrics, after = objective.loss(fast.Forward(module, ema, "fp32"), labels, x, u, draws, state)
    value.backward()  # type: ignore[no-untyped-call]
    gradients = {f"gradient of {name}": p.grad for name, p in module.named_parameters() if p.grad is not None}
    assert len(gradients) == 6
    return {"loss": value.detach(), **metrics, **gradients, **dict(module.named_buffers()), **after}


def same(given: dict[str, Any]) -> None:
    plain, compiled = one_step(False, **given), one_step(True, **given)
    assert plain.keys() == compiled.keys()
    for name, value in plain.items():
        torch.testing.assert_close(compiled[name], value, rtol=1e-9, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


def test_a_compiled_step_is_the_plain_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the end, which takes a long time: of a method with a state, and with few layers."""
    monkeypatch.setattr(sys.modules[__name__], "network", dense)
    same({"method": "flexmatch", "strong": "cutout"})


@pytest.mark.parametrize("given", CASES, ids=named)
@pytest.mark.usefixtures("graphs")
def test_every_step_is_one_graph_that_computes_the_same(given: dict[str, Any]) -> None:
    same(given)


@pytest.mark.usefixtures("graphs")
def test_a_compiled_run_has_the_metrics_of_a_plain_one() -> None:
    plain, compiled = trainer_for(), trainer_for(compile=True)
    for trainer in (plain, compiled):
        trainer.advance(3)
        trainer.clear_metrics()
        trainer.advance(6)
    assert compiled.engine["compiled"]
    assert list(plain.metrics()) == list(compiled.metrics()) == ["loss", "loss_x", "loss_u", "confidence"]
    assert plain.metrics()["loss"] > 0.1
    assert compiled.metrics() == pytest.approx(plain.metrics(), rel=1e-3)
    compiled.check_finite()
    with torch.no_grad():
        next(compiled.model.network.parameters()).fill_(float("nan"))
    compiled.advance(8)
    with pytest.raises(engine.NotFinite) as caught:
        compiled.check_finite()
    assert caught.value.step == 6


@pytest.mark.usefixtures("graphs")
def test_networks_alike_share_what_was_compiled() -> None:
    given = {"method": "supervised"}
    trainer = trainer_for(**given)
    objective = with_double(trainer.objective)
    shared = fast.compiled(objective, network().double(), "fp32", name="a name")
    assert fast.compiled(objective, network().double(), "fp32", name="a name") is shared
    assert fast.compiled(objective, network().double(), "bf16", name="a name") is not shared
    assert fast.compiled(replace(objective, steps=10), network().double(), "fp32", name="a name") is not shared
    wider = nn.Sequential(nn.Flatten(), nn.Linear(36, 3)).double()
    assert fast.compiled(objective, wider, "fp32", name="a name") is not shared
    assert fast.compiled(objective, network().double(), "fp32", name="another") is not shared
    assert fast.compiled(objective, network().double(), "fp32") is not fast.compiled(
        objective, network().double(), "fp32"
    )
    first = one_step(True, 1, shared, **given)
    with torch._dynamo.config.patch(error_on_recompile=True):
        second = one_step(True, 2, shared, **given)
    for seed, got in ((1, first), (2, second)):
        for name, value in one_step(False, seed, **given).items():
            torch.testing.assert_close(got[name], value, rtol=1e-9, atol=1e-12)
    assert not torch.equal(first["loss"], second["loss"])


@pytest.mark.usefixtures("graphs")
def test_runs_share_what_was_compiled_and_nothing_else() -> None:
    """Neither an evaluation nor a second run compiles again, and no run changes another's network."""
    data = source()

    def trainer(seed: int) -> Trainer:
        settings = resolve("tiny", {"labels": 12, "batch_size": 6, "pad": 1, "steps": 9, "method": "supervised"})
        settings = replace(settings, seed=seed, network="wrn-10-1")
        torch.manual_seed(seed)
        module = networks.build("wrn-10-1", 3, (1, 6, 6))
        return Trainer(settings, data, make_split(data, 12, seed), module, CPU, compile=True)

    first = trainer(1)
    first.advance(1)
    with torch._dynamo.config.patch(error_on_recompile=True):
        first.evaluate()
        first.advance(2)
        done = averaged(first)
        second = trainer(2)
        second.advance(2)
    assert first.engine["compiled"]
    assert second.engine["compiled"]
    assert not done.network.training


def test_where_compiled_code_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "TORCHINDUCTOR_CACHE_DIR"
    monkeypatch.setenv(name, "chosen")
    fast.keep_compiled_code()
    assert os.environ[name] == "chosen"
    monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MIXMATCH_DATA", str(tmp_path / "data"))  # may be a stranger's, and compiled code is run
    fast.keep_compiled_code()
    assert os.environ[name] == str(tmp_path / "cache" / "mixmatch" / "compiled")
    assert not (tmp_path / "data").exists()
    monkeypatch.delenv(name)
    (tmp_path / "file").touch()  # a folder below it cannot be made
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    fast.keep_compiled_code()
    assert name not in os.environ


def folder(path: Path) -> RunFolder:
    path.mkdir()
    return RunFolder(path)


class LooksAtValues(nn.Module):
    """Cannot be compiled as one graph: what it does depends on what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.inner(x)
        return logits + 1 if logits.sum().item() > 0 else logits


class Notes(Quiet):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_what_cannot_be_compiled_trains_all_the_same(tmp_path: Path) -> None:
    said = Notes()
    trainer = trainer_for(LooksAtValues, compile=True, method="supervised")
    fit(trainer, folder(tmp_path / "a"), said)
    assert len(said.notes) == 1
    assert said.notes[0].startswith("the step cannot be compiled (")
    assert said.notes[0].endswith("): training continues without, more slowly")
    assert "\n" not in said.notes[0]
    plain = trainer_for(LooksAtValues, method="supervised")
    fit(plain, folder(tmp_path / "b"), Quiet())
    for name, value in plain.model.network.state_dict().items():
        assert torch.equal(trainer.model.network.state_dict()[name], value)


@pytest.mark.usefixtures("graphs")
def test_a_compiled_run_says_so_once_and_trains(tmp_path: Path) -> None:
    said = Notes()
    trainer = trainer_for(compile=True, method="supervised")
    fit(trainer, RunFolder(tmp_path), said)
    assert [text.split(" in ")[0] for text in said.notes] == ["compiled the training step"]
    assert trainer.setup_seconds > 0
    plain = trainer_for(method="supervised")
    plain.advance(9)
    ours, theirs = trainer.model.network.state_dict(), plain.model.network.state_dict()
    torch.testing.assert_close(ours["4.weight"], theirs["4.weight"], rtol=0, atol=1e-3)  # nine steps of up to 0.002
    assert RunFolder(tmp_path).metrics()[-1]["step"] == 9

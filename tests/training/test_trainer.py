"""The training loop on tiny data: exact to resume, honest about what it evaluates, and safe when things go wrong."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fitting import fit
from torch import Tensor, nn

from mixmatch.data.pool import Pool
from mixmatch.data.source import Rows, Source
from mixmatch.data.split import make_split
from mixmatch.errors import MixMatchError
from mixmatch.methods.base import Batch, Method, Step
from mixmatch.networks import WideResNet
from mixmatch.settings import resolve
from mixmatch.training import checkpoint, loop
from mixmatch.training import trainer as engine
from mixmatch.training.evaluate import reported_error
from mixmatch.training.progress import Quiet
from mixmatch.training.run import RunFolder
from mixmatch.training.stop import Interrupted
from mixmatch.training.trainer import Trainer

CPU = torch.device("cpu")
SIZE, CLASSES = 6, 3


def tiny_source(train: int = 40, test: int = 150, unknown: int = 0) -> Source:
    """Classes differ by brightness; `unknown` test images have no label."""
    rng = np.random.default_rng(0)

    def part(count: int) -> Rows:
        labels = np.arange(count) % CLASSES
        images = rng.integers(0, 120, (count, SIZE, SIZE, 1)) + 60 * labels[:, None, None, None]
        return Rows(images.astype(np.uint8), labels.astype(np.int64))

    made = Source("tiny", ("a", "b", "c"), part(train), part(test))
    made.test.labels[:unknown] = -1
    return made


def small_network() -> nn.Module:
    torch.manual_seed(0)
    return WideResNet(CLASSES, in_channels=1, filters=4, repeat=1, scales=2, momentum=0.1)


class WithDropout(nn.Module):
    """A network of a user's own, with randomness of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(SIZE * SIZE, 16), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x))


TINY: dict[str, Any] = {"labels": 6, "batch_size": 5, "pad": 1, "steps": 11, "eval_every": 4, "ema_decay": 0.8}


def trainer_for(
    network: Callable[[], nn.Module] = small_network, source: Source | None = None, **given: Any
) -> Trainer:
    source = source or tiny_source()
    method = given.get("method", "mixmatch")
    settings = resolve("tiny", {**TINY, **({"ramp": 8} if method == "mixmatch" else {}), **given})
    split = make_split(source, settings.labels, settings.seed, settings.valid)
    return Trainer(settings, source, split, network(), CPU)


def state(trainer: Trainer) -> dict[str, Tensor]:
    """Everything that training changes."""
    now = trainer.checkpoint()
    return {
        f"{part}/{name}": tensor.detach().clone()
        for part in ("weights", "ema", "optimizer")
        for name, tensor in getattr(now, part).items()
    }


def chunks_of(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (engine, loop):
        monkeypatch.setattr(module, "CHUNK", steps)


def assert_identical(a: Trainer, b: Trainer) -> None:
    assert a.step == b.step
    x, y = state(a), state(b)
    assert x.keys() == y.keys()
    for name in x:
        assert torch.equal(x[name], y[name]), name


def without_time(run: RunFolder) -> list[dict[str, Any]]:
    return [{name: value for name, value in record.items() if name != "seconds"} for record in run.metrics()]


# ---------------------------------------------------------------- a step's images


class Recorder(Method):
    """A method that notes what it is given; the loss is of no interest."""

    views = ("weak", "weak")

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.steps: list[float] = []

    def draw(self, rng: np.random.Generator, batch_size: int) -> dict[str, Any]:
        return {"own": rng.random(3)}

    def loss(self, model: Any, batch: Batch, draws: Mapping[str, Tensor], progress: Any, state: Any) -> Step:
        assert set(draws) == {"own"}
        self.batches.append(batch)
        self.steps.append(progress.step.item())
        loss = model(batch.x, stats="update").sum() * 0
        return Step(loss, {"loss": loss})


def augmented(image: np.ndarray, pad: int, offset: np.ndarray, flip: int) -> np.ndarray:
    """Flip, mirror-pad, crop; pixels to [-1, 1]; channels first."""
    image = image[:, ::-1] if flip else image
    padded = np.pad(image, ((pad, pad), (pad, pad), (0, 0)), mode="reflect")
    y, x = offset
    crop = padded[y : y + SIZE, x : x + SIZE]
    return (crop.astype(np.float64) * 2 / 255 - 1).transpose(2, 0, 1)


def test_a_method_gets_the_images_and_labels_that_were_drawn() -> None:
    trainer = trainer_for(flip=True, pad=2, valid=3)
    source, split = trainer.source, trainer.split
    recorder = Recorder()
    trainer.objective = trainer.batches.objective = replace(trainer.objective, method=recorder)
    trainer.advance(3)
    assert recorder.steps == [0, 1, 2]
    for step, batch in enumerate(recorder.batches):
        drawn = trainer.batches.draw(step)
        assert set(drawn["labeled"]) <= set(split.labeled)
        assert drawn["unlabeled"].tolist() == split.unlabeled[batch.rows.numpy()].tolist()
        for i, row in enumerate(drawn["labeled"]):
            image = augmented(source.train.inputs[row], 2, drawn["x/offset"][0, i], drawn["x/flip"][0, i])
            np.testing.assert_allclose(batch.x[i].numpy(), image, atol=1e-6)
            assert batch.y[i].tolist() == [float(c == source.train.labels[row]) for c in range(CLASSES)]
        for view in range(2):
            for i, row in enumerate(drawn["unlabeled"]):
                image = augmented(source.train.inputs[row], 2, drawn["u/offset"][view, i], drawn["u/flip"][view, i])
                np.testing.assert_allclose(batch.u[view, i].numpy(), image, atol=1e-6)
    assert not np.array_equal(trainer.batches.draw(0)["u/offset"][0], trainer.batches.draw(0)["u/offset"][1])
    assert not set(split.labeled) & set(split.unlabeled)
    assert not set(split.valid) & set(split.unlabeled)


# ---------------------------------------------------------------- exact


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"passes": "fused"},
        {"method": "supervised"},
        {"schedule": "cosine"},
        {"ema_warmup": True},
        {"label_sampling": "balanced"},
    ],
)
def test_chunks_of_any_length_give_the_same_bits(monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> None:
    whole = trainer_for(**settings)
    before = state(whole)
    whole.advance(11)
    assert any(not torch.equal(value, before.get(name, value)) for name, value in state(whole).items())
    pieces = trainer_for(**settings)
    for until in (1, 4, 5, 5, 11):
        pieces.advance(until)
    assert_identical(whole, pieces)
    chunks_of(3, monkeypatch)
    threes = trainer_for(**settings)
    threes.advance(11)
    assert_identical(whole, threes)
    assert whole.metrics() == pieces.metrics() == threes.metrics()


@pytest.mark.parametrize("network", [small_network, WithDropout])
@pytest.mark.parametrize("at", [0, 1, 6])
@pytest.mark.parametrize("given", [{}, {"ema_warmup": True, "label_sampling": "balanced"}])
def test_a_checkpoint_resumes_to_the_same_bits(
    tmp_path: Path, network: Callable[[], nn.Module], at: int, given: dict[str, Any]
) -> None:
    straight = trainer_for(network, **given)
    straight.advance(11)
    first = trainer_for(network, **given)
    first.advance(at)
    path = checkpoint.save(tmp_path, first.checkpoint())
    torch.manual_seed(999)  # what happened in between must not matter
    second = trainer_for(network, **given)
    for parameter in second.model.network.parameters():
        nn.init.constant_(parameter, 9.0)
    second.restore(checkpoint.load(path))
    assert_identical(first, second)
    second.advance(11)
    assert_identical(straight, second)
    assert second.metrics() == straight.metrics()


def test_seeds_differ() -> None:
    a, b = trainer_for(), trainer_for(seed=2)
    assert not np.array_equal(a.batches.draw(0)["method/lam"], b.batches.draw(0)["method/lam"])


def test_a_checkpoint_of_another_network_is_refused() -> None:
    saved = trainer_for(WithDropout).checkpoint()
    with pytest.raises(MixMatchError, match="is of another network"):
        trainer_for().restore(saved)

    def wider() -> nn.Module:
        return WideResNet(CLASSES, in_channels=1, filters=8, repeat=1, scales=2)

    with pytest.raises(MixMatchError, match="is of another network"):
        trainer_for().restore(trainer_for(wider).checkpoint())


def test_the_random_state_of_the_network_does_not_depend_on_the_past() -> None:
    a, b = trainer_for(WithDropout, method="supervised"), trainer_for(WithDropout, method="supervised")
    torch.manual_seed(1)
    a.advance(3)
    torch.manual_seed(2)
    b.advance(1)
    torch.rand(100)
    b.advance(3)
    assert_identical(a, b)


# ---------------------------------------------------------------- evaluation


@pytest.mark.parametrize(
    ("steps", "every", "expected"), [(11, 4, [4, 8, 11]), (8, 4, [4, 8]), (3, 100, [3]), (3, 1, [1, 2, 3])]
)
def test_when_it_evaluates(tmp_path: Path, steps: int, every: int, expected: list[int]) -> None:
    run = RunFolder(tmp_path)
    tmp_path.mkdir(exist_ok=True)
    seen: list[int] = []

    class Seen(Quiet):
        def evaluated(self, record: Mapping[str, Any]) -> None:
            seen.append(record["step"])

    trainer = trainer_for(WithDropout, method="supervised", steps=steps, eval_every=every)
    seconds = fit(trainer, run, Seen())
    assert [record["step"] for record in run.metrics()] == seen == expected
    assert trainer.step == steps
    assert seconds > 0
    newest = run.load_checkpoint()
    assert newest is not None
    assert newest.step == steps


def independent_evaluation(run: RunFolder, images: Rows) -> tuple[float, float]:
    """Averaged weights, the live network's running statistics, in float64."""
    saved = run.load_checkpoint()
    assert saved is not None
    network = small_network().double()
    state = {name: value.double() for name, value in saved.weights.items()}
    state.update({name: value.double() for name, value in saved.ema.items()})
    network.load_state_dict(state)
    network.eval()
    known = images.labels >= 0
    pixels = images.inputs[known].astype(np.float64) * 2 / 255 - 1
    with torch.no_grad():
        logits = network(torch.from_numpy(pixels.transpose(0, 3, 1, 2))).numpy()
    labels = images.labels[known]
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    error = 100 * np.mean([row.argmax() != label for row, label in zip(logits, labels, strict=True)])
    return float(error), float(-log_p[np.arange(len(labels)), labels].mean())


@pytest.mark.parametrize("unknown", [0, 7])
def test_the_numbers_are_of_the_averaged_weights_with_the_live_statistics(
    tmp_path: Path, unknown: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, run = tiny_source(unknown=unknown), RunFolder(tmp_path)
    monkeypatch.setattr(engine, "LEAST_VALID", 9)
    trainer = trainer_for(source=source, steps=6, eval_every=6, valid=9, learning_rate=0.02)
    fit(trainer, run, Quiet())
    (record,) = run.metrics()
    error, loss = independent_evaluation(run, source.test)
    assert record["test_error"] == pytest.approx(error, abs=1e-9)
    assert record["test_loss"] == pytest.approx(loss, rel=1e-4)
    valid = Rows(source.train.inputs[trainer.split.valid], source.train.labels[trainer.split.valid])
    assert len(valid) == 9
    error, loss = independent_evaluation(run, valid)
    assert record["valid_error"] == pytest.approx(error, abs=1e-9)
    assert record["valid_loss"] == pytest.approx(loss, rel=1e-4)
    # It matters which weights: the live ones give another loss.
    images = torch.from_numpy(source.test.inputs[unknown:].astype(np.float32) * 2 / 255 - 1).movedim(-1, 1)
    with torch.no_grad():
        live = trainer.model(images, stats="running")
    truth = torch.from_numpy(source.test.labels[unknown:])
    assert abs(nn.functional.cross_entropy(live, truth).item() - record["test_loss"]) > 1e-3


@pytest.mark.parametrize("valid", [0, 1, 9])
def test_without_enough_validation_images_there_are_no_such_numbers(tmp_path: Path, valid: int) -> None:
    """The paper's protocol holds out one image: 0 or 100 % would mean nothing."""
    run = RunFolder(tmp_path)
    fit(trainer_for(WithDropout, steps=1, method="supervised", valid=valid), run, Quiet())
    assert {name for record in run.metrics() for name in record} == {
        "step",
        "test_error",
        "test_loss",
        "loss",
        "seconds",
    }


def test_test_images_of_unknown_class_only(tmp_path: Path) -> None:
    """Nothing to evaluate on: it trains all the same, and no error is made up."""
    trainer, run = trainer_for(WithDropout, source=tiny_source(unknown=150), steps=1), RunFolder(tmp_path)
    fit(trainer, run, Quiet())
    assert [record["step"] for record in run.metrics()] == [1]
    assert "test_error" not in run.metrics()[0]


def test_losses_are_averaged_since_the_last_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, run = trainer_for(), RunFolder(tmp_path)
    losses: list[float] = []
    original = Trainer.loss

    def noting(self: Trainer, *args: Any) -> Step:
        step = original(self, *args)
        losses.append(step.loss.item())
        return step

    monkeypatch.setattr(Trainer, "loss", noting)
    fit(trainer, run, Quiet())
    expected = [np.mean(losses[0:4]), np.mean(losses[4:8]), np.mean(losses[8:11])]
    assert [record["loss"] for record in run.metrics()] == pytest.approx(expected, rel=1e-12)


def test_the_reported_error_is_the_median_of_the_last_20() -> None:
    early = [0.0] * 100  # good once, but that does not count
    assert reported_error([*early, *range(1, 21)]) == (10.5, 20)
    assert reported_error([*early, *reversed(range(1, 21))]) == (10.5, 20)
    assert reported_error([0.0, *[5.0] * 9, 6.0, *[7.0] * 10]) == (6.5, 20)
    assert reported_error([3.0, 9.0, 4.0]) == (4.0, 3)
    assert reported_error([3.0, 9.0]) == (6.0, 2)
    assert reported_error([7.5]) == (7.5, 1)


# ---------------------------------------------------------------- settings at work


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "cosine-7/16"])
def test_the_schedule_sets_each_steps_rate(schedule: str) -> None:
    trainer = trainer_for(WithDropout, method="supervised", schedule=schedule, learning_rate=0.01, steps=8)
    rates: list[float] = []
    step = trainer.optimizer.step

    def noting() -> None:
        rates.append(trainer.optimizer.param_groups[0]["lr"])
        assert len({group["lr"] for group in trainer.optimizer.param_groups}) == 1
        step()

    trainer.optimizer.step = noting  # type: ignore[method-assign,assignment]
    trainer.advance(3)
    trainer.advance(8)
    expected = {
        "constant": [0.01] * 8,
        "linear": [0.01 * (8 - s) / 8 for s in range(8)],
        "cosine": [0.005 * (1 + math.cos(math.pi * s / 8)) for s in range(8)],
        "cosine-7/16": [0.01 * math.cos(7 * math.pi * s / (16 * 8)) for s in range(8)],
    }[schedule]
    assert rates == pytest.approx(expected, rel=1e-12)


def test_the_average_starts_at_the_initial_weights_and_follows() -> None:
    trainer = trainer_for(WithDropout, method="supervised", ema_decay=0.75)
    expected = {name: p.detach().numpy().astype(np.float64) for name, p in trainer.model.network.named_parameters()}
    for step in range(1, 4):
        trainer.advance(step)
        for name, p in trainer.model.network.named_parameters():
            expected[name] = 0.75 * expected[name] + 0.25 * p.detach().numpy()
    for name, value in expected.items():
        np.testing.assert_allclose(trainer.model.ema[name].numpy(), value, atol=1e-6)


def test_an_average_that_warms_up_spans_a_tenth_of_the_steps_until_its_decay() -> None:
    """Against the recursion in float64; 0.4 is reached at step 5, when (1 + t) / (10 + t) is."""
    trainer = trainer_for(WithDropout, method="supervised", ema_decay=0.4, ema_warmup=True, learning_rate=0.05)
    network = trainer.model.network
    expected = {name: p.detach().numpy().astype(np.float64) for name, p in network.named_parameters()}
    for t, decay in enumerate([1 / 10, 2 / 11, 3 / 12, 4 / 13, 5 / 14, 0.4, 0.4, 0.4]):
        trainer.advance(t + 1)
        for name, p in network.named_parameters():
            expected[name] = decay * expected[name] + (1 - decay) * p.detach().numpy()
            np.testing.assert_allclose(trainer.model.ema[name].numpy(), expected[name], rtol=1e-5, atol=1e-6)
    plain = trainer_for(WithDropout, method="supervised", ema_decay=0.4, learning_rate=0.05)
    plain.advance(8)
    for name, p in plain.model.network.named_parameters():
        assert torch.equal(p, network.get_parameter(name))  # what is trained does not depend on it


def test_balanced_sampling_draws_every_class_of_uneven_labels_alike() -> None:
    source = tiny_source(train=60)
    source.train.labels[30:] = 0  # 40 of 60
    uniform, balanced = (
        trainer_for(WithDropout, source=source, labels=30, batch_size=6, label_sampling=sampling)
        for sampling in ("uniform", "balanced")
    )
    np.testing.assert_array_equal(np.sort(uniform.split.labeled), np.sort(balanced.split.labeled))
    counts = []
    for trainer in (uniform, balanced):
        drawn = np.concatenate([trainer.batches.draw(step)["labeled"] for step in range(10)])
        assert set(drawn) == set(trainer.split.labeled)
        counts.append(np.bincount(source.train.labels[drawn]).tolist())
    assert counts == [[40, 10, 10], [20, 20, 20]]


def test_no_unlabeled_images_left() -> None:
    with pytest.raises(MixMatchError, match=r"no unlabeled images are left for method 'mixmatch'.*supervised"):
        trainer_for(labels="all")
    trainer = trainer_for(WithDropout, labels="all", method="supervised")
    trainer.advance(2)
    assert trainer.step == 2


def test_padding_as_large_as_the_image_is_refused() -> None:
    with pytest.raises(MixMatchError, match="pad must be between 0 and 5"):
        trainer_for(pad=SIZE)


@pytest.mark.parametrize("kind", [np.int32, np.int8])
def test_labels_of_any_whole_number_type(tmp_path: Path, kind: Any) -> None:
    source = tiny_source()
    narrow = Source(
        "tiny",
        source.classes,
        Rows(source.train.inputs, source.train.labels.astype(kind)),
        Rows(source.test.inputs, source.test.labels.astype(kind)),
    )
    a, b = trainer_for(WithDropout, source=source), trainer_for(WithDropout, source=narrow)
    runs = [RunFolder(tmp_path / name) for name in "ab"]
    for trainer, run in zip((a, b), runs, strict=True):
        run.path.mkdir()
        fit(trainer, run, Quiet())
    assert_identical(a, b)
    assert without_time(runs[0]) == without_time(runs[1])


def test_bf16_trains_on_the_cpu(tmp_path: Path) -> None:
    exact, rough = trainer_for(), trainer_for(precision="bf16")
    exact.advance(11)
    fit(rough, RunFolder(tmp_path), Quiet())
    assert all(p.dtype == torch.float32 for p in rough.model.network.parameters())
    record = RunFolder(tmp_path).metrics()[-1]
    assert math.isfinite(record["loss"])
    assert not torch.equal(state(exact)["weights/stem.weight"], state(rough)["weights/stem.weight"])


def test_it_learns(tmp_path: Path) -> None:
    trainer = trainer_for(WithDropout, steps=150, eval_every=50, learning_rate=0.01, lambda_u=5)
    fit(trainer, RunFolder(tmp_path), Quiet())
    assert RunFolder(tmp_path).metrics()[-1]["test_error"] < 20  # a guess is wrong in 67 % of cases


# ---------------------------------------------------------------- not a number


class BreaksDown(WithDropout):
    """Fine for six training passes, then infinite."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += self.training
        return super().forward(x) * (math.inf if self.passes > 6 else 1)


@pytest.mark.parametrize("chunk", [1, 32])
def test_an_infinite_loss_stops_the_run_with_its_step_and_keeps_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    chunks_of(chunk, monkeypatch)
    run = RunFolder(tmp_path)
    with pytest.raises(MixMatchError) as caught:
        fit(trainer_for(BreaksDown, method="supervised"), run, Quiet(), checkpoint_every=5)
    assert str(caught.value) == (
        f"the loss was not finite at step 6: the last good checkpoint, step 5, is kept in {tmp_path}; "
        "try a lower learning rate in another folder"
    )
    saved = run.load_checkpoint()
    assert saved is not None
    assert saved.step == 5
    for part in (saved.weights, saved.ema, saved.optimizer):
        assert all(torch.isfinite(tensor).all() for tensor in part.values())
    assert [record["step"] for record in run.metrics()] == [4]


def test_a_rate_far_too_high(tmp_path: Path) -> None:
    with pytest.raises(MixMatchError, match=r"^the loss was not finite at step 1: nothing was saved yet in "):
        fit(trainer_for(learning_rate=1e30), RunFolder(tmp_path), Quiet())
    assert not list(tmp_path.glob("checkpoint/step-*"))


class BadGradient(WithDropout):
    """The loss is finite in the fourth step, its gradient is not."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += self.training
        logits = super().forward(x)
        return logits + (torch.sqrt(logits * 0) if self.training and self.passes == 4 else 0)


@pytest.mark.parametrize("steps", [4, 8])
def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path, steps: int) -> None:
    run = RunFolder(tmp_path)
    with pytest.raises(MixMatchError, match=r"not finite at step 4: the last good checkpoint, step 2, is kept"):
        fit(trainer_for(BadGradient, method="supervised", steps=steps), run, Quiet(), checkpoint_every=2)
    assert [path.name for path in checkpoint.list_checkpoints(run.checkpoints)] == ["step-00000002"]
    assert run.metrics() == []


# ---------------------------------------------------------------- stopped and resumed


class Kill(Quiet):
    """Sends this process a signal when training reaches a step, or when an evaluation is done."""

    def __init__(self, number: int, at: int, when: str) -> None:
        self.number, self.at, self.when = number, at, when

    def steps(self, step: int, values: Mapping[str, float]) -> None:
        if self.when == "steps" and step >= self.at:
            os.kill(os.getpid(), self.number)

    def evaluated(self, record: Mapping[str, Any]) -> None:
        if self.when == "evaluated" and record["step"] >= self.at:
            os.kill(os.getpid(), self.number)


def kill_in_evaluation(trainer: Trainer, at: int, times: int = 1) -> None:
    """The signal comes while the second batch of an evaluation is looked at."""
    seen = 0

    def hook(module: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal seen
        if not module.training and trainer.step >= at:
            seen += 1
            if seen == 2:
                for _ in range(times):
                    os.kill(os.getpid(), signal.SIGINT)

    trainer.model.network.register_forward_hook(hook)


@pytest.mark.parametrize(
    ("number", "at", "when", "stopped_at"),
    [
        (signal.SIGINT, 5, "steps", 6),  # chunks of 3 end at 3, 4 (an evaluation), 7 ... of 2: 2, 4, 6
        (signal.SIGTERM, 4, "steps", 4),
        (signal.SIGINT, 4, "evaluated", 4),
        (signal.SIGINT, 8, "evaluation", 8),
        (signal.SIGINT, 11, "evaluation", 11),
    ],
)
@pytest.mark.parametrize("network", [small_network, WithDropout])
def test_an_interrupted_run_ends_where_it_would_have(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    at: int,
    when: str,
    stopped_at: int,
    network: Callable[[], nn.Module],
) -> None:
    chunks_of(2, monkeypatch)
    straight, whole = trainer_for(network, valid=2), RunFolder(tmp_path / "whole")
    first, parts = trainer_for(network, valid=2), RunFolder(tmp_path / "parts")
    for run in (whole, parts):
        run.path.mkdir()
    fit(straight, whole, Quiet())

    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    if when == "evaluation":
        kill_in_evaluation(first, at)
    with pytest.raises(Interrupted) as stopped:
        fit(first, parts, Kill(number, at, when))
    assert (stopped.value.signal, stopped.value.step) == (number, stopped_at)
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
    saved = parts.load_checkpoint()
    assert saved is not None
    assert saved.step == stopped_at

    second = trainer_for(network, valid=2)
    fit(second, parts, Quiet(), saved)
    assert_identical(straight, second)
    assert without_time(parts) == without_time(whole)
    seconds = [record["seconds"] for record in parts.metrics()]
    assert seconds == sorted(seconds)


def test_interrupted_over_and_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every step, also twice at the same place."""
    chunks_of(1, monkeypatch)
    straight, whole, parts = trainer_for(WithDropout), RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "parts")
    for run in (whole, parts):
        run.path.mkdir()
    fit(straight, whole, Quiet())
    ended = None
    for when in ["evaluated", "steps", "evaluation"] * 8:
        ended = trainer_for(WithDropout)
        if when == "evaluation":
            kill_in_evaluation(ended, 0)
        try:
            fit(ended, parts, Kill(signal.SIGINT, 0, when), parts.load_checkpoint())
        except Interrupted:
            continue
        break
    assert ended is not None
    assert_identical(straight, ended)
    assert without_time(parts) == without_time(whole)


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had the tests ignore it
    trainer = trainer_for(WithDropout)
    kill_in_evaluation(trainer, 0, times=2)
    with pytest.raises(KeyboardInterrupt):
        fit(trainer, RunFolder(tmp_path), Quiet())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_metrics_after_the_checkpoint_are_cut_off(tmp_path: Path) -> None:
    """A crash after an evaluation and before the next save: the evaluation is done again, not noted twice."""
    straight, whole, parts = trainer_for(WithDropout), RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "parts")
    for run in (whole, parts):
        run.path.mkdir()
    fit(straight, whole, Quiet())

    class Crash(Quiet):
        def evaluated(self, record: Mapping[str, Any]) -> None:
            if record["step"] == 8:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fit(trainer_for(WithDropout), parts, Crash(), checkpoint_every=3)
    assert [record["step"] for record in parts.metrics()] == [4, 8]
    saved = parts.load_checkpoint()
    assert saved is not None
    assert saved.step == 6
    fit(trainer_for(WithDropout), parts, Quiet(), saved)
    assert without_time(parts) == without_time(whole)


@pytest.mark.parametrize(("every", "expected"), [(3, [11, 9]), (4, [11, 8]), (100, [11])])
def test_checkpoints_every_so_many_steps(tmp_path: Path, every: int, expected: list[int]) -> None:
    run = RunFolder(tmp_path)
    fit(trainer_for(WithDropout), run, Quiet(), checkpoint_every=every)
    found = [int(path.name[5:]) for path in checkpoint.list_checkpoints(run.checkpoints)]
    assert found == expected


def test_checkpoints_by_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[int] = []
    chunks_of(3, monkeypatch)
    monkeypatch.setattr(checkpoint, "save", lambda folder, now, check: saved.append(now.step))
    fit(trainer_for(WithDropout), RunFolder(tmp_path), Quiet())
    assert saved == [11]  # a minute has not passed
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    saved.clear()
    fit(trainer_for(WithDropout), RunFolder(tmp_path), Quiet())
    assert saved == [1, 4, 7, 8, 11]  # after the first step it is known how fast they are


class SlowSteps:
    """A clock on which every step takes `seconds`; nothing else takes any time."""

    def __init__(self, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        take_step = Trainer.take_step

        def slow(trainer: Trainer, *arguments: Any) -> None:
            take_step(trainer, *arguments)
            self.now += seconds

        monkeypatch.setattr(Trainer, "take_step", slow)
        monkeypatch.setattr(loop, "time", self)

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("seconds", "paused", "saved"),
    [
        (0.001, [1, 20, 32], [32]),
        (0.125, [1, 9, 17, 20, 28, 32], [32]),
        (0.25, [1, 5, 9, 13, 17, 20, 24, 28, 32], [32]),
        (25.0, list(range(1, 33)), [*range(3, 33, 3), 32]),
    ],
)
def test_on_a_cpu_the_bar_and_saves_go_by_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, paused: list[int], saved: list[int]
) -> None:
    """However many steps are taken at once, they are the same steps."""
    whole = trainer_for(WithDropout, steps=32, eval_every=20)
    whole.advance(32)
    seen, saves = list[int](), list[int]()

    class Seen(Quiet):
        def steps(self, step: int, values: Mapping[str, float]) -> None:
            seen.append(step)

    SlowSteps(seconds, monkeypatch)
    monkeypatch.setattr(checkpoint, "save", lambda folder, now, check: saves.append(now.step))
    trainer = trainer_for(WithDropout, steps=32, eval_every=20)
    fit(trainer, RunFolder(tmp_path), Seen())
    assert seen == paused
    assert saves == saved
    assert_identical(whole, trainer)


# ---------------------------------------------------------------- larger than memory


def test_a_pool_fetches_the_rows_asked_for(tmp_path: Path) -> None:
    content = np.random.default_rng(1).integers(0, 256, (50, 3, 4, 2), np.uint8)
    content.tofile(tmp_path / "images")
    mapped = np.memmap(tmp_path / "images", np.uint8, "r", shape=content.shape)
    rows = torch.tensor([49, 0, 7, 7, 23])
    for images in (mapped, content, content[:, ::-1]):
        for resident in (None, True, False):
            pool = Pool(images, CPU, resident)
            assert len(pool) == 50
            np.testing.assert_array_equal(pool.fetch(rows).numpy(), images[[49, 0, 7, 7, 23]])
    with pytest.raises(ValueError, match="images must be uint8"):
        Pool(content.astype(np.float32), CPU)  # type: ignore[arg-type]


LARGE = """if True:
    import re, sys, threading
    from pathlib import Path
    import numpy as np, torch
    from torch import nn
    from mixmatch.data.source import Rows, Source
    from mixmatch.data.split import make_split
    from mixmatch.settings import resolve
    from fitting import fit
    from mixmatch.training.progress import Quiet
    from mixmatch.training.run import RunFolder
    from mixmatch.training.trainer import Trainer

    def anonymous():  # what cannot be dropped and read again from the file
        return int(re.search(r"RssAnon:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1000

    def train(images, out):
        out.mkdir()
        data = Rows(images, np.arange(len(images)) % 10)
        source = Source("large", tuple("0123456789"), data, data)
        settings = resolve("large", dict(labels=40, steps=30, batch_size=64, eval_every=30, valid=1))
        network = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(48, 10))
        trainer = Trainer(settings, source, make_split(source, 40, 1, 1), network, torch.device("cpu"))
        fit(trainer, RunFolder(out), Quiet())

    folder = Path(sys.argv[1])
    images = np.memmap(folder / "images", np.uint8, "r").reshape(-1, 32, 32, 3)
    train(images[:500], folder / "warm")
    before = most = anonymous()
    ended = threading.Event()

    def watch():  # the most there is at any time
        global most
        while not ended.wait(0.002):
            most = max(most, anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    train(images, folder / "run")
    ended.set()
    watcher.join()
    print(most - before, images.nbytes / 1e6)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_training_from_a_mapped_file_does_not_hold_it_in_memory(tmp_path: Path) -> None:
    rows = 150 * 10**6 // 3072
    np.resize(np.random.default_rng(0).integers(0, 256, 10**6, np.uint8), rows * 3072).tofile(tmp_path / "images")
    child = subprocess.run(
        [sys.executable, "-c", LARGE, str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    grown, size = map(float, child.stdout.split())
    assert size > 149
    assert grown < 30

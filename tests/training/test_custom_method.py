"""A method from outside the package, with all that the contract offers, trained through `mixmatch.train`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

import mixmatch
from mixmatch import data
from mixmatch.data.split import make_split
from mixmatch.draws import Sampler
from mixmatch.errors import MixMatchError
from mixmatch.methods.base import Batch, DataInfo, Method, Predictor, Progress, Step, setting
from mixmatch.training import trainer as engine
from mixmatch.training.checkpoint import TENSORS, Checkpoint
from mixmatch.training.progress import Quiet
from mixmatch.training.run import RunFolder

B, RATIO, STEPS, LABELED, PIXELS = 4, 3, 9, 20, 8


@dataclass(frozen=True)
class Everything(Method):
    """Learns from a weak and a strong view and from quarter turns; remembers when it has seen each unlabeled row."""

    weight: float = setting(0.5, "Weight of the unlabeled loss.", least=0)
    ratio: int = setting(RATIO, "Unlabeled images per labeled one.", least=1)

    views = ("weak", "strong", "weak")
    heads: ClassVar[Mapping[str, int]] = {"rotation": 4}
    run_defaults: ClassVar[Mapping[str, Any]] = {"learning_rate": 0.01, "unlabeled": "all", "pad": 0}

    def draw(self, rng: np.random.Generator, batch_size: int) -> dict[str, Any]:
        return {"scale": rng.random(batch_size * self.ratio, np.float32)}

    def state(self, data: DataInfo) -> dict[str, Tensor]:
        return {
            "seen": torch.zeros(data.unlabeled, dtype=torch.int64, device=data.device),
            "last": torch.full((data.unlabeled,), -1.0, device=data.device),
            "average": data.prior.clone(),
        }

    def loss(
        self, model: Predictor, batch: Batch, draws: Mapping[str, Tensor], progress: Progress, state: Mapping[str, Any]
    ) -> Step:
        weak, strong, other = batch.u
        loss_x = -(batch.y * F.log_softmax(model(batch.x, stats="update"), 1)).sum(1).mean()
        with torch.no_grad():
            guess = (model(weak).softmax(1) + model(other, weights="ema").softmax(1)) / 2
        each = -(guess * F.log_softmax(model(strong), 1)).sum(1)
        loss_u = (each * draws["scale"] * guess.mean(0).div(state["average"] + 0.1).amax()).mean()
        turned = torch.cat([torch.rot90(weak, turns, (2, 3)) for turns in range(4)])
        turns = torch.arange(4, device=weak.device).repeat_interleave(len(weak))
        rotation = F.cross_entropy(model(turned, head="rotation"), turns)
        loss = loss_x + self.weight * loss_u + rotation
        rows = batch.rows
        return Step(
            loss,
            {"loss": loss, "rotation": rotation},
            {
                "seen": state["seen"].index_copy(0, rows, state["seen"][rows] + 1),
                "last": state["last"].scatter(0, rows, progress.step.to(torch.float32).expand(len(rows))),
                "average": 0.9 * state["average"] + 0.1 * guess.mean(0),
            },
        )


def settings(**given: Any) -> dict[str, Any]:
    fixed = {"labels": LABELED, "batch_size": B, "steps": STEPS, "eval_every": 3, "checkpoint_every": 3}
    return {**fixed, "network": "wrn-10-1", "device": "cpu", "reporter": Quiet(), **given}


def train(out: Path, method: Method | None = None, **given: Any) -> dict[str, Any]:
    return mixmatch.train("digits", method=method or Everything(), out=out, **settings(**given))


def saved(out: Path) -> Checkpoint:
    newest = RunFolder(out).load_checkpoint()
    assert newest is not None
    return newest


def rows_of(step: int, unlabeled: int, seed: int = 1) -> np.ndarray:
    return Sampler(unlabeled, RATIO * B, seed, "unlabeled").rows(step)


class Small(nn.Module):
    """A network of a user's own that offers its features; it compiles in little time."""

    feature_size = 16

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.dense = nn.Linear(PIXELS**2, self.feature_size, bias=False)  # Adam would turn its rounding into steps
        self.norm = nn.BatchNorm1d(self.feature_size)
        self.last = nn.Linear(self.feature_size, 10)

    def features(self, x: Tensor) -> Tensor:
        return F.leaky_relu(self.norm(self.dense(x.flatten(1))))

    def classify(self, features: Tensor) -> Tensor:
        logits: Tensor = self.last(features)
        return logits

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.features(x))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without an interruption."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    train(out)
    return out


# ---------------------------------------------------------------- what it is given


def test_the_batch_holds_the_rows_it_names_in_the_order_of_the_views(tmp_path: Path) -> None:
    batches: list[Batch] = []

    class Watched(Everything):
        def loss(self, model: Any, batch: Batch, *given: Any) -> Step:
            batches.append(batch)
            return super().loss(model, batch, *given)

    train(tmp_path / "run", Watched())
    source = data.load("digits")
    split = make_split(source, LABELED, 1, 0, "all")
    assert len(split.unlabeled) == len(source.train)  # the method asks for all of them
    assert len(batches) == STEPS
    for step, batch in enumerate(batches):
        assert batch.x.shape == (B, 1, PIXELS, PIXELS)
        assert batch.y.shape == (B, 10)
        assert batch.u.shape == (3, RATIO * B, 1, PIXELS, PIXELS)
        assert batch.rows.shape == (RATIO * B,)
        assert batch.rows.tolist() == rows_of(step, len(split.unlabeled)).tolist()
        # Without padding and flips a weak view is the image itself.
        images = source.train.inputs[split.unlabeled[batch.rows.numpy()]].astype(np.float64) * 2 / 255 - 1
        weak, strong, other = batch.u.numpy()
        np.testing.assert_allclose(weak, images.transpose(0, 3, 1, 2), atol=1e-6)
        np.testing.assert_allclose(other, images.transpose(0, 3, 1, 2), atol=1e-6)
        changed = np.abs(strong - weak) > 1e-6
        assert changed.any(axis=(1, 2, 3)).mean() > 0.5
        assert (changed.sum(axis=(1, 2, 3)) <= (PIXELS // 2) ** 2).all()
        assert (strong[changed] == 0).all()


def test_the_run_has_the_settings_that_the_method_asks_for(whole: Path, tmp_path: Path) -> None:
    written = json.loads((whole / "config.json").read_text())["settings"]
    assert written["method"] == "custom:Everything"
    assert written["method_settings"] == {"weight": 0.5, "ratio": RATIO}
    assert (written["learning_rate"], written["unlabeled"], written["pad"]) == (0.01, "all", 0)
    assert written["ema_decay"] == 0.99  # of the data set
    train(tmp_path / "given", learning_rate=0.002, steps=1)  # what is given wins
    assert RunFolder(tmp_path / "given").config()["settings"]["learning_rate"] == 0.002
    with pytest.raises(MixMatchError, match="weight is a setting of the method object"):
        train(tmp_path / "refused", weight=0.7)


# ---------------------------------------------------------------- its state


def test_its_state_is_what_the_steps_made_of_it(whole: Path) -> None:
    unlabeled = len(data.load("digits").train)
    seen, last = np.zeros(unlabeled, np.int64), np.full(unlabeled, -1.0)
    for step in range(STEPS):
        rows = rows_of(step, unlabeled)
        seen[np.unique(rows)] += 1
        last[rows] = step
    state = saved(whole).method
    assert state.keys() == {"seen", "last", "average"}
    assert state["seen"].tolist() == seen.tolist()
    assert seen.sum() == STEPS * RATIO * B
    assert state["last"].tolist() == last.tolist()
    average = state["average"].double()
    assert average.sum().item() == pytest.approx(1, abs=1e-5)
    assert (average - 0.1).abs().max() > 1e-3  # the prior, where it began


def test_what_is_not_returned_stays_as_it_was(tmp_path: Path) -> None:
    class Forgets(Everything):
        def loss(self, *given: Any) -> Step:
            step = super().loss(*given)
            return step._replace(state={"seen": step.state["seen"]})

    train(tmp_path / "run", Forgets(), steps=2)
    state = saved(tmp_path / "run").method
    assert state["average"].tolist() == pytest.approx([0.1] * 10)  # two labeled images of each class
    assert (state["last"] == -1).all()
    assert state["seen"].sum() == 2 * RATIO * B


def test_further_heads_learn_and_are_not_part_of_the_classifier(whole: Path, tmp_path: Path) -> None:
    weights, ema = saved(whole).weights, saved(whole).ema
    assert weights["heads.rotation.weight"].shape[0] == ema["heads.rotation.weight"].shape[0] == 4
    train(tmp_path / "short", steps=1)
    begun = saved(tmp_path / "short").weights["heads.rotation.weight"]
    assert (weights["heads.rotation.weight"] - begun).abs().max() > 1e-4
    assert not [name for name in load_file(whole / "model.safetensors") if name.startswith("heads.")]
    source = data.load("digits")
    probabilities = mixmatch.load(whole).probabilities(source.test.inputs)
    assert probabilities.shape == (len(source.test), 10)


def test_an_unfinished_run_with_further_heads_opens(whole: Path, tmp_path: Path) -> None:
    stop_at(tmp_path / "run", 6)
    source = data.load("digits")
    assert mixmatch.load(tmp_path / "run").probabilities(source.test.inputs).shape == (len(source.test), 10)


# ---------------------------------------------------------------- resumed


class Crash(Quiet):
    def __init__(self, at: int) -> None:
        self.at = at

    def steps(self, step: int, values: Mapping[str, float]) -> None:
        if step >= self.at:
            raise ZeroDivisionError


def stop_at(out: Path, step: int, **given: Any) -> None:
    """A run that ends right after step `step`, before that is saved."""
    with pytest.raises(ZeroDivisionError):
        train(out, reporter=Crash(step), **given)
    assert saved(out).step == step - 3


def differences(a: Path, b: Path) -> list[str]:
    """Which tensors of two finished runs are not the same, bit for bit."""
    ours, theirs = saved(a), saved(b)
    assert ours.step == theirs.step == STEPS
    found = []
    for part in TENSORS:
        x, y = getattr(ours, part), getattr(theirs, part)
        assert x.keys() == y.keys()
        assert x
        found += [f"{part}/{name}" for name, value in x.items() if not torch.equal(value, y[name])]
    x, y = load_file(a / "model.safetensors"), load_file(b / "model.safetensors")
    assert x.keys() == y.keys()
    return found + [name for name, value in x.items() if not torch.equal(value, y[name])]


SGD = {"optimizer": "sgd", "schedule": "cosine-7/16", "learning_rate": 0.03, "weight_decay": 5e-4}


@pytest.mark.parametrize("given", [{}, SGD], ids=["adam", "sgd"])
def test_a_resumed_run_ends_as_one_without_an_interruption(given: dict[str, Any], whole: Path, tmp_path: Path) -> None:
    if given:
        whole = tmp_path / "whole"
        train(whole, **given)
        assert any(name.startswith("momentum_buffer.") for name in saved(whole).optimizer)
    stop_at(tmp_path / "parts", 6, **given)
    record = train(tmp_path / "parts", resume=True, **given)
    assert differences(whole, tmp_path / "parts") == []
    assert record["curve"] == RunFolder(whole).result()["curve"]  # type: ignore[index]


@pytest.mark.parametrize("given", [{}, SGD], ids=["adam", "sgd"])
def test_without_the_optimizers_state_it_would_not(
    given: dict[str, Any], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above can fail."""
    if given:
        whole = tmp_path / "whole"
        train(whole, **given)
    stop_at(tmp_path / "parts", 6, **given)
    monkeypatch.setattr(engine, "load_optimizer_state", lambda *given: None)
    train(tmp_path / "parts", resume=True, **given)
    assert any(name.startswith("weights/") for name in differences(whole, tmp_path / "parts"))


def test_another_state_is_refused(tmp_path: Path) -> None:
    stop_at(tmp_path / "run", 6)

    def state(self: Everything, data: DataInfo) -> dict[str, Tensor]:
        return {**Everything.state(self, data), "seen": torch.zeros(data.unlabeled + 1, dtype=torch.int64)}

    other = type("Everything", (Everything,), {"state": state})
    with pytest.raises(MixMatchError, match="another state of the method") as caught:
        train(tmp_path / "run", other(), resume=True)
    assert "\n" not in str(caught.value)


def test_another_method_or_another_setting_of_it_is_refused(tmp_path: Path) -> None:
    stop_at(tmp_path / "run", 6)
    with pytest.raises(MixMatchError, match=r"other settings \(weight: 0.5 -> 0.7\)"):
        train(tmp_path / "run", Everything(weight=0.7), resume=True)
    with pytest.raises(MixMatchError, match=r"method: custom:Everything -> mixmatch"):
        mixmatch.train("digits", out=tmp_path / "run", method="mixmatch", resume=True, **settings())
    with pytest.raises(MixMatchError, match=r"Everything is not part of mixmatch: pass the object") as caught:
        mixmatch.train("digits", out=tmp_path / "run", resume=True, **settings())
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- compiled


@pytest.mark.usefixtures("graphs")
def test_compiled_it_learns_the_same(tmp_path: Path) -> None:
    record = train(tmp_path / "compiled", compile=True, steps=4, network=Small())
    assert record["engine"]["compiled"]
    train(tmp_path / "plain", compile=False, steps=4, network=Small())
    ours, theirs = saved(tmp_path / "compiled"), saved(tmp_path / "plain")
    for name in ("seen", "last"):
        assert torch.equal(ours.method[name], theirs.method[name])
    torch.testing.assert_close(ours.method["average"], theirs.method["average"], rtol=1e-3, atol=1e-4)
    for x, y in zip(*(RunFolder(tmp_path / name).metrics() for name in ("compiled", "plain")), strict=True):
        assert x["loss"] == pytest.approx(y["loss"], rel=1e-3)
        assert x["rotation"] == pytest.approx(y["rotation"], rel=1e-3)
    for name, value in theirs.weights.items():
        torch.testing.assert_close(ours.weights[name], value, rtol=1e-2, atol=1e-3)  # four steps of up to 0.01


@dataclass(frozen=True)
class Wrong(Everything):
    """Returns state that it did not make."""

    which: tuple[str, ...] = setting(("name",), "What is wrong.")

    def state(self, data: DataInfo) -> dict[str, Tensor]:
        return {"average": data.prior.clone()}

    def loss(
        self, model: Predictor, batch: Batch, draws: Mapping[str, Tensor], progress: Progress, state: Mapping[str, Any]
    ) -> Step:
        loss = -(batch.y * F.log_softmax(model(batch.x, stats="update"), 1)).sum(1).mean()
        changed = {"name": {"other": state["average"]}, "shape": {"average": state["average"].mean()}, "fine": {}}
        return Step(loss, {"loss": loss}, changed[self.which[0]])


@pytest.mark.parametrize(("which", "what"), [("name", "'other' (10,)"), ("shape", "'average' ()")])
def test_state_of_another_name_or_shape_is_refused(which: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(MixMatchError) as caught:
        mixmatch.train("digits", method=Wrong(which=(which,)), out=tmp_path / "run", **settings())
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_setting_that_is_a_tuple_survives_resuming(tmp_path: Path) -> None:
    method = Wrong(which=("fine",))
    mixmatch.train("digits", method=method, out=tmp_path, **settings(steps=3))
    assert mixmatch.train("digits", method=method, out=tmp_path, resume=True, **settings(steps=6))["steps"] == 6


# ---------------------------------------------------------------- written in a hurry


def supervised(model: Predictor, batch: Batch) -> Tensor:
    return -(batch.y * F.log_softmax(model(batch.x, stats="update"), 1)).sum(1).mean()


def returning(answer: Callable[[Tensor], Any]) -> Method:
    """A method whose loss returns what `answer` makes of it."""

    class Hurried(Method):
        def loss(self, model: Predictor, batch: Batch, *given: Any) -> Any:
            return answer(supervised(model, batch))

    return Hurried()


def test_metrics_may_be_plain_numbers(tmp_path: Path) -> None:
    numbers = returning(lambda loss: Step(loss, {"loss": loss.item(), "half": np.float32(0.5), "one": 1}))
    train(tmp_path / "numbers", numbers, compile=False)
    train(tmp_path / "tensors", returning(lambda loss: Step(loss, {"loss": loss})), compile=False)
    for a, b in zip(*(RunFolder(tmp_path / name).metrics() for name in ("numbers", "tensors")), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-6)
        assert (a["half"], a["one"]) == (0.5, 1.0)


def test_what_cannot_be_compiled_still_trains_and_says_why(tmp_path: Path) -> None:
    notes: list[str] = []

    class Notes(Quiet):
        def note(self, text: str) -> None:
            notes.append(text)

    looks = returning(lambda loss: Step(loss, {"loss": loss.item() if loss > 0 else 0.0}))
    record = train(tmp_path / "run", looks, compile=True, steps=2, network=Small(), reporter=Notes())
    assert not record["engine"]["compiled"]
    assert [note for note in notes if note.startswith("the step cannot be compiled (")]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda loss: loss, 'returns a Tensor: return a Step, as in Step(loss, {"loss": loss})'),
        (lambda loss: None, "returns a NoneType: return a Step"),
        (lambda loss: Step(loss.item(), {}), "must be a scalar tensor with a gradient"),
        (lambda loss: Step(loss.detach(), {}), "must be a scalar tensor with a gradient"),
        (lambda loss: Step(loss.expand(3), {}), "must be a scalar tensor with a gradient"),
        (lambda loss: Step(loss, {"each": loss.expand(3)}), "returns the metric 'each', which must be a scalar"),
    ],
)
def test_what_is_no_step_is_refused(answer: Callable[[Tensor], Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(MixMatchError) as caught:
        train(tmp_path / "run", returning(answer))
    assert f"the loss of method 'custom:Hurried' {said}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_of_what_is_no_dataclass_are_refused(tmp_path: Path) -> None:
    class Plain(Method):
        gamma = setting(3.0, "A setting that nobody would have recorded.")

        def loss(self, model: Predictor, batch: Batch, *given: Any) -> Step:
            return Step(supervised(model, batch), {})

    class Derived(Everything):
        gamma: float = setting(3.0, "Another.")

    for method in (Plain(), Derived()):
        with pytest.raises(MixMatchError, match=r"setting 'gamma' but is not a dataclass: put @dataclass\(frozen"):
            train(tmp_path / "run", method)
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------- begun again


def test_a_run_that_failed_before_it_saved_anything_is_begun_again(tmp_path: Path) -> None:
    with pytest.raises(MixMatchError, match="return a Step"):
        train(tmp_path / "run", returning(lambda loss: loss))
    assert RunFolder(tmp_path / "run").exists()
    record = train(tmp_path / "run", Everything(weight=0.1))  # another method: nothing of the first is left
    assert record["settings"]["method_settings"]["weight"] == 0.1
    assert RunFolder(tmp_path / "run").config()["settings"]["method"] == "custom:Everything"
    with pytest.raises(MixMatchError, match="holds a run already"):
        train(tmp_path / "run", Everything(weight=0.1))


def test_resumed_it_keeps_its_settings(tmp_path: Path) -> None:
    """Of a run that was killed before its first checkpoint, the settings are what is kept."""
    with pytest.raises(ZeroDivisionError):
        train(tmp_path / "run", reporter=Crash(1), seed=5)
    assert mixmatch.train("digits", method=Everything(), out=tmp_path / "run", resume=True)["seed"] == 5


@pytest.mark.parametrize("kept", ["checkpoint/step-00000003/state.json", "result.json", "metrics.jsonl", "notes.txt"])
def test_a_folder_with_anything_to_keep_is_not_begun_again(kept: str, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        train(tmp_path, reporter=Crash(1))
    (tmp_path / kept).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / kept).write_text('{"step": 3}')
    with pytest.raises(MixMatchError, match="holds a run already"):
        train(tmp_path)


def test_a_folder_of_another_program_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(MixMatchError, match=r"config\.json was not written by this version of mixmatch"):
        train(tmp_path)
    assert (tmp_path / "config.json").read_text() == '{"model_type": "bert"}'


def test_a_run_that_is_just_beginning_elsewhere_is_left_alone(tmp_path: Path) -> None:
    class Second(Quiet):
        """The first run has its folder, and nothing in it yet."""

        def start(self, title: str, step: int, total: int) -> None:
            assert RunFolder(tmp_path).saved_nothing()
            with pytest.raises(MixMatchError, match="another process is writing to"):
                train(tmp_path)

    train(tmp_path, reporter=Second())

"""Where methods, settings, data and runs meet: what a review of the seams found, each as a test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import mixmatch
from mixmatch import MixMatchClassifier, functional
from mixmatch.augment import NoiseMask, strong_augmentation
from mixmatch.data.source import Rows, Source
from mixmatch.data.split import Split
from mixmatch.errors import MixMatchError
from mixmatch.experiments.compare import compare, summarize
from mixmatch.methods.base import Batch, DataInfo, Method, Predictor, Progress, Step, Tensors, setting
from mixmatch.methods.mixmatch import MixMatch
from mixmatch.settings import resolve
from mixmatch.training.progress import Quiet
from mixmatch.training.run import RunFolder

SMALL: dict[str, Any] = {"labels": 20, "batch_size": 4, "eval_every": 1, "device": "cpu", "reporter": Quiet()}


class Labels(Method):
    """Learns from the labels alone."""

    def loss(self, model: Predictor, batch: Batch, draws: Tensors, progress: Progress, state: Tensors) -> Step:
        loss = functional.labeled_loss(model(batch.x, stats="update"), batch.y)
        return Step(loss, {"loss": loss})


def csv(path: Path, rows: int, classes: str = "ab") -> Path:
    """A table with a label in its first 40 rows."""
    names = [classes[i % len(classes)] if i < 40 else "" for i in range(rows)]
    path.write_text("x,y,label\n" + "".join(f"{i % 7},{i % 5},{name}\n" for i, name in enumerate(names)))
    return path


def test_a_finished_run_is_not_evaluated_on_data_that_has_changed(tmp_path: Path, call: Any) -> None:
    """New rows give a new split: some of what the model learned from would be held out."""
    table = csv(tmp_path / "rows.csv", 60)
    words = ["train", str(table), "--steps", "2", "--no-baseline", "--out", str(tmp_path / "run"), "--device", "cpu"]
    assert call(*words).code == 0
    table.write_text(table.read_text() + "3,3,a\n4,4,b\n")
    again = call(*words, "--resume")
    assert again.code == 2
    assert "the data has changed" in again.err
    table.write_text(table.read_text() + "3,3,c\n" * 12)
    assert "the data has changed" in call(*words, "--resume").err


@dataclass(frozen=True)
class Clashing(Labels):
    momentum: float = setting(0.5, "Of something else than SGD.")


@dataclass(frozen=True)
class Misspelled(Labels):
    run_defaults: ClassVar[Mapping[str, Any]] = {"optimiser": "sgd"}


@dataclass(frozen=True)
class Bounded(Labels):
    threshold: float = setting(0.9, "Between 0 and 1.", within=(0, 1))


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (Clashing(), "Clashing declares the setting 'momentum', which every run has: rename it"),
        (Misspelled(), "unknown setting 'optimiser' of Misspelled.run_defaults: did you mean 'optimizer'?"),
        (Bounded(threshold=7.0), "threshold=7.0 must be a number between 0 and 1"),
    ],
)
def test_methods_from_outside_are_checked(method: Method, message: str) -> None:
    with pytest.raises(MixMatchError) as caught:
        resolve("digits", {"method": method})
    assert str(caught.value).startswith(message)


@dataclass(frozen=True)
class Late(Labels):
    """Uses its head from the third step on."""

    heads: ClassVar[Mapping[str, int]] = {"extra": 2}
    run_defaults: ClassVar[Mapping[str, Any]] = {"optimizer": "sgd", "learning_rate": 0.01}
    steps: ClassVar[list[int]] = []

    def loss(self, model: Predictor, batch: Batch, draws: Tensors, progress: Progress, state: Tensors) -> Step:
        step = super().loss(model, batch, draws, progress, state)
        if int(progress.step) < 3:
            return step
        extra = model(batch.x, head="extra").square().mean()
        return Step(step.loss + extra, step.metrics)


def test_sgd_with_a_parameter_that_gets_its_first_gradient_late(tmp_path: Path) -> None:
    given = {**SMALL, "network": "wrn-10-1", "checkpoint_every": 2}
    mixmatch.train("digits", method=Late(), steps=5, out=tmp_path / "whole", **given)
    mixmatch.train("digits", method=Late(), steps=2, out=tmp_path / "parts", **given)
    mixmatch.train("digits", method=Late(), steps=5, out=tmp_path / "parts", resume=True, **given)
    whole, parts = (RunFolder(tmp_path / name).load_checkpoint() for name in ("whole", "parts"))
    assert whole is not None
    assert parts is not None
    for name, value in whole.weights.items():
        assert torch.equal(value, parts.weights[name]), name


@dataclass(frozen=True)
class Shifting(Labels):
    """Keeps the last two numbers of steps; both begin as one tensor."""

    def state(self, data: DataInfo) -> dict[str, Tensor]:
        zero = torch.zeros((), device=data.device)
        return {"now": zero, "before": zero}

    def loss(self, model: Predictor, batch: Batch, draws: Tensors, progress: Progress, state: Tensors) -> Step:
        loss, metrics, _ = super().loss(model, batch, draws, progress, state)
        metrics = {**metrics, "now": state["now"], "before": state["before"]}
        return Step(loss, metrics, {"now": state["now"] + 1, "before": state["now"]})


def test_state_goes_in_and_comes_out_without_sharing_memory(tmp_path: Path) -> None:
    mixmatch.train("digits", method=Shifting(), steps=4, out=tmp_path, **SMALL)
    seen = [(line["now"], line["before"]) for line in RunFolder(tmp_path).metrics()]
    assert seen == [(0, 0), (1, 0), (2, 1), (3, 2)]
    saved = RunFolder(tmp_path).load_checkpoint()
    assert saved is not None
    assert (saved.method["now"].item(), saved.method["before"].item()) == (4, 3)


def test_variants_of_one_method_are_told_apart(tmp_path: Path) -> None:
    methods = ["mixmatch", MixMatch(T=0.9, ramp=5), MixMatch(T=0.8, ramp=5)]
    records = compare("digits", methods, [1], tmp_path, steps=1, **SMALL)
    names = [row["method"] for row in summarize(records)]
    assert len(set(names)) == 3
    assert names[0] == "mixmatch"
    assert "T=0.9" in names[1]
    assert "T=0.8" in names[2]
    with pytest.raises(MixMatchError, match="is there twice"):
        compare("digits", [MixMatch(), MixMatch()], [1], tmp_path / "twice", steps=1, **SMALL)


def test_a_comparison_reads_its_data_in_one_way(tmp_path: Path) -> None:
    table, out = str(csv(tmp_path / "rows.csv", 60)), tmp_path / "runs"
    given = {**SMALL, "labels": None, "steps": 1}
    compare(table, ["supervised"], [1], out, {"ignore": ["x"]}, **given)
    compare(table, ["supervised"], [1, 2], out, **given)  # as before, if nothing is said
    assert all(RunFolder(out / f"supervised-seed{seed}").config()["input_shape"] == [1] for seed in (1, 2))
    with pytest.raises(MixMatchError, match="in two ways"):
        compare(table, ["supervised"], [1, 2], out, {"ignore": ["y"]}, **given)


def test_the_weight_decay_of_adam_does_not_reach_sgd() -> None:
    assert resolve("rows.csv", {}, "features").weight_decay == 5.0
    assert resolve("rows.csv", {"optimizer": "sgd"}, "features").weight_decay == 5e-4
    assert resolve("cifar10", {"optimizer": "sgd"}).weight_decay == 5e-4
    assert resolve("cifar10", {"optimizer": "sgd", "weight_decay": 0.1}).weight_decay == 0.1
    assert resolve("cifar10", {"method": "mean-teacher", "optimizer": "sgd"}).weight_decay == 0.2  # its own preset


@dataclass(frozen=True)
class Counting(Labels):
    """Keeps how many unlabeled rows there are."""

    views = ("weak",)
    run_defaults: ClassVar[Mapping[str, Any]] = {"unlabeled": "all"}
    seen: ClassVar[list[int]] = []

    def state(self, data: DataInfo) -> dict[str, Tensor]:
        self.seen.append(data.unlabeled)
        return {}


def test_all_rows_are_unlabeled_ones_wherever_that_is_asked_for(tmp_path: Path, call: Any) -> None:
    Counting.seen.clear()
    X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    y = np.where(np.arange(60) < 20, np.arange(60) % 2, -1)
    MixMatchClassifier(Counting(), steps=1, batch_size=4, device="cpu").fit(X, y)
    rows = Rows(X, y.astype(np.int64))
    source = Source("rows", ("a", "b"), rows, rows.take(np.arange(20)))
    split = Split(np.arange(20), np.arange(20, 60), np.arange(0), np.arange(20))
    given = {name: value for name, value in SMALL.items() if name != "labels"}
    mixmatch.train(source, split=split, method=Counting(), steps=1, out=tmp_path / "a", **given)
    whole = replace(split, unlabeled=np.arange(60))  # as make_split(unlabeled="all") has it
    record = mixmatch.train(source, split=whole, method=Counting(), steps=1, out=tmp_path / "whole", **given)
    assert Counting.seen == [60, 60, 60]
    assert record["split"]["hash"] == whole.hash
    with pytest.raises(MixMatchError, match="unlabeled= contradicts split="):
        mixmatch.train(source, split=split, unlabeled="all", steps=1, out=tmp_path / "b", **given)
    full = csv(tmp_path / "full.csv", 40)
    words = ["train", str(full), "--steps", "1", "--no-baseline", "--out", str(tmp_path / "c"), "--device", "cpu"]
    assert call(*words).code == 2
    assert call(*words, "--unlabeled", "all").code == 0


@dataclass(frozen=True)
class Unhashable(Labels):
    options: dict[str, int] = field(default_factory=dict)


class Plain(Labels):
    """No dataclass at all."""


def test_methods_that_cannot_be_compared_train_and_resume(tmp_path: Path) -> None:
    for method in (Unhashable({"a": 1}), Plain()):
        out = tmp_path / type(method).__name__
        mixmatch.train("digits", method=method, steps=1, out=out, **SMALL)
        assert mixmatch.train("digits", method=method, steps=2, out=out, resume=True, **SMALL)["steps"] == 2
    assert len(compare("digits", [Unhashable()], [1], tmp_path / "c", steps=1, **SMALL)) == 1


def test_wrong_names_of_how_data_is_read(tmp_path: Path) -> None:
    table = str(csv(tmp_path / "rows.csv", 60))
    (tmp_path / "c.toml").write_text("[data_options]\nignor = ['x']\n")
    with pytest.raises(MixMatchError, match=r"unknown setting 'ignor' of how data is read: did you mean 'ignore'\?"):
        mixmatch.train(table, config=tmp_path / "c.toml", out=tmp_path / "run")
    (tmp_path / "c.toml").write_text("[data_options]\nignore = 'xy'\n")
    with pytest.raises(MixMatchError, match="ignore='xy' must be a list of columns"):
        mixmatch.train(table, config=tmp_path / "c.toml", out=tmp_path / "run")


def test_strong_views_of_features_are_never_empty() -> None:
    strong = strong_augmentation(NoiseMask(4, 0.1, 0.5), (4,))
    assert isinstance(strong, NoiseMask)
    assert (strong.noise, strong.mask) == (0.2, 0.75)


def test_the_name_of_a_source_is_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    rng = np.random.default_rng(0)
    rows = Rows(rng.integers(0, 256, (40, 16, 16, 1), np.uint8), np.arange(40) % 2)
    source = Source("photos", ("a", "b"), rows, rows)
    record = mixmatch.train(source, steps=1, network="wrn-10-1", out="run", **{**SMALL, "labels": 10})
    assert record["settings"]["pad"] == 4  # the default, not an eighth of the image as for a folder


def test_numbers_of_numpy_are_numbers() -> None:
    settings = resolve("digits", {"labels": np.int64(20), "learning_rate": np.float32(0.5), "K": np.int32(3)})
    assert (settings.labels, settings.learning_rate, settings.method_settings["K"]) == (20, 0.5, 3)
    assert type(settings.labels) is int
    assert type(settings.learning_rate) is float

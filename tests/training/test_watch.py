"""The watch on a run's guesses: when it speaks, what it says, and that a resumed run hears no more and no less."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import mixmatch
from mixmatch.data.source import Rows, Source
from mixmatch.data.split import make_split
from mixmatch.settings import resolve
from mixmatch.training.progress import Quiet
from mixmatch.training.run import RunFolder
from mixmatch.training.session import watch_for
from mixmatch.training.stop import Interrupted
from mixmatch.training.trainer import Trainer
from mixmatch.training.watch import SAMPLE, Watch

FOUR = ("airplane", "cat", "dog", "ship")
EVEN = np.repeat(np.arange(4), 15)
ADVICE = "the run may be collapsing; if it stays so, stop it and train with a lower lambda_u (now 75) or more steps"


def watch(labels: np.ndarray = EVEN, classes: tuple[str, ...] = FOUR, **given: Any) -> Watch:
    settings = resolve("photos/", {"steps": 300, "lambda_u": 75, **given}, "images")
    return Watch(settings, classes, labels)


def said(watch: Watch, shares: dict[int, float], losses: dict[int, float] | None = None) -> list[int]:
    """The steps at which it speaks."""
    steps = sorted({*shares, *(losses or {})})
    records = [{"step": step} for step in steps]
    for record in records:
        step = record["step"]
        record |= {"guess_share": shares[step]} if step in shares else {}
        record |= {"loss_x": losses[step]} if losses and step in losses else {}
    return [record["step"] for record in records for _ in watch.look(record, "airplane")]


# ---------------------------------------------------------------- one class takes all


def test_one_class_takes_almost_all() -> None:
    text = watch().look({"step": 128, "guess_share": 0.94}, "airplane")
    assert text == [f"94 % of the unlabeled images are taken for 'airplane' at step 128: {ADVICE}"]
    assert watch().look({"step": 128, "guess_share": 0.88}, "airplane") == []


@pytest.mark.parametrize(
    ("counts", "least"),
    [
        ([15, 15, 15, 15], 0.25 + 0.85 * 0.75),
        ([10] * 10, 0.1 + 0.85 * 0.9),
        ([10, 10], 0.5 + 0.85 * 0.5),
        ([95, 5], 0.95 + 0.85 * 0.05),
    ],
)
def test_how_much_is_almost_all_depends_on_the_labels(counts: list[int], least: float) -> None:
    labels, classes = np.repeat(np.arange(len(counts)), counts), tuple("abcdefghij"[: len(counts)])
    for share, spoken in ((least + 0.001, 1), (least - 0.001, 0)):
        assert len(watch(labels, classes).look({"step": 200, "guess_share": share}, "a")) == spoken


def test_labels_of_a_single_class_are_no_reason_to_fail() -> None:
    assert watch(np.zeros(5, np.int64), ("a", "b")).look({"step": 200, "guess_share": 1.0}, "a") == []


@pytest.mark.parametrize(("steps", "first"), [(300, 100), (2000, 100), (4096, 205), (10**6, 50000)])
def test_it_is_quiet_while_a_run_begins(steps: int, first: int) -> None:
    assert said(watch(steps=steps), {first - 1: 1.0}) == []
    assert said(watch(steps=steps), {first - 1: 1.0, first: 1.0, first + 1: 1.0}) == [first]


def test_it_speaks_once_per_onset() -> None:
    assert said(watch(), {110: 0.3, 120: 0.9, 130: 1.0, 140: 0.85, 150: 0.9}) == [120]  # it was never half gone
    assert said(watch(), {110: 0.3, 120: 0.9, 130: 1.0, 140: 0.5, 150: 0.9}) == [120, 150]


# ---------------------------------------------------------------- the labeled loss rises


def test_the_labeled_loss_rises_half_way_to_that_of_guessing() -> None:
    each = watch()
    assert each.look({"step": 64, "loss_x": 0.9}) == []
    half = (0.9 + math.log(4)) / 2
    assert each.look({"step": 128, "loss_x": half - 0.001}) == []
    (text,) = each.look({"step": 192, "loss_x": half + 0.01})
    assert text == f"the loss of the labeled images rose from 0.90 to 1.15 at step 192: {ADVICE}"


def test_a_loss_that_falls_or_was_never_low_is_no_sign() -> None:
    assert said(watch(), {}, {64: 5.0, 128: 2.0, 192: 1.0, 256: 0.5}) == []
    assert said(watch(), {}, {64: 1.5, 128: 2.0, 192: 1.4}) == []  # guessing is 1.39
    assert said(watch(), {}, {64: 0.2, 128: 0.7, 192: 0.75}) == []
    assert said(watch(), {}, {64: 0.2, 128: 0.9, 192: 0.7, 256: 0.9, 257: 0.3, 300: 0.9}) == [128, 300]


@pytest.mark.parametrize(
    ("method", "advice"),
    [
        ("mean-teacher", "with a lower consistency_weight (now 50) or more steps"),
        ("vat", "with a lower vat_weight (now 0.3) or more steps"),
        ("mixup", "with more labels or steps"),
    ],
)
def test_the_advice_names_the_methods_own_weight(method: str, advice: str) -> None:
    settings = resolve("photos/", {"method": method, "steps": 300}, "images")
    (text,) = Watch(settings, FOUR, EVEN).look({"step": 300, "guess_share": 1.0}, "cat")
    assert text.endswith(advice)


def test_records_of_an_earlier_version_have_no_share() -> None:
    assert watch().look({"step": 200, "loss": 1.0, "seconds": 3.0}) == []


# ---------------------------------------------------------------- in a run


class Always(nn.Module):
    """Learns, but a finished classifier takes every image for 'b'."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(4 * 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x.flatten(1))
        return logits if self.training else logits + torch.tensor([0.0, 1e3, 0.0])


def source(name: str = "tiny", unlabeled: int = 400) -> Source:
    rng = np.random.default_rng(0)
    labels = (np.arange(unlabeled + 30) % 3).astype(np.int64)
    images = 60 * labels[:, None, None, None] + rng.integers(0, 120, (len(labels), 4, 4, 1))
    rows = Rows(images.astype(np.uint8), labels)
    return Source(name, ("a", "b", "c"), rows, rows.take(np.arange(60)))


GIVEN: dict[str, Any] = {"labels": 30, "batch_size": 4, "pad": 1, "device": "cpu", "method": "pi-model"}


class Heard(Quiet):
    def __init__(self, stop_at: int | None = None) -> None:
        self.notes, self.stop_at = list[str](), stop_at

    def note(self, text: str) -> None:
        self.notes.append(text)

    def steps(self, step: int, values: Any) -> None:
        if self.stop_at is not None and step >= self.stop_at:
            os.kill(os.getpid(), signal.SIGINT)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def without_time(run: Path) -> list[dict[str, Any]]:
    return [{name: value for name, value in record.items() if name != "seconds"} for record in RunFolder(run).metrics()]


def test_the_share_is_of_the_averaged_models_guesses_for_a_fixed_sample(tmp_path: Path) -> None:
    mixmatch.train(source(), out=tmp_path / "run", network=network(), reporter=Quiet(), steps=8, eval_every=4, **GIVEN)
    shares = [record["guess_share"] for record in RunFolder(tmp_path / "run").metrics()]
    assert len(shares) == 2
    assert all((SAMPLE * share).is_integer() for share in shares)
    settings = resolve("tiny", {n: v for n, v in GIVEN.items() if n != "device"} | {"steps": 8})
    data = source()
    trainer = Trainer(settings, data, make_split(data, 30, 1), network(), torch.device("cpu"))
    trainer.advance(8)
    counts = trainer.guesses()
    assert counts.sum() == SAMPLE
    assert counts.max() / SAMPLE == shares[-1]
    # The same from scratch: averaged weights on some 256 of the unlabeled rows, without augmentation.
    pixels = torch.from_numpy(data.train.inputs[trainer.split.unlabeled].astype(np.float64) * 2 / 255 - 1)
    weight, bias = (trainer.model.ema[f"1.{name}"].double() for name in ("weight", "bias"))
    every = np.bincount((pixels.flatten(1) @ weight.T + bias).argmax(1).numpy(), minlength=3)
    assert (counts <= every).all()
    np.testing.assert_allclose(counts / SAMPLE, every / every.sum(), atol=0.1)


def test_a_small_pool_is_watched_whole() -> None:
    settings = resolve("tiny", {n: v for n, v in GIVEN.items() if n != "device"} | {"steps": 8})
    data = source(unlabeled=50)
    trainer = Trainer(settings, data, make_split(data, 30, 1), network(), torch.device("cpu"))
    assert trainer.guesses().sum() == 50


def test_watching_changes_no_bit_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"reporter": Quiet(), "steps": 12, "eval_every": 3, **GIVEN}
    mixmatch.train(source(), out=tmp_path / "watched", network=network(), **options)
    monkeypatch.setattr("mixmatch.training.session.watch_for", lambda trainer: None)
    mixmatch.train(source(), out=tmp_path / "alone", network=network(), **options)
    watched, alone = without_time(tmp_path / "watched"), without_time(tmp_path / "alone")
    assert [{n: v for n, v in record.items() if n != "guess_share"} for record in watched] == alone
    for name in ("weights", "ema", "optimizer"):
        a, b = (tmp_path / run / "checkpoint" / "step-00000012" / f"{name}.safetensors" for run in ("watched", "alone"))
        assert a.read_bytes() == b.read_bytes()


@pytest.mark.parametrize("stop_at", [105, 115])
def test_a_collapse_is_reported_at_once_and_once_also_when_resumed(tmp_path: Path, stop_at: int) -> None:
    options = {"steps": 130, "eval_every": 10, **GIVEN}
    whole, parts = Heard(), Heard(stop_at)
    mixmatch.train(source(), out=tmp_path / "whole", network=Always(), reporter=whole, **options)
    (note,) = [text for text in whole.notes if "collapsing" in text]
    assert note.startswith("100 % of the unlabeled images are taken for 'b' at step 100: ")
    with pytest.raises(Interrupted):
        mixmatch.train(source(), out=tmp_path / "parts", network=Always(), reporter=parts, **options)
    parts.stop_at = None
    mixmatch.train(source(), out=tmp_path / "parts", network=Always(), reporter=parts, resume=True, **options)
    assert parts.notes == whole.notes
    assert without_time(tmp_path / "parts") == without_time(tmp_path / "whole")


def test_published_data_and_labels_alone_are_not_watched() -> None:
    for name, method in (("digits", "pi-model"), ("digits-test", "pi-model"), ("tiny", "supervised")):
        given = {n: v for n, v in GIVEN.items() if n != "device"} | {"steps": 8, "method": method}
        data = source(name)
        trainer = Trainer(resolve(name, given), data, make_split(data, 30, 1), network(), torch.device("cpu"))
        assert watch_for(trainer) is None

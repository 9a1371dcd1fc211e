"""What training takes, from a few steps of it."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mixmatch.cli import command_line, data_check
from mixmatch.data.source import UNKNOWN
from mixmatch.data.user.encoding import Encoding, Numeric
from mixmatch.data.user.rows import UserData
from mixmatch.settings import resolve
from mixmatch.training import timing
from mixmatch.training.choose import Choice
from mixmatch.training.timing import Cost, Trial, cost, describe
from mixmatch.training.trainer import Trainer


def features(labeled: int = 24, unlabeled: int = 30) -> UserData:
    count = labeled + unlabeled
    labels = np.arange(count) % 2
    labels[labeled:] = UNKNOWN
    return UserData(
        name="rows",
        classes=("a", "b"),
        labels=labels.astype(np.int64),
        files=tuple(map(str, range(count))),
        part=("train",) * count,
        inputs=np.random.default_rng(0).normal(size=(count, 3)).astype(np.float32),
        encoding=Encoding(tuple(Numeric(str(i), 0.0, 0.0, 1.0) for i in range(3))),
    )


def pictures(size: int, labeled: int = 24, unlabeled: int = 30) -> UserData:
    rows = features(labeled, unlabeled)
    pixels = np.random.default_rng(0).integers(0, 256, (len(rows), size, size, 3), np.uint8)
    return replace(rows, inputs=pixels, encoding=None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], float]], list[tuple[int, str]]]:
    """A clock that only steps move, by the seconds that a step with images of a size takes. Gives the size and the
    method of the steps that are taken."""

    def install(seconds: Callable[[int], float]) -> list[tuple[int, str]]:
        now, steps = [0.0], list[tuple[int, str]]()

        def advance(self: Trainer, until: int) -> None:
            size = self.source.input_shape[-1]
            steps.append((size, self.settings.method))
            now[0] += seconds(size) / (3 if self.settings.method == "supervised" else 1)

        monkeypatch.setattr(Trainer, "advance", advance)
        monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
        monkeypatch.setattr(timing, "choose_features", lambda device: Choice("none", ""))  # as on a GPU
        return steps

    return install


def test_a_trial_of_features(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    advance = Trainer.advance

    def counted(self: Trainer, until: int) -> None:
        advance(self, until)
        steps.append(self.step)

    monkeypatch.setattr(Trainer, "advance", counted)
    shown: list[int] = []
    found, first = cost(features(), "cpu", progress=shown.append)
    assert steps == [*range(1, 21), *range(1, 21)]  # the method, then its baseline
    assert shown == list(range(1, 41))
    assert (found.kind, found.severity) == ("cost", "info")
    assert re.search(r"takes a(bout| few) .* on this machine's CPU: 1,024 steps of \d+ ms with mlp", found.message)
    assert "the baseline on the labels alone" in found.message
    megabytes = int(re.search(r"memory ([\d,]+) MB", found.message)[1].replace(",", ""))  # type: ignore[index]
    assert 50 < megabytes < 100_000
    assert first is not None
    assert first[:2] == (None, None)  # the defaults end in time


def test_a_slow_machine_tries_for_fifteen_seconds(clock: Any) -> None:
    steps = clock(lambda size: 1.0)
    found, first = cost(features(), "cpu")
    assert steps == [(3, "mixmatch")] * 11 + [(3, "supervised")] * 11  # until 11 s, then until 14 2/3
    assert "takes about 25 minutes on this machine's CPU: 1,024 steps of 1.0 s" in found.message
    assert first is not None
    assert first.steps == 400  # of 1 1/3 s each: 450 would end in ten minutes
    assert first.seconds == pytest.approx(400 * 4 / 3)


def test_two_steps_are_taken_however_long_they_are(clock: Any) -> None:
    steps = clock(lambda size: 60.0)
    _, first = cost(features(), "cpu")
    assert steps == [(3, "mixmatch")] * 2 + [(3, "supervised")] * 2
    assert first is not None
    assert first.steps == 200  # fewer would be worth nothing


def test_large_images_are_tried_small_first(clock: Any) -> None:
    steps = clock(lambda size: 0.2 * (size / 32) ** 2)
    found, first = cost(pictures(64), "cpu")
    assert [size for size, _ in steps] == sorted(size for size, _ in steps)
    assert {size for size, _ in steps} == {32, 64}
    assert "4,096 steps of 800 ms" in found.message
    assert first is not None
    assert first[:2] == (32, 2200)  # 4/15 s each: 2250 end in ten minutes
    _, first = cost(pictures(64), "cpu", sized=True)
    assert first is not None
    assert first[:2] == (None, 500)  # 16/15 s each


def test_what_does_not_fit_into_the_time_is_worked_out(clock: Any) -> None:
    steps = clock(lambda size: 2.0 * (size / 32) ** 2)
    found, _ = cost(pictures(96), "cpu")
    assert {size for size, _ in steps} == {32}
    assert "takes about 27 hours" in found.message  # 4,096 steps of 9 * 2 s, and a third of that for the baseline
    assert "4,096 steps of 18.0 s with wrn-auto (from steps with images of 32x32 pixels)" in found.message


def test_images_without_a_gpu_are_tried_as_features(monkeypatch: pytest.MonkeyPatch) -> None:
    embedded: list[int] = []
    embed = timing.embedded

    def counted(data: Any, *more: Any) -> Any:
        embedded.append(len(data.source.train) + len(data.source.test))
        return embed(data, *more)

    monkeypatch.setattr(timing, "embedded", counted)
    found, first = cost(pictures(32), "cpu")
    assert len(embedded) == 1
    assert 0 < embedded[0] <= 3 * timing.FEW
    assert "basic features of each image, then 1,024 steps of" in found.message
    assert "with mlp" in found.message
    assert first is not None
    assert first.image_size is None  # how many steps there is time for, the machine decides


def test_cross_validation_is_part_of_the_time() -> None:
    few = timing.measure(pictures(32, labeled=12), torch.device("cpu"))  # six labels of each class
    assert few.folds == 5
    assert few.baseline is not None
    assert "both cross-validated over 5 folds" in describe(few)
    assert timing.measure(pictures(32, labeled=24), torch.device("cpu")).folds == 0  # a fifth is held out


def test_the_time_of_cross_validation_is_that_of_its_models() -> None:
    settings = resolve("x", {"steps": 100, "eval_every": 100}, "features")
    one = Trial(settings, step=0.5, evaluation=2.0, memory=None, device=torch.device("cpu"))  # 52 s a run
    found = Cost(one, baseline=0.5, folds=5, embedding=3.0)  # of the baseline, 27 s
    assert found.seconds(one) == 3 + 52 + 5 * (52 + 27)


def test_without_unlabeled_rows_the_labels_alone_are_tried() -> None:
    found, _ = cost(features(unlabeled=0), "cpu")
    assert found.severity == "info"
    assert "baseline" not in found.message


def test_what_fails_is_a_finding() -> None:
    count = 4
    images = UserData(
        name="four-channels",
        classes=("a", "b"),
        labels=np.array([0, 1, UNKNOWN, UNKNOWN]),
        files=tuple(map(str, range(count))),
        part=("train",) * count,
        inputs=np.zeros((count, 1, 0, 3), np.uint8),
    )
    found, first = cost(images, "cpu")
    assert first is None
    assert (found.kind, found.severity) == ("trial", "error")
    assert "a trial of a few steps failed" in found.message
    assert "\n" not in found.message


def test_time_is_steps_and_evaluations() -> None:
    settings = resolve("x", {"steps": 100, "eval_every": 30}, "features")
    one = Trial(settings, step=0.5, evaluation=2.0, memory=3 * 2**20, device=torch.device("cpu"))
    assert one.seconds == 100 * 0.5 + 4 * 2.0  # at 30, 60, 90 and at the end
    assert describe(Cost(one)).endswith("memory 3 MB at its peak")
    assert "about 1 minute" in describe(Cost(one))


def test_a_check_lets_go_of_unlabeled_rows_before_the_trial(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A large table and PyTorch need not be in memory at the same time. What they take together is said."""
    rows = [f"{n * 0.37 % 1:.6f},{n * n * 0.11 % 1:.6f},{'ab'[n % 2] if n < 24 else ''}" for n in range(500)]
    (tmp_path / "rows.csv").write_text("\n".join(["x,y,label", *rows]) + "\n")
    read: list[weakref.ref[Any]] = []
    tried: list[UserData] = []

    def reading(*args: Any) -> UserData:
        user = data_check.data.read_user_data(*args[:2])
        read.append(weakref.ref(user.inputs))
        return user

    def measured(user: UserData, *args: Any, **options: Any) -> Cost:
        assert read[0]() is None
        tried.append(user)
        return Cost(Trial(resolve("rows", {}, "features"), 0.1, 0.1, 10**15, torch.device("cpu"), 20))

    monkeypatch.setattr(data_check, "TRIED", 30)
    monkeypatch.setattr(data_check, "read_with_bar", reading)
    monkeypatch.setattr(timing, "measure", measured)
    command_line()(["data", "check", str(tmp_path / "rows.csv"), "--device", "cpu"], standalone_mode=False)
    (user,) = tried
    assert (len(user), len(user.labeled), user.files[-1]) == (54, 24, "line 55")
    trial = Trial(resolve("rows", {}, "features"), 0.1, 0.1, 1000, torch.device("cuda"))
    assert timing._with_rows(trial, 24).memory == 1024
    on_cpu = timing._with_rows(replace(trial, device=torch.device("cpu")), 10**12).memory
    assert on_cpu is not None
    assert on_cpu > 10**12

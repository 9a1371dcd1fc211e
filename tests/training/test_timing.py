"""What training takes, from 20 steps of it."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from mixmatch.data.source import UNKNOWN
from mixmatch.data.user.encoding import Encoding, Numeric
from mixmatch.data.user.rows import UserData
from mixmatch.settings import resolve
from mixmatch.training.timing import Trial, cost, describe
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


def test_a_trial_of_features(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    advance = Trainer.advance

    def counted(self: Trainer, until: int) -> None:
        advance(self, until)
        steps.append(self.step)

    monkeypatch.setattr(Trainer, "advance", counted)
    found = cost(features(), "cpu")
    assert steps == [*range(1, 21), *range(1, 21)]  # the method, then its baseline
    assert (found.kind, found.severity) == ("cost", "info")
    assert re.search(r"about \d+:\d\d on this machine's CPU: [\d,]+ steps of \d+ ms with mlp", found.message)
    assert "the baseline on the labels alone" in found.message
    megabytes = int(re.search(r"memory ([\d,]+) MB", found.message)[1].replace(",", ""))  # type: ignore[index]
    assert 50 < megabytes < 100_000


def test_without_unlabeled_rows_the_labels_alone_are_tried() -> None:
    found = cost(features(unlabeled=0), "cpu")
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
    found = cost(images, "cpu")
    assert (found.kind, found.severity) == ("trial", "error")
    assert "20 steps failed" in found.message
    assert "\n" not in found.message


def test_time_is_steps_and_evaluations() -> None:
    settings = resolve("x", {"steps": 100, "eval_every": 30}, "features")
    one = Trial(settings, step=0.5, evaluation=2.0, memory=3 * 2**20, device=torch.device("cpu"))
    assert one.seconds == 100 * 0.5 + 4 * 2.0  # at 30, 60, 90 and at the end
    assert describe([one], evaluated=True).endswith("memory 3 MB at its peak")
    assert "0:58" in describe([one], evaluated=True)

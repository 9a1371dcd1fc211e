"""Comparisons from Python: methods of the package and of one's own on the same labels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mixmatch import data, functional
from mixmatch.errors import MixMatchError
from mixmatch.experiments import compare as module
from mixmatch.experiments.compare import compare, plot, summarize
from mixmatch.methods.base import Batch, Method, Predictor, Progress, Step, Tensors, setting
from mixmatch.training.progress import Quiet

SMALL: dict[str, Any] = {"labels": 20, "steps": 2, "batch_size": 4, "eval_every": 1}


@dataclass(frozen=True)
class Halved(Method):
    """Supervised training with a weight."""

    weight: float = setting(0.5, "Weight of the loss.", least=0)

    def loss(self, model: Predictor, batch: Batch, draws: Tensors, progress: Progress, state: Tensors) -> Step:
        loss = self.weight * functional.labeled_loss(model(batch.x, stats="update"), batch.y)
        return Step(loss, {"loss": loss})


def test_a_method_of_ones_own_beside_one_of_the_package(tmp_path: Path) -> None:
    given = {"reporter": Quiet(), "device": "cpu", **SMALL}
    records = compare("digits", ["supervised", Halved()], [1, 2], tmp_path, **given)
    assert [(r["method"], r["seed"]) for r in records] == [
        ("supervised", 1),
        ("supervised", 2),
        ("custom:Halved", 1),
        ("custom:Halved", 2),
    ]
    assert len({r["split"]["hash"] for r in records if r["seed"] == 1}) == 1  # the same labels
    assert {row["method"] for row in summarize(records)} == {"supervised", "custom:Halved"}
    plot(records, tmp_path / "error.png")
    assert (tmp_path / "error.png").stat().st_size > 1000
    again = compare("digits", ["supervised", Halved()], [1, 2], str(tmp_path), **given)
    assert [r["seconds"] for r in again] == [r["seconds"] for r in records]  # finished runs are kept


def test_user_data_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "\n".join(f"{i % 7},{i % 3},{'ab'[i % 2] if i < 40 else ''}" for i in range(60))
    (tmp_path / "rows.csv").write_text(f"x,y,label\n{rows}\n")
    read: list[Path] = []

    def counted(path: Path, *arguments: Any, **options: Any) -> data.UserData:
        read.append(path)
        return data.read_user_data(path, *arguments, **options)

    monkeypatch.setattr(module, "read_user_data", counted)
    given = {"reporter": Quiet(), "device": "cpu", "steps": 2, "batch_size": 4, "eval_every": 1}
    records = compare(str(tmp_path / "rows.csv"), ["supervised", "mixmatch"], [1, 2], tmp_path / "runs", **given)
    assert len(records) == 4
    assert len(read) == 1
    first, second = ({r["split"]["hash"] for r in records if r["seed"] == seed} for seed in (1, 2))
    assert len(first) == len(second) == 1  # methods share the rows that are held out
    assert first != second  # seeds do not


def test_runs_on_data_as_it_was_are_not_shown_beside_others(tmp_path: Path) -> None:
    def with_labels(count: int) -> str:
        lines = "\n".join(f"{i % 7},{i % 3},{'ab'[i % 2] if i < count else ''}" for i in range(60))
        (tmp_path / "rows.csv").write_text(f"x,y,label\n{lines}\n")
        return str(tmp_path / "rows.csv")

    given: dict[str, Any] = {"reporter": Quiet(), "device": "cpu", "steps": 2, "batch_size": 4, "eval_every": 1}
    compare(with_labels(40), ["supervised"], [1], tmp_path / "runs", **given)
    with pytest.raises(MixMatchError, match=r"the data has changed since .*supervised-seed1 was trained"):
        compare(with_labels(44), ["supervised"], [1, 2], tmp_path / "runs", **given)
    assert not (tmp_path / "runs" / "supervised-seed2").exists()
    assert len(compare(with_labels(40), ["supervised"], [1, 2], tmp_path / "runs", **given)) == 2


def test_runs_with_other_settings_are_refused_before_one_begins(tmp_path: Path) -> None:
    given = {"reporter": Quiet(), "device": "cpu", **SMALL}
    compare("digits", ["supervised"], [1], tmp_path, **given)
    with pytest.raises(MixMatchError, match=r"supervised-seed1 was made with other settings \(batch_size: 4 -> 8\)"):
        compare("digits", ["supervised"], [1, 2], tmp_path, **{**given, "batch_size": 8})
    assert not (tmp_path / "supervised-seed2").exists()


def test_runs_of_other_lengths_are_not_shown_beside_each_other(tmp_path: Path) -> None:
    """Neither where the number of steps is not given again, nor where both were made apart."""
    given: dict[str, Any] = {"reporter": Quiet(), "device": "cpu", "labels": 20, "batch_size": 4, "eval_every": 1}
    compare("digits", ["supervised"], [1], tmp_path, steps=2, **given)
    with pytest.raises(MixMatchError, match=r"supervised-seed1 was made with other settings \(steps: 2 -> 1000\)"):
        compare("digits", ["supervised", "mixmatch"], [1], tmp_path, **given)
    assert not (tmp_path / "mixmatch-seed1").exists()
    compare("digits", ["supervised"], [2], tmp_path, steps=3, **given)
    with pytest.raises(MixMatchError, match=r"supervised-seed2 was made with other settings \(steps: 3 -> 2\)"):
        compare("digits", ["supervised"], [1, 2], tmp_path, **given)
    assert len(compare("digits", ["supervised"], [1], tmp_path, **given)) == 1  # it is shown without being given again

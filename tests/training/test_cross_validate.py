"""Cross-validation: which models predict which labels, that none has seen them, and what is kept."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from mixmatch import settings as settings_
from mixmatch.data.opened import Basis, Data
from mixmatch.data.source import UNKNOWN, Rows, Source
from mixmatch.data.split import Split
from mixmatch.data.validation import assign_folds, number_of_folds
from mixmatch.errors import MixMatchError
from mixmatch.training import cross_validate as module
from mixmatch.training.cross_validate import FILE, cross_validate, load_cross_validation

CPU = torch.device("cpu")


def make(per_class: list[int], unlabeled: int = 60, flipped: int | None = None, everything: bool = False) -> Data:
    """Classes far apart in the plane; the label of row `flipped` is the next class's."""
    labels = np.repeat(np.arange(len(per_class)), per_class)
    true = np.concatenate([labels, np.arange(unlabeled) % len(per_class)])
    angle = 2 * np.pi * true / len(per_class)
    noise = np.random.default_rng(0).normal(size=(len(true), 2)) / 8
    inputs = (2 * np.stack([np.cos(angle), np.sin(angle)], axis=1) + noise).astype(np.float32)
    given = np.concatenate([labels, np.full(unlabeled, UNKNOWN)]).astype(np.int64)
    if flipped is not None:
        given[flipped] = (given[flipped] + 1) % len(per_class)
    train = Rows(inputs, given)
    source = Source("points", tuple("abcd"[: len(per_class)]), train, train.take(np.empty(0, np.int64)))
    rows, empty = np.arange(len(labels)), np.empty(0, np.int64)
    others = np.arange(0 if everything else len(labels), len(true))
    return Data(source, Split(rows, others, empty, empty), Basis(missing="too few labels"))


def settings(**given: object) -> settings_.Settings:
    return settings_.resolve("points", {"steps": 40, "batch_size": 16, "ema_decay": 0.9, **given}, "features")


def test_folds_spread_every_class_evenly() -> None:
    labels = np.repeat([0, 1, 2, 3], [9, 7, 1, 4])
    assigned = assign_folds(labels, 4, seed=1)
    for c, most in ((0, 3), (1, 2), (3, 1)):
        spread = np.bincount(assigned[labels == c], minlength=4)
        assert (spread.max(), spread.max() - spread.min()) == (most, int(c != 3))
    assert assigned[labels == 2].tolist() == [-1]
    sizes = np.bincount(assigned[assigned >= 0])
    assert sizes.max() - sizes.min() <= 1
    assert assign_folds(labels, 4, seed=1).tolist() == assigned.tolist() != assign_folds(labels, 4, seed=2).tolist()


@pytest.mark.parametrize(("per_class", "folds"), [([9, 9], 5), ([9, 2, 1], 5), ([2, 2], 4), ([2, 1], 2), ([1, 1], 0)])
def test_number_of_folds(per_class: list[int], folds: int) -> None:
    assert number_of_folds(make(per_class)) == folds


@pytest.mark.parametrize("everything", [False, True])
def test_no_model_has_seen_what_it_predicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, everything: bool) -> None:
    data, trained = make([5, 4, 1], everything=everything), []
    train = module.train_whole

    def noted(settings, data, *options):  # type: ignore[no-untyped-def]
        trained.append(data.split)
        return train(settings, data, *options)

    monkeypatch.setattr(module, "train_whole", noted)
    found = cross_validate(settings(steps=2), data, CPU, tmp_path)
    assert len(trained) == found.folds == 5
    assert found.rows.tolist() == list(range(9))  # the only label of the class c is always trained on
    assert found.left_out == ("c",)
    for fold, split in enumerate(trained):
        held = set(found.rows[found.fold == fold].tolist())
        assert held
        assert held.isdisjoint(split.labeled)
        assert held.isdisjoint(split.unlabeled)
        assert held | set(split.labeled.tolist()) == set(range(10))
        assert len(split.unlabeled) == len(data.split.unlabeled) - everything * len(held)


def test_a_wrong_label_is_found_out_and_kept(tmp_path: Path) -> None:
    data = make([8, 8, 8], flipped=3)
    found = cross_validate(settings(), data, CPU, tmp_path)
    assert found.labels[3] == 1
    assert np.flatnonzero(found.wrong).tolist() == [3]
    assert found.predicted[3] == 0
    assert found.probability[3] > 0.5 > found.label_probability[3]
    rows = json.loads((tmp_path / FILE).read_text())["rows"]
    assert [row["file"] for row in rows if row["label"] != row["predicted"]] == ["3"]
    again = load_cross_validation(tmp_path, data)
    assert again is not None
    assert again.predicted.tolist() == found.predicted.tolist()
    assert again.folds == 5
    assert found.basis("row").on == (
        "24 labeled rows, each predicted by one of 5 models that was trained without it (cross-validation)"
    )


def test_finished_folds_are_kept_and_the_rest_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, train, calls = make([4, 4]), module.train_whole, []
    whole = cross_validate(settings(), data, CPU, tmp_path / "whole")

    def stopped(*arguments):  # type: ignore[no-untyped-def]
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return train(*arguments)

    monkeypatch.setattr(module, "train_whole", stopped)
    with pytest.raises(KeyboardInterrupt):
        cross_validate(settings(), data, CPU, tmp_path / "run")
    assert load_cross_validation(tmp_path / "run", data) is None
    resumed = cross_validate(settings(), data, CPU, tmp_path / "run")
    assert len(calls) == 3 + 3  # of 5: two were finished
    assert resumed.probability.tolist() == whole.probability.tolist()
    cross_validate(settings(), data, CPU, tmp_path / "run")
    assert len(calls) == 6
    cross_validate(settings(steps=20), data, CPU, tmp_path / "run")  # other settings: again
    assert len(calls) == 11


def test_what_cannot_be_cross_validated(tmp_path: Path) -> None:
    with pytest.raises(MixMatchError, match="two labels"):
        cross_validate(settings(), make([1, 1]), CPU, tmp_path)
    with pytest.raises(MixMatchError, match="built by name"):
        cross_validate(settings(network="custom:Mine"), make([4, 4]), CPU, tmp_path)
    (tmp_path / FILE).write_text("{")
    with pytest.raises(MixMatchError, match="remove it"):
        load_cross_validation(tmp_path, make([4, 4]))

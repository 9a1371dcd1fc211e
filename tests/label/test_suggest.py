"""What to label next: by hand on points in a plane, and against chance on digits."""

from __future__ import annotations

import numpy as np
import pytest

from mixmatch.label import suggest
from mixmatch.label.suggest import Suggestion


def clusters(*sizes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Directions in space, so many around each axis; and which axis."""
    rng = np.random.default_rng(seed)
    which = np.repeat(np.arange(len(sizes)), sizes)
    return (np.eye(len(sizes))[which] + 0.05 * rng.standard_normal((len(which), len(sizes)))).astype(np.float32), which


def rows(found: list[Suggestion]) -> list[int]:
    return [suggestion.row for suggestion in found]


def test_the_largest_groups_without_a_label_come_first() -> None:
    features, which = clusters(30, 60, 40, 50)
    labels = np.full(180, -1)
    found = suggest.suggest(features, labels, count=4)
    assert which[rows(found)].tolist() == [1, 3, 2, 0]
    assert found[0] == (found[0].row, "typical", "typical of a group of 60 pictures without a label")

    labels[[35, 36]] = 0  # both in the largest group
    found = suggest.suggest(features, labels, count=2)
    assert which[rows(found)].tolist() == [3, 2]


def test_the_typical_picture_is_at_the_center_of_its_group() -> None:
    line = np.stack([np.linspace(-1, 1, 25), np.ones(25)], axis=1)
    assert suggest.typical(line, line[:0], 1, seed=0) == [(12, 25, 0)]  # the middle
    assert suggest.typical(line, line[:0], 0, seed=0) == []


def test_more_than_there_are_groups_and_more_than_there_is() -> None:
    features, _ = clusters(3, 2)
    found = suggest.suggest(features, np.full(5, -1), count=9)
    assert sorted(rows(found)) == [0, 1, 2, 3, 4]
    labels = np.array([0, -1, -1, 1, -1])
    found = suggest.suggest(features, labels, count=9, exclude=np.array([False, False, True, False, False]))
    assert sorted(rows(found)) == [1, 4]
    assert suggest.suggest(features, np.zeros(5, np.int64)) == []
    assert suggest.suggest(features[:0], labels[:0]) == []
    copies = np.ones((30, 4), np.float32)
    assert len(set(rows(suggest.suggest(copies, np.full(30, -1), count=7)))) == 7


def test_with_a_model_unsure_ones_of_different_groups_and_a_tenth_at_random() -> None:
    features, _ = clusters(100, 100, 100)
    sure, unsure = [0.98, 0.01, 0.01], [0.48, 0.46, 0.06]
    probabilities = np.array([sure] * 300)
    probabilities[:20] = unsure  # those of one group above all
    probabilities[[0, 1, 100, 200]] = [[0.49, 0.48, 0.03], [0.48, 0.47, 0.05], [0.1, 0.4, 0.5], [0.5, 0.3, 0.2]]
    labels = np.full(300, -1)
    labels[40:55] = 0  # five per class
    names = ["cat", "dog", "owl"]
    found = suggest.suggest(features, labels, count=4, probabilities=probabilities, classes=names)
    assert [each.rule for each in found] == ["unsure", "unsure", "unsure", "random"]
    assert rows(found)[:3] == [0, 100, 200]  # not 1, which is like 0
    assert [each.reason for each in found][:2] == ["unsure: cat 49% or dog 48%", "unsure: owl 50% or dog 40%"]
    many = suggest.suggest(features, labels, count=20, probabilities=probabilities, classes=names)
    assert [place for place, each in enumerate(many) if each.rule == "random"] == [9, 19]
    assert len(set(rows(many))) == 20
    assert not set(rows(many)) & set(range(40, 55))
    everything = suggest.suggest(features, labels, count=300, probabilities=probabilities, classes=names)
    assert sorted(rows(everything)) == sorted(set(range(300)) - set(range(40, 55)))

    labels[40] = -1  # one less: the model has learned too little to be asked
    few = suggest.suggest(features, labels, count=4, probabilities=probabilities, classes=names)
    assert {each.rule for each in few} == {"typical"}


def test_pictures_the_model_has_not_seen_can_still_be_drawn() -> None:
    features, _ = clusters(20, 20)
    probabilities = np.full((40, 2), np.nan)
    labels = np.full(40, -1)
    labels[:10] = 1
    found = suggest.suggest(features, labels, count=5, probabilities=probabilities)
    assert {each.rule for each in found} == {"typical"}
    probabilities[30] = 0.5
    found = suggest.suggest(features, labels, count=10, probabilities=probabilities, classes=["a", "b"])
    assert [each.rule for each in found] in (["unsure", "random"], ["random"])
    assert suggest.suggest(features, labels, count=1, probabilities=probabilities[:, :1])[0].rule == "random"
    assert suggest.margins(np.array([[0.2, 0.7, 0.1], [0.4, 0.2, 0.4]])) == pytest.approx([0.5, 0])


def test_a_sample_of_very_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suggest, "SAMPLE", 60)
    features, _ = clusters(200, 100)
    labels = np.full(300, -1)
    labels[:50] = 0
    found = suggest.suggest(features, labels, count=4)
    assert len(set(rows(found))) == 4
    assert "about" in found[0].reason
    assert found == suggest.suggest(features, labels, count=4)
    assert found != suggest.suggest(features, labels, count=4, seed=1)

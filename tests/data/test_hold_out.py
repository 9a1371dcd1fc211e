"""UserData data as a source and a split: what judges it, and that nothing judged is trained on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mixmatch.data.source import UNKNOWN
from mixmatch.data.user.hold_out import to_source
from mixmatch.data.user.rows import UserImages


def own(per_class: list[int], unlabeled: int, test: list[int] = []) -> UserImages:  # noqa: B006
    labels = [c for c, n in enumerate(per_class) for _ in range(n)] + [UNKNOWN] * unlabeled
    tested = [c for c, n in enumerate(test) for _ in range(n)]
    count = len(labels) + len(tested)
    images = np.arange(count, dtype=np.uint8).reshape(-1, 1, 1, 1) * np.ones((1, 4, 4, 3), np.uint8)
    return UserImages(
        name="mine",
        classes=tuple("abcdef"[: len(per_class)]),
        labels=np.array(labels + tested, np.int64),
        files=tuple(map(str, range(count))),
        part=("train",) * len(labels) + ("test",) * len(tested),
        images=images,
    )


def in_files(data: UserImages) -> UserImages:
    """The same images as a folder gives them: files have sizes."""
    return replace(data, sizes=np.full((len(data), 2), 4, np.int32))


def test_test_images_judge_if_there_are_any() -> None:
    source, split, basis = to_source(own([3, 4], 20, [5, 6]), seed=1)
    assert (len(source.test), len(split.labeled), len(split.unlabeled), len(split.valid)) == (11, 7, 20, 0)
    assert split.test.tolist() == list(range(11))
    assert "the 11 test images" in basis
    assert "11 images under test/" in to_source(in_files(own([3, 4], 20, [5, 6])), seed=1)[2]


def test_a_fifth_of_each_class_is_held_out_and_not_trained_on() -> None:
    data = own([10, 25], 30)
    source, split, basis = to_source(data, seed=1)
    assert np.bincount(source.test.labels).tolist() == [2, 5]
    held = set(source.test.images[:, 0, 0, 0].tolist())  # an image's value is its row
    assert len(held) == 7
    assert held.isdisjoint(split.labeled.tolist())
    assert held.isdisjoint(split.unlabeled.tolist())
    assert held | set(split.labeled.tolist()) == set(range(35))
    assert split.unlabeled.tolist() == list(range(35, 65))
    assert all(data.labels[row] == label for row, label in zip(sorted(held), source.test.labels, strict=True))
    assert "7 labeled images held out" in basis


def test_the_seed_decides_who_is_held_out() -> None:
    first = to_source(own([20, 20], 5), seed=1)[1]
    assert first.hash == to_source(own([20, 20], 5), seed=1)[1].hash
    assert first.hash != to_source(own([20, 20], 5), seed=2)[1].hash


@pytest.mark.parametrize("per_class", [[9, 30], [1, 1]])
def test_too_few_labels_to_judge(per_class: list[int]) -> None:
    source, split, basis = to_source(own(per_class, 8), seed=1)
    assert len(source.test) == len(split.test) == 0
    assert len(split.labeled) == sum(per_class)
    assert f"'a' has {per_class[0]}" in basis
    assert "labeled test images" in basis
    assert "labeled images under test/" in to_source(in_files(own(per_class, 8)), seed=1)[2]

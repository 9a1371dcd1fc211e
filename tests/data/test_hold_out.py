"""User data as a source and a split: what it is evaluated on, and that nothing of that is trained on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mixmatch.data.opened import Basis, to_data
from mixmatch.data.source import UNKNOWN
from mixmatch.data.user.rows import UserData


def user_data(per_class: list[int], unlabeled: int, test: list[int] = []) -> UserData:  # noqa: B006
    labels = [c for c, n in enumerate(per_class) for _ in range(n)] + [UNKNOWN] * unlabeled
    tested = [c for c, n in enumerate(test) for _ in range(n)]
    count = len(labels) + len(tested)
    images = np.arange(count, dtype=np.uint8).reshape(-1, 1, 1, 1) * np.ones((1, 4, 4, 3), np.uint8)
    return UserData(
        name="mine",
        classes=tuple("abcdef"[: len(per_class)]),
        labels=np.array(labels + tested, np.int64),
        files=tuple(map(str, range(count))),
        part=("train",) * len(labels) + ("test",) * len(tested),
        inputs=images,
    )


def in_files(data: UserData) -> UserData:
    """The same images as a folder gives them: files have sizes."""
    return replace(data, sizes=np.full((len(data), 2), 4, np.int32))


def test_it_is_evaluated_on_test_images_if_there_are_any() -> None:
    opened = to_data(user_data([3, 4], 20, [5, 6]), seed=1)
    source, split, basis = opened.source, opened.split, opened.basis
    assert (len(source.test), len(split.labeled), len(split.unlabeled), len(split.valid)) == (11, 7, 20, 0)
    assert split.test.tolist() == list(range(11))
    assert basis == Basis(on="the 11 test images")
    assert opened.user is not None
    assert to_data(in_files(opened.user), seed=1).basis == Basis(on="the 11 images under test/")


def test_a_fifth_of_each_class_is_held_out_and_not_trained_on() -> None:
    data = user_data([10, 25], 30)
    opened = to_data(data, seed=1)
    source, split, basis = opened.source, opened.split, opened.basis
    assert np.bincount(source.test.labels).tolist() == [2, 5]
    held = set(source.test.inputs[:, 0, 0, 0].tolist())  # an image's value is its row
    assert len(held) == 7
    assert held.isdisjoint(split.labeled.tolist())
    assert held.isdisjoint(split.unlabeled.tolist())
    assert held | set(split.labeled.tolist()) == set(range(35))
    assert split.unlabeled.tolist() == list(range(35, 65))
    assert all(data.labels[row] == label for row, label in zip(sorted(held), source.test.labels, strict=True))
    assert basis == Basis(on="7 labeled images held out, a fifth of each class")


def test_the_seed_decides_who_is_held_out() -> None:
    first = to_data(user_data([20, 20], 5), seed=1).split
    assert first.hash == to_data(user_data([20, 20], 5), seed=1).split.hash
    assert first.hash != to_data(user_data([20, 20], 5), seed=2).split.hash


@pytest.mark.parametrize("per_class", [[9, 30], [1, 1]])
def test_too_few_labels_to_evaluate(per_class: list[int]) -> None:
    opened = to_data(user_data(per_class, 8), seed=1)
    source, split, basis = opened.source, opened.split, opened.basis
    assert len(source.test) == len(split.test) == 0
    assert len(split.labeled) == sum(per_class)
    assert basis.on == ""
    assert f"'a' has {per_class[0]}" in basis.missing
    assert "labeled test images" in basis.missing
    assert "labeled images under test/" in to_data(in_files(user_data(per_class, 8)), seed=1).basis.missing

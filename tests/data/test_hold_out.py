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
    """The same images as a folder gives them: files have sizes and lie in folders."""
    return replace(data, sizes=np.full((len(data), 2), 4, np.int32), test_folder="test")


def test_it_is_evaluated_on_test_images_if_there_are_any() -> None:
    opened = to_data(user_data([3, 4], 20, [5, 6]), 1, "two-classes")
    source, split, basis = opened.source, opened.split, opened.basis
    assert (len(source.test), len(split.labeled), len(split.unlabeled), len(split.valid)) == (11, 7, 20, 0)
    assert split.test.tolist() == list(range(11))
    assert basis == Basis(on="the 11 test images")
    assert opened.user is not None
    assert to_data(in_files(opened.user), 1, "two-classes").basis == Basis(on="the 11 images under test/")


def test_a_fifth_of_each_class_is_held_out_and_not_trained_on() -> None:
    data = user_data([10, 25], 30)
    opened = to_data(data, 1, "two-classes")
    source, split, basis = opened.source, opened.split, opened.basis
    assert np.bincount(source.test.labels).tolist() == [2, 5]
    held = set(source.test.inputs[:, 0, 0, 0].tolist())  # an image's value is its row
    assert len(held) == 7
    assert held.isdisjoint(split.labeled.tolist())
    assert held.isdisjoint(split.unlabeled.tolist())
    assert held | set(split.labeled.tolist()) == set(range(35))
    assert split.unlabeled.tolist() == list(range(35, 65))
    assert all(data.labels[row] == label for row, label in zip(sorted(held), source.test.labels, strict=True))
    assert basis == Basis(on="7 labeled images held out, a fifth of each class", held_out=True)


def test_the_seed_decides_who_is_held_out() -> None:
    first = to_data(user_data([20, 20], 5), 1, "two-classes").split
    assert first.hash == to_data(user_data([20, 20], 5), 1, "two-classes").split.hash
    assert first.hash != to_data(user_data([20, 20], 5), 2, "two-classes").split.hash


def test_a_class_with_few_labels_does_not_switch_off_evaluating_the_others() -> None:
    data = user_data([10, 3, 25], 8)
    opened = to_data(data, 1, "two-classes")
    assert np.bincount(opened.source.test.labels, minlength=3).tolist() == [2, 0, 5]
    assert np.bincount(data.labels[opened.split.labeled]).tolist() == [8, 3, 20]
    assert opened.basis.left_out == ("b",)
    assert opened.basis.on == "7 labeled images held out, a fifth of each class with at least 10 labels"


@pytest.mark.parametrize(
    ("per_class", "hold_out", "named"),
    [
        ([9, 8], "large-classes", "'a' has 9, and it takes 10 of a class"),
        ([9, 8], "two-classes", "'b' has 8, and it takes 10 of two classes"),
        ([9, 30], "two-classes", "'a' has 9, and it takes 10 of two classes"),
        ([9, 1, 30], "two-classes", "'a' has 9, and it takes 10 of two classes"),
        ([9, 30, 1], "all-classes", "'c' has 1, and it takes 10 of each class"),
    ],
)
def test_too_few_labels_to_evaluate(per_class: list[int], hold_out: str, named: str) -> None:
    opened = to_data(user_data(per_class, 8), 1, hold_out)
    source, split, basis = opened.source, opened.split, opened.basis
    assert len(source.test) == len(split.test) == 0
    assert len(split.labeled) == sum(per_class)
    assert basis.on == ""
    assert named in basis.missing
    assert "labeled test images" in basis.missing
    assert "labeled images under test/" in to_data(in_files(user_data(per_class, 8)), 1, hold_out).basis.missing


def test_one_class_alone_is_held_out_of_only_if_asked() -> None:
    """As some earlier versions did, whose runs find their split again."""
    data = user_data([9, 4, 30], 8)
    opened = to_data(data, 1, "large-classes")
    assert np.bincount(opened.source.test.labels, minlength=3).tolist() == [0, 0, 6]
    assert opened.basis.left_out == ("a", "b")
    assert len(to_data(data, 1, "two-classes").split.test) == 0


def test_nothing_is_held_out_if_asked() -> None:
    opened = to_data(user_data([30, 30], 8), 1, "none")
    assert (len(opened.split.labeled), len(opened.split.test)) == (60, 0)
    assert "hold_out=none" in opened.basis.missing
    assert len(to_data(user_data([30, 30], 8, [4, 4]), 1, "none").split.test) == 8


def test_all_rules_agree_where_every_class_has_ten_labels() -> None:
    """So a run of an earlier version finds its rows again."""
    rules = ("large-classes", "two-classes", "all-classes")
    assert len({to_data(user_data([10, 25], 5), 3, rule).split.hash for rule in rules}) == 1

"""Splits against the authors' procedure, written here a second time, plainly, from its description."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixmatch.data import load
from mixmatch.data.source import UNKNOWN, Rows, Source
from mixmatch.data.split import Split, labeled_split, long_tail, make_split
from mixmatch.errors import MixMatchError

SVHN_TRAIN_COUNTS = [13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659, 4948]


@pytest.fixture(autouse=True)
def _restore_numpys_global_state():
    state = np.random.get_state()
    yield
    np.random.set_state(state)


def most_behind(shares: list[float], taken: list[int]) -> int:
    return max(range(len(shares)), key=lambda c: shares[c] - taken[c] / max(max(taken), 1))


def class_shares(counts: list[int], balanced: bool) -> list[float]:
    return [1.0 if balanced else count / max(counts) for count in counts]


def authors_labeled(labels: list[int], num_labels: int, seed: int, balanced: bool = False) -> list[int]:
    """The split script: shuffle each class with the global legacy generator, then deal to the class most behind."""
    queues: list[list[int]] = [[] for _ in range(max(labels) + 1)]
    for row, label in enumerate(labels):
        if label >= 0:
            queues[label].append(row)
    shares = class_shares([len(queue) for queue in queues], balanced)
    if seed != 0:
        np.random.seed(seed)
        for queue in queues:
            np.random.shuffle(queue)
    taken, chosen = [0] * len(queues), []
    for _ in range(num_labels):
        c = most_behind(shares, taken)
        chosen.append(queues[c][taken[c]])
        taken[c] += 1
    return chosen


def authors_unlabeled(labels: list[int], labeled: list[int], balanced: bool = False) -> list[int]:
    """The order of their unlabeled file: classes take turns by share, a class whose turn it is waits for a record."""
    labels = [max(label, 0) for label in labels]  # no label was written as label 0
    shares = class_shares(np.bincount(labels).tolist(), balanced)
    excluded = set(labeled)
    queues: list[list[int]] = [[] for _ in shares]
    taken, order = [0] * len(shares), []
    for row, label in enumerate(labels):
        if row in excluded:
            continue
        queues[label].append(row)
        while queues[c := most_behind(shares, taken)]:
            order.append(queues[c].pop(0))
            taken[c] += 1
    for queue in queues:
        order += queue
    return order


def shuffled_labels(counts: list[int], seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).permutation(np.repeat(np.arange(len(counts)), counts))


def make_source(labels: np.ndarray, classes: int | None = None, tests: int = 3, **fields: object) -> Source:
    labels = np.asarray(labels, np.int64)
    classes = int(labels.max()) + 1 if classes is None else classes
    return Source(
        name="toy",
        classes=tuple(f"class{c}" for c in range(classes)),
        train=Rows(np.zeros((len(labels), 2, 3, 1), np.uint8), labels),
        test=Rows(np.zeros((tests, 2, 3, 1), np.uint8), np.zeros(tests, np.int64)),
        **fields,
    )


# Which images are labeled


def test_svhns_250_labels_are_in_proportion_to_its_classes():
    labels = shuffled_labels(SVHN_TRAIN_COUNTS)
    chosen = labeled_split(labels, 250, seed=1)
    assert np.bincount(labels[chosen]).tolist() == [47, 36, 29, 25, 24, 20, 19, 17, 16, 17]


@pytest.mark.parametrize("num_labels", [10, 20, 250, 300])
@pytest.mark.parametrize("seed", [0, 1, 5])
def test_equal_classes_get_equally_many_labels(num_labels, seed):
    labels = shuffled_labels([30] * 10)
    counts = np.bincount(labels[labeled_split(labels, num_labels, seed)], minlength=10)
    assert counts.tolist() == [num_labels // 10] * 10


def test_balanced_ignores_the_class_counts():
    labels = shuffled_labels([100, 50, 10])
    assert np.bincount(labels[labeled_split(labels, 30, 1, balanced=True)]).tolist() == [10, 10, 10]
    assert np.bincount(labels[labeled_split(labels, 32, 1, balanced=False)]).tolist() == [20, 10, 2]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(0, 2**32 - 1), st.data())
def test_labels_are_dealt_as_the_authors_did(counts, seed, data):
    num_labels = data.draw(st.integers(1, sum(counts)))
    unknown = data.draw(st.integers(0, 5))
    labels = np.random.RandomState(7).permutation([*np.repeat(np.arange(len(counts)), counts), *[UNKNOWN] * unknown])
    chosen = labeled_split(labels, num_labels, seed)
    assert chosen.dtype == np.int64
    assert chosen.tolist() == authors_labeled(labels.tolist(), num_labels, seed)
    assert len(set(chosen.tolist())) == num_labels
    assert (labels[chosen] != UNKNOWN).all()


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(5, 30), min_size=1, max_size=6), st.integers(0, 100), st.data())
def test_balanced_labels_are_dealt_as_the_authors_did(counts, seed, data):
    labels = shuffled_labels(counts)
    num_labels = data.draw(st.integers(1, len(counts) * min(counts)))
    chosen = labeled_split(labels, num_labels, seed, balanced=True)
    assert chosen.tolist() == authors_labeled(labels.tolist(), num_labels, seed, balanced=True)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(0, 100), st.data())
def test_a_smaller_set_is_the_beginning_of_a_larger_one_and_covers_the_classes(counts, seed, data):
    labels = shuffled_labels(counts)
    most = labeled_split(labels, sum(counts), seed).tolist()
    n = data.draw(st.integers(1, sum(counts)))
    assert labeled_split(labels, n, seed).tolist() == most[:n]
    assert sorted(labels[most[: len(counts)]].tolist()) == list(range(len(counts)))


def test_seed_0_takes_the_first_of_each_class_in_the_file():
    labels = np.array([2, 2, 0, 1, 0, 2, 1, 0, 1])
    assert labeled_split(labels, 6, seed=0).tolist() == [2, 3, 0, 4, 6, 1]


def test_seeds_differ_and_leave_numpys_global_generator_alone():
    labels = shuffled_labels([50] * 4)
    np.random.seed(123)
    sets = [tuple(labeled_split(labels, 20, seed).tolist()) for seed in range(6)]
    after = np.random.random()
    assert len({frozenset(rows) for rows in sets}) == 6
    np.random.seed(123)
    assert np.random.random() == after


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
def test_any_whole_number_type_does(dtype):
    labels = shuffled_labels([9, 5, 7])
    expected = authors_labeled(labels.tolist(), 10, 3)
    assert labeled_split(labels.astype(dtype), 10, 3).tolist() == expected


def test_the_labels_are_not_changed():
    labels = shuffled_labels([9, 5, 7])
    before = labels.copy()
    labeled_split(labels, 10, 3)
    np.testing.assert_array_equal(labels, before)


@pytest.fixture(scope="module")
def cifar10_labels() -> np.ndarray:
    folder = Path(os.environ.get("MIXMATCH_DATA", "")) / "cifar-10-batches-bin"
    if "MIXMATCH_DATA" not in os.environ or not folder.is_dir():
        pytest.skip("needs CIFAR-10: set MIXMATCH_DATA to a folder that holds cifar-10-batches-bin")
    batches = [np.fromfile(folder / f"data_batch_{i}.bin", np.uint8).reshape(-1, 3073)[:, 0] for i in range(1, 6)]
    labels = np.concatenate(batches).astype(np.int64)
    assert np.bincount(labels).tolist() == [5000] * 10
    return labels


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_cifar10s_labeled_sets_are_the_authors(cifar10_labels, seed):
    for num_labels in (250, 500, 1000, 2000, 4000):
        chosen = labeled_split(cifar10_labels, num_labels, seed)
        assert chosen.tolist() == authors_labeled(cifar10_labels.tolist(), num_labels, seed)
        assert np.bincount(cifar10_labels[chosen]).tolist() == [num_labels // 10] * 10


@pytest.mark.parametrize("valid", [1, 5000])
def test_cifar10s_unlabeled_and_held_out_sets_are_the_authors(cifar10_labels, valid):
    split = make_split(make_source(cifar10_labels), 250, seed=3, valid=valid)
    order = authors_unlabeled(cifar10_labels.tolist(), authors_labeled(cifar10_labels.tolist(), 250, 3))
    assert split.valid.tolist() == order[:valid]
    assert split.unlabeled.tolist() == order[valid:]
    assert split.counts() == {"labeled": 250, "unlabeled": 49_750 - valid, "valid": valid, "test": 3}


# The whole split


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.integers(2, 20), min_size=2, max_size=6), st.integers(0, 100), st.booleans(), st.booleans(), st.data()
)
def test_the_unlabeled_order_is_the_authors(counts, seed, some_unknown, balanced, data):
    unknown = data.draw(st.integers(1, 40)) if some_unknown else 0
    labels = np.random.RandomState(seed).permutation([*np.repeat(range(len(counts)), counts), *[UNKNOWN] * unknown])
    most = len(counts) * min(counts) if balanced else sum(counts)
    num_labels = data.draw(st.integers(len(counts), min(most, sum(counts) - 1)))
    valid = data.draw(st.integers(0, len(labels) - num_labels))
    split = make_split(make_source(labels, balanced=balanced), num_labels, seed, valid)
    labeled = authors_labeled(labels.tolist(), num_labels, seed, balanced)
    order = authors_unlabeled(labels.tolist(), labeled, balanced)
    assert split.labeled.tolist() == labeled
    assert split.valid.tolist() == order[:valid]
    assert split.unlabeled.tolist() == order[valid:]
    assert split.test.tolist() == [0, 1, 2]
    parts = [*split.labeled, *split.valid, *split.unlabeled]
    assert sorted(parts) == list(range(len(labels)))  # disjoint, and everything is somewhere


@pytest.mark.parametrize("valid", [1, 5000])
def test_the_unlabeled_order_at_svhns_class_counts(valid):
    counts = [count // 5 for count in SVHN_TRAIN_COUNTS]
    labels = shuffled_labels(counts, seed=4)
    split = make_split(make_source(labels), 250, 1, valid)
    order = authors_unlabeled(labels.tolist(), authors_labeled(labels.tolist(), 250, 1))
    assert split.valid.tolist() == order[:valid]
    assert split.unlabeled.tolist() == order[valid:]
    if valid == 5000:  # held-out images keep the classes' proportions
        shares = np.bincount(labels[split.valid]) / valid
        np.testing.assert_allclose(shares, np.array(counts) / sum(counts), atol=0.005)


def test_the_unlabeled_order_by_hand():
    # Row 0 is labeled 0, row 1 is labeled 1. Shares are 1 and 3/5. Turns: 0 waits for row 4 while 2 and 3 (class 1)
    # queue; then 1 takes row 2; then 0 is exactly level (1 - 1/1 = 0 > 3/5 - 1): row 5; then 1 is 3/5 - 1/2 behind:
    # row 3; then 0 (1 - 2/2 = 0 > 3/5 - 2/2): rows 6 and 7.
    labels = np.array([0, 1, 1, 1, 0, 0, 0, 0])
    split = make_split(make_source(labels), 2, seed=0)
    assert split.labeled.tolist() == [0, 1]
    assert split.unlabeled.tolist() == [4, 2, 5, 3, 6, 7]


def test_all_labels_of_a_fully_labeled_source():
    labels = shuffled_labels([4, 4])
    for request in ("all", 8):
        split = make_split(make_source(labels), request, seed=1)
        assert split.labeled.tolist() == list(range(8))
        assert len(split.unlabeled) == len(split.valid) == 0
        split = make_split(make_source(labels), request, seed=1, valid=3)
        assert split.valid.tolist() == [0, 1, 2]
        assert split.labeled.tolist() == [3, 4, 5, 6, 7]
        assert len(split.unlabeled) == 0


# Data with published folds and images of unknown class, as STL-10


def stl10(classes: int = 3, per_class: int = 8, unknown: int = 20, folds: int = 4) -> Source:
    labels = np.concatenate([shuffled_labels([per_class] * classes), np.full(unknown, UNKNOWN)])
    rng = np.random.RandomState(9)
    rows = [np.flatnonzero(labels == c) for c in range(classes)]
    published = [np.concatenate([rng.choice(r, 2, replace=False) for r in rows]) for _ in range(folds)]
    return make_source(labels, folds=tuple(published), balanced=True)


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_seed_s_is_fold_s_counted_from_0(seed):
    source = stl10()
    split = make_split(source, 6, seed, valid=1)
    assert sorted(split.labeled.tolist()) == sorted(source.folds[seed].tolist())
    order = authors_unlabeled(source.train.labels.tolist(), source.folds[seed].tolist(), balanced=True)
    assert split.valid.tolist() == order[:1]
    assert split.unlabeled.tolist() == order[1:]
    assert split.counts() == {"labeled": 6, "unlabeled": 24 + 20 - 6 - 1, "valid": 1, "test": 3}


def test_another_number_of_labels_than_a_folds_is_dealt_as_usual():
    source = stl10()
    expected = authors_labeled(source.train.labels.tolist(), 9, 1, balanced=True)
    assert make_split(source, 9, seed=1).labeled.tolist() == expected


@pytest.mark.parametrize("request_", ["all", 24])
def test_all_labels_leave_the_unknown_images_unlabeled(request_):
    split = make_split(stl10(), request_, seed=1, valid=1)
    assert split.labeled.tolist() == list(range(24))
    assert split.valid.tolist() == [24]
    assert split.unlabeled.tolist() == list(range(25, 44))


# A long tail


LONG_TAIL = [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
"""CIFAR-10 with an imbalance of 100, as published: 12,406 images."""


def test_cifar10s_long_tail_has_the_published_counts():
    labels = shuffled_labels([5000] * 10)
    rows = long_tail(labels, 100, seed=1)
    assert np.bincount(labels[rows]).tolist() == LONG_TAIL
    assert sum(LONG_TAIL) == 12_406
    assert rows.tolist() == sorted(set(rows.tolist()))
    assert not np.array_equal(rows, long_tail(labels, 100, seed=2))
    np.testing.assert_array_equal(rows, long_tail(labels, 100, seed=1))


def test_a_tenth_of_the_long_tail_labeled_is_a_tenth_of_each_class():
    labels = shuffled_labels([5000] * 10)
    split = make_split(make_source(labels), 1241, seed=1, valid=1, imbalance=100)
    assert len(split.labeled) == 1241
    np.testing.assert_allclose(np.bincount(labels[split.labeled]), np.array(LONG_TAIL) / 10, atol=1)
    assert np.bincount(labels[np.concatenate([split.labeled, split.unlabeled, split.valid])]).tolist() == LONG_TAIL
    assert len(split.valid) == 1
    assert len(np.unique(np.concatenate([split.labeled, split.unlabeled, split.valid]))) == 12_406
    assert split.test.tolist() == [0, 1, 2]


@pytest.mark.parametrize("unlabeled", ["rest", "all"])
def test_a_long_tail_is_split_as_a_data_set_of_its_images_alone(unlabeled):
    labels = shuffled_labels([60, 50, 70])
    kept = long_tail(labels, 10, seed=4)
    alone = make_split(make_source(labels[kept]), 12, 4, 3, unlabeled)
    split = make_split(make_source(labels), 12, 4, 3, unlabeled, imbalance=10)
    for part in ("labeled", "unlabeled", "valid"):
        np.testing.assert_array_equal(getattr(split, part), kept[getattr(alone, part)])
    assert (set(split.labeled) <= set(split.unlabeled)) == (unlabeled == "all")


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(3, 40), min_size=2, max_size=6), st.floats(1.001, 3), st.integers(0, 9))
def test_the_rarest_class_decides_how_many_are_left(counts, imbalance, seed):
    labels = shuffled_labels(counts)
    left = np.bincount(labels[long_tail(labels, imbalance, seed)], minlength=len(counts))
    steps = [imbalance ** (c / (len(counts) - 1)) for c in range(len(counts))]
    largest = min(count * step for count, step in zip(counts, steps, strict=True))
    assert (np.abs(left - np.array([largest / step for step in steps])) <= 1).all()
    assert (left <= counts).all()
    assert (left == counts).any()  # as many as the data allows


def test_of_a_long_tail_folds_do_not_count_and_images_of_unknown_class_stay():
    source = stl10()
    split = make_split(source, 6, seed=1, imbalance=4)
    known = source.train.labels
    assert np.bincount(known[split.labeled]).tolist() == [3, 2, 1]
    assert np.bincount(known[split.unlabeled] + 1).tolist() == [20, 8 - 3, 4 - 2, 2 - 1]


def test_without_imbalance_splits_are_as_they_were():
    digits = load("digits")
    assert make_split(digits, 20, 1, 100).hash == "e021e52547ec7d5b"
    assert make_split(digits, 20, 1, 100, imbalance=1.0).hash == "e021e52547ec7d5b"
    assert make_split(digits, 20, 1, 100, imbalance=2.0).hash != "e021e52547ec7d5b"


# The name of a split


def test_equal_splits_have_equal_hashes():
    source = make_source(shuffled_labels([9, 9]))
    assert make_split(source, 4, 1, 2).hash == make_split(source, 4, 1, 2).hash
    split = Split(*(np.array(rows, np.int64) for rows in ([3, 1], [2, 0], [4], [0, 1])))
    assert split.hash == split.hash
    strided = dataclasses.replace(split, labeled=np.array([3, 9, 1, 9])[::2], test=split.test.astype(">i8"))
    assert strided.hash == split.hash
    assert len(split.hash) == 16
    int(split.hash, 16)


def test_every_part_and_its_order_is_in_the_hash():
    parts = {"labeled": [3, 1], "unlabeled": [2, 0], "valid": [4], "test": [0, 1]}
    split = Split(**{name: np.array(rows, np.int64) for name, rows in parts.items()})
    hashes = {split.hash}
    for name, rows in parts.items():
        for other in ([*rows, 7], [*rows[:-1], 8], [], *([rows[::-1]] if len(rows) > 1 else [])):
            hashes.add(dataclasses.replace(split, **{name: np.array(other, np.int64)}).hash)
    assert len(hashes) == 1 + 4 * 3 + 3
    # The same numbers cut into parts elsewhere are another split.
    moved = dataclasses.replace(split, labeled=np.array([3]), unlabeled=np.array([1, 2, 0]))
    assert moved.hash not in hashes


# Errors


def one_line(error: pytest.ExceptionInfo[MixMatchError]) -> bool:
    return "\n" not in str(error.value) and str(error.value) != ""


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (0, "0 labels asked for"),
        (-5, "-5 labels asked for"),
        (31, "31 labels asked for, but there are only 30 images"),
        (100_000, "100,000 labels asked for, but there are only 30"),
        (2, "2 labels leave 1 of the 3 classes without any"),
        (1, "1 labels leave 2 of the 3 classes without any"),
    ],
)
def test_an_impossible_number_of_labels(labels, message):
    with pytest.raises(MixMatchError, match=message) as error:
        make_split(make_source(shuffled_labels([10, 10, 10])), labels, seed=1)
    assert one_line(error)


def test_images_of_unknown_class_cannot_be_labeled():
    source = stl10()
    with pytest.raises(MixMatchError, match="there are only 24 images") as error:
        make_split(source, 25, seed=1)
    assert one_line(error)


def test_more_than_a_class_has_when_balanced():
    source = make_source(shuffled_labels([10, 10, 2]), balanced=True)
    with pytest.raises(MixMatchError, match="9 labels need more than the 2 images of class 2") as error:
        make_split(source, 9, seed=1)
    assert one_line(error)
    assert make_split(source, 6, seed=1).counts()["labeled"] == 6


def test_published_sets_whose_file_is_missing():
    """Of any source that says so: the name of the data set does not matter."""
    source = make_source(shuffled_labels([10, 10, 10]), missing_folds=(12, "folds.txt"))
    with pytest.raises(MixMatchError, match=r"the sets of 12 labels of toy are published in folds\.txt: put it"):
        make_split(source, 12, seed=1)
    assert len(make_split(source, 9, seed=1).labeled) == 9


@pytest.mark.parametrize("valid", [0, 5])
def test_labeled_images_among_the_unlabeled_ones(valid):
    """As the FixMatch authors do; who is labeled and who is held out stays the same."""
    source = make_source(shuffled_labels([10, 20, 30]))
    rest, both = (make_split(source, 12, 3, valid, unlabeled) for unlabeled in ("rest", "all"))
    assert both.labeled.tolist() == rest.labeled.tolist()
    assert both.valid.tolist() == rest.valid.tolist()
    assert both.unlabeled.tolist() == sorted([*rest.labeled, *rest.unlabeled])
    assert not set(both.valid) & set(both.unlabeled)
    assert both.counts() == {"labeled": 12, "unlabeled": 60 - valid, "valid": valid, "test": 3}
    assert both.hash != rest.hash
    assert rest.hash == make_split(source, 12, 3, valid).hash


@pytest.mark.parametrize("labels", ["all", 60])
def test_all_labeled_images_among_the_unlabeled_ones(labels):
    split = make_split(make_source(shuffled_labels([10, 20, 30])), labels, 1, 5, "all")
    assert split.valid.tolist() == [0, 1, 2, 3, 4]
    assert split.unlabeled.tolist() == split.labeled.tolist() == list(range(5, 60))


def test_another_unlabeled_set_than_rest_or_all():
    with pytest.raises(MixMatchError, match="unlabeled='some' must be 'rest' or 'all'"):
        make_split(make_source(shuffled_labels([10, 10])), 4, 1, unlabeled="some")  # type: ignore[arg-type]


@pytest.mark.parametrize(("labels", "valid"), [(6, 25), (6, -1), ("all", 31), ("all", -1), ("all", 30)])
def test_more_held_out_images_than_there_are(labels, valid):
    with pytest.raises(MixMatchError) as error:
        make_split(make_source(shuffled_labels([10, 10, 10])), labels, seed=1, valid=valid)
    assert one_line(error)


def test_too_many_held_out_images_of_a_source_with_unknown_ones():
    assert make_split(stl10(), "all", seed=1, valid=20).counts()["unlabeled"] == 0
    with pytest.raises(MixMatchError, match="cannot hold out 21 images for validation: 20") as error:
        make_split(stl10(), "all", seed=1, valid=21)
    assert one_line(error)


@pytest.mark.parametrize("seed", [-1, 4])
def test_a_fold_that_was_not_published(seed):
    with pytest.raises(MixMatchError, match="for seeds 0 to 3, not") as error:
        make_split(stl10(), 6, seed=seed)
    assert one_line(error)


@pytest.mark.parametrize("seed", [-1, 2**32, 2**80])
def test_a_seed_that_numpys_legacy_generator_does_not_know(seed):
    labels = shuffled_labels([10, 10])
    assert len(labeled_split(labels, 4, 2**32 - 1)) == 4
    with pytest.raises(MixMatchError, match="must be at least 0 and below 4,294,967,296") as error:
        labeled_split(labels, 4, seed)
    assert one_line(error)


@pytest.mark.parametrize("labels", [np.array([0.0, 1.0]), np.array([[0, 1], [1, 0]]), np.array(["a", "b"])])
def test_labels_must_be_one_whole_number_per_image(labels):
    with pytest.raises(ValueError, match="one whole number per image"):
        labeled_split(labels, 1, seed=0)


def test_an_impossible_long_tail():
    source = make_source(shuffled_labels([100, 100, 100]))
    with pytest.raises(MixMatchError, match="imbalance=101 leaves no image of class 2: choose a smaller one") as error:
        make_split(source, 6, seed=1, imbalance=101)
    assert one_line(error)
    with pytest.raises(MixMatchError, match="200 labels asked for, but imbalance=25 leaves 124 images") as error:
        make_split(source, 200, seed=1, imbalance=25)
    assert one_line(error)


# The source


def test_a_source_knows_its_image_shape_and_lengths():
    source = make_source(np.array([0, 1, 0]))
    assert source.image_shape == (2, 3, 1)
    assert len(source.train) == len(source.test) == 3
    assert source.folds == ()
    assert source.balanced is False

"""Data for a search of settings: validation rows in the place of test rows, which are gone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mixmatch.data.opened import Basis, Data
from mixmatch.data.source import Rows, Source
from mixmatch.data.split import Split
from mixmatch.data.validation import for_validation
from mixmatch.errors import MixMatchError


def data() -> Data:
    """20 rows of two classes, the last two unlabeled; 6 labeled, rows 6 to 19 unlabeled but for three to validate."""
    labels = np.array([*(np.arange(18) % 2), -1, -1])
    rows = Rows(np.arange(40, dtype=np.float32).reshape(20, 2), labels)
    split = Split(np.arange(6), np.arange(6, 17), np.array([17, 18, 19]), np.arange(20))
    return Data(Source("rows", ("a", "b"), rows, rows), split, Basis("its 20 test rows"))


def test_validation_rows_of_the_split() -> None:
    found = for_validation(data(), {}, seed=1)
    assert (len(found.source.test), len(found.split.test)) == (0, 0)
    assert found.split.valid.tolist() == [17]  # the others have no label
    assert found.split.labeled.tolist() == list(range(6))
    assert found.basis.missing.startswith("a trial of a search holds no test rows")


def test_folds_of_the_labels() -> None:
    held = []
    for fold in range(3):
        found = for_validation(data(), {"fold": fold, "folds": 3}, seed=1)
        assert (len(found.source.test), len(found.split.test)) == (0, 0)
        valid = found.split.valid.tolist()
        assert found.source.train.labels[valid].tolist().count(0) == 1  # one of each class
        assert sorted([*valid, *found.split.labeled.tolist()]) == list(range(6))
        assert found.split.unlabeled.tolist() == list(range(6, 17))
        held += valid
    assert sorted(held) == list(range(6))
    everything = data()
    joined = Split(everything.split.labeled, np.arange(20), everything.split.valid, everything.split.test)
    found = for_validation(Data(everything.source, joined, everything.basis), {"fold": 0, "folds": 3}, seed=1)
    assert not set(found.split.unlabeled) & set(found.split.valid)  # not even as unlabeled ones


@pytest.mark.parametrize("option", [None, [], "x", {"fold": 3, "folds": 3}, {"fold": 0}, {"fold": 0, "folds": 10**9}])
def test_nonsense_from_a_file(option: Any) -> None:
    with pytest.raises(MixMatchError, match="validation in data_options must be"):
        for_validation(data(), option, seed=1)

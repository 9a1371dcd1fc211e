"""Joined arrays answer as the array that NumPy would make of them."""

from __future__ import annotations

import numpy as np
import pytest

from mixmatch.data.joined import Joined

WHOLE = np.random.default_rng(0).integers(0, 256, (23, 4, 4, 3)).astype(np.uint8)


@pytest.mark.parametrize("cuts", [[], [1], [5, 5, 9, 22], [23]])
def test_as_numpy(cuts: list[int]) -> None:
    joined = Joined(np.split(WHOLE, cuts))
    assert (joined.shape, joined.dtype, joined.ndim, joined.nbytes) == (
        WHOLE.shape, WHOLE.dtype, WHOLE.ndim, WHOLE.nbytes
    )  # fmt: skip
    assert len(joined) == len(list(joined)) == 23
    rows = np.random.default_rng(1).integers(-23, 23, 50)
    for key in (
        *(0, -1, np.int64(22), slice(None), slice(3, 20), slice(-4, None), slice(20, 3), slice(1, 20, 4)),
        *(rows, rows.tolist(), [], rows[:23] > 0, slice(4, 6)),
        *((slice(None), slice(0, 2), slice(0, 2)), (slice(2, 22), slice(1, 3)), (5, 2)),
    ):
        np.testing.assert_array_equal(np.array(joined[key]), WHOLE[key])
    np.testing.assert_array_equal(joined[2:21][3:9][[0, -1]], WHOLE[[5, 10]])
    for wrong in (23, -24, [0, 99]):
        with pytest.raises(IndexError, match="there are 23 rows"):
            joined[wrong]


def test_a_slice_copies_nothing() -> None:
    first, second = WHOLE[:10].copy(), WHOLE[10:].copy()
    view = Joined([first, second])[8:12]
    first[9] = 7
    assert np.array(view)[1].max() == 7

"""Several arrays presented as one, without copying them: the shards of a data set that is larger than memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


class Joined:
    """Memory-mapped arrays that look like one. A slice is again such a view; rows by their numbers are copied, as NumPy
    does it. `np.array` of it holds everything: take slices.

    >>> both = Joined([np.arange(3), np.arange(3, 7)])
    >>> both[[6, 0, 3]], np.array(both[2:5]), both[4]
    (array([6, 0, 3]), array([2, 3, 4]), np.int64(4))
    """

    def __init__(self, parts: Sequence[npt.NDArray[Any]]) -> None:
        self._parts = [part for part in parts if len(part)] or list(parts[:1])
        self._ends = np.cumsum([len(part) for part in self._parts])
        first = self._parts[0]
        self.dtype, self.ndim = first.dtype, first.ndim
        self.shape = (int(self._ends[-1]), *first.shape[1:])
        self.nbytes = sum(part.nbytes for part in self._parts)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __iter__(self) -> Iterator[Any]:
        for part in self._parts:
            yield from part

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.concatenate(self._parts).astype(dtype or self.dtype, copy=False)

    def __getitem__(self, key: Any) -> Any:
        rows, *rest = key if isinstance(key, tuple) else (key,)
        if rest:
            return Joined([part[(slice(None), *rest)] for part in self._parts])[rows]
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            return self._between(start, stop) if step == 1 else self._take(np.arange(start, stop, step))
        if isinstance(rows, int | np.integer):
            return self._take(np.array([rows]))[0]
        return self._take(np.asarray(rows))

    def _between(self, start: int, stop: int) -> Joined:
        begins = self._ends - [len(part) for part in self._parts]
        cut = [np.clip([start - b, stop - b], 0, len(p)) for p, b in zip(self._parts, begins, strict=True)]
        return Joined([part[low:high] for part, (low, high) in zip(self._parts, cut, strict=True)])

    def _take(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if rows.dtype == bool:
            rows = np.flatnonzero(rows)
        rows = np.where(rows < 0, rows + len(self), rows).astype(np.int64)
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"there are {len(self):,} rows")
        taken = np.empty((len(rows), *self.shape[1:]), self.dtype)
        owners = np.searchsorted(self._ends, rows, side="right")
        for owner in np.unique(owners):
            mine, part = owners == owner, self._parts[owner]
            taken[mine] = part[rows[mine] - (self._ends[owner] - len(part))]
        return taken

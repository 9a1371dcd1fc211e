"""Randomness as data: everything random in a step is a pure function of (seed, stream name, step).

Each draw comes from a counter-based generator (Philox) keyed by the seed and the stream's name, with the step as its
counter. Nothing is carried from step to step, so a resumed run draws what an uninterrupted one would have drawn,
every device trains on the same draws, and several processes can slice one stream.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Draws = dict[str, npt.NDArray[np.generic]]
"""Named arrays drawn for one step."""


@lru_cache(maxsize=256)
def _key(seed: int, stream: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{stream}".encode()).digest()[:16], "little")


def generator(seed: int, stream: str, step: int) -> np.random.Generator:
    """The generator for one step of one stream."""
    return np.random.Generator(np.random.Philox(key=_key(seed, stream), counter=[0, 0, 0, step]))


def torch_seed(seed: int, stream: str, step: int = 0) -> int:
    """A 63-bit seed for torch's own generator, for what can only be drawn by torch (initial weights, dropout)."""
    return int(generator(seed, stream, step).integers(2**63))


LISTED = 2**21
"""Up to so many rows a shuffle is a list of them all. Beyond, each place is computed by itself: a list of fifty million
rows takes ten seconds and 400 MB per epoch."""


class Sampler:
    """Endless batches of row numbers below `size`: each row once per epoch, reshuffled every epoch, without
    gaps between epochs.

    Which rows a step gets depends on the step alone; the shuffle of the epoch last used is kept to save work.
    """

    def __init__(self, size: int, batch_size: int, seed: int, stream: str) -> None:
        self.size, self.batch_size, self.seed, self.stream = size, batch_size, seed, stream
        self._pass = -1
        self._order: npt.NDArray[np.int64] = np.empty(0, np.int64)

    def rows(self, step: int) -> npt.NDArray[np.int64]:
        """The rows of a step's batch (batch_size,)."""
        first = step * self.batch_size
        taken: list[npt.NDArray[np.int64]] = []
        missing = self.batch_size
        while missing:
            number, offset = divmod(first + self.batch_size - missing, self.size)
            if self.size > LISTED:
                places = np.arange(offset, min(self.size, offset + missing), dtype=np.uint64)
                taken.append(shuffled(places, self.size, generator(self.seed, self.stream, number)))
            else:
                if number != self._pass:
                    self._order = generator(self.seed, self.stream, number).permutation(self.size)
                    self._pass = number
                taken.append(self._order[offset : offset + missing])
            missing -= len(taken[-1])
        return np.concatenate(taken)


ROUNDS = 8


def shuffled(places: npt.NDArray[np.uint64], size: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """What stands at these places of a random permutation of 0 ... size - 1, without making the others.

    A Feistel network over the next power of four: each round changes one half of the bits by a hash of the other half,
    so the whole can be undone and is a permutation. Numbers that come out at `size` or more go in again, until none
    does: on average at most four times. The keys of the rounds come from `rng`.

    >>> sorted(shuffled(np.arange(10, dtype=np.uint64), 10, np.random.default_rng(0)).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    half = np.uint64(max(1, -(-(size - 1).bit_length() // 2)))
    mask = np.uint64((1 << int(half)) - 1)
    keys = rng.integers(0, 2**64, ROUNDS, np.uint64)
    found, left = places.copy(), np.arange(len(places))
    while len(left):
        upper, lower = found[left] >> half, found[left] & mask
        for key in keys:
            upper, lower = lower, upper ^ (_hashed(lower ^ key) & mask)
        found[left] = (upper << half) | lower
        left = left[found[left] >= size]
    return found.astype(np.int64)


def _hashed(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finalizer: every bit of the result depends on every bit of x."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))


class BalancedSampler:
    """Endless batches of row numbers in which every class is drawn as often as the others, whatever its size.

    Classes take turns in an order that is reshuffled each time all have had one, and in turn `n` a class gives the row
    that is number `n` in an endless shuffle of its own. So which rows a step gets depends on the step alone here too.
    In expectation the loss is that of weighting each row by the inverse frequency of its class.

    Args:
        classes: the class of each row; those without any row take no turn.
    """

    def __init__(self, classes: npt.NDArray[np.int64], batch_size: int, seed: int, stream: str) -> None:
        self._rows = [np.flatnonzero(classes == c) for c in np.unique(classes)]
        self._turns = Sampler(len(self._rows), batch_size, seed, f"{stream} classes")
        self._of_class = [Sampler(len(rows), 1, seed, f"{stream} class {c}") for c, rows in enumerate(self._rows)]

    def rows(self, step: int) -> npt.NDArray[np.int64]:
        """The rows of a step's batch (batch_size,)."""
        turns = self._turns.rows(step)
        numbers = (step * len(turns) + np.arange(len(turns))) // len(self._rows)
        pairs = zip(turns.tolist(), numbers.tolist(), strict=True)
        return np.array([self._rows[c][self._of_class[c].rows(n)[0]] for c, n in pairs], np.int64)

"""A cheap embedding of pictures by their pixels, to find groups of similar ones before there is a model.

Each picture is brought to 32x32. Where its edges are and in which direction (histograms of gradients), and its colors
over a grid, are 372 numbers; the 64 directions in which the folder's pictures differ most are kept, and the large ones
are made smaller (divided by the fourth root of their variance). Of each picture there is a fingerprint, too, by which
near copies are found. A network's features can take the place of edges and colors.

A hundred thousand pictures take 54 MB and, besides reading them, some 20 seconds of one core
(`benchmarks/label_check.py --speed`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mixmatch.data.packed import read_packed, write_packed
from mixmatch.data.user.images import parallel_map
from mixmatch.draws import generator

Pictures = npt.NDArray[np.uint8]
"""(N, 32, 32, 3), as `mixmatch.data.user.images.decode_image` reads them; for a network, a multiple of 32 pixels."""
Floats = npt.NDArray[np.floating[Any]]
"""float32 throughout."""

SIDE, CELLS, ANGLES, GRID = 32, 4, 9, 4
SIZE = 64
"""How many numbers per picture are kept."""
COLOR = 0.5
"""The weight of colors relative to edges (`benchmarks/label_check.py --features`)."""
FINGERPRINT = 16 * 16 + 2 * 4 * 4

SAMPLE = 4096
"""Pictures, drawn at random, that decide which directions are kept."""
PIECE = 256
SAVE_EVERY = 20_000
"""Features are saved after this many pictures, so that stopping loses little."""
FORMAT = 1

Callback = Callable[[int, int], None]


class Features(NamedTuple):
    """What is known of each picture by its pixels; zeros where it could not be read or was not yet."""

    vectors: Floats
    """(N, 64)"""
    fingerprints: npt.NDArray[np.uint8]
    """(N, 288)"""
    known: npt.NDArray[np.bool_]
    """(N,)"""

    def take(self, which: npt.NDArray[Any]) -> Features:
        return Features(self.vectors[which], self.fingerprints[which], self.known[which])


def describe(pictures: Pictures) -> Floats:
    """Edges and colors (N, 372) of uint8 pictures (N, 32, 32, 3), each by itself."""
    x = pictures.astype(np.float32) * (2 / 255) - 1
    return np.concatenate([_edges(x), COLOR * _blocks(x, GRID).reshape(len(x), -1)], axis=1)


def _edges(x: Floats) -> Floats:
    """Histograms of 9 directions of gradients in 4x4 cells, normalized over blocks of 2x2 cells: (N, 324)."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="edge")
    across = padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2]
    down = padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1]
    square = across**2 + down**2
    strongest = square.argmax(axis=-1)[..., None]  # of the channels
    across, down, square = (np.take_along_axis(part, strongest, -1)[..., 0] for part in (across, down, square))
    position = np.arctan2(down, across) * (ANGLES / np.pi) % ANGLES  # an edge and its opposite are alike
    low, strength = np.floor(position), np.sqrt(square)
    share, first = position - low, low.astype(np.int64) % ANGLES
    cell = np.arange(SIDE) // (SIDE // CELLS)
    place = ((np.arange(len(x))[:, None, None] * CELLS + cell[:, None]) * CELLS + cell) * ANGLES
    total = len(x) * CELLS * CELLS * ANGLES
    sums = np.bincount((place + first).ravel(), (strength * (1 - share)).ravel(), total)
    sums += np.bincount((place + (first + 1) % ANGLES).ravel(), (strength * share).ravel(), total)
    cells = (sums / (SIDE // CELLS) ** 2).astype(np.float32).reshape(len(x), CELLS, CELLS, ANGLES)
    last = CELLS - 1
    blocks = np.concatenate([cells[:, i : i + last, j : j + last] for i in (0, 1) for j in (0, 1)], axis=-1)
    return _unit(np.minimum(_unit(blocks), 0.2)).reshape(len(x), -1)


def _unit(blocks: Floats) -> Floats:
    scaled: Floats = blocks / np.sqrt((blocks**2).sum(axis=-1, keepdims=True) + 1e-4)
    return scaled


def _blocks(x: Floats, number: int) -> Floats:
    """Means over number x number blocks: (N, number, number, channels)."""
    means: Floats = x.reshape(len(x), number, SIDE // number, number, SIDE // number, x.shape[-1]).mean(axis=(2, 4))
    return means


TO_GRAY = np.array([0.299, 0.587, 0.114], np.float32)


def fingerprint(pictures: Pictures) -> npt.NDArray[np.uint8]:
    """(N, 288): brightness over a 16x16 grid, then red and blue without it over a 4x4 grid."""
    x = pictures.astype(np.float32)
    if x.shape[1] != SIDE:
        x = x.reshape(len(x), SIDE, x.shape[1] // SIDE, SIDE, x.shape[2] // SIDE, 3).mean(axis=(2, 4))
    gray: Floats = (x @ TO_GRAY)[..., None]
    parts = _blocks(gray, 16), _blocks((x[..., [0, 2]] - gray) / 2 + 128, 4)
    whole = np.concatenate([part.reshape(len(x), -1) for part in parts], axis=1)
    rounded: npt.NDArray[np.uint8] = np.rint(whole).clip(0, 255).astype(np.uint8)
    return rounded


@dataclass(frozen=True)
class Projection:
    """From what describes a picture to the directions that are kept."""

    mean: Floats
    directions: Floats
    """(372, 64), or as many rows as a network has features; divided by what makes large ones smaller."""
    total: int
    """How many pictures the folder had."""

    @staticmethod
    def fit(described: Floats, total: int) -> Projection:
        mean: Floats = described.mean(axis=0)
        centered = (described - mean).astype(np.float64)
        if centered.shape[0] < centered.shape[1]:  # the same directions, from the smaller side
            _, scales, rows = np.linalg.svd(centered, full_matrices=False)
            largest, towards = scales[:SIZE] ** 2 / len(centered), rows.T[:, :SIZE]
        else:
            values, vectors = np.linalg.eigh(centered.T @ centered / len(centered))
            largest, towards = values[::-1][:SIZE], vectors[:, ::-1][:, :SIZE]
        kept = largest > 1e-9 * max(largest[0], 1e-9)  # of very few pictures there are fewer directions
        directions = np.zeros((described.shape[1], SIZE), np.float32)
        directions[:, : len(kept)] = np.where(kept, towards / np.where(kept, largest, 1) ** 0.25, 0)
        return Projection(mean, directions, total)

    def __call__(self, described: Floats) -> Floats:
        projected: Floats = (described - self.mean) @ self.directions
        return projected


def compute(
    read: Callable[[int], Pictures | None],
    names: Sequence[str],
    cache: Path,
    *,
    by: Callable[[Pictures], Floats] = describe,
    sample: int | None = None,
    progress: Callback | None = None,
) -> Features:
    """Features of all pictures of a folder; those that are in the cache are not read again.

    Args:
        read: a picture's pixels (32, 32, 3) by its number, or None if it cannot be read. Called by several threads.
        by: what describes pictures, (N, 32, 32, 3) to (N, D). Another one needs another cache.
        sample: pictures, drawn at random, that decide which directions are kept; by default `SAMPLE`.
        names: what identifies each picture's content, such as path, size and time of change.
        cache: a file, `.npz`. A stopped computation keeps what it has.
        progress: called with how many pictures are done, and how many there are.
    """
    keys, sample = _keys(names), sample or SAMPLE
    kept = _Kept.load(cache)
    if kept is not None and kept.projection.total < min(sample, len(names) // 2):
        kept = None  # the folder has outgrown the few pictures that decided which directions are kept
    features, seen = _spread(kept, keys)
    missing = generator(0, "label features", 0).permutation(np.flatnonzero(~seen))
    done = saved = len(names) - len(missing)
    projection = None if kept is None else kept.projection
    try:
        for rows, pictures in _pieces(read, missing, sample if projection is None else PIECE):
            readable = np.array([picture is not None for picture in pictures], bool)
            if readable.any():
                some, chosen = np.stack([picture for picture in pictures if picture is not None]), rows[readable]
                parts = [some[i : i + PIECE] for i in range(0, len(some), PIECE)]
                described = np.concatenate([by(part) for part in parts])
                prints = np.concatenate([fingerprint(part) for part in parts])
                projection = projection or Projection.fit(described, len(names))
                features.vectors[chosen], features.fingerprints[chosen] = projection(described), prints
                features.known[chosen] = True
            seen[rows] = True
            done += len(rows)
            if progress is not None:
                progress(done, len(names))
            if projection is not None and done - saved >= SAVE_EVERY:
                _Kept(keys[seen], features.take(seen), projection).save(cache)
                saved = done
    finally:  # Ctrl-C too
        if projection is not None and done > saved:
            _Kept(keys[seen], features.take(seen), projection).save(cache)
    return features


def load(names: Sequence[str], cache: Path) -> Features:
    """What `compute` has kept of these pictures so far."""
    return _spread(_Kept.load(cache), _keys(names))[0]


def _pieces(
    read: Callable[[int], Pictures | None], rows: npt.NDArray[np.int64], first: int
) -> Iterator[tuple[npt.NDArray[np.int64], list[Pictures | None]]]:
    start, size = 0, first
    while start < len(rows):
        piece = rows[start : start + size]
        yield piece, list(parallel_map(read, piece.tolist()))
        start, size = start + size, PIECE


def _keys(names: Sequence[str]) -> npt.NDArray[np.bytes_]:
    digests = [hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest() for name in names]
    return np.array(digests, "S32")


def _spread(kept: _Kept | None, keys: npt.NDArray[np.bytes_]) -> tuple[Features, npt.NDArray[np.bool_]]:
    """The kept features of these pictures, zeros for others; and which were kept."""
    number = len(keys)
    features = Features(
        np.zeros((number, SIZE), np.float32), np.zeros((number, FINGERPRINT), np.uint8), np.zeros(number, bool)
    )
    seen = np.zeros(number, bool)
    if kept is not None and len(kept.keys):
        order = np.argsort(kept.keys)
        place = order[np.searchsorted(kept.keys, keys, sorter=order).clip(max=len(order) - 1)]
        seen = kept.keys[place] == keys
        found = kept.features.take(place[seen])
        features.vectors[seen], features.fingerprints[seen], features.known[seen] = found
    return features, seen


class _Kept(NamedTuple):
    """What the cache holds."""

    keys: npt.NDArray[np.bytes_]
    features: Features
    projection: Projection

    def save(self, path: Path) -> None:
        arrays = {
            "numbers": np.array([FORMAT, self.projection.total]),
            "keys": self.keys,
            **self.features._asdict(),
            "mean": self.projection.mean,
            "directions": self.projection.directions,
        }
        write_packed(path, arrays, "the features of pictures", "choose another place for them")

    @staticmethod
    def load(path: Path) -> _Kept | None:
        """None if there is nothing, or nothing that can be used: it is computed again."""
        file = read_packed(path) or {}
        try:
            form, total = file["numbers"].tolist()
            if form != FORMAT or type(total) is not int:
                return None
            features = Features(file["vectors"], file["fingerprints"], file["known"])
            kept = _Kept(file["keys"], features, Projection(file["mean"], file["directions"], total))
            number = len(kept.keys)
        except (ValueError, KeyError, TypeError):
            return None
        whole = [np.shape(part) for part in features] == [(number, SIZE), (number, FINGERPRINT), (number,)]
        kinds = [part.dtype.kind for part in (*features, kept.keys, file["mean"], file["directions"])]
        return kept if whole and kinds == [*"fub", "S", *"ff"] else None

"""The cheap embedding of pictures: against loops over pixels, and what it keeps on disk."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from mixmatch.label import features


def noisy(number: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (number, 32, 32, 3), dtype=np.uint8)


def edges_by_loops(picture: np.ndarray) -> np.ndarray:
    """Histograms of gradients as Dalal and Triggs describe them, a pixel at a time in float64."""
    x = picture.astype(np.float64) * 2 / 255 - 1
    cells = np.zeros((4, 4, 9))
    for i in range(32):
        for j in range(32):
            across = x[i, min(j + 1, 31)] - x[i, max(j - 1, 0)]
            down = x[min(i + 1, 31), j] - x[max(i - 1, 0), j]
            c = int((across**2 + down**2).argmax())
            position = math.atan2(down[c], across[c]) % math.pi / (math.pi / 9)
            low = math.floor(position)
            strength = math.hypot(across[c], down[c]) / 64
            cells[i // 8, j // 8, low % 9] += strength * (1 - (position - low))
            cells[i // 8, j // 8, (low + 1) % 9] += strength * (position - low)
    found = []
    for i in range(3):
        for j in range(3):
            block = np.concatenate([cells[i, j], cells[i, j + 1], cells[i + 1, j], cells[i + 1, j + 1]])
            block = np.minimum(block / math.sqrt((block**2).sum() + 1e-4), 0.2)
            found.append(block / math.sqrt((block**2).sum() + 1e-4))
    return np.concatenate(found)


def test_edges_and_colors_against_loops_over_pixels() -> None:
    pictures = noisy(2)
    described = features.describe(pictures)
    assert described.shape == (2, 372)
    for picture, row in zip(pictures, described, strict=True):
        np.testing.assert_allclose(row[:324], edges_by_loops(picture), atol=2e-5)
        corner = picture[:8, 24:].reshape(-1, 3).mean(axis=0) * 2 / 255 - 1  # the last of the first row of the grid
        np.testing.assert_allclose(row[324 + 9 : 324 + 12], corner / 2, atol=1e-5)


def test_a_fingerprint_is_brightness_then_red_and_blue() -> None:
    picture = np.zeros((1, 32, 32, 3), np.uint8)
    picture[0, :16] = (200, 0, 0)  # red above, black below
    found = features.fingerprint(picture)[0]
    assert found.shape == (features.FINGERPRINT,) == (288,)
    gray = 0.299 * 200
    assert found[:128].tolist() == [round(gray)] * 128
    assert found[128:256].tolist() == [0] * 128
    red, blue = round(128 + (200 - gray) / 2), round(128 - gray / 2)
    assert found[256:272].tolist() == [red, blue] * 8
    assert found[272:].tolist() == [128] * 16
    larger = picture.repeat(5, axis=1).repeat(5, axis=2)
    assert features.fingerprint(larger)[0].tolist() == found.tolist()


def test_directions_are_those_of_largest_variance_made_smaller() -> None:
    rng = np.random.default_rng(0)
    scale = np.concatenate([[9.0, 4.0, 1.0], np.full(369, 1e-3)])
    described = (rng.standard_normal((5000, 372)) * scale + 7).astype(np.float32)
    projection = features.Projection.fit(described, 5000)
    found = projection(described)
    assert found.shape == (5000, 64)
    np.testing.assert_allclose(found[:, :3].std(axis=0), [3, 2, 1], rtol=0.05)  # the square root of what it was
    assert np.abs(found.mean(axis=0)).max() < 1e-3
    assert abs(np.corrcoef(found[:, 0], described[:, 0])[0, 1]) > 0.999
    few = described[:200]  # fewer pictures than numbers each: the same arithmetic from the other side
    values, vectors = np.linalg.eigh(np.cov(few.T.astype(np.float64), bias=True))
    expected = (few - few.mean(axis=0)) @ vectors[:, ::-1][:, :3] / values[::-1][:3] ** 0.25
    found = features.Projection.fit(few, 200)(few)[:, :3]
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-3)


def test_computed_once_per_picture_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "SAMPLE", 60)
    monkeypatch.setattr(features, "PIECE", 16)
    pictures, cache, reads = noisy(120), tmp_path / "features.npz", []

    def read(row: int) -> np.ndarray | None:
        reads.append(row)
        return None if row == 5 else pictures[row]

    names = [f"{row}.jpg|10|1" for row in range(100)]

    def killed(done: int, total: int) -> None:
        if done > 60:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        features.compute(read, names, cache, progress=killed)
    part = features.load(names, cache)
    assert len(reads) == 60 + 16 == len(set(reads))
    assert int(part.known.sum()) == 76 - (5 in reads)
    seen = []
    whole = features.compute(read, names, cache, progress=lambda *at: seen.append(at))
    assert sorted(reads) == list(range(100))  # those of before were not read again
    assert seen[-1] == (100, 100)
    assert np.flatnonzero(~whole.known).tolist() == [5]
    assert not whole.vectors[5].any()
    np.testing.assert_array_equal(whole.vectors[part.known], part.vectors[part.known])
    np.testing.assert_array_equal(whole.fingerprints[whole.known], features.fingerprint(pictures[:100][whole.known]))

    reads.clear()  # in another order, one file changed, one more
    moved = [*reversed(names[:99]), "99.jpg|11|2", "100.jpg|10|1"]
    again = features.compute(
        lambda row: pictures[row if row == 100 else 99] if not reads.append(row) else None, moved, cache
    )
    assert sorted(reads) == [99, 100]
    np.testing.assert_array_equal(again.vectors[:99], whole.vectors[98::-1])
    assert features.load(names, cache).known.sum() == 98  # of the changed file nothing is kept
    assert not features.load(["new"], cache).known.any()


def test_a_folder_that_has_grown_much_is_computed_anew_and_a_damaged_cache_too(tmp_path: Path) -> None:
    pictures, cache = noisy(30), tmp_path / "features.npz"
    few = features.compute(lambda row: pictures[row], [str(row) for row in range(4)], cache)
    assert np.isfinite(few.vectors).all()
    assert np.abs(few.vectors[:, 3:]).max() < 1e-2  # four pictures differ in three directions
    reads: list[int] = []
    features.compute(
        lambda row: pictures[row] if not reads.append(row) else None, [str(row) for row in range(30)], cache
    )
    assert len(reads) == 30
    cache.write_bytes(cache.read_bytes()[:1000])
    assert features.compute(lambda row: pictures[row], ["a", "b"], cache).known.all()
    assert not features.compute(lambda row: None, ["x"], tmp_path / "none.npz").known.any()
    assert features.compute(lambda row: None, [], tmp_path / "none.npz").vectors.shape == (0, 64)

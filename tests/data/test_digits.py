"""The digits that come with scikit-learn, and what is common to all names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from mixmatch.data import SOURCES, load
from mixmatch.data.published import digits
from mixmatch.errors import MixMatchError


@pytest.mark.parametrize("version", ["this", "another"])
def test_digits(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also from a version of scikit-learn that keeps its file elsewhere."""
    digits._table.cache_clear()
    if version == "another":
        monkeypatch.setattr(digits, "find_spec", lambda name: None)
    source = load("digits", tmp_path / "nothing", download=False)
    bunch = load_digits()
    expected = [[round(value * 255 / 16) for value in row] for row in bunch.data]
    pixels = np.concatenate([source.train.inputs, source.test.inputs])
    assert pixels.dtype == np.uint8
    assert pixels.shape == (1797, 8, 8, 1)
    assert pixels.reshape(1797, 64).tolist() == expected
    assert (pixels.min(), pixels.max()) == (0, 255)
    assert (len(source.train), len(source.test)) == (1297, 500)
    assert [*source.train.labels, *source.test.labels] == list(bunch.target)
    assert source.train.labels.dtype == np.int64
    assert source.classes == tuple("0123456789")
    assert not (tmp_path / "nothing").exists()


def test_unknown_name() -> None:
    with pytest.raises(MixMatchError, match=r"neither a data set nor a file or folder: did you mean 'cifar10'\?$"):
        load("cifar")


def test_sources_tell_what_is_published() -> None:
    assert set(SOURCES) == {"digits", "cifar10", "cifar100", "svhn", "svhn-extra", "stl10"}
    counts = {name: (info.train, info.unlabeled, info.test) for name, info in SOURCES.items()}
    assert counts["svhn-extra"] == (73_257 + 531_131, 0, 26_032)
    assert counts["stl10"] == (5_000, 100_000, 8_000)
    for name, info in SOURCES.items():
        assert bool(info.layouts[0]) == bool(info.download_mb) == (name != "digits")
        assert all(file.md5 or file.optional for layout in info.layouts for file in layout)
        assert all(len(file.md5 or "0" * 32) == 32 for layout in info.layouts for file in layout)

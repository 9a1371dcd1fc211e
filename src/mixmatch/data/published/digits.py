"""scikit-learn's handwritten digits: 1,797 images of 8x8 that come with the package, so nothing is downloaded."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mixmatch.data.published.files import Layout
from mixmatch.data.source import Rows, Source

TEST = 500
"""The last in file order: the file goes writer by writer, so few writers are on both sides."""


def load(folder: Path, layout: Layout, strict: bool = False) -> Source:
    table = _table()
    images = np.rint(table[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    labels = table[:, -1].astype(np.int64)
    return Source(
        name="digits",
        classes=tuple("0123456789"),
        train=Rows(images[:-TEST], labels[:-TEST]),
        test=Rows(images[-TEST:], labels[-TEST:]),
    )


@cache
def _table() -> npt.NDArray[np.float64]:
    """A row per image: its 64 pixels, then its label. The file is read without its package, which takes a second to
    import."""
    package = find_spec("sklearn")
    file = Path((package and package.origin) or "").parent / "datasets/data/digits.csv.gz"
    try:
        return np.loadtxt(file, delimiter=",")
    except OSError:  # a version that keeps it elsewhere
        from sklearn.datasets import load_digits

        bunch = load_digits()
        return np.column_stack([bunch.data, bunch.target])

"""scikit-learn's handwritten digits: 1,797 images of 8x8 that come with the package, so nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mixmatch.data.published.files import Layout
from mixmatch.data.source import Rows, Source

TEST = 500
"""The last in file order: the file goes writer by writer, so few writers are on both sides."""


def load(folder: Path, layout: Layout, strict: bool = False) -> Source:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[..., None]
    labels = bunch.target.astype(np.int64)
    return Source(
        name="digits",
        classes=tuple("0123456789"),
        train=Rows(images[:-TEST], labels[:-TEST]),
        test=Rows(images[-TEST:], labels[-TEST:]),
    )

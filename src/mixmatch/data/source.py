"""What every data set looks like once it is read: images with labels to train on, images with labels to test on."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

UNKNOWN = -1
"""The label of an image whose class nobody knows."""


@dataclass(frozen=True)
class Images:
    """`images` is uint8 (N, H, W, C), in memory or mapped; `labels` is int64 (N,), `UNKNOWN` where there is none."""

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Source:
    """A data set as arrays. Who is labeled is decided later, by a split."""

    name: str
    classes: tuple[str, ...]
    train: Images
    test: Images
    folds: tuple[npt.NDArray[np.int64], ...] = field(default=())
    """Published sets of labeled images (STL-10): indices into `train`, one array a fold."""
    balanced: bool = False
    """Whether labels are dealt out equally whatever the class counts are (STL-10), or by class frequency."""

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(H, W, C)"""
        _, height, width, channels = self.train.images.shape
        return height, width, channels

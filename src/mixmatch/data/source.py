"""What every data set looks like once it is read: images with labels to train on, images with labels to test on."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mixmatch.errors import MixMatchError

UNKNOWN = -1
"""The label of an image whose class nobody knows."""


@dataclass(frozen=True)
class Images:
    """`images` is uint8 (N, H, W, C), in memory or mapped; `labels` is int64 (N,), `UNKNOWN` where there is none."""

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.images.dtype != np.uint8 or self.images.ndim != 4:
            raise MixMatchError(f"images must be uint8 (N, H, W, C), not {self.images.dtype} {self.images.shape}")
        if self.labels.shape != self.images.shape[:1] or not np.issubdtype(self.labels.dtype, np.integer):
            raise MixMatchError(
                f"labels must be one whole number for each of the {len(self.images):,} images, "
                f"not {self.labels.dtype} {self.labels.shape}"
            )

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

    def __post_init__(self) -> None:
        for name, part in (("train", self.train), ("test", self.test)):
            if len(part) == 0 and part is self.train:
                raise MixMatchError(f"{self.name} has no {name} images")
            if len(part) == 0:
                continue  # nothing to judge by, but something to learn from
            if part.labels.max() >= len(self.classes) or part.labels.min() < UNKNOWN:
                raise MixMatchError(f"{self.name} has {name} labels outside 0 to {len(self.classes) - 1}")
        if self.train.images.shape[1:] != self.test.images.shape[1:]:
            raise MixMatchError(
                f"{self.name} has train images of shape {self.train.images.shape[1:]}, "
                f"but test images of shape {self.test.images.shape[1:]}"
            )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(H, W, C)"""
        _, height, width, channels = self.train.images.shape
        return height, width, channels

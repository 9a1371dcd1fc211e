"""What every data set looks like once it is read: rows with labels to train on, rows with labels to test on.

A row is an image or a list of features.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from mixmatch.errors import MixMatchError

if TYPE_CHECKING:
    from mixmatch.data.user.table import Encoding

UNKNOWN = -1
"""The label of a row whose class nobody knows."""


@dataclass(frozen=True)
class Images:
    """`images` is uint8 (N, H, W, C), in memory or mapped; `labels` is int64 (N,), `UNKNOWN` where there is none."""

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    noun: ClassVar[str] = "image"
    """What a row is called in messages."""

    def __post_init__(self) -> None:
        if self.images.dtype != np.uint8 or self.images.ndim != 4:
            raise MixMatchError(f"images must be uint8 (N, H, W, C), not {self.images.dtype} {self.images.shape}")
        _check_labels(self.labels, len(self.images), "images")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def inputs(self) -> npt.NDArray[Any]:
        return self.images

    def take(self, rows: npt.NDArray[np.int64]) -> Images:
        """These rows, copied."""
        return Images(np.array(self.images[rows]), self.labels[rows])


@dataclass(frozen=True)
class Features:
    """`features` is float32 (N, F), standardized; `labels` is int64 (N,), `UNKNOWN` where there is none."""

    features: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    noun: ClassVar[str] = "row"

    def __post_init__(self) -> None:
        if self.features.dtype != np.float32 or self.features.ndim != 2 or self.features.shape[1] == 0:
            raise MixMatchError(f"features must be float32 (N, F), not {self.features.dtype} {self.features.shape}")
        if not np.isfinite(self.features).all():
            raise MixMatchError("the features have values that are no finite numbers: fill them in or leave them out")
        _check_labels(self.labels, len(self.features), "rows")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def inputs(self) -> npt.NDArray[Any]:
        return self.features

    def take(self, rows: npt.NDArray[np.int64]) -> Features:
        """These rows, copied."""
        return Features(np.array(self.features[rows]), self.labels[rows])


Rows = Images | Features


def _check_labels(labels: npt.NDArray[np.int64], count: int, what: str) -> None:
    if labels.shape != (count,) or not np.issubdtype(labels.dtype, np.integer):
        raise MixMatchError(
            f"labels must be one whole number for each of the {count:,} {what}, not {labels.dtype} {labels.shape}"
        )


@dataclass(frozen=True)
class Source:
    """A data set as arrays. Who is labeled is decided later, by a split."""

    name: str
    classes: tuple[str, ...]
    train: Rows
    test: Rows
    folds: tuple[npt.NDArray[np.int64], ...] = field(default=())
    """Published sets of labeled images (STL-10): indices into `train`, one array a fold."""
    balanced: bool = False
    """Whether labels are dealt out equally whatever the class counts are (STL-10), or by class frequency."""
    encoding: Encoding | None = None
    """How new rows become features like those of `train`."""

    def __post_init__(self) -> None:
        for name, part in (("train", self.train), ("test", self.test)):
            if len(part) == 0 and part is self.train:
                raise MixMatchError(f"{self.name} has no {name} {self.noun}s")
            if len(part) == 0:
                continue  # nothing to judge by, but something to learn from
            if part.labels.max() >= len(self.classes) or part.labels.min() < UNKNOWN:
                raise MixMatchError(f"{self.name} has {name} labels outside 0 to {len(self.classes) - 1}")
        if self.train.inputs.shape[1:] != self.test.inputs.shape[1:]:
            raise MixMatchError(
                f"{self.name} has train {self.noun}s of shape {self.train.inputs.shape[1:]}, "
                f"but test {self.noun}s of shape {self.test.inputs.shape[1:]}"
            )

    @property
    def noun(self) -> str:
        """What a row is called in messages."""
        return self.train.noun

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(H, W, C)"""
        _, height, width, channels = self.train.inputs.shape
        return height, width, channels

    @property
    def input_shape(self) -> tuple[int, ...]:
        """One row as a network takes it: (C, H, W) of images, (F,) of features."""
        if isinstance(self.train, Features):
            return self.train.features.shape[1:]
        height, width, channels = self.image_shape
        return channels, height, width


def labels_sha256(source: Source) -> str:
    """A hash of all labels: those to train on and those to test on."""
    digest = hashlib.sha256()
    for part in (source.train, source.test):
        digest.update(np.ascontiguousarray(part.labels, "<i8").tobytes())
    return digest.hexdigest()

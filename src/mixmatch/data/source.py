"""What every data set looks like once it is read: rows with labels to train on, rows with labels to test on.

A row is an image or a list of features.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mixmatch.data.joined import Joined
from mixmatch.errors import MixMatchError

if TYPE_CHECKING:
    from mixmatch.data.embedding import Embedding
    from mixmatch.data.user.encoding import Encoding

UNKNOWN = -1
"""Label of an unlabeled row."""


@dataclass(frozen=True)
class Rows:
    """Images or features, and a label for each row. Both may be memory-mapped.

    Args:
        inputs: images as uint8 (N, H, W, C), or standardized features as float32 (N, F).
        labels: int64 (N,), `UNKNOWN` where a row is unlabeled.
        pictures: where features were computed from images, those: uint8 (N, H, W, C).
        views: features of each of those images and of augmented copies: float32 (N, views, F), the image itself first.
    """

    inputs: npt.NDArray[Any]
    labels: npt.NDArray[np.int64]
    pictures: npt.NDArray[np.uint8] | None = None
    views: npt.NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        for name, convert in (("inputs", _as_inputs), ("labels", np.asarray)):
            if not isinstance(getattr(self, name), np.ndarray | Joined):  # lists, tensors
                object.__setattr__(self, name, convert(getattr(self, name)))
        kind, shape = self.inputs.dtype, self.inputs.shape
        if self.is_images and (kind != np.uint8 or len(shape) != 4):
            raise MixMatchError(f"images must be uint8 (N, H, W, C), not {kind} {shape}")
        if not self.is_images and (kind != np.float32 or shape[1] == 0):
            raise MixMatchError(f"features must be float32 (N, F), not {kind} {shape}")
        if not self.is_images and not _is_finite(self.inputs):
            raise MixMatchError("the features have values that are no finite numbers: fill them in or leave them out")
        if self.labels.shape != shape[:1] or not np.issubdtype(self.labels.dtype, np.integer):
            raise MixMatchError(
                f"labels must be one whole number for each of the {shape[0]:,} {self.noun}s, not {self.labels.dtype} "
                f"{self.labels.shape}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def is_images(self) -> bool:
        """Whether a row is an image, not a list of features."""
        return self.inputs.ndim != 2

    @property
    def images(self) -> npt.NDArray[np.uint8] | None:
        """What can be shown of the rows: the images, or those that the features were computed from."""
        return self.inputs if self.is_images else self.pictures

    @property
    def noun(self) -> str:
        """What a row is called in messages."""
        return "row" if self.images is None else "image"

    def take(self, rows: npt.NDArray[np.int64]) -> Rows:
        """These rows, copied."""
        pictures = None if self.pictures is None else self.pictures[rows]
        return Rows(np.array(self.inputs[rows]), self.labels[rows], pictures)


def _is_finite(x: npt.NDArray[Any]) -> bool:
    """In pieces: which values of a large table are finite takes tens of megabytes to say."""
    return all(bool(np.isfinite(x[start : start + 4096]).all()) for start in range(0, len(x), 4096))


def _as_inputs(values: Any) -> npt.NDArray[Any]:
    """Rows that are no array: whole numbers from 0 to 255 are images, numbers in two axes features."""
    try:
        array = np.asarray(values)
    except (ValueError, TypeError):
        raise MixMatchError("the rows are not all of the same shape: give images of one size") from None
    if array.ndim == 2 and array.dtype.kind in "iuf":
        return array.astype(np.float32)
    whole = array.ndim == 4 and array.dtype.kind in "iu" and array.size
    return array.astype(np.uint8) if whole and array.min() >= 0 and array.max() <= 255 else array


@dataclass(frozen=True)
class Source:
    """A data set as arrays. Which rows are labeled is decided later, by a split."""

    name: str
    classes: tuple[str, ...]
    train: Rows
    test: Rows
    folds: tuple[npt.NDArray[np.int64], ...] = ()
    """Published sets of labeled images (STL-10): indices into `train`, one array per fold."""
    missing_folds: tuple[int, str] | None = None
    """If the file of the published sets is missing: how many labels each has, and the file's name."""
    balanced: bool = False
    """Whether every class gets as many labels as the others (STL-10), or labels in proportion to its frequency."""
    encoding: Encoding | None = None
    """How new rows become features like those of `train`."""
    embedding: Embedding | None = None
    """How new images become features like those of `train`."""

    def __post_init__(self) -> None:
        if len(self.train) == 0:
            raise MixMatchError(f"{self.name} has no train {self.noun}s")
        for name, part in (("train", self.train), ("test", self.test)):
            if part.labels.max(initial=UNKNOWN) >= len(self.classes) or part.labels.min(initial=UNKNOWN) < UNKNOWN:
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
        if not self.train.is_images:
            return self.train.inputs.shape[1:]
        height, width, channels = self.image_shape
        return channels, height, width


def labels_sha256(source: Source) -> str:
    """A hash of all labels: those to train on and those to test on."""
    digest = hashlib.sha256()
    for part in (source.train, source.test):
        digest.update(np.ascontiguousarray(part.labels, "<i8").tobytes())
    return digest.hexdigest()

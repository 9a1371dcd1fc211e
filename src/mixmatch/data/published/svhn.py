"""SVHN, the house numbers, out of MATLAB files."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mixmatch.data.cache import cached_array
from mixmatch.data.published.files import PIECE, Layout, Published, checked_labels, damaged
from mixmatch.data.source import Rows, Source

URL = "http://ufldl.stanford.edu/housenumbers"
TRAIN = Published("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373", f"{URL}/train_32x32.mat")
TEST = Published("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3", f"{URL}/test_32x32.mat")
EXTRA = Published("extra_32x32.mat", "a93ce644f1a588dc4d68dda5feec44a7", f"{URL}/extra_32x32.mat")
LAYOUT: Layout = (TRAIN, TEST)
LAYOUT_EXTRA: Layout = (TRAIN, TEST, EXTRA)

CLASSES = tuple("1234567890")
"""Label 10 stands for the digit 0, and the paper's code takes the label minus one: the digit 0 is class 9."""
IMAGE = 32 * 32 * 3
DEFLATE = 1032
"""zlib makes no more than this many bytes of one: what claims to hold more than that is damaged."""


def load(folder: Path, layout: Layout, strict: bool = False) -> Source:
    """Train, with extra after it where the layout has that."""
    train = [folder / file.path for file in layout if file.path != TEST.path]
    name = "svhn-extra" if len(train) > 1 else "svhn"
    return Source(
        name=name,
        classes=CLASSES,
        train=_images(folder, f"{name}-train", train, strict),
        test=load_test(folder, strict),
    )


def load_test(folder: Path, strict: bool = False) -> Rows:
    return _images(folder, "svhn-test", [folder / TEST.path], strict)


def _images(folder: Path, name: str, paths: Sequence[Path], strict: bool) -> Rows:
    labels = np.concatenate([_labels(path) for path in paths])
    pieces = (piece for path in paths for piece in _pixels(path))
    return Rows(cached_array(folder, name, paths, (len(labels), 32, 32, 3), pieces, strict), labels)


def _labels(path: Path) -> npt.NDArray[np.int64]:
    """The labels of a file whose images are as many, which is known before the images are read."""
    shapes = _shapes(path)
    for name in ("X", "y"):
        if name not in shapes:
            raise damaged(path, f"holds no variable {name}")
    x, y = shapes["X"], shapes["y"]
    if x[:3] != (32, 32, 3) or len(x) > 4:
        raise damaged(path, f"is damaged (X is {x}, not 32x32x3xN bytes)")
    images, count = int(np.prod(x[3:])), int(np.prod(y))
    if images != count:
        raise damaged(path, f"holds {images:,} images for {count:,} labels")
    if count == 0:
        raise damaged(path, "is empty")
    if count * IMAGE > DEFLATE * path.stat().st_size:
        raise damaged(path, f"is cut short or damaged ({count:,} images do not fit in it)")
    values = _variable(path, "y").ravel()
    if values.dtype.kind not in "iuf":
        raise damaged(path, "holds labels that are not numbers")
    return checked_labels(path, values.astype(np.int64) - 1, len(CLASSES))


def _pixels(path: Path) -> Iterator[npt.NDArray[np.uint8]]:
    x: npt.NDArray[Any] = _variable(path, "X").reshape(32, 32, 3, -1, order="F")  # one image has no fourth axis
    if x.dtype != np.uint8:
        raise damaged(path, f"is damaged (X is {x.dtype}, not 32x32x3xN bytes)")
    step = max(1, PIECE // IMAGE)
    for start in range(0, x.shape[3], step):
        yield x[..., start : start + step].transpose(3, 0, 1, 2)


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the variables in a file, without their values."""
    from scipy.io import matlab  # takes as long to import as all else here together

    if path.stat().st_size == 0:
        raise damaged(path, "is empty")
    with _reading(path):
        version = matlab.matfile_version(path)[0]
        if version == 1:
            return {name: shape for name, shape, _ in matlab.whosmat(path)}
    kind = "a MATLAB 7.3 (HDF5) file" if version == 2 else "not a MATLAB file"
    raise damaged(path, f"is {kind}; SVHN is published in version 5")


def _variable(path: Path, name: str) -> npt.NDArray[np.generic]:
    from scipy.io import matlab

    with _reading(path), warnings.catch_warnings():
        warnings.simplefilter("error", matlab.MatReadWarning)  # else a variable it cannot read is only warned of
        value = matlab.loadmat(path, variable_names=[name])[name]
    if not isinstance(value, np.ndarray):
        raise damaged(path, f"holds no array {name}")
    return value


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Whatever is wrong with the file becomes one error that names it."""
    try:
        yield
    except Exception as error:  # a damaged file can fail in any operation it asks for
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's
        reason = " ".join(str(error).split())
        raise damaged(path, f"is cut short or damaged ({reason or 'it ends too early'})") from error

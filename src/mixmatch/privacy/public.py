"""Public images: what the teachers are asked about and a student learns from."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from mixmatch.data import SOURCES
from mixmatch.data import load as load_data
from mixmatch.data.published import svhn
from mixmatch.data.published.files import data_folder, fetch
from mixmatch.data.source import UNKNOWN, Images, Rows
from mixmatch.errors import MixMatchError


def public_images(name: str, data_dir: str | Path | None = None, *, strict: bool = False) -> Rows:
    """Images by name: "NAME-test" or "NAME-train" of a data set, or a .npy file of uint8 images (N, H, W, C)."""
    if Path(name).suffix == ".npy":
        return _read_array(Path(name))
    base, _, part = name.rpartition("-")
    if base not in SOURCES or part not in ("test", "train"):
        known = ", ".join(f"{known}-test" for known in SOURCES)
        raise MixMatchError(f"unknown public images '{name}': give {known}, NAME-train, or a .npy file of images")
    if part == "test":
        return load_test(base, data_dir, strict=strict)[0]
    return load_data(base, data_dir, strict=strict).train


def load_test(name: str, data_dir: str | Path | None = None, *, strict: bool = False) -> tuple[Rows, tuple[str, ...]]:
    """The test images of a data set and its classes. Of SVHN only the file of its test images is needed."""
    return _load_test(name, data_folder(data_dir), strict)


@lru_cache(maxsize=2)
def _load_test(name: str, folder: Path, strict: bool) -> tuple[Rows, tuple[str, ...]]:
    """Kept, since ten students learn from the same images."""
    if name not in ("svhn", "svhn-extra"):
        source = load_data(name, folder, strict=strict)
        return source.test, source.classes
    try:
        fetch((svhn.TEST,), folder, strict=strict)
        return svhn.load_test(folder), svhn.CLASSES
    except OSError as error:
        raise MixMatchError(f"cannot read {error.filename or name}: {error.strerror or error}") from error


def _read_array(path: Path) -> Images:
    try:
        images = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise MixMatchError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        raise MixMatchError(f"{path} cannot be read as an array of images ({error})") from None
    return Images(images, np.full(len(images), UNKNOWN, np.int64))

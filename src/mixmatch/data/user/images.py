"""A person's image files as arrays of the size a network takes, the same way for training and for prediction."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from mixmatch.errors import MixMatchError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif")
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")
MAX_PIXELS = 100_000_000
"""A larger image is taken for a decompression bomb: a small file that fills the memory."""

LARGE = 16_000_000
"""Pixels beyond which images are decoded one at a time, so that many cores do not hold many of them at once."""

GRAY = ("1", "L", "LA", "La", "I", "F")
TRANSPARENT = ("RGBA", "RGBa", "LA", "La", "PA")


class UnreadableImage(MixMatchError):
    """A file that holds no image that can be used; the message says why, without the file's name."""


@dataclass(frozen=True)
class Header:
    """What an image file says of itself before it is decoded."""

    width: int
    height: int
    mode: str
    gray: bool


def find_images(paths: Iterable[Path]) -> list[Path]:
    """The image files among `paths` and in the folders among them, folders in order of name.

    A folder that may not be read is among them, too, so that reading it tells why.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            refused: list[OSError] = []
            walk = [Path(folder, name) for folder, _, names in os.walk(path, onerror=refused.append) for name in names]
            inside = [p for p in walk if p.suffix.lower() in SUFFIXES and p.is_file()]
            if not inside and refused:
                raise MixMatchError(f"cannot read {refused[0].filename}: {refused[0].strerror}")
            inside = sorted([*inside, *(Path(error.filename) for error in refused)])
            if not inside:
                raise MixMatchError(f"there are no images in {path} (looked for {', '.join(SUFFIXES)})")
            found.extend(inside)
        elif path.exists():
            found.append(path)
        else:
            raise MixMatchError(f"there is no file or folder {path}")
    return found


def read_image(path: Path, shape: tuple[int, int, int]) -> npt.NDArray[np.uint8]:
    """An image file as uint8 (H, W, C) for a network that takes `shape` = (C, H, W), upright and resized."""
    channels, height, width = shape
    if channels not in (1, 3):
        raise MixMatchError(f"image files have 1 or 3 channels, but the model takes {channels}")
    try:
        with quiet_pillow():
            return decode(path, height, width, channels)[0]
    except UnreadableImage as error:
        raise MixMatchError(f"cannot read {path}: {error}") from None


def probe(path: Path) -> Header:
    """The header of an image file; raises `UnreadableImage`."""
    with _opened(path) as image:
        return _header(image)


def decode(
    path: Path, height: int, width: int, channels: int, large: AbstractContextManager[object] | None = None
) -> tuple[npt.NDArray[np.uint8], Header]:
    """An image file as uint8 (H, W, C), and its header; raises `UnreadableImage`.

    The whole image is resized to `height` x `width` with antialiasing (its sides may change their ratio), after it was
    turned upright by its EXIF orientation and laid over white where it is transparent. 16 bits a pixel keep the upper
    8. Of several frames the first is taken. JPEGs are decoded at the smallest scale that keeps twice the size wanted.

    `large` is entered while a large image is in memory: with a lock, several threads hold one of them at a time.
    """
    with _opened(path) as opened:
        header = _header(opened)
        opened.draft("L" if channels == 1 else "RGB", (2 * width, 2 * height))
        is_large = opened.width * opened.height > LARGE
        with large if large is not None and is_large else nullcontext():
            opened.load()
            with suppress(Exception):  # damaged EXIF data says nothing against the pixels
                ImageOps.exif_transpose(opened, in_place=True)
            image = _flat(opened).convert("L" if channels == 1 else "RGB")
            if image.size != (width, height):
                image = image.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3.0)
        return np.asarray(image, np.uint8).reshape(height, width, channels), header


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """No warnings about odd files: an unusable one becomes a message of ours.

    Filters belong to the process, so this is entered once, by the thread that starts the others.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    try:
        with Image.open(path, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise UnreadableImage(
                    f"{image.width:,} x {image.height:,} pixels are more than {MAX_PIXELS // 10**6} million "
                    "(a decompression bomb?)"
                )
            yield image
    except UnreadableImage:
        raise
    except UnidentifiedImageError:
        raise UnreadableImage("not a JPEG, PNG, WebP, BMP, TIFF or GIF image") from None
    except Image.DecompressionBombError:  # Pillow's own, larger limit comes before ours
        raise UnreadableImage(f"more than {MAX_PIXELS // 10**6} million pixels (a decompression bomb?)") from None
    except Exception as error:  # Pillow lets damaged files raise whatever their damage leads to
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UnreadableImage(" ".join(reason.split())) from None


def _header(image: Image.Image) -> Header:
    return Header(image.width, image.height, image.mode, _is_gray(image))


def _is_gray(image: Image.Image) -> bool:
    if image.mode in ("P", "PA"):
        palette = np.array(image.getpalette() or [0, 0, 1], np.uint8).reshape(-1, 3)
        return bool((palette == palette[:, :1]).all())
    return image.mode in GRAY or image.mode.startswith("I;")


def _flat(image: Image.Image) -> Image.Image:
    """8 bits a channel and nothing transparent."""
    if image.mode.startswith("I"):  # Pillow would cut 16 bits off at 255
        values = np.asarray(image).astype(np.int64).clip(0, 0xFFFF)
        return Image.fromarray((values >> 8).astype(np.uint8))
    if image.mode == "F":
        reals = np.nan_to_num(np.asarray(image, np.float32))
        scale = 255 if reals.max(initial=0) <= 1 else 1
        return Image.fromarray(np.rint(reals * scale).clip(0, 255).astype(np.uint8))
    if image.mode in TRANSPARENT or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image)
    return image


def visible(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """What can be shown of an image (H, W, C): its first three channels as colors, or if it has fewer, the first."""
    return pixels[..., :3] if pixels.shape[-1] >= 3 else pixels[..., 0]

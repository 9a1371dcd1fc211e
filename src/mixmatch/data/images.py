"""A person's image files as arrays of the size a network takes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from mixmatch.errors import MixMatchError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif")


def find_images(paths: Iterable[Path]) -> list[Path]:
    """The image files among `paths` and in the folders among them, folders in order of name."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
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
        with Image.open(path) as opened:
            image = ImageOps.exif_transpose(opened)
            if image.mode.startswith("I"):  # 16 bits a pixel: keep the upper 8, where Pillow would cut off at 255
                image = Image.fromarray((np.asarray(image, np.uint32) >> 8).clip(0, 255).astype(np.uint8))
            image = image.convert("L" if channels == 1 else "RGB")
            if image.size != (width, height):
                image = image.resize((width, height), Image.Resampling.BICUBIC)
            return np.asarray(image, np.uint8).reshape(height, width, channels)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        reason = "not an image" if "cannot identify" in str(error) else str(error)
        raise MixMatchError(f"cannot read {path}: {reason}") from None

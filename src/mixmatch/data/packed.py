"""Arrays that are kept beside data or labels: written whole, read with care. The folder may come from anyone."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mixmatch.data.cache import new_file
from mixmatch.storage import open_plain

MOST = 2**33
"""Bytes, packed or not."""


def read_packed(path: Path) -> dict[str, npt.NDArray[Any]] | None:
    """The arrays of a .npz file by name. None if the file is missing or cannot be read: then it is made again."""
    try:
        with open_plain(path, MOST) as file:
            with zipfile.ZipFile(file) as packed:
                if sum(member.file_size for member in packed.infolist()) > MOST:
                    return None
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                found = {name: arrays[name] for name in arrays.files}
            return found if all(isinstance(array, np.ndarray) for array in found.values()) else None
    except Exception:  # a damaged file makes zipfile, zlib and NumPy raise nearly everything
        return None


def write_packed(path: Path, arrays: Mapping[str, Any], what: str, remedy: str) -> None:
    """Write arrays by name. If that fails, the error says `what` cannot be kept, and the `remedy`."""
    with new_file(path, what, remedy) as part, part.open("xb") as file:
        np.savez(file, **arrays)

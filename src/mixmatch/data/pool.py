"""Images where a step can reach them: on the device if they fit, else in host memory or a memory-mapped file."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

PIECE = 64 * 2**20  # bytes copied to the device at a time


class Pool:
    """uint8 images (N, H, W, C) behind one call, whichever of the three tiers holds them.

    `resident` images live in the memory of an accelerator and are gathered there. Others stay where they are, in
    host memory or memory-mapped on disk, and only a batch's rows travel, so a data set larger than memory can train.
    """

    def __init__(self, images: npt.NDArray[np.uint8], device: torch.device, resident: bool | None = None) -> None:
        if images.dtype != np.uint8 or images.ndim != 4:
            raise ValueError(f"images must be uint8 (N, H, W, C), not {images.dtype} of shape {images.shape}")
        self.device = device
        self.resident = _fits(images.nbytes, device) if resident is None else resident
        self.rows_on = device if self.resident else torch.device("cpu")
        self._images = images
        self._on_device = _copy(images, device) if self.resident else None

    def __len__(self) -> int:
        return len(self._images)

    def fetch(self, rows: Tensor) -> Tensor:
        """The images (B, H, W, C) with these row numbers, on the device. `rows` lives on `rows_on`."""
        if self._on_device is not None:
            return self._on_device[rows]
        batch = torch.from_numpy(np.ascontiguousarray(self._images[rows.numpy()]))
        if self.device.type == "cuda":
            return batch.pin_memory().to(self.device, non_blocking=True)
        return batch.to(self.device)


def _fits(size: int, device: torch.device) -> bool:
    """An accelerator's memory is for the network first: images may have 40 % of what is free."""
    if device.type == "cuda":
        return size <= 0.4 * torch.cuda.mem_get_info(device)[0]
    return False


def _copy(images: npt.NDArray[np.uint8], device: torch.device) -> Tensor:
    """Copied in pieces, so that a memory-mapped file is never held in host memory whole."""
    whole = torch.empty(images.shape, dtype=torch.uint8, device=device)
    rows = max(1, PIECE // max(1, images[:1].nbytes))
    for start in range(0, len(images), rows):
        piece = np.array(images[start : start + rows])  # a copy: torch wants writable memory
        whole[start : start + rows].copy_(torch.from_numpy(piece))
    return whole

"""Rows within reach of a step: on the device if they fit, else in host memory or a memory-mapped file."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

PIECE = 64 * 2**20  # bytes copied to the device at a time


class Pool:
    """uint8 images (N, H, W, C), or float32 features (N, F) or (N, views, F), behind one call, whichever of the three
    tiers holds them.

    `resident` rows live in the memory of an accelerator and are gathered there. Others stay where they are, in
    host memory or memory-mapped on disk, and only a batch's rows travel, so a data set larger than memory can train.
    """

    def __init__(self, inputs: npt.NDArray[Any], device: torch.device, resident: bool | None = None) -> None:
        if (str(inputs.dtype), inputs.ndim) not in (("uint8", 4), ("float32", 2), ("float32", 3)):
            raise ValueError(
                "images must be uint8 (N, H, W, C) and features float32 (N, F) or (N, views, F), not "
                f"{inputs.dtype} of shape {inputs.shape}"
            )
        self.device = device
        self.resident = _fits(inputs.nbytes, device) if resident is None else resident
        self._inputs = inputs
        self._on_device = _copy(inputs, device) if self.resident else None

    def __len__(self) -> int:
        return len(self._inputs)

    def fetch(self, rows: Tensor) -> Tensor:
        """The images (B, H, W, C) or features (B, F) with these row numbers, on the device. `rows` is where they
        are: there too if they are resident, else on the CPU."""
        if self._on_device is not None:
            return self._on_device[rows]
        batch = torch.from_numpy(np.ascontiguousarray(self._inputs[rows.numpy()]))
        if self.device.type == "cuda":
            return batch.pin_memory().to(self.device, non_blocking=True)
        return batch.to(self.device)


def on_device(inputs: npt.NDArray[Any], device: torch.device) -> npt.NDArray[Any] | Tensor:
    """Rows that are read repeatedly (evaluation), moved to the device if they fit."""
    return _copy(inputs, device) if _fits(inputs.nbytes, device, 0.1) else inputs


def _fits(size: int, device: torch.device, share: float = 0.4) -> bool:
    """An accelerator's memory is for the network first: the data may have a share of what is free."""
    return device.type == "cuda" and size <= share * torch.cuda.mem_get_info(device)[0]


def _copy(inputs: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Copied in pieces, so that a memory-mapped file is never held in host memory whole."""
    dtype = torch.uint8 if inputs.dtype == np.uint8 else torch.float32
    whole = torch.empty(inputs.shape, dtype=dtype, device=device)
    rows = max(1, PIECE // max(1, inputs[:1].nbytes))
    for start in range(0, len(inputs), rows):
        piece = np.array(inputs[start : start + rows])  # a copy: torch wants writable memory
        whole[start : start + rows].copy_(torch.from_numpy(piece))
    return whole

"""Features of pictures by a frozen network: `basic`, or a timm model with the weights a user has."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from mixmatch.augment import unaugmented
from mixmatch.data.packed import read_packed, write_packed
from mixmatch.data.user.images import parallel_map
from mixmatch.draws import generator
from mixmatch.errors import MixMatchError
from mixmatch.label.features import SIDE
from mixmatch.networks.frozen import Basic, build_frozen, weights_sha256
from mixmatch.networks.precision import full_fp32
from mixmatch.networks.timm_backbone import SMALLEST
from mixmatch.storage import digest

BATCH = 32
SAMPLE = 1024
"""Pictures that decide what is kept of a network's features: fewer than of cheap ones, since none is shown before."""
FILTERS = "basic.npz"
"""The filters that `basic` found in the folder's pictures: those found later are looked at with the same."""

Read = Callable[[int], npt.NDArray[np.uint8] | None]


@dataclass(frozen=True)
class Network:
    """Called with uint8 pictures (N, side, side, 3), gives features (N, D)."""

    frozen: nn.Module
    side: int
    key: str
    """Another text means other features."""

    @staticmethod
    def build(name: str, weights: str | None, read: Read, total: int, folder: Path) -> Network:
        """
        Args:
            read: a picture of 32x32 pixels by its number, None if it cannot be read.
            total: how many pictures there are.
            folder: where to keep what is found in the pictures.
        """
        side = SMALLEST if name.startswith("timm:") else SIDE
        frozen = build_frozen(name, (3, side, side), weights).requires_grad_(False).eval()
        if isinstance(frozen, Basic):
            _fill(frozen, read, total, folder / FILTERS)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return Network(frozen.to(device), side, digest(f"1 {name} {weights_sha256(frozen)}"))

    def __call__(self, pictures: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        device = next(self.frozen.buffers()).device
        parts = []
        with torch.no_grad(), full_fp32():
            for start in range(0, len(pictures), BATCH):
                batch = torch.from_numpy(pictures[start : start + BATCH]).to(device)
                parts.append(self.frozen(unaugmented(batch)).float().cpu())
        found: npt.NDArray[np.float32] = torch.cat(parts).numpy()
        if not np.isfinite(found).all():
            raise MixMatchError("the network gives features that are not finite: are these its weights?")
        return found


def _fill(basic: Basic, read: Read, total: int, path: Path) -> None:
    """The filters kept in the file, or, if there are none or the folder has outgrown them, new ones."""
    file = read_packed(path) or {}
    with suppress(ValueError, KeyError, TypeError, RuntimeError):
        kept: dict[str, Any] = {name: torch.from_numpy(file[name]) for name in basic.state_dict()}
        if int(file["total"]) >= min(SAMPLE, total // 2):
            basic.load_state_dict(kept)
            return
    chosen = generator(0, "label filters", 0).permutation(total)[:SAMPLE].tolist()
    pictures = [picture for picture in parallel_map(read, chosen) if picture is not None]
    if not pictures:
        return  # there is nothing to describe either
    basic.fit(np.stack(pictures))
    arrays = {"total": total, **{name: tensor.numpy() for name, tensor in basic.state_dict().items()}}
    write_packed(path, arrays, "the filters of pictures", "choose another place for them")

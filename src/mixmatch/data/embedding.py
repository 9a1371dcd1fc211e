"""Images as features: each is embedded once by a frozen network, together with augmented copies, and kept on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from mixmatch.augment import CropFlip, unaugmented
from mixmatch.data.packed import read_packed, write_packed
from mixmatch.data.source import Rows, Source
from mixmatch.draws import generator
from mixmatch.errors import MixMatchError
from mixmatch.networks.frozen import Basic, Embedded, build_frozen, weights_sha256
from mixmatch.networks.precision import full_fp32
from mixmatch.storage import digest

MOST_VALUES = 250_000_000
"""Numbers in memory, a gigabyte: very many images get fewer views."""

BATCH = 32
SAVE_EVERY = 1024
"""Features are saved after this many images, so that stopping loses little."""

Floats = npt.NDArray[np.float32]
Callback = Callable[[int, int], None]


@dataclass(frozen=True)
class Embedding:
    """How images become features: a frozen network, then standardization by the training images."""

    name: str
    """`basic`, `timm:NAME`, or `custom:CLASS`."""
    input_shape: tuple[int, ...]
    """Of the images: (channels, height, width)."""
    frozen: nn.Module
    mean: Tensor
    deviation: Tensor

    def under(self, head: nn.Module) -> Embedded:
        """The network that takes images: this embedding, then the head."""
        whole = Embedded(self.frozen, head)
        whole.get_buffer("mean").copy_(self.mean)
        whole.get_buffer("deviation").copy_(self.deviation)
        return whole


def embed(
    source: Source,
    features: str | nn.Module,
    weights: str = "",
    *,
    views: int = 4,
    flip: bool = False,
    device: torch.device | None = None,
    cache: Path | None = None,
    progress: Callback | None = None,
) -> Source:
    """The source with features instead of images.

    Args:
        features: `basic`, `timm:NAME`, or a network of your own that maps images (N, C, H, W) in [-1, 1] to (N, F).
        weights: a file of a timm model's weights.
        views: how many versions of each training image are embedded: the image itself, and copies that are shifted at
            random by up to an eighth of their size. Very many images get fewer.
        flip: flip copies left to right at random.
        device: where to compute; by default the CPU.
        cache: a folder to keep the features in. While images and network stay the same, nothing is computed again.
        progress: called with the number of embedded images and their total.
    """
    shape, train, device = source.input_shape, source.train, device or torch.device("cpu")
    if isinstance(features, nn.Module):
        name, frozen = f"custom:{type(features).__name__}", features
    else:
        name, frozen = features, build_frozen(features, shape, weights or None)
    if isinstance(frozen, Basic):
        frozen.fit(train.inputs)
    frozen = frozen.requires_grad_(False).eval().to(device)
    with torch.no_grad():
        size = frozen(torch.zeros(2, *shape, device=device)).shape[-1]
    views = max(1, min(views, MOST_VALUES // (len(train) * size)))
    worker = _Worker(frozen, CropFlip(min(shape[1:]) // 8, flip), size, device)
    total, done = len(train) * views + len(source.test), 0
    parts = []
    for file_name, rows, each in (("features", train, views), ("features-test", source.test, 1)):
        file = None if cache is None else cache / f"{file_name}-{worker.key(name, each)}.npz"
        shown = None if progress is None else lambda count, begun=done: progress(begun + count, total)
        parts.append(worker.all(rows.inputs, each, file, shown))
        done += len(rows) * each
    mean, deviation = parts[0][:, 0].mean(axis=0), np.maximum(parts[0][:, 0].std(axis=0), 1e-6)
    for part in parts:
        part -= mean
        part /= deviation
    return replace(
        source,
        train=Rows(np.ascontiguousarray(parts[0][:, 0]), train.labels, train.inputs, parts[0] if views > 1 else None),
        test=Rows(np.ascontiguousarray(parts[1][:, 0]), source.test.labels, source.test.inputs),
        embedding=Embedding(name, shape, frozen.cpu(), torch.from_numpy(mean), torch.from_numpy(deviation)),
    )


@dataclass(frozen=True)
class _Worker:
    """Embeds images and remembers them by their pixels, so that a moved or relabeled file is not embedded again."""

    frozen: nn.Module
    crops: CropFlip
    size: int
    device: torch.device

    def key(self, name: str, views: int) -> str:
        return digest(f"1 {name} {weights_sha256(self.frozen)} {views} {self.crops}")

    def all(self, images: npt.NDArray[np.uint8], views: int, file: Path | None, shown: Any) -> Floats:
        """Features (N, views, size) of uint8 images (N, H, W, C)."""
        names = [hashlib.blake2b(np.ascontiguousarray(image).tobytes(), digest_size=16).digest() for image in images]
        features = np.empty((len(images), views, self.size), np.float32)
        known = _load(file, features.shape[1:])
        missing = [row for row, name in enumerate(names) if name not in known]
        for row, name in enumerate(names):
            if name in known:
                features[row] = known[name]
        saved = done = 0

        def save() -> None:
            if file is not None and done > saved:
                _save(file, names, features, known.keys() | {names[row] for row in missing[:done]})

        try:
            for start in range(0, len(missing), BATCH):
                rows = missing[start : start + BATCH]
                features[rows] = self._batch(images, rows, names, views)
                done = start + len(rows)
                if shown is not None:
                    shown((len(images) - len(missing) + done) * views)
                if done - saved >= SAVE_EVERY:
                    save()
                    saved = done
        finally:  # Ctrl-C too
            save()
        return features

    def _batch(self, images: npt.NDArray[np.uint8], rows: list[int], names: list[bytes], views: int) -> Floats:
        pixels = torch.from_numpy(np.array(images[rows])).to(self.device)
        copies = [unaugmented(pixels)[None]]
        if views > 1:  # crops follow from the image itself: they are the same in every run, wherever its file is
            numbers = [int.from_bytes(names[row][:4], "little") for row in rows]
            drawn = [self.crops.draw(generator(0, "views", number), views - 1, 1) for number in numbers]
            draws = {k: torch.from_numpy(np.concatenate([d[k] for d in drawn], axis=1)) for k in drawn[0]}
            copies.append(self.crops(pixels, {k: value.to(self.device) for k, value in draws.items()}))
        inputs = torch.cat(copies)
        with torch.no_grad(), full_fp32():
            features = self.frozen(inputs.flatten(0, 1))
        if features.ndim != 2 or not bool(torch.isfinite(features).all()):
            raise MixMatchError("the network of features= must map images to finite features (N, F)")
        found: Floats = features.unflatten(0, (views, len(rows))).transpose(0, 1).cpu().numpy()
        return found


def _load(file: Path | None, shape: tuple[int, ...]) -> dict[bytes, Floats]:
    """The features by the hash of the image's pixels; none if the file is not there or not whole."""
    if file is None:
        return {}
    content = read_packed(file) or {}
    names, features = content.get("names"), content.get("features")
    if names is None or features is None or names.dtype != np.uint8 or features.dtype != np.float32:
        return {}
    if names.shape != (*features.shape[:1], 16) or features.shape[1:] != shape:
        return {}
    return {name.tobytes(): row for name, row in zip(names, features, strict=True)}


def _save(file: Path, names: list[bytes], features: Floats, done: set[bytes]) -> None:
    rows = [row for row, name in enumerate(names) if name in done]
    kept = np.frombuffer(b"".join(names[row] for row in rows), np.uint8).reshape(-1, 16)
    write_packed(file, {"names": kept, "features": features[rows]}, "the features", "choose another data folder")

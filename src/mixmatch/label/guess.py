"""A program that asks a trained model about every picture of a folder, and keeps what it says beside the run."""

from __future__ import annotations

import threading
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mixmatch.classifier import load_run
from mixmatch.data.packed import write_packed
from mixmatch.data.user.images import UnreadableImage, decode_image, parallel_map, quiet_pillow
from mixmatch.label.program import answering, read_answer
from mixmatch.report.gather import penultimate

BATCH = 256


def guess(asked: dict[str, Any]) -> dict[str, Any]:
    """Write `guesses.npz`: the numbers of the pictures that could be read, float16 probabilities (N, L) and the
    network's features of them (N, D), if it has any."""
    model = load_run(asked["run"])
    height, width, channels = model.image_shape()
    root, files = Path(asked["root"]), read_answer(Path(asked["listing"]))["files"]
    large = threading.Lock()

    def read(n: int) -> tuple[int, npt.NDArray[np.uint8] | None]:
        try:
            return n, decode_image(root / files[n], height, width, channels, large)[0]
        except UnreadableImage:
            return n, None

    numbers: list[int] = []
    said: list[npt.NDArray[np.float16]] = []
    features: list[npt.NDArray[np.float16]] | None = []
    with quiet_pillow(), closing(parallel_map(read, asked["numbers"], 2 * BATCH)) as found:
        while batch := list(islice(found, BATCH)):
            readable = [(n, pixels) for n, pixels in batch if pixels is not None]
            if not readable:
                continue
            images = np.stack([pixels for _, pixels in readable])
            numbers += [n for n, _ in readable]
            said.append(as_half(model.probabilities(images)))
            inner = penultimate(model, images, np.arange(len(images))) if features is not None else None
            features = None if inner is None or features is None else [*features, inner.astype(np.float16)]
    arrays: dict[str, npt.NDArray[Any]] = {
        "numbers": np.array(numbers, np.int64),
        "probabilities": np.concatenate(said) if said else np.empty((0, len(model.classes)), np.float16),
    }
    if features:
        arrays["features"] = np.concatenate(features)
    write_packed(Path(asked["guesses"]), arrays, "the guesses of a run", "train again")
    return {"classes": list(model.classes), "count": len(numbers)}


def as_half(probabilities: npt.NDArray[np.floating]) -> npt.NDArray[np.float16]:
    """Probabilities (N, L) in half the space; where rounding makes two alike, the likeliest stays the likeliest."""
    half, best = probabilities.astype(np.float16), probabilities.argmax(axis=1)
    tied = np.flatnonzero(half.argmax(axis=1) != best)
    half[tied, best[tied]] = np.nextafter(half[tied].max(axis=1), np.float16(1))
    return half


if __name__ == "__main__":
    answering(guess)

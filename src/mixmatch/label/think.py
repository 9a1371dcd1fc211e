"""A program that says what to label next and which labels may be wrong; it has scikit-learn, the server has not.

With `what` = "features" it computes the features of all pictures, which may take long, and keeps them as it goes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mixmatch.data.user.images import UnreadableImage, decode_image, quiet_pillow
from mixmatch.label import check, features, suggest
from mixmatch.label.program import answering, read_answer
from mixmatch.text import count

SIDE = features.SIDE


def think(asked: dict[str, Any]) -> dict[str, Any]:
    """Answer a question of `Thinking`."""
    listing = read_answer(Path(asked["listing"]))
    names = [
        json.dumps(identity) for identity in zip(listing["files"], listing["sizes"], listing["times"], strict=True)
    ]
    if asked["what"] == "features":
        return _features(asked, listing["files"], names)
    with np.load(asked["arrays"], allow_pickle=False) as arrays:
        labels, exclude = arrays["labels"].astype(np.int64), arrays["exclude"].astype(bool)
    total = len(labels)
    by_pixels = features.load(names[:total], Path(asked["cache"]))
    vectors, known, probabilities = by_pixels.vectors, by_pixels.known, None
    source = "pixels"
    if asked["guesses"] is not None:
        probabilities, inner = _of_run(Path(asked["guesses"]), total)
        if inner is not None:
            source, known = "run", np.asarray(np.isfinite(inner).all(axis=1))
            vectors = np.nan_to_num(inner)
    if asked["what"] == "next":
        found = suggest.suggest(
            vectors,
            labels,
            count=asked["count"],
            exclude=exclude | ~known,
            probabilities=probabilities,
            classes=asked["guessed"],
            seed=asked["seed"],
        )
        return {"features": source, "items": [{"n": s.row, "rule": s.rule, "why": s.reason} for s in found]}
    # A run has fitted its labels, and its features with it: what is to be doubted must not have made them.
    return {"features": "pixels", **_doubts(asked, by_pixels, labels, exclude | ~by_pixels.known)}


def _doubts(
    asked: dict[str, Any],
    by_pixels: features.Features,
    labels: npt.NDArray[np.int64],
    exclude: npt.NDArray[np.bool_],
) -> dict[str, Any]:
    classes = asked["classes"]
    found = check.suspects(by_pixels.vectors, labels, classes=classes, exclude=exclude, seed=asked["seed"])
    rows = np.flatnonzero((labels >= 0) & ~exclude & by_pixels.known)
    groups = check.near_copies(by_pixels.fingerprints, rows=rows)
    copies = check.conflicts(groups, labels, classes)
    return {
        "labeled": len(rows),
        "items": [
            {
                "n": s.row,
                "label": classes[s.label],
                "instead": classes[s.likely],
                "score": s.probability,
                "why": s.reason,
            }
            for s in found
        ],
        "copies": [
            {"n": [int(row) for row in c.rows], "labels": [classes[i] for i in c.labels], "why": c.reason}
            for c in copies
        ],
    }


def _of_run(path: Path, total: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32] | None]:
    """Probabilities and features by picture, rows of NaN for those the run has not seen."""
    with np.load(path, allow_pickle=False) as file:
        numbers = file["numbers"]
        seen = numbers < total

        def spread(rows: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
            out = np.full((total, rows.shape[1]), np.nan, np.float32)
            out[numbers[seen]] = rows[seen]
            return out

        return spread(file["probabilities"]), spread(file["features"]) if "features" in file else None


def _features(asked: dict[str, Any], files: list[str], names: list[str]) -> dict[str, Any]:
    root, gone = Path(asked["root"]), set(asked["gone"])

    def read(n: int) -> npt.NDArray[np.uint8] | None:
        if n in gone:
            return None
        try:
            return decode_image(root / files[n], SIDE, SIDE, 3)[0]
        except UnreadableImage:
            return None

    def progress(done: int, total: int) -> None:
        print(f"{done} of {count(total, 'picture')}", flush=True)

    with quiet_pillow():
        found = features.compute(read, names, Path(asked["cache"]), progress=progress)
    return {"known": int(found.known.sum()), "total": len(names)}


if __name__ == "__main__":
    answering(think)

"""A program that says what to label next and which labels may be wrong; it has scikit-learn, the server has not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mixmatch.data.packed import read_packed
from mixmatch.errors import MixMatchError
from mixmatch.label import check, features, suggest
from mixmatch.label.embed import identities
from mixmatch.label.program import answering, read_answer


def think(asked: dict[str, Any]) -> dict[str, Any]:
    """Answer a question of `Thinking`."""
    names = identities(read_answer(Path(asked["listing"])))
    arrays = read_packed(Path(asked["arrays"]))
    if arrays is None:
        raise MixMatchError(f"{asked['arrays']} cannot be read: ask again")
    labels, exclude = arrays["labels"].astype(np.int64), arrays["exclude"].astype(bool)
    total = len(labels)
    computed = features.load(names[:total], Path(asked["cache"]))
    vectors, known, probabilities = computed.vectors, computed.known, None
    source = asked["features"]
    if asked["guesses"] is not None:
        probabilities, inner = _of_run(Path(asked["guesses"]), total)
        if inner is not None and asked["by_run"]:
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
    return {"features": source, **_doubts(asked, computed, labels, exclude | ~computed.known)}


def _doubts(
    asked: dict[str, Any], computed: features.Features, labels: npt.NDArray[np.int64], exclude: npt.NDArray[np.bool_]
) -> dict[str, Any]:
    classes = asked["classes"]
    found = check.suspects(computed.vectors, labels, classes=classes, exclude=exclude, seed=asked["seed"])
    rows = np.flatnonzero((labels >= 0) & ~exclude & computed.known)
    groups = check.near_copies(computed.fingerprints, rows=rows)
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
    file = read_packed(path)
    if file is None:
        raise MixMatchError(f"{path} cannot be read: train again")
    numbers = file["numbers"]
    seen = numbers < total

    def spread(rows: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        out = np.full((total, rows.shape[1]), np.nan, np.float32)
        out[numbers[seen]] = rows[seen]
        return out

    return spread(file["probabilities"]), spread(file["features"]) if "features" in file else None


if __name__ == "__main__":
    answering(think)

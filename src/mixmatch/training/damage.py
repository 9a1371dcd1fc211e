"""Damage is found, never believed: hashes of what a run has written, and what can be done about a file that is not it.

The record of a finished run, result.json, holds the hashes of its model, of its metrics and of itself. Folders that an
earlier version wrote have none, and are read as they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HASHES = "sha256"
"""What the hashes are called in result.json."""

ITSELF = "result.json"


def sealed(record: Mapping[str, Any], hashes: Mapping[str, str]) -> dict[str, Any]:
    """A record with the hashes of a run's files and of itself."""
    whole = {**record, HASHES: dict(hashes)}
    return {**record, HASHES: {**hashes, ITSELF: json_sha256(whole)}}


def is_whole(record: Mapping[str, Any]) -> bool:
    """Whether a record is what was written, or has no hash to tell."""
    hashes = record.get(HASHES)
    if hashes is None:
        return True
    if not isinstance(hashes, dict):
        return False
    others = {name: value for name, value in hashes.items() if name != ITSELF}
    return bool(hashes.get(ITSELF) == json_sha256({**record, HASHES: others}))


def json_sha256(content: Mapping[str, Any]) -> str:
    """A hash of plain values."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def way_out(name: str, model: Path | None, checkpoint: str | None) -> str:
    """What can still be used of a run whose file `name` is damaged, and what to do.

    Args:
        model: the finished model, if there is one.
        checkpoint: the name of the newest checkpoint, if there is one.
    """
    again = "start again in another folder with out="
    anew = f"resume=True with checkpoint={checkpoint} writes it anew"
    alone = f"the model still works on its own, give {model} in place of the folder"
    if name == "model.safetensors":
        return anew if checkpoint else again
    if name == ITSELF:
        return "; ".join([*([alone] if model else []), anew if checkpoint else again])
    if name == "metrics.jsonl":
        works = "predict, evaluate and export still work; to train on or to report, " if model or checkpoint else ""
        return f"{works}{again}"
    return f"{alone}; to train on, restore the file or {again}" if model else f"restore the file, or {again}"

"""Damage is found by hashes of what a run has written.

The record of a finished run, result.json, holds the hashes of its model, of its metrics and of itself. Folders written
by earlier versions have none, and are read unchecked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

HASHES = "sha256"
"""What the hashes are called in result.json."""

ITSELF = "result.json"


def sealed(record: Mapping[str, Any], hashes: Mapping[str, str]) -> dict[str, Any]:
    """A record with the hashes of a run's files and of itself."""
    whole = {**record, HASHES: dict(hashes)}
    return {**record, HASHES: {**hashes, ITSELF: json_sha256(whole)}}


def is_whole(record: Mapping[str, Any]) -> bool:
    """Whether a record is unchanged since it was written, or has no hash to tell."""
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

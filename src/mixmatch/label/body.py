"""Responses to the page, as JSON."""

from __future__ import annotations

import json
from typing import Any

Body = dict[str, Any]

PIECE = 5000
"""How many values of a column are written at once."""

_written = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def encode(body: Body) -> bytes:
    """JSON. Long columns are written in pieces: Python's writer holds a text per number until it has all of them."""
    written = [b"{"]
    for name, value in body.items():
        written.append(f"{_written(name)}:".encode())
        if type(value) is list and len(value) > PIECE:
            pieces = (
                _written(value[i : i + PIECE])[1:-1].encode("utf-8", "replace") for i in range(0, len(value), PIECE)
            )
            written += [b"[", b",".join(pieces), b"]"]
        else:
            written.append(_written(value).encode("utf-8", "replace"))
        written.append(b",")
    written[-1] = b"}"
    return b"".join(written)

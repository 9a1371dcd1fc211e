"""Tensors as safetensors files: the same bytes for the same content, and read with care, because a file may come from
anyone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
from torch import Tensor

from mixmatch.storage import open_plain, parse_json, read_plain

MOST = 8 * 2**30
"""Bytes of a file of tensors, at most."""

MOST_HEADER = 64 * 2**20


class Read(NamedTuple):
    """What a file holds, and the hash of the whole file."""

    tensors: dict[str, Tensor]
    sha256: str


def read(path: Path, most: int = MOST, *, follow: bool = False) -> Read:
    """The tensors of a file. A `ValueError` says why it cannot be read as such."""
    content = read_plain(path, min(most, MOST), follow=follow)
    try:
        return Read(safetensors.torch.load(content), hashlib.sha256(content).hexdigest())
    except (safetensors.SafetensorError, KeyError, AssertionError, RuntimeError, TypeError, OverflowError) as error:
        raise ValueError(str(error).partition("\n")[0] or "it holds no tensors") from None


def read_metadata(path: Path, *, follow: bool = False) -> dict[str, str]:
    """The names and values that a file begins with, without reading its tensors."""
    with open_plain(path, MOST, follow=follow) as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= MOST_HEADER:
            raise ValueError("it does not begin as such a file does")
        header = parse_json(file.read(length))
    about: Any = header.get("__metadata__", {}) if isinstance(header, dict) else None
    if not isinstance(about, dict) or not all(isinstance(value, str) for value in about.values()):
        raise ValueError("it does not begin as such a file does")
    return about


def to_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Tensors as a safetensors file: the same bytes for the same content."""
    # Each tensor is copied, because the format refuses tensors that share memory.
    plain = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
    content = safetensors.torch.save(plain, None)
    if not metadata:
        return content
    # The library writes metadata in an order that changes from process to process.
    length = int.from_bytes(content[:8], "little")
    header = {"__metadata__": dict(sorted(metadata.items())), **json.loads(content[8 : 8 + length])}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[8 + length :]

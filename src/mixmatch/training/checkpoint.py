"""Checkpoints: whole or not there at all. Plain tensors and JSON, never a pickle, so a stranger's run is safe to open.

A checkpoint is a folder `step-00001024` of safetensors files (weights, moving average, optimizer, the method's state if
it has any) and a `state.json` with the rest and the hashes of all. It is written under a temporary name, flushed to
disk and renamed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import safetensors
import safetensors.torch
from torch import Tensor

from mixmatch.storage import sync_folder, write_durably

KEPT = 2
TENSORS = ("weights", "ema", "optimizer", "method")


@dataclass(frozen=True)
class Checkpoint:
    """Everything needed to resume as if nothing had happened. `state` is what fits in JSON."""

    weights: dict[str, Tensor]
    ema: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]
    method: dict[str, Tensor] = field(default_factory=dict)

    @property
    def step(self) -> int:
        return int(self.state["step"])


class Damaged(Exception):
    """A checkpoint that cannot be trusted; the message says which file and why."""


def name_of(step: int) -> str:
    return f"step-{step:08d}"


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first."""
    return sorted(folder.glob("step-*"), key=step_of, reverse=True)


def step_of(path: Path) -> int:
    number = path.name.removeprefix("step-")
    return int(number) if number.isdecimal() else -1  # someone else's folder comes last


def save(folder: Path, checkpoint: Checkpoint, check: Callable[[], None] = lambda: None) -> Path:
    """Write a checkpoint and keep the one before it. On failure (a full disk) the earlier ones are as they were.

    Args:
        check: called when all is written, before the checkpoint is put in its place; an error keeps it from there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _clean(folder)
    # A name of its own, so that two processes never write to the same files.
    temporary, final = folder / ".writing" / uuid4().hex, folder / name_of(checkpoint.step)
    try:
        temporary.mkdir(parents=True)
        hashes = {}
        for part in TENSORS:
            if part == "method" and not checkpoint.method:
                continue
            content = to_bytes(getattr(checkpoint, part))
            hashes[part] = hashlib.sha256(content).hexdigest()
            write_durably(temporary / f"{part}.safetensors", content)
        state = {**checkpoint.state, "sha256": {**hashes, "state": _state_hash(checkpoint.state)}}
        write_durably(temporary / "state.json", json.dumps(state, indent=1).encode())
        sync_folder(temporary)
        check()
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        with contextlib.suppress(OSError):  # another process may be writing there
            temporary.parent.rmdir()
        raise
    if final.exists():
        final.rename(folder / ".replaced")
    temporary.rename(final)
    sync_folder(folder)
    _clean(folder)
    for old in list_checkpoints(folder)[KEPT:]:
        shutil.rmtree(old)
    return final


def load(path: Path) -> Checkpoint:
    """Read a checkpoint, checking every file against its hash."""
    try:
        state = json.loads((path / "state.json").read_text())
        hashes = state.pop("sha256")
        if _state_hash(state) != hashes["state"]:
            raise Damaged("state.json is not what was written")
        parts = {}
        for part in TENSORS:
            if part == "method" and part not in hashes:
                continue
            content = (path / f"{part}.safetensors").read_bytes()
            if hashlib.sha256(content).hexdigest() != hashes[part]:
                raise Damaged(f"{part}.safetensors is not what was written")
            parts[part] = safetensors.torch.load(content)
        checkpoint = Checkpoint(**parts, state=state)
        if name_of(checkpoint.step) != path.name:
            raise Damaged(f"state.json is of step {checkpoint.step}")
    except FileNotFoundError as error:
        raise Damaged(f"{Path(error.filename).name} is missing") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # JSONDecodeError is a ValueError
        raise Damaged(f"state.json cannot be read ({error})") from None
    except safetensors.SafetensorError as error:
        raise Damaged(str(error)) from None
    return checkpoint


def _state_hash(state: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


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


def _clean(folder: Path) -> None:
    """Remove what an interrupted save left behind."""
    for left in (folder / ".writing", folder / ".replaced"):
        shutil.rmtree(left, ignore_errors=True)

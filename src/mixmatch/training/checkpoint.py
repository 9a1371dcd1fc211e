"""Checkpoints: complete or absent. Plain tensors and JSON, never a pickle, so a stranger's run is safe to open.

A checkpoint is a folder `step-00001024` of safetensors files (weights, moving average, optimizer, the method's state if
it has any) and a `state.json` with the rest and the hashes of all. It is written under a temporary name, flushed to
disk and renamed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from torch import Tensor

from mixmatch.storage import discard, read_json, refuse_link, remove_doomed, remove_folder, sync_folder, write_durably
from mixmatch.training import tensors
from mixmatch.training.damage import json_sha256

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
    """A damaged checkpoint; the message says which file and why."""


def name_of(step: int) -> str:
    return f"step-{step:08d}"


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first. A link in the folder's place is an `OSError`."""
    refuse_link(folder)
    return sorted(folder.glob("step-*"), key=step_of, reverse=True)


def step_of(path: Path) -> int:
    number = path.name.removeprefix("step-")
    return int(number) if number.isdecimal() else -1  # someone else's folder comes last


def save(folder: Path, checkpoint: Checkpoint, check: Callable[[], None] = lambda: None) -> Path:
    """Write a checkpoint and keep the one before it. On failure (a full disk) the earlier ones are as they were.

    Args:
        check: called when all is written, before the checkpoint is put in its place; an error keeps it from there.
    """
    refuse_link(folder)
    folder.mkdir(exist_ok=True)  # never the run folder: one that is gone was moved or removed
    _clean(folder)
    # A name of its own, so that two processes never write to the same files.
    temporary, final = folder / ".writing" / uuid4().hex, folder / name_of(checkpoint.step)
    try:
        temporary.parent.mkdir(exist_ok=True)
        temporary.mkdir()
        hashes = {}
        for part in TENSORS:
            if part == "method" and not checkpoint.method:
                continue
            content = tensors.to_bytes(getattr(checkpoint, part))
            hashes[part] = hashlib.sha256(content).hexdigest()
            write_durably(temporary / f"{part}.safetensors", content)
        state = {**checkpoint.state, "sha256": {**hashes, "state": json_sha256(checkpoint.state)}}
        write_durably(temporary / "state.json", json.dumps(state, indent=1).encode())
        sync_folder(temporary)
        check()
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        with contextlib.suppress(OSError):  # another process may be writing there
            temporary.parent.rmdir()
        raise
    if os.path.lexists(final):
        final.rename(folder / ".replaced")
    temporary.rename(final)
    sync_folder(folder)
    tidy(folder)
    return final


def tidy(folder: Path) -> None:
    """Keep the newest checkpoints and nothing else. Saving ends with it, unless the process is killed just then."""
    _clean(folder)
    for old in list_checkpoints(folder)[KEPT:]:
        remove_folder(old)


def load(path: Path, most: int = tensors.MOST) -> Checkpoint:
    """Read a checkpoint, checking every file against its hash.

    Args:
        most: bytes that a file of tensors may have.
    """
    try:
        refuse_link(path)
        state = read_json(path / "state.json")
        hashes = state.pop("sha256")
        if json_sha256(state) != hashes["state"]:
            raise Damaged("state.json is not what was written")
        parts = {}
        for part in TENSORS:
            if part == "method" and part not in hashes:
                continue
            parts[part], sha256 = _tensors(path / f"{part}.safetensors", most)
            if sha256 != hashes[part]:
                raise Damaged(f"{part}.safetensors is not what was written")
        _check_state(state)
        checkpoint = Checkpoint(**parts, state=state)
        if name_of(checkpoint.step) != path.name:
            raise Damaged(f"state.json is of step {checkpoint.step}")
    except FileNotFoundError as error:
        raise Damaged(f"{Path(error.filename).name} is missing") from None
    except OSError as error:
        raise Damaged(f"{Path(error.filename or path).name} cannot be read ({error.strerror or error})") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # JSONDecodeError is a ValueError
        raise Damaged(f"state.json cannot be read ({error})") from None
    return checkpoint


def _tensors(path: Path, most: int) -> tensors.Read:
    try:
        return tensors.read(path, most)
    except ValueError as error:
        raise Damaged(f"{path.name} is not what was written ({error})") from None


def _check_state(state: Mapping[str, Any]) -> None:
    """Refuse what no run has written: a stranger's hashes may be right."""
    counts = [state.get(name, 0) for name in ("step", "summed", "evaluations")]
    counted = all(type(count) is int and 0 <= count < 2**53 for count in counts)
    seconds, sums = state.get("seconds", 0.0), state.get("sums", {}).values()
    timed = isinstance(seconds, int | float) and 0 <= seconds < math.inf
    if not counted or not timed or not all(isinstance(value, int | float) for value in sums):
        raise Damaged("state.json holds numbers that no run has written")
    machines = state.get("machines") or []
    if not isinstance(machines, list) or not all(isinstance(each, dict) and "name" in each for each in machines):
        raise Damaged("state.json names machines that no run has been on")


def _clean(folder: Path) -> None:
    """Remove what an interrupted save left behind."""
    remove_doomed(folder)
    for left in (folder / ".writing", folder / ".replaced"):
        discard(left)

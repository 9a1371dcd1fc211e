"""Damage and malice: changes to files, drawn from a generator, for `fuzz.py`."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

VALUES: list[Callable[[random.Random], Any]] = [
    lambda rng: None,
    lambda rng: rng.choice([True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 10**400, 10**18]),
    lambda rng: rng.choice([0.5, -0.0, 1e308, -1e308, 1e-320, float("nan"), float("inf")]),
    lambda rng: rng.choice(
        ["", "\x00", "\x1b[31mred", "\ud800", "\x00/a", "../../outside", "/etc/passwd", "a" * 10_000, "=1+1"]
    ),
    lambda rng: rng.choice(["timm:resnet18", "wrn-999-999", "mlp", "custom:Network", "basic>mlp", "mixmatch"]),
    lambda rng: rng.choice([[], {}, [None], [[]], {"": {}}, [1e9, 8, 8], [10**9, 8, 8], ["a"] * 5000]),
    lambda rng: nested(rng.choice([60, 70, 900])),
]
"""What may stand in JSON in the place of something sensible."""


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def change_bytes(content: bytes, rng: random.Random) -> bytes:
    """Flip bits, cut, zero, repeat or insert."""
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 3, 20])):
        where = rng.randrange(len(data) + 1)
        length = rng.choice([1, 8, 100, 5000])
        kind = rng.choice(["flip", "flip", "cut", "zero", "repeat", "insert"])
        if kind == "flip" and where < len(data):
            data[where] ^= 1 << rng.randrange(8)
        elif kind == "cut":
            del data[where : where + length * rng.choice([1, 10**6])]
        elif kind == "zero":
            data[where : where + length] = bytes(len(data[where : where + length]))
        elif kind == "repeat":
            data[where:where] = data[where : where + length] * rng.choice([1, 3])
        elif kind == "insert":
            data[where:where] = rng.choice([b"\xff", b"\x00", b'"', b"\n", b",", b"{", b"9" * 5000, b"x" * 200_000])
    return bytes(data)


def change_json(content: Any, rng: random.Random) -> Any:
    """Replace, remove, rename or add something somewhere."""
    content = copy.deepcopy(content)
    places = [([content], 0), *_places(content)]
    top = places[1 : 1 + len(content)] if isinstance(content, dict) and content else places  # what most depends on
    for _ in range(rng.choice([1, 1, 2, 5])):
        container, key = rng.choice(rng.choice([places, top]))
        kind = rng.choice(["replace", "replace", "remove", "add"])
        try:
            if kind == "replace":
                container[key] = rng.choice(VALUES)(rng)
            elif kind == "remove":
                del container[key]
            elif isinstance(container, dict):
                container[rng.choice(["new", "", "data", "__metadata__"])] = rng.choice(VALUES)(rng)
            else:
                container.append(rng.choice(VALUES)(rng))
        except (KeyError, IndexError):  # removed before
            continue
    return content


def _places(content: Any) -> list[tuple[Any, Any]]:
    """Every value in JSON, by its container and its key."""
    found: list[tuple[Any, Any]] = []
    left = [content]
    while left:
        container = left.pop()
        keys = list(container) if isinstance(container, dict) else range(min(len(container), 20))
        found += [(container, key) for key in keys]
        left += [container[key] for key in keys if isinstance(container[key], dict | list)]
    return found


def resealed(name: str, content: Any) -> Any:
    """JSON with the hash of itself made right again, as one who means harm would."""
    if not isinstance(content, dict) or not isinstance(content.get("sha256"), dict):
        return content
    rest = {key: value for key, value in content.items() if key != "sha256"}
    hashes = dict(content["sha256"])
    if name == "state.json":
        hashes["state"] = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
    else:
        hashes.pop("result.json", None)
        text = json.dumps({**rest, "sha256": hashes}, sort_keys=True)
        hashes["result.json"] = hashlib.sha256(text.encode()).hexdigest()
    return {**rest, "sha256": hashes}


def change_header(content: bytes, rng: random.Random) -> bytes:
    """Change the header of a safetensors file, keeping the rest."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    about = header.get("__metadata__", {})
    if about and rng.random() < 0.6:
        name = rng.choice(list(about))
        about[name] = rng.choice([json.dumps(rng.choice(VALUES)(rng)), "", about[rng.choice(list(about))]])
    else:
        header = change_json(header, rng)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


def replace_file(path: Path, rng: random.Random, outside: Path) -> None:
    """Put something else in the place of a file."""
    path.unlink()
    kind = rng.choice(["pipe", "device", "link", "loop", "folder", "huge", "gone", "empty"])
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind in ("huge", "empty"):
        with path.open("wb") as file:
            file.truncate(0 if kind == "empty" else rng.choice([2**28, 2**31, 2**40]))
    elif kind != "gone":
        path.symlink_to({"device": Path("/dev/zero"), "link": outside / "diary.txt", "loop": path}[kind])


def change_file(path: Path, rng: random.Random, outside: Path) -> None:
    """Change one file in one of the ways above."""
    kind = rng.choice(["bytes", "bytes", "inside", "inside", "inside", "replace"])
    if kind == "replace":
        replace_file(path, rng, outside)
        return
    content = path.read_bytes()
    try:
        if kind == "inside" and path.suffix == ".json":
            changed = change_json(json.loads(content), rng)
            path.write_text(json.dumps(resealed(path.name, changed) if rng.random() < 0.7 else changed))
        elif kind == "inside" and path.suffix in (".jsonl", ".log"):
            lines = content.decode().splitlines()
            where = rng.randrange(len(lines))
            lines[where] = json.dumps(change_json(json.loads(lines[where]), rng))
            path.write_text("\n".join(lines) + "\n")
        elif kind == "inside" and path.suffix == ".safetensors":
            path.write_bytes(change_header(content, rng))
        else:
            path.write_bytes(change_bytes(content, rng))
    except (ValueError, RecursionError, IndexError):  # changed beyond that before
        path.write_bytes(change_bytes(content, rng))

"""A folder of images decoded into shards that are memory-mapped, so that what is larger than memory trains.

    DIR/shards.json     the folder it was made of, how it was read, and the hashes of all that follows
    DIR/000000.json     the files of the first shard, their labels, and what each says of itself or why it is unreadable
    DIR/000000.npy      the pixels of those that are readable, as the cache of a folder has them

First the lists of files are written, then any process can decode any shard. A shard is finished when its list has the
hash of its pixels. What is read may come from anyone: what does not fit is one line, or made again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

from mixmatch.data.cache import mapped, new_file
from mixmatch.data.joined import Joined
from mixmatch.data.user.folder import Listed, assemble, list_folder
from mixmatch.data.user.images import (
    CACHE_FORMAT,
    DecodedFolder,
    Header,
    Unreadable,
    decode_rows,
    headers_from,
    quiet_pillow,
    shape_of,
)
from mixmatch.data.user.reading import Reading
from mixmatch.data.user.rows import Finding, Part, Severity, UserData
from mixmatch.data.user.tree import Entry
from mixmatch.errors import MixMatchError, explaining
from mixmatch.storage import digest, file_sha256, read_json, remove_orphans, replace_durably

INDEX = "shards.json"
SHARD_SIZE = 50_000
"""Images per shard: 150 MB of 32 x 32 pixels, 1.4 GB of 96 x 96."""

OWN = re.compile(r"[0-9]{6,}\.(json|npy)")
"""The names of a shard's files."""

AGAIN = "the same mixmatch data shard command continues it"


class Order(NamedTuple):
    """Everything needed to decode a shard except its list of files. It can be sent to another process."""

    out: str
    root: str
    shape: tuple[int, int, int]


class Tally(NamedTuple):
    """What became of a shard."""

    number: int
    images: int
    unreadable: int
    kept: bool
    """Whether it was there already, whole."""


def is_shards(path: Path) -> bool:
    return (path / INDEX).is_file()


def begin(
    path: Path, out: Path, labels_file: str | None, image_size: int | None, shard_size: int
) -> tuple[Order, int, int]:
    """List the files of each shard; returns what it takes to decode them, how many shards and how many files there are.
    What an earlier start left is kept where the files are the same."""
    Reading(image_size=image_size)  # refuses what is out of range
    if shard_size < 1:
        raise MixMatchError(f"shard_size={shard_size} must be 1 or more")
    if is_shards(path):
        raise MixMatchError(f"{path} is a folder of shards already")
    folder = list_folder(path, labels_file)
    listed = digest(json.dumps([astuple(entry) for entry in folder.entries]))
    about = {"format": CACHE_FORMAT, "source": str(folder.root.resolve()), "image_size": image_size, "listed": listed}
    before = _load(out / INDEX) or {}
    if before.get("source", about["source"]) != about["source"]:
        raise MixMatchError(f"{out} holds shards of {before['source']}: choose another out=")
    if not before and out.is_dir() and any(out.iterdir()):
        raise MixMatchError(f"{out} holds something else: choose another out=")
    shape = _shape(before.get("shape")) if about.items() <= before.items() else None
    if shape is None:  # looking into every file again would take long
        with quiet_pillow():
            shape = shape_of(folder.root, [entry.identity for entry in folder.entries], image_size, None)
    about |= {"shape": list(shape), "name": folder.name, "how": folder.how, "sorted": folder.sorted}
    about |= {"findings": [found.as_dict() for found in folder.findings], "shards": None}
    _save(out / INDEX, about)
    starts = range(0, len(folder.entries), shard_size)
    for number, start in enumerate(starts):
        entries = [list(astuple(entry)) for entry in folder.entries[start : start + shard_size]]
        if (_load(_list(out, number)) or {}).get("entries") != entries:
            _save(_list(out, number), {"entries": entries})
    for file in [file for file in out.iterdir() if OWN.fullmatch(file.name) and int(file.stem) >= len(starts)]:
        with explaining(f"cannot remove {file}"):
            file.unlink()  # when shards were smaller
    return Order(str(out.absolute()), str(folder.root.resolve()), cast(Any, shape)), len(starts), len(folder.entries)


def decode_shard(order: Order, number: int, workers: int = 1) -> Tally:
    """Decode a shard, unless it is there and its pixels have the hash they had."""
    path = Path(order.out, f"{number:06}.npy")
    list_file = _list(path.parent, number)
    if (content := _load(list_file)) is None:
        raise MixMatchError(f"{list_file} is gone; every machine must see that folder")
    try:
        entries = [_entry(entry) for entry in content["entries"]]
    except DAMAGE:
        raise MixMatchError(f"{list_file} is damaged: {AGAIN}") from None
    kept = _whole(path, content, order.shape) is not None and content.get("sha256") == _sha256(path)
    if not kept:
        with quiet_pillow(), new_file(path, f"shard {number}", "choose another out=") as part:
            identities = [entry.identity for entry in entries]
            headers = decode_rows(part, Path(order.root), identities, order.shape, workers=workers)
            sha256 = _sha256(part)
        content |= {"headers": [asdict(header) for header in headers], "sha256": sha256}
        _save(list_file, content)
    unreadable = sum("reason" in header for header in content["headers"])
    return Tally(number, len(entries) - unreadable, unreadable, kept)


def finish(out: Path, shards: int) -> None:
    """When all shards are there: write their hashes, which completes the folder. Without any image it is an error."""
    about = _load(out / INDEX)
    lists = [_load(_list(out, number)) for number in range(shards)]
    if about is None or any(content is None or "sha256" not in content for content in lists):
        raise MixMatchError(f"{out} lost some of its shards meanwhile: {AGAIN}")
    if all("reason" in header for content in lists if content is not None for header in content["headers"]):
        file, reason = next(unreadable_files(out, shards))
        raise MixMatchError(f"none of the images in {about['source']} can be read, for example {file}: {reason}")
    hashes = [[_sha256(_list(out, n)), content["sha256"]] for n, content in enumerate(lists) if content is not None]
    _save(out / INDEX, about | {"shards": hashes})
    remove_orphans(out)


def read_shards(path: Path, *, verify: bool = False) -> UserData:
    """User data as `read_folder` would read it from the folder that the shards were made of, pixels memory-mapped.

    Lists are checked by their hashes, pixels by their number; `verify` reads all pixels to check their hashes, too.
    """
    about = _load(path / INDEX)
    damaged = MixMatchError(f"{path / INDEX} is damaged or of another version: make the shards again elsewhere")
    if about is None or about.get("format") != CACHE_FORMAT:
        raise damaged
    if about.get("shards") is None:
        raise MixMatchError(f"{path} is not finished: {AGAIN}")
    try:
        shape, hashes = _shape(about["shape"]), [(str(a), str(b)) for a, b in about["shards"]]
        findings = [_finding(found) for found in about["findings"]]
        name, how, is_sorted = _text(about["name"]), _text(about["how"]), about["sorted"] is True
    except DAMAGE:
        raise damaged from None
    if shape is None or not hashes:
        raise damaged
    parts, entries, headers = [], list[Entry](), list[Header | Unreadable]()
    for number, (list_hash, pixels_hash) in enumerate(hashes):
        pixels, list_file = path / f"{number:06}.npy", _list(path, number)
        content = _load(list_file)
        if content is None or _sha256(list_file) != list_hash:
            raise MixMatchError(f"{list_file} is missing or damaged: {AGAIN}")
        try:
            entries += [_entry(entry) for entry in content["entries"]]
            headers += headers_from(content["headers"])
        except DAMAGE:
            raise MixMatchError(f"{list_file} is missing or damaged: {AGAIN}") from None
        images = _whole(pixels, content, shape)
        if images is None or (verify and _sha256(pixels) != pixels_hash):
            raise MixMatchError(f"{pixels} is missing or damaged: {AGAIN}")
        parts.append(images)
    folder = Listed(path, name, entries, findings, how, is_sorted)
    decoded = DecodedFolder(cast(Any, Joined(parts)), tuple(e.identity for e in entries), tuple(headers))
    return assemble(folder, decoded)


def left_out(out: Path) -> list[Finding]:
    """What of the folder is in no shard, but for files that could not be decoded."""
    found = [_finding(each) for each in (_load(out / INDEX) or {}).get("findings", [])]
    return [each for each in found if each.severity != "info" and each.kind != "no-unlabeled"]


def unreadable_files(out: Path, shards: int) -> Iterator[tuple[str, str]]:
    """The files that could not be decoded, and why."""
    for number in range(shards):
        content = _load(_list(out, number)) or {"entries": [], "headers": []}
        for entry, header in zip(content["entries"], content["headers"], strict=True):
            if "reason" in header:
                yield entry[0], header["reason"]


# ---------------------------------------------------------------- what the files may say

DAMAGE = (ValueError, TypeError, KeyError, AttributeError)
"""What damaged JSON raises where it is read as something else."""


def _shape(content: Any) -> tuple[int, int, int] | None:
    """The height, width and channels of the images; None if it is something else."""
    if not isinstance(content, list) or [type(side) for side in content] != [int, int, int]:
        return None
    height, width, channels = content
    return (height, width, channels) if min(height, width) > 0 and channels in (1, 3) else None


def _text(content: Any) -> str:
    """Text that can be the name of a file, or printed."""
    if not isinstance(content, str):
        raise TypeError("it is not text")
    content.encode("utf-8", "surrogateescape")
    return content


def _entry(content: Any) -> Entry:
    file, size, changed, label, part = content
    if type(size) is not int or type(changed) is not int or part not in get_args(Part):
        raise ValueError("it describes no image")
    if Path(_text(file)).is_absolute() or ".." in re.split(r"[/\\]", file):
        raise ValueError("it is elsewhere")
    return Entry(file, size, changed, None if label is None else _text(label), part)


def _finding(content: dict[str, Any]) -> Finding:
    if content["severity"] not in get_args(Severity):
        raise ValueError("it is no finding")
    kind, message, advice = (_text(content[name]) for name in ("kind", "message", "advice"))
    return Finding(kind, message, tuple(map(_text, content["files"])), advice, content["severity"])


def _whole(pixels: Path, content: dict[str, Any], shape: tuple[int, int, int]) -> Any:
    """The pixels of a shard, memory-mapped, if there are as many as its list says; else None."""
    try:
        headers = headers_from(content["headers"])
    except DAMAGE:
        return None
    readable = sum(isinstance(header, Header) for header in headers)
    return mapped(pixels, (readable, *shape)) if len(headers) == len(content["entries"]) else None


# ---------------------------------------------------------------- files


def _list(out: Path, number: int) -> Path:
    return out / f"{number:06}.json"


def _load(file: Path) -> dict[str, Any] | None:
    try:
        content = read_json(file, follow=True)
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _save(file: Path, content: dict[str, Any]) -> None:
    with explaining(f"cannot write {file}"):
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_durably(file, json.dumps(content).encode())


def _sha256(file: Path) -> str | None:
    try:
        return file_sha256(file, follow=True)
    except OSError:
        return None

"""What an event of the log may be. A log may come from anyone: a line that no page has written is found here, before
anything is changed by it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

LARGEST = 2**53
"""Beyond it a page cannot count."""

FEW = 8
"""Names that are looked at one by one."""


def inside(file: object) -> bool:
    """Whether this names a file in a folder, and none outside of it.

    >>> inside("cats/1.png"), inside("a..b.png"), inside("../1.png"), inside("/etc/passwd"), inside(1)
    (True, True, False, False, False)
    """
    if type(file) is not str or not file or "\0" in file:
        return False
    if os.name == "nt":
        file = file.replace("\\", "/")
        if ":" in file:
            return False
    return file[0] != "/" and (".." not in file or ".." not in file.split("/"))


def all_inside(files: object) -> bool:
    """Whether this is a list of such names. Most are plain, which shows in one look at all of them.

    >>> all_inside(["cats/1.png", "a..b.png"]), all_inside(["1.png", "../1.png"]), all_inside("1.png")
    (True, False, False)
    """
    if type(files) is not list:
        return False
    if len(files) > FEW and os.name != "nt" and set(map(type, files)) == {str}:
        text = "\0".join(["", *files, ""])
        if text.count("\0") == len(files) + 1 and not any(odd in text for odd in ("..", "\0/", "\0\0")):
            return True
    return all(map(inside, files))


def whole(value: object) -> bool:
    return type(value) is int and 0 <= value < LARGEST


def number(value: object) -> bool:
    return type(value) in (int, float) and -1e12 < value < 1e12  # type: ignore[operator]


def text(value: object) -> bool:
    return type(value) is str


def text_or_none(value: object) -> bool:
    return value is None or type(value) is str


def list_of(each: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: type(value) is list and all(map(each, value))


def _conflicts(value: object) -> bool:
    return value is None or (type(value) is dict and fits(value) and len(value["files"]) == len(value["seen"]))


def _action(value: object) -> bool:
    return value is None or (type(value) is dict and fits(value))


FIELDS: dict[str, Callable[[object], bool]] = {
    "seq": whole,
    "of": whole,
    "t": number,
    "kind": text,
    "who": text,
    "id": text_or_none,
    "source": text,
    "files": all_inside,
    "to": lambda value: type(value) is str or all_inside(value),
    "label": text_or_none,
    "labels": list_of(text_or_none),
    "seen": list_of(text_or_none),
    "hashes": list_of(text),
    "do": text,
    "name": text,
    "names": list_of(text),
    "into": text,
    "key": text_or_none,
    "conflicts": _conflicts,
    "action": _action,
}
"""What each field must be; others are not looked at."""


def fits(event: Mapping[str, Any]) -> bool:
    """Whether the fields of an event are what a page writes."""
    return all(FIELDS[name](value) for name, value in event.items() if name in FIELDS)


def check_event(event: Mapping[str, Any]) -> None:
    """A ValueError or KeyError where an event cannot be used."""
    if not fits(event):
        raise ValueError("a field is not what it must be")
    kind = event["kind"]
    if kind in ("content", "moved", "undo", "redo"):
        beside = {"content": "hashes", "moved": "to"}.get(kind, "labels")
        if type(event[beside]) is not list or len(event[beside]) != len(event["files"]):
            raise ValueError("two lists are not of one length")
    elif kind == "label":
        event["t"], event["who"], event["source"], event["label"], event["files"]
    elif kind == "class":
        event["who"], event["names" if event["do"] == "order" else "name"]
        if type(event.get("to", "")) is not str:
            raise ValueError("a name must be text")

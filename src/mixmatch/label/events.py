"""Which events of the log are valid. A log may come from anyone: a line that no page could have written is found here,
before it changes anything."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

LARGEST = 2**53
"""Numbers above it are not exact in JavaScript."""

TEXT: frozenset[type] = frozenset({str})
TEXT_OR_NONE: frozenset[type] = frozenset({str, type(None)})

FEW = 8
"""Names that are checked one by one."""


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


def list_of(kinds: frozenset[type]) -> Callable[[object], bool]:
    return lambda value: type(value) is list and kinds >= {*map(type, value)}


def _conflicts(value: object) -> bool:
    """Those of a label. In the imports of earlier versions, their number."""
    return (
        value is None
        or whole(value)
        or (type(value) is dict and fits(value) and len(value["files"]) == len(value["seen"]))
    )


def _action(value: object) -> bool:
    return value is None or (type(value) is dict and fits(value))


PLAIN: dict[str, frozenset[type]] = {
    "kind": TEXT,
    "who": TEXT,
    "id": TEXT_OR_NONE,
    "source": TEXT,
    "label": TEXT_OR_NONE,
    "do": TEXT,
    "name": TEXT,
    "into": TEXT,
    "key": TEXT_OR_NONE,
}
"""What each field of text may be: looked at without a call, of which a long log would need a million."""

FIELDS: dict[str, Callable[[object], bool]] = {
    "seq": whole,
    "of": whole,
    "t": number,
    "files": all_inside,
    "to": lambda value: type(value) is str or all_inside(value),
    "labels": list_of(TEXT_OR_NONE),
    "seen": list_of(TEXT_OR_NONE),
    "hashes": list_of(TEXT),
    "names": list_of(TEXT),
    "conflicts": _conflicts,
    "action": _action,
}
"""What each other field must be; those in neither table are not looked at."""


def fits(event: Mapping[str, Any]) -> bool:
    """Whether the fields of an event are what a page writes."""
    for name, value in event.items():
        if (kinds := PLAIN.get(name)) is not None:
            if type(value) not in kinds:
                return False
        elif (check := FIELDS.get(name)) is not None and not check(value):
            return False
    return True


USUAL = ("seq", "t", "kind", "who", "id", "label", "files", "before", "source")
"""The fields of nearly all events: a label, without conflicts."""
_usual = itemgetter(*USUAL)


def all_usual(events: Sequence[object]) -> bool:
    """Whether these are labels as nearly all events are, and can be used. Column by column this shows several times as
    fast as `check_event` finds it out of each; it says no where that might say yes, and never the other way.

    >>> label = {"seq": 1, "t": 2.5, "kind": "label", "who": "ann", "id": "a", "label": None, "files": ["1.png"],
    ...          "before": [None], "source": "key"}
    >>> all_usual([label, label]), all_usual([label, label | {"files": ["../1.png"]}]), all_usual([label, None])
    (True, False, False)
    """
    if {*map(type, events)} != {dict} or {*map(len, events)} != {len(USUAL)}:  # type: ignore[arg-type]
        return False
    try:
        seq, t, kind, who, id, label, files, _, source = zip(*map(_usual, events), strict=True)  # type: ignore[arg-type]
        if {*kind} != {"label"} or {*map(type, files)} != {list}:
            return False
    except (KeyError, TypeError):  # other fields, or a kind that is none
        return False
    if not ({*map(type, who + source)} <= TEXT and {*map(type, id + label)} <= TEXT_OR_NONE):
        return False
    return all(map(whole, seq)) and all(map(number, t)) and all_inside([*chain.from_iterable(files)])


def check_event(event: Mapping[str, Any]) -> None:
    """A ValueError or KeyError where an event cannot be used."""
    if not fits(event):
        raise ValueError("a field has a wrong value")
    kind = event["kind"]
    if kind in ("content", "moved", "undo", "redo"):
        beside = {"content": "hashes", "moved": "to"}.get(kind, "labels")
        if type(event[beside]) is not list or len(event[beside]) != len(event["files"]):
            raise ValueError("two lists differ in length")
    elif kind == "label":
        event["t"], event["who"], event["source"], event["label"], event["files"]
        if type(event.get("conflicts")) is int:
            raise ValueError("conflicts must be named")
    elif kind == "class":
        event["who"], event["names" if event["do"] == "order" else "name"]
        if type(event.get("to", "")) is not str:
            raise ValueError("a name must be text")

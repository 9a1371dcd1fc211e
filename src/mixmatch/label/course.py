"""The options of a training, checked, and its progress, read from the files that it writes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mixmatch.label.body import Body
from mixmatch.label.book import Refused
from mixmatch.label.events import TEXT, TEXT_OR_NONE, list_of, number, text, whole
from mixmatch.label.exchange import Labeled
from mixmatch.measure import share_interval
from mixmatch.storage import parse_json, read_json, read_plain
from mixmatch.text import in_words

LEAST = 2
"""Labels that each of at least two classes needs."""
EVERY = 20
"""Labels after which to train again, unless another number was chosen."""
AT_WORK = ("trial", "running", "guessing", "stopping")
STATES = (*AT_WORK, "stopped", "failed", "done")
RUN = re.compile(r"run-[0-9]{4,9}")
METHOD = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
OPTIONS = frozenset(
    (
        *("seed", "batch_size", "learning_rate", "weight_decay", "optimizer", "schedule", "precision", "network"),
        *("features", "image_size", "balance", "lambda_u", "alpha", "T", "K", "threshold", "ratio", "eval_every"),
    )
)
"""Settings that the page may choose. None of them is a path."""
MOST = 2**28
"""Bytes of the output or the metrics of a training that are read."""
OPTION_VALUE = re.compile(r"[\w.:+-]{1,80}")


def checked(asked: Mapping[str, Any]) -> Body:
    """The options of a training in a request, or `Refused`."""
    found: Body = {}
    if (method := asked.get("method")) is not None:
        if not isinstance(method, str) or not METHOD.fullmatch(method):
            raise Refused("`method` must be the name of a method")
        found["method"] = method
    for name, least, most, is_fit in (("steps", 1, 10_000_000, whole), ("minutes", 0.1, 10_000, number)):
        if (value := asked.get(name)) is not None:
            if not is_fit(value) or not least <= value <= most:
                kind = "a whole number" if is_fit is whole else "a number"
                raise Refused(f"`{name}` must be {kind} from {least} to {most:,}")
            found[name] = value
    options = asked.get("options") or {}
    if not isinstance(options, dict):
        raise Refused("`options` must be an object")
    for name, value in options.items():
        fits = isinstance(value, str | int | float) and OPTION_VALUE.fullmatch(str(value))
        if name not in OPTIONS or isinstance(value, bool) or not fits:
            raise Refused(f"'{name}' cannot be chosen here ({', '.join(sorted(OPTIONS))})")
    return found | ({"options": options} if options else {})


def checked_auto(asked: Mapping[str, Any]) -> Body:
    """When to train again by itself, or `Refused`."""
    every = asked.get("every", EVERY)
    if not isinstance(asked.get("on"), bool) or type(every) is not int or not 1 <= every <= 100_000:
        raise Refused("`on` must be true or false, `every` a number of labels")
    return {"on": asked["on"], "every": every, **checked(asked)}


def checked_about(path: Path) -> Body | None:
    """The stored description of a training; None if it makes no sense. The folder may have come from anyone, and its
    content becomes a command."""
    try:
        about = read_json(path)
        checked(about)
        counts = [about["steps"] or 0, about["image_size"] or 0, *(about[name] for name in ("seq", "labels", "tests"))]
        fits = (
            RUN.fullmatch(path.parent.name)
            and about["state"] in STATES
            and all(map(whole, counts))
            and all(check(about[name]) for name, check in _ALWAYS.items())
            and all(check(about[name]) for name, check in _KEPT.items() if name in about)
        )
        return about if fits else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, Refused):
        return None


def _is_exam(exam: Any) -> bool:
    numbers = ("wrong", "n", "error", "low", "high")
    return exam is None or (text(exam["run"]) and all(number(exam[name]) for name in numbers))


_ALWAYS: dict[str, Callable[[Any], bool]] = {
    "method": text,
    "options": lambda options: type(options) is dict,
    "began": number,
}
_KEPT: dict[str, Callable[[Any], bool]] = {
    "classes": list_of(TEXT),
    "listing": text,
    "seconds": number,
    "error": lambda error: type(error) in TEXT_OR_NONE,
    "exam": _is_exam,
}
"""What exists from some moment on."""


def check_enough(pictures: list[Labeled]) -> None:
    counts: dict[str, int] = {}
    for picture in pictures:
        if not picture.is_test:
            counts[picture.label] = counts.get(picture.label, 0) + 1
    if sum(n >= LEAST for n in counts.values()) < 2:
        raise Refused(f"too few labels to train on: at least two classes need {LEAST} each, the exam not counted")


def share(part: int, total: int) -> Body:
    low, high = share_interval(part, total)
    return {
        "wrong": part,
        "n": total,
        "error": round(100 * part / total, 1),
        "low": round(low, 1),
        "high": round(high, 1),
    }


_STEP = re.compile(rb"step ([\d,]+)/[\d,]+")


def last_step(output: Path, metrics: Path) -> int:
    """The last step that the output or the metrics mention."""
    step = 0
    with suppress(OSError, ValueError):
        if found := _STEP.findall(read_plain(output, MOST)):
            step = int(found[-1].replace(b",", b""))
    return max(step, max((line["step"] for line in read_lines(metrics)), default=0))


def read_lines(metrics: Path) -> list[Body]:
    lines = []
    with suppress(OSError):
        for line in read_plain(metrics, MOST).splitlines():
            with suppress(ValueError):
                record = parse_json(line)
                if isinstance(record, dict) and whole(record.get("step")):
                    lines.append(record)
    return lines


def in_one_line(body: Body) -> str:
    """What is going on, in words."""
    state, left = body["state"], body["seconds_left"]
    if state == "running":
        if not body["step"]:
            return "reading the pictures"
        return f"step {body['step']:,} of {body['steps']:,}" + ("" if left is None else f", {in_words(left)} left")
    return {
        "idle": "nothing is trained yet",
        "trial": "trying a few steps to see how many fit",
        "guessing": "asking the model about all pictures",
        "stopping": "saving, then stopping",
        "stopped": "stopped; it can be resumed",
        "failed": "it failed",
        "done": "done",
    }[state]


def name_of(method: Any) -> str:
    return str(method.get("name") if isinstance(method, dict) else method)

"""Numbers and lists in words, for messages; small tables for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape


def count(n: int, noun: str, plural: str | None = None) -> str:
    """
    >>> count(1, "image"), count(2300, "image"), count(2, "class", "classes")
    ('1 image', '2,300 images', '2 classes')
    """
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def listed(names: Iterable[str], most: int = 3) -> str:
    """The first few of many names, for a message.

    >>> listed(["a", "b"]), listed("abcde")
    ('a, b', 'a, b, c and 2 more')
    """
    names = list(names)
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def tally(counts: Mapping[str, int], most: int = 6) -> str:
    """Counts by name, largest first.

    >>> tally({"L": 2, "RGB": 40})
    'RGB 40, L 2'
    """
    return listed((f"{k} {n:,}" for k, n in sorted(counts.items(), key=lambda item: (-item[1], item[0]))), most)


def duration(seconds: float) -> str:
    """Seconds as 1:02 or 3:04:05, or in days where seconds would only feign precision."""
    if seconds == float("inf"):
        return "?"
    if seconds >= 48 * 3600:
        days = seconds / 86400
        return f"{days:,.0f} days" if days < 730 else f"{days / 365.25:,.0f} years"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def in_words(seconds: float) -> str:
    """A time to expect, no more exact than it can be.

    >>> in_words(3), in_words(47), in_words(130), in_words(1250), in_words(31 * 3600), in_words(1e6)
    ('a few seconds', 'about 50 seconds', 'about 2 minutes', 'about 20 minutes', 'about 31 hours', 'about 12 days')
    """
    if seconds < 10:
        return "a few seconds"
    for unit, length, most, step in (
        ("second", 1, 60, 10),
        ("minute", 60, 15, 1),
        ("minute", 60, 90, 5),
        ("hour", 3600, 48, 1),
        ("day", 86400, 365, 1),
    ):
        if (n := round(seconds / length / step) * step) < most:
            return f"about {count(n, unit)}"
    return "more than a year"


def html_table(rows: Iterable[Sequence[str]], head: Sequence[str] = ()) -> str:
    """A table for a notebook; the first cell of each row names it.

    >>> html_table([["a & b", "1"]])
    '<table><tr><th style="text-align:left">a &amp; b</th><td style="text-align:left">1</td></tr></table>'
    """

    def row(cells: Sequence[str], first: str, rest: str) -> str:
        tags = [first, *[rest] * (len(cells) - 1)]
        each = [f'<{t} style="text-align:left">{escape(cell)}</{t}>' for t, cell in zip(tags, cells, strict=True)]
        return f"<tr>{''.join(each)}</tr>"

    lines = [row(head, "th", "th")] if head else []
    lines += [row(cells, "th", "td") for cells in rows]
    return f"<table>{''.join(lines)}</table>".encode("utf-8", "replace").decode()  # a file's name may be no text

"""Numbers and lists in words, for messages; small tables for notebooks; other people's text, made safe to show."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

_HIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
"""What a terminal obeys instead of showing it, or shows in another order: control characters but tab and newline, marks
of direction, and bytes of a file name that are no text."""

_RUN = re.compile(r"'*(?![+-](?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\Z)[=+\-@\t\r\n＝＋－＠]")
"""The beginning of a cell that a spreadsheet would run, or that has been kept from it. A number is not run."""


_ENDS = re.compile(r'[,;\t"\r\n]')
"""What ends a cell for one program or another."""


def printable(text: str, *, lines: bool = False) -> str:
    """Text of others, such as a file's name, so that a terminal shows it and nothing else. Escape codes become visible.

    Args:
        lines: whether newlines may stay.

    >>> print(printable("cat\\x1b[2J.jpg"), printable("a\\nb"), printable("Zoë"))
    cat\\x1b[2J.jpg a\\nb Zoë
    """
    shown = _HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
    return shown if lines else shown.replace("\n", "\\n")


def to_cell(value: object) -> str:
    """A value for a CSV file that may be opened in a spreadsheet: an apostrophe goes before what it would run.

    >>> to_cell("=1+1"), to_cell("cat"), to_cell(-1.5), to_cell("'=1")
    ("'=1+1", 'cat', '-1.5', "''=1")
    """
    text = "" if value is None else str(value)
    return f"'{text}" if _RUN.match(text) else text


def csv_line(values: Iterable[object]) -> str:
    r"""A line of a CSV file that may be opened in a spreadsheet. Some also end a cell at a semicolon or a tab, and a
    line at a lone \r, unless the cell is quoted.

    >>> csv_line(["=1+1", "a,b", "a;=1", 2])
    '\'=1+1,"a,b","a;=1",2\n'
    """
    cells = map(to_cell, values)
    return ",".join('"' + cell.replace('"', '""') + '"' if _ENDS.search(cell) else cell for cell in cells) + "\n"


def from_cell(text: str) -> str:
    """The inverse of `to_cell`.

    >>> from_cell("'=1+1"), from_cell("'cat'")
    ('=1+1', "'cat'")
    """
    return text[1:] if text.startswith("'") and _RUN.match(text) else text


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Rows as a CSV file that may be opened in a spreadsheet, see `to_cell`.

    >>> print(csv_text([["name", "n"], ["=1+1", 2]]), end="")
    name,n
    '=1+1,2
    """
    return "".join(map(csv_line, rows))


def count(n: int, noun: str, plural: str | None = None) -> str:
    """
    >>> count(1, "image"), count(2300, "image"), count(2, "class", "classes")
    ('1 image', '2,300 images', '2 classes')
    """
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


LONG = 200
"""Characters of a name that a message shows."""


def listed(names: Iterable[str], most: int = 3) -> str:
    """The first few of many names, for a message.

    >>> listed(["a", "b"]), listed("abcde")
    ('a, b', 'a, b, c and 2 more')
    """
    names = [name if len(name) <= LONG else f"{name[: LONG - 10]}..." for name in names]
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

    def row(cells: Sequence[str], rest: str) -> str:
        tags = ["th", *[rest] * (len(cells) - 1)]
        each = [f'<{t} style="text-align:left">{escape(cell)}</{t}>' for t, cell in zip(tags, cells, strict=True)]
        return f"<tr>{''.join(each)}</tr>"

    lines = [row(head, "th")] if head else []
    lines += [row(cells, "td") for cells in rows]
    return f"<table>{''.join(lines)}</table>".encode("utf-8", "replace").decode()  # a file's name may be no text

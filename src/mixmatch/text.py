"""Numbers and lists in words, for messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


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

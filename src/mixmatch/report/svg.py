"""Small charts as SVG, drawn for a column as wide as a phone. Colors come from the page's style sheet, by class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from mixmatch.measure import Bin

LETTER = 6.8
"""Mean width of a letter at the charts' font size, to leave room for labels."""


class Series(NamedTuple):
    """A line: its name, points (x, y), and the class that gives its color."""

    name: str
    points: Sequence[tuple[float, float]]
    style: str
    value: str = ""
    """What stands under the name at the end of the line."""


def ticks(top: float, count: int = 4, bottom: float = 0.0) -> list[float]:
    """Round numbers from 0 (or at most `bottom`, if that is less) to at least `top`, about `count` steps of them.

    >>> ticks(90), ticks(0.7), ticks(0, bottom=-7)
    ([0.0, 25.0, 50.0, 75.0, 100.0], [0.0, 0.2, 0.4, 0.6, 0.8], [-8.0, -6.0, -4.0, -2.0, 0.0])
    """
    bottom = min(bottom, 0.0)
    if not math.isfinite(top) or top <= bottom:
        top = bottom + 1.0
    rough = (top - bottom) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9))
    first, last = math.floor(bottom / step * (1 - 1e-9)), math.ceil(top / step * (1 - 1e-9))
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def line_chart(
    series: Sequence[Series], label: str, *, width: int = 440, height: int = 250, top: float = 0.0, unit: str = ""
) -> str:
    """Lines over steps, each named where it ends. The axis includes 0 and `top`. Points that are not finite are left
    out."""
    kept = [s._replace(points=[p for p in s.points if all(map(math.isfinite, p))]) for s in series]
    kept = [s for s in kept if s.points]
    if not kept:
        return ""
    few = 4 if width > 300 else 2
    heights = [y for s in kept for _, y in s.points]
    rows = ticks(max(top, *heights), few, min(heights))
    last = max(x for s in kept for x, _ in s.points)
    columns = [x for x in ticks(last, few) if x <= last]
    labels = [text for s in kept for text in (s.name, s.value)]
    left = 8 + LETTER * max(len(_number(y) + unit) for y in rows)
    right = width - 14 - LETTER * max(map(len, labels))
    above, below = 12, height - 34

    def at(x: float, y: float) -> tuple[float, float]:
        return left + (right - left) * x / max(last, 1), below - (below - above) * (y - rows[0]) / (rows[-1] - rows[0])

    parts = []
    for y in rows:
        _, v = at(0, y)
        parts.append(f'<line class="{"axis" if y == 0 else "grid"}" x1="{left:.1f}" x2="{right:.1f}" {_y12(v)}/>')
        parts.append(_text(left - 5, v + 4, f"{_number(y)}{unit}", "end"))
    for x in columns:
        u, _ = at(x, 0)
        parts.append(_text(u, below + 16, _number(x), "start" if x == 0 else "middle"))
    parts.append(_text((left + right) / 2, height - 3, "steps", "middle"))
    for s in kept:
        path = " ".join(f"{u:.1f},{v:.1f}" for u, v in (at(*p) for p in s.points))
        parts.append(f'<polyline class="line {s.style}" points="{path}"/>')
        u, v = at(*s.points[-1])
        parts.append(f'<circle class="dot {s.style}" cx="{u:.1f}" cy="{v:.1f}" r="3.2"/>')
    ends = [at(*s.points[-1])[1] for s in kept]
    lines = 14 if any(s.value for s in kept) else 0
    for s, v in zip(kept, spread(ends, 31, above + lines, below - lines), strict=True):
        parts.append(_text(right + 9, v - 3 if s.value else v + 4, s.name, "start", f"name {s.style}"))
        if s.value:
            parts.append(_text(right + 9, v + 12, s.value, "start", f"name {s.style}"))
    return _svg(width, height, label, parts)


def spread(places: Sequence[float], apart: float, least: float, most: float) -> list[float]:
    """The places, moved as little as is simple so that they are `apart` and, where they fit, within bounds.

    >>> spread([50, 40], 20, 0, 100)
    [60.0, 40.0]
    """
    order = sorted(range(len(places)), key=lambda i: places[i])
    result = [0.0] * len(places)
    before = -math.inf
    for i in order:
        before = result[i] = max(float(places[i]), least, before + apart)
    after = math.inf
    for i in reversed(order):
        after = result[i] = min(result[i], most, after - apart)
    return result


def reliability(bins: Sequence[Bin], label: str, width: int = 440, noun: str = "image") -> str:
    """Accuracy over confidence, one bar per bin, with its difference to the confidence; below, the rows per bin."""
    left, side, above, strip = 40.0, width - 52.0, 10.0, 46.0
    below = above + side * 0.72
    floor = below + 38 + strip

    def at(x: float, y: float) -> tuple[float, float]:
        return left + side * x, below - (below - above) * y

    parts = []
    for y in (0.0, 0.25, 0.5, 0.75, 1.0):
        _, v = at(0, y)
        parts.append(f'<line class="{"axis" if y == 0 else "grid"}" x1="{left:.1f}" x2="{left + side:.1f}" {_y12(v)}/>')
        parts.append(_text(left - 5, v + 4, f"{100 * y:.0f}%", "end"))
        parts.append(_text(at(y, 0)[0], below + 16, f"{100 * y:.0f}%", "end" if y == 1 else "middle"))
    fullest = max((b.images for b in bins), default=1)
    for b in bins:
        (x1, _), (x2, v) = at(b.low, 0), at(b.high, b.accuracy)
        x1, x2 = x1 + 0.7, x2 - 0.7
        title = (
            f"<title>confidence {100 * b.low:.0f} to {100 * b.high:.0f} %: {b.images:,} "
            f"{noun if b.images == 1 else noun + 's'}, {100 * b.accuracy:.1f} % right at "
            f"{100 * b.confidence:.1f} % mean confidence</title>"
        )
        _, w = at(0, b.confidence)
        apart = "over" if b.confidence > b.accuracy else "under"
        parts.append(f'<rect class="model" {_box(x1, max(v, w), x2, below)}>{title}</rect>')
        parts.append(f'<rect class="{apart}" {_box(x1, min(v, w), x2, max(v, w))}>{title}</rect>')
        tall = max(1.0, strip * b.images / fullest)
        parts.append(f'<rect class="quiet" {_box(x1, floor - tall, x2, floor)}>{title}</rect>')
    (x1, y1), (x2, y2) = at(0, 0), at(1, 1)
    parts.append(f'<line class="ideal" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')
    parts.append(_text(*at(0.02, 0.93), "accuracy", "start", "name"))
    parts.append(_text(left + side, below + 32, "confidence", "end", "name"))
    parts.append(f'<line class="axis" x1="{left:.1f}" x2="{left + side:.1f}" {_y12(floor)}/>')
    parts.append(_text(left + 3, floor - strip + 12, f"{noun}s in each bin", "start", "name"))
    parts.append(_text(left - 5, floor - strip + 12, f"{fullest:,}", "end"))
    return _svg(width, math.ceil(floor + 4), label, parts)


def interval(low: float, high: float, middle: float, label: str, width: int = 440) -> str:
    """A difference with its interval, and a mark at zero."""
    reach = 1.12 * max(abs(low), abs(high), abs(middle), 0.1)
    begin, end = min(0.0, low) - reach * 0.12, max(0.0, high) + reach * 0.12

    def at(x: float) -> float:
        return 10 + (width - 20) * (x - begin) / (end - begin)

    side = "good" if low > 0 else "bad" if high < 0 else "even"
    zero = "start" if at(0) < width / 4 else "end" if at(0) > 3 * width / 4 else "middle"
    shift = {"start": -4, "end": 4, "middle": 0}[zero]
    parts = [
        f'<line class="grid" x1="{at(begin):.1f}" x2="{at(end):.1f}" y1="22" y2="22"/>',
        f'<line class="axis" x1="{at(0):.1f}" x2="{at(0):.1f}" y1="10" y2="34"/>',
        _text(at(0) + shift, 50, "no difference", zero),
        f'<line class="span {side}" x1="{at(low):.1f}" x2="{at(high):.1f}" y1="22" y2="22"/>',
        f'<circle class="dot {side}" cx="{at(middle):.1f}" cy="22" r="5.5"/>',
        _text(min(max(at(middle), 46), width - 46), 10, f"{middle:+.1f} points".replace("-", "−"), "middle", "name"),
    ]
    return _svg(width, 56, label, parts)


def _svg(width: float, height: float, label: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">'
        f"<title>{escape(label)}</title>{''.join(parts)}</svg>"
    )


def _text(x: float, y: float, text: str, anchor: str, style: str = "") -> str:
    named = f' class="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{escape(text)}</text>'


def _y12(v: float) -> str:
    return f'y1="{v:.1f}" y2="{v:.1f}"'


def _box(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'x="{x1:.1f}" y="{y1:.1f}" width="{max(x2 - x1, 0):.1f}" height="{max(y2 - y1, 0):.1f}"'


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:,.6g}"

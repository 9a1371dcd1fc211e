"""What all plots share: matplotlib without a window, a line style for any number of lines, the look of axes, files."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mixmatch.errors import explaining
from mixmatch.storage import replace_durably

COLORS = (
    "#d1495b", "#00798c", "#edae49", "#30638e", "#7b4b94", "#3f8f5f", "#8c564b", "#555555", "#e377c2",
    "#17becf", "#bcbd22", "#1f77b4", "#ff7f0e", "#7a1f3d", "#b58463", "#6abf4b", "#8f7fd1", "#999999",
)  # fmt: skip
DASHES = ("-", "--", "-.", ":")


def line_style(number: int) -> dict[str, str]:
    """Color and dashes of a plot's line by its number: 9 lines differ in color alone, the next 9 are dashed as well.
    72 differ in one or the other."""
    nines, seconds = number // 9, number // (2 * len(COLORS))  # after 36 lines the other two kinds of dashes
    return {"color": COLORS[number % len(COLORS)], "linestyle": DASHES[(nines + seconds) % len(DASHES)]}


def pyplot() -> Any:
    """`matplotlib.pyplot`, drawing to files only; the same plot gives the same file."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "mixmatch"
    return plt


def tidy(axes: Any) -> None:
    """Horizontal grid lines, and no frame on top and to the right."""
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)


def span(axes: Any, low: float, high: float, log: bool) -> None:
    """Let the x axis go from `low` to `high`, and to what is drawn beyond, with a little room. On a log scale a few
    plain numbers are named."""
    left, right = min(low, axes.dataLim.x0), max(high, axes.dataLim.x1)
    if not log or left <= 0:
        room = 0.04 * (right - left)
        axes.set_xlim(left - room, right + room)
        return
    room = (right / left) ** 0.04
    axes.set_xscale("log")
    axes.set_xlim(left / room, right * room)
    first, last = math.floor(math.log10(left)), math.ceil(math.log10(right))
    named = [m * 10.0**e for e in range(first, last + 1) for m in ((1, 3) if last - first < 4 else (1,))]
    axes.set_xticks([tick for tick in named if left / room <= tick <= right * room])
    axes.xaxis.set_major_formatter(lambda value, place: f"{value:g}")
    axes.xaxis.set_minor_formatter(lambda value, place: "")


def name_line_ends(axes: Any, ends: Sequence[tuple[float, str, str]], gap: float, **look: Any) -> None:
    """Write each (height, text, color) to the right of the axes, whose limits are set already: at its height where
    there is room, and none above the top. A text is at least `gap` of the axes' height above the one below it; on a log
    scale, at `gap` times the height of that one."""
    (low, high), log = axes.get_ylim(), axes.get_yscale() == "log"
    scaled, back = (math.log, math.exp) if log else (float, float)
    gap, place, above = math.log(gap) if log else gap * (high - low), -math.inf, len(ends)
    for end, text, color in sorted(ends):
        above -= 1
        place = min(max(scaled(max(end, low)), place + gap), scaled(high) - above * gap)
        where: Any = {"xycoords": ("axes fraction", "data"), "va": "center", "annotation_clip": False}
        axes.annotate(text, (1.01, back(place)), color=color, **where, **look)


def save(figure: Any, path: Path, suffixes: Sequence[str] = ()) -> None:
    """Write the figure to `path`, or to a file for each of the suffixes, without the date, and close it. A link there
    is replaced, not followed."""
    dates = {".svg": "Date", ".pdf": "CreationDate"}
    try:
        with explaining(f"cannot write {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            for suffix in suffixes or [path.suffix]:
                date = dates.get(suffix.lower())
                content, kind = io.BytesIO(), suffix.lower().removeprefix(".")
                figure.savefig(content, format=kind or None, dpi=150, metadata={date: None} if date else None)
                replace_durably(path.with_suffix(suffix), content.getvalue())
    finally:
        pyplot().close(figure)

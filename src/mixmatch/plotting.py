"""What all plots share: matplotlib without a window, a line style for any number of lines, the look of axes, files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mixmatch.errors import MixMatchError

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


def name_line_ends(axes: Any, ends: Sequence[tuple[float, str, str]], gap: float, **look: Any) -> None:
    """Write each (height, text, color) to the right of the axes, whose limits are set already. A text is at least `gap`
    of the axes' height above the one below it."""
    low, high = axes.get_ylim()
    place = -math.inf
    for end, text, color in sorted(ends):
        place = max(end, place + gap * (high - low))
        where: Any = {"xycoords": ("axes fraction", "data"), "va": "center", "annotation_clip": False}
        axes.annotate(text, (1.01, place), color=color, **where, **look)


def save(figure: Any, path: Path, suffixes: Sequence[str] = ()) -> None:
    """Write the figure to `path`, or to a file for each of the suffixes, without the date, and close it."""
    dates = {".svg": "Date", ".pdf": "CreationDate"}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for suffix in suffixes or [path.suffix]:
            date = dates.get(suffix.lower())
            figure.savefig(path.with_suffix(suffix), dpi=150, metadata={date: None} if date else None)
    except OSError as error:
        raise MixMatchError(f"{path} cannot be written ({error.strerror})") from None
    finally:
        pyplot().close(figure)

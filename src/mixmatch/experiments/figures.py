"""The paper's figures: how a label is guessed, and error by number of labels; and a run's error over its steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mixmatch import functional, plotting
from mixmatch.augment import Augmentation
from mixmatch.classifier import Classifier
from mixmatch.data import SOURCES
from mixmatch.data.user.images import visible
from mixmatch.draws import generator
from mixmatch.errors import MixMatchError
from mixmatch.experiments.paper_tables import Cell, find_cells, target_of
from mixmatch.experiments.tables import Table
from mixmatch.plotting import COLORS
from mixmatch.settings import Labels
from mixmatch.training.run import Record

SUFFIXES = (".png", ".svg")
MARKERS = {"fp32": "o", "bf16": "s"}


def label_guessing(
    classifier: Classifier, image: npt.NDArray[np.uint8], augment: Augmentation, K: int, T: float, seed: int, path: Path
) -> None:
    """The diagram of Section 3 with real data: an image, its K augmentations, their predictions, average, sharpened."""
    plt = plotting.pyplot()
    draws = {name: torch.from_numpy(value) for name, value in augment.draw(generator(seed, "figure", 0), K, 1).items()}
    views = augment(torch.from_numpy(image[None].copy()), draws)[:, 0]
    device = next(classifier.network.parameters()).device
    with torch.no_grad():
        probs = classifier.network(views.to(device)).softmax(dim=-1).double().cpu()
    average = probs.mean(dim=0)
    sharpened = functional.guess_labels(probs[:, None], T)[0]

    likely = average.topk(min(10, len(average))).indices.sort().values  # more names would not be legible
    classes = [classifier.classes[i] for i in likely]
    few = "" if len(likely) == len(average) else f" ({len(likely)} likeliest classes)"

    # The grid has half rows, so that each column can be centered: everything is two of them high.
    rows = max(K, 2)
    figure = plt.figure(figsize=(11, 2.1 * rows + 0.3), layout="constrained")
    grid = figure.add_gridspec(2 * rows, 4, width_ratios=(2, 2, 3, 3))

    def place(top: int, column: int) -> Any:
        return figure.add_subplot(grid[top : top + 2, column])

    _show(place(rows - 1, 0), image, "unlabeled image")
    for k in range(K):
        top = 2 * k + rows - K
        pixels = ((views[k].movedim(0, -1) + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).numpy()
        _show(place(top, 1), pixels, f"augmentation {k + 1}")
        _bars(place(top, 2), probs[k][likely].tolist(), classes, f"prediction {k + 1}", COLORS[3])
    _bars(place(rows - 2, 3), average[likely].tolist(), classes, f"average{few}", COLORS[1])
    _bars(place(rows, 3), sharpened[likely].tolist(), classes, f"guess: sharpened, T = {T:g}", COLORS[0])
    plotting.save(figure, path, SUFFIXES)


def error_by_labels(table: Table, title: str, records: Sequence[Record], path: Path, steps: int | None = None) -> None:
    """Error by number of labels for every method: the paper's dotted, ours solid with error bars.

    Ours are the runs that `paper_tables` counts, in fp32 (round) and bf16 (square); with `steps`, those with that
    number of steps.
    """
    figure, axes = plotting.pyplot().subplots(figsize=(9, 4.6), layout="constrained")
    for number, row in enumerate(table.rows):
        color = plotting.line_style(number)["color"] if "all" not in row.targets else "black"
        targets = {labels: target.value for labels, target in row.targets.items() if target is not None}
        by_precision: dict[str, dict[Labels, Cell]] = {}
        for labels in targets:
            for cell in find_cells(row, labels, table.metric, records, steps):
                by_precision.setdefault(cell.precision, {})[labels] = cell
        if "all" in row.targets:  # a level, not a point
            axes.axhline(targets["all"], color=color, linewidth=1, linestyle=":")
            for cells in by_precision.values():
                axes.axhline(cells["all"].mean, color=color, linewidth=1.5)
        else:
            axes.plot(list(targets), list(targets.values()), color=color, linewidth=1, linestyle=":", alpha=0.8)
            for precision, cells in by_precision.items():
                means, deviations = [c.mean for c in cells.values()], [c.deviation or 0.0 for c in cells.values()]
                axes.errorbar(
                    list(cells), means, yerr=deviations, color=color, marker=MARKERS[precision], markersize=5,
                    linewidth=2, capsize=3,
                )  # fmt: skip
        _entry(axes, row.name, color, [cell for cells in by_precision.values() for cell in cells.values()])
    axes.set_xscale("log")
    ticks = sorted({n for row in table.rows for n in row.targets if n != "all"})
    axes.set_xticks(ticks, [f"{n:,}" for n in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set(xlabel="labels", ylabel="test error, %")
    axes.set_title(f"{title}: ours solid, the paper's dotted", loc="left", fontsize=10)
    plotting.tidy(axes)
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    plotting.save(figure, path, SUFFIXES)


def curve(record: Record, path: Path) -> None:
    """A run's test error over its steps, and minutes, beside what the paper reports after all of its steps."""
    points, per_step, labels = _course(record)
    steps, errors = zip(*points, strict=True)
    figure, axes = plotting.pyplot().subplots(figsize=(7.2, 4.2), layout="constrained")
    shown = list(errors)
    if target := target_of(record):
        low, high = (target.value + sign * (target.deviation or 0.0) for sign in (-1, 1))
        shown += [low, high]
        axes.axhspan(low, high, color=COLORS[1], alpha=0.18, linewidth=0)
        axes.axhline(target.value, color=COLORS[1], linewidth=1.2)
        axes.annotate(
            f"paper {target} %", (steps[0], high), (4, 4), textcoords="offset points", color=COLORS[1], fontsize=9
        )
    axes.plot(steps, errors, color=COLORS[0], linewidth=1.6)
    end = f"{record['error']:.2f} %\n(median of the\nlast {record['median_of']})"
    axes.annotate(
        end, (1.01, record["error"]), xycoords=("axes fraction", "data"), color=COLORS[0], va="center",
        fontsize=9, annotation_clip=False,
    )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda tick, _: f"{tick:,.0f}")
    axes.set_xlim(steps[0], steps[-1])
    _scale(axes, min(shown), max(shown))
    axes.set(xlabel="steps", ylabel="test error, %")
    if per_step > 0:
        above = axes.secondary_xaxis("top", functions=(lambda step: step * per_step, lambda time: time / per_step))
        above.set_xlabel("minutes of training", fontsize=8)
        above.tick_params(labelsize=8)
        above.xaxis.set_major_formatter(lambda tick, _: f"{tick:g}")
        above.spines["top"].set_visible(False)
    data = SOURCES[record["data"]].title if record["data"] in SOURCES else record["data"]
    axes.set_title(f"{record['method']} on {data}, {labels:,} labels, seed {record['seed']}", loc="left", fontsize=10)
    plotting.tidy(axes)
    plotting.save(figure, path)


def _course(record: Record) -> tuple[list[tuple[int, float]], float, int]:
    """The errors of a run over its steps, the minutes of a step, and how many labels it had."""
    try:
        points = [(int(point["step"]), float(point["error"])) for point in record["curve"] if point["step"]]
        per_step = record["seconds"] / record["steps"] / 60
        labels = int(record["split"]["labeled"])
        sound = all(math.isfinite(error) for _, error in points)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        sound = False
    if not sound:
        raise MixMatchError("the record's curve makes no sense: write it again from the run")
    if len(points) < 2:
        raise MixMatchError("a curve needs two evaluations: this run has fewer, change eval_every=")
    return points, per_step, labels


def _scale(axes: Any, low: float, high: float) -> None:
    """The axis of errors: logarithmic where they fall far."""
    if low > 0 and high > 4 * low:  # the end is what counts
        axes.set_yscale("log")
        ticks = [digit * 10.0**power for power in range(-3, 3) for digit in (1, 2, 5)]
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_ylim(0.8 * low, 1.2 * high)
    else:
        axes.set_ylim(0, 1.05 * max(high, 1.0))


def _entry(axes: Any, name: str, color: str, ours: Sequence[Cell]) -> None:
    """A line in the legend, which says what was not run, was run in bf16, or had another number of steps."""
    marks = [cell.precision for cell in ours if cell.precision != "fp32"] + [cell.note for cell in ours if cell.note]
    note = ", ".join(dict.fromkeys(marks)) if ours else "not run"
    label = f"{name} ({note})" if note else name
    axes.plot([], [], color=color, linewidth=2 if ours else 1, linestyle="-" if ours else ":", label=label)


def _show(axis: Any, pixels: npt.NDArray[np.uint8], title: str) -> None:
    axis.imshow(visible(pixels), cmap="gray")
    axis.set_title(title, fontsize=9)
    axis.axis("off")


def _bars(axis: Any, values: Sequence[float], classes: Sequence[str], title: str, color: str) -> None:
    axis.bar(range(len(values)), values, color=color)
    axis.set_ylim(0, 1)
    axis.set_yticks([0, 1], ["0", "1"], fontsize=7)
    turned = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if max(map(len, classes)) > 2 else {}
    axis.set_xticks(range(len(classes)), classes, fontsize=7, **turned)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_title(title, fontsize=9)

"""The paper's figures: how a label is guessed, and error against the number of labels; and the course of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mixmatch import functional
from mixmatch.augment.augment import CropFlip
from mixmatch.classifier import Classifier
from mixmatch.data import SOURCES
from mixmatch.data.user.images import visible
from mixmatch.draws import generator
from mixmatch.errors import MixMatchError
from mixmatch.experiments.compare import COLORS
from mixmatch.experiments.paper_tables import Cell, find_cell, target_of
from mixmatch.experiments.tables import FULL_STEPS, Table
from mixmatch.training.run import Record


def label_guessing(
    classifier: Classifier, image: npt.NDArray[np.uint8], augment: CropFlip, K: int, T: float, seed: int, path: Path
) -> None:
    """The diagram of Section 3 with real data: an image, its K augmentations, their predictions, average, sharpened."""
    plt = _pyplot()
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
    _save(figure, path)


def error_by_labels(table: Table, title: str, records: Sequence[Record], path: Path) -> bool:
    """Error against the number of labels for every method, ours solid with error bars, the paper's dotted.

    Returns whether there is anything of ours to show.
    """
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(9, 4.6), layout="constrained")
    shown = False
    for color, row in zip(COLORS, table.rows, strict=False):
        counts = [labels for labels in row.targets if labels != "all"]
        if not counts:
            all_labels = find_cell(row, "all", table.metric, records)
            axes.axhline(row.targets["all"].value, color="black", linewidth=1, linestyle=":")
            if all_labels is not None:
                shown = True
                axes.axhline(all_labels.mean, color="black", linewidth=1.5)
            _entry(axes, row.name, "black", [] if all_labels is None else [all_labels])
            continue
        paper = [row.targets[n].value for n in counts]
        axes.plot(counts, paper, color=color, linewidth=1, linestyle=":", alpha=0.8)
        cells = [(n, find_cell(row, n, table.metric, records)) for n in counts]
        ours = [(n, cell) for n, cell in cells if cell is not None]
        if ours:
            shown = True
            axes.errorbar(
                [n for n, _ in ours],
                [cell.mean for _, cell in ours],
                yerr=[cell.deviation or 0.0 for _, cell in ours],
                color=color, marker="o", markersize=5, linewidth=2, capsize=3,
            )  # fmt: skip
        _entry(axes, row.name, color, [cell for _, cell in ours])
    axes.set_xscale("log")
    ticks = sorted({n for row in table.rows for n in row.targets if n != "all"})
    axes.set_xticks(ticks, [f"{n:,}" for n in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set(xlabel="labels", ylabel="test error, %")
    axes.set_title(f"{title}: ours solid, the paper's dotted", loc="left", fontsize=10)
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    _save(figure, path)
    return shown


def curve(record: Record, path: Path) -> None:
    """A run's test error over its steps, beside what the paper has after all of them."""
    try:
        points = [(int(point["step"]), float(point["error"])) for point in record["curve"] if point["step"]]
        labels = int(record["split"]["labeled"])
        sound = all(math.isfinite(error) for _, error in points)
    except (KeyError, TypeError, ValueError):
        sound = False
    if not sound:
        raise MixMatchError("the record's curve makes no sense: write it again from the run")
    if len(points) < 2:
        raise MixMatchError("a curve needs two evaluations: this run has fewer (--eval-every)")
    steps, errors = zip(*points, strict=True)
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(7.2, 4.2), layout="constrained")
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
    if min(shown) > 0 and max(shown) > 4 * min(shown):  # the end is what counts
        axes.set_yscale("log")
        ticks = [digit * 10.0**power for power in range(-3, 3) for digit in (1, 2, 5)]
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_ylim(0.8 * min(shown), 1.2 * max(shown))
    else:
        axes.set_ylim(0, 1.05 * max(*shown, 1.0))
    axes.set(xlabel="steps", ylabel="test error, %")
    data = SOURCES[record["data"]].title if record["data"] in SOURCES else record["data"]
    axes.set_title(f"{record['method']} on {data}, {labels:,} labels, seed {record['seed']}", loc="left", fontsize=10)
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    _save(figure, path, [path.suffix])


def _entry(axes: Any, name: str, color: str, ours: Sequence[Cell]) -> None:
    """A line in the legend, which says what was not run or had a shorter budget than the paper's."""
    short = sorted({cell.steps for cell in ours if cell.steps < FULL_STEPS})
    note = "" if ours else " (not run)"
    if short:
        note = f" ({', '.join(f'{steps:,}' for steps in short)} steps)"
    axes.plot([], [], color=color, linewidth=2 if ours else 1, linestyle="-" if ours else ":", label=name + note)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "mixmatch"  # the same picture gives the same file
    return plt


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


def _save(figure: Any, path: Path, suffixes: Sequence[str] = (".png", ".svg")) -> None:
    import matplotlib.pyplot as plt

    dates = {".svg": "Date", ".pdf": "CreationDate"}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for suffix in suffixes:
            date = dates.get(suffix.lower())
            figure.savefig(path.with_suffix(suffix), dpi=150, metadata={date: None} if date else None)
    except OSError as error:
        raise MixMatchError(f"{path} cannot be written ({error.strerror})") from None
    finally:
        plt.close(figure)

"""Methods side by side: the same data, the same labels, the same budget, so that the difference is the method."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mixmatch import api
from mixmatch.errors import MixMatchError
from mixmatch.settings import resolve
from mixmatch.training.progress import Reporter
from mixmatch.training.run import Record, RunFolder

COLORS = ("#d1495b", "#00798c", "#edae49", "#30638e", "#7b4b94", "#3f8f5f", "#8c564b", "#555555", "#e377c2")


def compare(
    data: str,
    methods: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    reporter: Reporter | None = None,
    **options: Any,
) -> list[Record]:
    """Train each method with each seed, in `out`/METHOD-seedSEED. Finished runs are kept, interrupted ones resumed; but
    none is taken further than it was meant to go: a comparison there already would be lost. Data that nothing can be
    judged by is refused before anything is trained."""
    both = itertools.product(dict.fromkeys(methods), dict.fromkeys(seeds))
    jobs = [(out / f"{method}-seed{seed}", method, seed) for method, seed in both]
    wanted, unfinished = options.get("steps"), False
    for path, *_ in jobs:
        run = RunFolder(path)
        if run.exists() and wanted not in (None, steps := run.config()["settings"]["steps"]):
            raise MixMatchError(
                f"{path} was made with other settings (steps: {steps} -> {wanted}): choose another folder (--out; out=)"
            )
        finished = run.result() if run.exists() else None
        if finished is None:
            unfinished = True
        elif finished["error"] is None:
            raise MixMatchError(f"{path} had nothing to be judged by: choose another folder (--out; out=)")
    if unfinished:
        _refuse_without_test(data, options)
    return [
        api.train(data, out=path, resume=True, method=method, seed=seed, reporter=reporter, **options)
        for path, method, seed in jobs
    ]


def _refuse_without_test(data: str, options: Mapping[str, Any]) -> None:
    """User data may have no test rows, and too few labels to hold some out."""
    if not api.is_path(data):
        return
    given = {name: options[name] for name in ("labels", "valid") if options.get(name) is not None}
    reading = {name: options[name] for name in api.READING if options.get(name)}
    settings = replace(resolve(data, given, api.kind_of(data)), data_options=reading)
    _, split, basis = api.open_data(settings)
    if len(split.test) == 0:
        raise MixMatchError(f"{data} cannot be used to compare methods: {basis}")


def summarize(records: Sequence[Record]) -> list[dict[str, Any]]:
    """A row a method: mean test error, its deviation over the seeds, mean seconds a run."""
    rows = []
    for method in dict.fromkeys(record["method"] for record in records):
        group = [record for record in records if record["method"] == method]
        errors = [record["error"] for record in group]
        rows.append(
            {
                "method": method,
                "labels": group[0]["split"]["labeled"],
                "seeds": [record["seed"] for record in group],
                "error": statistics.mean(errors),
                "deviation": statistics.stdev(errors) if len(errors) > 1 else None,
                "seconds": statistics.mean(record["seconds"] for record in group),
            }
        )
    return rows


def plot(records: Sequence[Record], path: Path) -> None:
    """Test error over steps: a thin line a run, a thick one for the mean of a method's runs."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.2, 4.2), layout="constrained")
    methods = list(dict.fromkeys(record["method"] for record in records))
    ends = []
    for color, method in zip(COLORS, methods, strict=False):
        group = [record for record in records if record["method"] == method]
        curves, error = [record["curve"] for record in group], statistics.mean(record["error"] for record in group)
        steps = [point["step"] for point in curves[0]]
        for curve in curves:
            axes.plot(steps, [point["error"] for point in curve], color=color, linewidth=0.7, alpha=0.35)
        mean = [statistics.mean(curve[i]["error"] for curve in curves) for i in range(len(steps))]
        axes.plot(steps, mean, color=color, linewidth=2.2)
        ends.append((mean[-1], f"{method} {error:.1f} %", color))
    axes.set_ylim(bottom=0)
    gap, place = 0.055 * axes.get_ylim()[1], -1.0
    for end, text, color in sorted(ends):  # from below, each at least a line above the one before
        place = max(end, place + gap)
        at = (1.01, place)
        axes.annotate(
            text, at, xycoords=("axes fraction", "data"), color=color, va="center", fontweight="bold",
            annotation_clip=False,
        )  # fmt: skip
    first = records[0]
    axes.set_title(f"{first['data']}, {first['split']['labeled']:,} labels", loc="left")
    axes.set(xlabel="steps", ylabel="test error, %")
    axes.set_xlim(0, max(point["step"] for point in first["curve"]))
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)

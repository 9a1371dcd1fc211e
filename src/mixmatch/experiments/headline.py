"""The few numbers that matter, from all records: our results so far next to the published ones, as a table and as error
over minutes."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from mixmatch import plotting
from mixmatch.data import SOURCES
from mixmatch.errors import MixMatchError
from mixmatch.experiments.paper_tables import find_runs, tables_and_others
from mixmatch.experiments.records import minutes
from mixmatch.experiments.tables import TABLES, Row, Target, full_steps, label_count
from mixmatch.methods import declared
from mixmatch.plotting import COLORS
from mixmatch.settings import Labels
from mixmatch.training.run import Record

SHOWN = (("cifar10", "mixmatch"), ("successors", None), ("svhn", "mixmatch"), ("pate", "mixmatch"))
"""Tables, and the method of each that is shown; None: all of them."""
CURVES = ("cifar10", 250)
"""The cell whose runs are drawn."""


class Standing(NamedTuple):
    """The longest runs of a cell: those with the most steps, up to the paper's, all with the same passes and
    precision."""

    row: Row
    labels: Labels
    metric: str
    runs: list[Record]

    @property
    def steps(self) -> int:
        return int(self.runs[0]["steps"])

    @property
    def fused(self) -> bool:
        """Whether these are not the passes of the authors' code."""
        return bool(self.runs[0]["settings"].get("method_settings", {}).get("passes") == "fused")

    @property
    def complete(self) -> bool:
        """Whether they took as many steps as the paper's, with its passes."""
        return self.steps == full_steps(self.row.data) and not self.fused

    @property
    def values(self) -> list[float]:
        """A number per run, in percent: the paper's median, or for shorter runs the last evaluation."""
        errors = [run["error" if self.complete else "last_error"] for run in self.runs]
        return errors if self.metric == "error" else [100 - error for error in errors]

    @property
    def target(self) -> Target | None:
        return self.row.targets[self.labels]


def standings(records: Sequence[Record]) -> Iterator[Standing]:
    """Each cell that has runs."""
    for name, method in SHOWN:
        table = TABLES[name]
        for row in table.rows:
            if method not in (None, row.method):
                continue
            for labels in row.targets:
                steps = {r["steps"] for r in records if (r["data"], r["method"]) == (row.data, row.method)}
                for count in sorted((n for n in steps if n <= full_steps(row.data)), reverse=True):
                    found = [
                        Standing(row, labels, table.metric, runs)
                        for each in _passes(row)
                        for runs in find_runs(each, labels, records, count).values()
                    ]
                    if found:
                        yield max(found, key=lambda standing: (standing.complete, len(standing.runs)))
                        break


def _passes(row: Row) -> list[Row]:
    """The cell's runs, and those with fused passes, which take less time on a GPU."""
    fused = replace(row, settings={**row.settings, "passes": "fused"})
    return [row, fused] if "passes" in declared(row.method) else [row]


def headline(records: Sequence[Record]) -> str:
    """A table: the longest runs of each cell, and the published numbers after all steps."""
    lines = ["| | labels | steps | ours, % | seeds | published, % |", "|---|---|---|---|---|---|"]
    for each in standings(records):
        values, data = each.values, SOURCES[each.row.data.removesuffix("-test")].title
        ours = f"{statistics.mean(values):.2f}" + (f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else "")
        seeds = f"{len(values)} of {len(each.row.seeds_of(each.labels))}"
        share, rest = divmod(full_steps(each.row.data), each.steps)
        part = f" (1/{share:,})" if share > 1 and not rest else ""
        steps = f"{each.steps:,}{part}{', fused' if each.fused else ''}"
        what = f"{each.row.name}, {data}"
        if each.metric == "accuracy":
            what = f"PATE student: {what}, accuracy"
        ours = f"**{ours}**" if each.complete else ours
        lines.append(f"| {what} | {label_count(each.labels)} | {steps} | {ours} | {seeds} | {each.target or ''} |")
    return "\n".join(lines)


IN_SHORT = """\
For each cell, the longest runs so far, up to the paper's steps, next to the published number. In bold: runs with
all of these steps, the median of their last 20 evaluations; otherwise the error at the end of shorter runs, which is
no verdict. *fused*: with passes that differ from the authors' and are faster. Several seeds: mean ± deviation."""

FIGURE = """\
![Test error over minutes of training, a line per seed, with the published numbers dotted]({picture})

Minutes are those of the actual runs. Several shared a GPU; alone, each would have been faster: [what a step
costs](performance.md)."""


def results_page(records: Sequence[Record], picture: Path | None = None) -> str:
    """docs/results.md: the few numbers that matter with their figure, every table of the paper, then all other runs."""
    parts = [
        "# Results",
        "Generated from the records in `results/` by `mixmatch results --output docs/results.md`; do not edit.",
        "## In short",
        IN_SHORT,
        headline(records),
        *([FIGURE.format(picture=picture.as_posix())] if picture is not None else []),
        *tables_and_others(records),
    ]
    return "\n\n".join(parts) + "\n"


def to_draw(records: Sequence[Record]) -> dict[str, Standing]:
    """What the figure shows: each method's longest compiled runs."""
    data, labels = CURVES
    compiled = [r for r in records if (r.get("engine") or {}).get("compiled") and len(r["curve"]) > 1]
    return {e.row.name: e for e in standings(compiled) if (e.row.data, e.labels) == (data, labels)}


def draw(records: Sequence[Record], path: Path) -> None:
    """Error over minutes, and the published numbers, dotted."""
    (data, labels), found = CURVES, to_draw(records)
    if not found:
        raise MixMatchError(f"there is no record of a compiled run on {data} with {labels} labels to draw")
    figure, axes = plotting.pyplot().subplots(figsize=(8, 4.4), layout="constrained")
    ends = []
    for number, (name, each) in enumerate(found.items()):
        color = COLORS[number % len(COLORS)]
        for run in each.runs:
            points = [point["error"] for point in run["curve"] if point["step"]]
            times = [time for time, point in zip(minutes(run), run["curve"], strict=True) if point["step"]]
            axes.plot(times, points, color=color, linewidth=1.5 if len(each.runs) == 1 else 1.1, alpha=0.9)
        value = statistics.mean(each.values)
        after = "" if each.complete else f",\n{each.steps:,} steps{', fused' if each.fused else ''}"
        ends.append((value, f"{name} {value:.2f} %{after}", color))
        if each.target is not None:
            axes.axhline(each.target.value, color=color, linewidth=1, linestyle=":")
            if each.target.deviation:
                low, high = (each.target.value + sign * each.target.deviation for sign in (-1, 1))
                axes.axhspan(low, high, color=color, alpha=0.12, linewidth=0)
            ends.append((each.target.value, f"published {each.target} %", color))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda tick, _: f"{tick:g}")
    ticks = [5, 10, 20, 50, 90]
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(4, 95)
    axes.set(xlabel="minutes of training", ylabel="test error, %")
    title = f"{SOURCES[data].title}, {labels} labels: a line per seed; dotted, what was published after all steps"
    axes.set_title(title, loc="left", fontsize=10)
    plotting.tidy(axes)
    plotting.name_line_ends(axes, ends, gap=1.22, fontsize=8.5)
    plotting.save(figure, path)

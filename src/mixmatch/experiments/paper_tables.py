"""Ours beside the paper's: a verdict per cell, Markdown for people, generated from records and nothing else."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mixmatch.data import SOURCES
from mixmatch.experiments import records as records_
from mixmatch.experiments.tables import FULL_STEPS, PATE_SEEDS, TABLES, Row, Table, Target, full_steps
from mixmatch.settings import Labels, from_dict, resolve
from mixmatch.training.run import Record

PAPER_SPLITS = 5


@dataclass(frozen=True)
class Cell:
    """What we have for one cell of a table: values in percent, one a seed, all of the same length of training."""

    values: tuple[float, ...]
    steps: int
    target: Target | None
    other_seeds: tuple[int, ...] = ()
    """Its seeds, where they are not among those the paper used for this cell."""
    full: int = FULL_STEPS
    paper_runs: int = PAPER_SPLITS

    @property
    def mean(self) -> float:
        return statistics.mean(self.values)

    @property
    def deviation(self) -> float | None:
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def verdict(self) -> str:
        """Within 2 standard errors of the difference of the two means; no verdict on a shorter budget.

        With a single run our deviation is unknown, and the paper's is taken for it.
        """
        if self.steps < self.full:
            return f"{self.steps:,} steps"
        if self.target is None:
            return "no target"
        if self.target.deviation is None:
            return "no band"
        ours = self.target.deviation if self.deviation is None else self.deviation
        band = 2 * math.sqrt(ours**2 / len(self.values) + self.target.deviation**2 / self.paper_runs)
        return "within" if abs(self.mean - self.target.value) <= band else "outside"


def find_cell(row: Row, labels: Labels, metric: str, records: Sequence[Record]) -> Cell | None:
    """The records of a cell, of the longest training there is; of two with one seed, the one with official passes."""
    wanted = _experiment(row, labels)
    fitting = [r for r in records if records_.experiment_of(r) == wanted]
    if not fitting:
        return None
    steps = max(record["steps"] for record in fitting)
    fitting.sort(key=lambda record: record["settings"]["method_settings"].get("passes") == "official")
    by_seed = {record["seed"]: record["error"] for record in fitting if record["steps"] == steps}
    values = [by_seed[seed] if metric == "error" else 100 - by_seed[seed] for seed in sorted(by_seed)]
    usual = row.seeds_for.get(labels, row.seeds)
    other = tuple(sorted(by_seed)) if not by_seed.keys() <= set(usual) else ()
    paper_runs = len(PATE_SEEDS) if row.seeds == PATE_SEEDS else PAPER_SPLITS
    return Cell(tuple(values), steps, row.targets.get(labels), other, full_steps(row.data), paper_runs)


def target_of(record: Record) -> Target | None:
    """The error the paper has for what a record is a record of."""
    for row in (row for table in TABLES.values() if table.metric == "error" for row in table.rows):
        for labels, target in row.targets.items():
            if labels == record["labels"] and _experiment(row, labels) == records_.experiment_of(record):
                return target
    return None


def _experiment(row: Row, labels: Labels) -> tuple[tuple[str, Any], ...]:
    settings = resolve(row.data, {**row.settings, "method": row.method, "labels": labels})
    return records_.experiment(replace(settings, data_options=row.part))


def column_title(column: tuple[str | None, Labels]) -> str:
    data, labels = column
    count = "all" if labels == "all" else f"{labels:,}"
    return count if data is None else f"{SOURCES[data].title} {count}"


def table_markdown(table: Table, records: Sequence[Record], extra_labels: Sequence[Labels] = ()) -> str:
    """A table in Markdown: each cell has ours and the paper's, with the verdict; cells without a run say so."""
    columns = table.columns()
    for data in dict.fromkeys(data for data, _ in columns):
        columns += [(data, labels) for labels in extra_labels if (data, labels) not in columns]
    lines = ["| | " + " | ".join(map(column_title, columns)) + " |", "|---" * (len(columns) + 1) + "|"]
    for name, rows in table.rows_by_name().items():
        cells = []
        for data, labels in columns:
            row = next((r for r in rows if data in (None, r.data) and _serves(r, labels, extra_labels)), None)
            cells.append("" if row is None else _cell_text(row, labels, table.metric, records))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    for name, quoted in table.quoted.items():
        cells = [quoted.get(str(labels) if data is None else f"{data} {labels}", "–") for data, labels in columns]
        lines.append(f"| *{name}, quoted* | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _serves(row: Row, labels: Labels, extra_labels: Sequence[Labels]) -> bool:
    return labels in row.targets or (labels in extra_labels and "all" not in row.targets)


def _cell_text(row: Row, labels: Labels, metric: str, records: Sequence[Record]) -> str:
    target = row.targets.get(labels)
    paper = f"paper {target}" if target else "no target"
    cell = find_cell(row, labels, metric, records)
    if cell is None:
        return f"not run<br>{paper}"
    deviation = "" if cell.deviation is None else f" ± {cell.deviation:.2f}"
    seeds = f"n = {len(cell.values)}"
    if cell.other_seeds:
        seeds += f", seed{'s' if len(cell.other_seeds) > 1 else ''} {' '.join(map(str, cell.other_seeds))}"
    return f"**{cell.mean:.2f}**{deviation} ({seeds}, {cell.verdict})<br>{paper}"


LEGEND = f"""\
Each cell: ours, the mean ± standard deviation over n seeds of the median error of the last 20 evaluations, and below
it the paper's. *Within*: the means differ by at most 2 sqrt(s_ours²/n + s_paper²/{PAPER_SPLITS}) (PATE's are
{len(PATE_SEEDS)}); with one run the paper's deviation stands in for ours. *No band*: the paper gives no deviation. A
number of steps instead of a verdict: the run had that shorter budget (the paper's is {FULL_STEPS:,}, an eighth of it
for PATE), so it cannot be compared. *Not run*: no record yet."""


def results_page(records: Sequence[Record]) -> str:
    """docs/results.md: every table of the paper, then the shorter runs, all from the records."""
    parts = [
        "# Results",
        "Generated from the records in `results/` by `mixmatch results --output docs/results.md`; do not edit.",
        "## The paper's tables",
        LEGEND,
    ]
    for name, table in TABLES.items():
        parts += [f"### {table.title}", f"`mixmatch reproduce {name}`. {table.note}".strip()]
        parts.append(table_markdown(table, records))
    parts += ["## Shorter runs", SHORT]
    for title, lines in _short(records):
        parts += [f"### {title}", lines]
    return "\n\n".join(parts) + "\n"


SHORT = """\
Methods on the same labels with the same budget, short of the paper's. *Error*: the mean over seeds of each run's
reported number, the median of its last 20 evaluations (or of all, if it had fewer), ± the deviation over seeds.
*Last*: the mean error of the last evaluation. Seconds are of the hardware named, and runs may have shared it."""


def _short(records: Sequence[Record]) -> list[tuple[str, str]]:
    groups: dict[tuple[str, Labels, int], list[Record]] = {}
    for record in records:
        if record["steps"] < full_steps(record["data"]):
            groups.setdefault((record["data"], record["labels"], record["steps"]), []).append(record)
    pages = []
    keys = sorted(groups, key=lambda key: (key[0], _order(key[1]), key[2]))
    for (data, labels, steps), group in ((key, groups[key]) for key in keys):
        count = "all" if labels == "all" else f"{labels:,}"
        title = f"{SOURCES[data].title if data in SOURCES else data}, {count} labels, {steps:,} steps"
        lines = ["| method | seeds | error, % | of | last, % | seconds a run | on |", "|---" * 7 + "|"]
        rows: dict[tuple[str, str], list[Record]] = {}
        for record in group:
            rows.setdefault((_short_name(record), _ran_on(record)), []).append(record)
        ordered = sorted(rows.items(), key=lambda item: statistics.mean(r["error"] for r in item[1]))
        for (name, hardware), runs in ordered:
            errors, lasts = [r["error"] for r in runs], [r["last_error"] for r in runs]
            deviation = f" ± {statistics.stdev(errors):.2f}" if len(errors) > 1 else ""
            seeds = " ".join(str(seed) for seed in sorted(r["seed"] for r in runs))
            seconds = statistics.mean(r["seconds"] for r in runs)
            lines.append(
                f"| {name} | {seeds} | {statistics.mean(errors):.2f}{deviation} | {runs[0]['median_of']} | "
                f"{statistics.mean(lasts):.2f} | {seconds:.0f} | {hardware} |"
            )
        pages.append((title, "\n".join(lines)))
    return pages


def _ran_on(record: Record) -> str:
    """The hardware, and how it was used: two ways may differ, so their runs are not averaged."""
    compiled = ", compiled" if (record.get("engine") or {}).get("compiled") else ""
    hardware = record["hardware"]
    names = ", then ".join(machine["name"] for machine in hardware.get("machines", [hardware]))
    return f"{names} ({record['settings']['precision']}{compiled})"


def _order(labels: Labels) -> float:
    return math.inf if labels == "all" else labels


def _short_name(record: Record) -> str:
    """The method, and what of its settings is not the preset for this data set."""
    settings = from_dict(record["settings"])
    usual = resolve(settings.data, {"method": settings.method, "labels": settings.labels})
    mine = {**settings.to_dict(), **settings.method_settings}
    other = {**usual.to_dict(), **usual.method_settings}
    ignored = ("seed", "steps", "precision", "eval_every", "data_options", "method_settings")
    unusual = [f"{name}={value}" for name, value in mine.items() if name not in ignored and value != other[name]]
    return settings.method + (f" ({', '.join(unusual)})" if unusual else "")

"""The paper's tables with our runs beside its numbers, in Markdown, made from records alone. `LEGEND` says which runs
count, and explains the verdicts. Beyond that:

- `records.experiment` says what makes two runs the same experiment. Runs of different experiments are never averaged,
  and none takes another's place.
- bf16 is accepted because the authors had float32 in another framework, so rounding differs anyway.
- Our own deviation does not widen the band. If our runs came from the paper's own normal distribution, with its
  deviation taken as exact, the mean of three would be in the band with a probability of 99.4 %, that of five with
  99.8 %: the difference between means of n and of 5 runs has a deviation of sqrt(1/n + 1/5) of the paper's.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from mixmatch.data import SOURCES
from mixmatch.experiments import records as records_
from mixmatch.experiments.tables import FULL_STEPS, TABLES, Row, Table, Target, full_steps, label_count
from mixmatch.methods import CUSTOM
from mixmatch.settings import Labels, Precision, from_dict, resolve
from mixmatch.training.run import Record

BAND = 2
"""Half the width of the band, in standard deviations of the paper."""
SEEDS_FOR_A_VERDICT = 3


@dataclass(frozen=True)
class Cell:
    """Our runs for one cell of a table: a value per seed, in percent, all of one experiment."""

    values: tuple[float, ...]
    target: Target | None
    precision: Precision = "fp32"
    paper_seeds: int = 5
    note: str = ""
    """How the runs differ from the paper's, if they do."""
    best: tuple[float, ...] = ()
    """The best evaluation of each run, where the paper reports that."""

    @property
    def mean(self) -> float:
        return statistics.mean(self.values)

    @property
    def deviation(self) -> float | None:
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def verdict(self) -> str:
        """Where our mean lies: within, below or above the paper's band. Empty where there is no verdict."""
        if self.note or self.target is None or self.target.deviation is None or len(self.values) < SEEDS_FOR_A_VERDICT:
            return ""
        if self.target.best:  # of another kind than our median, and chosen by the test images
            return ""
        difference, band = self.mean - self.target.value, BAND * self.target.deviation
        if abs(difference) <= band:
            return "within"
        return "below" if difference < 0 else "above"

    def __str__(self) -> str:
        ours = _numbers(self.values, "**") + (f", best {_numbers(self.best)}" if self.best else "")
        about = [f"{len(self.values)} of {self.paper_seeds} seed{'s' if self.paper_seeds > 1 else ''}"]
        if self.precision != "fp32":
            about.append(self.precision)
        return f"{ours} ({', '.join(about + [text for text in (self.note, self.verdict) if text])})"


def _numbers(values: Sequence[float], strong: str = "") -> str:
    """Each number if there are few; the mean and the deviation if there are enough for a verdict."""
    if len(values) < SEEDS_FOR_A_VERDICT:
        return f"{strong}{', '.join(f'{value:.2f}' for value in values)}{strong}"
    return f"{strong}{statistics.mean(values):.2f}{strong} ± {statistics.stdev(values):.2f}"


def find_runs(
    row: Row, labels: Labels, records: Sequence[Record], steps: int | None = None
) -> dict[Precision, list[Record]]:
    """The records that count for a cell, by precision, one per seed."""
    settings = row.run_settings(labels, steps)
    found: dict[Precision, list[Record]] = {}
    for precision in get_args(Precision):
        wanted = records_.experiment(replace(settings, precision=precision))
        by_seed: dict[int, Record] = {}
        for record in records:
            if record["seed"] in row.seeds_of(labels) and records_.experiment_of(record) == wanted:
                by_seed.setdefault(record["seed"], record)
        if by_seed:
            found[precision] = [by_seed[seed] for seed in sorted(by_seed)]
    return found


def find_cells(
    row: Row, labels: Labels, metric: str, records: Sequence[Record], steps: int | None = None
) -> list[Cell]:
    """A cell for each precision that there are runs in; with `steps`, of runs with that number of steps."""
    paper_seeds, target = len(row.seeds_of(labels)), row.targets.get(labels)
    note = row.differs if steps in (None, full_steps(row.data)) else f"{steps:,} steps"
    cells = []
    for precision, runs in find_runs(row, labels, records, steps).items():
        values = tuple(run["error"] if metric == "error" else 100 - run["error"] for run in runs)
        best: tuple[float, ...] = ()
        if target is not None and target.best:
            best = tuple(min(point["error"] for point in run["curve"]) for run in runs)
        cells.append(Cell(values, target, precision, paper_seeds, note, best))
    return cells


def target_of(record: Record) -> Target | None:
    """The paper's error for the method, data and settings of a record, whatever its number of steps, precision or
    passes: for a line in a figure, not for a verdict."""
    apart = ("steps", "precision", "eval_every", "passes")
    for row in (row for table in TABLES.values() if table.metric == "error" for row in table.rows):
        for labels, target in row.targets.items():
            if labels == record["labels"]:
                wanted = records_.experiment(row.run_settings(labels), apart)
                if wanted == records_.experiment_of(record, apart):
                    return target
    return None


def table_markdown(
    table: Table, records: Sequence[Record], extra_labels: Sequence[Labels] = (), steps: int | None = None
) -> str:
    """A table in Markdown: each cell has ours and the paper's; with `steps`, ours with that number of steps."""
    columns = table.columns()
    for data in dict.fromkeys(data for data, _ in columns):
        columns += [(data, labels) for labels in extra_labels if (data, labels) not in columns]
    titles = [f"{'' if data is None else f'{SOURCES[data].title} '}{label_count(labels)}" for data, labels in columns]
    lines = ["| | " + " | ".join(titles) + " |", "|---" * (len(columns) + 1) + "|"]
    for name, rows in table.rows_by_name().items():
        cells = []
        for data, labels in columns:
            row = next((r for r in rows if data in (None, r.data) and _serves(r, labels, extra_labels)), None)
            cells.append("" if row is None else _cell_text(row, labels, table.metric, records, steps))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    for name, quoted in table.quoted.items():
        cells = [quoted.get(str(labels) if data is None else f"{data} {labels}", "–") for data, labels in columns]
        lines.append(f"| *{name}, quoted* | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _serves(row: Row, labels: Labels, extra_labels: Sequence[Labels]) -> bool:
    return labels in row.targets or (labels in extra_labels and "all" not in row.targets)


def _cell_text(row: Row, labels: Labels, metric: str, records: Sequence[Record], steps: int | None) -> str:
    ours = find_cells(row, labels, metric, records, steps)
    target = row.targets.get(labels)
    theirs = f"{row.source} {target}" if target else "no target"
    return "<br>".join([*(map(str, ours) if ours else ["not run"]), theirs])


LEGEND = f"""\
Each cell has our number, and below it the paper's. A run's number is the median of its last 20 evaluations, as in the
paper.

- **Which runs are in a cell**: those with the authors' settings, labels, seeds and number of steps ({FULL_STEPS:,}; an
  eighth of it for PATE), official passes and an evaluation every 1,024 steps, and no others. *2 of 5 seeds*: how many
  of the paper's runs there are. *bf16*: the passes were in bf16, not float32; the two are never averaged. Of two
  records of the same run, the first by file name counts.
- **The number**: from {SEEDS_FOR_A_VERDICT} seeds on, the mean ± the standard deviation; with fewer, each run.
- **The verdict**, from {SEEDS_FOR_A_VERDICT} seeds on, compares our mean with a band that comes from the paper
  alone, its mean ± {BAND} of its standard deviations: *within*, *below* or *above*, even where ours is the better one.
  If our runs came from the paper's own distribution, fewer than 1 in 100 means of three would be outside.
- **No verdict** where the paper gives no deviation, and where our runs differ from the authors' (*other labels*).
- **Best checkpoint**: some papers report each run's best evaluation on the test images instead of the median. That is
  lower, since it is chosen on the images it is measured on. Our best is shown next to our median, without a verdict.
- *Not run*: no record yet. Runs with other settings or another number of steps are listed as
  [other runs](#other-runs)."""


def tables_and_others(records: Sequence[Record]) -> list[str]:
    """Every table of the paper, then all other runs, as parts of a page."""
    parts = ["## The paper's tables", LEGEND]
    for name, table in TABLES.items():
        parts += [f"### {table.title}", f"`mixmatch reproduce {name}`. {table.note}".strip()]
        parts.append(table_markdown(table, records))
    return [*parts, "## Other runs", OTHER, *other_runs(not_in(TABLES.values(), records))]


def not_in(
    tables: Iterable[Table], records: Sequence[Record], extra_labels: Sequence[Labels] = (), steps: int | None = None
) -> list[Record]:
    """The records that are in no cell of these tables."""
    shown = {
        id(run)
        for table in tables
        for row in table.rows
        for labels in dict.fromkeys([*row.targets, *extra_labels])
        if _serves(row, labels, extra_labels)
        for runs in find_runs(row, labels, records, steps).values()
        for run in runs
    }
    return [record for record in records if id(record) not in shown]


OTHER = """\
Runs that are in none of the tables above, because their steps, settings or seeds are not the paper's. They
get no verdict. A line is one experiment on one kind of machine; settings that are not the default for the data set are
in parentheses. *Error*: the mean over seeds of each run's number, the median of its last 20 evaluations (or of all, if
it had fewer), ± the deviation over seeds. *Last*: the mean error of the last evaluation. Seconds are of the hardware
named, and runs may have shared it."""


def other_runs(records: Sequence[Record]) -> list[str]:
    """A heading and a table for each data set, count of labels and number of steps."""
    groups: dict[tuple[str, Labels, int], list[Record]] = {}
    for record in records:
        groups.setdefault((record["data"], record["labels"], record["steps"]), []).append(record)
    parts = []
    keys = sorted(groups, key=lambda key: (key[0], math.inf if key[1] == "all" else key[1], key[2]))
    for (data, labels, steps), group in ((key, groups[key]) for key in keys):
        title = f"{SOURCES[data].title if data in SOURCES else data}, {label_count(labels)} labels, {steps:,} steps"
        lines = ["| method | seeds | error, % | of | last, % | seconds per run | on |", "|---" * 7 + "|"]
        rows: dict[tuple[records_.Experiment, str], list[Record]] = {}
        for record in group:
            rows.setdefault((records_.experiment_of(record), _ran_on(record)), []).append(record)
        ordered = sorted(rows.items(), key=lambda item: statistics.mean(r["error"] for r in item[1]))
        for (_, hardware), runs in ordered:
            errors, lasts = [r["error"] for r in runs], [r["last_error"] for r in runs]
            deviation = f" ± {statistics.stdev(errors):.2f}" if len(errors) > 1 else ""
            seeds = " ".join(str(seed) for seed in sorted(r["seed"] for r in runs))
            seconds = statistics.mean(r["seconds"] for r in runs)
            lines.append(
                f"| {_name(runs[0])} | {seeds} | {statistics.mean(errors):.2f}{deviation} | {runs[0]['median_of']} | "
                f"{statistics.mean(lasts):.2f} | {seconds:.0f} | {hardware} |"
            )
        parts += [f"### {title}", "\n".join(lines)]
    return parts


def _ran_on(record: Record) -> str:
    """The hardware, the precision, and whether steps were compiled."""
    compiled = ", compiled" if (record.get("engine") or {}).get("compiled") else ""
    hardware = record["hardware"]
    names = ", then ".join(machine["name"] for machine in hardware.get("machines", [hardware]))
    return f"{names} ({record['settings']['precision']}{compiled})"


def _name(record: Record) -> str:
    """The method, and which of its settings are not the preset for this data set; of a method from outside the package,
    whose defaults are not known, all of its own."""
    settings = from_dict(record["settings"])
    outside = settings.method.startswith(CUSTOM)
    usual = resolve(settings.data, {"method": "supervised" if outside else settings.method, "labels": settings.labels})
    mine = {**settings.to_dict(), **settings.method_settings}
    other = {**usual.to_dict(), **({} if outside else usual.method_settings)}
    elsewhere = ("method", "seed", "steps", "precision", "data_options", "method_settings")
    unusual = [
        f"{name}={value}"
        for name, value in mine.items()
        if name not in elsewhere and (name not in other or value != other[name])
    ]
    return settings.method + (f" ({', '.join(unusual)})" if unusual else "")

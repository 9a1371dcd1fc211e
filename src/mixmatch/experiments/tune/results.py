"""What a sweep has found: its trials, best first; whether the best is better than the defaults; files and a plot."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy.stats import binomtest

from mixmatch import plotting
from mixmatch import settings as settings_
from mixmatch.classifier import load_run
from mixmatch.declare import Range
from mixmatch.experiments.tune.space import Choices
from mixmatch.storage import replace_durably
from mixmatch.text import count, csv_text
from mixmatch.training.evaluate import LEAST_VALID
from mixmatch.training.run import Record

if TYPE_CHECKING:
    from mixmatch.experiments.tune.driver import Driver
    from mixmatch.experiments.tune.sweep import Sweep

CHANCE = 0.05
"""A difference that is as large by chance with this probability or more does not count."""


@dataclass(frozen=True)
class Trial:
    """One trial of a sweep."""

    number: int
    state: str
    """finished; stopped, since it was worse than others by then; diverged; or failed."""
    error: float | None
    """On the validation rows, in percent; of a trial that did not finish, when it ended."""
    settings: Mapping[str, Any]
    """The values that were searched for."""
    steps: int
    """That were taken, all folds together."""
    seconds: float
    folder: str
    reason: str = ""

    @property
    def is_default(self) -> bool:
        return self.number == 0


@dataclass(frozen=True)
class Difference:
    """The best trial beside the defaults, row by row: both were evaluated on the same."""

    rows: int
    gained: int
    """Rows that the best trial has right and the defaults have wrong."""
    lost: int
    """Rows that the best trial has wrong and the defaults have right."""
    trials: int
    """The number that the best was chosen from, without the defaults."""

    @property
    def points(self) -> float:
        """By how much the error is lower, in percent of the rows."""
        return 100 * (self.gained - self.lost) / self.rows

    @property
    def standard_error(self) -> float:
        """Of `points`, for paired rows."""
        changed, difference = self.gained + self.lost, self.gained - self.lost
        return 100 * math.sqrt(changed - difference**2 / self.rows) / self.rows

    @property
    def chance(self) -> float:
        """An upper bound of the probability that the best of so many trials looks this much better if none of them is:
        McNemar's exact test, one-sided, times the number of trials (Bonferroni)."""
        changed = self.gained + self.lost
        one = binomtest(self.gained, changed, alternative="greater").pvalue if changed else 1.0
        return min(1.0, self.trials * float(one))

    @property
    def is_told_apart(self) -> bool:
        return self.chance < CHANCE

    def to_dict(self) -> Record:
        computed = ("points", "standard_error", "chance", "is_told_apart")
        return {**asdict(self), **{name: getattr(self, name) for name in computed}}


@dataclass(frozen=True)
class Result:
    """What a sweep has found so far."""

    out: Path
    chosen_by: str
    noun: str
    rows: int
    """What trials are compared on."""
    trials: Sequence[Trial]
    """Best first."""
    best: Trial
    difference: Difference | None
    """None if the defaults are the best."""

    @property
    def default(self) -> Trial:
        return next(trial for trial in self.trials if trial.is_default)

    @property
    def conclusion(self) -> str:
        """What tuning gained, in a sentence."""
        d, best, before = self.difference, self.best, self.default
        if d is None:
            return f"no trial was better than the defaults, at {before.error:.2f} %"
        return (
            f"trial {best.number} has {best.error:.2f} % where the defaults have {before.error:.2f} %: {d.points:.2f} "
            f"points less, with a standard error of {d.standard_error:.2f}"
        )

    @property
    def warning(self) -> str | None:
        """That the validation rows are too few to compare settings by; None if they are not."""
        d = self.difference
        if d is None and self.rows < LEAST_VALID:
            rows = f"{count(self.rows, self.noun)} {'is' if self.rows == 1 else 'are'}"
            return f"{rows} too few to compare settings by: keep the defaults, or validate on more labels"
        if d is None or d.is_told_apart:
            return None
        return (
            f"{count(d.rows, self.noun)} are too few to tell trial {self.best.number} from the defaults: it has "
            f"{d.gained:,} right that they have wrong, and {d.lost:,} wrong that they have right. If no setting "
            f"mattered, the best of {count(d.trials, 'trial')} would look as good with a probability of up to "
            f"{d.chance:.2g}; keep the defaults, or validate on more labels"
        )

    def to_dict(self) -> Record:
        return {
            "chosen_by": self.chosen_by,
            "conclusion": self.conclusion,
            "warning": self.warning,
            "best": asdict(self.best),
            "defaults": asdict(self.default),
            "difference": None if self.difference is None else self.difference.to_dict(),
            "trials": [asdict(trial) for trial in self.trials],
            "config": str(self.out / "best.toml"),
        }


# ---------------------------------------------------------------- gather


def gather(driver: Driver) -> Result:
    """The trials of a sweep, best first, and how the best compares with the defaults."""
    sweep = driver.sweep
    trials = [
        _trial(driver, frozen) for frozen in driver.study.get_trials(deepcopy=False) if frozen.state.name != "WAITING"
    ]
    order = {"finished": 0, "stopped": 1, "diverged": 2}
    trials.sort(key=lambda t: (order.get(t.state, 3), math.inf if t.error is None else t.error, t.number))
    best = trials[0]
    difference = None if best.is_default else compare(sweep, best, len(trials) - 1)
    return Result(sweep.out, sweep.chosen_by, sweep.noun, sweep.rows, trials, best, difference)


def _trial(driver: Driver, frozen: Any) -> Trial:
    number, runs = frozen.number, driver.sweep.metrics(frozen.number)
    ended = [records[-1] for records in runs if records]
    values, state = driver.values(number), frozen.state.name
    state = "finished" if state == "COMPLETE" else frozen.user_attrs.get("ended", "failed")
    return Trial(
        number,
        state,
        frozen.value if frozen.value is not None and math.isfinite(frozen.value) else None,
        values,
        sum(record["step"] for record in ended),
        round(sum(record["seconds"] for record in ended), 1),
        f"trial-{number:03}",
        driver.failed.get(number, ""),
    )


def compare(sweep: Sweep, best: Trial, trials: int) -> Difference:
    """Predict the validation rows by both trials' models and compare row by row."""
    right, right_before = (
        _right(sweep, number, values) for number, values in ((best.number, best.settings), (0, sweep.defaults))
    )
    gained, lost = int((right & ~right_before).sum()), int((right_before & ~right).sum())
    return Difference(len(right), gained, lost, trials)


def _right(sweep: Sweep, number: int, values: Mapping[str, Any]) -> npt.NDArray[np.bool_]:
    """Which validation rows the models of a trial predict correctly, all folds together."""
    parts = []
    for fold in range(sweep.folds):
        job = sweep.job(number, fold, values)
        data = sweep.open(job.settings)
        rows, train = data.split.valid, data.source.train
        predicted = load_run(job.out, job.device).probabilities(np.array(train.inputs[rows])).argmax(axis=1)
        parts.append(predicted == train.labels[rows])
    return np.concatenate(parts)


# ---------------------------------------------------------------- files


def write(sweep: Sweep, result: Result) -> None:
    """Write best.toml, trials.csv and slices.png into the sweep's folder."""
    replace_durably(sweep.out / "best.toml", best_toml(sweep, result).encode())
    replace_durably(sweep.out / "trials.csv", trials_csv(result).encode())
    plot(sweep, result, sweep.out / "slices.png")


def best_toml(sweep: Sweep, result: Result) -> str:
    """The settings of the best trial as `train --config` takes them. The seed is among them: it decides which labels
    are held out to test on, and another one might test on some that trials were compared on."""
    job, best = sweep.base, result.best
    values = settings_.flat(job.settings)
    names = [name for name in settings_.flat(job.settings) if job.chosen(name) and name not in ("data", "valid")]
    chosen = {"method": job.settings.method, **{name: values[name] for name in names}, "seed": job.settings.seed}
    lines = [f"# The best of {count(len(result.trials), 'trial')}, number {best.number}, by {result.chosen_by}."]
    lines += [f"# {result.conclusion[:1].upper()}{result.conclusion[1:]}."]
    lines += [f"# {result.warning[:1].upper()}{result.warning[1:]}."] if result.warning else []
    lines += [f"{name} = {_toml(value)}" for name, value in {**chosen, **best.settings}.items()]
    reading = job.settings.data_options
    lines += ["", "[data_options]", *(f"{name} = {_toml(value)}" for name, value in reading.items())] if reading else []
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def trials_csv(result: Result) -> str:
    names = list(result.best.settings)
    plain = ("number", "state", "error", "steps", "seconds", "folder", "reason")
    rows = ([getattr(t, name) for name in plain] + [t.settings.get(name) for name in names] for t in result.trials)
    return csv_text([[*plain, *names], *rows])


def plot(sweep: Sweep, result: Result, path: Path) -> None:
    """The error over each setting: a panel per setting, as wide as the search, a point per trial."""
    names = list(sweep.space)
    columns = min(3, len(names))
    rows = math.ceil(len(names) / columns)
    figure, panels = plotting.pyplot().subplots(
        rows, columns, sharey=True, squeeze=False, figsize=(1 + 3.4 * columns, 0.7 + 2.9 * rows), layout="constrained"
    )
    for number, axes in enumerate(panels.flat):
        if number < len(names):
            _slice(axes, names[number], sweep.space[names[number]], result)
            axes.set_ylabel("" if number % columns else "validation error, %")
        else:
            axes.set_visible(False)
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=2 if columns == 1 else 4, frameon=False)
    plotting.save(figure, path)


def _slice(axes: Any, name: str, where: Range | Choices, result: Result) -> None:
    shown = [trial for trial in result.trials if trial.error is not None]
    others = [trial for trial in shown if not trial.is_default]
    looks: list[tuple[Sequence[Trial], dict[str, Any]]] = [
        (
            [t for t in others if t.state != "finished"],
            {"marker": "x", "color": "#999999", "label": "stopped, error then"},
        ),
        ([t for t in others if t.state == "finished"], {"color": plotting.COLORS[1], "label": "finished"}),
        ([result.default], {"marker": "D", "color": plotting.COLORS[0], "label": "the defaults"}),
        ([result.best], {"s": 130, "facecolor": "none", "edgecolor": "#222222", "label": "the best"}),
    ]
    # The default need not be among what is searched.
    choices = [*dict.fromkeys([*where.values, result.default.settings[name]])] if isinstance(where, Choices) else None
    for trials, look in looks:
        values = [trial.settings[name] for trial in trials]
        places = values if choices is None else [choices.index(value) for value in values]
        axes.scatter(places, [trial.error for trial in trials], **{"s": 28, **look})
    if choices is not None:
        axes.set_xticks(range(len(choices)), list(map(str, choices)))
        axes.set_xlim(-0.5, len(choices) - 0.5)
    elif isinstance(where, Range):
        plotting.span(axes, where.low, where.high, where.log)
    axes.set_xlabel(name)
    axes.set_axisbelow(True)
    plotting.tidy(axes)

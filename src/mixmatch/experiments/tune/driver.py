"""The driver of a sweep: it asks Optuna for trials, has them done as jobs, and tells how they ended."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixmatch.draws import torch_seed
from mixmatch.errors import MixMatchError, explaining, not_installed
from mixmatch.execution.executor import Executor, Here
from mixmatch.execution.here import Outcome
from mixmatch.experiments.tune.journal import AGAIN, damaged, held, open_study
from mixmatch.experiments.tune.results import Result, gather, write
from mixmatch.experiments.tune.space import Choices, contains, is_whole, rounded
from mixmatch.experiments.tune.sweep import Sweep, make_sweep
from mixmatch.text import count, in_words
from mixmatch.training import progress
from mixmatch.training.job import Work
from mixmatch.training.loop import NOT_FINITE
from mixmatch.training.progress import Reporter
from mixmatch.training.run import Record

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial, Trial

TRIALS = 20
"""The default if neither a number nor a time is given."""


@dataclass
class Driver:
    """Asks for trials, has them done, tells how they ended. Holds the sweep's folder."""

    sweep: Sweep
    study: Study
    executor: Executor
    say: Callable[[str], None]
    reporter: Callable[[str], Reporter]
    failed: dict[int, str] = field(default_factory=dict)
    """Trials that ended with an error which may be temporary: the same command resumes them."""

    def run(self, trials: int | None, minutes: float | None) -> None:
        """Do trials up to the given number, or until one more would exceed the time. The defaults are tried in any
        case."""
        began, longest, done = time.monotonic(), 0.0, 0
        while True:
            left = None if minutes is None else 60 * minutes - (time.monotonic() - began) - longest
            numbers = self._under_way()
            if left is None or left > 0 or not self.study.get_trials(deepcopy=False):
                numbers = self._ask(numbers, trials)
            if not numbers:
                return
            start = time.monotonic()
            self._do(numbers)
            longest = max(longest, time.monotonic() - start)
            if self.failed.keys() >= set(numbers):  # so would the next
                return
            done += len(numbers)
            self._sum_up(trials, (time.monotonic() - began) / done)

    def _sum_up(self, trials: int | None, seconds: float) -> None:
        """Say how far the sweep is, and what it has found so far. A trial takes so many seconds."""
        ended = len(self._trials("COMPLETE", "PRUNED"))
        best = min(self._trials("COMPLETE"), key=lambda t: (t.value, t.number))
        left = "" if trials is None or ended >= trials else f", {in_words((trials - ended) * seconds)} left"
        done = count(ended, "trial") if trials is None else f"{ended:,} of {count(trials, 'trial')}"
        self.say(f"{done}: best {best.value:.2f} % (trial {best.number}){left}")

    def _under_way(self) -> list[int]:
        """Trials that were asked for but not reported: a driver was killed."""
        return [t.number for t in self._trials("RUNNING") if t.number not in self.failed]

    def _trials(self, *states: str) -> list[FrozenTrial]:
        return [t for t in self.study.get_trials(deepcopy=False) if t.state.name in states]

    def _ask(self, numbers: list[int], trials: int | None) -> list[int]:
        """More trials, as many as are done at a time."""
        numbers = list(numbers)
        at_a_time = max(1, self.executor.places(self.sweep.base.device) // self.sweep.folds)
        if not self.study.get_trials(deepcopy=False):
            inside = {name: v for name, v in self.sweep.defaults.items() if contains(self.sweep.space[name], v)}
            self.study.enqueue_trial(inside)
        there = len(self._trials("RUNNING", "COMPLETE", "PRUNED", "FAIL"))
        while len(numbers) < at_a_time and (trials is None or there < trials):
            self._seed(there)
            numbers.append(self.study.ask().number)
            there += 1
        return numbers

    def _seed(self, number: int, stream: str = "trial") -> None:
        """What is suggested for a trial depends on what was told before and on its number, not on how often the driver
        was killed."""
        from optuna.samplers import TPESampler

        seed = torch_seed(self.sweep.settings.seed, f"tune {stream}", number) % 2**32
        self.study.sampler = TPESampler(seed=seed)

    def _suggest(self, number: int) -> None:
        """Have the missing values of a trial suggested: a driver may have been killed between two of them."""
        space = self.sweep.space
        if number == 0:  # the sampler cannot learn from a default that lies outside
            space = {name: where for name, where in space.items() if contains(where, self.sweep.defaults[name])}
        self._seed(number)
        trial = self._trial(number)
        if space.keys() <= trial.params.keys():
            return
        _ = trial.relative_params  # drawn at once, before any is kept
        for name, where in space.items():
            self._seed(number, name)
            if isinstance(where, Choices):
                trial.suggest_categorical(name, where.values)
            elif is_whole(name, self.sweep.settings.method):
                trial.suggest_int(name, round(where.low), round(where.high), log=where.log)
            else:
                trial.suggest_float(name, where.low, where.high, log=where.log)

    def values(self, number: int) -> dict[str, Any]:
        """The values of a trial's settings."""
        if number == 0:
            return self.sweep.defaults
        suggested = self._trial(number).params
        return {name: rounded(suggested[name], where) for name, where in self.sweep.space.items() if name in suggested}

    def _trial(self, number: int) -> Trial:
        from optuna.trial import Trial

        (frozen,) = (t for t in self.study.get_trials(deepcopy=False) if t.number == number)
        return Trial(self.study, frozen._trial_id)

    def _do(self, numbers: Sequence[int]) -> None:
        """Have trials done, and tell how each ended when the last of its folds has."""
        sweep, work, owner = self.sweep, list[Work](), list[int]()
        for number in numbers:
            self._suggest(number)
            values = self.values(number)
            for fold in range(sweep.folds):
                of = f" fold {fold + 1}/{sweep.folds}" if sweep.folds > 1 else ""
                shown = self.reporter(f" trial {number}{of}")
                each = sweep.work(number, fold, values, progress.Several(shown, _Watch(self, number, shown)))
                work.append(each)
                owner.append(number)
        ended: dict[int, list[Outcome]] = {number: [] for number in numbers}
        for place, outcome in self.executor.run(work):
            number = owner[place]
            ended[number].append(outcome)
            if len(ended[number]) == sweep.folds:
                self._tell(number, ended[number])

    def look(self, number: int) -> str | None:
        """Report a trial's error so far. If it is worse than that of others at this step, the trial is asked to end;
        returns why."""
        runs, trial = self.sweep.runs(number), self._trial(number)
        known = trial.storage.get_trial(trial._trial_id).intermediate_values
        asked = number == 0 or any(run.asked_to_end() is not None for run in runs)
        for step, error in self._trace(number):
            if step in known:
                continue
            trial.report(error, step)
            if not asked and step < self.sweep.folds * self.sweep.settings.steps and trial.should_prune():
                why = f"its validation error of {error:.2f} % is above the median of the others by then"
                for run in runs:
                    run.ask_to_end(why)
                return why
        return None

    def _tell(self, number: int, outcomes: Sequence[Outcome]) -> None:
        from optuna.trial import TrialState

        errors = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        if not errors:
            self.look(number)
            if not (line := self._trace(number)):
                raise damaged(self.sweep.folder(number, 0) / "metrics.jsonl", "it has no evaluations")
            self.study.tell(number, line[-1][1], TrialState.COMPLETE)
        elif number == 0:  # what ends the defaults would end the others
            raise errors[0]
        elif any(run.asked_to_end() is not None for run in self.sweep.runs(number)):
            self._tell_stopped(number, "stopped")
        elif any(str(error).startswith(NOT_FINITE) for error in errors):
            self._tell_stopped(number, "diverged")
        else:
            error = errors[0]
            self.failed[number] = str(error) if isinstance(error, MixMatchError) else f"{type(error).__name__}: {error}"
            self.say(f"trial {number} failed: {self.failed[number]}")

    def _trace(self, number: int) -> list[tuple[int, float]]:
        return trace(self.sweep.metrics(number), self.sweep.sizes, self.sweep.settings.steps)

    def _tell_stopped(self, number: int, why: str) -> None:
        from optuna.trial import TrialState

        self._trial(number).set_user_attr("ended", why)
        self.study.tell(number, state=TrialState.PRUNED)


class _Watch(Reporter):
    """Looks at a trial whenever one of its runs was evaluated."""

    def __init__(self, driver: Driver, number: int, shown: Reporter) -> None:
        self._driver, self._number, self._shown = driver, number, shown

    def evaluated(self, record: Mapping[str, Any]) -> None:
        if (why := self._driver.look(self._number)) is not None:
            self._shown.note(f"asked to stop: {why}")


def trace(metrics: Sequence[Sequence[Record]], sizes: Sequence[int], steps: int) -> list[tuple[int, float]]:
    """The course of a trial's error, from the evaluations of its folds: fold by fold, whatever order they were done in,
    over the rows of all folds so far. `sizes` are their numbers of rows.

    >>> first = [{"step": 5, "valid_error": 9.0}, {"step": 10, "valid_error": 4.0}]
    >>> second = [{"step": 5, "valid_error": 7.0}]
    >>> trace([first, second], [20, 10], 10), trace([first[:1], second], [20, 10], 10)
    ([(5, 9.0), (10, 4.0), (15, 5.0)], [(5, 9.0)])
    """
    line: list[tuple[int, float]] = []
    wrong = rows = 0.0
    for fold, (records, size) in enumerate(zip(metrics, sizes, strict=True)):
        for record in records:
            error = (wrong + size * record["valid_error"]) / (rows + size)
            line.append((fold * steps + record["step"], error))
        if not records or records[-1]["step"] < steps:
            break
        wrong, rows = wrong + size * records[-1]["valid_error"], rows + size
    return line


def tune(
    data: str,
    given: Mapping[str, Any],
    reading: Mapping[str, Any] | None = None,
    *,
    out: Path | None = None,
    search: Sequence[str] = (),
    only: bool = False,
    trials: int | None = None,
    minutes: float | None = None,
    executor: Executor | None = None,
    say: Callable[[str], None] = lambda text: None,
    reporter: Callable[[str], Reporter] = progress.on_stderr,
    **options: Any,
) -> Result:
    """Search for better settings of a method on a data set, by validation data alone.

    The sweep is a folder, and the same call continues it: trials that were under way are resumed, and with a larger
    number of trials more are done. Trial 0 has the defaults. The others are suggested by Optuna (TPE), and ended early
    if by then they are worse than the median of those that finished.

    Published data sets are validated on the paper's 5,000 images, or a fifth of the training images where that is less,
    or on `valid` of them; user data by cross-validation over its labels. Test rows are not looked at.

    Args:
        data: a built-in name or a path to user data.
        given: settings that all trials have: `method`, `labels`, `steps`, `seed`, ...
        reading: how user data is read.
        out: the sweep's folder; by default `runs/tune-DATA-METHOD`.
        search: what to search instead of the declared ranges, or in addition: `T=0.1..1`, `lambda_u=1..100:log`,
            `mix=all,labeled`.
        only: search nothing else.
        trials: the total number in the folder; by default 20, if there is no limit in `minutes`.
        minutes: no trial is started that would end later, judging by the longest so far.
        executor: who does the runs; by default this machine.
        say: called with messages for the user.
        reporter: makes what shows a run's progress, from a text that distinguishes it from others.
        **options: those of `plan`: `config`, `device`, `data_dir`, `strict`, `checkpoint_every`.
    """
    if importlib.util.find_spec("optuna") is None:
        raise not_installed("tune", "Optuna", "tune")
    for name, limit in {"trials": trials, "minutes": minutes}.items():
        if limit is not None and limit <= 0:
            raise MixMatchError(f"{name}={limit} must be above 0")
    trials = TRIALS if trials is None and minutes is None else trials
    sweep = make_sweep(data, given, reading, out, search, only, say, **options)
    executor = executor or Here()
    executor.places(sweep.base.device)  # without the device or the cluster, nothing is written
    with held(sweep.out):
        driver = Driver(sweep, open_study(sweep), executor, say, reporter)
        for text in filter(None, (sweep.note, f"trials are compared by {sweep.chosen_by}")):
            say(text)
        driver.run(trials, minutes)
        result = gather(driver)
        with explaining(f"cannot write what was found to {sweep.out}", AGAIN):
            write(sweep, result)
        return result

"""What a user sees while a run trains: a bar on a terminal, plain lines in a log, curves in TensorBoard."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from mixmatch.terminal import Screen
from mixmatch.text import duration

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

LOG_SECONDS = 30.0
LOG_SECONDS_LEAST = 5.0

PACE_SECONDS = 0.01
"""Shorter times are not used: the steps of another process's run may all be seen at once."""


class Reporter:
    """Receives training events. This one shows nothing."""

    def start(self, title: str, step: int, total: int) -> None: ...
    def steps(self, step: int, values: Mapping[str, float]) -> None: ...
    def evaluated(self, record: Mapping[str, Any]) -> None: ...
    def note(self, text: str) -> None: ...
    def close(self) -> None: ...


Quiet = Reporter


class Pace:
    """Steps per second, 0 while unknown, and seconds left. The first steps, which may include compilation, are not
    counted later on."""

    def __init__(self, step: int, total: int) -> None:
        self.total = total
        self._began = self._since = time.monotonic()
        self._first, self._seen, self._speed = step, False, 0.0

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def after(self, step: int) -> tuple[float, float]:
        if step > self._first and (seconds := time.monotonic() - self._since) > PACE_SECONDS:
            self._speed = (step - self._first) / seconds
            if not self._seen:
                self._since, self._first, self._seen = time.monotonic(), step, True
        return self._speed, (self.total - step) / self._speed if self._speed else float("inf")


def error_text(record: Mapping[str, Any]) -> str:
    """The error of an evaluation: on test rows, else on validation rows; nothing where there are neither.

    >>> error_text({"test_error": 4.0, "valid_error": 5.0}), error_text({"valid_error": 5.0}), error_text({})
    ('error 4.00 %', 'validation error 5.00 %', '')
    """
    for name, shown in {"test_error": "error", "valid_error": "validation error"}.items():
        if name in record:
            return f"{shown} {record[name]:.2f} %"
    return ""


class Terminal(Reporter):
    """A bar with speed and time left; below it the last error, the losses and the guesses' confidence."""

    def __init__(self, bars: Bars, suffix: str = "") -> None:
        self._bar, self._suffix = bars, suffix
        self._title = self._error = self._values = ""
        self._pace = Pace(0, 0)

    def start(self, title: str, step: int, total: int) -> None:
        self._pace, self._title = Pace(step, total), title + self._suffix
        self._task = self._bar.add_task(self._title, completed=step, total=total, values="", speed="", left="")
        self._bar.begin()

    def steps(self, step: int, values: Mapping[str, float]) -> None:
        speed, left = self._pace.after(step)
        time_left = f"{duration(left)} left" if speed else ""
        self._values = "  ".join(f"{name} {value:.3g}" for name, value in values.items())
        self._bar.update(
            self._task,
            completed=step,
            speed=f"{speed:.1f} steps/s" if speed else "",
            left=time_left if step < self._pace.total else f"in {duration(self._pace.elapsed)}",
            values=self._error + self._values,
        )

    def evaluated(self, record: Mapping[str, Any]) -> None:
        error = error_text(record)
        self._error = f"[bold]{error}[/bold]  " if error else ""
        self._bar.update(self._task, values=self._error + self._values)

    def note(self, text: str) -> None:
        text = f"{self._title}: {text}" if self._suffix else text
        self._bar.console.print(text, highlight=False, markup=False)

    def close(self) -> None:
        self._bar.end()


class Bars(Progress):
    """A bar for each run, and a line of values below it: together they are too wide for 80 columns."""

    def __init__(self, console: Screen) -> None:
        self._screen = console
        super().__init__(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TextColumn("{task.fields[left]}"),
            console=console,
        )
        self._running = 0

    def begin(self) -> None:
        if not self._running:  # one that ended would erase lines above it if it were started again
            self.live = Live(console=self._screen, refresh_per_second=10, get_renderable=self.get_renderable)
        self._running += 1
        self.start()

    def end(self) -> None:
        """Stop when the last run has ended, and forget the bars: what is shown stays on the screen."""
        self._running -= 1
        if self._running == 0:
            self.stop()
            for task in list(self.task_ids):
                self.remove_task(task)

    def get_renderables(self) -> Iterable[RenderableType]:
        tasks, most = self.tasks, max(1, self._screen.height // 2 - 1)
        if len(tasks) > most:  # the screen is too small for all: those under way
            running = [task for task in tasks if task.completed < (task.total or 0)]
            yield Text(f"{len(tasks) - len(running):,} runs ended, {len(running):,} under way")
            tasks = running[:most]
        for task in tasks:
            yield self.make_tasks_table([task])
            values = Text.from_markup(task.fields["values"], overflow="ellipsis")
            values.no_wrap = True
            yield values


class Log(Reporter):
    """A line per evaluation and one every half minute in between, but not more than one in five seconds. A line has as
    many values as fit."""

    def __init__(self, console: Screen, suffix: str = "") -> None:
        self._console, self._suffix = console, suffix
        self._last, self._title = 0.0, ""
        self._pace = Pace(0, 0)

    def start(self, title: str, step: int, total: int) -> None:
        self._last = time.monotonic()
        self._pace, self._title = Pace(step, total), title + self._suffix
        self._print(
            ("" if self._suffix else f"{title}: ")
            + (f"{total:,} steps" if step == 0 else f"resumed at step {step:,} of {total:,}")
        )

    def steps(self, step: int, values: Mapping[str, float]) -> None:
        self._pace.after(step)
        ended = step == self._pace.total  # its evaluation comes next
        if time.monotonic() - self._last >= LOG_SECONDS and not ended:
            self._line(step, "", values)

    def evaluated(self, record: Mapping[str, Any]) -> None:
        ended = record["step"] == self._pace.total
        if time.monotonic() - self._last < LOG_SECONDS_LEAST and not ended:
            return
        losses = {name: value for name, value in record.items() if name.startswith("loss") or name == "confidence"}
        error = error_text(record)
        self._line(record["step"], f"  {error}" if error else "", losses)

    def note(self, text: str) -> None:
        self._print(text)

    def _line(self, step: int, error: str, values: Mapping[str, float]) -> None:
        self._last = time.monotonic()
        speed, left = self._pace.after(step)
        pace = f"  {speed:.1f} steps/s  {duration(left)} left" if speed else ""
        text = f"step {step:,}/{self._pace.total:,}{pace}{error}"
        for name, value in values.items():
            longer = f"{text}  {name} {value:.4g}"
            if len(self._named(longer)) <= self._console.width:
                text = longer
        self._print(text)

    def _named(self, text: str) -> str:
        return f"{self._title}: {text}" if self._suffix else text

    def _print(self, text: str) -> None:
        self._console.print(self._named(text), highlight=False, markup=False, soft_wrap=True)


class TensorBoard(Reporter):
    """The curves as TensorBoard events in the run folder. A resumed run hides what came after its checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: SummaryWriter | None = None

    def start(self, title: str, step: int, total: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self._folder), purge_step=step + 1 if step else None)

    def evaluated(self, record: Mapping[str, Any]) -> None:
        for name, value in record.items():
            if name != "step" and isinstance(value, int | float) and self._writer is not None:
                self._writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class Several(Reporter):
    """Passes events on to several reporters."""

    def __init__(self, *reporters: Reporter) -> None:
        self._reporters = reporters

    def start(self, title: str, step: int, total: int) -> None:
        for reporter in self._reporters:
            reporter.start(title, step, total)

    def steps(self, step: int, values: Mapping[str, float]) -> None:
        for reporter in self._reporters:
            reporter.steps(step, values)

    def evaluated(self, record: Mapping[str, Any]) -> None:
        for reporter in self._reporters:
            reporter.evaluated(record)

    def note(self, text: str) -> None:
        for reporter in self._reporters:
            reporter.note(text)

    def close(self) -> None:
        for reporter in self._reporters:
            reporter.close()


_bars: Bars | None = None


def on_stderr(suffix: str = "") -> Reporter:
    """A bar on a terminal, lines in a file. Runs side by side share the screen; the `suffix` tells this one apart."""
    global _bars
    console = Screen(stderr=True)
    if not sys.stderr.isatty() or console.is_dumb_terminal:
        return Log(console, suffix)
    if not suffix:
        return Terminal(Bars(console))
    _bars = _bars or Bars(console)
    return Terminal(_bars, suffix)


@contextmanager
def bar(title: str, shown: bool = True) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, for work that counts images or the like; gone when the work is done."""
    with Progress(console=Screen(stderr=True), transient=True, disable=not (shown and sys.stderr.isatty())) as screen:
        task = screen.add_task(title, total=None)
        yield lambda done, total: screen.update(task, completed=done, total=total)

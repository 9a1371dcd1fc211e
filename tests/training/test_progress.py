"""What a person is shown while one run goes on, or several side by side."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from mixmatch.text import duration
from mixmatch.training import progress
from mixmatch.training.progress import Bars, Log, Pace, Several, Terminal


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def screen(width: int = 100) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())


def test_the_pace_forgets_the_first_steps(clock: Clock) -> None:
    pace = Pace(0, 1000)
    assert pace.after(0) == (0.0, float("inf"))
    clock.now += 64  # compiling
    assert pace.after(32) == (0.5, 968 / 0.5)
    assert pace.after(32) == (0.5, 968 / 0.5)  # asked again at the same step
    clock.now += 2
    assert pace.after(232) == (100.0, 768 / 100)
    clock.now += 2
    assert pace.after(332) == (75.0, 668 / 75)  # over all but the first steps
    assert pace.elapsed == 68


def test_the_pace_of_a_resumed_run_counts_its_own_steps(clock: Clock) -> None:
    pace = Pace(500, 1000)
    clock.now += 1
    pace.after(510)
    clock.now += 1
    assert pace.after(560) == (50.0, 440 / 50)


def test_bars_stay_until_the_last_run_ends_and_can_begin_again() -> None:
    console = screen()
    bars = Bars(console)
    first, second = Terminal(bars, " seed 1"), Terminal(bars, " seed 2")
    first.start("digits mixmatch", 0, 100)
    second.start("digits mixmatch", 0, 100)
    first.steps(50, {"loss": 0.5})
    first.evaluated({"step": 50, "test_error": 12.345})
    first.note("[compiled] in 3 s")
    first.close()
    assert bars.live.is_started
    assert len(bars.tasks) == 2
    second.steps(100, {"loss": 0.25})
    second.close()
    assert not bars.live.is_started
    assert not bars.tasks
    text = shown(console)
    assert "digits mixmatch seed 1" in text
    assert "digits mixmatch seed 2" in text
    assert "error 12.35 %  loss 0.5" in text or "error 12.34 %  loss 0.5" in text
    assert "digits mixmatch seed 1: [compiled] in 3 s" in text  # not taken for markup
    third = Terminal(bars, " seed 3")
    before = len(console.file.getvalue())  # type: ignore[attr-defined]
    third.start("digits mixmatch", 10, 100)
    again = console.file.getvalue()[before:].partition("seed 3")[0]  # type: ignore[attr-defined]
    assert "\x1b[1A" not in again  # what stands above is not erased
    assert bars.live.is_started
    assert [(task.description, task.completed) for task in bars.tasks] == [("digits mixmatch seed 3", 10)]
    third.close()
    assert not bars.live.is_started


def test_titles_are_shown_as_they_are() -> None:
    """They name a person's folders, in which brackets and colons mean nothing."""
    console = screen()
    bar = Terminal(Bars(console))
    bar.start("x[/y][red]z :cat: mixmatch", 0, 10)
    bar.steps(5, {"loss": 1.0})
    bar.close()
    assert "x[/y][red]z :cat: mixmatch" in shown(console)


def test_lines_tell_runs_beside_each_other_apart(clock: Clock) -> None:
    console = screen(200)
    log = Log(console, " seed 2")
    log.start("digits mixmatch", 0, 100)
    clock.now += 31
    log.steps(31, {"loss": 0.5})
    log.note("compiled the training step in 3 s")
    log.evaluated({"step": 50, "test_error": 12.0})  # too soon after the last line
    clock.now += 6
    log.evaluated({"step": 62, "test_error": 12.0, "loss": 0.25, "seconds": 3})
    log.evaluated({"step": 100, "test_error": 11.0})
    assert shown(console).splitlines() == [
        "digits mixmatch seed 2: 100 steps",
        "digits mixmatch seed 2: step 31/100  1.0 steps/s  1:09 left  loss 0.5",
        "digits mixmatch seed 2: compiled the training step in 3 s",
        "digits mixmatch seed 2: step 62/100  5.2 steps/s  0:07 left  error 12.00 %  loss 0.25",
        "digits mixmatch seed 2: step 100/100  11.5 steps/s  0:00 left  error 11.00 %",
    ]


def test_lines_have_the_values_that_fit(clock: Clock) -> None:
    console = screen(80)
    log = Log(console)
    log.start("digits mixmatch", 0, 1_048_576)
    clock.now += 31
    values = {"loss": 0.5, "loss_x": 0.25, "loss_u": 0.0125, "weight": 75.0, "confidence": 0.8765}
    log.steps(524_288, values)
    clock.now += 31
    log.evaluated({"step": 1_048_576, "test_error": 12.0, **values})
    lines = shown(console).splitlines()
    assert lines[1] == "step 524,288/1,048,576  16912.5 steps/s  0:31 left  loss 0.5  loss_x 0.25"
    assert lines[2].endswith("left  error 12.00 %  loss 0.5")
    assert max(map(len, lines)) <= 80


def test_the_last_step_is_shown_once(clock: Clock) -> None:
    console = screen(80)
    log = Log(console)
    log.start("digits mixmatch", 0, 100)
    clock.now += 31
    log.steps(100, {"loss": 0.5})
    log.evaluated({"step": 100, "test_error": 11.0, "loss": 0.5})
    assert shown(console).splitlines()[1:] == ["step 100/100  3.2 steps/s  0:00 left  error 11.00 %  loss 0.5"]


def test_a_run_that_is_seen_at_its_end_has_no_pace(clock: Clock) -> None:
    console, bars = screen(80), screen(80)
    for reporter in (Log(console), Terminal(Bars(bars))):
        reporter.start("digits mixmatch", 0, 100)
        clock.now += 1e-4
        reporter.steps(100, {})
        reporter.evaluated({"step": 100, "test_error": 11.0})
        reporter.close()
    assert shown(console).splitlines()[1:] == ["step 100/100  error 11.00 %"]
    assert "steps/s" not in shown(bars)


def test_lines_of_a_run_alone(clock: Clock) -> None:
    console = screen(200)
    log = Log(console)
    log.start("digits mixmatch", 40, 1000)
    log.note("a note")
    assert shown(console).splitlines() == ["digits mixmatch: resumed at step 40 of 1,000", "a note"]


def test_runs_beside_each_other_share_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(progress, "_bars", None)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", Screen())
    one, two, alone = progress.on_stderr(" seed 1"), progress.on_stderr(" seed 2"), progress.on_stderr()
    assert isinstance(one, Terminal)
    assert isinstance(two, Terminal)
    assert isinstance(alone, Terminal)
    assert one._bar is two._bar
    assert alone._bar is not one._bar
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert isinstance(progress.on_stderr(" seed 1"), Log)


def test_of_more_runs_than_fit_on_the_screen_those_under_way_are_shown() -> None:
    console = screen()
    console.height = 12
    bars = Bars(console)
    for number in range(40):
        bars.add_task(f"run {number}", completed=10 if number < 37 else 3, total=10, values="", speed="", left="")
    console.print(*bars.get_renderables())
    assert "37 runs ended, 3 under way" in shown(console)
    assert re.findall(r"run \d+", shown(console)) == ["run 37", "run 38", "run 39"]


def test_several_are_all_told() -> None:
    told: list[str] = []

    class Told(progress.Quiet):
        def note(self, text: str) -> None:
            told.append(text)

        def close(self) -> None:
            told.append("closed")

    several = Several(Told(), Told())
    several.note("a")
    several.close()
    assert told == ["a", "a", "closed", "closed"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(float("inf"), "?"), (62, "1:02"), (3 * 3600 + 245, "3:04:05"), (50 * 3600, "2 days"), (8e7, "3 years")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text

"""The contract of a callback, and how a run's events get to it."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixmatch.errors import MixMatchError
from mixmatch.settings import flat
from mixmatch.storage import read_plain, replace_durably
from mixmatch.training.progress import Reporter
from mixmatch.training.run import RunFolder, RunRecord

LONGEST = 4096
"""Bytes that a callback may remember under a name."""


@dataclass(frozen=True)
class Started:
    """A run that is about to train."""

    folder: Path
    """The run folder."""
    settings: Mapping[str, Any]
    """Every setting by its name, those of the method included."""
    step: int
    """0, or the step of the checkpoint from which the run resumes."""

    @property
    def name(self) -> str:
        """The name of the run folder."""
        return self.folder.resolve().name

    def remember(self, name: str, value: str) -> None:
        """Keep a line of text in the run folder, such as the number of this run elsewhere."""
        replace_durably(self._kept(name), value.encode())

    def recall(self, name: str) -> str | None:
        """What a callback remembered when the run began, if it resumes now."""
        try:
            return read_plain(self._kept(name), LONGEST).decode() if self.step else None
        except FileNotFoundError:
            return None

    def files(self, model: bool = False) -> list[Path]:
        """The files of a run to keep elsewhere: configuration, metrics, record, report; the `model` if asked."""
        names = ("config.json", "metrics.jsonl", "result.json", "report.html", "model.safetensors")
        paths = [self.folder / name for name in names[: None if model else -1]]
        return [path for path in paths if path.is_file() and not path.is_symlink()]  # a link may lead anywhere

    def _kept(self, name: str) -> Path:
        return self.folder / f".callback-{name}"


class Callback:
    """Follows a run of `mixmatch.train(..., callbacks=[...])`. Define the methods you need; these do nothing.

    An error in `started` ends the run before its first step. An error in any later event is a warning: the run goes on,
    and the callback gets no more of its events. Of several processes only the one that leads has events, and a run on
    user data has those of its main run, not of the one on the labels alone.
    """

    def started(self, run: Started) -> None:
        """Before the first step, also of a run that resumes."""

    def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        """After every few steps, about once per second on a CPU: the averages since the last evaluation so far."""

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """After each evaluation: `test_error` where there are test rows, the averages since the last one, `seconds`."""

    def noted(self, text: str) -> None:
        """A message to the user, such as a warning about the guesses."""

    def finished(self, record: RunRecord) -> None:
        """The run has ended well, and this is what `train` returns."""

    def stopped(self, error: BaseException) -> None:
        """The run has ended early: `Interrupted` after Ctrl-C or SIGTERM, else what went wrong."""


class Events(Reporter):
    """Passes the events of the run in `folder` on to callbacks."""

    def __init__(self, callbacks: Sequence[Callback], folder: Path) -> None:
        self._callbacks, self._folder = callbacks, folder
        self._following: list[Callback] = []

    def start(self, title: str, step: int, total: int) -> None:
        settings = RunFolder(self._folder).settings()
        run = Started(self._folder, flat(settings), step)
        for callback in self._callbacks:
            try:
                callback.started(run)
            except Exception as error:
                raise MixMatchError(
                    f"the callback {type(callback).__name__} could not start ({_described(error)}): nothing was "
                    "trained; correct it, or leave it out of callbacks="
                ) from error
            self._following.append(callback)

    def steps(self, step: int, values: Mapping[str, float]) -> None:
        self._pass_on(lambda callback: callback.stepped(step, values))

    def evaluated(self, record: Mapping[str, Any]) -> None:
        metrics = {name: float(value) for name, value in record.items() if name != "step" and _is_number(value)}
        self._pass_on(lambda callback: callback.evaluated(record["step"], metrics))

    def note(self, text: str) -> None:
        self._pass_on(lambda callback: callback.noted(text))

    def finish(self, record: RunRecord) -> None:
        self._pass_on(lambda callback: callback.finished(record))
        self._following = []

    def stop(self, error: BaseException) -> None:
        self._pass_on(lambda callback: callback.stopped(error))
        self._following = []

    def _pass_on(self, event: Callable[[Callback], None]) -> None:
        for callback in list(self._following):
            try:
                event(callback)
            except Exception as error:
                self._following.remove(callback)
                warnings.warn(
                    f"the callback {type(callback).__name__} failed and gets no more events of this run, which goes "
                    f"on: {_described(error)}",
                    stacklevel=2,
                )


@contextmanager
def following(callbacks: Sequence[Callback], folder: Path) -> Iterator[Events]:
    """The events of a run for its callbacks, which are told of its end even if that is an error."""
    given: Sequence[object] = callbacks
    for each in given:
        if not isinstance(each, Callback):
            what = f"the class {each.__name__}" if isinstance(each, type) else type(each).__name__
            raise MixMatchError(f"callbacks= takes objects of mixmatch.callbacks.Callback, not {what}")
    events = Events(callbacks, folder)
    try:
        yield events
    except BaseException as error:
        events.stop(error)
        raise


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _described(error: Exception) -> str:
    """An error in a line, with the place it came from."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''} [{Path(place.filename).name}, line {place.lineno}]"

"""The training loop: decide what is due, then do it, so that a run stopped at any moment resumes to exactly the result
it would have had."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor

from mixmatch.errors import MixMatchError
from mixmatch.training.checkpoint import Checkpoint
from mixmatch.training.progress import Reporter
from mixmatch.training.run import Ended, Record, RunFolder
from mixmatch.training.stop import Interrupted, Stop
from mixmatch.training.trainer import CHUNK, NotFinite, Trainer
from mixmatch.training.watch import Watch

CHECKPOINT_SECONDS = 60.0
"""How much work may be lost to a crash, by default."""

PAUSE_SECONDS = 1.0
"""How long the progress bar and a save that is due wait for steps on a CPU. A GPU takes a whole chunk in less."""


NOT_FINITE = "the loss was not finite"
"""The beginning of the error that reports it."""


def evaluation_due(step: int, total: int, every: int, evaluated_at: int) -> bool:
    """At each multiple of `every` and at the end, once."""
    return step > max(0, evaluated_at) and (step == total or step % every == 0)


def save_due(step: int, total: int, every: int | None, saved_at: int, seconds: float) -> bool:
    """At the end, and at each multiple of `every`; without it, when the last save is a minute ago. Once per step."""
    if step in (0, saved_at):
        return False
    return step == total or (seconds >= CHECKPOINT_SECONDS if every is None else step % every == 0)


def next_pause(step: int, total: int, most: int, *every: int | None) -> int:
    """The step up to which nothing else is due, at `most` steps ahead."""
    return min(total, step + most, *(n * (step // n + 1) for n in every if n is not None))


def steps_until_pause(steps: int, seconds: float) -> int:
    """How many steps to take until the next pause, given how long the last ones took.

    >>> [steps_until_pause(*last) for last in ((1, 0.9), (32, 28.0), (4, 0.5), (32, 0.1))]
    [1, 1, 8, 32]
    """
    return max(1, min(CHUNK, int(PAUSE_SECONDS * steps / max(seconds, 1e-9))))


class Loop:
    """A run in progress: `turns` trains it to the end, pausing after every few steps so that runs can take turns."""

    def __init__(
        self,
        trainer: Trainer,
        run: RunFolder,
        reporter: Reporter,
        stop: Stop,
        resume: Checkpoint | None = None,
        checkpoint_every: int | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.trainer, self.run, self.reporter, self.stop = trainer, run, reporter, stop
        self.settings, self.every, self.watch = trainer.settings, checkpoint_every, watch
        self._earlier, self._records = 0.0, 0
        if resume is not None:
            trainer.restore(resume)
            self._earlier, self._records = resume.state["seconds"], resume.state["evaluations"]
        self.world = trainer.world
        if self.world.leads:
            run.cut_metrics(self._records, None if resume is None else resume.state.get("metrics_sha256"))
        self._evaluated_at = run.metrics()[self._records - 1]["step"] if self._records else -1
        if watch is not None:
            for record in run.metrics():
                watch.look(record)
        self._saved_at = trainer.step if resume is not None else -1
        self._began = self._saved_time = time.monotonic()
        self._most = 1 if trainer.device.type == "cpu" else CHUNK
        self._readings = Readings()

    @property
    def seconds(self) -> float:
        """The time the run has taken, over all sessions."""
        return self._earlier + time.monotonic() - self._began

    def turns(self) -> Generator[None, None, float]:
        """Train to the end, evaluating and saving on the way; returns the seconds it took, over all sessions.

        A resumed run enters at the top, so an evaluation that was cut short is done again.
        """
        trainer, total = self.trainer, self.settings.steps
        self.stop.runs += 1
        try:
            with self._explained():
                self.reporter.start(f"{self.settings.data} {self.settings.method}", trainer.step, total)
                trainer.send_notes_to(self.reporter.note)
                while True:
                    with trainer.in_stream():
                        if evaluation_due(trainer.step, total, self.settings.eval_every, self._evaluated_at):
                            self._evaluate()
                        since = self._agreed(time.monotonic() - self._saved_time)
                        if save_due(trainer.step, total, self.every, self._saved_at, since):
                            self._save()
                        if trainer.step >= total:
                            trainer.wait()
                            return self.seconds
                        self._advance()
                    yield
        except Interrupted as interrupted:
            with self._explained(), trainer.in_stream():
                if trainer.step != self._saved_at:
                    self._save()
                self.world.barrier()  # torchrun ends the others as soon as one has ended
            raise Interrupted(interrupted.signal, trainer.step) from None
        finally:
            self.stop.runs -= 1
            with contextlib.suppress(RuntimeError):  # the device may still use what is freed next
                trainer.wait()
            self.reporter.close()

    def _agreed(self, number: float) -> float:
        """The leading process's answer: all decide by its clock."""
        return self.world.numbers(number)[0]

    def _advance(self) -> None:
        trainer, first, began = self.trainer, self.trainer.step, time.monotonic()
        until = next_pause(first, self.settings.steps, self._most, self.settings.eval_every, self.every)
        trainer.advance(until, self.stop if self.world.size == 1 else lambda: False)
        if trainer.device.type == "cpu":  # elsewhere the host would have to wait
            trainer.check_finite()
            self._most = steps_until_pause(trainer.step - first, self._agreed(time.monotonic() - began))
        self.reporter.steps(trainer.step, self._readings.update(trainer))
        if signal := int(max(self.world.numbers(self.stop.signal or 0))):  # all processes stop at the same step
            raise Interrupted(signal, 0)

    def _evaluate(self) -> None:
        trainer = self.trainer
        trainer.check_finite()
        if self.world.leads:
            self._record_evaluation()
        self._records, self._evaluated_at = self._records + 1, trainer.step
        trainer.clear_metrics()
        why = self.run.asked_to_end()
        if self._agreed(why is not None) and trainer.step < self.settings.steps:
            raise Ended(self.run.path, why or "")

    def _record_evaluation(self) -> None:
        trainer = self.trainer
        between = self.stop.check if self.world.size == 1 else lambda: None  # several processes stop together
        test, valid = trainer.evaluate(between)
        guesses = trainer.guesses() if self.watch is not None else None
        record: Record = {
            "step": trainer.step,
            **({"test_error": test.error, "test_loss": test.loss} if test else {}),
            **({"valid_error": valid.error, "valid_loss": valid.loss} if valid else {}),
            **trainer.metrics(),
            **({"guess_share": float(guesses.max() / guesses.sum())} if guesses is not None else {}),
            "seconds": round(self.seconds, 3),
        }
        self.run.append_metrics(record)
        self.reporter.evaluated(record)
        if self.watch is not None and guesses is not None:
            for text in self.watch.look(record, trainer.source.classes[guesses.argmax()]):
                self.reporter.note(text)

    def _save(self) -> None:
        trainer = self.trainer
        trainer.check_finite()
        if self.world.leads:
            now = trainer.checkpoint()
            now.state.update(evaluations=self._records, seconds=self.seconds, metrics_sha256=self.run.metrics_sha256())
            self.run.save_checkpoint(now)
        self._saved_at, self._saved_time = trainer.step, time.monotonic()

    @contextlib.contextmanager
    def _explained(self) -> Generator[None, None, None]:
        """Say what ended the run, and what of it is kept."""
        try:
            yield
        except (NotFinite, OSError) as error:
            saved = self._saved_at
            if isinstance(error, OSError):
                kept = f"the last checkpoint, step {saved:,}, is intact" if saved >= 0 else "nothing was saved yet"
                raise self.run.cannot_write(error, f"{kept}; ") from None
            kept = f"the last good checkpoint, step {saved:,}, is kept" if saved >= 0 else "nothing was saved yet"
            raise MixMatchError(
                f"{NOT_FINITE} at step {error.step:,}: {kept} in {self.run.path}; try a lower learning "
                "rate in another folder"
            ) from None


class Readings:
    """The latest averages for display, copied from the device without waiting for it."""

    def __init__(self) -> None:
        self._sent: list[tuple[list[str], Tensor, Any]] = []
        self._latest: dict[str, float] = {}

    def update(self, trainer: Trainer) -> dict[str, float]:
        """Start copying the current averages; return the newest that have arrived."""
        averages = trainer.device_metrics()
        if averages:
            on_cuda = trainer.device.type == "cuda"  # elsewhere nothing says when the values have arrived
            values = torch.stack(list(averages.values())).to("cpu", non_blocking=on_cuda)
            event = None
            if on_cuda:
                event = torch.cuda.current_stream(trainer.device).record_event()
            self._sent.append((list(averages), values, event))
        while self._sent and (self._sent[0][2] is None or self._sent[0][2].query()):
            names, values, _ = self._sent.pop(0)
            self._latest = dict(zip(names, values.tolist(), strict=True))
        return self._latest

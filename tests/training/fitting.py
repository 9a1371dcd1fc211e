"""A run without a session: a trainer in a folder, to its end."""

from __future__ import annotations

from mixmatch.training.checkpoint import Checkpoint
from mixmatch.training.loop import Loop
from mixmatch.training.progress import Reporter
from mixmatch.training.run import RunFolder
from mixmatch.training.stop import Stop
from mixmatch.training.trainer import Trainer


def fit(
    trainer: Trainer,
    run: RunFolder,
    reporter: Reporter,
    resume: Checkpoint | None = None,
    checkpoint_every: int | None = None,
) -> float:
    """Train to the end, evaluating and saving on the way. Returns the seconds it took, all sittings together."""
    stop = Stop()
    with stop.listening():
        turns = Loop(trainer, run, reporter, stop, resume, checkpoint_every).turns()
        while True:
            try:
                next(turns)
            except StopIteration as end:
                return float(end.value)

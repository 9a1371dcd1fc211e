"""Runs in Weights & Biases, which is optional (`pip install 'mixmatch[wandb]'`): imported when a callback is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mixmatch.callbacks.base import Callback, Started
from mixmatch.errors import not_installed
from mixmatch.training.run import RunRecord


class WandB(Callback):
    """A run as one of Weights & Biases: settings are its config, evaluations its history, the record and report an
    artifact. A resumed run continues there. Other runs that are active in this process are left alone."""

    def __init__(self, project: str = "mixmatch", *, model: bool = False, **options: Any) -> None:
        """
        Args:
            project: the project's name.
            model: whether to keep the weights there, too.
            **options: for `wandb.init`: `entity`, `group`, `tags`, `dir`, and `mode="offline"` to keep everything on
                disk until `wandb sync`.
        """
        try:
            import wandb
        except ModuleNotFoundError:
            raise not_installed("WandB()", "Weights & Biases", "wandb") from None
        self._wandb, self._options, self.model = wandb, {"project": project, **options}, model

    def started(self, run: Started) -> None:
        before = run.recall("wandb")
        again = {} if before is None else {"id": before, "resume": "allow"}
        config = {**dict(run.settings), "folder": str(run.folder)}
        self._logged: Any = self._wandb.init(
            config=config, reinit="create_new", **{"name": run.name, **self._options, **again}
        )
        # Our own steps as the axis: W&B's may not go back, and a run that resumes goes back to its checkpoint.
        self._logged.define_metric("step", hidden=True)
        self._logged.define_metric("*", step_metric="step")
        self._run = run
        run.remember("wandb", self._logged.id)

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        self._logged.log({**metrics, "step": step})

    def finished(self, record: RunRecord) -> None:
        for name in ("error", "last_error", "verdict"):
            if record.get(name) is not None:
                self._logged.summary[name] = record[name]
        kept = self._wandb.Artifact(f"run-{self._logged.id}", type="run")
        for path in self._run.files(self.model):
            kept.add_file(str(path))
        self._logged.log_artifact(kept)
        self._logged.finish(exit_code=0)

    def stopped(self, error: BaseException) -> None:
        self._logged.finish(exit_code=1)

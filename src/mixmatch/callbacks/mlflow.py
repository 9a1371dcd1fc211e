"""Runs in MLflow. It is optional (`pip install 'mixmatch[mlflow]'`) and imported only when a callback is made."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mixmatch.callbacks.base import Callback, Started
from mixmatch.errors import MixMatchError, first_line, not_installed
from mixmatch.training.run import RunRecord
from mixmatch.training.stop import Interrupted

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

LONGEST = 500
"""Characters of a parameter's value that every version of MLflow takes."""
MOST = 100
"""Parameters that it takes at once."""


class MLflow(Callback):
    """A run as one of MLflow: settings are its parameters, evaluations its metrics, the record and report its files.

    A resumed run continues in MLflow. It is logged through a client of its own: MLflow's active run, if there is one,
    is left alone.
    """

    def __init__(
        self,
        experiment: str = "mixmatch",
        *,
        tracking_uri: str | None = None,
        tags: Mapping[str, str] | None = None,
        model: bool = False,
    ) -> None:
        """
        Args:
            experiment: the name of MLflow's experiment; made if there is none.
            tracking_uri: where MLflow is; by default MLFLOW_TRACKING_URI, else what MLflow chooses.
            tags: further tags of the run.
            model: whether to keep the weights there, too.
        """
        self.experiment, self.tags, self.model = experiment, dict(tags or {}), model
        self._client = _client(tracking_uri)

    def started(self, run: Started) -> None:
        client = self._client
        before = run.recall("mlflow")
        if before is not None:
            client.update_run(before, status="RUNNING")
            self._run, self._id = run, before
            return
        found = client.get_experiment_by_name(self.experiment)
        experiment = found.experiment_id if found is not None else client.create_experiment(self.experiment)
        tags = {"folder": str(run.folder), "method": str(run.settings["method"]), **self.tags}
        self._run, self._id = run, client.create_run(experiment, tags=tags, run_name=run.name).info.run_id
        run.remember("mlflow", self._id)
        self._log_settings(run.settings)

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        self._log(metrics, step)

    def finished(self, record: RunRecord) -> None:
        outcome = {name: record.get(name) for name in ("error", "last_error")}
        self._log({name: value for name, value in outcome.items() if value is not None}, record["steps"])
        if "verdict" in record:
            self._client.set_tag(self._id, "mlflow.note.content", record["verdict"])
        for path in self._run.files(self.model):
            self._client.log_artifact(self._id, str(path))
        self._client.set_terminated(self._id, "FINISHED")

    def stopped(self, error: BaseException) -> None:
        self._client.set_terminated(self._id, "KILLED" if isinstance(error, Interrupted) else "FAILED")

    def _log(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._client.log_batch(self._id, metrics=[Metric(name, value, now, step) for name, value in values.items()])

    def _log_settings(self, settings: Mapping[str, object]) -> None:
        from mlflow.entities import Param

        values = [Param(name, str(value)[:LONGEST]) for name, value in settings.items()]
        for first in range(0, len(values), MOST):
            self._client.log_batch(self._id, params=values[first : first + MOST])


def _client(uri: str | None) -> MlflowClient:
    try:
        from mlflow.tracking import MlflowClient
    except ModuleNotFoundError:
        raise not_installed("MLflow()", "MLflow", "mlflow") from None
    try:
        return MlflowClient(uri)
    except ModuleNotFoundError as error:  # the small package of the extra has no database
        raise MixMatchError(
            f"MLflow cannot keep runs on this machine ({error}): pip install mlflow, or give tracking_uri= of a server"
        ) from None
    except Exception as error:  # MLflow's own, for a place it cannot use
        raise MixMatchError(f"MLflow cannot use tracking_uri={uri}: {first_line(error)}") from error

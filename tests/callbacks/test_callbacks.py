"""Callbacks follow a run to its end, and one that fails neither ends it nor goes unseen."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mixmatch
from mixmatch.callbacks import Callback, Started
from mixmatch.errors import MixMatchError
from mixmatch.training.progress import Quiet
from mixmatch.training.run import RunFolder, RunRecord
from mixmatch.training.stop import Interrupted

TINY: dict[str, Any] = {
    "labels": 20, "steps": 6, "eval_every": 3, "batch_size": 8, "compile": False, "device": "cpu", "reporter": Quiet(),
}  # fmt: skip


class Diary(Callback):
    """Writes down every event."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def started(self, run: Started) -> None:
        self.events.append(("started", run))

    def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        self.events.append(("stepped", step))

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        self.events.append(("evaluated", (step, dict(metrics))))

    def noted(self, text: str) -> None:
        self.events.append(("noted", text))

    def finished(self, record: RunRecord) -> None:
        self.events.append(("finished", record))

    def stopped(self, error: BaseException) -> None:
        self.events.append(("stopped", error))

    def of(self, kind: str) -> list[Any]:
        return [value for name, value in self.events if name == kind]


class Broken(Callback):
    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        raise ConnectionError("the server is gone\nand more")


def test_the_events_of_a_run_and_of_one_that_resumes(tmp_path: Path) -> None:
    class Stopping(Diary):
        def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
            super().evaluated(step, metrics)
            raise KeyboardInterrupt  # as by a user who presses Ctrl-C twice

    first, then = Stopping(), Diary()
    settings = {**TINY, "steps": 12, "lambda_u": 7.0, "checkpoint_every": 2, "out": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        mixmatch.train("digits", callbacks=[first], **settings)
    record = mixmatch.train("digits", callbacks=[then], resume=True, **settings)

    (run,) = first.of("started")
    assert (run.folder, run.name, run.step) == (tmp_path / "run", "run", 0)
    assert run.settings["lambda_u"] == 7.0
    assert run.settings["batch_size"] == 8
    assert isinstance(first.events[-1][1], KeyboardInterrupt)
    assert not first.of("finished")

    (resumed,) = then.of("started")
    assert resumed.step == 2  # the evaluation at step 3 was cut short
    assert [name for name, _ in then.events if name in ("started", "finished")] == ["started", "finished"]
    assert then.events[-1] == ("finished", record)
    written = RunFolder(tmp_path / "run").metrics()
    assert [step for step, _ in then.of("evaluated")] == [3, 6, 9, 12] == [line["step"] for line in written]
    assert [values for _, values in then.of("evaluated")] == [
        {name: value for name, value in line.items() if name != "step"} for line in written
    ]
    assert then.of("stepped")[-1] == 12

    again = Diary()
    mixmatch.train("digits", callbacks=[again], resume=True, **settings)
    assert not again.events  # nothing is trained


def test_an_error_in_a_callback_is_a_warning_and_the_run_is_the_same(tmp_path: Path) -> None:
    diary = Diary()
    with pytest.warns(
        UserWarning, match=r"Broken failed .* ConnectionError: the server is gone \[test_callbacks.py, l"
    ):
        record = mixmatch.train("digits", out=tmp_path / "a", callbacks=[Broken(), diary], **TINY)
    assert diary.of("finished") == [record]
    alone = mixmatch.train("digits", out=tmp_path / "b", **TINY)
    assert record["curve"] == alone["curve"]


def test_an_error_at_the_start_is_one_before_training(tmp_path: Path) -> None:
    class Unable(Callback):
        def started(self, run: Started) -> None:
            raise ConnectionError("no server")

    diary = Diary()
    with pytest.raises(MixMatchError, match=r"^the callback Unable could not start \(ConnectionError: no server .*\)"):
        mixmatch.train("digits", out=tmp_path / "run", callbacks=[diary, Unable()], **TINY)
    assert [name for name, _ in diary.events if name != "noted"] == ["started", "stopped"]
    mixmatch.train("digits", out=tmp_path / "run", **TINY)  # the same folder, without it


def test_what_is_no_callback_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MixMatchError, match=r"callbacks= takes objects of mixmatch.*Callback, not the class Diary"):
        mixmatch.train("digits", out=tmp_path / "run", callbacks=[Diary], **TINY)  # type: ignore[list-item]
    assert not (tmp_path / "run").exists()


def test_user_data_has_the_events_of_its_main_run(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(120) % 2
    x = rng.normal(size=(120, 4)).astype(np.float32) + 3 * y[:, None]
    np.savez(tmp_path / "rows.npz", x=x, y=np.where(np.arange(120) < 60, y, -1))
    diary = Diary()
    settings = {name: value for name, value in TINY.items() if name != "labels"}
    record = mixmatch.train(tmp_path / "rows.npz", out=tmp_path / "run", callbacks=[diary], **settings)
    assert len(diary.of("started")) == len(diary.of("finished")) == 1
    assert diary.of("finished")[0]["verdict"] == record["verdict"]
    assert {path.name for path in diary.of("started")[0].files()} == {
        "config.json", "metrics.jsonl", "result.json", "report.html",
    }  # fmt: skip


def test_a_stop_by_signal_is_told_from_an_error(tmp_path: Path) -> None:
    class Pressing(Diary):
        def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    diary = Pressing()
    with pytest.raises(Interrupted):
        mixmatch.train("digits", out=tmp_path / "run", callbacks=[diary], **TINY)
    assert isinstance(diary.of("stopped")[0], Interrupted)


def test_a_callback_gets_nothing_that_a_link_leads_to(tmp_path: Path) -> None:
    """A run folder may come from anyone, and what it holds goes to a server."""
    secret, run = tmp_path / "secret", Started(tmp_path / "run", {}, step=3)
    secret.write_text("secret")
    run.folder.mkdir()
    (run.folder / "report.html").symlink_to(secret)
    (run.folder / ".callback-mlflow").symlink_to(secret)
    assert run.files() == []
    with pytest.raises(OSError, match="it is a link"):
        run.recall("mlflow")
    run.remember("mlflow", "number 7")
    assert (run.recall("mlflow"), run.recall("wandb"), secret.read_text()) == ("number 7", None, "secret")

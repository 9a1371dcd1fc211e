"""What is sent to another process, what it does with it, and what is seen of it."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import SHORT, tiny
from torch import nn

from mixmatch.errors import MixMatchError
from mixmatch.execution import worker
from mixmatch.execution.elsewhere import Elsewhere, Follower
from mixmatch.execution.ray import Ray, _failed, share_of
from mixmatch.training.checkpoint import Checkpoint
from mixmatch.training.job import Job, Work
from mixmatch.training.progress import Reporter
from mixmatch.training.run import RunFolder


@pytest.fixture(autouse=True)
def _as_before() -> Any:
    before, folder, count = dict(os.environ), Path.cwd(), torch.get_num_threads()
    yield
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(before)
    torch.set_num_threads(count)


def sent(work: Work, **changes: Any) -> dict[str, Any]:
    """An order after its way through JSON."""
    changed: dict[str, Any] = json.loads(json.dumps({**worker.order([(7, worker.to_send(work))], "cpu", 1), **changes}))
    return changed


def test_groups_fill_every_place() -> None:
    sizes = lambda count, places, limit=None: [  # noqa: E731
        len(each) for each in worker.group([(number, None) for number in range(count)], places, limit)
    ]
    assert sizes(12, 2) == [5, 5, 2]
    assert sizes(12, 8) == [2] * 6
    assert sizes(4, 8) == [1] * 4
    assert sizes(3, 0) == [3]
    assert sizes(3, 2, 1) == [1, 1, 1]


def test_a_job_is_done_where_the_command_was_given_with_its_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative paths are the command's, and a run records the threads that it used, not the one that Ray sets."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    order = sent(tiny(Path("run"), steps=2), threads=2)
    monkeypatch.chdir("/")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    ((number, answer),) = worker.do(order)
    assert number == 7
    assert answer["notes"] == []
    outcome = worker.outcome_of(json.loads(json.dumps(answer)))
    assert isinstance(outcome, dict)
    run = RunFolder(tmp_path / "run")
    assert outcome == run.result()
    assert run.config()["threads"] == 2


def test_errors_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those a user can fix as they are, others with where they were raised."""
    ((_, answer),) = worker.do(sent(tiny(tmp_path / "a", labels=20_000)))
    outcome = worker.outcome_of(answer)
    assert isinstance(outcome, MixMatchError)
    assert "only 1,297 images" in str(outcome)

    def broken(*given: Any) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("mixmatch.training.session.prepare", broken)
    ((_, answer),) = worker.do(sent(tiny(tmp_path / "b", labels=20)))
    outcome = worker.outcome_of(answer)
    assert not isinstance(outcome, MixMatchError)
    assert "TypeError" in str(outcome)  # of `broken`, which takes no keywords
    assert any("session.py" in note for note in outcome.__notes__)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"version": "0.0.1"}, "the command is of 0.0.1"), ({"folder": "/not/there"}, "a folder that all machines share")],
)
def test_a_machine_that_is_not_set_up(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    ((number, answer),) = worker.do(sent(tiny(tmp_path / "a"), **changes))
    assert number == 7
    assert message in answer["error"]
    assert "\n" not in answer["error"]


def test_a_folder_that_an_earlier_attempt_still_holds_is_waited_for(tmp_path: Path) -> None:
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with RunFolder(tmp_path / "a").lock():
            held.set()
            let_go.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    threading.Timer(0.5, let_go.set).start()
    ((_, answer),) = worker.do(sent(tiny(tmp_path / "a", steps=1)))
    thread.join()
    assert "record" in answer


def test_what_cannot_be_sent(tmp_path: Path) -> None:
    work = tiny(tmp_path / "a")
    work.network = nn.Linear(2, 2)
    with pytest.raises(MixMatchError, match="stays in this process"):
        worker.to_send(work)


def test_a_run_that_may_not_be_resumed_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    list(worker.do(sent(tiny(tmp_path / "a", steps=1))))
    again = tiny(tmp_path / "a", steps=1)
    again.job = Job(**{**vars(again.job), "resume": False})

    class Nowhere(Elsewhere):
        def sending(self, jobs: Any) -> Any:
            raise AssertionError(jobs)

    begun: list[int] = []
    ((number, error),) = Nowhere().run([again], begun.append)
    assert (number, begun) == (0, [0])
    assert "holds a run already" in str(error)


class Seen(Reporter):
    def __init__(self) -> None:
        self.events: list[Any] = []

    def start(self, title: str, step: int, total: int) -> None:
        self.events.append(f"{title} {step}/{total}")

    def steps(self, step: int, values: Any) -> None:
        self.events.append(step)

    def evaluated(self, record: Any) -> None:
        self.events.append(f"error {record['test_error']}")

    def note(self, text: str) -> None:
        self.events.append(text)

    def close(self) -> None:
        self.events.append("closed")


def test_progress_is_read_from_the_folder(tmp_path: Path) -> None:
    run, seen = RunFolder(tmp_path / "a"), Seen()
    with run.lock():
        run.append_metrics({"step": 10, "test_error": 90.0})  # of an earlier sitting
        run.save_checkpoint(Checkpoint({}, {}, {}, {"step": 10}))
    work, started = tiny(tmp_path / "a"), list[int]()
    work.reporter = seen
    follower = Follower([work, tiny(tmp_path / "never")], started.append)
    follower.look()
    assert (started, seen.events) == ([], [])
    with run.lock():
        run.check_attempt()
        follower.look()
        run.append_metrics({"step": 30, "test_error": 80.0, "loss": 2.0})
        run.save_checkpoint(Checkpoint({}, {}, {}, {"step": 40}))
        follower.look()
        follower.look()
    with run.lock():
        run.check_attempt()
        follower.look()
    follower.ended(0, ["a note"])
    follower.ended(1)
    assert started == [0, 1]
    begin = [f"digits mixmatch 10/{SHORT}", 30, "error 80.0", 40]
    lost = "its process or machine was lost: resumed at step 40 by another"
    assert seen.events == [*begin, lost, "a note", "closed"]


class Cluster:
    """Nodes with so many cores, and each with so many GPUs."""

    def __init__(self, cpus: list[int], gpus: int) -> None:
        self.cpus, self.gpus = cpus, gpus

    def nodes(self) -> list[dict[str, Any]]:
        gpus = {"GPU": self.gpus} if self.gpus else {}
        return [{"Alive": True, "Resources": {"CPU": count, **gpus}} for count in self.cpus]


def test_what_a_task_gets() -> None:
    torch.set_num_threads(2)
    assert share_of(Cluster([8, 5], 0), {"auto"}) == ("cpu", 2, 6)
    assert share_of(Cluster([1, 1], 0), {"auto"}) == ("cpu", 1, 2)
    assert share_of(Cluster([8, 8], 4), {"cpu"}).device == "cpu"
    assert share_of(Cluster([16, 8], 4), {"auto"}) == ("cuda", 2, 8)
    assert share_of(Cluster([8], 0), {"cuda"}) == ("cuda", 1, 0)  # a cluster that grows when asked


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense"])
def test_no_cluster_there(address: str, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'mixmatch[ray]'")
    began = time.monotonic()
    with pytest.raises(MixMatchError, match=f"no Ray cluster at ray={address}"):
        list(Ray(address).run([tiny(tmp_path / "a")]))
    assert time.monotonic() - began < 20


def test_a_task_without_answers() -> None:
    """A cluster without the package, a node lost too often, a fault of ours: each in a line."""
    missing = _failed(RuntimeError("failed to import on the worker\nModuleNotFoundError: No module named 'mixmatch'"))
    assert missing == {"error": "a node of the cluster has no mixmatch: install it on every one", "trace": None}
    lost = _failed(OSError("The node was preempted.\nmore"))
    assert lost["error"] == "Ray gave up on it (OSError: The node was preempted.): the same command resumes it"

    class InTask(Exception):
        cause = ZeroDivisionError("by zero")

    ours = _failed(InTask("ray::do()\n  File ...\nZeroDivisionError: by zero"))
    assert ours["error"] == "ZeroDivisionError: by zero"
    assert "File" in ours["trace"]

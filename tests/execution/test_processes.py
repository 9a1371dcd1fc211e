"""A process for each device, on a CPU that pretends to be two."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jobs import SHORT, models, saved, tiny, undisturbed

from forks import wait_until
from mixmatch.data.source import Rows, Source
from mixmatch.errors import MixMatchError
from mixmatch.execution import executor
from mixmatch.execution.executor import Here, executor_for
from mixmatch.execution.processes import Feeder
from mixmatch.training.device import threads
from mixmatch.training.plan import plan
from mixmatch.training.progress import Quiet
from mixmatch.training.run import RunFolder
from mixmatch.training.stop import Interrupted

TWO = ["cpu", "cpu"]
SEEDS = (1, 2, 3)


def test_runs_are_those_of_one_process_and_one_that_fails_fails_alone(tmp_path: Path) -> None:
    """Also one whose process dies."""

    def kill() -> None:
        wait_until(lambda: saved(tmp_path / "killed"))
        (events,) = (tmp_path / "killed").glob("events.out.tfevents.*")  # TensorBoard's name has the process in it
        os.kill(int(events.name.split(".")[-2]), signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    work = [tiny(tmp_path / "killed", steps=10**6), *(tiny(tmp_path / str(seed), seed, steps=SHORT) for seed in SEEDS)]
    work += [tiny(tmp_path / "bad", labels=20_000)]
    begun: list[int] = []
    with threads(1):
        outcomes = dict(Here(devices=TWO).run(work, begun.append))
    assert sorted(begun) == [0, 1, 2, 3, 4]
    assert str(outcomes[0]) == "its process on cpu ended with code -9: the same command resumes it"
    assert isinstance(outcomes[4], MixMatchError)
    assert "only 1,297 images" in str(outcomes[4])
    assert [outcomes[number]["seed"] for number in (1, 2, 3)] == list(SEEDS)  # type: ignore[index]
    assert models(tmp_path, SEEDS) == undisturbed(tmp_path / "undisturbed", SEEDS, steps=SHORT)


def test_asked_to_stop_the_processes_save_and_end(tmp_path: Path) -> None:
    work = [tiny(tmp_path / name, steps=10**6, checkpoint_every=10**6, eval_every=10) for name in "ab"]

    def stop() -> None:
        wait_until(lambda: all(RunFolder(tmp_path / name).metrics() for name in "ab"))
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    with pytest.raises(Interrupted) as stopped:
        dict(Here(devices=TWO).run(work))
    assert stopped.value.signal == signal.SIGTERM
    for name in "ab":
        assert saved(tmp_path / name)
        with RunFolder(tmp_path / name).lock():  # its process has ended
            pass


def test_objects_of_this_process_are_trained_in_it(tmp_path: Path) -> None:
    images = Rows(np.zeros((30, 8, 8, 1), np.uint8), np.arange(30, dtype=np.int64) % 3)
    source = Source("tiny", ("a", "b", "c"), images, images)
    given = {"method": "supervised", "labels": 12, "steps": 1, "network": "mlp", "batch_size": 4}
    work = [plan(source, given, out=tmp_path / name, device="cpu", reporter=Quiet()) for name in "ab"]
    assert [number for number, _ in Here(devices=TWO).run(work)] == [0, 1]


def test_each_gpu_has_a_process_that_sees_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Child:
        def __init__(self, *command: Any, env: dict[str, str], **more: Any) -> None:
            seen.append(env["CUDA_VISIBLE_DEVICES"])

    monkeypatch.setattr("mixmatch.execution.processes.subprocess.Popen", Child)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert executor.gpus({"auto"}) == executor.gpus({"cuda"}) == ["cuda:0", "cuda:1"]
    assert executor.gpus({"cpu"}) == executor.gpus({"cuda:1"}) == executor.gpus({"auto", "cuda"}) == []
    for visible in ("", "4,7"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        for device in executor.gpus({"auto"}):
            Feeder(device, 2, None, None)._process()  # type: ignore[arg-type]
    assert seen == ["0", "1", "4", "7"]


def test_without_ray_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        MixMatchError, match=r"ray=auto needs Ray, which is not installed: pip install 'mixmatch\[ray\]'"
    ):
        executor_for("auto")
    assert isinstance(executor_for(), Here)

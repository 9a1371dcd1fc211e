"""A run that is stopped, by whatever means and at whatever moment, goes on to the very end it would have had."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import mixmatch
from mixmatch.training.progress import Quiet

STEPS = 60
TRAIN = ["train", "digits", "--steps", STEPS, "--eval-every", 10, "--checkpoint-every", 5, "--batch-size", 16]

Start = Callable[..., "subprocess.Popen[str]"]
Run = Callable[..., Any]
Different = Callable[[Path, Path], list[str]]


@pytest.fixture(scope="module")
def reference(here: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody stopped."""
    folder = tmp_path_factory.mktemp("reference") / "run"
    result = here(*TRAIN, "--out", folder)
    assert result.code == 0, result.err
    return folder


@pytest.fixture
def unfinished(reference: Path, tmp_path: Path) -> Path:
    """A copy that has its last checkpoint but died before the model was written."""
    copy = shutil.copytree(reference, tmp_path / "copy")
    (copy / "result.json").unlink()
    (copy / "model.safetensors").unlink()
    return copy


def newest(folder: Path) -> int:
    return max((int(path.name[5:]) for path in (folder / "checkpoint").glob("step-*")), default=-1)


def wait_for(moment: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 300
    while not moment():
        assert process.poll() is None, f"ended before its moment: {process.communicate()}"
        assert time.monotonic() < end, "its moment never came"
        time.sleep(0.001)


def test_killed_three_times(reference: Path, start: Start, run: Run, different: Different, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    writing = folder / "checkpoint/.writing"
    moments: list[Callable[[], bool]] = [
        lambda: (folder / "metrics.jsonl").exists() and (folder / "metrics.jsonl").stat().st_size > 0,
        lambda: newest(folder) >= 20 and writing.exists(),
        lambda: newest(folder) >= 40,
    ]
    for moment in moments:
        process = start(*TRAIN, "--out", folder, "--resume")
        wait_for(moment, process)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert not (folder / "result.json").exists()
    reached = newest(folder)
    assert reached >= 40
    result = run(*TRAIN, "--out", folder, "--resume")
    assert result.code == 0, result.err
    assert f"resumed at step {reached} of {STEPS}" in result.err
    assert different(reference, folder) == []
    assert not writing.exists()


def test_signals_and_a_second_process(
    reference: Path, start: Start, call: Run, different: Different, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    reached = 0
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        process = start(*TRAIN, "--out", folder, "--resume")
        wait_for(lambda before=reached: newest(folder) > before, process)  # type: ignore[misc]
        if number == signal.SIGTERM:
            process.send_signal(signal.SIGSTOP)  # so that it is surely still running while the second one tries
            second = call(*TRAIN, "--out", folder, "--resume")
            assert second.code == 2
            assert second.err == (
                f"error: another process is writing to {folder}: wait for it or choose another folder with --out\n"
            )
            process.send_signal(signal.SIGCONT)
        process.send_signal(number)
        out, err = process.communicate(timeout=300)
        assert (process.returncode, out) == (code, "")
        reached = newest(folder)
        assert 0 < reached < STEPS
        assert err.splitlines()[-1] == f"stopped at step {reached}, which is saved: continue with --resume"
        assert "Traceback" not in err
    result = call(*TRAIN, "--out", folder, "--resume")
    assert result.code == 0, result.err
    assert different(reference, folder) == []


def test_damaged_checkpoint(reference: Path, unfinished: Path, call: Run, different: Different) -> None:
    damaged = unfinished / f"checkpoint/step-{STEPS:08d}/optimizer.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    older = f"step-{STEPS - 5:08d}"
    refused = call("train", "digits", "--out", unfinished, "--resume")
    assert refused.code == 2
    assert refused.err == (
        f"error: the checkpoint {damaged.parent} is damaged: optimizer.safetensors is not what was written; "
        f"continue from the one before it with --checkpoint {older}\n"
    )
    unknown = call("train", "digits", "--out", unfinished, "--resume", "--checkpoint", "step-7")
    assert unknown.code == 2
    assert "no checkpoint 'step-7'" in unknown.err
    assert older in unknown.err
    result = call(*TRAIN, "--out", unfinished, "--resume", "--checkpoint", older)
    assert result.code == 0, result.err
    assert f"resumed at step {STEPS - 5} of {STEPS}" in result.err
    assert different(reference, unfinished) == []


class Dies(Quiet):
    """Ends the process' work at its first steps, without a checkpoint."""

    def steps(self, step: int, values: Mapping[str, float]) -> None:
        raise KeyboardInterrupt


def test_going_back_and_dying(reference: Path, call: Run, different: Different, tmp_path: Path) -> None:
    """Who goes back to an older checkpoint of a finished run and is stopped again goes on from there."""
    folder = shutil.copytree(reference, tmp_path / "copy")
    with pytest.raises(KeyboardInterrupt):
        mixmatch.train("digits", out=folder, resume=True, checkpoint=f"step-{STEPS - 5:08d}", reporter=Dies())
    assert newest(folder) == STEPS - 5
    assert not (folder / "result.json").exists()
    result = call("train", "digits", "--out", folder, "--resume", "--checkpoint-every", 5)
    assert result.code == 0, result.err
    assert different(reference, folder) == []


def test_interrupted_before_the_first_step(start: Start, call: Run, tmp_path: Path) -> None:
    """Even then there is something to go on from, or nothing but one line."""
    folder = tmp_path / "run"
    process = start("train", "digits", "--steps", 100_000, "--batch-size", 16, "--out", folder)
    wait_for((folder / "config.json").exists, process)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("stopped")
    again = start("train", "digits", "--out", folder, "--resume")
    wait_for((folder / "metrics.jsonl").exists, again)
    again.kill()
    again.communicate()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="what a process has loaded cannot be seen")
def test_ctrl_c_while_torch_is_imported(start: Start) -> None:
    process = start("train", "digits", "--steps", 1)
    wait_for(lambda: "libtorch" in Path(f"/proc/{process.pid}/maps").read_text(), process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "stopped\n")

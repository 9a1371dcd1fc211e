"""`mixmatch train` as a process: what it leaves behind, what it prints where, and which settings it takes."""

from __future__ import annotations

import dataclasses
import json
import os
import pty
import re
import shutil
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from mixmatch import methods
from mixmatch.cli import app
from mixmatch.settings import Settings

SHORT = ["--steps", "12", "--eval-every", "6", "--checkpoint-every", "5", "--batch-size", "16"]
OF_METHOD = {"K": 3, "T": 0.4, "alpha": 0.6, "lambda_u": 50.0, "ramp": 7, "passes": "official"}
OPTIONS = [word for name, value in OF_METHOD.items() for word in (f"--{name.replace('_', '-')}", str(value))]


@pytest.fixture(scope="module")
def finished(run: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A run in the default folder with settings of its own, and what the command answered."""
    here = tmp_path_factory.mktemp("train")
    result = run("train", "digits", *SHORT, *OPTIONS, "--json", cwd=here)
    return here / "runs/digits-mixmatch-20-seed1", result


def test_run_folder(finished: tuple[Path, Any]) -> None:
    folder, result = finished
    assert result.code == 0, result.err
    names = {path.name for path in folder.iterdir()} - {".lock"}
    events = {name for name in names if name.startswith("events.out.tfevents")}
    assert names - events == {"config.json", "metrics.jsonl", "checkpoint", "model.safetensors", "result.json"}
    assert len(events) == 1
    assert sorted(path.name for path in (folder / "checkpoint").iterdir()) == ["step-00000010", "step-00000012"]
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics] == [6, 12]
    assert {"test_error", "test_loss", "loss", "loss_x", "loss_u", "confidence", "seconds"} <= metrics[0].keys()
    settings = json.loads((folder / "config.json").read_text())["settings"]
    assert OF_METHOD.items() <= settings["method_settings"].items()
    assert (settings["steps"], settings["batch_size"], settings["labels"]) == (12, 16, 20)


def test_tensorboard_curves(finished: tuple[Path, Any]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder, _ = finished
    events = EventAccumulator(str(folder))
    events.Reload()
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    curve = [(event.step, event.value) for event in events.Scalars("test_error")]
    assert curve == [(line["step"], pytest.approx(line["test_error"])) for line in metrics]


def test_output(finished: tuple[Path, Any]) -> None:
    """Standard output is one JSON object; progress is plain lines on standard error, which is no terminal here."""
    folder, result = finished
    record = json.loads(result.out)
    assert json.loads((folder / "result.json").read_text()) == {"format": 1, **record}
    assert (record["data"], record["method"], record["seed"], record["steps"]) == ("digits", "mixmatch", 1, 12)
    assert [point["step"] for point in record["curve"]] == [6, 12]
    assert "\x1b" not in result.err
    assert "\r" not in result.err
    first, *_, last = result.err.splitlines()
    assert first == "digits mixmatch: 12 steps"
    assert re.match(r"step 12/12  [\d.]+ steps/s  0:00 left  loss .* confidence .* error [\d.]+ %$", last)


def test_finished_run_is_kept(finished: tuple[Path, Any], call: Callable[..., Any]) -> None:
    folder, result = finished
    model = (folder / "model.safetensors").read_bytes()
    refused = call("train", "digits", *SHORT, "--out", folder)
    assert refused.code == 2
    assert refused.err.count("\n") == 1
    assert "holds a run already" in refused.err
    assert "--resume" in refused.err
    other = call("train", "digits", "--steps", 20, "--K", 4, "--out", folder, "--resume")
    assert other.code == 2
    assert "(steps: 12 -> 20; K: 3 -> 4)" in other.err
    other = call("train", "digits", "--method", "supervised", "--out", folder, "--resume")
    assert other.code == 2
    assert "method: mixmatch -> supervised" in other.err
    again = call("train", "digits", *SHORT, *OPTIONS, "--out", folder, "--resume", "--json")
    assert again.code == 0
    assert json.loads(again.out) == json.loads(result.out)
    assert (folder / "model.safetensors").read_bytes() == model


def test_resume_continues(
    finished: tuple[Path, Any], run: Callable[..., Any], different: Callable[..., Any], tmp_path: Path
) -> None:
    """Settings need not be told again, and the end is the same."""
    folder, _ = finished
    copy = shutil.copytree(folder, tmp_path / "copy")
    shutil.rmtree(copy / "checkpoint/step-00000012")
    for name in ("result.json", "model.safetensors"):
        (copy / name).unlink()
    result = run("train", "digits", "--out", copy, "--resume")
    assert result.code == 0, result.err
    assert "resumed at step 10 of 12" in result.err
    assert different(folder, copy) == []


def test_quiet_text_and_all_labels(run: Callable[..., Any], tmp_path: Path) -> None:
    result = run(
        "train", "digits", "--method", "supervised", "--labels", "all", "--steps", 4, "--valid", 97, "--quiet",
        "--out", tmp_path / "run",
    )  # fmt: skip
    assert (result.code, result.err) == (0, "")
    said, model = result.out.splitlines()
    assert re.fullmatch(r"test error [\d.]+ % after 4 steps and \d+:\d\d", said)
    assert model == f"model: {tmp_path / 'run/model.safetensors'}"
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["settings"]["labels"] == "all"
    assert config["settings"]["method_settings"].keys() == methods.settings_of("supervised").keys()
    assert (config["split"]["labeled"], config["split"]["unlabeled"], config["split"]["valid"]) == (1200, 0, 97)


def test_bar_on_a_terminal(start: Callable[..., Any], tmp_path: Path) -> None:
    """80 columns are enough for everything a person wants to see."""
    terminal, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TERM": "xterm-256color"}
    environment.pop("COLUMNS", None)
    environment.pop("NO_COLOR", None)
    process = start("train", "digits", *SHORT, "--out", tmp_path / "run", stderr=theirs, env=environment)
    os.close(theirs)
    seen = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # how Linux says that the other side is closed
            piece = b""
        if not piece:
            break
        seen += piece
    os.close(terminal)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert out.startswith("test error ")
    assert "\x1b" not in out
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", text)]
    assert max(map(len, lines)) <= 80
    assert "…" not in text
    assert any(re.match(r"digits mixmatch ━+.* 6/12 [\d.]+ steps/s \d+:\d\d left$", line) for line in lines)
    assert any(re.match(r"digits mixmatch ━+ +12/12 [\d.]+ steps/s in \d+:\d\d$", line) for line in lines)
    last_error = re.search(r"test error ([\d.]+) % after", out)
    assert last_error is not None
    values = next(line for line in reversed(lines) if line)
    assert re.fullmatch(rf"error {last_error[1]} %  loss \S+  loss_x \S+  loss_u \S+  confidence \S+", values)


def test_every_setting_has_an_option() -> None:
    command = typer.main.get_command(app).commands["train"]  # type: ignore[attr-defined]
    options = {param.name: param.opts for param in command.params}
    wanted = {field.name for field in dataclasses.fields(Settings)} - {"method_settings", "data_options"}
    for name in methods.METHODS:
        wanted |= methods.settings_of(name).keys()
    assert wanted <= options.keys()
    for name in wanted - {"data"}:
        assert f"--{name.replace('_', '-')}" in options[name]

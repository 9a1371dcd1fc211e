"""`mixmatch train` as a process: what it leaves behind, what it prints where, and which settings it takes."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from saying import one_line
from terminals import Terminal

from mixmatch import methods
from mixmatch.cli.train import build
from mixmatch.settings import Settings, of_run

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
    names = {path.name for path in folder.iterdir()} - {".attempt", ".lock"}
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
    assert re.match(r"step 12/12  [\d.]+ steps/s  0:00 left  error [\d.]+ %  loss [\d.]+  loss_x [\d.]+$", last)
    assert max(map(len, result.err.splitlines())) <= 80


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
    finished: tuple[Path, Any], call: Callable[..., Any], different: Callable[..., Any], tmp_path: Path
) -> None:
    """Settings need not be told again, and the end is the same."""
    folder, _ = finished
    copy = shutil.copytree(folder, tmp_path / "copy")
    shutil.rmtree(copy / "checkpoint/step-00000012")
    for name in ("result.json", "model.safetensors"):
        (copy / name).unlink()
    result = call("train", "digits", "--out", copy, "--resume")
    assert result.code == 0, result.err
    assert "resumed at step 10 of 12" in result.err
    assert different(folder, copy) == []


def test_quiet_text_and_all_labels(call: Callable[..., Any], tmp_path: Path) -> None:
    result = call(
        "train", "digits", "--method", "supervised", "--labels", "all", "--steps", 4, "--valid", 97, "--quiet",
        "--out", tmp_path / "run",
    )  # fmt: skip
    assert (result.code, result.err) == (0, "")
    said, model = result.out.splitlines()
    assert re.fullmatch(r"test error [\d.]+ % after 4 steps and \d+:\d\d", said)
    assert model == f"model: {tmp_path / 'run/model.safetensors'}"
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["settings"]["labels"] == "all"
    assert config["settings"]["method_settings"].keys() == methods.declared("supervised").keys()
    assert (config["split"]["labeled"], config["split"]["unlabeled"], config["split"]["valid"]) == (1200, 0, 97)


def test_warnings_break_between_words_on_a_terminal_alone() -> None:
    text = "3 images cannot be read: left out (dog/half.HEIC: [not] an image in a known format): replace or remove them"
    command = [sys.executable, "-c", f"from mixmatch.cli.options import warn; warn({text!r})"]
    terminal = Terminal(80)
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    subprocess.run(command, stderr=terminal.end, env=environment | {"TERM": "xterm"}, check=True)
    lines = terminal.read().splitlines()
    assert [len(line) <= 80 for line in lines] == [True, True]
    assert " ".join(line.strip() for line in lines) == f"warning: {text}"
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == f"warning: {text}\n"


def test_bar_on_a_terminal(start: Callable[..., Any], tmp_path: Path) -> None:
    """80 columns are enough for everything a person wants to see."""
    terminal = Terminal(80)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TERM": "xterm-256color"}
    environment.pop("COLUMNS", None)
    environment.pop("NO_COLOR", None)
    process = start("train", "digits", *SHORT, "--out", tmp_path / "run", stderr=terminal.end, env=environment)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert out.startswith("test error ")
    assert "\x1b" not in out
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.read())
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", text)]
    assert max(map(len, lines)) <= 80
    assert "…" not in text
    assert any(re.match(r"digits mixmatch ━+.* \d+/12 [\d.]+ steps/s \d+:\d\d left$", line) for line in lines)
    assert any(re.match(r"digits mixmatch ━+ +12/12 [\d.]+ steps/s in \d+:\d\d$", line) for line in lines)
    last_error = re.search(r"test error ([\d.]+) % after", out)
    assert last_error is not None
    values = next(line for line in reversed(lines) if line)
    assert re.fullmatch(rf"error {last_error[1]} %  loss \S+  loss_x \S+  loss_u \S+  confidence \S+", values)


def test_every_setting_has_an_option() -> None:
    app = typer.Typer()
    app.command()(build([]))
    options = {param.name: param.opts for param in typer.main.get_command(app).params}
    wanted = {field.name for field in dataclasses.fields(Settings)} - {"method_settings", "data_options"}
    for name in methods.METHODS:
        wanted |= methods.declared(name).keys()
    assert wanted <= options.keys()
    for name in wanted - {"data"}:
        assert f"--{name.replace('_', '-')}" in options[name]


# ---------------------------------------------------------------- settings of a method


def shown_options(text: str) -> set[str]:
    """The options that a help lists, one at the beginning of a line of a box."""
    return {
        match[1].replace("-", "_") for match in re.finditer(r"^│ (?:\*\s+)?--(?:\[no-\])?([\w-]+)", text, re.MULTILINE)
    }


@pytest.mark.parametrize("name", methods.METHODS)
@pytest.mark.parametrize("spelled", ["--method {}", "--method={}"])
def test_the_help_of_a_method(name: str, spelled: str, call: Callable[..., Any]) -> None:
    """Its settings are shown, and no setting that only other methods have."""
    result = call("train", *spelled.format(name).split(), "--help")
    assert (result.code, result.err) == (0, "")
    options = shown_options(result.out)
    ours = methods.declared(name).keys()
    others = {setting for other in methods.METHODS for setting in methods.declared(other)} - ours
    assert ours <= options
    assert not others & options
    assert of_run().keys() <= options
    assert f"Settings of {name} " in result.out
    if name == "ict":
        assert "consistency_weight" in options
        assert "K" in others


def test_the_help_follows_the_file_or_the_run(
    finished: tuple[Path, Any], call: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "vat.toml"
    file.write_text('method = "vat"\n')
    assert "epsilon" in shown_options(call("train", "--config", file, "--help").out)
    assert "lambda_u" in shown_options(call("train", "--config", file, "--method", "mixmatch", "--help").out)
    folder, _ = finished
    config = json.loads((folder / "config.json").read_text())
    config["settings"]["method"] = "ict"
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "Settings of ict" in call("train", f"--out={tmp_path}", "--help").out
    assert "Settings of mixmatch" in call("train", "--out", tmp_path / "nothing", "--help").out
    assert "Settings of mixmatch" in call("train", "--method", "nosuch", "--help").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--method ict --K 3", "method 'ict' has no setting --K (mixmatch, remixmatch have it)"),
        ("--K 3 --method=ict", "method 'ict' has no setting --K (mixmatch, remixmatch have it)"),
        ("--epsilon 2", "method 'mixmatch' has no setting --epsilon (vat has it)"),
        (
            "--method ict --lambda-u 3",
            "softmatch, adamatch have it); its own are --consistency-weight, --alpha, ",
        ),
        ("--method ict --K two", "--K 'two' must be a whole number of at least 1"),
        ("--method supervised --alpha 0.5", "method 'supervised' has no setting --alpha (mixmatch, "),
    ],
)
def test_a_setting_of_another_method(arguments: str, said: str, call: Callable[..., Any]) -> None:
    one_line(call("train", "digits", *arguments.split()), said)
    assert list(Path.cwd().iterdir()) == []


# ---------------------------------------------------------------- settings from a file


def test_from_the_settings_of_a_run(finished: tuple[Path, Any], call: Callable[..., Any], tmp_path: Path) -> None:
    """The same settings give the same run; what is given beside the file wins."""
    folder, result = finished
    options = ["--config", folder / "config.json", "--quiet"]
    again = call("train", "digits", *options, "--out", tmp_path / "again", "--json")
    assert again.code == 0, again.err
    assert json.loads(again.out)["curve"] == json.loads(result.out)["curve"]
    settings = [json.loads((f / "config.json").read_text())["settings"] for f in (folder, tmp_path / "again")]
    assert settings[0] == settings[1]
    other = call("train", "digits", *options, "--seed", 2, "--K", 1, "--steps", 3, "--out", tmp_path / "other")
    assert other.code == 0, other.err
    ours = json.loads((tmp_path / "other" / "config.json").read_text())["settings"]
    of_method = {**settings[0]["method_settings"], "K": 1}
    assert ours == {**settings[0], "seed": 2, "steps": 3, "method_settings": of_method}


def test_from_a_toml_file(call: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text('method = "ict"\nsteps = 3\nbatch_size = 8\nconsistency_weight = 7\nlabels = 30\n')
    result = call("train", "digits", "--config", file, "--steps", 2, "--quiet", "--out", tmp_path / "run")
    assert result.code == 0, result.err
    settings = json.loads((tmp_path / "run" / "config.json").read_text())["settings"]
    assert (settings["method"], settings["steps"], settings["batch_size"], settings["labels"]) == ("ict", 2, 8, 30)
    assert settings["method_settings"]["consistency_weight"] == 7.0


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.toml", "stepps = 3", "unknown setting 'stepps': did you mean 'steps'?"),
        ("a.toml", 'method = "ict"\nK = 3', "method 'ict' has no setting --K (mixmatch, remixmatch have it)"),
        (
            "a.toml",
            "[ict]\nalpha = 0.3",
            "unknown table [ict]: its settings go at the top of the file, outside any table",
        ),
        ("a.toml", "[ict]\nalpha = 0.3", 'outside any table, after method = "ict"'),
        ("a.toml", "[training]\nsteps = 3", "unknown table [training]: its settings go at the top of the file"),
        ("a.toml", "steps = 0", "--steps 0 must be a whole number of at least 1"),
        ("a.toml", 'steps = "many"', "--steps 'many' must be a whole number of at least 1"),
        ("a.toml", "steps = ", "a.toml is not a file of settings, TOML or a run's config.json"),
        ("a.json", '{"settings": {', "a.json is not a file of settings"),
        ("a.json", "[1]", "a.json holds no settings"),
        ("a.json", "{}", "a.json holds no settings"),
        ("a.json", '{"settings": 3}', "a.json holds no settings"),
        ("a.json", '{"settings": {"method_settings": 3}}', "a.json: method_settings must be a table"),
        ("a.json", '{"settings": {"data_options": {"image_size": 3}}}', "--image-size is for your own data"),
        ("a.json", "\udcff", "a.json is not a file of settings"),
        ("a.toml", None, "a.toml cannot be read: No such file or directory"),
    ],
)
def test_files_that_are_refused(
    name: str, content: str | None, said: str, call: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content.encode("utf-8", "surrogateescape"))
    one_line(call("train", "digits", "--config", file), said)
    assert list(Path.cwd().iterdir()) == []


def test_a_folder_is_no_file_of_settings(call: Callable[..., Any], tmp_path: Path) -> None:
    one_line(call("train", "digits", "--config", tmp_path), f"{tmp_path} cannot be read: Is a directory")

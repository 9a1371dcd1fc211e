"""What goes wrong is one line that says what and what to do; never a traceback, and nothing is lost or littered."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from saying import one_line

import mixmatch
from limits import largest_file
from mixmatch.classifier import Classifier
from mixmatch.cli import COMMANDS, Group
from mixmatch.training.run import RunFolder

Call = Callable[..., Any]
SHORT = ["--steps", 10, "--checkpoint-every", 5, "--eval-every", 5, "--batch-size", 8]


@pytest.fixture(scope="module")
def finished(here: Call, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    result = here("train", "digits", *SHORT, "--out", folder)
    assert result.code == 0, result.err
    return folder


@pytest.fixture
def half_done(finished: Path, tmp_path: Path) -> Path:
    """A run that died between its first checkpoint and its second."""
    copy = shutil.copytree(finished, tmp_path / "half")
    shutil.rmtree(copy / "checkpoint/step-00000010")
    (copy / "result.json").unlink()
    (copy / "model.safetensors").unlink()
    return copy


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("train digit", "'digit' is neither a data set nor a file or folder: did you mean 'digits'?"),
        ("data check ''", "DATA is empty: give a name (digits, cifar10, ...) or a path"),
        ("train nowhere/photos", "there is no file or folder nowhere/photos"),
        ("train photos", "'photos' is neither a data set nor a file or folder (data sets: cifar10, cifar100, digits,"),
        ("train cifar-10", "'cifar-10' is neither a data set nor a file or folder: did you mean 'cifar10'?"),
        ("train digits --method mixmach", "unknown method 'mixmach': did you mean 'mixmatch'?"),
        ("train digits --network wrn-smal", "unknown network 'wrn-smal': did you mean 'wrn-small'?"),
        ("train digits --schedule cosin", "--schedule 'cosin' must be one of constant, cosine, linear"),
        ("train digits --precision fp64", "--precision 'fp64' must be one of fp32, bf16"),
        ("train digits --passes fast", "--passes 'fast' must be one of official, fused"),
        ("train digits --device gpu", "unknown device 'gpu': use auto, cpu, cuda or mps"),
        ("train digits --labels 0", "--labels 0 must be a whole number of at least 1 or 'all'"),
        ("train digits --labels -5", "--labels -5 must be"),
        ("train digits --labels x", "--labels 'x' must be a whole number of at least 1 or 'all'"),
        ("train digits --labels 1298", "1,298 labels asked for, but there are only 1,297"),
        ("train digits --labels 9", "9 labels leave 1 of the 10 classes without any"),
        ("train digits --labels all", "no unlabeled images are left for method 'mixmatch'"),
        ("train digits --valid 5000", "cannot hold out 5,000 images for validation"),
        ("train digits --steps 0", "--steps 0 must be a whole number of at least 1"),
        ("train digits --batch-size 0", "--batch-size 0 must be a whole number of at least 1"),
        ("train digits --seed -1", "--seed -1 must be"),
        ("train digits --seed 4294967296", "the seed 4,294,967,296 must be at least 0 and below 4,294,967,296"),
        ("train digits --learning-rate nan", "--learning-rate nan must be a number of at least 0"),
        ("train digits --learning-rate -1", "--learning-rate -1 must be a number of at least 0"),
        ("train digits --ema-decay 1.5", "--ema-decay 1.5 must be a number between 0 and 1"),
        ("train digits --pad 8", "pad"),
        ("train digits --K 0", "--K 0 must be a whole number of at least 1"),
        ("train digits --K two", "--K 'two' must be a whole number of at least 1"),
        ("train digits --alpha 0", "--alpha 0 must be a number above 0"),
        ("train digits --checkpoint-every 0", "--checkpoint-every 0 must be 1 or more"),
        (
            "train digits --method supervised --K 2",
            "method 'supervised' has no setting --K (mixmatch, ",
        ),
        ("train cifar10 --data-dir empty", "put it at empty/cifar-10"),
        ("train svhn --data-dir empty", "put it at empty/train_32x32.mat"),
        ("evaluate nowhere", "nowhere is not a run folder"),
        ("data check digitz", "did you mean 'digits'?"),
        ("compare digitz", "did you mean 'digits'?"),
    ],
)
def test_one_line(arguments: str, said: str, call: Call) -> None:
    Path("empty").mkdir()
    one_line(call(*shlex.split(arguments)), said)
    assert [path.name for path in Path.cwd().iterdir()] == ["empty"]
    assert list(Path("empty").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["train", "digits", "--out", ""], "--out"),
        (["train", "digits", "--resume", "--out", " "], "--out"),
        (["label", "", "--no-browser"], "FOLDER"),
        (["evaluate", ""], "RUN"),
        (["compare", "digits", "--seeds", "1", "2", "--out", ""], "--out"),
        (["data", "check", "digits", "--labels-file", ""], "--labels-file"),
        (["predict", "RUN", "photos", "--output-dir", ""], "--output-dir"),
    ],
)
def test_an_empty_path_is_not_the_current_folder(arguments: list[str], name: str, call: Call, finished: Path) -> None:
    """As a shell's variable that is not set leaves it."""
    one_line(call(*(finished if word == "RUN" else word for word in arguments)), f"{name} is empty: give a path")
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="a shell is needed to close an output")
def test_a_closed_output_is_no_error() -> None:
    """As `mixmatch ... >&-` leaves it, and a service that is started without one."""
    command = f"{shlex.quote(sys.executable)} -m mixmatch methods >&-"
    done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("path", ["", " "])
def test_no_input_is_not_the_current_folder(path: str, call: Call, finished: Path) -> None:
    one_line(call("predict", finished, path), "a path is empty: give that of a file or a folder")
    one_line(call("predict", finished, path, "--output-dir", "new"), "a path is empty")
    one_line(call("pate", "teachers", path, "--teachers", 2, "--out", "new"), "data is empty: give a name (digits,")
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize("command", ["train", "evaluate", "data check", "label --no-browser", "train digits --out"])
def test_paths_that_cannot_be(command: str, call: Call) -> None:
    one_line(call(*command.split(), "x" * 5000), "xxxx")
    if command.startswith("label"):
        one_line(call(*command.split(), "~nobody-here/photos"), "a path begins with ~ and an unknown user name")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_no_cuda(run: Call, tmp_path: Path) -> None:
    """As a process: the exit code and the one line are what a shell sees."""
    one_line(run("train", "digits", "--device", "cuda", cwd=tmp_path), "'cuda' is not available here: use --device cpu")
    assert list(tmp_path.iterdir()) == []


def test_too_little_memory_on_a_gpu(call: Call, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **given: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory.\nlines and lines")

    monkeypatch.setattr(Classifier, "load", full)
    one_line(call("evaluate", finished), "the GPU has too little memory", "use --device cpu")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train", "digits", "--step", "5"], "--steps"),
        (["train"], "DATA"),
        (["trian", "digits"], "'train'"),
        (["compare", "digits", "--seeds"], "--seeds"),
        (["predict", "run", "photos", "--sort", "sure"], "'--sort': 'sure' is not one of 'uncertain'"),
    ],
)
def test_usage(arguments: list[str], says: str, call: Call) -> None:
    """Also what the option parser finds is one line, with where to look."""
    one_line(call(*arguments), says, "--help)")


def test_paths_that_are_in_the_way(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    one_line(
        call("train", "digits", *SHORT, "--out", file), f"cannot write to {file}", "choose another folder with --out"
    )
    one_line(call("train", "digits", *SHORT, "--out", file / "run"), f"cannot write to {file / 'run'}")
    one_line(call("train", "cifar10", "--data-dir", file), str(file))
    one_line(call("compare", "digits", "--steps", 2, "--out", file), f"cannot write to {file}")
    one_line(call("evaluate", file), str(file))
    assert file.read_text() == "mine"
    if sys.platform == "linux":
        one_line(call("train", "digits", *SHORT, "--out", "/proc/run"), "cannot write to /proc/run")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("mode", [0o555, 0o000])
def test_folder_without_permission(mode: int, call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(mode)
    try:
        one_line(
            call("train", "digits", *SHORT, "--out", folder / "run"),
            "Permission denied",
            "choose another folder with --out",
        )
    finally:
        folder.chmod(0o755)


def test_loss_that_is_not_finite(call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train = ["train", "digits", "--learning-rate", 1e20, "--steps", 9, "--checkpoint-every", 1, "--batch-size", 8]
    result = call(*train, "--out", folder)
    assert (result.code, result.out) == (2, "")
    last = result.err.splitlines()[-1]
    found = re.fullmatch(
        r"error: the loss was not finite at step (\d+): the last good checkpoint, step (\d+), is kept in "
        rf"{re.escape(str(folder))}; try a lower learning rate in another folder",
        last,
    )
    assert found, result.err
    bad, good = map(int, found.groups())
    assert good == bad > 0  # `good` steps were done, the next one, number `bad` from 0, went wrong
    saved = RunFolder(folder).load_checkpoint()
    assert saved is not None
    assert saved.step == good
    assert not (folder / "result.json").exists()
    assert not (folder / "model.safetensors").exists()


def test_full_disk(finished: Path, half_done: Path, call: Call, different: Callable[..., Any]) -> None:
    weights = (finished / "checkpoint/step-00000010/weights.safetensors").stat().st_size
    train = ["train", "digits", *SHORT, "--out", half_done, "--resume"]
    with largest_file(weights + 1000):  # the optimizer's file is twice as large
        result = call(*train)
    assert (result.code, result.out) == (2, "")
    assert result.err.splitlines()[-1] == (
        f"error: cannot write to {half_done} (File too large): the last checkpoint, step 5, is intact; make room, "
        "then continue with --resume"
    )
    assert "Traceback" not in result.err
    assert [path.name for path in (half_done / "checkpoint").iterdir()] == ["step-00000005"]
    result = call(*train)
    assert result.code == 0, result.err
    assert different(finished, half_done) == []


def test_full_disk_at_the_start_and_at_the_end(finished: Path, call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    with largest_file(500):
        result = call("train", "digits", *SHORT, "--out", folder)
    one_line(result, f"cannot write to {folder} (File too large)")
    assert sorted(path.name for path in folder.iterdir()) == [".attempt", ".lock"]  # nothing of the run
    folder = shutil.copytree(finished, tmp_path / "copy")
    (folder / "result.json").unlink()
    (folder / "model.safetensors").unlink()
    with largest_file(100_000):
        result = call("train", "digits", *SHORT, "--out", folder, "--resume", "--quiet")
    one_line(result, f"cannot write to {folder} (File too large): make room, then continue with --resume")
    assert not list(folder.glob("*model*"))
    assert mixmatch.load(folder).classes == tuple("0123456789")  # from the checkpoint


@pytest.mark.parametrize("content", ["", '{"format": 1, "settings": {', "[]", "{}", '{"format": 1}', '{"format": 99}'])
def test_damaged_config(content: str, half_done: Path, call: Call) -> None:
    (half_done / "config.json").write_text(content)
    one_line(call("train", "digits", *SHORT, "--out", half_done, "--resume"), f"{half_done / 'config.json'} ")
    one_line(call("evaluate", half_done), f"{half_done / 'config.json'} ")
    assert (half_done / "checkpoint/step-00000005").is_dir()


def test_damaged_settings_and_metrics(half_done: Path, call: Call) -> None:
    config = json.loads((half_done / "config.json").read_text())
    for change, said in (
        ({"steps": "many"}, "--steps 'many' must be"),
        ({"colour": "red"}, "unknown setting 'colour'"),
        ({"method": "mixmach"}, "did you mean 'mixmatch'?"),
    ):
        changed = {**config, "settings": {**config["settings"], **change}}
        (half_done / "config.json").write_text(json.dumps(changed))
        one_line(call("train", "digits", "--out", half_done, "--resume"), said)
    (half_done / "config.json").write_text(json.dumps({**config, "split": {**config["split"], "hash": "another"}}))
    one_line(call("train", "digits", "--out", half_done, "--resume"), "the data has changed")
    (half_done / "config.json").write_text(json.dumps(config))
    (half_done / "metrics.jsonl").write_text("")
    one_line(call("train", "digits", "--out", half_done, "--resume"), "is damaged (it has 0 of the 1 evaluations")


def every_command() -> Iterator[list[str]]:
    yield []
    for name, entry in COMMANDS.items():
        yield [name]
        if isinstance(entry, Group):
            yield from ([name, inner] for inner in entry.commands)


def test_help_and_version(call: Call) -> None:
    result = call("--version")
    assert (result.code, result.out) == (0, f"{mixmatch.__version__}\n")
    result = call()
    assert result.code in (0, 2)
    assert "mixmatch train cifar10" in result.out + result.err
    commands = list(every_command())
    assert ["data", "check"] in commands
    for command in commands:
        result = call(*command, "--help")
        assert (result.code, result.err) == (0, "")
        assert "Examples:" in result.out
        assert f"mixmatch {' '.join(command)}".rstrip() + " " in result.out.split("Examples:")[1]

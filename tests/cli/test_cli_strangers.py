"""A run folder that somebody else made: whatever is in it, opening and resuming it ends, with success or one line, and
touches nothing outside."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mixmatch.storage import NotPlain, parse_json, read_json, remove_folder
from mixmatch.training import tensors

Call = Callable[..., Any]
FOLDERS = Path(__file__).parents[1] / "fixtures" / "run_folders"
SECONDS = 60
MEMORY = 6 * 2**30
"""More than importing PyTorch takes of address space, less than what is asked for here."""

pytestmark = pytest.mark.skipif(os.name != "posix", reason="pipes and devices as POSIX has them")


@pytest.fixture(autouse=True)
def limits() -> Iterator[None]:
    """A hang and a full memory are errors of the test, not of the machine."""

    def late(*_: object) -> None:
        raise TimeoutError(f"not done after {SECONDS} s")

    memory = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, late)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, memory[1]))
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    resource.setrlimit(resource.RLIMIT_AS, memory)


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    return shutil.copytree(FOLDERS / "digits-vat", tmp_path / "finished")


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    return shutil.copytree(FOLDERS / "digits-mixmatch-stopped", tmp_path / "stopped")


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """What belongs to the user, and is as it was at the end."""
    folder = tmp_path / "outside"
    (folder / "step-00000001").mkdir(parents=True)
    for name in ("diary.txt", "step-00000001/weights.safetensors"):
        (folder / name).write_text("mine")
    yield folder
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) == [
        "diary.txt",
        "step-00000001",
        "step-00000001/weights.safetensors",
    ]
    assert {path.read_text() for path in folder.rglob("*") if path.is_file()} == {"mine"}


def resume(folder: Path) -> list[object]:
    """Resume a run: another number of steps is a change that writes everything."""
    steps = json.loads((folder / "config.json").read_text())["settings"]["steps"]
    return ["train", "digits", "--resume", "--out", folder, "--steps", steps, "--quiet"]


def one_line(result: Any) -> str:
    assert result.code == 2, result
    assert result.err.startswith("error: "), result.err
    assert result.err.count("\n") == 1, result.err
    return str(result.err)


def replace(path: Path, what: str, outside: Path) -> None:
    """Put something else in the place of a file."""
    path.unlink(missing_ok=True)
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what == "huge":
        with path.open("wb") as file:
            file.truncate(10 * 2**30)
    else:
        path.symlink_to({"device": Path("/dev/zero"), "link": outside / "diary.txt", "gone": outside / "new"}[what])


@pytest.mark.parametrize("what", ["pipe", "device", "link", "folder", "huge"])
def test_files_that_are_none(what: str, finished: Path, stopped: Path, outside: Path, call: Call) -> None:
    for name in ("config.json", "result.json", "model.safetensors"):
        copy = shutil.copytree(finished, finished.with_name(f"{what}-{name}"))
        replace(copy / name, what, outside)
        said = one_line(call("report", copy))
        assert str(copy / name) in said
        if name != "result.json":
            assert str(copy / name) in one_line(call("export", copy, "--format", "safetensors"))
    for name in (
        ".lock",
        ".attempt",
        "metrics.jsonl",
        "checkpoint/step-00000006/state.json",
        "checkpoint/step-00000006/ema.safetensors",
    ):
        if (what, name) == ("huge", ".lock"):
            continue
        copy = shutil.copytree(stopped, stopped.with_name(f"{what}-{Path(name).name}"))
        replace(copy / name, what, outside)
        said = one_line(call(*resume(copy)))
        assert Path(name).name in said


@pytest.mark.parametrize("name", ["checkpoint", "checkpoint/.writing", "checkpoint/step-00000006", ".lock", "baseline"])
def test_links_in_the_place_of_folders(name: str, stopped: Path, outside: Path, call: Call) -> None:
    """Nothing is written, removed or read behind them."""
    path = stopped / name
    if path.is_dir():
        shutil.rmtree(path)
    path.symlink_to(outside / "new" if name == ".lock" else outside)
    result = call(*resume(stopped))
    if name in ("checkpoint/.writing", "baseline"):
        assert result.code == 0, result.err
        assert (stopped / "result.json").exists()
    else:
        assert "link" in one_line(result)


@pytest.mark.parametrize("name", [".replaced", ".writing", ".removing-1", "step-00000001"])
def test_pipes_in_the_place_of_folders(name: str, stopped: Path, call: Call) -> None:
    """They are removed, and nobody is waited for who would write to them."""
    os.mkfifo(stopped / "checkpoint" / name)
    assert call(*resume(stopped)).code == 0
    assert not (stopped / "checkpoint" / name).exists()


def test_links_of_the_user_are_followed(stopped: Path, finished: Path, call: Call, tmp_path: Path) -> None:
    """A run folder may lie on another disk, and a model may be named by a link."""
    (tmp_path / "disk").symlink_to(stopped.parent)
    (tmp_path / "mine").symlink_to(stopped)
    (tmp_path / "best.safetensors").symlink_to(finished / "model.safetensors")
    assert call(*resume(tmp_path / "mine")).code == 0
    assert (
        call("export", tmp_path / "disk" / "stopped", "--output", tmp_path / "a", "--format", "safetensors").code == 0
    )
    assert (
        call("export", tmp_path / "best.safetensors", "--output", tmp_path / "b", "--format", "safetensors").code == 0
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"network": "wrn-100000-1000"}, "depth is at most 1,000"),
        ({"network": "wrn-994-1000"}, "parameters"),
        ({"batch_size": 10**9}, "--batch-size 1000000000 must be at most 1,048,576"),
        ({"batch_size": 10**400}, "--batch-size"),
        ({"pad": 10**9}, "--pad"),
        ({"steps": 1e300}, "--steps"),
        ({"method_settings": {"K": 10**8}}, "--K"),
    ],
)
def test_settings_out_of_bounds(changes: dict[str, Any], said: str, stopped: Path, call: Call) -> None:
    config = json.loads((stopped / "config.json").read_text())
    for name, value in changes.items():
        if isinstance(value, dict):
            config["settings"][name].update(value)
        else:
            config["settings"][name] = value
    (stopped / "config.json").write_text(json.dumps(config))
    result = call("train", "digits", "--resume", "--out", stopped, "--quiet")
    assert said in one_line(result)
    if "network" in changes:
        assert said in one_line(call("export", stopped, "--format", "safetensors"))


@pytest.mark.parametrize(
    "changes",
    [
        *({"threads": count} for count in ("\x1b[31m", 10**9, -1)),
        *({"folder": folder} for folder in (3, None, "a\0b", "\ud800")),
        *({"settings": {name: "a\0b"}} for name in ("data", "weights")),
        *({"settings": {"data": path}} for path in ("\ud800", "a" * 1000)),
        {"split": {"test": "/dev/zero"}},
        {"compile": "yes"},
    ],
)
def test_what_no_run_has_written(changes: dict[str, Any], stopped: Path, call: Call) -> None:
    config = json.loads((stopped / "config.json").read_text())
    for name, value in changes.items():
        config[name] = {**config[name], **value} if isinstance(value, dict) else value
    (stopped / "config.json").write_text(json.dumps(config))
    assert "config.json is damaged" in one_line(call("train", "digits", "--resume", "--out", stopped, "--quiet"))


@pytest.mark.parametrize(
    ("name", "value"), [("mean", {}), ("std", float("nan")), ("median", [[]]), ("mean", 10**400), ("name", 3)]
)
def test_columns_that_no_table_has(name: str, value: object, tmp_path: Path, call: Call) -> None:
    model = FOLDERS / "table-mixmatch" / "model.safetensors"
    about = tensors.read_metadata(model)
    encoding = json.loads(about["encoding"])
    next(c for c in encoding["columns"] if c["kind"] == "numeric")[name] = value
    changed = tensors.to_bytes(tensors.read(model).tensors, {**about, "encoding": json.dumps(encoding)})
    (tmp_path / "model.safetensors").write_bytes(changed)
    said = one_line(call("predict", tmp_path / "model.safetensors", FOLDERS / "rows.csv"))
    assert "a column has" in said


@pytest.mark.parametrize("shape", ["[1e9, 8, 8]", "[1000000000, 8, 8]", "[0, 8, 8]", "[8]", "[[1], 8, 8]", "null"])
def test_shapes_that_are_none(shape: str, stopped: Path, call: Call) -> None:
    text = (stopped / "config.json").read_text()
    config = json.loads(text)
    (stopped / "config.json").write_text(json.dumps({**config, "input_shape": json.loads(shape)}))
    one_line(call("export", stopped, "--format", "safetensors"))


def test_json_nested_too_deep(finished: Path, call: Call, tmp_path: Path) -> None:
    deep = "[" * 10**6 + "]" * 10**6
    for text in (deep, "[" * 100 + "]" * 100, '{"a":' * 10**5):
        with pytest.raises(ValueError):
            parse_json(text)
    assert parse_json('{"a": [[1, {"b": []}], "[[[["]}') == {"a": [[1, {"b": []}], "[[[["]}
    for name in ("config.json", "result.json"):
        copy = shutil.copytree(finished, tmp_path / name)
        (copy / name).write_text(deep)
        assert "nested too deep" in one_line(call("report", copy))
    (tmp_path / "settings.json").write_text(deep)
    assert "nested too deep" in one_line(call("train", "digits", "--config", tmp_path / "settings.json"))


def test_a_folder_is_removed_at_once_and_a_link_alone(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inner").symlink_to(outside)
    remove_folder(tmp_path / "folder")
    (tmp_path / "link").symlink_to(outside)
    remove_folder(tmp_path / "link")
    assert not any((tmp_path / name).exists() for name in ("folder", "link"))
    (tmp_path / "a.json").symlink_to(outside / "diary.txt")
    with pytest.raises(NotPlain):
        read_json(tmp_path / "a.json")


def test_pipes_among_inputs(call: Call, tmp_path: Path) -> None:
    """Nobody writes to them: waiting would be for ever."""
    photos = tmp_path / "photos" / "cat"
    photos.mkdir(parents=True)
    pipes = [tmp_path / "a.npz", tmp_path / "a.npy", tmp_path / "t.csv", tmp_path / "t.parquet", photos / "1.png"]
    for pipe in pipes:
        os.mkfifo(pipe)
    for pipe in pipes[:4]:
        one_line(call("data", "check", pipe))
    one_line(call("data", "check", photos.parent))
    one_line(call("pate", "analyze", "--votes", tmp_path / "a.npy", "--sigma", 40, "--delta", 1e-5))
    one_line(call("train", "digits", "--config", tmp_path / "t.csv"))
    model = FOLDERS / "digits-vat"
    result = call("predict", model, photos / "1.png")
    assert result.code == 1
    assert "it is not a plain file" in result.err

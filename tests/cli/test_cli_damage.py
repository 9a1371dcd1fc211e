"""Damage to a run's files is found, never believed; the line says what still can be used and what to do, and doing it
works."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mixmatch
from mixmatch.training import damage
from mixmatch.training.run import RunFolder

Call = Callable[..., Any]
SHORT = ["--steps", 10, "--checkpoint-every", 5, "--eval-every", 3, "--batch-size", 8, "--quiet"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "run"
    mixmatch.train("digits", out=folder, steps=10, checkpoint_every=5, eval_every=3, batch_size=8)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "run")


def flip(path: Path, where: int) -> None:
    content = bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)


def one_line(result: Any) -> str:
    assert result.code == 2, result
    assert result.err.count("\n") == 1, result.err
    return str(result.err)


def readers(folder: Path) -> list[list[object]]:
    """Every command that reads a finished run's model."""
    export = ["export", folder, "--format", "safetensors", "--output", folder.parent / "out.safetensors"]
    return [["evaluate", folder], ["report", folder], export, ["train", "digits", "--resume", "--out", folder, *SHORT]]


def test_one_flipped_bit_in_the_model(folder: Path, made: Path, call: Call) -> None:
    flip(folder / "model.safetensors", -100)
    for command in [*readers(folder), ["evaluate", folder / "model.safetensors"]]:
        said = one_line(call(*command))
        assert f"{folder / 'model.safetensors'} is damaged (it is not what the run wrote)" in said
        assert "--resume with --checkpoint step-00000010 writes it anew" in said
    assert call("train", "digits", "--resume", "--out", folder, "--checkpoint", "step-00000010", "--quiet").code == 0
    assert (folder / "model.safetensors").read_bytes() == (made / "model.safetensors").read_bytes()
    assert call("evaluate", folder).code == 0


@pytest.mark.parametrize("how", ["cut", "flipped", "more", "gone"])
def test_metrics_that_are_not_what_was_written(how: str, folder: Path, call: Call) -> None:
    path = folder / "metrics.jsonl"
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    changed = {"cut": "".join(lines[:-1]), "flipped": text.replace("3", "4", 1), "more": text + lines[-1]}
    path.write_text(changed.get(how, ""))
    if how == "gone":
        path.unlink()
    for command in readers(folder)[1::2]:
        said = one_line(call(*command))
        assert "metrics.jsonl is damaged" in said
        assert "predict, evaluate and export still work" in said
    assert call(*readers(folder)[0]).code == call(*readers(folder)[2]).code == 0


def test_metrics_of_a_run_that_is_not_finished(folder: Path, made: Path, call: Call) -> None:
    """Its checkpoint knows what they were."""
    shutil.rmtree(folder / "checkpoint/step-00000010")
    for name in ("result.json", "model.safetensors"):
        (folder / name).unlink()
    path = folder / "metrics.jsonl"
    text = path.read_text()
    path.write_text(text.replace("0.", "1.", 1))
    assert "metrics.jsonl is damaged" in one_line(call(*readers(folder)[-1]))
    path.write_text(text)
    assert call(*readers(folder)[-1]).code == 0
    assert (folder / "model.safetensors").read_bytes() == (made / "model.safetensors").read_bytes()


def test_a_damaged_result(folder: Path, made: Path, call: Call) -> None:
    """The model still works on its own, and the last checkpoint gives the result again."""
    path = folder / "result.json"
    for change in ('"error": ', '"sha256": ', '"metrics.jsonl": "'):
        text = path.read_text()
        at = text.index(change) + len(change)
        path.write_text(text[:at] + ("7" if text[at] != "7" else "8") + text[at + 1 :])
        for command in readers(folder):
            said = one_line(call(*command))
            assert f"{path} is damaged" in said or f"{path} cannot be read" in said
            assert f"give {folder / 'model.safetensors'} in place of the folder" in said
        path.write_text(text)
    path.write_text(path.read_text().replace('"error": ', '"error": 1'))
    assert "is not what was written" in one_line(call("results", "--curve", folder, "--output", folder / "a.png"))
    assert call("export", folder / "model.safetensors", "--format", "safetensors", "--output", folder / "a").code == 0
    assert call("train", "digits", "--resume", "--out", folder, "--checkpoint", "step-00000010", "--quiet").code == 0
    assert RunFolder(folder).result()["curve"] == RunFolder(made).result()["curve"]  # type: ignore[index]


def test_a_record_knows_itself() -> None:
    record = damage.sealed({"error": 1.5, "curve": [1]}, {"model.safetensors": "00"})
    assert record["sha256"]["model.safetensors"] == "00"
    assert damage.is_whole(record)
    assert damage.is_whole(json.loads(json.dumps(record, indent=1)))
    assert damage.is_whole({"error": 2.5})  # of an earlier version
    assert not damage.is_whole({**record, "error": 2.5})
    assert not damage.is_whole({**record, "sha256": {**record["sha256"], "model.safetensors": "01"}})
    assert not damage.is_whole({**record, "sha256": []})


@pytest.mark.parametrize("how", ["moved", "removed", "replaced"])
def test_a_folder_that_is_moved_or_removed_while_it_trains(how: str, tmp_path: Path, call: Call) -> None:
    """The run ends with a line, and makes no second folder."""
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"

    def meddle() -> None:
        while not (folder / "checkpoint" / "step-00000005").exists():
            if done.wait(0.002):
                return
        folder.rename(elsewhere)
        if how == "removed":
            shutil.rmtree(elsewhere)
        if how == "replaced":
            folder.mkdir()

    done = threading.Event()
    thread = threading.Thread(target=meddle)
    thread.start()
    arguments = ["--steps", 100_000, "--checkpoint-every", 5, "--eval-every", 3, "--batch-size", 8, "--quiet"]
    result = call("train", "digits", "--out", folder, *arguments)
    done.set()
    thread.join()
    assert f"{folder} was moved or removed while the run was in it" in one_line(result)
    assert not folder.exists() if how != "replaced" else not list(folder.iterdir())
    if how == "moved":
        assert call("export", elsewhere, "--format", "safetensors", "--output", tmp_path / "a").code == 0

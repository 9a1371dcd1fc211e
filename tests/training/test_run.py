"""The run folder: who may write to it, and what is in it after crashes and other people's edits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mixmatch.errors import MixMatchError
from mixmatch.training import checkpoint
from mixmatch.training.checkpoint import Checkpoint
from mixmatch.training.run import RunFolder

HOLD = """if True:
    import sys, time
    from pathlib import Path
    from mixmatch.training.run import RunFolder
    with RunFolder(Path(sys.argv[1])).lock():
        print("held", flush=True)
        time.sleep(600)
"""
TRY = """if True:
    import sys
    from pathlib import Path
    from mixmatch.errors import MixMatchError
    from mixmatch.training.run import RunFolder
    try:
        with RunFolder(Path(sys.argv[1])).lock():
            print("got it")
    except MixMatchError as error:
        print(error)
"""


def test_the_lock_holds_against_another_process_and_ends_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    run = RunFolder(folder)
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(MixMatchError, match="another process is writing to") as caught, run.lock():
            pass
        assert str(folder) in str(caught.value)
        holder.send_signal(signal.SIGKILL)  # no chance to tidy up
        holder.wait(timeout=20)
        with run.lock():  # and now it is ours, against a third
            third = subprocess.run(
                [sys.executable, "-c", TRY, str(folder)], capture_output=True, text=True, timeout=60, check=True
            )
            assert third.stdout.startswith("another process is writing to")
    finally:
        holder.kill()
        holder.wait(timeout=20)


def test_the_lock_is_let_go_of_after_an_error(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    with pytest.raises(ZeroDivisionError), run.lock():
        raise ZeroDivisionError
    with run.lock(), pytest.raises(MixMatchError, match="another process"), RunFolder(tmp_path).lock():
        pass


def checkpoint_at(step: int) -> Checkpoint:
    weights = {"w": torch.full((2,), float(step))}
    return Checkpoint(weights, weights, {}, {"step": step, "evaluations": 0, "seconds": 0.0})


def test_of_two_attempts_without_a_working_lock_the_later_one_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file system without locks: a machine that was cut off comes back while the run continues elsewhere."""
    monkeypatch.setattr("mixmatch.training.run.try_lock", lambda handle: True)
    older, newer = RunFolder(tmp_path), RunFolder(tmp_path)
    config = {"settings": {"steps": 2}, "classes": [], "input_shape": [], "split": {"hash": ""}}
    writes: list[Callable[[RunFolder], None]] = [
        lambda run: run.write_config(config),
        lambda run: run.append_metrics({"step": 1}),
        lambda run: run.save_checkpoint(checkpoint_at(1)),
        lambda run: run.cut_metrics(1),
        lambda run: run.forget_after(1),
        lambda run: run.end_at(2),
        lambda run: run.write_result({"steps": 2}),
    ]
    with older.lock():
        for write in writes:
            write(older)
        with newer.lock():
            newer.check_attempt()
            before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
            for write in writes:
                with pytest.raises(MixMatchError, match="another attempt at"):
                    write(older)
            assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
            for write in writes:
                write(newer)
    assert newer.attempt() == 2


def test_two_attempts_that_begin_at_once_have_one_number_and_one_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mixmatch.training.run.try_lock", lambda handle: True)
    monkeypatch.setattr(RunFolder, "attempt", lambda run: 0)
    first, second = RunFolder(tmp_path), RunFolder(tmp_path)
    with first.lock(), second.lock():
        first.check_attempt()
        second.check_attempt()
        with pytest.raises(MixMatchError, match="another attempt"):
            first.check_attempt()


def test_an_attempt_that_begins_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither puts its half in place, nor touches what the later one writes."""
    monkeypatch.setattr("mixmatch.training.run.try_lock", lambda handle: True)
    older, newer, write = RunFolder(tmp_path), RunFolder(tmp_path), checkpoint.write_durably

    def overtaken(path: Path, content: bytes) -> None:
        monkeypatch.setattr(checkpoint, "write_durably", write)
        with newer.lock():
            newer.save_checkpoint(checkpoint_at(2))
        write(path, content)

    with older.lock():
        older.save_checkpoint(checkpoint_at(1))
        monkeypatch.setattr(checkpoint, "write_durably", overtaken)
        with pytest.raises(MixMatchError, match="another attempt"):
            older.save_checkpoint(checkpoint_at(3))
    found = checkpoint.list_checkpoints(tmp_path / "checkpoint")
    assert [path.name for path in found] == ["step-00000002", "step-00000001"]
    assert checkpoint.load(found[0]).weights["w"].tolist() == [2.0, 2.0]
    assert not (tmp_path / "checkpoint/.writing").exists()


def test_a_folder_without_a_number_is_an_earlier_version_s(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert run.attempt() == 0
    with run.lock():
        assert not (tmp_path / ".attempt").exists()  # a job that is refused leaves no trace
        run.append_metrics({"step": 1})
        (tmp_path / ".attempt").unlink()  # as a copy without hidden files
        run.append_metrics({"step": 2})
    assert [record["step"] for record in run.metrics()] == [1, 2]


def test_a_place_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with (
            pytest.raises(MixMatchError, match=r"^cannot write to .*: .*; choose another folder with out=$"),
            RunFolder(path).lock(),
        ):
            pass


# ---------------------------------------------------------------- metrics


def lines(run: RunFolder) -> list[str]:
    return (run.path / "metrics.jsonl").read_text().splitlines()


def test_metrics_are_a_line_each(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert run.metrics() == []
    records: list[dict[str, Any]] = [{"step": s, "test_error": 0.1 + 1e-17 * s, "loss": 1 / 3} for s in (1, 2, 3)]
    for record in records:
        run.append_metrics(record)
    assert [json.loads(line) for line in lines(run)] == records
    assert run.metrics() == records


def test_metrics_are_cut_to_what_the_checkpoint_knows_of(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for step in range(5):
        run.append_metrics({"step": step, "error": 1 / 3})
    run.cut_metrics(3)
    assert [json.loads(line) for line in lines(run)] == [{"step": step, "error": 1 / 3} for step in range(3)]
    run.append_metrics({"step": 99})
    assert [record["step"] for record in run.metrics()] == [0, 1, 2, 99]
    run.cut_metrics(0)
    assert run.metrics() == []
    with pytest.raises(MixMatchError, match=r"has 0 of the 2 evaluations its checkpoint knows of"):
        run.cut_metrics(2)


def test_a_new_run_begins_with_no_metrics(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.cut_metrics(0)
    assert run.metrics() == []


@pytest.mark.parametrize("torn", ['{"step": 3, "err', '{"step": 3}', "{"])
def test_a_last_line_torn_by_a_crash_does_not_count(tmp_path: Path, torn: str) -> None:
    run = RunFolder(tmp_path)
    run.append_metrics({"step": 1})
    run.append_metrics({"step": 2})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(torn)  # no end of line: whether it was written whole cannot be told
    assert run.metrics() == [{"step": 1}, {"step": 2}]
    run.cut_metrics(2)
    run.append_metrics({"step": 3})
    assert run.metrics() == [{"step": 1}, {"step": 2}, {"step": 3}]


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\nnonsense\n{"step": 3}\n')
    with pytest.raises(MixMatchError, match=r"^line 2 of .*metrics\.jsonl is damaged"):
        RunFolder(tmp_path).metrics()


# ---------------------------------------------------------------- config and result


def test_config_and_result_come_back(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    config = {"settings": {"rate": 0.1 + 0.2}, "classes": ["a", "ü"], "input_shape": [1, 2, 3], "split": {"hash": "x"}}
    assert not run.exists()
    run.write_config(config)
    assert run.exists()
    assert {name: value for name, value in run.config().items() if name != "format"} == config
    assert run.result() is None
    run.write_result({"error": 12.5})
    result = run.result()
    assert result is not None
    assert result["error"] == 12.5
    run.write_config({**config, "classes": ["c"]})  # written again, the old is gone
    assert run.config()["classes"] == ["c"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "result.json"]


@pytest.mark.parametrize("where", ["empty", "missing", "file"])
def test_not_a_run_folder(tmp_path: Path, where: str) -> None:
    path = tmp_path / where
    if where == "empty":
        path.mkdir()
    elif where == "file":
        path.write_text("")
    run = RunFolder(path)
    assert not run.exists()
    with pytest.raises(MixMatchError, match=r"is not a run folder: it has no config\.json") as caught:
        run.config()
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", ['{"format": 2}', '{"format": "1"}', "{}", "[]", "3", "null"])
def test_a_config_of_another_version(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(MixMatchError, match=r"config\.json was not written by this version of mixmatch"):
        RunFolder(tmp_path).config()


@pytest.mark.parametrize("name", ["settings", "classes", "input_shape", "split"])
def test_a_config_with_something_missing(tmp_path: Path, name: str) -> None:
    run = RunFolder(tmp_path)
    config: dict[str, Any] = {"settings": {}, "classes": [], "input_shape": [], "split": {}}
    for wrong in ({**config, name: 3}, {key: value for key, value in config.items() if key != name}):
        run.write_config(wrong)
        with pytest.raises(MixMatchError, match=rf"config\.json is damaged \(it has no {name}\)"):
            run.config()


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe"])
@pytest.mark.parametrize("name", ["config", "result"])
def test_a_damaged_config_or_result(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / f"{name}.json").write_bytes(content)
    with pytest.raises(MixMatchError, match=rf"{name}\.json cannot be read"):
        getattr(RunFolder(tmp_path), name)()


def test_a_config_without_the_hash_of_its_split(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.write_config({"settings": {}, "classes": [], "input_shape": [], "split": {}})
    with pytest.raises(MixMatchError, match=r"config\.json is damaged \(its split has no hash"):
        run.config()


@pytest.mark.parametrize("line", ["3", "null", "[]", '{"error": 3}', '{"step": null}'])
def test_a_line_of_metrics_that_is_none(tmp_path: Path, line: str) -> None:
    run = RunFolder(tmp_path)
    run.append_metrics({"step": 1})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(MixMatchError, match=r"line 2 of .*metrics\.jsonl is damaged"):
        run.metrics()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="the superuser may read everything")
def test_a_config_that_may_not_be_read(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.write_config({})
    (tmp_path / "config.json").chmod(0)
    with pytest.raises(MixMatchError, match=r"config\.json cannot be read"):
        run.config()


@pytest.mark.parametrize("there", [True, False])
def test_a_folder_that_may_not_be_looked_into(there: bool, tmp_path: Path, lock_out: Callable[[Path], None]) -> None:
    run = RunFolder(tmp_path)
    if there:
        run.write_config({})
        run.append_metrics({"step": 1})
        run.model.touch()
    lock_out(tmp_path)
    with pytest.raises(MixMatchError, match=r"cannot read .*/\.end: Permission denied; choose another folder with"):
        run.asked_to_end()
    with pytest.raises(MixMatchError, match=r"metrics\.jsonl cannot be read \(Permission denied\): start again in"):
        run.metrics()

"""Runs in MLflow's local file store and in W&B's offline files, read back by other means than they were written."""

from __future__ import annotations

import builtins
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mixmatch
from mixmatch.callbacks import MLflow, WandB
from mixmatch.errors import MixMatchError
from mixmatch.training.progress import Quiet
from mixmatch.training.run import RunFolder, RunRecord

TINY: dict[str, Any] = {
    "labels": 20, "steps": 6, "eval_every": 3, "batch_size": 8, "compile": False, "device": "cpu", "reporter": Quiet(),
}  # fmt: skip


def train_twice(folder: Path, callback: Any) -> RunRecord:
    """A run, and its continuation."""
    mixmatch.train("digits", out=folder, callbacks=[callback], **TINY)
    return mixmatch.train("digits", out=folder, callbacks=[callback], resume=True, **{**TINY, "steps": 9})


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("mlflow", reason="MLflow is not installed: pip install mlflow-skinny")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow wants a database for more than tests
    return tmp_path / "mlruns"


def test_mlflow(store: Path, tmp_path: Path) -> None:
    callback = MLflow("tests", tracking_uri=store.as_uri(), tags={"team": "vision"}, model=True)
    record = train_twice(tmp_path / "run", callback)
    (place,) = [path.parent for path in store.glob("*/*/params")]  # one run: the second call continued it
    assert (place / "params" / "lambda_u").read_text() == "100.0"
    assert (place / "params" / "batch_size").read_text() == "8"
    assert (place / "tags" / "team").read_text() == "vision"
    logged = [line.split() for line in (place / "metrics" / "test_error").read_text().splitlines()]
    written = RunFolder(tmp_path / "run").metrics()
    assert [(float(value), int(step)) for _, value, step in logged] == [(m["test_error"], m["step"]) for m in written]
    assert float((place / "metrics" / "last_error").read_text().splitlines()[-1].split()[1]) == record["last_error"]
    for name in ("config.json", "metrics.jsonl", "result.json", "model.safetensors"):
        assert (place / "artifacts" / name).read_bytes() == (tmp_path / "run" / name).read_bytes()
    assert "status: 3" in (place / "meta.yaml").read_text()  # FINISHED, in MLflow's protocol


def test_mlflow_knows_a_failed_run(store: Path, tmp_path: Path) -> None:
    with pytest.raises(MixMatchError, match="not finite"):
        mixmatch.train(
            "digits", out=tmp_path / "run", callbacks=[MLflow(tracking_uri=store.as_uri())],
            **{**TINY, "steps": 40, "learning_rate": 1e18},
        )  # fmt: skip
    (about,) = store.glob("*/*/meta.yaml")
    assert "status: 4" in about.read_text()  # FAILED


def test_mlflow_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="MLflow is not installed: pip install mlflow-skinny")
    with pytest.raises(MixMatchError, match="MLflow cannot use tracking_uri=nowhere://x"):
        MLflow(tracking_uri="nowhere://x")


def records(path: Path) -> Iterator[Any]:
    """The protocol's records in an offline file of W&B: a header, then LevelDB's log format in blocks of 32 KiB."""
    from wandb.proto import wandb_internal_pb2

    content, at, parts = path.read_bytes(), 7, b""
    assert content[:4] == b":W&B"
    while at < len(content):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        length, kind = struct.unpack("<HB", content[at + 4 : at + 7])
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def test_wandb(tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb", reason="W&B is not installed: pip install wandb")
    callback = WandB("tests", mode="offline", dir=str(tmp_path), settings=wandb.Settings(silent=True, disable_git=True))
    record = train_twice(tmp_path / "run", callback)
    first, second = sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime)
    assert first.name == second.name  # the same run: wandb sync puts them together
    deadline = time.monotonic() + 60
    while not any(r.HasField("exit") for r in records(second)) and time.monotonic() < deadline:
        time.sleep(0.2)  # W&B's own process writes it
    config = {item.key: item.value_json for r in records(first) if r.HasField("run") for item in r.run.config.update}
    assert float(config["lambda_u"]) == 100
    steps, errors = [], []
    for path in (first, second):
        for found in records(path):
            values = {item.key or item.nested_key[0]: item.value_json for item in found.history.item}
            if "test_error" in values:
                steps.append(int(values["step"]))
                errors.append(float(values["test_error"]))
    written = RunFolder(tmp_path / "run").metrics()
    assert list(zip(steps, errors, strict=True)) == [(m["step"], m["test_error"]) for m in written]
    ends = [r.exit.exit_code for r in records(second) if r.HasField("exit")]
    assert ends == [0]
    summary = {item.key or item.nested_key[0]: item.value_json for r in records(second) for item in r.summary.update}
    assert float(summary["last_error"]) == record["last_error"]


@pytest.mark.parametrize(("make", "name"), [(MLflow, "mlflow"), (WandB, "wandb")])
def test_what_is_not_installed_is_named(make: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(module: str, *rest: Any) -> Any:
        if module.partition(".")[0] == name:
            raise ModuleNotFoundError(name=module)
        return real(module, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MixMatchError, match=rf"pip install 'mixmatch\[{name}\]'"):
        make()

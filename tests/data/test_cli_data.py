"""`mixmatch data list` and `mixmatch data check`."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from mixmatch import methods
from mixmatch.cli import app
from mixmatch.data.user.rows import Finding
from mixmatch.declare import Setting
from mixmatch.errors import MixMatchError
from mixmatch.training import timing
from mixmatch.training.timing import FirstRun


def invoke(*arguments: str) -> Any:
    """Run `mixmatch data ...` in this process."""
    runner = CliRunner()
    return runner.invoke(app, ["data", *arguments])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny CIFAR-100 whose last class has no image in the test set."""
    where = tmp_path / "cifar-100-binary"
    where.mkdir()
    (where / "train.bin").write_bytes(b"".join(bytes([0, label]) + bytes([label]) * 3072 for label in range(100)))
    (where / "test.bin").write_bytes(b"".join(bytes([0, label]) + bytes([label]) * 3072 for label in range(99)))
    return tmp_path


def test_list(folder: Path) -> None:
    result = invoke("list", "--data-dir", str(folder))
    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.stdout.splitlines() if line.split()}
    for name, words in {
        "digits": ["1,297", "500", "yes"],
        "cifar10": ["50,000", "10,000", "170 MB", "no"],
        "cifar100": ["50,000", "100", "yes"],
        "svhn-extra": ["604,388", "26,032", "no"],
        "stl10": ["5,000", "100,000", "8,000", "96x96x3", "no"],
    }.items():
        assert all(word in lines[name] for word in words)


def test_list_json(folder: Path) -> None:
    (folder / "train_32x32.mat").touch()
    result = invoke("list", "--data-dir", str(folder), "--json")
    rows = {row["name"]: row for row in json.loads(result.stdout)["data_sets"]}
    assert rows["cifar100"]["complete"]
    assert rows["cifar100"]["missing"] == []
    assert not rows["svhn"]["complete"]
    assert rows["svhn"]["present"] == ["train_32x32.mat"]
    assert rows["svhn"]["missing"] == ["test_32x32.mat"]


def test_check_json(folder: Path) -> None:
    result = invoke("check", "cifar100", "--data-dir", str(folder), "--no-download", "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    content = (folder / "cifar-100-binary/train.bin").read_bytes()
    assert report["files"][0] == {
        "file": "cifar-100-binary/train.bin",
        "md5": hashlib.md5(content).hexdigest(),
        "published_md5": "6172c7755cfe09b2fe270c85cebc1b15",
        "verdict": "differs",
    }
    assert report["image_shape"] == [32, 32, 3]
    assert (report["train"]["images"], report["test"]["images"]) == (100, 99)
    assert report["test"]["per_class"]["98"] == 1
    assert report["test"]["per_class"]["99"] == 0
    expected = hashlib.sha256(b"".join(bytes([label]) * 3072 for label in range(100))).hexdigest()
    assert report["train"]["sha256"] == expected
    assert result.stderr.count("warning: ") == 2


def test_options_for_own_data_are_refused_for_others(tmp_path: Path) -> None:
    result = invoke("check", "digits", "--data-dir", str(tmp_path), "--label-column", "y")
    assert str(result.exception) == "label_column= is for your own data, not for 'digits'"


def test_check_digits(tmp_path: Path) -> None:
    result = invoke("check", "digits", "--data-dir", str(tmp_path))
    assert result.exit_code == 0
    pixels = np.rint(load_digits().data[:1297] * 255 / 16).astype(np.uint8)
    assert f"pixel sha256 of train: {hashlib.sha256(pixels.tobytes()).hexdigest()}" in result.stdout
    assert "8x8x1" in result.stdout
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["check", "cifar100", "--strict"], "not the published file"),
        (["check", "svhn", "--no-download"], "downloads are off"),
        (["check", "cifar1000"], "did you mean 'cifar100'"),
    ],
)
def test_errors_are_left_to_the_main_program(arguments: list[str], why: str, folder: Path) -> None:
    result = invoke(*arguments, "--data-dir", str(folder))
    assert result.exit_code != 0
    assert isinstance(result.exception, MixMatchError)
    assert why in str(result.exception)
    assert result.stdout == ""


@pytest.mark.parametrize("arguments", [["--help"], ["list", "--help"], ["check", "--help"]])
def test_help_has_examples(arguments: list[str]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 0
    assert "mixmatch data" in result.stdout


def test_own_data_is_looked_over_before_training(tmp_path: Path) -> None:
    """A folder of images, one damaged, two classes, some unlabeled: findings in words and as JSON, --strict fails."""
    rng = np.random.default_rng(0)
    for name, count in (("cat", 5), ("dog", 3), ("unlabeled", 30)):
        (tmp_path / name).mkdir()
        for i in range(count):
            Image.fromarray(rng.integers(0, 256, (40, 40, 3), np.uint8)).save(tmp_path / name / f"{i}.png")
    (tmp_path / "unlabeled" / "bad.png").write_bytes(b"no image")
    result = invoke("check", str(tmp_path), "--no-trial", "--json")
    assert result.exit_code == 0
    found = {finding["kind"]: finding for finding in json.loads(result.stdout)["findings"]}
    assert found["few-labels"]["files"] == ["dog/0.png", "dog/1.png", "dog/2.png"]
    assert "8 labeled images of 2 classes" in found["counts"]["message"]
    assert any("bad.png" in finding["message"] for finding in found.values())
    result = invoke("check", str(tmp_path), "--no-trial", "--strict")
    assert result.exit_code == 1
    assert "label at least 4 of each class" in result.stdout


def pets(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    for name, count in (("cat", 5), ("dog", 5), ("unlabeled", 30)):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            Image.fromarray(rng.integers(0, 256, (40, 40, 3), np.uint8)).save(folder / name / f"{i}.png")
    return folder


def test_findings_come_before_the_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(timing, "cost", stopped)
    result = invoke("check", str(pets(tmp_path / "pets")))
    assert result.exit_code != 0
    assert "info: 10 labeled images of 2 classes" in result.stdout
    assert "look alike" in result.stdout or "too few" in result.stdout


def test_check_ends_with_a_command_to_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pets(tmp_path / "my pets")
    seen: list[dict[str, Any]] = []

    def cost(user: object, device: str, **options: Any) -> tuple[Finding, FirstRun]:
        seen.append(options)
        return Finding("cost", "training takes long", severity="info"), FirstRun(32, 300, 610.0)

    monkeypatch.setattr(timing, "cost", cost)
    result = invoke("check", str(folder))
    assert result.stdout.splitlines()[-2:] == [
        "to train now, about 10 minutes:",
        f"  mixmatch train '{folder}' --image-size 32 --steps 300",
    ]
    assert not seen[0]["sized"]
    said = json.loads(invoke("check", str(folder), "--image-size", "48", "--json").stdout)
    assert seen[1]["sized"]
    assert said["command"] == f"mixmatch train '{folder}' --image-size 48 --steps 300"
    assert said["seconds"] == 610.0
    said = json.loads(invoke("check", str(folder), "--no-trial", "--json").stdout)
    assert said["command"] is said["seconds"] is None


def test_the_command_makes_up_for_uneven_classes_if_the_method_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = pets(tmp_path / "pets")
    first = Finding("cost", "training takes long", severity="info"), FirstRun(None, 300, 610.0)
    monkeypatch.setattr(timing, "cost", lambda *given, **options: first)

    def command() -> str:
        return str(json.loads(invoke("check", str(folder), "--json").stdout)["command"])

    monkeypatch.setattr(methods, "declared", lambda method: {"balance": Setting("balance", str, "none", "")})
    assert command() == f"mixmatch train {folder} --steps 300"
    (folder / "dog" / "0.png").rename(folder / "cat" / "x0.png")
    for i in range(1, 4):
        (folder / "dog" / f"{i}.png").rename(folder / "cat" / f"x{i}.png")  # 9 to 1
    assert command() == f"mixmatch train {folder} --balance abc --steps 300"
    monkeypatch.setattr(methods, "declared", lambda method: {})
    assert command() == f"mixmatch train {folder} --steps 300"
    said = invoke("check", str(folder)).stdout
    assert "'cat' has 9 labels, 'dog' has 1: if unlabeled data does not help, try --lambda-u 1, which" in said
    assert "or from pixels, on a GPU, --method fixmatch --balance abc, which trains on all classes" in said

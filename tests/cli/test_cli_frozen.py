"""A folder of images without a GPU: features by default, from `train` to a report, predictions and one ONNX file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import mixmatch
from mixmatch.training import choose
from mixmatch.training.choose import SUGGESTED, choose_features

FAST = ["--steps", "60", "--eval-every", "30", "--batch-size", "16", "--device", "cpu", "--views", "2"]


def picture(rng: np.random.Generator, kind: str) -> Image.Image:
    """Stripes across or down, in any colors."""
    wave = np.sin(np.arange(32) * rng.uniform(0.8, 1.6) + rng.uniform(0, 6))
    stripes = np.tile(wave, (32, 1)) if kind == "down" else np.tile(wave[:, None], (1, 32))
    color = rng.uniform(0.3, 1.0, 3)
    return Image.fromarray(np.uint8(np.clip((stripes[..., None] + 1) * 110 * color + rng.normal(0, 12, 3), 0, 255)))


@pytest.fixture(scope="module")
def stripes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("frozen") / "stripes", np.random.default_rng(0)
    for place, count in {"down": 5, "across": 5, "unlabeled": 60, "test/down": 20, "test/across": 20}.items():
        (folder / place).mkdir(parents=True)
        for i in range(count):
            kind = place.rpartition("/")[2] if place != "unlabeled" else ("down", "across")[i % 2]
            picture(rng, kind).save(folder / place / f"{i:02d}.png")
    return folder


def test_train_says_what_it_learns_from_and_ends_with_a_report(call: Any, stripes: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = call("train", stripes, "--out", out, *FAST)
    assert result.code == 0, result.err
    note = "learning from basic features, which need no pretrained weights"
    assert result.err.count(note) == 1  # not for the baseline again
    assert f"--features {SUGGESTED}" in result.err
    assert "--features none" in result.err
    settings = json.loads((out / "config.json").read_text())["settings"]
    assert (settings["features"], settings["network"], settings["views"]) == ("basic", "mlp", 2)
    assert "of 40 test images wrong" in result.out
    page = (out / "report.html").read_text()
    assert "data:image" in page  # pictures, not rows of numbers
    assert (stripes / ".mixmatch-cache").is_dir()
    again = call("train", stripes, "--out", out, "--resume")  # nothing given: as it was begun
    assert (again.code, note in again.err) == (0, False)


def test_a_run_that_is_resumed_has_the_baseline_of_one_that_was_not(call: Any, stripes: Path, tmp_path: Path) -> None:
    """Stopped before its baseline began."""
    short = ("--steps", 4, "--batch-size", 4, "--views", 2, "--device", "cpu")
    assert call("train", stripes, "--out", tmp_path / "alone", *short).code == 0
    assert call("train", stripes, "--out", tmp_path / "stopped", "--no-baseline", *short).code == 0
    again = call("train", stripes, "--out", tmp_path / "stopped", "--resume", "--device", "cpu")
    assert again.code == 0, again.err
    alone, stopped = ((tmp_path / name / "baseline/config.json").read_text() for name in ("alone", "stopped"))
    assert json.loads(stopped) == json.loads(alone)


def test_compare_says_it_in_options_that_it_has(call: Any, stripes: Path, tmp_path: Path) -> None:
    short = ("--steps", 2, "--batch-size", 4, "--device", "cpu")
    result = call("compare", stripes, *short, "--methods", "supervised", "--out", tmp_path / "by-default")
    assert result.code == 0, result.err
    assert f"--features {SUGGESTED}" in result.err
    assert "--features none" in result.err
    assert "features=" not in result.err
    result = call("compare", stripes, *short, "--methods", "supervised", "--features", "basic", "--out", tmp_path / "x")
    assert (result.code, "learning from basic features" in result.err) == (0, False)


def test_predict_evaluate_and_export_take_images(call: Any, stripes: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert call("train", stripes, "--out", out, "--no-baseline", *FAST).code == 0
    evaluated = json.loads(call("evaluate", out, "--json").out)
    assert evaluated["error"] < 20
    lines = json.loads(call("predict", out, stripes / "test", "--json").out)
    wrong = sum(Path(line["file"]).parent.name != line["class"] for line in lines)
    assert (len(lines), wrong) == (40, evaluated["wrong"])
    moved = tmp_path / "elsewhere"
    shutil.copytree(stripes / "test", moved)
    assert json.loads(call("evaluate", out, moved, "--json").out)["wrong"] == wrong
    runtime = pytest.importorskip("onnxruntime")
    file = tmp_path / "stripes.onnx"
    assert call("export", out, "--format", "onnx", "--output", file).code == 0
    session = runtime.InferenceSession(file.read_bytes(), providers=["CPUExecutionProvider"])
    pixels = np.stack([np.asarray(Image.open(line["file"])) for line in lines])
    (probabilities,) = session.run(None, {"images": pixels})
    assert [["across", "down"][i] for i in probabilities.argmax(axis=1)] == [line["class"] for line in lines]


def test_what_is_asked_for_is_done(call: Any, stripes: Path, tmp_path: Path) -> None:
    pixels = ["--steps", "4", "--eval-every", "4", "--batch-size", "4", "--device", "cpu", "--no-baseline"]
    for number, options in enumerate((["--features", "none"], ["--network", "wrn-10-1"])):
        out = tmp_path / str(number)
        result = call("train", stripes, "--out", out, *options, *pixels)
        assert result.code == 0, result.err
        assert "learning from" not in result.err
        settings = json.loads((out / "config.json").read_text())["settings"]
        assert settings["features"] == "none"
        assert settings["network"].startswith("wrn-")
    result = call("train", stripes, "--out", tmp_path / "x", "--features", "hog", *pixels)
    assert result.code == 2
    assert "unknown features 'hog'" in result.err
    assert not (tmp_path / "x").exists()
    table = tmp_path / "table.csv"
    table.write_text("a,b,label\n" + "1,2,x\n2,1,y\n" * 10 + "1,1,\n")
    result = call("train", table, "--features", "basic", "--out", tmp_path / "y", *pixels)
    assert result.code == 2
    assert "features=basic is for images" in result.err or "--features basic is for images" in result.err


def test_the_choice_follows_the_device_and_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_features("cpu").features == "basic"
    monkeypatch.setattr(choose, "weights_are_here", lambda name: name == SUGGESTED)
    choice = choose_features("cpu")
    assert choice.features == SUGGESTED
    assert "pretrained" in choice.why


def test_published_data_sets_can_have_features(tmp_path: Path) -> None:
    record = mixmatch.train(
        "digits",
        features="basic",
        views=1,
        labels=50,
        steps=40,
        eval_every=20,
        batch_size=16,
        device="cpu",
        out=tmp_path / "run",
    )
    assert record["last_error"] < 60
    assert mixmatch.load(tmp_path / "run", device="cpu").name == "basic>mlp"

"""A folder of images in, a classifier, a verdict and predictions out, by the command line alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from mixmatch import data
from mixmatch.training import gain

FAST = ["--steps", "12", "--eval-every", "6", "--batch-size", "8", "--network", "wrn-small", "--quiet"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 digits of three classes in mixed sizes, modes and formats, 80 of them unlabeled, one file damaged."""
    folder = tmp_path_factory.mktemp("own") / "photos"
    digits = load_digits(n_class=3)
    for i in range(160):
        image = Image.fromarray((digits.images[i] * 15.9).astype(np.uint8)).resize((32 + i % 5, 32 + i % 3))
        image = image.convert(("L", "RGB", "RGBA", "P")[i % 4])
        where = folder / (f"digit {digits.target[i]}" if i < 80 else "unlabeled")
        where.mkdir(parents=True, exist_ok=True)
        image.save(where / f"{i}.{'png' if i % 4 > 1 else ('jpg', 'webp')[i % 2]}")
    (folder / "unlabeled" / "damaged.png").write_bytes(b"no image")
    return folder


def test_train_gain_evaluate_predict(call, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = call("train", str(photos), "--out", str(out), "--json", *FAST)
    assert result.code == 0, result.err
    assert result.err.startswith("warning: 1 image cannot be read: left out (unlabeled/damaged.png: ")
    record = json.loads(result.out)
    assert record["split"]["unlabeled"] == 80
    assert record["split"]["labeled"] + record["split"]["test"] == 80
    assert record["settings"]["pad"] == 4  # an eighth of 32
    details = record["verdict_details"]
    assert details["how_good"].startswith(f"{details['error']:.1f} % test error: {details['wrong']} of 15 test images")
    assert f"Labels alone: {details['baseline_error']:.1f} %" in details["how_good"]
    assert "labeled images held out" in record["verdict"]
    assert "median" not in record["verdict"]
    assert record["report"] == str(out / "report.html")
    page = (out / "report.html").read_text().replace("\xa0", " ")
    assert details["how_good"].partition(" Guessing")[0] in page
    assert f"mixmatch ends at {details['error']:.1f} %" in page
    assert "median" not in page
    assert (out / "label-next.csv").read_text().startswith("file,score,predicted")
    assert json.loads((out / "baseline" / "result.json").read_text())["method"] == "supervised"

    result = call(
        "train", str(photos), "--out", str(out), "--resume", *FAST
    )  # finished: the verdict again, no training
    assert result.code == 0, result.err
    assert_shown(details, result.out)
    assert "median" not in result.out

    text = " ".join(call("evaluate", str(out)).out.split())
    assert details["how_good"].partition(" Labels alone")[0] in text
    evaluated = json.loads(call("evaluate", str(out), "--json").out)
    assert evaluated["error"] == details["error"] == pytest.approx(record["last_error"])
    assert evaluated["interval"] == details["interval"]
    predictions = json.loads(call("predict", str(out), str(photos / "digit 1"), "--json").out)
    assert {row["class"] for row in predictions} <= {"digit 0", "digit 1", "digit 2"}
    assert len(predictions) == len(list((photos / "digit 1").iterdir()))


def assert_shown(details: dict[str, Any], out: str) -> None:
    """Every sentence is on the screen, in this order, with three next steps."""
    words = " ".join(out.split())
    steps = [f"{i}. {step}" for i, step in enumerate(details["next_steps"], 1)]
    assert len(steps) == 3
    places = [words.index(text) for text in [details["how_good"], details["trust"], details["unlabeled"], *steps]]
    assert places == sorted(places)


def counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[Any]:
    """The arguments of every call of a function from here on."""
    calls: list[Any] = []
    function = getattr(module, name)

    def noted(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        return function(*arguments, **options)

    monkeypatch.setattr(module, name, noted)
    return calls


def test_data_is_read_once_and_the_gain_computed_once(
    call, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the run, its baseline, the verdict and the report together; the photos of a user may take minutes to read."""
    read = counted(monkeypatch, data, "read_user_data")
    gains = counted(monkeypatch, gain, "Gain")
    options = ["--out", tmp_path / "run", *FAST]
    result = call("train", photos, *options)
    assert result.code == 0, result.err
    assert "Labels alone: " in result.out
    assert (len(read), len(gains)) == (1, 1)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "labels alone" in page
    assert "digit " in page
    assert call("train", photos, "--resume", *options).code == 0
    assert (len(read), len(gains)) == (2, 2)
    assert call("train", photos, "--resume", "--no-baseline", *options).code == 0
    assert len(read) == 3


def test_too_few_labels_say_so_and_train_all_the_same(call, photos: Path, tmp_path: Path) -> None:
    few = tmp_path / "few.csv"
    files = [sorted((photos / f"digit {c}").iterdir())[i] for c in range(3) for i in range(2)]
    few.write_text("file,label\n" + "".join(f"{file.relative_to(photos)},{file.parent.name}\n" for file in files))
    options = [*FAST, "--labels-file", str(few)]
    result = call("train", str(photos), "--out", str(tmp_path / "run"), *options)
    assert result.code == 0, result.err
    assert "The error is not known: too few labels to evaluate" in result.out
    assert not (tmp_path / "run" / "baseline").exists()
    assert json.loads((tmp_path / "run" / "result.json").read_text())["error"] is None
    result = call("evaluate", str(tmp_path / "run"))
    assert result.code == 2
    assert f"error: {photos} has no test images: too few labels to evaluate: 'digit 0' has 2" in result.err


def test_a_run_that_saved_nothing_is_begun_again(call, tmp_path: Path) -> None:
    rows = "".join(f"{i % 7},{i % 5},{'ab'[i % 2] if i < 40 else ''}\n" for i in range(80))
    (tmp_path / "rows.csv").write_text("x,y,label\n" + rows)
    given = ("train", tmp_path / "rows.csv", "--no-baseline", "--out", tmp_path / "run", "--steps")
    assert call(*given, 2).code == 0
    for left in (tmp_path / "run").iterdir():  # as an error in the first step would have left it
        if left.name != "config.json" and not left.name.startswith("."):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    result = call(*given, 3)
    assert result.code == 0, result.err
    assert json.loads((tmp_path / "run" / "result.json").read_text())["steps"] == 3
    assert "holds a run already" in call(*given, 3).err


def test_advice_is_spelled_as_options(call, tmp_path: Path) -> None:
    rows = "".join(f"{i},{i % 7},{i % 5},{'ab'[i % 2] if i < 40 else ''}\n" for i in range(80))
    (tmp_path / "rows.csv").write_text("id,x,y,label\n" + rows)
    advice = "leave the column out with --ignore 'id', or with --id-column 'id', which keeps it in predictions"
    checked = call("data", "check", tmp_path / "rows.csv", "--no-trial")
    assert advice in checked.out
    result = call("train", tmp_path / "rows.csv", "--steps", 2, "--no-baseline", "--out", tmp_path / "run")
    assert result.code == 0, result.err
    assert advice in result.err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--labels", "20"], "--labels and --valid do not apply to your own data, whose labels are all used"),
        (["--image-size", "100000"], "100000 must be a whole number between 32 and 224"),
        (["--labels-file", "x"], "x"),
    ],
)
def test_refused(call, photos: Path, tmp_path: Path, options: list[str], says: str) -> None:
    result = call("train", str(photos), "--out", str(tmp_path / "run"), *FAST, *options)
    assert result.code == 2
    assert says in result.err
    assert not (tmp_path / "run").exists()


def test_options_for_user_images_are_refused_for_others(call, tmp_path: Path) -> None:
    result = call("train", "digits", "--out", str(tmp_path / "run"), "--image-size", "32")
    assert result.code == 2
    assert "--image-size is for your own data, not for 'digits'" in result.err
    result = call("train", "digits", "--out", str(tmp_path / "run"), "--hold-out", "none")
    assert result.code == 2
    assert "--hold-out is for your own data, not for 'digits'" in result.err

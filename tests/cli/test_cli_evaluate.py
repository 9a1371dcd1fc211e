"""A run's model on new labeled data, and runs whose data has moved or that are used from another folder."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mixmatch import load
from mixmatch.data import Reading, read_labeled
from mixmatch.data.user.images import decode_image
from mixmatch.errors import MixMatchError

FAST = ["--steps", "12", "--eval-every", "6", "--batch-size", "8", "--no-baseline", "--quiet", "--device", "cpu"]


def picture(seed: int, bright: bool) -> Image.Image:
    """A dark or a bright picture of any size, with noise."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 60, (30 + seed % 9, 32, 3)) + (180 if bright else 20)
    return Image.fromarray(pixels.astype(np.uint8))


def fill(folder: Path, *, start: int = 0, **counts: int) -> Path:
    for name, count in counts.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(start, start + count):
            picture(i, name == "day" or (name == "unlabeled" and i % 2 == 0)).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("places") / "photos", day=12, night=12, unlabeled=40)


@pytest.fixture(scope="module")
def trained(here: Any, photos: Path) -> Path:
    out = photos.parent / "trained"
    result = here("train", photos, "--out", out, "--network", "wrn-small", *FAST)
    assert result.code == 0, result.err
    return out


@pytest.fixture
def run_folder(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "run")


def test_new_images(call: Any, run_folder: Path, tmp_path: Path) -> None:
    """Each new image is decoded as for training; strangers and damaged files are left out and named."""
    new = fill(tmp_path / "new", start=100, day=7, night=5, dusk=3)
    (new / "day" / "damaged.png").write_bytes(b"no image")
    model = load(run_folder)
    wrong = 0
    for truth in ("day", "night"):
        images = [decode_image(file, 32, 32, 3)[0] for file in sorted((new / truth).glob("1*.png"))]
        wrong += sum(label != truth for label in model.predict(np.stack(images)))
    result = call("evaluate", run_folder, new, "--json")
    assert result.code == 0, result.err
    said = json.loads(result.out)
    assert (said["images"], said["wrong"], said["data"]) == (12, wrong, str(new))
    low, high = said["interval"]
    assert low <= said["error"] <= high
    assert high - low > 20  # of twelve images
    assert "3 images of a class that the model does not know: left out (dusk; its classes are day, night)" in result.err
    assert "damaged.png" in result.err
    text = call("evaluate", run_folder, new).out
    flat = " ".join(text.split())
    assert f"{wrong} of 12 test images wrong (95 % interval {low:.1f} to {high:.1f} %)." in flat
    assert f"the 12 labeled images of {new}" in flat


def test_the_test_part_is_used_if_there_is_one(call: Any, run_folder: Path, tmp_path: Path) -> None:
    new = fill(tmp_path / "new", day=3, night=3)
    fill(new / "test", start=50, day=4, night=1)
    assert json.loads(call("evaluate", run_folder, new, "--json").out)["images"] == 5


def test_labels_in_a_file(call: Any, run_folder: Path, tmp_path: Path) -> None:
    new = fill(tmp_path / "new", start=100, any=6)
    (tmp_path / "labels.csv").write_text("file,label\nany/100.png,night\nany/101.png,night\nany/102.png,day\n")
    said = json.loads(call("evaluate", run_folder, new, "--labels-file", tmp_path / "labels.csv", "--json").out)
    assert said["images"] == 3
    assert said["findings"][-1]["kind"] == "unlabeled-test"


def test_new_rows(call: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def table(name: str, labels: list[str], header: str = "kind") -> Path:
        rows = [
            [f"{rng.normal(3 * (label == 'b')):.3f}", "x" if i % 2 else "y", label] for i, label in enumerate(labels)
        ]
        with (tmp_path / name).open("w", newline="") as file:
            csv.writer(file).writerows([["size", "color", header], *rows])
        return tmp_path / name

    train = table("train.csv", ["a", "b"] * 12 + [""] * 40)
    assert call("train", train, "--label-column", "kind", "--out", tmp_path / "run", *FAST).code == 0
    new = table("new.csv", ["a", "b", "c", "", "b"] * 4)
    result = call("evaluate", tmp_path / "run", new, "--json")  # the label column is the run's
    said = json.loads(result.out)
    assert said["images"] == 12
    assert "4 rows of a class that the model does not know: left out (c;" in result.err
    model = load(tmp_path / "run")
    with new.open() as file:
        kept = [row for row in csv.DictReader(file) if row["kind"] in ("a", "b")]
    predicted = model.predict({name: [row[name] for row in kept] for name in ("size", "color")})
    assert said["wrong"] == sum(p != row["kind"] for p, row in zip(predicted, kept, strict=True))
    other = table("other.csv", ["a", "b"], header="answer")
    assert "name the right one with --label-column" in call("evaluate", tmp_path / "run", other).err
    assert call("evaluate", tmp_path / "run", other, "--label-column", "answer").code == 0
    assert "the model takes rows" in call("evaluate", tmp_path / "run", tmp_path).err


def test_new_arrays(call: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(70, 3)), np.arange(70) % 2
    x[:, 0] += 4 * y
    np.savez(tmp_path / "a.npz", x=x, y=np.where(np.arange(70) < 24, y, -1), classes=["no", "yes"])
    assert call("train", tmp_path / "a.npz", "--out", tmp_path / "run", *FAST).code == 0
    np.savez(tmp_path / "new.npz", x=x[:9], y=y[:9], classes=["no", "yes"])
    said = json.loads(call("evaluate", tmp_path / "run", tmp_path / "new.npz", "--json").out)
    model = load(tmp_path / "run")
    assert said["images"] == 9
    assert said["wrong"] == int((model.predict_proba(x[:9]).argmax(axis=1) != y[:9]).sum())
    np.savez(tmp_path / "numbers.npz", x=x[:9], y=y[:9])
    result = call("evaluate", tmp_path / "run", tmp_path / "numbers.npz")
    assert result.err == (
        "error: numbers.npz has no row of a class that the model knows: its labels are 0, 1, and the model's classes "
        "are no, yes\n"
    )


def test_what_does_not_fit_the_model_is_refused(call: Any, run_folder: Path, photos: Path, tmp_path: Path) -> None:
    own = call("evaluate", run_folder, photos)
    assert own.code == 0
    assert f"warning: {photos} is what the run has learned from" in " ".join(own.err.split())
    (tmp_path / "t.csv").write_text("a,label\n1,day\n")
    assert "the model takes images, not a table" in call("evaluate", run_folder, tmp_path / "t.csv").err
    assert "there is no file or folder" in call("evaluate", run_folder, tmp_path / "nowhere").err
    assert "--labels-file is for new data" in call("evaluate", run_folder, "--labels-file", "x.csv").err
    assert "give one of them" in call("evaluate", run_folder, photos, "--data", photos).err
    with pytest.raises(MixMatchError, match="image_size= follows from the model"):
        read_labeled(photos, ("day", "night"), (3, 32, 32), reading=Reading(image_size=64))


def test_data_that_has_moved(call: Any, photos: Path, tmp_path: Path) -> None:
    here = shutil.copytree(photos, tmp_path / "before", ignore=shutil.ignore_patterns(".*"))
    names = [f"{label}/{i}.png,{label}" for label in ("day", "night") for i in range(12)]
    (here / "labels.csv").write_text("\n".join(["file,label", *names]))
    words = ["--labels-file", here / "labels.csv", "--out", tmp_path / "run", "--network", "wrn-small", *FAST]
    assert call("train", here, *words).code == 0
    first = json.loads(call("evaluate", tmp_path / "run", "--json").out)
    there = here.rename(tmp_path / "after")
    assert "say where it is with --data" in call("evaluate", tmp_path / "run").err
    again = json.loads(call("evaluate", tmp_path / "run", "--data", there, "--json").out)
    assert again == first
    assert call("report", tmp_path / "run", "--data", there).code == 0
    more = ["--out", tmp_path / "run", "--resume", "--no-baseline", "--quiet", "--steps"]
    result = call("train", there, *more, 12, "--device", "cpu")
    assert result.code == 0, result.err
    (there / "day" / "0.png").unlink()
    assert "line 2" in call("evaluate", tmp_path / "run", "--data", there).err
    fill(there, dusk=2)
    (there / "labels.csv").unlink()
    assert call("evaluate", tmp_path / "run", "--data", there).code == 2


def test_other_data_is_refused_in_its_place(call: Any, run_folder: Path, tmp_path: Path) -> None:
    other = fill(tmp_path / "other", day=12, night=13, unlabeled=40)
    assert "the data has changed" in call("evaluate", run_folder, "--data", other).err
    assert "was made with other settings (data: " in call("train", other, "--out", run_folder, "--resume").err


def test_data_is_for_user_data(call: Any, tmp_path: Path) -> None:
    assert call("train", "digits", "--out", tmp_path / "run", "--steps", "2", "--quiet").code == 0
    assert "--data is for a run on your own data" in call("evaluate", tmp_path / "run", "--data", tmp_path).err


def test_a_run_works_from_any_folder(call: Any, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths are looked for where the run began, if they are not here."""
    monkeypatch.chdir(photos.parent)
    lines = [f"{label}/{i}.png,{label}" for label in ("day", "night") for i in range(12)]
    (photos.parent / "labels.csv").write_text("\n".join(["file,label", *lines]))
    words = ["photos", "--labels-file", "labels.csv", "--out", tmp_path / "run", "--network", "wrn-small"]
    assert call("train", *words, *FAST).code == 0
    first = json.loads(call("evaluate", tmp_path / "run", "--json").out)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    result = call("evaluate", tmp_path / "run", "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out) == first
    assert call("report", tmp_path / "run").code == 0
    (tmp_path / "run" / "result.json").unlink()
    result = call("train", photos, "--out", tmp_path / "run", "--resume", "--no-baseline", "--quiet")
    assert result.code == 0, result.err
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["settings"]["data"] == "photos"
    del config["folder"]  # as an earlier version wrote it
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    assert "is not at photos" in call("evaluate", tmp_path / "run").err
    monkeypatch.chdir(photos.parent)
    assert json.loads(call("evaluate", tmp_path / "run", "--json").out) == first

"""`mixmatch compare`: a table, a picture, and runs that are not done twice."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

Call = Callable[..., Any]
COMPARE = ["compare", "digits", "--steps", 6, "--batch-size", 8]


@pytest.fixture(scope="module")
def compared(here: Call, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Both methods with two seeds, in the default folder."""
    folder = tmp_path_factory.mktemp("compare")
    return folder / "runs/compare-digits", here(*COMPARE, "--seeds", 1, 2, cwd=folder)


def test_table_and_picture(compared: tuple[Path, Any]) -> None:
    folder, result = compared
    assert result.code == 0, result.err
    records = {
        method: [json.loads((folder / f"{method}-seed{seed}/result.json").read_text()) for seed in (1, 2)]
        for method in ("supervised", "mixmatch")
    }
    rows = {words[0]: words[1:] for line in result.out.splitlines() if (words := line.split())}
    for method, (a, b) in records.items():
        mean, deviation = (a["error"] + b["error"]) / 2, statistics.stdev([a["error"], b["error"]])
        assert rows[method][:6] == ["20", "1", "2", f"{mean:.2f}", "±", f"{deviation:.2f}"]
        assert a["split"]["hash"] != b["split"]["hash"]
    assert records["supervised"][0]["split"] == records["mixmatch"][0]["split"]  # the same labels
    assert result.out.splitlines()[-2:] == [
        "test error: at the end of each run, since some have fewer than 20 evaluations",  # a median of which is usual
        f"error over minutes and steps: {Path('runs/compare-digits/error.png')}",
    ]
    for seed in (1, 2):
        assert result.err.count(f"digits mixmatch seed {seed}: 6 steps") == 1

    with Image.open(folder / "error.png") as picture:
        picture.load()
        width, height = picture.size
        colors = np.unique(np.asarray(picture.convert("RGB")).reshape(-1, 3), axis=0)
    assert 800 <= width <= 2000
    assert 400 <= height <= 1500
    assert len(colors) > 20  # axes, text and two curves


def test_finished_runs_are_kept(compared: tuple[Path, Any], call: Call) -> None:
    folder, _ = compared
    times = {path: path.stat().st_mtime_ns for path in folder.glob("*/*")}
    result = call(*COMPARE, "--seeds", 1, 2, "--out", folder, "--json")
    assert (result.code, result.err) == (0, "")
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*/*")} == times
    answer = json.loads(result.out)
    assert answer.keys() == {"rows", "records"}
    assert [row["method"] for row in answer["rows"]] == ["supervised", "mixmatch"]
    for row in answer["rows"]:
        assert row.keys() == {"method", "labels", "seeds", "error", "deviation", "seconds"}
        assert (row["labels"], row["seeds"]) == (20, [1, 2])
    assert [(record["method"], record["seed"]) for record in answer["records"]] == [
        ("supervised", 1), ("supervised", 2), ("mixmatch", 1), ("mixmatch", 2),
    ]  # fmt: skip


def test_values_after_one_option(compared: tuple[Path, Any], call: Call) -> None:
    """`--seeds 1 2`, `--seeds 1 --seeds 2`, before or after other options and given twice, are the same."""
    folder, _ = compared
    for words, seeds in {
        ("--methods", "supervised", "--seeds", "1", "2"): [1, 2],
        ("--seeds", "2", "1", "--methods", "supervised"): [2, 1],
        ("--seeds", "1", "--methods", "supervised", "--seeds", "2"): [1, 2],
        ("--seeds", "1", "1", "--methods", "supervised"): [1],
        ("--seeds", "1", "--methods", "supervised", "supervised"): [1],
    }.items():
        result = call(*COMPARE, *words, "--out", folder, "--json")
        assert result.code == 0, result.err
        (row,) = json.loads(result.out)["rows"]
        assert (row["method"], row["seeds"]) == ("supervised", seeds)
        assert (row["deviation"] is None) == (len(seeds) == 1)


def test_parts_of_the_list_are_all_of_it(compared: tuple[Path, Any], call: Call) -> None:
    folder, _ = compared
    picture = (folder / "error.png").stat().st_mtime_ns
    took: list[tuple[str, int]] = []
    for number in (1, 2, 3):
        result = call(*COMPARE, "--seeds", 1, 2, "--out", folder, "--part", f"{number}/3", "--json")
        assert result.code == 0, result.err
        took += [(record["method"], record["seed"]) for record in json.loads(result.out)["records"]]
    assert took == [("supervised", 1), ("mixmatch", 2), ("supervised", 2), ("mixmatch", 1)]
    result = call(*COMPARE, "--seeds", 1, 2, "--out", folder, "--part", "9/9")  # more parts than runs
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("part 9/9: 0 runs finished")
    assert (folder / "error.png").stat().st_mtime_ns == picture  # the others' runs are not shown without them


def test_errors(compared: tuple[Path, Any], call: Call) -> None:
    folder, _ = compared
    result = call(*COMPARE, "--methods", "supervised", "mixmach", "--out", "new")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: unknown method 'mixmach': did you mean 'mixmatch'?")
    assert not Path("new").exists()
    result = call("compare", "digits", "--steps", 7, "--batch-size", 8, "--out", folder)
    assert result.code == 2
    assert "steps: 6 -> 7" in result.err
    assert call(*COMPARE, "--seeds", "one").code == 2


def own(path: Path, labels: int) -> Path:
    """Rows of two classes, so many of each with a label, and 20 more."""
    c = np.arange(2 * labels + 20) % 2
    x = np.random.default_rng(0).normal(size=(len(c), 4)) + 3 * c[:, None]
    np.savez(path, x=x, y=np.where(np.arange(len(c)) < 2 * labels, c, -1))
    return path


def test_own_data_that_nothing_can_be_judged_by(call: Call, tmp_path: Path) -> None:
    few, out = own(tmp_path / "few.npz", 9), tmp_path / "out"
    short = ["--steps", 4, "--batch-size", 8, "--out", out]
    result = call("compare", few, *short)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(
        f"error: {few} cannot be used to compare methods: too few labels to evaluate: '0' has 9"
    )
    assert result.err.count("\n") == 1
    assert not out.exists()
    assert call("train", few, "--method", "mixmatch", *short[:-1], out / "mixmatch-seed1").code == 0
    result = call("compare", own(tmp_path / "few.npz", 10), *short)
    assert (result.code, result.out) == (2, "")
    run = out / "mixmatch-seed1"
    assert result.err.startswith(f"error: {run} was not evaluated on anything: choose another folder with ")
    assert not (out / "supervised-seed1").exists()


def test_own_data_in_a_folder_with_a_name_like_markup(call: Call, tmp_path: Path) -> None:
    out = Path("x[/y]:cat:[red]z")
    result = call("compare", own(tmp_path / "own.npz", 10), "--steps", 4, "--batch-size", 8, "--out", out)
    assert result.code == 0, result.err
    assert result.out.splitlines()[-1] == f"error over minutes and steps: {out / 'error.png'}"


def test_what_images_are_learned_from_and_what_is_left_out_is_said_once(call: Call, tmp_path: Path) -> None:
    c = np.arange(60) % 2
    x = np.random.default_rng(0).integers(0, 99, (60, 8, 8)) + 99 * c[:, None, None]
    for number, (image, label) in enumerate(zip(x, c, strict=True)):
        file = tmp_path / "photos" / (f"{label}" if number < 40 else "unlabeled") / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.astype(np.uint8)).resize((32, 32)).save(file)
    (tmp_path / "photos/0/broken.png").write_text("no image")
    result = call("compare", tmp_path / "photos", "--steps", 4, "--batch-size", 8, "--out", tmp_path / "out")
    assert result.code == 0, result.err
    assert len(list((tmp_path / "out").glob("*/result.json"))) == 2
    assert result.err.count("learning from basic features") == 1
    assert result.err.count("warning: 1 image cannot be read: left out (0/broken.png: not an image") == 1

"""`mixmatch reproduce` and `mixmatch results` as a user runs them, where no data can be downloaded."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mixmatch import api
from mixmatch.experiments import records
from mixmatch.experiments.reproduce import plan
from mixmatch.experiments.tables import TABLES
from mixmatch.training.progress import Quiet

Call = Callable[..., Any]
FULLY_SUPERVISED = ["reproduce", "cifar10", "--labels", "all"]  # one run, and a cheap trial
ROOT = Path(__file__).parents[2]


def colors(path: Path) -> tuple[tuple[int, int], int]:
    """The size of a picture and how many colors it has."""
    with Image.open(path) as picture:
        picture.load()
        return picture.size, len(np.unique(np.asarray(picture.convert("RGB")).reshape(-1, 3), axis=0))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short run."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    api.train("digits", out=folder, steps=4, eval_every=2, batch_size=8, device="cpu", reporter=Quiet())
    return folder


# ---------------------------------------------------------------- listing


def test_a_dry_run_lists_what_would_be_trained(call: Call) -> None:
    result = call(*FULLY_SUPERVISED, "--dry-run", "--json")
    assert result.code == 0, result.err
    answer = json.loads(result.out)
    assert list(answer) == ["runs"]
    (planned,) = answer["runs"]
    seconds, settings = planned.pop("seconds"), planned.pop("settings")
    assert planned == {
        "table": "cifar10",
        "row": "Supervised, all labels",
        "data": "cifar10",
        "method": "supervised-mixup",
        "labels": "all",
        "seed": 1,
        "steps": 1_048_576,
        "state": "to do",
    }
    assert 3600 < seconds < 1e9
    assert (settings["network"], settings["weight_decay"], settings["batch_size"]) == ("wrn-28-2", 0.002, 64)
    assert settings["method_settings"] == {"alpha": 0.5, "keep_order": True}
    assert list(Path.cwd().iterdir()) == []  # nothing is made


def test_a_dry_run_for_people(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mixmatch.cli.reproduce.estimate", lambda runs, device, counted: [3600.0] * len(runs))
    result = call("reproduce", "stl10", "--labels", 1000, 5000, "--steps", 16384, "--dry-run")
    assert result.code == 0, result.err
    lines = [line for line in result.out.splitlines() if " stl10 " in line]
    assert [line.split()[2:4] for line in lines] == [["1000", str(seed)] for seed in (1, 2, 3, 4, 5)] + [["5000", "1"]]
    assert all("16,384" in line and "1:00:00" in line for line in lines)
    settings = [line for line in result.out.splitlines() if "lambda_u=50.0" in line]
    assert [line.startswith("MixMatch, stl10: wrn-28-2-stl10 weight_decay=0.02 ") for line in settings] == [True]
    assert result.out.splitlines()[-1].startswith("6 runs, about 6:00:00 left on this machine")


def test_a_part_is_every_so_many_th_run(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mixmatch.cli.reproduce.estimate", lambda runs, device, counted: [1.0] * len(runs))
    result = call("reproduce", "stl10", "--part", "2/4", "--dry-run", "--json")
    assert result.code == 0, result.err
    runs = [(run["labels"], run["seed"]) for run in json.loads(result.out)["runs"]]
    assert runs == [(1000, 2), (5000, 1)]  # of 1000 with seeds 1 to 5, and 5000 with seed 1


def test_a_part_leaves_the_report_to_the_last(call: Call, tmp_path: Path) -> None:
    """Parts end at different times, perhaps at once."""
    data = tmp_path / "empty"
    words = ["stl10", "--part", "1/6", "--steps", 4, "--data-dir", data, "--results", tmp_path / "results"]
    result = call("reproduce", *words)
    assert result.code == 1
    assert result.out.startswith("part 1/6: 0 of 1 runs finished; the same command without --part reports all")
    assert result.err.startswith("stl10: stl10_binary.tar.gz is missing and downloads are off; get ")
    assert list((tmp_path / "results").iterdir()) == []


def test_passes_are_listed_for_methods_that_have_them(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mixmatch.cli.reproduce.estimate", lambda runs, device, counted: [1.0] * len(runs))
    result = call("reproduce", "stl10", "--labels", 5000, "--passes", "fused", "--dry-run", "--json")
    assert result.code == 0, result.err
    assert [r["settings"]["method_settings"]["passes"] for r in json.loads(result.out)["runs"]] == ["fused"]
    result = call("reproduce", "successors", "--labels", 400, "--seeds", 1, "--passes", "fused", "--dry-run", "--json")
    assert result.code == 0, result.err
    runs = json.loads(result.out)["runs"]
    assert {(r["method"], r["settings"]["method_settings"]["passes"]) for r in runs} == {
        (method, "fused") for method in ("uda", "fixmatch", "flexmatch", "freematch", "softmatch", "adamatch")
    }
    result = call("reproduce", "cifar10", "--passes", "fused", "--dry-run")
    assert (result.code, result.err) == (
        2,
        "error: --passes is for methods with that setting: add --methods mixmatch\n",
    )
    result = call("reproduce", "cifar10", "--labels", "all", "--passes", "fused", "--dry-run")
    assert (result.code, result.err) == (2, "error: --passes is for methods with that setting: leave it out\n")
    result = call("reproduce", "stl10", "--passes", "fusd", "--dry-run")
    assert (result.code, result.err) == (2, "error: --passes 'fusd' must be one of official, fused\n")


def test_the_precision_and_the_students_are_listed(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mixmatch.cli.reproduce.estimate", lambda runs, device, counted: [1.0] * len(runs))
    for words, precision, rows in (([], "fp32", 250), (["--precision", "bf16", "--split", "official"], "bf16", 344)):
        result = call("reproduce", "pate", "--seeds", 1, *words, "--dry-run", "--json")
        assert result.code == 0, result.err
        runs = json.loads(result.out)["runs"]
        assert [run["method"] for run in runs] == ["mixmatch", "vat"]
        assert [run["settings"]["precision"] for run in runs] == [precision] * 2
        students = [run["settings"]["data_options"]["student"] for run in runs]
        assert all(rows - 10 < max(student["rows"]) < rows for student in students)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ablaton"], "error: unknown table 'ablaton': did you mean 'ablation'?"),
        (["label-guesing"], "error: unknown table 'label-guesing': did you mean 'label-guessing'?"),
        (["label-guessing"], "error: label-guessing shows a trained model's guesses: name its run folder with --run"),
        (["label-guessing", "--run", "run", "--part", "1/2"], "error: --part is for runs, and label-guessing is drawn"),
        (["stl10", "--device", "nowhere"], "error: unknown device 'nowhere'"),
        (["label-guessing", "--run", "nowhere"], "error: nowhere is not a run folder"),
        (["cifar10", "--methods", "mixmach"], "error: unknown method 'mixmach': did you mean 'mixmatch'?"),
        (["stl10", "--methods", "vat"], "error: method 'vat' is not in this table (it has: mixmatch)"),
        (["stl10", "--labels", "many"], "error: --labels 'many' must be a whole number of at least 1 or 'all'"),
        (["stl10", "--labels", "all"], "error: nothing to run"),
        (["stl10", "--steps", "0"], "error: --steps 0 must be"),
        (["stl10", "--part", "0/3"], "error: --part 0/3 must be K/N, part K of N: 1/20, 2/20, ..., 20/20"),
        (["stl10", "--part", "4/3"], "error: --part 4/3 must be K/N"),
        (["stl10", "--part", "3"], "error: --part 3 must be K/N"),
    ],
)
def test_what_is_wrong_is_one_line(call: Call, words: list[str], message: str) -> None:
    result = call("reproduce", *words)
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith(message)
    assert result.err.count("\n") == 1
    assert list(Path.cwd().iterdir()) == []


# ---------------------------------------------------------------- reports


def test_without_the_data_the_report_says_not_run(call: Call, tmp_path: Path) -> None:
    words = ["--labels", 100, 250, "--methods", "mixmatch", "--seeds", 1, "--data-dir", tmp_path / "data"]
    result = call("reproduce", "cifar10", *words, cwd=tmp_path)
    assert result.code == 1
    assert result.err.count("downloads are off") == 2  # before the first of the two runs, and at the end
    assert "MixMatch, " not in result.err  # none is begun
    assert "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz" in result.err
    assert str(tmp_path / "data") in result.err
    (failed,) = [line for line in result.err.splitlines() if line.startswith("failed: ")]
    assert re.match("failed: cifar10-mixmatch-250-seed1-[^ ]+, cifar10-mixmatch-100-seed1-[^ ]+: .*binary", failed)
    text = (tmp_path / "results/cifar10.md").read_text()
    assert text.strip() == result.out.strip()
    assert text.startswith("# CIFAR-10, error rate (%)\n")
    (line,) = [line for line in text.splitlines() if line.startswith("| MixMatch |")]
    assert line.startswith("| MixMatch | not run<br>paper 11.08 ± 0.87 |")
    assert line.endswith("| not run<br>no target |")
    size, count = colors(tmp_path / "results/cifar10.png")
    assert min(size) > 400
    assert count > 20
    assert (tmp_path / "results/cifar10.svg").read_text().lstrip().startswith("<?xml")
    assert not list((tmp_path / "results").glob("*.json"))


def test_failures_as_json(call: Call, tmp_path: Path) -> None:
    words = ["--labels", 5000, "--data-dir", tmp_path / "data", "--results", tmp_path / "results", "--json"]
    result = call("reproduce", "stl10", *words)
    assert result.code == 1
    answer = json.loads(result.out)
    assert answer["records"] == []
    (failed,) = answer["failed"]
    assert failed["run"].startswith("stl10-mixmatch-5000-seed1-steps1048576-")
    assert "missing" in failed["reason"]
    assert (tmp_path / "results/stl10.md").exists()


def test_records_of_another_machine_are_reported(trained: Path, call: Call, tmp_path: Path) -> None:
    """A full run's record, copied here: the run is skipped, the cell filled, nothing fails."""
    made = json.loads((trained / "result.json").read_text())
    (planned,) = plan(TABLES["stl10"], labels=[5000])
    settings = planned.settings.to_dict()
    about = {"data": "stl10", "labels": 5000, "seed": 1, "steps": 2**20, "error": 5.25, "settings": settings}
    path = records.save({**made, **about}, tmp_path / "results")
    (tmp_path / "results/damaged.json").write_text("{")
    result = call("reproduce", "stl10", "--labels", 5000, "--results", tmp_path / "results")
    assert result.code == 0, result.err
    assert "| **5.25** (1 of 1 seed)<br>paper 5.59 |" in result.out
    assert "## Other runs" not in result.out
    assert "[1/1] MixMatch, 5,000 labels, seed 1: finished before" in result.err
    assert f"warning: {tmp_path / 'results/damaged.json'} is left out: it cannot be read" in result.err
    listed = call("reproduce", "stl10", "--labels", 5000, "--results", tmp_path / "results", "--json")
    assert [record["error"] for record in json.loads(listed.out)["records"]] == [5.25]

    page = call("results", "--results", tmp_path / "results", "--output", tmp_path / "page.md")
    assert (page.code, page.out) == (0, "")
    assert page.err.splitlines()[-1] == f"wrote {tmp_path / 'page.md'}"
    assert "**5.25** (1 of 1 seed)" in (tmp_path / "page.md").read_text()
    path.unlink()
    again = call("results", "--results", tmp_path / "results")
    assert again.code == 0
    assert "**5.25**" not in again.out


def test_other_budgets_passes_and_seeds_are_reported_apart(trained: Path, call: Call, tmp_path: Path) -> None:
    made = json.loads((trained / "result.json").read_text())
    reports = {}
    for words, given in (
        ((), {}),
        (("--steps", 64), {"steps": 64}),
        (("--passes", "fused"), {"passes": "fused"}),
        (("--seeds", 9), {"seeds": [9]}),
    ):
        (planned,) = plan(TABLES["stl10"], labels=[5000], **given)
        s, error = planned.settings, 5.0 + len(reports)
        about = {"data": s.data, "labels": s.labels, "seed": s.seed, "steps": s.steps, "error": error}
        records.save({**made, **about, "settings": s.to_dict()}, tmp_path / "results")
        result = call("reproduce", "stl10", "--labels", 5000, *words, "--results", tmp_path / "results")
        assert result.code == 0, result.err
        reports[words] = result.out
    usual, short, fused, seed = reports.values()
    assert "| **5.00** (1 of 1 seed)<br>paper 5.59 |" in usual
    assert "| **6.00** (1 of 1 seed, 64 steps)<br>paper 5.59 |" in short
    for report, line in ((fused, "| mixmatch (passes=fused) | 1 | 7.00 |"), (seed, "| mixmatch | 9 | 8.00 |")):
        assert "| **5.00** (1 of 1 seed)<br>paper 5.59 |" in report  # the paper's run stays in its cell
        assert line in report.split("## Other runs")[1]
    assert "## Other runs" not in usual + short


def test_the_page_of_results(call: Call, tmp_path: Path) -> None:
    """To a file with its figure, to standard output without."""
    assert call("results", "--output", tmp_path / "results.md", cwd=ROOT).code == 0
    page = (ROOT / "docs/results.md").read_text()
    assert (tmp_path / "results.md").read_text() == page
    assert page.startswith("# Results\n\nGenerated from the records in `results/`")
    assert (tmp_path / "images" / "error-over-minutes.png").stat().st_size > 10_000
    result = call("results", cwd=ROOT)
    assert (result.code, result.err) == (0, "")
    before, after = page.split("![")
    assert result.out == before + after[after.index("## The paper's tables") :]


def test_a_page_that_cannot_be_written(call: Call, tmp_path: Path) -> None:
    result = call("results", "--results", tmp_path, "--output", tmp_path)
    assert (result.code, result.out) == (2, "")
    assert result.err == f"error: cannot write {tmp_path}: Is a directory\n"


def test_no_folder_of_records(call: Call) -> None:
    result = call("results", "--results", "nothing")
    assert (result.code, result.out, result.err) == (2, "", "error: there is no folder of records nothing\n")


def test_the_curve_of_a_run(trained: Path, call: Call, tmp_path: Path) -> None:
    for of in (trained / "result.json", trained):
        result = call("results", "--curve", of, "-o", "curve.png", cwd=tmp_path)
        assert (result.code, result.out, result.err) == (0, "", "wrote curve.png\n")
        assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
        (tmp_path / "curve.png").unlink()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["result.json", "-o", "curve.md"], "--curve needs a picture to draw"),
        (["result.json"], "--curve needs a picture to draw"),
        (["missing.json", "-o", "curve.png"], "missing.json does not exist"),
        (["checkpoint", "-o", "curve.png"], "checkpoint is no finished run: finish it with train --resume"),
        (["config.json", "-o", "curve.png"], "config.json is not a record of a finished run: it has no data"),
    ],
)
def test_what_is_no_curve(trained: Path, call: Call, words: list[str], error: str) -> None:
    result = call("results", "--curve", *words, cwd=trained)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"error: {error}")
    assert result.err.count("\n") == 1
    assert not (trained / "curve.png").exists()


# ---------------------------------------------------------------- the figure of label guessing


def test_label_guessing_of_a_run(trained: Path, call: Call, tmp_path: Path) -> None:
    result = call("reproduce", "label-guessing", "--run", trained, "--results", "figures", cwd=tmp_path)
    assert result.code == 0, result.err
    assert result.out == f"{Path('figures/label-guessing.png')}\n"
    size, count = colors(tmp_path / "figures/label-guessing.png")
    assert size[0] > size[1] > 400
    assert count > 20
    assert (tmp_path / "figures/label-guessing.svg").read_bytes().count(b"<image") == 3  # it and 2 augmentations


def test_the_same_picture_is_the_same_file(trained: Path, call: Call, tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert call("reproduce", "label-guessing", "--run", trained, "--results", tmp_path / name).code == 0
    assert (tmp_path / "one/label-guessing.svg").read_bytes() == (tmp_path / "two/label-guessing.svg").read_bytes()


def test_the_successors_are_listed(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mixmatch.cli.reproduce.estimate", lambda runs, device, counted: [1.0] * len(runs))
    result = call("reproduce", "successors", "--labels", 40, "--dry-run", "--json", "--results", "nowhere")
    runs = json.loads(result.out)["runs"]
    count = Counter((run["method"], run["data"]) for run in runs)
    assert count[("fixmatch", "cifar10")] == count[("remixmatch", "cifar10")] == 5
    assert count[("adamatch", "svhn-extra")] == count[("flexmatch", "cifar10")] == 3
    assert ("remixmatch", "svhn") not in count  # nothing published that could be checked
    hardest = next(run for run in runs if run["method"] == "remixmatch")
    assert hardest["settings"]["method_settings"]["K"] == 1

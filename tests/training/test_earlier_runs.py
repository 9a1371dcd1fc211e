"""Run folders that an earlier version wrote open, predict, resume, and can be evaluated and reported on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mixmatch
from mixmatch import data
from mixmatch import settings as settings_
from mixmatch.cli.evaluate import evaluate
from mixmatch.report import write_report
from mixmatch.training.checkpoint import TENSORS
from mixmatch.training.device import threads
from mixmatch.training.opening import open_run
from mixmatch.training.progress import Quiet
from mixmatch.training.run import RunFolder

FOLDERS = Path(__file__).parents[1] / "fixtures" / "run_folders"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folders, in which table-mixmatch finds its data."""
    shutil.copytree(FOLDERS, tmp_path / "runs")
    monkeypatch.chdir(tmp_path / "runs")
    return tmp_path / "runs"


def without_time(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in record.items() if name != "seconds"} for record in records]


@pytest.mark.parametrize("name", ["digits-mixmatch-stopped", "digits-vat", "table-mixmatch"])
def test_settings_that_did_not_exist_are_at_what_was_done_then(name: str) -> None:
    written = RunFolder(FOLDERS / name).config()["settings"]
    read = settings_.from_dict(written)
    assert written.items() <= read.to_dict().items()
    new = {key: value for key, value in read.to_dict().items() if key not in written}
    assert new.items() >= {"optimizer": "adam", "momentum": 0.9, "unlabeled": "rest", "strong": "cutout"}.items()


def test_a_stopped_run_resumes_to_the_end_it_had(here: Path) -> None:
    with threads(1):
        record = mixmatch.train(
            "digits", out=here / "digits-mixmatch-stopped", resume=True, device="cpu", reporter=Quiet()
        )
    expected = json.loads((FOLDERS / "digits-mixmatch-finished.json").read_text())
    assert record["error"] == pytest.approx(expected["error"])
    assert record["curve"] == expected["curve"]
    assert record["split"] == expected["split"]
    lines = (FOLDERS / "digits-mixmatch-finished.jsonl").read_text().splitlines()
    ours = without_time(RunFolder(here / "digits-mixmatch-stopped").metrics())
    theirs = without_time([json.loads(line) for line in lines])
    assert [record["step"] for record in ours] == [3, 6, 9, 12]
    assert ours[:2] == theirs[:2]  # kept, not done again
    for mine, then in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(then, rel=1e-5)


def test_a_run_on_user_data_resumes_without_what_came_later(here: Path) -> None:
    """Today's presets for user data warm the average up; a run that was begun before keeps to its own settings. So
    does a new run with the settings of its config.json."""
    for name in ("model.safetensors", "result.json", "metrics.jsonl"):
        (here / "table-mixmatch" / name).unlink()
    (here / "table-mixmatch" / "config.json").rename(here / "config.json")
    options: dict[str, Any] = {"device": "cpu", "reporter": Quiet()}
    lines = (FOLDERS / "table-mixmatch" / "metrics.jsonl").read_text().splitlines()
    expected = without_time([json.loads(line) for line in lines])
    with threads(1):
        mixmatch.train("rows.csv", out="again", config="config.json", **options)
        (here / "config.json").rename(here / "table-mixmatch" / "config.json")
        mixmatch.train("rows.csv", out="table-mixmatch", resume=True, **options)
    for run in (RunFolder(here / "table-mixmatch"), RunFolder(here / "again")):
        ours = [{name: record[name] for name in expected[0]} for record in run.metrics()]
        for mine, then in zip(ours, expected, strict=True):
            assert mine == pytest.approx(then, rel=1e-5)


def test_the_checkpoint_is_read_in_full() -> None:
    saved = RunFolder(FOLDERS / "digits-mixmatch-stopped").load_checkpoint()
    assert saved is not None
    assert saved.step == 6
    assert saved.method == {}
    assert all(getattr(saved, part) for part in TENSORS if part != "method")


def test_a_stopped_run_predicts_with_its_checkpoint() -> None:
    source = data.load("digits")
    classifier = mixmatch.load(FOLDERS / "digits-mixmatch-stopped", device="cpu")
    wrong = classifier.probabilities(source.test.inputs).argmax(1) != source.test.labels
    assert 100 * np.mean(wrong) == pytest.approx(
        RunFolder(FOLDERS / "digits-mixmatch-stopped").metrics()[-1]["test_error"]
    )


@pytest.mark.parametrize("name", ["digits-vat", "table-mixmatch"])
def test_a_finished_run_has_the_error_it_had(here: Path, name: str) -> None:
    opened = open_run(RunFolder(Path(name)))
    test = opened.split.test
    probabilities = mixmatch.load(name, device="cpu").probabilities(opened.source.test.inputs[test])
    wrong = probabilities.argmax(1) != opened.source.test.labels[test]
    then = json.loads((FOLDERS / name / "result.json").read_text())
    assert len(test) == then["split"]["test"]
    assert opened.split.hash == then["split"]["hash"]
    assert 100 * np.mean(wrong) == pytest.approx(then["last_error"])


@pytest.mark.parametrize("name", ["digits-vat", "table-mixmatch"])
def test_a_finished_run_is_reported_on(here: Path, name: str) -> None:
    then = json.loads((FOLDERS / name / "result.json").read_text())
    report, page, to_label = write_report(name, device="cpu")
    assert page == Path(name) / "report.html"
    assert "</html>" in page.read_text()
    assert report.verdict
    assert to_label is not None
    assert len(to_label.read_text().splitlines()) > 1
    assert report.evaluated is not None
    assert report.evaluated.error == pytest.approx(then["last_error"])


@pytest.mark.parametrize("name", ["digits-vat", "table-mixmatch"])
def test_the_command_evaluates_a_finished_run(here: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    then = json.loads((FOLDERS / name / "result.json").read_text())
    evaluate(run=Path(name), device="cpu", as_json=True)
    result = json.loads(capsys.readouterr().out)
    assert result["error"] == pytest.approx(then["last_error"])
    assert result["images"] == then["split"]["test"]


def test_a_table_predicts_from_its_file(here: Path) -> None:
    predictions = list(mixmatch.predict_files("table-mixmatch", ["rows.csv"], device="cpu"))
    assert len(predictions) == 60
    lines = [line.split(",")[-1] for line in (here / "rows.csv").read_text().splitlines()[1:]]
    right = [p.class_name == label for p, label in zip(predictions, lines, strict=True) if label]
    assert np.mean(right) > 0.8


def test_a_finished_run_is_not_trained_again(here: Path) -> None:
    record = mixmatch.train("digits", method="vat", out="digits-vat", resume=True, reporter=Quiet())
    then = json.loads((FOLDERS / "digits-vat" / "result.json").read_text())
    assert record == {name: value for name, value in then.items() if name != "format"}


def test_a_run_without_test_rows_keeps_its_split(tmp_path: Path) -> None:
    """Where a class had fewer than ten labels, an earlier version held nothing out."""
    images, out = tmp_path / "images.npz", tmp_path / "run"
    x = np.random.default_rng(0).integers(0, 256, (60, 8, 8, 1), np.uint8)
    np.savez(images, x=x, y=np.repeat([0, 1, 2, -1], (20, 20, 3, 17)))
    alone = {"baseline": False, "cross_validate": False}  # as train() was then
    options: dict[str, Any] = {"out": out, "device": "cpu", "reporter": Quiet(), "features": "none", **alone}
    mixmatch.train(str(images), hold_out="all-classes", steps=2, **options)
    config = json.loads((out / "config.json").read_text())
    assert config["split"]["test"] == 0
    del config["settings"]["hold_out"]  # which did not exist then
    (out / "config.json").write_text(json.dumps(config))
    assert len(open_run(RunFolder(out)).split.test) == 0
    report, _, _ = write_report(out, device="cpu")
    assert report.verdict.error is None
    assert mixmatch.train(str(images), resume=True, **options)["split"]["test"] == 0
    assert mixmatch.train(str(images), **{**options, "out": tmp_path / "new"}, steps=2)["split"]["test"] == 8

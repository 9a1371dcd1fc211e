"""From Python as on the command line: the verdict from `train`, `evaluate`, `write_report`, `export_model`, predictions
of image files, and how results show themselves."""

from __future__ import annotations

import copy
import csv
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import mixmatch
from mixmatch.cli import main
from mixmatch.data.user.images import decode_image
from mixmatch.errors import MixMatchError
from mixmatch.methods.mixmatch import MixMatch
from mixmatch.networks.frozen import Basic
from mixmatch.training.progress import Quiet

FAST: dict[str, Any] = {"steps": 12, "eval_every": 6, "batch_size": 8, "device": "cpu", "reporter": Quiet()}
NAMES = ("<a>", "b & c")


def table(path: Path, counts: dict[str, int], seed: int = 0) -> Path:
    """Rows of two numbers; the second class lies higher. "" is unlabeled."""
    rng = np.random.default_rng(seed)
    labels = [label for label, count in counts.items() for _ in range(count)]
    rows = [[f"{rng.normal(2.0 * (label == NAMES[1])):.4f}", f"{rng.normal():.4f}", label] for label in labels]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["size", "weight", "kind"], *rows])
    return path


def pictures(folder: Path, **counts: int) -> Path:
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for i in range(count):
            bright = name == "day" or (name == "unlabeled" and i % 2 == 0)
            pixels = np.random.default_rng(i).integers(0, 60, (30 + i, 32, 3)) + (180 if bright else 20)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{i:02}.png")
    return folder


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return table(tmp_path_factory.mktemp("data") / "rows.csv", {NAMES[0]: 15, NAMES[1]: 15, "": 60})


@pytest.fixture(scope="module")
def run(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on the rows, with its baseline and report. Do not change it."""
    out = tmp_path_factory.mktemp("runs") / "rows"
    mixmatch.train(rows, label_column="kind", out=out, **FAST)
    return out


@pytest.fixture(scope="module")
def photos_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = pictures(tmp_path_factory.mktemp("data") / "photos", day=12, night=12, unlabeled=20)
    out = folder.parent / "run"
    mixmatch.train(str(folder), out=out, features="basic", baseline=False, **FAST)
    return out


def by_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    """What a command prints with --json."""
    monkeypatch.setattr(sys, "argv", ["mixmatch", *map(str, words), "--json"])
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    return json.loads(capsys.readouterr().out)


# ---------------------------------------------------------------- train


def test_train_does_what_the_command_does(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = mixmatch.train(str(rows), label_column="kind", out=tmp_path / "python", **FAST)
    words = [
        "--steps",
        12,
        "--eval-every",
        6,
        "--batch-size",
        8,
        "--device",
        "cpu",
        "--quiet",
        "--label-column",
        "kind",
    ]
    said = by_command(monkeypatch, capsys, "train", rows, "--out", tmp_path / "command", *words)
    assert record["sha256"]["model.safetensors"] == said["sha256"]["model.safetensors"]
    apart = ("seconds", "report", "sha256")  # metrics hold seconds
    assert {k: v for k, v in record.items() if k not in apart} == {k: v for k, v in said.items() if k not in apart}
    assert record["verdict"].startswith(record["verdict_details"]["how_good"])
    assert record["verdict_details"]["baseline_error"] is not None
    assert Path(record["report"]) == tmp_path / "python" / "report.html"
    assert Path(record["report"]).exists()
    # what is on disk has the fields it had
    result = json.loads((tmp_path / "python" / "result.json").read_text())
    assert {"verdict", "verdict_details", "report"} & result.keys() == set()
    again = mixmatch.train(str(rows), label_column="kind", out=tmp_path / "python", resume=True, **FAST)
    assert again == record


def test_the_baseline_can_be_left_out(rows: Path, tmp_path: Path) -> None:
    record = mixmatch.train(rows, label_column="kind", out=tmp_path / "run", baseline=False, **FAST)
    assert not (tmp_path / "run" / "baseline").exists()
    assert "there is no run on the labels alone" in record["verdict"]
    assert record["verdict_details"]["error"] == record["last_error"]


def test_cross_validation(rows: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"label_column": "kind", "baseline": False, **FAST, "steps": 3}
    few = table(tmp_path / "few.csv", {NAMES[0]: 4, NAMES[1]: 4, "": 20})
    assert mixmatch.train(few, out=tmp_path / "few", **given)["verdict_details"]["cross_validated"]
    record = mixmatch.train(few, out=tmp_path / "not", cross_validate=False, **given)
    assert record["verdict_details"]["error"] is None
    mixmatch.train(rows, out=tmp_path / "both", cross_validate=True, **given)
    assert (tmp_path / "both" / "cross_validation.json").exists()


def test_published_data_is_trained_on_and_nothing_else(tmp_path: Path) -> None:
    record = mixmatch.train("digits", labels=20, out=tmp_path / "run", **{**FAST, "steps": 2})
    assert "verdict" not in record
    assert not (tmp_path / "run" / "report.html").exists()
    for name in ("baseline", "cross_validate"):
        with pytest.raises(MixMatchError, match=f"^{name}= is for your own data on disk, not for 'digits'$"):
            mixmatch.train("digits", out=tmp_path / "other", **{name: True})
    assert not (tmp_path / "other").exists()


def test_a_network_and_a_method_of_ones_own(rows: Path, tmp_path: Path) -> None:
    """The baseline begins with the network as it was given, not as the run has left it, and is supervised."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    given: dict[str, Any] = {"label_column": "kind", **FAST}
    first = copy.deepcopy(network)
    record = mixmatch.train(rows, network=network, method=MixMatch(lambda_u=2.0), out=tmp_path / "run", **given)
    assert record["settings"]["method_settings"]["lambda_u"] == 2.0
    alone = copy.deepcopy(first)
    mixmatch.train(rows, network=alone, method="supervised", out=tmp_path / "alone", baseline=False, **given)
    models = [tmp_path / name / "model.safetensors" for name in ("run/baseline", "alone", "run")]
    baseline, supervised, trained = (path.read_bytes() for path in models)
    assert baseline == supervised != trained
    evaluation = mixmatch.evaluate(tmp_path / "run", network=first)
    assert evaluation.error == record["verdict_details"]["error"]
    written = mixmatch.write_report(tmp_path / "run", network=first)
    assert written.report.verdict.text == record["verdict"]
    torch.manual_seed(0)
    untouched = nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)).state_dict()
    assert all(torch.equal(value, untouched[name]) for name, value in first.state_dict().items())


def test_a_network_of_ones_own_on_frozen_features(tmp_path: Path) -> None:
    folder, head = pictures(tmp_path / "photos", day=12, night=12, unlabeled=20), nn.Linear(Basic(3).feature_size, 2)
    record = mixmatch.train(folder, out=tmp_path / "run", features="basic", network=copy.deepcopy(head), **FAST)
    assert mixmatch.evaluate(tmp_path / "run", network=head).error == record["verdict_details"]["error"]
    with pytest.raises(MixMatchError, match="is of a network of your own, Linear: pass it, load"):
        mixmatch.load(tmp_path / "run")


def test_what_was_left_out_is_a_warning(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "photos", day=3, night=3, unlabeled=4)
    (folder / "day" / "damaged.png").write_bytes(b"no image")
    with pytest.warns(UserWarning, match=r"damaged\.png"):
        mixmatch.train(folder, out=tmp_path / "run", features="basic", baseline=False, **{**FAST, "steps": 1})


def test_a_run_that_cannot_continue_is_refused_before_its_data_is_read(
    rows: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mixmatch.data.read_user_data", lambda *_, **__: pytest.fail("it reads"))
    with pytest.raises(MixMatchError, match="continue it with resume=True, or choose another with out="):
        mixmatch.train(rows, label_column="kind", out=run, **FAST)
    with pytest.raises(MixMatchError, match="batch_size: 8 -> 9"):
        mixmatch.train(rows, label_column="kind", out=run, resume=True, **{**FAST, "batch_size": 9})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"stps": 5}, "unknown setting 'stps': did you mean 'steps'?"),
        ({"dvice": "cpu"}, "unknown parameter 'dvice': did you mean 'device'?"),
        ({"cross_validation": True}, "unknown parameter 'cross_validation': did you mean 'cross_validate'?"),
        ({"learning_rte": 1}, "unknown setting 'learning_rte': did you mean 'learning_rate'?"),
        (
            {"method": "supervised", "K": 2},
            "method 'supervised' has no setting K= (mixmatch, remixmatch have it)",
        ),
        ({"data": "digit"}, "'digit' is neither a data set nor a file or folder: did you mean 'digits'?"),
        ({"data": np.zeros(3)}, "data must be a name, a path or a Source, not ndarray; mixmatch.MixMatchClassifier"),
    ],
)
def test_errors(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(MixMatchError) as caught:
        mixmatch.train(**{"data": "digits", "out": tmp_path / "run", **given})
    said = str(caught.value)
    assert said == message if message.endswith("?") else said.startswith(message)


def test_all_names_are_listed_only_where_none_is_near(tmp_path: Path) -> None:
    with pytest.raises(MixMatchError, match=r"^unknown setting 'qqq' \(known: K, T, alpha, .*, weights\)$"):
        mixmatch.train("digits", qqq=1, out=tmp_path)


# ---------------------------------------------------------------- evaluate


def test_evaluate(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    new = table(tmp_path / "new.csv", {NAMES[0]: 9, NAMES[1]: 6, "other": 2}, seed=1)
    with pytest.warns(UserWarning, match="2 rows of a class that the model does not know"):
        evaluation = mixmatch.evaluate(run, new)
    with new.open() as file:
        kept = [row for row in csv.DictReader(file) if row["kind"] in NAMES]
    columns = {name: [row[name] for row in kept] for name in ("size", "weight")}
    pairs = list(zip([row["kind"] for row in kept], mixmatch.load(run).predict(columns), strict=True))
    expected = [[pairs.count((truth, said)) for said in NAMES] for truth in NAMES]
    assert evaluation.classes == NAMES
    assert evaluation.confusion.tolist() == expected
    wrong = expected[0][1] + expected[1][0]
    assert evaluation.error == pytest.approx(100 * wrong / 15)
    assert evaluation.interval[0] <= evaluation.error <= evaluation.interval[1]
    assert evaluation.per_class[NAMES[1]].error == pytest.approx(100 * expected[1][0] / 6)
    assert evaluation.verdict.guessing == pytest.approx(100 * 6 / 15)
    assert [finding.kind for finding in evaluation.findings] == ["unknown-class"]
    assert f"{wrong} of 15 test rows wrong" in str(evaluation)
    assert by_command(monkeypatch, capsys, "evaluate", run, new) == evaluation.to_dict()
    own = mixmatch.evaluate(str(run))
    assert by_command(monkeypatch, capsys, "evaluate", run) == own.to_dict()
    assert own.error == json.loads((run / "result.json").read_text())["last_error"]


def test_what_cannot_be_evaluated(run: Path, rows: Path, tmp_path: Path) -> None:
    with pytest.raises(MixMatchError, match="label_column= is for new data: name it after the run"):
        mixmatch.evaluate(run, label_column="kind")
    with pytest.raises(MixMatchError, match="unknown setting 'label_colum' of how data is read: did you mean"):
        mixmatch.evaluate(run, rows, label_colum="kind")
    with pytest.raises(MixMatchError, match="data= is where the run's own data is, and there is new data"):
        mixmatch.evaluate(run, rows, data=rows)
    with pytest.raises(MixMatchError, match="the data has changed"):
        mixmatch.evaluate(run, data=table(tmp_path / "other.csv", {NAMES[0]: 12, NAMES[1]: 12, "": 3}))
    with pytest.raises(MixMatchError, match="is not a run folder"):
        mixmatch.evaluate(tmp_path)


# ---------------------------------------------------------------- report and export


def test_write_report(run: Path, rows: Path, tmp_path: Path) -> None:
    written = mixmatch.write_report(run, tmp_path / "page.html")
    report, page, label_next = written
    assert (written.report, written.page, written.label_next) == (report, page, label_next)
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert label_next == run / "label-next.csv"
    assert report.verdict.gain is not None
    moved = tmp_path / "elsewhere.csv"
    moved.write_bytes(rows.read_bytes())
    assert mixmatch.write_report(run, page, data=moved).report.verdict == report.verdict


def test_export_model(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x = {"size": ["0.3", "2.5"], "weight": ["1", "-1"]}
    path, difference = mixmatch.export_model(run, format="safetensors")
    assert (path, difference) == (Path("rows.safetensors"), None)
    np.testing.assert_array_equal(mixmatch.load(path).predict_proba(x), mixmatch.load(run).predict_proba(x))
    assert mixmatch.export_model(mixmatch.load(run), "same.safetensors", "safetensors").path.exists()
    with pytest.raises(MixMatchError, match="unknown format 'onx': did you mean 'onnx'"):
        mixmatch.export_model(run, "rows.onnx", "onx")
    with pytest.raises(MixMatchError, match="name the file with path="):
        mixmatch.export_model(mixmatch.load(run))
    runtime = pytest.importorskip("onnxruntime")
    path, difference = mixmatch.export_model(run, "rows.onnx")
    assert difference is not None
    assert difference < 1e-4
    (given,) = runtime.InferenceSession(path).run(None, {"features": np.array([[0.3, 1], [2.5, -1]], np.float32)})
    np.testing.assert_allclose(given, mixmatch.load(run).predict_proba(x), atol=1e-4)


# ---------------------------------------------------------------- predict


def test_predict_image_files(photos_run: Path) -> None:
    model = mixmatch.load(photos_run, device="cpu")
    files = sorted((photos_run.parent / "photos" / "unlabeled").glob("*.png"))[::-1]
    expected = model.predict_proba(np.stack([decode_image(file, 32, 32, 3)[0] for file in files]))
    for given in (files, list(map(str, files)), tuple(files), np.array(list(map(str, files)))):
        np.testing.assert_allclose(model.predict_proba(given), expected, atol=1e-6)
    assert model.predict(files) == [model.classes[c] for c in expected.argmax(axis=1)]
    assert model.predict(str(files[0])) == model.predict(files[:1]) == model.predict(files)[:1]
    assert model.predict([]) == []


def test_what_cannot_be_predicted(photos_run: Path, run: Path, tmp_path: Path) -> None:
    images, numbers = mixmatch.load(photos_run, device="cpu"), mixmatch.load(run, device="cpu")
    (tmp_path / "damaged.png").write_bytes(b"no image")
    takes = r"^the model takes images, uint8 \(N, 32, 32, 3\), or paths of image files, not "
    for model, given, message in (
        (images, [1, 2, 3], takes + "a list of int$"),
        (images, {"size": [1.0]}, takes + "a table$"),
        (images, 3, takes + "int$"),
        (images, tmp_path, "is a folder: mixmatch.predict_files predicts the images in it"),
        (images, [tmp_path / "gone.png"], "there is no file .*gone.png"),
        (images, [tmp_path / "damaged.png"], "cannot read .*damaged.png: .*; mixmatch.predict_files leaves such"),
        (
            numbers,
            [["a", "b"]],
            r"takes a matrix of numbers \(N, 2\), or a table's columns by name \(size, weight\), not",
        ),
        (numbers, ["new.csv"], "mixmatch.predict_files reads files of rows"),
    ):
        with pytest.raises(MixMatchError, match=message):
            model.predict(given)


# ---------------------------------------------------------------- how they show themselves


def test_a_record_is_a_dict_that_shows_itself(run: Path, rows: Path) -> None:
    record = mixmatch.train(rows, label_column="kind", out=run, resume=True, **FAST)
    error = record["verdict_details"]["error"]
    assert repr(record).startswith(
        f"<run: data {rows}, method mixmatch, labels 24, seed 1, error {error:.1f} %, steps 12 in"
    )
    assert "\n" not in repr(record)
    assert isinstance(record, dict)
    assert json.loads(json.dumps(record)) == record == dict(record) == pickle.loads(pickle.dumps(record))
    html = record._repr_html_()
    for text in ("how good", "trust", "unlabeled", "next", str(record["report"])):
        assert f">{text}</t" in html
    assert (
        repr(type(record)({}))
        == "<run: data None, method None, labels None, seed None, error not known, steps 0 in 0:00>"
    )


def test_names_are_escaped(run: Path) -> None:
    model, evaluation, report = mixmatch.load(run), mixmatch.evaluate(run), mixmatch.write_report(run).report
    assert repr(model) == (
        "Classifier(mlp; 2 classes: <a>, b & c; takes a matrix of numbers (N, 2), or a table's columns by name (size, "
        "weight))"
    )
    assert repr(evaluation).startswith(f"<Evaluation of {run} on ")
    assert repr(report).startswith(f"<Report on {run}: ")
    for shown in (model, evaluation, report):
        html = shown._repr_html_()
        assert "<a>" not in html
        assert html.count("<table>") == html.count("</table>") > 0
        assert "http" not in html
        assert "src=" not in html
    assert "&lt;a&gt;" in model._repr_html_()
    assert "b &amp; c" in evaluation._repr_html_()

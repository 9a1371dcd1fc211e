"""A table or a matrix in, a classifier, a verdict, a report and predictions out, by the command line alone."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mixmatch
from mixmatch.data.user.encoding import Encoding, fit

FAST = ["--steps", "12", "--eval-every", "6", "--batch-size", "8", "--quiet", "--device", "cpu"]
HEADER = ["size", "color", "id", "species"]


def rows(count: int, seed: int, labeled: int) -> list[list[str]]:
    """Size and color tell the species; a size is missing now and then; the first `labeled` rows have their label."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(count):
        c = i % 2
        size = "" if i % 17 == 16 else f"{rng.normal(20 + 10 * c, 2):.3f}"
        color = ("red", "blue")[c] if rng.random() < 0.9 else "green"
        made.append([size, color, f"x{i}q{i * i}", ("cat", "dog")[c] if i < labeled else ""])
    return made


def write(path: Path, header: list[str], lines: list[list[str]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *lines])
    return path


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("table") / "pets.csv", HEADER, rows(120, 0, 40))


@pytest.fixture(scope="module")
def finished(here, table: Path) -> Path:
    out = table.parent / "finished"
    result = here("train", table, "--label-column", "species", "--out", out, *FAST)
    assert result.code == 0, result.err
    return out


@pytest.fixture
def trained(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "run")


def test_train_gain_report_evaluate_resume(call, table: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = ["--label-column", "species", "--out", out, *FAST]
    result = call("train", table, "--json", *options)
    assert result.code == 0, result.err
    record = json.loads(result.out)
    assert record["settings"]["network"] == "mlp"
    assert record["split"]["labeled"] == 32
    assert record["split"]["test"] == 8
    assert "test rows wrong" in record["verdict"]
    assert "Labels alone: " in record["verdict"]
    assert "8 labeled rows held out" in record["verdict"]
    assert json.loads((out / "baseline" / "result.json").read_text())["method"] == "supervised"

    page = (out / "report.html").read_text()
    assert "image" not in page.split("</style>")[1].replace("data:image", "")
    assert "<img" not in page
    assert "line " in page  # rows are named by where they are in the file
    first = (out / "label-next.csv").read_text().splitlines()[1]
    assert first.startswith("line ")
    assert 42 <= int(first.split(",")[0].removeprefix("line ")) <= 121  # the header is line 1, labeled are 2 to 41

    again = call("train", table, "--resume", *options)
    assert again.code == 0, again.err
    assert record["verdict_details"]["how_good"] in " ".join(again.out.split())
    evaluated = call("evaluate", out, "--json")
    assert json.loads(evaluated.out)["error"] == pytest.approx(record["last_error"])
    assert "8 rows" in call("evaluate", out).out


def test_a_resumed_run_has_a_baseline_with_its_own_budget_and_columns(call, table: Path, tmp_path: Path) -> None:
    """What the run was begun with is not given again."""
    out = tmp_path / "run"
    options = ["--label-column", "species", "--ignore", "id", "--noise", "0.1", *FAST]
    assert call("train", table, "--out", out, "--no-baseline", *options).code == 0
    result = call("train", table, "--out", out, "--resume", "--quiet", "--device", "cpu")
    assert result.code == 0, result.err
    assert "Labels alone: " in result.out
    ours, alone = (json.loads((f / "config.json").read_text())["settings"] for f in (out, out / "baseline"))
    assert alone["method"] == "supervised"
    apart = {"method", "method_settings", "weight_decay"}  # it has its own
    assert {k: v for k, v in alone.items() if k not in apart} == {k: v for k, v in ours.items() if k not in apart}


def test_train_tells_what_is_left_out_before_it_begins(call, tmp_path: Path) -> None:
    lines = [[*row[:3], "NA" if i % 9 == 8 else row[3]] for i, row in enumerate(rows(120, 0, 80))]
    path = write(tmp_path / "pets.csv", HEADER, lines)
    result = call("train", path, "--label-column", "species", "--out", tmp_path / "run", "--no-baseline", *FAST)
    assert result.code == 0, result.err
    assert "warning: the label 'NA' is taken for a class: if it means that there is no label" in result.err
    assert "warning: column 'id' has 120 different values, too many for categories: left out" in result.err
    again = call("train", path, "--label-column", "species", "--out", tmp_path / "run", "--no-baseline", "--resume")
    assert (again.code, again.err) == (0, "")


def test_labels_alone_need_no_unlabeled_rows(call, tmp_path: Path) -> None:
    path = write(tmp_path / "pets.csv", HEADER, rows(40, 0, 40))
    options = ["--label-column", "species", "--ignore", "id", "--out", tmp_path / "run", *FAST]
    result = call("train", path, *options)
    assert result.code == 2
    assert "has no unlabeled rows" in result.err
    assert "train with the supervised method, or add unlabeled data" in result.err
    result = call("train", path, *options, "--method", "supervised")
    assert (result.code, result.err) == (0, "")


def test_predict_finds_columns_by_name(call, trained: Path, tmp_path: Path) -> None:
    new = rows(20, 1, 0)
    ordered = write(tmp_path / "ordered.csv", HEADER[:2], [row[:2] for row in new])
    shuffled = write(tmp_path / "shuffled.csv", ["color", "more", "size"], [[row[1], "?", row[0]] for row in new])
    a, b = (json.loads(call("predict", trained, path, "--json").out) for path in (ordered, shuffled))
    assert [row["probabilities"] for row in a] == [row["probabilities"] for row in b]
    assert a[0]["file"] == f"{ordered} line 2"
    assert {row["class"] for row in a} <= {"cat", "dog"}
    # The encoding is that of the training file, worked out here again.
    lines = rows(120, 0, 40)
    columns = {name: [line[i] for line in lines] for i, name in enumerate(HEADER[:2])}
    encoding, _ = fit(columns)
    model = mixmatch.load(trained, device="cpu")
    expected = model.probabilities(encoding.apply({name: [r[i] for r in new] for i, name in enumerate(HEADER[:2])}))
    np.testing.assert_allclose([list(row["probabilities"].values()) for row in a], expected, atol=1e-6)


def test_an_unknown_category_is_none_of_the_known(call, trained: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "new.csv", HEADER[:2], [["22", "violet"], ["", "red"]])
    result = call("predict", trained, path)
    assert result.code == 0, result.err
    assert len(result.out.splitlines()) == 3
    model = mixmatch.load(trained, device="cpu")
    assert model.encoding is not None
    hot = model.encode({"size": ["22"], "color": ["violet"]})[0, 1:]
    assert hot.tolist() == [0, 0, 0]


def test_predictions_of_an_unfinished_run(call, table: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    call("train", table, "--label-column", "species", "--out", run, "--no-baseline", *FAST)
    finished = call("predict", run, table).out
    (run / "model.safetensors").unlink()
    assert call("predict", run, table).err.startswith(f"error: {run / 'model.safetensors'} is damaged (it is missing)")
    (run / "result.json").unlink()
    assert call("predict", run, table).out == finished  # from the checkpoint, with the encoding in config.json


@pytest.mark.parametrize(
    ("header", "line", "says"),
    [
        (["size", "colour"], ["2", "red"], "no column 'color', which the model was trained with"),
        (["size", "color"], ["large", "red"], "column 'size' holds numbers, but one value is 'large'"),
        (["size", "color"], ["inf", "red"], "infinite"),
    ],
)
def test_tables_that_cannot_be_predicted(
    call, trained: Path, tmp_path: Path, header: list[str], line: list[str], says: str
) -> None:
    result = call("predict", trained, write(tmp_path / "new.csv", header, [line]))
    assert result.code == 2
    assert says in result.err
    assert "new.csv" in result.err
    assert len(result.err.splitlines()) == 1
    assert result.out == ""


def test_images_for_a_model_of_rows(call, trained: Path, tmp_path: Path) -> None:
    result = call("predict", trained, tmp_path)
    assert result.code == 2
    assert "rows of a table or an array, not images" in result.err


def npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def matrix(columns: int = 6) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    truth = np.arange(150) % 3
    x = rng.normal(size=(150, columns)) + 3 * np.eye(3, columns)[truth]
    return {"x": x[:90], "y": np.where(np.arange(90) < 30, truth[:90], -1), "x_test": x[90:], "y_test": truth[90:]}


def test_a_matrix(call, tmp_path: Path) -> None:
    data = matrix()
    out = tmp_path / "run"
    result = call("train", npz(tmp_path / "x.npz", **data), "--out", out, "--json", *FAST)
    assert result.code == 0, result.err
    assert "Evaluated on the 60 test rows" in json.loads(result.out)["verdict"]
    np.save(tmp_path / "new.npy", data["x_test"][:5])
    predicted = json.loads(call("predict", out, tmp_path / "new.npy", "--json").out)
    expected = mixmatch.load(out, device="cpu").predict_proba(data["x_test"][:5])
    np.testing.assert_allclose([list(row["probabilities"].values()) for row in predicted], expected, atol=1e-12)
    assert [row["file"] for row in predicted] == [f"{tmp_path / 'new.npy'} row {i}" for i in range(5)]
    np.save(tmp_path / "narrow.npy", data["x_test"][:, :5])
    result = call("predict", out, tmp_path / "narrow.npy")
    assert result.code == 2
    assert "narrow.npy" in result.err
    assert "(60, 5), but the model takes (N, 6)" in result.err


def test_images_in_an_array(call, tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 1), np.uint8)
    y = np.where(np.arange(30) < 8, np.arange(30) % 2, -1)
    options = [*FAST, "--network", "wrn-small", "--out", tmp_path / "run"]
    result = call("train", npz(tmp_path / "x.npz", x=x, y=y), *options)
    assert result.code == 0, result.err
    np.save(tmp_path / "new.npy", x[:3, :, :, 0])
    predicted = json.loads(call("predict", tmp_path / "run", tmp_path / "new.npy", "--json").out)
    expected = mixmatch.load(tmp_path / "run", device="cpu").predict_proba(x[:3])
    np.testing.assert_allclose([list(row["probabilities"].values()) for row in predicted], expected, atol=1e-12)
    refused = call("predict", tmp_path / "run", write(tmp_path / "t.csv", HEADER, rows(3, 0, 3)))
    assert refused.code == 2
    assert "the model takes images, uint8 (N, 8, 8, 1), or paths of image files, not a table" in refused.err


def test_exported_features_are_standardized_by_the_graph(call, trained: Path, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    result = call("export", trained, "--format", "onnx", "--output", tmp_path / "m.onnx")
    assert result.code == 0, result.err
    session = runtime.InferenceSession(tmp_path / "m.onnx")
    about = session.get_modelmeta().custom_metadata_map
    names = json.loads(about["features"])
    assert names == ["size", "color=blue", "color=green", "color=red"]
    assert Encoding.from_dict(json.loads(about["encoding"])).feature_names == names
    raw = np.array([[25.5, 1, 0, 0], [np.nan, 0, 0, 1]], np.float32)
    (probabilities,) = session.run(["probabilities"], {"features": raw})
    model = mixmatch.load(trained, device="cpu")
    expected = model.predict_proba({"size": ["25.5", ""], "color": ["blue", "red"]})
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)

    result = call("export", trained, "--format", "safetensors", "--output", tmp_path / "m.safetensors")
    assert result.code == 0, result.err
    again = mixmatch.load(tmp_path / "m.safetensors", device="cpu")
    np.testing.assert_array_equal(again.predict_proba({"size": ["25.5", ""], "color": ["blue", "red"]}), expected)


def test_a_test_part_and_ignored_columns(call, tmp_path: Path) -> None:
    lines = [[*row, "test" if i < 10 else ""] for i, row in enumerate(rows(60, 0, 30))]
    path = write(tmp_path / "pets.csv", [*HEADER, "part"], lines)
    options = ["--label-column", "species", "--part-column", "part", "--ignore", "id", "--ignore", "color"]
    result = call("train", path, "--out", tmp_path / "run", "--json", *options, *FAST)
    assert result.code == 0, result.err
    record = json.loads(result.out)
    assert "Evaluated on the 10 test rows" in record["verdict"]
    assert record["settings"]["data_options"]["ignore"] == ["id", "color"]
    model = mixmatch.load(tmp_path / "run", device="cpu")
    assert model.encoding is not None
    assert model.encoding.feature_names == ["size"]


def test_a_class_without_test_rows_and_names_like_markup(call, tmp_path: Path) -> None:
    """What a person named is shown as it is: brackets are no styles, and colons no emoji."""
    names = {"cat": "[/cat]", "dog": "[red]:dog:"}
    lines = [[*row, "test" if i < 10 else ""] for i, row in enumerate(rows(60, 0, 30))]
    lines = [[*row[:3], names.get(row[3], ""), row[4]] for row in lines]
    lines[20][3] = "bird"
    path = write(tmp_path / "pets.csv", [*HEADER, "part"], lines)
    out = Path("x[/y]:cat:[red]z")
    options = ["--label-column", "species", "--part-column", "part", "--ignore", "id", "--no-baseline"]
    result = call("train", path, "--out", out, *options, *FAST)
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[-2:] == [f"report: {out / 'report.html'}", f"model: {out / 'model.safetensors'}"]

    result = call("evaluate", out, "--json")
    assert (result.code, result.err) == (0, "")
    per_class = json.loads(result.out, parse_constant=pytest.fail)["per_class"]
    assert per_class.keys() == {"[/cat]", "[red]:dog:", "bird"}
    assert per_class["bird"] is None
    assert per_class["[/cat]"] is not None

    result = call("evaluate", out)
    assert (result.code, result.err) == (0, "")
    shown = {words[0]: words[1:] for line in result.out.splitlines() if (words := line.split())}
    assert shown["bird"] == ["0", "–"]
    assert shown["[/cat]"] == ["5", f"{per_class['[/cat]']:.1f}"]
    assert shown["[red]:dog:"] == ["5", f"{per_class['[red]:dog:']:.1f}"]


def test_data_that_changed_since_is_not_evaluated_on(call, tmp_path: Path) -> None:
    """Other rows would be held out, some of which the model has learned from."""
    lines = rows(120, 0, 40)
    table = write(tmp_path / "pets.csv", HEADER, lines)
    assert call("train", table, "--label-column", "species", "--out", tmp_path / "run", *FAST).code == 0
    assert call("evaluate", tmp_path / "run").code == 0
    write(table, HEADER, lines[2:])
    for command in (["evaluate"], ["report"], ["reproduce", "label-guessing", "--run"]):
        result = call(*command, tmp_path / "run")
        assert result.code == 2
        assert result.err.startswith(
            f"error: the data has changed since {tmp_path / 'run'} was trained (another split)"
        )
    table.unlink()
    result = call("evaluate", tmp_path / "run")
    assert result.err.startswith(
        f"error: the data of {tmp_path / 'run'} is not at {table}: say where it is with --data"
    )


def test_the_same_table_by_another_name(call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path may be spelled in many ways. Elsewhere the run's own name for it may lead to another table."""
    write(tmp_path / "pets.csv", HEADER, rows(120, 0, 40))
    monkeypatch.chdir(tmp_path)
    options = ["--label-column", "species", *FAST[2:]]
    assert call("train", "pets.csv", "--out", "run", "--steps", "6", *options).code == 0
    for steps, name in enumerate(("./pets.csv", tmp_path / "pets.csv", f"../{tmp_path.name}/pets.csv"), 7):
        result = call("train", name, "--out", "run", "--resume", "--steps", steps, "--json", *options)
        assert result.code == 0, result.err
        record = json.loads(result.out)
        assert (record["steps"], record["settings"]["data"]) == (steps, "pets.csv")
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    assert call("train", "../pets.csv", "--out", "../run", "--resume", *options).code == 0
    write(tmp_path / "sub" / "pets.csv", HEADER, rows(120, 0, 30))
    assert call("train", "../pets.csv", "--out", "../run", "--resume", *options).code == 0
    assert "the data has changed" in call("train", "pets.csv", "--out", "../run", "--resume", *options).err
    write(tmp_path / "sub" / "cats.csv", HEADER, rows(120, 0, 40))
    assert "data: pets.csv -> cats.csv" in call("train", "cats.csv", "--out", "../run", "--resume", *options).err


def test_a_table_that_is_not_there_is_not_there(call, tmp_path: Path) -> None:
    result = call("train", tmp_path / "pets.csv", "--label-column", "species")
    assert (result.code, result.err) == (2, f"error: there is no file or folder {tmp_path / 'pets.csv'}\n")


def test_methods_compared_on_a_table(call, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["--steps", "6", "--batch-size", "8", "--device", "cpu", "--methods", "supervised", "--json"]
    result = call("compare", table, "--label-column", "species", "--ignore", "id", *given)
    assert result.code == 0, result.err
    assert [row["method"] for row in json.loads(result.out)["rows"]] == ["supervised"]
    assert (tmp_path / "runs" / "compare-pets.csv" / "error.png").exists()


def test_guesses_of_rows_cannot_be_drawn(call, trained: Path, tmp_path: Path) -> None:
    result = call("reproduce", "label-guessing", "--run", trained, "--results", tmp_path)
    assert result.code == 2
    assert result.err.startswith("error: label-guessing shows an image, but")
    assert result.err.endswith("pets.csv holds features\n")


def test_data_check_tries_training(call, table: Path) -> None:
    result = call("data", "check", table, "--label-column", "species", "--device", "cpu", "--json")
    assert result.code == 0, result.err
    said = json.loads(result.out)
    found = {finding["kind"]: finding for finding in said["findings"]}
    assert "(from 20 steps)" in found["cost"]["message"]
    assert said["command"] == f"mixmatch train {table} --device cpu --label-column species"
    assert 0 < said["seconds"] < 600
    result = call("data", "check", table, "--label-column", "species", "--no-trial", "--json")
    assert "cost" not in {finding["kind"] for finding in json.loads(result.out)["findings"]}


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": np.zeros((4, 0)), "y": np.zeros(4)}, "shape (4, 0)"),
        ({"x": np.array([["a", "b"]] * 4), "y": np.array([0, 1, 0, 1])}, "must hold real numbers"),
        ({"x": np.zeros((4, 2)), "y": np.array([1, 1, -1, -1])}, "one class only"),
        ({"x": np.zeros((4, 2)), "y": np.full(4, -1)}, "no labeled rows"),
        ({"x": np.full((4, 2), np.inf), "y": np.array([0, 1, -1, -1])}, "infinite"),
        ({"x": np.eye(4), "y": np.array([0, 1, 0, 1])}, "has no unlabeled rows, so there is nothing"),
        ({"x": np.zeros((4, 2))}, "no labels 'y'"),
    ],
)
def test_arrays_that_are_refused(call, tmp_path: Path, arrays: dict[str, np.ndarray], says: str) -> None:
    result = call("train", npz(tmp_path / "x.npz", **arrays), "--out", tmp_path / "run", *FAST)
    assert result.code == 2
    assert says in result.err
    assert len(result.err.splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--label-column", "kind"], "no column 'kind'"),
        (["--label-column", "species", "--image-size", "32"], "--image-size is not for a table"),
        (["--label-column", "species", "--flip"], "pad and flip are for images"),
        (["--label-column", "species", "--network", "wrn-28-2"], "takes images"),
        (["--label-column", "species", "--ignore", "colour"], "no column 'colour': did you mean 'color'?"),
    ],
)
def test_options_that_are_refused(call, table: Path, tmp_path: Path, options: list[str], says: str) -> None:
    result = call("train", table, "--out", tmp_path / "run", *FAST, *options)
    assert result.code == 2
    assert says in result.err
    assert not (tmp_path / "run").exists()


def test_data_after_an_option_that_can_be_repeated(call, table: Path, tmp_path: Path) -> None:
    """--ignore takes one column; what follows is the data."""
    options = ["--label-column", "species", "--out", tmp_path / "run", "--no-baseline", *FAST]
    result = call("train", *options, "--ignore", "id", table)
    assert (result.code, result.err) == (0, "")
    settings = json.loads((tmp_path / "run" / "config.json").read_text())["settings"]
    assert settings["data_options"]["ignore"] == ["id"]
    result = call("data", "check", "--no-trial", "--label-column", "species", "--ignore", "id", table)
    assert result.code == 0, result.err


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """Seven labels of one class and nine of the other, one of them wrong."""
    lines = rows(60, 0, 16)
    lines[0][3] = {"cat": "dog", "dog": "cat"}[lines[0][3]]
    return write(tmp_path / "few.csv", HEADER, lines)


STEPS = ["--steps", "60", "--eval-every", "30", "--batch-size", "16", "--quiet", "--device", "cpu"]


def test_what_cannot_be_cross_validated_is_not_trained_first(call, tmp_path: Path) -> None:
    lines = [[str(i), label] for i, label in enumerate(["a", "b"] + [""] * 30)]
    table = write(tmp_path / "single.csv", ["size", "label"], lines)
    result = call("train", table, "--cross-validate", "--out", tmp_path / "run", *STEPS)
    assert result.code == 2
    assert result.err.splitlines()[-1] == "error: cross-validation takes a class with two labels or more: add labels"
    assert not (tmp_path / "run" / "config.json").exists()


def test_too_few_labels_to_hold_out_are_cross_validated(call, few: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = ["--label-column", "species", "--ignore", "id", "--out", out, *STEPS]
    result = call("train", few, "--json", *options)
    assert (result.code, result.err) == (0, "")
    record = json.loads(result.out)
    details = record["verdict_details"]
    assert (record["split"]["labeled"], record["split"]["test"], record["error"]) == (16, 0, None)
    assert details["cross_validated"]
    assert details["images"] == 16
    assert details["baseline_error"] is not None
    kept = json.loads((out / "cross_validation.json").read_text())
    wrong = [row for row in kept["rows"] if row["label"] != row["predicted"]]
    assert len(wrong) == details["wrong"] >= 1
    assert "line 2" in [row["file"] for row in wrong]
    page = (out / "report.html").read_text()
    assert "Labels that may be wrong" in page
    assert page.index("Labels that may be wrong") < page.index("line 2<")
    assert "error in cross-validation: " in page

    evaluated = call("evaluate", out)
    assert (evaluated.code, evaluated.err) == (0, "")
    assert details["how_good"].partition(" Labels alone")[0] in evaluated.out
    before = (out / "cross_validation.json").stat().st_mtime_ns
    again = call("train", few, "--resume", *options)
    assert details["how_good"] in again.out
    assert (out / "cross_validation.json").stat().st_mtime_ns == before


def test_cross_validation_can_be_left_out_and_asked_for(call, few: Path, table: Path, tmp_path: Path) -> None:
    options = ["--label-column", "species", "--ignore", "id", "--no-baseline", *STEPS]
    result = call("train", few, "--no-cross-validate", "--out", tmp_path / "without", *options)
    assert "The error is not known: too few labels to evaluate" in result.out
    assert not (tmp_path / "without" / "cross_validation.json").exists()
    result = call("train", table, "--cross-validate", "--out", tmp_path / "with", "--json", *options)
    details = json.loads(result.out)["verdict_details"]
    assert (details["cross_validated"], details["images"]) == (False, 8)  # the error is that on the test rows
    assert len(json.loads((tmp_path / "with" / "cross_validation.json").read_text())["rows"]) == 32
    assert "Labels that may be wrong" in (tmp_path / "with" / "report.html").read_text()


def test_models_that_only_guess_do_not_doubt_labels(call, tmp_path: Path) -> None:
    lines = rows(60, 0, 16)
    for i, row in enumerate(lines[:16]):
        row[3] = ("cat", "dog")[i // 2 % 2]  # has nothing to do with what the row is
    path = write(tmp_path / "random.csv", HEADER, lines)
    options = ["--label-column", "species", "--ignore", "id", "--no-baseline", "--out", tmp_path / "run", *STEPS]
    result = call("train", path, *options)
    assert result.code == 0, result.err
    assert "cannot be told from guessing" in result.out or "worse than guessing" in result.out
    assert "may be wrong" not in result.out
    assert "Labels that may be wrong" not in (tmp_path / "run" / "report.html").read_text()


def test_an_id_column_is_no_feature_and_stays_with_its_rows(call, tmp_path: Path) -> None:
    table = write(tmp_path / "pets.csv", HEADER, rows(120, 0, 40))
    run = tmp_path / "run"
    result = call("train", table, "--label-column", "species", "--id-column", "id", "--out", run, *FAST)
    assert result.code == 0, result.err
    ids = {line[2] for line in rows(120, 0, 40)}
    with (run / "label-next.csv").open() as file:
        assert {line["file"] for line in csv.DictReader(file)} < ids
    new = write(tmp_path / "new.csv", ["id", "color", "size"], [["n1", "red", "20"], ["n2", "blue", "30"]])
    lines = list(csv.reader(call("predict", run, new).out.splitlines()))
    assert lines[0] == ["id", "file", "class", "probability", "cat", "dog"]
    assert [line[:2] for line in lines[1:]] == [["n1", f"{new} line 2"], ["n2", f"{new} line 3"]]
    predicted = json.loads(call("predict", run, new, "--json").out)
    assert [row["id"] for row in predicted] == ["n1", "n2"]
    assert [p.id for p in mixmatch.predict_files(run / "model.safetensors", new)] == ["n1", "n2"]
    assert json.loads(call("predict", run, new, "--id-column", "color", "--json").out)[1]["color"] == "blue"
    bare = write(tmp_path / "bare.csv", ["color", "size"], [["red", "20"]])
    assert json.loads(call("predict", run, bare, "--json").out)[0]["id"] is None
    assert "has no column 'idd': did you mean 'id'?" in call("predict", run, new, "--id-column", "idd").err
    odd = write(tmp_path / "odd.csv", ["file", "color", "size"], [["n1", "red", "20"]])
    assert call("predict", run, odd, "--id-column", "file").out.startswith("file (id),file,class,")


def test_ids_in_parquet(call, trained: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    new = write(tmp_path / "new.csv", ["id", "color", "size"], [["n1", "red", "20"], ["", "blue", "30"]])
    out = tmp_path / "out.parquet"
    result = call("predict", trained, new, "--id-column", "id", "--format", "parquet", "--output", out)
    assert result.code == 0, result.err
    assert parquet.read_table(out).column_names == ["id", "file", "class", "probability", "cat", "dog"]
    assert parquet.read_table(out)["id"].to_pylist() == ["n1", ""]

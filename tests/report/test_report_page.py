"""The page tells the truth about a run, parses, and needs nothing but itself."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mixmatch import api, data, measure
from mixmatch.classifier import Classifier
from mixmatch.cli import main
from mixmatch.data.opened import Basis, Data
from mixmatch.data.split import make_split
from mixmatch.data.user.csv_file import read_csv
from mixmatch.errors import MixMatchError
from mixmatch.execution.here import run_one
from mixmatch.report import conclude, gather, render, write_report
from mixmatch.report.gather import Evaluated, Shown
from mixmatch.report.page import data_uri
from mixmatch.report.write import label_next
from mixmatch.training.gain import Gain, measure_gain
from mixmatch.training.opening import open_run
from mixmatch.training.plan import plan
from mixmatch.training.progress import Quiet
from mixmatch.training.run import RunFolder


def alone(html: str, page: Any) -> None:
    """Nothing is loaded, nothing runs."""
    for tag, attributes in page.tags:
        assert tag not in ("script", "link", "iframe", "object", "embed", "base")
        assert "href" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        assert (attributes.get("src") or "data:image/").startswith("data:image/")
    assert "url(" not in html
    assert "@import" not in html
    assert "://" not in html


@pytest.fixture(scope="module")
def predicted(digits_run: Path) -> tuple[np.ndarray, np.ndarray]:
    test = data.load("digits").test
    return api.load(digits_run, device="cpu").predict_proba(test.inputs), test.labels


@pytest.fixture(scope="module")
def written(digits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    _, page, to_label = write_report(digits_run, tmp_path_factory.mktemp("page") / "report.html", device="cpu")
    assert to_label is not None
    return page, to_label


def test_verdict_first_and_numbers_right(digits_run: Path, written, read_page, predicted) -> None:
    html = written[0].read_text(encoding="utf-8")
    page = read_page(html)
    alone(html, page)
    probabilities, labels = predicted
    answers = probabilities.argmax(axis=1)
    gain = measure_gain(
        api.load(digits_run, device="cpu"), api.load(digits_run / "baseline", device="cpu"), data.load("digits").test
    )
    wrong = int((answers != labels).sum())
    order = [
        "How good is it?",
        f"{100 * (labels != np.bincount(labels).argmax()).mean():.2f} % guessing",
        f"{gain.baseline:.2f} % labels alone",
        f"{wrong / 5:.2f} % test error: {wrong} of 500 test images wrong (95 % interval ",
        "Can that be trusted?",
        "Did the unlabeled data help?",
        gain.sentence,
        "What next?",
        "Test error over steps",
        "Confusion matrix",
        "Class by class",
        "as sure as",
        "The guesses",
        "Most confident",
    ]
    places = [page.text.index(title) for title in [*order, "Most confident", "Worth labeling", "Settings and hardware"]]
    assert places == sorted(places)

    for folder, name in ((digits_run, "mixmatch"), (digits_run / "baseline", "labels alone")):
        last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
        assert f"{name} {last['test_error']:.2f} %" in page.text

    counts = np.zeros((10, 10), int)
    for truth, answer in zip(labels, answers, strict=True):
        counts[truth, answer] += 1
    shown = [[int(cell.replace("·", "0")) for cell in row[1:]] for row in page.tables["confusion"][1:]]
    assert shown == counts.tolist()

    by_name = {row[0]: row[1:] for row in page.tables["scores"][1:]}
    for c in range(10):
        of_class, given = labels == c, answers == c
        wrong = 100 * (answers[of_class] != c).mean()
        precision = f"{100 * (labels[given] == c).mean():.1f}" if given.any() else "–"
        expected = ["2", str(of_class.sum()), f"{wrong:.1f}", precision, f"{100 - wrong:.1f}"]
        assert by_name[str(c)] == expected
    errors = [float(row[3]) for row in page.tables["scores"][1:]]
    assert errors == sorted(errors, reverse=True)

    error = 0.0
    sure, right = probabilities.max(axis=1), answers == labels
    for b in range(15):
        inside = (sure > b / 15) & (sure <= (b + 1) / 15)
        error += abs(right[inside].sum() - sure[inside].sum()) / len(sure)
    assert f"Expected calibration error {100 * error:.1f} % (15 bins of equal width)" in page.text


def test_mistakes_and_images_to_label(written, read_page, predicted) -> None:
    page = read_page(written[0].read_text(encoding="utf-8"))
    probabilities, labels = predicted
    wrong = np.flatnonzero(probabilities.argmax(axis=1) != labels)
    surest = wrong[probabilities[wrong].max(axis=1).argmax()]
    mistakes = page.text[page.text.index("Most confident mistakes") :]
    sure = f"{probabilities[surest].argmax()} {100 * probabilities[surest].max():.1f} %"
    assert f"predicted {sure} true class {labels[surest]} row {surest} " in mistakes
    assert mistakes.index(f"row {surest} ") < mistakes.index("Worth labeling next")
    assert page.count("img") == 48

    rows = list(csv.DictReader(io.StringIO(written[1].read_text(encoding="utf-8"))))
    assert list(rows[0]) == ["row", "score", "predicted", "probability"]
    assert len({row["row"] for row in rows}) == len(rows) == 1277 // 20
    unlabeled = data.load("digits").train.inputs[[int(row["row"]) for row in rows]]
    again = api.load(written[1].parent, device="cpu").predict_proba(unlabeled)
    assert [float(row["score"]) for row in rows] == pytest.approx(measure.uncertainty(again), rel=1e-4)
    assert [row["predicted"] for row in rows] == [str(c) for c in again.argmax(axis=1)]
    assert float(rows[0]["score"]) == max(float(row["score"]) for row in rows)
    labeled = json.loads((written[1].parent / "config.json").read_text())["split"]["labeled_rows"]
    assert not {int(row["row"]) for row in rows} & set(labeled)


def test_lists_of_images_have_no_cell_that_a_spreadsheet_runs(tmp_path: Path) -> None:
    shown = Shown(None, "=1.png", "@home", 0.5, score=0.25)
    listing = label_next(SimpleNamespace(user_data=True, unlabeled=SimpleNamespace(suggestions=[shown])))
    assert listing == "file,score,predicted,probability\n'=1.png,0.25,'@home,0.5\n"
    (tmp_path / "labels.csv").write_text(listing)
    assert list(read_csv(tmp_path / "labels.csv").column("file")) == ["=1.png"]


def test_without_baseline_the_test_error_is_the_verdict(digits_run: Path, read_page) -> None:
    report = gather(digits_run / "baseline", device="cpu")
    assert report.gain is None
    assert report.evaluated is not None
    page = read_page(render(report))
    assert f"{report.evaluated.error:.2f} % test error: {report.evaluated.wrong} of 500 test images wrong" in page.text
    assert "The method supervised learns from the labels alone" in page.text
    last = json.loads((digits_run / "baseline" / "metrics.jsonl").read_text().splitlines()[-1])
    assert report.evaluated.error == pytest.approx(last["test_error"])


def test_user_images_without_test_images(user_run: Path, read_page, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["mixmatch", "report", str(user_run), "--json", "--device", "cpu"])
    main_exit(0)
    summary = json.loads(capsys.readouterr().out)
    assert summary["error"] is None
    assert summary["report"] == str(user_run / "report.html")
    html = (user_run / "report.html").read_text(encoding="utf-8")
    page = read_page(html)
    alone(html, page)
    for sentence in ("how_good", "unlabeled"):
        assert summary["verdict_details"][sentence] in page.text
    assert "The error is not known: too few labels to evaluate" in page.text
    for title in ("Test error over steps", "Class by class", "Most confident mistakes", "Is it as sure"):
        assert title not in page.text
    assert page.text.index("my <photos>: mixmatch") < page.text.index("Worth labeling next")
    with (user_run / "label-next.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    folder = user_run.parent / "my <photos>"
    for row in rows:
        assert (folder / row["file"]).is_file()
        assert row["file"].startswith("unlabeled/<b")
        assert row["file"] in page.text  # as written, so it was escaped
    assert "<b> &" not in html


def test_names_of_images_held_out(user_run: Path, tmp_path: Path) -> None:
    """Where labels are held out, a mistake is called by the file it was."""
    folder = tmp_path / "photos"
    for i in range(30):
        where = folder / ("dark", "light", "unlabeled")[i // 10]
        where.mkdir(parents=True, exist_ok=True)
        Image.new("L", (32, 32), 8 * i).save(where / f"{i}.png")
    settings = {"steps": 2, "eval_every": 2, "batch_size": 4, "network": "wrn-small", "pad": 1}
    api.train(str(folder), out=tmp_path / "run", device="cpu", **settings)
    report = gather(tmp_path / "run", device="cpu")
    assert report.evaluated is not None
    assert report.evaluated.images == 4
    assert len(report.evaluated.mistakes) == report.evaluated.wrong > 0
    for shown in report.evaluated.mistakes:
        with Image.open(folder / shown.name) as image:
            assert (np.asarray(image) == shown.pixels[..., 0]).all()
        assert shown.name.startswith(f"{shown.true}/")


def test_many_classes_show_the_most_confused(digits_run: Path, read_page) -> None:
    report = gather(digits_run, device="cpu")
    rng = np.random.default_rng(1)
    labels, answers = rng.integers(0, 100, 3000), rng.integers(0, 100, 3000)
    answers[:2000] = labels[:2000]
    counts = measure.confusion(labels, answers, 100)
    sure = measure.reliability(np.ones(3000), answers == labels)
    mistake = Shown(np.zeros((8, 8, 1), np.uint8), '<i>"&', '<i>"taken"', 0.99999, true="<i>&amp;")
    evaluated = Evaluated(3000, int((labels != answers).sum()), counts, measure.class_scores(counts), sure, [mistake])
    classes = tuple(f'<i>{c} & "x"' for c in range(100))
    page = read_page(render(replace(report, classes=classes, labels=[5] * 100, evaluated=evaluated)))
    shown = page.tables["confusion"]
    assert len(shown) - 1 == len(shown[0]) - 1 <= 12
    assert f"Only {len(shown) - 1} of the 100 classes are shown" in page.text
    assert "the other 80 classes" in page.text
    assert len([row for row in page.tables["scores"] if row[0].startswith("<i>")]) == 100
    assert 'predicted <i>"taken" >99.9 % true class <i>&amp; row <i>"&' in page.text


def test_metrics_that_are_not_finite_do_not_break_the_page(digits_run: Path, read_page) -> None:
    report = gather(digits_run, device="cpu")
    metrics = [{**m, "loss": float("nan"), "strange <&>": 1e-9, "text": "no number"} for m in report.metrics]
    html = render(replace(report, metrics=metrics))
    assert "strange <&>" in read_page(html).text
    assert not re.search(r'"[^"]*\bnan\b', html.partition("<svg")[2])
    assert render(replace(report, metrics=[], baseline=[]))


def test_pictures_are_exact_or_small() -> None:
    pixels = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
    kind, content = data_uri(pixels).split(",")
    assert kind == "data:image/png;base64"
    assert (np.asarray(Image.open(io.BytesIO(base64.b64decode(content)))) == pixels).all()
    noise = np.random.default_rng(0).integers(0, 256, (224, 224, 3)).astype(np.uint8)
    assert len(data_uri(noise)) < 20_000
    assert data_uri(np.zeros((224, 224, 1), np.uint8)).startswith("data:image/jpeg")


@pytest.mark.parametrize("channels", [2, 4, 48])
@pytest.mark.parametrize("size", [8, 64])
def test_a_picture_of_other_channels_than_colors(channels: int, size: int) -> None:
    """The first three are shown, or of two, the first."""
    pixels = np.full((size, size, channels), 200, np.uint8)
    pixels[..., 0] = 50
    content = base64.b64decode(data_uri(pixels).split(",")[1])
    with Image.open(io.BytesIO(content)) as image:
        color = np.array(image.getpixel((3, 3)))
    np.testing.assert_allclose(color, [50, 200, 200] if channels > 2 else 50, atol=3)


def main_exit(code: int) -> None:
    """Run the command that `sys.argv` holds; how it ends is its exit code."""
    ended: Any = 0
    try:
        main()
    except SystemExit as stopped:
        ended = stopped.code or 0
    assert ended == code


@pytest.mark.parametrize("case", ["nothing", "unfinished", "changed", "gone", "unwritable"])
def test_what_a_user_can_put_right_is_one_line(
    case: str, digits_run: Path, user_run: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    run, says, options = tmp_path / "run", "", []
    if case == "nothing":
        says = "not a run folder"
    else:
        run.mkdir()
        for name in ("config.json", "result.json", "metrics.jsonl", "model.safetensors"):
            (run / name).write_bytes(((user_run if case == "gone" else digits_run) / name).read_bytes())
    if case == "unfinished":
        (run / "result.json").unlink()
        says = f"{run} is not finished"
    if case == "changed":
        config = json.loads((run / "config.json").read_text())
        config["split"]["hash"] = "0" * 16
        (run / "config.json").write_text(json.dumps(config))
        says = "the data has changed"
    if case == "gone":
        config = json.loads((run / "config.json").read_text())
        config["settings"]["data"] = "nowhere/at/all"
        (run / "config.json").write_text(json.dumps(config))
        says = "nowhere/at/all"
    if case == "unwritable":
        options, says = ["--output", str(tmp_path / "no" / "folder" / "x.html")], "cannot write"
    monkeypatch.setattr(sys, "argv", ["mixmatch", "report", str(run), "--device", "cpu", *options])
    main_exit(2)
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert err.count("\n") == 1
    with pytest.raises(MixMatchError):
        write_report(run, options[1] if options else None, device="cpu")


def test_open_data_and_gain_are_not_computed_again(digits_run: Path, monkeypatch) -> None:
    """`train` has both: the report takes them."""
    source = data.load("digits")
    opened = Data(source, make_split(source, 20, 1), Basis("the 500 test images"))
    known = Gain(error=7.0, baseline=9.0, low=1.0, high=3.0, images=500)

    def again(*_: object, **__: object) -> None:
        raise AssertionError("read or measured again")

    monkeypatch.setitem(gather.__globals__, "open_run", again)
    monkeypatch.setitem(gather.__globals__, "measure_gain", again)
    report = gather(digits_run, opened, known, device="cpu")
    assert report.gain == known
    assert report.verdict.unlabeled == known.sentence
    assert "Labels alone: 9.00 %" in report.verdict.how_good
    assert "Evaluated on the 500 test images." in report.verdict.trust


def test_any_method_settings_and_metrics(digits_run: Path, tmp_path: Path, read_page) -> None:
    """A run of a method from outside the package: its name, settings and metrics are unknown here."""
    run, name = tmp_path / "run", "custom:MyMethodWithQuiteALongNameIndeed"
    run.mkdir()
    for file in ("config.json", "result.json", "model.safetensors"):
        content = (digits_run / file).read_bytes()
        if file.endswith("json"):
            values = json.loads(content)
            values["settings"] |= {"method": name, "method_settings": {"threshold": [0.5, "<x>"], "more": {"a": 1}}}
            values["method"] = name
            values.pop("sha256", None)  # as an earlier version wrote it
            content = json.dumps(values).encode()
        (run / file).write_bytes(content)
    lines = [{"step": s, "test_error": 50.0, "log_likelihood": -7.0 + s / 10, "kept": True} for s in (10, 20)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = data.load("digits")
    html = render(gather(run, Data(source, make_split(source, 20, 1), Basis("500 test images")), device="cpu"))
    page = read_page(html)
    assert "digits: MyMethodWithQuiteALongNameIndeed, 20 labels" in page.text
    assert "Whether the unlabeled images helped is not known: there is no run on the labels alone." in page.text
    settings = dict(page.tables["settings"])
    assert (settings["method"], settings["threshold"], settings["more"]) == (name, "0.5, <x>", "{'a': 1}")
    chart = html[html.index("<figcaption>log_likelihood") :]
    heights = [float(point.split(",")[1]) for point in re.findall(r'points="([^"]*)"', chart)[0].split()]
    assert 0 < heights[1] < heights[0] < 165  # inside the chart, and rising
    alone(html, page)


def test_thumbnails_come_from_the_files(tmp_path: Path) -> None:
    """A network of 32 pixels does not make the report unreadable. A file that is gone is shown as it was decoded."""
    folder = tmp_path / "photos"
    for i in range(30):
        where = folder / ("dark", "light", "unlabeled")[i // 10]
        where.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (300, 150), (8 * i, 0, 0)).save(where / f"{i}.png")
    settings = {"steps": 2, "eval_every": 2, "batch_size": 4, "network": "wrn-small", "image_size": 32}
    api.train(str(folder), out=tmp_path / "run", device="cpu", reporter=Quiet(), **settings)
    opened = open_run(RunFolder(tmp_path / "run"))
    (folder / "unlabeled" / "25.png").unlink()
    report = gather(tmp_path / "run", opened, device="cpu")
    shown = {image.name: image.pixels.shape for image in report.unlabeled.suggestions}
    assert shown.pop("unlabeled/25.png") == (32, 32, 3)
    assert set(shown.values()) == {(48, 96, 3)}
    assert data_uri(report.unlabeled.suggestions[0].pixels).startswith("data:image/jpeg")


def test_a_model_that_always_says_the_same_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the unlabeled rows, where nothing was held out: cross-validation is of other models."""
    table, out = tmp_path / "rows.csv", tmp_path / "run"
    lines = [f"{i % 7},{i % 3},{('a', 'b')[i % 2] if i < 12 else ''}" for i in range(60)]
    table.write_text("\n".join(["n,x,label", *lines]) + "\n")
    plan_ = plan(str(table), {"steps": 4, "batch_size": 8}, out=out, device="cpu", reporter=Quiet())
    run_one(plan_)
    opened = open_run(RunFolder(out))
    report, _ = conclude(plan_, opened, baseline=False)
    assert report.verdict.cross_validated
    always = lambda _, inputs: np.tile([0.1, 0.9], (len(inputs), 1))  # noqa: E731
    monkeypatch.setattr(Classifier, "probabilities", always)
    report = gather(out, opened, device="cpu")
    assert report.verdict.trust.startswith("It always predicts b. ")
    assert report.verdict.next_steps[0].startswith("Lower lambda_u")

"""`mixmatch predict` and `mixmatch evaluate` on a run as `train` leaves it and on image files as people have them."""

from __future__ import annotations

import csv
import importlib
import io
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from terminals import Terminal

import mixmatch
from mixmatch.cli import predict as command
from mixmatch.predict import formats

Call = Callable[..., Any]
CLASSES = [str(digit) for digit in range(10)]
PIXELS = np.rint(load_digits().images * (255 / 16)).astype(np.uint8)
"""The digits (1797, 8, 8), made here and not by the package."""


@pytest.fixture(scope="module")
def trained(here: Call, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    options = ["--steps", 45, "--eval-every", 20, "--learning-rate", 0.01, "--ema-decay", 0.9, "--labels", 100]
    result = here("train", "digits", *options, "--method", "supervised", "--out", folder, "--quiet")
    assert result.code == 0, result.err
    return folder


def test_folder_as_csv(trained: Path, run: Call, tmp_path: Path) -> None:
    """A folder in a folder, in order of name, with the probabilities the library gives for the same arrays."""
    photos = tmp_path / "photos"
    (photos / "more").mkdir(parents=True)
    for name, row in {"b.png": 1, "a.png": 0, "c.PNG": 2, "more/d.png": 3}.items():
        Image.fromarray(PIXELS[row]).save(photos / name, "PNG")
    (photos / "notes.txt").write_text("not an image, and not named like one")
    result = run("predict", trained, photos)
    assert (result.code, result.err) == (0, "")
    header, *rows = csv.reader(io.StringIO(result.out))
    assert header == ["file", "class", "probability", *CLASSES]
    assert [row[0] for row in rows] == [str(photos / name) for name in ("a.png", "b.png", "c.PNG", "more/d.png")]
    expected = mixmatch.load(trained).predict_proba(PIXELS[:4, :, :, None])
    np.testing.assert_allclose(np.array([row[3:] for row in rows], float), expected, atol=2e-6)
    for row, probabilities in zip(rows, expected, strict=True):
        assert row[1] == CLASSES[probabilities.argmax()]
        assert float(row[2]) == pytest.approx(probabilities.max(), abs=2e-6)


@pytest.mark.parametrize("words", [["predict", "digits.npy"], ["evaluate", "--json"], ["evaluate"]])
def test_what_nobody_reads_ends_as_in_other_programs(
    words: list[str], trained: Path, start: Call, tmp_path: Path
) -> None:
    """`mixmatch predict RUN photos/ | head`: without a word, and as a shell expects of a closed pipe."""
    np.save(tmp_path / "digits.npy", PIXELS[:, :, :, None])
    process = start(words[0], trained, *words[1:], cwd=tmp_path, env={**os.environ, "PYTHONUNBUFFERED": ""})
    process.stdout.close()
    assert (process.stderr.read(), process.wait()) == ("", 141)
    process.stderr.close()


def test_a_training_that_nobody_follows_ends_as_well(start: Call, tmp_path: Path) -> None:
    """`mixmatch train digits 2>&1 | head`."""
    process = start("train", "digits", "--method", "supervised", "--steps", 2000, "--out", tmp_path / "run")
    assert process.stderr.readline().startswith("digits supervised: 2,000 steps")
    process.stderr.close()
    assert (process.stdout.read(), process.wait()) == ("", 141)
    process.stdout.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_under_the_output_is_one_line(unbuffered: str, run: Call) -> None:
    with open("/dev/full", "w") as full:
        result = run("methods", stdout=full, env={**os.environ, "PYTHONUNBUFFERED": unbuffered})
    assert result.code == 2
    assert result.err == "error: no space is left where this is written: free some, then give the same command again\n"


def test_no_cell_is_run_by_a_spreadsheet(trained: Path, call: Call, tmp_path: Path, monkeypatch) -> None:
    """Names of files and of classes, which also head columns. JSON has them as they are."""
    monkeypatch.chdir(tmp_path)
    Image.fromarray(PIXELS[0]).save("=cmd.png")
    model = mixmatch.load(trained, device="cpu")
    model.classes = ("=1+1", *CLASSES[1:])
    model.save(Path("model.safetensors"))
    header, row = csv.reader(io.StringIO(call("predict", "model.safetensors", "=cmd.png").out))
    assert (header[3], row[:2]) == ("'=1+1", ["'=cmd.png", "'=1+1"])
    for name in ("a\n=cmd.png", "a\r=cmd.png", "a;=cmd.png"):  # rows or cells of their own, unless they are quoted
        Path("=cmd.png").rename(name)
        call("predict", "model.safetensors", name, "--output", "out.csv")
        assert f'\n"{name}",'.encode() in Path("out.csv").read_bytes()
        Path(name).rename("=cmd.png")
    (found,) = json.loads(call("predict", "model.safetensors", "=cmd.png", "--json").out)
    assert (found["file"], found["class"], next(iter(found["probabilities"]))) == ("=cmd.png", "=1+1", "=1+1")


def test_files_as_json(trained: Path, call: Call, tmp_path: Path) -> None:
    """Files in the order given; to a file with --output, and then nothing on standard output."""
    files = [tmp_path / f"{row}.png" for row in (5, 3, 4)]
    for file in files:
        Image.fromarray(PIXELS[int(file.stem)]).save(file)
    result = call("predict", trained, *files, "--json")
    assert (result.code, result.err) == (0, "")
    rows = json.loads(result.out)
    assert [row["file"] for row in rows] == [str(file) for file in files]
    expected = mixmatch.load(trained).predict_proba(PIXELS[[5, 3, 4], :, :, None])
    for row, probabilities in zip(rows, expected, strict=True):
        assert row.keys() == {"file", "class", "probability", "probabilities"}
        assert list(row["probabilities"]) == CLASSES
        assert sum(row["probabilities"].values()) == pytest.approx(1, abs=1e-9)
        np.testing.assert_allclose(list(row["probabilities"].values()), probabilities, atol=1e-6)
        assert row["probability"] == max(row["probabilities"].values()) == row["probabilities"][row["class"]]
    target = tmp_path / "predictions.json"
    written = call("predict", trained, *files, "--json", "--output", target)
    assert (written.code, written.out, written.err) == (0, "", f"wrote 3 predictions to {target}\n")
    assert json.loads(target.read_text()) == rows
    nowhere = call("predict", trained, *files, "--output", tmp_path / "no" / "such.csv")
    assert nowhere.code == 2
    assert nowhere.err == f"error: cannot write {tmp_path / 'no' / 'such.csv'}: No such file or directory\n"


def test_every_kind_of_image(trained: Path, call: Call, tmp_path: Path) -> None:
    """What does not change the pixels does not change the prediction; what hardly changes them hardly does."""
    digit = PIXELS[0]
    gray = Image.fromarray(digit)
    turned = Image.fromarray(np.rot90(digit, 1).copy())  # counterclockwise; orientation 6 says: turn it clockwise
    exif = Image.Exif()
    exif[0x0112] = 6
    gray.save(tmp_path / "L.png")
    gray.convert("RGB").save(tmp_path / "RGB.png")
    gray.convert("RGBA").save(tmp_path / "RGBA.png")
    gray.convert("LA").save(tmp_path / "LA.png")
    gray.convert("P").save(tmp_path / "P.png")
    gray.save(tmp_path / "P.gif")
    gray.save(tmp_path / "L.bmp")
    gray.save(tmp_path / "L.tif")
    Image.fromarray(digit.astype(np.uint16) * 257).save(tmp_path / "16bit.png")
    gray.convert("RGB").save(tmp_path / "lossless.webp", lossless=True)
    turned.save(tmp_path / "turned.png", exif=exif)
    Image.fromarray(np.rot90(digit, 1).copy()).save(tmp_path / "turned.tif", exif=exif)
    gray.resize((8, 8)).save(tmp_path / "no-suffix", "PNG")
    exact = sorted(path for path in tmp_path.iterdir() if path.is_file())
    gray.convert("RGB").save(tmp_path / "best.jpg", quality=100, subsampling=0)
    gray.save(tmp_path / "gray.JPEG", quality=100)
    big = gray.resize((64, 64), Image.Resampling.BICUBIC)
    big.save(tmp_path / "big.png")
    Image.fromarray(np.asarray(big).astype(np.uint16) * 257).save(tmp_path / "big-16bit.png")
    near = [tmp_path / name for name in ("best.jpg", "gray.JPEG", "big.png", "big-16bit.png")]
    wide = tmp_path / "wide.png"
    Image.fromarray(np.kron(digit, np.ones((2, 9), np.uint8))).save(wide)

    result = call("predict", trained, *exact, *near, wide, "--json")
    assert (result.code, result.err) == (0, "")
    rows = {row["file"]: list(row["probabilities"].values()) for row in json.loads(result.out)}
    assert len(rows) == len(exact) + len(near) + 1
    expected = mixmatch.load(trained).predict_proba(digit[None, :, :, None])[0]
    for path in exact:
        np.testing.assert_allclose(rows[str(path)], expected, atol=1e-6, err_msg=path.name)
    for path in near:
        assert np.abs(rows[str(path)] - expected).max() < 0.2, path.name
    assert not np.allclose(rows[str(tmp_path / "best.jpg")], expected, atol=1e-9)  # it was lossy


def test_unreadable_files(trained: Path, call: Call, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    Image.fromarray(PIXELS[0]).save(photos / "b.png")
    Image.fromarray(PIXELS[1]).save(photos / "z.png")
    (photos / "a.png").write_bytes(b"")
    (photos / "c.jpg").write_text("<html>404</html>")
    noise = np.random.default_rng(1).integers(0, 256, (99, 99), np.uint8)
    Image.fromarray(noise).save(tmp_path / "whole.png")
    (photos / "d.png").write_bytes((tmp_path / "whole.png").read_bytes()[:2000])
    result = call("predict", trained, photos)
    assert result.code == 1
    rows = list(csv.reader(io.StringIO(result.out)))[1:]
    assert [row[0] for row in rows] == [str(photos / "b.png"), str(photos / "z.png")]
    lines = result.err.splitlines()
    assert len(lines) == 3
    for line, name in zip(lines, ("a.png", "c.jpg", "d.png"), strict=True):
        assert line.startswith(f"warning: cannot read {photos / name}: ")
    nothing = call("predict", trained, photos / "a.png", "--json")
    assert (nothing.code, json.loads(nothing.out)) == (1, [])


def test_wrong_paths(trained: Path, call: Call, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    digit = tmp_path / "digit.png"
    Image.fromarray(PIXELS[0]).save(digit)
    for arguments, why in {
        (trained, tmp_path / "empty"): f"there are no images in {tmp_path / 'empty'}",
        (trained, digit, tmp_path / "missing.png"): f"there is no file or folder {tmp_path / 'missing.png'}",
        (tmp_path / "empty", digit): "is not a run folder",
        (tmp_path / "missing", digit): "is not a run folder",
        (digit, digit): "cannot be read as a model",
    }.items():
        result = call("predict", *arguments)
        assert (result.code, result.out) == (2, ""), arguments
        assert result.err.startswith("error: "), arguments
        assert result.err.count("\n") == 1
        assert why in result.err
    result = call("evaluate", tmp_path / "empty")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert "is not a run folder" in result.err


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 digits, more than two batches, and damaged files where batches begin and end."""
    folder = tmp_path_factory.mktemp("photos")
    for row in range(600):
        Image.fromarray(PIXELS[row]).save(folder / f"{row:04d}.png")
    for name in ("0000-", "0254-", "0255-", "0599-"):
        (folder / f"{name}.png").write_bytes(b"damaged")
    return folder


def digits_of(files: list[str]) -> list[int]:
    return [int(Path(file).stem) for file in files]


def test_many_batches(trained: Path, photos: Path, call: Call) -> None:
    result = call("predict", trained, photos, "--device", "cpu")
    assert result.code == 1
    assert [Path(line.split(": ")[1]).name for line in result.err.splitlines()] == [
        "0000-.png", "0254-.png", "0255-.png", "0599-.png"
    ]  # fmt: skip
    header, *rows = csv.reader(io.StringIO(result.out))
    assert header == ["file", "class", "probability", *CLASSES]
    assert digits_of([row[0] for row in rows]) == list(range(600))
    expected = mixmatch.load(trained, device="cpu").predict_proba(PIXELS[:600, :, :, None])
    np.testing.assert_allclose(np.array([row[3:] for row in rows], float), expected, atol=2e-6)
    assert call("predict", trained, photos, "--format", "csv", "--device", "cpu").out == result.out


def test_uncertain_first(trained: Path, photos: Path, call: Call) -> None:
    plain = json.loads(call("predict", trained, photos, "--json").out)
    result = call("predict", trained, photos, "--sort", "uncertain", "--format", "json")
    assert result.code == 1
    rows = json.loads(result.out)
    certainty = mixmatch.load(trained).predict_proba(PIXELS[:600, :, :, None]).max(axis=1)
    sorted_by = certainty[digits_of([row["file"] for row in rows])]
    assert (np.diff(sorted_by) > -1e-6).all()
    assert certainty[0] != pytest.approx(sorted_by[0])  # so the order of the files is another
    assert sorted(rows, key=lambda row: row["file"]) == plain
    header, *lines = csv.reader(io.StringIO(call("predict", trained, photos, "--sort", "uncertain").out))
    assert header[:3] == ["file", "class", "probability"]
    assert [line[0] for line in lines] == [row["file"] for row in rows]


def test_the_format_is_what_the_name_says(trained: Path, photos: Path, call: Call, tmp_path: Path) -> None:
    for name in ("p.json", "p.CSV", "p.out"):
        call("predict", trained, photos / "0003.png", "--output", tmp_path / name)
    assert [row["file"] for row in json.loads((tmp_path / "p.json").read_text())] == [str(photos / "0003.png")]
    assert (tmp_path / "p.CSV").read_text() == (tmp_path / "p.out").read_text()
    assert (tmp_path / "p.out").read_text().startswith("file,class,probability")
    call("predict", trained, photos / "0003.png", "--format", "csv", "--output", tmp_path / "p.json")
    assert (tmp_path / "p.json").read_text() == (tmp_path / "p.out").read_text()


def test_what_is_predicted_is_not_written_over(trained: Path, call: Call, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Image.fromarray(PIXELS[0]).save("digit.png")
    before = Path("digit.png").read_bytes()
    result = call("predict", trained, "digit.png", "--output", tmp_path / "digit.png")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert "name another file" in result.err
    assert Path("digit.png").read_bytes() == before


def test_contradicting_formats(trained: Path, photos: Path, call: Call) -> None:
    assert call("predict", trained, photos, "--json", "--format", "json").code == 1  # of the damaged files
    result = call("predict", trained, photos, "--json", "--format", "csv")
    assert (result.code, result.out) == (2, "")
    assert result.err == "error: --json and --format csv contradict each other\n"


def test_parquet_without_pyarrow(
    trained: Path, photos: Path, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.import_module

    def import_module(name: str, package: str | None = None) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return found(name, package)

    monkeypatch.setattr(importlib, "import_module", import_module)
    result = call("predict", trained, photos, "--format", "parquet", "--output", tmp_path / "p.parquet")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert "needs pyarrow, which is not installed: pip install 'mixmatch[tables]'" in result.err
    assert not (tmp_path / "p.parquet").exists()


def test_parquet(trained: Path, photos: Path, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(formats, "ROW_GROUP", 256)  # so that there are several row groups
    result = call("predict", trained, photos, "--format", "parquet")
    assert (result.code, result.out) == (2, "")
    assert result.err == "error: --format parquet is not for standard output: name a file with --output\n"
    target = tmp_path / "p.parquet"
    result = call("predict", trained, photos, "--output", target)
    table = parquet.read_table(target)
    assert result.code == 1
    assert result.err.endswith(f"wrote {table.num_rows} predictions to {target}\n")
    assert parquet.ParquetFile(target).num_row_groups == 3
    assert table.column_names == ["file", "class", "probability", *CLASSES]
    rows = json.loads(call("predict", trained, photos, "--json").out)
    for name in ("file", "class", "probability"):
        assert table[name].to_pylist() == [row[name] for row in rows]
    for name in CLASSES:
        assert table[name].to_pylist() == [row["probabilities"][name] for row in rows]
    nowhere = call("predict", trained, photos, "--format", "parquet", "--output", tmp_path / "no" / "p.parquet")
    assert nowhere.err == f"error: cannot write {tmp_path / 'no' / 'p.parquet'}: No such file or directory\n"
    (tmp_path / "null.parquet").symlink_to(os.devnull)
    nowhere = call("predict", trained, photos, "--output", tmp_path / "null.parquet")
    assert nowhere.err == f"error: cannot write {tmp_path / 'null.parquet'}: it is not a plain file\n"
    before = target.read_bytes()
    monkeypatch.setattr(command, "predict_files", lambda *_, **__: (1 / zero for zero in [0]))
    with pytest.raises(ZeroDivisionError):
        call("predict", trained, photos, "--format", "parquet", "--output", target)
    assert target.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["p.parquet"]


def test_parquet_follows_no_link_and_takes_any_name(trained: Path, call: Call, tmp_path: Path, monkeypatch) -> None:
    """Folders have names that are no text, and classes are named by folders."""
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.chdir(tmp_path)
    Image.fromarray(PIXELS[0]).save("a.png")
    Path("diary.txt").write_text("mine")
    Path(".p.parquet.writing").symlink_to("diary.txt")
    model = mixmatch.load(trained, device="cpu")
    model.classes = ("caf\udce9", *CLASSES[1:])
    model.save(Path("model.safetensors"))
    result = call("predict", "model.safetensors", "a.png", "--format", "parquet", "--output", "p.parquet")
    assert result.code == 0, result.err
    assert parquet.read_table("p.parquet").column_names[3] == "caf�"
    assert Path("diary.txt").read_text() == "mine"


def test_bar_on_a_terminal(trained: Path, photos: Path, start: Call, tmp_path: Path) -> None:
    """Standard error is a terminal: a bar with files, speed and time; standard output stays as it is without."""
    terminal = Terminal()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "100", "NO_COLOR": "1"}
    process = start("predict", trained, photos, stderr=terminal.end, env=environment)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    assert len(list(csv.reader(io.StringIO(out)))) == 601
    assert "\x1b" not in out
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.read())
    assert re.search(r"predicting .* 604/604 files +[\d,]+ images/s +\d+:\d\d:\d\d", text), text
    assert text.count("warning: cannot read") == 4


def test_bar_above_sorted_predictions(trained: Path, start: Call, tmp_path: Path) -> None:
    """Both outputs are one terminal: the bar, with a speed even after a single batch, is gone before the first row."""
    for number, pixels in enumerate(PIXELS[:40]):
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    terminal = Terminal(200)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "100", "NO_COLOR": "1"}
    outputs = {"stdout": terminal.end, "stderr": terminal.end, "env": environment}
    code = start("predict", trained, tmp_path, "--sort", "uncertain", **outputs).wait(timeout=300)
    text = terminal.read()
    assert code == 0, text
    bar, _, rows = text.rpartition("\x1b[2K")
    assert re.search(r"40/40 files\S* +\S*[1-9][\d,]* images/s", bar), bar
    assert ".png" not in bar
    assert len(list(csv.reader(io.StringIO(rows)))) == 40


def test_evaluate(trained: Path, call: Call) -> None:
    last = json.loads((trained / "metrics.jsonl").read_text().splitlines()[-1])
    result = call("evaluate", trained, "--json")
    assert (result.code, result.err) == (0, "")
    answer = json.loads(result.out)
    assert answer["error"] == last["test_error"]
    assert (answer["run"], answer["data"], answer["images"]) == (str(trained), "digits", 500)
    assert answer["error"] == pytest.approx(100 * answer["wrong"] / 500)
    assert list(answer["per_class"]) == CLASSES
    counts = np.bincount(load_digits().target[-500:], minlength=10)
    wrong = [share * count / 100 for share, count in zip(answer["per_class"].values(), counts, strict=True)]
    assert sum(wrong) == pytest.approx(answer["wrong"])

    text = call("evaluate", trained)
    assert (text.code, text.err) == (0, "")
    lines = text.out.splitlines()
    low, high = answer["interval"]
    assert lines[-2] == (
        f"{answer['error']:.2f} % test error: {answer['wrong']} of 500 test images wrong (95 % interval {low:.2f} to "
        f"{high:.2f} %). Guessing: {100 - max(counts) / 5:.2f} %."
    )
    assert answer["guessing_error"] == pytest.approx(100 - max(counts) / 5)
    table = {words[0]: words[1:] for line in lines if len(words := line.split()) == 3 and words[0] in CLASSES}
    assert table == {c: [str(n), f"{answer['per_class'][c]:.2f}"] for c, n in zip(CLASSES, counts, strict=True)}

"""`mixmatch.predict_files`: what `mixmatch predict` does, from Python."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import fsspec
import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

import mixmatch
from mixmatch.classifier import Classifier
from mixmatch.errors import MixMatchError
from mixmatch.predict import files as predict

PIXELS = np.rint(load_digits().images * (255 / 16)).astype(np.uint8)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for row in range(40):
        Image.fromarray(PIXELS[row]).save(folder / f"{row:02d}.png")
    return folder


def test_folder(run: Path, photos: Path) -> None:
    """By a path or a classifier, whatever the batches."""
    expected = mixmatch.load(run, device="cpu").predict_proba(PIXELS[:40, :, :, None])
    model = mixmatch.load(run, device="cpu")
    for given, batch_size in ((str(run), 256), (run / "model.safetensors", 7), (model, 1)):
        found = list(mixmatch.predict_files(given, [str(photos)], device="cpu", batch_size=batch_size))
        assert [p.file for p in found] == [str(photos / f"{row:02d}.png") for row in range(40)]
        assert [p.class_name for p in found] == [str(best) for best in expected.argmax(axis=1)]
        for prediction, row in zip(found, expected, strict=True):
            assert prediction.probabilities.shape == (10,)
            np.testing.assert_allclose(prediction.probabilities, row, atol=1e-6)
            assert prediction.probability == prediction.probabilities.max()


def test_images_of_other_formats_are_named_and_hidden_files_are_not(run: Path, photos: Path) -> None:
    """A camera's NEF is not left out without a word; what a Mac leaves beside a picture is none."""
    seen = [f"{row:02d}.png" for row in range(40)]
    for name in ("IMG_1.NEF", "._00.png", ".trash/00.png", "__MACOSX/._00.png", "notes.txt"):
        (photos / name).parent.mkdir(exist_ok=True)
        (photos / name).write_bytes(b"not to be read")
    memory = fsspec.filesystem("memory")
    for file in (file for file in photos.rglob("*") if file.is_file()):
        memory.pipe_file(f"/phone/{file.relative_to(photos).as_posix()}", file.read_bytes())
    for place in (str(photos), f"{photos}/*", "memory://phone"):
        reported: list[str] = []
        found = mixmatch.predict_files(run, place, on_error=lambda file, _, to=reported: to.append(str(file)))
        assert [Path(p.file).name for p in found] == seen
        assert [Path(name).name for name in reported] == ["IMG_1.NEF"]


def test_one_path_and_a_file_twice(run: Path, photos: Path) -> None:
    file = photos / "03.png"
    assert [p.file for p in mixmatch.predict_files(run, file)] == [str(file)]
    assert [p.file for p in mixmatch.predict_files(run, str(file))] == [str(file)]
    assert [p.file for p in mixmatch.predict_files(run, [file, file])] == [str(file)] * 2


def test_globs_and_addresses(run: Path, photos: Path) -> None:
    """The same predictions, wherever the files are."""
    expected = {Path(p.file).name: p.probability for p in mixmatch.predict_files(run, photos)}
    (photos / "notes.txt").write_text("no image, and not named like one")
    memory = fsspec.filesystem("memory")
    for file in photos.glob("*.png"):
        memory.pipe_file(f"/photos/{file.name[0]}/{file.name}", file.read_bytes())
    memory.pipe_file("/photos/3/damaged.png", b"damaged")
    reported: list[tuple[object, str]] = []
    found = mixmatch.predict_files(run, "memory://photos", on_error=lambda *why: reported.append(why))
    predictions = {p.file: p.probability for p in found}
    assert list(predictions) == [f"memory:///photos/{name[0]}/{name}" for name in expected]
    assert list(predictions.values()) == pytest.approx(list(expected.values()), abs=1e-6)
    assert [name for name, _ in reported] == ["memory:///photos/3/damaged.png"]
    for pattern in (f"{photos}/1*", "memory://photos/*/1*.png", "memory://photos/1"):
        names = [Path(p.file).name for p in mixmatch.predict_files(run, pattern)]
        assert names == [f"{row}.png" for row in range(10, 20)]


def test_unreadable_files_are_reported(run: Path, photos: Path) -> None:
    """To the caller, or as warnings; the others are predicted."""
    (photos / "00.png").write_bytes(b"")
    (photos / "20.png").write_bytes(b"damaged")
    (photos / "21.png").unlink()
    (photos / "21.png").symlink_to(photos / "moved.png")
    reported: list[tuple[str, str]] = []
    done: list[tuple[int, int]] = []
    found = list(
        mixmatch.predict_files(
            run,
            photos,
            batch_size=16,
            on_error=lambda file, reason: reported.append((file.name, reason)),
            progress=lambda *counts: done.append(counts),
        )
    )
    assert len(found) == 37
    assert [name for name, _ in reported] == ["00.png", "20.png", "21.png"]
    assert all("not an image" in reason for _, reason in reported[:2])
    assert reported[2][1] == "No such file or directory"
    assert done == [(0, 40), (16, 40), (32, 40), (40, 40)]
    with pytest.warns(UserWarning, match="cannot read") as warned:
        assert len(list(mixmatch.predict_files(run, photos))) == 37
    assert [str(w.message).partition(": ")[0] for w in warned] == [
        f"cannot read {photos / name}" for name in ("00.png", "20.png", "21.png")
    ]


def test_arrays(run: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", PIXELS[:5, :, :, None])
    np.savez(tmp_path / "b.npz", x=PIXELS[5:7, :, :, None])
    files = [tmp_path / "a.npy", tmp_path / "b.npz"]
    found = list(mixmatch.predict_files(run, files, batch_size=3))
    names = [f"{files[0]} row {row}" for row in range(5)] + [f"{files[1]} row {row}" for row in range(2)]
    assert [p.file for p in found] == names
    expected = mixmatch.load(run).predict_proba(PIXELS[:7, :, :, None])
    np.testing.assert_allclose([p.probabilities for p in found], expected, atol=1e-6)


def test_wrong_arguments_are_refused_at_once(run: Path, photos: Path, tmp_path: Path) -> None:
    """Not only when the first prediction is taken."""
    np.save(tmp_path / "a.npy", PIXELS[:5, :, :, None])
    model = mixmatch.load(run)
    for given, paths, options, why in (
        (tmp_path, photos, {}, "is not a run folder"),
        (model, tmp_path / "missing", {}, "there is no file or folder"),
        (model, f"{tmp_path}/*.jpg", {}, "finds no images"),
        (model, "memory://missing", {}, "there is no file or folder memory://missing"),
        (model, "abacus://photos", {}, "cannot open abacus://photos: Protocol not known"),
        (model, [tmp_path / "a.npy", photos], {}, "predict it apart from the others"),
        (model, photos, {"batch_size": 0}, "batch_size=0 must be 1 or more"),
        (run, photos, {"device": "abacus"}, "unknown device"),
        (Classifier(model.network, "cnn", model.classes, (4, 8, 8)), photos, {}, "1 or 3 channels"),
        (Classifier(model.network, "mlp", model.classes, (64,)), photos, {}, "takes rows of a table or an array"),
    ):
        with pytest.raises(MixMatchError, match=why):
            mixmatch.predict_files(given, paths, **options)


def test_decodes_ahead_but_not_without_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one batch is in use the next two get decoded, no more; who stops early leaves no threads behind."""
    files = [tmp_path / f"{i}.png" for i in range(500)]
    done: list[Path] = []

    def decode(file: Path, height: int, width: int, channels: int, large: object) -> tuple[np.ndarray, None]:
        done.append(file)
        return np.full((height, width, channels), int(file.stem) % 256, np.uint8), None

    monkeypatch.setattr(predict, "decode_image", decode)
    names = [str(file) for file in files]
    batches = predict.decoded(names, (1, 2, 2), 32)
    first = next(batches)
    assert [name for name, _ in first] == names[:32]
    assert [int(image[0, 0, 0]) for _, image in first] == list(range(32))
    until = time.monotonic() + 30
    while len(done) < 96 and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.1)
    assert sorted(done, key=files.index) == files[:96]
    assert [name for name, _ in next(batches)] == names[32:64]
    batches.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("decode")]


def test_every_file_comes_once_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "decode_image", lambda file, *_: (file.name, None))
    for number in (0, 1, 255, 256, 257, 1000, 1024):
        files = [str(tmp_path / str(i)) for i in range(number)]
        assert [file for batch in predict.decoded(files, (1, 2, 2), 256) for file, _ in batch] == files

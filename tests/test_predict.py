"""`mixmatch.predict_files`: what `mixmatch predict` does, from Python."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

import mixmatch
from mixmatch import predict
from mixmatch.classifier import Classifier
from mixmatch.errors import MixMatchError
from mixmatch.training.progress import Quiet

PIXELS = np.rint(load_digits().images * (255 / 16)).astype(np.uint8)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "digits"
    settings = {"steps": 20, "learning_rate": 0.01, "ema_decay": 0.9, "labels": 100, "method": "supervised"}
    mixmatch.train("digits", out=out, device="cpu", reporter=Quiet(), **settings)
    return out


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


def test_one_path_and_a_file_twice(run: Path, photos: Path) -> None:
    file = photos / "03.png"
    assert [p.file for p in mixmatch.predict_files(run, file)] == [str(file)]
    assert [p.file for p in mixmatch.predict_files(run, str(file))] == [str(file)]
    assert [p.file for p in mixmatch.predict_files(run, [file, file])] == [str(file)] * 2


def test_unreadable_files_are_reported(run: Path, photos: Path) -> None:
    """To the caller, or as warnings; the others are predicted."""
    (photos / "00.png").write_bytes(b"")
    (photos / "20.png").write_bytes(b"damaged")
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
    assert len(found) == 38
    assert [name for name, _ in reported] == ["00.png", "20.png"]
    assert all("not a JPEG, PNG" in reason for _, reason in reported)
    assert done == [(0, 40), (16, 40), (32, 40), (40, 40)]
    with pytest.warns(UserWarning, match="cannot read") as warned:
        assert len(list(mixmatch.predict_files(run, photos))) == 38
    assert [str(w.message).partition(": ")[0] for w in warned] == [
        f"cannot read {photos / name}" for name in ("00.png", "20.png")
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
    batches = predict._decoded(files, (1, 2, 2), 32)
    first = next(batches)
    assert [file for file, _ in first] == files[:32]
    assert [int(image[0, 0, 0]) for _, image in first] == list(range(32))
    until = time.monotonic() + 30
    while len(done) < 96 and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.1)
    assert sorted(done, key=files.index) == files[:96]
    assert [file for file, _ in next(batches)] == files[32:64]
    batches.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("decode")]


def test_every_file_comes_once_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "decode_image", lambda file, *_: (file.name, None))
    for number in (0, 1, 255, 256, 257, 1000, 1024):
        files = [tmp_path / str(i) for i in range(number)]
        assert [file for batch in predict._decoded(files, (1, 2, 2), 256) for file, _ in batch] == files

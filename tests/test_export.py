"""Exported models give the classifier's probabilities, in onnxruntime and in plain torch, and say how to use them."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import mixmatch
from mixmatch import export
from mixmatch.classifier import Classifier
from mixmatch.cli import main
from mixmatch.errors import MixMatchError
from mixmatch.networks import build

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

ROOT = Path(__file__).parents[1]
DOCS = (ROOT / "docs" / "export.md").read_text()
CLASSES = ("ein Hund", "кот", '"it\'s", a bird')
SHAPE = (3, 12, 16)
"""(C, H, W), no two alike: a swap of two axes does not go unnoticed."""


def classifier(name: str = "wrn-auto", shape: tuple[int, int, int] = SHAPE, seed: int = 0) -> Classifier:
    """A network whose batch norms have statistics of their own, so that it matters that they are exported."""
    torch.manual_seed(seed)
    network = build(name, len(CLASSES), shape)
    network.train()
    with torch.no_grad():
        for _ in range(3):
            network(torch.rand(8, *shape) * 2 - 1)
    return Classifier(network, name, CLASSES, shape)


def pixels(number: int, shape: tuple[int, int, int] = SHAPE) -> np.ndarray[Any, np.dtype[np.uint8]]:
    channels, height, width = shape
    return np.random.default_rng(5).integers(0, 256, (number, height, width, channels), np.uint8)


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["mixmatch", "export", *map(str, arguments)])
    try:
        main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "photos.safetensors"
    classifier().save(path)
    return path


@pytest.fixture(scope="module")
def exported(model: Path) -> Path:
    """`mixmatch export` as a process, in the model's folder."""
    result = subprocess.run(
        [sys.executable, "-m", "mixmatch", "export", model, "--format", "onnx"],
        cwd=model.parent,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    said = re.fullmatch(
        r"wrote photos\.onnx \(\d+\.\d MB\), checked with onnxruntime at batch sizes 1 and 17 "
        r"\(largest difference (\S+)\)\n",
        result.stdout,
    )
    assert said, result.stdout
    assert float(said[1]) < 1e-5
    return model.parent / "photos.onnx"


@pytest.mark.parametrize("number", [1, 2, 17, 64])
def test_onnx_predicts_the_same(model: Path, exported: Path, number: int) -> None:
    session = onnxruntime.InferenceSession(exported)
    (probabilities,) = session.run(None, {"images": pixels(number)})
    assert probabilities.shape == (number, 3)
    expected = mixmatch.load(model).predict_proba(pixels(number))
    assert np.ptp(expected, axis=0).max() > 1e-3 or number == 1  # it does look at the images
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)


def test_onnx_is_one_whole_file_that_says_how_to_use_it(exported: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone.onnx"
    alone.write_bytes(exported.read_bytes())  # no side file comes along
    graph = onnx.load(alone)
    onnx.checker.check_model(graph, full_check=True)
    assert all(not tensor.external_data for tensor in graph.graph.initializer)
    assert [file.name for file in sorted(exported.parent.iterdir())] == ["photos.onnx", "photos.safetensors"]
    session = onnxruntime.InferenceSession(alone)
    (given,), (taken,) = session.get_outputs(), session.get_inputs()
    assert (taken.name, taken.type, taken.shape[1:]) == ("images", "tensor(uint8)", [12, 16, 3])
    assert (given.name, given.type, given.shape[1:]) == ("probabilities", "tensor(float)", [3])
    assert isinstance(taken.shape[0], str)  # a name: any number
    assert taken.shape[0] == given.shape[0]
    about = session.get_modelmeta().custom_metadata_map
    assert tuple(json.loads(about["classes"])) == CLASSES
    assert json.loads(about["image_shape"]) == [12, 16, 3]
    assert about["mixmatch_version"] == mixmatch.__version__
    assert about["network"] == "wrn-auto"
    for words in ("EXIF", "RGB", "width 16 and height 12", "(N, 12, 16, 3)", "pixel * 2 / 255 - 1", "Do not normalize"):
        assert words in about["preprocessing"]


@pytest.mark.parametrize(
    ("name", "shape"), [("wrn-small", (1, 8, 8)), ("wrn-28-2", (3, 32, 32)), ("cnn13-32", (3, 32, 32))]
)
def test_every_kind_of_network(name: str, shape: tuple[int, int, int], tmp_path: Path) -> None:
    made = classifier(name, shape)
    before = {key: value.clone() for key, value in made.network.state_dict().items()}
    assert export.to_onnx(made, tmp_path / "model.onnx") < 1e-5
    (probabilities,) = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, {"images": pixels(5, shape)})
    np.testing.assert_allclose(probabilities, made.predict_proba(pixels(5, shape)), atol=1e-5)
    assert all(torch.equal(value, before[key]) for key, value in made.network.state_dict().items())


def test_a_wrong_export_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another network in the file than in the classifier, or no numbers at all: an older file stays as it was."""
    target = tmp_path / "model.onnx"
    target.write_text("the last one")
    made, other = classifier(), classifier(seed=1)
    content = export._onnx_bytes(other)
    monkeypatch.setattr(export, "_onnx_bytes", lambda _: content)
    with pytest.raises(MixMatchError, match=r"differ by 0\.\d+, more than 0\.0001\): nothing is written"):
        export.to_onnx(made, target)
    monkeypatch.undo()
    with torch.no_grad():
        next(made.network.parameters()).fill_(float("nan"))
    with pytest.raises(MixMatchError, match="the model gives no number for 1 image"):
        export.to_onnx(made, target)
    assert target.read_text() == "the last one"
    assert list(tmp_path.iterdir()) == [target]


class Capricious(nn.Module):
    """No graph: what it does depends on the values."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(x.mean(dim=(2, 3)))
        return y if y.sum() > 0 else -y


def test_a_network_that_cannot_be_exported(tmp_path: Path) -> None:
    made = Classifier(Capricious(), "custom:Capricious", CLASSES, SHAPE)
    with pytest.raises(MixMatchError, match=r"^network 'custom:Capricious' cannot be exported to ONNX: .+$") as caught:
        export.to_onnx(made, tmp_path / "model.onnx")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("missing", ["onnx", "onnxscript", "onnxruntime"])
def test_without_the_extra(
    missing: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = importlib.import_module

    def import_module(name: str, package: str | None = None) -> Any:
        if name == missing:
            raise ImportError(name)
        return found(name, package)

    monkeypatch.setattr(importlib, "import_module", import_module)
    assert command(monkeypatch, model, "--format", "onnx", "--output", tmp_path / "model.onnx") == 2
    said = f"error: exporting to ONNX needs {missing}, which is not installed: pip install 'mixmatch[onnx]'\n"
    assert capsys.readouterr() == ("", said)
    assert not list(tmp_path.iterdir())


def test_safetensors_is_a_copy(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command(monkeypatch, model, "--format", "safetensors") == 0
    copy = tmp_path / "photos.safetensors"
    assert capsys.readouterr() == (f"wrote photos.safetensors ({copy.stat().st_size / 1e6:.1f} MB)\n", "")
    assert copy.read_bytes() == model.read_bytes()


@pytest.mark.parametrize("kind", ["onnx", "safetensors"])
def test_nowhere_to_write(
    kind: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "no" / "such.file"
    assert command(monkeypatch, model, "--format", kind, "--output", target) == 2
    assert capsys.readouterr() == ("", f"error: cannot write {target}: No such file or directory\n")
    assert command(monkeypatch, tmp_path, "--format", kind) == 2
    assert "is not a run folder" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no such pipes")
@pytest.mark.parametrize("kind", ["onnx", "safetensors"])
def test_a_pipe_or_a_device_is_not_replaced_by_a_file(kind: str, model: Path, tmp_path: Path) -> None:
    """An administrator who names /dev/null would take it away from all programs."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "null").symlink_to(os.devnull)
    for place in (tmp_path / "pipe", tmp_path / "null"):
        with pytest.raises(MixMatchError, match=f"cannot write {place}: it is not a plain file"):
            export.export_model(model, place, format=kind)
        assert not place.is_file()


def test_an_unfinished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run folder gives its model; before there is one, that of the newest checkpoint."""
    folder = tmp_path / "digits-run"
    options: dict[str, Any] = {"method": "supervised", "labels": 100, "steps": 4, "eval_every": 2}
    mixmatch.train("digits", out=folder, checkpoint_every=2, device="cpu", **options)
    finished = (folder / "model.safetensors").read_bytes()
    monkeypatch.chdir(tmp_path)
    assert command(monkeypatch, folder, "--format", "safetensors", "--output", "finished.safetensors") == 0
    assert (tmp_path / "finished.safetensors").read_bytes() == finished
    for name in ("model.safetensors", "result.json"):
        (folder / name).unlink()
    assert command(monkeypatch, folder, "--format", "safetensors") == 0
    images = pixels(3, (1, 8, 8))
    a, b = (mixmatch.load(tmp_path / f"{name}.safetensors").predict_proba(images) for name in ("finished", folder.name))
    np.testing.assert_array_equal(a, b)


def examples() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", DOCS, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("code", examples()[1:], ids=["onnx", "safetensors"])
def test_the_examples_of_the_docs(
    code: str, model: Path, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in (model, exported):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    np.save(tmp_path / "images.npy", pixels(9))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(code, "docs/export.md", "exec"), names)
    assert tuple(names["classes"]) == CLASSES
    probabilities = names["probabilities"]
    if isinstance(probabilities, Tensor):
        probabilities = probabilities.detach().numpy()
    np.testing.assert_allclose(probabilities, mixmatch.load(model).predict_proba(pixels(9)), atol=1e-5)


def test_the_example_in_python(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("runs", "new"):
        (tmp_path / folder).mkdir()
    (tmp_path / "runs" / "photos").write_bytes(model.read_bytes())
    Image.fromarray(pixels(1)[0]).save(tmp_path / "new" / "a.png")
    monkeypatch.chdir(tmp_path)
    exec(compile(examples()[0], "docs/export.md", "exec"), {})
    expected = mixmatch.load(model).predict_proba(pixels(1))[0]
    start = f"{Path('new/a.png')} {CLASSES[expected.argmax()]} "
    printed = capsys.readouterr().out
    assert printed.startswith(start)
    assert float(printed.removeprefix(start)) == pytest.approx(expected.max(), abs=1e-5)


def test_the_loading_example_is_short_and_the_network_file_stands_alone() -> None:
    _, _, loading = examples()
    assert len([line for line in loading.splitlines() if line.strip()]) <= 10
    text = (ROOT / "src" / "mixmatch" / "networks" / "wide_resnet.py").read_text()
    assert "mixmatch" not in "".join(line for line in text.splitlines() if "import" in line)

"""timm's models as networks. Most of it is skipped where timm is not installed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import mixmatch
from mixmatch import networks
from mixmatch.data.source import Rows, Source
from mixmatch.errors import MixMatchError
from mixmatch.networks.frozen import build_frozen
from mixmatch.networks.heads import offers_features
from mixmatch.networks.timm_backbone import Backbone, read_weights
from mixmatch.training.progress import Quiet

HAS_TIMM = importlib.util.find_spec("timm") is not None
needs_timm = pytest.mark.skipif(not HAS_TIMM, reason="timm is not installed")
NAME = "timm:resnet18"


@pytest.mark.skipif(HAS_TIMM, reason="timm is installed")
def test_without_timm_it_says_what_to_install() -> None:
    with pytest.raises(MixMatchError, match=r"needs timm, which is not installed: pip install 'mixmatch\[timm\]'"):
        networks.build(NAME, 3, (3, 32, 32))


def test_a_timm_that_cannot_be_imported_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As beside a torchvision that was built for another torch, which pip does not mind."""
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(MixMatchError, match=r"cannot be imported \(operator torchvision::nms does not exist\)"):
        networks.build(NAME, 3, (3, 32, 32))


@pytest.mark.parametrize("setting", ["network", "features"])
def test_a_model_that_cannot_be_had_is_refused_before_images_are_read(setting: str, tmp_path: Path) -> None:
    """Reading a folder of photos takes minutes."""
    for name in ("a/1.png", "b/1.png"):
        (tmp_path / "photos" / name).parent.mkdir(parents=True)
        Image.new("RGB", (32, 32)).save(tmp_path / "photos" / name)
    with pytest.raises(MixMatchError, match="timm"):
        mixmatch.train(tmp_path / "photos", out=tmp_path / "run", device="cpu", **{setting: "timm:no-such-model"})
    assert not (tmp_path / "photos" / ".mixmatch-cache").exists()


@pytest.mark.parametrize("name", ["resnet18", "ResNet50", "efficientnet-b0", "vit_tiny_patch16_224", "swin_tiny"])
def test_a_model_of_timm_without_its_prefix(name: str) -> None:
    model = name.lower().replace("-", "_")
    with pytest.raises(MixMatchError, match=f"unknown network '{name}': did you mean 'timm:{model}'"):
        networks.build(name, 3, (3, 32, 32))


@needs_timm
def test_every_family_is_timms() -> None:
    models = importlib.import_module("timm").list_models()
    assert [f for f in networks.TIMM_FAMILIES if not any(model.startswith(f) for model in models)] == []


def test_pixels_are_normalized_as_the_weights_expect() -> None:
    backbone = Backbone(torch.nn.Identity(), torch.tensor([0.2, 0.5]), torch.tensor([0.1, 0.25]))
    pixels = torch.tensor([0.0, 1.0]).reshape(1, 2, 1, 1)  # of 0 to 1
    out = backbone(pixels * 2 - 1)
    assert out.ravel().tolist() == pytest.approx([(0.0 - 0.2) / 0.1, (1.0 - 0.5) / 0.25])


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("run by a pickle",)


def test_weights_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = {"a": torch.arange(3.0)}
    save_file(tensors, tmp_path / "w.safetensors")
    torch.save({"state_dict": {"module.a": tensors["a"]}, "epoch": 3}, tmp_path / "w.pth")
    for name in ("w.safetensors", "w.pth"):
        read = read_weights(tmp_path / name)
        assert list(read) == ["a"]
        assert torch.equal(read["a"], tensors["a"])
    torch.save({"a": Evil()}, tmp_path / "evil.pth")
    (tmp_path / "noise.pth").write_bytes(b"no weights")
    (tmp_path / "noise.safetensors").write_bytes(b"no weights at all")
    torch.save([1, 2], tmp_path / "list.pth")
    for name, says in {
        "evil.pth": "more than tensors",
        "noise.pth": "noise.pth",
        "noise.safetensors": "cannot be read as weights",
        "list.pth": "no weights by name",
        "none.pth": "there is no file",
    }.items():
        with pytest.raises(MixMatchError, match=says):
            read_weights(tmp_path / name)
    assert "run by a pickle" not in capsys.readouterr().out


def test_weights_are_for_timm_networks() -> None:
    with pytest.raises(MixMatchError, match=r"weights= is for networks of timm \(timm:NAME\), not for 'wrn-28-2'"):
        networks.build("wrn-28-2", 3, (3, 32, 32), weights="w.safetensors")


@needs_timm
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 48, 64), (4, 64, 64)])
@pytest.mark.parametrize("name", [NAME, "timm:vit_tiny_patch16_224", "timm:convnext_atto"])
def test_channels_classes_and_sizes(name: str, shape: tuple[int, int, int]) -> None:
    network = networks.build(name, 5, shape)
    assert network(torch.zeros(2, *shape)).shape == (2, 5)
    x = torch.randn(2, *shape)
    assert network.features(x).shape == (2, network.feature_size)
    assert torch.equal(network.eval().classify(network.features(x)), network(x))


@needs_timm
@pytest.mark.parametrize("name", ["timm:deit_tiny_distilled_patch16_224", "timm:dla34"])  # two layers; a convolution
def test_models_that_do_not_end_in_one_linear_layer_offer_no_features(name: str) -> None:
    assert not offers_features(networks.build(name, 5, (3, 64, 64)))


@needs_timm
def test_names_that_timm_does_not_have() -> None:
    with pytest.raises(MixMatchError, match="did you mean 'timm:resnet18'"):
        networks.build("timm:resnet188", 5, (3, 32, 32))
    with pytest.raises(MixMatchError, match=r"does not work for images \(3, 8, 8\)"):
        networks.build("timm:convnext_atto", 5, (3, 8, 8))


@needs_timm
def test_weights_fill_all_but_the_last_layer(tmp_path: Path) -> None:
    import timm

    torch.manual_seed(1)
    given = timm.create_model("resnet18", num_classes=1000)
    save_file(given.state_dict(), tmp_path / "w.safetensors")
    torch.save(given.state_dict(), tmp_path / "w.pth")
    for file in ("w.safetensors", "w.pth"):
        network = networks.build(NAME, 5, (3, 32, 32), weights=tmp_path / file)
        made = network.model.state_dict()
        assert made["fc.weight"].shape == (5, 512)
        for name, value in given.state_dict().items():
            assert name.startswith("fc.") or torch.equal(made[name], value), name
    gray = networks.build(NAME, 5, (1, 32, 32), weights=tmp_path / "w.safetensors").model
    torch.testing.assert_close(gray.conv1.weight, given.conv1.weight.sum(dim=1, keepdim=True))
    with pytest.raises(MixMatchError, match="cannot be filled from"):
        networks.build("timm:resnet34", 5, (3, 32, 32), weights=tmp_path / "w.safetensors")


@needs_timm
def test_training_saving_and_loading(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = Rows(rng.integers(0, 256, (24, 32, 32, 3), np.uint8), np.arange(24, dtype=np.int64) % 3)
    source = Source("mine", ("a", "b", "c"), images, images)
    options = {"labels": 6, "steps": 3, "batch_size": 4, "pad": 2, "reporter": Quiet(), "device": "cpu"}
    torch.manual_seed(1)
    save_file(networks.build(NAME, 7, (3, 32, 32)).model.state_dict(), tmp_path / "w.safetensors")
    weights = str(tmp_path / "w.safetensors")
    record = mixmatch.train(source, network=NAME, weights=weights, out=tmp_path / "run", **options)
    assert record["settings"]["network"] == NAME
    assert record["settings"]["weights"] == weights
    (tmp_path / "w.safetensors").unlink()  # a trained model needs it no more
    model = mixmatch.load(tmp_path / "run", device="cpu")
    wrong = (model.predict_proba(images.inputs).argmax(axis=1) != images.labels).mean()
    assert record["last_error"] == pytest.approx(100 * wrong)


@needs_timm
@pytest.mark.parametrize(("name", "size"), [(NAME, 160), ("timm:vit_tiny_patch16_224", 224)])
def test_frozen_features(name: str, size: int, tmp_path: Path) -> None:
    import timm

    torch.manual_seed(1)
    given = timm.create_model(name.removeprefix("timm:"), num_classes=7)
    save_file(given.state_dict(), tmp_path / "w.safetensors")
    frozen = build_frozen(name, (3, 32, 32), tmp_path / "w.safetensors")
    assert frozen.size == size
    x = torch.rand(2, 3, 32, 32) * 2 - 1
    large = torch.nn.functional.interpolate(x, (size, size), mode="bilinear")
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (given.default_cfg["mean"], given.default_cfg["std"]))
    given.reset_classifier(0)
    with torch.no_grad():
        expected = given.eval()(((large + 1) / 2 - mean) / std)
        torch.testing.assert_close(frozen.eval()(x), expected)
    assert expected.shape == (2, frozen.feature_size)
    with pytest.raises(MixMatchError, match="cannot be filled from"):
        build_frozen("timm:resnet34", (3, 32, 32), tmp_path / "w.safetensors")


@needs_timm
def test_a_run_on_frozen_features(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = Rows(rng.integers(0, 256, (24, 32, 32, 3), np.uint8), np.arange(24, dtype=np.int64) % 3)
    source = Source("mine", ("a", "b", "c"), images, images)
    torch.manual_seed(1)
    save_file(networks.build(NAME, 7, (3, 32, 32)).model.state_dict(), tmp_path / "w.safetensors")
    given = {"labels": 6, "valid": 0, "steps": 6, "batch_size": 4, "reporter": Quiet(), "device": "cpu"}
    record = mixmatch.train(
        source, features=NAME, weights=str(tmp_path / "w.safetensors"), views=2, out=tmp_path / "run", **given
    )
    (tmp_path / "w.safetensors").unlink()  # the model holds them
    model = mixmatch.load(tmp_path / "run", device="cpu")
    assert model.name == f"{NAME}>mlp"
    wrong = (model.probabilities(images.inputs).argmax(axis=1) != images.labels).mean()
    assert record["last_error"] == pytest.approx(100 * wrong)

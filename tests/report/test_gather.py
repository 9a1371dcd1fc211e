"""The features that a report tells images apart by."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import mixmatch
from mixmatch import networks
from mixmatch.classifier import Classifier
from mixmatch.data.opened import Basis, Data
from mixmatch.data.source import Rows, Source
from mixmatch.data.split import Split
from mixmatch.report import write_report
from mixmatch.report.gather import gather, penultimate
from mixmatch.training.progress import Quiet


class Hidden(nn.Module):
    """The same network, which no longer offers its features."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(x)
        return logits


def test_features_are_asked_for_or_found() -> None:
    torch.manual_seed(0)
    network = networks.build("mlp", 3, (7,)).eval()
    inputs = np.random.default_rng(0).normal(size=(150, 7)).astype(np.float32)
    rows = np.array([3, 149, 7, *range(20, 90)])
    asked, found, none = (
        penultimate(Classifier(module, "mlp", ("a", "b", "c"), (7,)), inputs, rows)
        for module in (network, Hidden(network), nn.Conv1d(7, 3, 1))
    )
    with torch.no_grad():
        exact = network.double().features(torch.from_numpy(inputs[rows]).double()).numpy()
    np.testing.assert_allclose(asked, exact / np.linalg.norm(exact, axis=1, keepdims=True), atol=1e-6)
    assert np.array_equal(asked, found)
    assert none is None


def with_junk(path: Path, junk: bool, test: bool = True) -> Path:
    """Digits 0 to 3, 15 labels each; the unlabeled images may be of 4 to 9 as well."""
    digits, rng = load_digits(), np.random.default_rng(0)
    images, target = digits.images[:1000], digits.target[:1000]
    labels, order = np.full(len(target), -1), rng.permutation(len(target))
    for c in range(4):
        labels[order[target[order] == c][:15]] = c
    kept = (target < 4) | (junk & (target < 7))
    held = np.isin(np.arange(len(labels)), order[target[order] < 4][-120:]) & (labels < 0) if test else ~kept
    arrays = {"x": images * 15.9, "y": labels}
    parts = {name: values[kept & ~held] for name, values in arrays.items()}
    if test:
        parts |= {"x_test": arrays["x"][held], "y_test": target[held]}
    np.savez(path, **{name: v.astype(np.uint8 if name[0] == "x" else np.int64) for name, v in parts.items()})
    np.save(path.with_suffix(".truth.npy"), target[kept & ~held])
    return path


@pytest.mark.parametrize("network", ["none", "basic"])
def test_junk_among_the_unlabeled_images_is_listed(tmp_path: Path, network: str) -> None:
    data, out = with_junk(tmp_path / "junk.npz", junk=True), tmp_path / "run"
    mixmatch.train(
        str(data), features=network, steps=2, eval_every=2, batch_size=8, out=out, baseline=False, device="cpu",
        network="wrn-small" if network == "none" else "mlp", reporter=Quiet(),
    )  # fmt: skip
    report, page, _ = write_report(out, device="cpu")
    found, truth = report.unlabeled.no_class, np.load(data.with_suffix(".truth.npy"))
    assert found is not None
    of_list = np.array([truth[int(shown.name.removeprefix("x[").rstrip("]"))] for shown in found.listed])
    assert (of_list >= 4).mean() > 0.9
    assert len(of_list) > 0.5 * (truth >= 4).sum()
    scores = [shown.score for shown in found.listed]
    assert scores == sorted(scores, reverse=True)
    text = page.read_text(encoding="utf-8")
    assert "May show none of your classes" in text
    assert f"A guess: {len(of_list):,} of {found.sample:,} unlabeled images are like" in text
    lines = (out / "no-class.csv").read_text().splitlines()
    assert len(lines) == 1 + len(of_list)
    assert lines[1].startswith(f"{found.listed[0].name},")
    assert any("no-class.csv" in step for step in report.verdict.next_steps)


def test_without_junk_it_says_that_it_cannot_tell(tmp_path: Path) -> None:
    data, out = with_junk(tmp_path / "clean.npz", junk=False), tmp_path / "run"
    settings = {"features": "basic", "steps": 2, "eval_every": 2, "batch_size": 8, "baseline": False, "device": "cpu"}
    mixmatch.train(str(data), out=out, reporter=Quiet(), **settings)
    (out / "no-class.csv").write_text("of an earlier report")
    report, page, _ = write_report(out, device="cpu")
    assert report.unlabeled.no_class is not None
    assert report.unlabeled.no_class.listed == []
    assert "None stands out: " in page.read_text(encoding="utf-8")
    assert not (out / "no-class.csv").exists()


def test_labeled_rows_that_are_used_as_unlabeled_ones_are_not_suggested(tmp_path: Path) -> None:
    rows = Rows(np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32), np.arange(60) % 2)
    source = Source("rows", ("a", "b"), rows, rows.take(np.arange(20)))
    split = Split(np.arange(20), np.arange(60), np.arange(0), np.arange(20))
    settings = {"steps": 2, "eval_every": 2, "batch_size": 4, "device": "cpu"}
    mixmatch.train(source, split=split, out=tmp_path / "run", reporter=Quiet(), **settings)
    opened = Data(source, split, Basis("test rows"))
    report = gather(tmp_path / "run", opened, device="cpu")
    assert report.unlabeled.total == 40
    assert {int(shown.name) for shown in report.unlabeled.suggestions} <= set(range(20, 60))
    assert report.unlabeled.no_class is None  # not a user's files

"""Images as features: computed once, kept by their pixels, used in training, prediction, report and export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import mixmatch
from mixmatch.data import embedding as embedding_
from mixmatch.data.embedding import embed
from mixmatch.data.source import UNKNOWN, Rows, Source
from mixmatch.errors import MixMatchError
from mixmatch.training.progress import Quiet

FAST: dict[str, Any] = {
    "labels": "all",
    "valid": 0,
    "steps": 60,
    "ema_decay": 0.8,
    "eval_every": 10,
    "batch_size": 8,
    "device": "cpu",
    "reporter": Quiet(),
}


class Mean(nn.Module):
    """The mean and the largest value of each channel: a network that counts its images."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += len(x)
        return torch.cat([x.mean(dim=(2, 3)), x.amax(dim=(2, 3))], dim=1) * self.scale


def source(train: int = 40, test: int = 20, seed: int = 0) -> Source:
    """Bright and dark images with stripes; the first six have a label."""
    rng = np.random.default_rng(seed)

    def part(count: int) -> Rows:
        labels = np.arange(count) % 2
        stripes = 100 * (np.arange(16) % 4 < 2)[:, None, None]  # across dark images, down bright ones
        striped = np.where(labels[:, None, None, None] == 1, stripes.transpose(1, 0, 2), stripes)
        pixels = rng.integers(0, 60, (count, 16, 16, 3)) + 60 * labels[:, None, None, None] + striped
        return Rows(pixels.astype(np.uint8), labels.astype(np.int64))

    made = Source("squares", ("dark", "bright"), part(train), part(test))
    made.train.labels[6:] = UNKNOWN
    return made


def test_features_are_those_of_the_network_standardized() -> None:
    images, network = source(), Mean()
    made = embed(images, network, views=3)
    raw = network(torch.from_numpy(images.train.inputs).movedim(-1, 1) * (2 / 255) - 1).detach().numpy()
    mean, deviation = raw.mean(axis=0), raw.std(axis=0)
    assert made.train.inputs == pytest.approx((raw - mean) / deviation, abs=1e-4)
    assert made.embedding is not None
    assert made.embedding.mean.numpy() == pytest.approx(mean, abs=1e-5)
    assert made.train.views is not None
    assert made.train.views.shape == (40, 3, 6)
    assert np.array_equal(made.train.views[:, 0], made.train.inputs)
    assert not np.allclose(made.train.views[:, 1], made.train.views[:, 2])
    assert made.train.pictures is images.train.inputs
    assert (made.train.noun, made.input_shape, made.test.inputs.shape) == ("image", (6,), (20, 6))


def test_views_are_crops_of_the_image_and_flips_if_asked() -> None:
    class Pixels(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1)

    images = source(train=8, test=0)
    made = embed(images, Pixels(), views=4)
    assert made.train.views is not None
    assert made.embedding is not None
    raw = made.train.views * made.embedding.deviation.numpy() + made.embedding.mean.numpy()
    pixels = np.rint((raw.reshape(8, 4, 3, 16, 16) + 1) * 127.5)
    for row in range(8):
        padded = np.pad(images.train.inputs[row].transpose(2, 0, 1), ((0, 0), (2, 2), (2, 2)), mode="reflect")
        crops = [padded[:, i : i + 16, j : j + 16] for i in range(5) for j in range(5)]
        for view in pixels[row]:
            assert any(np.array_equal(view, crop) for crop in crops)


def test_nothing_is_computed_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, network = source(), Mean()
    first = embed(images, network, views=2, cache=tmp_path)
    assert network.seen == 2 + 40 * 2 + 20
    again = embed(images, network, views=2, cache=tmp_path)
    assert network.seen == 2 + 100 + 2  # but for the probe of its size
    assert np.array_equal(first.train.inputs, again.train.inputs)
    # In another order, with other labels, and four more: only those are new.
    order = np.random.default_rng(1).permutation(40)
    new = source(train=4, seed=9).train
    moved = Rows(np.concatenate([images.train.inputs[order], new.inputs]), np.full(44, UNKNOWN))
    before = network.seen
    later = embed(Source("squares", images.classes, moved, images.test), network, views=2, cache=tmp_path)
    assert network.seen == before + 2 + 4 * 2
    assert later.train.views is not None
    assert later.embedding is not None
    assert first.train.views is not None
    assert first.embedding is not None
    scale, shift = first.embedding.deviation / later.embedding.deviation, first.embedding.mean - later.embedding.mean
    expected = first.train.views[order] * scale.numpy() + (shift / later.embedding.deviation).numpy()
    assert later.train.views[:40] == pytest.approx(expected, abs=1e-4)
    # Other weights, other features.
    with torch.no_grad():
        network.scale.fill_(2.0)
    before = network.seen
    embed(images, network, views=2, cache=tmp_path)
    assert network.seen == before + 2 + 100


def test_one_view_each_is_not_computed_twice(tmp_path: Path) -> None:
    """Images to learn from and to test on then differ in nothing but their place, and are kept apart."""
    images, network = source(), Mean()
    embed(images, network, views=1, cache=tmp_path)
    before = network.seen
    embed(images, network, views=1, cache=tmp_path)
    assert network.seen == before + 2


def test_what_was_embedded_before_a_stop_is_kept(tmp_path: Path) -> None:
    images, network = source(train=100), Mean()

    def stop(done: int, total: int) -> None:
        if done >= 64:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embed(images, network, views=1, cache=tmp_path, progress=stop)
    before = network.seen
    embed(images, network, views=1, cache=tmp_path)
    assert network.seen == before + 2 + 36 + 20


def test_a_damaged_cache_is_made_again(tmp_path: Path) -> None:
    images = source()
    whole = embed(images, "basic", views=1, cache=tmp_path)
    for file in tmp_path.glob("features-*.npz"):
        file.write_bytes(file.read_bytes()[:300])
    again = embed(images, "basic", views=1, cache=tmp_path)
    assert np.array_equal(whole.train.inputs, again.train.inputs)


def test_very_many_images_have_fewer_views(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding_, "MOST_VALUES", 40 * 6 * 2)
    assert embed(source(), Mean(), views=8).train.views.shape[1] == 2  # type: ignore[union-attr]
    monkeypatch.setattr(embedding_, "MOST_VALUES", 1)
    assert embed(source(), Mean(), views=8).train.views is None


def test_a_network_that_gives_no_finite_features_is_refused() -> None:
    class Bad(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean(dim=(2, 3)) / 0

    with pytest.raises(MixMatchError, match="finite features"):
        embed(source(), Bad())


# ------------------------------------------------------------------------------------------------------- whole runs


@pytest.mark.parametrize("method", ["mixmatch", "supervised", "mean-teacher"])
def test_a_run_on_basic_features(method: str, tmp_path: Path) -> None:
    record = mixmatch.train(source(), method=method, features="basic", views=2, out=tmp_path / "run", **FAST)
    assert record["settings"]["features"] == "basic"
    assert record["settings"]["network"] == "mlp"
    model = mixmatch.load(tmp_path / "run", device="cpu")
    assert (model.name, model.input_shape) == ("basic>mlp", (3, 16, 16))
    # The saved model takes images, and predicts what the run's own features give.
    test = source().test
    wrong = (model.probabilities(test.inputs).argmax(axis=1) != test.labels).mean()
    assert record["last_error"] == pytest.approx(100 * wrong)
    assert record["last_error"] < 20
    features = embed(source(), "basic", views=1).test.inputs
    assert model.probabilities(features) == pytest.approx(model.probabilities(test.inputs), abs=1e-4)
    with pytest.raises(MixMatchError, match="takes float32 features"):
        model.probabilities(features[:, :5])


def test_images_that_are_flipped_may_have_one_view_each(tmp_path: Path) -> None:
    """As those of CIFAR-10, of which there are too many for more."""
    given = {**FAST, "steps": 2, "flip": True}
    record = mixmatch.train(source(), method="mixmatch", features="basic", views=1, out=tmp_path / "run", **given)
    assert record["steps"] == 2


def test_an_interrupted_run_resumes_to_the_same_model_and_gives_its_newest(tmp_path: Path) -> None:
    given = {**FAST, "features": "basic", "views": 2}
    mixmatch.train(source(), out=tmp_path / "part", method="supervised", **{**given, "steps": 20})
    mixmatch.train(source(), out=tmp_path / "both", method="supervised", **given)
    mixmatch.train(source(), out=tmp_path / "part", resume=True, **{**given, "features": None, "views": None})
    a, b = (mixmatch.load(tmp_path / name, device="cpu").network.state_dict() for name in ("part", "both"))
    assert all(torch.equal(a[name], b[name]) for name in a)
    (tmp_path / "both" / "model.safetensors").unlink()
    (tmp_path / "both" / "result.json").unlink()
    unfinished = mixmatch.load(tmp_path / "both", device="cpu")
    assert unfinished.name == "basic>mlp"
    pixels = source().test.inputs
    finished = mixmatch.load(tmp_path / "part", device="cpu")
    assert np.array_equal(unfinished.probabilities(pixels), finished.probabilities(pixels))


def test_the_estimator_learns_from_features_of_images() -> None:
    images = source()
    model = mixmatch.MixMatchClassifier(features="basic", steps=80, batch_size=8, random_state=1, device="cpu")
    model.fit(images.train.inputs, images.train.labels)
    assert model.model_.name == "basic>mlp"
    assert model.score(images.test.inputs, images.test.labels) > 0.8
    with pytest.raises(ValueError, match="for images, but the data holds features already"):
        mixmatch.MixMatchClassifier(features="basic", steps=3).fit(np.eye(6), [0, 1, -1, -1, 0, 1])

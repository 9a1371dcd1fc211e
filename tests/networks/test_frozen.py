"""Basic features against independent ones, and a head on frozen features."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mixmatch import networks
from mixmatch.errors import MixMatchError
from mixmatch.networks import Embedded
from mixmatch.networks.frozen import ANGLES, CELLS, CONTRAST, FILTERS, PATCH, RIDGE, THRESHOLD, Basic, build_frozen
from mixmatch.networks.heads import offers_features


def images(count: int, size: int = 32, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, size, size, channels), np.uint8)


def unit(pixels: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(pixels).movedim(-1, 1) * (2 / 255) - 1


@pytest.mark.parametrize("which", [0, 1])
def test_edges_are_histograms_of_gradient_directions(which: int) -> None:
    """One image with an edge of each kind, against sums over its pixels in plain Python."""
    x = unit(images(2)).double()
    found = Basic(3).double()._edges(x)[which][1].numpy()
    number = CELLS[which]
    side = 32 // number
    image = x[1].numpy()
    cells = np.zeros((ANGLES, number, number))
    for row in range(32):
        for column in range(32):
            best = (0.0, 0.0, -1.0)
            for c in range(3):
                across = image[c, row, min(31, column + 1)] - image[c, row, max(0, column - 1)]
                down = image[c, min(31, row + 1), column] - image[c, max(0, row - 1), column]
                if across**2 + down**2 > best[2]:
                    best = (across, down, across**2 + down**2)
            place = (np.degrees(np.arctan2(best[1], best[0])) % 180) / (180 / ANGLES)
            low = int(place)
            for angle, share in ((low % ANGLES, 1 - (place - low)), ((low + 1) % ANGLES, place - low)):
                cells[angle, row // side, column // side] += share * np.sqrt(best[2]) / side**2
    for i in range(number - 1):
        for j in range(number - 1):
            block = np.concatenate([cells[:, i + a, j + b] for a in (0, 1) for b in (0, 1)])
            block = block / np.sqrt((block**2).sum() + 1e-4)
            block = np.minimum(block, 0.2)
            block = block / np.sqrt((block**2).sum() + 1e-4)
            assert found[:, i, j] == pytest.approx(block, abs=1e-6)


def test_patterns_are_responses_of_whitened_patches() -> None:
    """The convolution gives what whitening each patch and multiplying it with a filter gives."""
    pixels = images(40)
    basic = Basic(3)
    basic.fit(pixels)
    kernels = basic.get_buffer("kernels").double().flatten(1).numpy()
    offset = basic.get_buffer("offset").double().numpy()
    x = unit(pixels[:1])[0].double().numpy()
    sums = np.zeros((2 * FILTERS, 2, 2))
    # Rows 0-13 and 13-26 of the 27 places, as adaptive pooling has them.
    for q, rows in enumerate((range(14), range(13, 27))):
        for r, columns in enumerate((range(14), range(13, 27))):
            for i in rows:
                for j in columns:
                    patch = x[:, i : i + PATCH, j : j + PATCH].ravel()
                    patch = (patch - patch.mean()) / np.sqrt(patch.var() + CONTRAST)
                    response = kernels @ patch - offset
                    both = np.concatenate([response - THRESHOLD, -response - THRESHOLD])
                    sums[:, q, r] += np.maximum(both, 0) / (len(rows) * len(columns))
    assert basic._patterns(unit(pixels[:1]))[0].numpy() == pytest.approx(sums, abs=1e-4)


def test_filters_are_directions_of_whitened_patches_and_repeat() -> None:
    first, second = Basic(1), Basic(1)
    pixels = images(50, channels=1)
    first.fit(pixels)
    second.fit(pixels)
    assert torch.equal(first.get_buffer("kernels"), second.get_buffer("kernels"))
    other = Basic(1)
    other.fit(images(60, channels=1))
    assert not torch.equal(first.get_buffer("kernels"), other.get_buffer("kernels"))
    # Of noise, whitening is nearly a multiple of one: filters have nearly the same length.
    lengths = first.get_buffer("kernels").flatten(1).norm(dim=1)
    assert lengths.std() / lengths.mean() < 0.1
    assert float(lengths.max()) < 1 / np.sqrt(RIDGE)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (3, 96, 96), (4, 33, 33)])
def test_basic_features_of_any_size(shape: tuple[int, int, int]) -> None:
    channels, size, _ = shape
    basic = build_frozen("basic", shape)
    assert isinstance(basic, Basic)
    basic.fit(images(12, size, channels))
    features = basic(unit(images(5, size, channels)))
    assert features.shape == (5, basic.feature_size)
    assert torch.isfinite(features).all()
    assert len({tuple(row) for row in features.tolist()}) == 5


def test_fine_cells_are_for_images_that_have_the_pixels() -> None:
    """Blocks of 4x4 and 8x8 cells, colors on a 4x4 grid, two signs of 128 filters in four quarters."""
    coarse, fine, patterns = 3 * 3 * 36, 7 * 7 * 36, 2 * 128 * 4
    assert build_frozen("basic", (1, 8, 8)).feature_size == coarse + 16 + patterns
    assert build_frozen("basic", (3, 31, 40)).feature_size == coarse + 3 * 16 + patterns
    assert build_frozen("basic", (3, 32, 32)).feature_size == coarse + fine + 3 * 16 + patterns


def test_a_head_takes_images_and_features() -> None:
    network = networks.build("basic>mlp", 3, (3, 16, 16)).train()
    assert isinstance(network, Embedded)
    assert offers_features(network)
    assert not network.frozen.training
    assert network.head.training
    frozen = network.frozen
    assert isinstance(frozen, Basic)
    frozen.fit(images(20, 16))
    network.get_buffer("mean").fill_(0.25)
    network.get_buffer("deviation").fill_(2.0)
    network.eval()
    x = unit(images(4, 16))
    by_hand = (frozen(x) - 0.25) / 2
    assert torch.equal(network(x), network.head(by_hand))
    assert torch.equal(network(x), network(by_hand))
    assert torch.equal(network.classify(network.features(x)), network(x))
    trained = {name for name, p in network.named_parameters() if p.requires_grad}
    assert trained
    assert all(name.startswith("head.") for name in trained)


def test_what_is_refused() -> None:
    with pytest.raises(MixMatchError, match=r"unknown features 'hog'.*basic"):
        build_frozen("hog", (3, 32, 32))
    with pytest.raises(MixMatchError, match="for images, but the data holds features already"):
        build_frozen("basic", (64,))
    with pytest.raises(MixMatchError, match="basic has none"):
        build_frozen("basic", (3, 32, 32), "weights.pth")

"""The 13-layer network against one written here from the official code's fact sheet, section 2.3."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from mixmatch import networks
from mixmatch.errors import MixMatchError
from mixmatch.networks import ConvNet13

EPS, SLOPE = 1e-3, 0.2


def convolution(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, same: bool) -> np.ndarray:
    """(N, C, H, W) * (O, C, k, k) as a sum over the kernel's places."""
    size = weight.shape[-1]
    if same:
        around = size // 2
        x = np.pad(x, ((0, 0), (0, 0), (around, around), (around, around)))
    height, width = x.shape[2] - size + 1, x.shape[3] - size + 1
    y = np.zeros((len(x), len(weight), height, width))
    for i in range(size):
        for j in range(size):
            y += np.einsum("nchw,oc->nohw", x[:, :, i : i + height, j : j + width], weight[:, :, i, j])
    return y + bias[:, None, None]


def max_pool(x: np.ndarray) -> np.ndarray:
    n, c, h, w = x.shape
    x = x[:, :, : h // 2 * 2, : w // 2 * 2]
    return x.reshape(n, c, h // 2, 2, w // 2, 2).max(axis=(3, 5))


def forward(arrays: list[np.ndarray], x: np.ndarray, training: bool) -> tuple[np.ndarray, list[tuple[int, ...]]]:
    """Logits, and the shape after each convolution. Arrays are in the order of the layers: kernel, bias, gamma, beta,
    running mean, running variance of each, then the dense kernel and bias."""
    arrays, shapes = list(arrays), []
    for layer in range(9):
        if layer in (3, 6):
            x = max_pool(x)
        weight, bias, gamma, beta, mean, variance = arrays[:6]
        del arrays[:6]
        x = convolution(x, weight, bias, same=layer < 6)  # 8 -> 6 at the first of the last three; 1x1 do not matter
        shapes.append(x.shape[1:])
        x = np.where(x > 0, x, SLOPE * x)
        if training:
            mean, variance = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))
        x = (x - mean[:, None, None]) / np.sqrt(variance[:, None, None] + EPS) * gamma[:, None, None]
        x = x + beta[:, None, None]
    weight, bias = arrays
    return x.mean(axis=(2, 3)) @ weight.T + bias, shapes


def random_network(filters: int, channels: int, momentum: float = 0.001) -> tuple[ConvNet13, list[np.ndarray]]:
    """A network with nothing at its initial value, and its arrays in the order they are registered in."""
    torch.manual_seed(0)
    network = ConvNet13(5, in_channels=channels, filters=filters, momentum=momentum).double()
    generator = torch.Generator().manual_seed(1)
    for name, value in network.state_dict().items():
        if value.is_floating_point():
            low, high = (0.5, 1.5) if "norm.weight" in name or "var" in name else (-0.4, 0.4)
            value.copy_(torch.empty_like(value).uniform_(low, high, generator=generator))
    return network, [value.numpy().copy() for value in network.state_dict().values() if value.is_floating_point()]


@pytest.mark.parametrize(("name", "parameters"), [("cnn13", 3_123_850), ("cnn13-32", 197_290)])
def test_parameter_counts(name, parameters):
    assert sum(p.numel() for p in networks.build(name, num_classes=10).parameters()) == parameters


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("filters", "channels", "height", "width"), [(3, 3, 32, 32), (2, 1, 12, 17)])
def test_the_forward_pass_is_the_authors(filters, channels, height, width, training):
    network, arrays = random_network(filters, channels)
    x = np.random.default_rng(2).uniform(-1, 1, (4, channels, height, width))
    expected, _ = forward(arrays, x, training)
    network.train(training)
    found = network(torch.from_numpy(x)).detach().numpy()
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


def test_sizes_on_the_way():
    """32, pooled to 16 and 8, unpadded to 6; f, 2f, then 4f, 2f, f filters."""
    network, arrays = random_network(2, 3)
    seen = []
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(lambda _, __, output: seen.append(tuple(output.shape[1:])))
    x = np.zeros((2, 3, 32, 32))
    network(torch.from_numpy(x))
    expected = [(2, 32, 32)] * 3 + [(4, 16, 16)] * 3 + [(8, 6, 6), (4, 6, 6), (2, 6, 6)]
    assert seen == expected
    assert forward(arrays, x, training=True)[1] == expected


def test_kernels_start_glorot_uniform_and_biases_at_0():
    """Uniform within sqrt(6 / (k*k*(in + out))): no further, close to it, and with its deviation, bound / sqrt 3."""
    torch.manual_seed(3)
    network = networks.build("cnn13-32", num_classes=10)
    layers = [m for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    widths = [(3, 32, 9), (32, 32, 9), (32, 32, 9), (32, 64, 9), (64, 64, 9), (64, 64, 9), (64, 128, 9)]
    widths += [(128, 64, 1), (64, 32, 1), (32, 10, 1)]
    assert len(layers) == len(widths)
    for layer, (inputs, outputs, places) in zip(layers, widths, strict=True):
        weight = layer.weight.detach().double()
        assert weight.numel() == inputs * outputs * places
        bound = math.sqrt(6 / (places * (inputs + outputs)))
        assert weight.abs().max() <= bound * (1 + 1e-6)
        assert weight.abs().max() > 0.98 * bound
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.08)
        assert not layer.bias.detach().any()


@pytest.mark.parametrize("name", ["cnn13", "cnn13-32"])
def test_norms_have_the_authors_constants(name):
    norms = [m for m in networks.build(name, num_classes=10).modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(norms) == 9
    for norm in norms:
        assert (norm.momentum, norm.eps) == (0.001, 1e-3)
        assert (norm.weight == 1).all()
        assert not norm.bias.any()


def test_running_statistics_move_by_the_momentum():
    network, arrays = random_network(2, 3, momentum=0.25)
    x = np.random.default_rng(5).uniform(-1, 1, (4, 3, 32, 32))
    network.train()
    network(torch.from_numpy(x))
    first = convolution(x, arrays[0], arrays[1], same=True)
    first = np.where(first > 0, first, SLOPE * first)  # what is normalized is activated already
    norm = next(m for m in network.modules() if isinstance(m, nn.BatchNorm2d))
    np.testing.assert_allclose(norm.running_mean, 0.75 * arrays[4] + 0.25 * first.mean(axis=(0, 2, 3)), rtol=1e-10)
    variance = first.var(axis=(0, 2, 3), ddof=1)
    np.testing.assert_allclose(norm.running_var, 0.75 * arrays[5] + 0.25 * variance, rtol=1e-10)


@pytest.mark.parametrize("shape", [(3, 11, 32), (3, 32, 11), (1, 8, 8)])
@pytest.mark.parametrize("name", ["cnn13", "cnn13-32"])
def test_images_too_small_are_refused(name, shape):
    with pytest.raises(MixMatchError) as caught:
        networks.build(name, 10, shape)
    assert str(caught.value) == f"network '{name}' takes images of at least 12x12, not {shape}"


def test_the_smallest_image_works():
    network = networks.build("cnn13-32", 10, (1, 12, 12)).eval()
    assert network(torch.zeros(2, 1, 12, 12)).shape == (2, 10)
    with pytest.raises(RuntimeError):
        network(torch.zeros(2, 1, 11, 11))

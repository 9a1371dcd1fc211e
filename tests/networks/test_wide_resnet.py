"""The networks against the authors' parameter counts and a plain NumPy forward pass written from their description."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from mixmatch.errors import MixMatchError
from mixmatch.networks import NETWORKS, WideResNet, build, count, scales_for
from mixmatch.networks.wide_resnet import Conv

# A plain NumPy network in float64


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """TensorFlow's SAME: as many outputs as size / stride rounded up, the odd pixel after the image."""
    total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def conv(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, stride: int = 1) -> np.ndarray:
    kernel = weight.shape[-1]
    x = np.pad(x, ((0, 0), (0, 0), *(same_padding(n, kernel, stride) for n in x.shape[2:])))
    windows = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), axis=(2, 3))[:, :, ::stride, ::stride]
    return np.einsum("nchwij,ocij->nohw", windows, weight) + bias[:, None, None]


class PlainNetwork:
    """The forward pass in the words of the fact sheet, reading a WideResNet's numbers."""

    def __init__(self, network: WideResNet, repeat: int, scales: int, training: bool) -> None:
        self.numbers = {name: value.numpy().copy() for name, value in network.state_dict().items()}
        self.repeat, self.scales, self.training = repeat, scales, training

    def convolve(self, x: np.ndarray, name: str, stride: int = 1) -> np.ndarray:
        return conv(x, self.numbers[f"{name}.weight"], self.numbers[f"{name}.bias"], stride)

    def norm_and_leaky(self, x: np.ndarray, name: str) -> np.ndarray:
        if self.training:
            mean, var = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))
        else:
            mean, var = self.numbers[f"{name}.running_mean"], self.numbers[f"{name}.running_var"]
        gamma, beta = self.numbers[f"{name}.weight"], self.numbers[f"{name}.bias"]
        mean, var, gamma, beta = (v[:, None, None] for v in (mean, var, gamma, beta))
        x = (x - mean) / np.sqrt(var + 0.001) * gamma + beta
        return np.where(x > 0, x, 0.1 * x)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        x = self.convolve(x, "stem")
        for stage in range(self.scales):
            for block in range(self.repeat):
                name = f"blocks.{stage * self.repeat + block}"
                stride = 2 if stage > 0 and block == 0 else 1
                h = self.norm_and_leaky(x, f"{name}.norm1")
                if stage == 0 and block == 0:
                    x = h
                h = self.convolve(h, f"{name}.conv1", stride)
                h = self.norm_and_leaky(h, f"{name}.norm2")
                h = self.convolve(h, f"{name}.conv2")
                if f"{name}.shortcut.weight" in self.numbers:
                    x = self.convolve(x, f"{name}.shortcut", stride)
                x = x + h
        features = self.norm_and_leaky(x, "norm").mean(axis=(2, 3))
        return features @ self.numbers["head.weight"].T + self.numbers["head.bias"]


def random_network(
    seed: int, repeat: int, scales: int, filters: int, channels: int = 3, classes: int = 4
) -> WideResNet:
    """A float64 network in which no number is at its neutral value."""
    torch.manual_seed(seed)
    network = WideResNet(classes, channels, filters=filters, repeat=repeat, scales=scales).double()
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1.5)
                module.bias.normal_(std=0.5)
                module.running_mean.normal_()
                module.running_var.uniform_(0.01, 2)
            elif isinstance(module, nn.Conv2d | nn.Linear):
                module.bias.normal_(std=0.5)
    return network


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("repeat", "scales", "filters", "size"),
    [
        (1, 3, 8, (8, 8)),
        (2, 3, 4, (12, 12)),
        (1, 4, 2, (16, 16)),
        (2, 2, 6, (7, 9)),
        (1, 3, 16, (5, 5)),
        (2, 1, 16, (4, 4)),
    ],
)
def test_the_forward_pass_is_the_authors(repeat, scales, filters, size, training):
    network = random_network(1, repeat, scales, filters).train(training)
    x = np.random.default_rng(0).normal(size=(3, 3, *size))
    expected = PlainNetwork(network, repeat, scales, training)(x)
    np.testing.assert_allclose(network(torch.from_numpy(x)).detach().numpy(), expected, rtol=1e-9, atol=1e-10)


def test_running_statistics_move_by_a_thousandth():
    network = random_network(2, 1, 3, 4).train()
    before = {name: value.numpy().copy() for name, value in network.state_dict().items()}
    x = np.random.default_rng(1).normal(size=(5, 3, 8, 8))
    network(torch.from_numpy(x))
    stem = conv(x, before["stem.weight"], before["stem.bias"])
    after = network.state_dict()
    np.testing.assert_allclose(
        after["blocks.0.norm1.running_mean"].numpy(),
        0.999 * before["blocks.0.norm1.running_mean"] + 0.001 * stem.mean(axis=(0, 2, 3)),
        rtol=1e-10,
    )
    np.testing.assert_allclose(
        after["blocks.0.norm1.running_var"].numpy(),
        0.999 * before["blocks.0.norm1.running_var"] + 0.001 * stem.var(axis=(0, 2, 3), ddof=1),
        rtol=1e-10,
    )


# Size


@pytest.mark.parametrize(
    ("name", "classes", "parameters"),
    [
        ("wrn-28-2", 10, 1_469_642),
        ("wrn-28-2", 100, 1_481_252),
        ("wrn-28-large", 10, 25_985_290),
        ("wrn-28-large", 100, 26_033_980),
        ("wrn-28-8", 10, 23_362_922),
        ("wrn-28-8", 100, 23_409_092),
        ("wrn-28-2-stl10", 10, 5_933_770),
    ],
)
def test_parameter_counts(name, classes, parameters):
    with torch.device("meta"):  # counting needs no weights
        network = build(name, classes)
    assert sum(p.numel() for p in network.parameters()) == parameters
    assert all(p.requires_grad for p in network.parameters())


def test_parameter_count_of_five_scales():
    with torch.device("meta"):
        network = WideResNet(10, filters=32, repeat=4, scales=5)
    assert sum(p.numel() for p in network.parameters()) == 23_774_922


@pytest.mark.parametrize(("name", "convolutions"), [("wrn-28-2", 28), ("wrn-28-2-stl10", 37), ("wrn-16-2", 16)])
def test_the_depth_is_the_number_of_convolutions(name, convolutions):
    # 28 = the stem, 24 in blocks and 3 shortcuts; STL-10's fourth stage adds 8 and 1.
    layers = [m for m in build(name, 10).modules() if isinstance(m, nn.Conv2d)]
    assert len(layers) == convolutions


def test_every_layer_has_a_bias_and_every_norm_the_authors_constants():
    network = build("wrn-28-2", 10)
    kinds = {nn.Conv2d: 0, nn.Linear: 0, nn.BatchNorm2d: 0}
    for module in network.modules():
        for kind in kinds:
            kinds[kind] += isinstance(module, kind)
        if isinstance(module, nn.Conv2d | nn.Linear):
            assert module.bias is not None
        if isinstance(module, nn.BatchNorm2d):
            assert (module.eps, module.momentum, module.affine) == (1e-3, 0.001, True)
    assert kinds == {nn.Conv2d: 28, nn.Linear: 1, nn.BatchNorm2d: 25}
    assert not any(isinstance(m, nn.Dropout) for m in network.modules())


# Fresh weights


def test_convolutions_start_normal_with_the_fan_out_deviation():
    torch.manual_seed(0)
    network = build("wrn-28-2", 10)
    pooled = []
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            weight = module.weight.detach().double().numpy()
            filters, _, k, _ = weight.shape
            expected = math.sqrt(2 / (k * k * filters))
            error = 1 / math.sqrt(2 * weight.size)
            assert weight.std() / expected == pytest.approx(1, abs=5 * error)
            assert abs(weight.mean()) < 5 * expected / math.sqrt(weight.size)
            assert not module.bias.detach().any()
            pooled.append(weight.ravel() / expected)
    standard = np.concatenate(pooled)
    assert np.abs(standard).max() > 4  # not truncated
    assert stats.kstest(standard[:200_000], "norm").pvalue > 1e-3


def test_the_dense_layer_starts_as_tensorflows_glorot_normal():
    torch.manual_seed(0)
    network = build("wrn-16-2", 1000)  # many classes for many weights
    weight = network.head.weight.detach().double().numpy()
    assert weight.shape == (1000, 128)
    expected = math.sqrt(2 / (1000 + 128))
    assert weight.std() / expected == pytest.approx(1, abs=0.01)
    assert abs(weight.mean()) < 5 * expected / math.sqrt(weight.size)
    # A normal cut off at two deviations has a smaller deviation, so it is widened before.
    bound = 2 * expected / stats.truncnorm(-2, 2).std()
    assert 0.99 * bound < np.abs(weight).max() <= bound * (1 + 1e-6)
    assert stats.kstest(weight.ravel() / (bound / 2), stats.truncnorm(-2, 2).cdf).pvalue > 1e-3
    assert not network.head.bias.detach().any()


def test_norms_start_neutral():
    for module in build("wrn-10-2", 10).modules():
        if isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()
            assert (module.running_mean == 0).all()
            assert (module.running_var == 1).all()


def test_weights_follow_torchs_global_seed():
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return torch.cat([p.detach().flatten() for p in build("wrn-10-2", 3).parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


# Padding


def all_ones(size: int, stride: int) -> Conv:
    layer = Conv(1, 1, size, stride)
    nn.init.ones_(layer.weight)
    return layer


def counted(height: int, width: int) -> torch.Tensor:
    return torch.arange(float(height * width)).reshape(1, 1, height, width)


def test_stride_2_pads_even_sizes_at_the_bottom_and_right_alone():
    # Rows and columns 0-2 and 2-3 of 0 ... 15.
    assert all_ones(3, 2)(counted(4, 4))[0, 0].tolist() == [[45, 39], [66, 50]]


def test_stride_2_pads_odd_sizes_on_both_sides():
    # Rows and columns 0-1, 1-3 and 3-4 of 0 ... 24.
    assert all_ones(3, 2)(counted(5, 5))[0, 0].tolist() == [[12, 27, 24], [63, 108, 81], [72, 117, 84]]


def test_height_and_width_are_padded_each_by_its_own_size():
    # 2 rows (even: 0-1), 3 columns (odd: 0-1, 1-2) of 0 1 2 / 3 4 5.
    assert all_ones(3, 2)(counted(2, 3))[0, 0].tolist() == [[8, 12]]
    assert all_ones(3, 2)(counted(3, 2))[0, 0].tolist() == [[6], [14]]


def test_a_strided_shortcut_takes_every_other_pixel_from_the_first():
    assert all_ones(1, 2)(counted(4, 4))[0, 0].tolist() == [[0, 2], [8, 10]]
    assert all_ones(1, 2)(counted(3, 3))[0, 0].tolist() == [[0, 2], [6, 8]]


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 3]), st.sampled_from([1, 2]), st.integers(0, 1000))
def test_convolutions_pad_as_tensorflows_same(height, width, size, stride, seed):
    torch.manual_seed(seed)
    layer = Conv(2, 3, size, stride).double()
    x = torch.randn(2, 2, height, width, dtype=torch.float64)
    expected = conv(x.numpy(), layer.weight.detach().numpy(), layer.bias.detach().numpy(), stride)
    out = layer(x).detach().numpy()
    assert out.shape == (2, 3, math.ceil(height / stride), math.ceil(width / stride))
    np.testing.assert_allclose(out, expected, rtol=1e-10, atol=1e-12)


# Building by name


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (4, 17, 33), (3, 1, 1), (3, 3, 2)])
def test_any_channels_and_sizes(shape):
    network = build("wrn-10-2", 7, shape)
    assert network(torch.zeros(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_name_builds_for_its_papers_shape(name):
    with torch.device("meta"):
        network = build(name, 10)
        out = network(torch.empty(2, *NETWORKS[name].shape))
    assert out.shape == (2, 10)


@pytest.mark.parametrize(("depth", "width", "repeat"), [(10, 1, 1), (16, 4, 2), (22, 2, 3), (28, 10, 4), (40, 2, 6)])
def test_wrn_depth_width(depth, width, repeat):
    with torch.device("meta"):
        network = build(f"wrn-{depth}-{width}", 10)
    blocks = list(network.blocks)
    assert len(blocks) == 3 * repeat
    assert [block.conv2.out_channels for block in blocks] == [
        c for c in (16 * width, 32 * width, 64 * width) for _ in range(repeat)
    ]
    assert network.head.in_features == 64 * width
    assert network.stem.out_channels == 16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("wrn-28-lage", 10), r"unknown network 'wrn-28-lage': did you mean 'wrn-28-large'\?"),
        (("wnr-28-2", 10), r"did you mean 'wrn-28-2'\?"),
        (("transformer", 10), r"unknown network 'transformer'.*known: .*wrn-28-2"),
        (("", 10), "unknown network ''"),
        (("wrn-28--2", 10), "unknown network 'wrn-28--2'"),
        (("wrn-27-2", 10), "network 'wrn-27-2'.* 10, 16, 22, 28"),
        (("wrn-13-2", 10), "network 'wrn-13-2'.* 10, 16, 22, 28"),
        (("wrn-4-2", 10), "network 'wrn-4-2'.* 10, 16, 22, 28"),
        (("wrn-28-0", 10), "network 'wrn-28-0'.* width 1 or more"),
        (("wrn-28-2", 1), "at least two classes, not 1"),
        (("wrn-28-2", 0), "at least two classes, not 0"),
        (("wrn-28-2", 10, (32, 32)), r"\(channels, height, width\), not \(32, 32\)"),
        (("wrn-28-2", 10, (3, 32, 32, 1)), r"\(channels, height, width\), not \(3, 32, 32, 1\)"),
        (("wrn-28-2", 10, (3, 0, 32)), r"\(channels, height, width\), not \(3, 0, 32\)"),
        (("wrn-28-2", 10, ()), r"\(channels, height, width\), not \(\)"),
    ],
)
def test_what_cannot_be_built_is_said_in_one_line(arguments, message):
    with pytest.raises(MixMatchError, match=message) as error:
        build(*arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("size", "scales"),
    [(4, 2), (8, 2), (16, 2), (31, 2), (32, 3), (63, 3), (64, 4), (127, 4), (128, 5), (255, 5), (600, 5)],
)
def test_wrn_auto_has_more_stages_for_larger_images(size: int, scales: int) -> None:
    assert scales_for(size) == scales
    assert 8 <= math.ceil(size / 2 ** (scales - 1)) <= 16 or not 16 <= size <= 255


def test_the_stages_of_wrn_auto_follow_the_shorter_side() -> None:
    network = build("wrn-auto", 3, (1, 31, 40))
    assert isinstance(network, WideResNet)
    assert network.feature_size == 64


@pytest.mark.parametrize(
    ("name", "classes", "shape"),
    [
        ("wrn-28-2", 10, (3, 32, 32)),
        ("wrn-16-3", 7, (1, 20, 20)),
        ("wrn-small", 10, (1, 8, 8)),
        ("wrn-28-2-stl10", 10, (3, 96, 96)),
        ("wrn-auto", 3, (3, 64, 80)),
        ("cnn13-32", 4, (1, 28, 28)),
        ("mlp", 10, (64,)),
    ],
)
def test_the_number_of_parameters_is_known_before_a_network_is_built(name, classes, shape):
    assert count(name, classes, shape) == sum(p.numel() for p in build(name, classes, shape).parameters())

"""Which weights a pass uses and what it does to batch norm, against the same arithmetic in NumPy."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mixmatch.training.model import Model

EPS, MOMENTUM = 1e-3, 0.2


def normalized(h: np.ndarray, mean: np.ndarray, variance: np.ndarray, norm: nn.Module) -> np.ndarray:
    """Batch norm over axis 1 with these statistics."""
    shape = (1, -1, *[1] * (h.ndim - 2))
    weight, bias = (array(p).reshape(shape) for p in (norm.weight, norm.bias))
    return (h - mean.reshape(shape)) / np.sqrt(variance.reshape(shape) + EPS) * weight + bias


def array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().numpy().copy()


def with_norm(dimensions: int) -> nn.Sequential:
    """Batch norm first, so that what it sees is the input itself, then a layer that makes logits."""
    torch.manual_seed(1)
    norm = (nn.BatchNorm1d if dimensions == 1 else nn.BatchNorm2d)(3, eps=EPS, momentum=MOMENTUM)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5)
        norm.bias.uniform_(-1, 1)
        norm.running_mean.uniform_(-1, 1)
        norm.running_var.uniform_(0.5, 2)
    return nn.Sequential(norm, nn.Flatten(), nn.Linear(3 if dimensions == 1 else 12, 5)).double()


def some_input(dimensions: int, rows: int = 9) -> Tensor:
    shape = (rows, 3) if dimensions == 1 else (rows, 3, 2, 2)
    return torch.from_numpy(np.random.default_rng(2).normal(1.0, 2.0, shape))


def statistics(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    axes = (0, *range(2, x.ndim))
    return x.mean(axes), x.var(axes)


def logits(network: nn.Sequential, h: np.ndarray) -> np.ndarray:
    return h.reshape(len(h), -1) @ array(network[2].weight).T + array(network[2].bias)


def buffers(network: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in network.named_buffers()}


# ---------------------------------------------------------------- statistics


@pytest.mark.parametrize("dimensions", [1, 2])
def test_batch_normalizes_with_the_batch_and_touches_nothing(dimensions: int) -> None:
    network, x = with_norm(dimensions), some_input(dimensions)
    before = buffers(network)
    found = Model(network)(x, stats="batch")
    expected = logits(network, normalized(x.numpy(), *statistics(x.numpy()), network[0]))
    np.testing.assert_allclose(array(found), expected, rtol=1e-10)
    for name, buffer in network.named_buffers():
        assert torch.equal(buffer, before[name]), name
    assert network[0].num_batches_tracked == 0
    assert network[0].track_running_stats


@pytest.mark.parametrize("dimensions", [1, 2])
def test_update_also_moves_the_running_statistics_by_the_momentum(dimensions: int) -> None:
    network, x = with_norm(dimensions), some_input(dimensions)
    before = buffers(network)
    found = Model(network)(x, stats="update")
    mean, variance = statistics(x.numpy())
    np.testing.assert_allclose(
        array(found), logits(network, normalized(x.numpy(), mean, variance, network[0])), rtol=1e-10
    )
    n = x.numel() / 3
    for name, batch in (("running_mean", mean), ("running_var", variance * n / (n - 1))):
        expected = (1 - MOMENTUM) * array(before[f"0.{name}"]) + MOMENTUM * batch
        np.testing.assert_allclose(array(getattr(network[0], name)), expected, rtol=1e-12)
    assert network[0].num_batches_tracked == 1


@pytest.mark.parametrize("dimensions", [1, 2])
def test_running_normalizes_with_the_running_statistics(dimensions: int) -> None:
    network, x = with_norm(dimensions), some_input(dimensions)
    before = buffers(network)
    found = Model(network)(x, stats="running")
    norm = network[0]
    expected = logits(network, normalized(x.numpy(), array(norm.running_mean), array(norm.running_var), norm))
    np.testing.assert_allclose(array(found), expected, rtol=1e-10)
    for name, buffer in network.named_buffers():
        assert torch.equal(buffer, before[name]), name
    alone = Model(network)(x[:1], stats="running")
    np.testing.assert_allclose(array(alone), expected[:1], rtol=1e-10)


def test_the_statistics_are_the_batchs_by_default() -> None:
    network, x = with_norm(1), some_input(1)
    model = Model(network)
    assert torch.equal(model(x), model(x, weights="live", stats="batch"))
    assert network[0].num_batches_tracked == 0


def test_a_pass_that_fails_leaves_batch_norm_as_it_was() -> None:
    network = with_norm(1)
    with pytest.raises(RuntimeError):
        Model(network)(torch.zeros(4, 7, dtype=torch.float64), stats="batch")
    assert network[0].track_running_stats


def test_a_layer_that_never_tracked_statistics_still_does_not() -> None:
    network = nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False), nn.Flatten(), nn.Linear(3, 2)).double()
    model, x = Model(network), some_input(1)
    for stats in ("batch", "update", "running"):
        model(x, stats=stats)  # type: ignore[arg-type]
        assert not network[0].track_running_stats


# ---------------------------------------------------------------- weights


def test_ema_passes_use_averaged_parameters_with_live_buffers_and_carry_no_gradient() -> None:
    network, x = with_norm(2), some_input(2)
    model = Model(network)
    averaged = copy.deepcopy(network)
    with torch.no_grad():
        for name, parameter in averaged.named_parameters():
            parameter.add_(0.3)
            model.ema[name].copy_(parameter)
        for each in (network, averaged):  # the live buffers after the average was begun
            each[0].running_mean.fill_(0.7)
            each[0].running_var.fill_(1.9)
    h = normalized(x.numpy(), np.full(3, 0.7), np.full(3, 1.9), averaged[0])
    found = model(x, weights="ema", stats="running")
    np.testing.assert_allclose(array(found), logits(averaged, h), rtol=1e-10)
    assert not found.requires_grad
    np.testing.assert_allclose(
        array(model(x, weights="ema", stats="batch")),
        logits(averaged, normalized(x.numpy(), *statistics(x.numpy()), averaged[0])),
        rtol=1e-10,
    )
    assert network[0].num_batches_tracked == 0
    assert model(x).requires_grad  # the live weights are untouched and trainable
    assert not torch.equal(model(x), model(x, weights="ema"))
    model(x, weights="ema", stats="update")
    expected = (1 - MOMENTUM) * 0.7 + MOMENTUM * statistics(x.numpy())[0]
    np.testing.assert_allclose(array(network[0].running_mean), expected, rtol=1e-12)


def test_the_average_over_several_steps() -> None:
    network = with_norm(1)
    model = Model(network, ema_decay=0.9)
    expected = {name: array(p) for name, p in network.named_parameters()}
    for name, value in expected.items():
        np.testing.assert_array_equal(array(model.ema[name]), value)  # it starts at the initial weights
    rng = np.random.default_rng(4)
    for _ in range(5):
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                parameter.copy_(torch.from_numpy(rng.normal(size=parameter.shape)))
                expected[name] = 0.9 * expected[name] + (1 - 0.9) * array(parameter)
        model.update_ema()
    for name, value in expected.items():
        np.testing.assert_allclose(array(model.ema[name]), value, rtol=1e-12)
    assert model.ema.keys() == expected.keys()  # no buffers


@pytest.mark.parametrize(("decay", "from_live"), [(0.0, 1.0), (1.0, 0.0), (0.999, 0.001)])
def test_decays(decay: float, from_live: float) -> None:
    network = nn.Linear(2, 1, bias=False).double()
    nn.init.zeros_(network.weight)
    model = Model(network, ema_decay=decay)
    nn.init.ones_(network.weight)
    model.update_ema()
    assert model.ema["weight"][0, 0].item() == pytest.approx(from_live, abs=1e-15)


def test_a_share_on_the_device_moves_the_average_as_a_decay_does() -> None:
    network = with_norm(1)
    model = Model(network, ema_decay=0.999)
    expected = {name: array(p) for name, p in network.named_parameters()}
    rng = np.random.default_rng(5)
    for share in (0.9, 0.5, 0.125):
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                parameter.copy_(torch.from_numpy(rng.normal(size=parameter.shape)))
                expected[name] += share * (array(parameter) - expected[name])
        model.update_ema(torch.tensor(share, dtype=torch.float64))
    for name, value in expected.items():
        np.testing.assert_allclose(array(model.ema[name]), value, rtol=1e-12)


def test_the_average_is_a_copy() -> None:
    network = nn.Linear(2, 2)
    model = Model(network)
    nn.init.ones_(network.weight)
    assert not torch.equal(model.ema["weight"], network.weight)
    assert not model.ema["weight"].requires_grad


def test_frozen_parameters_are_used_but_not_averaged() -> None:
    network, x = with_norm(1), some_input(1)
    network[2].weight.requires_grad_(False)
    model = Model(network)
    assert set(model.ema) == {"0.weight", "0.bias", "2.bias"}
    with torch.no_grad():
        network[2].weight.mul_(2)
    model.update_ema()
    h = normalized(x.numpy(), *statistics(x.numpy()), network[0])
    np.testing.assert_allclose(array(model(x, weights="ema")), logits(network, h), rtol=1e-10)


# ---------------------------------------------------------------- any module


def test_a_network_without_batch_norm() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, 4)).double()
    model, x = Model(network), some_input(2)
    expected = x.numpy().reshape(9, 12) @ array(network[1].weight).T + array(network[1].bias)
    for weights in ("live", "ema"):
        for stats in ("batch", "update", "running"):
            np.testing.assert_allclose(array(model(x, weights, stats)), expected, rtol=1e-12)  # type: ignore[arg-type]


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(3, 2)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(self.drop(x))


def test_dropout_is_on_in_training_passes_and_off_in_evaluations() -> None:
    network = Dropped()
    model, x = Model(network), torch.ones(200, 3)
    dense = x @ network.dense.weight.T + network.dense.bias
    for weights in ("live", "ema"):
        assert len(model(x, weights, "batch").unique(dim=0)) > 2  # type: ignore[arg-type]
        assert len(model(x, weights, "update").unique(dim=0)) > 2  # type: ignore[arg-type]
        torch.testing.assert_close(model(x, weights, "running"), dense)  # type: ignore[arg-type]


@pytest.mark.parametrize("weights", ["live", "ema"])
def test_bf16_computes_in_bf16_and_returns_float32(weights: str) -> None:
    network = with_norm(2).float()
    x = some_input(2).float()
    seen = []
    network[2].register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    found = Model(network, precision="bf16")(x, weights=weights)  # type: ignore[arg-type]
    exact = Model(network)(x)
    assert seen == [torch.bfloat16, torch.float32]
    assert found.dtype == torch.float32
    assert 0 < (found - exact).abs().max() < 0.05
    assert all(p.dtype == torch.float32 for p in network.parameters())

"""The network for features against one written here in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mixmatch import networks
from mixmatch.errors import MixMatchError
from mixmatch.networks import MLP


def forward(state: dict[str, np.ndarray], x: np.ndarray, depth: int, training: bool) -> np.ndarray:
    for i in range(depth):
        x = x @ state[f"layers.{i}.dense.weight"].T
        norm = {key: state[f"layers.{i}.norm.{key}"] for key in ("weight", "bias", "running_mean", "running_var")}
        mean, variance = (x.mean(0), x.var(0)) if training else (norm["running_mean"], norm["running_var"])
        x = (x - mean) / np.sqrt(variance + 1e-5) * norm["weight"] + norm["bias"]
        x = np.where(x > 0, x, 0.1 * x)
    return x @ state["head.weight"].T + state["head.bias"]


@pytest.mark.parametrize("training", [True, False])
def test_against_numpy(training: bool) -> None:
    torch.manual_seed(0)
    network = MLP(3, features=7, width=5, depth=2)
    for tensor in network.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand_like(tensor) + 0.5)
    state = {name: value.double().numpy().copy() for name, value in network.state_dict().items()}
    x = torch.randn(11, 7)
    out = network.train(training)(x).detach().numpy()
    np.testing.assert_allclose(out, forward(state, x.double().numpy(), 2, training), atol=1e-4)


def test_by_name() -> None:
    network = networks.build("mlp", num_classes=4, input_shape=(30,))
    # Kernels 30x256, 256x256 and 256x4; batch norm's two for each hidden unit; the head's bias.
    assert sum(p.numel() for p in network.parameters()) == 30 * 256 + 256 * 256 + 4 * 256 + 4 * 256 + 4
    assert network(torch.zeros(2, 30)).shape == (2, 4)
    assert networks.build("mlp", num_classes=2)(torch.zeros(2, 64)).shape == (2, 2)


@pytest.mark.parametrize(
    ("name", "shape", "says"),
    [
        ("mlp", (3, 32, 32), "takes features"),
        ("mlp", (0,), "takes features"),
        ("wrn-28-2", (30,), "takes images"),
        ("wrn-auto", (30,), "takes images"),
    ],
)
def test_shapes_of_the_other_kind_are_refused(name: str, shape: tuple[int, ...], says: str) -> None:
    with pytest.raises(MixMatchError, match=says):
        networks.build(name, num_classes=4, input_shape=shape)

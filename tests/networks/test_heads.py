"""Every network offers its features, and further heads are linear layers on them."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from mixmatch import networks
from mixmatch.errors import MixMatchError
from mixmatch.networks.heads import WithHeads, offers_features
from mixmatch.networks.timm_backbone import Backbone

CASES = [
    ("wrn-small", (1, 8, 8), 64),
    ("wrn-10-1", (3, 8, 8), 64),
    ("wrn-auto", (3, 8, 8), 64),
    ("cnn13-32", (3, 12, 12), 32),
    ("mlp", (7,), 256),
]


class TimmModel(nn.Module):
    """What timm's models have in common: a batch norm, the pool that ends them, and dropout before the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(2)
        self.drop = nn.Dropout(0.0)
        self.fc = nn.Linear(2, 5)

    def get_classifier(self) -> nn.Module:
        return self.fc

    def forward_features(self, x: Tensor) -> Tensor:
        maps: Tensor = self.norm(x)
        return maps

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        pooled: Tensor = self.drop(x.mean(dim=(2, 3)))
        return pooled if pre_logits else self.fc(pooled)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


def made(name: str, shape: tuple[int, ...]) -> Any:
    """A float64 network of five classes in which no number is at its neutral value."""
    torch.manual_seed(0)
    network: nn.Module
    if name == "timm":
        network = Backbone(TimmModel(), torch.tensor([0.2, 0.5]), torch.tensor([0.1, 0.25]))
    else:
        network = networks.build(name, 5, shape)
    for tensor in network.double().state_dict().values():
        if tensor.is_floating_point():
            tensor += 0.3 * torch.rand_like(tensor)
    return network


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("name", "shape", "size"), [*CASES, ("timm", (2, 4, 4), 2)])
def test_features_are_what_enters_the_last_layer(name: str, shape: tuple[int, ...], size: int, training: bool) -> None:
    network = made(name, shape).train(training)
    last = [module for module in network.modules() if isinstance(module, nn.Linear)][-1]
    entered: list[Tensor] = []
    last.register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]))
    x = torch.randn(6, *shape, dtype=torch.float64)
    logits = network(x)
    features = network.features(x)
    assert offers_features(network)
    assert features.shape == (6, network.feature_size) == (6, size)
    assert torch.equal(features, entered[0])
    assert torch.equal(network.classify(features), logits)
    by_hand = features.detach().numpy() @ last.weight.detach().numpy().T + last.bias.detach().numpy()
    np.testing.assert_allclose(logits.detach().numpy(), by_hand, rtol=1e-12)


@pytest.mark.parametrize("training", [True, False])
def test_a_head_by_hand(training: bool) -> None:
    model = WithHeads(made("mlp", (7,)), {"rotation": 4}).double().train(training)
    model.heads["rotation"].bias.data.normal_()
    numbers = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    x = np.random.default_rng(0).normal(size=(9, 7))
    h = x
    for layer in ("layers.0", "layers.1"):
        h = h @ numbers[f"{layer}.dense.weight"].T
        mean, variance = numbers[f"{layer}.norm.running_mean"], numbers[f"{layer}.norm.running_var"]
        if training:
            mean, variance = h.mean(0), h.var(0)
        h = (h - mean) / np.sqrt(variance + 1e-5) * numbers[f"{layer}.norm.weight"] + numbers[f"{layer}.norm.bias"]
        h = np.where(h > 0, h, 0.1 * h)
    given = torch.from_numpy(x)
    for head, layer in ((None, "head"), ("rotation", "heads.rotation")):
        expected = h @ numbers[f"{layer}.weight"].T + numbers[f"{layer}.bias"]
        np.testing.assert_allclose(model(given, head=head).detach().numpy(), expected, rtol=1e-9, atol=1e-11)


def test_heads_start_as_tensorflows_dense_layers() -> None:
    """Glorot normal: the variance is 2 / (in + out); a bias of zero."""
    torch.manual_seed(0)
    head = WithHeads(networks.build("mlp", 5, (7,)), {"many": 2000}).heads["many"]
    assert isinstance(head, nn.Linear)
    assert head.weight.var().item() == pytest.approx(2 / (256 + 2000), rel=0.02)
    assert not head.bias.any()


@pytest.mark.parametrize(("name", "shape", "size"), [*CASES, ("timm", (2, 4, 4), 2)])
def test_tensors_keep_their_names(name: str, shape: tuple[int, ...], size: int) -> None:
    network = made(name, shape)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    parameters = [name for name, _ in network.named_parameters()]
    model = WithHeads(network, {"rotation": 4})
    assert list(model.state_dict()) == [*before, "heads.rotation.weight", "heads.rotation.bias"]
    assert [name for name, _ in model.named_parameters()] == [
        *parameters,
        "heads.rotation.weight",
        "heads.rotation.bias",
    ]
    assert model.heads["rotation"].weight.shape == (4, size)
    assert model.network.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in model.network.state_dict().items())


@pytest.mark.parametrize(("name", "shape"), [("wrn-small", (1, 8, 8)), ("timm", (2, 4, 4))])
def test_the_network_and_its_heads_are_one(name: str, shape: tuple[int, ...]) -> None:
    """Moving, loading, copying, switching to training, and other tensors in the place of its own all reach both."""
    x = torch.randn(3, *shape, dtype=torch.float64)
    first, second = (WithHeads(made(name, shape), {"rotation": 4}).double().eval() for _ in range(2))
    for tensor in second.state_dict().values():
        if tensor.is_floating_point():
            tensor *= 1.1
    expected = [second(x, head=head) for head in (None, "rotation")]
    assert not torch.equal(first(x), expected[0])
    assert not first.network.training
    tensors = {**dict(second.named_parameters()), **dict(second.named_buffers())}
    for head, logits in zip((None, "rotation"), expected, strict=True):
        assert torch.equal(functional_call(first, tensors, (x,), {"head": head}), logits)
    twin = copy.deepcopy(first)
    first.load_state_dict(second.state_dict())
    assert torch.equal(first.network(x), expected[0])
    assert torch.equal(first(x, head="rotation"), expected[1])
    assert not torch.equal(twin(x), expected[0])
    twin.float()
    assert {value.dtype for value in twin.network.state_dict().values()} == {torch.float32, torch.int64}
    assert twin.network(x.float()).dtype == torch.float32
    assert twin.train().network.training
    assert not twin.eval().network.training


def test_gradients_reach_the_network_and_the_head() -> None:
    model = WithHeads(networks.build("mlp", 5, (7,)), {"rotation": 4, "other": 2})
    model(torch.randn(6, 7), head="rotation").square().sum().backward()
    without = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    assert without == {"head.weight", "head.bias", "heads.other.weight", "heads.other.bias"}


class Layers(nn.Module):
    """Features as a layer, as in some libraries."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Linear(3, 3)


def test_networks_that_take_no_heads() -> None:
    message = r"^network Layers offers no features for the heads rotation, other: give it .* or choose .* network=$"
    with pytest.raises(MixMatchError, match=message):
        WithHeads(Layers(), {"rotation": 4, "other": 2})
    assert not offers_features(Backbone(nn.Identity(), torch.ones(3), torch.ones(3)))
    twice = WithHeads(networks.build("mlp", 5, (7,)), {"rotation": 4})
    with pytest.raises(MixMatchError, match="unknown head 'rotaton': did you mean 'rotation'"):
        twice(torch.zeros(2, 7), head="rotaton")
    network = networks.build("mlp", 5, (7,))
    network.heads = nn.Identity()
    with pytest.raises(MixMatchError, match="has a part named 'heads'"):
        WithHeads(network, {"rotation": 4})

"""Adam with decoupled decay and SGD with Nesterov momentum against ones written here in float64, and their state."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mixmatch.settings import Settings
from mixmatch.training.optimizer import build_optimizer, learning_rate, load_optimizer_state, optimizer_state

RATE, DECAY = 0.002, 0.02
B1, B2, EPS = 0.9, 0.999, 1e-8


def network() -> nn.Sequential:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 4)).double()
    with torch.no_grad():
        for p in made.parameters():
            p.uniform_(0.5, 1.5)  # far from 0, so that decay shows
    return made


def settings(**given: float | str) -> Settings:
    return Settings(data="none", **{"learning_rate": RATE, "weight_decay": DECAY, **given})  # type: ignore[arg-type]


def gradients(module: nn.Module, step: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    return {name: rng.normal(size=p.shape) for name, p in module.named_parameters()}


def give(module: nn.Module, values: dict[str, np.ndarray]) -> None:
    for name, p in module.named_parameters():
        p.grad = torch.zeros_like(p).copy_(torch.from_numpy(values[name]))  # in the layout of p, as autograd does


class Adam:
    """The paper's: Adam, then kernels times 1 - wd * lr."""

    def __init__(self, module: nn.Module, rate: float, decay: float) -> None:
        self.p = {name: p.detach().double().numpy().copy() for name, p in module.named_parameters()}
        self.m = {name: np.zeros_like(p) for name, p in self.p.items()}
        self.v = {name: np.zeros_like(p) for name, p in self.p.items()}
        self.rate, self.decay, self.t = rate, decay, 0

    def step(self, gradient: dict[str, np.ndarray]) -> None:
        self.t += 1
        for name, g in gradient.items():
            self.m[name] = B1 * self.m[name] + (1 - B1) * g
            self.v[name] = B2 * self.v[name] + (1 - B2) * g**2
            m, v = self.m[name] / (1 - B1**self.t), self.v[name] / (1 - B2**self.t)
            # The order of decay and step is open in the official code; it matters by their product only.
            kept = 1 - self.rate * self.decay if name in ("0.weight", "3.weight") else 1.0
            self.p[name] = kept * self.p[name] - self.rate * m / (np.sqrt(v) + EPS)


@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.parametrize(("rate", "decay"), [(RATE, DECAY), (0.05, 2.0), (0.1, 0.0)])
def test_steps(steps: int, rate: float, decay: float) -> None:
    module = network()
    optimizer = build_optimizer(module, settings(learning_rate=rate, weight_decay=decay))
    expected = Adam(module, rate, decay)
    for step in range(steps):
        given = gradients(module, step)
        give(module, given)
        optimizer.step()
        expected.step(given)
    for name, p in module.named_parameters():
        np.testing.assert_allclose(p.detach().numpy(), expected.p[name], rtol=1e-10, err_msg=name)


@pytest.mark.parametrize(("rate", "decay", "momentum"), [(0.03, 5e-4, 0.9), (0.1, 0.5, 0.5), (0.1, 0.0, 0.0)])
def test_sgd_has_nesterov_momentum_and_an_l2_loss_on_kernels(rate: float, decay: float, momentum: float) -> None:
    module = network()
    given_settings = settings(optimizer="sgd", learning_rate=rate, weight_decay=decay, momentum=momentum)
    optimizer = build_optimizer(module, given_settings)
    p = {name: value.detach().numpy().copy() for name, value in module.named_parameters()}
    v = {name: np.zeros_like(value) for name, value in p.items()}
    for step in range(5):
        given = gradients(module, step)
        give(module, given)
        optimizer.step()
        for name, gradient in given.items():
            g = gradient + (decay * p[name] if name in ("0.weight", "3.weight") else 0)
            v[name] = momentum * v[name] + g
            p[name] = p[name] - rate * (g + momentum * v[name])
    for name, value in module.named_parameters():
        np.testing.assert_allclose(value.detach().numpy(), p[name], rtol=1e-10, err_msg=name)
    state = optimizer_state(module, optimizer)
    assert state.keys() == ({f"momentum_buffer.{name}" for name in p} if momentum else set())
    for name, value in state.items():
        np.testing.assert_allclose(value.numpy(), v[name.removeprefix("momentum_buffer.")], rtol=1e-10)


def test_only_kernels_decay() -> None:
    """With a gradient of zero Adam stands still, and what moves is the decay."""
    module = network()
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    optimizer = build_optimizer(module, settings(learning_rate=0.5, weight_decay=0.4))
    for p in module.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for name, p in module.named_parameters():
        factor = 0.8 if name in ("0.weight", "3.weight") else 1.0
        torch.testing.assert_close(p.detach(), factor * before[name], rtol=1e-14, atol=0)


def test_frozen_parameters_stay() -> None:
    module = network()
    module[0].weight.requires_grad_(False)
    optimizer = build_optimizer(module, settings())
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for name, p in module.named_parameters() if name != "0.weight"}


@pytest.mark.parametrize("module", [nn.Linear(3, 2, bias=False), nn.LayerNorm(4)])
def test_networks_with_only_kernels_or_none(module: nn.Module) -> None:
    optimizer = build_optimizer(module, settings())
    assert [len(group["params"]) for group in optimizer.param_groups] == [len(list(module.parameters()))]


def test_schedules() -> None:
    for step in (0, 1, 50, 99):
        assert learning_rate("constant", 0.002, step, 100) == 0.002
    assert [learning_rate("linear", 0.002, step, 100) for step in (0, 25, 99)] == pytest.approx(
        [0.002, 0.0015, 0.00002], rel=1e-12
    )
    cosine = [learning_rate("cosine", 0.002, step, 100) for step in (0, 25, 50, 75, 99)]
    half = math.sqrt(0.5)
    assert cosine == pytest.approx(
        [0.002, 0.001 * (1 + half), 0.001, 0.001 * (1 - half), 0.001 * (1 - math.cos(math.pi / 100))], rel=1e-9
    )
    fixmatch = [learning_rate("cosine-7/16", 0.03, step, 112) for step in (0, 64, 112)]  # 0, a quarter of pi, 7/16
    assert fixmatch == pytest.approx([0.03, 0.03 * half, 0.03 * math.sin(math.pi / 16)], rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("name", "kept"), [("adam", ("exp_avg", "exp_avg_sq", "step")), ("sgd", ("momentum_buffer",))], ids=["adam", "sgd"]
)
def test_state_put_back_gives_the_same_further_steps(dtype: torch.dtype, name: str, kept: tuple[str, ...]) -> None:
    straight = network().to(dtype).to(memory_format=torch.channels_last)
    optimizer = build_optimizer(straight, settings(optimizer=name))
    for step in range(3):
        give(straight, gradients(straight, step))
        optimizer.step()
    resumed = copy.deepcopy(straight)
    saved: dict[str, Tensor] = {
        name: t.detach().clone().contiguous() for name, t in optimizer_state(straight, optimizer).items()
    }
    assert set(saved) == {f"{m}.{n}" for m in kept for n, _ in straight.named_parameters()}
    again = build_optimizer(resumed, settings(optimizer=name))
    load_optimizer_state(resumed, again, saved, 3)
    for step in range(3, 6):
        for module, its in ((straight, optimizer), (resumed, again)):
            give(module, gradients(module, step))
            its.step()
    for (name, a), b in zip(straight.named_parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b), name
    after = {**optimizer_state(straight, optimizer)}
    for name, value in optimizer_state(resumed, again).items():
        assert torch.equal(value, after[name]), name


def test_a_parameter_without_a_gradient_has_taken_fewer_steps() -> None:
    """Adam's correction for the first steps goes by each parameter's own count."""
    straight = network()
    optimizer = build_optimizer(straight, settings())
    first = next(name for name, _ in straight.named_parameters())
    for step in range(4):
        given = gradients(straight, step)
        give(straight, given)
        if step != 3:
            dict(straight.named_parameters())[first].grad = None
        optimizer.step()
    state = {name: t.detach().clone() for name, t in optimizer_state(straight, optimizer).items()}
    counts = {name.removeprefix("step."): float(t) for name, t in state.items() if name.startswith("step.")}
    assert counts == {name: 1 if name == first else 4 for name, _ in straight.named_parameters()}
    resumed = copy.deepcopy(straight)
    again = build_optimizer(resumed, settings())
    load_optimizer_state(resumed, again, state, 4)
    for module, its in ((straight, optimizer), (resumed, again)):
        give(module, gradients(module, 5))
        its.step()
    for (name, a), b in zip(straight.named_parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b), name


def test_checkpoints_of_earlier_versions_have_no_counts() -> None:
    module = network()
    optimizer = build_optimizer(module, settings())
    give(module, gradients(module, 0))
    optimizer.step()
    state = {name: t for name, t in optimizer_state(module, optimizer).items() if not name.startswith("step.")}
    load_optimizer_state(module, optimizer, state, 7)
    assert {float(optimizer.state[p]["step"]) for p in module.parameters()} == {7.0}


def test_the_saved_moments_are_adams() -> None:
    module = network()
    optimizer = build_optimizer(module, settings())
    expected = Adam(module, RATE, DECAY)
    for step in range(2):
        given = gradients(module, step)
        give(module, given)
        optimizer.step()
        expected.step(given)
    state = optimizer_state(module, optimizer)
    for name in expected.p:
        np.testing.assert_allclose(state[f"exp_avg.{name}"].numpy(), expected.m[name], rtol=1e-12)
        np.testing.assert_allclose(state[f"exp_avg_sq.{name}"].numpy(), expected.v[name], rtol=1e-12)


def test_before_the_first_step_there_is_no_state() -> None:
    module = network()
    optimizer = build_optimizer(module, settings())
    assert optimizer_state(module, optimizer) == {}
    load_optimizer_state(module, optimizer, {}, 0)
    assert not optimizer.state

"""The baselines' steps against ones written here in float64 from the official code's fact sheet, section 4."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from mixmatch.errors import MixMatchError
from mixmatch.methods import METHODS, Batch, Method, Progress, build
from mixmatch.methods.mixmatch import MixMatch
from mixmatch.methods.vat import VAT
from mixmatch.training.model import Model

B, L, FEATURES, HIDDEN = 7, 4, 12, 6
EPS, MOMENTUM = 1e-3, 0.3
Parameters = dict[str, Tensor]


# ---------------------------------------------------------------- a network, twice


def small_network() -> nn.Sequential:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Flatten(),
        nn.Linear(FEATURES, HIDDEN),
        nn.BatchNorm1d(HIDDEN, eps=EPS, momentum=MOMENTUM),
        nn.LeakyReLU(0.1),
        nn.Linear(HIDDEN, L),
    ).double()
    with torch.no_grad():  # nothing at a value that would hide a mistake
        network[2].weight.uniform_(0.5, 1.5)
        network[2].bias.uniform_(-0.5, 0.5)
        network[2].running_mean.uniform_(-1, 1)
        network[2].running_var.uniform_(0.5, 2)
        network[4].weight.mul_(3)
    return network


def with_other_average(network: nn.Module) -> Model:
    """A model whose averaged weights are far from the live ones, so that taking the one for the other shows."""
    model = Model(network)
    for name, value in model.ema.items():
        model.ema[name] = 0.1 - 1.3 * value
    return model


def hidden(p: Parameters, x: Tensor) -> Tensor:
    return x.reshape(len(x), -1) @ p["1.weight"].T + p["1.bias"]


def logits_of(p: Parameters, x: Tensor) -> Tensor:
    """The network above by hand, normalizing with the statistics of this batch."""
    h = hidden(p, x)
    mean = h.sum(0) / len(h)
    variance = ((h - mean) ** 2).sum(0) / len(h)
    h = (h - mean) / torch.sqrt(variance + EPS) * p["2.weight"] + p["2.bias"]
    return torch.where(h > 0, h, 0.1 * h) @ p["4.weight"].T + p["4.bias"]


def predict(p: Parameters, x: Tensor) -> Tensor:
    e = torch.exp(logits_of(p, x))
    return e / e.sum(1, keepdim=True)


def cross_entropy(target: Tensor, prediction: Tensor) -> Tensor:
    return -sum((target[i] * torch.log(prediction[i])).sum() for i in range(len(target))) / len(target)


def squares(target: Tensor, prediction: Tensor) -> Tensor:
    return ((target - prediction) ** 2).sum() / (len(target) * L)


def kl(a: Tensor, b: Tensor) -> Tensor:
    return (a * (torch.log(a) - torch.log(b))).sum() / len(a)


def mixed_with_reversed(a: Tensor, lam: Tensor, keep_order: bool) -> Tensor:
    rows = []
    for i in range(len(a)):
        weight = max(lam[i].item(), 1 - lam[i].item()) if keep_order else lam[i].item()
        rows.append(weight * a[i] + (1 - weight) * a[len(a) - 1 - i])
    return torch.stack(rows)


def unit_rows(d: Tensor) -> Tensor:
    return torch.stack([row / torch.sqrt((row**2).sum()) for row in d])


# ---------------------------------------------------------------- the steps, from the fact sheet


class Losses(NamedTuple):
    loss: Tensor
    loss_x: Tensor
    loss_u: Tensor
    labeled: Tensor
    """What the labeled pass was given: it alone updates the running statistics."""


class Given(NamedTuple):
    live: Parameters
    ema: Parameters
    batch: Batch
    draws: dict[str, Tensor]
    settings: dict[str, Any]
    ramp: float
    stop: bool
    """Whether targets are constants."""

    def constant(self, target: Tensor) -> Tensor:
        return target.detach() if self.stop else target


def supervised(g: Given) -> Losses:
    s = g.settings.get("smoothing", 0.0)
    target = torch.tensor(
        [[1 - s + s / L if hot else s / L for hot in row] for row in g.batch.y.tolist()], dtype=torch.float64
    )
    loss = cross_entropy(target, predict(g.live, g.batch.x))
    return Losses(loss, loss, torch.zeros(()), g.batch.x)


def supervised_mixup(g: Given) -> Losses:
    keep = g.settings.get("keep_order", True)
    x, y = (mixed_with_reversed(a, g.draws["lam"], keep) for a in (g.batch.x, g.batch.y))
    loss = cross_entropy(y, predict(g.live, x))
    return Losses(loss, loss, torch.zeros(()), x)


def pi_model(g: Given) -> Losses:
    loss_x = cross_entropy(g.batch.y, predict(g.live, g.batch.x))
    loss_u = squares(g.constant(predict(g.live, g.batch.u[0])), predict(g.live, g.batch.u[1]))
    return Losses(loss_x + g.settings["consistency_weight"] * g.ramp * loss_u, loss_x, loss_u, g.batch.x)


def mean_teacher(g: Given) -> Losses:
    loss_x = cross_entropy(g.batch.y, predict(g.live, g.batch.x))
    loss_u = squares(g.constant(predict(g.ema, g.batch.u[0])), predict(g.live, g.batch.u[1]))
    return Losses(loss_x + g.settings["consistency_weight"] * g.ramp * loss_u, loss_x, loss_u, g.batch.x)


def pseudo_label(g: Given) -> Losses:
    loss_x = cross_entropy(g.batch.y, predict(g.live, g.batch.x))
    prediction = predict(g.live, g.batch.u[0])
    largest = prediction.max(1).values
    above = [value > g.settings["threshold"] for value in largest.tolist()]
    assert 0 < sum(above) < B
    each = -torch.log(largest)
    if g.settings["masking"] == "official":
        loss_u = each.sum() / B * (sum(above) / B)
    else:
        loss_u = sum(each[i] for i in range(B) if above[i]) / B
    return Losses(loss_x + g.settings["consistency_weight"] * g.ramp * loss_u, loss_x, loss_u, g.batch.x)


def mixup(g: Given) -> Losses:
    keep = g.settings.get("keep_order", True)
    x, y = (mixed_with_reversed(a, g.draws["lam_x"], keep) for a in (g.batch.x, g.batch.y))
    loss_x = cross_entropy(y, predict(g.live, x))
    q = g.constant(predict(g.live, g.batch.u[0]))
    u, q = (mixed_with_reversed(a, g.draws["lam_u"], keep) for a in (g.batch.u[0], q))
    loss_u = cross_entropy(q, predict(g.live, u))
    return Losses(loss_x + loss_u, loss_x, loss_u, x)


def adversarial(g: Given) -> Tensor:
    fixed = {name: value.detach() for name, value in g.live.items()}
    u, clean = g.batch.u[0], predict(fixed, g.batch.u[0])
    d = (g.settings["xi"] * unit_rows(g.draws["noise"])).requires_grad_()
    (gradient,) = torch.autograd.grad(kl(clean, predict(fixed, u + d)), d)
    return g.settings.get("epsilon", 6.0) * unit_rows(gradient)


def vat(g: Given) -> Losses:
    loss_x = cross_entropy(g.batch.y, predict(g.live, g.batch.x))
    clean, perturbed = predict(g.live, g.batch.u[0]), predict(g.live, g.batch.u[0] + adversarial(g))
    fixed = g.constant(clean)
    loss_u = kl(fixed, perturbed) if g.settings.get("divergence") == "paper" else kl(perturbed, fixed)
    entropy = -(clean * torch.log(clean)).sum() / B
    loss = loss_x + g.settings.get("vat_weight", 0.3) * g.ramp * loss_u
    return Losses(loss + g.settings.get("entropy_weight", 0.06) * entropy, loss_x, loss_u, g.batch.x)


def ict(g: Given) -> Losses:
    loss_x = cross_entropy(g.batch.y, predict(g.live, g.batch.x))
    q = g.constant(predict(g.ema, g.batch.u[0]))
    u, q = (mixed_with_reversed(a, g.draws["lam"], True) for a in (g.batch.u[0], q))
    loss_u = squares(q, predict(g.live, u))
    return Losses(loss_x + g.settings["consistency_weight"] * g.ramp * loss_u, loss_x, loss_u, g.batch.x)


CASES: list[tuple[str, Callable[[Given], Losses], dict[str, Any]]] = [
    ("supervised", supervised, {}),
    ("supervised", supervised, {"smoothing": 0.1}),
    ("supervised-mixup", supervised_mixup, {}),
    ("supervised-mixup", supervised_mixup, {"keep_order": False}),
    ("pi-model", pi_model, {"consistency_weight": 20.0}),
    ("mean-teacher", mean_teacher, {"consistency_weight": 50.0}),
    ("pseudo-label", pseudo_label, {"consistency_weight": 2.0, "threshold": 0.8, "masking": "official"}),
    ("pseudo-label", pseudo_label, {"consistency_weight": 2.0, "threshold": 0.8, "masking": "intended"}),
    ("mixup", mixup, {}),
    ("mixup", mixup, {"keep_order": False}),
    ("vat", vat, {"xi": 0.01}),
    ("vat", vat, {"xi": 0.01, "divergence": "paper"}),
    ("vat", vat, {"xi": 0.01, "epsilon": 0.7, "vat_weight": 0.9, "entropy_weight": 0.5}),
    ("ict", ict, {"consistency_weight": 1000.0}),
]
NAMES = [" ".join([name, *(f"{key}={value}" for key, value in settings.items())]) for name, _, settings in CASES]
RAMPED = [
    ("pi-model", {"consistency_weight": 20.0}, 20.0),
    ("mean-teacher", {"consistency_weight": 50.0}, 50.0),
    ("pseudo-label", {"consistency_weight": 2.0, "threshold": 0.5}, 2.0),
    ("vat", {}, 0.3),
    ("ict", {"consistency_weight": 1000.0}, 1000.0),
]


def some_batch(views: int = 2) -> tuple[Batch, dict[str, Tensor]]:
    """A batch and draws for any method. Beyond the views that are asked for there is nothing to be read."""
    rng = np.random.default_rng(11)
    x, u, noise = (torch.from_numpy(rng.uniform(-1, 1, (*shape, 3, 2, 2))) for shape in ((B,), (2, B), (B,)))
    u[views:] = math.nan
    y = torch.eye(L, dtype=torch.float64)[torch.from_numpy(rng.integers(0, L, B))]
    lams = {name: torch.from_numpy(rng.beta(0.75, 0.75, B)) for name in ("lam", "lam_x", "lam_u")}
    return Batch(x, y, u, torch.arange(len(x))), {**lams, "noise": noise}


def at(step: float, total: int = 1000) -> Progress:
    return Progress(torch.tensor(step, dtype=torch.float64), total)


def reference(
    compute: Callable[[Given], Losses],
    model: Model,
    batch: Batch,
    draws: dict[str, Tensor],
    settings: dict[str, Any],
    ramp: float,
    stop: bool = True,
    live_teaches: bool = False,
) -> tuple[Losses, dict[str, Tensor]]:
    """The losses and the gradients of the live weights."""
    live = {name: value.detach().clone().requires_grad_() for name, value in model.network.named_parameters()}
    ema = live if live_teaches else {name: value.detach().clone() for name, value in model.ema.items()}
    losses = compute(Given(live, ema, batch, draws, settings, ramp, stop))
    return losses, dict(zip(live, torch.autograd.grad(losses.loss, list(live.values())), strict=True))


# ---------------------------------------------------------------- a step of each


@pytest.mark.parametrize(("name", "compute", "settings"), CASES, ids=NAMES)
def test_a_step_is_the_official_codes(name: str, compute: Any, settings: dict[str, Any]) -> None:
    network, method = small_network(), build(name, settings)
    batch, draws = some_batch(len(method.views))
    model = with_other_average(network)
    ema = {key: value.clone() for key, value in model.ema.items()}
    before = [buffer.clone() for buffer in (network[2].running_mean, network[2].running_var)]
    expected, gradients = reference(compute, model, batch, draws, settings, ramp=100 / 400)

    loss, metrics, _ = method.loss(model, batch, draws, at(100), {})
    loss.backward()  # type: ignore[no-untyped-call]
    close = {"rtol": 1e-6 if name == "vat" else 1e-10, "atol": 1e-12}
    torch.testing.assert_close(loss.detach(), expected.loss.detach(), **close)
    torch.testing.assert_close(metrics["loss"].detach(), expected.loss.detach(), **close)
    if len(method.views):
        torch.testing.assert_close(metrics["loss_x"].detach(), expected.loss_x.detach(), **close)
        torch.testing.assert_close(metrics["loss_u"].detach(), expected.loss_u.detach(), **close)
        assert expected.loss_u > 1e-2
    largest = max(gradient.abs().max().item() for gradient in gradients.values())
    for key, parameter in network.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[key], rtol=close["rtol"], atol=close["rtol"] * largest)

    h = hidden(dict(network.named_parameters()), expected.labeled).detach()
    for now, was, of_batch in zip(
        (network[2].running_mean, network[2].running_var), before, (h.mean(0), h.var(0)), strict=True
    ):
        torch.testing.assert_close(now, (1 - MOMENTUM) * was + MOMENTUM * of_batch, rtol=1e-12, atol=1e-12)
    assert network[2].num_batches_tracked == 1
    assert all(torch.equal(model.ema[key], ema[key]) for key in ema)


@pytest.mark.parametrize(("name", "compute", "settings"), [CASES[i] for i in (4, 8, 10)], ids=["pi", "mixup", "vat"])
def test_gradients_are_one_sided(name: str, compute: Any, settings: dict[str, Any]) -> None:
    """The gradients above are those of constant targets; here: targets that are not would give others."""
    model, (batch, draws) = with_other_average(small_network()), some_batch()
    one, constant = reference(compute, model, batch, draws, settings, ramp=1.0)
    two, flowing = reference(compute, model, batch, draws, settings, ramp=1.0, stop=False)
    assert one.loss.item() == pytest.approx(two.loss.item(), rel=1e-12)
    assert max((constant[key] - flowing[key]).abs().max() for key in constant) > 1e-2


@pytest.mark.parametrize(("name", "compute", "settings"), [CASES[5], CASES[13]], ids=["mean-teacher", "ict"])
def test_live_weights_would_teach_otherwise(name: str, compute: Any, settings: dict[str, Any]) -> None:
    model, (batch, draws) = with_other_average(small_network()), some_batch()
    averaged, _ = reference(compute, model, batch, draws, settings, ramp=1.0)
    live, _ = reference(compute, model, batch, draws, settings, ramp=1.0, live_teaches=True)
    assert abs(averaged.loss_u - live.loss_u) > 1e-2


@pytest.mark.parametrize(
    ("name", "views", "passes"),
    [
        ("supervised", 0, [("x", "live", "update")]),
        ("supervised-mixup", 0, [("mixed", "live", "update")]),
        ("pi-model", 2, [("x", "live", "update"), ("u0", "live", "batch"), ("u1", "live", "batch")]),
        ("mean-teacher", 2, [("x", "live", "update"), ("u0", "ema", "batch"), ("u1", "live", "batch")]),
        ("pseudo-label", 1, [("x", "live", "update"), ("u0", "live", "batch")]),
        ("mixup", 1, [("u0", "live", "batch"), ("mixed", "live", "update"), ("mixed", "live", "batch")]),
        ("ict", 1, [("x", "live", "update"), ("u0", "ema", "batch"), ("mixed", "live", "batch")]),
    ],
)
def test_the_passes_each_makes(name: str, views: int, passes: list[tuple[str, str, str]]) -> None:
    """Each on a batch of its own, and nothing normalizes with running statistics."""
    batch, draws = some_batch()
    known = {"x": batch.x, "u0": batch.u[0], "u1": batch.u[1]}
    seen = []

    def model(x: Tensor, weights: str = "live", stats: str = "batch", full_precision: bool = False) -> Tensor:
        assert len(x) == B
        seen.append((next((key for key, value in known.items() if torch.equal(x, value)), "mixed"), weights, stats))
        return x.flatten(1)[:, :L]

    method = build(name, {})
    method.loss(model, batch, draws, at(0), {})
    assert sorted(seen) == sorted(passes)
    assert len(method.views) == views
    assert not method.noise


def test_defaults_are_the_official_flags() -> None:
    assert build("pi-model", {}) == METHODS["pi-model"](consistency_weight=10.0, warmup=0.4)  # type: ignore[call-arg]
    for name, expected in {
        "supervised": {"smoothing": 0.0},
        "supervised-mixup": {"alpha": 0.5, "keep_order": True},
        "mean-teacher": {"consistency_weight": 50.0, "warmup": 0.4},
        "pseudo-label": {"consistency_weight": 1.0, "threshold": 0.95, "masking": "official", "warmup": 0.4},
        "mixup": {"keep_order": True},
        "vat": {"vat_weight": 0.3, "epsilon": 6.0, "xi": 1e-6, "entropy_weight": 0.06, "divergence": "official"},
        "ict": {"consistency_weight": 50.0, "alpha": 0.5, "warmup": 0.4},
    }.items():
        method = build(name, {})
        assert {key: getattr(method, key) for key in expected} == expected


# ---------------------------------------------------------------- the ramp


def unlabeled_weight(method: Method, step: float, total: int) -> float:
    model, (batch, draws) = with_other_average(small_network()), some_batch()
    loss, metrics, _ = method.loss(model, batch, draws, at(step, total), {})
    assert metrics["loss_u"] > 1e-3
    rest = metrics["loss_x"] + 0.06 * metrics.get("entropy", torch.zeros(()))
    return ((loss - rest) / metrics["loss_u"]).item()


@pytest.mark.parametrize(("name", "settings", "full"), RAMPED, ids=[name for name, _, _ in RAMPED])
@pytest.mark.parametrize(
    ("step", "total", "part"),
    [
        (0, 1000, 0.0),
        (1, 1000, 1 / 400),
        (200, 1000, 0.5),
        (399, 1000, 0.9975),
        (400, 1000, 1.0),
        (1000, 1000, 1.0),
        (200, 2000, 0.25),
        (209715, 2**20, 209715 / 419430.4),
    ],
)
def test_the_weight_rises_over_40_percent_of_the_run(
    name: str, settings: dict[str, Any], full: float, step: int, total: int, part: float
) -> None:
    assert unlabeled_weight(build(name, settings), step, total) == pytest.approx(part * full, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("name", "settings", "full"), RAMPED, ids=[name for name, _, _ in RAMPED])
def test_another_ramp_or_none(name: str, settings: dict[str, Any], full: float) -> None:
    half = build(name, {**settings, "warmup": 1.0})
    assert unlabeled_weight(half, 500, 1000) == pytest.approx(full / 2, rel=1e-9)
    assert unlabeled_weight(build(name, {**settings, "warmup": 0.0}), 0, 1000) == pytest.approx(full, rel=1e-9)


def test_mixup_has_weight_1_from_the_first_step() -> None:
    assert [unlabeled_weight(build("mixup", {}), step, 1000) for step in (0, 1, 900)] == pytest.approx([1, 1, 1])


@pytest.mark.parametrize("step", [0, 400])
def test_vats_entropy_has_no_ramp(step: int) -> None:
    network, (batch, draws) = small_network(), some_batch(1)
    prediction = predict(dict(network.named_parameters()), batch.u[0]).detach().numpy()
    expected = stats.entropy(prediction, axis=1).mean()
    loss, metrics, _ = VAT().loss(Model(network), batch, draws, at(step), {})
    adversarial_part = 0.3 * (step > 0) * metrics["loss_u"]
    assert metrics["entropy"].item() == pytest.approx(expected, rel=1e-12)
    assert (loss - metrics["loss_x"] - adversarial_part).item() == pytest.approx(0.06 * expected, rel=1e-9)


# ---------------------------------------------------------------- pseudo-labels by hand


@pytest.mark.parametrize(
    ("threshold", "masking", "expected"),
    [
        # Rows predict 0.9, 0.6, 0.5 for their likeliest class.
        (0.7, "official", (-math.log(0.9) - math.log(0.6) - math.log(0.5)) / 3 * (1 / 3)),
        (0.7, "intended", -math.log(0.9) / 3),
        (0.55, "official", (-math.log(0.9) - math.log(0.6) - math.log(0.5)) / 3 * (2 / 3)),
        (0.55, "intended", (-math.log(0.9) - math.log(0.6)) / 3),
        (0.5, "official", (-math.log(0.9) - math.log(0.6) - math.log(0.5)) / 3 * (2 / 3)),  # 0.5 is not above 0.5
        (0.5, "intended", (-math.log(0.9) - math.log(0.6)) / 3),
        (0.99, "official", 0.0),
        (0.99, "intended", 0.0),
        (0.0, "intended", (-math.log(0.9) - math.log(0.6) - math.log(0.5)) / 3),
    ],
)
def test_pseudo_labels_by_hand(threshold: float, masking: str, expected: float) -> None:
    logits = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.5, 0.5]], dtype=torch.float64).log()

    def model(x: Tensor, **_: Any) -> Tensor:
        return logits

    batch = Batch(
        torch.zeros(3, 1, 1, 1),
        torch.eye(2, dtype=torch.float64)[[0, 1, 0]],
        torch.zeros(1, 3, 1, 1, 1),
        torch.arange(3),
    )
    method = build("pseudo-label", {"threshold": threshold, "masking": masking})
    _, metrics, _ = method.loss(model, batch, {}, at(1000), {})  # type: ignore[arg-type]
    assert metrics["loss_u"].item() == pytest.approx(expected, rel=1e-12)
    assert metrics["confidence"].item() == pytest.approx((0.9 + 0.6 + 0.5) / 3)


# ---------------------------------------------------------------- VAT's perturbation


def test_the_perturbation_is_one_power_iteration() -> None:
    """The divergence is d' H d / 2 near 0, so its gradient at a small d is H d, with H from the Jacobian of logits:
    the sum over rows of J' (diag(p) - p p') J / B."""
    network, (batch, draws) = small_network(), some_batch(1)
    p = {name: value.detach() for name, value in network.named_parameters()}
    u = batch.u[0]
    J = torch.autograd.functional.jacobian(lambda images: logits_of(p, images), u).reshape(B, L, B * FEATURES)
    H = torch.zeros(B * FEATURES, B * FEATURES, dtype=torch.float64)
    for row, prediction in enumerate(predict(p, u)):
        H += J[row].T @ (torch.diag(prediction) - torch.outer(prediction, prediction)) @ J[row] / B
    expected = (H @ unit_rows(draws["noise"]).reshape(-1)).reshape(B, FEATURES)

    for xi in (1e-6, 1e-4):
        found = VAT(xi=xi).perturbation(Model(network), u, draws["noise"])
        assert found.shape == u.shape
        assert torch.cosine_similarity(found.reshape(B, -1), expected).min() > 0.999999
    start = torch.cosine_similarity(draws["noise"].reshape(B, -1), expected)
    assert start.max() < 0.9  # it is not the noise that is found again


@pytest.mark.parametrize("epsilon", [6.0, 0.25])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_images_perturbation_has_length_epsilon(epsilon: float, dtype: torch.dtype) -> None:
    network, (batch, draws) = small_network().to(dtype), some_batch(1)
    noise = draws["noise"].to(dtype) * torch.logspace(-3, 3, B, dtype=dtype).reshape(B, 1, 1, 1)
    found = VAT(epsilon=epsilon).perturbation(Model(network), batch.u[0].to(dtype), noise)
    lengths = found.double().square().sum((1, 2, 3)).sqrt()
    torch.testing.assert_close(lengths, torch.full((B,), epsilon, dtype=torch.float64), rtol=2e-6, atol=0)
    assert not found.requires_grad


def test_rows_of_no_noise_are_safe() -> None:
    network, (batch, draws) = small_network().float(), some_batch(1)
    batch = Batch(*(part.float() if part.is_floating_point() else part for part in batch))
    some = draws["noise"].float()
    some[2] = 0
    for noise in (some, torch.zeros_like(some)):
        loss, metrics, _ = VAT().loss(Model(network), batch, {"noise": noise}, at(400), {})
        loss.backward()  # type: ignore[no-untyped-call]
        assert all(value.isfinite() for value in metrics.values())
        assert all(parameter.grad.isfinite().all() for parameter in network.parameters())
        assert VAT().perturbation(Model(network), batch.u[0], noise).isfinite().all()


def test_a_network_that_does_not_look_has_no_worst_direction() -> None:
    def model(x: Tensor, **_: Any) -> Tensor:
        return 0 * x.flatten(1)[:, :L]

    found = VAT().perturbation(model, torch.ones(3, 1, 2, 2), torch.ones(3, 1, 2, 2))
    assert torch.equal(found, torch.zeros(3, 1, 2, 2))


def test_vat_needs_noise_and_full_precision_for_the_search_alone() -> None:
    network, (batch, draws) = small_network(), some_batch(1)
    method, live = VAT(), Model(network)
    assert method.noise
    assert method.draw(np.random.default_rng(0), B) == {}
    with pytest.raises(KeyError, match="noise"):
        method.loss(live, batch, {}, at(0), {})
    seen = []

    def model(x: Tensor, weights: str = "live", stats: str = "batch", full_precision: bool = False) -> Tensor:
        seen.append((weights, stats, full_precision))
        return live(x, weights, stats, full_precision)  # type: ignore[arg-type]

    method.loss(model, batch, draws, at(0), {})
    assert sorted(seen) == sorted(
        [("live", "update", False), *[("live", "batch", False)] * 2, *[("live", "batch", True)] * 2]
    )


# ---------------------------------------------------------------- draws


@pytest.mark.parametrize(
    ("name", "keys"), [("supervised-mixup", ["lam"]), ("mixup", ["lam_x", "lam_u"]), ("ict", ["lam"])]
)
@pytest.mark.parametrize("alpha", [0.25, 0.75])
def test_one_lambda_a_row_from_beta(name: str, keys: list[str], alpha: float) -> None:
    method, rng = build(name, {"alpha": alpha}), np.random.default_rng(3)
    drawn = [method.draw(rng, 64) for _ in range(50)]
    for each in drawn:
        assert list(each) == keys
        assert all(each[key].shape == (64,) and each[key].dtype == np.float32 for key in keys)
    lam = np.concatenate([each[key] for each in drawn for key in keys]).astype(np.float64)
    assert len(np.unique(lam)) > 0.95 * len(lam)  # near 0 and 1 float32 has few numbers
    assert stats.kstest(lam, stats.beta(alpha, alpha).cdf).pvalue > 0.01
    assert stats.kstest(lam, stats.beta(2 * alpha, 2 * alpha).cdf).pvalue < 1e-6
    again = method.draw(np.random.default_rng(3), 64)
    assert all(np.array_equal(again[key], drawn[0][key]) for key in keys)


@pytest.mark.parametrize("name", ["supervised", "pi-model", "mean-teacher", "pseudo-label", "vat"])
def test_methods_without_draws(name: str) -> None:
    assert build(name, {}).draw(np.random.default_rng(0), 64) == {}


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("pi-model", {"consistency_weight": -1}, "consistency_weight=-1 must be a number of at least 0"),
        ("mean-teacher", {"warmup": 1.5}, "warmup=1.5 must be a number between 0 and 1"),
        ("pseudo-label", {"threshold": 1.1}, "threshold=1.1 must be a number between 0 and 1"),
        ("pseudo-label", {"masking": "none"}, "masking='none' must be one of official, intended"),
        ("vat", {"xi": 0}, "xi=0 must be a number above 0"),
        ("vat", {"epsilon": 0.0}, "epsilon=0.0 must be a number above 0"),
        ("vat", {"divergence": "js"}, "divergence='js' must be one of official, paper"),
        ("mixup", {"alpha": 0}, "alpha=0 must be a number above 0"),
        ("mixup", {"keep_order": 1}, "keep_order=1 must be true or false"),
        ("ict", {"alpha": math.nan}, "alpha=nan must be a number above 0"),
        ("supervised", {"smoothing": 2}, "smoothing=2 must be a number between 0 and 1"),
        ("ict", {"lambda_u": 75}, "unknown setting 'lambda_u' of method 'ict'"),
    ],
)
def test_wrong_settings_are_named(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(MixMatchError) as caught:
        build(name, settings)
    assert str(caught.value).startswith(message)


# ---------------------------------------------------------------- MixMatch's ablations


@pytest.mark.parametrize("K", [1, 2, 3])
@pytest.mark.parametrize("mix", ["all", "separate", "labeled", "unlabeled", "none"])
def test_who_is_mixed_with_whom(mix: Any, K: int) -> None:
    """In many draws: every row is somebody's partner once, kinds meet only in `all`, lambda is 1 where none mixes."""
    rng, rows, crossings = np.random.default_rng(K), (K + 1) * 16, 0
    for _ in range(20):
        drawn = MixMatch(K=K, mix=mix).draw(rng, 16)
        lam, perm = drawn["lam"], drawn["perm"]
        assert lam.shape == perm.shape == (rows,)
        assert lam.dtype == np.float32
        assert sorted(perm) == list(range(rows))
        crossings += int(((perm < 16) != (np.arange(rows) < 16)).sum())
        assert ((lam[:16] == 1).all(), (lam[16:] == 1).all()) == {
            "all": (False, False),
            "separate": (False, False),
            "labeled": (False, True),
            "unlabeled": (True, False),
            "none": (True, True),
        }[mix]
    assert (crossings > 0) == (mix == "all")


def without_mixing(p: Parameters, guesser: Parameters, batch: Batch) -> tuple[Tensor, Tensor]:
    """Both losses of fused MixMatch where no row is mixed: T = 0.5 squares the average."""
    K = len(batch.u)
    guesses = predict(guesser, torch.cat(list(batch.u))).detach().reshape(K, B, L)
    q = guesses.mean(0) ** 2
    q = q / q.sum(1, keepdim=True)
    prediction = predict(p, torch.cat([batch.x, *batch.u]))
    return cross_entropy(batch.y, prediction[:B]), ((q - prediction[B:].reshape(K, B, L)) ** 2).mean()


@pytest.mark.parametrize("guess_weights", ["live", "ema"])
def test_without_mixup(guess_weights: Any) -> None:
    network, (batch, _) = small_network(), some_batch()
    model = with_other_average(network)
    live = {name: value.detach() for name, value in network.named_parameters()}
    method = MixMatch(mix="none", passes="fused", guess_weights=guess_weights)
    draws = {name: torch.from_numpy(value) for name, value in method.draw(np.random.default_rng(0), B).items()}
    expected_x, expected_u = without_mixing(live, model.ema if guess_weights == "ema" else live, batch)
    other = without_mixing(live, live if guess_weights == "ema" else model.ema, batch)[1]
    _, metrics, _ = method.loss(model, batch, draws, at(0), {})
    assert metrics["loss_x"].item() == pytest.approx(expected_x.item(), rel=1e-10)
    assert metrics["loss_u"].item() == pytest.approx(expected_u.item(), rel=1e-10)
    assert abs(other - expected_u) > 1e-3

"""MixMatch's step against one written here in float64 from the official code's fact sheet, and the methods by name."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from mixmatch import methods
from mixmatch.errors import MixMatchError
from mixmatch.methods import METHODS, Batch, Progress, build
from mixmatch.methods.mixmatch import MixMatch
from mixmatch.methods.supervised import Supervised
from mixmatch.training.model import Model

B, L, FEATURES, HIDDEN = 7, 4, 12, 6
EPS, MOMENTUM = 1e-3, 0.3


# ---------------------------------------------------------------- the reference


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
        network[4].weight.mul_(6)
    return network


class Pass(NamedTuple):
    logits: Tensor
    mean: Tensor
    variance: Tensor
    """Of the batch, with n - 1: what goes into the running statistics."""


def forward(p: dict[str, Tensor], x: Tensor) -> Pass:
    """The network above by hand, normalizing with the statistics of this batch."""
    h = x.reshape(len(x), -1) @ p["1.weight"].T + p["1.bias"]
    n = len(h)
    mean = h.sum(0) / n
    variance = ((h - mean) ** 2).sum(0) / n
    h = (h - mean) / torch.sqrt(variance + EPS) * p["2.weight"] + p["2.bias"]
    h = torch.where(h > 0, h, 0.1 * h)
    return Pass(h @ p["4.weight"].T + p["4.bias"], mean.detach(), (variance * n / (n - 1)).detach())


def softmax(logits: Tensor) -> Tensor:
    e = torch.exp(logits)
    return e / e.sum(1, keepdim=True)


def swapped(batches: list[list[Tensor]]) -> list[list[Tensor]]:
    """Group i of the first batch for group i of batch i; B = 7 cut in 2: 3, 4; in 3: 2, 2, 3; in 4: 1, 2, 2, 2."""
    starts = {2: [0, 3, 7], 3: [0, 2, 4, 7], 4: [0, 1, 3, 5, 7]}[len(batches)]
    result = [list(batch) for batch in batches]
    for i in range(1, len(batches)):
        for row in range(starts[i], starts[i + 1]):
            result[0][row], result[i][row] = batches[i][row], batches[0][row]
    return result


class Step(NamedTuple):
    loss_x: Tensor
    loss_u: Tensor
    loss: Tensor
    confidence: Tensor
    gradients: dict[str, Tensor]
    running_mean: Tensor
    running_var: Tensor


def reference(
    network: nn.Module,
    batch: Batch,
    lam: Tensor,
    perm: Tensor,
    fused: bool,
    T: float,
    weight: float,
    stop: bool = True,
    guess_with: dict[str, Tensor] | None = None,
) -> Step:
    """One step: fact sheet, section 3, items 2 to 7. `stop` is the stop-gradient on the guesses."""
    p = {name: value.detach().clone().requires_grad_() for name, value in network.named_parameters()}
    guesser = guess_with or p
    K = len(batch.u)

    if fused:
        guesses = softmax(forward(guesser, torch.cat(list(batch.u))).logits)
        average = sum(guesses[k * B : (k + 1) * B] for k in range(K)) / K
    else:
        average = sum(softmax(forward(guesser, batch.u[k]).logits) for k in range(K)) / K
    q = average ** (1 / T)
    q = q / q.sum(1, keepdim=True)
    if stop:
        q = q.detach()

    images = [*batch.x, *(image for view in batch.u for image in view)]
    targets = [*batch.y, *(row for _ in range(K) for row in q)]
    mixed_images, mixed_targets = [], []
    for i in range((K + 1) * B):
        weight_i, j = max(lam[i].item(), 1 - lam[i].item()), int(perm[i])
        mixed_images.append(weight_i * images[i] + (1 - weight_i) * images[j])
        mixed_targets.append(weight_i * targets[i] + (1 - weight_i) * targets[j])

    if fused:
        first = forward(p, torch.stack(mixed_images))
        logits = first.logits
    else:
        batches = swapped([mixed_images[k * B : (k + 1) * B] for k in range(K + 1)])
        passes = [forward(p, torch.stack(rows)) for rows in batches]
        first = passes[0]
        logits = torch.stack([row for rows in swapped([list(each.logits) for each in passes]) for row in rows])

    loss_x = loss_u = torch.zeros((), dtype=torch.float64)
    for i, (row, target) in enumerate(zip(logits, mixed_targets, strict=True)):
        prediction = softmax(row[None])[0]
        if i < B:
            loss_x = loss_x - (target * torch.log(prediction)).sum() / B
        else:
            loss_u = loss_u + ((target - prediction) ** 2).sum() / (K * B * L)
    loss = loss_x + weight * loss_u
    gradients = dict(zip(p, torch.autograd.grad(loss, list(p.values())), strict=True))
    norm = network[2]  # type: ignore[index]
    return Step(
        loss_x,
        loss_u,
        loss,
        q.max(1).values.mean(),
        gradients,
        (1 - MOMENTUM) * norm.running_mean + MOMENTUM * first.mean,
        (1 - MOMENTUM) * norm.running_var + MOMENTUM * first.variance,
    )


def random_batch(K: int) -> tuple[Batch, dict[str, Tensor]]:
    rng = np.random.default_rng(K)

    def images(*shape: int) -> Tensor:
        return torch.from_numpy(rng.uniform(-1, 1, (*shape, 3, 2, 2)))

    y = torch.eye(L, dtype=torch.float64)[torch.from_numpy(rng.integers(0, L, B))]
    rows = (K + 1) * B
    draws = {"lam": torch.from_numpy(rng.beta(0.75, 0.75, rows)), "perm": torch.from_numpy(rng.permutation(rows))}
    return Batch(images(B), y, images(K, B), torch.arange(B)), draws


def at(step: float, total: int = 100_000) -> Progress:
    return Progress(torch.tensor(step, dtype=torch.float64), total)


# ---------------------------------------------------------------- the step


@pytest.mark.parametrize("K", [1, 2, 3])
@pytest.mark.parametrize("passes", ["official", "fused"])
def test_a_step_is_the_official_codes(passes: str, K: int) -> None:
    network, (batch, draws) = small_network(), random_batch(K)
    expected = reference(network, batch, **draws, fused=passes == "fused", T=0.5, weight=75 * 4096 / 16384)
    method = MixMatch(K=K, T=0.5, lambda_u=75.0, passes=passes)  # type: ignore[arg-type]
    loss, metrics, _ = method.loss(Model(network), batch, draws, at(4096), {})
    loss.backward()  # type: ignore[no-untyped-call]
    close = {"rtol": 1e-10, "atol": 1e-12}
    torch.testing.assert_close(loss.detach(), expected.loss.detach(), **close)
    for name in ("loss", "loss_x", "loss_u", "confidence"):
        torch.testing.assert_close(metrics[name].detach(), getattr(expected, name).detach(), **close)
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(parameter.grad, expected.gradients[name], **close)
    torch.testing.assert_close(network[2].running_mean, expected.running_mean, **close)
    torch.testing.assert_close(network[2].running_var, expected.running_var, **close)
    assert network[2].num_batches_tracked == 1


def test_another_temperature() -> None:
    network, (batch, draws) = small_network(), random_batch(2)
    expected = reference(network, batch, **draws, fused=False, T=0.8, weight=100.0)
    loss, *_ = MixMatch(T=0.8, ramp=0).loss(Model(network), batch, draws, at(0), {})
    torch.testing.assert_close(loss.detach(), expected.loss.detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("passes", ["official", "fused"])
def test_guesses_of_the_averaged_weights(passes: str) -> None:
    network, (batch, draws) = small_network(), random_batch(2)
    model = Model(network)
    for name, value in model.ema.items():
        model.ema[name] = value * 1.5 + 0.1
    expected = reference(network, batch, **draws, fused=passes == "fused", T=0.5, weight=9.0, guess_with=model.ema)
    method = MixMatch(ramp=0, lambda_u=9.0, guess_weights="ema", passes=passes)  # type: ignore[arg-type]
    loss, *_ = method.loss(model, batch, draws, at(0), {})
    loss.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(loss.detach(), expected.loss.detach(), rtol=1e-10, atol=1e-12)
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(parameter.grad, expected.gradients[name], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(network[2].running_mean, expected.running_mean, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("labeled", "unlabeled"), [(3, 6), (6, 3), (2, 1)])
def test_fused_passes_take_batches_of_two_sizes(labeled: int, unlabeled: int) -> None:
    torch.manual_seed(3)
    network, rows = small_network(), labeled + 2 * unlabeled
    x, u = torch.rand(labeled, 3, 2, 2).double(), torch.rand(2, unlabeled, 3, 2, 2).double()
    y, lam, perm = torch.eye(L).double()[torch.arange(labeled) % L], torch.rand(rows).double(), torch.randperm(rows)
    model = Model(network)
    method = MixMatch(ramp=0, lambda_u=9.0, passes="fused")
    loss, *_ = method.loss(model, Batch(x, y, u, torch.arange(len(x))), {"lam": lam, "perm": perm}, at(0), {})
    with torch.no_grad():
        guesses = torch.softmax(forward(dict(network.named_parameters()), u.flatten(0, 1)).logits, 1)
        q = (guesses[:unlabeled] + guesses[unlabeled:]) / 2
        q = q**2 / (q**2).sum(1, keepdim=True)
        images, targets, weight = torch.cat([x, *u]), torch.cat([y, q, q]), torch.maximum(lam, 1 - lam)
        weight = weight[:, None]
        targets = weight * targets + (1 - weight) * targets[perm]
        weight = weight[:, :, None, None]
        images = weight * images + (1 - weight) * images[perm]
        logits = forward(dict(network.named_parameters()), images).logits
        loss_x = -(targets * torch.log_softmax(logits, 1)).sum(1)[:labeled].mean()
        loss_u = ((torch.softmax(logits, 1) - targets)[labeled:] ** 2).mean()
    torch.testing.assert_close(loss.detach(), loss_x + 9 * loss_u, rtol=1e-10, atol=1e-12)


def test_no_gradient_flows_through_the_guesses() -> None:
    """The gradients above are those of a constant guess; here: with a guess that is not they would be others."""
    network, (batch, draws) = small_network(), random_batch(2)
    arguments = {**draws, "fused": False, "T": 0.5, "weight": 75.0}
    constant = reference(network, batch, **arguments).gradients  # type: ignore[arg-type]
    flowing = reference(network, batch, **arguments, stop=False).gradients  # type: ignore[arg-type]
    assert max((constant[name] - flowing[name]).abs().max() for name in constant) > 1e-2
    guesses, *_ = MixMatch().predict(Model(network), batch.u, batch.x, batch.u)
    assert not guesses.requires_grad


@pytest.mark.parametrize(
    ("passes", "expected"),
    [
        ("official", [(B, "batch", False)] * 2 + [(B, "update", True)] + [(B, "batch", True)] * 2),
        ("fused", [(2 * B, "batch", False), (3 * B, "update", True)]),
    ],
)
def test_the_passes_it_makes(passes: Any, expected: list[tuple[int, str, bool]]) -> None:
    """How many rows, what it does to batch norm, and whether a gradient is kept: a guess needs none."""
    seen = []

    def model(x: Tensor, weights: str = "live", stats: str = "batch") -> Tensor:
        assert weights == "live"
        seen.append((len(x), stats, torch.is_grad_enabled()))
        return x.flatten(1)[:, :L]

    batch, draws = random_batch(2)
    MixMatch(passes=passes).loss(model, batch, draws, at(0), {})  # type: ignore[arg-type]
    assert seen == expected


@pytest.mark.parametrize(
    ("settings", "step", "weight"),
    [
        ({}, 0, 0.0),
        ({}, 1, 100 / 16384),
        ({}, 8192, 50.0),
        ({}, 16384, 100.0),
        ({}, 10**6, 100.0),
        ({"lambda_u": 75.0, "ramp": 10}, 3, 22.5),
        ({"lambda_u": 75.0, "ramp": 0}, 0, 75.0),
    ],
)
def test_the_ramp_of_the_unlabeled_weight(settings: dict[str, Any], step: int, weight: float) -> None:
    """Over 16,384 steps whatever the length of the run."""
    network, (batch, draws) = small_network(), random_batch(2)
    for total in (100, 2**20):
        loss, metrics, _ = MixMatch(**settings).loss(Model(network), batch, draws, at(step, total), {})
        assert (loss - metrics["loss_x"]).item() == pytest.approx(weight * metrics["loss_u"].item(), rel=1e-9)
    assert metrics["loss_u"] > 1e-3


def test_draws_one_lambda_a_row_from_beta_and_a_shuffle_of_all_rows() -> None:
    rng = np.random.default_rng(3)
    drawn = [MixMatch(K=2, alpha=0.75).draw(rng, 64) for _ in range(60)]
    for each in drawn:
        assert each["lam"].shape == (192,)
        assert len(np.unique(each["lam"])) == 192
        assert each["lam"].dtype == np.float32
        np.testing.assert_array_equal(np.sort(each["perm"]), np.arange(192))
    lam = np.concatenate([each["lam"] for each in drawn]).astype(np.float64)
    assert stats.kstest(lam, stats.beta(0.75, 0.75).cdf).pvalue > 0.01
    assert stats.kstest(lam, stats.beta(0.5, 0.5).cdf).pvalue < 1e-6
    assert stats.kstest(lam, stats.uniform.cdf).pvalue < 1e-6
    # A labeled row's partner is any of the rows: chi-square over thirds of the union, then over repeats.
    partners = np.concatenate([each["perm"][:64] for each in drawn])
    assert stats.chisquare(np.bincount(partners // 64, minlength=3)).pvalue > 0.01
    assert not np.array_equal(drawn[0]["perm"], drawn[1]["perm"])


@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("alpha", [0.25, 2.0])
def test_draws_follow_K_and_alpha(K: int, alpha: float) -> None:
    method = MixMatch(K=K, alpha=alpha)
    drawn = method.draw(np.random.default_rng(5), 1000)
    assert len(method.views) == K
    assert drawn["lam"].shape == drawn["perm"].shape == ((K + 1) * 1000,)
    assert stats.kstest(drawn["lam"].astype(np.float64), stats.beta(alpha, alpha).cdf).pvalue > 0.01


@pytest.mark.parametrize(
    ("mix", "labeled_mixed", "unlabeled_mixed"),
    [("separate", True, True), ("labeled", True, False), ("unlabeled", False, True), ("none", False, False)],
)
def test_draws_of_the_ablations(mix: Any, labeled_mixed: bool, unlabeled_mixed: bool) -> None:
    """Partners are of one's own kind, and lambda is 1 where nothing is to be mixed: modes xx.yy, xx., .yy and '.'"""
    drawn = MixMatch(K=2, mix=mix).draw(np.random.default_rng(1), 64)
    for part, mixed in ((slice(0, 64), labeled_mixed), (slice(64, 192), unlabeled_mixed)):
        rows = np.arange(192)[part]
        np.testing.assert_array_equal(np.sort(drawn["perm"][part]), rows)
        assert not np.array_equal(drawn["perm"][part], rows)
        assert (drawn["lam"][part] < 1).all() if mixed else (drawn["lam"][part] == 1).all()


def test_equal_generators_give_equal_draws() -> None:
    a, b = (MixMatch().draw(np.random.default_rng(7), 16) for _ in range(2))
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])


# ---------------------------------------------------------------- supervised


def test_label_smoothing() -> None:
    """l - s * (l - 1/L), as the official fully supervised baseline."""
    network, (batch, _) = small_network(), random_batch(2)
    log_p = torch.log(softmax(forward(dict(network.named_parameters()), batch.x).logits)).detach()
    targets = np.where(batch.y.numpy() == 1, 1 - 0.2 * (1 - 1 / L), 0.2 / L)
    loss, *_ = Supervised(smoothing=0.2).loss(Model(network), batch, {}, at(0), {})
    assert loss.item() == pytest.approx(-(targets * log_p.numpy()).sum(1).mean(), rel=1e-12)


def test_supervised_is_cross_entropy_on_the_labeled_images_alone() -> None:
    network, (batch, _) = small_network(), random_batch(2)
    before = {name: buffer.clone() for name, buffer in network.named_buffers()}
    p = {name: value.detach().clone().requires_grad_() for name, value in network.named_parameters()}
    seen = forward(p, batch.x)
    expected = -(batch.y * torch.log(softmax(seen.logits))).sum(1).mean()
    gradients = torch.autograd.grad(expected, list(p.values()))
    method = Supervised()
    loss, metrics, _ = method.loss(Model(network), batch._replace(u=torch.empty(0)), {}, at(3), {})
    loss.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(loss.detach(), expected.detach())
    torch.testing.assert_close(metrics["loss"].detach(), expected.detach())
    for parameter, gradient in zip(network.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    running = (1 - MOMENTUM) * before["2.running_mean"] + MOMENTUM * seen.mean
    torch.testing.assert_close(network[2].running_mean, running)
    assert len(method.views) == 0
    assert method.draw(np.random.default_rng(0), 64) == {}


# ---------------------------------------------------------------- by name


def test_methods_by_name() -> None:
    assert METHODS["mixmatch"] is MixMatch
    assert METHODS["supervised"] is Supervised
    for name in METHODS:
        method = build(name, {})
        assert isinstance(method, METHODS[name])
        with pytest.raises((dataclasses.FrozenInstanceError, AttributeError)):
            method.K = 3  # type: ignore[misc,attr-defined]


def test_settings_and_defaults() -> None:
    """The code's defaults where the paper's commands do not say (w_match 100), the paper's alpha."""
    assert {name: s.default for name, s in methods.declared("mixmatch").items()} == {
        "K": 2,
        "T": 0.5,
        "alpha": 0.75,
        "lambda_u": 100.0,
        "ramp": 16384,
        "guess_weights": "live",
        "mix": "all",
        "passes": "official",
    }
    assert {name: s.default for name, s in methods.declared("supervised").items()} == {"smoothing": 0.0}


def test_build_uses_what_is_given() -> None:
    built = build("mixmatch", {"K": 3, "T": 1, "alpha": 0.25, "lambda_u": 0, "ramp": 0, "passes": "fused"})
    assert built == MixMatch(K=3, T=1.0, alpha=0.25, lambda_u=0.0, ramp=0, passes="fused")
    assert isinstance(built.T, float)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lamda_u": 75}, "unknown setting 'lamda_u' of method 'mixmatch': did you mean 'lambda_u'?"),
        ({"K": 0}, "K=0 must be a whole number of at least 1"),
        ({"K": -2}, "K=-2 must be a whole number of at least 1"),
        ({"K": 1.5}, "K=1.5 must be a whole number of at least 1"),
        ({"K": "2"}, "K='2' must be a whole number of at least 1"),
        ({"K": True}, "K=True must be a whole number of at least 1"),
        ({"K": None}, "K=None must be a whole number of at least 1"),
        ({"alpha": 0}, "alpha=0 must be a number above 0"),
        ({"alpha": -0.5}, "alpha=-0.5 must be a number above 0"),
        ({"alpha": [0.75]}, "alpha=[0.75] must be a number above 0"),
        ({"T": -1}, "T=-1 must be a number of at least 0"),
        ({"T": math.nan}, "T=nan must be a number of at least 0"),
        ({"lambda_u": math.inf}, "lambda_u=inf must be a number of at least 0"),
        ({"lambda_u": -1.0}, "lambda_u=-1.0 must be a number of at least 0"),
        ({"ramp": -1}, "ramp=-1 must be a whole number of at least 0"),
        ({"ramp": 10.5}, "ramp=10.5 must be a whole number of at least 0"),
        ({"passes": "x"}, "passes='x' must be one of official, fused"),
        ({"passes": 3}, "passes=3 must be one of official, fused"),
        ({"passes": ["fused"]}, "passes=['fused'] must be one of official, fused"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(MixMatchError) as caught:
        build("mixmatch", settings)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_unknown_methods_and_settings_of_others() -> None:
    with pytest.raises(MixMatchError, match=r"^unknown method 'mixmach': did you mean 'mixmatch'\?"):
        build("mixmach", {})
    with pytest.raises(
        MixMatchError, match=r"^unknown setting 'lambda_u' of method 'supervised' \(known: smoothing\)$"
    ):
        build("supervised", {"lambda_u": 75})

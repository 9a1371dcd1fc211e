"""Training loops as people write them, one for each method: what `step_time.py` measures ours beside.

fp32, eager, a DataLoader with per-image augmentation in Python and four workers (none on a CPU), a forward pass for
each batch, `.item()` on each loss. MixMatch's has the five passes and the interleaving of the authors' code. Weights
of losses are CIFAR-10's, at their full height.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from mixmatch import networks
from mixmatch.data.source import Source
from mixmatch.data.split import Split
from mixmatch.settings import Settings

Loss = Callable[[nn.Module, nn.Module, Tensor, Tensor, list[Tensor]], tuple[Tensor, ...]]
"""From a model, its moving average, labeled images, their labels in one-hot form and views of unlabeled images, to the
loss and its parts."""


class Augmented(Dataset[Any]):
    """Per-image augmentation in Python, as in the usual tutorial."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, views: int) -> None:
        self.images, self.labels, self.views = images, labels, views

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[list[Tensor], int]:
        return [self._augment(self.images[index]) for _ in range(self.views)], int(self.labels[index])

    @staticmethod
    def _augment(image: np.ndarray) -> Tensor:
        size = len(image)
        if np.random.rand() < 0.5:
            image = image[:, ::-1]
        image = np.pad(image, ((4, 4), (4, 4), (0, 0)), mode="reflect")
        y, x = np.random.randint(0, 9, 2)
        image = image[y : y + size, x : x + size]
        return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))).float() / 127.5 - 1


def endless(loader: DataLoader[Any]):  # type: ignore[no-untyped-def]
    while True:
        yield from loader


# ---------------------------------------------------------------- losses


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return -(targets * F.log_softmax(logits, 1)).sum(1).mean()


def squared(logits: Tensor, targets: Tensor) -> Tensor:
    return ((torch.softmax(logits, 1) - targets) ** 2).mean()


def mix(images: Tensor, targets: Tensor, order: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    lam = torch.distributions.Beta(alpha, alpha).sample([len(images)]).to(images.device)
    lam = torch.max(lam, 1 - lam)
    images = lam[:, None, None, None] * images + (1 - lam[:, None, None, None]) * images[order]
    return images, lam[:, None] * targets + (1 - lam[:, None]) * targets[order]


def reverse(batch: Tensor) -> Tensor:
    return torch.arange(len(batch) - 1, -1, -1, device=batch.device)


def interleave(batches: list[Tensor]) -> list[Tensor]:
    size = len(batches[0]) // len(batches)
    for i in range(1, len(batches)):
        part = slice(i * size, (i + 1) * size if i < len(batches) - 1 else None)
        batches[0][part], batches[i][part] = batches[i][part].clone(), batches[0][part].clone()
    return batches


def mixmatch(model: nn.Module, average: nn.Module, x: Tensor, y: Tensor, views: list[Tensor]) -> tuple[Tensor, ...]:
    u1, u2 = views
    with torch.no_grad():
        p = (torch.softmax(model(u1), 1) + torch.softmax(model(u2), 1)) / 2
        q = p**2 / (p**2).sum(1, keepdim=True)
    images, targets = torch.cat([x, u1, u2]), torch.cat([y, q, q])
    images, targets = mix(images, targets, torch.randperm(len(images), device=x.device), 0.75)
    batches = interleave(list(torch.split(images, len(x))))
    logits = interleave([model(batch).clone() for batch in batches])
    loss_x = cross_entropy(logits[0], targets[: len(x)])
    loss_u = squared(torch.cat(logits[1:]), targets[len(x) :])
    return loss_x + 75 * loss_u, loss_x, loss_u


def mixup(model: nn.Module, average: nn.Module, x: Tensor, y: Tensor, views: list[Tensor]) -> tuple[Tensor, ...]:
    (u,) = views
    with torch.no_grad():
        q = torch.softmax(model(u), 1)
    x, y = mix(x, y, reverse(x), 0.75)
    u, q = mix(u, q, reverse(u), 0.75)
    loss_x, loss_u = cross_entropy(model(x), y), cross_entropy(model(u), q)
    return loss_x + loss_u, loss_x, loss_u


def pi_model(model: nn.Module, average: nn.Module, x: Tensor, y: Tensor, views: list[Tensor]) -> tuple[Tensor, ...]:
    loss_x = cross_entropy(model(x), y)
    with torch.no_grad():
        target = torch.softmax(model(views[0]), 1)
    loss_u = squared(model(views[1]), target)
    return loss_x + 20 * loss_u, loss_x, loss_u


def mean_teacher(model: nn.Module, average: nn.Module, x: Tensor, y: Tensor, views: list[Tensor]) -> tuple[Tensor, ...]:
    loss_x = cross_entropy(model(x), y)
    with torch.no_grad():
        target = torch.softmax(average(views[0]), 1)
    loss_u = squared(model(views[1]), target)
    return loss_x + 50 * loss_u, loss_x, loss_u


def pseudo_label(model: nn.Module, average: nn.Module, x: Tensor, y: Tensor, views: list[Tensor]) -> tuple[Tensor, ...]:
    loss_x = cross_entropy(model(x), y)
    logits = model(views[0])
    probability, label = torch.softmax(logits.detach(), 1).max(1)
    loss_u = F.cross_entropy(logits, label) * (probability > 0.95).float().mean()
    return loss_x + loss_u, loss_x, loss_u


def ict(model: nn.Module, average: nn.Module, x: Tensor, y: Tensor, views: list[Tensor]) -> tuple[Tensor, ...]:
    (u,) = views
    with torch.no_grad():
        q = torch.softmax(average(u), 1)
    u, q = mix(u, q, reverse(u), 0.75)
    loss_x, loss_u = cross_entropy(model(x), y), squared(model(u), q)
    return loss_x + 1000 * loss_u, loss_x, loss_u


def vat(model: nn.Module, average: nn.Module, x: Tensor, y: Tensor, views: list[Tensor]) -> tuple[Tensor, ...]:
    def unit(d: Tensor) -> Tensor:
        return F.normalize(d.flatten(1), dim=1).view_as(d)

    def divergence(perturbed: Tensor) -> Tensor:
        p = F.log_softmax(perturbed, 1)
        return torch.sum(p.exp() * (p - clean), 1).mean()

    (u,) = views
    loss_x = cross_entropy(model(x), y)
    logits = model(u)
    entropy = cross_entropy(logits, torch.softmax(logits, 1))
    clean = F.log_softmax(logits.detach(), 1)
    d = (1e-6 * unit(torch.randn_like(u))).requires_grad_()
    (gradient,) = torch.autograd.grad(divergence(model(u + d)), d)
    loss_u = divergence(model(u + 6 * unit(gradient)))
    return loss_x + 0.3 * loss_u + 0.06 * entropy, loss_x, loss_u, entropy


def supervised(model: nn.Module, average: nn.Module, x: Tensor, y: Tensor, views: list[Tensor]) -> tuple[Tensor, ...]:
    return (cross_entropy(model(x), y),)


def supervised_mixup(
    model: nn.Module, average: nn.Module, x: Tensor, y: Tensor, views: list[Tensor]
) -> tuple[Tensor, ...]:
    x, y = mix(x, y, reverse(x), 0.5)
    return (cross_entropy(model(x), y),)


LOSSES: dict[str, tuple[Loss, int]] = {
    "mixmatch": (mixmatch, 2),
    "mixup": (mixup, 1),
    "pi-model": (pi_model, 2),
    "mean-teacher": (mean_teacher, 2),
    "pseudo-label": (pseudo_label, 1),
    "vat": (vat, 1),
    "ict": (ict, 1),
    "supervised": (supervised, 0),
    "supervised-mixup": (supervised_mixup, 0),
}
"""And how many views of an unlabeled image it takes."""


# ---------------------------------------------------------------- the loop


def textbook(source: Source, split: Split, settings: Settings, device: torch.device) -> Callable[[int], None]:
    """Takes so many steps."""
    workers = 4 if device.type == "cuda" else 0
    loss_of, views = LOSSES[settings.method]

    def batches(rows: np.ndarray, views: int) -> Any:
        data = Augmented(source.train.inputs[rows], source.train.labels[rows], views)
        return endless(
            DataLoader(
                data,
                settings.batch_size,
                shuffle=True,
                drop_last=True,
                num_workers=workers,
                persistent_workers=workers > 0,
            )
        )

    labeled, unlabeled = batches(split.labeled, 1), batches(split.unlabeled, views)
    classes = len(source.classes)
    model, average = (networks.build(settings.network, classes, source.input_shape).to(device) for _ in range(2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.002)

    def step() -> None:
        (x,), y = next(labeled)
        x, y = x.to(device), F.one_hot(y.to(device), classes).float()
        seen = [u.to(device) for u in next(unlabeled)[0]] if views else []
        losses = loss_of(model, average, x, y, seen)
        optimizer.zero_grad()
        losses[0].backward()
        optimizer.step()
        with torch.no_grad():
            for live, mean in zip(model.parameters(), average.parameters(), strict=True):
                live.mul_(1 - 0.02 * 0.002)
                mean.mul_(0.999).add_(live, alpha=0.001)
        for loss in losses:
            loss.item()

    def steps(count: int) -> None:
        for _ in range(count):
            step()

    return steps

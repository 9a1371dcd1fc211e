"""Training loops as people write them, one for each method: what `step_time.py` measures ours beside.

fp32, eager, a DataLoader with per-image augmentation in Python (strong views by Pillow) and four workers (none on a
CPU), a forward pass for each batch, `.item()` on each loss. MixMatch's has the five passes and the interleaving of the
authors' code. Weights of losses are CIFAR-10's, at their full height.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from mixmatch import networks
from mixmatch.data.source import Source
from mixmatch.data.split import Split
from mixmatch.settings import Settings

Loss = Callable[..., tuple[Tensor, ...]]
"""From a model, its moving average, labeled images, their labels in one-hot form and views of unlabeled images, to the
loss and its parts. What has a memory over the steps takes it as a sixth, a dictionary; the loop puts the numbers of the
unlabeled images of a step there, `rows`, how many there are, `unlabeled`, and a layer for rotations, `rotation`."""


class Augmented(Dataset[Any]):
    """Per-image augmentation in Python, as in the usual tutorial; all views but the first are `strong` ones, if any."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, views: int, strong: bool) -> None:
        self.images, self.labels, self.views, self.strong = images, labels, views, strong

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[list[Tensor], int, int]:
        views = [self._augment(self.images[index], self.strong and view > 0) for view in range(self.views)]
        return views, int(self.labels[index]), index

    @staticmethod
    def _augment(image: np.ndarray, strong: bool) -> Tensor:
        size = len(image)
        if np.random.rand() < 0.5:
            image = image[:, ::-1]
        image = np.pad(image, ((4, 4), (4, 4), (0, 0)), mode="reflect")
        y, x = np.random.randint(0, 9, 2)
        image = image[y : y + size, x : x + size]
        if strong:
            image = rand_augment(image)
        return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))).float() / 127.5 - 1


def rand_augment(image: np.ndarray) -> np.ndarray:
    """Two random operations of Pillow's, each with probability 1/2, and a gray square, as in ports of FixMatch."""
    picture = Image.fromarray(image)
    size = len(image)
    for _ in range(2):
        name, m, sign = str(np.random.choice(OPERATIONS)), np.random.randint(1, 10), np.random.choice((-1, 1))
        if np.random.rand() < 0.5 or name == "identity":
            continue
        if name in ("autocontrast", "equalize"):
            picture = getattr(ImageOps, name)(picture)
        elif name == "posterize":
            picture = ImageOps.posterize(picture, 4 + int(0.4 * m))
        elif name == "solarize":
            picture = ImageOps.solarize(picture, 256 - int(25.6 * m))
        elif name == "rotate":
            picture = picture.rotate(int(sign * 3 * m))
        elif name in ("Color", "Contrast", "Brightness", "Sharpness"):
            picture = getattr(ImageEnhance, name)(picture).enhance(0.05 + 0.09 * m)
        else:
            shear, shift = sign * 0.03 * m, int(sign * 0.03 * m * size)
            matrix = {"shear x": (1, shear, 0, 0, 1, 0), "shear y": (1, 0, 0, shear, 1, 0),
                      "translate x": (1, 0, shift, 0, 1, 0), "translate y": (1, 0, 0, 0, 1, shift)}[name]  # fmt: skip
            picture = picture.transform(picture.size, Image.Transform.AFFINE, matrix)
    image = np.array(picture)
    y, x = np.random.randint(0, size, 2)
    image[max(0, y - 8) : y + 8, max(0, x - 8) : x + 8] = 127
    return image


OPERATIONS = (
    "identity", "autocontrast", "equalize", "rotate", "solarize", "Color", "Contrast", "Brightness", "Sharpness",
    "shear x", "shear y", "translate x", "translate y", "posterize",
)  # fmt: skip


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


# What came after MixMatch: labeled images, weak and strong views in one batch.


def three(model: nn.Module, x: Tensor, views: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    weak, strong = views
    logits = model(torch.cat([x, weak, strong]))
    logits_w, logits_s = logits[len(x) :].chunk(2)
    return logits[: len(x)], torch.softmax(logits_w.detach(), 1), logits_s


def masked(logits: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    return (F.cross_entropy(logits, labels, reduction="none") * mask).mean()


def uda(model: nn.Module, average: nn.Module, x: Tensor, y: Tensor, views: list[Tensor]) -> tuple[Tensor, ...]:
    logits_x, q, logits_s = three(model, x, views)
    target = q**2.5 / (q**2.5).sum(1, keepdim=True)
    kl = F.kl_div(F.log_softmax(logits_s, 1), target, reduction="none").sum(1)
    loss_x, loss_u = cross_entropy(logits_x, y), (kl * (q.max(1).values > 0.8)).mean()
    return loss_x + loss_u, loss_x, loss_u


def fixmatch(model: nn.Module, average: nn.Module, x: Tensor, y: Tensor, views: list[Tensor]) -> tuple[Tensor, ...]:
    logits_x, q, logits_s = three(model, x, views)
    probability, label = q.max(1)
    loss_x, loss_u = cross_entropy(logits_x, y), masked(logits_s, label, probability >= 0.95)
    return loss_x + loss_u, loss_x, loss_u


def flexmatch(
    model: nn.Module, average: nn.Module, x: Tensor, y: Tensor, views: list[Tensor], memory: dict[str, Any]
) -> tuple[Tensor, ...]:
    logits_x, q, logits_s = three(model, x, views)
    probability, label = q.max(1)
    labels = memory.setdefault("labels", torch.full([memory["unlabeled"]], -1, device=x.device))
    counts = torch.bincount(labels + 1, minlength=q.shape[1] + 1)
    learned = counts[1:] / counts.max()
    loss_x = cross_entropy(logits_x, y)
    loss_u = masked(logits_s, label, probability >= 0.95 * (learned / (2 - learned))[label])
    confident = probability >= 0.95
    labels[memory["rows"][confident]] = label[confident]
    return loss_x + loss_u, loss_x, loss_u


def freematch(
    model: nn.Module, average: nn.Module, x: Tensor, y: Tensor, views: list[Tensor], memory: dict[str, Any]
) -> tuple[Tensor, ...]:
    def relative(p: Tensor, histogram: Tensor) -> Tensor:
        ratio = torch.nan_to_num(p / histogram, nan=0.0, posinf=0.0)
        return ratio / ratio.sum()

    logits_x, q, logits_s = three(model, x, views)
    probability, label = q.max(1)
    classes = q.shape[1]
    uniform = torch.full_like(q[0], 1 / classes)
    tau = memory["tau"] = 0.999 * memory.get("tau", 1 / classes) + 0.001 * probability.mean()
    p = memory["p"] = 0.999 * memory.get("p", uniform) + 0.001 * q.mean(0)
    h = memory["h"] = 0.999 * memory.get("h", uniform) + 0.001 * F.one_hot(label, classes).to(q.dtype).mean(0)
    mask = probability >= (tau * p / p.max())[label]
    loss_x, loss_u = cross_entropy(logits_x, y), masked(logits_s, label, mask)
    loss = loss_x + loss_u
    if mask.any():
        kept = torch.softmax(logits_s[mask], 1)
        seen = torch.bincount(kept.argmax(1), minlength=classes) / len(kept)
        loss = loss + 0.01 * (relative(p, h) * torch.log(relative(kept.mean(0), seen) + 1e-12)).sum()
    return loss, loss_x, loss_u


def align(q: Tensor, target: Tensor, memory: dict[str, Any]) -> Tensor:
    mean = memory["mean"] = 0.999 * memory["mean"] + 0.001 * q.mean(0) if "mean" in memory else q.mean(0)
    q = q * (target + 1e-6) / (mean + 1e-6)
    return q / q.sum(1, keepdim=True)


def softmatch(
    model: nn.Module, average: nn.Module, x: Tensor, y: Tensor, views: list[Tensor], memory: dict[str, Any]
) -> tuple[Tensor, ...]:
    logits_x, q, logits_s = three(model, x, views)
    probability, label = q.max(1)
    mu = memory["mu"] = 0.999 * memory.get("mu", 1 / q.shape[1]) + 0.001 * probability.mean()
    variance = memory["variance"] = 0.999 * memory.get("variance", 1.0) + 0.001 * probability.var()
    aligned = align(q, torch.full_like(q[0], 1 / q.shape[1]), memory).max(1).values
    weight = torch.exp(-((aligned - mu).clamp(max=0) ** 2) / (2 * variance / 4))
    loss_x, loss_u = cross_entropy(logits_x, y), masked(logits_s, label, weight)
    return loss_x + loss_u, loss_x, loss_u


def adamatch(
    model: nn.Module, average: nn.Module, x: Tensor, y: Tensor, views: list[Tensor], memory: dict[str, Any]
) -> tuple[Tensor, ...]:
    logits_x, q, logits_s = three(model, x, views)
    p = torch.softmax(logits_x.detach(), 1)
    target = memory["target"] = 0.999 * memory.get("target", torch.full_like(q[0], 1 / q.shape[1])) + 0.001 * p.mean(0)
    probability, label = align(q, target, memory).max(1)
    loss_x, loss_u = cross_entropy(logits_x, y), masked(logits_s, label, probability >= 0.95 * p.max(1).values.mean())
    return loss_x + loss_u, loss_x, loss_u


def remixmatch(
    model: Any, average: nn.Module, x: Tensor, y: Tensor, views: list[Tensor], memory: dict[str, Any]
) -> tuple[Tensor, ...]:
    with torch.no_grad():
        p = torch.softmax(model(views[0]), 1)
    past = memory.setdefault("past", [torch.full_like(p[0], 1 / p.shape[1])] * 128)
    q = p * (memory["prior"] + 1e-6) / (torch.stack(past).mean(0) + 1e-6)
    memory["past"] = [*past[1:], p.mean(0)]
    q = q**2 / (q**2).sum(1, keepdim=True)
    images, targets = torch.cat([x, *views]), torch.cat([y, *[q] * len(views)])
    images, targets = mix(images, targets, torch.randperm(len(images), device=x.device), 0.75)
    batches = interleave(list(torch.split(images, len(x))))
    logits = interleave([model(batch).clone() for batch in batches])
    loss_x, loss_u = (
        cross_entropy(logits[0], targets[: len(x)]),
        cross_entropy(torch.cat(logits[1:]), targets[len(x) :]),
    )
    loss_u1 = cross_entropy(model(views[1]), q)
    parts = views[1].tensor_split(4)
    turned = torch.cat([torch.rot90(part, k, (2, 3)) for part, k in zip(parts, (0, 2, 1, 3), strict=True)])
    turns = torch.cat([torch.full([len(part)], k) for part, k in zip(parts, (0, 2, 1, 3), strict=True)]).to(x.device)
    loss_r = F.cross_entropy(memory["rotation"](model.features(turned)), turns)
    return loss_x + 1.5 * loss_u + 0.5 * loss_u1 + 0.5 * loss_r, loss_x, loss_u


LOSSES: dict[str, tuple[Loss, int]] = {
    "mixmatch": (mixmatch, 2),
    "mixup": (mixup, 1),
    "pi-model": (pi_model, 2),
    "mean-teacher": (mean_teacher, 2),
    "pseudo-label": (pseudo_label, 1),
    "vat": (vat, 1),
    "ict": (ict, 1),
    "uda": (uda, 2),
    "remixmatch": (remixmatch, 9),
    "fixmatch": (fixmatch, 2),
    "flexmatch": (flexmatch, 2),
    "freematch": (freematch, 2),
    "softmatch": (softmatch, 2),
    "adamatch": (adamatch, 2),
    "supervised": (supervised, 0),
    "supervised-mixup": (supervised_mixup, 0),
}
"""And how many views of an unlabeled image it takes."""

REMEMBER = ("remixmatch", "flexmatch", "freematch", "softmatch", "adamatch")
"""Those with a memory over the steps."""


# ---------------------------------------------------------------- the loop


def textbook(source: Source, split: Split, settings: Settings, device: torch.device) -> Callable[[int], None]:
    """Takes so many steps."""
    workers = 4 if device.type == "cuda" else 0
    loss_of, views = LOSSES[settings.method]
    ratio = settings.method_settings.get("ratio", 1)

    strong = "strong" in settings.build_method().views

    def batches(rows: np.ndarray, views: int, size: int) -> Any:
        data = Augmented(source.train.inputs[rows], source.train.labels[rows], views, strong)
        return endless(
            DataLoader(
                data,
                size,
                shuffle=True,
                drop_last=True,
                num_workers=workers,
                persistent_workers=workers > 0,
            )
        )

    size = settings.batch_size
    labeled, unlabeled = batches(split.labeled, 1, size), batches(split.unlabeled, views, ratio * size)
    classes = len(source.classes)
    model, average = (networks.build(settings.network, classes, source.input_shape).to(device) for _ in range(2))
    parameters = list(model.parameters())
    memory: dict[str, Any] = {"unlabeled": len(split.unlabeled)}
    if settings.method == "remixmatch":
        labels = torch.from_numpy(source.train.labels[split.labeled])
        memory["prior"] = (torch.bincount(labels, minlength=classes) / len(labels)).to(device)
        memory["rotation"] = nn.Linear(cast(int, model.feature_size), 4).to(device)
        parameters += list(memory["rotation"].parameters())
    more = (memory,) if settings.method in REMEMBER else ()
    optimizer: torch.optim.Optimizer = torch.optim.Adam(parameters, lr=0.002)
    if settings.optimizer == "sgd":
        optimizer = torch.optim.SGD(parameters, lr=0.03, momentum=0.9, nesterov=True, weight_decay=5e-4)
    kept = 1 - 0.02 * 0.002 if settings.optimizer == "adam" else 1.0

    def step() -> None:
        (x,), y, _ = next(labeled)
        x, y = x.to(device), F.one_hot(y.to(device), classes).float()
        seen = []
        if views:
            images, _, rows = next(unlabeled)
            seen, memory["rows"] = [u.to(device) for u in images], rows.to(device)
        losses = loss_of(model, average, x, y, seen, *more)
        optimizer.zero_grad()
        losses[0].backward()
        optimizer.step()
        with torch.no_grad():
            for live, mean in zip(model.parameters(), average.parameters(), strict=True):
                live.mul_(kept)
                mean.mul_(0.999).add_(live, alpha=0.001)
        for loss in losses:
            loss.item()

    def steps(count: int) -> None:
        for _ in range(count):
            step()

    return steps

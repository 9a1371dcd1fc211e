"""ReMixMatch (Berthelot et al., 2020): MixMatch with aligned guesses, strong views anchored to a weak, rotations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mixmatch import functional
from mixmatch.draws import Draws
from mixmatch.methods import pseudo_labels as shared
from mixmatch.methods.base import (
    Batch,
    DataInfo,
    Method,
    Predictor,
    Progress,
    Step,
    Strength,
    Tensors,
    setting,
    targets_and_logits,
)

BUFFER = 128
"""The number of steps whose mean predictions are averaged to align guesses."""


@dataclass(frozen=True)
class ReMixMatch(Method):
    """The guess from an image's weak view, aligned and sharpened, is the target of all its views, which are mixed with
    each other and with the labeled images. One strong view is learned from unmixed, too, and turned: a second head
    predicts by how much."""

    K: int = setting(8, "Strong views of each unlabeled image.", least=1, limit=1024)
    T: float = setting(0.5, "Sharpening temperature.", least=0, search=(0.1, 1))
    alpha: float = setting(0.75, "MixUp's Beta(alpha, alpha).", above=0, search=(0.1, 2, "log"))
    lambda_u: float = setting(1.5, "Weight of the loss on mixed unlabeled images.", least=0, search=10)
    lambda_u1: float = setting(0.5, "Weight of the loss on one strong view, unmixed.", least=0, search=10)
    lambda_r: float = setting(
        0.5, "Weight of the loss on rotations of images; at 0 the network needs no second head.", least=0, search=10
    )
    ramp: int = setting(
        16384, "Steps over which both weights of unlabeled losses rise linearly from 0.", least=0, limit=2**40
    )
    align: str = setting(
        "labels",
        "Class frequencies that guesses are scaled towards: `none`; `labels`, those of the labels; `uniform`; or the "
        "frequencies themselves, by class, as in 0.5,0.3,0.2.",
        metavar=shared.ALIGN_CHOICES,
    )
    strong_labeled: bool = setting(True, "Augment labeled images strongly, too.")
    passes: shared.Passes = setting(
        "official",
        "`official` runs a separate pass over each interleaved batch of labeled size; `fused` runs one over the weak "
        "views and one over everything that is learned from, which is faster.",
    )

    run_defaults = {"unlabeled": "all", "strong": "ctaugment-only"}  # noqa: RUF012

    def __post_init__(self) -> None:
        shared.frequencies(self.align, model=False)

    @property
    def views(self) -> tuple[Strength, ...]:
        strong: Strength = "strong"
        return ("weak", *(strong,) * self.K)

    @property
    def heads(self) -> Mapping[str, int]:
        return {"rotation": 4} if self.lambda_r > 0 else {}

    def draw(self, rng: np.random.Generator, batch_size: int) -> Draws:
        """Lambdas and partners for the B labeled rows, then the (K + 1) B views."""
        rows = (self.K + 2) * batch_size
        return {"lam": rng.beta(self.alpha, self.alpha, rows).astype(np.float32), "perm": rng.permutation(rows)}

    def state(self, data: DataInfo) -> dict[str, Tensor]:
        if self.align == "none":
            return {}
        uniform = torch.full_like(data.prior, 1 / data.classes)
        return {"target": shared.aligned_to(self.align, data), "predicted": uniform.repeat(BUFFER, 1)}

    def loss(self, model: Predictor, batch: Batch, draws: Tensors, progress: Progress, state: Tensors) -> Step:
        lam, perm = draws["lam"], draws["perm"]
        weak, strong = batch.u[0], batch.u[1]
        x, u = functional.mix_union(batch.x_strong if self.strong_labeled else batch.x, batch.u, lam, perm)
        turned, turns = rotations(strong)
        learned = [strong, turned] if self.lambda_r > 0 else [strong]
        guess, logits, (logits_strong, *rotated) = self.predict(model, weak, [x, *u], learned, batch.y.shape[-1])

        p = guess.softmax(dim=-1)
        changed, q = {}, p
        if self.align != "none":
            changed["predicted"] = torch.cat([state["predicted"][1:], p.mean(dim=0, keepdim=True)])
            q = functional.align(p, state["target"], state["predicted"].mean(dim=0))
        q = functional.sharpen(q, self.T)
        targets_x, targets_u = functional.mix_union(batch.y, q.expand(len(u), *q.shape), lam, perm)
        loss_x = functional.labeled_loss(logits[0], targets_x)
        loss_u = functional.labeled_loss(torch.stack(logits[1:]), targets_u)
        loss_u1 = functional.labeled_loss(logits_strong, q)
        risen = functional.linear_ramp(progress.step, self.ramp)
        loss = loss_x + risen * (self.lambda_u * loss_u + self.lambda_u1 * loss_u1)
        metrics = {"loss_x": loss_x, "loss_u": loss_u, "loss_u1": loss_u1}
        if rotated:
            metrics["loss_r"] = F.cross_entropy(rotated[0], turns)
            # Rows of numbers cannot be turned.
            loss = loss + (self.lambda_r if strong.dim() == 4 else 0.0) * metrics["loss_r"]
        return Step(loss, {"loss": loss, **metrics, "confidence": q.amax(dim=-1).mean()}, changed)

    def predict(
        self, model: Predictor, weak: Tensor, mixed: list[Tensor], unmixed: list[Tensor], classes: int
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Logits of the weak views, without gradient; of the mixed batches; of the strong views, and for these,
        rotated, the outputs of the head for rotations. As in the authors' code the last mixed batch updates the running
        statistics."""
        official, count = self.passes == "official", len(mixed)
        learned = [*(functional.interleave(mixed)[::-1] if official else mixed), *unmixed]
        learned = learned if official else [torch.cat(learned)]
        (guess,), outputs = targets_and_logits(model, [weak], learned, with_heads=tuple(self.heads))
        outputs = list(torch.split(torch.cat(outputs), len(weak)))
        logits, (strong, *turned) = [each[:, :classes] for each in outputs[:count]], outputs[count:]
        logits = functional.interleave(logits[::-1]) if official else logits
        return guess[:, :classes], logits, [strong[:, :classes], *(each[:, classes:] for each in turned)]


def rotations(images: Tensor) -> tuple[Tensor, Tensor]:
    """The images (N, C, H, W), a quarter of them as they are, the others turned by 180, 90 and 270 degrees, and by how
    many quarter turns. Those that are not square are turned by 180 degrees or not, rows of numbers never."""
    if images.dim() != 4:
        return images, torch.zeros(len(images), dtype=torch.int64, device=images.device)
    choices = (0, 2, 1, 3) if images.shape[2] == images.shape[3] else (0, 2)
    parts = list(zip(images.tensor_split(len(choices)), choices, strict=True))
    turns = [torch.full((len(part),), turn, device=images.device) for part, turn in parts]
    return torch.cat([torch.rot90(part, turn, (2, 3)) for part, turn in parts]), torch.cat(turns)

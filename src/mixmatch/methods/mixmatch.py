"""MixMatch (Berthelot et al., 2019): guess labels, mix everything, train on both. Algorithm 1 and Equations 2 to 5."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mixmatch import functional
from mixmatch.draws import Draws
from mixmatch.methods.base import (
    Batch,
    Method,
    Predictor,
    Progress,
    Step,
    Strength,
    Tensors,
    Weights,
    setting,
    targets_and_logits,
)


@dataclass(frozen=True)
class MixMatch(Method):
    """The paper's method, as the authors' code runs it.

    Guesses come from the live weights with batch statistics, and leave the running ones alone. The running
    statistics are updated once per step, by the first interleaved batch.
    """

    K: int = setting(2, "Augmentations of each unlabeled image to guess its label from.", least=1, limit=1024)
    T: float = setting(0.5, "Sharpening temperature.", least=0, search=(0.1, 1))
    alpha: float = setting(0.75, "MixUp's Beta(alpha, alpha).", above=0, search=(0.1, 2, "log"))
    lambda_u: float = setting(100.0, "Weight of the unlabeled loss.", least=0, search=10)
    ramp: int = setting(16384, "Steps over which that weight rises linearly from 0.", least=0, limit=2**40)
    guess_weights: Weights = setting(
        "live", "Which weights guess: `live`, those being trained, or `ema`, their average (an ablation)."
    )
    mix: Literal["all", "separate", "labeled", "unlabeled", "none"] = setting(
        "all",
        "What is mixed with what: everything with everything, or an ablation: labeled and unlabeled images each among "
        "themselves, only the labeled ones, only the unlabeled ones, nothing.",
    )
    passes: Literal["official", "fused"] = setting(
        "official",
        "`official` runs K passes to guess and K + 1 interleaved ones to learn, each with its own batch statistics; "
        "`fused` runs one pass over all guesses and one over all mixed images, which is faster.",
    )

    @property
    def views(self) -> tuple[Strength, ...]:
        weak: Strength = "weak"
        return (weak,) * self.K

    def draw(self, rng: np.random.Generator, batch_size: int) -> Draws:
        """Lambdas and partners for the B labeled rows, then the K*B unlabeled ones; lambda 1 leaves a row unmixed."""
        rows = (self.K + 1) * batch_size
        lam = rng.beta(self.alpha, self.alpha, rows).astype(np.float32)
        perm = rng.permutation(rows)
        if self.mix != "all":
            perm = np.concatenate([rng.permutation(batch_size), batch_size + rng.permutation(rows - batch_size)])
        if self.mix in ("unlabeled", "none"):
            lam[:batch_size] = 1
        if self.mix in ("labeled", "none"):
            lam[batch_size:] = 1
        return {"lam": lam, "perm": perm}

    def loss(self, model: Predictor, batch: Batch, draws: Tensors, progress: Progress, state: Tensors) -> Step:
        lam, perm = draws["lam"], draws["perm"]
        x, u = functional.mix_union(batch.x, batch.u, lam, perm)
        q, logits_x, logits_u = self.predict(model, batch.u, x, u)
        p, targets = functional.mix_union(batch.y, q.expand(len(u), *q.shape), lam, perm)
        loss_x = functional.labeled_loss(logits_x, p)
        loss_u = functional.unlabeled_loss(logits_u, targets)
        weight = self.lambda_u * functional.linear_ramp(progress.step, self.ramp)
        loss = loss_x + weight * loss_u
        confidence = q.amax(dim=-1).mean()
        return Step(loss, {"loss": loss, "loss_x": loss_x, "loss_u": loss_u, "confidence": confidence})

    def predict(self, model: Predictor, views: Tensor, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Guessed labels (B, L) from the views (K, B, ...), as in Algorithm 1, lines 7 and 8; and logits for the mixed
        labeled (B, ...) and unlabeled images (K, B, ...), which do not depend on the guesses."""
        if self.passes == "official":
            guesses, logits = targets_and_logits(model, list(views), functional.interleave([x, *u]), self.guess_weights)
            logits_x, *rest = functional.interleave(logits)
            logits_views, logits_u = torch.stack(guesses), torch.stack(rest)
        else:
            mixed = torch.cat([x, u.flatten(0, 1)])
            (guess,), (logit,) = targets_and_logits(model, [views.flatten(0, 1)], [mixed], self.guess_weights)
            logits_views, logits_u = (rows.reshape(*u.shape[:2], -1) for rows in (guess, logit[len(x) :]))
            logits_x = logit[: len(x)]
        return functional.guess_labels(logits_views.softmax(dim=-1), self.T), logits_x, logits_u

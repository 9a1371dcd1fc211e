"""The paper's equations as pure tensor functions: no state, no device logic, usable in any training loop.

Notation is the paper's (Berthelot et al., 2019, Section 3 and Algorithm 1): a batch of B labeled images `x` with
targets `p`, K augmentations `u` of B unlabeled images with guessed labels `q`, L classes.

    >>> import torch
    >>> sharpen(torch.tensor([0.6, 0.4]), T=0.5)
    tensor([0.6923, 0.3077])
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "align",
    "entropy",
    "guess_labels",
    "interleave",
    "kl_divergence",
    "labeled_loss",
    "linear_ramp",
    "mix_union",
    "mixmatch",
    "mixup",
    "moving_average",
    "pseudo_label_loss",
    "sharpen",
    "unlabeled_loss",
]


def sharpen(p: Tensor, T: float) -> Tensor:
    """Lower the entropy of the distributions `p` (..., L): p_i^(1/T) / sum_j p_j^(1/T), the paper's Equation 7.

    T = 1 changes nothing, T = 0 is the limit, all mass on the largest entry (shared where several are largest).
    """
    if not T >= 0:
        raise ValueError(f"the sharpening temperature T must be 0 or more, not {T}")
    exact = p.float() if p.dtype in (torch.bfloat16, torch.float16) else p
    # Dividing by the largest entry first keeps the power from underflowing to a row of zeros when T is small.
    tiny = torch.finfo(exact.dtype).tiny
    scaled = exact / exact.amax(dim=-1, keepdim=True).clamp_min(tiny)
    powered = scaled.pow(1 / T if T > 0 else math.inf)
    return (powered / powered.sum(dim=-1, keepdim=True).clamp_min(tiny)).to(p.dtype)


@torch.no_grad()
def guess_labels(probs: Tensor, T: float) -> Tensor:
    """Guess labels from the predictions `probs` (K, B, L) for K augmentations: their average, sharpened.

    Algorithm 1, lines 7 and 8 (Equations 6 and 7). Returns (B, L); no gradient flows through a guess (Section 3.4).
    """
    return sharpen(probs.mean(dim=0), T)


def mixup(
    x1: Tensor, p1: Tensor, x2: Tensor, p2: Tensor, lam: Tensor, keep_order: bool = True
) -> tuple[Tensor, Tensor]:
    """Mix examples (x1, p1) with (x2, p2), one lambda per example: Equations 8 to 11.

    `lam` (B,) is lambda as drawn from Beta(alpha, alpha). With `keep_order` max(lambda, 1 - lambda) is used, so that
    the result stays nearer to x1; without it this is vanilla MixUp.
    """
    return mix(x1, x2, lam, keep_order), mix(p1, p2, lam, keep_order)


def mix(a: Tensor, b: Tensor, lam: Tensor, keep_order: bool = True) -> Tensor:
    """`mixup` of examples alone, or of targets alone."""
    if lam.shape != a.shape[:1]:
        raise ValueError(f"lam needs one value per example, shape ({len(a)},), but has shape {tuple(lam.shape)}")
    lam = torch.maximum(lam, 1 - lam) if keep_order else lam
    # One-hot targets may come as whole numbers, which could not hold lambda.
    weight = lam.to(a.dtype if a.is_floating_point() else lam.dtype).reshape(-1, *[1] * (a.dim() - 1))
    return weight * a + (1 - weight) * b


def mixmatch(
    x: Tensor, p: Tensor, u: Tensor, q: Tensor, lam: Tensor, perm: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mix labeled and unlabeled examples with one shuffle of them all: Algorithm 1, lines 10 to 14.

    This is the algorithm as published, for use in any training loop. The method in `mixmatch.methods.mixmatch` does not
    call it: it calls `mix_union` for images and for targets apart, because mixed images do not depend on the guessed
    labels, and both passes of the network can then run at the same time.

    Args:
        x: augmented labeled images (B, ...).
        p: their targets (B, L).
        u: K augmentations of the unlabeled images (K, B, ...).
        q: the guessed labels (B, L), shared by the K augmentations.
        lam: one lambda for each of the B + K*B rows, as drawn from Beta(alpha, alpha).
        perm: row i of the union is mixed with row perm[i]. In MixMatch it is a shuffle of all rows; its ablations
            choose other partners.

    Returns:
        x' (B, ...), p' (B, L), u' (K, B, ...), q' (K, B, L).
    """
    x, u = mix_union(x, u, lam, perm)
    p, q = mix_union(p, q.to(p.dtype if p.is_floating_point() else q.dtype).expand(len(u), *q.shape), lam, perm)
    return x, p, u, q


def mix_union(labeled: Tensor, unlabeled: Tensor, lam: Tensor, perm: Tensor) -> tuple[Tensor, Tensor]:
    """`mixmatch` of images alone, or of targets alone: rows (B, ...) and (K, B, ...) are mixed as one batch."""
    rows = torch.cat([labeled, unlabeled.flatten(0, 1)])
    mixed = mix(rows, rows[perm], lam)
    return mixed[: len(labeled)], mixed[len(labeled) :].reshape(unlabeled.shape)


def interleave(batches: Sequence[Tensor]) -> list[Tensor]:
    """Swap rows among K + 1 batches of B rows so that each is a fair sample of all; applying it twice undoes it.

    Each batch is cut into K + 1 groups, the remainder going to the last ones (B = 64, K = 2: 21, 21, 22), and group i
    of the first batch is swapped with group i of batch i. Batch norm needs it: only the first batch updates the
    running statistics, and without the swap it would hold labeled images alone.
    """
    count, rows = len(batches), len(batches[0])
    if any(len(batch) != rows for batch in batches):
        raise ValueError(f"interleave needs batches of equal length, not {[len(batch) for batch in batches]}")
    sizes = [rows // count + (i >= count - rows % count) for i in range(count)]
    cuts = [0, *accumulate(sizes)]
    groups = [[batch[a:b] for a, b in pairwise(cuts)] for batch in batches]
    for i in range(1, count):
        groups[0][i], groups[i][i] = groups[i][i], groups[0][i]
    return [torch.cat(group) for group in groups]


def labeled_loss(logits: Tensor, p: Tensor) -> Tensor:
    """L_X, Equation 3: the mean cross-entropy of `logits` (..., L) against the soft targets `p` (..., L)."""
    return -(p * F.log_softmax(logits, dim=-1)).sum(dim=-1).mean()


def unlabeled_loss(logits: Tensor, q: Tensor) -> Tensor:
    """L_U, Equation 4: the squared difference of prediction and guess, averaged over rows and over classes."""
    return (q - F.softmax(logits, dim=-1)).square().mean()


def pseudo_label_loss(logits: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """The cross-entropy of `logits` (N, L) against `labels`, classes (N,) or distributions (N, L), each row times its
    `weight` (N,), averaged over all N rows, those of weight 0 included: FixMatch's Equation 4."""
    return (weight * F.cross_entropy(logits, labels, reduction="none")).mean()


def align(q: Tensor, target: Tensor, predicted: Tensor) -> Tensor:
    """Distribution alignment: scale the predictions `q` (N, L) by target / predicted (L,) each and normalize them, so
    that on average they come nearer to the `target`. ReMixMatch, Section 3.1; 1e-6 as in its authors' code."""
    scaled = q * (1e-6 + target) / (1e-6 + predicted)
    return scaled / scaled.sum(dim=-1, keepdim=True)


def moving_average(old: Tensor, new: Tensor, decay: float = 0.999) -> Tensor:
    """decay * old + (1 - decay) * new."""
    return decay * old + (1 - decay) * new


def kl_divergence(logits_a: Tensor, logits_b: Tensor) -> Tensor:
    """The mean over rows of KL(a || b), for the distributions softmax(logits_a) and softmax(logits_b), (..., L)."""
    log_a, log_b = F.log_softmax(logits_a, dim=-1), F.log_softmax(logits_b, dim=-1)
    return (log_a.exp() * (log_a - log_b)).sum(dim=-1).mean()


def entropy(logits: Tensor) -> Tensor:
    """The mean over rows of the entropy of softmax(logits), (..., L)."""
    log_p = F.log_softmax(logits, dim=-1)
    return -(log_p.exp() * log_p).sum(dim=-1).mean()


def linear_ramp(step: Tensor, length: float) -> Tensor:
    """A weight that grows linearly from 0 at the first step to 1 at step `length`, and stays there; for a length of 0
    it is always 1."""
    return (step / length).clamp(0, 1) if length > 0 else torch.ones_like(step)

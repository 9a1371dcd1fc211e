"""Virtual Adversarial Training (Miyato et al., 2018) with entropy minimization, as the paper compares with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mixmatch import functional
from mixmatch.methods.base import Batch, Method, Predictor, Progress, Step, Tensors, forward_each, setting


@dataclass(frozen=True)
class VAT(Method):
    """Predictions should not change under the small perturbation that would change them most.

    That perturbation is found by one step of power iteration, which differentiates the network with respect to its
    input. The step is taken in full precision: rounding to bf16 or TF32 is larger than the change it looks for.
    """

    vat_weight: float = setting(0.3, "Weight of the adversarial loss.", least=0, search=10)
    epsilon: float = setting(
        6.0, "Length (L2) of the perturbation of an image with pixels in [-1, 1].", above=0, search=4
    )
    xi: float = setting(1e-6, "Length of the trial perturbation of the power iteration.", above=0)
    entropy_weight: float = setting(0.06, "Weight of the entropy of predictions; without a ramp.", least=0, search=10)
    divergence: Literal["official", "paper"] = setting(
        "official",
        "`official` is KL(perturbed || clean), which produced the paper's numbers; `paper` is KL(clean || perturbed), "
        "as VAT's own paper defines it.",
    )
    warmup: float = setting(
        0.4, "Part of the training over which its weight rises linearly from 0.", within=(0, 1), of_steps=bool
    )

    views = ("weak",)
    noise = True

    def loss(self, model: Predictor, batch: Batch, draws: Tensors, progress: Progress, state: Tensors) -> Step:
        u = batch.u[0]
        logits_x, clean = forward_each(model, [batch.x, u], stats="update")
        loss_x = functional.labeled_loss(logits_x, batch.y)
        perturbed = model(u + self.perturbation(model, u, draws["noise"]))
        if self.divergence == "official":
            loss_vat = functional.kl_divergence(perturbed, clean.detach())
        else:
            loss_vat = functional.kl_divergence(clean.detach(), perturbed)
        entropy = functional.entropy(clean)
        loss = loss_x + self.vat_weight * progress.ramp(self.warmup) * loss_vat + self.entropy_weight * entropy
        confidence = clean.detach().softmax(dim=-1).amax(dim=-1).mean()
        metrics = {"loss": loss, "loss_x": loss_x, "loss_u": loss_vat, "entropy": entropy, "confidence": confidence}
        return Step(loss, metrics)

    @torch.no_grad()
    def perturbation(self, model: Predictor, u: Tensor, noise: Tensor) -> Tensor:
        """The virtual adversarial perturbation of each image, of length `epsilon`."""
        clean = model(u, full_precision=True)

        def divergence(d: Tensor) -> Tensor:
            return functional.kl_divergence(clean, model(u + d, full_precision=True))

        # torch.func differentiates with respect to d alone, also where gradients are otherwise off.
        gradient = torch.func.grad(divergence)(self.xi * _unit(noise))
        return self.epsilon * _unit(gradient)


def _unit(d: Tensor) -> Tensor:
    """Each row scaled to length 1: first by its largest entry, so that squares neither vanish nor overflow."""
    axes = tuple(range(1, d.dim()))
    d = d / (1e-12 + d.abs().amax(dim=axes, keepdim=True))
    return d / (1e-6 + d.square().sum(dim=axes, keepdim=True)).sqrt()

"""Frozen features: a fixed network turns each image into a list of numbers once, and a small network learns from those.

`basic` needs no weights from anywhere: histograms of gradients, mean colors, and filters found in the images themselves
(Coates, Lee, Ng 2011). `timm:NAME` is a pretrained network.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixmatch.errors import MixMatchError, unknown
from mixmatch.networks.timm_backbone import PREFIX, build_frozen_timm

BASIC = "basic"
ON = ">"
"""In the name of a network: FEATURES>HEAD."""

MOST_CHANNELS = 4096
"""Of images, so that the kernels of the first layer fit in memory."""

SIZE, CELLS, ANGLES, GRID = 32, (4, 8), 9, 4
PATCH, FILTERS, QUARTERS = 6, 128, 2
SAMPLED, ROUNDS = 20_000, 10
AT_ONCE = 8
"""Images at a time on a CPU: their responses to all filters, 3 MB, stay in its cache, which is three times as fast."""
CONTRAST, RIDGE, THRESHOLD = 0.01, 0.1, 0.5
"""Added to a patch's variance and to the eigenvalues of their covariance; how strong a response must be to count."""


class Basic(nn.Module):
    """Features from the pixels: what edges there are and where, what colors, and which of `FILTERS` small patterns.

    The image is brought to 32x32. Edges: histograms of 9 gradient directions in 4x4 cells, and in 8x8 where the
    image is not smaller than 32x32 (digits of 8x8 pixels had 18 % error with them, 3 % without), normalized over blocks
    of 2x2 cells (HOG). Colors: means over a 4x4 grid. Patterns: how strongly 6x6 patches, whitened, respond to
    filters that `fit` finds by spherical k-means, positive and negative, averaged over the quarters of the image.

    Takes (N, C, H, W) in [-1, 1], gives (N, feature_size).
    """

    def __init__(self, channels: int, size: int = SIZE) -> None:
        """`size` is that of the images' shorter side."""
        super().__init__()
        self.channels, self.cells = channels, CELLS if size >= SIZE else CELLS[:1]
        blocks = sum(4 * ANGLES * (cells - 1) ** 2 for cells in self.cells)
        self.feature_size = blocks + channels * GRID**2 + 2 * FILTERS * QUARTERS**2
        self.register_buffer("kernels", torch.zeros(FILTERS, channels, PATCH, PATCH))
        self.register_buffer("offset", torch.zeros(FILTERS))

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return self._features(x)
        return torch.cat([self._features(part) for part in torch.split(x, AT_ONCE)])

    def _features(self, x: Tensor) -> Tensor:
        x = _resized(x)
        parts = [*self._edges(x), F.adaptive_avg_pool2d(x, GRID), self._patterns(x)]
        return torch.cat([part.flatten(1) for part in parts], dim=1)

    def _edges(self, x: Tensor) -> list[Tensor]:
        """For each number of cells, blocks (N, 4 ANGLES, cells - 1, cells - 1)."""
        padded = F.pad(x, (1, 1, 1, 1), mode="replicate")
        across = padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2]
        down = padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]
        strongest = (across**2 + down**2).argmax(dim=1, keepdim=True)  # of the channels
        across, down = across.gather(1, strongest), down.gather(1, strongest)
        position = torch.atan2(down, across) * (ANGLES / math.pi)  # an edge and its opposite are alike
        angles = torch.arange(ANGLES, device=x.device).view(1, ANGLES, 1, 1)
        apart = (position - angles) % ANGLES
        share = (1 - torch.minimum(apart, ANGLES - apart)).clamp(min=0)
        strength = share * (across**2 + down**2 + 1e-12).sqrt()
        found = []
        for number in self.cells:
            cells, last = F.adaptive_avg_pool2d(strength, number), number - 1
            blocks = torch.cat([cells[:, :, i : i + last, j : j + last] for i in (0, 1) for j in (0, 1)], dim=1)
            found.append(_unit(_unit(blocks).clamp(max=0.2)))
        return found

    def _patterns(self, x: Tensor) -> Tensor:
        kernels = self.get_buffer("kernels")
        mean = F.avg_pool2d(x.mean(dim=1, keepdim=True), PATCH, stride=1)
        square = F.avg_pool2d((x * x).mean(dim=1, keepdim=True), PATCH, stride=1)
        deviation = ((square - mean * mean).clamp(min=0) + CONTRAST).sqrt()
        total = kernels.sum(dim=(1, 2, 3)).view(1, -1, 1, 1)
        response = (F.conv2d(x, kernels) - mean * total) / deviation - self.get_buffer("offset").view(1, -1, 1, 1)
        strong = torch.cat([(response - THRESHOLD).clamp(min=0), (-response - THRESHOLD).clamp(min=0)], dim=1)
        return F.adaptive_avg_pool2d(strong, QUARTERS)

    @torch.no_grad()
    def fit(self, images: npt.NDArray[np.uint8]) -> None:
        """Find the filters in uint8 images (N, H, W, C). The same images give the same filters."""
        rng = np.random.default_rng(0)
        chosen = np.sort(rng.choice(len(images), min(len(images), SAMPLED // 10), replace=False))
        each = -(-SAMPLED // len(chosen))
        found = []
        for row in chosen:
            x = torch.from_numpy(np.array(images[row])).movedim(-1, 0)[None] * (2 / 255) - 1
            x = _resized(x)
            every = F.unfold(x, PATCH)[0].T
            found.append(every[torch.from_numpy(rng.integers(0, len(every), each))])
        patches = torch.cat(found).double()
        patches = patches - patches.mean(dim=1, keepdim=True)
        patches = patches / (patches.square().mean(dim=1, keepdim=True) + CONTRAST).sqrt()
        mean = patches.mean(dim=0)
        values, vectors = torch.linalg.eigh(torch.cov(patches.T))
        whiten = vectors @ torch.diag((values.clamp(min=0) + RIDGE).rsqrt()) @ vectors.T
        patches = (patches - mean) @ whiten
        centers = _unit(torch.from_numpy(rng.standard_normal((FILTERS, patches.shape[1]))))
        for _ in range(ROUNDS):
            response = patches @ centers.T
            nearest = response.abs().argmax(dim=1)
            pull = response.gather(1, nearest[:, None]) * patches
            centers = _unit(centers + torch.zeros_like(centers).index_add_(0, nearest, pull))
        kernels = centers @ whiten
        self.get_buffer("kernels").copy_(kernels.view(FILTERS, self.channels, PATCH, PATCH))
        self.get_buffer("offset").copy_(kernels @ mean)


def _unit(x: Tensor) -> Tensor:
    """Scaled to length 1 over the second dimension."""
    return x / (x.square().sum(dim=1, keepdim=True) + 1e-4).sqrt()


def _resized(x: Tensor) -> Tensor:
    """Images of `SIZE` pixels."""
    if x.shape[-1] > SIZE:
        return F.adaptive_avg_pool2d(x, SIZE)
    return x if x.shape[-1] == SIZE else F.interpolate(x, (SIZE, SIZE), mode="bilinear")


class Embedded(nn.Module):
    """A frozen network that gives features, and a head that learns from them.

    Takes images (N, C, H, W), or features (N, F) that were computed before and standardized; gives logits. The frozen
    part is never in training mode, and its weights have no gradient.
    """

    def __init__(self, frozen: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.frozen, self.head = frozen.requires_grad_(False).eval(), head
        size: Any = frozen.feature_size
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("deviation", torch.ones(size))
        if isinstance(inner := getattr(head, "feature_size", None), int):
            self.feature_size = inner

    def train(self, mode: bool = True) -> Embedded:
        super().train(mode)
        self.frozen.eval()
        return self

    def embed(self, x: Tensor) -> Tensor:
        """Standardized features of images; features stay as they are."""
        if x.ndim == 2:
            return x
        features: Tensor = self.frozen(x)
        return (features - self.get_buffer("mean")) / self.get_buffer("deviation")

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.embed(x))
        return logits

    def features(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.head.features(self.embed(x))  # type: ignore[operator]
        return hidden

    def classify(self, features: Tensor) -> Tensor:
        logits: Tensor = self.head.classify(features)  # type: ignore[operator]
        return logits


def weights_sha256(network: nn.Module) -> str:
    """A hash of all weights: what was computed with others is computed again."""
    content = hashlib.sha256()
    for tensor in network.state_dict().values():
        content.update(np.ascontiguousarray(tensor.cpu().numpy()).tobytes())
    return content.hexdigest()


def build_frozen(
    name: str, input_shape: tuple[int, ...], weights: str | Path | None = None, *, pretrained: bool = True
) -> nn.Module:
    """The network that gives features of images (channels, height, width), by name: `basic` or `timm:NAME`.

    Args:
        weights: of a timm model, a file; None is timm's own, which it downloads once.
        pretrained: False leaves the weights as they fall, for a caller who fills them in.
    """
    if len(input_shape) != 3:
        raise MixMatchError(f"features={name} is for images, but the data holds features already: leave it out")
    if input_shape[0] > MOST_CHANNELS:
        raise MixMatchError(
            f"features={name} takes images of at most {MOST_CHANNELS:,} channels, not {input_shape[0]:,}"
        )
    if name.startswith(PREFIX):
        return build_frozen_timm(name, input_shape, weights, pretrained=pretrained)
    if name != BASIC:
        raise unknown("features", name, [BASIC, f"{PREFIX}NAME"])
    if weights:
        raise MixMatchError("weights= is for timm:NAME, and features=basic has none: leave it out")
    return Basic(input_shape[0], min(input_shape[1:]))

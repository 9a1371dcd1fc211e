"""One kernel launch per layer: picks the kernel and its tile, and hands over its arguments."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from mixmatch.networks.cuda import lines, tiles, tma
from mixmatch.networks.cuda.shape import EPS, Convolution, Norm
from mixmatch.networks.cuda.tiles import Work
from mixmatch.networks.wide_resnet import SLOPE

DTYPE = torch.bfloat16
"""Of images, activations and weights in the kernels; sums are in float32."""


def pack_weights(parameters: Sequence[Tensor]) -> Tensor:
    """The convolutions' weights in one flat tensor, each (out, height, width, in); and a zero at the end."""
    weights = [p.detach().permute(0, 2, 3, 1).reshape(-1) for p in parameters if p.dim() == 4]
    return torch.cat([*weights, weights[0].new_zeros(1)]).to(DTYPE)


@cache
def expanded_index(
    convolutions: tuple[Convolution, ...], backward: bool, device: torch.device
) -> tuple[Tensor, list[int]]:
    """Where in `pack_weights` the weights for `convolve_few_channels` are, and how many each convolution has.

    They are (pixels_per_row, out, 3, pixels_per_row + 2, in) for each convolution of several pixels per row, and refer
    to the zero at the end for inputs that a pixel does not have. Backwards, in and out are exchanged and the kernel is
    flipped. Never freed: CUDA graphs read it.
    """
    places, counts, start = [], [], 0
    zero = sum(c.weights for c in convolutions)
    for c in convolutions:
        pixels = c.pixels_per_row
        if pixels > 1:
            weights = start + torch.arange(c.weights).view(c.out_channels, c.kernel, c.kernel, c.in_channels)
            weights = weights.permute(3, 1, 2, 0).flip(1, 2) if backward else weights
            shifted = [nn.functional.pad(weights, (0, 0, i, pixels - 1 - i), value=zero) for i in range(pixels)]
            places.append(torch.stack(shifted).flatten())
        counts.append(len(places[-1]) if pixels > 1 else 0)
        start += c.weights
    index = torch.cat(places) if places else torch.empty(0)
    return index.to(device, torch.int32), counts


class Launcher:
    """Launches the kernels of a pass over images in batches of one size, each normalized by itself.

    Args:
        convolutions: all of the pass, in its order.
        norms: all of the pass, in its order.
        packed: the convolutions' weights, from `pack_weights`.
        parameters: weight and bias of each convolution, then of each norm.
        x: the images (N, H, W, C).
        batch_size: images of a batch.
        constants: the last so many images of a joint batch count in its statistics alone. They have no gradient, so
            backwards they are not among x.
    """

    def __init__(
        self,
        convolutions: tuple[Convolution, ...],
        norms: tuple[Norm, ...],
        packed: Tensor,
        parameters: Sequence[Tensor],
        x: Tensor,
        batch_size: int,
        constants: int = 0,
    ) -> None:
        from mixmatch.networks.cuda import kernels  # imports Triton

        self.kernels = kernels
        self.convolutions, self.packed = convolutions, packed
        self.images, self.batch_size, self.constants = len(x), batch_size, constants
        self.all_channels = sum(norm.channels for norm in norms)
        self.precision = "ieee" if x.dtype == torch.float32 else "tf32"
        pairs = list(zip(parameters[::2], parameters[1::2], strict=True))
        self.biases = [bias for _, bias in pairs[: len(convolutions)]]
        self.norms = pairs[len(convolutions) :]  # gamma and beta
        self.weights = torch.split(packed[:-1], [c.weights for c in convolutions])

    def over(self, x: Tensor, batch_size: int) -> Launcher:
        """For other images, with the same weights."""
        other = copy.copy(self)
        other.images, other.batch_size, other.constants = len(x), batch_size, 0
        return other

    def expand_weights(self, backward: bool) -> None:
        """Make the weights of convolutions with several pixels per row, for the passes forwards or backwards."""
        index, counts = expanded_index(self.convolutions, backward, self.packed.device)
        self.expanded = torch.split(self.packed.index_select(0, index), counts)

    def zero_sums(self) -> Tensor:
        """Sums for batch norm, (batches, 2, channels of all norms). A joint batch has a second row, for the images that
        are learned from."""
        rows = 2 if self.constants else self.images // self.batch_size
        return torch.zeros(rows, 2, self.all_channels, dtype=torch.float32, device=self.packed.device)

    def batch_pixels(self, size: int) -> int:
        """Pixels of a batch of images of this size."""
        return self.batch_size * size * size

    def learned_pixels(self, size: int) -> int:
        """Those of a batch that are learned from."""
        return self.batch_pixels(size) - self.constants * size * size

    def divisible_pixels(self, size: int) -> int:
        """What tiles must divide: the pixels of a batch, and those of it that are learned from."""
        return math.gcd(self.batch_pixels(size), self.learned_pixels(size))

    def convolve(
        self,
        x: Tensor,
        conv: Convolution,
        *,
        backward: bool = False,
        residual: Tensor | None = None,
        norm: Norm | None = None,
        sums: Tensor | None = None,
        norm_input: Tensor | None = None,
        norm_input_sums: Tensor | None = None,
    ) -> Tensor:
        """The convolution of x plus the residual; `norm` is what its output enters, to whose `sums` it adds.

        Backwards, x is the gradient of the convolution's output, and the result that of its input. `norm` is then where
        the input came from: the gradient is taken on through leaky ReLU to the norm's output, for which the norm's own
        input and its sums are needed, and added to the `sums` of gradients.
        """
        work = Work.BACKWARD if backward else Work.FORWARD
        kernel, stride, pixels = conv.kernel, conv.stride, conv.pixels_per_row
        in_channels, out_channels = conv.in_channels, conv.out_channels
        in_size, out_size = conv.in_size, conv.out_size
        if backward:
            in_channels, out_channels, in_size, out_size = out_channels, in_channels, out_size, in_size
        y = x.new_empty(self.images, out_size, out_size, out_channels)
        # Backwards through a stride, a tile holds every stride-th pixel of every stride-th line.
        rows = self.divisible_pixels(out_size) // (pixels * stride**2 if backward else pixels)
        tile, block = tiles.conv_tile(work, False, rows, kernel, in_channels, out_channels, pixels), None
        suits = kernel == 3 and stride == 1 and tma.enough_channels(work, in_channels, out_channels)
        if suits and tma.uses_tma(x.device):
            tma_tile = tiles.conv_tile(work, True, rows, kernel, in_channels, out_channels, pixels)
            block = tma.block_of(tma_tile.bm, out_size, pixels)
            tile = tma_tile if block else tile
        offset = norm.offset if norm else 0
        gamma, beta = self.norms[norm.index if norm else 0]
        weights = self.expanded[conv.index] if pixels > 1 else self.weights[conv.index]
        line_tile = None
        if suits and lines.suits(work, in_channels, out_channels, pixels) and lines.runs_on(x.device):
            divisible = self.divisible_pixels(1)
            line_tile = tiles.line_tile(work, self.images, divisible, out_size, in_channels, out_channels, pixels)
        if line_tile and sums is not None and (residual is None or norm_input is None):
            own_sums = sums[:, :, offset:]
            lines.convolve(
                x,
                weights,
                residual if norm_input is None else norm_input,
                y,
                pixels,
                backward and pixels == 1,
                line_tile,
                self.biases[conv.index],
                own_sums,
                own_sums if norm_input_sums is None else norm_input_sums[:, :, offset:],
                gamma,
                beta,
                self.all_channels,
                self.learned_pixels(out_size),
                self.batch_pixels(out_size),
                BACKWARD=backward,
                RESIDUAL=residual is not None,
                JOINT=self.constants > 0,
                EPS=EPS,
                SLOPE=SLOPE,
            )
            return y
        # A kernel does not touch the tensors that its flags turn off: y takes their place.
        tensors = (
            self.biases[conv.index],
            y if residual is None else residual,
            y,
            y if sums is None else sums[:, :, offset:],
            y if norm_input is None else norm_input,
            y if norm_input_sums is None else norm_input_sums[:, :, offset:],
            gamma,
            beta,
            self.all_channels,
            self.learned_pixels(out_size),
            self.batch_pixels(out_size),
        )
        options = {
            "H": out_size,
            "W": out_size,
            "IN_C": in_channels,
            "OUT_C": out_channels,
            "BACKWARD": backward,
            "BIAS": not backward,
            "RESIDUAL": residual is not None,
            "SUMS": sums is not None,
            "JOINT": self.constants > 0,
            "EPS": EPS,
            "SLOPE": SLOPE,
            "PRECISION": self.precision,
            "BM": tile.bm,
            "BN": tile.bn,
            "BK": tile.bk,
            "num_warps": tile.warps,
            "num_stages": tile.stages,
        }
        grid = (self.images * out_size * out_size // pixels // tile.bm, out_channels * pixels // tile.bn)
        if block:
            if backward and pixels == 1:
                matrix = tma.descriptor(weights.view(in_channels, -1), tile.bk, tile.bn)
            else:
                matrix = tma.descriptor(weights.view(pixels * out_channels, -1), tile.bn, tile.bk)
            inputs = tma.descriptor(x.view(self.images, out_size, -1, pixels * in_channels), *block, tile.bk)
            self.kernels.convolve_tma[grid](inputs, matrix, *tensors, PIXELS_PER_ROW=pixels, **options)
        elif pixels > 1:
            self.kernels.convolve_few_channels[grid](x, weights, *tensors, PIXELS_PER_ROW=pixels, **options)
        else:
            pad = kernel // 2 if stride == 1 else 0
            self.kernels.convolve[grid](
                x, weights, *tensors, IN_H=in_size, IN_W=in_size, SIZE=kernel, STRIDE=stride, PAD=pad, **options
            )
        return y

    def weight_gradient(self, x: Tensor, g: Tensor, conv: Convolution, out: Tensor) -> None:
        """Add the gradient of a convolution's weights, from its input x and its output's gradient g, to `out`."""
        in_channels, out_channels, kernel, stride = conv.in_channels, conv.out_channels, conv.kernel, conv.stride
        size, pixels = conv.out_size, conv.pixels_per_row
        rows = self.images * size * size // pixels
        suits = kernel == 3 and stride == pixels == 1 and tma.enough_channels(Work.WEIGHTS, in_channels, out_channels)
        tile, block = tiles.weight_tile(False, rows, kernel, in_channels, out_channels, pixels), None
        if suits and tma.uses_tma(x.device):
            tma_tile = tiles.weight_tile(True, rows, kernel, in_channels, out_channels)
            block = tma.block_of(tma_tile.bm, size)
            tile = tma_tile if block else tile
        options = {
            "H": size,
            "W": size,
            "IN_C": in_channels,
            "OUT_C": out_channels,
            "PRECISION": self.precision,
            "BM": tile.bm,
            "BN": tile.bn,
            "num_warps": tile.warps,
            "num_stages": tile.stages,
        }
        grid = (kernel * (kernel // tile.taps), pixels * out_channels // tile.bn, tile.parts)
        if block:
            inputs = tma.descriptor(x, *block, in_channels)
            outputs = tma.descriptor(g.view(rows, out_channels), tile.bm, tile.bn)
            self.kernels.weight_gradient_tma[grid](inputs, outputs, out, rows // tile.parts, **options)
            return
        self.kernels.weight_gradient[grid](
            x,
            g,
            out,
            rows // tile.parts,
            IN_H=conv.in_size,
            IN_W=conv.in_size,
            SIZE=kernel,
            STRIDE=stride,
            PAD=kernel // 2 if stride == 1 else 0,
            PIXELS_PER_ROW=pixels,
            TAPS=tile.taps,
            COLUMNS=max(16, 1 << ((tile.taps + pixels - 1) * in_channels - 1).bit_length()),
            **options,
        )

    def normalize(self, x: Tensor, norm: Norm, sums: Tensor) -> Tensor:
        """Leaky ReLU of batch norm of x."""
        y = torch.empty_like(x)
        tensors = (x, sums[:, :, norm.offset :], *self.norms[norm.index], y)
        self._pointwise(self.kernels.normalize, norm, *tensors, SLOPE=SLOPE)
        return y

    def pool(self, x: Tensor, norm: Norm, sums: Tensor, out: Tensor) -> None:
        """Write the mean over each image's pixels of leaky ReLU of batch norm of x to `out`, (N, C)."""
        pixels = norm.size * norm.size
        self.kernels.pool[(self.images,)](
            x,
            sums[:, :, norm.offset :],
            *self.norms[norm.index],
            out,
            self.all_channels,
            self.batch_pixels(norm.size),
            C=norm.channels,
            PIXELS=pixels,
            EPS=EPS,
            SLOPE=SLOPE,
            BM=min(64, pixels & -pixels),
        )

    def pool_gradient(self, g: Tensor, x: Tensor, norm: Norm, sums: Tensor, g_sums: Tensor) -> Tensor:
        """The gradient of the norm's output, from that of what was pooled; adds to the sums of gradients."""
        y = torch.empty_like(x)
        tensors = (g, x, sums[:, :, norm.offset :], *self.norms[norm.index], y, g_sums[:, :, norm.offset :])
        self._pointwise(self.kernels.pool_gradient, norm, *tensors, PIXELS=norm.size * norm.size, SLOPE=SLOPE)
        return y

    def norm_gradient(
        self, g: Tensor, x: Tensor, norm: Norm, sums: Tensor, g_sums: Tensor, residual: Tensor | None = None
    ) -> Tensor:
        """The gradient of the norm's input x, from that of its output, plus the residual."""
        y = torch.empty_like(x)
        gamma, _ = self.norms[norm.index]
        tensors = (
            g,
            x,
            sums[:, :, norm.offset :],
            g_sums[:, :, norm.offset :],
            gamma,
            y if residual is None else residual,
            y,
            self.learned_pixels(norm.size),
        )
        flags = {"RESIDUAL": residual is not None, "JOINT": self.constants > 0}
        self._pointwise(self.kernels.norm_gradient, norm, *tensors, **flags)
        return y

    def _pointwise(self, kernel: Any, norm: Norm, *arguments: Any, **options: Any) -> None:
        """Launch a kernel that takes each value of a norm's input, or output, by itself."""
        pixels = self.batch_pixels(norm.size)
        bm = tiles.pointwise_rows(self.divisible_pixels(norm.size), norm.channels)
        grid = (self.images * norm.size * norm.size // bm,)
        kernel[grid](*arguments, self.all_channels, pixels, C=norm.channels, EPS=EPS, BM=bm, **options)

"""The wide residual network on CUDA in few kernels: two for each convolution forwards, and three backwards.

The same network as `WideResNet`, computed in bf16: batch norm's statistics are added up where a convolution has its
output at hand, and images of several batches share each kernel, every batch normalized by itself. What nothing waits
for runs beside the rest, in a stream of its own: the pass over images that only targets come from, and gradients of
weights. Biases of convolutions get no gradient: batch norm takes away what they add, so it is exactly zero.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mixmatch.networks.wide_resnet import SLOPE, Block, WideResNet

EPS = 1e-3
NUMBERS = torch.bfloat16
"""What images and what becomes of them are kept in; sums are in float32."""


@dataclass(frozen=True)
class BlockShape:
    """A residual block and the image it gets."""

    in_channels: int
    channels: int
    stride: int
    size: int
    shortcut: bool
    activate_shortcut: bool


@dataclass(frozen=True)
class Shape:
    """A network and its images, as far as kernels must know."""

    in_channels: int
    size: int
    blocks: tuple[BlockShape, ...]

    @property
    def norms(self) -> list[int]:
        """Channels of each batch norm, in the order of a pass."""
        channels = [c for block in self.blocks for c in (block.in_channels, block.channels)]
        return [*channels, self.blocks[-1].channels]

    @property
    def norm_sizes(self) -> list[int]:
        """Pixels on a side of what each of them gets."""
        sizes = [size for block in self.blocks for size in (block.size, block.size // block.stride)]
        return [*sizes, sizes[-1]]

    @property
    def spans(self) -> list[int]:
        """Pixels computed together by each convolution, in the order of `names`."""
        spans = [span(self.in_channels, self.blocks[0].in_channels, self.size)]
        for b in self.blocks:
            first = span(b.in_channels, b.channels, b.size) if b.stride == 1 else 1
            spans += [first, span(b.channels, b.channels, b.size // b.stride)] + [1] * b.shortcut
        return spans

    @property
    def output_sizes(self) -> list[int]:
        """Pixels on a side of what each of them gives."""
        sizes = [self.size]
        for b in self.blocks:
            sizes += [b.size // b.stride] * (2 + b.shortcut)
        return sizes

    def encoded(self) -> list[int]:
        flat = [self.in_channels, self.size]
        for b in self.blocks:
            flat += [b.in_channels, b.channels, b.stride, b.size, int(b.shortcut), int(b.activate_shortcut)]
        return flat

    @staticmethod
    @cache
    def decoded(flat: tuple[int, ...]) -> Shape:
        blocks = []
        for i in range(2, len(flat), 6):
            into, channels, stride, size, shortcut, activate = flat[i : i + 6]
            blocks.append(BlockShape(into, channels, stride, size, bool(shortcut), bool(activate)))
        return Shape(flat[0], flat[1], tuple(blocks))


def span(in_channels: int, out_channels: int, size: int) -> int:
    """Neighbouring pixels that a convolution of 3x3 computes together: two where channels are few, which saves reading
    inputs, at the price of a third more to multiply."""
    return 2 if max(in_channels, out_channels) <= 32 and size % 2 == 0 else 1


def shape_of(network: nn.Module, image: Sequence[int]) -> Shape | None:
    """The shape of a network for images (C, H, W); None if the kernels are not made for it."""
    if type(network) is not WideResNet or len(image) != 3 or image[1] != image[2]:
        return None
    blocks, size = [], image[1]
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    momentum = norms[-1].momentum if norms else None
    alike = {(norm.eps, norm.momentum, norm.affine, norm.track_running_stats) for norm in norms}
    if len(norms) != 2 * len(network.blocks) + 1 or momentum is None or alike != {(EPS, momentum, True, True)}:
        return None  # someone has put other parts in
    if type(network.head) is not nn.Linear or network.head.bias is None:
        return None
    for block in network.blocks:
        assert isinstance(block, Block)
        stride = block.conv1.stride[0]
        channels = block.conv1.out_channels
        if size % stride or channels & (channels - 1) or channels < 16:
            return None
        blocks.append(
            BlockShape(
                block.conv1.in_channels,
                channels,
                stride,
                size,
                not isinstance(block.shortcut, nn.Identity),
                block.activate_shortcut,
            )
        )
        size //= stride
    return Shape(image[0], image[1], tuple(blocks))


@cache
def available() -> bool:
    """Whether there is Triton, and a GPU whose tensor cores know bf16."""
    return (
        find_spec("triton") is not None and torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)
    )


def fits(shape: Shape, sizes: Sequence[int]) -> bool:
    """Whether batches of these sizes, in one pass, divide into tiles, and 32 bits can count their values."""
    largest = max(b.size**2 * max(b.in_channels, b.channels // b.stride**2) for b in shape.blocks)
    outputs = zip(shape.output_sizes, shape.spans, strict=True)
    tiles = all(size * side**2 % (16 * span) == 0 for side, span in outputs for size in sizes)
    return tiles and sum(sizes) * max(largest, shape.size**2 * shape.in_channels) < 2**31


def problem(network: nn.Module, shape: Shape, images: int, device: torch.device) -> Exception | None:
    """What goes wrong when the kernels run here, tried on a blank batch; None if nothing does. A GPU may have too
    little memory on its chip for tiles that suit another. If it is the copying of boxes, they are done without."""
    x = torch.zeros(images, shape.in_channels, shape.size, shape.size, device=device)
    error = _trial(network, shape, x)
    if error is not None and copies_boxes(x.device):
        _without_boxes.add(x.device)
        error = _trial(network, shape, x)
    return error


def _trial(network: nn.Module, shape: Shape, x: Tensor) -> Exception | None:
    tensors = {name: value.detach().to(x.device) for name, value in network.state_dict().items()}
    learned = [tensors[name].requires_grad_() for name in names(shape)]
    try:
        (guess,), (logits,) = forward(network, shape, tensors, [x], [x], update=False)
        torch.autograd.grad(logits.sum(), learned, allow_unused=True)
        float(logits.detach().sum() + guess.sum())
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        return error
    return None


def names(shape: Shape) -> list[str]:
    """The parameters the kernels take, in order: convolutions' weights and biases, then norms' gammas and betas."""
    convolutions = ["stem"]
    norms = []
    for i, block in enumerate(shape.blocks):
        convolutions += [f"blocks.{i}.conv1", f"blocks.{i}.conv2"]
        convolutions += [f"blocks.{i}.shortcut"] if block.shortcut else []
        norms += [f"blocks.{i}.norm1", f"blocks.{i}.norm2"]
    norms.append("norm")
    return [
        *(f"{name}.{kind}" for name in convolutions for kind in ("weight", "bias")),
        *(f"{name}.{kind}" for name in norms for kind in ("weight", "bias")),
    ]


def forward(
    network: nn.Module,
    shape: Shape,
    tensors: Mapping[str, Tensor],
    quiet: Sequence[Tensor],
    learned: Sequence[Tensor],
    update: bool,
    quiet_tensors: Mapping[str, Tensor] | None = None,
) -> tuple[list[Tensor], list[Tensor]]:
    """Logits of batches of images (N, C, H, W), each normalized by itself: those of the quiet ones, without gradient
    and if wanted with weights of their own, and of the others. Batches of a kind are of one size. `update` lets the
    first of the latter move the running statistics."""
    weights = [tensors[name] for name in names(shape)]
    others = [quiet_tensors[name] for name in names(shape)] if quiet and quiet_tensors is not None else []
    kernels = packed(weights)
    save = torch.is_grad_enabled() and any(w.requires_grad for w in weights)
    images = _images(learned)
    quiet_images = _images(quiet) if quiet else images.new_empty(0, *images.shape[1:])
    sizes = [len(quiet[0]) if quiet else 1, len(learned[0])]
    guessed, pooled, sums, *_ = _features(
        quiet_images,
        images,
        packed(others) if others else kernels,
        kernels,
        [*weights, *others],
        sizes,
        shape.encoded(),
        save,
    )
    if update:
        _update_running(network, shape, tensors, sums[0].detach(), sizes[1])
    with torch.no_grad():
        guesses = _head(tensors if quiet_tensors is None else quiet_tensors, guessed)
    logits = _head(tensors, pooled)
    return list(torch.split(guesses, sizes[0])) if quiet else [], list(torch.split(logits, sizes[1]))


def _head(tensors: Mapping[str, Tensor], features: Tensor) -> Tensor:
    weight, bias = (tensors[f"head.{kind}"].to(NUMBERS) for kind in ("weight", "bias"))
    return nn.functional.linear(features.to(NUMBERS), weight, bias).float()


def _images(batches: Sequence[Tensor]) -> Tensor:
    """All of them, one after the other, as the kernels want them."""
    return torch.cat(list(batches)).permute(0, 2, 3, 1).to(NUMBERS).contiguous()


def packed(weights: list[Tensor]) -> Tensor:
    """The convolutions' weights, one after the other, in the numbers and the order of memory the kernels want; and a
    zero."""
    kernels = [w.detach().permute(0, 2, 3, 1).reshape(-1) for w in weights if w.dim() == 4]
    return torch.cat([*kernels, kernels[0].new_zeros(1)]).to(NUMBERS)


@cache
def spread(
    shapes: tuple[tuple[int, ...], ...], spans: tuple[int, ...], backward: bool, device: torch.device
) -> tuple[Tensor, list[int]]:
    """Where in `packed` the weights of convolutions that span pixels lie, for all those pixels: as many times (span,
    out, 3, span + 2, in), the zero where a pixel is not reached; and how many each convolution has. Backwards in and
    out have changed places and the kernel is turned. Kept for good: recordings read it."""
    places, counts, start = [], [], 0
    zero = sum(math.prod(shape) for shape in shapes)
    for (out, into, height, width), pixels in zip(shapes, spans, strict=True):
        own = start + torch.arange(out * height * width * into).view(out, height, width, into)
        start += own.numel()
        own = own.permute(3, 1, 2, 0).flip(1, 2) if backward else own
        wide = [nn.functional.pad(own, (0, 0, i, pixels - 1 - i), value=zero) for i in range(pixels)]
        places += [torch.stack(wide).flatten()] if pixels > 1 else []
        counts.append(len(places[-1]) if pixels > 1 else 0)
    index = torch.cat(places) if places else torch.empty(0)
    return index.to(device, torch.int32), counts


@torch.no_grad()
def _update_running(network: nn.Module, shape: Shape, tensors: Mapping[str, Tensor], sums: Tensor, images: int) -> None:
    """Move the running statistics towards those of a batch, as `nn.BatchNorm2d` does."""
    prefixes = [f"blocks.{i}.norm{j}" for i in range(len(shape.blocks)) for j in (1, 2)] + ["norm"]
    assert isinstance(network, WideResNet)
    momentum = network.norm.momentum
    assert momentum is not None
    means, variances = [], []
    for size, part in zip(shape.norm_sizes, torch.split(sums, shape.norms, dim=1), strict=True):
        rows = images * size * size
        mean = part[0] / rows
        means.append(mean)
        variances.append((part[1] / rows - mean * mean).clamp_min(0) * (rows / (rows - 1)))
    torch._foreach_lerp_([tensors[f"{prefix}.running_mean"] for prefix in prefixes], means, momentum)
    torch._foreach_lerp_([tensors[f"{prefix}.running_var"] for prefix in prefixes], variances, momentum)
    torch._foreach_add_([tensors[f"{prefix}.num_batches_tracked"] for prefix in prefixes], 1)


# ---------------------------------------------------------------- as one operator of PyTorch


@torch.library.custom_op("mixmatch::wide_resnet_features", mutates_args=())
def _features(
    quiet: Tensor,
    x: Tensor,
    quiet_kernels: Tensor,
    kernels: Tensor,
    weights: list[Tensor],
    sizes: list[int],
    shape: list[int],
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """Pooled features (N, C) of quiet images, in batches of one size, and of the others, in batches of another; the
    latter's sums for batch norm, and if `save`, what their backward pass needs. If there are twice as many weights as
    the network has, the second half is for the quiet images."""
    net = Shape.decoded(tuple(shape))
    count = len(names(net))
    learned = _Pass(net, kernels, weights[:count], x, sizes[1])
    learned.gather(backward=False)
    guessing = learned.of(quiet, sizes[0])
    if len(weights) > count:
        guessing = _Pass(net, quiet_kernels, weights[count:], quiet, sizes[0])
        guessing.gather(backward=False)
    guessed, pooled = (x.new_empty(n, net.blocks[-1].channels, dtype=torch.float32) for n in (len(quiet), len(x)))
    with _Aside(x.device, urgent=True) as aside:
        if len(quiet):
            aside.run(guessing.forward, guessed, False)
        sums, saved = learned.forward(pooled, save)
    return guessed, pooled, sums, saved


@_features.register_fake
def _(
    quiet: Tensor,
    x: Tensor,
    quiet_kernels: Tensor,
    kernels: Tensor,
    weights: list[Tensor],
    sizes: list[int],
    shape: list[int],
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    net = Shape.decoded(tuple(shape))
    images = len(x)
    saved = []
    if save:
        for b in net.blocks:
            before = x.new_empty(images, b.size, b.size, b.in_channels)
            after = x.new_empty(images, b.size // b.stride, b.size // b.stride, b.channels)
            saved += [before, before.clone(), after, after.clone()]
        saved.append(after.clone())
    guessed, pooled = (x.new_empty(n, net.blocks[-1].channels, dtype=torch.float32) for n in (len(quiet), images))
    return guessed, pooled, x.new_empty(images // sizes[1], 2, sum(net.norms), dtype=torch.float32), saved


@torch.library.custom_op("mixmatch::wide_resnet_gradient", mutates_args=())
def _gradient(
    g: Tensor,
    x: Tensor,
    sums: Tensor,
    saved: list[Tensor],
    kernels: Tensor,
    weights: list[Tensor],
    size: int,
    shape: list[int],
) -> tuple[Tensor, Tensor]:
    """The gradients of all convolutions' weights, one after the other, and of the norms' gammas and betas (2, C)."""
    return _Pass(Shape.decoded(tuple(shape)), kernels, weights, x, size).backward(g, sums, saved)


@_gradient.register_fake
def _(
    g: Tensor,
    x: Tensor,
    sums: Tensor,
    saved: list[Tensor],
    kernels: Tensor,
    weights: list[Tensor],
    size: int,
    shape: list[int],
) -> tuple[Tensor, Tensor]:
    return g.new_empty(sum(w.numel() for w in weights if w.dim() == 4)), g.new_empty(2, sums.shape[2])


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor, list[Tensor]]) -> None:
    _, x, _, kernels, weights, sizes, shape, _ = inputs
    guessed, _, sums, saved = output
    count = len(names(Shape.decoded(tuple(shape))))
    ctx.size, ctx.shape, ctx.count, ctx.others = sizes[1], shape, count, len(weights) - count
    ctx.save_for_backward(x, sums, kernels, *weights[:count], *saved)
    ctx.mark_non_differentiable(guessed, sums, *saved)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, _guessed: Any, g: Tensor, *_: Any) -> tuple[Any, ...]:
    x, sums, kernels, *rest = ctx.saved_tensors
    weights, saved = rest[: ctx.count], rest[ctx.count :]
    d_kernels, d_norms = _gradient(g.contiguous(), x, sums, saved, kernels, weights, ctx.size, ctx.shape)
    gradients: list[Tensor | None] = []
    shapes = [w.shape for w in weights]
    flat = torch.split(d_kernels, [s.numel() for s in shapes if len(s) == 4])
    convolution, parts = 0, torch.split(d_norms, Shape.decoded(tuple(ctx.shape)).norms, dim=1)
    for i in range(0, ctx.count, 2):
        if len(shapes[i]) == 4:
            out, into, size, _size = shapes[i]
            gradients += [flat[convolution].view(out, size, size, into).permute(0, 3, 1, 2), None]
            convolution += 1
        else:
            part = parts[i // 2 - convolution]
            gradients += [part[0], part[1]]
    return None, None, None, None, gradients + [None] * ctx.others, None, None, None


_features.register_autograd(_backward, setup_context=_setup_context)


class _Pass:
    """The kernels of one pass, in order, over batches of so many images."""

    def __init__(self, shape: Shape, kernels: Tensor, weights: list[Tensor], x: Tensor, size: int) -> None:
        from mixmatch.networks.cuda import kernels as programs

        self.k = programs
        self.shape, self.x, self.size = shape, x, size
        self.images = len(x)
        self.total = sum(shape.norms)
        count = sum(2 + block.shortcut for block in shape.blocks) + 1
        self.shapes = [tuple(weights[2 * i].shape) for i in range(count)]
        self.sizes = [weights[2 * i].numel() for i in range(count)]
        self.spans = shape.spans
        self.kernels, self.biases = kernels, weights[1 : 2 * count : 2]
        self.plain = torch.split(kernels[:-1], self.sizes)
        self.norms = [(weights[2 * i], weights[2 * i + 1]) for i in range(count, len(weights) // 2)]
        self.at = [sum(shape.norms[:i]) for i in range(len(shape.norms))]
        self.precision = "ieee" if x.dtype == torch.float32 else "tf32"

    def of(self, x: Tensor, size: int) -> _Pass:
        """The same pass over other images."""
        other = copy.copy(self)
        other.x, other.size, other.images = x, size, len(x)
        return other

    # -------------------------------- kernels

    def sums(self) -> Tensor:
        return torch.zeros(self.images // self.size, 2, self.total, dtype=torch.float32, device=self.x.device)

    def gather(self, backward: bool) -> None:
        """Make the weights for convolutions that span pixels."""
        index, counts = spread(tuple(self.shapes), tuple(self.spans), backward, self.kernels.device)
        self.spread = torch.split(self.kernels.index_select(0, index), counts)

    def rows(self, size: int) -> int:
        """Rows of a batch of images of this size: tiles must divide them."""
        return self.size * size * size

    def convolve(
        self,
        x: Tensor,
        convolution: int,
        size: int,
        stride: int = 1,
        *,
        backward: bool = False,
        residual: Tensor | None = None,
        sums: Tensor | None = None,
        norm: int = 0,
        raw: Tensor | None = None,
        raw_sums: Tensor | None = None,
    ) -> Tensor:
        """`size` is that of the convolution's input."""
        out_channels, in_channels, kernel, _ = self.shapes[convolution]
        if backward:
            out_channels, in_channels = in_channels, out_channels
            in_size, out_size = size // stride, size
        else:
            in_size, out_size = size, size // stride
        y = x.new_empty(self.images, out_size, out_size, out_channels)
        span = self.spans[convolution]
        rows = self.rows(out_size) // (span * stride**2 if backward else span)
        kind = "backward" if backward else "forward"
        boxed, tiles = None, conv_tiles(rows, kernel, in_channels, out_channels, kind, span)
        if kernel == 3 and stride == 1 and worth_boxes(kind, in_channels, out_channels) and copies_boxes(x.device):
            in_boxes = conv_tiles(rows, kernel, in_channels, out_channels, f"boxes {kind}", span)
            boxed = box(in_boxes[0], out_size, span)
            tiles = in_boxes if boxed else tiles
        bm, bn, bk, warps, stages = tiles
        at = self.at[norm]
        gamma, beta = self.norms[norm]
        weights = self.spread[convolution] if span > 1 else self.plain[convolution]
        tensors = (
            self.biases[convolution],
            y if residual is None else residual,
            y,
            y if sums is None else sums[:, :, at:],
            y if raw is None else raw,
            y if raw_sums is None else raw_sums[:, :, at:],
            gamma,
            beta,
            self.total,
            self.rows(out_size),
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
            "EPS": EPS,
            "SLOPE": SLOPE,
            "PRECISION": self.precision,
            "BM": bm,
            "BN": bn,
            "BK": bk,
            "num_warps": warps,
            "num_stages": stages,
        }
        grid = (self.images * out_size * out_size // span // bm, out_channels * span // bn)
        if boxed:
            if backward and span == 1:
                matrix = described(weights.view(in_channels, -1), bk, bn)
            else:
                matrix = described(weights.view(span * out_channels, -1), bn, bk)
            pixels = described(x.view(self.images, out_size, -1, span * in_channels), *boxed, bk)
            self.k.convolve_boxes[grid](pixels, matrix, *tensors, SPAN=span, **options)
        elif span > 1:
            self.k.convolve_spans[grid](x, weights, *tensors, SPAN=span, **options)
        else:
            pad = kernel // 2 if stride == 1 else 0
            self.k.convolve[grid](
                x, weights, *tensors, IN_H=in_size, IN_W=in_size, SIZE=kernel, STRIDE=stride, PAD=pad, **options
            )
        return y

    def weight_gradient(self, x: Tensor, g: Tensor, convolution: int, size: int, stride: int, into: Tensor) -> None:
        out_channels, in_channels, kernel, _ = self.shapes[convolution]
        out_size, span = size // stride, self.spans[convolution]
        rows = self.images * out_size * out_size // span
        options = {"H": out_size, "W": out_size, "IN_C": in_channels, "OUT_C": out_channels}
        wanted = kernel == 3 and stride == span == 1 and worth_boxes("weights", in_channels, out_channels)
        if wanted and copies_boxes(x.device):
            _, bm, bn, parts, warps, stages = gradient_tiles(rows, kernel, in_channels, out_channels, "boxes weights")
            if boxed := box(bm, out_size):
                self.k.weight_gradient_boxes[(kernel * kernel, out_channels // bn, parts)](
                    described(x, *boxed, in_channels),
                    described(g.view(rows, out_channels), bm, bn),
                    into,
                    rows // parts,
                    PRECISION=self.precision,
                    BM=bm,
                    BN=bn,
                    num_warps=warps,
                    num_stages=stages,
                    **options,
                )
                return
        taps, bm, bn, parts, warps, stages = gradient_tiles(rows, kernel, in_channels, out_channels, "weights", span)
        columns = max(16, 1 << ((taps + span - 1) * in_channels - 1).bit_length())
        self.k.weight_gradient[(kernel * (kernel // taps), span * out_channels // bn, parts)](
            x,
            g,
            into,
            rows // parts,
            IN_H=size,
            IN_W=size,
            SIZE=kernel,
            STRIDE=stride,
            PAD=kernel // 2 if stride == 1 else 0,
            SPAN=span,
            TAPS=taps,
            COLUMNS=columns,
            PRECISION=self.precision,
            BM=bm,
            BN=bn,
            num_warps=warps,
            num_stages=stages,
            **options,
        )

    def normalize(self, x: Tensor, sums: Tensor, norm: int) -> Tensor:
        size, channels = x.shape[1], x.shape[3]
        y = torch.empty_like(x)
        bm = point_rows(self.rows(size), channels)
        gamma, beta = self.norms[norm]
        self.k.normalize[(x.numel() // channels // bm,)](
            x,
            sums[:, :, self.at[norm] :],
            gamma,
            beta,
            y,
            self.total,
            self.rows(size),
            C=channels,
            EPS=EPS,
            SLOPE=SLOPE,
            BM=bm,
        )
        return y

    def pool(self, x: Tensor, sums: Tensor, norm: int, into: Tensor) -> None:
        pixels, channels = x.shape[1] * x.shape[2], x.shape[3]
        gamma, beta = self.norms[norm]
        self.k.pool[(self.images,)](
            x,
            sums[:, :, self.at[norm] :],
            gamma,
            beta,
            into,
            self.total,
            self.rows(x.shape[1]),
            C=channels,
            PIXELS=pixels,
            EPS=EPS,
            SLOPE=SLOPE,
            BM=min(64, pixels & -pixels),
        )

    def pool_gradient(self, g: Tensor, x: Tensor, sums: Tensor, g_sums: Tensor, norm: int) -> Tensor:
        pixels, channels = x.shape[1] * x.shape[2], x.shape[3]
        y = torch.empty_like(x)
        bm = point_rows(self.rows(x.shape[1]), channels)
        gamma, beta = self.norms[norm]
        at = self.at[norm]
        self.k.pool_gradient[(x.numel() // channels // bm,)](
            g,
            x,
            sums[:, :, at:],
            gamma,
            beta,
            y,
            g_sums[:, :, at:],
            self.total,
            self.rows(x.shape[1]),
            C=channels,
            PIXELS=pixels,
            EPS=EPS,
            SLOPE=SLOPE,
            BM=bm,
        )
        return y

    def norm_gradient(
        self, g: Tensor, x: Tensor, sums: Tensor, g_sums: Tensor, norm: int, residual: Tensor | None = None
    ) -> Tensor:
        channels = x.shape[3]
        y = torch.empty_like(x)
        bm = point_rows(self.rows(x.shape[1]), channels)
        at = self.at[norm]
        self.k.norm_gradient[(x.numel() // channels // bm,)](
            g,
            x,
            sums[:, :, at:],
            g_sums[:, :, at:],
            self.norms[norm][0],
            y if residual is None else residual,
            y,
            self.total,
            self.rows(x.shape[1]),
            C=channels,
            RESIDUAL=residual is not None,
            EPS=EPS,
            BM=bm,
        )
        return y

    # -------------------------------- the network

    def forward(self, into: Tensor, save: bool) -> tuple[Tensor, list[Tensor]]:
        """Put pooled features into a tensor; return sums for batch norm, and if `save`, what `backward` needs."""
        sums, saved = self.sums(), []
        h = self.convolve(self.x, 0, self.shape.size, sums=sums, norm=0)
        convolution = 1
        for i, block in enumerate(self.shape.blocks):
            size = block.size
            after = size // block.stride
            a = self.normalize(h, sums, 2 * i)
            m = self.convolve(a, convolution, size, block.stride, sums=sums, norm=2 * i + 1)
            b = self.normalize(m, sums, 2 * i + 1)
            saved += [h, a, m, b] if save else []
            h = a if block.activate_shortcut else h
            if block.shortcut:
                h = self.convolve(h, convolution + 2, size, block.stride)
            h = self.convolve(b, convolution + 1, after, residual=h, sums=sums, norm=2 * i + 2)
            convolution += 2 + block.shortcut
        saved += [h] if save else []
        self.pool(h, sums, 2 * len(self.shape.blocks), into)
        return sums, saved

    def backward(self, g: Tensor, sums: Tensor, saved: list[Tensor]) -> tuple[Tensor, Tensor]:
        g_sums = self.sums()
        self.gather(backward=True)
        kernels = torch.zeros(sum(self.sizes), dtype=torch.float32, device=g.device)
        into = torch.split(kernels, self.sizes)
        last = 2 * len(self.shape.blocks)
        with _Aside(g.device) as aside:
            dz = self.pool_gradient(g, saved[-1], sums, g_sums, last)
            dh = self.norm_gradient(dz, saved[-1], sums, g_sums, last)
            convolution = len(self.biases)
            for i, block in reversed(list(enumerate(self.shape.blocks))):
                h, a, m, b = saved[4 * i : 4 * i + 4]
                size, stride = block.size, block.stride
                convolution -= 2 + block.shortcut
                aside.run(self.weight_gradient, b, dh, convolution + 1, size // stride, 1, into[convolution + 1])
                dz = self.convolve(
                    dh,
                    convolution + 1,
                    size // stride,
                    backward=True,
                    raw=m,
                    raw_sums=sums,
                    sums=g_sums,
                    norm=2 * i + 1,
                )
                dm = self.norm_gradient(dz, m, sums, g_sums, 2 * i + 1)
                aside.run(self.weight_gradient, a, dm, convolution, size, stride, into[convolution])
                skip = dh
                if block.shortcut:
                    start = a if block.activate_shortcut else h
                    aside.run(self.weight_gradient, start, dh, convolution + 2, size, stride, into[convolution + 2])
                    skip = self.convolve(dh, convolution + 2, size, stride, backward=True)
                dz = self.convolve(
                    dm,
                    convolution,
                    size,
                    stride,
                    backward=True,
                    residual=skip if block.activate_shortcut else None,
                    raw=h,
                    raw_sums=sums,
                    sums=g_sums,
                    norm=2 * i,
                )
                dh = self.norm_gradient(dz, h, sums, g_sums, 2 * i, None if block.activate_shortcut else skip)
            aside.run(self.weight_gradient, self.x, dh, 0, self.shape.size, 1, into[0])
        return kernels, torch.stack([g_sums[:, 1].sum(0), g_sums[:, 0].sum(0)])


@cache
def _beside(stream: int, device: torch.device, priority: int) -> torch.cuda.Stream:
    """The stream for what can run beside the work of another."""
    return torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]


class _Aside:
    """Work that nothing waits for until the end: on a GPU it runs in a stream of its own, in the gaps of the rest, or
    if it is `urgent`, by turns with it."""

    def __init__(self, device: torch.device, urgent: bool = False) -> None:
        self._here: torch.cuda.Stream | None = None
        self._kept: list[Any] = []
        if device.type == "cuda":
            self._here = torch.cuda.current_stream(device)
            self._there = _beside(self._here.cuda_stream, device, -1 if urgent else 0)

    def __enter__(self) -> _Aside:
        return self

    def run(self, work: Callable[..., object], *given: Any) -> None:
        """Do work whose results are in tensors it is given: what it makes itself belongs to its stream."""
        if self._here is None:
            work(*given)
            return
        self._kept.append((work, given))  # memory given back now would be written to by what runs meanwhile
        self._there.wait_stream(self._here)
        with torch.cuda.stream(self._there):
            work(*given)

    def __exit__(self, *error: object) -> None:
        """Whatever comes next, comes after it. A stream that was given nothing is no part of a recording: to wait for
        it would end that."""
        if self._here is not None and self._kept:
            self._here.wait_stream(self._there)


# ---------------------------------------------------------------- boxes


_without_boxes: set[torch.device] = set()
"""Devices whose kernels do not run with them."""


def copies_boxes(device: torch.device) -> bool:
    """Whether the GPU copies boxes of a tensor by itself, and Triton can tell it to. Its interpreter can, on a CPU."""
    return device not in _without_boxes and _can_copy_boxes(device)


@cache
def _can_copy_boxes(device: torch.device) -> bool:
    if find_spec("triton.tools.tensor_descriptor") is None or torch.version.hip is not None:
        return False
    return device.type == "cpu" or torch.cuda.get_device_capability(device) >= (9, 0)


def worth_boxes(kind: str, in_channels: int, out_channels: int) -> bool:
    """Whether there are channels enough, by what was measured; they must fill tiles, so be a power of two."""
    enough = min(in_channels, out_channels) >= 64 if kind == "weights" else in_channels >= 32
    return enough and in_channels & (in_channels - 1) == 0


def box(rows: int, size: int, span: int = 1) -> tuple[int, int, int] | None:
    """Images, lines and spans of a line that make so many rows of a tile; None if they are no box."""
    across = size // span
    lines = rows // across
    if across & (across - 1) or rows % across or max(lines, size) % min(lines, size):
        return None
    return max(1, lines // size), min(lines, size), across


def described(x: Tensor, *shape: int) -> Any:
    """A tensor, to be copied in boxes of a shape."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(x, list(shape))


# ---------------------------------------------------------------- tiles

TILES: dict[str, list[int]] = json.loads(Path(__file__).with_name("tiles.json").read_text())
"""What was fastest on a busy H200 (`benchmarks/tune_kernels.py` looks for it). "forward 3 32 64 1" (kernel, channels in
and out, span), and "backward", lead to rows, output and input channels of a tile, warps and pipeline stages; "weights"
to neighbouring taps, rows and output channels of a tile, programs at work at a time, warps and stages; with "boxes"
before it, the same for kernels that copy boxes."""


def conv_tiles(
    rows: int, kernel: int, in_channels: int, out_channels: int, kind: str, span: int = 1
) -> tuple[int, int, int, int, int]:
    """What was fastest for a kind of `TILES`, else a guess; rows of a tile must divide those of a batch."""
    boxes = kind.startswith("boxes")
    into, out = in_channels * (span + 2 if span > 1 and not boxes else 1), out_channels * span
    guess = (128, min(64, out), min(64, max(16, 1 << (into - 1).bit_length())), 4, 3)
    bm, bn, bk, warps, stages = TILES.get(f"{kind} {kernel} {in_channels} {out_channels} {span}", guess)
    return min(bm, rows & -rows), bn, bk, warps, stages


def gradient_tiles(
    rows: int, kernel: int, in_channels: int, out_channels: int, kind: str, span: int = 1
) -> tuple[int, int, int, int, int, int]:
    """The same for gradients of weights, with the parts that rows are divided into in the place of programs."""
    boxes = kind.startswith("boxes")
    guess = (kernel if in_channels <= 32 and not boxes else 1, 64, min(64, span * out_channels), 264, 4, 3)
    key = f"{kind} {kernel} {in_channels} {out_channels} {span}"
    taps, bm, bn, programs, warps, stages = TILES.get(key, guess)
    bm = min(bm, rows & -rows)
    tiles, parts = kernel * (kernel // taps) * (span * out_channels // bn), 1
    while tiles * parts < programs and rows % (2 * parts * bm) == 0:
        parts *= 2
    return taps, bm, bn, parts, warps, stages


def point_rows(rows: int, channels: int) -> int:
    """Rows of a tile for what is done to each value by itself."""
    return min(8192 // channels, rows & -rows)

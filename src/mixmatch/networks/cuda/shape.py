"""The layers of a wide residual network and their sizes: what the kernels must know of it, in the order of a pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from mixmatch.networks.wide_resnet import Block, WideResNet

EPS = 1e-3


@dataclass(frozen=True)
class Convolution:
    """A convolution of square images; `index` counts them in the order of a pass, `name` is the module's."""

    index: int
    name: str
    in_channels: int
    out_channels: int
    kernel: int
    stride: int
    in_size: int

    @property
    def out_size(self) -> int:
        return self.in_size // self.stride

    @property
    def weights(self) -> int:
        return self.out_channels * self.kernel**2 * self.in_channels

    @property
    def pixels_per_row(self) -> int:
        """Adjacent pixels that are computed together, as one row of a matrix product: two where channels are few, which
        saves reading inputs, at the price of a third more to multiply."""
        few = max(self.in_channels, self.out_channels) <= 32
        return 2 if few and self.kernel == 3 and self.stride == 1 and self.in_size % 2 == 0 else 1


@dataclass(frozen=True)
class Norm:
    """A batch norm; `offset` is where its channels begin among those of all norms."""

    index: int
    name: str
    channels: int
    size: int
    offset: int


@dataclass(frozen=True)
class BlockShape:
    """A residual block; `shortcut` is None where it is the identity."""

    norm1: Norm
    conv1: Convolution
    norm2: Norm
    conv2: Convolution
    shortcut: Convolution | None
    activate_shortcut: bool


@dataclass(frozen=True)
class Shape:
    """A network and its images. `code` says it in whole numbers, which is what an operator of PyTorch can take."""

    code: tuple[int, ...]
    stem: Convolution
    blocks: tuple[BlockShape, ...]
    last_norm: Norm

    @property
    def convolutions(self) -> tuple[Convolution, ...]:
        found = [self.stem]
        for block in self.blocks:
            found += [block.conv1, block.conv2, *([block.shortcut] if block.shortcut else [])]
        return tuple(found)

    @property
    def norms(self) -> tuple[Norm, ...]:
        return (*(norm for block in self.blocks for norm in (block.norm1, block.norm2)), self.last_norm)

    @property
    def parameter_names(self) -> list[str]:
        """What the kernels take: weight and bias of each convolution, then of each norm."""
        layers = [*(conv.name for conv in self.convolutions), *(norm.name for norm in self.norms)]
        return [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]

    @staticmethod
    @cache
    def decoded(code: tuple[int, ...]) -> Shape:
        """The shape for channels and size of the images, then for each block channels in and out, stride, whether its
        shortcut is a convolution and whether that is activated."""
        image_channels, size, *rest = code
        blocks: list[BlockShape] = []
        stem = Convolution(0, "stem", image_channels, rest[0], 3, 1, size)
        convolutions, offset = 1, 0
        for i in range(len(rest) // 5):
            into, out, stride, shortcut, activate = rest[5 * i : 5 * i + 5]
            name, after = f"blocks.{i}", size // stride
            blocks.append(
                BlockShape(
                    Norm(2 * i, f"{name}.norm1", into, size, offset),
                    Convolution(convolutions, f"{name}.conv1", into, out, 3, stride, size),
                    Norm(2 * i + 1, f"{name}.norm2", out, after, offset + into),
                    Convolution(convolutions + 1, f"{name}.conv2", out, out, 3, 1, after),
                    Convolution(convolutions + 2, f"{name}.shortcut", into, out, 1, stride, size) if shortcut else None,
                    bool(activate),
                )
            )
            convolutions, offset, size = convolutions + 2 + shortcut, offset + into + out, after
        return Shape(code, stem, tuple(blocks), Norm(2 * len(blocks), "norm", out, size, offset))


def shape_of(network: nn.Module, image: Sequence[int]) -> Shape | None:
    """The shape of a network for images (C, H, W); None if the kernels are not made for it."""
    if type(network) is not WideResNet or len(image) != 3 or image[1] != image[2]:
        return None
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    momentum = norms[-1].momentum if norms else None
    alike = {(norm.eps, norm.momentum, norm.affine, norm.track_running_stats) for norm in norms}
    if len(norms) != 2 * len(network.blocks) + 1 or momentum is None or alike != {(EPS, momentum, True, True)}:
        return None  # someone has put other parts in
    if type(network.head) is not nn.Linear or network.head.bias is None:
        return None
    code, size = [image[0], image[1]], image[1]
    for block in network.blocks:
        assert isinstance(block, Block)
        channels, stride = block.conv1.out_channels, block.conv1.stride[0]
        if size % stride or channels & (channels - 1) or channels < 16:
            return None
        shortcut = not isinstance(block.shortcut, nn.Identity)
        code += [block.conv1.in_channels, channels, stride, int(shortcut), int(block.activate_shortcut)]
        size //= stride
    return Shape.decoded(tuple(code))


def fits(shape: Shape, sizes: Sequence[int]) -> bool:
    """Whether batches of these sizes, in one pass, divide into tiles, and 32 bits can count their values."""
    layers = shape.convolutions
    tiles = all(size * c.out_size**2 % (16 * c.pixels_per_row) == 0 for c in layers for size in sizes)
    largest = max(max(c.in_size**2 * c.in_channels, c.out_size**2 * c.out_channels) for c in layers)
    return tiles and sum(sizes) * largest < 2**31

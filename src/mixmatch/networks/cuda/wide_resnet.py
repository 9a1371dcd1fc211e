"""The passes of a wide residual network on CUDA: two kernels per convolution forwards, three backwards.

The same network as `WideResNet`, computed in bf16. Batch norm's statistics are added up in the convolutions' epilogues,
and several batches share each kernel, each normalized by itself. Two things run on a side stream because nothing waits
for them until the end: the pass over images that only give targets, and the gradients of weights. Biases of
convolutions get no gradient: batch norm subtracts what they add, so it is exactly zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from mixmatch.networks.cuda import launch, lines, tma
from mixmatch.networks.cuda.launch import Launcher, pack_weights
from mixmatch.networks.cuda.shape import Shape
from mixmatch.networks.cuda.streams import SideStream


@cache
def available() -> bool:
    """Whether there is Triton, and a GPU whose tensor cores compute in bf16."""
    return (
        find_spec("triton") is not None and torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)
    )


def problem(network: nn.Module, shape: Shape, images: int, device: torch.device) -> Exception | None:
    """What goes wrong when the kernels run on a device, tested with a blank batch; None if nothing does. A GPU may have
    too little shared memory for tiles that suit another. If kernels line by line or TMA are the cause, they are
    disabled for this device and the test is repeated."""
    x = torch.zeros(images, shape.stem.in_channels, shape.stem.in_size, shape.stem.in_size, device=device)
    error = _error(network, shape, x)
    for part, used in ((lines, lines.runs_on), (tma, tma.uses_tma)):
        if error is not None and used(x.device):
            part.disabled.add(x.device)
            error = _error(network, shape, x)
    return error


def _error(network: nn.Module, shape: Shape, x: Tensor) -> Exception | None:
    tensors = {name: value.detach().to(x.device) for name, value in network.state_dict().items()}
    parameters = [tensors[name].requires_grad_() for name in shape.parameter_names]
    try:
        (target,), (logits,) = forward(network, shape, tensors, [x], [x], update=False)
        torch.autograd.grad(logits.sum(), parameters, allow_unused=True)
        float(logits.detach().sum() + target.sum())
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        return error
    return None


def forward(
    network: nn.Module,
    shape: Shape,
    tensors: Mapping[str, Tensor],
    targets: Sequence[Tensor],
    learned: Sequence[Tensor],
    update: bool,
    target_tensors: Mapping[str, Tensor] | None = None,
    with_heads: Sequence[str] = (),
    joint: bool = False,
) -> tuple[list[Tensor], list[Tensor]]:
    """Logits of batches of images (N, C, H, W), each normalized by itself.

    Args:
        network: the module, whose momentum of batch norm is used.
        shape: from `shape_of`.
        tensors: its parameters and buffers, by name.
        targets: batches that only give targets: no gradient. All of one size.
        learned: batches that are learned from. All of one size, which may be another.
        update: whether the first batch of `learned` moves the running statistics.
        target_tensors: parameters for `targets`, where they are others.
        with_heads: further heads, whose outputs follow the logits (`mixmatch.networks.heads`).
        joint: whether all batches are normalized as one. No gradient reaches the targets, so they need no backward
            pass: what batch norm takes out of a gradient is taken out among the learned images alone.

    Returns:
        the logits of the batches of `targets`, and of those of `learned`.
    """
    parameters = [tensors[name] for name in shape.parameter_names]
    target_parameters = (
        [target_tensors[name] for name in shape.parameter_names] if targets and target_tensors is not None else []
    )
    packed = pack_weights(parameters)
    save = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in parameters)
    constants = sum(map(len, targets)) if joint else 0
    images = _images([*learned, *targets] if joint else learned)
    target_images = _images(targets) if targets and not joint else images.new_empty(0, *images.shape[1:])
    batch_sizes = [len(targets[0]) if targets else 1, len(images) if joint else len(learned[0])]
    target_features, features, sums, *_ = _features(
        target_images,
        images,
        pack_weights(target_parameters) if target_parameters else packed,
        packed,
        [*parameters, *target_parameters],
        batch_sizes,
        constants,
        list(shape.code),
        save,
    )
    if update:
        _update_running(network, shape, tensors, sums[0].detach(), batch_sizes[1])
    if joint:
        features, target_features = torch.split(features, [len(images) - constants, constants])
    with torch.no_grad():
        target_logits = _head(tensors if target_tensors is None else target_tensors, target_features, with_heads)
    logits = _head(tensors, features, with_heads)
    split_targets = list(torch.split(target_logits, batch_sizes[0])) if targets else []
    return split_targets, list(torch.split(logits, len(learned[0])))


def _head(tensors: Mapping[str, Tensor], features: Tensor, with_heads: Sequence[str]) -> Tensor:
    names = ["head", *(f"heads.{name}" for name in with_heads)]
    weight, bias = (torch.cat([tensors[f"{name}.{kind}"] for name in names]) for kind in ("weight", "bias"))
    weight, bias = weight.to(launch.DTYPE), bias.to(launch.DTYPE)
    return nn.functional.linear(features.to(launch.DTYPE), weight, bias).float()


def _images(batches: Sequence[Tensor]) -> Tensor:
    """All batches in one tensor (N, H, W, C)."""
    return torch.cat(list(batches)).permute(0, 2, 3, 1).to(launch.DTYPE).contiguous()


@torch.no_grad()
def _update_running(network: nn.Module, shape: Shape, tensors: Mapping[str, Tensor], sums: Tensor, images: int) -> None:
    """Move the running statistics towards those of a batch, as `nn.BatchNorm2d` does."""
    assert isinstance(network.norm, nn.BatchNorm2d)
    momentum = network.norm.momentum
    assert momentum is not None
    means, variances = [], []
    for norm, part in zip(shape.norms, torch.split(sums, [n.channels for n in shape.norms], dim=1), strict=True):
        pixels = images * norm.size * norm.size
        mean = part[0] / pixels
        means.append(mean)
        variances.append((part[1] / pixels - mean * mean).clamp_min(0) * (pixels / (pixels - 1)))
    torch._foreach_lerp_([tensors[f"{norm.name}.running_mean"] for norm in shape.norms], means, momentum)
    torch._foreach_lerp_([tensors[f"{norm.name}.running_var"] for norm in shape.norms], variances, momentum)
    torch._foreach_add_([tensors[f"{norm.name}.num_batches_tracked"] for norm in shape.norms], 1)


# ---------------------------------------------------------------- the passes, kernel by kernel


def _pass_forward(
    kernels: Launcher, shape: Shape, x: Tensor, features: Tensor, save: bool
) -> tuple[Tensor, list[Tensor]]:
    """Write the pooled features of images x to `features`; return the sums for batch norm, and if `save`, what
    `_pass_backward` needs: the inputs and outputs of both norms of each block, and the input of the last norm."""
    sums, saved = kernels.zero_sums(), []
    h = kernels.convolve(x, shape.stem, norm=shape.blocks[0].norm1, sums=sums)
    for i, block in enumerate(shape.blocks):
        after = shape.blocks[i + 1].norm1 if i + 1 < len(shape.blocks) else shape.last_norm
        a = kernels.normalize(h, block.norm1, sums)
        m = kernels.convolve(a, block.conv1, norm=block.norm2, sums=sums)
        b = kernels.normalize(m, block.norm2, sums)
        saved += [h, a, m, b] if save else []
        h = a if block.activate_shortcut else h
        if block.shortcut:
            h = kernels.convolve(h, block.shortcut)
        h = kernels.convolve(b, block.conv2, residual=h, norm=after, sums=sums)
    saved += [h] if save else []
    kernels.pool(h, shape.last_norm, sums, features)
    return sums, saved


def _pass_backward(
    kernels: Launcher, shape: Shape, x: Tensor, g: Tensor, sums: Tensor, saved: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """The gradients of the convolutions' weights, flat as in `pack_weights`, and of the norms' gammas and betas (2, C),
    from the gradient g of the features."""
    g_sums = kernels.zero_sums()
    kernels.expand_weights(backward=True)
    counts = [conv.weights for conv in shape.convolutions]
    d_weights = torch.zeros(sum(counts), dtype=torch.float32, device=g.device)
    out = torch.split(d_weights, counts)
    *saved, last = saved
    with SideStream(g.device) as side:
        dz = kernels.pool_gradient(g, last, shape.last_norm, sums, g_sums)
        dh = kernels.norm_gradient(dz, last, shape.last_norm, sums, g_sums)
        for i, block in reversed(list(enumerate(shape.blocks))):
            h, a, m, b = saved[4 * i : 4 * i + 4]
            conv1, conv2, shortcut = block.conv1, block.conv2, block.shortcut
            side.run(kernels.weight_gradient, b, dh, conv2, out[conv2.index])
            dz = kernels.convolve(
                dh, conv2, backward=True, norm=block.norm2, sums=g_sums, norm_input=m, norm_input_sums=sums
            )
            dm = kernels.norm_gradient(dz, m, block.norm2, sums, g_sums)
            side.run(kernels.weight_gradient, a, dm, conv1, out[conv1.index])
            skip = dh
            if shortcut:
                start = a if block.activate_shortcut else h
                side.run(kernels.weight_gradient, start, dh, shortcut, out[shortcut.index])
                skip = kernels.convolve(dh, shortcut, backward=True)
            # The shortcut began after the norm if it is activated, else before it.
            after, before = (skip, None) if block.activate_shortcut else (None, skip)
            dz = kernels.convolve(
                dm,
                conv1,
                backward=True,
                residual=after,
                norm=block.norm1,
                sums=g_sums,
                norm_input=h,
                norm_input_sums=sums,
            )
            dh = kernels.norm_gradient(dz, h, block.norm1, sums, g_sums, before)
        side.run(kernels.weight_gradient, x, dh, shape.stem, out[shape.stem.index])
    return d_weights, torch.stack([g_sums[:, 1].sum(0), g_sums[:, 0].sum(0)])


# ---------------------------------------------------------------- as operators of PyTorch


@torch.library.custom_op("mixmatch::wide_resnet_features", mutates_args=())
def _features(
    targets: Tensor,
    learned: Tensor,
    target_packed: Tensor,
    packed: Tensor,
    parameters: list[Tensor],
    batch_sizes: list[int],
    constants: int,
    code: list[int],
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """Pooled features (N, C) of images that only give targets and of those that are learned from, in batches of the two
    sizes; the latter's sums for batch norm, and if `save`, what their backward pass needs. The last `constants` of the
    latter are only normalized with the others, and have no backward pass. If there are twice as many parameters as the
    network has, the second half is for the targets."""
    shape = Shape.decoded(tuple(code))
    count = len(shape.parameter_names)
    kernels = Launcher(shape.convolutions, shape.norms, packed, parameters[:count], learned, batch_sizes[1], constants)
    kernels.expand_weights(backward=False)
    if len(parameters) > count:
        target_kernels = Launcher(
            shape.convolutions, shape.norms, target_packed, parameters[count:], targets, batch_sizes[0]
        )
        target_kernels.expand_weights(backward=False)
    else:
        target_kernels = kernels.over(targets, batch_sizes[0])
    target_features, features = _empty_features(shape, targets, learned)
    with SideStream(learned.device, urgent=True) as side:
        if len(targets):
            side.run(_pass_forward, target_kernels, shape, targets, target_features, False)
        sums, saved = _pass_forward(kernels, shape, learned, features, save)
    return target_features, features, sums, [part[: len(learned) - constants] for part in saved]


def _empty_features(shape: Shape, *images: Tensor) -> list[Tensor]:
    return [x.new_empty(len(x), shape.last_norm.channels, dtype=torch.float32) for x in images]


@_features.register_fake
def _(
    targets: Tensor,
    learned: Tensor,
    target_packed: Tensor,
    packed: Tensor,
    parameters: list[Tensor],
    batch_sizes: list[int],
    constants: int,
    code: list[int],
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    shape = Shape.decoded(tuple(code))
    images = len(learned) - constants
    saved = []
    if save:
        for block in shape.blocks:
            for norm in (block.norm1, block.norm2):
                saved += [learned.new_empty(images, norm.size, norm.size, norm.channels) for _ in range(2)]
        last = shape.last_norm
        saved.append(learned.new_empty(images, last.size, last.size, last.channels))
    channels = sum(norm.channels for norm in shape.norms)
    rows = 2 if constants else len(learned) // batch_sizes[1]
    sums = learned.new_empty(rows, 2, channels, dtype=torch.float32)
    target_features, features = _empty_features(shape, targets, learned)
    return target_features, features, sums, saved


@torch.library.custom_op("mixmatch::wide_resnet_gradient", mutates_args=())
def _gradient(
    g: Tensor,
    x: Tensor,
    sums: Tensor,
    saved: list[Tensor],
    packed: Tensor,
    parameters: list[Tensor],
    batch_size: int,
    code: list[int],
) -> tuple[Tensor, Tensor]:
    """`_pass_backward` over the images that are learned from."""
    shape = Shape.decoded(tuple(code))
    constants = max(0, batch_size - len(x))  # of a joint batch
    kernels = Launcher(shape.convolutions, shape.norms, packed, parameters, x, batch_size, constants)
    return _pass_backward(kernels, shape, x, g, sums, saved)


@_gradient.register_fake
def _(g: Tensor, x: Tensor, sums: Tensor, saved: list[Tensor], packed: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return g.new_empty(packed.numel() - 1), g.new_empty(2, sums.shape[2])


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor, list[Tensor]]) -> None:
    _, x, _, packed, parameters, batch_sizes, constants, code, _ = inputs
    target_features, _, sums, saved = output
    count = len(Shape.decoded(tuple(code)).parameter_names)
    ctx.batch_size, ctx.code, ctx.count, ctx.target_parameters = batch_sizes[1], code, count, len(parameters) - count
    ctx.save_for_backward(x[: len(x) - constants], sums, packed, *parameters[:count], *saved)
    ctx.mark_non_differentiable(target_features, sums, *saved)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, _target_features: Any, g: Tensor, *_: Any) -> tuple[Any, ...]:
    x, sums, packed, *rest = ctx.saved_tensors
    parameters, saved = rest[: ctx.count], rest[ctx.count :]
    d_weights, d_norms = _gradient(
        g[: len(x)].contiguous(), x, sums, saved, packed, parameters, ctx.batch_size, ctx.code
    )
    shape = Shape.decoded(tuple(ctx.code))
    gradients: list[Tensor | None] = []
    of_convolutions = torch.split(d_weights, [conv.weights for conv in shape.convolutions])
    of_norms = torch.split(d_norms, [norm.channels for norm in shape.norms], dim=1)
    for conv, part in zip(shape.convolutions, of_convolutions, strict=True):
        kernel = part.view(conv.out_channels, conv.kernel, conv.kernel, conv.in_channels)
        gradients += [kernel.permute(0, 3, 1, 2), None]
    for part in of_norms:
        gradients += [part[0], part[1]]
    return None, None, None, None, gradients + [None] * ctx.target_parameters, None, None, None, None


_features.register_autograd(_backward, setup_context=_setup_context)

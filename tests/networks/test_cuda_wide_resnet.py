"""The kernels in Triton's interpreter, in float32 on a CPU, against the plain network."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

from mixmatch import networks
from mixmatch.networks import cuda
from mixmatch.networks.cuda import launch, streams, tiles, tma, wide_resnet
from mixmatch.networks.cuda.shape import Convolution
from mixmatch.networks.cuda.tiles import Work
from mixmatch.networks.wide_resnet import WideResNet
from mixmatch.training.model import Forward

SCRIPT = """
import json, os, sys
import torch
from mixmatch.methods.base import forward_each, targets_and_logits
from mixmatch.networks import cuda
from mixmatch.networks.cuda import launch, lines, tiles, tma
from mixmatch.networks.wide_resnet import SLOPE, WideResNet
from mixmatch.training.model import Forward
from triton.runtime import interpreter

# Half the time would go into looking for overflows of integers, only to say nothing: that is for debugging.
assert not interpreter.interpreter_builder.options.debug
interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
launch.DTYPE = torch.float32
by, cases = json.loads(sys.argv[1])
by_tma = by != "plain"
for case in cases:  # each in a process of its own, with what is imported already
    if os.fork() == 0:
        break
    if os.wait()[1]:
        sys.exit(f"it was case {case}")
else:
    sys.exit()
groups, batch, targets, size, filters, repeat, scales, channels = case
copied = set()
descriptor = tma.descriptor
tma.descriptor = lambda x, *block: copied.add(len(block)) or descriptor(x, *block)
if not by_tma:
    tma.disabled.add(torch.device("cpu"))
walked = set()

def walk(x, weights, extra, y, pixels, transposed, tile, bias, sums, in_sums, gamma, beta, all_channels, learned_pixels,
         batch_pixels, BACKWARD, RESIDUAL, JOINT, EPS, SLOPE):  # what the kernel does: Gluon has no interpreter
    (images, size, _, into), out = x.shape, y.shape[3]
    if pixels == 2:
        w = weights.view(2, out, 3, 4, into)[0, :, :, :3].permute(0, 3, 1, 2)
    elif transposed:
        w = weights.view(into, 3, 3, out).flip(1, 2).permute(3, 0, 1, 2)
    else:
        w = weights.view(out, 3, 3, into).permute(0, 3, 1, 2)
    value = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), w, None, 1, 1).permute(0, 2, 3, 1)
    c, of_batch = torch.arange(out), torch.arange(images) * size * size // batch_pixels
    for batch in of_batch.unique().tolist():
        rows = of_batch == batch
        if BACKWARD:
            mean = in_sums[batch, 0, c] / batch_pixels
            rstd = 1 / (in_sums[batch, 1, c] / batch_pixels - mean**2 + EPS).sqrt()
            positive = (extra[rows] - mean) * rstd * gamma[c] + beta[c] > 0
            value[rows] = torch.where(positive, value[rows], SLOPE * value[rows])
            second = (value[rows] * (extra[rows] - mean) * rstd).sum((0, 1, 2))
        else:
            value[rows] += bias[c] + (extra[rows] if RESIDUAL else 0)
            second = (value[rows] ** 2).sum((0, 1, 2))
        sums[batch, 0, c] += value[rows].sum((0, 1, 2))
        sums[batch, 1, c] += second
    if JOINT and not BACKWARD:
        learned = value[: learned_pixels // size**2]
        sums[1, 0, c] += learned.sum((0, 1, 2))
        sums[1, 1, c] += (learned**2).sum((0, 1, 2))
    y.copy_(value)
    assert images % tile.images == 0 == size % tile.lines
    walked.add((into, BACKWARD, RESIDUAL, JOINT))

if by == "lines":
    lines.runs_on, lines.convolve = lambda device: device not in lines.disabled, walk
    tiles.TILES |= {f"lines {work} 3 {c} {c} {p}": [2, 4, 3, 4] for work in ("forward", "backward")
                    for c, p in ((32, 2), (64, 1))}
torch.manual_seed(0)
plain = WideResNet(7, channels, filters, repeat, scales, momentum=0.1).double()
for parameter in plain.parameters():
    if parameter.dim() < 2:
        parameter.data += 0.3 * torch.randn_like(parameter)
ours = WideResNet(7, channels, filters, repeat, scales, momentum=0.1).to(memory_format=torch.channels_last)
ours.load_state_dict(plain.state_dict())
shape = cuda.shape_of(ours, (channels, size, size))
assert shape is not None and cuda.fits(shape, [batch] * groups)
x = torch.randn(groups * batch, channels, size, size, dtype=torch.float64)
views = torch.randn(*targets, channels, size, size, dtype=torch.float64)
ema = {name: 0.9 * parameter.detach() for name, parameter in plain.named_parameters()}
low = {name: value.float().to(memory_format=torch.channels_last) if value.dim() == 4 else value.float()
       for name, value in ema.items()}
reference, kernels = Forward(plain, ema, "fp32"), Forward(ours, low, "bf16", shape=shape)
torch.manual_seed(1)
direction = torch.randn(groups * batch, 7, dtype=torch.float64)
worst = {}

def compare(name, ours, reference):
    error = (ours.double() - reference).norm() / reference.norm().clamp_min(1e-6)
    worst[name] = max(worst.get(name, 0.0), error.item())

for passes, of in ((reference, plain), (kernels, ours)):
    kind = next(of.parameters()).dtype
    guesses, logits = targets_and_logits(passes, list(views.to(kind)), list(x.to(kind).chunk(groups)))
    assert not any(guess.requires_grad for guess in guesses)
    passes.guesses, logits = torch.cat(guesses), torch.cat(logits)
    (logits * direction.to(logits.dtype)).sum().backward()
    passes.logits = logits.detach()
    passes.averaged = torch.cat(forward_each(passes, list(x.to(logits.dtype).chunk(groups)), weights="ema"))
    before = [parameter.grad for parameter in of.parameters()]
    of.zero_grad()
    taught, again = targets_and_logits(passes, list(views.to(kind)), list(x.to(kind).chunk(groups)), "ema")
    assert not any(guess.requires_grad for guess in taught)
    (torch.cat(again) * direction.to(logits.dtype)).sum().backward()
    passes.taught, passes.again = torch.cat(taught), torch.cat(again).detach()
    passes.grads = [(a, b.grad) for a, b in zip(before, of.parameters()) if a is not None]
weak = torch.randn(batch // 2, channels, size, size, dtype=torch.float64)
class Joint(torch.autograd.Function):  # normalized with all rows; the gradient is projected among the learned ones

    @staticmethod
    def forward(ctx, rows, weight, bias, eps):
        mean, variance = rows.mean((0, 2, 3), keepdim=True), rows.var((0, 2, 3), unbiased=False, keepdim=True)
        normalized = (rows - mean) / (variance + eps).sqrt()
        ctx.save_for_backward(rows, normalized, weight, (variance + eps).sqrt())
        ctx.eps = eps
        return normalized * weight[:, None, None] + bias[:, None, None]

    @staticmethod
    def backward(ctx, g):
        rows, normalized, weight, deviation = ctx.saved_tensors
        g, own, z = g[:len(x)], rows[:len(x)], normalized[:len(x)]
        d_weight, d_bias = (g * z).sum((0, 2, 3)), g.sum((0, 2, 3))
        # Least squares: what of g is a shift or a multiple of the inputs, by their own mean and variance.
        centered = z - z.mean((0, 2, 3), keepdim=True)
        part = (g * centered).mean((0, 2, 3), keepdim=True)
        part /= (own.var((0, 2, 3), unbiased=False, keepdim=True) + ctx.eps) / deviation**2
        d = (g - g.mean((0, 2, 3), keepdim=True) - part * centered) * weight[:, None, None] / deviation
        return torch.cat([d, torch.zeros_like(rows[len(x):])]), d_weight, d_bias, None

def joint(module, rows):
    plain_norm(module, rows.detach())  # for the running statistics
    return Joint.apply(rows, module.weight, module.bias, module.eps)
plain_norm = torch.nn.BatchNorm2d.forward
for passes, of in ((reference, plain), (kernels, ours)):
    passes.earlier = [None if p.grad is None else p.grad.clone() for p in of.parameters()]
    of.zero_grad()
    kind = next(of.parameters()).dtype
    torch.nn.BatchNorm2d.forward = joint if of is plain else plain_norm
    (guess,), logits = targets_and_logits(passes, [weak.to(kind)], list(x.to(kind).chunk(groups)), joint=True)
    assert not guess.requires_grad
    (torch.cat(logits) * direction.to(kind)).sum().backward()
    passes.joint = torch.cat([*logits, guess]).detach()
    passes.joint_grads = [p.grad for p in of.parameters()]
    for p, earlier in zip(of.parameters(), passes.earlier):
        p.grad = earlier
compare("joint logits", kernels.joint, reference.joint)
for (name, weight), one, other in zip(ours.named_parameters(), kernels.joint_grads, reference.joint_grads):
    if one is not None:
        compare("joint gradients", one, other)
    if name.endswith("conv1.weight"):  # a norm follows: the loss does not depend on its scale, so it must not grow
        along = (weight * one).sum() / weight.norm() / one.norm()
        worst["along the weights"] = max(worst.get("along the weights", 0.0), along.abs().item())
compare("logits", kernels.logits, reference.logits)
compare("guesses", kernels.guesses, reference.guesses)
compare("guesses of the average", kernels.taught, reference.taught)
compare("logits beside the average", kernels.again, reference.logits)
assert (kernels.taught - kernels.guesses).abs().max() > 0.01
for one, other in kernels.grads:
    compare("gradients beside the average", other, one.double())
compare("logits of the average", kernels.averaged, reference.averaged)
assert not kernels.averaged.requires_grad
for (name, parameter), (_, true) in zip(ours.named_parameters(), plain.named_parameters()):
    if parameter.grad is None:  # a bias before batch norm
        assert name.endswith("bias") and "norm" not in name and "head" not in name, name
        worst["biases"] = max(worst.get("biases", 0.0), true.grad.abs().max().item())
    else:
        assert parameter.grad.stride() == parameter.stride(), name
        compare("gradients", parameter.grad, true.grad)
for (name, value), (_, true) in zip(ours.named_buffers(), plain.named_buffers()):
    compare("statistics", value, true.double())
assert copied == ({2, 4} if by_tma else set()), copied
if by == "lines":  # 64 channels are in the second part
    assert walked == {(c, *how) for c in (32, 64)[: 1 + (scales > 1)] for how in (
        (False, False, False), (False, True, False), (True, False, False),
        (False, False, True), (False, True, True), (True, False, True),
    )}, walked
print(json.dumps(worst))
if case != cases[0]:
    sys.exit()

# Once, that kernels are tried before they are used, and done without where they do not compile.
before = {name: value.clone() for name, value in ours.state_dict().items()}
assert cuda.problem(ours, shape, batch, torch.device("cpu")) is None
assert all(torch.equal(value, before[name]) for name, value in ours.state_dict().items())
assert all(parameter.requires_grad for parameter in ours.parameters())
if by == "lines":
    def fail(*_, **__):
        raise RuntimeError("no such instruction")
    lines.convolve = fail
    assert cuda.problem(ours, shape, batch, torch.device("cpu")) is None
    assert not lines.runs_on(torch.device("cpu")) and tma.uses_tma(torch.device("cpu"))
if by_tma:
    tiles.TILES["tma forward 3 32 32 2"] = [128, 64, 48, 4, 2]  # no power of two
    assert cuda.problem(ours, shape, batch, torch.device("cpu")) is None
    assert not tma.uses_tma(torch.device("cpu"))
tiles.TILES = {f"forward 3 {channels} 16 {shape.stem.pixels_per_row}": [16, 16, 12, 4, 2]}  # no power of two
assert "power of 2" in str(cuda.problem(ours, shape, batch, torch.device("cpu")).__cause__), "?"
"""


CASES: dict[str, list[tuple[Any, ...]]] = {
    "plain": [
        # groups, batch, targets, size, filters, repeat, scales, channels
        (1, 8, (1, 4), 8, 16, 1, 2, 3),  # as MixMatch with fused passes
        (3, 4, (2, 4), 8, 16, 2, 1, 3),  # with official ones
        (2, 4, (1, 4), 8, 32, 1, 2, 3),
    ],
    "tma": [
        (2, 4, (1, 4), 8, 32, 1, 2, 3),
        (2, 4, (1, 4), 8, 32, 1, 1, 48),  # channels that do not fill tiles
        (1, 2, (1, 2), 16, 32, 1, 2, 1),
    ],
    "lines": [(2, 4, (1, 4), 8, 32, 2, 2, 3)],
}
"""By which kernels: without TMA, with it, or with a stand-in for the one that walks down lines."""


@pytest.mark.skipif(find_spec("triton") is None, reason="there is no Triton")
@pytest.mark.parametrize("by", CASES)
def test_kernels_compute_the_plain_network(by: str) -> None:
    command = [sys.executable, "-c", SCRIPT, json.dumps([by, CASES[by]])]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == len(CASES[by])
    beside = {"guesses of the average", "logits beside the average", "gradients beside the average"}
    joint = {"joint logits", "joint gradients", "along the weights"}
    kinds = {"logits", "guesses", "logits of the average", "gradients", "statistics", "biases", *beside, *joint}
    for worst in results:
        assert worst.keys() == kinds
        assert worst.pop("biases") < 1e-13  # their true gradient, in float64: zero but for rounding
        assert max(worst.values()) < 5e-5, worst  # float32: sums over all pixels that nearly cancel


def test_which_networks_have_kernels() -> None:
    def shape(name: str, *image: int) -> cuda.Shape | None:
        return cuda.shape_of(networks.build(name, 10, image), image)

    large = shape("wrn-28-2", 3, 32, 32)
    assert large is not None
    assert len(large.blocks) == 12
    assert [norm.channels for norm in large.norms[:4]] == [16, 32, 32, 32]
    assert [norm.offset for norm in large.norms[:4]] == [0, 16, 48, 80]
    assert [conv.index for conv in large.convolutions] == list(range(28))  # the stem, 24 in blocks, 3 shortcuts
    assert cuda.Shape.decoded(large.code) == large
    sizes = {name: tuple(value.shape) for name, value in WideResNet(10).named_parameters()}
    for conv in large.convolutions:
        kernel = (conv.out_channels, conv.in_channels, conv.kernel, conv.kernel)
        assert sizes.pop(f"{conv.name}.weight") == kernel
        assert sizes.pop(f"{conv.name}.bias") == kernel[:1]
    for norm in large.norms:
        assert sizes.pop(f"{norm.name}.weight") == sizes.pop(f"{norm.name}.bias") == (norm.channels,)
    assert sizes.keys() == {"head.weight", "head.bias"}
    assert shape("wrn-28-large", 3, 32, 32) is None  # 135 filters are no power of two
    assert shape("cnn13", 3, 32, 32) is None
    assert cuda.shape_of(nn.Linear(3, 10), (3,)) is None
    assert cuda.shape_of(WideResNet(10), (3, 32, 24)) is None
    assert cuda.shape_of(WideResNet(10), (3, 30, 30)) is None  # cannot be halved twice

    class Other(WideResNet):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    assert cuda.shape_of(Other(10), (3, 32, 32)) is None


def changed(part: str, value: Any) -> WideResNet:
    network = WideResNet(10)
    *path, name = part.split(".")
    setattr(network.get_submodule(".".join(path)), name, value)
    return network


@pytest.mark.parametrize(
    "network",
    [
        changed("blocks.3.norm2.eps", 1e-5),
        changed("blocks.3.norm2.momentum", 0.5),
        changed("norm", nn.BatchNorm2d(128, eps=1e-3, momentum=0.001, affine=False)),
        changed("blocks.0.norm1", nn.Identity()),
        changed("head", nn.Sequential(nn.Dropout(), nn.Linear(128, 10))),
        changed("head", nn.Linear(128, 10, bias=False)),
    ],
    ids=["eps", "momentum", "affine", "norm", "head", "bias"],
)
def test_a_network_with_another_part_has_no_kernels(network: WideResNet) -> None:
    assert cuda.shape_of(network, (3, 32, 32)) is None


def test_values_that_32_bits_cannot_count_do_not_fit() -> None:
    shape = cuda.shape_of(WideResNet(10), (3, 96, 96))
    assert shape is not None
    assert cuda.fits(shape, [256] * 5)
    assert 7264 * 96 * 96 * 32 < 2**31 < 7296 * 96 * 96 * 32
    assert cuda.fits(shape, [7264])
    assert not cuda.fits(shape, [7296])


@pytest.mark.parametrize(
    ("sizes", "image", "fit"),
    [([64] * 5, 32, True), ([128, 192], 32, True), ([7, 5], 16, True), ([4, 8], 8, True), ([4, 6], 8, False)],
)
def test_which_batches_fit(sizes: list[int], image: int, fit: bool) -> None:
    shape = cuda.shape_of(WideResNet(10), (3, image, image))
    assert shape is not None
    assert cuda.fits(shape, sizes) is fit


def test_pixels_computed_together_must_fill_tiles() -> None:
    shape = cuda.shape_of(WideResNet(10, 3, 16, 1, 1), (3, 4, 4))
    assert shape is not None
    assert [conv.pixels_per_row for conv in shape.convolutions] == [2, 2, 2]
    assert cuda.fits(shape, [2])
    assert not cuda.fits(shape, [1])  # 16 pixels are 8 pairs


def test_tiles_fit_any_number_of_rows() -> None:
    for rows in (64, 48, 4096, 196_608):
        for channels in (3, 16, 32, 64, 128, 256):
            for out in (16, 32, 64, 128, 256):
                pixels = Convolution(0, "", channels, out, 3, 1, 8).pixels_per_row
                for work in (Work.FORWARD, Work.BACKWARD):
                    for by_tma in (False, True):
                        tile = tiles.conv_tile(work, by_tma, rows, 3, channels, out, pixels)
                        assert rows % tile.bm == 0 == pixels * out % tile.bn
                        assert tile.bk >= 16
                        assert channels < 32 or not by_tma or channels % tile.bk == 0
                for by_tma in (False, True):
                    found = tiles.weight_tile(by_tma, rows, 3, channels, out, pixels)
                    assert 3 % found.taps == 0 == rows % (found.bm * found.parts) == pixels * out % found.bn
                    assert found.taps in ((1,) if by_tma else (3,) if pixels > 1 else (1, 3))
            assert channels == 3 or rows % tiles.pointwise_rows(rows, channels) == 0


def test_every_tile_of_the_table_has_a_key() -> None:
    keys = {
        tiles.key(work, by, 3, into, out, pixels)
        for work in Work
        for by in get_args(tiles.By)
        for into in (3, 16, 32, 64, 128)
        for out in (16, 32, 64, 128)
        for pixels in (1, 2)
    }
    assert tiles.TILES.keys() <= keys


def test_which_tiles_are_blocks() -> None:
    assert tma.block_of(128, 16, 1) == (1, 8, 16)
    assert tma.block_of(128, 8, 1) == (2, 8, 8)
    assert tma.block_of(256, 32, 2) == (1, 16, 16)
    assert tma.block_of(16, 32, 1) is None  # less than a line
    assert tma.block_of(128, 24, 1) is None
    assert tma.block_of(128, 12, 3) is None  # two images and a part of one
    assert tma.enough_channels(Work.FORWARD, 32, 16)
    assert not tma.enough_channels(Work.FORWARD, 48, 64)  # would not fill tiles
    assert not tma.enough_channels(Work.WEIGHTS, 32, 64)
    for rows in (16, 32, 64, 128, 256):
        for size in (4, 6, 8, 12, 16, 24, 32, 48, 64, 96):
            for pixels in (1, 2):
                if found := tma.block_of(rows, size, pixels):
                    assert math.prod(found) == rows
                    assert found[2] * pixels == size
                    assert size % found[1] == 0
                    assert found[0] == 1 or found[1] == size


def test_the_package_loads_without_triton() -> None:
    code = "import sys, mixmatch.networks.cuda; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


SAME = {"SIZE": 3, "STRIDE": 1, "PAD": 1, "IN_H": 16, "IN_W": 16}
"""A convolution that keeps the size of images."""


@pytest.mark.skipif(find_spec("triton") is None, reason="there is no Triton")
@pytest.mark.parametrize(
    ("capability", "name", "backward", "own"),
    [
        (capability, name, backward, own)
        for name, backward, own in [
            ("convolve", False, SAME),
            ("convolve", True, SAME),
            ("convolve", True, {"SIZE": 3, "STRIDE": 2, "PAD": 0, "IN_H": 8, "IN_W": 8}),
            ("convolve_few_channels", False, {"PIXELS_PER_ROW": 2}),
            ("convolve_few_channels", True, {"PIXELS_PER_ROW": 2}),
            ("weight_gradient", False, {**SAME, "PIXELS_PER_ROW": 1, "TAPS": 1, "COLUMNS": 64}),
            ("weight_gradient", False, {**SAME, "PIXELS_PER_ROW": 2, "TAPS": 3, "COLUMNS": 256}),
            ("convolve_tma", False, {"PIXELS_PER_ROW": 1, "OUT_C": 64, "BN": 64}),
            ("convolve_tma", True, {"PIXELS_PER_ROW": 1, "OUT_C": 64, "BN": 64}),
            ("convolve_tma", False, {"PIXELS_PER_ROW": 2, "BN": 64}),
            ("weight_gradient_tma", False, {"OUT_C": 64, "BN": 64}),
        ]
        for capability in ((90,) if name.endswith("tma") else (80, 90))
    ],
)
def test_convolutions_compile_for_gpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capability: int, name: str, backward: bool, own: dict[str, int]
) -> None:
    """What the interpreter lets pass the compiler may not. No GPU is needed to compile for one."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from mixmatch.networks.cuda import kernels

    kernel = getattr(kernels, name)
    wanted: dict[str, Any] = {"H": 16, "W": 16, "IN_C": 64, "OUT_C": 32, "BM": 64, "BN": 32, "BK": 64, **own}
    wanted |= {"BACKWARD": backward, "BIAS": not backward, "RESIDUAL": True, "SUMS": True, "JOINT": True}
    wanted |= {"EPS": 1e-3, "SLOPE": 0.1, "PRECISION": "tf32"}
    arguments = kernel.arg_names
    wanted = {key: value for key, value in wanted.items() if key in arguments}
    low = dict.fromkeys(("x", "w", "g", "residual", "y", "norm_input"), "*bf16")
    high = dict.fromkeys(("bias", "sums", "norm_input_sums", "gamma", "beta", "dw"), "*fp32")
    kinds = {**low, **high, **dict.fromkeys(wanted, "constexpr")}
    if name.endswith("tma"):
        rows_per_line = 16 // wanted.get("PIXELS_PER_ROW", 1)
        kinds["x"] = f"tensordesc<bf16[1, {64 // rows_per_line}, {rows_per_line}, 64]>"
        kinds["w"] = kinds["g"] = "tensordesc<bf16[64, 64]>"
    source = ASTSource(
        fn=kernel,
        signature={argument: kinds.get(argument, "i32") for argument in arguments},
        constexprs={(arguments.index(key),): value for key, value in wanted.items()},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    assert "mma" in compiled.asm["ptx"]  # it uses the tensor cores
    if name.endswith("tma"):
        assert "cp.async.bulk.tensor.4d" in compiled.asm["ptx"]
        assert "ttg.memdesc_reshape" in compiled.asm["ttgir"]  # multiplied where they were copied to


@pytest.mark.skipif(find_spec("triton") is None, reason="there is no Triton")
def test_passes_compile_as_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that does not compile as a whole is slower, and no test without a GPU would tell."""
    monkeypatch.setattr(wide_resnet, "_pass_forward", lambda kernels, *_: (kernels.zero_sums(), []))
    network = WideResNet(10, 3, 16, 1, 2)
    shape = cuda.shape_of(network, (3, 8, 8))
    tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    averaged = {name: value.detach().clone() for name, value in network.named_parameters()}

    def logits(tensors: dict[str, Tensor], averaged: dict[str, Tensor], x: Tensor) -> Tensor:
        passes = Forward(network, averaged, "bf16", tensors, shape)
        targets, learned = passes.targets_and_logits([x, x], [x], "ema")
        return torch.cat([*targets, *learned, *passes.forward_each([x, x])])

    compiled = torch.compile(logits, fullgraph=True, backend="eager")
    assert compiled(tensors, averaged, torch.zeros(4, 3, 8, 8)).shape == (20, 10)


class Stream:
    """What CUDA allows a stream while a graph is captured: to wait only for streams that are part of it."""

    def __init__(self, captured: bool = False) -> None:
        self.captured, self.waited_for = captured, True
        self.cuda_stream = id(self)

    def wait_stream(self, other: Stream) -> None:
        assert other.captured or not self.captured, "the graph depends on what is not in it"
        if other.captured:
            self.captured, self.waited_for, other.waited_for = True, False, True


@pytest.mark.parametrize("work", [0, 1, 2])
def test_a_side_stream_is_part_of_a_graph_only_if_it_has_work(work: int, monkeypatch: pytest.MonkeyPatch) -> None:
    main, side, done = Stream(captured=True), Stream(), []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(streams, "_side_stream", lambda *of: side)
    with streams.SideStream(torch.device("cuda")) as running:
        for number in range(work):
            running.run(done.append, number)
    assert done == list(range(work))
    assert side.waited_for


@pytest.mark.parametrize("backward", [False, True])
def test_weights_for_two_pixels_at_once(backward: bool) -> None:
    """Expanded weights applied to pairs of pixels, by hand, are the convolution, and backwards its transpose."""
    torch.manual_seed(0)
    plain, weight = torch.randn(4, 3, 1, 1, dtype=torch.float64), torch.randn(5, 3, 3, 3, dtype=torch.float64)
    flat = torch.cat([w.permute(0, 2, 3, 1).flatten() for w in (plain, weight)] + [torch.zeros(1, dtype=torch.float64)])
    convolutions = Convolution(0, "", 3, 4, 1, 1, 8), Convolution(1, "", 3, 5, 3, 1, 8)
    index, counts = launch.expanded_index(convolutions, backward, torch.device("cpu"))
    assert counts == [0, 2 * 5 * 3 * 4 * 3] == [0, len(index)]
    into, out = (5, 3) if backward else (3, 5)
    wide = flat[index.long()].view(2, out, 3, 4, into)
    x = torch.randn(1, into, 6, 8, dtype=torch.float64)
    padded = nn.functional.pad(x, (1, 1, 1, 1))[0].permute(1, 2, 0)
    ours = torch.empty(6, 8, out, dtype=torch.float64)
    for row in range(6):
        for column in range(0, 8, 2):
            ours[row, column : column + 2] = torch.einsum(
                "yxi,soyxi->so", padded[row : row + 3, column : column + 4], wide
            )
    convolve = nn.functional.conv_transpose2d if backward else nn.functional.conv2d
    torch.testing.assert_close(ours, convolve(x, weight, padding=1)[0].permute(1, 2, 0))


COMPILED = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language import NVMMASharedLayout
from mixmatch.networks.cuda.line_kernels import convolve_lines as kernel

for channels, pixels, backward, residual, joint in (
    (32, 2, False, True, True), (32, 2, True, False, True), (64, 1, False, False, False), (64, 1, True, False, False),
):
    block, matrix = (4, 1, 16, channels), (64, channels)
    constants = dict(
        H=16 * pixels, W=16 * pixels, IN_C=channels, OUT_C=channels, PIXELS_PER_ROW=pixels, BACKWARD=backward,
        RESIDUAL=residual, JOINT=joint, EPS=1e-3, SLOPE=0.1, IMAGES=4, LINES=16, SLOTS=3, num_warps=4,
    )
    kinds = {"all_channels": "i32", "learned_pixels": "i32", "batch_pixels": "i32"}
    results = (*block[:3], 64)
    for names, shape, columns in (("x", block, channels), ("w", matrix, channels), (("extra", "y"), results, 64)):
        layout = NVMMASharedLayout(min(128, 2 * columns), 16, rank=len(shape))
        kinds |= {name: f"tensordesc<bf16[{','.join(map(str, shape))}],{layout!r}>" for name in names}
    signature = {name: "constexpr" if name in constants else kinds.get(name, "*fp32") for name in kernel.arg_names}
    source = GluonASTSource(fn=kernel, signature=signature, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    assert "wgmma" in compiled.asm["ptx"]
    assert compiled.metadata.shared <= 227 * 1024, compiled.metadata.shared
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="there is no Triton")
def test_the_kernel_that_walks_down_lines_compiles_for_hopper(tmp_path: Path) -> None:
    """Nothing less than a GPU can run it, but its compiler needs none."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


def test_lines_are_divided_among_as_many_programs_as_should_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(images: int, divisible: int = 64, size: int = 32) -> tiles.LineTile | None:
        return tiles.line_tile(Work.FORWARD, images, divisible, size, 32, 32, 2)

    monkeypatch.setattr(tiles, "TILES", {})
    assert found(960) is None
    monkeypatch.setitem(tiles.TILES, "lines forward 3 32 32 2", [4, 192, 3, 8])
    assert found(960) == (4, 32, 3, 8)  # 240 programs
    assert found(512) == (4, 16, 3, 8)
    assert found(192) == (4, 8, 3, 8)
    assert found(4) == (4, 2, 3, 8)
    assert found(960, divisible=6) is None  # four images may be of two batches
    assert found(960, size=96) is None  # a copy takes 2**n rows, not the 48 of a line
    monkeypatch.setitem(tiles.TILES, "lines forward 3 32 32 2", [4, 192, 5, 8])
    assert found(960, size=4) == (4, 4, 5, 8)
    assert found(960, size=2) is None  # with the lines above and below it is 4, and 5 would be copied

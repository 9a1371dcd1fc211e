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
from typing import Any

import pytest
import torch
from torch import nn

from mixmatch import networks
from mixmatch.networks.cuda import wide_resnet as fused
from mixmatch.networks.wide_resnet import WideResNet

SCRIPT = """
import json, sys
import torch
from mixmatch.methods.base import both, several
from mixmatch.networks.cuda import wide_resnet as fused
from mixmatch.networks.wide_resnet import WideResNet
from mixmatch.training.model import Passes

fused.NUMBERS = torch.float32
groups, batch, quiet, size, filters, repeat, scales, boxes, channels = json.loads(sys.argv[1])
launched = set()
described = fused.described
fused.described = lambda x, *shape: launched.add(len(shape)) or described(x, *shape)
if not boxes:
    fused._without_boxes.add(torch.device("cpu"))
torch.manual_seed(0)
plain = WideResNet(7, channels, filters, repeat, scales, momentum=0.1).double()
for parameter in plain.parameters():
    if parameter.dim() < 2:
        parameter.data += 0.3 * torch.randn_like(parameter)
ours = WideResNet(7, channels, filters, repeat, scales, momentum=0.1).to(memory_format=torch.channels_last)
ours.load_state_dict(plain.state_dict())
shape = fused.shape_of(ours, (channels, size, size))
assert shape is not None and fused.fits(shape, [batch] * groups)
x = torch.randn(groups * batch, channels, size, size, dtype=torch.float64)
views = torch.randn(*quiet, channels, size, size, dtype=torch.float64)
ema = {name: 0.9 * parameter.detach() for name, parameter in plain.named_parameters()}
low = {name: value.float().to(memory_format=torch.channels_last) if value.dim() == 4 else value.float()
       for name, value in ema.items()}
reference, kernels = Passes(plain, ema, "fp32"), Passes(ours, low, "bf16", shape=shape)
torch.manual_seed(1)
direction = torch.randn(groups * batch, 7, dtype=torch.float64)
worst = {}

def compare(name, ours, reference):
    error = (ours.double() - reference).norm() / reference.norm().clamp_min(1e-6)
    worst[name] = max(worst.get(name, 0.0), error.item())

for passes, of in ((reference, plain), (kernels, ours)):
    kind = next(of.parameters()).dtype
    guesses, logits = both(passes, list(views.to(kind)), list(x.to(kind).chunk(groups)))
    assert not any(guess.requires_grad for guess in guesses)
    passes.guesses, logits = torch.cat(guesses), torch.cat(logits)
    (logits * direction.to(logits.dtype)).sum().backward()
    passes.logits = logits.detach()
    passes.averaged = torch.cat(several(passes, list(x.to(logits.dtype).chunk(groups)), weights="ema"))
    before = [parameter.grad for parameter in of.parameters()]
    of.zero_grad()
    taught, again = both(passes, list(views.to(kind)), list(x.to(kind).chunk(groups)), "ema")
    assert not any(guess.requires_grad for guess in taught)
    (torch.cat(again) * direction.to(logits.dtype)).sum().backward()
    passes.taught, passes.again = torch.cat(taught), torch.cat(again).detach()
    passes.grads = [(a, b.grad) for a, b in zip(before, of.parameters()) if a is not None]
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
before = {name: value.clone() for name, value in ours.state_dict().items()}
assert fused.problem(ours, shape, batch, torch.device("cpu")) is None
assert all(torch.equal(value, before[name]) for name, value in ours.state_dict().items())
assert all(parameter.requires_grad for parameter in ours.parameters())
assert launched == ({2, 4} if boxes else set()), launched
if boxes:
    fused.TILES["boxes forward 3 32 32 2"] = [128, 64, 48, 4, 2]  # no power of two
    assert fused.problem(ours, shape, batch, torch.device("cpu")) is None
    assert not fused.copies_boxes(torch.device("cpu"))
fused.TILES = {f"forward 3 {channels} 16 {shape.spans[0]}": [16, 16, 12, 4, 2]}  # no power of two
assert "power of 2" in str(fused.problem(ours, shape, batch, torch.device("cpu")).__cause__), "?"
print(json.dumps(worst))
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="there is no Triton")
@pytest.mark.parametrize(
    ("groups", "batch", "quiet", "size", "filters", "repeat", "scales", "boxes", "channels"),
    [
        (1, 12, (1, 8), 8, 16, 1, 2, False, 3),  # as MixMatch with fused passes
        (3, 4, (2, 4), 8, 16, 2, 1, False, 3),  # with official ones
        (2, 4, (1, 4), 8, 32, 1, 2, False, 3),
        (2, 4, (1, 4), 8, 32, 1, 2, True, 3),
        (2, 2, (3, 1), 16, 32, 1, 1, True, 48),  # channels that do not fill tiles
        (2, 2, (3, 1), 16, 32, 1, 2, True, 1),
    ],
)
def test_kernels_compute_the_plain_network(
    groups: int,
    batch: int,
    quiet: tuple[int, int],
    size: int,
    filters: int,
    repeat: int,
    scales: int,
    boxes: bool,
    channels: int,
) -> None:
    case = json.dumps([groups, batch, quiet, size, filters, repeat, scales, boxes, channels])
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, case], env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    worst = json.loads(done.stdout)
    beside = {"guesses of the average", "logits beside the average", "gradients beside the average"}
    assert worst.keys() == {"logits", "guesses", "logits of the average", "gradients", "statistics", "biases", *beside}
    assert worst.pop("biases") < 1e-13  # their true gradient, in float64: zero but for rounding
    assert max(worst.values()) < 5e-5, worst  # float32: sums over all pixels that nearly cancel


def test_which_networks_have_kernels() -> None:
    def shape(name: str, *image: int) -> fused.Shape | None:
        return fused.shape_of(networks.build(name, 10, image), image)

    large = shape("wrn-28-2", 3, 32, 32)
    assert large is not None
    assert len(large.blocks) == 12
    assert large.norms[:4] == [16, 32, 32, 32]
    assert fused.Shape.decoded(tuple(large.encoded())) == large
    assert shape("wrn-28-large", 3, 32, 32) is None  # 135 filters are no power of two
    assert shape("cnn13", 3, 32, 32) is None
    assert fused.shape_of(nn.Linear(3, 10), (3,)) is None
    assert fused.shape_of(WideResNet(10), (3, 32, 24)) is None
    assert fused.shape_of(WideResNet(10), (3, 30, 30)) is None  # cannot be halved twice

    class Other(WideResNet):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    assert fused.shape_of(Other(10), (3, 32, 32)) is None


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
    assert fused.shape_of(network, (3, 32, 32)) is None


def test_values_that_32_bits_cannot_count_do_not_fit() -> None:
    shape = fused.shape_of(WideResNet(10), (3, 96, 96))
    assert shape is not None
    assert fused.fits(shape, [256] * 5)
    assert 7264 * 96 * 96 * 32 < 2**31 < 7296 * 96 * 96 * 32
    assert fused.fits(shape, [7264])
    assert not fused.fits(shape, [7296])


@pytest.mark.parametrize(
    ("sizes", "image", "fit"),
    [([64] * 5, 32, True), ([128, 192], 32, True), ([7, 5], 16, True), ([4, 8], 8, True), ([4, 6], 8, False)],
)
def test_which_batches_fit(sizes: list[int], image: int, fit: bool) -> None:
    shape = fused.shape_of(WideResNet(10), (3, image, image))
    assert shape is not None
    assert fused.fits(shape, sizes) is fit


def test_pixels_computed_together_must_fill_tiles() -> None:
    shape = fused.shape_of(WideResNet(10, 3, 16, 1, 1), (3, 4, 4))
    assert shape is not None
    assert shape.spans == [2, 2, 2]
    assert fused.fits(shape, [2])
    assert not fused.fits(shape, [1])  # 16 pixels are 8 pairs


def test_tiles_fit_any_number_of_rows() -> None:
    for rows in (64, 48, 4096, 196_608):
        for channels in (3, 16, 32, 64, 128, 256):
            for out in (16, 32, 64, 128, 256):
                span = fused.span(channels, out, 8)
                for kind in ("forward", "backward", "boxes forward", "boxes backward"):
                    bm, bn, bk, *_ = fused.conv_tiles(rows, 3, channels, out, kind, span)
                    assert rows % bm == 0 == span * out % bn
                    assert bk >= 16
                    assert channels < 32 or "boxes" not in kind or channels % bk == 0
                for kind in ("weights", "boxes weights"):
                    taps, bm, bn, parts, *_ = fused.gradient_tiles(rows, 3, channels, out, kind, span)
                    assert 3 % taps == 0 == rows % (bm * parts) == span * out % bn
                    assert taps in ((3,) if span > 1 and kind == "weights" else (1,) if "boxes" in kind else (1, 3))
            assert channels == 3 or rows % fused.point_rows(rows, channels) == 0


def test_which_tiles_are_boxes() -> None:
    assert fused.box(128, 16, 1) == (1, 8, 16)
    assert fused.box(128, 8, 1) == (2, 8, 8)
    assert fused.box(256, 32, 2) == (1, 16, 16)
    assert fused.box(16, 32, 1) is None  # less than a line
    assert fused.box(128, 24, 1) is None
    assert fused.box(128, 12, 3) is None  # two images and a part of one
    assert fused.worth_boxes("forward", 32, 16)
    assert not fused.worth_boxes("forward", 48, 64)  # would not fill tiles
    assert not fused.worth_boxes("weights", 32, 64)
    for rows in (16, 32, 64, 128, 256):
        for size in (4, 6, 8, 12, 16, 24, 32, 48, 64, 96):
            for span in (1, 2):
                if found := fused.box(rows, size, span):
                    assert math.prod(found) == rows
                    assert found[2] * span == size
                    assert size % found[1] == 0
                    assert found[0] == 1 or found[1] == size


@pytest.mark.skipif(find_spec("triton") is None, reason="there is no Triton")
@pytest.mark.parametrize(
    ("capability", "name", "backward", "own"),
    [
        (capability, name, backward, own)
        for name, backward, own in [
            ("convolve", False, {"SIZE": 3, "STRIDE": 1, "PAD": 1, "IN_H": 16, "IN_W": 16}),
            ("convolve", True, {"SIZE": 3, "STRIDE": 1, "PAD": 1, "IN_H": 16, "IN_W": 16}),
            ("convolve", True, {"SIZE": 3, "STRIDE": 2, "PAD": 0, "IN_H": 8, "IN_W": 8}),
            ("convolve_spans", False, {"SPAN": 2}),
            ("convolve_spans", True, {"SPAN": 2}),
            (
                "weight_gradient",
                False,
                {"SIZE": 3, "STRIDE": 1, "PAD": 1, "IN_H": 16, "IN_W": 16, "SPAN": 1, "TAPS": 1, "COLUMNS": 64},
            ),
            (
                "weight_gradient",
                False,
                {"SIZE": 3, "STRIDE": 1, "PAD": 1, "IN_H": 16, "IN_W": 16, "SPAN": 2, "TAPS": 3, "COLUMNS": 256},
            ),
            ("convolve_boxes", False, {"SPAN": 1, "OUT_C": 64, "BN": 64}),
            ("convolve_boxes", True, {"SPAN": 1, "OUT_C": 64, "BN": 64}),
            ("convolve_boxes", False, {"SPAN": 2, "BN": 64}),
            ("weight_gradient_boxes", False, {"OUT_C": 64, "BN": 64}),
        ]
        for capability in ((90,) if name.endswith("boxes") else (80, 90))
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
    wanted |= {"BACKWARD": backward, "BIAS": not backward, "RESIDUAL": True, "SUMS": True}
    wanted |= {"EPS": 1e-3, "SLOPE": 0.1, "PRECISION": "tf32"}
    arguments = kernel.arg_names
    wanted = {key: value for key, value in wanted.items() if key in arguments}
    low = dict.fromkeys(("x", "w", "g", "residual", "y", "raw"), "*bf16")
    high = dict.fromkeys(("bias", "sums", "raw_sums", "gamma", "beta", "dw"), "*fp32")
    kinds = {**low, **high, **dict.fromkeys(wanted, "constexpr")}
    if name.endswith("boxes"):
        across = 16 // wanted.get("SPAN", 1)
        kinds["x"] = f"tensordesc<bf16[1, {64 // across}, {across}, 64]>"
        kinds["w"] = kinds["g"] = "tensordesc<bf16[64, 64]>"
    source = ASTSource(
        fn=kernel,
        signature={argument: kinds.get(argument, "i32") for argument in arguments},
        constexprs={(arguments.index(key),): value for key, value in wanted.items()},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    assert "mma" in compiled.asm["ptx"]  # it uses the tensor cores
    if name.endswith("boxes"):
        assert "cp.async.bulk.tensor.4d" in compiled.asm["ptx"]
        assert "ttg.memdesc_reshape" in compiled.asm["ttgir"]  # multiplied where they were copied to


class Stream:
    """What CUDA allows a stream while a step is being recorded: to wait only for streams that are part of it."""

    def __init__(self, recorded: bool = False) -> None:
        self.recorded, self.waited_for = recorded, True
        self.cuda_stream = id(self)

    def wait_stream(self, other: Stream) -> None:
        assert other.recorded or not self.recorded, "the recording depends on what is not in it"
        if other.recorded:
            self.recorded, self.waited_for, other.waited_for = True, False, True


@pytest.mark.parametrize("work", [0, 1, 2])
def test_a_stream_beside_another_is_part_of_a_recording_only_if_it_has_work(
    work: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there, done = Stream(recorded=True), Stream(), []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: here)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(fused, "_beside", lambda *of: there)
    with fused._Aside(torch.device("cuda")) as aside:
        for number in range(work):
            aside.run(done.append, number)
    assert done == list(range(work))
    assert there.waited_for


@pytest.mark.parametrize("backward", [False, True])
def test_weights_for_two_pixels_at_once(backward: bool) -> None:
    """Gathered weights applied to pairs of pixels, by hand, are the convolution, and backwards its transpose."""
    torch.manual_seed(0)
    plain, weight = torch.randn(4, 3, 1, 1, dtype=torch.float64), torch.randn(5, 3, 3, 3, dtype=torch.float64)
    flat = torch.cat([w.permute(0, 2, 3, 1).flatten() for w in (plain, weight)] + [torch.zeros(1, dtype=torch.float64)])
    index, counts = fused.spread(((4, 3, 1, 1), (5, 3, 3, 3)), (1, 2), backward, torch.device("cpu"))
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

"""Triton kernels for a network of batch norm, leaky ReLU and convolutions, on bf16 images in (N, H, W, C) order.

Statistics of batch norm are sums of values and of squares, laid out (groups, 2, channels of all layers). A convolution
adds up those of its own output while it has it at hand, and its backward pass those that batch norm's gradient needs.
Images are in `groups` of equal size, one after the other; each is normalized by itself, as if it had been a batch.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _normalized(x, sums, c, total, group, rows_per_group, EPS: tl.constexpr):
    """x with mean 0 and variance 1 in its group, and the reciprocal of its deviation."""
    first = tl.load(sums + group * 2 * total + c)
    second = tl.load(sums + group * 2 * total + total + c)
    mean = first / rows_per_group
    rstd = 1.0 / tl.sqrt(tl.maximum(second / rows_per_group - mean * mean, 0.0) + EPS)
    return (x - mean[None, :]) * rstd[None, :], rstd


@triton.jit
def convolve(
    x,
    w,
    bias,
    residual,
    y,
    sums,
    raw,
    raw_sums,
    gamma,
    beta,
    total,
    rows_per_group,
    H,
    W,
    IN_H,
    IN_W,
    IN_C: tl.constexpr,
    OUT_C: tl.constexpr,
    SIZE: tl.constexpr,
    STRIDE: tl.constexpr,
    PAD: tl.constexpr,
    BACKWARD: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    SUMS: tl.constexpr,
    EPS: tl.constexpr,
    SLOPE: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """y = convolution of x with w, plus bias and residual.

    w is (out, SIZE, SIZE, in) in memory. BACKWARD applies it the other way, from the gradient of the output to that of
    the input, then through leaky ReLU and to batch norm's normalized values; `raw` is what was normalized. Then SUMS
    adds up the gradients and their products with those values, else the outputs and their squares.

    Backwards through a stride, only every STRIDE-th tap reaches a pixel, and which ones depends on whether its row and
    column are even: a tile is of pixels alike, so that no tap is in vain.
    """
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    STEP: tl.constexpr = STRIDE if BACKWARD else 1  # between rows, and columns, that are alike
    if STEP == 1:
        tile = tl.program_id(0)
        first_y = 0
        first_x = 0
        taps_y = SIZE
        taps_x = SIZE
    else:
        tiles = tl.num_programs(0) // (STEP * STEP)
        tile = tl.program_id(0) % tiles
        first_y = tl.program_id(0) // tiles // STEP
        first_x = tl.program_id(0) // tiles % STEP
        taps_y = (SIZE - first_y + STEP - 1) // STEP
        taps_x = (SIZE - first_x + STEP - 1) // STEP
    j = tile * BM + tl.arange(0, BM)
    column = (j % (W // STEP)) * STEP + first_x
    row = (j // (W // STEP)) % (H // STEP) * STEP + first_y
    image = j // ((W // STEP) * (H // STEP))
    m = (image * H + row) * W + column
    BLOCKS: tl.constexpr = (IN_C + BK - 1) // BK
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for i in range(taps_y * taps_x * BLOCKS):
        dy = first_y + i // BLOCKS // taps_x * STEP
        dx = first_x + i // BLOCKS % taps_x * STEP
        tap = dy * SIZE + dx
        c = (i % BLOCKS) * BK + k
        if BACKWARD:
            up = (row + PAD - dy) // STRIDE
            left = (column + PAD - dx) // STRIDE
            weights = w + c[:, None] * (SIZE * SIZE * OUT_C) + tap * OUT_C + n[None, :]
        else:
            up = row * STRIDE - PAD + dy
            left = column * STRIDE - PAD + dx
            weights = w + n[None, :] * (SIZE * SIZE * IN_C) + tap * IN_C + c[:, None]
        inside = (up >= 0) & (up < IN_H) & (left >= 0) & (left < IN_W)
        at = ((image * IN_H + up) * IN_W + left) * IN_C
        if IN_C % BK == 0:
            a = tl.load(x + at[:, None] + c[None, :], mask=inside[:, None], other=0.0)
        else:
            a = tl.load(x + at[:, None] + c[None, :], mask=inside[:, None] & (c < IN_C)[None, :], other=0.0)
        if IN_C % BK == 0:  # noqa: SIM108
            b = tl.load(weights)
        else:
            b = tl.load(weights, mask=(c < IN_C)[:, None], other=0.0)
        acc = tl.dot(a, b.to(a.dtype), acc, input_precision=PRECISION)
    if BIAS:
        acc += tl.load(bias + n)[None, :]
    at_output = m[:, None] * OUT_C + n[None, :]
    if RESIDUAL:
        acc += tl.load(residual + at_output).to(tl.float32)
    group = (tile * BM) // (rows_per_group // (STEP * STEP))
    if BACKWARD and SUMS:
        before = tl.load(raw + at_output).to(tl.float32)
        normal, _ = _normalized(before, raw_sums, n, total, group, rows_per_group, EPS)
        positive = normal * tl.load(gamma + n)[None, :] + tl.load(beta + n)[None, :] > 0
        out = tl.where(positive, acc, SLOPE * acc).to(y.dtype.element_ty)
        tl.store(y + at_output, out)
        value = out.to(tl.float32)
        other = value * normal
    else:
        out = acc.to(y.dtype.element_ty)
        tl.store(y + at_output, out)
        value = out.to(tl.float32)
        other = value * value
    if SUMS:
        tl.atomic_add(sums + group * 2 * total + n, tl.sum(value, 0))
        tl.atomic_add(sums + group * 2 * total + total + n, tl.sum(other, 0))


@triton.jit
def weight_gradient(
    x,
    g,
    dw,
    rows,
    H,
    W,
    IN_H,
    IN_W,
    IN_C: tl.constexpr,
    OUT_C: tl.constexpr,
    SIZE: tl.constexpr,
    STRIDE: tl.constexpr,
    PAD: tl.constexpr,
    TAPS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """dw (out, SIZE, SIZE, in) += the gradient of a convolution's weights, from its input x and output's gradient g.

    A program takes `rows` outputs and `TAPS` neighbouring taps of a row of the kernel: their inputs lie one after the
    other in memory.
    """
    PARTS: tl.constexpr = SIZE // TAPS
    dy = tl.program_id(0) // PARTS
    first = (tl.program_id(0) % PARTS) * TAPS
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    j = tl.arange(0, COLUMNS)
    dx = first + j // IN_C
    start = tl.program_id(2) * rows
    acc = tl.zeros((COLUMNS, BN), dtype=tl.float32)
    for i in range(0, rows, BM):
        m = start + i + tl.arange(0, BM)
        column = m % W
        row = (m // W) % H
        image = m // (W * H)
        up = row * STRIDE - PAD + dy
        left = column * STRIDE - PAD
        at = ((image * IN_H + up) * IN_W + left + first) * IN_C
        inside = ((up >= 0) & (up < IN_H))[:, None] & (left[:, None] + dx[None, :] >= 0)
        inside = inside & (left[:, None] + dx[None, :] < IN_W) & (j < TAPS * IN_C)[None, :]
        a = tl.load(x + at[:, None] + j[None, :], mask=inside, other=0.0)
        b = tl.load(g + m[:, None] * OUT_C + n[None, :])
        acc = tl.dot(tl.trans(a), b, acc, input_precision=PRECISION)
    place = dw + n[None, :] * (SIZE * SIZE * IN_C) + (dy * SIZE + first) * IN_C + j[:, None]
    tl.atomic_add(place, acc, mask=(j < TAPS * IN_C)[:, None] & (n < OUT_C)[None, :])


@triton.jit
def normalize(
    x,
    sums,
    gamma,
    beta,
    y,
    total,
    rows_per_group,
    C: tl.constexpr,
    EPS: tl.constexpr,
    SLOPE: tl.constexpr,
    BM: tl.constexpr,
):
    """y = leaky ReLU of batch norm of x (rows, C)."""
    tile = tl.program_id(0)
    c = tl.arange(0, C)
    at = (tile * BM + tl.arange(0, BM))[:, None] * C + c[None, :]
    normal, _ = _normalized(
        tl.load(x + at).to(tl.float32), sums, c, total, (tile * BM) // rows_per_group, rows_per_group, EPS
    )
    z = normal * tl.load(gamma + c)[None, :] + tl.load(beta + c)[None, :]
    tl.store(y + at, tl.where(z > 0, z, SLOPE * z).to(y.dtype.element_ty))


@triton.jit
def pool(
    x,
    sums,
    gamma,
    beta,
    y,
    total,
    rows_per_group,
    C: tl.constexpr,
    PIXELS: tl.constexpr,
    EPS: tl.constexpr,
    SLOPE: tl.constexpr,
    BM: tl.constexpr,
):
    """y (N, C) = the mean over each image's pixels of leaky ReLU of batch norm of x."""
    image = tl.program_id(0)
    c = tl.arange(0, C)
    group = (image * PIXELS) // rows_per_group
    acc = tl.zeros((C,), dtype=tl.float32)
    for i in range(0, PIXELS, BM):
        at = (image * PIXELS + i + tl.arange(0, BM))[:, None] * C + c[None, :]
        normal, _ = _normalized(tl.load(x + at).to(tl.float32), sums, c, total, group, rows_per_group, EPS)
        z = normal * tl.load(gamma + c)[None, :] + tl.load(beta + c)[None, :]
        acc += tl.sum(tl.where(z > 0, z, SLOPE * z), 0)
    tl.store(y + image * C + c, acc / PIXELS)


@triton.jit
def activation_gradient(
    g,
    x,
    sums,
    gamma,
    beta,
    y,
    out_sums,
    total,
    rows_per_group,
    C: tl.constexpr,
    PIXELS: tl.constexpr,
    EPS: tl.constexpr,
    SLOPE: tl.constexpr,
    BM: tl.constexpr,
):
    """What BACKWARD of `convolve` does after its sum, for gradients that come from elsewhere: g (rows, C), or where
    PIXELS is not 0, (images, C) for all pixels of an image alike."""
    tile = tl.program_id(0)
    c = tl.arange(0, C)
    m = tile * BM + tl.arange(0, BM)
    at = m[:, None] * C + c[None, :]
    group = (tile * BM) // rows_per_group
    normal, _ = _normalized(tl.load(x + at).to(tl.float32), sums, c, total, group, rows_per_group, EPS)
    z = normal * tl.load(gamma + c)[None, :] + tl.load(beta + c)[None, :]
    if PIXELS == 0:
        d = tl.load(g + at).to(tl.float32)
    else:
        d = tl.load(g + (m // PIXELS)[:, None] * C + c[None, :]).to(tl.float32) / PIXELS
    out = tl.where(z > 0, d, SLOPE * d).to(y.dtype.element_ty)
    tl.store(y + at, out)
    value = out.to(tl.float32)
    tl.atomic_add(out_sums + group * 2 * total + c, tl.sum(value, 0))
    tl.atomic_add(out_sums + group * 2 * total + total + c, tl.sum(value * normal, 0))


@triton.jit
def norm_gradient(
    g,
    x,
    sums,
    g_sums,
    gamma,
    residual,
    y,
    total,
    rows_per_group,
    C: tl.constexpr,
    RESIDUAL: tl.constexpr,
    EPS: tl.constexpr,
    BM: tl.constexpr,
):
    """y = the gradient of what was normalized, from that of the normalized values (times gamma), plus residual."""
    tile = tl.program_id(0)
    c = tl.arange(0, C)
    at = (tile * BM + tl.arange(0, BM))[:, None] * C + c[None, :]
    group = (tile * BM) // rows_per_group
    normal, rstd = _normalized(tl.load(x + at).to(tl.float32), sums, c, total, group, rows_per_group, EPS)
    mean = tl.load(g_sums + group * 2 * total + c) / rows_per_group
    slope = tl.load(g_sums + group * 2 * total + total + c) / rows_per_group
    scale = tl.load(gamma + c) * rstd
    d = scale[None, :] * (tl.load(g + at).to(tl.float32) - mean[None, :] - normal * slope[None, :])
    if RESIDUAL:
        d += tl.load(residual + at).to(tl.float32)
    tl.store(y + at, d.to(y.dtype.element_ty))

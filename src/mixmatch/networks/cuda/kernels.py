"""Triton kernels for a network of batch norm, leaky ReLU and convolutions, on bf16 images in (N, H, W, C) order.

Statistics of batch norm are sums of values and of squares, laid out (batches, 2, channels of all layers). A convolution
adds up those of its own output while it has it at hand, and its backward pass those that batch norm's gradient needs.
Batches of images, of so many `rows` each, lie one after the other, and each is normalized by itself. What is not needed
again soon is read with the hint to give up its place in the L2 cache first (`evict_first`).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _statistics(sums, c, total, batch, rows, EPS: tl.constexpr):
    """The mean of channels c in a batch, and the reciprocal of their deviation."""
    mean = tl.load(sums + batch * 2 * total + c) / rows
    square = tl.load(sums + batch * 2 * total + total + c) / rows
    return mean, 1.0 / tl.sqrt(tl.maximum(square - mean * mean, 0.0) + EPS)


@triton.jit
def _affine(mean, rstd, gamma, beta, c):
    """Batch norm as a slope and an offset."""
    scale = tl.load(gamma + c) * rstd
    return scale[None, :], (tl.load(beta + c) - mean * scale)[None, :]


@triton.jit
def _finish(
    acc,
    at,
    c,
    batch,
    rows,
    bias,
    residual,
    y,
    sums,
    raw,
    raw_sums,
    gamma,
    beta,
    total,
    BACKWARD: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    SUMS: tl.constexpr,
    EPS: tl.constexpr,
    SLOPE: tl.constexpr,
):
    """What a convolution does with its sums `acc`, which belong `at` places of y, to channels c and to a batch of so
    many rows."""
    if BIAS:
        acc += tl.load(bias + c)[None, :]
    if RESIDUAL:
        acc += tl.load(residual + at).to(tl.float32)
    if BACKWARD and SUMS:
        before = tl.load(raw + at).to(tl.float32)
        mean, rstd = _statistics(raw_sums, c, total, batch, rows, EPS)
        scale, shift = _affine(mean, rstd, gamma, beta, c)
        out = tl.where(before * scale + shift > 0, acc, SLOPE * acc).to(y.dtype.element_ty)
        tl.store(y + at, out)
        value = out.to(tl.float32)
        plain = tl.sum(value, 0)
        product = (tl.sum(value * before, 0) - mean * plain) * rstd
    else:
        out = acc.to(y.dtype.element_ty)
        tl.store(y + at, out)
        value = out.to(tl.float32)
        plain = tl.sum(value, 0)
        product = tl.sum(value * value, 0)
    if SUMS:
        tl.atomic_add(sums + batch * 2 * total + c, plain, sem="relaxed")
        tl.atomic_add(sums + batch * 2 * total + total + c, product, sem="relaxed")


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
    rows,
    H: tl.constexpr,
    W: tl.constexpr,
    IN_H: tl.constexpr,
    IN_W: tl.constexpr,
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
    c = tl.arange(0, BK)
    if BACKWARD:
        up = (row + PAD - first_y) // STRIDE
        left = (column + PAD - first_x) // STRIDE
        weights = w + c[:, None] * (SIZE * SIZE * OUT_C) + n[None, :]
    else:
        up = row * STRIDE - PAD
        left = column * STRIDE - PAD
        weights = w + n[None, :] * (SIZE * SIZE * IN_C) + c[:, None]
    inputs = x + (((image * IN_H + up) * IN_W + left) * IN_C)[:, None] + c[None, :]
    first_tap = first_y * SIZE + first_x
    BLOCKS: tl.constexpr = (IN_C + BK - 1) // BK
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for i in range(taps_y * taps_x * BLOCKS):
        dy = i // BLOCKS // taps_x
        dx = i // BLOCKS % taps_x
        tap = first_tap + (dy * SIZE + dx) * STEP
        block = (i % BLOCKS) * BK
        if BACKWARD:
            inside = (up - dy >= 0) & (up - dy < IN_H) & (left - dx >= 0) & (left - dx < IN_W)
            from_inputs = inputs + (block - (dy * IN_W + dx) * IN_C)
            from_weights = weights + (block * (SIZE * SIZE * OUT_C) + tap * OUT_C)
        else:
            inside = (up + dy >= 0) & (up + dy < IN_H) & (left + dx >= 0) & (left + dx < IN_W)
            from_inputs = inputs + (block + (dy * IN_W + dx) * IN_C)
            from_weights = weights + (block + tap * IN_C)
        if IN_C % BK == 0:
            a = tl.load(from_inputs, mask=inside[:, None], other=0.0)
            b = tl.load(from_weights)
        else:
            known = block + c < IN_C
            a = tl.load(from_inputs, mask=inside[:, None] & known[None, :], other=0.0)
            b = tl.load(from_weights, mask=known[:, None], other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    at = m[:, None] * OUT_C + n[None, :]
    batch = tile * BM * STEP * STEP // rows
    _finish(
        acc, at, n, batch, rows, bias, residual, y, sums, raw, raw_sums, gamma, beta, total,
        BACKWARD, BIAS, RESIDUAL, SUMS, EPS, SLOPE,
    )  # fmt: skip


@triton.jit
def convolve_spans(
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
    rows,
    H: tl.constexpr,
    W: tl.constexpr,
    IN_C: tl.constexpr,
    OUT_C: tl.constexpr,
    SPAN: tl.constexpr,
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
    """`convolve` with a kernel of 3x3 and stride 1, for few channels: SPAN neighbouring pixels are computed together
    from the SPAN + 2 above, beside and below them, which lie one after the other in memory, so that each input is read
    3 * (SPAN + 2) / SPAN times and not 9 times.

    w is (SPAN, out, 3, SPAN + 2, in) in memory, zero where a pixel is not reached, and for BACKWARD already turned.
    """
    WIDTH: tl.constexpr = (SPAN + 2) * IN_C
    BLOCKS: tl.constexpr = (WIDTH + BK - 1) // BK
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    j = tl.program_id(0) * BM + tl.arange(0, BM)
    left = j % (W // SPAN) * SPAN - 1
    up = (j // (W // SPAN)) % H - 1
    image = j // ((W // SPAN) * H)
    inputs = x + (((image * H + up) * W + left) * IN_C)[:, None] + k[None, :]
    weights = w + (n * (3 * WIDTH))[None, :] + k[:, None]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for i in range(3 * BLOCKS):
        dy = i // BLOCKS
        block = (i % BLOCKS) * BK
        at_x = left[:, None] + ((block + k) // IN_C)[None, :]
        inside = ((up + dy >= 0) & (up + dy < H))[:, None] & (at_x >= 0) & (at_x < W)
        if WIDTH % BK == 0:
            a = tl.load(inputs + (dy * W * IN_C + block), mask=inside, other=0.0)
            b = tl.load(weights + (dy * WIDTH + block))
        else:
            known = block + k < WIDTH
            a = tl.load(inputs + (dy * W * IN_C + block), mask=inside & known[None, :], other=0.0)
            b = tl.load(weights + (dy * WIDTH + block), mask=known[:, None], other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    at = j[:, None] * (SPAN * OUT_C) + n[None, :]
    batch = tl.program_id(0) * BM * SPAN // rows
    _finish(
        acc, at, n % OUT_C, batch, rows, bias, residual, y, sums, raw, raw_sums, gamma, beta, total,
        BACKWARD, BIAS, RESIDUAL, SUMS, EPS, SLOPE,
    )  # fmt: skip


@triton.jit
def convolve_boxes(
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
    rows,
    H: tl.constexpr,
    W: tl.constexpr,
    IN_C: tl.constexpr,
    OUT_C: tl.constexpr,
    SPAN: tl.constexpr,
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
    """`convolve` with a kernel of 3x3 and stride 1, and `convolve_spans` where SPAN > 1, on a GPU that copies boxes of
    a tensor by itself, with zeros for what lies outside: no thread computes addresses.

    x is described as (images, H, W / SPAN, SPAN * in), w as (SPAN * out, 3 * (SPAN + 2) * in), and as (in, 9 * out) for
    BACKWARD and a SPAN of 1. Pixels are the columns of the product and channels its rows: a factor on the right is
    multiplied where it was copied to, one on the left that has been reshaped would first go through registers.
    """
    BLOCKS: tl.constexpr = IN_C // BK
    TAPS: tl.constexpr = SPAN + 2
    ACROSS: tl.constexpr = W // SPAN
    first = tl.program_id(0) * BM
    first_n = tl.program_id(1) * BN
    image = first // (ACROSS * H)
    up = first // ACROSS % H - 1
    acc = tl.zeros((BN, BM), dtype=tl.float32)
    for i in range(3 * TAPS * BLOCKS):
        dy = i // (TAPS * BLOCKS)
        dx = i // BLOCKS % TAPS
        block = (i % BLOCKS) * BK
        left = dx + SPAN - 1  # of the span before
        pixels = x.load([image, up + dy, left // SPAN - 1, left % SPAN * IN_C + block]).reshape(BM, BK)
        if BACKWARD and SPAN == 1:
            weights = w.load([block, (8 - dy * 3 - dx) * OUT_C + first_n]).T
        else:
            weights = w.load([first_n, (dy * TAPS + dx) * IN_C + block])
        acc = tl.dot(weights, pixels.T, acc, input_precision=PRECISION)
    n = first_n + tl.arange(0, BN)
    at = (first + tl.arange(0, BM))[:, None] * (SPAN * OUT_C) + n[None, :]
    batch = first * SPAN // rows
    _finish(
        acc.T, at, n % OUT_C, batch, rows, bias, residual, y, sums, raw, raw_sums, gamma, beta, total,
        BACKWARD, BIAS, RESIDUAL, SUMS, EPS, SLOPE,
    )  # fmt: skip


@triton.jit
def weight_gradient(
    x,
    g,
    dw,
    rows,
    H: tl.constexpr,
    W: tl.constexpr,
    IN_H: tl.constexpr,
    IN_W: tl.constexpr,
    IN_C: tl.constexpr,
    OUT_C: tl.constexpr,
    SIZE: tl.constexpr,
    STRIDE: tl.constexpr,
    PAD: tl.constexpr,
    SPAN: tl.constexpr,
    TAPS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """dw (out, SIZE, SIZE, in) += the gradient of a convolution's weights, from its input x and output's gradient g.

    A program takes `rows` outputs, or spans of SPAN neighbouring ones, and `TAPS` neighbouring taps of a row of the
    kernel: their inputs lie one after the other in memory. Of the products of a span's inputs and outputs, those too
    far apart for a tap are left out.
    """
    PARTS: tl.constexpr = SIZE // TAPS
    WIDTH: tl.constexpr = (TAPS + SPAN - 1) * IN_C
    ACROSS: tl.constexpr = W // SPAN
    dy = tl.program_id(0) // PARTS
    first_tap = (tl.program_id(0) % PARTS) * TAPS
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    j = tl.arange(0, COLUMNS)
    dx = first_tap + j // IN_C
    start = tl.program_id(2) * rows
    acc = tl.zeros((COLUMNS, BN), dtype=tl.float32)
    for i in range(0, rows, BM):
        m = start + i + tl.arange(0, BM)
        column = m % ACROSS * SPAN
        row = (m // ACROSS) % H
        image = m // (ACROSS * H)
        up = row * STRIDE - PAD + dy
        left = column * STRIDE - PAD
        at = x + (((image * IN_H + up) * IN_W + left + first_tap) * IN_C)[:, None] + j[None, :]
        inside = (left[:, None] + dx[None, :] >= 0) & (left[:, None] + dx[None, :] < IN_W) & (j < WIDTH)[None, :]
        b = tl.load(g + m[:, None] * (SPAN * OUT_C) + n[None, :])
        a = tl.load(at, mask=inside & ((up >= 0) & (up < IN_H))[:, None], other=0.0)
        acc = tl.dot(tl.trans(a), b, acc, input_precision=PRECISION)
    pixel = n // OUT_C
    tap = (j // IN_C)[:, None] - pixel[None, :]
    own = dw + (n % OUT_C * (SIZE * SIZE * IN_C) - pixel * IN_C)[None, :]
    place = own + (dy * SIZE + first_tap) * IN_C + j[:, None]
    tl.atomic_add(place, acc, mask=(tap >= 0) & (tap < TAPS), sem="relaxed")


@triton.jit
def weight_gradient_boxes(
    x,
    g,
    dw,
    rows,
    H: tl.constexpr,
    W: tl.constexpr,
    IN_C: tl.constexpr,
    OUT_C: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """`weight_gradient` of a kernel of 3x3 and stride 1, a tap to a program, as `convolve_boxes`; g is described as
    (pixels, out)."""
    dy = tl.program_id(0) // 3
    dx = tl.program_id(0) % 3
    first_n = tl.program_id(1) * BN
    start = tl.program_id(2) * rows
    acc = tl.zeros((BN, IN_C), dtype=tl.float32)
    for i in range(0, rows, BM):
        first = start + i
        outputs = g.load([first, first_n]).T
        inputs = x.load([first // (W * H), first // W % H + dy - 1, dx - 1, 0]).reshape(BM, IN_C)
        acc = tl.dot(outputs, inputs, acc, input_precision=PRECISION)
    n = first_n + tl.arange(0, BN)
    place = dw + (n * (9 * IN_C) + (dy * 3 + dx) * IN_C)[:, None] + tl.arange(0, IN_C)[None, :]
    tl.atomic_add(place, acc, sem="relaxed")


@triton.jit
def normalize(
    x,
    sums,
    gamma,
    beta,
    y,
    total,
    rows,
    C: tl.constexpr,
    EPS: tl.constexpr,
    SLOPE: tl.constexpr,
    BM: tl.constexpr,
):
    """y = leaky ReLU of batch norm of x (rows, C)."""
    tile = tl.program_id(0)
    c = tl.arange(0, C)
    at = (tile * BM + tl.arange(0, BM))[:, None] * C + c[None, :]
    batch = tile * BM // rows
    mean, rstd = _statistics(sums, c, total, batch, rows, EPS)
    scale, shift = _affine(mean, rstd, gamma, beta, c)
    z = tl.load(x + at, eviction_policy="evict_first").to(tl.float32) * scale + shift
    tl.store(y + at, tl.where(z > 0, z, SLOPE * z).to(y.dtype.element_ty))


@triton.jit
def pool(
    x,
    sums,
    gamma,
    beta,
    y,
    total,
    rows,
    C: tl.constexpr,
    PIXELS: tl.constexpr,
    EPS: tl.constexpr,
    SLOPE: tl.constexpr,
    BM: tl.constexpr,
):
    """y (N, C) = the mean over each image's pixels of leaky ReLU of batch norm of x."""
    image = tl.program_id(0)
    c = tl.arange(0, C)
    batch = image * PIXELS // rows
    mean, rstd = _statistics(sums, c, total, batch, rows, EPS)
    scale, shift = _affine(mean, rstd, gamma, beta, c)
    acc = tl.zeros((C,), dtype=tl.float32)
    for i in range(0, PIXELS, BM):
        at = (image * PIXELS + i + tl.arange(0, BM))[:, None] * C + c[None, :]
        z = tl.load(x + at).to(tl.float32) * scale + shift
        acc += tl.sum(tl.where(z > 0, z, SLOPE * z), 0)
    tl.store(y + image * C + c, acc / PIXELS)


@triton.jit
def pool_gradient(
    g,
    x,
    sums,
    gamma,
    beta,
    y,
    out_sums,
    total,
    rows,
    C: tl.constexpr,
    PIXELS: tl.constexpr,
    EPS: tl.constexpr,
    SLOPE: tl.constexpr,
    BM: tl.constexpr,
):
    """What BACKWARD of `convolve` does after its sum, for the gradient of `pool`: g (images, C), for all pixels of an
    image alike."""
    tile = tl.program_id(0)
    c = tl.arange(0, C)
    m = tile * BM + tl.arange(0, BM)
    at = m[:, None] * C + c[None, :]
    batch = tile * BM // rows
    raw = tl.load(x + at).to(tl.float32)
    mean, rstd = _statistics(sums, c, total, batch, rows, EPS)
    scale, shift = _affine(mean, rstd, gamma, beta, c)
    d = tl.load(g + (m // PIXELS)[:, None] * C + c[None, :]).to(tl.float32) / PIXELS
    out = tl.where(raw * scale + shift > 0, d, SLOPE * d).to(y.dtype.element_ty)
    tl.store(y + at, out)
    value = out.to(tl.float32)
    plain = tl.sum(value, 0)
    tl.atomic_add(out_sums + batch * 2 * total + c, plain, sem="relaxed")
    product = (tl.sum(value * raw, 0) - mean * plain) * rstd
    tl.atomic_add(out_sums + batch * 2 * total + total + c, product, sem="relaxed")


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
    rows,
    C: tl.constexpr,
    RESIDUAL: tl.constexpr,
    EPS: tl.constexpr,
    BM: tl.constexpr,
):
    """y = the gradient of what was normalized, from that of the normalized values (times gamma), plus residual."""
    tile = tl.program_id(0)
    c = tl.arange(0, C)
    at = (tile * BM + tl.arange(0, BM))[:, None] * C + c[None, :]
    batch = tile * BM // rows
    mean, rstd = _statistics(sums, c, total, batch, rows, EPS)
    mean_g = tl.load(g_sums + batch * 2 * total + c) / rows
    slope = tl.load(g_sums + batch * 2 * total + total + c) / rows
    scale = tl.load(gamma + c) * rstd
    by_x = -scale * slope * rstd
    shift = -scale * mean_g - by_x * mean
    d = (
        tl.load(g + at, eviction_policy="evict_first").to(tl.float32) * scale[None, :]
        + tl.load(x + at, eviction_policy="evict_first").to(tl.float32) * by_x[None, :]
        + shift[None, :]
    )
    if RESIDUAL:
        d += tl.load(residual + at).to(tl.float32)
    tl.store(y + at, d.to(y.dtype.element_ty))

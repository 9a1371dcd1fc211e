"""Triton kernels for a network of batch norm, leaky ReLU and convolutions, on bf16 images in (N, H, W, C) order.

- A convolution is an implicit matrix product. A row stands for an output pixel, or for PIXELS_PER_ROW adjacent ones; a
  column for an output channel of one of them. A program computes a tile of BM rows and BN columns, BK inputs at a time.
- Batches of images follow each other in a tensor, `batch_pixels` pixels each. Each batch is normalized by itself, and
  a tile never spans two of them.
- Statistics of batch norm are sums, (batches, 2, all_channels) for the channels of all layers: of values and of their
  squares. A convolution adds to those of its output in its epilogue. Backwards the two sums are those that the gradient
  of batch norm needs: of gradients, and of their products with the normalized values.
- A JOINT batch has `learned_pixels` that are learned from, and after them others without a gradient. A second row of
  the sums of values is over the former alone: see `norm_gradient`.
- `evict_first` marks reads of what is not needed again soon, so that the L2 cache keeps other data.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _statistics(sums, c, all_channels, batch, batch_pixels, EPS: tl.constexpr):
    """The mean of channels c in a batch, and the reciprocal of their standard deviation."""
    mean = tl.load(sums + batch * 2 * all_channels + c) / batch_pixels
    square = tl.load(sums + batch * 2 * all_channels + all_channels + c) / batch_pixels
    return mean, 1.0 / tl.sqrt(tl.maximum(square - mean * mean, 0.0) + EPS)


@triton.jit
def _affine(mean, rstd, gamma, beta, c):
    """Batch norm as a scale and a shift."""
    scale = tl.load(gamma + c) * rstd
    return scale[None, :], (tl.load(beta + c) - mean * scale)[None, :]


@triton.jit
def _epilogue(
    acc,
    offsets,
    c,
    first_pixel,
    learned_pixels,
    batch_pixels,
    bias,
    residual,
    y,
    sums,
    norm_input,
    norm_input_sums,
    gamma,
    beta,
    all_channels,
    BACKWARD: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    SUMS: tl.constexpr,
    JOINT: tl.constexpr,
    EPS: tl.constexpr,
    SLOPE: tl.constexpr,
):
    """What a convolution does with the accumulator `acc` of a tile: its values go to `offsets` in y, and are of
    channels c and of one batch."""
    batch = first_pixel // batch_pixels
    if BIAS:
        acc += tl.load(bias + c)[None, :]
    if RESIDUAL:
        acc += tl.load(residual + offsets).to(tl.float32)
    if BACKWARD and SUMS:
        before = tl.load(norm_input + offsets).to(tl.float32)
        mean, rstd = _statistics(norm_input_sums, c, all_channels, batch, batch_pixels, EPS)
        scale, shift = _affine(mean, rstd, gamma, beta, c)
        out = tl.where(before * scale + shift > 0, acc, SLOPE * acc).to(y.dtype.element_ty)
        tl.store(y + offsets, out)
        value = out.to(tl.float32)
        first_sum = tl.sum(value, 0)
        second_sum = (tl.sum(value * before, 0) - mean * first_sum) * rstd
    else:
        out = acc.to(y.dtype.element_ty)
        tl.store(y + offsets, out)
        value = out.to(tl.float32)
        first_sum = tl.sum(value, 0)
        second_sum = tl.sum(value * value, 0)
    if SUMS:
        tl.atomic_add(sums + batch * 2 * all_channels + c, first_sum, sem="relaxed")
        tl.atomic_add(sums + batch * 2 * all_channels + all_channels + c, second_sum, sem="relaxed")
        if JOINT and not BACKWARD and first_pixel < learned_pixels:
            tl.atomic_add(sums + 2 * all_channels + c, first_sum, sem="relaxed")
            tl.atomic_add(sums + 3 * all_channels + c, second_sum, sem="relaxed")


@triton.jit
def convolve(
    x,
    w,
    bias,
    residual,
    y,
    sums,
    norm_input,
    norm_input_sums,
    gamma,
    beta,
    all_channels,
    learned_pixels,
    batch_pixels,
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
    JOINT: tl.constexpr,
    EPS: tl.constexpr,
    SLOPE: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """y = convolution of x with w, plus bias and residual.

    w is (out, SIZE, SIZE, in) in memory. BACKWARD computes the gradient of the input from that of the output. SUMS
    adds to the sums of batch norm; backwards, the gradient first goes through leaky ReLU to the output of batch norm,
    whose input was `norm_input`.

    Backwards through a stride, the taps that reach a pixel depend on whether its line and column are even or odd. So a
    tile holds pixels that agree in both, and no tap is multiplied in vain.
    """
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    STEP: tl.constexpr = STRIDE if BACKWARD else 1  # between lines, and columns, of the pixels of a tile
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
    line = (j // (W // STEP)) % (H // STEP) * STEP + first_y
    image = j // ((W // STEP) * (H // STEP))
    m = (image * H + line) * W + column
    c = tl.arange(0, BK)
    if BACKWARD:
        top = (line + PAD - first_y) // STRIDE
        left = (column + PAD - first_x) // STRIDE
        weights = w + c[:, None] * (SIZE * SIZE * OUT_C) + n[None, :]
    else:
        top = line * STRIDE - PAD
        left = column * STRIDE - PAD
        weights = w + n[None, :] * (SIZE * SIZE * IN_C) + c[:, None]
    inputs = x + (((image * IN_H + top) * IN_W + left) * IN_C)[:, None] + c[None, :]
    first_tap = first_y * SIZE + first_x
    BLOCKS: tl.constexpr = (IN_C + BK - 1) // BK
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for i in range(taps_y * taps_x * BLOCKS):
        dy = i // BLOCKS // taps_x
        dx = i // BLOCKS % taps_x
        tap = first_tap + (dy * SIZE + dx) * STEP
        block = (i % BLOCKS) * BK
        if BACKWARD:
            inside = (top - dy >= 0) & (top - dy < IN_H) & (left - dx >= 0) & (left - dx < IN_W)
            from_inputs = inputs + (block - (dy * IN_W + dx) * IN_C)
            from_weights = weights + (block * (SIZE * SIZE * OUT_C) + tap * OUT_C)
        else:
            inside = (top + dy >= 0) & (top + dy < IN_H) & (left + dx >= 0) & (left + dx < IN_W)
            from_inputs = inputs + (block + (dy * IN_W + dx) * IN_C)
            from_weights = weights + (block + tap * IN_C)
        if IN_C % BK == 0:
            a = tl.load(from_inputs, mask=inside[:, None], other=0.0)
            b = tl.load(from_weights)
        else:
            in_range = block + c < IN_C
            a = tl.load(from_inputs, mask=inside[:, None] & in_range[None, :], other=0.0)
            b = tl.load(from_weights, mask=in_range[:, None], other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    offsets = m[:, None] * OUT_C + n[None, :]
    _epilogue(
        acc, offsets, n, tile * BM * STEP * STEP, learned_pixels, batch_pixels, bias, residual, y, sums,
        norm_input, norm_input_sums, gamma, beta, all_channels, BACKWARD, BIAS, RESIDUAL, SUMS, JOINT, EPS, SLOPE,
    )  # fmt: skip


@triton.jit
def convolve_few_channels(
    x,
    w,
    bias,
    residual,
    y,
    sums,
    norm_input,
    norm_input_sums,
    gamma,
    beta,
    all_channels,
    learned_pixels,
    batch_pixels,
    H: tl.constexpr,
    W: tl.constexpr,
    IN_C: tl.constexpr,
    OUT_C: tl.constexpr,
    PIXELS_PER_ROW: tl.constexpr,
    BACKWARD: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    SUMS: tl.constexpr,
    JOINT: tl.constexpr,
    EPS: tl.constexpr,
    SLOPE: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """`convolve` for few channels, with a kernel of 3x3 and stride 1: computes PIXELS_PER_ROW adjacent pixels together.

    Their inputs are the PIXELS_PER_ROW + 2 pixels of each of three lines, which are contiguous in memory. So each input
    is read 3 * (PIXELS_PER_ROW + 2) / PIXELS_PER_ROW times, not 9 times.

    w is (PIXELS_PER_ROW, out, 3, PIXELS_PER_ROW + 2, in) in memory, with zeros for inputs that a pixel does not have;
    for BACKWARD it is already transposed and flipped.
    """
    WIDTH: tl.constexpr = (PIXELS_PER_ROW + 2) * IN_C
    BLOCKS: tl.constexpr = (WIDTH + BK - 1) // BK
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    j = tl.program_id(0) * BM + tl.arange(0, BM)
    left = j % (W // PIXELS_PER_ROW) * PIXELS_PER_ROW - 1
    top = (j // (W // PIXELS_PER_ROW)) % H - 1
    image = j // ((W // PIXELS_PER_ROW) * H)
    inputs = x + (((image * H + top) * W + left) * IN_C)[:, None] + k[None, :]
    weights = w + (n * (3 * WIDTH))[None, :] + k[:, None]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for i in range(3 * BLOCKS):
        dy = i // BLOCKS
        block = (i % BLOCKS) * BK
        columns = left[:, None] + ((block + k) // IN_C)[None, :]
        inside = ((top + dy >= 0) & (top + dy < H))[:, None] & (columns >= 0) & (columns < W)
        if WIDTH % BK == 0:
            a = tl.load(inputs + (dy * W * IN_C + block), mask=inside, other=0.0)
            b = tl.load(weights + (dy * WIDTH + block))
        else:
            in_range = block + k < WIDTH
            a = tl.load(inputs + (dy * W * IN_C + block), mask=inside & in_range[None, :], other=0.0)
            b = tl.load(weights + (dy * WIDTH + block), mask=in_range[:, None], other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    offsets = j[:, None] * (PIXELS_PER_ROW * OUT_C) + n[None, :]
    first_pixel = tl.program_id(0) * BM * PIXELS_PER_ROW
    _epilogue(
        acc, offsets, n % OUT_C, first_pixel, learned_pixels, batch_pixels, bias, residual, y, sums,
        norm_input, norm_input_sums, gamma, beta, all_channels, BACKWARD, BIAS, RESIDUAL, SUMS, JOINT, EPS, SLOPE,
    )  # fmt: skip


@triton.jit
def convolve_tma(
    x,
    w,
    bias,
    residual,
    y,
    sums,
    norm_input,
    norm_input_sums,
    gamma,
    beta,
    all_channels,
    learned_pixels,
    batch_pixels,
    H: tl.constexpr,
    W: tl.constexpr,
    IN_C: tl.constexpr,
    OUT_C: tl.constexpr,
    PIXELS_PER_ROW: tl.constexpr,
    BACKWARD: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    SUMS: tl.constexpr,
    JOINT: tl.constexpr,
    EPS: tl.constexpr,
    SLOPE: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """`convolve` with a kernel of 3x3 and stride 1, and `convolve_few_channels` where PIXELS_PER_ROW > 1, by TMA.

    The GPU copies blocks of a tensor by itself, with zeros for what lies outside of it: no thread computes addresses.
    x is a descriptor of (images, H, W / PIXELS_PER_ROW, PIXELS_PER_ROW * in), w of (PIXELS_PER_ROW * out,
    3 * (PIXELS_PER_ROW + 2) * in), and for BACKWARD with a PIXELS_PER_ROW of 1 of (in, 9 * out).

    The product is transposed: pixels are its columns and channels its rows. The tensor cores read a right factor from
    shared memory, where it was copied to, but a reshaped left factor would go through registers first.
    """
    BLOCKS: tl.constexpr = IN_C // BK
    TAPS: tl.constexpr = PIXELS_PER_ROW + 2
    ROWS_PER_LINE: tl.constexpr = W // PIXELS_PER_ROW
    first = tl.program_id(0) * BM
    first_n = tl.program_id(1) * BN
    image = first // (ROWS_PER_LINE * H)
    top = first // ROWS_PER_LINE % H - 1
    acc = tl.zeros((BN, BM), dtype=tl.float32)
    for i in range(3 * TAPS * BLOCKS):
        dy = i // (TAPS * BLOCKS)
        dx = i // BLOCKS % TAPS
        block = (i % BLOCKS) * BK
        left = dx + PIXELS_PER_ROW - 1  # counted from the pixels of the row before
        pixels = x.load([image, top + dy, left // PIXELS_PER_ROW - 1, left % PIXELS_PER_ROW * IN_C + block]).reshape(
            BM, BK
        )
        if BACKWARD and PIXELS_PER_ROW == 1:
            weights = w.load([block, (8 - dy * 3 - dx) * OUT_C + first_n]).T
        else:
            weights = w.load([first_n, (dy * TAPS + dx) * IN_C + block])
        acc = tl.dot(weights, pixels.T, acc, input_precision=PRECISION)
    n = first_n + tl.arange(0, BN)
    offsets = (first + tl.arange(0, BM))[:, None] * (PIXELS_PER_ROW * OUT_C) + n[None, :]
    _epilogue(
        acc.T, offsets, n % OUT_C, first * PIXELS_PER_ROW, learned_pixels, batch_pixels, bias, residual, y, sums,
        norm_input, norm_input_sums, gamma, beta, all_channels, BACKWARD, BIAS, RESIDUAL, SUMS, JOINT, EPS, SLOPE,
    )  # fmt: skip


@triton.jit
def weight_gradient(
    x,
    g,
    dw,
    rows_per_program,
    H: tl.constexpr,
    W: tl.constexpr,
    IN_H: tl.constexpr,
    IN_W: tl.constexpr,
    IN_C: tl.constexpr,
    OUT_C: tl.constexpr,
    SIZE: tl.constexpr,
    STRIDE: tl.constexpr,
    PAD: tl.constexpr,
    PIXELS_PER_ROW: tl.constexpr,
    TAPS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """dw (out, SIZE, SIZE, in) += the gradient of a convolution's weights, from its input x and its output's gradient.

    A program takes `rows_per_program` rows of PIXELS_PER_ROW outputs, and TAPS adjacent taps of a line of the kernel,
    whose inputs are contiguous in memory. Of the products of a row's inputs and outputs, those that no tap connects
    are left out.
    """
    PARTS: tl.constexpr = SIZE // TAPS
    WIDTH: tl.constexpr = (TAPS + PIXELS_PER_ROW - 1) * IN_C
    ROWS_PER_LINE: tl.constexpr = W // PIXELS_PER_ROW
    dy = tl.program_id(0) // PARTS
    first_tap = (tl.program_id(0) % PARTS) * TAPS
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    j = tl.arange(0, COLUMNS)
    dx = first_tap + j // IN_C
    start = tl.program_id(2) * rows_per_program
    acc = tl.zeros((COLUMNS, BN), dtype=tl.float32)
    for i in range(0, rows_per_program, BM):
        m = start + i + tl.arange(0, BM)
        column = m % ROWS_PER_LINE * PIXELS_PER_ROW
        line = (m // ROWS_PER_LINE) % H
        image = m // (ROWS_PER_LINE * H)
        top = line * STRIDE - PAD + dy
        left = column * STRIDE - PAD
        inputs = x + (((image * IN_H + top) * IN_W + left + first_tap) * IN_C)[:, None] + j[None, :]
        inside = (left[:, None] + dx[None, :] >= 0) & (left[:, None] + dx[None, :] < IN_W) & (j < WIDTH)[None, :]
        b = tl.load(g + m[:, None] * (PIXELS_PER_ROW * OUT_C) + n[None, :])
        a = tl.load(inputs, mask=inside & ((top >= 0) & (top < IN_H))[:, None], other=0.0)
        acc = tl.dot(tl.trans(a), b, acc, input_precision=PRECISION)
    pixel = n // OUT_C
    tap = (j // IN_C)[:, None] - pixel[None, :]
    outputs = dw + (n % OUT_C * (SIZE * SIZE * IN_C) - pixel * IN_C)[None, :]
    destination = outputs + (dy * SIZE + first_tap) * IN_C + j[:, None]
    tl.atomic_add(destination, acc, mask=(tap >= 0) & (tap < TAPS), sem="relaxed")


@triton.jit
def weight_gradient_tma(
    x,
    g,
    dw,
    rows_per_program,
    H: tl.constexpr,
    W: tl.constexpr,
    IN_C: tl.constexpr,
    OUT_C: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """`weight_gradient` for a kernel of 3x3 and stride 1, with one tap per program, by TMA.

    x is a descriptor of (images, H, W, in), g of (pixels, out).
    """
    dy = tl.program_id(0) // 3
    dx = tl.program_id(0) % 3
    first_n = tl.program_id(1) * BN
    start = tl.program_id(2) * rows_per_program
    acc = tl.zeros((BN, IN_C), dtype=tl.float32)
    for i in range(0, rows_per_program, BM):
        first = start + i
        outputs = g.load([first, first_n]).T
        inputs = x.load([first // (W * H), first // W % H + dy - 1, dx - 1, 0]).reshape(BM, IN_C)
        acc = tl.dot(outputs, inputs, acc, input_precision=PRECISION)
    n = first_n + tl.arange(0, BN)
    destination = dw + (n * (9 * IN_C) + (dy * 3 + dx) * IN_C)[:, None] + tl.arange(0, IN_C)[None, :]
    tl.atomic_add(destination, acc, sem="relaxed")


@triton.jit
def normalize(
    x,
    sums,
    gamma,
    beta,
    y,
    all_channels,
    batch_pixels,
    C: tl.constexpr,
    EPS: tl.constexpr,
    SLOPE: tl.constexpr,
    BM: tl.constexpr,
):
    """y = leaky ReLU of batch norm of x (pixels, C)."""
    tile = tl.program_id(0)
    c = tl.arange(0, C)
    offsets = (tile * BM + tl.arange(0, BM))[:, None] * C + c[None, :]
    batch = tile * BM // batch_pixels
    mean, rstd = _statistics(sums, c, all_channels, batch, batch_pixels, EPS)
    scale, shift = _affine(mean, rstd, gamma, beta, c)
    z = tl.load(x + offsets, eviction_policy="evict_first").to(tl.float32) * scale + shift
    tl.store(y + offsets, tl.where(z > 0, z, SLOPE * z).to(y.dtype.element_ty))


@triton.jit
def pool(
    x,
    sums,
    gamma,
    beta,
    y,
    all_channels,
    batch_pixels,
    C: tl.constexpr,
    PIXELS: tl.constexpr,
    EPS: tl.constexpr,
    SLOPE: tl.constexpr,
    BM: tl.constexpr,
):
    """y (N, C) = the mean over each image's pixels of leaky ReLU of batch norm of x."""
    image = tl.program_id(0)
    c = tl.arange(0, C)
    batch = image * PIXELS // batch_pixels
    mean, rstd = _statistics(sums, c, all_channels, batch, batch_pixels, EPS)
    scale, shift = _affine(mean, rstd, gamma, beta, c)
    acc = tl.zeros((C,), dtype=tl.float32)
    for i in range(0, PIXELS, BM):
        offsets = (image * PIXELS + i + tl.arange(0, BM))[:, None] * C + c[None, :]
        z = tl.load(x + offsets).to(tl.float32) * scale + shift
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
    all_channels,
    batch_pixels,
    C: tl.constexpr,
    PIXELS: tl.constexpr,
    EPS: tl.constexpr,
    SLOPE: tl.constexpr,
    BM: tl.constexpr,
):
    """The gradient of `pool` at the output of batch norm, with its sums: the epilogue of a backward `convolve`, for g
    (images, C), which is the same for all pixels of an image."""
    tile = tl.program_id(0)
    c = tl.arange(0, C)
    m = tile * BM + tl.arange(0, BM)
    offsets = m[:, None] * C + c[None, :]
    batch = tile * BM // batch_pixels
    norm_input = tl.load(x + offsets).to(tl.float32)
    mean, rstd = _statistics(sums, c, all_channels, batch, batch_pixels, EPS)
    scale, shift = _affine(mean, rstd, gamma, beta, c)
    d = tl.load(g + (m // PIXELS)[:, None] * C + c[None, :]).to(tl.float32) / PIXELS
    out = tl.where(norm_input * scale + shift > 0, d, SLOPE * d).to(y.dtype.element_ty)
    tl.store(y + offsets, out)
    value = out.to(tl.float32)
    first_sum = tl.sum(value, 0)
    tl.atomic_add(out_sums + batch * 2 * all_channels + c, first_sum, sem="relaxed")
    second_sum = (tl.sum(value * norm_input, 0) - mean * first_sum) * rstd
    tl.atomic_add(out_sums + batch * 2 * all_channels + all_channels + c, second_sum, sem="relaxed")


@triton.jit
def norm_gradient(
    g,
    x,
    sums,
    g_sums,
    gamma,
    residual,
    y,
    learned_pixels,
    all_channels,
    batch_pixels,
    C: tl.constexpr,
    RESIDUAL: tl.constexpr,
    JOINT: tl.constexpr,
    EPS: tl.constexpr,
    BM: tl.constexpr,
):
    """y = the gradient of batch norm's input x, from the gradient g of its output and their sums, plus residual.

    Batch norm takes out of a gradient what only shifts or scales its inputs. In a JOINT batch that is done among the
    pixels that have a gradient, with their own mean and variance. Were the others just constants in the statistics,
    half of it would stay, and weights would grow until training collapses.
    """
    tile = tl.program_id(0)
    c = tl.arange(0, C)
    offsets = (tile * BM + tl.arange(0, BM))[:, None] * C + c[None, :]
    batch = tile * BM // batch_pixels
    mean, rstd = _statistics(sums, c, all_channels, batch, batch_pixels, EPS)
    mean_g = tl.load(g_sums + batch * 2 * all_channels + c) / learned_pixels
    mean_gx = tl.load(g_sums + batch * 2 * all_channels + all_channels + c) / learned_pixels
    if JOINT:
        own_mean, own_rstd = _statistics(sums, c, all_channels, 1, learned_pixels, EPS)
        shifted = (own_mean - mean) * rstd
        ratio = own_rstd / rstd
        mean_gx = (mean_gx - mean_g * shifted) * ratio * ratio
        mean_g -= mean_gx * shifted
    scale = tl.load(gamma + c) * rstd
    x_scale = -scale * mean_gx * rstd
    shift = -scale * mean_g - x_scale * mean
    d = (
        tl.load(g + offsets, eviction_policy="evict_first").to(tl.float32) * scale[None, :]
        + tl.load(x + offsets, eviction_policy="evict_first").to(tl.float32) * x_scale[None, :]
        + shift[None, :]
    )
    if RESIDUAL:
        d += tl.load(residual + offsets).to(tl.float32)
    tl.store(y + offsets, d.to(y.dtype.element_ty))

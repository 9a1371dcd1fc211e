"""A convolution that walks down the lines of its images, for Hopper's tensor cores, in Gluon (Triton's lower level).

`kernels.convolve_tma` reads each pixel from the L2 cache for each of its nine taps, and its epilogue waits for what it
adds to the product. Here a program keeps the weights in shared memory, and of its images the lines that taps reach: a
ring of `SLOTS` lines, each as often as there are horizontal shifts. The next line is copied while one is multiplied.
What is added to the product is copied ahead too, and results go out through shared memory: no thread computes an
address.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

# Triton 3.6 to 3.8 and later versions have other names for the same.
_copy_in = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
_copy_out = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
_barrier = getattr(gl, "barrier", None) or gl.thread_barrier


@gluon.jit
def _statistics(sums, c, all_channels, batch, batch_pixels, EPS: gl.constexpr):
    """As in `kernels`."""
    mean = gl.load(sums + batch * 2 * all_channels + c) / batch_pixels
    square = gl.load(sums + batch * 2 * all_channels + all_channels + c) / batch_pixels
    return mean, 1.0 / gl.sqrt(gl.maximum(square - mean * mean, 0.0) + EPS)


@gluon.jit
def _bf16(x):
    """Rounded two at a time, four times as fast as one by one."""
    return gl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [x], dtype=gl.bfloat16, is_pure=True, pack=2
    )


@gluon.jit
def _copy_line(x, ring, arrived, image, line, slot, IN_C: gl.constexpr, PIXELS_PER_ROW: gl.constexpr):
    """Begin to copy a line of several images to a slot, once for each horizontal shift."""
    TAPS: gl.constexpr = PIXELS_PER_ROW + 2
    ready = arrived.index(slot)
    mbarrier.expect(ready, TAPS * x.block_type.nbytes)
    for dx in gl.static_range(TAPS):
        # Counted from the pixels of the row before, as in `kernels.convolve_tma`.
        row = (dx + PIXELS_PER_ROW - 1) // PIXELS_PER_ROW - 1
        channel = (dx + PIXELS_PER_ROW - 1) % PIXELS_PER_ROW * IN_C
        _copy_in(x, [image, line, row, channel], ready, ring.index(slot * TAPS + dx))


@gluon.jit
def convolve_lines(
    x,
    w,
    extra,
    y,
    bias,
    sums,
    norm_input_sums,
    gamma,
    beta,
    all_channels,
    learned_pixels,
    batch_pixels,
    H: gl.constexpr,
    W: gl.constexpr,
    IN_C: gl.constexpr,
    OUT_C: gl.constexpr,
    PIXELS_PER_ROW: gl.constexpr,
    BACKWARD: gl.constexpr,
    RESIDUAL: gl.constexpr,
    JOINT: gl.constexpr,
    EPS: gl.constexpr,
    SLOPE: gl.constexpr,
    IMAGES: gl.constexpr,
    LINES: gl.constexpr,
    SLOTS: gl.constexpr,
    num_warps: gl.constexpr,
):
    """`kernels.convolve_tma` with batch norm's sums, the bias forwards, and at most one of residual and norm_input,
    which is `extra`.

    A program computes LINES lines of IMAGES images. x is a descriptor of (images, H, W / PIXELS_PER_ROW,
    PIXELS_PER_ROW * in), y and extra of the same with `out`, w as there. The product is transposed: channels are its
    rows, so the sums over pixels are within threads.
    """
    TAPS: gl.constexpr = PIXELS_PER_ROW + 2
    ROWS: gl.constexpr = W // PIXELS_PER_ROW
    BM: gl.constexpr = IMAGES * ROWS
    BN: gl.constexpr = PIXELS_PER_ROW * OUT_C
    STRIPS: gl.constexpr = H // LINES
    EXTRA: gl.constexpr = RESIDUAL or BACKWARD
    TRANSPOSED: gl.constexpr = BACKWARD and PIXELS_PER_ROW == 1
    PRODUCT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, num_warps // 4], [16, BM * 4 // num_warps, 16])
    CHANNELS: gl.constexpr = gl.SliceLayout(1, PRODUCT)
    image = gl.program_id(0) // STRIPS * IMAGES
    top = gl.program_id(0) % STRIPS * LINES

    ring = gl.allocate_shared_memory(gl.bfloat16, [SLOTS * TAPS, IMAGES, 1, ROWS, IN_C], x.layout)
    weights = gl.allocate_shared_memory(gl.bfloat16, [3 * TAPS, w.block_type.shape[0], w.block_type.shape[1]], w.layout)
    results = gl.allocate_shared_memory(gl.bfloat16, [IMAGES, 1, ROWS, BN], y.layout)
    extras = gl.allocate_shared_memory(gl.bfloat16, [IMAGES, 1, ROWS, BN], y.layout)
    arrived = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    others = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    weights_arrived = others.index(0)
    extra_arrived = others.index(1)
    for i in gl.static_range(SLOTS):
        mbarrier.init(arrived.index(i), count=1)
    mbarrier.init(weights_arrived, count=1)
    mbarrier.init(extra_arrived, count=1)
    fence_async_shared()
    mbarrier.expect(weights_arrived, 3 * TAPS * w.block_type.nbytes)
    for tap in gl.static_range(3 * TAPS):
        if TRANSPOSED:
            _copy_in(w, [0, (8 - tap) * OUT_C], weights_arrived, weights.index(tap))
        else:
            _copy_in(w, [0, tap * IN_C], weights_arrived, weights.index(tap))
    for i in gl.static_range(SLOTS):
        _copy_line(x, ring, arrived, image, top - 1 + i, i, IN_C, PIXELS_PER_ROW)
    if EXTRA:
        mbarrier.expect(extra_arrived, extra.block_type.nbytes)
        _copy_in(extra, [image, top, 0, 0], extra_arrived, extras)

    c = gl.arange(0, BN, CHANNELS) % OUT_C
    batch = image * (H * W) // batch_pixels
    first_sum = gl.full([BN], 0.0, gl.float32, CHANNELS)
    second_sum = gl.full([BN], 0.0, gl.float32, CHANNELS)
    if BACKWARD:
        mean, rstd = _statistics(norm_input_sums, c, all_channels, batch, batch_pixels, EPS)
        scale = gl.load(gamma + c) * rstd
        shift = gl.load(beta + c) - mean * scale
    else:
        offset = gl.expand_dims(gl.load(bias + c), 1)

    mbarrier.wait(weights_arrived, 0)
    mbarrier.wait(arrived.index(0), 0)
    mbarrier.wait(arrived.index(1), 0)
    for line in range(LINES):
        acc = gl.full([BN, BM], 0.0, gl.float32, PRODUCT)
        for tap in gl.static_range(3 * TAPS):
            if tap == 2 * TAPS:  # the line below is the last to arrive
                mbarrier.wait(arrived.index((line + 2) % SLOTS), (line + 2) // SLOTS & 1)
            pixels = ring.index((line + tap // TAPS) % SLOTS * TAPS + tap % TAPS).reshape([BM, IN_C]).permute([1, 0])
            if TRANSPOSED:
                acc = warpgroup_mma(weights.index(tap).permute([1, 0]), pixels, acc, is_async=True)
            else:
                acc = warpgroup_mma(weights.index(tap), pixels, acc, is_async=True)
        if EXTRA:
            mbarrier.wait(extra_arrived, line & 1)
            added = extras.reshape([BM, BN]).permute([1, 0]).load(PRODUCT).to(gl.float32)
        acc = warpgroup_mma_wait(num_outstanding=0, deps=[acc])
        tma.store_wait(0)
        _barrier()  # all threads are done with the line above, with `extras`, and the results of before are out
        if line + SLOTS < LINES + 2:
            _copy_line(x, ring, arrived, image, top - 1 + line + SLOTS, line % SLOTS, IN_C, PIXELS_PER_ROW)
        if EXTRA and line + 1 < LINES:
            mbarrier.expect(extra_arrived, extra.block_type.nbytes)
            _copy_in(extra, [image, top + line + 1, 0, 0], extra_arrived, extras)
        out = acc
        if BACKWARD:
            out = gl.where(added * gl.expand_dims(scale, 1) + gl.expand_dims(shift, 1) > 0, out, SLOPE * out)
        else:
            out += offset
        if RESIDUAL:
            out += added
        result = _bf16(out)
        results.reshape([BM, BN]).permute([1, 0]).store(result)
        fence_async_shared()
        _barrier()
        _copy_out(y, [image, top + line, 0, 0], results)
        value = result.to(gl.float32)
        first_sum += gl.sum(value, 1)
        if BACKWARD:
            second_sum += gl.sum(value * added, 1)
        else:
            second_sum += gl.sum(value * value, 1)
    tma.store_wait(0)
    if BACKWARD:
        second_sum = (second_sum - mean * first_sum) * rstd
    gl.atomic_add(sums + batch * 2 * all_channels + c, first_sum, sem="relaxed")
    gl.atomic_add(sums + batch * 2 * all_channels + all_channels + c, second_sum, sem="relaxed")
    if JOINT and not BACKWARD and image * (H * W) < learned_pixels:
        gl.atomic_add(sums + 2 * all_channels + c, first_sum, sem="relaxed")
        gl.atomic_add(sums + 3 * all_channels + c, second_sum, sem="relaxed")

"""Find the fastest tiles for the kernels in `mixmatch.networks.cuda` on this GPU, and write them to its table.

    python benchmarks/tune_kernels.py                     # minutes; needs a GPU
    python benchmarks/tune_kernels.py --output mine.json  # look first
    python benchmarks/tune_kernels.py --only "tma forward"
    python benchmarks/tune_kernels.py --images 512 --groups 1 --output mine.json  # those of FixMatch

For each convolution of WRN-28-2, by default at batch 64 (three batches of mixed images): forwards with batch norm's
sums, backwards through batch norm's, and the gradient of the weights. Fastest is what takes the least time where three
streams do the same at once, because a step keeps the GPU busy with other work too. Prints the best of ours, alone and
busy, beside cuDNN's convolution alone, which leaves the sums and leaky ReLU still to do. Processes compile in parallel
and take turns at timing.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from mixmatch.networks.cuda import launch, lines, tiles, tma
from mixmatch.networks.cuda.shape import Convolution, Norm
from mixmatch.networks.cuda.tiles import By, Work

STREAMS = 3

Times = tuple[float, float]
"""Microseconds of a kernel alone, and of each where several streams have one."""


class Job(NamedTuple):
    work: Work
    by: By
    conv: Convolution
    tiles: tuple[tuple[int, ...], ...]
    lock: str
    images: int
    groups: int

    @property
    def key(self) -> str:
        into, out = computed(self.work, self.conv)
        return tiles.key(self.work, self.by, self.conv.kernel, into, out, self.conv.pixels_per_row)


def computed(work: Work, conv: Convolution) -> tuple[int, int]:
    """Channels in and out of a computation: backwards they are exchanged."""
    return (conv.out_channels, conv.in_channels) if work is Work.BACKWARD else (conv.in_channels, conv.out_channels)


def candidates(work: Work, by: By, conv: Convolution) -> Iterator[tuple[int, ...]]:
    """Tiles to try, as they are in the table."""

    def upto(limit: int, *values: int) -> list[int]:
        return sorted({min(limit, value) for value in values})

    def power(value: int) -> int:
        return max(16, 1 << (value - 1).bit_length())

    into, out = computed(work, conv)
    pixels, tma = conv.pixels_per_row, by == "tma"
    if by == "lines":
        for images in (2, 4, 8):
            for programs in (96, 192, 264):
                for slots in (3, 4):
                    for warps in (4, 8):
                        yield images, programs, slots, warps
        return
    if work is Work.WEIGHTS:
        for taps in (1,) if tma else (3,) if pixels > 1 else (1, 3):
            columns = power((taps + pixels - 1) * into)
            for bn in upto(pixels * out, 32, 64, 128):
                for warps in (4, 8):
                    if columns * bn > 256 * 64 or (warps == 8 and columns * bn < 4096) or (tma and bn < 64):
                        continue
                    for bm in (64, 128) if tma else (64, 128, 32):
                        for stages in (3, 4) if tma else (3, 2):
                            for programs in (264, 132) if tma else (264, 528, 132):
                                yield taps, bm, bn, programs, warps, stages
        return
    reads = into * (pixels + 2) if pixels > 1 and not tma else into
    for bm in (128, 256, 64):
        for bn in upto(pixels * out, 32, 64, 128):
            for bk in upto(into if tma else power(reads), 32, 64, 128):
                for warps in (4, 8):
                    if bm * bn > 128 * 128 or (warps == 8 and bm * bn < 8192):
                        continue
                    if tma and (bk > 64 or bn < min(64, pixels * out)):
                        continue
                    for stages in (3, 4) if tma else (3, 2, 4, 1):
                        yield bm, bn, bk, warps, stages


def tune(job: Job) -> tuple[str, list[tuple[Times, tuple[int, ...]]], Times]:
    """Times of a job's tiles, and cuDNN's."""
    conv, work, images, groups = job.conv, job.work, job.images, job.groups
    into, out, size, stride = conv.in_channels, conv.out_channels, conv.in_size, conv.stride
    torch.manual_seed(0)
    x = torch.randn(images, size, size, into, device="cuda").bfloat16()
    (tma.disabled.discard if job.by == "tma" else tma.disabled.add)(x.device)
    (lines.disabled.discard if job.by == "lines" else lines.disabled.add)(x.device)
    g = torch.randn(images, size // stride, size // stride, out, device="cuda").bfloat16()
    w = (0.1 * torch.randn(out, into, 3, 3, device="cuda")).to(memory_format=torch.channels_last)
    channels = max(into, out)
    norm = Norm(0, "", channels, size, 0)
    gamma, beta = torch.ones(channels, device="cuda"), torch.zeros(channels, device="cuda")
    parameters = [w, torch.zeros(out, device="cuda"), gamma, beta]
    kernels = launch.Launcher((conv,), (norm,), launch.pack_weights([w]), parameters, x, images // groups)
    kernels.expand_weights(work is Work.BACKWARD)
    sums, input_sums = kernels.zero_sums(), kernels.zero_sums()
    input_sums[:, 1] = images // groups * size * size
    gradient = torch.zeros(w.numel(), device="cuda")
    ours: dict[Work, Callable[[], Any]] = {
        Work.FORWARD: lambda: kernels.convolve(x, conv, norm=norm, sums=sums),
        Work.BACKWARD: lambda: kernels.convolve(
            g, conv, backward=True, norm=norm, sums=sums, norm_input=x, norm_input_sums=input_sums
        ),
        Work.WEIGHTS: lambda: kernels.weight_gradient(x, g, conv, gradient),
    }
    padded = x.permute(0, 3, 1, 2)
    if stride == 2:
        padded = F.pad(padded, (0, 1, 0, 1)).contiguous(memory_format=torch.channels_last)
    pad, low, gn = [1 if stride == 1 else 0] * 2, w.bfloat16(), g.permute(0, 3, 1, 2)

    def theirs() -> None:
        if work is Work.FORWARD:
            F.conv2d(padded, low, None, stride, pad)
        else:
            mask = [work is Work.BACKWARD, work is Work.WEIGHTS, False]
            torch.ops.aten.convolution_backward(
                gn, padded, low, None, [stride] * 2, pad, [1, 1], False, [0, 0], 1, mask
            )

    found: list[tuple[Times, tuple[int, ...]]] = []
    with open(job.lock, "w") as lock:
        reference = timed(theirs, lock)
        for tile in job.tiles:
            tiles.TILES[job.key] = list(tile)
            try:
                found.append((timed(ours[work], lock), tile))
            except Exception as error:  # too many registers, too much shared memory
                if "resource" not in str(error).lower():
                    print(f"{job.key} {tile}: {type(error).__name__}: {str(error)[:150]}", flush=True)
    return job.key, found, reference


def timed(work: Callable[[], Any], lock: Any, count: int = 20) -> Times:
    """The best of a few replays of a graph of many calls, while no other process is timing."""
    for _ in range(2):
        work()
    torch.cuda.synchronize()
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        alone, busy = (replayed(work, streams, count) for streams in (1, STREAMS))
        return alone, busy
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)


def replayed(work: Callable[[], Any], streams: int, count: int) -> float:
    graph = torch.cuda.CUDAGraph()
    others = [torch.cuda.Stream() for _ in range(streams - 1)]
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        for stream in others:
            stream.wait_stream(main)
        for _ in range(count):
            for stream in (main, *others):
                with torch.cuda.stream(stream):
                    work()
        for stream in others:
            main.wait_stream(stream)
    times: list[float] = []
    for _ in range(4):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1000 * start.elapsed_time(end) / count / streams)
    return min(times)


def busy_times(timings: list[tuple[Times, tuple[int, ...]]]) -> list[float]:
    return [time for (_, time), _ in timings]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tiles_file = Path(tiles.__file__).with_name("tiles.json")
    parser.add_argument("--output", type=Path, default=tiles_file)
    parser.add_argument("--only", default="", help="those whose name in the table has this in it; others stay")
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--images", type=int, default=192)
    parser.add_argument("--groups", type=int, default=3, help="batches that are normalized by themselves")
    args = parser.parse_args()
    shapes = [(32, 32, 32, 1), (16, 64, 64, 1), (8, 128, 128, 1), (32, 32, 64, 2), (16, 64, 128, 2)]
    shapes += [(32, 16, 32, 1), (32, 3, 16, 1)]
    gpu = torch.device("cuda", torch.cuda.current_device())
    with tempfile.NamedTemporaryFile() as lock:
        jobs = []
        for size, into, out, stride in shapes:
            conv = Convolution(0, "", into, out, 3, stride, size)
            works = [Work.WEIGHTS, Work.FORWARD, *([Work.BACKWARD] * (into > 3))]  # images need no gradient
            kinds: list[tuple[Work, By]] = [(work, "") for work in works]
            if stride == 1 and tma.uses_tma(gpu):
                kinds += [(work, "tma") for work in works if tma.enough_channels(work, *computed(work, conv))]
            if stride == 1 and lines.runs_on(gpu):
                kinds += [
                    (work, "lines") for work in works if lines.suits(work, *computed(work, conv), conv.pixels_per_row)
                ]
            for work, by in kinds:
                found = tuple(candidates(work, by, conv))
                for i in range(0, len(found), 12):
                    job = Job(work, by, conv, found[i : i + 12], lock.name, args.images, args.groups)
                    jobs += [job] if args.only in job.key else []
        if not jobs:
            parser.error(f"no kernel has '{args.only}' in its name: see {tiles_file.name}")
        times: dict[str, list[tuple[Times, tuple[int, ...]]]] = {}
        references: dict[str, list[Times]] = {}
        with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
            for key, timings, reference in pool.imap_unordered(tune, jobs, chunksize=1):
                times.setdefault(key, []).extend(timings)
                references.setdefault(key, []).append(reference)
    best_tiles = dict(tiles.TILES)
    for key, timings in sorted(times.items()):
        if not timings:
            print(f"{key:26} no tile runs on this GPU", flush=True)
            continue
        (alone, busy), tile = min(timings, key=lambda one: one[0][1])
        theirs = [min(reference[i] for reference in references[key]) for i in range(2)]
        ours = f"{alone:6.1f} us alone, {busy:6.1f} busy"
        print(f"{key:26} {ours}; cuDNN {theirs[0]:6.1f}, {theirs[1]:6.1f}  {tile}", flush=True)
        best_tiles[key] = list(tile)
    for key in [key for key in best_tiles if key.startswith("lines ")]:  # used wherever it is in the table
        others = [times[name] for name in (f"tma {key[6:]}", key[6:]) if times.get(name)]
        if others and times.get(key) and min(busy_times(times[key])) >= min(min(busy_times(found)) for found in others):
            print(f"{key:26} is slower than the others: left out", flush=True)
            del best_tiles[key]
    table = ",\n".join(f"  {json.dumps(key)}: {json.dumps(tile)}" for key, tile in sorted(best_tiles.items()))
    args.output.write_text(f"{{\n{table}\n}}\n")


if __name__ == "__main__":
    main()

"""What a training step costs: a textbook loop beside our engine, in one run, on this machine.

    python benchmarks/step_time.py                                     # MixMatch on wrn-28-2, this machine's device
    python benchmarks/step_time.py --method vat --batch-size 256
    python benchmarks/step_time.py --device cpu --network wrn-10-1 --json

Rows: (a) the loop as people write it: fp32, eager, a DataLoader with per-image augmentation and four workers (none on
a CPU), a forward pass per batch, `.item()` on each loss; (b) our engine, eager, at fp32; (c) our engine at its default
on this device: on CUDA bf16, compiled and as a CUDA graph; (d) with `--side-by-side`, so many such runs sharing the
device, each step counted. Images are random: a step's cost does not depend on what they show. Times are medians of
repeats after a warm-up, with the device synchronized. The textbook loop is of the same method (`textbook.py`); it
has official passes, whatever `--passes` is.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from textbook import LOSSES, textbook
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mixmatch import networks
from mixmatch.data.source import Rows, Source
from mixmatch.data.split import make_split
from mixmatch.methods import declared
from mixmatch.settings import Settings, resolve
from mixmatch.training.device import default_precision, pick_device
from mixmatch.training.trainer import Trainer
from mixmatch.training.world import World

CLASSES, SIZE = 10, 32
TURN = 32
"""Steps a run takes before another has its turn."""


def labels(batch_size: int) -> int:
    """250, or what three batches take: the textbook loop drops a batch that is not full."""
    return max(250, CLASSES * -(-3 * batch_size // CLASSES))


Steps = Callable[[int], None]
"""Takes so many steps."""


def engine(
    source: Source, settings: Settings, device: torch.device, fast: bool, note: Callable[[str], None], runs: int = 1
) -> Steps:
    """Steps of ours, taken in turns by several runs. `note` gets messages if they are not as fast as they should be."""
    trainers = [trainer(source, replace(settings, seed=seed), device, fast, note) for seed in range(1, runs + 1)]

    def steps(count: int) -> None:
        for done in range(0, count, TURN * runs):
            left = min(TURN * runs, count - done)
            for number, trainer in enumerate(trainers):
                trainer.advance(trainer.step + (left + number) // runs)

    return steps


def trainer(
    source: Source,
    settings: Settings,
    device: torch.device,
    fast: bool,
    note: Callable[[str], None],
    world: World | None = None,
    compile: bool = True,
) -> Trainer:
    torch.manual_seed(settings.seed)
    network = networks.build(settings.network, CLASSES, source.input_shape)
    split = make_split(source, labels(settings.batch_size), seed=settings.seed)
    made = Trainer(settings, source, split, network, device, compile=fast and compile, graph=fast, world=world)
    made.send_notes_to(note)
    return made


def random_images() -> Source:
    random = np.random.default_rng(0)
    images = Rows(
        random.integers(0, 256, (10_000, SIZE, SIZE, 3), np.uint8), np.arange(10_000, dtype=np.int64) % CLASSES
    )
    return Source("random", tuple(map(str, range(CLASSES))), images, images)


def measure(make: Callable[[], Steps], device: torch.device, seconds: float, graphed: bool) -> dict[str, float]:
    """Median milliseconds per step over repeats, peak memory and set-up seconds."""
    # Five runs that take turns have all captured a step by then.
    warm_up = 5 * TURN if graphed else 10 if device.type == "cuda" else 1

    def synchronize() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    began = time.perf_counter()
    steps = make()
    steps(warm_up)
    synchronize()
    setup = time.perf_counter() - began
    count = 320  # of a graph: draws for the first 32 are made before the device has anything to do
    if not graphed:
        few = 10 if device.type == "cuda" else 1
        began = time.perf_counter()
        steps(few)
        synchronize()
        count = max(1, min(320, int(seconds / 5 * few / (time.perf_counter() - began))))
    times: list[float] = []
    while len(times) < 3 or (sum(times) < seconds and len(times) < 20):
        began = time.perf_counter()
        steps(count)
        synchronize()
        times.append(time.perf_counter() - began)
        if sum(times) > 3 * seconds:
            break
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device) / 2**20
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # of the process so far, all rows together
    return {"ms_per_step": 1000 * statistics.median(times) / count, "peak_mib": peak, "setup_seconds": setup}


def flops_of_step(settings: Settings) -> float:
    """Floating-point operations a step must do: passes over images, a backward counting as two forwards."""
    network: nn.Module = networks.build(settings.network, CLASSES, (3, SIZE, SIZE)).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(torch.zeros(1, 3, SIZE, SIZE))
    K = settings.method_settings.get("K", 2)
    forwards: int = {
        "mixmatch": K + 3 * (K + 1),
        "supervised": 3,
        "supervised-mixup": 3,
        "pi-model": 7,
        "mean-teacher": 7,
        "pseudo-label": 6,
        "mixup": 7,
        "ict": 7,
        "vat": 3 + 3 + 1 + 3 + 3,
        "remixmatch": 1 + 3 * (1 + 1 + K + 1 + 1),  # a guess; labeled, weak and strong mixed, strong unmixed, rotated
    }.get(settings.method, 0)
    if not forwards:  # FixMatch and its kin: only the official pass learns from the weak views too
        ratio = settings.method_settings["ratio"]
        forwards = 3 * (1 + ratio) + (3 if settings.method_settings["passes"] == "official" else 1) * ratio
    return float(counter.get_total_flops()) * settings.batch_size * forwards


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=LOSSES, default="mixmatch")
    parser.add_argument("--passes", choices=("official", "fused"), default="fused")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--network", default=None, help="default: wrn-28-2, on a CPU wrn-10-1")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--side-by-side", type=int, default=5, metavar="RUNS", help="on CUDA; 1: leave that row out")
    parser.add_argument("--seconds", type=float, default=None, help="to spend on each row")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    device = pick_device(args.device)
    network = args.network or ("wrn-28-2" if device.type == "cuda" else "wrn-10-1")
    seconds = args.seconds or (10.0 if device.type == "cuda" else 6.0)
    given: dict[str, Any] = {"method": args.method, "network": network, "batch_size": args.batch_size, "valid": 0}
    if "passes" in declared(args.method):
        given["passes"] = args.passes
    settings = resolve("cifar10", given)
    source = random_images()
    split = make_split(source, labels(settings.batch_size), seed=1)
    default = replace(settings, precision=default_precision(settings, device, source.input_shape))

    notes: list[str] = []

    def note(text: str) -> None:
        if not text.startswith("compiled"):  # the table has how long that took
            notes.append(text)

    fast = device.type == "cuda"
    variants: dict[str, tuple[Callable[[], Steps], bool]] = {  # and whether steps are a graph
        "textbook loop": (lambda: textbook(source, split, settings, device), False),
        "ours, eager, fp32": (lambda: engine(source, settings, device, False, note), False),
        f"ours, default ({default.precision})": (lambda: engine(source, default, device, fast, note), fast),
    }
    if args.side_by_side > 1 and fast:
        runs = args.side_by_side
        variants[f"{runs} such runs side by side"] = (lambda: engine(source, default, device, fast, note, runs), fast)
    method = settings.build_method()
    flops, seen = flops_of_step(settings), (1 + len(method.views) * method.ratio) * args.batch_size
    rows: list[dict[str, Any]] = []
    for name, (make, graphed) in variants.items():
        row = {"name": name, "method": args.method, "batch_size": args.batch_size, "network": network}
        row |= measure(make, device, seconds, graphed)
        row["notes"], notes[:] = notes[:], []
        row["images_per_second"] = 1000 * seen / row["ms_per_step"]
        row["tflops"] = flops / row["ms_per_step"] / 1e9
        row["ratio"] = (rows[0] if rows else row)["ms_per_step"] / row["ms_per_step"]
        rows.append(row)
    if args.json:
        print(json.dumps({"device": device_name(device), "threads": torch.get_num_threads(), "rows": rows}, indent=1))
        return
    passes = f", {args.passes} passes" if "passes" in given else ""
    title = f"{args.method}{passes}, {network}, batch {args.batch_size}, {device_name(device)}"
    table = Table("", "ms/step", "images/s", "ratio", "TFLOP/s", "peak MiB", "set-up s", title=title)
    for row in rows:
        table.add_row(
            row["name"],
            f"{row['ms_per_step']:.2f}",
            f"{row['images_per_second']:,.0f}",
            f"{row['ratio']:.2f}x",
            f"{row['tflops']:.2f}",
            f"{row['peak_mib']:,.0f}",
            f"{row['setup_seconds']:.1f}",
        )
    Console().print(table)
    for row in rows:
        for text in dict.fromkeys(row["notes"]):
            print(f"{row['name']}: {text}")


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"


if __name__ == "__main__":
    main()

"""What does strong augmentation cost, beside a Pillow loop?

    python benchmarks/augmentation.py [--images 448] [--size 32] [--device auto] [--json]

Times the augmentation of one batch: by FixMatch's RandAugment written with Pillow, image by image on one core, and by
ours, as it is, compiled, and on CUDA captured as a graph. The images are noise, which costs the same as any other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from rich.console import Console
from rich.table import Table
from torch import Tensor

from mixmatch.augment import STRONG, Adaptive, CropFlip, strong_augmentation
from mixmatch.augment.operations import OPERATIONS
from mixmatch.draws import Draws, generator
from mixmatch.training.device import pick_device

ENHANCE = {"color": ImageEnhance.Color, "contrast": ImageEnhance.Contrast, "brightness": ImageEnhance.Brightness,
           "sharpness": ImageEnhance.Sharpness}  # fmt: skip
NAMES = ("cutout", *STRONG)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=448)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    device = pick_device(args.device)
    images = np.random.default_rng(0).integers(0, 256, (args.images, args.size, args.size, 3), np.uint8)
    weak = CropFlip(min(4, args.size - 1), True)
    inputs = torch.from_numpy(images).to(device)

    augment = strong_augmentation(weak, (3, args.size, args.size), "randaugment")
    draws = augment.draw(generator(1, "augment", 0), 1, args.images)
    rows: list[dict[str, Any]] = [
        {
            "augmentation": "randaugment",
            "how": "Pillow",
            "ms": timed(partial(pillow_loop, images, draws), torch.device("cpu")),
        }
    ]
    for name in NAMES:
        augment = strong_augmentation(weak, (3, args.size, args.size), name)
        drawn = augment.draw(generator(1, "augment", 0), 1, args.images)
        given = {key: torch.from_numpy(value).to(device) for key, value in drawn.items()}
        if isinstance(augment, Adaptive):
            given |= augment.state(device)
        ways: dict[str, Callable[[Tensor, dict[str, Tensor]], Tensor]] = {
            "eager": augment.__call__,
            "compiled": torch.compile(augment.__call__, fullgraph=True, dynamic=False),
        }
        for how, way in ways.items():
            once = partial(way, inputs, given)
            rows.append({"augmentation": name, "how": how, "ms": timed(once, device)})
            if device.type == "cuda":
                rows.append({"augmentation": name, "how": f"{how}, graph", "ms": timed(captured(once), device)})
    for row in rows:
        row["ratio"] = rows[0]["ms"] / row["ms"]
    if args.json:
        print(json.dumps({"device": str(device), "threads": torch.get_num_threads(), "rows": rows}, indent=1))
        return
    title = f"{args.images} images of {args.size}x{args.size} on {device}"
    table = Table("augmentation", "", "ms", "times as fast as Pillow", title=title)
    for row in rows:
        table.add_row(row["augmentation"], row["how"], f"{row['ms']:.3f}", f"{row['ratio']:.1f}")
    Console(width=100).print(table)


def timed(once: Callable[[], object], device: torch.device) -> float:
    """Milliseconds, the median of several measurements of several calls after some that do not count. On the CPU
    processor time, which other programs on the machine disturb less than the clock."""
    cuda = device.type == "cuda"
    clock = time.perf_counter if cuda else time.process_time
    for _ in range(3):
        once()
    times = []
    for _ in range(7):
        if cuda:
            torch.cuda.synchronize()
        start, count = clock(), 0
        while count < 3 or clock() - start < 0.05:
            once()
            count += 1
        if cuda:
            torch.cuda.synchronize()
        times.append(1000 * (clock() - start) / count)
    return statistics.median(times)


def captured(once: Callable[[], Tensor]) -> Callable[[], None]:
    """The call as a CUDA graph."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        once()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        once()
    return graph.replay


def pillow_loop(images: np.ndarray, draws: Draws) -> np.ndarray:
    """RandAugment as FixMatch's authors have it, image by image: flip, crop, two operations, cutout."""
    out = np.empty((*images.shape[:3], 3), np.float32)
    rows = {name: draw[0].tolist() for name, draw in draws.items()}
    for i, image in enumerate(images):
        (y, x), size, pad = rows["offset"][i], image.shape[0], 4
        image = image[:, ::-1] if rows["flip"][i] else image
        image = np.pad(image, ((pad, pad), (pad, pad), (0, 0)), mode="reflect")[y : y + size, x : x + size]
        pil = Image.fromarray(image).convert("RGBA")
        for slot in range(2):
            if rows["applied"][i][slot]:
                sign = -1 if rows["negative"][i][slot] else 1
                pil = operate(pil, OPERATIONS[rows["operation"][i][slot]], rows["level"][i][slot], sign)
        array = np.asarray(pil)
        out[i] = array[:, :, :3] / np.float32(127.5) - 1
        out[i][array[:, :, 3] == 0] = 0
        y, x = (int(u * size) for u in rows["center"][i])
        out[i, max(0, y - 8) : y + 8, max(0, x - 8) : x + 8] = 0
    return out


def operate(image: Image.Image, name: str, level: int, sign: int) -> Image.Image:
    if name in ("autocontrast", "equalize"):
        changed: Image.Image = getattr(ImageOps, name)(image.convert("RGB"))
        return changed.convert("RGBA")
    if name == "posterize":
        return ImageOps.posterize(image.convert("RGB"), 4 - 4 * level // 10).convert("RGBA")
    if name == "solarize":
        return ImageOps.solarize(image.convert("RGB"), 256 - 256 * level // 10).convert("RGBA")
    if name in ENHANCE:
        return ENHANCE[name](image).enhance(0.1 + 0.18 * level)
    if name == "rotate":
        return image.rotate(3 * level * sign)
    shear, pixels = 0.03 * level * sign, level * sign
    matrix = {"shear_x": (1, shear, 0, 0, 1, 0), "shear_y": (1, 0, 0, shear, 1, 0),
              "translate_x": (1, 0, pixels, 0, 1, 0), "translate_y": (1, 0, 0, 0, 1, pixels)}.get(name)  # fmt: skip
    return image if matrix is None else image.transform(image.size, Image.Transform.AFFINE, matrix)


if __name__ == "__main__":
    main()

"""How true is VAT's perturbation? One power iteration at several lengths xi of its trial perturbation.

    python benchmarks/vat_direction.py RUN --data-dir DIR

For the network of a run and 64 test images, prints for each xi and precision: the cosine between the perturbation
found and the one found in float64 with the same noise at xi = 1e-6 (the true power iteration), and how far a
perturbation of length 6 moves the predictions (mean KL). "random" is a perturbation in the direction of the noise.
"""

from __future__ import annotations

import argparse
import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import mixmatch
from mixmatch import functional
from mixmatch.augment import to_unit_range
from mixmatch.data import load
from mixmatch.methods.vat import VAT, _unit
from mixmatch.settings import from_dict
from mixmatch.training.device import pick_device
from mixmatch.training.model import Model
from mixmatch.training.run import RunFolder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    device = pick_device(args.device)
    settings = from_dict(RunFolder(args.run).config()["settings"])
    images = torch.from_numpy(load(settings.data, args.data_dir).test.inputs[: args.images].copy())
    u = to_unit_range(images.to(device))
    noise = torch.randn(u.shape, generator=torch.Generator().manual_seed(0)).to(device)
    network = mixmatch.load(args.run, device=str(device)).network
    exact_model = Model(deepcopy(network).double())
    exact = VAT(xi=1e-6).perturbation(exact_model, u.double(), noise.double())

    def moved(r: Tensor) -> float:
        """How far a perturbation moves the predictions, in float64."""
        with torch.no_grad():
            return functional.kl_divergence(exact_model(u.double()), exact_model(u.double() + r.double())).item()

    rows: list[dict[str, Any]] = [{"precision": "float64", "xi": 1e-6, "cosine": 1.0, "moves": moved(exact)}]
    for xi in (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1):
        r = VAT(xi=xi).perturbation(Model(deepcopy(network)), u, noise)
        rows.append({"precision": "float32", "xi": xi, "cosine": _cosine(r, exact), "moves": moved(r)})
    random = 6 * _unit(noise)
    rows.append({"precision": "random", "xi": None, "cosine": _cosine(random, exact), "moves": moved(random)})
    if args.json:
        print(json.dumps({"run": str(args.run), "device": str(device), "rows": rows}, indent=1))
        return
    table = Table("precision", "xi", "cosine with float64", "moves predictions by (KL)")
    for row in rows:
        tried = "" if row["xi"] is None else f"{row['xi']:g}"
        table.add_row(str(row["precision"]), tried, f"{row['cosine']:.3f}", f"{row['moves']:.4f}")
    Console().print(table)


def _cosine(a: Tensor, b: Tensor) -> float:
    """The mean over images of the absolute cosine: a power iteration knows no sign."""
    a, b = a.flatten(1).double(), b.flatten(1).double()
    return torch.nn.functional.cosine_similarity(a, b).abs().mean().item()


if __name__ == "__main__":
    main()

"""`mixmatch export`: a run's model as a file for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mixmatch.cli.options import Run, show
from mixmatch.export import CHECKED, Format, export_model


def export(
    run: Run,
    kind: Annotated[Format, typer.Option("--format", help=r"onnx takes pip install 'mixmatch\[onnx]'.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file (default: RUN's name, in this folder).")
    ] = None,
) -> None:
    """Write a run's model as one file for other programs.

    onnx: takes uint8 images (N, height, width, channels) or features (N, F), gives probabilities (N, classes). Its
    metadata describes how to prepare them. Before it is written, onnxruntime has to give the same probabilities.

    safetensors: the weights, for torch.

    Examples:
      mixmatch export runs/photos --format onnx
      mixmatch export runs/photos --format safetensors --output photos.safetensors
    """
    path, difference = export_model(run, output, kind)
    sizes = " and ".join(map(str, CHECKED))
    checked = f", checked with onnxruntime at batch sizes {sizes} (largest difference {difference or 0:.1e})"
    show(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB){'' if difference is None else checked}")

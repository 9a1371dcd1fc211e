"""`mixmatch export`: a run's model as a file for other programs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mixmatch import export as export_
from mixmatch.classifier import load_run
from mixmatch.cli.options import Run


class Format(StrEnum):
    """What a model can be exported as."""

    ONNX = "onnx"
    SAFETENSORS = "safetensors"


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
    classifier = load_run(run, "cpu")
    name = run.stem if run.is_file() else run.resolve().name
    path = output if output is not None else Path(f"{name}.{kind.value}")
    if kind is Format.ONNX:
        difference = export_.to_onnx(classifier, path)
        sizes = " and ".join(map(str, export_.CHECKED))
        checked = f", checked with onnxruntime at batch sizes {sizes} (largest difference {difference:.1e})"
    else:
        export_.to_safetensors(classifier, path)
        checked = ""
    print(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB){checked}")

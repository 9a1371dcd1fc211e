"""A report's files: the page, and the list of what to label next."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from mixmatch.data.opened import Data
from mixmatch.errors import explaining
from mixmatch.report.gather import Report, Shown, gather
from mixmatch.report.page import render
from mixmatch.storage import replace_durably
from mixmatch.text import csv_text
from mixmatch.training.gain import Gain


class Written(NamedTuple):
    """What the page of a run shows, and where page and list are."""

    report: Report
    page: Path
    label_next: Path | None
    """None if there is no unlabeled data."""


def write_report(
    run: str | Path,
    output: str | Path | None = None,
    *,
    data: Data | str | Path | None = None,
    gain: Gain | None = None,
    data_dir: str | Path | None = None,
    device: str | torch.device = "auto",
    network: nn.Module | None = None,
) -> Written:
    """Write RUN/report.html (or `output`) and RUN/label-next.csv, for a finished run.

    Args:
        run: the run folder.
        output: where to write the page.
        data: where the run's own data is now, if it has moved; or the data itself, open, which is read again otherwise.
        gain: the gain from unlabeled data, if it is known; by default it is measured if the run has a baseline.
        data_dir: where the files of a published data set are.
        device: `auto`, `cpu`, `cuda` or `mps`.
        network: the network that was trained, if it is not one that is built by name.
    """
    run = Path(run)
    report = gather(run, data, gain, data_dir=data_dir, device=device, network=network)
    page = run / "report.html" if output is None else Path(output)
    to_label = run / "label-next.csv" if report.unlabeled.suggestions else None
    _write(page, render(report).encode("utf-8", "replace"))
    if to_label is not None:
        _write(to_label, label_next(report).encode("utf-8", "surrogateescape"))  # file names as the system has them
    none = report.unlabeled.no_class
    if none is not None and none.listed:
        _write(run / "no-class.csv", _csv(report, none.listed).encode("utf-8", "surrogateescape"))
    else:
        (run / "no-class.csv").unlink(missing_ok=True)  # of an earlier report
    return Written(report, page, to_label)


def label_next(report: Report) -> str:
    """The suggestions as CSV: file (or row of a published data set), uncertainty, predicted class, its probability."""
    return _csv(report, report.unlabeled.suggestions)


def _csv(report: Report, rows: Sequence[Shown]) -> str:
    head = ("file" if report.user_data else "row", "score", "predicted", "probability")
    return csv_text([head, *((r.name, f"{r.score:.6g}", r.predicted, f"{r.probability:.6g}") for r in rows)])


def _write(path: Path, content: bytes) -> None:
    with explaining(f"cannot write {path}"):
        replace_durably(path, content)

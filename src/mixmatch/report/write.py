"""A report's files: the page, and the list of what to label next."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

from mixmatch.data.opened import Data
from mixmatch.errors import MixMatchError
from mixmatch.report.gather import Report, gather
from mixmatch.report.page import render
from mixmatch.storage import replace_durably
from mixmatch.training.gain import Gain


def write_report(
    run: str | Path,
    output: str | Path | None = None,
    *,
    data: Data | Callable[[], Data] | None = None,
    gain: Gain | None = None,
    data_dir: str | Path | None = None,
    device: str = "auto",
) -> tuple[Report, Path, Path | None]:
    """Write RUN/report.html (or `output`) and RUN/label-next.csv, for a finished run.

    Args:
        run: the run folder.
        output: where to write the page.
        data: the data the run was trained on, or how to open it; by default it is read again.
        gain: the gain from unlabeled data, if it is known; by default it is measured if the run has a baseline.
        data_dir: where the files of a published data set are.
        device: `auto`, `cpu`, `cuda` or `mps`.

    Returns:
        What the page shows, and where page and list are; the list is None if there is no unlabeled data.
    """
    run = Path(run)
    report = gather(run, data, gain, data_dir=None if data_dir is None else Path(data_dir), device=device)
    page = run / "report.html" if output is None else Path(output)
    to_label = run / "label-next.csv" if report.unlabeled.suggestions else None
    _write(page, render(report).encode("utf-8", "replace"))
    if to_label is not None:
        _write(to_label, label_next(report).encode("utf-8", "surrogateescape"))  # file names as the system has them
    return report, page, to_label


def label_next(report: Report) -> str:
    """The suggestions as CSV: file (or row of a published data set), uncertainty, predicted class, its probability."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["file" if report.user_data else "row", "score", "predicted", "probability"])
    for image in report.unlabeled.suggestions:
        writer.writerow([image.name, f"{image.score:.6g}", image.predicted, f"{image.probability:.6g}"])
    return out.getvalue()


def _write(path: Path, content: bytes) -> None:
    try:
        replace_durably(path, content)
    except OSError as error:
        raise MixMatchError(f"cannot write {path}: {error.strerror or error}") from None

"""`report.html`: one file that tells how good a run's model is, where it errs, and what to label next."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from mixmatch.errors import MixMatchError
from mixmatch.report.gather import Report, gather
from mixmatch.report.page import render
from mixmatch.storage import replace_durably

__all__ = ["Report", "gather", "label_next", "render", "write_report"]


def write_report(
    run: str | Path, output: str | Path | None = None, *, data_dir: str | Path | None = None, device: str = "auto"
) -> tuple[Report, Path, Path | None]:
    """Write RUN/report.html (or `output`) and RUN/label-next.csv, for a finished run.

    Returns:
        What the page shows, and where page and list are; the list is None where there is no unlabeled data.
    """
    run = Path(run)
    report = gather(run, None if data_dir is None else Path(data_dir), device)
    page = run / "report.html" if output is None else Path(output)
    to_label = run / "label-next.csv" if report.unlabeled.worth else None
    _write(page, render(report).encode("utf-8", "replace"))
    if to_label is not None:
        _write(to_label, label_next(report).encode("utf-8", "surrogateescape"))  # file names as the system has them
    return report, page, to_label


def label_next(report: Report) -> str:
    """What is worth labeling as CSV: the file (or the row in a published data set), how uncertain, the guess."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["file" if report.own else "row", "score", "predicted", "probability"])
    for image in report.unlabeled.worth:
        writer.writerow([image.name, f"{image.score:.6g}", image.predicted, f"{image.probability:.6g}"])
    return out.getvalue()


def _write(path: Path, content: bytes) -> None:
    try:
        replace_durably(path, content)
    except OSError as error:
        raise MixMatchError(f"cannot write {path}: {error.strerror or error}") from None

"""`mixmatch report`: a page on how good a run's model is, where it errs, and what to label next."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from mixmatch.cli.options import DataDir, Device, Json, Moved, Run, console, print_json, show
from mixmatch.report import Report, Verdict, write_report
from mixmatch.terminal import Screen


def report(
    run: Run,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write the page (default: RUN/report.html).")
    ] = None,
    moved: Moved = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Write a page on a finished run: the verdict, where it errs, and what to label next.

    It is one file that needs no network, and RUN/label-next.csv lists the unlabeled images worth labeling.

    Examples:
      mixmatch report runs/photos
      mixmatch report runs/cifar --data-dir ~/data --output cifar.html
      mixmatch report runs/photos --data /mnt/photos
    """
    with Screen(stderr=True).status("predicting the run's images"):
        found, page, to_label = write_report(run, output, data=moved, data_dir=data_dir, device=device)
    if as_json:
        print_json(_summary(found, page, to_label))
        return
    show_verdict(found.verdict)
    show(f"report: {page}")
    if to_label is not None:
        show(f"worth labeling next: {to_label}")


def _summary(found: Report, page: Path, to_label: Path | None) -> dict[str, Any]:
    evaluated, details = found.evaluated, found.verdict.to_dict()
    return {
        "run": str(found.run),
        "report": str(page),
        "label_next": None if to_label is None else str(to_label),
        "no_class": None if (none := found.unlabeled.no_class) is None else len(none.listed),
        "verdict": found.verdict.text,
        "verdict_details": details,
        **{name: details[name] for name in ("error", "images", "baseline_error", "gain_interval")},
        "calibration_error": None if evaluated is None else 100 * evaluated.calibration.error,
        "classes": list(found.classes),
        "confusion": None if evaluated is None else evaluated.confusion.tolist(),
        "per_class": None
        if evaluated is None
        else {name: score._asdict() for name, score in zip(found.classes, evaluated.scores, strict=True)},
    }


def show_verdict(verdict: Verdict) -> None:
    """Each answer beside its question, then the next steps: in two columns on a terminal, in plain lines elsewhere."""
    steps = [("next" if i == 1 else "", f"{i}. {step}") for i, step in enumerate(verdict.next_steps, 1)]
    lines, screen = [*verdict.parts, *steps], console()
    if not screen.is_terminal:
        show("\n".join(f"{name + ': ' if name else '      '}{text}" for name, text in lines))
        return
    table = Table.grid(padding=(0, 2, 0, 0))
    width = screen.width - max(len(name) for name, _ in lines) - 4
    for name, text in lines:
        folded = Text(text.replace(" %", "\ue000%")).wrap(screen, width)  # rich folds at a no-break space, too
        table.add_row(Text(name, "bold"), Text("\n".join(line.plain for line in folded).replace("\ue000", " ")))
    screen.print(table)

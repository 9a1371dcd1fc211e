"""`mixmatch data check`: whether a data set is the published one, and whether user data is fit to train on."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from mixmatch import data
from mixmatch.cli.options import USER_DATA, DataDir, Device, Json, console, print_json, with_reading
from mixmatch.data.published.files import choose, data_folder, print_warning, verify
from mixmatch.data.source import Rows
from mixmatch.data.user.check import findings
from mixmatch.data.user.rows import UserData
from mixmatch.errors import MixMatchError
from mixmatch.training.timing import cost


@with_reading
def check(
    name: Annotated[
        str,
        typer.Argument(metavar="DATA", help="A data set (see [b]mixmatch data list[/b]), or a path to your own data."),
    ],
    settings: dict[str, Any],
    data_dir: DataDir = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Files that are not the published ones, and warnings, are errors.")
    ] = False,
    download: Annotated[bool, typer.Option(help="Download what is missing.")] = True,
    trial: Annotated[
        bool,
        typer.Option(
            help="Train 20 steps to estimate how long training takes, and how much memory.", rich_help_panel=USER_DATA
        ),
    ] = True,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Load a data set and show what it holds, or check your own data before training on it.

    It is a folder (DIR/CLASS/* labeled, DIR/unlabeled/**, DIR/test/CLASS/*), an array (.npz, .npy) or a table
    (.csv, .parquet). Each finding comes with what to do; the last is what training with the default settings takes,
    from a trial of 20 steps.

    Examples:

      mixmatch data check digits

      mixmatch data check svhn --no-download --json

      mixmatch data check photos/ --strict

      mixmatch data check photos/ --labels-file labels.csv

      mixmatch data check patients.csv --label-column diagnosis --no-trial
    """
    reading = data.Reading(**settings)
    if name not in data.SOURCES and (Path(name).exists() or "/" in name or Path(name).suffix):
        _check_user_data(Path(name), reading, strict, as_json, device if trial else None)
        return
    data.source_info(name)
    for option in reading.given:
        raise MixMatchError(f"{option}= is for your own data, not for '{name}'")
    folder = data_folder(data_dir)
    source = data.load(name, folder, strict=strict, download=download, warn=print_warning)
    files = [
        {"file": verdict.file.path, "md5": verdict.md5, "published_md5": verdict.file.md5, "verdict": verdict.text}
        for verdict in verify(choose(data.SOURCES[name].layouts, folder), folder)
    ]
    parts = {"train": _part(source.train, source.classes), "test": _part(source.test, source.classes)}
    shape = list(source.image_shape)
    if as_json:
        folds = [len(fold) for fold in source.folds]
        print_json(
            {"name": name, "data_dir": str(folder), "image_shape": shape, "folds": folds, "files": files} | parts
        )
        return
    screen = console()
    if files:
        table = Table("file", "md5", "verdict", box=box.SIMPLE)
        for file in files:
            table.add_row(file["file"], file["md5"] or "", file["verdict"])
        screen.print(table)
    table = Table("class", *parts, box=box.SIMPLE)
    for label in source.classes:
        table.add_row(label, *(f"{part['per_class'][label]:,}" for part in parts.values()))
    table.add_row("unlabeled", *(f"{part['unlabeled']:,}" for part in parts.values()))
    table.add_row("images", *(f"{part['images']:,}" for part in parts.values()))
    screen.print(table)
    screen.print(f"image shape: {'x'.join(map(str, shape))}")
    for title, part in parts.items():
        screen.print(f"pixel sha256 of {title}: {part['sha256']}", soft_wrap=True)


def read_with_bar(path: Path, reading: data.Reading, shown: bool = True) -> UserData:
    """User data, with a bar on a terminal while images are decoded."""
    bar = Progress(console=Console(stderr=True), transient=True, disable=not (shown and sys.stderr.isatty()))
    with bar:
        task = bar.add_task("reading images", total=None)
        progress = lambda done, total: bar.update(task, completed=done, total=total)  # noqa: E731
        return data.read_user_data(path, reading, progress=progress)


def _check_user_data(path: Path, reading: data.Reading, strict: bool, as_json: bool, device: str | None) -> None:
    user = read_with_bar(path, reading)
    found = findings(user)
    if device is not None:
        with Console(stderr=True).status("a trial of 20 steps"):
            found.append(cost(user, device))
    if as_json:
        shape = list(user.inputs.shape[1:])
        print_json(
            {"name": user.name, "classes": user.classes, "shape": shape, "findings": [f.as_dict() for f in found]}
        )
    else:
        color = {"info": "green", "warning": "yellow", "error": "red"}
        for finding in found:
            advice = f": {finding.advice}" if finding.advice else ""
            mark = f"[{color[finding.severity]}]{finding.severity}:[/]"
            console().print(f"{mark} {escape(finding.message)}{escape(advice)}", soft_wrap=True)
    bad = ("warning", "error") if strict else ("error",)
    if any(finding.severity in bad for finding in found):
        raise typer.Exit(1)


def _part(part: Rows, classes: tuple[str, ...]) -> dict[str, Any]:
    counts = np.bincount(part.labels[part.labels >= 0], minlength=len(classes)).tolist()
    return {
        "images": len(part),
        "unlabeled": int((part.labels < 0).sum()),
        "per_class": dict(zip(classes, counts, strict=True)),
        "sha256": _sha256(part),
    }


def _sha256(part: Rows) -> str:
    digest = hashlib.sha256()
    for start in range(0, len(part), 1000):
        digest.update(np.ascontiguousarray(part.inputs[start : start + 1000]).data)
    return digest.hexdigest()

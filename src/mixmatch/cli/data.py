"""`mixmatch data`: which data sets there are, which of them are at hand, and whether they are the published ones."""

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
from mixmatch.cli.options import (
    OWN,
    DataDir,
    Device,
    Ignore,
    ImageSize,
    Json,
    LabelColumn,
    LabelsFile,
    PartColumn,
    console,
    print_json,
)
from mixmatch.data.published.files import choose, complete, data_folder, inspect, print_warning
from mixmatch.data.source import Rows
from mixmatch.data.user.rows import UserData
from mixmatch.errors import MixMatchError

app = typer.Typer(
    name="data",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="""List the data sets and check the ones you have.

    Examples:

      mixmatch data list

      mixmatch data list --data-dir ~/data --json

      mixmatch data check digits

      mixmatch data check cifar10 --strict
    """,
)


@app.command("list")
def list_(data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the data sets: how many images, how large, and what of them is in the data folder.

    Examples:

      mixmatch data list

      mixmatch data list --json
    """
    folder = data_folder(data_dir)
    rows = [_row(name, info, folder) for name, info in data.SOURCES.items()]
    if as_json:
        print_json({"data_dir": str(folder), "data_sets": rows})
        return
    table = Table("name", "train", "unlabeled", "test", "classes", "image", "download", "here", box=box.SIMPLE)
    for row in rows:
        size = f"{row['download_mb']:,} MB" if row["download_mb"] else "none"
        images = [f"{row[part]:,}" for part in ("train", "unlabeled", "test")]
        shape = "x".join(map(str, row["image_shape"]))
        table.add_row(row["name"], *images, str(row["classes"]), shape, size, _presence(row))
    console().print(f"data folder: {folder}", soft_wrap=True, markup=False)
    console().print(table)


@app.command()
def check(
    name: Annotated[
        str,
        typer.Argument(metavar="DATA", help="A data set (see [b]mixmatch data list[/b]), or a path to your own data."),
    ],
    data_dir: DataDir = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Files that are not the published ones, and warnings, are errors.")
    ] = False,
    download: Annotated[bool, typer.Option(help="Download what is missing.")] = True,
    labels_file: LabelsFile = None,
    image_size: ImageSize = None,
    label_column: LabelColumn = None,
    part_column: PartColumn = None,
    ignore: Ignore = None,
    trial: Annotated[
        bool,
        typer.Option(help="Train 20 steps to tell how long training takes, and how much memory.", rich_help_panel=OWN),
    ] = True,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Load a data set and tell what it holds, or look over your own data before training on it.

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
    options = {
        "labels_file": labels_file,
        "image_size": image_size,
        "label_column": label_column,
        "part_column": part_column,
        "ignore": ignore or None,
    }
    if name not in data.SOURCES and (Path(name).exists() or "/" in name or Path(name).suffix):
        _check_own(Path(name), strict, as_json, options, device if trial else None)
        return
    data.source_info(name)
    if given := [option for option, value in options.items() if value is not None]:
        raise MixMatchError(f"--{given[0].replace('_', '-')} is for your own data, not for '{name}'")
    folder = data_folder(data_dir)
    source = data.load(name, folder, strict=strict, download=download, warn=print_warning)
    files = [
        {"file": verdict.file.path, "md5": verdict.md5, "published_md5": verdict.file.md5, "verdict": verdict.text}
        for verdict in inspect(choose(data.SOURCES[name].layouts, folder), folder)
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


def read_with_bar(path: Path, options: dict[str, Any], shown: bool = True) -> UserData:
    """User data, with a bar on a terminal while images are decoded."""
    bar = Progress(console=Console(stderr=True), transient=True, disable=not (shown and sys.stderr.isatty()))
    with bar:
        task = bar.add_task("reading images", total=None)
        progress = lambda done, total: bar.update(task, completed=done, total=total)  # noqa: E731
        return data.read_user_data(path, progress=progress, **options)


def _check_own(path: Path, strict: bool, as_json: bool, options: dict[str, Any], device: str | None) -> None:
    from mixmatch.data.user.check import findings

    own = read_with_bar(path, options)
    found = findings(own)
    if device is not None:
        from mixmatch.training.timing import cost

        with Console(stderr=True).status("a trial of 20 steps"):
            found.append(cost(own, device))
    if as_json:
        shape = list(own.inputs.shape[1:])
        print_json({"name": own.name, "classes": own.classes, "shape": shape, "findings": [f.as_dict() for f in found]})
    else:
        color = {"info": "green", "warning": "yellow", "error": "red"}
        for finding in found:
            advice = f": {finding.advice}" if finding.advice else ""
            mark = f"[{color[finding.severity]}]{finding.severity}:[/]"
            console().print(f"{mark} {escape(finding.message)}{escape(advice)}", soft_wrap=True)
    bad = ("warning", "error") if strict else ("error",)
    if any(finding.severity in bad for finding in found):
        raise typer.Exit(1)


def _row(name: str, info: data.SourceInfo, folder: Path) -> dict[str, Any]:
    layout = choose(info.layouts, folder)
    return {
        "name": name,
        "title": info.title,
        "train": info.train,
        "unlabeled": info.unlabeled,
        "test": info.test,
        "classes": info.classes,
        "image_shape": list(info.image_shape),
        "download_mb": info.download_mb,
        "complete": complete(layout, folder),
        "present": [file.path for file in layout if (folder / file.path).is_file()],
        "missing": [file.path for file in layout if not file.optional and not (folder / file.path).is_file()],
    }


def _presence(row: dict[str, Any]) -> str:
    if row["complete"]:
        return "[green]yes[/green]"
    if not row["present"]:
        return "no"
    first, *others = row["missing"]
    return f"{first} is missing" if not others else f"{len(others) + 1} files are missing"


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

"""`mixmatch data list`: which data sets there are, and which of them are at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from mixmatch import data
from mixmatch.cli.options import DataDir, Json, console, print_json, show
from mixmatch.data.published.files import choose, complete, data_folder


def list_(data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the data sets: how many images, how large, and which files are in the data folder.

    Examples:
      mixmatch data list
      mixmatch data list --json
    """
    folder = data_folder(data_dir)
    rows = [_row(name, info, folder) for name, info in data.SOURCES.items()]
    if as_json:
        print_json({"data_dir": str(folder), "data_sets": rows})
        return
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)  # fits into 80 columns
    for column in ("name", "train", "unlabeled", "test", "classes", "image", "download"):
        table.add_column(column, no_wrap=True)
    table.add_column("here", overflow="fold")
    for row in rows:
        size = f"{row['download_mb']:,} MB" if row["download_mb"] else "none"
        images = [f"{row[part]:,}" for part in ("train", "unlabeled", "test")]
        shape = "x".join(map(str, row["image_shape"]))
        table.add_row(row["name"], *images, str(row["classes"]), shape, size, _presence(row))
    show(f"data folder: {folder}")
    console().print(table)


def _row(name: str, info: data.SourceInfo, folder: Path) -> dict[str, Any]:
    layout = choose(info.layouts, folder)
    return {
        "name": name,
        **{field: getattr(info, field) for field in ("title", "train", "unlabeled", "test", "classes")},
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

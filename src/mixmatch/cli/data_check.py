"""`mixmatch data check`: whether a data set is the published one, and whether user data is fit to train on."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from mixmatch import data
from mixmatch.cli import with_options
from mixmatch.cli.options import USER_DATA, DataDir, DataName, Device, Json, console, print_json, with_reading
from mixmatch.data.published.files import choose, data_folder, print_warning, verify
from mixmatch.data.source import Rows
from mixmatch.data.user.check import findings
from mixmatch.data.user.rows import Finding, UserData
from mixmatch.errors import MixMatchError
from mixmatch.terminal import Screen
from mixmatch.text import count, in_words, printable
from mixmatch.training.progress import bar

if TYPE_CHECKING:
    from mixmatch.training.timing import FirstRun

TRIED = 10_000
"""Unlabeled rows of a table that a trial draws from: a step takes as long with more."""

COLORS = {"info": "green", "warning": "yellow", "error": "red"}


@with_reading
def check(
    name: DataName,
    settings: dict[str, Any],
    data_dir: DataDir = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Files that are not the published ones, and warnings, are errors.")
    ] = False,
    download: Annotated[bool, typer.Option(help="Download what is missing.")] = True,
    trial: Annotated[
        bool,
        typer.Option(
            help="Try a few steps, for 15 s at most, to see how long training takes.", rich_help_panel=USER_DATA
        ),
    ] = True,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Load a data set and show what it holds, or check your own data before training on it.

    It is a folder (DIR/CLASS/* labeled, DIR/unlabeled/**, DIR/test/CLASS/*), an array (.npz, .npy) or a table
    (.csv, .parquet). Findings are printed as they are found, each with advice. Then a few steps are tried, for 15 s
    at most, to say how long training takes, and the last line is a command that trains in about ten minutes.

    Examples:
      mixmatch data check digits
      mixmatch data check svhn --no-download --json
      mixmatch data check photos/ --strict
      mixmatch data check photos/ --labels-file labels.csv
      mixmatch data check patients.csv --label-column diagnosis --no-trial
    """
    if not name.strip():
        raise MixMatchError("DATA is empty: give a name (digits, cifar10, ...) or a path")
    reading = data.Reading(**settings)
    if name not in data.SOURCES and (Path(name).exists() or "/" in name or Path(name).suffix):
        _check_user_data(name, reading, strict, as_json, device if trial else None)
        return
    data.source_info(name)
    for option in reading.given:
        raise MixMatchError(f"{option}= is for your own data, not for '{name}'")
    _check_published(name, data_folder(data_dir), strict, download, as_json)


def _check_published(name: str, folder: Path, strict: bool, download: bool, as_json: bool) -> None:
    """Print what a published data set holds, and whether its files are the published ones."""
    source = data.load(name, folder, strict=strict, download=download, warn=print_warning)
    files = [
        {"file": verdict.file.path, "md5": verdict.md5, "published_md5": verdict.file.md5, "verdict": verdict.text}
        for verdict in verify(choose(data.SOURCES[name].layouts, folder), folder, strict=strict)
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
        table.add_row(Text(printable(label)), *(f"{part['per_class'][label]:,}" for part in parts.values()))
    table.add_row("unlabeled", *(f"{part['unlabeled']:,}" for part in parts.values()))
    table.add_row("images", *(f"{part['images']:,}" for part in parts.values()))
    screen.print(table)
    screen.print(f"image shape: {'x'.join(map(str, shape))}")
    for title, part in parts.items():
        screen.print(f"pixel sha256 of {title}: {part['sha256']}", soft_wrap=True)


def read_with_bar(path: Path, reading: data.Reading) -> UserData:
    """User data, with a bar on a terminal while images are decoded."""
    with bar("reading images") as progress:
        return data.read_user_data(path, reading, progress=progress)


def _check_user_data(name: str, reading: data.Reading, strict: bool, as_json: bool, device: str | None) -> None:
    """Print findings as they are found, then try a few steps and end with a command that trains soon."""
    screen, found = console(), list[Finding]()

    def show(finding: Finding) -> None:
        found.append(finding)
        if not as_json:
            mark = f"[{COLORS[finding.severity]}]{finding.severity}:[/]"
            advice = f": {with_options(finding.advice)}" if finding.advice else ""
            screen.print(f"{mark} {escape(finding.message + advice)}", soft_wrap=not screen.is_terminal)

    if data.is_shards(Path(name)):
        data.read_shards(Path(name), verify=True)
    user = read_with_bar(Path(name), reading)
    for finding in findings(user):
        show(finding)
    first, command = None, None
    if device is not None:
        before = user.inputs.nbytes
        if not user.is_images:  # the others are let go of before PyTorch is imported, which takes as much as they do
            user = user.with_unlabeled(TRIED)
        from mixmatch.training.timing import cost  # with PyTorch: 200 MB that a check alone does without

        with Screen(stderr=True).status("trying a few steps") as status:
            counted = lambda n: status.update(f"trying a few steps: {count(n, 'step')} so far")  # noqa: E731
            left_out = before - user.inputs.nbytes
            sized = reading.image_size is not None
            result, first = cost(user, device, sized=sized, progress=counted, left_out=left_out)
        show(result)
    if first is not None:
        chosen = {"method": "supervised"} if len(user.unlabeled) == 0 else _balanced(name, found)
        command = train_command(name, reading, first, device, chosen)
    if as_json:
        shape = list(user.inputs.shape[1:])
        about = {"name": user.name, "classes": user.classes, "shape": shape, "findings": [f.as_dict() for f in found]}
        print_json({**about, "command": command, "seconds": None if first is None else first.seconds})
    elif first is not None:
        screen.print(f"\nto train now, {in_words(first.seconds)}:\n  {command}", soft_wrap=True, markup=False)
    bad = ("warning", "error") if strict else ("error",)
    if any(finding.severity in bad for finding in found):
        raise typer.Exit(1)


def _balanced(name: str, found: Sequence[Finding]) -> dict[str, str]:
    """What to train with where classes are uneven, if the usual method can make up for it."""
    from mixmatch import methods
    from mixmatch.settings import resolve
    from mixmatch.training.opening import kind_of

    method = resolve(name, {}, kind_of(name)).method
    uneven = any(finding.kind == "uneven-classes" for finding in found)
    return {"balance": "abc"} if uneven and "balance" in methods.declared(method) else {}


def train_command(
    name: str, reading: data.Reading, first: FirstRun, device: str | None, chosen: Mapping[str, str]
) -> str:
    """The command that trains on data read like this with the chosen settings, to be copied into a shell."""
    options: dict[str, Any] = {
        **chosen,
        "device": None if device == "auto" else device,
        "image_size": first.image_size,
        **reading.given,
        "steps": first.steps,
    }
    words = ["mixmatch", "train", name]
    for option, value in options.items():
        for one in value if isinstance(value, tuple) else (value,):
            words += [] if one is None else [f"--{option.replace('_', '-')}", str(one)]
    return shlex.join(words)


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

"""Import and export of labels: folders per class, CSV files for `--labels-file`, Label Studio's JSON."""

from __future__ import annotations

import csv
import io
import json
import os
import posixpath
import re
import shutil
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from mixmatch.data.user.folder import IGNORE, label_by_folder
from mixmatch.data.user.tree import Entry, Tree
from mixmatch.label.book import Book, Refused
from mixmatch.label.state import BROKEN, MARK_NAMES, NONE
from mixmatch.storage import read_plain
from mixmatch.text import count, csv_text, from_cell, listed

CSV_NAME = "labels.csv"
MOST_CSV = 2**29
"""Bytes of such a file, at most."""
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
"""Names that Windows keeps for itself."""


class Labeled(NamedTuple):
    """A picture with a class."""

    file: str
    label: str
    is_test: bool


def labeled(book: Book, *, any_name: bool = False) -> Iterator[Labeled]:
    """All pictures that have a class and are there, in order of name. Names that are no text cannot stand in a file."""
    state = book.state
    for file, value in _marked(book, any_name=any_name):
        if value >= 0:
            yield Labeled(file, state.classes[value].name, file in state.exam or file in state.tests)


def _marked(book: Book, *, any_name: bool = False) -> Iterator[tuple[str, int]]:
    listing = book.listing
    for file in sorted(book.state.marks):
        n = listing.numbers.get(file)
        if n is not None and n not in listing.gone and (any_name or is_text(file)):
            yield file, book.state.marks[file].value


def is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


# --------------------------------------------------------------------------------------------------------- to elsewhere


def to_csv(book: Book) -> bytes:
    """Labels as `--labels-file` reads them. The exam is the test set; what is none of the classes, or no image, is left
    out of training altogether, where it would only do harm. What was skipped is unlabeled, like all the rest."""
    rows = [(file, label, "test" if is_test else "train") for file, label, is_test in labeled(book)]
    rows += [(file, "", IGNORE) for file, value in _marked(book) if value in (NONE, BROKEN)]
    return csv_text([("file", "label", "part"), *rows]).encode()


def to_label_studio(book: Book) -> bytes:
    """Tasks with annotations, as Label Studio imports them; pictures by their place below the folder."""

    def task(picture: Labeled) -> dict[str, Any]:
        choice = {"from_name": "choice", "to_name": "image", "type": "choices", "value": {"choices": [picture.label]}}
        meta = {"part": "test" if picture.is_test else "train"}
        return {"data": {"image": picture.file}, "meta": meta, "annotations": [{"result": [choice]}]}

    return json.dumps([task(picture) for picture in labeled(book)], indent=1).encode()


def to_folders(pictures: Iterable[Labeled], root: Path, target: Path, *, links: bool) -> int:
    """Copies of labeled pictures, or links to them, in a folder per class; those of the exam under test/. What was
    labeled stays where it is. Returns how many there are: files that are gone meanwhile are left out."""
    made = 0
    for picture in pictures:
        source = (root / picture.file).absolute()
        if not source.is_file():
            continue
        folder = target / "test" / picture.label if picture.is_test else target / picture.label
        folder.mkdir(parents=True, exist_ok=True)
        place = _free(folder / posixpath.basename(picture.file))
        if links:
            place.symlink_to(source)
        else:
            shutil.copy2(source, place)
        made += 1
    return made


def check_folder_name(name: str) -> None:
    """Refuse the name of a class that cannot be one of a folder, on any system."""
    odd = name.startswith(".") or name.endswith((".", " ")) or any(c in name for c in '/\\<>:"|?*')
    if odd or RESERVED.fullmatch(name) or name.casefold() in ("test", "unlabeled"):
        raise Refused(f"the class '{name}' cannot be the name of a folder: rename it first")


def _free(path: Path) -> Path:
    """The path, or one with a number where two pictures of a class have the same name."""
    chosen, number = path, 1
    while os.path.lexists(chosen):
        number += 1
        chosen = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return chosen


# ------------------------------------------------------------------------------------------------------- from elsewhere


class Found(NamedTuple):
    """Labels that were read: file, class, whether it is for testing."""

    labels: list[tuple[str, str]]
    tests: set[str]
    unknown: list[str]
    """Files that are named but not there."""


def read_csv(text: str, numbers: Mapping[str, int]) -> Found:
    """A CSV file with the columns `file` and `label`, and `part` if it has one."""
    text = text.removeprefix("\ufeff")
    first = text.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=False))
    except csv.Error as error:  # a quote that is never closed makes a cell that is too long
        raise Refused(f"the file is no CSV: {error}") from None
    header = [name.strip() for name in rows[0]] if rows else []
    if "file" not in header or "label" not in header:
        raise Refused(f"the file needs the columns `file` and `label` (it has {listed(header, 8) or 'none'})")
    at = {name: header.index(name) for name in ("file", "label", "part") if name in header}
    named, tests = [], set()
    for number, row in enumerate(rows[1:], 2):
        if not any(cell.strip() for cell in row):
            continue
        if len(row) != len(header):
            raise Refused(f"line {number} has {count(len(row), 'field')}, but the header {len(header)}")
        file, label = from_cell(row[at["file"]].strip()), from_cell(row[at["label"]].strip())
        part = row[at["part"]].strip() if "part" in at else ""
        if label or part == IGNORE:
            named.append((file, label or MARK_NAMES[NONE]))
            if part == "test":
                tests.add(file)
    return _matched(named, tests, numbers)


def read_label_studio(text: str, numbers: Mapping[str, int]) -> Found:
    """Label Studio's JSON: the first choice of the first annotation of each task. Names are matched by their end, since
    it serves files under addresses of its own."""
    try:
        tasks = json.loads(text)
        if isinstance(tasks, dict):
            tasks = [tasks]
        named, tests = [], set()
        for task in tasks:
            file, label = _image(task), _choice(task)
            if file and label:
                named.append((file, label))
                if isinstance(task.get("meta"), dict) and task["meta"].get("part") == "test":
                    tests.add(file)
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise Refused("this is not Label Studio's JSON: export it there as JSON") from None
    return _matched(named, tests, numbers)


def _image(task: Mapping[str, Any]) -> str:
    """Where a task's picture is. Label Studio's own address of a local file is /data/local-files/?d=folder/a.jpg."""
    address = next((v for v in task["data"].values() if isinstance(v, str)), "")
    parts = urlsplit(address)
    if "d" in (query := parse_qs(parts.query)):
        return query["d"][0]
    return unquote(parts.path) if parts.scheme else address


def _choice(task: Mapping[str, Any]) -> str:
    for annotation in task.get("annotations") or task.get("completions") or ():
        if annotation.get("was_cancelled"):
            continue
        for result in annotation.get("result", ()):
            if result.get("type") == "choices" and (choices := result["value"]["choices"]):
                return str(choices[0])
    return ""


def _matched(named: Sequence[tuple[str, str]], tests: set[str], numbers: Mapping[str, int]) -> Found:
    """Files as the listing has them: exactly, else by the longest end of the path that only one of them has."""
    ends: dict[str, str | None] = {}
    by_form = {_form(file): file for file in numbers}
    for form, known in by_form.items():
        for end in _ends(form)[1:]:
            ends[end] = None if end in ends else known

    def find(name: str) -> str | None:
        return next((file for end in _ends(_form(name)) if (file := by_form.get(end) or ends.get(end))), None)

    labels, unknown, of_test = dict[str, str](), list[str](), set[str]()
    for name, label in named:
        if (file := find(name)) is None:
            unknown.append(name)
            continue
        if labels.setdefault(file, label) != label:
            raise Refused(f"{name} is there twice, as '{labels[file]}' and as '{label}'")
        if name in tests:
            of_test.add(file)
    return Found(list(labels.items()), of_test, unknown)


def _form(name: str) -> str:
    """One form for a path, however it is written."""
    return unicodedata.normalize("NFC", posixpath.normpath(name.replace("\\", "/"))).lstrip("/")


def _ends(path: str) -> list[str]:
    """
    >>> _ends("a/b/c")
    ['a/b/c', 'b/c', 'c']
    """
    parts = path.split("/")
    return ["/".join(parts[i:]) for i in range(len(parts))]


# --------------------------------------------------------------------------------------------------------- first start


def read_folders(tree: Tree) -> tuple[dict[str, list[str]], list[str]]:
    """Files by class as folders say it, and those of the test set."""
    entries: Sequence[Entry] = label_by_folder(tree)[0]
    by_class = _by_class((entry.file, entry.label) for entry in entries if entry.label is not None)
    return by_class, [entry.file for entry in entries if entry.part == "test" and entry.label is not None]


def take_over(book: Book, who: str, tree: Tree) -> str:
    """Import the labels a folder has at the first start: those of its labels.csv, else those of its folders. Returns
    what was done, in words. If every picture is in some folder, none would be left to label: then the folders may as
    well be years or cameras, and nothing is imported until somebody asks for it.
    """
    if (path := book.root / CSV_NAME).is_file():
        found = _read_own_csv(path, book.listing.numbers)
        book.take_over(who, _by_class(found.labels), "csv", sorted(found.tests))
        missing = f"; {count(len(found.unknown), 'file')} that it names not found" if found.unknown else ""
        return f"{count(len(found.labels), 'label')} imported from {CSV_NAME}{missing}"
    by_class, tests = read_folders(tree)
    if not by_class:
        return ""
    names, given = listed(by_class), sum(map(len, by_class.values()))
    if given == len(tree.entries):
        return (
            f"all pictures lie in folders ({names}): if these are classes, import them as folders per class, and "
            "all pictures have labels"
        )
    book.take_over(who, by_class, "folder", tests)
    tested = f"; {count(len(tests), 'picture')} of them in the test set" if tests else ""
    return f"{count(given, 'label')} imported from the folders {names}{tested}"


def _read_own_csv(path: Path, numbers: Mapping[str, int]) -> Found:
    try:
        return read_csv(read_plain(path, MOST_CSV, follow=True).decode("utf-8-sig"), numbers)
    except UnicodeDecodeError:
        raise Refused(f"{path} is not text in UTF-8") from None
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror or error}") from None


def _by_class(labels: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Files by their class."""
    found: dict[str, list[str]] = {}
    for file, label in labels:
        found.setdefault(label, []).append(file)
    return found

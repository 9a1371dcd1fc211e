"""Labels from elsewhere and for elsewhere: folders per class, CSV files for `--labels-file`, Label Studio's JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mixmatch.data.user.folder import Entry, Tree, label_by_folder
from mixmatch.label.book import Book
from mixmatch.text import count, listed, to_cell

CSV_NAME = "labels.csv"


class Labeled(NamedTuple):
    """A picture with a class."""

    file: str
    label: str
    is_test: bool


def labeled(book: Book) -> Iterator[Labeled]:
    """All pictures that have a class and are there, in order of name. Names that are no text cannot be written."""
    state, listing = book.state, book.listing
    for file in sorted(state.marks):
        n = listing.numbers.get(file)
        if state.marks[file].value < 0 or n is None or n in listing.gone or not is_text(file):
            continue
        label = state.classes[state.marks[file].value].name
        yield Labeled(file, label, file in state.exam or file in state.tests)


def is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def to_csv(book: Book) -> bytes:
    """Labels as `--labels-file` reads them; the exam is the test set."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["file", "label", "part"])
    for picture in labeled(book):
        writer.writerow([to_cell(picture.file), to_cell(picture.label), "test" if picture.is_test else "train"])
    return out.getvalue().encode()


def take_over(book: Book, who: str, tree: Tree) -> str:
    """Take over the classes that folders say, at the first start; returns what was done, in words.

    Where every picture lies in some folder, none would be left to label: then the folders may as well be years or
    cameras, and nothing is taken before somebody asks for it.
    """
    entries, _ = label_by_folder(tree)
    by_class, tests = _by_class(entries)
    names = listed(by_class)
    if not by_class:
        return ""
    given = sum(map(len, by_class.values()))
    if given == len(tree.entries):
        return (
            f"all pictures lie in folders ({names}): if these are classes, import them as folders per class, and "
            "all pictures have labels"
        )
    book.take_over(who, by_class, "folder", tests)
    return f"{count(given, 'label')} taken over from the folders {names}" + (
        f"; {count(len(tests), 'picture')} of them in the test set" if tests else ""
    )


def _by_class(entries: Sequence[Entry]) -> tuple[dict[str, list[str]], list[str]]:
    """Files by class, and those of the test set."""
    by_class: dict[str, list[str]] = {}
    for entry in entries:
        if entry.label is not None:
            by_class.setdefault(entry.label, []).append(entry.file)
    return by_class, [entry.file for entry in entries if entry.part == "test" and entry.label is not None]

"""A folder of image files as user data: which class each has, by its folder or a CSV file.

Whatever cannot be read is named and left out: among thousands of files from a camera or the web, some are always
damaged.
"""

from __future__ import annotations

import os
import posixpath
import shlex
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mixmatch.data.cache import cache_folder
from mixmatch.data.user.columns import Table
from mixmatch.data.user.csv_file import read_csv
from mixmatch.data.user.images import SUFFIXES, Callback, DecodedFolder, Header, Unreadable, decode_all
from mixmatch.data.user.reading import Reading
from mixmatch.data.user.rows import Finding, UserData, match_labels, number_labels
from mixmatch.data.user.tree import OTHER_FORMATS, Entry, Tree, left_out, scan
from mixmatch.errors import MixMatchError
from mixmatch.text import count, listed

UNLABELED = "unlabeled"
TEST = "test"
IGNORE = "ignore"
"""What a CSV file says of images that are to be left out altogether."""
ROLES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
    **dict.fromkeys(("test", "testing"), TEST),
    **dict.fromkeys(("unlabeled", "unlabelled"), UNLABELED),
}
"""What folders of parts are called, in any case."""


class Listed(NamedTuple):
    """The images of a folder and their labels, in the order of their rows."""

    root: Path
    name: str
    entries: Sequence[Entry]
    findings: Sequence[Finding]
    how: str
    """How to label some images and not others; ends error messages."""
    sorted: bool
    """Whether labels are the names of folders."""


def read_folder(
    path: str | os.PathLike[str],
    *,
    labels_file: str | os.PathLike[str] | None = None,
    image_size: int | None = None,
    channels: int | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: Callback | None = None,
) -> UserData:
    """A folder of images as arrays.

    Without `labels_file`, `DIR/<class>/**` are the labeled images, `DIR/unlabeled/**` the others and
    `DIR/test/<class>/**`, which need not be there, the ones to test on. Where `DIR/train/` holds the classes, `test/`
    (else `val/`) beside it is the test set. With `labels_file`, any tree will do: a CSV with the columns `file`
    (relative to the folder) and `label` (empty: unlabeled) and, if there is a test set, `part` (train, test, or ignore
    for images to leave out). Images of the tree that it does not name are unlabeled.

    Every image is read whole and resized, with antialiasing, to a square of `image_size`: what is not square is
    squeezed, not cropped. Files that cannot be read are left out and named in `findings`.

    Args:
        image_size: 32 to 224; by default the one of `IMAGE_SIZES` that is nearest to the median shorter side.
        channels: 1 or 3; by default 1 if all images are gray.
        cache_dir: where the decoded images are kept; by default in the folder itself, or in the user's cache if the
            folder cannot be written to. While the files stay the same, the second call decodes nothing.
        progress: called with the number of decoded images and their total, from the calling thread.
    """
    Reading(image_size=image_size, channels=channels)  # refuses what is out of range
    listed = list_folder(path, labels_file)
    cache = Path(cache_dir).expanduser() if cache_dir is not None else cache_folder(listed.root)
    identities = tuple(entry.identity for entry in listed.entries)
    return assemble(listed, decode_all(listed.root, identities, image_size, channels, cache, progress))


def list_folder(path: str | os.PathLike[str], labels_file: str | os.PathLike[str] | None = None) -> Listed:
    """The images of a folder and their labels, see `read_folder`, before any of them is opened."""
    root = Path(path).expanduser()
    tree = scan(root)
    entries, findings = _label(tree, root, labels_file)
    how = f"put images into {root}/<class>/ and {root}/{UNLABELED}/"
    if labels_file is not None:
        how = f"name images and their labels in {labels_file}"
    label = f", or label them in the browser: mixmatch label {shlex.quote(str(path))}" if labels_file is None else ""
    if not entries:
        if loose := len(tree.entries):
            raise MixMatchError(f"{root} has {count(loose, 'image')}, but none in a folder of its class: {how}{label}")
        if any(found.kind == "format" for found in findings):
            raise _explained(f"no image in {root} can be read", findings)
        raise _explained(f"there are no images in {root} (looked for {', '.join(SUFFIXES)}): {how}", findings)
    if not any(entry.label is not None and entry.part == "train" for entry in entries):
        others = count(len(entries), "other")
        raise _explained(f"{root} has no labeled images to train on, only {others}: {how}{label}", findings)
    return Listed(root, root.resolve().name, _in_row_order(entries), findings, how, labels_file is None)


def read_labeled_folder(
    path: Path,
    classes: Sequence[str],
    input_shape: Sequence[int],
    *,
    labels_file: str | os.PathLike[str] | None = None,
    progress: Callback | None = None,
) -> UserData:
    """The labeled images of a folder as a model of these classes takes them, images of (channels, height, width): those
    under `test/` if there are any, else all. Folders or `labels_file` name the classes as for `read_folder`."""
    channels, height, width = input_shape
    if height != width or channels not in (1, 3):
        raise MixMatchError(f"the model takes images of shape {tuple(input_shape)}, not image files: give an array")
    found, findings = _label(scan(path), path, labels_file)
    if not found:
        raise MixMatchError(f"there are no labeled images in {path}: put them into {path}/<class>/")
    labels, part, files = [e.label for e in found], [e.part for e in found], [e.file for e in found]
    numbered = match_labels(labels, part, files, path.resolve().name, classes, noun="image")
    entries = [found[row] for row in numbered.rows]
    decoded = decode_all(path, tuple(e.identity for e in entries), height, channels, cache_folder(path), progress)
    fine = [row for row, header in enumerate(decoded.headers) if isinstance(header, Header)]
    return UserData(
        name=numbered.name,
        classes=numbered.classes,
        inputs=decoded.images,
        labels=numbered.labels[fine],
        files=tuple(entries[row].file for row in fine),
        part=numbered.part[: len(fine)],
        findings=(*findings, *_unreadable_files(entries, decoded.headers), *numbered.findings),
    )


def assemble(folder: Listed, decoded: DecodedFolder) -> UserData:
    """The images of a folder, once they are decoded, as user data."""
    entries = folder.entries
    readable = [(e, h) for e, h in zip(entries, decoded.headers, strict=True) if isinstance(h, Header)]
    findings = [*folder.findings, *_unreadable_files(entries, decoded.headers)]
    try:
        numbered = number_labels(
            [entry.label for entry, _ in readable],
            [entry.part for entry, _ in readable],
            [entry.file for entry, _ in readable],
            folder.name,
            noun="image",
            how=folder.how,
        )
    except MixMatchError as error:
        raise _explained(str(error), findings) from None
    rows = numbered.rows
    # A copy only where all images of a class are damaged, so that its test images are not the last.
    prefix = len(rows) == rows[-1] + 1
    images = decoded.images[: len(rows)] if prefix else decoded.images[rows]
    if lost := {e.label for e in entries if e.label is not None and e.part == "train"} - set(numbered.classes):
        message = f"no image of {count(len(lost), 'class', 'classes')} can be read: left out ({listed(sorted(lost))})"
        findings.append(Finding("empty-class", message, (), "replace the images"))
    kept = [readable[row] for row in rows]
    tested = [entry.file for (entry, _), part in zip(kept, numbered.part, strict=True) if part == TEST]
    return numbered.with_inputs(
        images,
        findings,
        sizes=np.array([(header.width, header.height) for _, header in kept], np.int32),
        modes=tuple(header.mode for _, header in kept),
        test_folder=None if not folder.sorted else tested[0].split("/")[0] if tested else TEST,
    )


def _explained(message: str, findings: Iterable[Finding]) -> MixMatchError:
    """An error that also names the files that cannot be read: they may be the reason."""
    kinds = ("unreadable-folder", "unreadable", "too-large", "format")
    reasons = (found for found in findings if found.kind in kinds)
    texts = (f"{found.message}: {found.advice}" if found.kind == "format" else found.message for found in reasons)
    return MixMatchError("; ".join([message, *texts]))


def _unreadable_files(entries: Sequence[Entry], headers: Sequence[Header | Unreadable]) -> Iterator[Finding]:
    files = [(e.file, header) for e, header in zip(entries, headers, strict=True) if isinstance(header, Unreadable)]
    for kind, too_large, advice in (
        ("unreadable", False, "replace or remove them"),
        ("too-large", True, "make them smaller, or remove them if you do not know where they come from"),
    ):
        if found := [(file, why.reason) for file, why in files if why.too_large == too_large]:
            message = f"{count(len(found), 'image')} cannot be read: left out"
            named = listed(f"{file}: {reason}" for file, reason in found)
            yield Finding(kind, f"{message} ({named})", tuple(file for file, _ in found), advice)


# ----------------------------------------------------------------------------------------------- which class


def _label(tree: Tree, root: Path, labels_file: str | os.PathLike[str] | None) -> tuple[list[Entry], list[Finding]]:
    """The images with their labels, by folder or by a CSV file, and what was odd or is left out."""
    if labels_file is None:
        entries, findings = label_by_folder(tree)
    else:
        entries, findings = _label_by_csv(tree.entries, root, read_csv(Path(labels_file).expanduser()))
    return entries, [*left_out(tree), *findings]


def label_by_folder(tree: Tree) -> tuple[list[Entry], list[Finding]]:
    """Labels by the names of folders: classes side by side, or under `train/`."""
    roles = _roles(tree)
    labeled, stray, findings = _label_by_part(tree, roles) if roles else _label_side_by_side(tree)
    depth = 2 if roles else 1  # of the folders of classes
    unread = (file for file in tree.others if file.lower().endswith(OTHER_FORMATS))
    used = {"/".join(file.split("/")[:depth]) for file in (*(entry.file for entry in tree.entries), *unread)}
    empty = [folder for folder in tree.folders if folder and folder.count("/") == depth - 1 and folder not in used]
    if empty:
        message = f"{count(len(empty), 'folder')} without an image: no class ({listed(empty)})"
        findings.append(Finding("empty-folder", message, tuple(empty), "remove it, or put images into it"))
    if stray:
        message = f"{count(len(stray), 'image')} in no class folder: left out ({listed(stray)})"
        advice = f"move them into the folder of their class, or into {UNLABELED}/"
        findings.append(Finding("stray", message, tuple(stray), advice))
    for label in sorted({e.label for e in labeled if e.label is not None and e.part == "train"}):
        if label.casefold() in ROLES:
            message = f"the folder '{label}' is taken for a class"
            beside = f"the class folders lie side by side with '{UNLABELED}' and '{TEST}', spelled like that"
            findings.append(Finding("class-name", message, (), f"if it is not a class: {beside}"))
    return labeled, findings


def _label_side_by_side(tree: Tree) -> tuple[list[Entry], list[str], list[Finding]]:
    """`<class>/**`, `unlabeled/**`, `test/<class>/**`, and the files that are in none of them."""
    labeled, stray = [], []
    for entry in tree.entries:
        top, _, rest = entry.file.partition("/")
        inner, _, deeper = rest.partition("/")
        if top == TEST and deeper:
            labeled.append(replace(entry, label=_normal(inner), part="test"))
        elif top == UNLABELED and rest:
            labeled.append(entry)
        elif top != TEST and rest:
            labeled.append(replace(entry, label=_normal(top)))
        else:
            stray.append(entry.file)
    return labeled, stray, []


def _roles(tree: Tree) -> dict[str, str]:
    """What each folder is for, if all have the names of parts and `train/` holds the classes; else nothing."""
    inside = [entry.file.split("/") for entry in tree.entries if "/" in entry.file]
    roles = {top: ROLES.get(top.casefold(), "") for top, *_ in inside}
    classes = {path[1] for path in inside if len(path) > 2 and roles[path[0]] == "train"}
    has_classes = any(ROLES.get(name.casefold()) != UNLABELED for name in classes)
    return roles if has_classes and all(roles.values()) else {}


def _label_by_part(tree: Tree, roles: Mapping[str, str]) -> tuple[list[Entry], list[str], list[Finding]]:
    """`train/<class>/**`, `test/<class>/**`, `unlabeled/**` or `train/unlabeled/**`. `val/` is the test set if there is
    no other, else it is left out: it was held out for a reason."""
    labeled, stray, unused = [], [], []
    tested = {roles[entry.file.split("/")[0]] for entry in tree.entries if entry.file.count("/") > 1}
    test = TEST if TEST in tested else "val"
    for entry in tree.entries:
        top, _, rest = entry.file.partition("/")
        inner, _, deeper = rest.partition("/")
        role = roles.get(top) if rest else None
        if role == UNLABELED or (role == "train" and deeper and ROLES.get(inner.casefold()) == UNLABELED):
            labeled.append(entry)
        elif role in ("train", test) and deeper:
            labeled.append(replace(entry, label=_normal(inner), part="train" if role == "train" else "test"))
        elif role == "val" != test:
            unused.append(entry.file)
        else:
            stray.append(entry.file)
    folders = {role: f"{top}/" for top, role in roles.items()}
    message = f"read as a folder of parts: classes under {folders['train']}"
    if test in tested:
        message += f", the test set under {folders[test]}"
    findings = [Finding("layout", message, (), "", "info")]
    if unused:
        message = f"{count(len(unused), 'image')} under {folders['val']} not used: {folders[TEST]} is the test set"
        findings.append(Finding("unused", message, tuple(unused), "nothing to do, or move them into training", "info"))
    return labeled, stray, findings


def _label_by_csv(entries: Sequence[Entry], root: Path, table: Table) -> tuple[list[Entry], list[Finding]]:
    """The labels of a CSV file; images that it does not name have none."""
    chosen, repeated = _chosen_by_csv(entries, root, table)
    findings = []
    if ignored := [file for file, (choice, _) in chosen.items() if choice is None]:
        message = f"{count(len(ignored), 'image')} that {table.path} says to ignore: left out"
        findings.append(Finding("ignored", message, tuple(ignored), "nothing to do", "info"))
    if repeated:
        verb = "repeats" if len(repeated) == 1 else "repeat"
        message = f"{count(len(repeated), 'line')} of {table.path} {verb} an earlier one ({listed(repeated)})"
        findings.append(Finding("repeated-line", message, tuple(repeated), "nothing is lost: remove them", "info"))
    unnamed = [entry for entry in entries if entry.file not in chosen]
    if unnamed:
        message = f"{count(len(unnamed), 'image')} that {table.path} does not name: used as unlabeled"
        advice = "move them out of the folder if they do not belong to it"
        findings.append(Finding("unnamed", message, tuple(e.file for e in unnamed), advice, "info"))
    return [*(choice for choice, _ in chosen.values() if choice is not None), *unnamed], findings


def _chosen_by_csv(
    entries: Sequence[Entry], root: Path, table: Table
) -> tuple[dict[str, tuple[Entry | None, int]], list[str]]:
    """What a CSV file says of each image that it names, None if it is to be ignored, and in which line; and the images
    of lines that say again what an earlier one said."""
    files, labels = table.text("file"), table.text("label")
    parts: Sequence[str] = table.text("part") if "part" in table.header else [""] * len(files)
    known = {_normal(entry.file): entry for entry in entries}
    chosen: dict[str, tuple[Entry | None, int]] = {}
    missing: list[str] = []
    repeated: list[str] = []
    for line, file, label, part in zip(table.lines, files, labels, parts, strict=True):
        if part not in ("", "train", "test", IGNORE):
            raise MixMatchError(f"{table.path} line {line}: part is '{part}', but must be train, test, ignore or empty")
        entry = _named(file, root, known)
        if entry is None:
            missing.append(f"'{file}' (line {line})")
            continue
        said = replace(entry, label=_normal(label) or None, part="test" if part == "test" else "train")
        choice = None if part == IGNORE else said
        before, at = chosen.setdefault(entry.file, (choice, line))
        if before != choice:
            raise MixMatchError(
                f"{table.path} names {entry.file} twice, {_description(before)} in line {at} and "
                f"{_description(choice)} in line {line}: remove one of the lines"
            )
        if choice is not None and at != line:
            repeated.append(entry.file)
    if missing:
        raise MixMatchError(
            f"{table.path} names {count(len(missing), 'file')} that {'does' if len(missing) == 1 else 'do'} not exist "
            f"in {root}: {listed(missing)}"
        )
    return chosen, repeated


def _description(choice: Entry | None) -> str:
    if choice is None:
        return "to be ignored"
    return f"as '{choice.label or ''}'" + (" of the test set" if choice.part == TEST else "")


def _named(file: str, root: Path, known: dict[str, Entry]) -> Entry | None:
    """The entry a line of a CSV file means: paths may be absolute, start with ./ or have been written on Windows."""
    for spelled in (file, file.replace("\\", "/")):
        path = posixpath.normpath(spelled)
        if posixpath.isabs(path):
            path = os.path.relpath(path, root.absolute())
        if (entry := known.get(_normal(path))) is not None:
            return entry
        if file and (root / path).is_file():  # a suffix that the scan does not look for
            status = (root / path).stat()
            return Entry(path, status.st_size, status.st_mtime_ns)
    return None


def _normal(text: str) -> str:
    """One form for a name, whether a Mac (decomposed) or anyone else (composed) wrote its accents."""
    return unicodedata.normalize("NFC", text)


def _in_row_order(entries: Sequence[Entry]) -> list[Entry]:
    """Labeled, unlabeled, test: each a slice of the decoded array. Test images of an unknown class, which will be left
    out, come last, so that what is left is a slice too."""
    classes = {entry.label for entry in entries if entry.part == "train"}

    def place(entry: Entry) -> tuple[bool, bool, bool, str, str]:
        is_test, stranger = entry.part == "test", entry.label not in classes
        return is_test, is_test and stranger, entry.label is None, entry.label or "", entry.file

    return sorted(entries, key=place)

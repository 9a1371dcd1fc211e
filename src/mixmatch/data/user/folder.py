"""A folder of a person's image files, decoded once on all cores into one memory-mapped array.

Which class an image has is told by its folder or by a CSV file. Whatever cannot be read is named and left out: among
thousands of files from a camera or the web, some are always damaged.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import threading
import unicodedata
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np
import numpy.typing as npt

from mixmatch.data.cache import cache_folder
from mixmatch.data.user.images import SUFFIXES, Header, UnreadableImage, decode, probe, quiet_pillow
from mixmatch.data.user.rows import Finding, Part, UserImages, number_labels
from mixmatch.data.user.table import CsvFile, read_csv
from mixmatch.errors import MixMatchError
from mixmatch.storage import temporary
from mixmatch.text import count, listed, tally

FORMAT = 1
"""Part of every key: raise it when decoding changes, and old caches are not used."""

IMAGE_SIZES = (32, 48, 64, 96, 128, 160, 192, 224)
UNLABELED = "unlabeled"
TEST = "test"
PICTURES = (".heic", ".heif", ".avif", ".jp2", ".psd", ".svg", ".dng", ".cr2", ".nef", ".arw", ".ppm", ".tga", ".jfif")
"""Images that are not read. Other files are no loss; these may be."""

CHUNK = 8
"""Images a thread decodes between two looks at the queue."""

Progress = Callable[[int, int], None]
"""Told how many of how many images are done."""

Identity = tuple[str, int, int]
"""Path, size and time of change: a file for which they are the same is taken to be the same."""

In = TypeVar("In")
Out = TypeVar("Out")


@dataclass(frozen=True)
class Entry:
    """An image file and what is known of it before it is opened."""

    file: str
    """Relative to the folder, with forward slashes."""
    size: int
    changed: int
    """Nanoseconds since 1970."""
    label: str | None = None
    part: Part = "train"

    @property
    def identity(self) -> Identity:
        return self.file, self.size, self.changed


@dataclass(frozen=True)
class Tree:
    """What lies in a folder."""

    entries: tuple[Entry, ...]
    folders: tuple[str, ...]
    others: tuple[str, ...]
    """Files that are not images."""
    unreadable: tuple[tuple[str, str], ...]
    """Folders and links that lead nowhere, and why."""
    not_followed: tuple[str, ...]
    """Links to folders that are read anyway."""


@dataclass(frozen=True)
class Decoded:
    """The images of the readable files, and a header or the reason why there is none for every file."""

    images: npt.NDArray[np.uint8]
    identities: tuple[Identity, ...]
    headers: tuple[Header | str, ...]

    def rows(self) -> dict[Identity, int]:
        """Which row of `images` a readable file has."""
        readable = (i for i, header in zip(self.identities, self.headers, strict=True) if isinstance(header, Header))
        return {identity: row for row, identity in enumerate(readable)}


def read_folder(
    path: str | os.PathLike[str],
    *,
    labels_file: str | os.PathLike[str] | None = None,
    image_size: int | None = None,
    channels: int | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> UserImages:
    """A folder of images as arrays.

    Without `labels_file`, `DIR/<class>/**` are the labeled images, `DIR/unlabeled/**` the others and
    `DIR/test/<class>/**`, which need not be there, the ones to test on. With it, any tree will do: a CSV with the
    columns `file` (relative to the folder) and `label` (empty: unlabeled) and, if there is a test set, `part` (train
    or test). Images of the tree that it does not name are unlabeled.

    Every image is read whole and resized, with antialiasing, to a square of `image_size`: what is not square is
    squeezed, not cropped. Files that cannot be read are left out and named in `findings`.

    Args:
        image_size: 32 to 224; by default the one of `IMAGE_SIZES` that is nearest to the median shorter side.
        channels: 1 or 3; by default 1 if all images are gray.
        cache_dir: where the decoded images are kept; by default in the folder itself, or in the user's cache if the
            folder cannot be written to. While the files stay the same, the second call decodes nothing.
        progress: called with the number of decoded images and their total, from the calling thread.
    """
    _check_options(image_size, channels)
    root = Path(path).expanduser()
    tree = scan(root)
    if labels_file is None:
        entries, findings = label_by_folder(tree)
        how = f"put images into {root}/<class>/ and {root}/{UNLABELED}/"
    else:
        entries, findings = label_by_csv(tree.entries, root, read_csv(Path(labels_file).expanduser()))
        how = f"name images and their labels in {labels_file}"
    findings = [*_told_by(tree), *findings]
    if not entries:
        loose = len(tree.entries)
        if loose:
            raise MixMatchError(f"{root} has {count(loose, 'image')}, but none in a folder of its class: {how}")
        raise _explained(f"there are no images in {root} (looked for {', '.join(SUFFIXES)}): {how}", findings)
    if not any(entry.label is not None and entry.part == "train" for entry in entries):
        others = count(len(entries), "other")
        raise _explained(f"{root} has no labeled images to train on, only {others}: {how}", findings)
    entries = in_row_order(entries)
    cache = Path(cache_dir).expanduser() if cache_dir is not None else cache_folder(root)
    decoded = decode_all(root, entries, image_size, channels, cache, progress)
    return _assemble(root, entries, decoded, findings, how)


# --------------------------------------------------------------------------------------- which files there are


def scan(root: Path) -> Tree:
    """The image files below `root`, following links, each real folder once; hidden files are none of our business."""
    if not root.exists():
        raise MixMatchError(f"there is no folder {root}")
    if not root.is_dir():
        raise MixMatchError(f"{root} is not a folder")
    entries, read, others, unreadable, not_followed = [], [], [], [], []
    # Links wait until all real folders are read: an image is found in its own place, not where a link leads to it.
    folders, links = deque([""]), deque[str]()
    visited: set[tuple[int, int]] = set()
    while folders or links:
        folder = (folders or links).popleft()
        try:
            status = (root / folder).stat()
            if (status.st_dev, status.st_ino) in visited:
                not_followed.append(folder)
                continue
            visited.add((status.st_dev, status.st_ino))
            with os.scandir(root / folder) as found:
                inside = sorted(found, key=lambda item: item.name)
        except OSError as error:
            if not folder:
                raise MixMatchError(f"cannot read {root}: {error.strerror or error}") from None
            unreadable.append((folder, error.strerror or str(error)))
            continue
        read.append(folder)
        for item in inside:
            file = f"{folder}/{item.name}" if folder else item.name
            try:
                if _ignored(item.name):
                    continue
                if item.is_dir():
                    (links if item.is_symlink() else folders).append(file)
                elif not item.name.lower().endswith(SUFFIXES):
                    others.append(file)
                else:
                    status = item.stat()
                    entries.append(Entry(file, status.st_size, status.st_mtime_ns))
            except OSError as error:
                unreadable.append((file, error.strerror or str(error)))
    return Tree(tuple(entries), tuple(read), tuple(others), tuple(unreadable), tuple(not_followed))


def _ignored(name: str) -> bool:
    return name.startswith(".") or name.lower() in ("thumbs.db", "desktop.ini", "__macosx")


def _told_by(tree: Tree) -> Iterator[Finding]:
    if tree.unreadable:
        yield Finding(
            "unreadable-folder",
            f"cannot read {listed(f'{file} ({reason})' for file, reason in tree.unreadable)}: left out",
            tuple(file for file, _ in tree.unreadable),
            "give yourself permission to read it (chmod), or mend the link",
        )
    if tree.not_followed:
        yield Finding(
            "link",
            f"{count(len(tree.not_followed), 'link')} to a folder that is read anyway: not followed "
            f"({listed(tree.not_followed)})",
            tree.not_followed,
            "nothing is lost: every folder is read once",
            "info",
        )
    pictures = [file for file in tree.others if file.lower().endswith(PICTURES)]
    if pictures:
        suffixes = Counter(Path(file).suffix.lower() for file in pictures)
        yield Finding(
            "format",
            f"{count(len(pictures), 'image')} of a format that is not read: left out ({tally(suffixes)})",
            tuple(pictures),
            "convert them to JPEG or PNG",
        )
    if len(tree.others) > len(pictures):
        rest = [file for file in tree.others if not file.lower().endswith(PICTURES)]
        message = f"{count(len(rest), 'file')} that {'is' if len(rest) == 1 else 'are'} no image: left out"
        yield Finding("not-images", f"{message} ({listed(rest)})", tuple(rest), "nothing to do", "info")


# ---------------------------------------------------------------------------------------- which class they have


def label_by_folder(tree: Tree) -> tuple[list[Entry], list[Finding]]:
    """`<class>/**`, `unlabeled/**`, `test/<class>/**`."""
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
    findings = []
    used = {entry.file.partition("/")[0] for entry in tree.entries}
    if empty := [folder for folder in tree.folders if folder and "/" not in folder and folder not in used]:
        message = f"{count(len(empty), 'folder')} without an image: no class ({listed(empty)})"
        findings.append(Finding("empty-folder", message, tuple(empty), "remove it, or put images into it"))
    if stray:
        findings.append(
            Finding(
                "stray",
                f"{count(len(stray), 'image')} in no class folder: left out ({listed(stray)})",
                tuple(stray),
                f"move them into the folder of their class, or into {UNLABELED}/",
            )
        )
    for label in sorted({e.label for e in labeled if e.label is not None and e.part == "train"}):
        if label.casefold() in (TEST, UNLABELED, "unlabelled", "train", "training", "val", "valid", "validation"):
            findings.append(
                Finding(
                    "class-name",
                    f"the folder '{label}' is taken for a class",
                    advice=f"if it is none: the class folders lie side by side with '{UNLABELED}' and '{TEST}', "
                    "spelled like that",
                )
            )
    return labeled, findings


def label_by_csv(entries: Sequence[Entry], root: Path, table: CsvFile) -> tuple[list[Entry], list[Finding]]:
    """The labels of a CSV file; images that it does not name have none."""
    files, labels = table.column("file"), table.column("label")
    parts = table.column("part") if "part" in table.header else [""] * len(files)
    known = {_normal(entry.file): entry for entry in entries}
    chosen: dict[str, tuple[Entry, int]] = {}
    missing: list[str] = []
    repeated: list[str] = []
    for line, file, label, part in zip(table.lines, files, labels, parts, strict=True):
        if part not in ("", "train", "test"):
            raise MixMatchError(f"{table.path} line {line}: part is '{part}', but must be train, test or empty")
        entry = _named(file, root, known)
        if entry is None:
            missing.append(f"'{file}' (line {line})")
            continue
        entry = replace(entry, label=_normal(label) or None, part="test" if part == "test" else "train")
        before, at = chosen.setdefault(entry.file, (entry, line))
        if before != entry:
            raise MixMatchError(
                f"{table.path} names {entry.file} twice, as {_told(before)} in line {at} and as {_told(entry)} in line "
                f"{line}: remove one of the lines"
            )
        if at != line:
            repeated.append(entry.file)
    if missing:
        raise MixMatchError(
            f"{table.path} names {count(len(missing), 'file')} that {'does' if len(missing) == 1 else 'do'} not exist "
            f"in {root}: {listed(missing)}"
        )
    findings = []
    if repeated:
        verb = "repeats" if len(repeated) == 1 else "repeat"
        message = f"{count(len(repeated), 'line')} of {table.path} {verb} an earlier one ({listed(repeated)})"
        findings.append(Finding("repeated-line", message, tuple(repeated), "nothing is lost: remove them", "info"))
    unnamed = [entry for entry in entries if entry.file not in chosen]
    if unnamed:
        message = f"{count(len(unnamed), 'image')} that {table.path} does not name: used as unlabeled"
        advice = "move them out of the folder if they do not belong to it"
        findings.append(Finding("unnamed", message, tuple(e.file for e in unnamed), advice, "info"))
    return [*(entry for entry, _ in chosen.values()), *unnamed], findings


def _told(entry: Entry) -> str:
    return f"'{entry.label or ''}'" + (" of the test set" if entry.part == TEST else "")


def _named(file: str, root: Path, known: dict[str, Entry]) -> Entry | None:
    """The entry a line of a CSV file means: paths may be absolute, start with ./ or have been written on Windows."""
    for spelled in (file, file.replace("\\", "/")):
        path = posixpath.normpath(spelled)
        if posixpath.isabs(path):
            path = os.path.relpath(path, root.absolute())
        if (entry := known.get(_normal(path))) is not None:
            return entry
        if file and (root / path).is_file():  # a suffix we would not have looked for
            status = (root / path).stat()
            return Entry(path, status.st_size, status.st_mtime_ns)
    return None


def _normal(text: str) -> str:
    """One form for a name, whether a Mac (decomposed) or anyone else (composed) wrote its accents."""
    return unicodedata.normalize("NFC", text)


def in_row_order(entries: Sequence[Entry]) -> list[Entry]:
    """Labeled, unlabeled, test: each a slice of the decoded array. Test images of an unknown class, which will be left
    out, come last, so that what is left is a slice too."""
    classes = {entry.label for entry in entries if entry.part == "train"}

    def place(entry: Entry) -> tuple[bool, bool, bool, str, str]:
        is_test, stranger = entry.part == "test", entry.label not in classes
        return is_test, is_test and stranger, entry.label is None, entry.label or "", entry.file

    return sorted(entries, key=place)


# -------------------------------------------------------------------------------------------------- decoding


def decode_all(
    root: Path,
    entries: Sequence[Entry],
    image_size: int | None,
    channels: int | None,
    cache: Path,
    progress: Progress | None = None,
) -> Decoded:
    """The images of `entries`, in order, memory-mapped from the cache, which is filled first if it has to be."""
    family = f"own-{_digest(str(root.resolve()))[:8]}-{image_size or 'auto'}-{channels or 'auto'}"
    identities = tuple(entry.identity for entry in entries)
    path = cache / f"{family}-{_digest(json.dumps([FORMAT, image_size, channels, identities]))}.npy"
    if (decoded := _cached(path)) is not None and decoded.identities == identities:
        return decoded
    earlier = [file for file in cache.glob(f"{family}-{'[0-9a-f]' * 16}.npy") if file != path]
    try:
        with quiet_pillow(), temporary(path) as part:
            known = next(filter(None, map(_cached, earlier)), None)
            headers = _decode_to(part, root, identities, image_size, channels, known, progress)
            _write_headers(path.with_suffix(".json"), identities, headers)
            part.replace(path)  # last: the array says that everything is there
    except OSError as error:
        raise MixMatchError(
            f"cannot keep the {count(len(entries), 'decoded image')} in {cache}: {error.strerror or error}; "
            "free some space there or choose another place for them"
        ) from error
    for stale in earlier:
        stale.unlink(missing_ok=True)
        stale.with_suffix(".json").unlink(missing_ok=True)
    if (decoded := _cached(path)) is None:
        raise MixMatchError(f"the decoded images in {cache} are gone again; is another program removing them?")
    return decoded


def default_size(headers: Sequence[Header]) -> int:
    """The image size nearest to the median shorter side, the smaller of two as near.

    >>> default_size([Header(640, 100, "RGB", False)])
    96
    """
    if not headers:
        return IMAGE_SIZES[0]
    median = float(np.median([min(header.width, header.height) for header in headers]))
    return min(IMAGE_SIZES, key=lambda size: abs(size - median))


def in_order(function: Callable[[In], Out], inputs: Sequence[In]) -> Iterator[Out]:
    """`map` on all cores. Only a few results wait to be taken, however many inputs there are.

    Threads, not processes: Pillow decodes and resizes without holding Python's lock, and a process would first have to
    import torch. (Measured: benchmarks/decode.py.)
    """
    workers = available_cores()
    chunks = (inputs[start : start + CHUNK] for start in range(0, len(inputs), CHUNK))
    threads = ThreadPoolExecutor(workers, "decode")

    def submit(chunk: Sequence[In]) -> Future[list[Out]]:
        return threads.submit(lambda: [function(item) for item in chunk])

    try:
        waiting = deque(map(submit, islice(chunks, 2 * workers)))
        while waiting:
            yield from waiting.popleft().result()
            waiting.extend(map(submit, islice(chunks, 1)))
    finally:
        threads.shutdown(wait=True, cancel_futures=True)


def available_cores() -> int:
    """How many cores this process may use: a container or `taskset` may give it fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _decode_to(
    path: Path,
    root: Path,
    identities: Sequence[Identity],
    image_size: int | None,
    channels: int | None,
    known: Decoded | None,
    progress: Progress | None,
) -> list[Header | str]:
    """Decode the files into one .npy file, a row for each readable one, or copy the row of one decoded before.

    So a person who labels a few more images waits for those images only.
    """
    headers = dict(zip(known.identities, known.headers, strict=True)) if known is not None else {}
    if image_size is None or channels is None:
        told = in_order(lambda i: headers.get(i) or _probed(root / i[0]), identities)
        readable = [header for header in told if isinstance(header, Header)]
        image_size = image_size or default_size(readable)
        channels = channels or (1 if readable and all(header.gray for header in readable) else 3)
    shape = (image_size, image_size, channels)
    rows = known.rows() if known is not None and known.images.shape[1:] == shape else {}
    large = threading.Lock()

    def row_of(identity: Identity) -> tuple[npt.NDArray[np.uint8] | None, Header | str]:
        if known is not None and identity in rows:
            return known.images[rows[identity]], headers[identity]
        try:
            return decode(root / identity[0], *shape, large=large)
        except UnreadableImage as error:
            return None, str(error)

    result = _write(path, in_order(row_of, identities), len(identities), shape, progress)
    if all(isinstance(header, str) for header in result):
        raise MixMatchError(f"none of the images in {root} can be read, for example {identities[0][0]}: {result[0]}")
    return result


def _probed(file: Path) -> Header | str:
    try:
        return probe(file)
    except UnreadableImage as error:
        return str(error)


def _write(
    path: Path,
    rows: Iterable[tuple[npt.NDArray[np.uint8] | None, Header | str]],
    total: int,
    shape: tuple[int, int, int],
    progress: Progress | None,
) -> list[Header | str]:
    headers: list[Header | str] = []
    written = 0
    # Plain writes, not a writable memory map: dirty mapped pages count as resident memory, and a full disk
    # would end the process with a bus error instead of an exception.
    with path.open("xb") as out:
        begin = _write_npy_header(out, total, shape)
        for pixels, header in rows:
            if pixels is not None:
                out.write(np.ascontiguousarray(pixels).data)
                written += 1
            headers.append(header)
            if progress is not None:
                progress(len(headers), total)
        out.seek(0)
        if _write_npy_header(out, written, shape) != begin:  # NumPy leaves room for the rows to grow
            raise RuntimeError("the header of a .npy file changed its length")
    return headers


def _write_npy_header(out: BinaryIO, rows: int, shape: tuple[int, int, int]) -> int:
    np.lib.format.write_array_header_1_0(out, {"descr": "|u1", "fortran_order": False, "shape": (rows, *shape)})
    return out.tell()


def _write_headers(path: Path, identities: Sequence[Identity], headers: Sequence[Header | str]) -> None:
    told = [h if isinstance(h, str) else [h.width, h.height, h.mode, h.gray] for h in headers]
    with temporary(path) as part:
        part.write_text(json.dumps({"files": identities, "headers": told}), encoding="utf-8")
        part.replace(path)


def _cached(path: Path) -> Decoded | None:
    """What an earlier call left, if it is whole."""
    try:
        told = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        identities = tuple((file, size, changed) for file, size, changed in told["files"])
        headers = tuple(row if isinstance(row, str) else Header(*row) for row in told["headers"])
        images: npt.NDArray[np.uint8] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, TypeError, KeyError, EOFError):
        return None
    readable = sum(isinstance(header, Header) for header in headers)
    whole = len(identities) == len(headers) and len(images) == readable and images.ndim == 4
    return Decoded(images, identities, headers) if whole and images.dtype == np.uint8 else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# ------------------------------------------------------------------------------------------------- putting it together


def _assemble(
    root: Path, entries: Sequence[Entry], decoded: Decoded, findings: Sequence[Finding], how: str
) -> UserImages:
    unreadable = [(e.file, h) for e, h in zip(entries, decoded.headers, strict=True) if isinstance(h, str)]
    readable = [(e, h) for e, h in zip(entries, decoded.headers, strict=True) if isinstance(h, Header)]
    findings = (*findings, *_unreadable(unreadable))
    try:
        numbered = number_labels(
            [entry.label for entry, _ in readable],
            [entry.part for entry, _ in readable],
            [entry.file for entry, _ in readable],
            root.resolve().name,
            noun="image",
            how=how,
        )
    except MixMatchError as error:
        raise _explained(str(error), findings) from None
    rows = numbered.rows
    # A copy only where all images of a class are damaged, so that its test images are not the last.
    prefix = len(rows) == rows[-1] + 1
    images = decoded.images[: len(rows)] if prefix else decoded.images[rows]
    lost = {e.label for e in entries if e.label is not None and e.part == "train"} - set(numbered.classes)
    kept = [readable[row] for row in rows]
    return UserImages(
        name=root.resolve().name,
        classes=numbered.classes,
        images=images,
        labels=numbered.labels,
        files=tuple(entry.file for entry, _ in kept),
        part=numbered.part,
        findings=(*findings, *_lost(lost), *numbered.findings),
        sizes=np.array([(header.width, header.height) for _, header in kept], np.int32),
        modes=tuple(header.mode for _, header in kept),
    )


def _explained(message: str, findings: Iterable[Finding]) -> MixMatchError:
    """An error that also names what could not be read: it may be the reason."""
    kinds = ("unreadable-folder", "unreadable", "too-large")
    return MixMatchError("; ".join([message, *(found.message for found in findings if found.kind in kinds)]))


def _unreadable(files: Sequence[tuple[str, str]]) -> Iterator[Finding]:
    bombs = [(file, reason) for file, reason in files if "bomb" in reason]
    damaged = [(file, reason) for file, reason in files if "bomb" not in reason]
    for kind, found, advice in (
        ("unreadable", damaged, "replace or remove them"),
        ("too-large", bombs, "make them smaller, or remove them if you do not know where they come from"),
    ):
        if found:
            message = f"{count(len(found), 'image')} cannot be read: left out"
            named = listed(f"{file}: {reason}" for file, reason in found)
            yield Finding(kind, f"{message} ({named})", tuple(file for file, _ in found), advice)


def _lost(classes: set[str]) -> Iterator[Finding]:
    if classes:
        message = (
            f"no image of {count(len(classes), 'class', 'classes')} can be read: left out ({listed(sorted(classes))})"
        )
        yield Finding("empty-class", message, (), "replace the images")


def _check_options(image_size: int | None, channels: int | None) -> None:
    if image_size is not None and not IMAGE_SIZES[0] <= image_size <= IMAGE_SIZES[-1]:
        raise MixMatchError(f"image size {image_size} must lie between {IMAGE_SIZES[0]} and {IMAGE_SIZES[-1]}")
    if channels not in (None, 1, 3):
        raise MixMatchError(f"{channels} channels: images have 1 (gray) or 3 (color)")

"""Published data files: where they are, how they are downloaded, and whether they are what their authors published."""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import os
import shutil
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from mixmatch.data.cache import cache_folder
from mixmatch.errors import MixMatchError
from mixmatch.storage import open_plain, read_json, read_plain, temporary
from mixmatch.text import printable

PIECE = 4 << 20
"""Bytes read at a time: the memory that decoding takes, whatever the size of the file."""

MOST = 2**33
"""Bytes of a published file, at most: the largest one has a third of it."""

MOST_TEXT = 2**20

Warn = Callable[[str], None]


@dataclass(frozen=True)
class Archive:
    """A .tar.gz that holds published files under the paths they have in the data folder."""

    url: str
    md5: str
    name: str


@dataclass(frozen=True)
class Published:
    """One file as its authors publish it. An optional one is downloaded with others, but never a reason to download."""

    path: str
    """Relative to the data folder."""
    md5: str | None
    origin: str | Archive
    """Its url, or the archive that holds it."""
    optional: bool = False


Layout = tuple[Published, ...]
"""The files that make up a data set in one of the forms it is published in."""


@dataclass(frozen=True)
class Verdict:
    """What the data folder has in the place of a published file."""

    file: Published
    md5: str | None
    """None where the file is missing."""

    @property
    def text(self) -> str:
        if self.md5 is None:
            return "missing"
        if self.file.md5 is None:
            return "no published md5"
        return "as published" if self.md5 == self.file.md5 else "differs"


def print_warning(message: str) -> None:
    print(printable(f"warning: {message}"), file=sys.stderr)


def data_folder(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The argument, else the environment's MIXMATCH_DATA, else ~/.cache/mixmatch/data."""
    return Path(data_dir or os.environ.get("MIXMATCH_DATA") or "~/.cache/mixmatch/data").expanduser()


def complete(layout: Layout, folder: Path) -> bool:
    return all((folder / file.path).is_file() for file in layout if not file.optional)


def choose(layouts: Sequence[Layout], folder: Path) -> Layout:
    """The layout that is in the folder, else one whose archive is, else one that is there in part, else the first."""

    def presence(layout: Layout) -> tuple[bool, bool, bool]:
        archives = {file.origin.name for file in layout if isinstance(file.origin, Archive)}
        return (
            complete(layout, folder),
            any((folder / name).is_file() for name in archives),
            any((folder / file.path).is_file() for file in layout),
        )

    return max(layouts, key=presence)


def fetch(
    files: Sequence[Published],
    data_dir: Path,
    *,
    strict: bool = False,
    download: bool = True,
    warn: Warn = print_warning,
) -> list[Verdict]:
    """Make sure that each file is in the folder, downloading what is missing, and compare it with the published one.

    A file that differs is used with a warning; `strict` makes it an error. MIXMATCH_OFFLINE=1 is `download=False`.
    """
    missing = [file for file in files if not (data_dir / file.path).is_file()]
    for origin in dict.fromkeys(file.origin for file in missing if not file.optional):
        wanted = [file for file in missing if file.origin == origin]
        if not isinstance(origin, Archive):
            with _downloaded(wanted[0].path, origin, wanted[0].md5, data_dir, download) as part:
                part.replace(data_dir / wanted[0].path)
        elif (archive := data_dir / origin.name).is_file():
            _compare(archive, _md5(archive, data_dir, strict), origin.md5, strict, warn)
            _unpack(archive, archive, wanted, data_dir)
        else:
            with _downloaded(origin.name, origin.url, origin.md5, data_dir, download) as part:
                _unpack(part, archive, wanted, data_dir)
    verdicts = verify(files, data_dir, strict=strict)
    for verdict in verdicts:
        _compare(data_dir / verdict.file.path, verdict.md5, verdict.file.md5, strict, warn)
    return verdicts


def verify(files: Sequence[Published], data_dir: Path, *, strict: bool = False) -> list[Verdict]:
    """What is in the folder now; nothing is downloaded. If `strict`, every file is read again."""
    paths = [(file, data_dir / file.path) for file in files]
    return [Verdict(file, _md5(path, data_dir, strict) if path.is_file() else None) for file, path in paths]


def damaged(path: Path, why: str) -> MixMatchError:
    """The error for a file that cannot be what it is named."""
    return MixMatchError(f"{path} {why}; delete it or put the published file there")


def read_text(path: Path) -> str:
    """A file of names or of numbers."""
    return read_plain(path, MOST_TEXT, follow=True).decode(errors="replace")


def count_records(path: Path, size: int) -> int:
    """How many records of `size` bytes a file holds; an error if that is none or not a whole number."""
    total = path.stat().st_size
    if total == 0:
        raise damaged(path, "is empty")
    if total % size:
        raise damaged(path, f"is cut short or damaged ({total:,} bytes are not a multiple of {size:,})")
    return total // size


def records(path: Path, size: int) -> Iterator[npt.NDArray[np.uint8]]:
    """A file's records of `size` bytes in order, as arrays (n, size) of a few megabytes."""
    with path.open("rb") as file:
        while len(piece := np.fromfile(file, np.uint8, max(1, PIECE // size) * size)):
            yield piece.reshape(-1, size)


def checked_labels(path: Path, labels: npt.ArrayLike, classes: int) -> npt.NDArray[np.int64]:
    """The labels as int64, each a class from 0 to `classes` - 1, or an error that names the file."""
    array = np.asarray(labels, np.int64)
    bad = array[(array < 0) | (array >= classes)]
    if len(bad):
        raise damaged(path, f"holds labels out of range (class {bad[0]} of 0 to {classes - 1})")
    return array


def _compare(path: Path, found: str | None, published: str | None, strict: bool, warn: Warn) -> None:
    if found is None or published is None or found == published:
        return
    message = f"{path} is not the published file (its md5 is {found}, the published one {published})"
    if strict:
        raise MixMatchError(f"{message}; put the published file there, or leave out the strict check")
    warn(f"{message}; using it anyway")


def _md5(path: Path, data_dir: Path, strict: bool) -> str:
    """A file's md5, remembered in the cache until its size or time of change differ. What is remembered lies beside the
    data, and may have come with it: a strict check does not ask it."""
    if strict:
        return _hash(path)
    stat = path.stat()
    stamp, name = [stat.st_size, stat.st_mtime_ns], os.path.relpath(path, data_dir)
    memory = cache_folder(data_dir) / "md5.json"
    known: dict[str, list[object]] = {}
    with suppress(OSError, ValueError, TypeError):
        known = dict(read_json(memory, follow=True))
    match known.get(name):
        case [size, mtime_ns, str() as remembered] if [size, mtime_ns] == stamp:
            return remembered
    digest = _hash(path)
    known[name] = [*stamp, digest]
    with suppress(OSError), temporary(memory) as part:  # only a matter of speed
        part.write_text(json.dumps(known, indent=1))
        part.replace(memory)
    return digest


def _hash(path: Path) -> str:
    with open_plain(path, MOST, follow=True) as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


@contextmanager
def _downloaded(name: str, url: str, md5: str | None, data_dir: Path, allowed: bool) -> Iterator[Path]:
    """What is at `url`, under a temporary name, whole and with the right md5; else an error that says what to do."""
    remedy = f"get {url} and put it at {data_dir / name}"
    if not allowed or os.environ.get("MIXMATCH_OFFLINE", "0") not in ("", "0"):
        raise MixMatchError(f"{name} is missing and downloads are off; {remedy}")
    try:
        with temporary(data_dir / name) as part:
            _retrieve(url, part, name)
            if md5 is not None and (found := _hash(part)) != md5:
                raise ValueError(f"the download has the md5 {found}, the published file {md5}")
            yield part
    except (OSError, ValueError) as error:
        raise MixMatchError(f"{name} could not be downloaded ({_reason(error, url)}); {remedy}") from error


def _retrieve(url: str, path: Path, title: str) -> None:
    """Write what is at `url` to a new file, with a bar on a terminal."""
    import requests
    from rich import progress

    from mixmatch.terminal import Screen

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    bar = progress.Progress(*columns, console=Screen(stderr=True), disable=not sys.stderr.isatty())
    with requests.get(url, stream=True, timeout=30) as response, bar, path.open("xb") as file:
        response.raise_for_status()
        task = bar.add_task(title, total=int(response.headers.get("content-length", 0)) or None)
        for piece in response.iter_content(1 << 18):
            file.write(piece)
            bar.advance(task, len(piece))


def _reason(error: Exception, url: str) -> str:
    """One short line: the messages of the network libraries run to paragraphs."""
    import requests

    if isinstance(error, requests.ConnectionError | requests.Timeout):
        return f"no connection to {urlsplit(url).hostname}"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full"
    return _one_line(error)


def _unpack(archive: Path, name: Path, wanted: Sequence[Published], data_dir: Path) -> None:
    """Take the wanted files, and nothing else, out of an archive; `name` is what errors call it."""
    left = {file.path: file for file in wanted}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                # Only bytes of plain files are taken, to paths of our own: no path, link or mode of the archive's.
                path = member.name.removeprefix("./")
                if path not in left or not (member.isfile() and (contents := tar.extractfile(member))):
                    continue
                with contents, temporary(data_dir / path) as part:
                    with part.open("xb") as file:
                        shutil.copyfileobj(contents, file, PIECE)
                    part.replace(data_dir / path)
                del left[path]
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise damaged(name, f"cannot be unpacked ({_one_line(error)})") from error
    except OSError as error:
        raise MixMatchError(f"cannot unpack {name}: {error.strerror or _one_line(error)}") from error
    if lost := [path for path, file in left.items() if not file.optional]:
        raise damaged(name, f"does not hold {', '.join(lost)}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())

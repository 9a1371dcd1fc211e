"""Image files as arrays of the size a network takes, the same way for training and for prediction.

A folder's are decoded on all cores into one memory-mapped array, and only those that are new since the last time.
"""

from __future__ import annotations

import functools
import json
import os
import threading
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError, features

from mixmatch.data.cache import earlier, mapped, new_file, remove_abandoned, write_rows
from mixmatch.data.user.reading import IMAGE_SIZES
from mixmatch.errors import MixMatchError
from mixmatch.storage import digest, open_plain, read_json
from mixmatch.text import count

HEIC = {"HEIF": (".heic", ".heif")}
"""What iPhones save. Reading it takes an optional package."""

HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1")
"""How such a file begins, after its size and "ftyp"."""

FORMATS = {
    "JPEG": (".jpg", ".jpeg", ".jfif"),
    "PNG": (".png",),
    "WebP": (".webp",),
    "BMP": (".bmp",),
    "TIFF": (".tif", ".tiff"),
    "GIF": (".gif",),
    **({"AVIF": (".avif",)} if "avif" in features.modules and features.check("avif") else {}),  # not in every Pillow
    **(HEIC if find_spec("pillow_heif") else {}),
}
"""What is read here, by Pillow's name for it: the endings of its files."""

SUFFIXES = tuple(chain.from_iterable(FORMATS.values()))
MOST_BYTES = 8 * 2**30
"""Of a file of an image."""

MAX_PIXELS = 100_000_000
"""A larger image is taken for a decompression bomb: a small file that fills the memory."""

MAX_SIDE = 1_000_000
"""With longer rows, Pillow copies the beginning over and over: a file of 100 MB takes minutes."""

LARGE = 16_000_000
"""Pixels beyond which images are decoded one at a time, so that many cores do not hold many of them at once."""

GRAY = ("1", "L", "LA", "La", "I", "F")
TRANSPARENT = ("RGBA", "RGBa", "LA", "La", "PA")

CACHE_FORMAT = 2
"""Part of every key: raise it when decoding changes, and old caches are not used."""

CHUNK = 8
"""Images a thread decodes per task."""

Callback = Callable[[int, int], None]
"""Called with how many images are done, and how many there are."""

In = TypeVar("In")
Out = TypeVar("Out")

Shape = tuple[int, int, int]
"""Height, width, channels."""

Identity = tuple[str, int, int]
"""Path, size and time of change: a file for which they are the same is taken to be the same."""


class UnreadableImage(MixMatchError):
    """A file that holds no image that can be used; the message says why, without the file's name."""


class ImageTooLarge(UnreadableImage):
    """A file that would decode to more than `MAX_PIXELS`: perhaps a decompression bomb."""


@dataclass(frozen=True)
class Header:
    """What an image file's header says before it is decoded."""

    width: int
    height: int
    mode: str
    gray: bool


def decode_image(
    path: Path | IO[bytes], height: int, width: int, channels: int, large: AbstractContextManager[object] | None = None
) -> tuple[npt.NDArray[np.uint8], Header]:
    """An image file, or the content of one, as uint8 (H, W, C), and its header; raises `UnreadableImage`.

    The whole image is resized to `height` x `width` with antialiasing (its sides may change their ratio), after it was
    turned upright by its EXIF orientation and laid over white where it is transparent. Of 16 bits per pixel the upper 8
    are kept, of several frames the first. JPEGs are decoded at the smallest scale that keeps twice the size wanted.

    `large` is entered while a large image is in memory: with a lock, several threads hold one of them at a time.
    """
    with _opened(path) as opened:
        header = _header(opened)
        opened.draft("L" if channels == 1 else "RGB", (2 * width, 2 * height))
        is_large = opened.width * opened.height > LARGE
        with large if large is not None and is_large else nullcontext():
            opened.load()
            with suppress(Exception):  # damaged EXIF data says nothing against the pixels
                ImageOps.exif_transpose(opened, in_place=True)
            image = _flat(opened).convert("L" if channels == 1 else "RGB")
            if image.size != (width, height):
                image = image.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3.0)
        return np.asarray(image, np.uint8).reshape(height, width, channels), header


def thumbnail(path: Path, side: int, at_least: float = 2.0) -> npt.NDArray[np.uint8]:
    """An image file as uint8 (H, W, 3), upright and with its own ratio of sides, at most `side` pixels wide and high;
    raises `UnreadableImage`.

    JPEGs are decoded at the smallest scale whose shorter side is `at_least` times `side`. Less than 1 is faster, and
    what comes out may be as much smaller.
    """
    with quiet_pillow(), _opened(path) as opened:
        opened.draft("RGB", (round(at_least * side), round(at_least * side)))
        opened.load()
        with suppress(Exception):
            ImageOps.exif_transpose(opened, in_place=True)
        image = _flat(opened).convert("RGB")
        image.thumbnail((side, side), Image.Resampling.BICUBIC, reducing_gap=3.0)
        return np.asarray(image, np.uint8)


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """No warnings about odd files: an unusable one becomes a message of ours.

    Filters belong to the process, so this is entered once, by the thread that starts the others.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _opened(path: Path | IO[bytes]) -> Iterator[Image.Image]:
    try:
        # A pipe among the images would be waited for, a device never end.
        content = open_plain(path, MOST_BYTES, follow=True) if isinstance(path, Path) else nullcontext(path)
        with content as file, _identified(file) as image:
            if max(image.size) > MAX_SIDE:
                raise ImageTooLarge(f"{max(image.size):,} pixels in a row are more than {MAX_SIDE:,}")
            if image.width * image.height > MAX_PIXELS:
                raise ImageTooLarge(
                    f"{image.width:,} x {image.height:,} pixels are more than {MAX_PIXELS // 10**6} million "
                    "(a decompression bomb?)"
                )
            yield image
    except UnreadableImage:
        raise
    except Image.DecompressionBombError:  # Pillow's own, larger limit comes before ours
        raise ImageTooLarge(f"more than {MAX_PIXELS // 10**6} million pixels (a decompression bomb?)") from None
    except Exception as error:  # Pillow lets damaged files raise whatever their damage leads to
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UnreadableImage(" ".join(reason.split())) from None


def _identified(file: IO[bytes]) -> Image.Image:
    """An image whose header is read."""
    with suppress(UnidentifiedImageError):
        return Image.open(file, formats=[name for name in FORMATS if name not in HEIC])
    file.seek(4)
    if file.read(4) == b"ftyp" and file.read(4) in HEIC_BRANDS:
        if not HEIC.keys() <= FORMATS.keys():
            raise UnreadableImage("a HEIC image, which takes pip install 'mixmatch[heic]'")
        _register_heic()
        with suppress(UnidentifiedImageError):
            return Image.open(file, formats=tuple(HEIC))
    raise UnreadableImage("not an image in a known format")


@functools.cache
def _register_heic() -> None:
    import pillow_heif

    pillow_heif.register_heif_opener()


def _header(image: Image.Image) -> Header:
    gray = image.mode in GRAY or image.mode.startswith("I;")
    if image.mode in ("P", "PA"):
        palette = np.array(image.getpalette() or [0, 0, 1], np.uint8).reshape(-1, 3)
        gray = bool((palette == palette[:, :1]).all())
    return Header(image.width, image.height, image.mode, gray)


def _flat(image: Image.Image) -> Image.Image:
    """8 bits per channel and nothing transparent."""
    if image.mode.startswith("I"):  # Pillow would cut 16 bits off at 255
        values = np.asarray(image).astype(np.int64).clip(0, 0xFFFF)
        return Image.fromarray((values >> 8).astype(np.uint8))
    if image.mode == "F":
        reals = np.nan_to_num(np.asarray(image, np.float32))
        scale = 255 if reals.max(initial=0) <= 1 else 1
        return Image.fromarray(np.rint(reals * scale).clip(0, 255).astype(np.uint8))
    if image.mode in TRANSPARENT or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image)
    return image


def visible(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """What can be shown of an image (H, W, C): its first three channels as colors, or if it has fewer, the first."""
    return pixels[..., :3] if pixels.shape[-1] >= 3 else pixels[..., 0]


# ---------------------------------------------------------------------------------------------- many files


@dataclass(frozen=True)
class Unreadable:
    """Why an image file cannot be used."""

    reason: str
    too_large: bool = False


@dataclass(frozen=True)
class DecodedFolder:
    """The images of the readable files, and of every file its header or why it is unreadable."""

    images: npt.NDArray[np.uint8]
    identities: tuple[Identity, ...]
    headers: tuple[Header | Unreadable, ...]

    def header_of(self) -> dict[Identity, Header | Unreadable]:
        return dict(zip(self.identities, self.headers, strict=True))

    def rows(self) -> dict[Identity, int]:
        """Which row of `images` a readable file has."""
        readable = (i for i, header in zip(self.identities, self.headers, strict=True) if isinstance(header, Header))
        return {identity: row for row, identity in enumerate(readable)}


NOTHING = DecodedFolder(np.empty((0, 0, 0, 0), np.uint8), (), ())


def decode_all(
    root: Path,
    identities: tuple[Identity, ...],
    image_size: int | None,
    channels: int | None,
    cache: Path,
    progress: Callback | None = None,
) -> DecodedFolder:
    """The images of these files, in order, memory-mapped from the cache, which is filled first if it has to be. Images
    decoded before are copied, so a user who labels a few more images waits only for those."""
    family = f"own-{digest(str(root.resolve()))[:8]}-{image_size or 'auto'}-{channels or 'auto'}"
    path = cache / f"{family}-{digest(json.dumps([CACHE_FORMAT, [*FORMATS], image_size, channels, identities]))}.npy"
    if (decoded := _cached(path)) is not None and decoded.identities == identities:
        return decoded
    remove_abandoned(path)
    stale = earlier(path)
    what = f"the {count(len(identities), 'decoded image')}"
    with quiet_pillow(), new_file(path, what, "choose another place for them") as part:
        known = next(filter(None, map(_cached, stale)), NOTHING)
        shape = shape_of(root, identities, image_size, channels, known)
        headers = decode_rows(part, root, identities, shape, known, progress)
        if isinstance(headers[0], Unreadable) and not any(isinstance(header, Header) for header in headers):
            example = f"{identities[0][0]}: {headers[0].reason}"
            raise MixMatchError(f"none of the images in {root} can be read, for example {example}")
        content = {"format": CACHE_FORMAT, "files": identities, "headers": [asdict(header) for header in headers]}
        with new_file(path.with_suffix(".json"), what, "choose another place for them") as about:
            about.write_text(json.dumps(content))  # not durably: after a long wait the images would seem abandoned
    remove_abandoned(path)
    for file in stale:
        file.unlink(missing_ok=True)
        file.with_suffix(".json").unlink(missing_ok=True)
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


def parallel_map(
    function: Callable[[In], Out], inputs: Sequence[In], ahead: int | None = None
) -> Generator[Out, None, None]:
    """`map` on all cores. Only `ahead` results (by default a few) wait to be taken, however many inputs there are."""
    return parallel_chunks(lambda chunk: [function(item) for item in chunk], inputs, ahead)


def parallel_chunks(
    function: Callable[[Sequence[In]], Sequence[Out]],
    inputs: Sequence[In],
    ahead: int | None = None,
    workers: int | None = None,
) -> Generator[Out, None, None]:
    """As `parallel_map`, for a function that takes a few inputs at once, on `workers` cores (by default on all).

    Threads, not processes: Pillow decodes and resizes without holding Python's lock, and a process would first have to
    import torch. (Measured: benchmarks/decode.py.)
    """
    workers = workers or cores()
    chunks = (inputs[start : start + CHUNK] for start in range(0, len(inputs), CHUNK))
    threads = ThreadPoolExecutor(workers, "decode")

    def submit(chunk: Sequence[In]) -> Future[Sequence[Out]]:
        return threads.submit(function, chunk)

    try:
        waiting = deque(map(submit, islice(chunks, 2 * workers if ahead is None else -(-ahead // CHUNK))))
        while waiting:
            next_chunk = waiting.popleft()
            waiting.extend(map(submit, islice(chunks, 1)))
            yield from next_chunk.result()
    finally:
        threads.shutdown(wait=True, cancel_futures=True)


def cores() -> int:
    """How many this process may use: a container or `taskset` may give it fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def shape_of(
    root: Path,
    identities: Sequence[Identity],
    image_size: int | None,
    channels: int | None,
    known: DecodedFolder = NOTHING,
) -> Shape:
    """(height, width, channels) that files are decoded to: what is not given follows from all their headers."""
    if image_size is None or channels is None:
        before = known.header_of()
        probed = parallel_map(lambda i: before.get(i) or probe(root / i[0]), identities)
        readable = [header for header in probed if isinstance(header, Header)]
        image_size = image_size or default_size(readable)
        channels = channels or (1 if readable and all(header.gray for header in readable) else 3)
    return image_size, image_size, channels


def decode_rows(
    path: Path,
    root: Path,
    identities: Sequence[Identity],
    shape: Shape,
    known: DecodedFolder = NOTHING,
    progress: Callback | None = None,
    workers: int | None = None,
) -> list[Header | Unreadable]:
    """Decode the files into one .npy file, a row for each readable one, or copy the row of one decoded before."""
    before = known.header_of()
    rows = known.rows() if known.images.shape[1:] == shape else {}
    large = threading.Lock()

    def row_of(identity: Identity) -> tuple[npt.NDArray[np.uint8] | None, Header | Unreadable]:
        if identity in rows:
            return known.images[rows[identity]], before[identity]
        try:
            return decode_image(root / identity[0], *shape, large=large)
        except UnreadableImage as error:
            return None, Unreadable(str(error), isinstance(error, ImageTooLarge))

    headers: list[Header | Unreadable] = []

    def pixels() -> Iterator[npt.NDArray[np.uint8]]:
        for image, header in parallel_chunks(lambda some: [row_of(i) for i in some], identities, workers=workers):
            headers.append(header)
            if image is not None:
                yield image[None]
            if progress is not None:
                progress(len(headers), len(identities))

    write_rows(path, (len(identities), *shape), pixels())
    return headers


def probe(file: Path) -> Header | Unreadable:
    """What an image file says of itself, or why it cannot be used, without decoding it."""
    try:
        with _opened(file) as image:
            return _header(image)
    except UnreadableImage as error:
        return Unreadable(str(error), isinstance(error, ImageTooLarge))


def headers_from(content: Sequence[dict[str, Any]]) -> tuple[Header | Unreadable, ...]:
    """From JSON. A `ValueError`, `TypeError` or `KeyError` if it says something else."""
    headers = tuple(Unreadable(**each) if "reason" in each else Header(**each) for each in content)
    for header in headers:
        kinds = [int, int, str, bool] if isinstance(header, Header) else [str, bool]
        if [*map(type, vars(header).values())] != kinds:
            raise ValueError("it describes no image")
        if isinstance(header, Header) and not (0 < header.width < 2**31 and 0 < header.height < 2**31):
            raise ValueError("no image has that size")
    return headers


def _cached(path: Path) -> DecodedFolder | None:
    """What an earlier call left, if it is whole."""
    try:
        content = read_json(path.with_suffix(".json"), follow=True)
        if content["format"] != CACHE_FORMAT:
            return None
        identities = tuple((file, size, changed) for file, size, changed in content["files"])
        headers = headers_from(content["headers"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    images = mapped(path)
    readable = sum(isinstance(header, Header) for header in headers)
    if images is None or images.ndim != 4 or len(images) != readable or len(identities) != len(headers):
        return None
    return DecodedFolder(images, identities, headers)

"""A program that makes small JPEGs of image files, for a server that must not decode files of unknown origin itself.

It says "ready", then reads one JSON list `[path, side]` per line from standard input and answers each with a line of
JSON and the bytes of the JPEG. A file that takes too long, or too much memory, ends this process and not the server.
"""

from __future__ import annotations

import io
import json
import os
import sys
from contextlib import suppress
from pathlib import Path

from PIL import Image

from mixmatch.data.user.images import Header, UnreadableImage, probe, quiet_pillow, thumbnail

MEMORY = 4 << 30
"""Bytes of address space a decoder may have."""
QUALITY = 82
NEAR = 0.7
"""A JPEG may come out at this share of the size asked for: it is then decoded several times as fast."""


def small_jpeg(path: Path, side: int) -> bytes:
    """An image file as a JPEG of at most `side` pixels, upright, without anything else the file holds."""
    out = io.BytesIO()
    Image.fromarray(thumbnail(path, side, NEAR)).save(out, "JPEG", quality=QUALITY)
    return out.getvalue()


def answer(path: Path, side: int) -> tuple[dict[str, object], bytes]:
    """The response for a file: a JPEG, or with `side` 0 its width and height, or why it cannot be shown."""
    try:
        if side:
            return {}, small_jpeg(path, side)
        header = probe(path)
        if isinstance(header, Header):
            return {"width": header.width, "height": header.height}, b""
        return {"error": header.reason}, b""
    except UnreadableImage as error:
        return {"error": str(error)}, b""
    except MemoryError:
        return {"error": "it takes too much memory"}, b""


def main() -> None:
    if os.name == "posix":
        import resource

        with suppress(ValueError, OSError):  # macOS may refuse
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    out = sys.stdout.buffer
    out.write(b"ready\n")
    out.flush()
    with quiet_pillow():
        for line in sys.stdin.buffer:
            path, side = json.loads(line)
            head, jpeg = answer(Path(path), side)
            out.write(json.dumps(head | {"bytes": len(jpeg)}).encode() + b"\n" + jpeg)
            out.flush()


if __name__ == "__main__":
    main()

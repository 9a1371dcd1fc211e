"""The page's own files: HTML, styles and modules, read once. A request can name these and nothing else."""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from importlib.resources import files as resources
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from mixmatch.label.answers import ZIP_FROM

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class File:
    """A file, ready to be sent."""

    def __init__(self, name: str, content: bytes) -> None:
        self.content, self.type = content, TYPES[name.rpartition(".")[2]]
        self.etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        self.zipped = gzip.compress(content, 6, mtime=0) if len(content) > ZIP_FROM else None


@cache
def load_static() -> dict[str, File]:
    """The page's own files, read once: a request can name these and nothing else."""
    folder = Path(str(resources("mixmatch.label") / "static"))
    return {path.name: File(path.name, path.read_bytes()) for path in folder.iterdir() if path.suffix[1:] in TYPES}


def serve_static(request: Request, name: str) -> Response:
    if (file := load_static().get(name)) is None:
        raise HTTPException(404, "there is no such file")
    headers = {"ETag": file.etag, "Cache-Control": "private, no-cache", "Vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    if file.zipped is not None and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(file.zipped, headers=headers | {"Content-Encoding": "gzip"}, media_type=file.type)
    return Response(file.content, headers=headers, media_type=file.type)

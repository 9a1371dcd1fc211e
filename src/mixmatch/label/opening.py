"""The first responses to a page, as the last server of the folder left them: shown at once, while the labels are read.

Reading the labels of 100,000 pictures takes a second, with all that has to be imported for it. So a server that stops
keeps what the next page will ask for first. It is only shown. It is not used if it is signed with another token or
belongs to another log; any change waits until the log itself has been read; and if that differs, pages read everything
again.
"""

from __future__ import annotations

import asyncio
import gzip
import hmac
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mixmatch import __version__
from mixmatch.label.answers import as_json, http_error, jpeg_headers, who_is
from mixmatch.label.body import Body
from mixmatch.label.log import NAME as LOG
from mixmatch.label.page import serve_static
from mixmatch.label.pictures import THUMB, THUMBNAILS, read_kept
from mixmatch.storage import read_plain, replace_durably

NAME = "first-page.bin"
MOST = 1 << 28
"""Bytes it may have."""


class FirstPage(NamedTuple):
    """What a page shows before the log has been read."""

    log: list[int]
    """Size and time of change of the log that it belongs to."""
    user: str
    version: str
    """Of the listing, as in addresses of pictures."""
    content: str
    """Stands for all labels: the desk says later whether they are what the log says."""
    keys: dict[str, str]
    """The identities of the pictures that a page shows first, by number."""
    state: Body
    images: bytes
    """Compressed JSON."""

    def save(self, home: Path, token: str) -> None:
        """Keep it for the next start. A disk that is full keeps none."""
        head = json.dumps([__version__, *self[:-1]]).encode()
        content = head + b"\n" + self.images
        with suppress(OSError):
            replace_durably(home / NAME, _signed(token, content) + b"\n" + content)

    @staticmethod
    def take(home: Path, token: str) -> FirstPage | None:
        """What the last server left, unless it belongs to another log; for one start, so that a server that is killed
        leaves none."""
        with suppress(OSError, ValueError):
            kept = read_plain(home / NAME, MOST)
            (home / NAME).unlink()
            signature, _, content = kept.partition(b"\n")
            if hmac.compare_digest(signature, _signed(token, content)):
                head, _, images = content.partition(b"\n")
                version, *rest = json.loads(head)
                page = FirstPage._make([*rest, images]) if version == __version__ else None
                return page if page is not None and page.log == stamp(home / LOG) else None
        return None


def _signed(token: str, content: bytes) -> bytes:
    return hmac.digest(token.encode(), content, "sha256").hex().encode()


def stamp(path: Path) -> list[int]:
    """What changes when a file does."""
    about = path.lstat()
    return [about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino]


class Opening:
    """An application that answers what it can until the real one is there, and holds everything else back."""

    def __init__(self, home: Path, first: FirstPage | None) -> None:
        self.home, self.first = home, first
        self.app: ASGIApp | None = None
        self.wanted = threading.Event()
        """Something was asked for that only the real one can answer."""
        self.failed = False
        self.stopping: Callable[[], bool] = lambda: False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        target = self.app or self._early(Request(scope)) or await self._late()
        await target(scope, receive, send)

    async def _late(self) -> ASGIApp:
        """The real application once it is ready; or why it will not be."""
        self.wanted.set()
        while self.app is None:
            if self.failed:
                return JSONResponse({"error": "the labels could not be read: see the terminal"}, 500)
            if self.stopping():
                return JSONResponse({"error": "the server is being stopped"}, 503)
            await asyncio.sleep(0.005)
        return self.app

    def _early(self, request: Request) -> Response | None:
        try:
            return self._answer(request)
        except HTTPException as error:
            return http_error(request, error)

    def _answer(self, request: Request) -> Response | None:
        path, first = request.url.path, self.first
        if first is None or request.method != "GET":
            return None
        if path == "/" or path.startswith("/static/"):
            return serve_static(request, "index.html" if path == "/" else path.removeprefix("/static/"))
        if path.startswith("/thumb/") and (key := first.keys.get(path.removeprefix("/thumb/"))) is not None:
            jpeg = read_kept(self.home / THUMBNAILS, key, THUMB)
            headers = jpeg_headers(key, THUMB, fresh=request.query_params.get("v") == first.version)
            return None if jpeg is None else Response(jpeg, media_type="image/jpeg", headers=headers)
        if who_is(request, first.user) != first.user:
            return None
        if path == "/api/state":
            return as_json(request, first.state)
        if path == "/api/images" and request.query_params.get("from", "0") == "0":
            if "gzip" in request.headers.get("accept-encoding", ""):
                headers = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding", "Cache-Control": "private, no-cache"}
                return Response(first.images, media_type="application/json", headers=headers)
            return Response(gzip.decompress(first.images), media_type="application/json")
        return None

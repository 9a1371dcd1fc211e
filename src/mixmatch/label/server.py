"""The server of the page: every route, each a few lines over the book, the view and the pictures.

Routes run in threads; the book's lock orders them. Nothing here imports torch: what needs it runs in its own process.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import re
from collections.abc import Callable, Sequence
from importlib.resources import files as resources
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mixmatch.errors import MixMatchError
from mixmatch.label import pictures
from mixmatch.label.book import SOURCES, Change, Refused
from mixmatch.label.desk import Desk
from mixmatch.label.log import DiskFull
from mixmatch.label.view import Body, encode

BODY, IMPORT = 8 << 20, 64 << 20
"""Bytes that a request may have."""
SECONDS = 60
"""That a body may take to arrive."""
ID = re.compile(r"[A-Za-z0-9_-]{8,64}")
WHO = "mixmatch-who"
MOST_CHANGES, MOST_PICTURES = 1000, 200_000
TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
    "svg": "image/svg+xml",
    "png": "image/png",
    "ico": "image/x-icon",
    "woff2": "font/woff2",
}
ZIP_FROM = 2000
"""Bytes from which an answer is compressed."""


class Malformed(MixMatchError):
    """A request that our page would not send."""


class Elsewhere(MixMatchError):
    """A request whose numbers belong to another listing."""


STATUS: tuple[tuple[type[Exception], int], ...] = (
    (Malformed, 400),
    (DiskFull, 507),
    (pictures.Busy, 503),
    (pictures.CannotShow, 422),
    (Refused, 422),
    (MixMatchError, 422),
)


def make_app(desk: Desk) -> Starlette:
    """The application, without the guard that has to stand before it."""
    api = Api(desk)
    static = load_static()

    def page(request: Request) -> Response:
        return _static(request, static, "index.html")

    def static_file(request: Request) -> Response:
        return _static(request, static, request.path_params["name"])

    routes = [
        Route("/", page),
        Route("/static/{name}", static_file),
        Route("/thumb/{n:int}", api.thumb),
        Route("/image/{n:int}", api.image),
        Route("/api/state", api.get(api.state)),
        Route("/api/images", api.images),
        Route("/api/changes", api.get(api.changes)),
        Route("/api/exam", api.get(api.exam), methods=["GET"]),
        Route("/api/picture/{n:int}", api.get(api.picture)),
        Route("/api/who", api.who, methods=["POST"]),
        *(
            Route(f"/api/{path}", api.post(handler), methods=["POST"])
            for path, handler in {
                "labels": api.labels,
                "undo": api.undo,
                "redo": api.redo,
                "classes": api.classes,
                "exam": api.draw_exam,
                "rescan": api.rescan,
            }.items()
        ),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _http_error, Exception: _bug})


class Api:
    """The routes."""

    def __init__(self, desk: Desk) -> None:
        self.desk, self.book, self.view = desk, desk.book, desk.view

    # ----------------------------------------------------------------------------------------------- around each route

    def get(self, handler: Callable[[str, Request], Body]) -> Callable[[Request], Any]:
        """A route that answers with JSON."""

        def route(request: Request) -> Response:
            try:
                with self.book.lock:
                    return _json(request, handler(self.who_is(request), request))
            except MixMatchError as error:
                return _error(error)

        return route

    def post(self, handler: Callable[[str, Body], Body], limit: int = BODY) -> Callable[[Request], Any]:
        """A route that takes JSON and answers with what changed since the page last looked."""

        async def route(request: Request) -> Response:
            try:
                asked = await _read_json(request, limit)
            except HTTPException as error:
                return _http_error(request, error)
            return await run_in_threadpool(work, request, asked)

        def work(request: Request, asked: Body) -> Response:
            who = self.who_is(request)
            try:
                with self.book.lock:
                    given = asked.get("listing", self.book.listing.id)
                    if given != self.book.listing.id:
                        raise Elsewhere("the list of pictures is another one now")
                    seq = self.book.state.seq
                    more = handler(who, asked)
                    body = self.view.changes(who, _whole(asked, "since", seq)) | more
            except Elsewhere as error:
                return JSONResponse({"error": str(error), "listing": self.book.listing.id}, 410)
            except MixMatchError as error:
                return _error(error)
            return _json(request, body, 409 if body.get("conflicts") else 200)

        return route

    def who_is(self, request: Request) -> str:
        return clean_name(unquote(request.cookies.get(WHO, ""))) or self.desk.user

    # -------------------------------------------------------------------------------------------------------- looking

    def state(self, who: str, request: Request) -> Body:
        return self.view.state(who)

    def changes(self, who: str, request: Request) -> Body:
        return self.view.changes(who, _query(request, "since", 0))

    def images(self, request: Request) -> Response:
        try:
            first = _query(request, "from", 0)
            with self.book.lock:
                etag = self.view.etag(first)
                if request.headers.get("if-none-match") == etag:
                    return Response(status_code=304, headers={"ETag": etag, "Cache-Control": "private, no-cache"})
                body = self.view.images(first)
            return _json(request, body, headers={"ETag": etag, "Cache-Control": "private, no-cache"})
        except MixMatchError as error:
            return _error(error)

    def exam(self, who: str, request: Request) -> Body:
        numbers = self.book.listing.numbers
        drawn = [file for file in self.book.state.exam if numbers.get(file, -1) not in {-1, *self.book.listing.gone}]
        left = [numbers[file] for file in drawn if self.book.state.marks.get(file) is None]
        return {"n": [numbers[file] for file in drawn], "left": left}

    def picture(self, who: str, request: Request) -> Body:
        return self.desk.about(self._number(request))

    def thumb(self, request: Request) -> Response:
        return self._jpeg(request, pictures.THUMB)

    def image(self, request: Request) -> Response:
        return self._jpeg(request, pictures.LARGE)

    def _number(self, request: Request) -> int:
        n = int(request.path_params["n"])
        if not 0 <= n < len(self.book.listing):
            raise HTTPException(404, "there is no such picture")
        return n

    def _jpeg(self, request: Request, side: int) -> Response:
        n = self._number(request)
        with self.book.lock:
            etag = f'"{self.book.listing.identity(n)}-{side}"'
            fresh = request.query_params.get("v") == self.book.listing.version
        keep = "private, max-age=31536000, immutable" if fresh else "private, no-cache"
        headers = {"ETag": etag, "Cache-Control": keep}
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        try:
            return Response(self.desk.jpeg(n, side), media_type="image/jpeg", headers=headers)
        except FileNotFoundError:
            return JSONResponse({"error": "this picture is gone"}, 404)
        except MixMatchError as error:
            return _error(error)

    # ------------------------------------------------------------------------------------------------------- changing

    async def who(self, request: Request) -> Response:
        try:
            asked = await _read_json(request, BODY)
        except HTTPException as error:
            return _http_error(request, error)
        name = clean_name(asked.get("who"))
        if not name:
            return JSONResponse({"error": "a name has 1 to 40 characters"}, 422)
        answer = JSONResponse({"who": name})
        answer.set_cookie(WHO, quote(name), httponly=True, samesite="strict", path="/", max_age=365 * 86400)
        return answer

    def labels(self, who: str, asked: Body) -> Body:
        items = asked.get("changes")
        if not isinstance(items, list) or len(items) > MOST_CHANGES:
            raise Malformed(f"`changes` must be a list of at most {MOST_CHANGES}")
        changes = [self._change(item) for item in items]
        found = self.book.label(who, changes)
        conflicts = [{**c, "n": self.book.listing.numbers[c.pop("file")]} for c in found]
        return {"saved": [change.id for change in changes], "conflicts": conflicts}

    def _change(self, item: Any) -> Change:
        if not isinstance(item, dict):
            raise Malformed("a change must be an object")
        numbers, label, source = item.get("n"), item.get("label"), item.get("source", "key")
        before = item.get("before")
        if not isinstance(numbers, list) or not 0 < len(numbers) <= MOST_PICTURES:
            raise Malformed("`n` must be a list of numbers")
        before = before if isinstance(before, list) else [before] * len(numbers)
        if len(before) != len(numbers) or not all(value is None or isinstance(value, str) for value in before):
            raise Malformed("`before` must be a value, or one for each picture")
        if not (label is None or isinstance(label, str)) or source not in SOURCES:
            raise Malformed("`label` must be a text or null, `source` a known word")
        return Change(_id(item), self._files(numbers), label, before, source)

    def _files(self, numbers: Sequence[Any]) -> list[str]:
        files, most = self.book.listing.files, len(self.book.listing)
        if not all(type(n) is int and 0 <= n < most for n in numbers) or len(set(numbers)) != len(numbers):
            raise Malformed("a picture's number is wrong, or there twice")
        return [files[n] for n in numbers]

    def undo(self, who: str, asked: Body) -> Body:
        return self._undone(self.book.undo(who, _id(asked)))

    def redo(self, who: str, asked: Body) -> Body:
        return self._undone(self.book.undo(who, _id(asked), redo=True))

    def _undone(self, done: Body) -> Body:
        numbers = self.book.listing.numbers
        found = {name: [numbers[file] for file in done[key] if file in numbers] for name, key in _UNDONE.items()}
        return {"undone": {"what": done["what"], **found}}

    def classes(self, who: str, asked: Body) -> Body:
        try:
            self.book.act(who, _id(asked), str(asked.get("do")), asked)
        except (KeyError, TypeError):
            raise Malformed("a field is missing") from None
        return {}

    def draw_exam(self, who: str, asked: Body) -> Body:
        more = _whole(asked, "more", 50)
        if not 1 <= more <= 2000:
            raise Refused("an exam has 1 to 2,000 pictures")
        return {"drawn": [self.book.listing.numbers[file] for file in self.book.draw_exam(who, _id(asked), more)]}

    def rescan(self, who: str, asked: Body) -> Body:
        self.desk.rescan()
        return {}


_UNDONE = {"n": "files", "kept": "kept"}


# ---------------------------------------------------------------------------------------------------------- requests


async def _read_json(request: Request, limit: int) -> Body:
    """The JSON object of a request, read no further than the limit."""
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > limit:
        raise HTTPException(413, f"a request has at most {limit >> 20} MB")
    content = bytearray()
    try:
        async with asyncio.timeout(SECONDS):
            async for piece in request.stream():
                content += piece
                if len(content) > limit:
                    raise HTTPException(413, f"a request has at most {limit >> 20} MB")
    except TimeoutError:
        raise HTTPException(408, "the request took too long to arrive") from None
    try:
        asked = await run_in_threadpool(_parse, bytes(content))
    except (ValueError, RecursionError):
        raise HTTPException(400, "the request is not JSON") from None
    if not isinstance(asked, dict):
        raise HTTPException(400, "the request must be a JSON object")
    return asked


def _parse(content: bytes) -> Any:
    import json

    return json.loads(content)


def _query(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, str(default))
    if not text.isdecimal() or len(text) > 15:
        raise Malformed(f"`{name}` must be a whole number")
    return int(text)


def _whole(asked: Body, name: str, default: int) -> int:
    value = asked.get(name, default)
    if type(value) is not int or value < 0:
        raise Malformed(f"`{name}` must be a whole number")
    return value


def _id(asked: Body) -> str:
    id = asked.get("id")
    if not isinstance(id, str) or not ID.fullmatch(id):
        raise Malformed("`id` must be 8 to 64 letters, digits, - or _")
    return id


def clean_name(name: object) -> str:
    """A person's name as it is kept; empty if it is none."""
    if not isinstance(name, str) or not name.isprintable():
        return ""
    return " ".join(name.split())[:40]


# ----------------------------------------------------------------------------------------------------------- answers


def _json(request: Request, body: Body, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    content, headers = encode(body), dict(headers or {})
    if len(content) > ZIP_FROM and "gzip" in request.headers.get("accept-encoding", ""):
        content = gzip.compress(content, 1, mtime=0)
        headers |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return Response(content, status, headers, "application/json")


def _error(error: MixMatchError) -> Response:
    status = next(code for kind, code in STATUS if isinstance(error, kind))
    return JSONResponse({"error": str(error)}, status)


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code)


def _bug(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "the server made a mistake; it is described in its terminal"}, 500)


class _File:
    def __init__(self, name: str, content: bytes) -> None:
        self.content, self.type = content, TYPES[name.rpartition(".")[2]]
        self.etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        self.zipped = gzip.compress(content, 6, mtime=0) if len(content) > ZIP_FROM else None


def load_static() -> dict[str, _File]:
    """The page's own files, read once: a request can name these and nothing else."""
    folder = Path(str(resources("mixmatch.label") / "static"))
    found = (
        [path for path in folder.iterdir() if path.suffix[1:] in TYPES and path.is_file()] if folder.is_dir() else []
    )
    return {path.name: _File(path.name, path.read_bytes()) for path in found}


def _static(request: Request, files: dict[str, _File], name: str) -> Response:
    if (file := files.get(name)) is None:
        raise HTTPException(404, "there is no such file")
    headers = {"ETag": file.etag, "Cache-Control": "private, no-cache", "Vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    if file.zipped is not None and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(file.zipped, headers=headers | {"Content-Encoding": "gzip"}, media_type=file.type)
    return Response(file.content, headers=headers, media_type=file.type)

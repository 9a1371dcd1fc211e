"""Reading requests and writing responses: limits, checks, JSON, errors."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from typing import Any
from urllib.parse import unquote

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from mixmatch.errors import MixMatchError
from mixmatch.label import pictures
from mixmatch.label.body import Body, encode
from mixmatch.label.book import Refused
from mixmatch.label.log import DiskFull

BODY, IMPORT = 8 << 20, 64 << 20
"""Bytes that a request may have."""
SECONDS = 60
"""Seconds that a body may take to arrive."""
WHO = "mixmatch-who"
ID = re.compile(r"[A-Za-z0-9_-]{8,64}")
ZIP_FROM = 2000
"""Responses of at least this many bytes are compressed."""


class Malformed(MixMatchError):
    """A request that our page would not send."""


STATUS: tuple[tuple[type[Exception], int], ...] = (
    (Malformed, 400),
    (DiskFull, 507),
    (pictures.Busy, 503),
    (pictures.CannotShow, 422),
    (Refused, 422),
    (MixMatchError, 422),
)


async def read_json(request: Request, limit: int) -> Body:
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
    except ClientDisconnect:  # a page that was closed: nobody reads this
        raise HTTPException(400, "the request was broken off") from None
    try:
        asked: Any = await run_in_threadpool(json.loads, bytes(content))
    except (ValueError, RecursionError):
        raise HTTPException(400, "the request is not JSON") from None
    if not isinstance(asked, dict):
        raise HTTPException(400, "the request must be a JSON object")
    return asked


def query_number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, str(default))
    if not text.isdecimal() or len(text) > 15:
        raise Malformed(f"`{name}` must be a whole number")
    return int(text)


def share_of(request: Request, name: str, default: float) -> float:
    try:
        value = float(request.query_params.get(name, default))
    except ValueError:
        value = -1
    if not 0 <= value <= 1:
        raise Malformed(f"`{name}` must be a number from 0 to 1")
    return value


def whole_number(asked: Body, name: str, default: int) -> int:
    value = asked.get(name, default)
    if type(value) is not int or value < 0:
        raise Malformed(f"`{name}` must be a whole number")
    return value


def id_of(asked: Body) -> str:
    id = asked.get("id")
    if not isinstance(id, str) or not ID.fullmatch(id):
        raise Malformed("`id` must be 8 to 64 letters, digits, - or _")
    return id


def clean_name(name: object) -> str:
    """A person's name as it is kept; empty if it is none."""
    if not isinstance(name, str) or not name.isprintable():
        return ""
    return " ".join(name.split())[:40]


def who_is(request: Request, user: str) -> str:
    """The person's name; without one, the `user` who started the server."""
    return clean_name(unquote(request.cookies.get(WHO, ""))) or user


def jpeg_headers(key: str, side: int, *, fresh: bool) -> dict[str, str]:
    """The headers of a picture. If its address names its current version, it never changes there."""
    keep = "private, max-age=31536000, immutable" if fresh else "private, no-cache"
    return {"ETag": f'"{key}-{side}"', "Cache-Control": keep}


def as_json(request: Request, body: Body, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    content, headers = encode(body), dict(headers or {})
    if len(content) > ZIP_FROM and "gzip" in request.headers.get("accept-encoding", ""):
        content = gzip.compress(content, 1, mtime=0)
        headers |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return Response(content, status, headers, "application/json")


def as_error(request: Request, error: Exception) -> Response:
    status = next(code for kind, code in STATUS if isinstance(error, kind))
    return JSONResponse({"error": str(error)}, status)


def http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code)


def on_bug(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "the server made a mistake; it is described in its terminal"}, 500)

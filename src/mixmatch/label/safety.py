"""The checks that every request must pass before anything else, and the headers of every response.

A page on 127.0.0.1 can be reached by every other page that the same browser has open. So: the Host header must name
this server (else a name that an attacker's DNS points here would do), the cookie must hold the token, which only who
saw the terminal has, and a request that changes something must come from our own page.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection
from urllib.parse import parse_qs

from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every answer, unless it says otherwise itself."""
_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


class Guard:
    """Wraps an application: refuses what does not come from our own page, and adds the headers."""

    def __init__(self, app: ASGIApp, *, token: str, port: int, hosts: Collection[str] = (), any_address: bool = False):
        """
        Args:
            hosts: names of this machine beside those of the loopback.
            any_address: whether an IP address in place of a name will do, as for a server on all addresses. A name
                that is pointed at us by somebody's DNS is never an address.
        """
        self._app, self._token, self._port = app, token, port
        self._hosts = {*LOOPBACK, *(host.lower() for host in hosts)}
        self._any_address = any_address
        self.cookie = f"mixmatch-{port}"
        """Cookies are shared by all ports of a machine: the name has to differ."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # a WebSocket
            await send({"type": "websocket.close", "code": 1008})
            return
        refusal = self._check(scope)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                have = {name.lower() for name, _ in message["headers"]}
                more = [(name, value) for name, value in _HEADERS if name not in have]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        await (self._app if refusal is None else refusal)(scope, receive, guarded)

    def _check(self, scope: Scope) -> Response | None:
        """The refusal, or the redirect that sets the cookie; None if the request may pass."""
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        if len(headers.get("host", ())) != 1 or not self._is_ours(headers["host"][0]):
            return _refuse("this server answers only at its own address")
        host = headers["host"][0].lower()
        method, path = scope["method"], scope["path"]
        query = parse_qs(scope["query_string"].decode("latin-1"))
        if method == "GET" and path == "/" and "token" in query:
            return self._enter(query["token"][0])
        cookies = cookie_parser("; ".join(headers.get("cookie", ())))
        if not hmac.compare_digest(cookies.get(self.cookie, "").encode(), self._token.encode()):
            return _refuse("open the address that `mixmatch label` printed, with its token", page=path == "/")
        if method in ("GET", "HEAD"):
            return None
        if method != "POST":
            return _refuse(f"{method} is not used here", 405)
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        if site is not None and site != ["same-origin"]:
            return _refuse("this request comes from another page")
        if (site is None and origin is None) or (origin is not None and origin != [f"http://{host}"]):
            return _refuse("this request comes from another page")
        if headers.get("content-type", [""])[0].split(";")[0].strip().lower() != "application/json":
            return _refuse("only JSON is taken", 415)
        return None

    def _is_ours(self, host: str) -> bool:
        name, colon, port = host.lower().rpartition(":")
        if not colon or port.endswith("]"):
            name, port = host.lower(), "80"
        if port != str(self._port):
            return False
        if name in self._hosts:
            return True
        return self._any_address and _is_address(name)

    def _enter(self, token: str) -> Response:
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self._token.encode()):
            return _refuse("the token is not the one that `mixmatch label` printed", page=True)
        answer = Response(status_code=303, headers={"Location": "/"})
        answer.set_cookie(self.cookie, self._token, httponly=True, samesite="strict", path="/", max_age=30 * 86400)
        return answer


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _refuse(why: str, status: int = 403, *, page: bool = False) -> Response:
    return PlainTextResponse(f"{why}\n", status) if page else JSONResponse({"error": why}, status)

"""Start the server of a folder: one per folder, at an address that stays the same, until Ctrl-C."""

from __future__ import annotations

import ipaddress
import json
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from getpass import getuser
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from mixmatch.errors import MixMatchError, explaining
from mixmatch.label.answers import clean_name
from mixmatch.label.choice import RUN, Choice
from mixmatch.label.home import RECORD, check_links, home_of, locked, note_of, read_record, token_at
from mixmatch.label.opening import FirstPage, Opening
from mixmatch.label.safety import Guard
from mixmatch.storage import PRIVATE, replace_durably
from mixmatch.text import count

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from mixmatch.label.desk import Desk

LOCAL = "127.0.0.1"
AT_LATEST = 0.5
"""Seconds after which the labels are read, if nobody has asked for more than the first page."""
Say = Callable[[str], None]


def serve(
    folder: Path,
    *,
    host: str = LOCAL,
    port: int | None = None,
    open_browser: bool = True,
    features: str = RUN,
    weights: Path | None = None,
    say: Say = print,
) -> None:
    """Serve the labeling page of a folder until Ctrl-C or SIGTERM.

    Args:
        host: the address to listen on. Any other than 127.0.0.1 lets others in who have the token.
        port: by default the one of the last time, else a free one.
        features: by which pictures are compared, to say what to label next and which labels to look at again: those of
            the newest `run`, once there is one; of their `pixels`; or of a network, `basic` or `timm:NAME`.
        weights: a file of a timm model's weights; without one it has timm's own, which timm downloads once.
        say: called with what the user should read.
    """
    if not folder.is_dir():
        raise MixMatchError(f"{folder} is not a folder" if folder.exists() else f"there is no folder {folder}")
    choice = Choice(features, weights)
    choice.check()
    home = home_of(folder)
    with locked(home) as held:
        check_links(home)
        record = read_record(home)
        place = [str(home.resolve()), home.stat().st_ino]
        token = token_at(place, record)
        wished, last = port, record.get("port")
        with listening(host, wished, last) as (sock, port):
            sock.listen(128)  # a browser that is fast has to wait, not to fail
            address = f"http://{_named(host)}:{port}/?token={token}"
            content = {"address": address, "port": port, "token": token, "place": place}
            if content != record:
                with explaining(f"cannot write {home / RECORD}", "fix that, then start again"):
                    replace_durably(home / RECORD, json.dumps(content).encode(), PRIVATE)
            opening = Opening(home, FirstPage.take(home, token))
            server = _server(opening, host, port, token)
            opening.stopping = lambda: server.should_exit
            reader = _Reader((folder, home, clean_name(_user()) or "me", choice), held, opening, server, say)
            if opening.first is None:
                reader.read()
            else:
                reader.start()
            try:
                _announce(folder, home, address, host, say)
                if wished is None and isinstance(last, int) and last != port:
                    say(
                        f"port {last}, used last time, is taken by another program: a page still open there, and "
                        f"labels waiting in it, need that port (stop, then start with --port {last})"
                    )
                if open_browser:
                    threading.Thread(target=_open, args=(address,), daemon=True).start()
                _run(server, sock)
            finally:
                given = reader.close(token)
    say(f"stopped; {count(given, 'label')} saved in {home}")


class _Reader(threading.Thread):
    """Reads the labels, and puts what can do everything in the place of what only shows the first page. It begins once
    something is asked for that needs it, and soon in any case: what is on the screen comes first."""

    def __init__(
        self,
        what: tuple[Path, Path, str, Choice],
        held: Callable[[], bool],
        opening: Opening,
        server: uvicorn.Server,
        say: Say,
    ) -> None:
        super().__init__(name="reader", daemon=True)
        self._what, self._held, self._opening, self._server, self._say = what, held, opening, server, say
        self._desk: Desk | None = None
        self._error: Exception | None = None

    def run(self) -> None:
        self._opening.wanted.wait(AT_LATEST)
        try:
            self.read()
        except Exception as error:
            self._error, self._opening.failed, self._server.should_exit = error, True, True

    def read(self) -> None:
        from mixmatch.label.desk import Desk  # with NumPy and all that reads pictures, which takes long to import
        from mixmatch.label.server import make_app

        desk = self._desk = Desk(*self._what)
        desk.book.log.holds = self._held
        for note in desk.book.log.notes:
            self._say(f"warning: {note}")
        if self._opening.first is not None:
            desk.check(self._opening.first)
        desk.start()
        self._opening.app, self._opening.first = make_app(desk), None

    def close(self, token: str) -> int:
        """End and save everything; returns how many labels there are."""
        if self.is_alive():
            self._opening.wanted.set()
            self.join()
        if self._desk is not None:
            try:
                self._desk.book.keep()
            finally:
                self._desk.close()
        if self._error is not None:
            raise self._error
        assert self._desk is not None
        with suppress(OSError):
            if (first := self._desk.first_page()) is not None:
                first.save(self._desk.home, token)
        return sum(mark.value >= 0 for mark in self._desk.book.state.marks.values())


def _server(app: ASGIApp, host: str, port: int, token: str) -> uvicorn.Server:
    hosts = {_named(host), socket.gethostname(), socket.getfqdn()} if not is_loopback(host) else {_named(host)}
    app = Guard(app, token=token, port=port, hosts=hosts, any_address=not is_loopback(host))
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=200,
        timeout_keep_alive=60,
        timeout_graceful_shutdown=3,
    )
    config.load()
    return uvicorn.Server(config)


def _run(server: uvicorn.Server, sock: socket.socket) -> None:
    """Serve until a signal comes."""
    # Once it has stopped, uvicorn raises the signal again that made it. Everything is still to be saved then.
    ended = signal.signal(signal.SIGTERM, lambda *_: None)
    sys.setswitchinterval(0.001)  # an answer must not wait long for a thread that looks for files
    try:
        with suppress(KeyboardInterrupt):
            server.run([sock])
    finally:
        signal.signal(signal.SIGTERM, ended)


@contextmanager
def listening(host: str, port: int | None, last: object) -> Iterator[tuple[socket.socket, int]]:
    """A socket that listens: at the port wished for, or at the last one if that is free, or at any."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    wishes = [port] if port is not None else [last if isinstance(last, int) else 0, 0]
    for wish in wishes:
        # With the protocol named, asyncio turns Nagle's algorithm off; else every answer waits 40 ms for its last part.
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, wish))
            break
        except (OSError, OverflowError) as error:
            sock.close()
            reason = getattr(error, "strerror", None) or error
            if wish == wishes[-1]:
                raise MixMatchError(f"cannot listen on {host} port={wish}: {reason}; choose another port=") from None
    with sock:
        yield sock, sock.getsockname()[1]


def is_loopback(host: str) -> bool:
    """
    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _named(host: str) -> str:
    """The address as it stands in a URL; a server on all addresses is reached by the machine's name."""
    if host in ("0.0.0.0", "::"):
        return socket.gethostname().lower()
    return f"[{host}]" if ":" in host else host


def _announce(folder: Path, home: Path, address: str, host: str, say: Say) -> None:
    if not is_loopback(host):
        say(
            f"WARNING: listening on {host}: everyone on the network who has the address below, with its token, can see "
            "the pictures and change labels, and the connection is not encrypted"
        )
    if (note := note_of(folder, home)) is not None:
        say(note)
    say(f"label {folder} at {address}")
    say("Ctrl-C stops; every label is saved when it is given")


def _user() -> str:
    try:
        return getuser()
    except (KeyError, OSError):  # a container without a name for its user
        return "me"


def _open(address: str) -> None:
    with suppress(webbrowser.Error):
        webbrowser.open(address)

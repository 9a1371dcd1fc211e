"""Start the server of a folder: one per folder, at an address that stays the same, until Ctrl-C."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import secrets
import signal
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from getpass import getuser
from pathlib import Path
from typing import Any

import uvicorn

from mixmatch.errors import MixMatchError, explaining
from mixmatch.label.answers import clean_name
from mixmatch.label.desk import Desk, home_of
from mixmatch.label.safety import Guard
from mixmatch.label.server import make_app
from mixmatch.label.thinking import RUN, Choice
from mixmatch.storage import PRIVATE, open_own, read_json, replace_durably, try_lock
from mixmatch.text import count

LOCAL = "127.0.0.1"
RECORD = "server.json"
"""Port and token, for its owner alone: the next start takes them again, so that an open page goes on."""

MOST_RECORD = 1 << 16
"""Bytes that it may have."""
ADDRESS = re.compile(r"http://[A-Za-z0-9._:\[\]-]{1,255}/\?token=[A-Za-z0-9_-]{1,128}")

Say = Callable[[str], None]


class AlreadyServed(MixMatchError):
    """Another process serves this folder; `address` is where."""

    def __init__(self, message: str, address: str | None) -> None:
        super().__init__(message)
        self.address = address


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
    with locked(home):
        record = _read_record(home)
        place = [str(home.resolve()), home.stat().st_ino]
        token = token_at(place, record)
        with listening(host, port, record.get("port")) as (sock, port):
            sock.listen(128)  # a browser that is fast has to wait, not to fail
            address = f"http://{_named(host)}:{port}/?token={token}"
            content = {"address": address, "port": port, "token": token, "place": place, "pid": os.getpid()}
            replace_durably(home / RECORD, json.dumps(content).encode(), PRIVATE)
            desk = Desk(folder, home, clean_name(_user()) or "me", choice)
            try:
                server = _server(desk, host, port, token)
                desk.start()
                _announce(desk, address, host, say)
                if open_browser:
                    threading.Thread(target=_open, args=(address,), daemon=True).start()
                _run(server, sock)
            finally:
                desk.close()
    given = sum(mark.value >= 0 for mark in desk.book.state.marks.values())
    say(f"stopped; {count(given, 'label')} saved in {home}")


def _server(desk: Desk, host: str, port: int, token: str) -> uvicorn.Server:
    hosts = {_named(host), socket.gethostname(), socket.getfqdn()} if not is_loopback(host) else {_named(host)}
    app = Guard(make_app(desk), token=token, port=port, hosts=hosts, any_address=not is_loopback(host))
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


def token_at(place: list[Any], record: Mapping[str, Any]) -> str:
    """The token of the last time, if that was at the same place: a folder that came from elsewhere brings one that
    others know."""
    known = record.get("token") if record.get("place") == place else None
    return known if isinstance(known, str) and known else secrets.token_urlsafe(32)


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """Hold a folder's labels against other servers; `AlreadyServed` names the one that has them."""
    with explaining(f"cannot keep labels in {home}"):
        home.mkdir(parents=True, exist_ok=True)
        file = os.fdopen(open_own(home / "lock"), "ab")
    with file:
        for _ in range(20):  # one that is just ending takes a moment
            if try_lock(file.fileno()):
                break
            time.sleep(0.05)
        else:
            address = _read_record(home).get("address")
            where = f" at {address}" if address else ""
            raise AlreadyServed(f"this folder is being labeled already{where}", address)
        yield


def _read_record(home: Path) -> dict[str, Any]:
    try:
        record = read_json(home / RECORD, MOST_RECORD)
    except (OSError, ValueError):
        return {}
    if not isinstance(record, dict):
        return {}
    address = record.get("address")
    known = isinstance(address, str) and ADDRESS.fullmatch(address)  # it is printed, and opened in the browser
    return record | {"address": address if known else None}


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


def _announce(desk: Desk, address: str, host: str, say: Say) -> None:
    if not is_loopback(host):
        say(
            f"WARNING: listening on {host}: everyone on the network who has the address below, with its token, can see "
            "the pictures and change labels, and the connection is not encrypted"
        )
    if desk.home.parent != desk.root:
        say(f"{desk.root} cannot be written to: labels are kept in {desk.home}")
    for note in desk.book.log.notes:
        say(f"warning: {note}")
    say(f"label {desk.root} at {address}")
    say("Ctrl-C stops; every label is saved when it is given")


def _user() -> str:
    try:
        return getuser()
    except (KeyError, OSError):  # a container without a name for its user
        return "me"


def _open(address: str) -> None:
    with suppress(webbrowser.Error):
        webbrowser.open(address)

"""A desk with a folder on it, and a client that may talk to its server."""

from __future__ import annotations

from pathlib import Path

from starlette.testclient import TestClient

from mixmatch.label.desk import Desk
from mixmatch.label.safety import Guard
from mixmatch.label.server import make_app

PORT, TOKEN = 8642, "the-token-of-these-tests"
OURS = f"http://127.0.0.1:{PORT}"


def opened(folder: Path) -> Desk:
    """A folder on the desk, its pictures found."""
    desk = Desk(folder, folder / ".mixmatch-labels", "ann")
    desk.start()
    desk.wait()
    return desk


def client_of(desk: Desk) -> TestClient:
    """A client with the cookie, as a browser has it after the first visit."""
    guarded = Guard(make_app(desk), token=TOKEN, port=PORT)
    client = TestClient(guarded, base_url=OURS, headers={"Origin": OURS})
    assert client.get(f"/?token={TOKEN}", follow_redirects=False).status_code == 303
    return client

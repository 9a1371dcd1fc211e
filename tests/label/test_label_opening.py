"""What the last server kept for the first page is shown at once, and the log alone is believed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from labeling import OURS, PORT, TOKEN, client_of, opened
from starlette.testclient import TestClient

from mixmatch.data.user.tree import Entry, Tree
from mixmatch.label import opening
from mixmatch.label.desk import Desk
from mixmatch.label.log import NAME as LOG
from mixmatch.label.opening import NAME, FirstPage, Opening
from mixmatch.label.safety import Guard
from mixmatch.label.server import make_app


def labeled(photos: Path) -> tuple[Path, dict[str, Any]]:
    """A folder whose server was used and has stopped; where it keeps things, and what it said at last."""
    desk = opened(photos)
    client = client_of(desk)
    client.post("/api/classes", json={"id": "class-add-1", "do": "add", "name": "cat"})
    client.post("/api/labels", json={"changes": [{"id": "label-0001", "n": [0, 1], "label": "cat", "before": None}]})
    for n in range(3):
        assert client.get(f"/thumb/{n}").status_code == 200
    said = {name: client.get(f"/api/{name}").json() for name in ("state", "images")}
    desk.close()
    first = desk.first_page()
    assert first is not None
    first.save(desk.home, TOKEN)
    return desk.home, said


def client_at(app: Opening) -> TestClient:
    client = TestClient(Guard(app, token=TOKEN, port=PORT), base_url=OURS, headers={"Origin": OURS})
    assert client.get(f"/?token={TOKEN}", follow_redirects=False).status_code == 303
    return client


def test_the_first_page_is_there_before_anything_is_read(photos: Path) -> None:
    home, said = labeled(photos)
    first = FirstPage.take(home, TOKEN)
    assert first is not None
    assert not (home / NAME).exists(), "a server that is killed leaves none"
    client = client_at(Opening(home, first))
    state, images = client.get("/api/state").json(), client.get("/api/images?from=0").json()
    for name in ("classes", "counts", "seq", "total", "exam", "undo"):
        assert state[name] == said["state"][name], name
    for name in ("name", "label", "who", "flags", "order", "listing", "version"):
        assert images[name] == said["images"][name], name
    assert client.get("/api/images?from=0", headers={"Accept-Encoding": "identity"}).json() == images
    assert client.get("/").text.startswith("<!DOCTYPE html>")
    assert "javascript" in client.get("/static/app.js").headers["content-type"]
    assert client.get(f"/thumb/0?v={images['version']}").content.startswith(b"\xff\xd8")
    again = Desk(photos, home, "ann")
    version = again.book.listing.version
    again.check(first)
    assert again.book.listing.version == version, "it was as the log says"
    assert again.view.state("ann") | {"rate": 0, "scanning": 0} == state | {"rate": 0, "scanning": 0}
    again.close()


def test_what_changes_something_or_asks_for_more_waits_for_the_log(photos: Path) -> None:
    home, _ = labeled(photos)
    app = Opening(home, FirstPage.take(home, TOKEN))
    client, answers = client_at(app), dict[str, Any]()
    other = client_at(app)
    other.cookies.set("mixmatch-who", "bob")
    change = {"id": "label-0002", "n": [3], "label": "cat", "before": None}
    asked: dict[str, Callable[[], Any]] = {
        "labels": lambda: client.post("/api/labels", json={"changes": [change]}).json()["saved"],
        "bob": lambda: other.get("/api/state").json()["who"],
        "more": lambda: client.get("/api/images?from=2").json()["from"],
    }
    threads = [
        threading.Thread(target=lambda name=name: answers.update({name: asked[name]()}), daemon=True) for name in asked
    ]
    for thread in threads:
        thread.start()
    assert app.wanted.wait(10)
    time.sleep(0.2)
    assert answers == {}
    desk = opened(photos)
    app.app = make_app(desk)
    for thread in threads:
        thread.join(20)
    assert answers == {"labels": ["label-0002"], "bob": "bob", "more": 2}
    desk.close()


def test_pages_read_everything_anew_where_they_were_shown_something_else(photos: Path) -> None:
    home, _ = labeled(photos)
    first = FirstPage.take(home, TOKEN)
    assert first is not None
    for other in (first._replace(content="0" * 64), first._replace(state=first.state | {"seq": 1})):
        desk = Desk(photos, home, "ann")
        desk.check(other)
        assert desk.book.listing.version != first.version
        desk.close()


def test_a_first_scan_that_is_cut_off_leaves_nothing_to_show(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a first page of pictures whose numbers were never kept, nor a labels.csv without those not found yet."""
    waiting = threading.Event()

    def slow(root: Path, found: Callable[[Entry], bool]) -> Tree:
        for n in range(3):
            found(Entry(f"unlabeled/{n}.png", 1, 1))
        waiting.set()
        desk._ended.wait(10)
        found(Entry("unlabeled/3.png", 1, 1))
        raise AssertionError("it goes on looking")

    with monkeypatch.context() as patch:
        patch.setattr("mixmatch.label.desk.scan", slow)
        patch.setattr("mixmatch.label.desk.CHUNK", 1)
        desk = Desk(photos, photos / ".mixmatch-labels", "ann")
        desk.start()
        assert waiting.wait(10)
        client = client_of(desk)
        client.post("/api/classes", json={"id": "class-add-1", "do": "add", "name": "cat"})
        change = {"id": "label-0001", "n": [0, 1], "label": "cat", "before": None}
        assert client.post("/api/labels", json={"changes": [change]}).status_code == 200
        desk.close()
    assert not any(thread.is_alive() for thread in desk._threads)
    assert desk.first_page() is None
    assert not {"labels.csv", "listing.json"} & {path.name for path in desk.home.iterdir()}
    again = opened(photos)
    assert sorted(again.book.state.marks) == ["cat/a.png", "dog/b.png", "unlabeled/0.png", "unlabeled/1.png"]
    again.close()
    assert again.first_page() is not None


def test_no_first_page_is_left_of_pictures_that_could_not_be_kept(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(photos).close()
    (photos / "new.png").write_bytes((photos / "cat" / "a.png").read_bytes())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("mixmatch.label.listing.replace_durably", full)
        desk = opened(photos)
        desk.close()
    assert desk.first_page() is None


@pytest.mark.parametrize("what", ["token", "log", "version", "content", "cut", "empty", "link", "none"])
def test_what_cannot_be_believed_is_not_shown(photos: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    home, _ = labeled(photos)
    kept = home / NAME
    content = kept.read_bytes()
    if what == "log":
        with (home / LOG).open("ab") as file:
            file.write(b"\n")
    elif what == "version":
        monkeypatch.setattr(opening, "__version__", "0.0.1")
    elif what == "link":
        kept.rename(home / "elsewhere")
        kept.symlink_to(home / "elsewhere")
    elif what != "token":
        changed = {"content": content.replace(b"cat", b"dog"), "cut": content[:-5], "empty": b""}
        kept.unlink()
        if what in changed:
            kept.write_bytes(changed[what])
    assert FirstPage.take(home, "another" if what == "token" else TOKEN) is None
    assert FirstPage.take(home, TOKEN) is None


@pytest.mark.parametrize(
    "path", ["nothing.js", "sub/app.js", "", "%00", "..%2f..%2f..%2fetc%2fpasswd", "//etc/passwd", "index.html/"]
)
def test_no_other_file_is_there_before_anything_is_read(photos: Path, path: str) -> None:
    home, _ = labeled(photos)
    answer = client_at(Opening(home, FirstPage.take(home, TOKEN))).get(f"/static/{path}")
    assert (answer.status_code, answer.json()) == (404, {"error": "there is no such file"})
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")


def test_what_waits_for_the_log_is_told_when_the_server_stops(photos: Path) -> None:
    home, _ = labeled(photos)
    app, answers = Opening(home, FirstPage.take(home, TOKEN)), list[int]()
    client = client_at(app)
    held = threading.Thread(
        target=lambda: answers.append(client.post("/api/undo", json={"id": "undo-0001"}).status_code), daemon=True
    )
    held.start()
    assert app.wanted.wait(10)
    app.stopping = lambda: True
    held.join(10)
    assert answers == [503]


def test_a_page_is_told_when_the_labels_cannot_be_read(photos: Path) -> None:
    home, _ = labeled(photos)
    app = Opening(home, None)
    client = client_at(app)
    app.failed = True
    assert client.get("/api/state").status_code == 500

"""Every rule that keeps other pages, other people and odd files out."""

from __future__ import annotations

import asyncio
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from labeling import OURS, PORT, TOKEN, client_of, opened
from PIL import Image
from starlette.testclient import TestClient

from mixmatch.data.user.tree import Entry
from mixmatch.errors import MixMatchError
from mixmatch.label.answers import BODY
from mixmatch.label.course import checked_about
from mixmatch.label.desk import Desk
from mixmatch.label.home import home_of, locked, note_of, token_at
from mixmatch.label.listing import load_listing
from mixmatch.label.program import Program
from mixmatch.label.safety import Guard
from mixmatch.label.server import make_app
from mixmatch.storage import try_lock

NOT_PICTURES = (b"", b"99", b"-1", b"1,1", b'"1"', b"1.0", b"true", b"1e99")
LABEL = {"changes": [{"id": "request-1", "n": [2], "label": "cat", "before": None}]}


def stranger(desk: Desk, **guard: object) -> TestClient:
    """A client that has nothing."""
    return TestClient(Guard(make_app(desk), token=TOKEN, port=PORT, **guard), base_url=OURS)  # type: ignore[arg-type]


def test_nothing_is_answered_without_the_token(desk: Desk) -> None:
    client = stranger(desk)
    for path in (
        "/",
        "/static/app.js",
        "/api/state",
        "/api/images",
        "/thumb/0",
        "/image/0",
        "/api/export?as=csv",
        "/x",
    ):
        answer = client.get(path)
        assert answer.status_code == 403, path
        assert "set-cookie" not in answer.headers
    assert client.post("/api/labels", json=LABEL, headers={"Origin": OURS}).status_code == 403
    for token in ("", "wrong", TOKEN[:-1], TOKEN + "x", "\u00e9"):
        answer = client.get("/", params={"token": token}, follow_redirects=False)
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers


def test_the_token_becomes_a_cookie_and_leaves_the_address(desk: Desk) -> None:
    answer = stranger(desk).get(f"/?token={TOKEN}&next=http://evil.test/", follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/"
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"mixmatch-{PORT}={TOKEN};")
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie


@pytest.mark.parametrize(
    "host",
    [
        "evil.test",
        f"evil.test:{PORT}",
        "127.0.0.1",
        "127.0.0.1:1",
        f"127.0.0.1.evil.test:{PORT}",
        f"10.0.0.1:{PORT}",
        "",
    ],
)
def test_a_name_that_is_pointed_at_us_is_refused_before_any_cookie(client: TestClient, host: str) -> None:
    """DNS rebinding: the browser takes us for evil.test, with Origin equal to Host and the cookie it was handed."""
    for request in (
        client.build_request("GET", f"/?token={TOKEN}"),
        client.build_request("GET", "/api/state"),
        client.build_request("POST", "/api/labels", json=LABEL, headers={"Origin": f"http://{host}"}),
    ):
        request.headers["Host"] = host
        answer = client.send(request)
        assert answer.status_code == 403
        assert answer.json() == {"error": "this server answers only at its own address"}
        assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("host", [f"localhost:{PORT}", f"[::1]:{PORT}", f"LOCALHOST:{PORT}"])
def test_our_own_names_are_answered(client: TestClient, host: str) -> None:
    request = client.build_request("GET", "/api/state", headers={"Host": host, "Cookie": f"mixmatch-{PORT}={TOKEN}"})
    assert client.send(request).status_code == 200


def test_a_server_for_others_takes_addresses_but_no_foreign_names(desk: Desk) -> None:
    client = stranger(desk, hosts=["desk.local"], any_address=True)
    cookie = {"Cookie": f"mixmatch-{PORT}={TOKEN}"}
    answers = {
        host: client.get("/api/state", headers={**cookie, "Host": f"{host}:{PORT}"}).status_code
        for host in ("192.168.0.7", "[fe80::1]", "desk.local", "evil.test", "192.168.0.7.evil.test")
    }
    assert list(answers.values()) == [200, 200, 200, 403, 403]
    assert client.get("/api/state", headers={"Host": f"192.168.0.7:{PORT}"}).status_code == 403, "the token, as ever"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": OURS}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "same-origin", "Origin": OURS}, 200),
        ({}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://evil.test"}, 403),
        ({"Origin": f"http://localhost:{PORT}"}, 403),
        ({"Origin": OURS, "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Origin": OURS, "Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": OURS, "Sec-Fetch-Site": "none"}, 403),
        ({"Origin": "http://evil.test", "Sec-Fetch-Site": "same-origin"}, 403),
        ({"Origin": OURS, "Content-Type": "text/plain"}, 415),
        ({"Origin": OURS, "Content-Type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_only_our_own_page_changes_anything(client: TestClient, headers: dict[str, str], status: int) -> None:
    del client.headers["Origin"]
    answer = client.post(
        "/api/labels", content=json.dumps(LABEL), headers={"Content-Type": "application/json", **headers}
    )
    assert answer.status_code == status


def test_other_methods_and_preflights_are_refused(client: TestClient) -> None:
    for method in ("OPTIONS", "PUT", "DELETE", "PATCH", "TRACE"):
        answer = client.request(method, "/api/labels", json=LABEL)
        assert answer.status_code == 405
        assert not [name for name in answer.headers if name.startswith("access-control")]
    assert client.get("/api/labels").status_code == 405
    assert client.post("/api/state", json={}).status_code == 405


def test_every_answer_carries_the_headers(client: TestClient) -> None:
    for path in ("/", "/api/state", "/api/images", "/thumb/0", "/thumb/99", "/nowhere"):
        headers = client.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers


@pytest.mark.parametrize(
    "path",
    [
        *("/static/..%2f__init__.py", "/static/../server.py", "/static/%2e%2e%2fserver.py", "/static//etc/passwd"),
        *("/thumb/..%2f..%2fetc%2fpasswd", "/thumb/-1", "/thumb/1e3", "/thumb/99", "/thumb/0.png", "/image/%30x"),
        *("/thumb/99999999999999999999999", "/static/", "/.mixmatch-labels/log.jsonl", "/static/index.html%00.js"),
        f"/thumb/{'9' * 5000}",
    ],
)
def test_no_path_leads_out(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_a_body_too_large_is_not_read(client: TestClient) -> None:
    headers = {"Content-Type": "application/json"}
    assert client.post("/api/labels", content=b" " * (BODY + 1), headers=headers).status_code == 413


def test_a_body_without_a_length_is_read_no_further_than_the_limit(desk: Desk) -> None:
    sent, answers = 0, list[Any]()

    async def receive() -> dict[str, Any]:
        nonlocal sent
        sent += 1 << 20
        return {"type": "http.request", "body": b" " * (1 << 20), "more_body": True}

    async def send(message: Any) -> None:
        answers.append(message)

    headers = {
        "host": OURS[7:],
        "origin": OURS,
        "cookie": f"mixmatch-{PORT}={TOKEN}",
        "content-type": "application/json",
    }
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/api/labels",
        "raw_path": b"/api/labels",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    asyncio.run(Guard(make_app(desk), token=TOKEN, port=PORT)(scope, receive, send))
    assert answers[0]["status"] == 413
    assert sent <= BODY + (2 << 20)

    async def leave() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    asyncio.run(Guard(make_app(desk), token=TOKEN, port=PORT)(scope, leave, send))  # a page that was closed is no bug


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b"3", b"null", b'{"changes": 3}', b"[" * 100_000, b"\xff\xfe", b'{"changes": [3]}'),
        *(
            b'{"changes": [{"id": "request-1", "n": %s, "label": "cat"}]}' % n
            for n in (b"[]", b"[99]", b"[-1]", b"[1,1]")
        ),
        *(
            b'{"changes": [{"id": "request-1", "n": [%s], "label": "cat"}]}' % n
            for n in (b'"1"', b"1.0", b"true", b"1e99")
        ),
        *(
            b'{"changes": [{"id": %s, "n": [1], "label": "cat"}]}' % i
            for i in (b"null", b'"short"', b'"../../etc"', b"1")
        ),
        b'{"changes": [{"id": "request-1", "n": [1], "label": ["cat"]}]}',
        b'{"changes": [{"id": "request-1", "n": [1], "label": "cat", "before": [1]}]}',
        b'{"changes": [{"id": "request-1", "n": [1], "label": "cat", "source": "folder"}]}',
        b'{"changes": [], "since": -1}',
    ],
)
def test_what_our_page_would_not_send_is_refused(desk: Desk, client: TestClient, content: bytes) -> None:
    before = desk.book.state.seq
    answer = client.post("/api/labels", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert "\n" not in answer.json()["error"]
    assert desk.book.state.seq == before


def test_a_file_is_never_sent_as_it_is(desk: Desk, client: TestClient) -> None:
    """An SVG with a script in it, named like an image that runs another one."""
    names = client.get("/api/images").json()["name"]
    n = names.index("unlabeled/<img src=x onerror=alert(1)>.jpg")
    for path in (f"/thumb/{n}", f"/image/{n}"):
        answer = client.get(path)
        assert answer.status_code == 422
        assert answer.headers["content-type"] == "application/json"
        assert answer.json() == {"error": "not an image in a known format"}
    assert client.get("/api/images").json()["flags"][n] == 16
    assert client.get(f"/api/picture/{n}").json()["readable"] is False


def test_pictures_are_made_anew(tmp_path: Path) -> None:
    """Whatever a file holds beside its pixels stays at home: where it was taken, or a page after its end."""
    folder = tmp_path / "photos"
    folder.mkdir()
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "SECRET CAMERA"  # turned by 90 degrees
    out = io.BytesIO()
    Image.new("RGB", (400, 100), "red").save(out, "JPEG", exif=exif)
    (folder / "a.jpg").write_bytes(out.getvalue() + b"<script>alert(1)</script>")
    desk = opened(folder)
    try:
        answer = client_of(desk).get("/thumb/0")
        assert answer.headers["content-type"] == "image/jpeg"
        assert b"SECRET" not in answer.content
        assert b"script" not in answer.content
        assert Image.open(io.BytesIO(answer.content)).size == (64, 256)
    finally:
        desk.close()


def test_a_bomb_and_a_slow_file_cost_the_decoder_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    Image.new("1", (20_000, 20_000)).save(folder / "bomb.png")
    Image.new("RGB", (8, 8)).save(folder / "fine.png")
    os.mkfifo(folder / "pipe.png")  # a file that never says anything
    Image.new("L", (9000, 9000)).save(folder / "slow.png", compress_level=1)
    desk = opened(folder)
    try:
        client = client_of(desk)
        names = client.get("/api/images").json()["name"]
        asked = {name: f"/thumb/{n}" for n, name in enumerate(names)}
        with monkeypatch.context() as patch:
            patch.setattr("mixmatch.label.pictures.SECONDS", 0.02)
            assert "longer than 0 s" in client.get(asked["slow.png"]).json()["error"]
        assert "decompression bomb" in client.get(asked["bomb.png"]).json()["error"]
        assert "not a plain file" in client.get(asked["pipe.png"]).json()["error"]
        assert client.get(asked["fine.png"]).status_code == 200
    finally:
        desk.close()


def test_a_name_of_a_person_or_class_is_only_text(client: TestClient) -> None:
    odd = "<script>alert(1)</script>"
    assert client.post("/api/who", json={"who": odd}).json() == {"who": odd}
    client.post("/api/classes", json={"id": "class-add-1", "do": "add", "name": odd})
    answer = client.get("/api/state")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["who"] == odd
    assert answer.json()["classes"][-1]["name"] == odd
    for bad in ("", " ", "a\r\nSet-Cookie: x=y", None, 3):
        assert client.post("/api/who", json={"who": bad}).status_code == 422


# ----------------------------------------------------------------------------- a folder of labels that came from anyone


@pytest.mark.parametrize("name", [".mixmatch-labels", ".mixmatch-labels/log.jsonl"])
def test_labels_are_not_written_through_a_link(photos: Path, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    if name.endswith("log.jsonl"):
        outside.write_text("a line\nno newline at the end")
    else:
        outside.mkdir()
    (photos / name).parent.mkdir(exist_ok=True)
    (photos / name).symlink_to(outside)
    with pytest.raises(MixMatchError, match="it is a link, which is not followed here"):
        Desk(photos, home_of(photos), "ann")
    assert not outside.is_dir() or not list(outside.iterdir())
    assert outside.is_dir() or outside.read_text() == "a line\nno newline at the end"


@pytest.mark.parametrize("name", ["log.jsonl", "set-aside.txt"])
def test_another_name_of_a_file_is_not_written_to(photos: Path, tmp_path: Path, name: str) -> None:
    """A hard link: the file may be anybody's, or a backup."""
    home, outside = home_of(photos), tmp_path / "outside"
    home.mkdir(exist_ok=True)
    (home / "log.jsonl").write_text("a line\nno newline at the end")
    outside.write_bytes((home / "log.jsonl").read_bytes())
    (home / name).unlink(missing_ok=True)
    (home / name).hardlink_to(outside)
    desk = Desk(photos, home, "ann")
    try:
        desk.start()
        desk.wait()
        asked = {"id": "class-add-1", "do": "add", "name": "ostrich"}
        assert client_of(desk).post("/api/classes", json=asked).status_code == 200
    finally:
        desk.close()
    assert outside.read_text() == "a line\nno newline at the end"
    assert "ostrich" in (home / "log.jsonl").read_text()


def test_labels_stay_where_they_were_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that can be written to no more, or only now, must not look as if its labels were lost."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    folder = tmp_path / "photos"
    folder.mkdir()
    beside = folder / ".mixmatch-labels"

    def read_only(path: Path) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr("mixmatch.label.home.temporary", read_only)
        patch.setattr(os, "access", lambda path, mode: False)
        apart = home_of(folder)
        assert apart.is_relative_to(tmp_path / "data")
        assert note_of(folder, apart) == f"{folder} cannot be written to: labels are kept in {apart}"
    assert home_of(folder) == beside, "there were none yet"
    assert note_of(folder, beside) is None
    apart.mkdir(parents=True)
    (apart / "log.jsonl").touch()
    assert home_of(folder) == apart
    assert not beside.exists()
    assert f"labels are kept in {apart}, where they were begun; " in str(note_of(folder, apart))
    beside.mkdir()
    (beside / "log.jsonl").touch()
    assert home_of(folder) == beside
    assert f"other labels of this folder in {apart}: " in str(note_of(folder, beside))
    monkeypatch.setattr("mixmatch.label.home.temporary", read_only)
    with pytest.raises(MixMatchError, match=r"which cannot be written to \(Permission denied\): make it writable"):
        home_of(folder)


def test_a_user_without_a_home_labels_a_folder_that_can_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def homeless(path: Path) -> Any:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", homeless)
    assert home_of(tmp_path) == tmp_path / ".mixmatch-labels"
    assert note_of(tmp_path, home_of(tmp_path)) is None
    (tmp_path / "file").touch()
    with pytest.raises(MixMatchError, match=r"Not a directory.*name one in XDG_DATA_HOME"):
        home_of(tmp_path / "file")


def test_a_token_that_came_with_the_folder_is_not_taken_over() -> None:
    record = {"token": TOKEN, "place": ["/home/ann/photos/.mixmatch-labels", 7]}
    assert token_at(record["place"], record) == TOKEN  # type: ignore[arg-type]
    for place in (["/home/ann/photos/.mixmatch-labels", 8], ["/home/bob/photos/.mixmatch-labels", 7]):
        assert token_at(place, record) != TOKEN
    assert len(token_at([], {"token": TOKEN})) > 40


def about(**values: Any) -> dict[str, Any]:
    kept = {"state": "running", "method": "mixmatch", "steps": 10, "image_size": None, "options": {}, "began": 1.0}
    return {**kept, "labels": 4, "tests": 0, "seq": 1, **values}


def test_a_training_that_came_with_the_folder_ends_no_process(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lock is a second name of one that is held, and its process all of the user's."""
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append(pid))
    home = photos / ".mixmatch-labels"
    for number, pid in enumerate((-1, 0, 1, os.getpid()), 1):
        run = f"run-{number:04}"
        (home / "trainings" / run).mkdir(parents=True)
        (home / "trainings" / run / "about.json").write_text(json.dumps(about(pid=pid)))
        (home / "runs" / run).mkdir(parents=True)
    with locked(home):
        (home / "runs" / "run-0001" / ".lock").symlink_to(home / "lock")
        (home / "runs" / "run-0004" / ".lock").hardlink_to(home / "lock")
        held = os.open(home / "runs" / "run-0002" / ".lock", os.O_RDWR | os.O_CREAT)
        assert try_lock(held)
        desk = Desk(photos, home, "ann")
        os.close(held)
        desk.close()
    assert killed == []
    assert [each["state"] for each in desk.trainings._about.values()] == ["stopped"] * 4


@pytest.mark.parametrize(
    "odd",
    [
        {"options": {"out": "/tmp/elsewhere"}},
        {"options": {"network": "--out=x y"}},
        {"method": "../x"},
        {"method": "--config"},
        {"seq": 10**400},
        {"exam": {"run": 1}},
        {"state": "odd"},
        {"steps": "1"},
        {"seconds": "1"},
        {"classes": 3},
        {"seq": None},
    ],
)
def test_what_is_kept_of_a_training_becomes_a_command_only_if_it_makes_sense(tmp_path: Path, odd: Any) -> None:
    path = tmp_path / "run-0001" / "about.json"
    path.parent.mkdir()
    path.write_text(json.dumps(about()))
    assert checked_about(path) == about()
    path.write_text(json.dumps(about(**odd)))
    assert checked_about(path) is None


def test_a_list_of_pictures_that_leads_out_is_not_believed(photos: Path) -> None:
    home = photos / ".mixmatch-labels"
    for odd in ("/etc/x.png", "../x.png", "a/../../x.png"):
        listing = load_listing(home)
        for file in ("a..b.png", odd):
            listing.add(Entry(file, 1, 1))
        home.mkdir(exist_ok=True)
        listing.save(home)
        assert len(load_listing(home)) == 0


def test_a_report_that_is_a_link_is_not_shown(desk: Desk, client: TestClient, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    desk.trainings._about["run-0001"] = about(state="done")
    (desk.home / "runs" / "run-0001").mkdir(parents=True)
    (desk.home / "runs" / "run-0001" / "report.html").symlink_to(tmp_path / "secret")
    assert client.get("/api/report/run-0001").status_code == 404


@pytest.mark.parametrize("name", ["copies", "thumbnails", "trainings", "runs/run-0001", "lock", "set-aside.txt"])
def test_no_link_in_a_folder_of_labels_is_followed(photos: Path, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    mine = outside / "log-2020-01-01.jsonl"
    mine.write_text("mine")
    home = photos / ".mixmatch-labels"
    (home / name).parent.mkdir(parents=True)
    (home / name).symlink_to(mine if name in ("lock", "set-aside.txt") else outside)
    (home / "log.jsonl").write_text("damaged\n")
    with pytest.raises(MixMatchError, match="link, which is not followed"), locked(home_of(photos)):
        opened(photos)
    assert [path.name for path in outside.iterdir()] == [mine.name]
    assert mine.read_text() == "mine"
    assert (home / "log.jsonl").read_text() == "damaged\n"


def test_what_a_program_says_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "output.txt").symlink_to(tmp_path / "mine.txt")
    assert Program(["this"], tmp_path / "output.txt").wait(30) == 0
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert "Zen" in (tmp_path / "output.txt").read_text()


@pytest.mark.parametrize(
    "event",
    [
        {"kind": "label", "label": 5, "files": ["a.png"], "source": "key"},
        {"kind": "label", "label": "cat", "files": ["../../secret.png"], "source": "key"},
        {"kind": "label", "label": "cat", "files": ["/dev/zero"], "source": "key"},
        {"kind": "class", "do": "rename", "name": "cat", "to": ["dog"]},
        {"kind": "content", "files": ["a.png", "b.png"], "hashes": ["1"]},
        {"kind": "undo", "of": 1, "files": ["a.png"], "labels": []},
    ],
)
def test_a_line_that_no_page_has_written_is_set_aside(photos: Path, event: dict[str, Any]) -> None:
    home = photos / ".mixmatch-labels"
    home.mkdir()
    line = json.dumps({"seq": 1, "t": 1.0, "who": "ann", **event})
    (home / "log.jsonl").write_text(line + "\n")
    desk = opened(photos)
    try:
        assert "1 line of" in desk.book.log.notes[0]
        assert (home / "set-aside.txt").read_text() == line + "\n"
        assert set(desk.book.state.marks) == {"cat/a.png", "dog/b.png"}
    finally:
        desk.close()

"""`mixmatch label` as a process: one per folder, the same address again, everything saved when it is stopped, and a
training from its first label to its guesses."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from mixmatch.label.serve import listening, serve

STARTED = re.compile(r"at (http://\S+/\?token=\S+)")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of zeros and ones; the name says which."""
    folder, data = tmp_path_factory.mktemp("label") / "digits", load_digits()
    folder.mkdir()
    for i in np.flatnonzero(data.target < 2)[:120]:
        Image.fromarray((data.images[i] * 15).astype(np.uint8)).save(folder / f"{data.target[i]}-{i}.png")
    return folder


class Page:
    """What the browser does."""

    def __init__(self, address: str) -> None:
        self.client = httpx.Client(base_url=address.partition("/?")[0], timeout=60)
        self.client.headers["Origin"] = address.partition("/?")[0]
        assert self.client.get(address).status_code == 303

    def get(self, path: str) -> Any:
        return self.client.get(f"/api/{path}").raise_for_status().json()

    def post(self, path: str, **body: Any) -> Any:
        answer = self.client.post(f"/api/{path}", json={"id": uuid4().hex, **body})
        return answer.raise_for_status().json()

    def label(self, numbers: list[int], value: str, source: str = "key") -> Any:
        change = {
            "id": uuid4().hex,
            "n": numbers,
            "label": value,
            "before": None,
            "source": source,
        }
        return self.post("labels", changes=[change])

    def wait(self, path: str, until: Any, seconds: float = 120) -> Any:
        began = time.monotonic()
        while not until(body := self.get(path)):
            assert body.get("error") is None, body["error"]
            assert time.monotonic() - began < seconds, body
            time.sleep(0.2)
        return body


@contextmanager
def serving(
    folder: Path, *options: str, stop: signal.Signals = signal.SIGTERM, code: int = 0
) -> Iterator[tuple[str, list[str]]]:
    """A server's address, and the lines it says until it has stopped."""
    command = [sys.executable, "-m", "mixmatch", "label", str(folder), "--no-browser", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    late = threading.Timer(300, process.kill)
    late.start()
    said = [process.stderr.readline()]
    try:
        while not (found := STARTED.search(said[-1])):
            assert said[-1], said
            said.append(process.stderr.readline())
        yield found[1], said
    finally:
        process.send_signal(stop)
        try:
            said += process.communicate(timeout=60)[1].splitlines()
        finally:
            process.kill()
            late.cancel()
    if stop != signal.SIGKILL:
        assert process.returncode == code, said
        assert ("stopped" in said[-1]) == (code == 0)


def test_a_folder_has_one_server_which_saves_everything_and_comes_back(digits: Path) -> None:
    with serving(digits) as (first, said):
        page = Page(first)
        page.wait("state", lambda body: not body["scanning"])
        page.post("classes", do="add", name="zero")
        page.label([0], "zero")
        again = subprocess.run(
            [sys.executable, "-m", "mixmatch", "label", str(digits), "--no-browser"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (again.returncode, again.stdout) == (0, "")
        assert f"being labeled already at {first}" in again.stderr
        record = digits / ".mixmatch-labels" / "server.json"
        assert record.stat().st_mode & 0o777 == 0o600, "the token is for its owner"
    assert said[-1].startswith("stopped; 1 label saved in ")
    assert (digits / ".mixmatch-labels" / "labels.csv").read_text().splitlines()[1:] == ["0-0.png,zero,train"]
    with serving(digits, stop=signal.SIGINT) as (second, _):
        assert second == first, "an open page goes on"
        assert page.get("state")["counts"]["labeled"] == 1
    with serving(digits, "--host", "0.0.0.0", stop=signal.SIGKILL) as (_, said):
        assert said[0].startswith("WARNING: listening on 0.0.0.0: everyone on the network")


def test_a_folder_of_labels_that_is_removed_is_written_again_or_left_to_the_next_server(
    digits: Path, tmp_path: Path
) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for path in sorted(digits.glob("*.png"))[:4]:
        shutil.copy(path, photos)
    home = photos / ".mixmatch-labels"
    with serving(photos) as (address, said):
        page = Page(address)
        page.wait("state", lambda body: not body["scanning"])
        page.post("classes", do="add", name="zero")
        page.label([0], "zero")
        shutil.rmtree(home)
    assert said[-1].startswith("stopped; 1 label saved in ")
    assert b'"zero"' in (home / "log.jsonl").read_bytes()
    with serving(photos, code=2) as (address, said):
        page = Page(address)
        page.wait("state", lambda body: not body["scanning"])
        shutil.rmtree(home)
        with serving(photos) as (second, _):
            other = Page(second)
            other.wait("state", lambda body: not body["scanning"])
            other.post("classes", do="add", name="one")
            other.label([1], "one")
            with pytest.raises(httpx.HTTPStatusError, match="507"):
                page.label([2], "zero")
            assert "another server labels this folder now" in page.get("state")["disk"]
            other.label([2], "one")
    assert re.fullmatch("error: .*log.jsonl was replaced by another program: start again .*", said[-1])
    with serving(photos) as (third, _):
        assert Page(third).get("state")["counts"]["labeled"] == 2
    assert b"zero" not in (home / "log.jsonl").read_bytes()


def test_a_training_from_labels_to_guesses(digits: Path) -> None:
    """On a copy of the labels, stopped and resumed, while labeling goes on; the error is that of the exam."""
    with serving(digits) as (address, _):
        page = Page(address)
        page.wait("state", lambda body: not body["scanning"])
        names = page.get("images")["name"]
        for name in ("zero", "one"):
            if name not in [c["name"] for c in page.get("state")["classes"]]:
                page.post("classes", do="add", name=name)
        kinds = {"zero": "0", "one": "1"}
        with pytest.raises(httpx.HTTPStatusError, match="422"):
            page.post("train")  # too few labels
        drawn = page.post("exam", more=30)["drawn"]
        for value, first in kinds.items():
            page.label([n for n in drawn if names[n].startswith(first)], value, "exam")
            free = [
                n for n, label in enumerate(page.get("images")["label"]) if label == -1 and names[n].startswith(first)
            ]
            page.label(free[:5], value)
        free_before = [n for n, label in enumerate(page.get("images")["label"]) if label >= 0 and n not in drawn]
        assert page.post("train", steps=100, method="supervised")["state"] == "running"
        page.wait("train", lambda body: body["step"] > 0)
        assert page.label(free[5:6], "one")["train"]["changed"] == 1, "labeling goes on"
        assert page.post("train/stop")["state"] in ("stopping", "stopped")
        stopped = page.wait("train", lambda body: body["state"] == "stopped")
        assert (stopped["run"], stopped["error"]) == ("run-0001", None)
    with serving(digits) as (address, _):
        page = Page(address)
        before = page.get("train")
        assert (before["state"], before["step"] < 100) == ("stopped", True), "over a restart"
        page.post("train", resume="run-0001")
        done = page.wait("train", lambda body: body["state"] in ("done", "failed"))
        assert (done["state"], done["run"], done["error"]) == ("done", "run-0001", None)
        steps = [point["step"] for point in done["curve"]]
        assert steps == list(range(4, 101, 4)), "resumed, not begun again"
        last = done["curve"][-1]
        assert (last["n"], last["wrong"]) == (30, done["exam"]["wrong"]), "the exam and nothing else"
        assert last["low"] <= last["error"] <= last["high"]
        guesses, images = page.get("groups?least=0.5"), page.get("images")
        assert guesses["run"] == "run-0001"
        assert not set(drawn) & {n for group in guesses["groups"] for n in group["n"]}
        right = [names[n][0] == kinds[group["class"]] for group in guesses["groups"] for n in group["n"]]
        assert np.mean(right) > 0.75  # of five labels per class, drawn at random
        assert sum(guess >= 0 for guess in images["guess"]) == 90
        assert "<html" in page.client.get("/api/report/run-0001").text
        (run,) = done["history"]
        assert (run["labels"], run["exam"]["n"], run["report"]) == (len(free_before), 30, True)
    with serving(digits) as (address, _):
        page = Page(address)
        assert page.wait("state", lambda body: not body["scanning"])["guesses"] == {"run": "run-0001", "count": 120}


def test_what_to_label_next_and_what_to_doubt(digits: Path) -> None:
    """Typical pictures come first, and a label that is wrong is found by its neighbors and by models without it."""
    with serving(digits) as (address, _):
        page = Page(address)
        page.wait("state", lambda body: not body["scanning"])
        suggested = page.wait("next?k=20", lambda body: body["ready"])
        images = page.get("images")
        label, names = images["label"], images["name"]
        known = {c["name"] for c in page.get("state")["classes"]}
        for name in {"zero", "one"} - known:
            page.post("classes", do="add", name=name)
        if page.get("state")["guesses"] is None:
            assert (suggested["rule"], suggested["features"]) == ("typical", "pixels")
        assert len({item["n"] for item in suggested["items"]}) == 20
        assert all(
            label[item["n"]] == -1 and images["flags"][item["n"]] == 0 and item["why"] for item in suggested["items"]
        )
        free = [n for n in range(len(names)) if label[n] == -1 and images["flags"][n] == 0]
        of_kind = {first: [n for n in free if names[n].startswith(first)] for first in "01"}
        wrong = of_kind["0"].pop()
        page.label(of_kind["0"][:25], "zero", "next")
        page.label([*of_kind["1"][:25], wrong], "one")
        doubts = page.wait("suspects", lambda body: body["ready"] and body["items"])
        assert doubts["items"][0]["n"] == wrong
        assert (doubts["items"][0]["label"], doubts["items"][0]["instead"]) == ("one", "zero")
        page.post("undo")
        assert wrong not in [item["n"] for item in page.get("suspects")["items"]], "not shown once it is mended"


def test_pictures_are_compared_by_the_features_the_user_chose(digits: Path) -> None:
    with serving(digits, "--features", "basic") as (address, _):
        page = Page(address)
        page.wait("state", lambda body: not body["scanning"])
        suggested = page.wait("next?k=10", lambda body: body["ready"])
        assert (suggested["features"], len(suggested["items"])) == ("basic", 10)  # though there may be a run
        why = page.wait("suspects", lambda body: body["ready"])["why"]
        assert "features: basic" in why or "too few labels" in why  # those of another test may be there
    wrong = [sys.executable, "-m", "mixmatch", "label", str(digits), "--features", "basic", "--weights", "w.pth"]
    refused = subprocess.run(wrong, capture_output=True, text=True, timeout=60)
    assert (refused.returncode, refused.stderr) == (2, "error: --weights is for --features timm:NAME: leave it out\n")


def test_what_keeps_it_from_starting_is_one_line(tmp_path: Path) -> None:
    record = tmp_path / ".mixmatch-labels" / "server.json"
    record.mkdir(parents=True)
    for folder, reason in {
        "~nobody-of-this-name/x": "a path begins with ~ and an unknown user name: write it in full",
        str(tmp_path): f"cannot write {record}: Is a directory; fix that, then start again",
    }.items():
        command = [sys.executable, "-m", "mixmatch", "label", folder, "--no-browser"]
        refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (refused.returncode, refused.stderr) == (2, f"error: {reason}\n")


def test_a_port_that_was_taken_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels that wait in a page at the last port come through that port alone."""
    monkeypatch.setattr("mixmatch.label.serve._run", lambda server, sock: None)
    said: list[list[str]] = []

    def start() -> int:
        said.append([])
        serve(tmp_path, open_browser=False, say=said[-1].append)
        return json.loads((tmp_path / ".mixmatch-labels" / "server.json").read_text())["port"]  # type: ignore[no-any-return]

    first = start()
    assert start() == first
    with socket.create_server(("127.0.0.1", first)):
        assert start() != first
    assert [any(f"--port {first}" in line for line in lines) for lines in said] == [False, False, True]


def test_answers_do_not_wait_for_their_last_part() -> None:
    """asyncio turns Nagle's algorithm off only where the protocol is named; else each answer takes 40 ms more."""
    with listening("127.0.0.1", None, None) as (sock, port):
        sock.listen()
        with socket.create_connection(("127.0.0.1", port)) as _:
            accepted, _ = sock.accept()
            with accepted:
                assert accepted.proto == socket.IPPROTO_TCP

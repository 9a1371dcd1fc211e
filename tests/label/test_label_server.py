"""What the page can ask for, over HTTP, on a small folder."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labeling import client_of, opened
from PIL import Image
from starlette.testclient import TestClient

from mixmatch.data.user.folder import read_folder
from mixmatch.data.user.tree import Entry
from mixmatch.label.body import encode
from mixmatch.label.desk import Desk
from mixmatch.label.guess import as_half
from mixmatch.label.listing import Listing, load_listing
from mixmatch.label.program import Program
from mixmatch.label.state import NONE
from mixmatch.label.view import Guesses

CAT, DOG = 0, 1  # the classes that the folders name


def post(client: TestClient, path: str, **body: Any) -> Any:
    return client.post(f"/api/{path}", json=body)


def label(client: TestClient, id: str, numbers: list[int], value: str | None, before: Any = None, **more: Any) -> Any:
    return post(client, "labels", changes=[{"id": id, "n": numbers, "label": value, "before": before, **more}])


def until(client: TestClient, path: str, name: str, value: object = True) -> Any:
    """What is answered once this is so: some things are done in the background."""
    for _ in range(600):
        if (answer := client.get(f"/api/{path}").json())[name] == value:
            return answer
        time.sleep(0.05)
    raise AssertionError(f"{name} did not become {value}")


def numbers(client: TestClient) -> dict[str, int]:
    return {name: n for n, name in enumerate(client.get("/api/images").json()["name"])}


def test_labels_of_folders_are_taken_over(client: TestClient) -> None:
    state, images = client.get("/api/state").json(), client.get("/api/images").json()
    assert [(c["name"], c["key"], c["labeled"]) for c in state["classes"]] == [("cat", "1", 1), ("dog", "2", 1)]
    assert state["notes"] == [{"key": "takeover", "text": "2 labels imported from the folders cat, dog"}]
    assert images["name"][:3] == ["cat/a.png", "dog/b.png", "unlabeled/0.png"]
    assert images["label"] == [CAT, DOG, -1, -1, -1, -1, -1]
    assert images["flags"] == [32, 32, 0, 0, 0, 0, 0]
    assert state["undo"] is None, "nobody undoes what was there"
    assert state["counts"]["labeled"] == 2
    assert state["counts"]["mine"] == 0


def test_a_label_is_saved_and_undone(client: TestClient) -> None:
    since = client.get("/api/state").json()["seq"]
    answer = label(client, "label-001", [2, 3], "cat")
    assert answer.status_code == 200
    body = answer.json()
    assert (body["saved"], body["conflicts"]) == (["label-001"], [])
    changes = client.get(f"/api/changes?since={since}").json()
    assert changes["pictures"] == {"n": [2, 3], "label": [CAT, CAT], "who": [0, 0], "flags": [0, 0]}
    assert changes["undo"] == {"what": "2 labeled cat", "count": 2}
    assert (changes["counts"]["mine"], changes["rate"]["minute"]) == (2, 2)
    undone = post(client, "undo", id="undo-0001", since=changes["seq"]).json()
    assert undone["undone"] == {"what": "2 labeled cat", "left": None, "n": [2, 3], "kept": []}
    assert undone["pictures"]["label"] == [-1, -1]
    assert undone["rate"]["minute"] == 0
    redone = post(client, "redo", id="redo-0001", since=undone["seq"]).json()
    assert redone["pictures"]["label"] == [CAT, CAT]
    assert post(client, "redo", id="redo-0002").json() == {"error": "there is nothing to redo"}
    history = client.get("/api/picture/2").json()["history"]
    assert [(h["what"], h["source"]) for h in history] == [("cat", "redo"), (None, "undo"), ("cat", "key")]


def test_marks_and_unknown_classes(client: TestClient) -> None:
    for i, mark in enumerate((":skip", ":none", ":broken")):
        assert label(client, f"label-00{i}", [2 + i], mark).status_code == 200
    body = client.get("/api/changes?since=0").json()
    assert [body["counts"][name] for name in ("skip", "none", "broken")] == [1, 1, 1]
    answer = label(client, "label-009", [5], "lynx")
    assert (answer.status_code, answer.json()) == (422, {"error": "there is no class 'lynx': add it first"})


def test_two_people_in_conflict_see_both(desk: Desk, client: TestClient) -> None:
    other = client_of(desk)
    assert post(other, "who", who="bob").json() == {"who": "bob"}
    label(client, "label-001", [2], "cat")
    answer = label(other, "label-002", [2, 3], "dog")
    assert answer.status_code == 409
    body = answer.json()
    (conflict,) = body["conflicts"]
    assert conflict == {"id": "label-002", "n": 2, "yours": "dog", "theirs": "cat", "who": "ann", "before": None}
    assert (body["saved"], body["counts"]["conflicts"], body["who"]) == (["label-002"], 1, "bob")
    seen = client.get("/api/images").json()
    assert (seen["label"][2:4], seen["flags"][2]) == ([CAT, DOG], 4)
    assert label(client, "label-003", [2], "cat", "cat").json()["counts"]["conflicts"] == 0
    desk.book.clock = lambda: 1000.0  # the clock is set back: nothing was given in the minute before
    assert set(client.get("/api/state").json()["rate"].values()) == {0}
    assert client.get("/api/state").json()["people"] == ["ann", "bob"]


def test_a_conflict_stays_where_the_label_that_counts_is_taken_back(photos: Path) -> None:
    desk = opened(photos)
    client = client_of(desk)
    label(client, "label-001", [2], "cat")
    client.cookies.set("mixmatch-who", "bob")
    label(client, "label-002", [2], "dog")
    client.cookies.delete("mixmatch-who")
    assert post(client, "undo", id="undo-0001").json()["pictures"]["flags"] == [4]
    desk.close()
    desk = opened(photos)
    assert client_of(desk).get("/api/images").json()["flags"][2] == 4
    desk.close()


def test_numbers_of_another_listing_are_refused(client: TestClient) -> None:
    listing = client.get("/api/state").json()["listing"]
    answer = post(client, "labels", changes=[], listing="another")
    assert (answer.status_code, answer.json()["listing"]) == (410, listing)
    assert post(client, "labels", changes=[], listing=listing).status_code == 200


def test_numbers_and_labels_stay_over_a_restart_with_new_files(photos: Path) -> None:
    desk = opened(photos)
    client = client_of(desk)
    label(client, "label-001", [2], "cat")
    before = client.get("/api/images").json()
    desk.close()
    Image.new("RGB", (8, 8)).save(photos / "aaa.png")  # the first by name
    (photos / "unlabeled" / "3.png").unlink()
    desk = opened(photos)
    client = client_of(desk)
    after = client.get("/api/images").json()
    assert after["listing"] == before["listing"]
    assert after["version"] != before["version"], "pages fetch pictures anew"
    assert after["name"] == [*before["name"], "aaa.png"]
    assert after["label"][2] == CAT
    gone = after["name"].index("unlabeled/3.png")
    assert after["flags"][gone] == 8
    assert client.get(f"/thumb/{gone}").status_code == 404
    assert after["order"][0] == after["name"].index("aaa.png")
    assert post(client, "undo", id="undo-0001").json()["undone"]["n"] == [2], "over a restart too"
    desk.close()


def test_a_picture_that_moved_keeps_its_label(photos: Path) -> None:
    desk = opened(photos)
    label(client_of(desk), "label-001", [2, 3], "cat")
    desk._remember_contents()
    desk.close()
    (photos / "sorted").mkdir()
    (photos / "unlabeled" / "0.png").rename(photos / "sorted" / "zero.png")
    desk = opened(photos)
    client = client_of(desk)
    images = client.get("/api/images").json()
    assert images["label"][images["name"].index("sorted/zero.png")] == CAT
    notes = {note["key"]: note["text"] for note in client.get("/api/state").json()["notes"]}
    assert "unlabeled/0.png is now sorted/zero.png" in notes["moved"]
    desk.close()


def test_pictures_that_cannot_be_read_are_not_left_out_without_a_word(photos: Path) -> None:
    (photos / "camera.NEF").touch()
    desk = opened(photos)
    client = client_of(desk)

    def notes() -> dict[str, str]:
        desk.wait()
        return {note["text"]: note["key"] for note in client.get("/api/state").json()["notes"]}

    def rescan() -> None:
        desk._scanned.clear()
        post(client, "rescan")

    one = "1 image of a format that is not read: left out (.nef 1): convert them to JPEG or PNG"
    assert one in notes()
    before = notes()[one]
    (photos / "camera2.NEF").touch()
    rescan()
    (two,) = (text for text in notes() if ".nef 2" in text)
    assert notes()[two] != before, "the page does not show again what was put away"
    for file in photos.glob("*.NEF"):
        file.unlink()
    rescan()
    assert not notes().keys() & {one, two}
    desk.close()


def test_an_exam_is_drawn_at_random_and_taken_blind(desk: Desk, client: TestClient) -> None:
    drawn = post(client, "exam", id="exam-0001", more=2).json()["drawn"]
    assert len(drawn) == 2
    assert set(drawn) <= {2, 3, 4, 5, 6}, "those without a label"
    assert post(client, "exam", id="exam-0001", more=2).json()["drawn"] == [], "asked again, not drawn again"
    assert client.get("/api/exam").json() == {"n": drawn, "left": drawn}
    label(client, "label-001", drawn[:1], "cat", source="exam")
    assert client.get("/api/exam").json()["left"] == drawn[1:]
    with desk.book.lock:
        desk.view.show_guesses(Guesses("run-0001", ["cat", "dog"], range(7), np.tile([0.1, 0.9], (7, 1))))
    images = client.get("/api/images").json()
    hidden = [n for n in range(7) if images["guess"][n] == -1]
    assert sorted(drawn) == hidden
    assert all(images["sure"][n] == 0 for n in drawn)
    (group,) = client.get("/api/groups").json()["groups"]
    assert not set(drawn) & set(group["n"])
    assert client.get(f"/api/picture/{drawn[0]}").json()["guess"] is None
    assert not set(drawn) & {item["n"] for item in client.get("/api/next?k=50").json()["items"]}
    rows = list(csv.DictReader(io.StringIO(client.get("/api/export?as=csv").text)))
    assert [row["part"] for row in rows if row["file"] == images["name"][drawn[0]]] == ["test"]


def test_a_group_is_confirmed_only_after_its_least_sure_were_seen(desk: Desk, client: TestClient) -> None:
    sure = np.array([0.5, 0.5, 0.99, 0.92, 0.95, 0.97, 0.91])
    with desk.book.lock:
        desk.view.show_guesses(Guesses("run-0001", ["cat", "dog"], range(7), np.stack([sure, 1 - sure], axis=1)))
    (group,) = client.get("/api/groups?least=0.9").json()["groups"]
    assert (group["class"], group["n"], group["total"]) == ("cat", [2, 5, 4, 3, 6], 5)
    asked = {"run": "run-0001", "class": "cat", "n": [2, 5, 4]}
    answer = post(client, "confirm", id="confirm-1", **asked, seen=[2, 5])
    assert (answer.status_code, answer.json()["error"]) == (422, "look at the 3 least sure of them first")
    stale = post(client, "confirm", id="confirm-1", **asked | {"run": "run-0000"}, seen=[2, 5, 4])
    assert stale.status_code == 422
    label(client, "label-001", [5], "dog")
    answer = post(client, "confirm", id="confirm-1", **asked, seen=[4, 5, 2])
    assert answer.status_code == 409, "somebody labeled one of them meanwhile"
    assert [c["n"] for c in answer.json()["conflicts"]] == [5]
    event = json.loads(desk.book.log.path.read_text().splitlines()[-1])
    assert (event["source"], event["files"]) == ("confirm", ["unlabeled/0.png", "unlabeled/2.png"])


def test_labels_out_and_in_again(photos: Path, tmp_path: Path) -> None:
    desk = opened(photos)
    client = client_of(desk)
    post(client, "classes", id="class-001", do="add", name='=cmd|"x"')
    label(client, "label-001", [2], "cat")
    label(client, "label-002", [3], '=cmd|"x"')
    label(client, "label-003", [4], ":none")
    text, tasks = client.get("/api/export?as=csv").text, client.get("/api/export?as=ls").text
    desk.close()
    assert "'=cmd" in text, "no spreadsheet runs it"
    (tmp_path / "out.csv").write_text(text)
    user = read_folder(photos, labels_file=tmp_path / "out.csv")
    assert user.classes == ('=cmd|"x"', "cat", "dog")
    assert "unlabeled/2.png,,ignore" in text
    assert "unlabeled/2.png" not in user.files, "none of the classes: not trained on"
    for kind, content in (
        ("csv", text),
        ("ls", tasks),
        ("ls", tasks.replace('"unlabeled/', '"/data/local-files/?d=x/unlabeled/')),
    ):
        for file in (photos / ".mixmatch-labels").glob("l*"):
            file.unlink()
        again = opened(photos)
        client = client_of(again)
        done = post(client, "import", id="import-01", **{"as": kind}, text=content).json()["imported"]
        marked = kind == "csv"  # only there has it a place
        assert done == {"labeled": 2 + marked, "same": 2, "conflicts": 0, "unknown": [], "unknown_count": 0}
        assert client.get("/api/images").json()["label"][:5] == [CAT, DOG, CAT, 2, NONE if marked else -1]
        label(client, "label-004", [5], "cat")
        changed = content.replace("unlabeled/0.png", "unlabeled/3.png").replace("dog/b.png", "dog/gone.png")
        changed = changed.replace("unlabeled/2.png,,ignore", "")
        done = post(
            client, "import", id="import-02", **{"as": kind}, text=changed.replace("cat/a.png", "unlabeled/2.png")
        )
        assert done.json()["imported"]["unknown"] in (["dog/gone.png"], ["x/dog/gone.png"])
        again.close()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *(("csv", text) for text in ("", "a,b\n1,2", "file,label\na", "file,label\ncat/a.png,x\ncat/a.png,y")),
        ("csv", "file,label\nunlabeled/0.png,owl\nunlabeled/1.png,:odd"),
        ("csv", 'file,label\nunlabeled/0.png,"' + 200_000 * "x"),
        *(("ls", text) for text in ("", "{", "3", "[3]", '[{"data": 3}]', "[" * 100_000)),
    ],
)
def test_files_that_cannot_be_imported(client: TestClient, desk: Desk, kind: str, text: str) -> None:
    before = desk.book.state.seq
    answer = post(client, "import", id="import-01", **{"as": kind}, text=text)
    assert answer.status_code == 422
    assert desk.book.state.seq == before


def test_a_csv_of_the_folder_is_taken_over_instead_of_folders(photos: Path) -> None:
    (photos / "labels.csv").write_text(
        "file,label,part\nunlabeled/0.png,bird,\nunlabeled/1.png,bird,test\nx.png,fish,\n"
    )
    desk = opened(photos)
    state = client_of(desk).get("/api/state").json()
    desk.close()
    assert [(c["name"], c["labeled"]) for c in state["classes"]] == [("bird", 2)]
    assert state["notes"][0]["text"] == "2 labels imported from labels.csv; 1 file that it names not found"
    assert state["exam"]["test_folder"] == 1
    assert state["counts"]["learned"] == 1  # nothing learns from the test set


def test_names_that_differ_in_their_letters_case_alone_are_one_class(client: TestClient) -> None:
    text = "file,label\nunlabeled/0.png,Owl\nunlabeled/1.png,owl\nunlabeled/2.png,CAT\n"
    assert post(client, "import", id="import-01", **{"as": "csv"}, text=text).json()["imported"]["labeled"] == 3
    assert [c["name"] for c in client.get("/api/state").json()["classes"]] == ["cat", "dog", "Owl"]


def test_what_cannot_be_taken_over_is_not_shown_either(photos: Path) -> None:
    """A label on the page that is not in the log would be gone after the next start."""
    (photos / "labels.csv").write_text("file,label\nunlabeled/0.png,owl\nunlabeled/1.png,:odd\n")
    for first in (True, False):
        desk = opened(photos)
        state = client_of(desk).get("/api/state").json()
        desk.close()
        assert (state["classes"], state["counts"]["labeled"]) == ([], 0)
        if first:
            assert "were not imported (a class's name cannot start with a colon)" in state["notes"][0]["text"]


def test_folders_that_may_be_no_classes_are_not_taken_over_unasked(tmp_path: Path) -> None:
    for year in ("2023", "2024"):
        (tmp_path / year).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / year / "a.png")
    desk = opened(tmp_path)
    client = client_of(desk)
    state = client.get("/api/state").json()
    assert (state["classes"], state["counts"]["unlabeled"]) == ([], 2)
    assert "if these are classes" in state["notes"][0]["text"]
    done = post(client, "import", id="import-01", **{"as": "folders"}).json()
    assert done["imported"]["labeled"] == 2
    desk.close()


def test_folders_per_class_are_copies_or_links(client: TestClient, photos: Path) -> None:
    label(client, "label-001", [2], "cat")
    before = sorted(p for p in photos.rglob("*") if ".mixmatch" not in str(p))
    for how in ("copy", "link"):
        answer = post(client, "export/folders", how=how).json()
        target = Path(answer["to"])
        assert (target.parent, answer["count"]) == (photos.parent, 3)
        assert sorted(p.relative_to(target).as_posix() for p in target.rglob("*.png")) == [
            "cat/0.png",
            "cat/a.png",
            "dog/b.png",
        ]
        assert (target / "cat" / "a.png").is_symlink() == (how == "link")
        assert (target / "cat" / "a.png").read_bytes() == (photos / "cat" / "a.png").read_bytes()
        for path in target.rglob("*.png"):
            path.unlink()
        target.rename(f"{target}-{how}")
    assert sorted(p for p in photos.rglob("*") if ".mixmatch" not in str(p)) == before, "nothing is moved"
    (photos / "unlabeled" / "0.png").unlink()
    left = post(client, "export/folders", how="copy").json()
    assert (left["count"], left["left_out"]) == (2, 1), "a file that is gone is left out"
    post(client, "classes", id="class-001", do="add", name="../../etc")
    label(client, "label-002", [3], "../../etc")
    answer = post(client, "export/folders", how="copy")
    assert (answer.status_code, answer.json()["error"]) == (
        422,
        "the class '../../etc' cannot be the name of a folder: rename it first",
    )


def test_a_full_disk_is_one_line_and_then_it_goes_on(
    desk: Desk, client: TestClient, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mixmatch.label.exchange.shutil.copy2", full)
    refused = post(client, "export/folders", how="copy")
    assert refused.json()["error"].endswith(": No space left on device")
    assert list(photos.parent.iterdir()) == [photos], "a part of an export takes no room"
    monkeypatch.setattr("mixmatch.label.training.replace_durably", full)
    refused = post(client, "train/auto", on=True)
    assert (refused.status_code, "No space left on device; " in refused.json()["error"]) == (422, True)
    monkeypatch.setattr("mixmatch.label.log.os.write", full)
    answer = label(client, "label-001", [2], "cat")
    assert answer.status_code == 507
    assert answer.json()["error"].startswith("the disk is full: labels cannot be saved in ")
    assert client.get("/api/state").json()["disk"] == answer.json()["error"]
    assert client.get("/api/images").json()["label"][2] == -1
    monkeypatch.undo()
    assert label(client, "label-001", [2], "cat").json()["disk"] is None
    assert client.get("/api/images").json()["label"][2] == CAT


def test_a_full_disk_is_over_once_there_is_room_also_where_nobody_labels(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mixmatch.label.log.os.write", full)
    assert post(client, "classes", id="class-001", do="add", name="cow").status_code == 507
    monkeypatch.setattr("mixmatch.label.thinking.write_packed", full)
    assert until(client, "suspects", "ready")["why"] == "This cannot be worked out: No space left on device"
    assert client.get("/api/state").json()["disk"] is not None
    monkeypatch.undo()
    until(client, "state", "disk", None)


def test_names_that_are_no_text_can_be_labeled_and_copied_but_not_written_down(tmp_path: Path) -> None:
    name, folder = os.fsdecode(b"caf\xe9.png"), tmp_path / "photos"
    folder.mkdir()
    Image.new("RGB", (8, 8)).save(folder / "b.png")
    (folder / "b.png").rename(folder / name)
    desk = opened(folder)
    client = client_of(desk)
    assert client.get("/api/images").json()["name"] == ["caf?.png"]
    assert client.get("/thumb/0").status_code == 200
    post(client, "classes", id="class-001", do="add", name="cat")
    label(client, "label-001", [0], "cat")
    assert client.get("/api/export?as=csv").text == "file,label,part\n"
    made = post(client, "export/folders", how="copy").json()
    assert (made["count"], made["left_out"]) == (1, 0)
    assert (Path(made["to"]) / "cat" / name).is_file()
    desk.close()
    again = opened(folder)
    assert again.book.state.value(name) == 0
    again.close()


def test_pictures_and_columns_are_not_sent_twice(client: TestClient) -> None:
    version = client.get("/api/state").json()["version"]
    first = client.get(f"/thumb/0?v={version}")
    assert first.headers["cache-control"] == "private, max-age=31536000, immutable"
    assert client.get("/thumb/0", headers={"If-None-Match": first.headers["etag"]}).status_code == 304
    columns = client.get("/api/images", headers={"Accept-Encoding": "gzip"})
    again = client.get("/api/images", headers={"If-None-Match": columns.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    label(client, "label-001", [2], "cat")
    assert client.get("/api/images", headers={"If-None-Match": columns.headers["etag"]}).status_code == 200


def test_a_training_begins_by_itself_when_enough_is_labeled(
    client: TestClient, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    monkeypatch.setattr(desk.trainings, "_work", begun.append)
    asked = {"on": True, "every": 2, "method": "supervised", "steps": 7}
    assert post(client, "train/auto", **asked).json()["auto"] == asked
    label(client, "label-001", [2], "cat")
    desk.trainings.tick()
    assert begun == [], "two classes with two labels each are the least"
    label(client, "label-002", [3], "dog")
    desk.trainings.tick()
    assert begun == ["run-0001"]
    about = client.get("/api/train").json()
    assert (about["method"], about["steps"], about["changed"], about["state"]) == ("supervised", 7, 0, "running")
    desk.trainings.tick()
    label(client, "label-003", [4], "dog")
    desk.trainings.tick()
    assert begun == ["run-0001"], "one label more is not enough"
    assert post(client, "train/auto", on="yes").status_code == 422
    desk.trainings._note("run-0001", state="failed", error="out of memory")
    assert post(client, "train", resume="run-0001").json()["state"] == "running", "a training that was killed goes on"
    assert post(client, "train/auto", on=False, minutes=0.5).json()["auto"]["minutes"] == 0.5
    for bad in (
        {"minutes": 0},
        {"minutes": "1"},
        {"steps": 1.5},
        {"steps": 0},
        {"method": "../x"},
        {"options": {"config": "/etc/passwd"}},
        {"options": {"seed": "a b"}},
    ):
        assert post(client, "train", **bad).status_code == 422, bad


def test_labels_are_looked_at_again_when_one_is_another(
    client: TestClient, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where there are as many as before: and the page is told that what it gets is of earlier labels."""
    thinking, asked = desk.thinking, list[str]()

    def answer(module: str, what: str, about: dict[str, Any]) -> dict[str, Any]:
        asked.append(what)
        return {"items": [], "copies": [], "labeled": 0}

    def suspects() -> Any:
        found = client.get("/api/suspects").json()
        while (thread := thinking._thread) is not None:
            thread.join(10)
        return found

    monkeypatch.setattr(thinking, "_make_features", lambda: None)
    monkeypatch.setattr(thinking, "_answer", answer)
    assert [(found["ready"], found["current"]) for found in (suspects(), suspects())] == [(False, False), (True, True)]
    label(client, "label-001", [0], "dog", "cat")
    before, now = suspects(), suspects()
    assert (before["ready"], before["current"], now["current"]) == (True, False, True)
    assert before["at"] < now["at"]
    assert asked == ["suspects"] * 2


def test_suggestions_from_before_the_newest_model_say_so(
    client: TestClient, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And are not called ready, so that the page offers the better ones once they are there."""
    thinking = desk.thinking

    def answer(module: str, what: str, about: dict[str, Any]) -> dict[str, Any]:
        rule = "unsure" if about["guesses"] else "typical"
        return {"features": "pixels", "items": [{"n": n, "rule": rule, "why": rule} for n in range(2, 7)]}

    def suggested() -> tuple[bool, str, str]:
        found = client.get("/api/next?k=2").json()
        while (thread := thinking._thread) is not None:
            thread.join(10)
        return found["ready"], found["rule"], found["why"]

    monkeypatch.setattr(thinking, "_make_features", lambda: None)
    monkeypatch.setattr(thinking, "_answer", answer)
    assert suggested()[:2] == (False, "random")
    assert suggested() == (True, "typical", "Typical pictures of the groups with the fewest labels.")
    with desk.book.lock:
        desk.view.show_guesses(Guesses("run-0001", ["cat", "dog"], range(7), np.tile([0.1, 0.9], (7, 1))))
    ready, rule, why = suggested()
    assert (ready, rule) == (False, "typical")
    assert why.endswith("Suggestions of the newest model are on their way.")
    assert suggested()[:2] == (True, "unsure")


def test_a_guess_is_the_same_class_in_half_the_space() -> None:
    exact = np.array([[0.49999, 0.50001], [0.50001, 0.49999], [0.1, 0.9]], np.float32)
    half = as_half(exact)
    assert half.dtype == np.float16
    assert half.argmax(axis=1).tolist() == [1, 0, 1]
    assert np.abs(half - exact).max() < 1e-3


def test_a_training_that_is_killed_says_so(tmp_path: Path) -> None:
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    program = Program(["timeit", "-n", "1", "-r", "1", kill], tmp_path / "output.txt")
    assert program.wait(60) == -signal.SIGKILL
    assert program.last_words() == "it was ended from outside (Killed), for example because memory ran out"


def test_a_page_that_knows_more_than_the_log_reads_everything_again(photos: Path) -> None:
    """The log was put back from a copy: numbers that the page has seen mean something else, or nothing yet."""
    desk = opened(photos)
    client = client_of(desk)
    kept = desk.book.log.path.read_bytes()
    label(client, "label-001", [2, 3], "cat")
    known = client.get("/api/state").json()["seq"]
    columns = client.get("/api/images")
    desk.close()
    desk.book.log.path.write_bytes(kept)
    desk = opened(photos)
    client = client_of(desk)
    assert client.get("/api/state").json()["seq"] == known - 1
    body = client.get(f"/api/changes?since={known}").json()
    assert (body["reset"], body["counts"]["labeled"]) == (True, 2)
    change = {"id": "label-002", "n": [4], "label": "dog", "before": None}
    body = post(client, "labels", changes=[change], since=known).json()
    assert (body["seq"], body["saved"], body["reset"]) == (known, ["label-002"], True), "the same number by now"
    now = client.get("/api/images", headers={"If-None-Match": columns.headers["etag"]})
    assert (now.status_code, now.json()["label"][2:5]) == (200, [-1, -1, DOG])
    assert not client.get(f"/api/changes?since={known}").json()["reset"]
    desk.close()


def test_new_files_are_found_when_asked_for(client: TestClient, desk: Desk, photos: Path) -> None:
    Image.new("RGB", (8, 8)).save(photos / "unlabeled" / "new.png")
    desk._scanned.clear()
    post(client, "rescan")
    desk.wait()
    assert client.get("/api/images?from=7").json()["name"] == ["unlabeled/new.png"]


PROGRAM = """if True:
    import sys
    import mixmatch.label.serve
    print(*{"torch", "scipy", "sklearn", "matplotlib"} & set(sys.modules))
"""


def test_the_server_imports_nothing_heavy() -> None:
    """It stays small: whatever needs torch or scikit-learn runs in a process of its own."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split() == []


def test_the_order_of_names_is_kept_and_a_damaged_one_made_anew(tmp_path: Path) -> None:
    listing = Listing()
    for file in ("b/img10.jpg", "a.jpg", "b/img2.jpg"):
        listing.add(Entry(file, 1, 2))
    listing.save(tmp_path)
    assert load_listing(tmp_path).in_order() == [1, 2, 0]
    path = tmp_path / "listing.json"
    path.write_text(path.read_text().replace('"order":[1,2,0]', '"order":[1,1,7]'))
    assert load_listing(tmp_path).in_order() == [1, 2, 0]


def test_long_columns_are_the_json_they_would_be_in_one_piece() -> None:
    odd = '"é,]\ud800'
    body = {"n": list(range(12_001)), "name": [odd] * 5001, "order": None, "empty": [], "more": {"x": [1, 2]}}
    assert json.loads(encode(body)) == body | {"name": ['"é,]?'] * 5001}

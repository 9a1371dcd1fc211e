"""The log keeps every acknowledged event, whatever happens to the file, and the state is what the log says."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixmatch.data.user.tree import Entry
from mixmatch.label.book import Book, Change, Refused
from mixmatch.label.events import all_usual, check_event
from mixmatch.label.log import ASIDE, MOST, NAME, DiskFull, Log
from mixmatch.label.state import State

FILES = [f"{i}.jpg" for i in range(6)]


def book_of(folder: Path, files: list[str] = FILES) -> Book:
    book = Book(folder, folder / "labels")
    if book.is_new:
        book.begin()
    for file in files:
        book.listing.add(Entry(file, 1, 1))
    return book


def change(id: str, files: list[str], label: str | None, before: Any = None) -> Change:
    return Change(f"id-{id:0>8}", files, label, before if isinstance(before, list) else [before] * len(files))


def labels(book: Book) -> dict[str, str | None]:
    state = book.state
    return {file: state.name(mark.value) for file, mark in state.marks.items() if mark.value != -1}


def shown(state: State) -> Any:
    """All that a state holds, to compare two of them."""
    people = [(p.name, list(p.undo), p.redo) for p in state.people]
    plain = (
        state.seq,
        state.marks,
        state.conflicts,
        state.exam,
        state.tests,
        state.contents,
        state.classes,
        state.order,
    )
    return deepcopy((*plain, people, sorted(state.answered), list(state.given), list(state.recent)))


def reread(book: Book) -> State:
    state, log = State(), Log(book.home)
    log.read(state.apply)
    log.close()
    assert not log.notes
    return state


def test_labels_are_there_after_a_restart(tmp_path: Path) -> None:
    book = book_of(tmp_path)
    book.act("ann", "class-add-1", "add", {"name": "cat"})
    assert book.label("ann", [change("1", FILES[:3], "cat")]) == []
    book.close()
    again = book_of(tmp_path)
    assert labels(again) == dict.fromkeys(FILES[:3], "cat")
    assert not again.is_new
    again.undo("ann", "undo-0001")
    assert labels(again) == {}
    again.close()
    third = book_of(tmp_path)
    third.undo("ann", "redo-0001", redo=True)
    assert labels(third) == dict.fromkeys(FILES[:3], "cat")


def test_a_repeated_request_is_harmless(tmp_path: Path) -> None:
    book = book_of(tmp_path)
    book.act("ann", "class-add-1", "add", {"name": "cat"})
    for _ in range(3):
        book.act("ann", "class-add-1", "add", {"name": "cat"})
        book.label("ann", [change("1", FILES[:2], "cat")])
    size = book.state.seq
    book.undo("ann", "undo-0001")
    book.undo("ann", "undo-0001")
    assert book.state.seq == size + 1


def test_a_conflict_keeps_both(tmp_path: Path) -> None:
    book = book_of(tmp_path)
    for name in ("cat", "dog"):
        book.act("ann", f"class-add-{name}", "add", {"name": name})
    book.label("ann", [change("1", FILES[:2], "cat")])
    (found,) = book.label("bob", [change("2", FILES[1:3], "dog")])  # bob saw no label on either
    assert found == {
        "id": "id-00000002",
        "file": "1.jpg",
        "yours": "dog",
        "theirs": "cat",
        "who": "ann",
        "before": None,
    }
    assert labels(book) == {"0.jpg": "cat", "1.jpg": "cat", "2.jpg": "dog"}
    assert book.label("bob", [change("2", FILES[1:3], "dog")]) == [found], "asked again, answered the same"
    assert '"theirs":["cat"]' in book.log.path.read_text()
    assert list(book.state.conflicts) == ["1.jpg"]
    assert shown(reread(book)) == shown(book.state)
    conflicts = dict(book.state.conflicts)
    book.label("bob", [change("3", ["1.jpg"], "dog", "cat")])
    assert labels(book)["1.jpg"] == "dog"
    assert not book.state.conflicts
    book.undo("bob", "undo-0001")
    assert (labels(book)["1.jpg"], book.state.conflicts) == ("cat", conflicts), "what was decided is open again"
    book.undo("bob", "redo-0001", redo=True)
    assert (labels(book)["1.jpg"], book.state.conflicts) == ("dog", {})
    assert shown(reread(book)) == shown(book.state)


def test_undo_leaves_what_others_did_since(tmp_path: Path) -> None:
    book = book_of(tmp_path)
    for name in ("cat", "dog"):
        book.act("ann", f"class-add-{name}", "add", {"name": name})
    book.label("ann", [change("1", FILES[:2], "cat")])
    book.label("bob", [change("2", FILES[:1], "dog", "cat")])
    done = book.undo("ann", "undo-0001")
    assert (done["files"], done["kept"]) == (["1.jpg"], ["0.jpg"])
    assert labels(book) == {"0.jpg": "dog"}


def test_undo_goes_past_a_rename_whose_old_name_is_taken_by_now(tmp_path: Path) -> None:
    book = book_of(tmp_path)
    book.act("ann", "class-add-1", "add", {"name": "a"})
    book.label("ann", [change("1", FILES[:2], "a")])
    book.act("ann", "rename-001", "rename", {"name": "a", "to": "b"})
    book.act("ann", "class-add-2", "add", {"name": "a"})
    done = [book.undo("ann", f"undo-000{i}") for i in range(3)]
    assert [each["what"] for each in done] == ["class a added", "class a renamed to b", "2 labeled b"]
    assert [each["left"] for each in done] == [None, "class b keeps its name: another class is called 'a' now", None]
    assert labels(book) == {}
    assert [(c.name, c.hidden) for c in book.state.classes] == [("b", False), ("a", True)]
    for i in range(3):
        book.undo("ann", f"redo-000{i}", redo=True)
    assert labels(book) == dict.fromkeys(FILES[:2], "b")
    assert [(c.name, c.hidden) for c in book.state.classes] == [("b", False), ("a", False)]
    assert shown(reread(book)) == shown(book.state)
    book.close()


def test_what_is_undone_is_a_class_whatever_it_is_called_by_now(tmp_path: Path) -> None:
    book = book_of(tmp_path)
    book.act("ann", "class-add-1", "add", {"name": "cat"})
    book.act("bob", "rename-001", "rename", {"name": "cat", "to": "lynx"})
    book.undo("ann", "undo-0001")
    assert [(c.name, c.hidden) for c in book.state.classes] == [("lynx", True)]
    book.undo("ann", "redo-0001", redo=True)
    assert [(c.name, c.hidden) for c in book.state.classes] == [("lynx", False)]
    book.act("ann", "rename-002", "rename", {"name": "lynx", "to": "dog"})
    book.act("bob", "rename-003", "rename", {"name": "dog", "to": "wolf"})
    assert book.undo("ann", "undo-0002")["left"] == "class wolf keeps its name: it has been changed since"
    assert shown(reread(book)) == shown(book.state)
    book.close()


def test_classes_are_renamed_merged_and_hidden_but_never_lost(tmp_path: Path) -> None:
    book = book_of(tmp_path)
    for name in ("cat", "dog", "bird"):
        book.act("ann", f"class-add-{name}", "add", {"name": name})
    book.label("ann", [change("1", FILES[:2], "cat"), change("2", FILES[2:3], "dog")])
    book.act("ann", "rename-001", "rename", {"name": "cat", "to": "lynx"})
    assert labels(book)["0.jpg"] == "lynx"
    book.label("bob", [change("3", FILES[3:4], "cat")])  # a page that has not heard of it yet
    assert labels(book)["3.jpg"] == "lynx"
    book.act("ann", "merge-0001", "merge", {"name": "lynx", "into": "dog"})
    assert set(labels(book).values()) == {"dog"}
    assert [(c.name, c.hidden) for c in book.state.classes] == [("lynx", True), ("dog", False), ("bird", False)]
    book.undo("ann", "undo-0001")
    assert labels(book) == {"0.jpg": "lynx", "1.jpg": "lynx", "2.jpg": "dog", "3.jpg": "lynx"}
    with pytest.raises(Refused, match="'dog' already"):
        book.act("ann", "rename-002", "rename", {"name": "lynx", "to": "Dog"})
    book.act("ann", "order-0001", "order", {"names": ["bird", "lynx"]})
    assert [book.state.classes[i].name for i in book.state.order] == ["bird", "lynx", "dog"]
    book.act("ann", "class-add-2", "add", {"name": "cat"})  # the name is free again
    assert (len(book.state.classes), labels(book)["0.jpg"]) == (4, "lynx")
    assert shown(reread(book)) == shown(book.state)


@pytest.mark.parametrize("name", ["", "  ", ":skip", "a\nb", "x" * 81, "\ud800", "a\u202eb", 3, None])
def test_names_that_no_class_can_have(tmp_path: Path, name: Any) -> None:
    with pytest.raises(Refused):
        book_of(tmp_path).act("ann", "class-add-1", "add", {"name": name})


@pytest.mark.parametrize("key", ["", "ab", " ", 3, "0", "X", "?"])
def test_keys_that_no_class_can_have(tmp_path: Path, key: Any) -> None:
    with pytest.raises(Refused):
        book_of(tmp_path).act("ann", "class-add-1", "add", {"name": "bird", "key": key})


def test_a_class_does_not_take_the_key_of_another(tmp_path: Path) -> None:
    book = book_of(tmp_path)
    for number, (name, key) in enumerate({"cat": "1", "dog": "2"}.items()):
        book.act("ann", f"class-add-{number}", "add", {"name": name, "key": key})
    with pytest.raises(Refused, match="the key 1 is that of 'cat': choose another"):
        book.act("ann", "key-00001", "key", {"name": "dog", "key": "1"})
    for number, key in enumerate(["2", None, "q"]):
        book.act("ann", f"key-1000{number}", "key", {"name": "dog", "key": key})
    assert [c.key for c in book.state.classes] == ["1", "q"]


# ------------------------------------------------------------------------------------------------------- any sequence


acts = st.one_of(
    st.tuples(
        st.just("label"),
        st.sampled_from(["ann", "bob"]),
        st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True),
        st.sampled_from(["cat", "dog", ":skip", None]),
        st.booleans(),
    ),
    st.tuples(st.sampled_from(["undo", "redo"]), st.sampled_from(["ann", "bob"])),
    st.tuples(st.just("merge"), st.sampled_from([("cat", "dog"), ("dog", "cat")])),
    st.tuples(st.just("rename"), st.sampled_from(["cat", "dog"]), st.sampled_from(["cat", "dog", "bird", "lynx"])),
    st.tuples(st.sampled_from(["hide", "show"]), st.sampled_from(["cat", "dog"])),
    st.tuples(st.just("exam")),
)


USUAL = {"seq": 1, "t": 2.5, "kind": "label", "who": "ann", "id": "id-1", "label": "cat"}
USUAL |= {"files": ["0.jpg"], "before": [None], "source": "key"}
odd = st.sampled_from(
    [None, -1, 1.5, 2**60, float("nan"), True, "undo", [], ["../1.jpg"], ["a\0b"], ["/1.jpg"], [1], {}, ["x"] * 20]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from([*USUAL, "conflicts", "to"]), odd, max_size=2), min_size=1, max_size=4))
def test_what_is_found_usual_together_is_what_each_event_must_be(changes: list[dict[str, Any]]) -> None:
    events = [USUAL | change for change in changes]
    if all_usual(events):
        for event in events:
            check_event(event)
    assert all_usual([USUAL] * 3)


@settings(max_examples=60, deadline=None)
@given(st.lists(acts, max_size=25))
def test_a_restart_finds_what_was_there(tmp_path_factory: pytest.TempPathFactory, sequence: list[Any]) -> None:
    book = book_of(tmp_path_factory.mktemp("book"))
    for name in ("cat", "dog"):
        book.act("ann", f"class-add-{name}", "add", {"name": name})
    for i, (kind, *rest) in enumerate(sequence):
        id = f"act-{i:08}"
        try:
            if kind == "label":
                who, numbers, label, up_to_date = rest
                files = [FILES[n] for n in numbers]
                seen = [book.state.name(book.state.value(f)) if up_to_date else "dog" for f in files]
                book.label(who, [Change(id, files, label, seen)])
            elif kind in ("undo", "redo"):
                book.undo(rest[0], id, redo=kind == "redo")
            elif kind == "merge":
                book.act("ann", id, "merge", {"name": rest[0][0], "into": rest[0][1]})
            elif kind == "rename":
                book.act("bob", id, "rename", {"name": rest[0], "to": rest[1]})
            elif kind == "exam":
                book.draw_exam("ann", id, 1)
            else:
                book.act("bob", id, kind, {"name": rest[0]})
        except Refused:
            continue
    assert shown(reread(book)) == shown(book.state)
    book.close()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.lists(st.integers(0, 5), min_size=1, unique=True), st.sampled_from(["cat", "dog", None])),
            st.sampled_from(["undo", "redo"]),
        ),
        max_size=25,
    )
)
def test_undo_and_redo_walk_through_the_past(tmp_path_factory: pytest.TempPathFactory, sequence: list[Any]) -> None:
    """Against the plainest model there is: a list of copies of all labels, and a place in it."""
    book = book_of(tmp_path_factory.mktemp("book"))
    book.take_over("", {"cat": ["x"], "dog": ["y"]}, "folder")
    past: list[dict[str, str]] = [{}]
    at = 0
    for i, act in enumerate(sequence):
        if act in ("undo", "redo"):
            step = -1 if act == "undo" else 1
            if 0 <= at + step < len(past):
                at += step
                book.undo("ann", f"act-{i:08}", redo=act == "redo")
            else:
                with pytest.raises(Refused):
                    book.undo("ann", f"act-{i:08}", redo=act == "redo")
        else:
            numbers, label = act
            now = dict(past[at])
            book.label(
                "ann", [Change(f"act-{i:08}", [FILES[n] for n in numbers], label, [now.get(FILES[n]) for n in numbers])]
            )
            for n in numbers:
                now.pop(FILES[n], None)
                if label is not None:
                    now[FILES[n]] = label
            past[at + 1 :] = [now]
            at += 1
        assert {f: name for f, name in labels(book).items() if f in FILES} == past[at]
    book.close()


# ----------------------------------------------------------------------------------------------------------- damage


def test_a_torn_last_line_is_cut_and_named(tmp_path: Path) -> None:
    book = book_of(tmp_path)
    book.take_over("ann", {"cat": FILES[:2]}, "folder")
    whole = book.log.path.read_bytes()
    book.close()
    book.log.path.write_bytes(whole + b'{"seq":9,"kind":"label","fi')
    again = book_of(tmp_path)
    assert labels(again) == dict.fromkeys(FILES[:2], "cat")
    assert "torn" in again.log.notes[0]
    assert again.log.path.read_bytes() == whole
    assert b'"seq":9' in (again.home / ASIDE).read_bytes(), "nothing is thrown away"
    again.act("ann", "class-add-1", "add", {"name": "dog"})
    assert shown(reread(again)) == shown(again.state)


def test_a_damaged_line_stops_nothing(tmp_path: Path) -> None:
    book = book_of(tmp_path)
    book.act("ann", "class-add-1", "add", {"name": "cat"})
    book.label("ann", [change("1", FILES[:1], "cat")])
    book.label("ann", [change("2", FILES[1:2], "cat")])
    book.label("ann", [change("3", FILES[2:3], "cat")])
    book.undo("ann", "undo-0001")
    book.close()
    lines = book.log.path.read_bytes().splitlines(keepends=True)
    lines[1] = b"\x00" * 40 + b"\n"  # the class is added
    lines[3] = b'{"seq":4,"kind":"label","files":3}\n'
    lines[4] = b"[]\n"  # what is undone later
    book.log.path.write_bytes(b"".join(lines))
    again = book_of(tmp_path)
    assert labels(again) == {"0.jpg": "cat"}
    assert "line 2, line 4, line 5" in again.log.notes[0]
    assert again.log.path.read_bytes() == b"".join(lines), "the log itself is never changed"
    size = (again.home / ASIDE).stat().st_size
    again.close()
    book_of(tmp_path).close()
    assert (again.home / ASIDE).stat().st_size == size, "set aside once"


def test_an_import_is_read_again(tmp_path: Path) -> None:
    book = book_of(tmp_path)
    for id in ("import-01", "import-02"):
        book.import_labels("ann", id, [(FILES[0], "cat"), (FILES[1], "dog")], [FILES[1]])
    seq, before = book.state.seq, shown(book.state)
    book.close()
    again = book_of(tmp_path)
    assert again.log.notes == []
    assert (again.state.seq, shown(again.state)) == (seq, before)
    again.close()


def test_an_import_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    book = book_of(tmp_path)
    book.import_labels("ann", "import-01", [(FILES[0], "cat")], [])
    line = {"seq": book.state.seq + 1, "t": 1.0, "kind": "import", "who": "ann", "id": "import-02"}
    book.log.append([line | {"labeled": 1, "same": 0, "conflicts": 3}])
    book.close()
    again = book_of(tmp_path)
    assert (again.log.notes, again.state.seq) == ([], line["seq"])
    assert again.label("bob", [Change("import-02", FILES[:1], "cat", [None])]) == []
    again.close()


def test_the_number_of_a_line_that_was_set_aside_is_not_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = book_of(tmp_path)
    book.close()
    with book.log.path.open("ab") as file:
        file.write(b'{"seq":7,"t":1,"kind":"label","who":"ann","label":5}\n')
    again = book_of(tmp_path)
    again.act("ann", "class-add-1", "add", {"name": "cat"})
    assert again.state.seq == 8
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda handle, data: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(DiskFull):
            again.label("ann", [change("1", FILES[:1], "cat")])
    assert again.state.seq == 8
    again.close()


@pytest.mark.parametrize("seq", [2**53 - 3, 2**40, MOST + 2, MOST + 3])
def test_no_number_of_a_line_takes_the_room_of_those_that_follow(tmp_path: Path, seq: int) -> None:
    """What is answered as saved is read back, wherever a line from elsewhere made the numbers go on."""
    book = book_of(tmp_path)
    book.act("ann", "class-add-1", "add", {"name": "cat"})
    book.close()
    with book.log.path.open("ab") as file:
        file.write(b'{"seq":%d,"t":1,"kind":"begin","who":""}\n' % seq)
    for n in range(4):
        book = book_of(tmp_path)
        book.label("ann", [change(str(n), FILES[n : n + 1], "cat")])
        book.close()
    again = book_of(tmp_path)
    assert labels(again) == dict.fromkeys(FILES[:4], "cat")
    assert (again.state.seq == 6) == (seq > MOST + 3)
    again.close()


def test_a_log_that_went_through_an_editor_is_read(tmp_path: Path) -> None:
    book = book_of(tmp_path)
    book.act("ann", "class-add-1", "add", {"name": "cat"})
    book.label("ann", [change("1", FILES[:1], "cat")])
    book.close()
    lines = book.log.path.read_text().splitlines()
    book.log.path.write_bytes("\r\n".join(["\ufeff" + lines[0], *(f" {line}\t" for line in lines[1:]), ""]).encode())
    again = book_of(tmp_path)
    assert (again.log.notes, again.is_new, labels(again)) == ([], False, {FILES[0]: "cat"})
    again.close()


def test_a_full_disk_loses_nothing_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = book_of(tmp_path)
    book.act("ann", "class-add-1", "add", {"name": "cat"})
    before, write = shown(book.state), os.write

    def half(handle: int, data: Any) -> int:
        """A disk that has room for a few bytes more."""
        if len(data) > 20:
            return write(handle, data[:20])
        raise OSError(28, "No space left on device")

    def keep(handle: int, length: int) -> None:
        """Some file systems have to write before they give room back."""
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", half)
    monkeypatch.setattr(os, "ftruncate", keep)
    with pytest.raises(DiskFull, match="the disk is full"):
        book.label("ann", [change("1", FILES[:1], "cat"), change("2", FILES[1:2], "cat")])
    assert shown(book.state) == before
    assert book.disk is not None
    monkeypatch.undo()
    book.label("ann", [change("1", FILES[:1], "cat"), change("2", FILES[1:2], "cat")])
    assert labels(book) == dict.fromkeys(FILES[:2], "cat")
    assert book.disk is None
    assert shown(reread(book)) == shown(book.state)


def test_a_disk_that_fails_to_flush_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = book_of(tmp_path)
    size = book.log.path.stat().st_size

    def fail(handle: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(DiskFull, match="Input/output error"):
        book.act("ann", "class-add-1", "add", {"name": "cat"})
    assert book.log.path.stat().st_size == size
    assert not book.state.classes


def test_a_log_that_somebody_removes_is_written_again(tmp_path: Path) -> None:
    book = book_of(tmp_path)
    book.act("ann", "class-add-1", "add", {"name": "cat"})
    book.label("ann", [change("1", FILES[:1], "cat")])
    shutil.rmtree(book.home)
    assert [said["what"] for said in book.history(FILES[0])] == ["cat"]  # what is open is still whole
    book.label("ann", [change("2", FILES[1:2], "cat")])
    assert [said["what"] for said in book.history(FILES[1])] == ["cat"]
    assert shown(reread(book)) == shown(book.state)
    book.close()
    assert labels(book_of(tmp_path)) == dict.fromkeys(FILES[:2], "cat")


def test_a_log_that_somebody_shortens_is_not_written_to(tmp_path: Path) -> None:
    book = book_of(tmp_path)
    book.act("ann", "class-add-1", "add", {"name": "cat"})
    os.truncate(book.log.path, 5)
    for _ in range(2):  # a page asks again and again
        with pytest.raises(DiskFull, match="was shortened by another program"):
            book.label("ann", [change("1", FILES[:1], "cat")])
        assert book.disk is not None, "every page says so, not only the one that asked"
    assert book.log.path.stat().st_size == 5


def test_a_log_that_is_closed_writes_to_no_other_file(tmp_path: Path) -> None:
    book = book_of(tmp_path)
    (tmp_path / "other").write_bytes(b"mine" * 1000)
    book.close()
    other = os.open(tmp_path / "other", os.O_RDWR)  # has the number that the log had
    with pytest.raises(DiskFull):
        book.act("ann", "class-add-1", "add", {"name": "cat"})
    os.close(other)
    assert (tmp_path / "other").read_bytes() == b"mine" * 1000


def test_copies_of_the_last_days_are_kept(tmp_path: Path) -> None:
    now = time.time()
    for day in range(9):
        book = Book(tmp_path, tmp_path / "labels", clock=lambda day=day: now + day * 86400)  # type: ignore[misc]
        book.act("ann", f"class-add-{day}", "add", {"name": f"class {day}"})
        book.close()
    copies = sorted((tmp_path / "labels" / "copies").iterdir())
    assert len(copies) == 7
    assert len(copies[-1].read_text().splitlines()) == 8, "made before the first change of the day"


def test_100_000_events_are_replayed_at_once(tmp_path: Path) -> None:
    events = [
        {"seq": i, "t": i, "kind": "label", "who": "ann", "id": f"id-{i:08}", "label": f"class {i % 10}",
         "files": [f"folder/picture-{i:06}.jpg"], "before": [None], "source": "key"}
        for i in range(1, 100_001)
    ]  # fmt: skip
    (tmp_path / NAME).write_text("".join(json.dumps(event) + "\n" for event in events))
    log, state = Log(tmp_path), State()
    began = time.process_time()
    log.read(state.apply)
    assert time.process_time() - began < 2.0, "under 1 s on a quiet machine"
    assert len(state.marks) == 100_000
    assert state.seq == 100_000


WRITER = """
import sys
from pathlib import Path
from mixmatch.label.book import Book, Change
book = Book(Path(sys.argv[1]), Path(sys.argv[1]) / "labels")
if book.state.similar("cat") is None:
    book.act("ann", "class-add-1", "add", {"name": "cat"})
at = book.state.seq
while True:
    at += 1
    book.label("ann", [Change(f"label-{at:08}", [f"{at}.jpg"], "cat", [None])])
    print(at, flush=True)
"""


def test_no_acknowledged_label_is_lost_to_a_kill(tmp_path: Path) -> None:
    """The long form is `make soak-labels`."""
    for _ in range(3):
        kill_one_writer(tmp_path, 0.05)


def kill_one_writer(folder: Path, seconds: float) -> int:
    """Start a process that labels, kill it, and look for every label it said it had saved."""
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    acknowledged = [process.stdout.readline()]  # it has begun
    time.sleep(seconds)
    os.kill(process.pid, signal.SIGKILL)
    acknowledged += process.stdout.read().splitlines(keepends=True)
    process.wait()
    process.stdout.close()
    book = Book(folder, folder / "labels")
    names = {file for file, mark in book.state.marks.items() if mark.value >= 0}
    book.close()
    lost = [n for n in acknowledged if n.endswith("\n") and f"{n.strip()}.jpg" not in names]
    assert not lost
    return len(acknowledged)

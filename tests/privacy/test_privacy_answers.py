"""Answers as a student reads them: every format, the first queries, and which class is which."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from mixmatch.data.pate import student_options
from mixmatch.errors import MixMatchError
from mixmatch.privacy.answers import Answers, authors, read, renumber

SVHN = tuple("1234567890")
DIGITS = tuple("0123456789")


def asked(rows, labels, **more):
    return Answers(np.array(rows), np.array(labels), **more)


def test_the_authors_answers():
    """138 answers to the first 250 queries; class counts in the authors' numbering."""
    found = authors()
    assert found.rows.tolist() == list(range(250))
    assert found.answered.sum() == 138
    assert np.bincount(found.labels[found.answered]).tolist() == [28, 25, 11, 13, 10, 13, 14, 7, 8, 9]
    assert len(found.first(100)) == 100
    assert [int(authors().first(n).answered.sum()) for n in (100, 150, 200)] == [56, 81, 109]


@pytest.mark.skipif(not os.environ.get("MIXMATCH_PATE"), reason="MIXMATCH_PATE does not name a folder")
def test_the_authors_answers_are_those_of_their_file():
    whole = read(Path(os.environ["MIXMATCH_PATE"]) / "svhn-noisy-labels-t200-s200-n40.json")
    assert len(whole) == whole.images == 26_032
    assert np.array_equal(whole.first(250).labels, authors().labels)
    assert np.array_equal(renumber(whole, SVHN).labels, whole.labels)


def test_a_list_of_labels_asks_every_image_in_order(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"label": [3, -1, 0]}))
    np.save(tmp_path / "a.npy", np.array([3, -1, 0]))
    for name in ("a.json", "a.npy"):
        found = read(tmp_path / name)
        assert (found.rows.tolist(), found.labels.tolist(), found.images) == ([0, 1, 2], [3, -1, 0], 3)
        assert found.classes is None


def test_what_pate_label_wrote(tmp_path):
    record = {"label": [-1, 5, -1, 2], "queries": [3, 0, 1], "classes": list(DIGITS)}
    (tmp_path / "a.json").write_text(json.dumps(record))
    (tmp_path / "a.csv").write_text("query,label,source\n3,2,teachers\n0,-1,\n1,5,teachers\n")
    ledger = [
        {"ledger": 1}, {"charge": 3}, {"charge": 0}, {"answer": 3, "label": 2}, {"answer": 0, "label": -1},
        {"charge": 1}, {"answer": 1, "label": 5},
    ]  # fmt: skip
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in ledger))
    for name in ("a.json", "a.csv", "a.jsonl"):
        found = read(tmp_path / name)
        assert (found.rows.tolist(), found.labels.tolist()) == ([3, 0, 1], [2, -1, 5])
        assert (found.first(2).rows.tolist(), found.first(2).labels.tolist()) == ([3, 0], [2, -1])
    assert read(tmp_path / "a.json").classes == DIGITS


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", '{"label": [0, 1], "queries": [2]}', "row numbers of its 2 labels"),
        ("a.json", '{"label": [0, 1], "queries": []}', "no queries were asked"),
        ("a.json", '{"label": [0, 1], "classes": 3}', '"classes" must be a list'),
        ("a.json", '{"label": [0, -2]}', "-1 \\(refused\\)"),
        ("a.json", '{"label": [0.5]}', "whole numbers"),
        ("a.json", "{", "cannot be read"),
        ("a.jsonl", '{"charge": 1}\n', "not a ledger"),
        ("a.jsonl", "", "not a ledger"),
        ("b.json", None, "does not exist"),
        ("b.jsonl", None, "does not exist"),
    ],
)
def test_bad_files_are_one_line(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(MixMatchError, match=message) as caught:
        read(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_too_many_queries():
    with pytest.raises(MixMatchError, match="queries=3: the answers are to 2 queries"):
        asked([0, 1], [0, 1]).first(3)


def test_the_numbering_of_the_public_votes_is_turned_into_svhn_s():
    """The digit d is number d in the votes and number (d - 1) mod 10 in SVHN."""
    given = asked([4, 7, 9, 11], [0, 1, -1, 9])
    found = renumber(given, SVHN, "0123456789")
    assert found.labels.tolist() == [9, 0, -1, 8]
    assert found.rows.tolist() == [4, 7, 9, 11]
    assert renumber(asked([4, 7, 9, 11], [0, 1, -1, 9], classes=DIGITS), SVHN).labels.tolist() == [9, 0, -1, 8]
    assert renumber(given, SVHN, "1,2,3,4,5,6,7,8,9,0").labels.tolist() == [0, 1, -1, 9]


def test_what_could_mean_two_things_is_refused():
    given = asked([0, 1], [0, 1])
    with pytest.raises(MixMatchError, match=r"give classes=1234567890 if .* or classes=0123456789 if 0 means '0'"):
        renumber(given, SVHN)
    assert renumber(given, DIGITS).labels.tolist() == [0, 1]  # class 3 is the digit 3
    assert renumber(given, ("cat", "dog")).labels.tolist() == [0, 1]
    assert renumber(authors(), SVHN).labels.tolist() == authors().labels.tolist()  # known by their content
    changed = authors().labels.copy()
    changed[3] = 8
    with pytest.raises(MixMatchError, match="which class is which"):
        renumber(asked(range(250), changed), SVHN)


def test_classes_that_contradict():
    with pytest.raises(MixMatchError, match="the answers say that theirs are"):
        renumber(asked([0], [1], classes=DIGITS), SVHN, "1234567890")
    with pytest.raises(MixMatchError, match="but the data set has 1,2,3"):
        renumber(asked([0], [1]), SVHN, "cat,dog")
    with pytest.raises(MixMatchError, match="an answer is 2, but there are 2 classes"):
        renumber(asked([0], [2]), ("cat", "dog"))


def test_what_a_run_keeps():
    part = student_options(9, np.array([4, 2]), np.array([1, 0]))
    assert part == {"student": {"pool": 9, "rows": [4, 2], "answers": [1, 0]}}
    assert json.loads(json.dumps(part)) == part

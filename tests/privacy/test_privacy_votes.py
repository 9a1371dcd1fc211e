"""Reading votes, queries and answers: what is accepted, and one clear line for what is not."""

from __future__ import annotations

import json
import zipfile

import numpy as np
import pytest

from mixmatch.errors import MixMatchError
from mixmatch.privacy import votes as module
from mixmatch.privacy.answers import read_for_votes
from mixmatch.privacy.checks import PrivacyError
from mixmatch.privacy.votes import from_counts, from_labels, read_integers, read_votes

COUNTS = np.array([[3, 0, 1], [1, 2, 1], [0, 0, 4]])
LABELS = np.array([[0, 1, 2], [0, 1, 2], [0, 0, 2], [2, 2, 2]])


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64, np.float32, np.float64])
def test_counts_of_any_type_from_any_file(tmp_path, dtype):
    given = COUNTS.astype(dtype)
    np.save(tmp_path / "v.npy", given)
    np.savez(tmp_path / "v.npz", votes=given)
    np.savez_compressed(tmp_path / "c.npz", given)
    np.savetxt(tmp_path / "v.csv", given, delimiter=",", fmt="%g")
    (tmp_path / "h.csv").write_text("cat, dog, bird\n" + (tmp_path / "v.csv").read_text() + "\n")
    read = [read_votes(tmp_path / name) for name in ("v.npy", "v.npz", "c.npz", "v.csv", "h.csv")]
    for votes in read:
        assert (votes.counts == COUNTS).all()
        assert (votes.teachers, votes.queries, votes.classes) == (4, 3, 3)
    assert len({votes.sha256 for votes in read}) == 1


def test_labels_are_counted(tmp_path):
    np.save(tmp_path / "v.npy", LABELS)
    votes = read_votes(tmp_path / "v.npy", "labels")
    assert (votes.counts == COUNTS).all()
    assert votes.teachers == 4
    assert read_votes(tmp_path / "v.npy", "labels", num_classes=5).counts.shape == (3, 5)
    assert votes.sha256 == from_counts(COUNTS).sha256 != from_counts(COUNTS[::-1]).sha256


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([[3, 0, 1], [1, 2, 0], [0, 0, 4]], "row 1 sums to 3 votes, not to the 4 teachers"),
        ([[3, 0, 1], [5, -2, 1], [0, 0, 4]], "row 1 has a negative number of votes"),
        ([[3, 0, 1], [1.5, 1.5, 1], [0, 0, 4]], "row 1 has the value 1.5; votes are whole numbers"),
        ([[3, 0, 1], [np.nan, 2, 1], [0, 0, 4]], "row 1 has a value that is not a number"),
        ([[3, 0, 1], [np.inf, 2, 1], [0, 0, 4]], "row 1 has a value that is not a number"),
        ([[0, 0], [0, 0]], "no teacher voted"),
        ([[4], [4]], "one column"),
        ([4, 4], "not a matrix"),
        (np.zeros((0, 3)), "not a matrix"),
        (np.zeros((2, 2, 2)), "not a matrix"),
    ],
)
def test_counts_that_cannot_be(tmp_path, counts, message):
    with pytest.raises(MixMatchError, match=message):
        from_counts(counts)
    np.save(tmp_path / "v.npy", np.array(counts))
    with pytest.raises(MixMatchError) as error:
        read_votes(tmp_path / "v.npy")
    assert "\n" not in str(error.value)
    assert "v.npy" in str(error.value)


def test_the_number_of_teachers_can_be_demanded():
    assert from_counts(COUNTS, 4).teachers == 4
    with pytest.raises(MixMatchError, match="row 0 sums to 4 votes, not to the 5 teachers"):
        from_counts(COUNTS, 5)
    with pytest.raises(MixMatchError, match="4 rows of labels, but 5 teachers"):
        from_labels(LABELS, teachers=5)


@pytest.mark.parametrize(
    ("labels", "classes", "message"),
    [([[0, -1]], None, "negative label"), ([[0, 5]], 3, "there are 3 classes"), ([[0.5, 1]], None, "whole numbers")],
)
def test_labels_that_cannot_be(labels, classes, message):
    with pytest.raises(MixMatchError, match=message):
        from_labels(labels, classes)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("v.npy", b"nonsense"),
        ("v.npz", b"nonsense"),
        ("v.csv", b"1,2\n3,x\n"),
        ("v.csv", b"1,2\n3\n"),
        ("v.csv", b""),
        ("v.csv", b"\xff\xfe\x00"),
        ("v.npy", b""),
    ],
)
def test_damaged_files(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(PrivacyError) as error:
        read_votes(tmp_path / name)
    assert "\n" not in str(error.value)


def test_files_that_are_not_votes(tmp_path):
    with pytest.raises(MixMatchError, match="does not exist"):
        read_votes(tmp_path / "none.npy")
    np.savez(tmp_path / "two.npz", a=COUNTS, b=COUNTS)
    with pytest.raises(MixMatchError, match=r"2 arrays \(a, b\), not one"):
        read_votes(tmp_path / "two.npz")
    np.savez(tmp_path / "none.npz")
    with pytest.raises(MixMatchError, match="0 arrays, not one"):
        read_votes(tmp_path / "none.npz")
    np.save(tmp_path / "pickle.npy", np.array([[object()]]), allow_pickle=True)
    with pytest.raises(MixMatchError, match=r"cannot read .* it holds Python objects"):
        read_votes(tmp_path / "pickle.npy")
    np.save(tmp_path / "text.npy", np.array([["a", "b"]]))
    with pytest.raises(MixMatchError, match="not numbers"):
        read_votes(tmp_path / "text.npy")
    with pytest.raises(MixMatchError, match="unknown format"):
        read_votes(tmp_path / "text.npy", "lables")


def test_lists_of_numbers(tmp_path):
    (tmp_path / "a.json").write_text("[3, 1, 2]")
    (tmp_path / "b.json").write_text('{"label": [3, 1, 2]}')
    (tmp_path / "c.txt").write_text("3\n1\n2\n")
    (tmp_path / "d.csv").write_text("3,1,2\n")
    np.save(tmp_path / "e.npy", np.array([3.0, 1, 2]))
    for name in ("a.json", "b.json", "c.txt", "d.csv", "e.npy"):
        assert read_integers(tmp_path / name).tolist() == [3, 1, 2]
    for content in ('{"label": 3}', "[1.5]", "[true]", '"3"', "{"):
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(MixMatchError):
            read_integers(tmp_path / "bad.json")


def test_queries_by_row_number(tmp_path):
    votes = from_counts(COUNTS)
    (tmp_path / "rows.txt").write_text("2\n0\n")
    assert module.read_rows(tmp_path / "rows.txt", votes).tolist() == [2, 0]
    (tmp_path / "rows.txt").write_text("3\n")
    with pytest.raises(MixMatchError, match=r"row 3 is not in the votes \(0..2\)"):
        module.read_rows(tmp_path / "rows.txt", votes)


def test_answers_by_row_or_by_query(tmp_path):
    votes, rows = from_counts(COUNTS), np.array([2, 0])
    (tmp_path / "all.json").write_text('{"label": [-1, 1, 2]}')
    (tmp_path / "asked.json").write_text("[2, -1]")
    (tmp_path / "named.csv").write_text("query,label,source\n0,-1,\n2,2,teachers\n")
    for name in ("all.json", "asked.json", "named.csv"):
        found = read_for_votes(tmp_path / name, votes, rows)
        assert found.labels.tolist() == [2, -1]
        assert found.by_teachers.tolist() == [True, False]


def test_what_was_never_asked_was_not_refused(tmp_path):
    votes = from_counts([[3, 0, 0], [0, 3, 0], [0, 0, 3]])
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"label": [0, -1, -1], "queries": [0, 1]}))
    assert read_for_votes(path, votes, np.array([1, 0])).labels.tolist() == [-1, 0]
    with pytest.raises(MixMatchError, match="no answer to query 2"):
        read_for_votes(path, votes, np.arange(3))


def test_a_label_the_student_kept_is_not_the_teachers(tmp_path):
    votes, rows = from_counts(COUNTS), np.arange(3)
    (tmp_path / "a.json").write_text(json.dumps({"label": [0, 1, 2], "kept": [1]}))
    (tmp_path / "a.csv").write_text("query,label,source\n0,0,teachers\n1,1,student\n2,2,teachers\n")
    for name in ("a.json", "a.csv"):
        assert read_for_votes(tmp_path / name, votes, rows).by_teachers.tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("content", "message"),
    [("[0, 1]", "2 answers, but"), ("[0, 1, 3]", "-1"), ("[0, 1, -2]", "-1"), ("[0, 0.5, 1]", "whole numbers")],
)
def test_answers_that_cannot_be(tmp_path, content, message):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(MixMatchError, match=message):
        read_for_votes(tmp_path / "a.json", from_counts(COUNTS), np.arange(3))


def test_a_students_probabilities(tmp_path):
    votes = from_counts(COUNTS)
    np.save(tmp_path / "p.npy", np.full((3, 3), 1 / 3, dtype=np.float32))
    assert module.read_probabilities(tmp_path / "p.npy", votes).sum(axis=1) == pytest.approx(1, abs=1e-15)
    for bad in (np.full((3, 3), 0.5), np.full((2, 3), 1 / 3), np.array([[2, -1, 0.0]] * 3), np.full((3, 3), np.nan)):
        np.save(tmp_path / "p.npy", bad)
        with pytest.raises(MixMatchError, match=r"p\.npy"):
            module.read_probabilities(tmp_path / "p.npy", votes)


def test_files_too_large_to_be_votes(tmp_path, monkeypatch):
    """They take little of a disk, and all of the memory."""
    for name in ("votes.csv", "votes.npy"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(2**40)
        with pytest.raises(MixMatchError, match="more than the"):
            read_votes(tmp_path / name)
    with zipfile.ZipFile(tmp_path / "votes.npz", "w", zipfile.ZIP_DEFLATED) as file, file.open("x.npy", "w") as member:
        member.write(bytes(2**24))
    monkeypatch.setenv("MIXMATCH_UNPACK_GB", "0.01")
    with pytest.raises(MixMatchError, match="MIXMATCH_UNPACK_GB"):
        read_votes(tmp_path / "votes.npz")

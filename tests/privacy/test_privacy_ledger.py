"""The ledger: crashes at every point, second processes, torn and foreign files. No charge lost, no budget crossed."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections import Counter

import numpy as np
import pytest

from mixmatch.errors import MixMatchError
from mixmatch.privacy import ledger as module
from mixmatch.privacy.accountant import Accountant
from mixmatch.privacy.ledger import Budget, Ledger, answer_queries, head_of
from mixmatch.privacy.mechanisms import Answer, ConfidentGNMax, GNMax, InteractiveGNMax, LNMax
from mixmatch.privacy.votes import from_counts

VOTES = from_counts(np.random.default_rng(0).multinomial(100, [0.25, 0.2, 0.2, 0.2, 0.15], size=60))
MECHANISM = ConfidentGNMax(30, 20, 15)
BUDGET = Budget(3.0, 1e-5)
OPEN = Budget(None, 1e-5)
posix = pytest.mark.skipif(os.name != "posix", reason="forks and kills processes")


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def recount(path, votes=VOTES, mechanism=MECHANISM):
    """What a ledger file says was spent, counted from its lines alone, with open charges as answered."""
    answers = {line["answer"]: line["source"] == "teachers" for line in lines(path) if "answer" in line}
    rows = [line["charge"] for line in lines(path) if "charge" in line]
    book = Accountant(mechanism)
    if rows:
        book.charge(votes.counts[rows], np.array([answers.get(row, True) for row in rows]))
    return book


def test_answers_and_charges_are_recorded(tmp_path):
    path = tmp_path / "l.jsonl"
    with Ledger(path, VOTES, MECHANISM) as book:
        result = answer_queries(book, range(20), OPEN)
        spent = book.epsilon(OPEN)
        assert len(result) == 20
    found = lines(path)
    assert found[0]["votes_sha256"] == VOTES.sha256
    assert found[0]["parameters"] == {"threshold": 30, "sigma1": 20, "sigma2": 15}
    assert [line["charge"] for line in found if "charge" in line] == list(range(20))
    assert {line["answer"]: line["label"] for line in found if "answer" in line} == {
        row: answer.label for row, answer in result.items()
    }
    assert "seed" not in path.read_text()
    assert spent.value == pytest.approx(recount(path).epsilon(1e-5, "realised").value, rel=1e-12)
    # Charges as written, at order 2: the check alone where refused, check and answer where answered.
    for line in found:
        if "answer" in line:
            check = 2 / (2 * 20**2)
            assert line["rdp"][0] == pytest.approx(check) or (line["source"] == "teachers" and line["rdp"][0] > check)


@pytest.mark.parametrize("charging", ["expected", "realised", "all"])
@pytest.mark.parametrize("bound", ["data-dependent", "data-independent"])
@pytest.mark.parametrize("conversion", ["classic", "improved"])
def test_the_budget_is_never_crossed_and_used_up(tmp_path, charging, bound, conversion):
    budget = Budget(2.0, 1e-5, charging, bound, conversion)
    with Ledger(tmp_path / "l.jsonl", VOTES, MECHANISM) as book:
        result = answer_queries(book, range(60), budget, seed=1, block=7)
        spent = book.epsilon(budget).value
        assert 0 < len(result) < 60
        assert spent <= 2.0
        # The next one could have crossed it.
        following = len(result)
        worst = Accountant(MECHANISM)
        rows = list(range(following + 1))
        answered = np.array([result[row].by_teachers for row in rows[:-1]] + [True])
        worst.charge(VOTES.counts[rows], answered)
        assert worst.epsilon(1e-5, charging, bound, conversion).value > 2.0


def test_a_budget_too_small_answers_nothing_and_charges_nothing(tmp_path):
    with Ledger(tmp_path / "l.jsonl", VOTES, MECHANISM) as book:
        result = answer_queries(book, range(60), Budget(0.01, 1e-5))
        assert result == {}
        assert book.epsilon(OPEN).value == 0
    assert [next(iter(line)) for line in lines(tmp_path / "l.jsonl")] == ["ledger", "ended"]


def test_going_on_costs_only_what_is_new(tmp_path):
    path = tmp_path / "l.jsonl"
    with Ledger(path, VOTES, MECHANISM) as book:
        first = answer_queries(book, range(10), OPEN)
        spent = book.epsilon(OPEN)
    before = path.read_bytes()
    with Ledger(path, VOTES, MECHANISM) as book:
        assert answer_queries(book, [*range(10), 3, 3], OPEN) == first
        assert book.epsilon(OPEN).value == pytest.approx(spent.value)
        assert path.read_bytes() == before
        more = answer_queries(book, range(15), OPEN)
        assert {row: more[row] for row in range(10)} == first
    assert path.read_bytes().startswith(before)
    assert Counter(line["charge"] for line in lines(path) if "charge" in line) == Counter(range(15))


def test_block_size_and_interruption_do_not_change_seeded_answers(tmp_path):
    whole = []
    for name, blocks in {"a": [(60, 64)], "b": [(60, 1)], "c": [(13, 5), (41, 64), (60, 3)]}.items():
        for end, block in blocks:
            with Ledger(tmp_path / name, VOTES, MECHANISM) as book:
                result = answer_queries(book, range(end), OPEN, seed=5, block=block)
        whole.append(result)
    assert whole[0] == whole[1] == whole[2]


def in_a_process(work):
    """Run `work` in a forked process; the number of the signal that ended it, 0 if it came to its end."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def spend_until(path, public, write, fraction):
    """Answer all queries in blocks of 4, but be killed at the `write`-th write to the ledger, part of it done; or
    to its head, before or after it is replaced."""
    real, count = Ledger._write, 0

    def failing(self, content):
        nonlocal count
        count += 1
        if count == write:
            part = content[: round(len(content) * fraction)]
            if part:
                real(self, part)
            die()
        real(self, content)

    settle = Ledger.settle

    def published(self, answers):
        settle(self, answers)
        for row, answer in answers.items():
            os.write(public, f"{row} {answer.label}\n".encode())

    Ledger.settle = published  # in this process alone, which is a fork

    if fraction in ("before the head", "after the head"):
        replace = module.replace_durably

        def replacing(*given):
            nonlocal count
            count += 1
            if count == write and fraction == "before the head":
                die()
            replace(*given)
            if count == write:
                die()

        module.replace_durably = replacing
    else:
        Ledger._write = failing
    with Ledger(path, VOTES, MECHANISM) as book:
        answer_queries(book, range(60), BUDGET, block=4)


@posix
@pytest.mark.parametrize("fraction", [0, 0.1, 0.5, 0.97, 1, "before the head", "after the head"])
def test_killed_at_every_write(tmp_path, fraction):
    """SIGKILL in the middle of every write, again and again on one ledger, each time going on from what is left."""
    path, seen = tmp_path / "l.jsonl", tmp_path / "seen"
    public = os.open(seen, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    charged_before, kills = 0.0, 0
    for write in (1, 1, 2, 2, 3, 3, 4, 5, 2, 3):
        ended = in_a_process(lambda write=write: spend_until(path, public, write, fraction))
        assert ended in (signal.SIGKILL, 0)
        kills += ended == signal.SIGKILL
        # Whatever the world has seen is in the ledger, with its charge.
        with Ledger(path, VOTES, MECHANISM) as book:
            for line in seen.read_text().splitlines():
                row, label = map(int, line.split())
                assert book.answers[row].label == label
            charged = book.rdp("all")[10]
            assert charged >= charged_before - 1e-15
            charged_before = charged
            assert book.epsilon(BUDGET).value <= 3.0
    assert kills >= 8
    with Ledger(path, VOTES, MECHANISM) as book:
        result = answer_queries(book, range(60), BUDGET)
        assert book.epsilon(BUDGET).value == pytest.approx(recount(path).epsilon(1e-5, "realised").value)
        assert book.epsilon(BUDGET).value <= 3.0
        assert not book.open_charges
    every = Counter(line["answer"] for line in lines(path) if "answer" in line)
    assert max(every.values()) == 1
    assert max(Counter(line["charge"] for line in lines(path) if "charge" in line).values()) == 1
    for line in seen.read_text().splitlines():
        row, label = map(int, line.split())
        assert result[row].label == label
    assert Counter(line.split()[0] for line in seen.read_text().splitlines()).most_common(1)[0][1] == 1
    os.close(public)


@posix
def test_killed_after_drawing_before_recording(tmp_path):
    """The charge stays, in full, though nobody saw an answer."""
    path = tmp_path / "l.jsonl"

    def draw_and_die():
        Ledger.settle = lambda *_: die()
        with Ledger(path, VOTES, MECHANISM) as book:
            answer_queries(book, range(5), BUDGET)

    assert in_a_process(draw_and_die) == signal.SIGKILL
    with Ledger(path, VOTES, MECHANISM) as book:
        assert book.open_charges == list(range(5))
        assert book.rdp("realised") == pytest.approx(book.rdp("all"))
        full = Accountant(MECHANISM)
        full.charge(VOTES.counts[:5])
        assert book.epsilon(BUDGET).value == pytest.approx(full.epsilon(1e-5, "all").value)
        answer_queries(book, range(5), BUDGET)
        assert sorted(book.answers) == list(range(5))
    assert [line["charge"] for line in lines(path) if "charge" in line] == list(range(5))


def spent_ledger(path, count=8):
    with Ledger(path, VOTES, MECHANISM) as book:
        answer_queries(book, range(count), OPEN, seed=1)
    return path.read_bytes()


def head(path):
    return path.with_name(path.name + ".head")


@pytest.mark.parametrize("cut", [*range(2, 60, 7), 400])
def test_a_ledger_cut_short_is_refused(tmp_path, cut):
    """A crash cuts nothing that its head knows of."""
    path = tmp_path / "l.jsonl"
    content = spent_ledger(path)
    path.write_bytes(content[:-cut])
    with pytest.raises(MixMatchError, match=r"damaged.*what was spent cannot be known: restore"):
        Ledger(path, VOTES, MECHANISM)
    assert path.read_bytes() == content[:-cut]


def edited(content):
    """The last answer turned into a refusal by nobody, or given by a student."""
    lines = content.splitlines(keepends=True)
    return [
        b"".join([*lines[:-1], lines[-1].replace(old, new)])
        for old, new in [
            (b'"teachers"', b'""'),
            (b'"source": ""', b'"source": "student"'),
            (b'"label": ', b'"label": 1'),
        ]
        if old in lines[-1]
    ]


LOSSES = {
    "emptied": lambda content: b"",
    "within its header": lambda content: content[:40],
    "its header alone": lambda content: content.splitlines(keepends=True)[0],
    "its tail in zeros": lambda content: content[:-300] + b"\0" * 300,
    "all zeros": lambda content: b"\0" * len(content),
    "a block at a line end": lambda content: b"".join(content.splitlines(keepends=True)[:-8]),
    "a line in the middle": lambda content: b"".join(
        content.splitlines(keepends=True)[:4] + content.splitlines(True)[5:]
    ),
    "another ledger": lambda content: b"hello",
    "two lines exchanged": lambda content: b"".join(
        [line for i in (0, 1, 3, 2) for line in content.splitlines(True)[i : i + 1]] + content.splitlines(True)[4:]
    ),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_any_loss_is_found_and_nothing_is_written(tmp_path, loss):
    path = tmp_path / "l.jsonl"
    content = LOSSES[loss](spent_ledger(path))
    path.write_bytes(content)
    before = head(path).read_bytes()
    with pytest.raises(MixMatchError, match=r"damaged|lost"):
        Ledger(path, VOTES, MECHANISM)
    assert (path.read_bytes(), head(path).read_bytes()) == (content, before)


def test_an_edited_answer_is_found(tmp_path):
    path = tmp_path / "l.jsonl"
    for content in [*edited(spent_ledger(path, 8)), *edited(spent_ledger(path, 9))]:
        path.write_bytes(content)
        with pytest.raises(MixMatchError, match="damaged"):
            Ledger(path, VOTES, MECHANISM)
    middle = json.loads(content.splitlines()[12])
    assert "answer" in middle


def test_a_ledger_without_its_head_is_refused(tmp_path):
    path = tmp_path / "l.jsonl"
    spent_ledger(path)
    for content in (None, b"", b"[]", b'{"lines": 3}'):
        head(path).unlink() if content is None else head(path).write_bytes(content)
        with pytest.raises(MixMatchError, match=r"l\.jsonl\.head"):
            Ledger(path, VOTES, MECHANISM)


def test_a_new_ledger_that_a_crash_left_without_a_head_goes_on(tmp_path):
    """Its header alone, or a part of it: nothing has been charged."""
    path = tmp_path / "l.jsonl"
    header = spent_ledger(path).splitlines(keepends=True)[0]
    for content in (header, header[:20], b""):
        head(path).unlink()
        path.write_bytes(content)
        assert not Ledger(path, VOTES, MECHANISM).answers
        assert path.read_bytes() == header


def test_lines_beyond_the_head_count(tmp_path):
    """A crash between a charge and its head: nothing followed from the charge, but it stays."""
    path = tmp_path / "l.jsonl"
    with Ledger(path, VOTES, MECHANISM) as book:
        answer_queries(book, range(3), OPEN)
        earlier = head(path).read_bytes()
        book.reserve([5, 6])
    head(path).write_bytes(earlier)
    with Ledger(path, VOTES, MECHANISM) as book:
        assert book.open_charges == [5, 6]
    assert json.loads(head(path).read_text())["lines"] == 1 + 6 + 2
    content = path.read_bytes()
    head(path).write_bytes(earlier)
    path.write_bytes(content[:-20])  # and a line that the crash cut short
    with Ledger(path, VOTES, MECHANISM) as book:
        assert book.open_charges == [5]


def test_a_ledger_of_an_earlier_version_goes_on_as_a_chain(tmp_path):
    path = tmp_path / "l.jsonl"
    whole = [json.loads(line) for line in spent_ledger(path).splitlines()]
    for line in whole:
        line.pop("before")
    whole[0]["ledger"] = 1
    path.write_text("".join(json.dumps(line) + "\n" for line in whole))
    head(path).unlink()
    with Ledger(path, VOTES, MECHANISM) as book:
        assert len(book.answers) == 8
        assert book.ended_by_votes  # it may have been: that version did not record it
        answer_queries(book, range(10), OPEN)
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"label": ', b'"label": 1', 1))
    with pytest.raises(MixMatchError, match="damaged"):
        Ledger(path, VOTES, MECHANISM)


@posix
def test_only_the_owner_can_read_a_ledger(tmp_path):
    before = os.umask(0)
    try:
        path = tmp_path / "new" / "l.jsonl"
        spent_ledger(path)
        assert [oct(each.stat().st_mode & 0o777) for each in (path, head(path), path.parent)] == ["0o600"] * 2 + [
            "0o700"
        ]
        path.chmod(0o644)
        Ledger(path, VOTES, MECHANISM)
        assert path.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


@posix
def test_a_second_process_is_refused_until_the_first_ends(tmp_path):
    path = tmp_path / "l.jsonl"
    ready_out, ready_in = os.pipe()
    child = os.fork()
    if child == 0:
        with Ledger(path, VOTES, MECHANISM) as book:
            answer_queries(book, range(3), OPEN)
            os.write(ready_in, b"x")
            time.sleep(60)
        os._exit(1)
    try:
        os.read(ready_out, 1)
        before = path.read_bytes()
        (tmp_path / "link.jsonl").symlink_to(path)
        for name in (path, tmp_path / "link.jsonl"):
            with pytest.raises(MixMatchError, match="another process is spending"):
                Ledger(name, VOTES, MECHANISM)
        assert path.read_bytes() == before
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with Ledger(path, VOTES, MECHANISM) as book:
        assert sorted(book.answers) == [0, 1, 2]


@posix
def test_many_processes_together_spend_one_budget(tmp_path):
    path = tmp_path / "l.jsonl"

    def spend():
        for _ in range(400):
            try:
                with Ledger(path, VOTES, MECHANISM) as book:
                    wanted = min(len(book.answers) + 2, VOTES.queries)
                    if len(answer_queries(book, range(wanted), BUDGET)) < wanted or wanted == VOTES.queries:
                        return  # with luck few are answered, and all of them fit
            except MixMatchError as error:
                if "another process" not in str(error):
                    raise

    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            try:
                spend()
                os._exit(0)
            except BaseException:
                traceback.print_exc(file=sys.__stderr__)
                os._exit(1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert recount(path).epsilon(1e-5, "realised").value <= 3.0
    assert max(Counter(line["charge"] for line in lines(path) if "charge" in line).values()) == 1


@pytest.mark.parametrize(
    ("votes", "mechanism", "message"),
    [
        (from_counts(VOTES.counts[::-1]), MECHANISM, "ledger of other votes"),
        (from_counts(VOTES.counts[:-1]), MECHANISM, "ledger of other votes"),
        (VOTES, ConfidentGNMax(30, 20, 16), "was begun with parameters"),
        (VOTES, GNMax(15), "was begun with mechanism"),
        (VOTES, LNMax(0.1), "was begun with mechanism"),
    ],
)
def test_a_ledger_of_something_else_is_refused(tmp_path, votes, mechanism, message):
    path = tmp_path / "l.jsonl"
    with Ledger(path, VOTES, MECHANISM) as book:
        answer_queries(book, range(3), OPEN)
    before = path.read_bytes()
    with pytest.raises(MixMatchError, match=message) as error:
        Ledger(path, votes, mechanism)
    assert "\n" not in str(error.value)
    assert path.read_bytes() == before


def test_another_students_ledger_is_refused(tmp_path):
    mechanism = InteractiveGNMax(10, 20, 15)
    students = [np.random.default_rng(seed).dirichlet(np.ones(5), size=60) for seed in (1, 2)]
    with Ledger(tmp_path / "l.jsonl", VOTES, mechanism, students[0]) as book:
        result = answer_queries(book, range(60), OPEN, seed=3)
        assert {answer.source for answer in result.values()} >= {"teachers", ""}
        charged = Accountant(mechanism)
        answered = np.array([answer.by_teachers for answer in result.values()])
        charged.charge(VOTES.counts, answered, students[0])
        assert book.epsilon(OPEN).value == pytest.approx(charged.epsilon(1e-5, "realised").value)
    with pytest.raises(MixMatchError, match="baseline_sha256"):
        Ledger(tmp_path / "l.jsonl", VOTES, mechanism, students[1])


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace('"charge": 1,', '"chrage": 1,', 1),
        lambda text: text.replace('{"answer": 0', '{"answer": 1', 1),
        lambda text: text.replace('{"charge": 2', '{"charge": 0', 1),
        lambda text: text.replace('{"charge": 2', '{"charge": 99', 1),
        lambda text: text.replace('{"charge": 2', "charge", 1),
        lambda text: "\n" + text,
    ],
)
def test_a_damaged_ledger_is_refused_and_left_alone(tmp_path, damage):
    path = tmp_path / "l.jsonl"
    with Ledger(path, VOTES, MECHANISM) as book:
        answer_queries(book, range(4), OPEN)
    path.write_text(damage(path.read_text()))
    before = path.read_bytes()
    with pytest.raises(MixMatchError, match="damaged"):
        Ledger(path, VOTES, MECHANISM)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"hello", b"hello\n", b'{"a": 1}', b'{"a": 1}\n', b"\x93NUMPY"])
def test_any_other_file_is_left_alone(tmp_path, content):
    path = tmp_path / "l.jsonl"
    path.write_bytes(content)
    with pytest.raises(MixMatchError):
        Ledger(path, VOTES, MECHANISM)
    assert path.read_bytes() == content


@pytest.mark.parametrize("count", ["1e999", "5.5", "true", "null", "-1", "9" * 5000])
def test_a_head_that_counts_no_lines_is_refused(tmp_path, count):
    path = tmp_path / "l.jsonl"
    with Ledger(path, VOTES, MECHANISM) as book:
        answer_queries(book, range(2), OPEN)
    head = json.loads(head_of(path).read_text())
    head_of(path).write_text(json.dumps(head).replace(f'"lines": {head["lines"]}', f'"lines": {count}'))
    with pytest.raises(MixMatchError, match="cannot be known"):
        Ledger(path, VOTES, MECHANISM)


def test_a_full_disk_is_one_line_and_forgets_nothing(tmp_path, monkeypatch):
    path = tmp_path / "l.jsonl"
    with Ledger(path, VOTES, MECHANISM) as book:
        answer_queries(book, range(4), OPEN)
        spent = book.rdp("realised")

        def full(handle):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(module.os, "fsync", full)
        with pytest.raises(MixMatchError, match="No space left"):
            answer_queries(book, range(8), OPEN)
        monkeypatch.undo()
    with Ledger(path, VOTES, MECHANISM) as book:
        assert (book.rdp("realised") >= spent).all()


@pytest.mark.parametrize("fails", ["charge", "answer"])
def test_after_a_full_disk_the_same_ledger_goes_on(tmp_path, monkeypatch, fails):
    path = tmp_path / "l.jsonl"
    write = Ledger._write
    with Ledger(path, VOTES, MECHANISM) as book:
        answer_queries(book, range(4), OPEN)

        def full(self, content):
            if content.startswith(f'{{"{fails}"'.encode()):
                write(self, content[: len(content) // 2])
                raise OSError(28, "No space left on device")
            write(self, content)

        monkeypatch.setattr(Ledger, "_write", full)
        with pytest.raises(MixMatchError, match="No space left"):
            answer_queries(book, range(8), OPEN)
        assert book.open_charges == ([] if fails == "charge" else [4, 5, 6, 7])
        monkeypatch.undo()
        answers = answer_queries(book, range(8), OPEN)
    assert len(lines(path)) == 1 + 8 + 8
    with Ledger(path, VOTES, MECHANISM) as book:
        assert book.answers == answers


def test_what_cannot_be_asked(tmp_path):
    with Ledger(tmp_path / "l.jsonl", VOTES, MECHANISM) as book:
        for budget, rows, message in [
            (Budget(0.0, 1e-5), [0], "max-epsilon is 0"),
            (Budget(-1.0, 1e-5), [0], "max-epsilon is -1"),
            (Budget(1.0, 0.0), [0], "delta is 0"),
            (Budget(1.0, 1e-5, "some"), [0], "unknown way of charging"),
            (Budget(1.0, 1e-5, "all", "loose"), [0], "unknown bound"),
            (Budget(1.0, 1e-5, "all", "data-dependent", "new"), [0], "unknown conversion"),
            (OPEN, [60], "query 60 is not in the votes"),
            (OPEN, [-1], "query -1 is not in the votes"),
        ]:
            with pytest.raises(MixMatchError, match=message):
                answer_queries(book, rows, budget)
        assert not book.answers
    assert len(lines(tmp_path / "l.jsonl")) == 1


def test_a_query_is_charged_once_and_answered_only_when_charged(tmp_path):
    with Ledger(tmp_path / "l.jsonl", VOTES, MECHANISM) as book:
        book.reserve([3])
        with pytest.raises(MixMatchError, match="query 3 is already in"):
            book.reserve([4, 3])
        with pytest.raises(MixMatchError, match="query 4 is not reserved"):
            book.settle({4: Answer(0, "teachers")})
        book.settle({3: Answer(0, "teachers")})
        with pytest.raises(MixMatchError, match="query 3 is already in"):
            book.reserve([3])
    assert len(lines(tmp_path / "l.jsonl")) == 3


def test_a_ledger_that_cannot_be_written(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(MixMatchError, match="choose another file with ledger="):
        Ledger(tmp_path / "folder", VOTES, MECHANISM)

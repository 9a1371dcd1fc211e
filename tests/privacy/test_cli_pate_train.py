"""`pate teachers`, `student` and `run` as a user runs them."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from mixmatch.cli import main
from mixmatch.data import load
from mixmatch.data.pate import pool_rows

TINY = ("--network", "wrn-10-1", "--batch-size", 4, "--device", "cpu", "--quiet")
TRUTH = load("digits").test.labels


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """Run `mixmatch pate ...` in this process: exit code, standard output, standard error."""
    monkeypatch.setenv("MIXMATCH_OFFLINE", "1")
    monkeypatch.delenv("MIXMATCH_DATA", raising=False)
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["mixmatch", "pate", *map(str, arguments)])
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as stopped:
            code = stopped.code or 0
        return code, *capsys.readouterr()

    return call


def refused(result):
    """The one line of a refusal."""
    code, out, err = result
    (line,) = [line for line in err.splitlines() if not line.startswith("warning: ")]
    assert code == 2
    assert out == ""
    return line


def answers(path, rows, labels, **more):
    whole = np.full(500, -1)
    whole[list(rows)] = labels
    path.write_text(json.dumps({"label": whole.tolist(), "queries": list(map(int, rows)), **more}))
    return path


def test_from_teachers_to_a_student(call, tmp_path):
    """Votes by our teachers, answers by pate label, a student that knows which class is which; then a look at it."""
    teachers = ("teachers", "digits", "--teachers", 4, "--steps", 20, "--out", "t", *TINY)
    for part, count in (("2/3", 1), ("1/3", 2), ("3/3", 1)):  # as jobs of an array
        code, out, err = call(*teachers, "--part", part, "--json")
        assert code == 0, err
        assert json.loads(out) == {"part": part, "teachers": count}
    loud = [word for word in teachers if word != "--quiet"]
    assert "these teachers vote; votes are counted when all have" in call(*loud, "--part", "3/3")[2]
    assert not (tmp_path / "t" / "votes.npz").exists()
    trained = {path: path.stat().st_mtime_ns for path in tmp_path.glob("t/teachers/*/result.json")}
    code, out, err = call(*teachers, "--resume", "--json")
    assert code == 0, err
    assert len(trained) == 4
    assert trained == {path: path.stat().st_mtime_ns for path in trained}
    assert json.loads(out)["votes"] == "t/votes.npz"
    rows = pool_rows("half", 500)[:50]
    (tmp_path / "rows.txt").write_text("\n".join(map(str, rows)))
    mechanism = ("--threshold", 2, "--sigma1", 1, "--sigma2", 0.5, "--delta", 1e-4)
    code, _, err = call(
        "label", "--votes", "t/votes.npz", *mechanism, "--indices", "rows.txt", "--seed", 1, "-o", "a.json"
    )
    assert code == 0, err
    written = json.loads((tmp_path / "a.json").read_text())
    assert written["classes"] == list("0123456789")
    student = ("student", "--answers", "a.json", "--data", "digits-test", "--steps", 2, "--repeats", 2, *TINY)
    code, out, err = call(*student, "--out", "s", "--part", "2/2")
    assert out == ("part 2/2: 1 student finished; the same command with --resume instead of --part takes all of them\n")
    assert [path.name for path in (tmp_path / "s").iterdir()] == ["mixmatch-seed2"]
    more = ("--resume", "--votes", "t/votes.npz", *mechanism, "--results", "r", "--json")
    code, out, err = call(*student, "--out", "s", *more)
    assert code == 0, err
    summary = json.loads(out)
    assert (summary["queries"], summary["pool"], summary["test"], len(summary["accuracies"])) == (50, 250, 250, 2)
    analyze = ("analyze", "--votes", "t/votes.npz", *mechanism, "--indices", "rows.txt", "--answers", "a.json")
    _, out, _ = call(*analyze, "--json")
    for name in ("epsilon_expected", "epsilon_realised", "epsilon_all_charged", "answered"):
        assert summary["privacy"][name] == json.loads(out)[name]
    assert len(list((tmp_path / "r").glob("digits-test-mixmatch-*.json"))) == 2
    assert json.loads((tmp_path / "s" / "mixmatch.json").read_text()) == summary
    code, out, _ = call(*student, "--out", "s", "--resume", "--votes", "t/votes.npz", *mechanism)
    assert code == 0
    assert f"epsilon {summary['privacy']['epsilon_data_independent_all_charged']:.2f} at delta 0.0001" in out
    assert f"{summary['privacy']['epsilon_realised']:.3f} realised" not in out
    code, out, _ = call(*student, "--out", "s", "--resume", "--votes", "t/votes.npz", *mechanism, "--all")
    assert f"{summary['privacy']['epsilon_realised']:.3f} realised" in out
    code, out, _ = call(*student, "--out", "s", "--resume")
    assert code == 0
    assert "not computed (--votes)" in out
    assert "mixmatch, 2 students, 2 steps" in out
    assert "0.97" not in out  # which is SVHN's


def test_all_of_it(call, tmp_path):
    given = ("--teachers", 3, "--teacher-steps", 2, "--teacher-batch-size", 4, "--steps", 2, "--queries", 40,
             "--threshold", 1, "--sigma1", 1, "--sigma2", 1, "--out", "run", "--device", "cpu", "--quiet",
             "--noise-seed", 1)  # fmt: skip
    code, out, err = call("run", *given)
    assert code == 0, err
    for word in ("3 teachers", "which is safe to publish", "epsilon: one", "delta: the", "supervised", "weak"):
        assert word in out
    for private in ("expected", "realised", "all charged"):
        assert private not in out
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())["privacy"]
    assert f"privacy: epsilon {summary['epsilon_data_independent_all_charged']:.2f} at delta 0.0001" in out
    code, out, err = call("run", *given, "--resume", "--all")
    assert code == 0, err
    for name in ("expected", "realised", "all_charged"):
        assert f"{summary[f'epsilon_{name}']:.3f} {name.replace('_', ' ')}" in out
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {
        "answers.json", "privacy.png", "shards.json", "students", "summary.json", "teachers", "votes.json",
        "votes.ledger.jsonl", "votes.ledger.jsonl.head", "votes.npz",
    }  # fmt: skip
    asked = (tmp_path / "run" / "answers.json").read_text()
    assert "holds teachers already" in refused(call("run", *given))
    code, out, err = call("run", *given, "--resume", "--json")
    assert code == 0, err
    assert (tmp_path / "run" / "answers.json").read_text() == asked  # nothing is asked twice
    summary = json.loads(out)
    assert summary["privacy"]["queries"] == 40
    rows = json.loads(asked)["queries"]
    assert len(set(rows) & set(pool_rows("half", 500).tolist())) == len(rows) == 40


def test_a_noise_seed_is_warned_about(call):
    given = ("--teachers", 2, "--teacher-steps", 1, "--steps", 1, "--queries", 20, "--threshold", 0, "--sigma1", 1)
    code, _, err = call("run", *given, "--sigma2", 1, "--noise-seed", 1, "--out", "a", "--device", "cpu", "--quiet")
    assert code == 0, err
    assert "never publish it" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("teachers", "digits", "--teachers", 1298), "1,297 private images cannot be cut into 1,298 shards"),
        (("teachers", "digits", "--teachers", 2, "--method", "mixmatch"), "needs unlabeled images"),
        (("teachers", "digits", "--teachers", 2, "--labels", "x"), "--labels 'x' must be a whole number"),
        (("teachers", "digit", "--teachers", 2), "'digit' is neither a data set nor a file or folder"),
        (("student", "--data", "digits-test"), "needs the teachers' answers: give --answers"),
        (("student",), "test_32x32.mat"),
        (("student", "--delta", 1e-6), "give --votes too"),
        (("student", "--votes", "v.npy", "--threshold", 2), "--votes needs --delta"),
        (("student", "--votes", "v.npy", "--threshold", 2, "--delta", 1e-6), "needs its noise"),
        (("student", "--answers", "none.json", "--data", "digits-test"), "none.json does not exist"),
        (("run", "--queries", 251), "the pool has 250 images"),
        (("run", "--sigma2", 0), "sigma2 is 0"),
        (("run", "--delta", 2), "delta is 2"),
    ],
)
def test_mistakes_are_one_line(call, tmp_path, arguments, message):
    out = ("--out", "out") if arguments[0] != "student" else ("--out", "out", "--repeats", 1)
    assert message in refused(call(*arguments, *out, "--quiet"))
    assert not (tmp_path / "out").exists()


def test_answers_of_another_vote_file(call, tmp_path):
    np.save(tmp_path / "v.npy", np.tile([3, 1], (20, 1)))
    rows = pool_rows("half", 500)[:30]
    answers(tmp_path / "a.json", rows, TRUTH[rows])
    cost = ("--votes", "v.npy", "--threshold", 2, "--sigma1", 1, "--sigma2", 1, "--delta", 1e-4)
    given = ("student", "--answers", "a.json", "--data", "digits-test", *cost, "--out", "out", *TINY)
    assert f"v.npy has votes on 20 images, but query {rows[-1]} was answered" in refused(call(*given))


def test_two_answers_of_one_class(call, tmp_path):
    answers(tmp_path / "a.json", pool_rows("half", 500)[:2], [3, 3])
    given = ("student", "--answers", "a.json", "--data", "digits-test", "--out", "out", *TINY)
    assert "fewer than two classes" in refused(call(*given))


@pytest.mark.parametrize("command", ["teachers", "student", "run"])
def test_help_has_examples(call, command):
    code, out, _ = call(command, "--help")
    assert code == 0
    assert "Examples" in out
    assert f"mixmatch pate {command}" in out

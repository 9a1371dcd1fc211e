"""`pate analyze` and `pate label` as a user runs them."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pytest
from typer.testing import CliRunner

from mixmatch.cli import app
from mixmatch.errors import MixMatchError

MATRIX = np.array([[250 - 2 * i, 2 * i - i // 2, i // 2, *[0] * 7] for i in range(100)])
CONFIDENT = ("--mechanism", "confident-gnmax", "--threshold", 200, "--sigma1", 150, "--sigma2", 40)
PROGRAM = "import sys; from mixmatch.cli import command_line; command_line()(['pate', *sys.argv[1:]])"


@pytest.fixture
def votes(tmp_path):
    np.save(tmp_path / "votes.npy", MATRIX)
    return tmp_path / "votes.npy"


def pate(*arguments):
    """Run `pate ...` in this process; a MixMatchError is what `mixmatch` prints as one line."""
    result = CliRunner().invoke(app, ["pate", *map(str, arguments)])
    if isinstance(result.exception, MixMatchError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def as_json(*arguments):
    return json.loads(pate(*arguments, "--json").stdout)


def test_analyze_prints_what_a_program_reads(votes):
    found = as_json("analyze", "--votes", votes, *CONFIDENT, "--queries", 100, "--delta", 1e-5)
    assert found["queries"] == 100
    assert found["delta"] == 1e-5
    assert found["conversion"] == "classic"
    assert found["order"] == 26
    assert found["expected_answered"] == pytest.approx(41.02543933, rel=1e-8)
    assert found["epsilon_expected"] == pytest.approx(0.90347299, rel=1e-7)
    assert found["epsilon_all_charged"] == pytest.approx(1.48222325, rel=1e-7)
    assert found["epsilon_data_independent"] == pytest.approx(1.16066324, rel=1e-7)
    assert "epsilon_realised" not in found
    assert "sensitive" in found["warning"]
    assert set(found["meaning"]) == {name for name in found if name.startswith("epsilon_")}


def test_analyze_improved(votes):
    found = as_json("analyze", "--votes", votes, *CONFIDENT, "--delta", 1e-5, "--conversion", "improved")
    assert found["epsilon_expected"] == pytest.approx(0.72643175, rel=1e-7)
    assert found["epsilon_all_charged"] == pytest.approx(1.23597025, rel=1e-7)
    assert found["conversion"] == "improved"


def test_analyze_gnmax_and_lnmax(votes):
    found = as_json("analyze", "--votes", votes, "--mechanism", "gnmax", "--sigma", 40, "--delta", 1e-5)
    assert found["epsilon_expected"] == found["epsilon_all_charged"] == found["epsilon_realised"]
    assert found["epsilon_expected"] == pytest.approx(1.44333436, rel=1e-7)
    assert found["expected_answered"] == found["answered"] == 100
    found = as_json("analyze", "--votes", votes, "--mechanism", "lnmax", "--gamma", 0.05, "--delta", 1e-5)
    # Data-independent by hand: min over l of (100 min(l (l+1) / 200, l / 10) + ln 1e5) / l.
    by_hand = min((100 * min(m * (m + 1) / 200, m / 10) + np.log(1e5)) / m for m in range(1, 9))
    assert found["epsilon_data_independent"] == pytest.approx(by_hand)
    assert found["epsilon_expected"] < by_hand


def test_analyze_interactive(votes, tmp_path):
    np.save(tmp_path / "student.npy", np.full((100, 10), 0.1, dtype=np.float32))
    common = ("--sigma1", 150, "--sigma2", 40, "--delta", 1e-5, "--votes", votes)
    found = as_json(
        "analyze",
        *common,
        "--mechanism",
        "interactive-gnmax",
        "--threshold",
        175,
        "--baseline",
        tmp_path / "student.npy",
    )
    assert found["epsilon_expected"] == pytest.approx(0.90347299, rel=1e-7)  # 25 votes fewer, 25 less to reach


@pytest.mark.parametrize("order", [2.25, 14, 700])
def test_analyze_at_a_fixed_order(votes, order):
    found = as_json("analyze", "--votes", votes, *CONFIDENT, "--delta", 1e-5, "--order", order)
    assert found["order"] == order
    expected = (100 / (2 * 150**2) + found["expected_answered"] / 40**2) * order + np.log(1e5) / (order - 1)
    assert found["epsilon_data_independent"] == pytest.approx(expected)


def test_analyze_queries_by_row_number(votes, tmp_path):
    (tmp_path / "rows.txt").write_text("".join(f"{row}\n" for row in range(99, -1, -1)))
    one = as_json("analyze", "--votes", votes, *CONFIDENT, "--delta", 1e-5, "--indices", tmp_path / "rows.txt")
    assert one["epsilon_expected"] == pytest.approx(0.90347299, rel=1e-7)
    (tmp_path / "rows.txt").write_text("5\n7\n9\n")
    picked = ("--indices", tmp_path / "rows.txt", "--queries", 2)
    two = as_json("analyze", "--votes", votes, *CONFIDENT, "--delta", 1e-5, *picked)
    np.save(tmp_path / "subset.npy", MATRIX[[5, 7]])
    same = as_json("analyze", "--votes", tmp_path / "subset.npy", *CONFIDENT, "--delta", 1e-5)
    assert two["epsilon_expected"] == same["epsilon_expected"]


def test_analyze_answers_and_accuracy(votes, tmp_path):
    labels = np.where(np.arange(100) % 4 == 0, 0, -1)
    (tmp_path / "answers.json").write_text(json.dumps({"label": labels.tolist()}))
    truth = np.zeros(100, dtype=int)
    truth[:40] = 1
    np.save(tmp_path / "truth.npy", truth)
    extra = ("--answers", tmp_path / "answers.json", "--labels", tmp_path / "truth.npy")
    found = as_json("analyze", "--votes", votes, *CONFIDENT, "--delta", 1e-5, *extra)
    assert found["answered"] == 25
    assert found["accuracy"] == 15 / 25
    by_hand = min((100 / (2 * 150**2) + 25 / 1600) * a + np.log(1e5) / (a - 1) for a in np.arange(2, 101, 0.5))
    assert found["epsilon_data_independent_realised"] == pytest.approx(by_hand)
    assert found["epsilon_expected"] == pytest.approx(0.90347299, rel=1e-7)
    assert found["epsilon_realised"] < found["epsilon_expected"] < found["epsilon_all_charged"]


def test_analyze_labels_per_teacher(tmp_path):
    counts = np.array([[3, 0, 1], [1, 2, 1]])
    np.save(tmp_path / "counts.npy", counts)
    np.save(tmp_path / "labels.npy", np.array([[0, 0], [0, 1], [0, 1], [2, 2]]))
    gnmax = ("--mechanism", "gnmax", "--sigma", 3, "--delta", 1e-5)
    a = as_json("analyze", "--votes", tmp_path / "counts.npy", *gnmax)
    b = as_json("analyze", "--votes", tmp_path / "labels.npy", "--votes-format", "labels", *gnmax)
    assert a == b


def test_analyze_shows_the_epsilon_that_is_safe_to_publish_in_words(votes):
    text = pate("analyze", "--votes", votes, *CONFIDENT, "--delta", 1e-5).stdout
    bound = min((100 / (2 * 150**2) + 100 / 1600) * a + np.log(1e5) / (a - 1) for a in np.arange(2, 101, 0.5))
    assert text.splitlines()[-3:] == [
        f"privacy: epsilon {bound:.2f} at delta 1e-05, which is safe to publish",
        f"  epsilon: one private record makes no outcome more than {np.exp(bound):.1f} times as likely",
        "  delta: the probability that this fails; keep it below 1 / number of records",
    ]
    for private in ("0.9035", "1.4822", "all charged", "sensitive"):
        assert private not in text
    planned = pate("analyze", "--votes", votes, *CONFIDENT, "--delta", 1e-5, "--smooth-sensitivity").stdout
    assert "sanitised mean" in planned
    assert "0.9035" not in planned


def test_analyze_as_text_says_which_epsilon_is_which(votes):
    text = pate("analyze", "--votes", votes, *CONFIDENT, "--delta", 1e-5, "--smooth-sensitivity", "--all").stdout
    for word in ("expected", "all charged", "data independent", "sanitised mean", "0.9035", "1.4822", "note: "):
        assert word in text


def test_smooth_sensitivity_and_release(votes):
    common = ("analyze", "--votes", votes, *CONFIDENT, "--delta", 1e-5)
    planned = as_json(*common, "--smooth-sensitivity", "--order", 14)
    assert planned["smooth_sensitivity"]["order"] == 14
    assert planned["epsilon_sanitised_mean"] > planned["epsilon_expected"]
    drawn = [
        as_json(*common, "--release", "--order", 14, "--beta", 0.03, "--sigma-ss", 6)["epsilon_sanitised"]
        for _ in range(2)
    ]
    assert drawn[0] != drawn[1]
    published = as_json(*common, "--release", "--order", 14, "--beta", 0.03, "--sigma-ss", 6)
    assert not {"epsilon_expected", "epsilon_all_charged", "smooth_sensitivity"} & set(published)


@pytest.mark.parametrize("mechanism", [CONFIDENT, ("--mechanism", "lnmax", "--gamma", 0.1)])
def test_a_picture(votes, tmp_path, mechanism):
    from PIL import Image

    np.save(tmp_path / "truth.npy", np.zeros(100, dtype=int))
    extra = ("--labels", tmp_path / "truth.npy", "--plot", tmp_path / "pictures" / "p.png")
    assert "p.png" in pate("analyze", "--votes", votes, *mechanism, "--delta", 1e-5, *extra).stdout
    with Image.open(tmp_path / "pictures" / "p.png") as image:
        assert min(image.size) > 500
        assert len(image.convert("RGB").getcolors(1 << 20)) > 50


BAD = {
    "rows that do not sum up": ([[3, 0], [1, 1]], CONFIDENT, (), "row"),
    "negative votes": ([[3, 0], [4, -1]], CONFIDENT, (), "negative"),
    "fractional votes": ([[3, 0], [2.5, 0.5]], CONFIDENT, (), "whole numbers"),
    "sigma 0": (MATRIX, ("--mechanism", "gnmax", "--sigma", 0), (), "sigma is 0"),
    "sigma1 0": (MATRIX, ("--threshold", 200, "--sigma1", 0, "--sigma2", 40), (), "sigma1 is 0"),
    "a threshold without its noise": (MATRIX, ("--threshold", 200, "--sigma2", 40), (), "needs its noise"),
    "gamma 0": (MATRIX, ("--mechanism", "lnmax", "--gamma", 0), (), "gamma is 0"),
    "an unknown mechanism": (MATRIX, ("--mechanism", "gnmx", "--sigma", 4), (), "did you mean 'gnmax'"),
    "delta 0": (MATRIX, CONFIDENT, ("--delta", 0), "delta is 0"),
    "too many queries": (MATRIX, CONFIDENT, ("--queries", 101), "there are 100"),
    "no queries": (MATRIX, CONFIDENT, ("--queries", 0), "there are 100"),
    "an unknown conversion": (MATRIX, CONFIDENT, ("--conversion", "better"), "unknown conversion"),
    "other teachers": (MATRIX, CONFIDENT, ("--teachers", 251), "251 teachers"),
    "a baseline for nothing": (MATRIX, CONFIDENT, ("--baseline", "x.npy"), "goes with interactive-gnmax"),
    "no baseline": (MATRIX, ("--mechanism", "interactive-gnmax", *CONFIDENT[2:]), (), "give --baseline"),
    "no such indices": (MATRIX, CONFIDENT, ("--indices", "none.txt"), "does not exist"),
}  # fmt: skip
ONLY_ANALYZE = {
    "an order outside its range": (("--release", "--order", 26, "--beta", 0.02, "--sigma-ss", 6), "outside"),
    "order 1": (("--order", 1), "above 1"),
    "beta 0": (("--release", "--order", 14, "--beta", 0, "--sigma-ss", 6), "beta is 0"),
    "a release not fixed beforehand": (("--release",), "needs --order"),
    "beta for nothing": (("--beta", 0.02), "go with --release"),
    "a picture of no kind": (("--plot", "p.txt"), "must end in"),
    "no such answers": (("--answers", "none.json"), "does not exist"),
}


@pytest.mark.parametrize("command", ["analyze", "label"])
@pytest.mark.parametrize("case", BAD)
def test_mistakes_are_one_line_and_charge_nothing(tmp_path, case, command):
    counts, mechanism, extra, message = BAD[case]
    np.save(tmp_path / "votes.npy", np.array(counts))
    if "--delta" not in extra:
        extra = (*extra, "--delta", 1e-5)
    if command == "label":
        extra = (*extra, "--output", tmp_path / "answers.json")
    with pytest.raises(MixMatchError, match=message) as error:
        pate(command, "--votes", tmp_path / "votes.npy", *mechanism, *extra)
    assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["votes.npy"]


@pytest.mark.parametrize("case", ONLY_ANALYZE)
def test_other_mistakes_of_analyze(votes, case):
    extra, message = ONLY_ANALYZE[case]
    with pytest.raises(MixMatchError, match=message):
        pate("analyze", "--votes", votes, *CONFIDENT, "--delta", 1e-5, *extra)


# -- label -------------------------------------------------------------------------------------------------------------


def test_label_answers_within_the_budget_and_goes_on(votes, tmp_path):
    common = ("label", "--votes", votes, *CONFIDENT, "--delta", 1e-5, "--output", tmp_path / "a.json")
    first = as_json(*common, "--max-epsilon", 0.6)
    assert first["stopped_by_budget"]
    assert first["epsilon_realised"] <= 0.6
    assert first["asked"] + first["not_asked"] == 100
    ledger = votes.with_name("votes.ledger.jsonl")
    assert first["ledger"] == str(ledger)
    answers = json.loads((tmp_path / "a.json").read_text())
    assert len(answers["label"]) == 100
    assert sum(label >= 0 for label in answers["label"]) == first["answered"]
    assert answers["queries"] == list(range(first["asked"]))
    again = as_json(*common, "--max-epsilon", 0.6)
    second = as_json(*common, "--max-epsilon", 1.0)
    assert again["asked"] == first["asked"]
    assert second["asked"] > first["asked"]
    grown = json.loads((tmp_path / "a.json").read_text())
    assert grown["label"][: first["asked"]] == answers["label"][: first["asked"]]
    # What the ledger says was spent is what `analyze` makes of the answers.
    checked = as_json(
        "analyze", "--votes", votes, *CONFIDENT, "--delta", 1e-5,
        "--queries", second["asked"], "--answers", tmp_path / "a.json",
    )  # fmt: skip
    assert checked["epsilon_realised"] == pytest.approx(second["epsilon_realised"])
    assert checked["epsilon_expected"] == pytest.approx(second["epsilon_expected"])


def test_label_shows_what_may_be_published_and_what_is_left(votes, tmp_path):
    common = ("label", "--votes", votes, *CONFIDENT, "--delta", 1e-5, "--output", tmp_path / "a.json")
    spent = as_json(*common, "--max-epsilon", 0.6)
    text = pate(*common, "--max-epsilon", 0.6).stdout
    published, used = spent["epsilon_data_independent_all_charged"], spent["epsilon_realised"]
    # Where this budget ends it depends on the votes, and so does what is charged until then.
    assert f"privacy: epsilon {published:.2f} at delta 1e-05, not safe to publish: the budget ended it" in text
    assert f"budget: {used:.2f} of 0.6 spent (--charging realised --bound data-dependent; private)\n" in text
    assert f"{spent['epsilon_expected']:.4f}" not in text
    assert f"{spent['epsilon_expected']:.4f}" in pate(*common, "--max-epsilon", 0.6, "--all").stdout
    public = ("--ledger", tmp_path / "b.jsonl", "--max-epsilon", 1, "--bound", "data-independent", "--charging", "all")
    chosen = (*common, "--ledger", tmp_path / "c.jsonl", "--queries")
    asked = as_json(*chosen, 8)["epsilon_data_independent_all_charged"]
    text = pate(*chosen, 5).stdout
    assert "\n3 more were asked before; the epsilon is of all 8\n" in text
    assert f"privacy: epsilon {asked:.2f} at delta 1e-05, which is safe to publish\n" in text
    text = pate(*common, *public).stdout
    assert "spent (--charging all --bound data-independent)\n" in text
    assert "which is safe to publish\n" in text
    text = pate(*common, "--ledger", tmp_path / "d.jsonl").stdout
    assert "which is safe to publish\n" in text
    assert "budget" not in text


def test_label_remembers_that_the_votes_ended_a_call(votes, tmp_path):
    """Whoever saw where it ended may ask for as many queries, and that number is not theirs."""
    common = ("label", "--votes", votes, *CONFIDENT, "--delta", 1e-5, "--output", tmp_path / "a.json")
    public = ("--max-epsilon", 1, "--bound", "data-independent", "--charging", "all")
    assert as_json(*common, *public, "--ledger", tmp_path / "b.jsonl")["ended_by_votes"] is False
    assert as_json(*common, "--queries", 3)["ended_by_votes"] is False
    first = as_json(*common, "--max-epsilon", 0.6)
    assert first["ended_by_votes"]
    before = votes.with_name("votes.ledger.jsonl").read_bytes()
    for words in (("--queries", first["asked"]), ("--queries", 3), ("--max-epsilon", 0.6), ()):
        assert as_json(*common, *words)["ended_by_votes"]
        text = pate(*common, *words).stdout
        assert "which is safe to publish" not in text
        assert "not safe to publish: the " in text
    assert votes.with_name("votes.ledger.jsonl").read_bytes().startswith(before)
    text = pate("analyze", "--votes", votes, *CONFIDENT, "--delta", 1e-5, "--answers", tmp_path / "a.json").stdout
    assert "which is safe to publish unless a budget ended the queries" in text


def test_label_as_csv_with_a_seed(votes, tmp_path):
    written = []
    for name in ("a", "b"):
        result = pate(
            "label", "--votes", votes, *CONFIDENT, "--delta", 1e-5, "--seed", 3, "--queries", 50,
            "--ledger", tmp_path / f"{name}.jsonl", "--output", tmp_path / f"{name}.csv",
        )  # fmt: skip
        assert "never publish" in result.stderr
        written.append((tmp_path / f"{name}.csv").read_text())
        assert '"seed"' not in (tmp_path / f"{name}.jsonl").read_text()
    assert written[0] == written[1]
    rows = list(csv.DictReader(written[0].splitlines()))
    assert [int(row["query"]) for row in rows] == list(range(50))
    assert {row["source"] for row in rows} == {"teachers", ""}


def test_label_interactive_tells_the_students_answers_apart(votes, tmp_path):
    student = np.full((100, 10), 0.005)
    student[:, 0] = 0.955
    np.save(tmp_path / "student.npy", student)
    interactive = ("--mechanism", "interactive-gnmax", "--threshold", 60, "--sigma1", 30, "--sigma2", 40)
    common = ("--votes", votes, *interactive, "--baseline", tmp_path / "student.npy", "--delta", 1e-5)
    found = as_json("label", *common, "--output", tmp_path / "a.json", "--seed", 1)
    assert found["answered"] > 0
    assert found["kept_by_student"] > 0
    assert found["refused"] == 0
    checked = as_json("analyze", *common, "--answers", tmp_path / "a.json")
    assert checked["answered"] == found["answered"]
    assert checked["epsilon_realised"] == pytest.approx(found["epsilon_realised"])


def test_label_with_the_ledger_of_other_votes(votes, tmp_path):
    common = (*CONFIDENT, "--delta", 1e-5, "--output", tmp_path / "a.json", "--ledger", tmp_path / "l.jsonl")
    pate("label", "--votes", votes, *common, "--queries", 5)
    before = (tmp_path / "l.jsonl").read_bytes()
    np.save(tmp_path / "other.npy", MATRIX[::-1])
    with pytest.raises(MixMatchError, match="ledger of other votes"):
        pate("label", "--votes", tmp_path / "other.npy", *common)
    assert (tmp_path / "l.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (("--output", "a.txt"), "must end in"),
        (("--output", "none/a.json"), "does not exist"),
        (("--max-epsilon", 0), "max-epsilon is 0"),
        (("--charging", "some"), "unknown way of charging"),
        (("--bound", "loose"), "unknown bound"),
    ],
)
def test_other_mistakes_of_label(votes, tmp_path, monkeypatch, extra, message):
    monkeypatch.chdir(tmp_path)
    extra = extra if "--output" in extra else (*extra, "--output", "a.json")
    with pytest.raises(MixMatchError, match=message):
        pate("label", "--votes", votes, *CONFIDENT, "--delta", 1e-5, *extra)
    assert [path.name for path in tmp_path.iterdir()] == ["votes.npy"]


@pytest.mark.skipif(os.name != "posix", reason="kills processes")
def test_a_killed_command_goes_on(tmp_path):
    """kill -9 while `pate label` is answering many queries, then run it again."""
    many = np.random.default_rng(0).multinomial(250, np.full(10, 0.1), size=20_000)
    np.save(tmp_path / "votes.npy", many)
    arguments = [
        "label", "--votes", tmp_path / "votes.npy", "--mechanism", "gnmax", "--sigma", 2000, "--delta", 1e-6,
        "--max-epsilon", 0.25, "--output", tmp_path / "a.csv", "--json",
    ]  # fmt: skip
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    ledger = tmp_path / "votes.ledger.jsonl"
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (not ledger.exists() or ledger.stat().st_size < 20_000):
        time.sleep(0.002)
    second = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    left = [line for line in ledger.read_text().splitlines(keepends=True) if line.endswith("\n")]
    answered_before = {line["answer"]: line["label"] for line in map(json.loads, left) if "answer" in line}
    assert answered_before
    out, _ = second.communicate(timeout=60)
    found = json.loads(out)
    assert found["stopped_by_budget"]
    assert 0.24 < found["epsilon_realised"] <= 0.25
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    answers = {line["answer"]: line["label"] for line in lines if "answer" in line}
    assert answers.items() >= answered_before.items()
    assert max(Counter(line["charge"] for line in lines if "charge" in line).values()) == 1
    written = {int(row["query"]): int(row["label"]) for row in csv.DictReader((tmp_path / "a.csv").open())}
    assert written == answers
    # By hand: n queries at sigma 2000 cost n a / 4e6 at order a.
    n = len(answers)
    orders = np.concatenate([np.arange(2, 101, 0.5), np.geomspace(100, 500, 100)])
    spent = [(queries * orders / 4e6 + np.log(1e6) / (orders - 1)).min() for queries in (n, n + 1)]
    assert spent[0] <= 0.25 < spent[1]

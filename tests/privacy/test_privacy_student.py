"""The student: labels are the answers, refused queries stay unlabeled, and the run is like any other."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat
from typer.testing import CliRunner

import mixmatch
from mixmatch.cli import app
from mixmatch.data import load
from mixmatch.data.pate import open_student, pool_rows
from mixmatch.data.source import UNKNOWN, Rows, Source
from mixmatch.data.split import Split
from mixmatch.errors import MixMatchError
from mixmatch.privacy import student
from mixmatch.privacy.answers import Answers, authors, read
from mixmatch.privacy.runs import RunOptions
from mixmatch.privacy.student import Choice, prepare, train_students
from mixmatch.settings import from_dict
from mixmatch.training.opening import open_run
from mixmatch.training.progress import Quiet
from mixmatch.training.run import RunFolder
from mixmatch.training.stop import Interrupted

TRUTH = load("digits").test.labels
HALF = pool_rows("half", 500)
REST = np.setdiff1d(np.arange(500), HALF)
TINY = {"steps": 6, "batch_size": 4, "eval_every": 2, "network": "wrn-10-1"}
ON_CPU = RunOptions(device="cpu", reporter=Quiet)


def asked(count=60, every=3, shift=0):
    """The first images of the pool asked about; of those, every third refused."""
    rows = HALF[:count]
    labels = (TRUTH[rows] + shift) % 10
    labels[::every] = -1
    return Answers(rows, labels)


def run_of(out, method="mixmatch", seed=1):
    return RunFolder(Path(out) / f"{method}-seed{seed}")


def test_the_labels_are_the_answers_and_nothing_else_is_known():
    labels = prepare("digits-test", asked(60), Choice(queries=60))
    settings = from_dict({"data": "digits-test", "labels": 40, "data_options": labels.data_options})
    opened = open_student(settings, None)
    source, split = opened.source, opened.split
    digits = load("digits").test
    np.testing.assert_array_equal(source.train.inputs, digits.inputs[HALF])
    np.testing.assert_array_equal(source.test.inputs, digits.inputs[REST])
    np.testing.assert_array_equal(source.test.labels, TRUTH[REST])
    expected = np.full(250, UNKNOWN)
    expected[:60] = np.where(np.arange(60) % 3 == 0, UNKNOWN, TRUTH[HALF[:60]])
    np.testing.assert_array_equal(source.train.labels, expected)
    assert split.labeled.tolist() == np.flatnonzero(expected != UNKNOWN).tolist()
    assert split.unlabeled.tolist() == np.flatnonzero(expected == UNKNOWN).tolist()  # refused and never asked
    assert split.counts() == {"labeled": 40, "unlabeled": 210, "valid": 0, "test": 250}
    assert opened.basis.on == "the 250 images that are not in its pool"
    assert (labels.about["queries"], labels.about["answered"], labels.about["labels"]) == (60, 40, 40)
    assert labels.about["labels_right"] == 100
    assert labels.about["labels_by_class"] == np.bincount(expected[expected >= 0], minlength=10).tolist()


def test_a_random_half_is_always_the_same_one():
    assert len(HALF) == len(REST) == 250
    assert np.array_equal(HALF, pool_rows("half", 500))
    share = np.bincount(TRUTH[HALF]) / np.bincount(TRUTH)
    assert np.abs(share - 0.5).max() < 0.15  # the file repeats 0..9: every second image would be an even digit


def test_the_first_images_as_the_pool():
    given = Answers(np.arange(30), TRUTH[:30])
    labels = prepare("digits-test", given, Choice(pool=100, queries=25))
    settings = from_dict({"data": "digits-test", "labels": 25, "data_options": labels.data_options})
    opened = open_student(settings, None)
    np.testing.assert_array_equal(opened.source.train.inputs, load("digits").test.inputs[:100])
    np.testing.assert_array_equal(opened.source.test.labels, TRUTH[100:])
    assert opened.split.labeled.tolist() == list(range(25))


def test_the_authors_split_holds_out_an_answered_image():
    """By hand: class 1 has four answers, class 0 two, so labels go to a 1, a 0, a 1. The unlabeled images begin with
    the next one of class 1: refused queries come last."""
    given = Answers(np.arange(8), np.array([1, -1, 0, 1, 1, 0, -1, 1]), images=8)
    labels = prepare("digits-test", given, Choice(4, 8, "official", "0123456789"))
    kept = labels.data_options["student"]
    assert (kept["rows"], kept["answers"], kept["valid"]) == ([0, 2, 3], [1, 0, 1], [4])
    # Which they are depends on all answers, so all queries are charged.
    assert (len(labels.answers), labels.about["queries"], labels.about["answered"]) == (8, 8, 6)


def test_a_wrong_answer_is_learned_as_it_was_given():
    given = asked()
    given.labels[1] = (given.labels[1] + 1) % 10
    labels = prepare("digits-test", given)
    assert labels.data_options["student"]["answers"][0] == (TRUTH[HALF[1]] + 1) % 10
    assert labels.about["labels_right"] == pytest.approx(100 * 39 / 40)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("student")
    return out, train_students(prepare("digits-test", asked()), out, repeats=2, settings=TINY, options=ON_CPU)


def test_repeats_differ_in_the_seed_alone(trained):
    out, summary = trained
    assert (summary["seeds"], summary["labels"], summary["steps"]) == ([1, 2], 40, 6)
    records = [run_of(out, seed=seed).result() for seed in (1, 2)]
    assert records[0]["split"] == records[1]["split"]
    assert summary["accuracies"] == [100 - record["error"] for record in records]
    a, b = summary["accuracies"]
    assert summary["accuracy"] == pytest.approx((a + b) / 2)
    assert summary["deviation"] == pytest.approx(abs(a - b) / 2**0.5)
    configs = [run_of(out, seed=seed).config()["settings"] for seed in (1, 2)]
    assert {**configs[0], "seed": 0} == {**configs[1], "seed": 0}


def test_repeats_are_one_list_of_runs(tmp_path, monkeypatch):
    """So that they train side by side on a GPU."""
    lists = []

    def train_runs(runs, *given):
        lists.append([run.job.settings.seed for run in runs])
        return [{"error": 10.0, "steps": 6, "seed": run.job.settings.seed, "median_of": 1} for run in runs]

    monkeypatch.setattr(student, "train_runs", train_runs)
    train_students(prepare("digits-test", asked()), tmp_path, seed=4, repeats=3, settings=TINY)
    assert lists == [[4, 5, 6]]


def test_a_student_can_be_evaluated_reported_and_used(trained):
    from mixmatch.report import write_report

    out, _ = trained
    run = run_of(out)
    opened = open_run(run)
    source, split = opened.source, opened.split
    assert split.hash == run.config()["split"]["hash"]
    model = mixmatch.load(run.path, device="cpu")
    wrong = model.probabilities(source.test.inputs).argmax(axis=1) != source.test.labels
    assert 100 * wrong.mean() == pytest.approx(run.result()["last_error"])
    report, page, _ = write_report(run.path, device="cpu")
    assert page.exists()
    assert report.evaluated.images == 250


class StopAt(Quiet):
    def steps(self, step, values):
        if step >= 3:
            os.kill(os.getpid(), signal.SIGINT)


def test_a_stopped_student_goes_on_to_the_same_model(trained, tmp_path):
    out, _ = trained
    labels = prepare("digits-test", asked())
    with pytest.raises(Interrupted):
        train_students(labels, tmp_path, settings=TINY, options=RunOptions(device="cpu", reporter=StopAt))
    train_students(labels, tmp_path, settings=TINY, options=replace(ON_CPU, resume=True))
    assert run_of(tmp_path).model.read_bytes() == run_of(out).model.read_bytes()


def test_going_on_with_other_answers_is_refused(trained):
    out, _ = trained
    with pytest.raises(MixMatchError, match="other settings"):
        train_students(prepare("digits-test", asked(every=4)), out, settings=TINY, options=replace(ON_CPU, resume=True))
    other = asked()
    other.labels[1] = (other.labels[1] + 1) % 10
    with pytest.raises(MixMatchError, match="other settings \\(student: "):
        train_students(prepare("digits-test", other), out, settings=TINY, options=replace(ON_CPU, resume=True))


def test_a_vat_student(tmp_path):
    summary = train_students(
        prepare("digits-test", asked()), tmp_path, method="vat", settings={**TINY, "steps": 2}, options=ON_CPU
    )
    assert summary["deviation"] is None
    assert run_of(tmp_path, "vat").config()["settings"]["method_settings"]["epsilon"] == 0.87


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (asked(), {"queries": 61}, "queries=61: the answers are to 60 queries"),
        (asked(), {"queries": 1}, "0 answers to 1 queries are of fewer than two classes"),
        (asked(), {"pool": 500}, "pool=500: there are 500 public images"),
        (asked(), {"pool": "third"}, "pool=third"),
        (asked(), {"pool": 50}, r"query \d+ is not in the pool, the first 50 images"),
        (Answers(REST[:9], TRUTH[REST[:9]]), {}, f"query {REST[0]} is not in the pool, a random half"),
        (asked(), {"split": "ours"}, "split=ours: it is answers or official"),
        (asked(), {"split": "official", "pool": 200}, "answers to all 200 images of the pool"),
        (Answers(np.arange(9), TRUTH[:9], images=499), {}, "there are 499 answers, but digits-test has 500 images"),
        (asked(shift=1), {}, "only 0 % of the answers are the images' true classes"),
        (Answers(HALF[:20], np.full(20, 10)), {}, "an answer is 10, but there are 10 classes"),
    ],
)
def test_mistakes_are_one_line(given, options, message):
    with pytest.raises(MixMatchError, match=message) as caught:
        prepare("digits-test", given, Choice(**options))
    assert "\n" not in str(caught.value)


def test_only_test_images_are_public():
    with pytest.raises(MixMatchError, match="data=digits: a student's public images are test images"):
        prepare("digits", asked())
    with pytest.raises(MixMatchError, match="'svhm' is neither a data set nor a file or folder: did you mean 'svhn'"):
        prepare("svhm-test", asked())


def test_answers_numbered_otherwise_than_said_are_told():
    said = []
    prepare("digits-test", asked(shift=1), Choice(classes="0123456789"), warn=said.append)
    assert len(said) == 1
    assert said[0].startswith("only 0 % of the answers are the images' true classes")
    said.clear()
    labels = prepare("digits-test", asked(shift=1), Choice(classes="9012345678"), warn=said.append)
    assert (said, labels.about["labels_right"]) == ([], 100)


def test_a_class_nobody_named_is_told():
    given = asked()
    given.labels[given.labels == 7] = -1
    said = []
    prepare("digits-test", given, warn=said.append)
    assert said == ["no answer is of class 7: the student cannot learn it"]


# ---------------------------------------------------------------- the paper's setting, on images of SVHN's form


@pytest.fixture(scope="module")
def svhn(tmp_path_factory):
    """Test images in SVHN's file, 10,040 of them; their true classes are the authors' answers where there are any."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    labels = rng.integers(1, 11, 10_040)
    labels[:250] = np.where(authors().answered, authors().labels + 1, labels[:250])
    images = rng.integers(0, 255, (32, 32, 3, 10_040), np.uint8)
    savemat(folder / "test_32x32.mat", {"X": images, "y": labels.astype(np.uint8)[:, None]}, do_compression=False)
    return folder


def test_the_paper_s_setting_needs_only_the_test_images(svhn, tmp_path):
    labels = prepare("svhn-test", authors(), data_dir=svhn)
    about = labels.about
    assert (about["queries"], about["labels"], about["pool"], about["test"]) == (250, 138, 10_000, 40)
    assert about["labels_by_class"] == [28, 25, 11, 13, 10, 13, 14, 7, 8, 9]
    assert about["classes"] == list("1234567890")
    train_students(labels, tmp_path, settings={**TINY, "steps": 1}, options=replace(ON_CPU, data_dir=svhn))
    config = run_of(tmp_path).config()
    settings = config["settings"]
    assert (settings["labels"], settings["weight_decay"], settings["method_settings"]["lambda_u"]) == (138, 0.04, 75)
    assert config["split"]["unlabeled"] == 10_000 - 138


def test_the_summary_says_what_the_quoted_epsilons_are(svhn, tmp_path):
    given = ["pate", "student", "--data-dir", str(svhn), "--repeats", "1", "--steps", "1", "--batch-size", "4"]
    done = CliRunner().invoke(app, [*given, "--network", "wrn-10-1", "--device", "cpu", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    summary = json.loads((tmp_path / "mixmatch.json").read_text())
    assert [line["epsilon"] for line in summary["quoted"]] == [0.97, 4.96]
    assert "cannot be reproduced exactly from the public votes" in summary["quoted_note"]
    assert summary["quoted_note"] in done.output


def test_missing_images_say_what_to_fetch(tmp_path, monkeypatch):
    monkeypatch.setenv("MIXMATCH_OFFLINE", "1")
    with pytest.raises(MixMatchError, match=r"test_32x32\.mat") as caught:
        prepare("svhn-test", authors(), data_dir=tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not os.environ.get("MIXMATCH_PATE"), reason="MIXMATCH_PATE does not name a folder")
def test_the_authors_split(svhn):
    """129 of the first 138 answers and 9 later ones, up to image 343; one image held out, as their script does."""
    whole = read(Path(os.environ["MIXMATCH_PATE"]) / "svhn-noisy-labels-t200-s200-n40.json")
    whole = Answers(whole.rows[:10_000], whole.labels[:10_000], images=10_000)
    labels = prepare("svhn-test", whole, Choice(split="official"), data_dir=svhn)
    kept = labels.data_options["student"]
    first = authors().rows[authors().answered]
    assert (len(kept["rows"]), max(kept["rows"]), len(labels.answers)) == (138, 343, 10_000)
    assert len(set(kept["rows"]) & set(first.tolist())) == 129
    assert kept["valid"] == [242]
    assert labels.about["labels_by_class"] == [27, 23, 15, 14, 13, 10, 11, 7, 8, 10]


# ---------------------------------------------------------------- a split of one's own


def own_source():
    digits = load("digits").test
    return Source("mine", tuple("0123456789"), Rows(digits.inputs[:90], digits.labels[:90]), digits)


def rows(*numbers):
    return np.array(numbers, np.int64)


def test_train_takes_a_split(tmp_path):
    split = Split(rows(3, 5, 9), np.arange(20, 90), rows(1, 2), np.arange(7))
    given = {**TINY, "device": "cpu", "reporter": Quiet(), "pad": 1, "ema_decay": 0.9}
    record = mixmatch.train(own_source(), split=split, out=tmp_path / "run", **given)
    assert (record["labels"], record["settings"]["valid"]) == (3, 2)
    assert record["split"] == {"hash": split.hash, "labeled": 3, "unlabeled": 70, "valid": 2, "test": 7}
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["split"]["labeled_rows"] == [3, 5, 9]


def test_going_on_with_another_split_is_refused(tmp_path):
    split = Split(rows(3, 5, 9), np.arange(20, 90), rows(), np.arange(7))
    given = {**TINY, "device": "cpu", "pad": 1, "ema_decay": 0.9}
    with pytest.raises(Interrupted):
        mixmatch.train(own_source(), split=split, out=tmp_path, **{**given, "reporter": StopAt()})
    other = Split(rows(3, 5, 8), split.unlabeled, split.valid, split.test)
    with pytest.raises(MixMatchError, match="another split"):
        mixmatch.train(own_source(), split=other, out=tmp_path, resume=True, **{**given, "reporter": Quiet()})


@pytest.mark.parametrize(
    ("data", "split", "given", "message"),
    [
        ("digits", Split(rows(1), rows(2), rows(), rows(0)), {}, "split= is for a Source of your own"),
        (None, Split(rows(90), rows(2), rows(), rows(0)), {}, "labeled rows go beyond the 90"),
        (None, Split(rows(1), rows(-1), rows(), rows(0)), {}, "unlabeled rows go beyond"),
        (None, Split(rows(), rows(2), rows(), rows(0)), {}, "must have labeled rows"),
        (None, Split(rows(1), rows(2), rows(), rows(0)), {"labels": 5}, "labels=5 contradicts the split, which has 1"),
    ],
)
def test_splits_that_make_no_sense(tmp_path, data, split, given, message):
    with pytest.raises(MixMatchError, match=message):
        mixmatch.train(data or own_source(), split=split, out=tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()

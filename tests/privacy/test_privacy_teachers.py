"""Teachers: disjoint shards, runs that see nothing but theirs, and votes that are all that leaves."""

from __future__ import annotations

import json
import os
from dataclasses import fields

import numpy as np
import pytest
from PIL import Image

import mixmatch
from mixmatch.data import load, pate
from mixmatch.data.pate import cut, open_shard
from mixmatch.errors import MixMatchError
from mixmatch.privacy import teachers
from mixmatch.privacy.runs import RunOptions, make_run, train_runs
from mixmatch.privacy.teachers import Plan
from mixmatch.privacy.votes import read_votes, vote_classes
from mixmatch.settings import from_dict
from mixmatch.training.progress import Quiet
from mixmatch.training.run import RunFolder

TINY = {"steps": 3, "batch_size": 4, "device": "cpu", "reporter": Quiet, "network": "wrn-10-1"}


def train_teachers(data, count, out, **given):
    """`teachers.train_teachers` with plan, options and settings sorted out by name."""
    given = {"teachers": count, **given}
    sorted_out = [{f.name: given.pop(f.name) for f in fields(kind) if f.name in given} for kind in (Plan, RunOptions)]
    return teachers.train_teachers(Plan(data, **sorted_out[0], settings=given), out, RunOptions(**sorted_out[1]))


def test_shards_are_disjoint_and_of_one_size():
    rows = np.arange(100, 203)
    shards = cut(rows, 10, seed=1)
    together = np.concatenate(shards)
    assert [len(shard) for shard in shards] == [10] * 10
    assert len(set(together.tolist())) == 100
    assert set(together.tolist()) <= set(rows.tolist())
    assert not np.array_equal(together, np.sort(together))
    assert all(np.array_equal(a, b) for a, b in zip(shards, cut(rows, 10, seed=1), strict=True))
    assert not np.array_equal(shards[0], cut(rows, 10, seed=2)[0])


def test_contiguous_shards_are_the_papers():
    """floor(604388 / 250) = 2417 in file order; the last 138 images are in none."""
    shards = cut(np.arange(604_388), 250, seed=1, contiguous=True)
    assert shards[0].tolist() == list(range(2417))
    assert shards[-1][-1] == 250 * 2417 - 1 == 604_249


@pytest.mark.parametrize(
    ("count", "message"), [(0, "at least one"), (11, "10 private images cannot be cut into 11 shards")]
)
def test_too_few_images(count, message):
    with pytest.raises(MixMatchError, match=message):
        cut(np.arange(10), count, seed=1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Three teachers on digits and what they said. Not to be written to."""
    out = tmp_path_factory.mktemp("teachers") / "out"
    return out, train_teachers("digits", 3, out, **TINY)


def test_what_is_written(trained):
    out, voted = trained
    assert sorted(path.name for path in out.iterdir()) == ["shards.json", "teachers", "votes.json", "votes.npz"]
    assert sorted(path.name for path in (out / "teachers").iterdir()) == ["000", "001", "002", "PRIVATE.txt"]
    for path in (out, *out.iterdir()):  # votes and shards too, whatever the umask
        assert path.stat().st_mode & 0o077 == 0, path
    votes = read_votes(voted.path)
    assert (votes.teachers, votes.counts.shape) == (3, (500, 10))
    about = json.loads((out / "votes.json").read_text())
    assert (about["data"], about["teachers"], about["queries"]) == ("digits", 3, 500)
    assert about["votes_sha256"] == votes.sha256
    assert vote_classes(voted.path, votes) == list("0123456789")
    assert not {"error", "accuracy", "curve"} & set(about)


def test_the_stored_shards_are_those_that_were_trained_on(trained):
    out, _ = trained
    stored = json.loads((out / "shards.json").read_text())
    assert [len(shard) for shard in stored["shards"]] == [432] * 3
    source = load("digits")
    for number, rows in enumerate(stored["shards"]):
        assert len(stored["shard_sha256"][number]) == 64
        settings = from_dict(RunFolder(out / "teachers" / f"{number:03d}").config()["settings"])
        opened = open_shard(settings, None)
        np.testing.assert_array_equal(opened.source.train.inputs, source.train.inputs[rows])
        np.testing.assert_array_equal(opened.source.train.labels, source.train.labels[rows])
        assert opened.split.counts() == {"labeled": 432, "unlabeled": 0, "valid": 0, "test": 0}
    assert len(set(stored["shard_sha256"])) == 3


def test_teachers_are_not_evaluated(trained):
    out, _ = trained
    result = RunFolder(out / "teachers" / "001").result()
    assert (result["error"], result["curve"], result["seed"]) == (None, [], 2)


def test_votes_are_the_teachers_argmax(trained):
    out, voted = trained
    images = load("digits").test.inputs
    counts = np.zeros((500, 10), int)
    for number in range(3):
        predicted = mixmatch.load(out / "teachers" / f"{number:03d}", device="cpu").predict(images)
        counts[np.arange(500), [int(name) for name in predicted]] += 1
    np.testing.assert_array_equal(voted.votes.counts, counts)


def test_going_on(trained, tmp_path, monkeypatch):
    """A command that was stopped goes on: finished teachers are kept, the others trained, with the same votes."""
    _, voted = trained
    out = tmp_path / "out"

    def stop_after_one(runs, *given, **more):
        train_runs(runs[:1], *given, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr(teachers, "train_runs", stop_after_one)
    with pytest.raises(KeyboardInterrupt):
        train_teachers("digits", 3, out, **TINY)
    monkeypatch.undo()
    first = (out / "teachers" / "000" / "model.safetensors").stat().st_mtime_ns
    with pytest.raises(MixMatchError, match="holds teachers already: add resume=True"):
        train_teachers("digits", 3, out, **TINY)
    again = train_teachers("digits", 3, out, resume=True, **TINY)
    np.testing.assert_array_equal(again.votes.counts, voted.votes.counts)
    assert (out / "teachers" / "000" / "model.safetensors").stat().st_mtime_ns == first


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seed": 2}, "begun with seed 1, not 2"),
        ({"contiguous": True}, "begun with contiguous False, not True"),
        ({"teachers": 4}, "begun with teachers 3, not 4"),
        ({"steps": 4}, "other settings .*steps: 3 -> 4"),
    ],
)
def test_going_on_with_something_else_is_refused(trained, given, message):
    out, _ = trained
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file() and path.name != ".lock"}
    given = {**TINY, "teachers": 3, **given}
    with pytest.raises(MixMatchError, match=message):
        train_teachers("digits", given.pop("teachers"), out, resume=True, **given)
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_public_images_are_hashed_once_and_shards_are_cut_once(tmp_path, monkeypatch):
    """Not once per teacher: 250 teachers on SVHN would read 80 MB 250 times."""
    hashed, shards = [], []
    inputs_sha256, permutation = teachers.inputs_sha256, cut
    monkeypatch.setattr(teachers, "inputs_sha256", lambda rows: hashed.append(len(rows)) or inputs_sha256(rows))
    monkeypatch.setattr(pate, "cut", lambda *given: shards.append(given) or permutation(*given))
    train_teachers("digits", 3, tmp_path / "out", seed=77, **{**TINY, "steps": 1})
    assert hashed.count(500) == 1
    assert len(shards) == 1


def test_some_of_a_shard_unlabeled(tmp_path):
    voted = train_teachers("digits", 2, tmp_path / "out", method="mixmatch", labels=30, **{**TINY, "steps": 2})
    config = RunFolder(tmp_path / "out" / "teachers" / "001").config()
    assert {name: config["split"][name] for name in ("labeled", "unlabeled", "test")} == {
        "labeled": 30, "unlabeled": 618, "test": 0,
    }  # fmt: skip
    assert voted.votes.teachers == 2


def test_other_public_images(tmp_path):
    images = load("digits").train.inputs[:7]
    np.save(tmp_path / "public.npy", images)
    voted = train_teachers("digits", 2, tmp_path / "a", queries=str(tmp_path / "public.npy"), **TINY)
    assert voted.votes.counts.shape == (7, 10)
    voted = train_teachers("digits", 2, tmp_path / "b", queries="digits-train", **{**TINY, "steps": 1})
    assert voted.votes.queries == 1297


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "mixmatch"}, "needs unlabeled images: label only some of a shard's 648"),
        ({"labels": 649}, "labels=649: a shard has 648 images"),
        ({"labels": 0}, "labels=0: a shard has 648 images"),
        ({"queries": "nothing"}, "unknown public images 'nothing'"),
        ({"queries": "missing.npy"}, "there is no file missing.npy"),
        ({"method": "mixmach"}, "unknown method 'mixmach'"),
        ({"network": "wrn-9-1"}, "depth"),
        ({"steps": 0}, "steps=0 must be"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
    ],
)
def test_mistakes_are_found_before_anything_is_trained(tmp_path, given, message):
    with pytest.raises(MixMatchError, match=message) as caught:
        train_teachers("digits", 2, tmp_path / "out", **{**TINY, **given})
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_public_images_that_are_no_plain_file(tmp_path):
    (tmp_path / "folder.npy").mkdir()
    os.mkfifo(tmp_path / "pipe.npy")
    for name, message in {"folder.npy": "Is a directory", "pipe.npy": "it is not a plain file"}.items():
        with pytest.raises(MixMatchError, match=f"{name}: {message}"):
            train_teachers("digits", 2, tmp_path / "out", queries=str(tmp_path / name), **TINY)


def test_public_images_of_another_shape(tmp_path):
    np.save(tmp_path / "public.npy", np.zeros((3, 5, 5, 1), np.uint8))
    with pytest.raises(MixMatchError, match="teachers can vote on images like theirs only"):
        train_teachers("digits", 2, tmp_path / "out", queries=str(tmp_path / "public.npy"), **TINY)
    np.save(tmp_path / "public.npy", np.zeros((3, 8, 8, 1)))
    with pytest.raises(MixMatchError, match="images must be uint8"):
        train_teachers("digits", 2, tmp_path / "out", queries=str(tmp_path / "public.npy"), **TINY)


def test_progress_counts_teachers(tmp_path):
    class Instant:
        def run(self, work, started):
            for number, each in enumerate(work):
                started(number)
                yield number, {"seed": each.job.settings.seed}

    class Failing(Instant):
        def run(self, work, started):
            for number, record in super().run(work, started):
                yield number, MixMatchError("no memory") if number == 0 else record

    said, finished = [], []
    two = [make_run("digits", tmp_path, {"seed": seed}, {}, RunOptions()) for seed in (1, 2)]
    records = train_runs(two, "teacher", said.append, finished.append, Instant())
    assert [record["seed"] for record in records] == [1, 2]
    assert finished == records
    assert said[0] == "teacher 1 of 2"
    assert said[1].startswith("teacher 2 of 2, 0:0")
    finished.clear()
    with pytest.raises(MixMatchError, match="no memory"):
        train_runs(two, "teacher", said.append, finished.append, Failing())
    assert finished == records[1:]  # the others are done all the same
    assert "teacher 1 failed: no memory" in said


# ---------------------------------------------------------------- own data: no image decides about another


def private_folder(path, color=()):
    """Six gray images of two classes, and two public ones; those in `color` are not gray."""
    rng = np.random.default_rng(0)
    for place, count in (("a", 3), ("b", 3), ("test/a", 1), ("test/b", 1)):
        (path / place).mkdir(parents=True)
        for number in range(count):
            pixels = rng.integers(0, 256, (40, 40), np.uint8)
            image = Image.fromarray(
                pixels if f"{place}/{number}" not in color else np.stack([pixels, pixels, 255 - pixels], 2)
            )
            image.save(path / place / f"{number}.png")
    return path


def shard_of(folder, out, number):
    given = RunFolder(out / "teachers" / f"{number:03d}").config()["settings"]
    return open_shard(from_dict(given), None).source.train.inputs


def test_an_image_of_another_shard_changes_nothing(tmp_path):
    """One private image in color, or larger: all others are read as before, and so are their teachers."""
    plain = private_folder(tmp_path / "plain")
    first = train_teachers(str(plain), 3, tmp_path / "one", contiguous=True, **TINY)
    other = private_folder(tmp_path / "other", color=("b/2",))
    Image.open(other / "b" / "2.png").resize((300, 300)).save(other / "b" / "2.png")
    train_teachers(str(other), 3, tmp_path / "two", contiguous=True, **TINY)
    for number in range(2):
        a, b = (shard_of(folder, out, number) for folder, out in ((plain, tmp_path / "one"), (other, tmp_path / "two")))
        assert a.shape[1:] == (32, 32, 3)
        np.testing.assert_array_equal(a, b)
        models = [
            out / "teachers" / f"{number:03d}" / "model.safetensors" for out in (tmp_path / "one", tmp_path / "two")
        ]
        assert models[0].read_bytes() == models[1].read_bytes()
    assert not np.array_equal(shard_of(plain, tmp_path / "one", 2), shard_of(other, tmp_path / "two", 2))
    assert first.votes.counts.sum(axis=1).tolist() == [3, 3]


def test_the_size_of_a_private_folder(tmp_path):
    folder = private_folder(tmp_path / "folder")
    train_teachers(str(folder), 2, tmp_path / "a", image_size=48, **TINY)
    assert shard_of(folder, tmp_path / "a", 0).shape[1:] == (48, 48, 3)
    np.save(tmp_path / "public.npy", np.zeros((3, 40, 40, 1), np.uint8))
    train_teachers(str(folder), 2, tmp_path / "b", queries=str(tmp_path / "public.npy"), **TINY)
    assert shard_of(folder, tmp_path / "b", 0).shape[1:] == (40, 40, 1)
    with pytest.raises(MixMatchError, match="begun with image_size 48, not 32"):
        train_teachers(str(folder), 2, tmp_path / "a", resume=True, **TINY)
    with pytest.raises(MixMatchError, match="image_size=0 must be a whole number between 32 and 224"):
        train_teachers(str(folder), 2, tmp_path / "c", image_size=0, **TINY)
    np.save(tmp_path / "public.npy", np.zeros((3, 28, 36, 1), np.uint8))
    with pytest.raises(MixMatchError, match="the public images are 28x36x1: images of a folder can be made like them"):
        train_teachers(str(folder), 2, tmp_path / "c", queries=str(tmp_path / "public.npy"), **TINY)
    with pytest.raises(MixMatchError, match="image_size= is for a folder of your own images, not for 'digits'"):
        train_teachers("digits", 2, tmp_path / "c", image_size=48, **TINY)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.arange(24.0).reshape(12, 2), "holds features, which are standardized by all rows"),
        (
            np.arange(12 * 64.0).reshape(12, 8, 8) / 1000,
            "are not uint8: their scale is determined from all of them",
        ),
    ],
)
def test_what_would_reach_every_teacher_is_refused(tmp_path, x, message):
    np.savez(tmp_path / "private.npz", x=x, y=np.arange(12) % 2, x_test=x[:4], y_test=np.arange(4) % 2)
    with pytest.raises(MixMatchError, match=message):
        train_teachers(str(tmp_path / "private.npz"), 2, tmp_path / "out", **TINY)
    assert not (tmp_path / "out").exists()


def test_teachers_that_learned_more_vote_again(tmp_path):
    given = {**TINY, "eval_every": 100, "ema_decay": 0.5}
    first = train_teachers("digits", 2, tmp_path / "out", **given)
    further = train_teachers("digits", 2, tmp_path / "out", resume=True, **{**given, "steps": 40})
    fresh = train_teachers("digits", 2, tmp_path / "fresh", **{**given, "steps": 40})
    np.testing.assert_array_equal(further.votes.counts, fresh.votes.counts)
    assert not np.array_equal(further.votes.counts, first.votes.counts)

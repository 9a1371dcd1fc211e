"""`tune`: trials are compared by validation rows alone, bad ones stopped, none lost, gains told from chance."""

from __future__ import annotations

import csv
import json
import math
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from PIL import Image
from sweeps import GIVEN, MOMENTS, SEARCH, STEPS, TRIALS, sweep

import mixmatch
from mixmatch import classifier, methods
from mixmatch.data import load
from mixmatch.data.split import make_split
from mixmatch.declare import Range, Times
from mixmatch.errors import MixMatchError
from mixmatch.execution.executor import Here
from mixmatch.experiments.tune import driver as driver_
from mixmatch.experiments.tune import results
from mixmatch.experiments.tune import sweep as sweep_
from mixmatch.experiments.tune.journal import AGAIN
from mixmatch.experiments.tune.results import Difference, Result
from mixmatch.experiments.tune.space import Choices, declared_settings, default_space, parse, space_of
from mixmatch.settings import resolve
from mixmatch.training import evaluate
from mixmatch.training.run import RunFolder

optuna: Any = pytest.importorskip("optuna", reason="Optuna is not installed: pip install 'mixmatch[tune]'")


@pytest.fixture(scope="module")
def seen() -> set[bytes]:
    """Every image that a model was evaluated on."""
    return set()


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, seen: set[bytes]) -> Result:
    """An undisturbed sweep."""
    plain = evaluate.predict_logits

    def noting(forward: Any, inputs: Any, device: Any) -> Any:
        seen.update(np.asarray(image).tobytes() for image in inputs)
        return plain(forward, inputs, device)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate, "predict_logits", noting)
        patch.setattr(classifier, "predict_logits", noting)
        return sweep(tmp_path_factory.mktemp("tune") / "sweep")


def runs(result: Result) -> dict[int, RunFolder]:
    return {trial.number: RunFolder(result.out / trial.folder) for trial in result.trials}


def lines(folder: Path) -> list[dict[str, str]]:
    """The table of all trials, but for the clock."""
    with (folder / "trials.csv").open() as file:
        return [{name: value for name, value in row.items() if name != "seconds"} for row in csv.DictReader(file)]


# ---------------------------------------------------------------- validation, never test


def test_only_validation_images_are_evaluated_on(done: Result, seen: set[bytes]) -> None:
    source = load("digits")
    split = make_split(source, 20, seed=1, valid=1297 // 5)
    assert len(split.valid) == 259
    assert seen == {image.tobytes() for image in source.train.inputs[split.valid]}
    assert not seen & {image.tobytes() for image in source.test.inputs}
    for run in runs(done).values():
        counts = run.config()["split"]
        assert (counts["labeled"], counts["valid"], counts["test"]) == (20, 259, 0)
        assert all("valid_error" in record and "test_error" not in record for record in run.metrics())
        assert (run.result() or {"error": None})["error"] is None
    assert done.chosen_by.startswith("the error on 259 validation images")
    assert "no test image is looked at" in done.chosen_by


def rows_file(path: Path, labels: int, test: float) -> Path:
    """Rows of two classes, so many of each with a label, and test rows of a kind of their own."""
    c = np.arange(2 * labels + 30) % 2
    x = np.random.default_rng(0).normal(size=(len(c), 4)) + 3 * c[:, None]
    np.savez(path, x=x, y=np.where(np.arange(len(c)) < 2 * labels, c, -1), x_test=x[:9] * test, y_test=c[:9])
    return path


ROWS = {"steps": 8, "eval_every": 4, "batch_size": 4, "network": "mlp", "learning_rate": 1e-9, "labels": None}


def test_user_data_is_cross_validated_and_its_test_rows_change_nothing(tmp_path: Path) -> None:
    results = []
    for name, test, trials in (("a", 1.0, 3), ("b", -50.0, 2)):
        path = rows_file(tmp_path / f"{name}.npz", 3, test)
        results.append(
            sweep(tmp_path / name, trials, data=str(path), given={**ROWS, "method": "mixmatch"}, search=SEARCH[:1])
        )
    a, b = results
    same = {row["number"]: row for row in lines(a.out)}
    assert all(row == same[row["number"]] for row in lines(b.out))
    assert a.chosen_by.startswith("the error on 6 labeled rows, each predicted by one of 5 models")
    held = []
    for fold in range(1, 6):
        run = RunFolder(a.out / "trial-000" / f"fold-{fold}")
        counts = run.config()["split"]
        assert (counts["labeled"] + counts["valid"], counts["unlabeled"], counts["test"]) == (6, 30, 0)
        held += [row for row in range(6) if row not in counts["labeled_rows"]]
    assert sorted(held) == list(range(6))  # each label is held out once
    # A rate of 1e-9 learns nothing, so others are better; but the best of 2 trials can show it by 6 of 6 rows alone.
    assert a.difference is not None
    assert (a.difference.rows, a.difference.trials) == (6, 2)
    assert a.difference.gained < 6
    assert a.warning is not None
    assert a.warning.startswith(f"6 rows are too few to tell trial {a.best.number} from the defaults")
    assert all(trial.state == "finished" for trial in a.trials)  # nor to stop a trial by
    same_place = f"{tmp_path}/../{tmp_path.name}/a.npz"
    again = sweep(a.out, 4, data=same_place, given={**ROWS, "method": "mixmatch"}, search=SEARCH[:1])
    assert len(again.trials) == 4  # continued, whatever the data is called


def test_a_sweep_keeps_the_number_of_folds_that_it_was_begun_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version had as many as the smallest class has labels."""
    path = rows_file(tmp_path / "rows.npz", 3, 1.0)
    more: dict[str, Any] = {"data": str(path), "given": {**ROWS, "method": "mixmatch"}, "search": SEARCH[:1]}
    with monkeypatch.context() as patch:
        patch.setattr(sweep_, "number_of_folds", lambda data: 3)
        first = sweep(tmp_path / "begun", 1, **more)
    assert first.warning == ("6 rows are too few to compare settings by: keep the defaults, or validate on more labels")
    result = sweep(tmp_path / "begun", 2, **more)
    assert "each predicted by one of 3 models" in result.chosen_by
    assert [len(list((result.out / f"trial-00{n}").glob("fold-*"))) for n in (0, 1)] == [3, 3]
    config = result.out / "trial-000" / "fold-1" / "config.json"
    config.write_text(config.read_text().replace('"folds": 3', '"folds": 300'))
    with pytest.raises(MixMatchError, match=r"config.json is damaged \(it is not the first fold of a trial\)"):
        sweep(tmp_path / "begun", 3, **more)


def test_a_difference_by_hand() -> None:
    """Ten rows change, eight of them for the better: P(8 or more heads of 10) = (45 + 10 + 1) / 1024."""
    found = Difference(rows=100, gained=8, lost=2, trials=3)
    assert found.points == 6
    assert found.standard_error == pytest.approx(100 * math.sqrt(0.1 - 0.06**2) / 10)  # of a mean of 100 values +-1, 0
    assert found.chance == pytest.approx(3 * 56 / 1024)
    assert not found.is_told_apart
    assert Difference(100, 20, 2, 3).is_told_apart
    assert Difference(100, 0, 0, 3).chance == 1


def test_the_best_is_compared_with_the_defaults_row_by_row(done: Result) -> None:
    errors = {n: run.metrics()[-1]["valid_error"] for n, run in runs(done).items() if run.result()}
    best = min(errors, key=lambda n: (errors[n], n))
    assert (done.best.number, done.best.error) == (best, pytest.approx(errors[best]))
    assert done.difference is not None
    assert best != 0
    assert done.difference.points == pytest.approx(errors[0] - errors[best])
    assert done.difference.gained > 0
    assert done.difference.trials == TRIALS - 1
    assert done.trials[0] is done.best


# ---------------------------------------------------------------- trials


def test_the_first_trial_has_the_defaults(done: Result) -> None:
    """As `train` would have them: what is given, though it is searched, and what is not."""
    decay = resolve("digits", {"method": "supervised"}).weight_decay
    assert done.default.settings == {"learning_rate": 1e-5, "weight_decay": decay, "label_sampling": "uniform"}
    assert sorted(trial.number for trial in done.trials) == list(range(TRIALS))
    for trial in done.trials:
        made = runs(done)[trial.number].config()["settings"]
        assert {name: made[name] for name in trial.settings} == trial.settings
        assert {name: made[name] for name in GIVEN if name not in trial.settings}.items() <= GIVEN.items()
        assert 1e-6 <= trial.settings["learning_rate"] <= 0.05


def test_trials_are_stopped_that_are_worse_than_the_median(done: Result) -> None:
    """Worked out again from the run folders: trials one after the other, each compared with those finished before."""
    finished: list[dict[int, float]] = []
    stopped = []
    for number, run in sorted(runs(done).items()):
        curve = {record["step"]: record["valid_error"] for record in run.metrics()}
        ends_at = None
        for step in curve:
            compared = number > 0 and len(finished) >= 4 and STEPS // 3 <= step < STEPS
            if compared and min(v for s, v in curve.items() if s <= step) > np.median([c[step] for c in finished]):
                ends_at = step
                break
        assert max(curve) == (ends_at or STEPS)
        state = next(trial.state for trial in done.trials if trial.number == number)
        if ends_at is None:
            assert (state, run.asked_to_end()) == ("finished", None)
            finished.append(curve)
        else:
            assert state == "stopped"
            assert f"{curve[ends_at]:.2f} % is above the median" in (run.asked_to_end() or "")
            assert not run.model.exists()
            stopped.append(number)
    assert stopped


def test_the_defaults_are_never_stopped(done: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optuna.pruners.MedianPruner, "prune", lambda self, study, trial: True)
    result = sweep(tmp_path / "sweep", 2)
    assert {trial.number: trial.state for trial in result.trials} == {0: "finished", 1: "stopped"}
    assert result.best is result.default
    assert (result.difference, result.warning) == (None, None)
    assert result.conclusion == f"no trial was better than the defaults, at {result.default.error:.2f} %"


def test_a_driver_that_is_killed_again_and_again(done: Result, tmp_path: Path) -> None:
    """No trial is lost or doubled, and the others are suggested as if nothing had happened."""
    script = Path(__file__).with_name("sweeps.py")
    subprocess.run([sys.executable, script, tmp_path / "sweep"], check=True, timeout=300)
    journal = (tmp_path / "sweep/journal.log").read_bytes()
    (tmp_path / "sweep/journal.log").write_bytes(journal + b'{"op_code": 5, "wor')  # power was lost, too
    kept = {path: path.stat().st_mtime_ns for n in (4, 5) for path in tmp_path.glob(f"sweep/trial-{n:03}/*.json*")}
    result = sweep(tmp_path / "sweep")
    assert lines(result.out) == lines(done.out)
    attempts = {number: run.attempt() for number, run in runs(result).items()}
    assert attempts == {number: 2 if ("training", number) in MOMENTS else 1 for number in range(TRIALS)}
    assert {path: path.stat().st_mtime_ns for path in kept} == kept  # of trials that had ended, but were not told
    assert len(kept) == 2 + 3
    assert (result.out / "best.toml").read_text() == (done.out / "best.toml").read_text()


def test_several_at_a_time_in_other_processes(done: Result, tmp_path: Path) -> None:
    """Jobs travel, and are told apart from test data there too. Two are asked for before the first has ended."""
    executor = Here(devices=["cpu", "cpu"])
    assert executor.places("cpu") == 2
    result = sweep(tmp_path / "sweep", 2, executor=executor)
    assert sorted(lines(result.out)[0]) == sorted(lines(done.out)[0])
    same = {row["number"]: row for row in lines(done.out)}
    assert all(row == same[row["number"]] for row in lines(result.out))  # the first are suggested at random
    assert all("test_error" not in record for run in runs(result).values() for record in run.metrics())


def test_a_trial_that_diverges_or_fails(tmp_path: Path) -> None:
    result = sweep(tmp_path / "a", 2, search=["learning_rate=1e30..1e31"])
    assert [(trial.number, trial.state) for trial in result.trials] == [(0, "finished"), (1, "diverged")]
    said: list[str] = []
    failing = {"search": ["network=wrn-10-1,cnn13"], "say": said.append}  # which wants larger images
    result = sweep(tmp_path / "b", 6, **failing)
    failed = [trial for trial in result.trials if trial.state == "failed"]
    assert failed
    assert failed[0].reason
    assert f"trial {failed[0].number} failed: {failed[0].reason}" in said
    with pytest.raises(MixMatchError, match="loss was not finite"):  # the defaults themselves
        sweep(tmp_path / "c", 2, given={"learning_rate": 1e30}, search=["weight_decay=0..1"])


def test_minutes(tmp_path: Path) -> None:
    """However short the time, and although the default is not among what is searched."""
    said: list[str] = []
    result = sweep(tmp_path / "sweep", None, minutes=1e-12, search=["label_sampling=balanced"], say=said.append)
    assert said[-1].startswith("1 trial: best ")
    assert [trial.number for trial in result.trials] == [0]  # there is always one to speak of
    assert (result.out / "slices.png").is_file()


# ---------------------------------------------------------------- files


def test_train_takes_the_best_settings(done: Result, tmp_path: Path) -> None:
    file = done.out / "best.toml"
    values = tomllib.loads(file.read_text())
    assert values == {**GIVEN, "seed": 1, **done.best.settings}
    record = mixmatch.train("digits", config=file, out=tmp_path / "run", device="cpu")
    assert {name: record["settings"][name] for name in values} == values
    assert (record["settings"]["valid"], record["split"]["test"]) == (0, 500)


def test_the_table_and_the_picture(done: Result) -> None:
    rows = lines(done.out)
    assert [int(row["number"]) for row in rows] == [trial.number for trial in done.trials]
    for row, trial in zip(rows, done.trials, strict=True):
        assert row["state"] == trial.state
        assert float(row["error"]) == trial.error
        assert float(row["learning_rate"]) == trial.settings["learning_rate"]
    states = [trial.state for trial in done.trials]
    assert states == sorted(states)  # finished before stopped
    errors = [trial.error for trial in done.trials if trial.state == "finished"]
    assert errors == sorted(errors)
    with Image.open(done.out / "slices.png") as picture:
        picture.load()
        assert picture.size[0] > 1000


# ---------------------------------------------------------------- what is refused


def test_another_sweep_in_the_same_folder_is_refused(done: Result, tmp_path: Path) -> None:
    with pytest.raises(MixMatchError, match=r"other settings \(steps: 30 -> 31\)"):
        sweep(done.out, given={"steps": 31})
    with pytest.raises(MixMatchError, match=r"other settings.*search of weight_decay"):
        sweep(done.out, search=[SEARCH[0], "weight_decay=0..1", SEARCH[2]])
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(MixMatchError, match="holds other files and is not a sweep"):
        sweep(tmp_path)
    from mixmatch.experiments.tune.journal import held

    with held(done.out), pytest.raises(MixMatchError, match="another process is tuning"):
        sweep(done.out)
    with pytest.raises(MixMatchError, match="valid=0 leaves no validation images"):
        sweep(tmp_path / "new", given={"valid": 0})
    with pytest.raises(MixMatchError, match="trials=0 must be above 0"):
        sweep(tmp_path / "new", 0)
    assert not (tmp_path / "new").exists()


# ---------------------------------------------------------------- search spaces


@pytest.mark.parametrize("method", methods.METHODS)
@pytest.mark.parametrize(("data", "kind"), [("cifar10", None), ("svhn", None), ("x", "images"), ("x", "features")])
def test_default_spaces_hold_the_defaults_and_nothing_that_is_refused(data: str, kind: Any, method: str) -> None:
    base = resolve(data, {"method": method}, kind)
    declared = declared_settings(method)
    space = default_space(base, ["weight_decay"])
    assert "learning_rate" in space
    assert "weight_decay" not in space  # it was given
    values = {**base.to_dict(), **base.method_settings}
    for name, where in space.items():
        assert isinstance(where, Range)
        assert where.low <= values[name] <= where.high
        assert where.low < where.high
        assert declared[name].check(where.low) < declared[name].check(where.high)
        assert where.low > 0 or not where.log
    off = [name for name, each in declared.items() if each.search is not None and not values[name]]
    assert not set(off) & space.keys()


def test_a_range_around_the_default() -> None:
    base = resolve("cifar10", {})
    assert declared_settings("mixmatch")["lambda_u"].search == Times(10)
    assert default_space(base, [])["lambda_u"] == Range(7.5, 750, True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lambda_u=1..100:log", ("lambda_u", Range(1, 100, True))),
        ("T=.1..0.9", ("T", Range(0.1, 0.9, False))),
        ("learning-rate = 1e-4 .. 1e-2 : log", ("learning_rate", Range(1e-4, 1e-2, True))),
        ("K=1..4", ("K", Range(1, 4, False))),
        ("K=1,2,4", ("K", Choices((1, 2, 4)))),
        ("mix=all,labeled", ("mix", Choices(("all", "labeled")))),
        ("flip=true,no", ("flip", Choices((True, False)))),
    ],
)
def test_texts_that_say_where_to_search(text: str, expected: Any) -> None:
    assert parse(text, declared_settings("mixmatch")) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lambda_u", "is not NAME=LOW..HIGH"),
        ("lambda_u=1..100:exp", "is not NAME=LOW..HIGH"),
        ("lambda_u=1..x", "is not NAME=LOW..HIGH"),
        ("mix=1..2", "is not NAME=LOW..HIGH"),
        ("K=1-4", "is not NAME=LOW..HIGH"),
        ("lambda_v=1..2", "unknown setting 'lambda_v': did you mean 'lambda_u'"),
        ("T=-1..1", "T=-1.0 must be a number of at least 0"),
        ("T=1..0.5", "the first number must be below the second"),
        ("T=0..0.5:log", "on a log scale above 0"),
        ("mix=all,some", "mix='some' must be one of"),
        ("K=1,1", "a value is there twice"),
        ("seed=1..5", "seed is not searched: a lucky seed"),
        ("steps=1..5", "steps is not searched"),
    ],
)
def test_texts_that_make_no_sense(text: str, message: str) -> None:
    with pytest.raises(MixMatchError, match=message.replace("..", r"\.\.")):
        parse(text, declared_settings("mixmatch"))


def test_asked_for_instead_and_in_addition() -> None:
    base = resolve("digits", {})
    space = space_of(base, ["alpha"], ["T=0.4..0.6", "K=1..3"])
    assert list(space) == ["T", "lambda_u", "learning_rate", "weight_decay", "K"]
    assert space["T"] == Range(0.4, 0.6, False)
    assert list(space_of(base, [], ["K=1..3"], only=True)) == ["K"]
    with pytest.raises(MixMatchError, match="only=True needs search="):
        space_of(base, [], [], only=True)
    with pytest.raises(MixMatchError, match="nothing to search"):
        space_of(base, list(default_space(base, [])), [])


def test_without_optuna(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MixMatchError, match=r"pip install 'mixmatch\[tune\]'"):
        driver_.tune("digits", {}, out=tmp_path / "new")


# ---------------------------------------------------------------- folders that cannot be read or written


@pytest.mark.parametrize("where", ["trial-001", "trial-000/fold-1"])
def test_a_trial_that_may_not_be_looked_into(where: str, tmp_path: Path, lock_out: Callable[[Path], None]) -> None:
    path = rows_file(tmp_path / "rows.npz", 2, 1.0)
    more: dict[str, Any] = {"data": str(path), "given": {**ROWS, "method": "mixmatch"}, "search": SEARCH[:1]}
    sweep(tmp_path / "begun", 2, **more)
    lock_out(tmp_path / "begun" / where)
    with pytest.raises(MixMatchError, match=rf"{where}.*Permission denied"):
        sweep(tmp_path / "begun", 2, **more)


def test_a_full_disk_is_one_line_and_the_same_command_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever of the journal is cut off, and at the end, when what was found is written."""
    backend = optuna.storages.journal.JournalFileBackend
    path, plain, appended, full_at = rows_file(tmp_path / "rows.npz", 2, 1.0), backend.append_logs, 0, None
    more: dict[str, Any] = {"data": str(path), "given": {**ROWS, "method": "mixmatch"}, "search": SEARCH[:1]}

    def append(self: Any, logs: list[dict[str, Any]]) -> None:
        nonlocal appended
        appended += 1
        if appended == full_at:
            with Path(self._file_path).open("a") as file:
                file.write(json.dumps(logs[0])[:9])
            raise OSError(28, "No space left on device")
        plain(self, logs)

    monkeypatch.setattr(backend, "append_logs", append)
    monkeypatch.setattr(sweep_, "number_of_folds", lambda data: 2)
    undisturbed, total = sweep(tmp_path / "undisturbed", 2, **more), appended
    for full_at in (4, total // 2, total):
        out, appended = tmp_path / str(full_at), 0
        try:
            reason = sweep(out, 2, **more).trials[-1].reason
        except MixMatchError as error:
            reason = str(error)
        assert reason == f"cannot write {out}/journal.log: No space left on device; {AGAIN}"
        full_at = None
        assert lines(sweep(out, 2, **more).out) == lines(undisturbed.out)

    def refuse(path: Path, content: bytes) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(results, "replace_durably", refuse)
    with pytest.raises(MixMatchError, match=r"cannot write what was found to .*: Read-only file system; fix that"):
        sweep(undisturbed.out, 2, **more)


def test_without_the_device_or_the_cluster_nothing_is_written(tmp_path: Path) -> None:
    class Nowhere(Here):
        def places(self, device: str) -> int:
            raise MixMatchError("no Ray cluster at ray=127.0.0.1:1")

    with pytest.raises(MixMatchError, match="no Ray cluster"):
        sweep(tmp_path / "new", executor=Nowhere())
    assert not (tmp_path / "new").exists()


# ---------------------------------------------------------------- a folder from anyone


def test_what_a_stranger_left_is_one_line(done: Result, tmp_path: Path) -> None:
    """Optuna believes its journal; here a line that no sweep writes is refused, and no link is followed."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "diary.txt").write_text("mine")
    journal = (done.out / "journal.log").read_text().splitlines(keepends=True)
    told = next(n for n, line in enumerate(journal) if '"values"' in line and json.loads(line)["values"])
    suggested = next(n for n, line in enumerate(journal) if '"param_value_internal"' in line)

    def continued(content: list[str] | None = None, link: str = "", to: str = "diary.txt") -> None:
        out = shutil.copytree(done.out, tmp_path / uuid4().hex)
        if content is not None:
            (out / "journal.log").write_text("".join(content))
        if link:
            shutil.rmtree(out / link) if (out / link).is_dir() else (out / link).unlink()
            (out / link).symlink_to(outside / to)
        sweep(out)

    def edited(number: int, **values: Any) -> list[str]:
        line = json.dumps({**json.loads(journal[number]), **values}) + "\n"
        return [*journal[:number], line, *journal[number + 1 :]]

    for content in (
        ["{" + journal[0], *journal[1:]],
        ["[]\n", *journal],
        ["[" * 10**5 + "\n", *journal],
        edited(0, op_code=99),
        edited(told, values=["low"]),
        edited(told, values=None),
        edited(suggested, param_value_internal=1e9),
        edited(suggested, param_name="steps"),
        journal[:1],  # cut off at the end of a line
        [],
    ):
        with pytest.raises(MixMatchError, match=r"journal.log is damaged \(.*\): choose another folder with out="):
            continued(content)
    for link, to in (("journal.log", "diary.txt"), (".lock", "new"), ("trial-001", "")):
        with pytest.raises(MixMatchError, match="it is a link, which is not followed here"):
            continued(None, link, to)
    continued(None, "slices.png")
    continued([*journal, '{"op_code": 4, "trial'])  # cut off by a crash
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"diary.txt": "mine"}

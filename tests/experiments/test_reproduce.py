"""Reproducing a table, on a small one of the digits: what is planned, skipped and resumed, and what fails."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.io import savemat

from mixmatch import api
from mixmatch.data import SOURCES
from mixmatch.data.opened import Data
from mixmatch.errors import MixMatchError
from mixmatch.experiments import records, reproduce
from mixmatch.experiments.paper_tables import table_markdown
from mixmatch.experiments.reproduce import Planned, estimate, finished, plan, run_all, state
from mixmatch.experiments.tables import TABLES, Row, Table, Target
from mixmatch.settings import Settings, resolve
from mixmatch.training.progress import Quiet
from mixmatch.training.stop import Interrupted
from mixmatch.training.timing import Trial

TINY = {"batch_size": 4, "eval_every": 2}
SMALL = Table(
    "digits, error rate (%)",
    (
        Row("Supervised", "digits", "supervised", {20: Target(25.0, 1.0)}, TINY, seeds=(1, 2)),
        Row("MixMatch", "digits", "mixmatch", {20: Target(5.0, 1.0)}, {**TINY, "lambda_u": 75.0}, seeds=(1,)),
    ),
)


class Said(list[str]):
    def __call__(self, text: str) -> None:
        self.append(text)


class Quits(Quiet):
    """Asks the process to stop after two steps, as Ctrl-C does."""

    def steps(self, step: int, values: Mapping[str, float]) -> None:
        if step == 2:
            os.kill(os.getpid(), signal.SIGINT)


class Breaks(Quiet):
    def steps(self, step: int, values: Mapping[str, float]) -> None:
        raise RuntimeError("out of luck")


def everything(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Said]:
    """The small table, run in full with 6 steps."""
    folder, said = tmp_path_factory.mktemp("reproduce"), Said()
    failed = run_all(plan(SMALL, steps=6), folder / "runs", folder / "results", said, Quiet, device="cpu")
    assert failed == []
    return folder, said


# ---------------------------------------------------------------- running


def test_progress_tells_rows_apart_that_differ_in_a_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = plan(SMALL, steps=2)
    assert run_all(runs, tmp_path / "runs", tmp_path / "results", Said(), device="cpu") == []
    lines = capsys.readouterr().err.splitlines()
    for number, method in enumerate(("supervised", "supervised", "mixmatch"), 1):
        assert f"digits {method} {number}/3: 2 steps" in lines


def test_every_run_is_trained_and_recorded(done: tuple[Path, Said]) -> None:
    folder, said = done
    assert said == [
        "[1/3] Supervised, 20 labels, seed 1",
        "[2/3] Supervised, 20 labels, seed 2",
        "[3/3] MixMatch, 20 labels, seed 1",
    ]
    found = records.load_all(folder / "results", pytest.fail)
    assert sorted((r["method"], r["seed"], r["steps"]) for r in found) == [
        ("mixmatch", 1, 6), ("supervised", 1, 6), ("supervised", 2, 6),
    ]  # fmt: skip
    for record in found:
        assert [point["step"] for point in record["curve"]] == [2, 4, 6]
        assert record["settings"]["batch_size"] == 4
        assert record["split"]["labeled"] == 20
        assert 0 <= record["error"] <= 100
    (mixmatch,) = [r for r in found if r["method"] == "mixmatch"]
    assert mixmatch["settings"]["method_settings"]["lambda_u"] == 75.0
    names = {path.name for path in (folder / "runs").iterdir()}
    assert len(names) == len(list((folder / "results").iterdir()))
    assert names == {run.name for run in plan(SMALL, steps=6)}


def test_the_records_are_the_runs_results(done: tuple[Path, Said]) -> None:
    folder, _ = done
    for run in plan(SMALL, steps=6):
        path = folder / "runs" / run.name
        result = api.train("digits", out=path, resume=True)  # a finished run gives its record
        known = records.load_all(folder / "results", pytest.fail)
        record = finished(run, known)
        assert record is not None
        assert {name: value for name, value in record.items() if name != "format"} == {
            k: v for k, v in result.items() if k != "sha256"
        }
        assert state(run, known, folder / "runs") == "finished"


def test_the_report_shows_them(done: tuple[Path, Said]) -> None:
    folder, _ = done
    found = records.load_all(folder / "results", pytest.fail)
    errors = {(r["method"], r["seed"]): r["error"] for r in found}
    lines = table_markdown(SMALL, found, steps=6).splitlines()
    both = f"{errors['supervised', 1]:.2f}, {errors['supervised', 2]:.2f}"
    assert lines[2:] == [
        f"| Supervised | **{both}** (2 of 2 seeds, 6 steps)<br>paper 25.00 ± 1.00 |",
        f"| MixMatch | **{errors['mixmatch', 1]:.2f}** (1 of 1 seed, 6 steps)<br>paper 5.00 ± 1.00 |",
    ]
    assert table_markdown(SMALL, found).count("not run") == 2


def test_finished_runs_are_skipped(done: tuple[Path, Said]) -> None:
    folder, _ = done
    before, said = everything(folder), Said()
    assert run_all(plan(SMALL, steps=6), folder / "runs", folder / "results", said, Breaks, device="cpu") == []
    assert all(text.endswith(": finished before") for text in said)
    assert len(said) == 3
    assert everything(folder) == before


def test_a_record_of_another_machine_counts(done: tuple[Path, Said], tmp_path: Path) -> None:
    """There is a record, also in another precision if none was asked for, but no run folder."""
    folder, _ = done
    for record in records.load_all(folder / "results", pytest.fail):
        del record["format"]
        records.save({**record, "settings": {**record["settings"], "precision": "bf16"}}, tmp_path / "results")
    said = Said()
    assert run_all(plan(SMALL, steps=6), tmp_path / "runs", tmp_path / "results", said, Breaks, device="cpu") == []
    assert [text.endswith(": finished before") for text in said] == [True] * 3
    assert not (tmp_path / "runs").exists()
    known = records.load_all(tmp_path / "results", pytest.fail)
    for precision, found in (("bf16", "finished"), ("fp32", "to do")):
        runs = plan(SMALL, steps=6, precision=precision)
        assert [state(run, known, tmp_path / "runs") for run in runs] == [found] * 3


def test_a_precision_that_was_asked_for(tmp_path: Path) -> None:
    runs = plan(SMALL, methods=["supervised"], seeds=[1], steps=2, precision="bf16")
    assert run_all(runs, tmp_path / "runs", tmp_path / "results", Said(), Quiet, device="cpu") == []
    (record,) = records.load_all(tmp_path / "results", pytest.fail)
    assert record["settings"]["precision"] == "bf16"
    # A folder of its own: one without a chosen precision may hold either.
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [runs[0].name]
    assert runs[0].name.endswith("-bf16")
    assert finished(runs[0], [record]) is record


@pytest.mark.parametrize("other", [{"passes": "official"}, {"eval_every": 3}, {"batch_size": 8}])
def test_other_passes_and_evaluations_are_other_runs(done: tuple[Path, Said], other: dict[str, Any]) -> None:
    folder, _ = done
    known = records.load_all(folder / "results", pytest.fail)
    (run,) = plan(SMALL, methods=["mixmatch"], steps=6, **other)
    assert state(run, known, folder / "runs") == "to do"


def test_other_budgets_and_settings_are_other_runs(done: tuple[Path, Said]) -> None:
    folder, _ = done
    known = records.load_all(folder / "results", pytest.fail)
    for runs in (plan(SMALL, steps=7), plan(SMALL, steps=6, learning_rate=0.001), plan(SMALL, steps=6, seeds=[4])):
        assert [state(run, known, folder / "runs") for run in runs] == ["to do"] * len(runs)


def test_an_interrupted_run_goes_on(done: tuple[Path, Said], tmp_path: Path) -> None:
    folder, _ = done
    runs = plan(SMALL, methods=["mixmatch"], steps=6)
    with pytest.raises(Interrupted) as stopped:
        run_all(runs, tmp_path / "runs", tmp_path / "results", Said(), Quits, device="cpu")
    assert stopped.value.step == 2
    (run,) = runs
    assert state(run, [], tmp_path / "runs") == "interrupted"
    assert (tmp_path / "runs" / run.name / "config.json").exists()
    assert not (tmp_path / "runs" / run.name / "result.json").exists()

    assert run_all(runs, tmp_path / "runs", tmp_path / "results", Said(), Quiet, device="cpu") == []
    (record,) = records.load_all(tmp_path / "results", pytest.fail)
    whole = finished(run, records.load_all(folder / "results", pytest.fail))
    assert whole is not None
    assert (record["error"], record["curve"]) == (whole["error"], whole["curve"])  # as if it had never been stopped
    assert state(run, [record], tmp_path / "runs") == "finished"


def test_failures_are_reported_and_the_rest_still_run(tmp_path: Path) -> None:
    impossible = replace(SMALL.rows[0], name="Too many", targets={5000: Target(1.0)}, seeds=(1,))
    table = Table("failing", (impossible, replace(SMALL.rows[0], seeds=(1,))))
    said = Said()
    runs = plan(table, steps=2)
    ((run, reason),) = run_all(runs, tmp_path / "runs", tmp_path / "results", said, Quiet, device="cpu")
    assert run is runs[0]
    assert "5,000" in reason or "5000" in reason
    assert "\n" not in reason
    assert said == [
        "[1/2] Too many, 5,000 labels, seed 1",
        f"[1/2] Too many, 5,000 labels, seed 1: failed: {reason}",
        "[2/2] Supervised, 20 labels, seed 1",
    ]
    assert [r["labels"] for r in records.load_all(tmp_path / "results", pytest.fail)] == [20]


def test_runs_whose_data_is_missing_are_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIXMATCH_OFFLINE", "1")
    rows = [replace(SMALL.rows[0], name=data, data=data, targets={20: Target(1.0)}) for data in ("cifar10", "digits")]
    said, runs = Said(), plan(Table("missing", tuple(rows)), steps=2)
    folders = (tmp_path / "runs", tmp_path / "results")
    failed = run_all(runs, *folders, said, Quiet, device="cpu", data_dir=tmp_path / "data")
    assert [run for run, _ in failed] == runs[:2]
    assert len({reason for _, reason in failed}) == 1
    assert said == [
        f"cifar10: {failed[0][1]}",
        "[3/4] digits, 20 labels, seed 1",
        "[4/4] digits, 20 labels, seed 2",
    ]
    assert f"put it at {tmp_path / 'data'}" in said[0]
    assert len(list(folders[0].iterdir())) == 2
    # A finished run needs no data, only its record is made again.
    (tmp_path / "runs" / runs[2].name).rename(tmp_path / "runs" / runs[0].name)
    assert len(run_all(runs[:1], *folders, said, Quiet, device="cpu", data_dir=tmp_path / "data")) == 1
    assert said[-1].startswith("[1/1] cifar10, 20 labels, seed 1: failed: ")
    assert "was made with other settings" in said[-1]  # so it was looked into, not for its data


def test_pate_takes_the_test_images_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIXMATCH_OFFLINE", "1")
    runs, said = plan(TABLES["pate"], methods=["mixmatch"], seeds=[1], split="answers", steps=2), Said()
    folders = (tmp_path / "runs", tmp_path / "results")
    ((_, reason),) = run_all(runs, *folders, said, Quiet, device="cpu", data_dir=tmp_path)
    assert said == [f"svhn-test: {reason}"]
    assert reason.startswith("test_32x32.mat is missing and downloads are off")
    images = {"X": np.zeros((32, 32, 3, 12), np.uint8), "y": np.ones((12, 1), np.uint8)}
    savemat(tmp_path / "test_32x32.mat", images)
    ((_, reason),) = run_all(runs, *folders, said, Quiet, device="cpu", data_dir=tmp_path)
    assert said[1] == "[1/1] MixMatch, epsilon 0.97, 138 labels, seed 1"
    assert "there are 12 public images" in reason  # too few, but they were looked at


def test_a_failure_of_any_kind_does_not_stop_the_rest(tmp_path: Path) -> None:
    reporters = iter([Breaks, Quiet])
    runs = plan(SMALL, methods=["supervised"], steps=2)
    ((run, reason),) = run_all(
        runs, tmp_path / "runs", tmp_path / "results", Said(), lambda: next(reporters)(), device="cpu"
    )
    assert (run.settings.seed, reason) == (1, "RuntimeError: out of luck")
    assert [r["seed"] for r in records.load_all(tmp_path / "results", pytest.fail)] == [2]


def test_a_place_for_records_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MixMatchError, match=r"cannot write to .*file/results: .*; choose another folder with results="):
        run_all(plan(SMALL, steps=2), tmp_path / "runs", tmp_path / "file" / "results", Said(), Quiet, device="cpu")
    assert not (tmp_path / "runs").exists()


def test_a_record_that_cannot_be_written_does_not_stop_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, full = records.save, iter([True, False, False])

    def once_full(record: dict[str, Any], folder: Path) -> Path:
        if next(full):
            raise OSError(errno.ENOSPC, "No space left on device")
        return save(record, folder)

    monkeypatch.setattr(records, "save", once_full)
    said = Said()
    runs = plan(SMALL, methods=["supervised"], steps=2)
    ((run, reason),) = run_all(runs, tmp_path / "runs", tmp_path / "results", said, Quiet, device="cpu")
    assert run is runs[0]
    assert "No space left on device" in reason
    assert [r["seed"] for r in records.load_all(tmp_path / "results", pytest.fail)] == [2]
    assert run_all(runs, tmp_path / "runs", tmp_path / "results", said, Quiet, device="cpu") == []  # costs nothing
    assert [r["seed"] for r in records.load_all(tmp_path / "results", pytest.fail)] == [1, 2]


# ---------------------------------------------------------------- planning


def planned(name: str, *arguments: Any, **options: Any) -> list[tuple[str, Any, int]]:
    return [
        (f"{run.settings.data} {run.settings.method}", run.settings.labels, run.settings.seed)
        for run in plan(TABLES[name], *arguments, **options)
    ]


def test_a_part_of_a_table() -> None:
    assert planned("cifar10", labels=[250], methods=["vat"]) == [("cifar10 vat", 250, seed) for seed in (1, 2, 3, 4, 5)]
    assert planned("cifar10", labels=["all"]) == [("cifar10 supervised-mixup", "all", 1)]
    assert planned("cifar10", labels=[4000], methods=["mixmatch", "mixup"], seeds=[7]) == [
        ("cifar10 mixup", 4000, 7), ("cifar10 mixmatch", 4000, 7),
    ]  # fmt: skip
    assert planned("stl10", seeds=[2, 3]) == [
        ("stl10 mixmatch", 1000, 2), ("stl10 mixmatch", 1000, 3),
        ("stl10 mixmatch", 5000, 2), ("stl10 mixmatch", 5000, 3),
    ]  # fmt: skip
    assert len(planned("ablation", labels=[250], methods=["mixmatch"])) == 10


def test_counts_the_paper_does_not_have_are_planned_for_every_method() -> None:
    runs = planned("cifar10", labels=[100], seeds=[1])
    assert [(name, labels) for name, labels, _ in runs] == [
        (f"cifar10 {method}", 100)
        for method in ("pi-model", "pseudo-label", "mixup", "vat", "mean-teacher", "mixmatch")
    ]
    assert planned("cifar10", labels=[100, 250], methods=["vat"], seeds=[1]) == [
        ("cifar10 vat", 250, 1), ("cifar10 vat", 100, 1),
    ]  # fmt: skip


def test_a_count_of_one_data_set_is_not_planned_for_the_other() -> None:
    """4,000 labels are CIFAR-10's column in these tables, and only its."""
    assert {name for name, _, _ in planned("cifar-large", labels=[4000])} == {"cifar10 mixmatch"}
    assert {name for name, _, _ in planned("cnn13", labels=[4000])} == {"cifar10 mean-teacher", "cifar10 mixmatch"}
    assert {name for name, _, _ in planned("cnn13", labels=[1000])} == {"svhn mean-teacher", "svhn mixmatch"}


def test_budgets_and_settings() -> None:
    (run,) = plan(TABLES["cifar10"], ["all"])
    assert run.settings.steps == 2**20
    (run,) = plan(TABLES["cifar10"], ["all"], steps=16384, batch_size=32)
    assert (run.settings.steps, run.settings.batch_size) == (16384, 32)
    assert run.row is TABLES["cifar10"].rows[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": ["mixmach"]}, "unknown method 'mixmach': did you mean 'mixmatch'?"),
        ({"methods": ["mixmatch", "vta"]}, "unknown method 'vta': did you mean 'vat'?"),
        ({"methods": ["ict"]}, "method 'ict' is not in this table (it has: mean-teacher, mixmatch, mixup, "),
        ({"methods": ["vat"], "labels": ["all"]}, "nothing to run: no row of this table has these methods and labels"),
        ({"methods": ["vat"], "labels": [0]}, "labels=0 must be"),
        ({"steps": 0}, "steps=0 must be"),
        ({"seeds": [-1]}, "seed=-1 must be"),
    ],
)
def test_what_cannot_be_planned(options: dict[str, Any], message: str) -> None:
    with pytest.raises(MixMatchError) as caught:
        plan(TABLES["cifar10"], **options)
    assert str(caught.value).startswith(message)


def test_runs_that_serve_two_tables_have_one_name() -> None:
    """The comparison's MixMatch runs are those of the main tables, so they are trained once."""
    main = {run.name for name in ("svhn", "svhn-extra") for run in plan(TABLES[name])}
    assert {run.name for run in plan(TABLES["svhn-comparison"])} <= main


# ---------------------------------------------------------------- estimating


def runs_of(*settings: dict[str, Any]) -> list[Planned]:
    return [Planned(SMALL.rows[0], resolve("digits", each)) for each in settings]


def test_estimates_grow_with_the_steps_and_runs_that_are_alike_share_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    made, trial = [], reproduce.trial

    def count(*arguments: Any, **options: Any) -> Trial:
        made.append(arguments[0].method)
        return trial(*arguments, **options)

    monkeypatch.setattr(reproduce, "trial", count)
    one = {"steps": 1000, "batch_size": 8}
    alike = {**one, "seed": 2, "labels": 40, "learning_rate": 0.1, "lambda_u": 3.0}
    runs = runs_of(one, alike, {**one, "steps": 3000}, {"method": "vat", **one})
    counted: list[tuple[int, int]] = []
    first, second, longer, vat = estimate(runs, torch.device("cpu"), lambda *numbers: counted.append(numbers))
    assert made == ["mixmatch", "vat"]
    assert counted == [(0, 2), (1, 2)]
    assert 0 < first < 3600
    assert second == first
    assert longer == pytest.approx(3 * first)
    assert vat > 0


def test_a_trial_is_scaled_to_the_batch_and_to_all_test_images(monkeypatch: pytest.MonkeyPatch) -> None:
    def trial(settings: Settings, data: Data, device: torch.device, steps: int) -> Trial:
        assert (settings.batch_size, len(data.source.test), len(data.split.labeled)) == (8, 256, 10)
        return Trial(settings, step=0.5, evaluation=2.0, memory=None, device=device)

    monkeypatch.setattr(reproduce, "trial", trial)
    runs = runs_of({"method": "supervised", "steps": 100, "eval_every": 50, "batch_size": 64})
    assert estimate(runs, torch.device("cpu")) == [100 * 0.5 * 8 + 2 * 2.0 * SOURCES["digits"].test / 256]


def test_experiments_do_not_load_privacy() -> None:
    code = (
        "import sys, mixmatch.experiments.reproduce; sys.exit(any('mixmatch.privacy' in name for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

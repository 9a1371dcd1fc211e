"""The textbook loops that ours is timed beside do the same work: the same losses; and the table of times adds up."""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from forks import Fork, ended
from mixmatch.methods import METHODS, Batch, DataInfo, Progress, build
from mixmatch.networks.heads import WithHeads
from mixmatch.settings import resolve
from mixmatch.training.model import Model

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
B, CLASSES, SIZE = 6, 4, 4


@pytest.fixture
def textbook(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import textbook

    return textbook


class Layers(nn.Sequential):
    """A network that offers its features."""

    feature_size = 8

    def features(self, x: Tensor) -> Tensor:
        return self[3](self[2](self[1](self[0](x))))  # type: ignore[no-any-return]

    def classify(self, features: Tensor) -> Tensor:
        return self[4](features)  # type: ignore[no-any-return]


def network() -> Layers:
    torch.manual_seed(0)
    layers = Layers(
        nn.Flatten(), nn.Linear(3 * SIZE**2, 8), nn.BatchNorm1d(8), nn.LeakyReLU(0.1), nn.Linear(8, CLASSES)
    ).double()
    with torch.no_grad():
        layers[4].weight.mul_(6)
    return layers


def test_every_method_has_a_textbook_loop(textbook: Any) -> None:
    assert textbook.LOSSES.keys() == METHODS.keys()


@pytest.mark.parametrize("name", METHODS)
def test_a_textbook_loss_is_ours(textbook: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method = build(name, resolve("cifar10", {"method": name}).method_settings)
    loss_of, views = textbook.LOSSES[name]
    assert views == len(method.views)
    size = 20 if name == "remixmatch" else B  # its ten batches are interleaved
    torch.manual_seed(1)
    x, y = torch.randn(size, 3, SIZE, SIZE).double(), torch.eye(CLASSES)[torch.arange(size) % CLASSES].double()
    x_strong = torch.randn(size, 3, SIZE, SIZE).double()
    count = method.ratio * size
    u, rows = torch.randn(views, count, 3, SIZE, SIZE).double(), torch.arange(count)
    noise = torch.randn(size, 3, SIZE, SIZE).double()
    drawn = method.draw(np.random.default_rng(2), size)
    draws = {key: torch.from_numpy(value) for key, value in drawn.items()} | {"noise": noise}
    lams = [value.double() for key, value in draws.items() if key.startswith("lam")]

    class Beta:
        def __init__(self, *given: float) -> None:
            assert given == (method.alpha, method.alpha)

        def sample(self, shape: list[int]) -> Tensor:
            lam = lams.pop(0)
            assert shape == [len(lam)]
            return lam

    monkeypatch.setattr(torch.distributions, "Beta", Beta)
    monkeypatch.setattr(torch, "randperm", lambda count, device: draws["perm"])
    monkeypatch.setattr(torch, "randn_like", lambda u: noise)

    live = network()
    model = Model(copy.deepcopy(live))
    average = copy.deepcopy(live)
    for key, value in average.named_parameters():
        value.data.mul_(0.7).add_(0.05)
        model.ema[key] = value.detach().clone()
    if method.heads:
        model = Model(WithHeads(model.network, method.heads).double())
    batch = Batch(x=x, y=y, u=u, rows=rows, x_strong=x_strong)
    info = DataInfo(CLASSES, count, y.mean(0), torch.device("cpu"))
    memory: dict[str, Any] = {"unlabeled": count, "rows": rows, "prior": info.prior}
    memory["mean"] = torch.full_like(info.prior, 1 / CLASSES)  # this is not the first step
    if method.heads:
        memory["rotation"] = model.network.heads["rotation"]  # type: ignore[index]
    state, now = method.state(info), Progress(torch.tensor(2.0**20).double(), 2**20)
    ours, metrics, changed = method.loss(model, batch, draws, now, state)
    assert bool(changed) == (name in textbook.REMEMBER)
    more = (memory,) if changed else ()
    x = x_strong if method.strong_labeled else x
    theirs, *parts = loss_of(live, average, x.clone(), y.clone(), list(u.clone()), *more)
    torch.testing.assert_close(theirs, ours, rtol=1e-6, atol=1e-9)
    expected = [metrics[key] for key in ("loss_x", "loss_u", "entropy") if key in metrics]
    torch.testing.assert_close(parts, expected, rtol=1e-6, atol=1e-9)
    assert not lams


def measure(program: str, words: list[str], found: Path) -> None:
    sys.path.insert(0, str(BENCHMARKS))
    sys.argv = [program, *words, "--device", "cpu", "--seconds", "0.01", "--json"]
    with found.open("w") as out, contextlib.redirect_stdout(out):
        importlib.import_module(program).main()


def measured(folder: Path, program: str, asked: dict[str, list[str]]) -> dict[str, list[dict[str, Any]]]:
    """The rows that a program prints for each of the words it is asked with, in processes of their own."""
    forks = [
        Fork(measure, program, words, folder / name, output=folder / f"{name}-said") for name, words in asked.items()
    ]
    assert ended(forks, 300) == [(0, "")] * len(asked)
    return {name: json.loads((folder / name).read_text())["rows"] for name in asked}


def test_the_program_prints_what_it_measured(tmp_path: Path) -> None:
    asked = {name: ["--method", name, "--batch-size", "4"] for name in ("mixmatch", "vat", "supervised")}
    for method, rows in measured(tmp_path, "step_time", asked).items():
        assert [row["name"].split(" (")[0] for row in rows] == ["textbook loop", "ours, eager, fp32", "ours, default"]
        images = {"mixmatch": 12, "vat": 8, "supervised": 4}[method]
        for row in rows:
            assert row["ratio"] == pytest.approx(rows[0]["ms_per_step"] / row["ms_per_step"])
            assert row["images_per_second"] == pytest.approx(1000 * images / row["ms_per_step"])
            assert row["setup_seconds"] > 0


def test_what_dividing_work_costs_is_measured_beside_what_it_replaces(tmp_path: Path) -> None:
    names = {
        "exchange": ["without", "over gloo"],
        "groups": ["batch 2 in 1 group", "batch 4 in 2 groups", "batch 4 in 1 group"],
    }
    small = ["--network", "wrn-10-1", "--large", "wrn-10-1", "--group", "2", "--groups", "2"]
    for table, rows in measured(tmp_path, "scale", {name: ["--only", name, *small] for name in names}).items():
        assert [row["name"] for row in rows] == names[table]
        for row in rows:
            images = 2 if table == "groups" and row is not rows[0] else 1
            assert row["ratio"] == pytest.approx(images * rows[0]["ms_per_step"] / row["ms_per_step"])


def test_the_list_of_long_runs_knows_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import long_runs

    from mixmatch.experiments import records

    results = BENCHMARKS.parent / "results"
    known = records.load_all(results, lambda line: None)
    done, left = long_runs.Part("cifar10", 250, (1,), 2**16).runs() + long_runs.Part("svhn", 250, (9,), 2**16).runs()
    row = long_runs.state(done, known, tmp_path)
    assert (row["state"], row["at"]) == ("finished", 2**16)
    record = next(r for r in known if r["seed"] == 1 and r["steps"] == 2**16 and r["labels"] == 250)
    assert row["error"] == record["last_error"] != record["error"]
    (whole,) = long_runs.Part("cifar10", 250, (1,), 2**20).runs()
    assert long_runs.state(whole, known, tmp_path)["error"] == next(r["error"] for r in known if r["steps"] == 2**20)
    assert long_runs.state(left, known, tmp_path)["state"] == "to do"
    folder = tmp_path / left.name
    (folder / "checkpoint" / "step-00002048").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "metrics.jsonl").write_text('{"step": 1024, "test_error": 80.5}\n')
    row = long_runs.state(left, known, tmp_path)
    assert (row["state"], row["at"], row["error"]) == ("on its way", 2048, 80.5)


def test_junk_is_added_to_unlabeled_rows_of_the_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the program sets it
    monkeypatch.syspath_prepend(BENCHMARKS)
    import no_class

    task = no_class.TASKS["digits"]
    few, none = no_class.cut(task, 1, None, 2, 216, 0.0)
    more, junk = no_class.cut(task, 1, None, 2, 216, 0.7)
    assert len(few.split.labeled) == 12
    assert len(none) == 216
    assert not none.any()
    assert (len(junk), int(junk.sum())) == (720, 504)
    same = slice(0, 12 + 216)
    np.testing.assert_array_equal(more.source.train.inputs[same], few.source.train.inputs[same])
    assert set(more.source.train.labels[more.split.unlabeled[junk]]) == {-1}
    assert set(more.source.test.labels) == set(range(6))


def test_a_way_of_the_study_is_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.syspath_prepend(BENCHMARKS)
    import first_minutes

    for name in first_minutes.SUCCESSORS:
        given = first_minutes.Cell("photos-15", name, "1 min", 2).given()
        assert given == {"seed": 2, "steps": 300, "method": name}
    given = first_minutes.Cell("wine", "method=fixmatch,threshold=0.8", "features", 1).given()
    assert given == {"seed": 1, "method": "fixmatch", "threshold": 0.8}


def test_rules_for_what_to_label_name_pictures_without_a_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    from label_next import RULES, Round, _marked

    rng = np.random.default_rng(0)
    features = rng.standard_normal((80, 6))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    labels = np.full(80, -1)
    labels[:30] = rng.integers(0, 3, 30)
    for probabilities in (None, rng.dirichlet(np.ones(3), 80)):
        for labeled in (0, 9, 30):
            known = np.where(np.arange(80) < labeled, labels, -1)
            for name, rule in RULES.items():
                rows = rule(Round(features, known, 3, probabilities, 10, seed=1))
                assert len(set(rows.tolist())) == 10, name
                assert rows.min() >= labeled, name
    assert _marked([10, 11, 12], [20, 21, 22.5]) == "**11.0 ± 1.0**"  # 10 less on average, ± 0.3
    assert _marked([30, 31, 32], [20, 21, 22.5]) == "*31.0 ± 1.0*"
    assert _marked([10, 31, 22], [20, 21, 22.5]) == "21.0 ± 10.5"


def test_predictions_are_timed_from_the_first_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    from decode import write_photos

    import predict

    (tmp_path / "photos").mkdir()
    write_photos(tmp_path / "photos", 300, 40, 40)
    for way in ("one", "shards"):
        row = predict.measure(way, tmp_path, "wrn-10-1", 100)
        assert row["before"] > 0
        assert row["images_per_second"] > 0
        assert row["per_core"] > 0
    assert len((tmp_path / "one.csv").read_text().splitlines()) == 300
    assert len(list((tmp_path / "shards").glob("*.csv"))) == 3


def test_large_tables_are_checked_and_written_each_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import large_tables

    sizes = argparse.Namespace(rows=300, columns=3, classes=20, predictions=150)
    large_tables.write_table(tmp_path / "rows.csv", sizes.rows, sizes.columns)
    for way in large_tables.WAYS:
        assert large_tables.measure(way, tmp_path, sizes)["seconds"] > 0
    after = (tmp_path / "after.csv").read_text().splitlines()
    assert (tmp_path / "before.csv").read_text().splitlines() == after[1:]
    assert len(json.loads((tmp_path / "after.json").read_text())) == 150

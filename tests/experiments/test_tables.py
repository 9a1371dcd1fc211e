"""The tables against the paper: numbers copied by hand from its LaTeX, and the runs each cell asks for."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixmatch.data.split import labeled_split
from mixmatch.errors import MixMatchError
from mixmatch.experiments.reproduce import Planned, plan
from mixmatch.experiments.tables import TABLES, Row, Target
from mixmatch.privacy.answers import authors
from mixmatch.settings import resolve

# (table, row, data, method, labels): value, deviation. At least the corners of each table.
PAPER: dict[tuple[str, str, str, str, Any], tuple[float, float | None]] = {
    ("cifar10", "Pi-Model", "cifar10", "pi-model", 250): (53.02, 2.05),
    ("cifar10", "Pi-Model", "cifar10", "pi-model", 4000): (17.41, 0.37),
    ("cifar10", "Pseudo-Label", "cifar10", "pseudo-label", 500): (40.55, 1.70),
    ("cifar10", "MixUp", "cifar10", "mixup", 2000): (18.14, 1.06),
    ("cifar10", "VAT", "cifar10", "vat", 1000): (18.68, 0.40),
    ("cifar10", "Mean Teacher", "cifar10", "mean-teacher", 250): (47.32, 4.71),
    ("cifar10", "Mean Teacher", "cifar10", "mean-teacher", 500): (42.01, 5.86),
    ("cifar10", "MixMatch", "cifar10", "mixmatch", 250): (11.08, 0.87),
    ("cifar10", "MixMatch", "cifar10", "mixmatch", 500): (9.65, 0.94),
    ("cifar10", "MixMatch", "cifar10", "mixmatch", 1000): (7.75, 0.32),
    ("cifar10", "MixMatch", "cifar10", "mixmatch", 2000): (7.03, 0.15),
    ("cifar10", "MixMatch", "cifar10", "mixmatch", 4000): (6.24, 0.06),
    ("cifar10", "Supervised, all labels", "cifar10", "supervised-mixup", "all"): (4.13, None),
    ("svhn", "Pi-Model", "svhn", "pi-model", 250): (17.65, 0.27),
    ("svhn", "Pi-Model", "svhn", "pi-model", 4000): (5.57, 0.14),
    ("svhn", "Pseudo-Label", "svhn", "pseudo-label", 1000): (10.19, 0.41),
    ("svhn", "MixUp", "svhn", "mixup", 500): (29.62, 1.54),
    ("svhn", "VAT", "svhn", "vat", 2000): (4.85, 0.23),
    ("svhn", "Mean Teacher", "svhn", "mean-teacher", 250): (6.45, 2.43),
    ("svhn", "MixMatch", "svhn", "mixmatch", 250): (3.78, 0.26),
    ("svhn", "MixMatch", "svhn", "mixmatch", 4000): (2.89, 0.06),
    ("svhn", "Supervised, all labels", "svhn", "supervised-mixup", "all"): (2.59, None),
    ("svhn-extra", "Pi-Model", "svhn-extra", "pi-model", 250): (13.71, 0.32),
    ("svhn-extra", "Pi-Model", "svhn-extra", "pi-model", 4000): (5.70, 0.13),
    ("svhn-extra", "Pseudo-Label", "svhn-extra", "pseudo-label", 4000): (5.56, 0.27),
    ("svhn-extra", "MixUp", "svhn-extra", "mixup", 1000): (14.05, 0.79),
    ("svhn-extra", "VAT", "svhn-extra", "vat", 500): (7.37, 0.82),
    ("svhn-extra", "Mean Teacher", "svhn-extra", "mean-teacher", 2000): (2.60, 0.04),
    ("svhn-extra", "MixMatch", "svhn-extra", "mixmatch", 250): (2.22, 0.08),
    ("svhn-extra", "MixMatch", "svhn-extra", "mixmatch", 4000): (2.07, 0.05),
    ("svhn-extra", "Supervised, all labels", "svhn-extra", "supervised-mixup", "all"): (1.71, None),
    ("svhn-comparison", "SVHN", "svhn", "mixmatch", 250): (3.78, 0.26),
    ("svhn-comparison", "SVHN", "svhn", "supervised-mixup", "all"): (2.59, None),
    ("svhn-comparison", "SVHN+Extra", "svhn-extra", "mixmatch", 250): (2.22, 0.08),
    ("svhn-comparison", "SVHN+Extra", "svhn-extra", "mixmatch", 1000): (2.18, 0.06),
    ("svhn-comparison", "SVHN+Extra", "svhn-extra", "supervised-mixup", "all"): (1.71, None),
    ("cifar-large", "MixMatch", "cifar10", "mixmatch", 4000): (4.95, 0.08),
    ("cifar-large", "MixMatch", "cifar100", "mixmatch", 10000): (25.88, 0.30),
    ("stl10", "MixMatch", "stl10", "mixmatch", 1000): (10.18, 1.46),
    ("stl10", "MixMatch", "stl10", "mixmatch", 5000): (5.59, None),
    ("ablation", "ICT", "cifar10", "ict", 250): (38.60, None),
    ("ablation", "ICT", "cifar10", "ict", 4000): (6.81, None),
    ("successors", "UDA", "cifar10", "uda", 40): (10.62, 3.75),
    ("successors", "ReMixMatch", "svhn", "remixmatch", 250): (3.10, 0.50),
    ("successors", "FixMatch", "cifar10", "fixmatch", 40): (13.81, 3.37),
    ("successors", "FixMatch", "cifar10", "fixmatch", 250): (5.07, 0.65),
    ("successors", "FixMatch", "cifar100", "fixmatch", 10000): (22.60, 0.12),
    ("successors", "FixMatch", "svhn", "fixmatch", 1000): (2.28, 0.11),
    ("successors", "FlexMatch", "svhn-extra", "flexmatch", 1000): (6.72, 0.30),
    ("successors", "FlexMatch", "stl10", "flexmatch", 1000): (5.77, 0.18),
    ("successors", "FreeMatch", "cifar100", "freematch", 400): (49.24, 2.16),
    ("successors", "SoftMatch", "cifar10", "softmatch", 4000): (4.27, 0.12),
    ("successors", "AdaMatch", "svhn-extra", "adamatch", 40): (2.32, 0.17),
    ("cnn13", "Mean Teacher", "cifar10", "mean-teacher", 250): (46.34, None),
    ("cnn13", "Mean Teacher", "cifar10", "mean-teacher", 4000): (88.57, None),
    ("cnn13", "Mean Teacher", "svhn", "mean-teacher", 250): (94.00, None),
    ("cnn13", "Mean Teacher", "svhn", "mean-teacher", 1000): (96.00, None),
    ("cnn13", "MixMatch", "cifar10", "mixmatch", 250): (85.69, None),
    ("cnn13", "MixMatch", "cifar10", "mixmatch", 4000): (93.16, None),
    ("cnn13", "MixMatch", "svhn", "mixmatch", 250): (96.41, None),
    ("cnn13", "MixMatch", "svhn", "mixmatch", 1000): (96.61, None),
}

# What an ablation changes, and its two errors.
ABLATION: list[tuple[dict[str, Any], float, float]] = [
    ({}, 11.80, 6.00),
    ({"K": 1}, 17.09, 8.06),
    ({"K": 3}, 11.55, 6.23),
    ({"K": 4}, 12.45, 5.88),
    ({"T": 1.0}, 27.83, 10.59),
    ({"guess_weights": "ema"}, 11.86, 6.47),
    ({"mix": "none"}, 39.11, 10.97),
    ({"mix": "labeled"}, 32.16, 9.22),
    ({"mix": "unlabeled"}, 12.35, 6.83),
    ({"mix": "separate"}, 12.26, 6.50),
]

FIVE = (250, 500, 1000, 2000, 4000)
MAIN = ["pi-model", "pseudo-label", "mixup", "vat", "mean-teacher", "mixmatch"]


def row_of(table: str, name: str, data: str, method: str) -> Row:
    (row,) = [r for r in TABLES[table].rows if (r.name, r.data, r.method) == (name, data, method)]
    return row


@pytest.mark.parametrize(("where", "number"), PAPER.items(), ids=[" ".join(map(str, where)) for where in PAPER])
def test_targets_are_the_papers(where: Any, number: tuple[float, float | None]) -> None:
    table, name, data, method, labels = where
    target = row_of(table, name, data, method).targets[labels]
    assert target is not None
    assert (target.value, target.deviation) == number


def test_the_successors_say_which_checkpoint_their_numbers_are_of() -> None:
    rows = TABLES["successors"].rows
    assert {row.source for row in rows if row.method in ("fixmatch", "remixmatch")} == {"its paper", "its authors"}
    for row in rows:
        best = row.source in ("TorchSSL", "USB")
        assert {target.best for target in row.targets.values() if target} == {best}
        assert len(row.seeds) == (3 if best else 5)
        assert bool(row.differs) == (best or (row.method, row.data) == ("fixmatch", "svhn"))
    of_usb = [row.settings for row in rows if row.source == "USB" and row.data == "cifar100"]
    assert of_usb == [{"network": "wrn-28-2"}] * 3
    columns = [f"{data} {labels}" for data, labels in TABLES["successors"].columns()]
    assert {column for line in TABLES["successors"].quoted.values() for column in line} <= set(columns)


def test_the_ablations() -> None:
    *rows, ict = TABLES["ablation"].rows
    assert len(rows) == len(ABLATION)
    for row, (changed, few, many) in zip(rows, ABLATION, strict=True):
        assert row.targets == {250: Target(few), 4000: Target(many)}
        for planned in plan(TABLES["ablation"]):
            if planned.row is row:
                usual = {"K": 2, "T": 0.5, "alpha": 0.75, "guess_weights": "live", "mix": "all", "passes": "official"}
                assert planned.settings.method_settings == {**usual, "lambda_u": 100.0, "ramp": 2048, **changed}
                assert planned.settings.weight_decay == 0.02
    assert ict.method == "ict"


@pytest.mark.parametrize("name", ["cifar10", "svhn", "svhn-extra"])
def test_the_main_tables(name: str) -> None:
    """6 methods x 5 counts x 5 seeds, and the fully supervised run."""
    table, runs = TABLES[name], plan(TABLES[name])
    assert [row.method for row in table.rows] == [*MAIN, "supervised-mixup"]
    assert all(tuple(row.targets) == FIVE for row in table.rows[:-1])
    assert table.columns() == [(None, n) for n in (*FIVE, "all")]
    assert len(runs) == 6 * 5 * 5 + 1
    assert Counter(run.settings.method for run in runs) == {**dict.fromkeys(MAIN, 25), "supervised-mixup": 1}
    assert Counter(run.settings.seed for run in runs) == {1: 31, 2: 30, 3: 30, 4: 30, 5: 30}
    assert all(run.settings.network == "wrn-28-2" for run in runs)


@pytest.mark.parametrize(
    ("name", "lines", "columns", "quoted", "runs"),
    [
        ("cifar10", 7, 6, 0, 151),
        ("svhn", 7, 6, 0, 151),
        ("svhn-extra", 7, 6, 0, 151),
        ("svhn-comparison", 2, 6, 0, 52),
        ("cifar-large", 1, 2, 2, 10),
        ("stl10", 1, 2, 4, 6),
        ("ablation", 11, 2, 0, 22),
        ("cnn13", 2, 4, 0, 40),
        ("successors", 7, 13, 8, 211),
        ("pate", 4, 1, 1, 20),
    ],
)
def test_sizes(name: str, lines: int, columns: int, quoted: int, runs: int) -> None:
    table = TABLES[name]
    assert (len(table.rows_by_name()), len(table.columns()), len(table.quoted)) == (lines, columns, quoted)
    assert len(plan(table)) == runs
    assert len({run.name for run in plan(table)}) == runs


def test_there_are_no_other_tables() -> None:
    names = ["ablation", "cifar-large", "cifar10", "cnn13", "pate", "stl10", "successors"]
    assert sorted(TABLES) == [*names, "svhn", "svhn-comparison", "svhn-extra"]
    assert [name for name, table in TABLES.items() if table.metric == "accuracy"] == ["cnn13", "pate"]


def test_columns_of_several_data_sets() -> None:
    assert TABLES["cnn13"].columns() == [("cifar10", 250), ("cifar10", 4000), ("svhn", 250), ("svhn", 1000)]
    assert TABLES["cifar-large"].columns() == [("cifar10", 4000), ("cifar100", 10000)]


def test_quoted_numbers() -> None:
    large = TABLES["cifar-large"].quoted
    assert large["Mean Teacher (Tarvainen and Valpola, 2017)"] == {"cifar10 4000": "6.28"}
    assert large["SWA (Athiwaratkun et al., 2018)"] == {"cifar10 4000": "5.00", "cifar100 10000": "28.80"}
    assert sorted(TABLES["stl10"].quoted.values(), key=str) == [
        {"1000": "22.20"}, {"1000": "25.70"}, {"5000": "11.20"}, {"5000": "12.74"},
    ]  # fmt: skip


def seeds(runs: list[Planned], labels: int) -> list[int]:
    return [run.settings.seed for run in runs if run.settings.labels == labels]


def test_seeds() -> None:
    assert {run.settings.seed for run in plan(TABLES["ablation"])} == {3}
    stl10 = plan(TABLES["stl10"])
    assert (seeds(stl10, 1000), seeds(stl10, 5000)) == ([1, 2, 3, 4, 5], [1])
    large = plan(TABLES["cifar-large"])
    assert (seeds(large, 4000), seeds(large, 10000)) == ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5])


def test_settings_of_the_other_tables() -> None:
    for run in plan(TABLES["cifar-large"]):
        s = run.settings
        assert (s.network, s.weight_decay, s.method_settings["alpha"]) == ("wrn-28-large", 0.04, 0.75)
        assert s.method_settings["lambda_u"] == {"cifar10": 75.0, "cifar100": 150.0}[s.data]
        assert s.method_settings["ramp"] == 16384
    for run in plan(TABLES["stl10"]):
        s = run.settings
        assert (s.network, s.weight_decay, s.pad, s.flip) == ("wrn-28-2-stl10", 0.02, 12, True)
        assert s.method_settings["lambda_u"] == 50.0
    for run in plan(TABLES["ablation"], methods=["ict"]):
        s = run.settings
        of_method = s.method_settings
        assert (of_method["consistency_weight"], of_method["alpha"], s.weight_decay) == (1000, 0.75, 0.02)
    for run in plan(TABLES["cnn13"]):
        assert run.settings.network == "cnn13"


@pytest.mark.parametrize("name", TABLES)
def test_every_run_resolves_to_the_papers_budget(name: str) -> None:
    steps, valid = (2**17, 0) if name == "pate" else (2**20, 1)
    for run in plan(TABLES[name]):
        assert (run.settings.steps, run.settings.batch_size, run.settings.eval_every) == (steps, 64, 1024)
        rate = 0.03 if name == "successors" and run.settings.method != "remixmatch" else 0.002
        assert (run.settings.valid, run.settings.ema_decay, run.settings.learning_rate) == (valid, 0.999, rate)
        run.settings.build_method()


@pytest.mark.parametrize(
    ("split", "counts", "epsilon"),
    [
        ("answers", [28, 25, 11, 13, 10, 13, 14, 7, 8, 9], "0.97"),
        ("official", [27, 23, 15, 14, 13, 10, 11, 7, 8, 10], "6.90"),
    ],
)
def test_the_pate_students(split: str, counts: list[int], epsilon: str) -> None:
    """Section 4.3, with the settings of the authors' run script: 138 answers to the first 250 queries, or the 138 that
    the authors' split chose. The VAT student has VAT's settings for SVHN."""
    runs = plan(TABLES["pate"], split=split)
    assert [run.settings.seed for run in runs] == [*range(1, 11)] * 2
    assert [run.settings.method for run in runs] == ["mixmatch"] * 10 + ["vat"] * 10
    assert {run.row.targets[138] for run in runs} == {Target(95.21, 0.17), None}
    assert all(epsilon in run.row.name for run in runs)
    assert [run.settings.steps for run in plan(TABLES["pate"], seeds=[1], steps=7, split=split)] == [7, 7]
    for run in runs:
        s, of_method = run.settings, run.settings.method_settings
        assert (s.data, s.labels, s.network, s.pad, s.flip) == ("svhn-test", 138, "wrn-28-2", 4, False)
        if s.method == "mixmatch":
            assert (s.weight_decay, of_method["lambda_u"], of_method["alpha"]) == (0.04, 75, 0.75)
            assert of_method["ramp"] == 16384
        else:
            assert (s.weight_decay, of_method) == (0.02, resolve("svhn", {"method": "vat"}).method_settings)
        student = s.data_options["student"]
        assert [student["answers"].count(c) for c in range(10)] == counts
        assert (student["pool"], s.valid) == (10_000, len(student.get("valid", [])))
    assert plan(TABLES["pate"]) == plan(TABLES["pate"], split="answers")


def test_the_labels_of_the_pate_students() -> None:
    """129 of the authors' 138 labels are among the first 250 queries, 9 come later, the last is of image 343."""
    answers, official = (row.part["student"] for row in TABLES["pate"].rows[:2])
    first = authors()
    rows, labels = first.rows[first.answered].tolist(), first.labels[first.answered].tolist()
    assert answers == {"pool": 10_000, "rows": rows, "answers": labels}
    assert (len(official["rows"]), max(official["rows"]), official["valid"]) == (138, 343, [242])
    assert len(set(official["rows"]) & set(answers["rows"])) == 129
    assert set(official) == {"pool", "rows", "answers", "valid"}


@pytest.mark.skipif("MIXMATCH_PATE" not in os.environ, reason="MIXMATCH_PATE names no folder of the authors' answers")
def test_the_authors_split_is_made_from_their_file() -> None:
    path = Path(os.environ["MIXMATCH_PATE"]) / "svhn-noisy-labels-t200-s200-n40.json"
    answers = np.array(json.loads(path.read_text())["label"][:10_000])
    labeled = labeled_split(answers, 138, seed=0)
    official = TABLES["pate"].rows[1].part["student"]
    assert (official["rows"], official["answers"]) == (labeled.tolist(), answers[labeled].tolist())


@pytest.mark.parametrize(("table", "message"), [("pate", "one of answers, official"), ("stl10", "for the table pate")])
def test_a_split_that_is_not_in_the_table(table: str, message: str) -> None:
    with pytest.raises(MixMatchError, match=f"split=ours: it is {message}"):
        plan(TABLES[table], split="ours")


def test_a_target_as_text() -> None:
    assert str(Target(6.0)) == "6.00"
    assert str(Target(11.08, 0.9)) == "11.08 ± 0.90"

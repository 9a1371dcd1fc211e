"""Verdicts and tables on records made by hand, with numbers worked out by hand; the page of results is up to date."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from mixmatch.experiments import records
from mixmatch.experiments.headline import results_page
from mixmatch.experiments.paper_tables import Cell, find_cells, table_markdown, target_of
from mixmatch.experiments.tables import TABLES, Row, Table, Target
from mixmatch.settings import resolve

FULL = 1_048_576
ROOT = Path(__file__).parents[2]


def record(data: str, method: str, labels: Any, seed: int, error: float, steps: int = FULL, **given: Any) -> Any:
    settings = resolve(data, {"method": method, "labels": labels, "seed": seed, "steps": steps, **given})
    return {
        "data": data,
        "method": method,
        "labels": labels,
        "seed": seed,
        "steps": steps,
        "error": error,
        "median_of": 20,
        "last_error": error + 0.5,
        "seconds": 10.0 * seed,
        "settings": settings.to_dict(),
        "split": {"hash": "0", "labeled": 250, "unlabeled": 1, "valid": 1, "test": 1},
        "curve": [{"step": steps, "error": error}],
        "hardware": {"device": "cpu", "name": "a machine"},
        "versions": {},
    }


def row_of(table: str, name: str) -> Row:
    return next(row for row in TABLES[table].rows if row.name == name)


def cell_text(text: str, line: str, column: str) -> str:
    """What a Markdown table says in a line and column."""
    rows = [[part.strip() for part in row.strip("|").split("|")] for row in text.splitlines() if row.startswith("|")]
    (found,) = [row for row in rows if row[0] == line]
    return found[rows[0].index(column)]


# ---------------------------------------------------------------- the verdict


@pytest.mark.parametrize(
    ("values", "target", "verdict"),
    [
        # MixMatch at 250 labels, 11.08 ± 0.87: the band is 9.34 to 12.82, whatever our own deviation is.
        ((12.79, 12.81, 12.83), Target(11.08, 0.87), "within"),
        ((12.81, 12.83, 12.85), Target(11.08, 0.87), "above"),
        ((9.33, 9.35, 9.37), Target(11.08, 0.87), "within"),
        ((9.30, 9.33, 9.36), Target(11.08, 0.87), "below"),
        ((10.0, 11.0, 30.0), Target(11.08, 0.87), "above"),  # a mean of 17 does not hide in its own deviation
        ((2.0, 17.0, 32.0), Target(11.08, 0.87), "above"),
        ((11.0, 11.0, 11.0, 11.0, 11.0), Target(11.08, 0.87), "within"),
        # Fewer than three seeds get none, however near or far.
        ((11.08,), Target(11.08, 0.87), ""),
        ((11.08, 11.08), Target(11.08, 0.87), ""),
        ((50.0, 50.0), Target(11.08, 0.87), ""),
        # Nor does anything where the paper has no deviation or no number.
        ((5.59, 5.59, 5.59), Target(5.59), ""),
        ((5.59, 5.59, 5.59), None, ""),
    ],
)
def test_the_verdict(values: tuple[float, ...], target: Target | None, verdict: str) -> None:
    assert Cell(values, target).verdict == verdict
    assert Cell(values, target, note="8,192 steps").verdict == ""


def test_our_median_is_never_compared_with_a_best_checkpoint() -> None:
    published = Target(4.97, 0.06, best=True)
    assert str(published) == "4.97 ± 0.06, best checkpoint"
    cell = Cell((4.97, 4.97, 4.97), published, paper_seeds=3, best=(4.9, 4.8, 4.7))
    assert cell.verdict == ""
    assert str(cell) == "**4.97** ± 0.00, best 4.80 ± 0.10 (3 of 3 seeds)"
    assert str(Cell((5.0,), published, paper_seeds=3, best=(4.9,))) == "**5.00**, best 4.90 (1 of 3 seeds)"


def test_the_best_evaluation_is_that_of_the_curve() -> None:
    row = Row("X", "cifar10", "mixmatch", {250: Target(5.0, 1.0, best=True), 500: Target(5.0, 1.0)}, source="TorchSSL")
    run = record("cifar10", "mixmatch", 250, 1, 6.0)
    run["curve"] = [{"step": 1024, "error": 9.0}, {"step": 2048, "error": 5.5}, {"step": FULL, "error": 6.5}]
    (cell,) = find_cells(row, 250, "error", [run])
    assert (cell.values, cell.best) == ((6.0,), (5.5,))
    (cell,) = find_cells(row, 500, "error", [record("cifar10", "mixmatch", 500, 1, 6.0)])
    assert cell.best == ()
    text = table_markdown(Table("t", (row,)), [run])
    assert "**6.00**, best 5.50 (1 of 5 seeds)<br>TorchSSL 5.00 ± 1.00, best checkpoint" in text


def test_mean_and_deviation() -> None:
    cell = Cell((10.0, 11.0, 15.0), None)
    assert cell.mean == pytest.approx(12.0)
    assert cell.deviation == pytest.approx(math.sqrt(7))  # (4 + 1 + 9) / 2
    assert Cell((10.0,), None).deviation is None


def test_the_band_holds_what_the_legend_says() -> None:
    """Means of n and of 5 runs of one normal distribution differ by more than 2 deviations this seldom."""
    for runs, percent in ((3, 99.4), (5, 99.8)):
        z = 2 / math.sqrt(1 / runs + 1 / 5)
        assert round(100 * math.erf(z / math.sqrt(2)), 1) == percent


# ---------------------------------------------------------------- which records make up a cell


def test_a_cell_has_the_records_of_its_experiment() -> None:
    mine = [record("cifar10", "mixmatch", 250, seed, error) for seed, error in ((2, 11.4), (1, 10.6))]
    others = [
        record("cifar10", "mixmatch", 500, 1, 1.0),
        record("svhn", "mixmatch", 250, 1, 1.0),
        record("cifar10", "vat", 250, 1, 1.0),
        record("cifar10", "mixmatch", 250, 1, 1.0, lambda_u=100.0),
        record("cifar10", "mixmatch", 250, 1, 1.0, weight_decay=0.04),
        record("cifar10", "mixmatch", 250, 1, 1.0, network="cnn13"),
        record("cifar10", "mixmatch", 250, 1, 1.0, batch_size=32),
        record("cifar10", "mixmatch", 250, 1, 1.0, passes="fused"),
        record("cifar10", "mixmatch", 250, 1, 1.0, eval_every=2048),
        record("cifar10", "mixmatch", 250, 1, 1.0, eval_every=FULL),  # evaluated once
        record("cifar10", "mixmatch", 250, 1, 1.0, steps=FULL // 2),
        record("cifar10", "mixmatch", 250, 1, 1.0, steps=2 * FULL),
        record("cifar10", "mixmatch", 250, 7, 1.0),  # not a seed of the paper's
    ]
    row = row_of("cifar10", "MixMatch")
    assert find_cells(row, 250, "error", [*others, *mine]) == [Cell((10.6, 11.4), Target(11.08, 0.87))]
    assert find_cells(row, 250, "error", others) == []
    _, other = results_page([*others, *mine]).split("## Other runs")
    assert other.count("| 1.00 |") == len(others) - 4  # all the others, none averaged; 4 are in cells of their own


def test_bf16_is_a_cell_of_its_own() -> None:
    runs = [record("cifar10", "mixmatch", 250, seed, 10.0 + seed) for seed in (1, 2, 3)]
    runs += [record("cifar10", "mixmatch", 250, seed, 20.0, precision="bf16") for seed in (1, 4)]
    single, half = find_cells(row_of("cifar10", "MixMatch"), 250, "error", runs)
    assert (single.precision, single.values) == ("fp32", (11.0, 12.0, 13.0))
    assert (half.precision, half.values) == ("bf16", (20.0, 20.0))
    text = cell_text(table_markdown(TABLES["cifar10"], runs), "MixMatch", "250")
    assert text == (
        "**12.00** ± 1.00 (3 of 5 seeds, within)<br>**20.00, 20.00** (2 of 5 seeds, bf16)<br>paper 11.08 ± 0.87"
    )


def test_of_two_records_of_a_run_the_first_counts() -> None:
    runs = [record("cifar10", "mixmatch", 250, 1, error) for error in (12.0, 9.0)]
    assert [cell.values for cell in find_cells(row_of("cifar10", "MixMatch"), 250, "error", runs)] == [(12.0,)]
    _, other = results_page(runs).split("## Other runs")
    assert "| mixmatch | 1 | 9.00 |" in other


def test_another_number_of_steps_is_shown_apart() -> None:
    short = [record("cifar10", "mixmatch", 250, seed, 11.0 + seed, steps=8192) for seed in (1, 2, 3)]
    full = [record("cifar10", "mixmatch", 250, 5, 11.0)]
    row = row_of("cifar10", "MixMatch")
    assert find_cells(row, 250, "error", short) == []
    assert [cell.values for cell in find_cells(row, 250, "error", short + full)] == [(11.0,)]
    (cell,) = find_cells(row, 250, "error", short + full, steps=8192)
    assert str(cell) == "**13.00** ± 1.00 (3 of 5 seeds, 8,192 steps)"
    assert find_cells(row, 250, "error", short + full, steps=FULL) == find_cells(row, 250, "error", full)


def test_an_ablations_records_are_not_the_main_tables() -> None:
    ablated = [record("cifar10", "mixmatch", 250, 3, 11.8, lambda_u=100.0, ramp=2048)]
    (cell,) = find_cells(row_of("ablation", "MixMatch"), 250, "error", ablated)
    assert cell == Cell((11.8,), Target(11.80), paper_seeds=1)
    assert find_cells(row_of("cifar10", "MixMatch"), 250, "error", ablated) == []
    assert find_cells(row_of("ablation", "with K = 3"), 250, "error", ablated) == []


def test_students_are_told_apart_by_their_labels() -> None:
    answers, official, *_ = TABLES["pate"].rows
    runs = []
    for row, errors in ((answers, (5.0, 5.1, 5.2)), (official, (4.8, 4.9, 5.0))):
        for seed, error in enumerate(errors, 1):
            made = record("svhn-test", "mixmatch", 138, seed, error, steps=2**17, **row.settings)
            made["settings"]["data_options"] = row.part
            runs.append(made)
    text = table_markdown(TABLES["pate"], runs)
    # 95.21 ± 0.17: the band is 94.87 to 95.55. Ours with other labels than the authors' gets no verdict.
    assert cell_text(text, answers.name, "138") == (
        "**94.90** ± 0.10 (3 of 10 seeds, other labels)<br>paper 95.21 ± 0.17"
    )
    assert cell_text(text, official.name, "138") == "**95.10** ± 0.10 (3 of 10 seeds, within)<br>paper 95.21 ± 0.17"
    assert cell_text(text, "VAT, epsilon 0.97", "138") == "not run<br>no target"


# ---------------------------------------------------------------- tables in Markdown


def test_cells_as_text() -> None:
    runs = [
        *(record("cifar10", "mixmatch", 250, seed, error) for seed, error in ((1, 10.6), (2, 11.4), (3, 11.0))),
        *(record("cifar10", "mixmatch", 500, seed, 12.0) for seed in (1, 2, 3)),  # 9.65 ± 0.94: up to 11.53
        *(record("cifar10", "mixmatch", 1000, seed, 7.0) for seed in (1, 2, 3, 4, 5)),  # 7.75 ± 0.32: from 7.11
        record("cifar10", "mixmatch", 2000, 1, 7.0),
        record("cifar10", "mixmatch", 2000, 4, 7.5),
        record("cifar10", "vat", 250, 1, 60.0, steps=8192),
        record("cifar10", "supervised-mixup", "all", 1, 4.2),
    ]
    text = table_markdown(TABLES["cifar10"], runs)
    assert cell_text(text, "MixMatch", "250") == "**11.00** ± 0.40 (3 of 5 seeds, within)<br>paper 11.08 ± 0.87"
    assert cell_text(text, "MixMatch", "500") == "**12.00** ± 0.00 (3 of 5 seeds, above)<br>paper 9.65 ± 0.94"
    assert cell_text(text, "MixMatch", "1,000") == "**7.00** ± 0.00 (5 of 5 seeds, below)<br>paper 7.75 ± 0.32"
    assert cell_text(text, "MixMatch", "2,000") == "**7.00, 7.50** (2 of 5 seeds)<br>paper 7.03 ± 0.15"
    assert cell_text(text, "MixMatch", "4,000") == "not run<br>paper 6.24 ± 0.06"
    assert cell_text(text, "VAT", "250") == "not run<br>paper 36.03 ± 2.82"
    assert cell_text(text, "Supervised, all labels", "all") == "**4.20** (1 of 1 seed)<br>paper 4.13"
    assert cell_text(text, "Supervised, all labels", "250") == ""
    assert cell_text(text, "MixMatch", "all") == ""
    lines = text.splitlines()
    assert len(lines) == 2 + 7
    assert {line.count("|") for line in lines} == {8}
    short = table_markdown(TABLES["cifar10"], runs, steps=8192)
    assert cell_text(short, "VAT", "250") == "**60.00** (1 of 5 seeds, 8,192 steps)<br>paper 36.03 ± 2.82"
    assert cell_text(short, "MixMatch", "250") == "not run<br>paper 11.08 ± 0.87"


def test_accuracy_is_what_is_not_error() -> None:
    runs = [record("svhn", "mixmatch", 250, seed, error, network="cnn13") for seed, error in ((1, 3.0), (2, 5.0))]
    text = table_markdown(TABLES["cnn13"], runs)
    assert cell_text(text, "MixMatch", "SVHN 250") == "**97.00, 95.00** (2 of 5 seeds)<br>paper 96.41"
    assert cell_text(text, "MixMatch", "CIFAR-10 250") == "not run<br>paper 85.69"
    assert cell_text(text, "Mean Teacher", "SVHN 1,000") == "not run<br>paper 96.00"


def test_counts_of_labels_without_a_target() -> None:
    runs = [record("cifar10", "mixmatch", 100, 1, 20.0)]
    text = table_markdown(TABLES["cifar10"], runs, extra_labels=[100, 250])
    assert text.splitlines()[0] == "| | 250 | 500 | 1,000 | 2,000 | 4,000 | all | 100 |"
    assert cell_text(text, "MixMatch", "100") == "**20.00** (1 of 5 seeds)<br>no target"
    assert cell_text(text, "Pi-Model", "100") == "not run<br>no target"
    assert cell_text(text, "Supervised, all labels", "100") == ""


def test_quoted_rows_and_several_data_sets() -> None:
    text = table_markdown(TABLES["cifar-large"], [record("cifar100", "mixmatch", 10000, 1, 25.5)])
    assert cell_text(text, "MixMatch", "CIFAR-100 10,000") == "**25.50** (1 of 5 seeds)<br>paper 25.88 ± 0.30"
    assert cell_text(text, "*Mean Teacher (Tarvainen and Valpola, 2017), quoted*", "CIFAR-10 4,000") == "6.28"
    assert cell_text(text, "*Mean Teacher (Tarvainen and Valpola, 2017), quoted*", "CIFAR-100 10,000") == "–"
    assert cell_text(text, "*SWA (Athiwaratkun et al., 2018), quoted*", "CIFAR-100 10,000") == "28.80"
    stl10 = table_markdown(TABLES["stl10"], [])
    assert cell_text(stl10, "*SWWAE (Zhao et al., 2015), quoted*", "1,000") == "25.70"


def test_one_line_of_several_methods() -> None:
    """The comparison's lines are data sets: MixMatch with few labels, supervised with all."""
    text = table_markdown(TABLES["svhn-comparison"], [record("svhn-extra", "supervised-mixup", "all", 1, 1.7)])
    assert cell_text(text, "SVHN+Extra", "all") == "**1.70** (1 of 1 seed)<br>paper 1.71"
    assert cell_text(text, "SVHN", "all") == "not run<br>paper 2.59"
    assert cell_text(text, "SVHN+Extra", "250") == "not run<br>paper 2.22 ± 0.08"


# ---------------------------------------------------------------- files


def test_records_of_several_machines_are_merged(tmp_path: Path) -> None:
    paths = [
        records.save(record("cifar10", "mixmatch", 250, 1, 10.6), tmp_path),
        records.save(record("cifar10", "mixmatch", 250, 2, 11.4), tmp_path / "elsewhere"),
        records.save(record("cifar10", "mixmatch", 250, 1, 30.0, steps=8192), tmp_path),
        records.save(record("cifar10", "mixmatch", 250, 1, 10.6, lambda_u=100), tmp_path),
    ]
    assert len({path.name for path in paths}) == 4
    assert paths[0].name.startswith("cifar10-mixmatch-250-seed1-steps1048576-")
    warnings: list[str] = []
    found = records.load_all(tmp_path, warnings.append)
    assert len(found) == 4
    assert warnings == []
    assert find_cells(row_of("cifar10", "MixMatch"), 250, "error", found) == [Cell((10.6, 11.4), Target(11.08, 0.87))]


def test_saving_again_replaces(tmp_path: Path) -> None:
    for error in (10.0, 11.0):
        path = records.save(record("digits", "mixmatch", 20, 1, error, steps=10), tmp_path)
    assert list(tmp_path.iterdir()) == [path]
    assert records.load_all(tmp_path, print) == [
        {"format": 1, **record("digits", "mixmatch", 20, 1, 11.0, steps=10)},
    ]


def test_no_folder_is_no_records(tmp_path: Path) -> None:
    assert records.load_all(tmp_path / "none", pytest.fail) == []


GOOD = {"format": 1, **record("cifar10", "mixmatch", 250, 1, 10.6)}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"format": 1, "da', "it cannot be read"),
        ("", "it cannot be read"),
        (b"\xff\xfe\x00", "it cannot be read"),
        ("[1, 2]", "it is not a record of this version"),
        ({**GOOD, "format": 2}, "it is not a record of this version"),
        ({name: value for name, value in GOOD.items() if name != "format"}, "it is not a record of this version"),
        ({name: value for name, value in GOOD.items() if name not in ("error", "curve")}, "it has no error, curve"),
        ({name: value for name, value in GOOD.items() if name != "hardware"}, "it has no hardware"),
        ({**GOOD, "last_error": None}, "it has no last_error"),
        ({**GOOD, "error": "10.6"}, "it has no error"),
        ({**GOOD, "settings": None}, "it has no settings"),
        ({**GOOD, "settings": {**GOOD["settings"], "warm_up": 0.9}}, "unknown setting 'warm_up'"),
        ({**GOOD, "settings": {**GOOD["settings"], "method": "mixmach"}}, "unknown method 'mixmach'"),
        ({**GOOD, "settings": {**GOOD["settings"], "method": ["mixmatch"]}}, "method=['mixmatch'] must be a name"),
        ({**GOOD, "settings": {**GOOD["settings"], "method_settings": 3}}, "method_settings=3 must be"),
        ({**GOOD, "settings": {**GOOD["settings"], "batch_size": 0}}, "batch_size=0 must be"),
        ({**GOOD, "steps": 2 * FULL}, "its steps is 2097152, but its settings say 1048576"),
        ({**GOOD, "seed": 2}, "its seed is 2, but its settings say 1"),
    ],
)
def test_bad_records_are_named_and_the_others_used(tmp_path: Path, content: Any, reason: str) -> None:
    records.save(record("cifar10", "mixmatch", 250, 2, 11.4), tmp_path)
    bad = tmp_path / "bad.json"
    text = json.dumps(content) if isinstance(content, dict) else content
    bad.write_bytes(text if isinstance(text, bytes) else text.encode())
    warnings: list[str] = []
    found = records.load_all(tmp_path, warnings.append)
    assert [r["error"] for r in found] == [11.4]
    (warning,) = warnings
    assert warning.startswith(f"{bad} is left out: {reason}")
    assert "**11.40**" in results_page(found)


def test_settings_added_since_are_at_their_defaults(tmp_path: Path) -> None:
    """A record of before `mix` and `guess_weights` were settings is one of plain MixMatch."""
    old = record("cifar10", "mixmatch", 250, 1, 10.6)
    for name in ("mix", "guess_weights"):
        del old["settings"]["method_settings"][name]
    (tmp_path / "old.json").write_text(json.dumps({"format": 1, **old}))
    found = records.load_all(tmp_path, pytest.fail)
    assert find_cells(row_of("cifar10", "MixMatch"), 250, "error", found) == [Cell((10.6,), Target(11.08, 0.87))]


# ---------------------------------------------------------------- the page


def test_other_runs_on_the_page() -> None:
    runs = [
        record("digits", "mixmatch", 20, 1, 4.0, steps=1000),
        record("digits", "mixmatch", 20, 3, 5.0, steps=1000),
        record("digits", "supervised", 20, 1, 25.0, steps=1000),
        record("digits", "mixmatch", 20, 1, 9.0, steps=1000, lambda_u=75.0),
        record("digits", "mixmatch", 20, 1, 50.0, steps=10),
        record("cifar10", "mixmatch", 250, 1, 11.0),
    ]
    page = results_page(runs)
    _, short = page.split("## Other runs")
    title = "### scikit-learn digits, 20 labels, 1,000 steps"
    lines = short.split(title)[1].split("###")[0].strip().splitlines()
    # Best first. Means: 4.5 ± sqrt(0.5), last errors half a point more, seconds 10 and 30.
    assert lines[2:] == [
        "| mixmatch | 1 3 | 4.50 ± 0.71 | 20 | 5.00 | 20 | a machine (fp32) |",
        "| mixmatch (lambda_u=75.0) | 1 | 9.00 | 20 | 9.50 | 10 | a machine (fp32) |",
        "| supervised | 1 | 25.00 | 20 | 25.50 | 10 | a machine (fp32) |",
    ]
    assert short.count("###") == 2
    assert "20 labels, 10 steps" in short
    assert "CIFAR-10" not in short  # a full run is in its table alone


def test_a_run_of_a_method_from_outside_is_on_the_page_with_its_settings() -> None:
    run = record("digits", "supervised", 20, 1, 25.0, steps=10)
    run["method"] = run["settings"]["method"] = "custom:Mine"
    run["settings"] |= {"batch_size": 8, "method_settings": {"weight": 2.0, "T": 0.5}}
    assert "| custom:Mine (batch_size=8, weight=2.0, T=0.5) | 1 | 25.00 |" in results_page([run])


def test_every_table_is_on_the_page() -> None:
    page = results_page([])
    for name, table in TABLES.items():
        assert f"### {table.title}\n\n`mixmatch reproduce {name}`." in page
    assert not any("**" in line for line in page.splitlines() if line.startswith("|"))


def test_a_table_of_ones_own() -> None:
    table = Table("mine", (Row("A", "digits", "supervised", {20: Target(20.0, 1.0)}),))
    runs = [record("digits", "supervised", 20, 1, 20.5, steps=FULL)]
    assert table_markdown(table, runs).splitlines() == [
        "| | 20 |", "|---|---|", "| A | **20.50** (1 of 5 seeds)<br>paper 20.00 ± 1.00 |",
    ]  # fmt: skip


def test_the_page_of_results_is_up_to_date() -> None:
    """Run `mixmatch results --output docs/results.md` if this fails."""
    page = results_page(records.load_all(ROOT / "results", pytest.fail), Path("images/error-over-minutes.png"))
    assert (ROOT / "docs/results.md").read_text() == page


# ---------------------------------------------------------------- what the paper has for a record


def test_the_papers_number_for_a_record() -> None:
    assert target_of(record("cifar10", "mixmatch", 250, 1, 10.0)) == Target(11.08, 0.87)
    assert target_of(record("cifar10", "mixmatch", 250, 9, 10.0, steps=8192, passes="fused")) == Target(11.08, 0.87)
    assert target_of(record("cifar10", "vat", 4000, 1, 10.0)) == Target(11.05, 0.31)
    ablated = row_of("ablation", "with K = 3").settings
    assert target_of(record("cifar10", "mixmatch", 250, 1, 10.0, **ablated)) == Target(11.55)
    assert target_of(record("cifar10", "mixmatch", 250, 1, 10.0, T=0.7)) is None
    assert target_of(record("cifar10", "mixmatch", 300, 1, 10.0)) is None
    assert target_of(record("digits", "mixmatch", 20, 1, 10.0)) is None

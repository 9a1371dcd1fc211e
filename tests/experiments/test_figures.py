"""The course of a run, drawn: what is in the picture is what is in the record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mixmatch.errors import MixMatchError
from mixmatch.experiments import figures
from mixmatch.experiments.tables import TABLES, Row, Table, Target
from mixmatch.settings import resolve


def record(data: str = "cifar10", labels: Any = 250, errors: tuple[float, ...] = (80.0, 40.0, 12.0)) -> Any:
    settings = resolve(data, {"method": "mixmatch", "labels": labels})
    steps = (2**i * 16 for i in range(len(errors)))
    return {
        "data": data, "method": "mixmatch", "labels": labels, "seed": 3, "error": 12.5, "median_of": 2,
        "settings": settings.to_dict(), "split": {"labeled": 250}, "steps": 64, "seconds": 3840.0,
        "curve": [{"step": step, "error": error} for step, error in zip((0, *steps), (90.0, *errors), strict=True)],
    }  # fmt: skip


def texts(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_the_curve_of_a_run_beside_the_paper(tmp_path: Path, axes: Any) -> None:
    figures.curve(record(), tmp_path / "new/curve.png")
    assert (tmp_path / "new/curve.png").read_bytes().startswith(b"\x89PNG")
    drawn = axes()
    paper, ours = drawn.lines
    assert ours.get_xydata().tolist() == [[16, 80], [32, 40], [64, 12]]  # the untrained start has no place
    assert set(paper.get_ydata()) == {11.08}
    assert texts(drawn) == ["paper 11.08 ± 0.87 %", "12.50 %\n(median of the\nlast 2)"]
    assert drawn.get_title(loc="left") == "mixmatch on CIFAR-10, 250 labels, seed 3"
    assert drawn.get_yscale() == "log"
    (minutes,) = drawn.child_axes
    drawn.figure.canvas.draw()
    assert minutes.get_xlim() == pytest.approx((16, 64))  # a step took a minute


@pytest.mark.parametrize("errors", [(80.0, 50.0, 42.0), (40.0, 26.0), (4.0, 2.6), (60.0, 0.05)])
def test_all_of_it_is_in_view(tmp_path: Path, axes: Any, errors: tuple[float, ...]) -> None:
    figures.curve(record(errors=errors), tmp_path / "curve.png")
    drawn = axes()
    low, high = drawn.get_ylim()
    assert low <= min(errors) < max(errors) <= high
    assert low <= 11.08 - 0.87 < 11.08 + 0.87 <= high
    labels = zip(drawn.get_yticks(), drawn.get_yticklabels(), strict=True)
    assert sum(low <= tick <= high and label.get_text() != "" for tick, label in labels) >= 2


def test_the_same_record_gives_the_same_file(tmp_path: Path) -> None:
    for suffix in ("svg", "pdf"):
        for name in ("a", "b"):
            figures.curve(record(), tmp_path / f"{name}.{suffix}")
        assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


@pytest.mark.parametrize(
    "changed",
    [
        {"curve": [{"step": 1}, {"step": 2}]},
        {"curve": [{"error": 1.0}]},
        {"curve": ["?"]},
        {"curve": [{"step": "x", "error": 1.0}]},
        {"curve": [{"step": 1, "error": float("inf")}, {"step": 2, "error": 1.0}]},
        {"split": {}},
        {"split": {"labeled": "many"}},
    ],
)
def test_a_record_that_makes_no_sense(tmp_path: Path, changed: dict[str, Any]) -> None:
    with pytest.raises(MixMatchError, match="the record's curve makes no sense"):
        figures.curve({**record(), **changed}, tmp_path / "curve.png")


def test_a_picture_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "file").touch()
    for path in (tmp_path / "folder.png", tmp_path / "file/curve.png"):
        with pytest.raises(MixMatchError, match="cannot write"):
            figures.curve(record(), path)


def test_a_curve_the_paper_has_nothing_beside_and_that_reaches_zero(tmp_path: Path, axes: Any) -> None:
    figures.curve(record("digits", 20, (50.0, 0.0)), tmp_path / "curve.svg")
    drawn = axes()
    assert len(drawn.lines) == 1
    assert len(texts(drawn)) == 1
    assert drawn.get_yscale() == "linear"


def test_one_evaluation_is_no_curve(tmp_path: Path) -> None:
    with pytest.raises(MixMatchError, match="needs two evaluations"):
        figures.curve(record(errors=(50.0,)), tmp_path / "curve.png")
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- error by number of labels


def test_every_row_of_a_table_is_drawn(tmp_path: Path, axes: Any) -> None:
    rows = tuple(
        Row(
            f"row {i}", "digits", "supervised", {20: Target(30.0 + i), 40: Target(20.0 + i)}, {"learning_rate": 0.1 + i}
        )
        for i in range(16)
    )
    figures.error_by_labels(Table("many", rows), "many", [], tmp_path / "many.png")
    drawn = axes()
    dotted = [line for line in drawn.lines if len(line.get_xdata())]
    assert [line.get_ydata().tolist() for line in dotted] == [[30.0 + i, 20.0 + i] for i in range(16)]
    assert len({line.get_color() for line in dotted}) == 16
    names = [text.get_text() for text in drawn.get_legend().get_texts()]
    assert names == [f"row {i} (not run)" for i in range(16)]


def test_ours_beside_the_paper_by_number_of_labels(tmp_path: Path, axes: Any) -> None:
    def run(labels: int, seed: int, error: float, steps: int = 2**20, precision: str = "fp32") -> Any:
        given = {"labels": labels, "seed": seed, "steps": steps, "precision": precision}
        return {**given, "data": "cifar10", "error": error, "settings": resolve("cifar10", given).to_dict()}

    records = [run(250, 1, 10.0), run(250, 2, 12.0), run(500, 1, 9.0), run(250, 1, 14.0, precision="bf16")]
    records += [run(250, 1, 40.0, steps=64), run(250, 7, 90.0)]
    for steps, points, legend in (
        (None, [("o", [[250, 11], [500, 9]]), ("s", [[250, 14]])], "MixMatch (bf16)"),
        (64, [("o", [[250, 40]])], "MixMatch (64 steps)"),
    ):
        figures.error_by_labels(TABLES["cifar10"], "CIFAR-10", records, tmp_path / "cifar10.png", steps)
        drawn = axes()
        ours = [line for line in drawn.lines if line.get_marker() in ("o", "s")]
        assert [(line.get_marker(), line.get_xydata().tolist()) for line in ours] == points
        names = [text.get_text() for text in drawn.get_legend().get_texts()]
        assert legend in names
        assert "VAT (not run)" in names

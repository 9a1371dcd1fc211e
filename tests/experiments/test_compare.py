"""The plot of a comparison: every method is in it, however many there are."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from mixmatch.experiments.compare import plot, summarize
from mixmatch.experiments.records import minutes
from mixmatch.plotting import line_style


def record(method: str, seed: int, errors: tuple[float, ...]) -> Any:
    return {
        "data": "digits", "method": method, "seed": seed, "error": errors[-1], "median_of": 20,
        "last_error": errors[-1], "split": {"labeled": 20}, "seconds": 2.0, "steps": 10 * len(errors),
        "curve": [{"step": 10 * number, "error": error} for number, error in enumerate(errors, 1)],
    }  # fmt: skip


@pytest.mark.parametrize("count", [1, 9, 10, 16, 40])
def test_every_method_has_a_line_and_a_name(tmp_path: Path, axes: Any, count: int) -> None:
    names = [f"method-{number}" for number in range(count)]
    records = [record(name, seed, (50.0, 10.0 + seed)) for name in names for seed in (1, 3)]
    plot(records, tmp_path / "error.png")
    by_time, drawn = axes(0), axes(1)
    for panel, places in ((by_time, [1 / 60, 2 / 60]), (drawn, [10, 20])):
        means = [line for line in panel.lines if line.get_linewidth() > 2]
        assert [line.get_ydata().tolist() for line in means] == [[50.0, 12.0]] * count
        assert [line.get_xdata().tolist() for line in means] == [pytest.approx(places)] * count
        assert len({(line.get_color(), line.get_linestyle()) for line in means}) == count
    assert len(drawn.lines) == 3 * count
    assert len(by_time.lines) == 4 * count  # and a dot where each method ends
    assert sorted(text.get_text() for text in drawn.texts) == sorted(f"{name} 12.0 %" for name in names)
    heights = [text.get_window_extent().y0 for text in drawn.texts]
    assert all(high - low > 10 for low, high in itertools.pairwise(heights))  # none over another


def test_names_stay_within_the_picture_where_all_methods_end_at_its_top(tmp_path: Path, axes: Any) -> None:
    plot([record(f"method-{n}", 1, (88.0, 90.0)) for n in range(16)], tmp_path / "error.png")
    heights = [text.xy[1] for text in axes(1).texts]
    assert heights[0] > 0
    assert heights[-1] <= axes(1).get_ylim()[1]
    assert all(low < high for low, high in itertools.pairwise(heights))


def test_the_picture_says_what_its_numbers_are(tmp_path: Path, axes: Any) -> None:
    """Of published data the paper's, a median: a line may end elsewhere."""
    plot([{**record("a", 1, (50.0, 10.0)), "error": 30.0}], tmp_path / "error.png")
    assert [text.get_text() for text in axes(1).texts] == ["a 30.0 %"]
    assert axes(1).get_title("left") == "beside each line: median of the last 20 evaluations"
    for other in ({"data": str(tmp_path)}, {"median_of": 2}):
        plot([{**record("a", 1, (50.0, 10.0)), "error": 30.0, **other}], tmp_path / "error.png")
        assert [text.get_text() for text in axes(1).texts] == ["a 10.0 %"]
        assert axes(1).get_title("left") == ""


def test_line_styles_differ() -> None:
    assert len({tuple(line_style(number).items()) for number in range(72)}) == 72
    assert {line_style(number)["linestyle"] for number in range(9)} == {"-"}
    assert {line_style(number)["linestyle"] for number in range(9, 18)} == {"--"}


def test_every_step_takes_the_same_time() -> None:
    assert minutes({**record("a", 1, (4.0, 3.0)), "seconds": 240.0}) == [2.0, 4.0]


def test_methods_of_different_speed_end_at_different_minutes(tmp_path: Path, axes: Any) -> None:
    plot([record("a", 1, (4.0, 3.0)), {**record("b", 1, (6.0, 5.0)), "seconds": 60.0}], tmp_path / "error.png")
    dots = [line.get_xydata()[0].tolist() for line in axes(0).lines if line.get_marker() == "o"]
    assert dots == [pytest.approx([2 / 60, 3.0]), pytest.approx([1.0, 5.0])]


def test_a_row_per_method() -> None:
    rows = summarize([record("a", 1, (4.0,)), record("b", 1, (9.0,)), record("a", 2, (8.0,))])
    assert [(row["method"], row["seeds"], row["error"], row["seconds"]) for row in rows] == [
        ("a", [1, 2], 6.0, 2.0), ("b", [1], 9.0, 2.0),
    ]  # fmt: skip
    assert rows[0]["deviation"] == pytest.approx(8**0.5)
    assert rows[1]["deviation"] is None


def test_on_user_data_it_is_the_error_of_the_finished_model(tmp_path: Path) -> None:
    mine = {**record("a", 1, (80.0, 4.0)), "data": str(tmp_path), "error": 42.0, "last_error": 4.0}
    assert [row["error"] for row in summarize([mine])] == [4.0]


def test_of_runs_with_few_evaluations_it_is_the_last_error() -> None:
    """The median would be of the first ones too, where the network knows nothing yet; and all rows have one number."""
    short = {**record("a", 1, (80.0, 60.0, 4.0)), "error": 60.0, "median_of": 3}
    long = {**record("b", 1, (7.0,)), "error": 9.0}
    assert [row["error"] for row in summarize([short, long])] == [4.0, 7.0]
    assert [row["error"] for row in summarize([long])] == [9.0]

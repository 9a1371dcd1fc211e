"""Charts put things where they belong."""

from __future__ import annotations

import re

from mixmatch.measure import Bin
from mixmatch.report import svg


def test_ticks_are_round_and_reach_the_top() -> None:
    assert svg.ticks(90) == [0, 25, 50, 75, 100]
    assert svg.ticks(100) == [0, 25, 50, 75, 100]
    assert svg.ticks(0.7) == [0, 0.2, 0.4, 0.6, 0.8]
    assert svg.ticks(1000, 2) == [0, 500, 1000]
    assert svg.ticks(0) == svg.ticks(float("nan")) == [0, 0.25, 0.5, 0.75, 1]


def test_labels_keep_apart_and_inside() -> None:
    assert svg.spread([50, 40], 20, 0, 100) == [60, 40]
    assert svg.spread([99, 98], 20, 0, 100) == [100, 80]
    assert svg.spread([10, 90], 20, 0, 100) == [10, 90]


def test_lines_rise_with_their_values_and_leave_out_what_is_not_finite() -> None:
    points = [(0, 0), (50, float("nan")), (50, 25), (100, 50)]
    drawn = svg.line_chart([svg.Series("a <b>", points, "model", "50 %")], "chart", top=100)
    path = re.search(r'points="([^"]*)"', drawn)
    assert path is not None
    (x0, y0), (x1, y1), (x2, y2) = (tuple(map(float, point.split(","))) for point in path[1].split())
    assert x0 < x1 < x2
    assert y0 > y1 > y2
    assert abs((x0 + x2) / 2 - x1) < 0.11
    assert abs((y0 + y2) / 2 - y1) < 0.11
    assert "a &lt;b&gt;" in drawn
    assert svg.line_chart([svg.Series("a", [(1, float("inf"))], "model")], "chart") == ""


def test_reliability_tells_too_sure_from_not_sure_enough() -> None:
    bins = [Bin(0.4, 0.5, 1, 0.45, 1.0), Bin(0.9, 1.0, 1200, 0.95, 0.5)]
    drawn = svg.reliability(bins, "chart")
    assert drawn.count('class="under"') == drawn.count('class="over"') == 1
    assert "confidence 90 to 100 %: 1,200 images, 50.0 % right at 95.0 % mean confidence" in drawn
    assert drawn.count('class="quiet"') == 2

"""The opening of the page of results, on records made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mixmatch import plotting
from mixmatch.errors import MixMatchError
from mixmatch.experiments.headline import draw, headline, results_page, to_draw
from mixmatch.settings import resolve

FULL = 1_048_576


def record(method: str, seed: int, errors: list[float], steps: int = FULL, data: str = "cifar10", **given: Any) -> Any:
    settings = resolve(
        data, {"method": method, "labels": 250, "seed": seed, "steps": steps, "precision": "bf16", **given}
    )
    last = len(errors)
    return {
        "data": data, "method": method, "labels": 250, "seed": seed, "steps": steps, "error": errors[-1] + 1,
        "median_of": 20, "last_error": errors[-1], "seconds": 600.0, "settings": settings.to_dict(),
        "split": {"hash": "0", "labeled": 250}, "hardware": {"device": "cuda", "name": "a GPU"}, "versions": {},
        "curve": [{"step": steps * (n + 1) // last, "error": error} for n, error in enumerate(errors)],
        "engine": {"compiled": True},
    }  # fmt: skip


RUNS = [
    record("mixmatch", 1, [40.0, 9.0]),
    record("mixmatch", 2, [41.0, 11.0]),
    record("mixmatch", 3, [40.0, 20.0], steps=65_536),  # shorter, so not shown beside the others
    record("mixmatch", 4, [40.0, 1.0], T=0.9),  # another experiment
    record("fixmatch", 1, [50.0, 18.0], steps=16_384),
]


def test_the_longest_runs_of_each_cell_are_shown() -> None:
    lines = headline(RUNS).splitlines()
    assert lines[2:] == [
        "| MixMatch, CIFAR-10 | 250 | 1,048,576 | **11.00 ± 1.41** | 2 of 5 | 11.08 ± 0.87 |",  # medians 10 and 12
        "| FixMatch, CIFAR-10 | 250 | 16,384 (1/64) | 18.00 | 1 of 5 | 5.07 ± 0.65 |",  # its end
    ]


def test_longer_runs_with_fused_passes_are_shown_and_named() -> None:
    fused = record("fixmatch", 1, [50.0, 9.0], steps=131_072, passes="fused")
    (line,) = (line for line in headline([*RUNS, fused]).splitlines() if "FixMatch" in line)
    assert line == "| FixMatch, CIFAR-10 | 250 | 131,072 (1/8), fused | 9.00 | 1 of 5 | 5.07 ± 0.65 |"
    whole = record("fixmatch", 1, [50.0, 5.0], passes="fused")
    (line,) = (line for line in headline([whole]).splitlines() if "FixMatch" in line)
    assert "| 1,048,576, fused | 5.00 |" in line  # not the paper's run


def test_the_papers_runs_are_displaced_by_no_others() -> None:
    paper = headline(RUNS[:2])
    assert headline([*RUNS[:2], record("mixmatch", 1, [40.0, 5.0], steps=2 * FULL)]) == paper
    fused = [record("mixmatch", seed, [40.0, 5.0], passes="fused") for seed in (1, 2, 3)]
    assert headline([*RUNS[:2], *fused]) == paper
    assert "| 300,000 | 8.00 |" in headline([record("mixmatch", 1, [40.0, 8.0], steps=300_000)])  # no simple part


def test_the_page_opens_with_them() -> None:
    page = results_page(RUNS, Path("images/x.png"))
    assert page.index("## In short") < page.index("](images/x.png)") < page.index("## The paper's tables")
    assert "![" not in results_page(RUNS)


def test_the_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {name: [run["seed"] for run in each.runs] for name, each in to_draw(RUNS).items()} == {
        "MixMatch": [1, 2], "FixMatch": [1],
    }  # fmt: skip
    draw(RUNS, tmp_path / "images" / "x.png")
    fused = record("fixmatch", 1, [50.0, 9.0], steps=131_072, passes="fused")
    drawn: list[tuple[float, str, str]] = []
    monkeypatch.setattr(plotting, "name_line_ends", lambda axes, ends, **look: drawn.extend(ends))
    draw([RUNS[0], fused], tmp_path / "y.png")
    assert "FixMatch 9.00 %,\n131,072 steps, fused" in [text for _, text, _ in drawn]
    colors = {color for _, color in Image.open(tmp_path / "images" / "x.png").convert("RGB").getcolors(1_000_000) or []}
    assert (0x00, 0x79, 0x8C) in colors  # the second method's line


def test_runs_that_were_not_compiled_are_not_drawn(tmp_path: Path) -> None:
    eager = {**RUNS[0], "engine": None}
    assert not to_draw([eager])
    with pytest.raises(MixMatchError, match="no record of a compiled run"):
        draw([eager], tmp_path / "x.png")

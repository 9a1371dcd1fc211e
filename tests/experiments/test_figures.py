"""The course of a run, drawn: what is in the picture is what is in the record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

from mixmatch.errors import MixMatchError
from mixmatch.experiments import figures
from mixmatch.settings import resolve


def record(data: str = "cifar10", labels: Any = 250, errors: tuple[float, ...] = (80.0, 40.0, 12.0)) -> Any:
    settings = resolve(data, {"method": "mixmatch", "labels": labels})
    return {
        "data": data, "method": "mixmatch", "labels": labels, "seed": 3, "error": 12.5, "median_of": 2,
        "settings": settings.to_dict(), "split": {"labeled": 250},
        "curve": [{"step": 0, "error": 90.0}, *({"step": 2**i * 16, "error": e} for i, e in enumerate(errors))],
    }  # fmt: skip


@pytest.fixture
def axes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The axes of what was drawn last."""
    monkeypatch.setattr(plt, "close", lambda figure: None)
    yield lambda: plt.gcf().axes[0]
    monkeypatch.undo()
    plt.close("all")


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

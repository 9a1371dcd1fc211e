"""A look at a plot before it is closed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import matplotlib.pyplot as plt
import pytest


@pytest.fixture
def axes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The axes of what was drawn last: the first ones, or those of a number."""
    monkeypatch.setattr(plt, "close", lambda figure: None)
    yield lambda number=0: plt.gcf().axes[number]
    monkeypatch.undo()
    plt.close("all")

"""A look at a plot before it is closed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import matplotlib.pyplot as plt
import pytest


@pytest.fixture
def axes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The axes of what was drawn last."""
    monkeypatch.setattr(plt, "close", lambda figure: None)
    yield lambda: plt.gcf().axes[0]
    monkeypatch.undo()
    plt.close("all")

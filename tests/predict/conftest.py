"""A model of digits that is trained for a moment."""

from __future__ import annotations

from pathlib import Path

import pytest

import mixmatch
from mixmatch.training.progress import Quiet


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "digits"
    settings = {"steps": 20, "learning_rate": 0.01, "ema_decay": 0.9, "labels": 100, "method": "supervised"}
    mixmatch.train("digits", out=out, device="cpu", reporter=Quiet(), **settings)
    return out

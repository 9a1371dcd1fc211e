"""Any torch.nn.Module works with every method: without batch norm, with dropout, with frozen and odd layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import mixmatch
from mixmatch.data.source import Rows, Source
from mixmatch.methods import METHODS
from mixmatch.training.progress import Quiet


class UserData(nn.Module):
    """Strided convolutions, group norm, batch norm over features, dropout, a frozen layer, a head of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Conv2d(3, 4, 1).requires_grad_(False)
        self.body = nn.Sequential(nn.Conv2d(4, 8, 3, stride=2), nn.GroupNorm(2, 8), nn.GELU(), nn.Flatten())
        self.norm = nn.BatchNorm1d(8 * 9)
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(8 * 9, 3))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.body(self.frozen(x))))
        return logits


@pytest.mark.parametrize("method", METHODS)
def test_it_trains(method: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = Rows(rng.integers(0, 256, (60, 8, 8, 3), np.uint8), np.arange(60, dtype=np.int64) % 3)
    source = Source("mine", ("a", "b", "c"), images, images)
    torch.manual_seed(0)
    network = UserData()
    own = {"lambda_r": 0.0} if method == "remixmatch" else {}  # rotations need a network that offers its features
    before = {name: value.clone() for name, value in network.state_dict().items()}
    record = mixmatch.train(
        source, method=method, network=network, labels=9, steps=3, batch_size=6, pad=1, out=tmp_path / "run",
        reporter=Quiet(), device="cpu", **own,
    )  # fmt: skip
    after = mixmatch.load(tmp_path / "run", network=UserData(), device="cpu").network.state_dict()
    assert record["settings"]["network"] == "custom:UserData"
    assert 0 <= record["error"] <= 100
    for name, value in after.items():
        changed = not torch.equal(value, before[name])
        assert changed != name.startswith("frozen"), name

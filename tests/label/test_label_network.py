"""Features of pictures by a network, and the choice among features."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from mixmatch.errors import MixMatchError
from mixmatch.label.choice import Choice
from mixmatch.label.network import FILTERS, Network
from mixmatch.networks.frozen import Basic


def test_basic_features_are_those_of_the_filters_found_in_the_folder(tmp_path: Path) -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
    reads: list[int] = []

    def read(n: int) -> np.ndarray | None:
        reads.append(n)
        return None if n == 3 else pictures[n]

    network = Network.build("basic", None, read, 30, tmp_path)
    assert (network.side, sorted(reads)) == (32, list(range(30)))
    alone = Basic(3)
    alone.load_state_dict(network.frozen.state_dict())
    assert alone.get_buffer("kernels").abs().sum() > 0
    expected = alone(torch.from_numpy(pictures.astype(np.float32) * np.float32(2 / 255) - 1).permute(0, 3, 1, 2))
    np.testing.assert_allclose(network(pictures), expected.numpy(), atol=1e-4)

    reads.clear()  # a few pictures more: the same filters, so that what is kept still compares
    assert Network.build("basic", None, read, 35, tmp_path).key == network.key
    assert reads == []
    (tmp_path / FILTERS).write_bytes((tmp_path / FILTERS).read_bytes()[:200])
    assert Network.build("basic", None, read, 40, tmp_path).key != network.key  # found anew, in all 40
    Network.build("basic", None, lambda n: None, 4, tmp_path / "other")  # no picture can be read


def test_what_cannot_be_compared_by_is_refused_in_a_line(tmp_path: Path) -> None:
    for good in (Choice(), Choice("pixels"), Choice("basic")):
        good.check()
    weights = tmp_path / "weights.safetensors"
    with pytest.raises(MixMatchError, match="unknown features 'pixel': did you mean 'pixels'"):
        Choice("pixel").check()
    with pytest.raises(MixMatchError, match="unknown features 'timm:'"):
        Choice("timm:").check()
    with pytest.raises(MixMatchError, match="weights= is for features=timm:NAME"):
        Choice("basic", weights).check()
    missing = "there is no file" if find_spec("timm") else "needs timm, which is not installed"
    with pytest.raises(MixMatchError, match=missing):
        Choice("timm:resnet10t", weights).check()

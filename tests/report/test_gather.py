"""The features that a report tells images apart by."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from mixmatch import networks
from mixmatch.classifier import Classifier
from mixmatch.report.gather import penultimate


class Hidden(nn.Module):
    """The same network, which no longer offers its features."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(x)
        return logits


def test_features_are_asked_for_or_found() -> None:
    torch.manual_seed(0)
    network = networks.build("mlp", 3, (7,)).eval()
    inputs = np.random.default_rng(0).normal(size=(150, 7)).astype(np.float32)
    rows = np.array([3, 149, 7, *range(20, 90)])
    asked, found, none = (
        penultimate(Classifier(module, "mlp", ("a", "b", "c"), (7,)), inputs, rows)
        for module in (network, Hidden(network), nn.Conv1d(7, 3, 1))
    )
    with torch.no_grad():
        exact = network.double().features(torch.from_numpy(inputs[rows]).double()).numpy()
    np.testing.assert_allclose(asked, exact / np.linalg.norm(exact, axis=1, keepdims=True), atol=1e-6)
    assert np.array_equal(asked, found)
    assert none is None

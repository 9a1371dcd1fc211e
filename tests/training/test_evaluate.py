"""What a model is judged by, and in which pieces."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from mixmatch.data.source import UNKNOWN
from mixmatch.training.evaluate import HeldOut, piece_rows, predict_logits

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("shape", "rows"),
    [((32, 32, 3), 1024), ((96, 96, 3), 113), ((224, 224, 3), 20), ((30,), 1024), ((0,), 1024), ((8192, 8192, 3), 1)],
)
def test_pieces_for_a_gpu_hold_no_more_than_1024_small_images(shape: tuple[int, ...], rows: int) -> None:
    assert piece_rows(shape, GPU) == rows
    assert piece_rows(shape, CPU) == 64


@pytest.mark.parametrize("on_device", [False, True])
def test_pieces_are_all_rows_in_order(on_device: bool) -> None:
    features = np.arange(150, dtype=np.float32).reshape(150, 1)
    sizes = []

    def forward(x: Tensor) -> Tensor:
        sizes.append(len(x))
        return x.add_(1)

    inputs = torch.from_numpy(features.copy()) if on_device else features.copy()
    logits = torch.cat(list(predict_logits(forward, inputs, CPU)))
    assert torch.equal(logits[:, 0], torch.arange(1.0, 151.0))
    assert sizes == [64, 64, 22]
    assert np.array_equal(np.asarray(inputs), features)  # though the network works in place


def test_only_rows_of_known_class_are_judged() -> None:
    inputs, labels = np.arange(6, dtype=np.float32).reshape(6, 1), np.array([0, UNKNOWN, 2, 1, UNKNOWN, 0])
    held_out = HeldOut.of(inputs, labels, np.array([4, 3, 1, 0]), CPU)
    assert held_out is not None
    assert np.asarray(held_out.inputs)[:, 0].tolist() == [3, 0]
    assert held_out.labels.tolist() == [1, 0]
    assert HeldOut.of(inputs, labels, np.array([1, 4]), CPU) is None
    assert HeldOut.of(inputs, labels, np.array([], np.int64), CPU) is None


def test_whole_inputs_are_not_copied() -> None:
    inputs, labels = np.arange(4, dtype=np.float32).reshape(4, 1), np.array([0, 1, 2, 0])
    held_out = HeldOut.of(inputs, labels, np.arange(4), CPU)
    assert held_out is not None
    assert held_out.inputs is inputs

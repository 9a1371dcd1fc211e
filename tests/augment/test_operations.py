"""Every operation at every level against Pillow, byte by byte."""

from __future__ import annotations

import math

import numpy as np
import pillow_reference as pillow
import pytest
import torch

from mixmatch.augment import operations
from mixmatch.augment.operations import NUMBER, OPERATIONS
from mixmatch.data.published import files

SHAPES = [(32, 32, 3), (32, 32, 1), (21, 34, 3), (35, 18, 1), (96, 96, 3), (8, 8, 1), (5, 2, 3), (1, 1, 1)]

FACTORS = [m * 1.8 / 10 + 0.1 for m in range(1, 10)] + [m * 0.9 / 10 + 0.05 for m in range(1, 10)]
LEVELS: dict[str, list[float]] = {
    "cutout": [side + place for side in (1, 2, 5, 8, 16) for place in (0, 0.3, 0.5, 0.999)],
    "rescale": [
        way + margin for way in range(6) for margin in (0, 0.01, 0.03, 0.05, 0.0625, 0.11, 0.1875, 0.2, 0.2499)
    ],
    "identity": [1],
    "rotate": [*range(-45, 46), -29.9937, 0.25, 17.123],
    "posterize": list(range(1, 9)),
    "solarize": [*range(0, 257, 7), 1, 255, *(256 - int(m * 256 / 10) for m in range(1, 10))],
}
for of in ("autocontrast", "equalize", "invert", "blur", "smooth"):
    LEVELS[of] = [1, 0, 0.01, 0.3, 0.5, 0.99]
for of in ("color", "contrast", "brightness", "sharpness"):
    LEVELS[of] = [*FACTORS, 0, 1, 2, *np.linspace(0.05, 2, 40).tolist()]
for of in ("shear_x", "shear_y"):
    LEVELS[of] = [sign * m * 0.3 / 10 for m in range(10) for sign in (1, -1)] + np.linspace(-0.3, 0.3, 20).tolist()
for of in ("translate_x", "translate_y"):
    LEVELS[of] = [*range(-9, 10), *np.linspace(-9.6, 9.6, 25).tolist(), 0.5, -0.5, 1.5, -1.5]


def operate(images: np.ndarray, name: str, amounts: list[float]) -> np.ndarray:
    """All of `amounts` on all of the images: (images, amounts, H, W, C)."""
    count, height, width, _ = images.shape
    amount = torch.tensor(amounts, dtype=torch.float64).repeat(count)
    numbers = torch.full_like(amount, NUMBER[name], dtype=torch.int64)
    planes = torch.from_numpy(images).repeat_interleave(len(amounts), 0).movedim(3, 1)
    if name in ("blur", "smooth"):
        out = operations.soften(planes, numbers, amount)
    elif name == "rescale":
        out = operations.rescale(planes, numbers, amount % 1, amount.long())
    elif name == "cutout":
        center = torch.stack([amount % 1, 1 - amount % 1], 1).float()
        out = operations.hide(planes, center, amount.long())
    else:
        asked = operations.plan(numbers, amount, height, width)
        out, _ = operations.apply(planes, asked, torch.ones(len(planes), height * width, dtype=torch.bool))
    return out.movedim(1, 3).view(count, len(amounts), *images.shape[1:]).numpy()


def compare(images: np.ndarray, name: str) -> None:
    for image, outcomes in zip(images, operate(images, name, LEVELS[name]), strict=True):
        for amount, out in zip(LEVELS[name], outcomes, strict=True):
            expected = pillow.from_pillow(pillow.operate(pillow.to_pillow(image), name, amount))
            np.testing.assert_array_equal(out, expected, f"{name} {amount}")


def test_levels_cover_every_operation() -> None:
    assert set(LEVELS) == set(OPERATIONS)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_an_operation_gives_pillows_bytes(name: str, shape: tuple[int, int, int]) -> None:
    compare(pillow.images(*shape)[: 2 if shape[0] > 32 else None], name)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_gives_pillows_bytes_on_cifar(name: str) -> None:
    path = files.data_folder() / "cifar-10-batches-bin" / "test_batch.bin"
    if not path.exists():
        pytest.skip("needs CIFAR-10 (MIXMATCH_DATA)")
    rows = np.fromfile(path, np.uint8, 3073 * 8).reshape(8, 3073)[:, 1:]
    compare(np.ascontiguousarray(rows.reshape(8, 3, 32, 32).transpose(0, 2, 3, 1)), name)


def test_stretching_every_range_of_values() -> None:
    # Pillow computes in float64, and a whole number may come out just below itself: all ranges are tried.
    spans = np.array([(low, high) for low in range(0, 256, 5) for high in range(low + 1, 256, 3)], np.uint8)
    compare_all = spans[:, None, :, None]
    for image, out in zip(compare_all, operate(compare_all, "autocontrast", [1]), strict=True):
        expected = pillow.operate(pillow.to_pillow(image), "autocontrast", 1)
        np.testing.assert_array_equal(out[0], pillow.from_pillow(expected))


def test_every_pair_of_values_is_blended_as_pillow_does() -> None:
    first, second = np.meshgrid(np.arange(256, dtype=np.uint8), np.arange(256, dtype=np.uint8))
    for share in [*FACTORS, 0, 1, 0.1, 1 / 3, math.pi / 3, 2]:
        expected = pillow.Image.blend(pillow.Image.fromarray(first), pillow.Image.fromarray(second), share)
        out = operations.blend(
            torch.from_numpy(first).short(), torch.from_numpy(second).short(), torch.tensor(share, dtype=torch.float32)
        )
        np.testing.assert_array_equal(out.numpy(), np.asarray(expected), str(share))


def test_gray_rounds_as_pillow_does_where_it_is_halfway() -> None:
    red, green, blue = np.ogrid[:256, :256, :256]
    halfway = np.argwhere((19595 * red + 38470 * green + 7471 * blue) % 65536 == 32768).astype(np.uint8)
    assert len(halfway) > 100
    expected = np.asarray(pillow.Image.fromarray(halfway[None]).convert("L"))[0]
    np.testing.assert_array_equal(operations.gray(torch.from_numpy(halfway)).numpy(), expected)

"""Wrong labels that were planted are found, and near copies that were made."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from mixmatch import data
from mixmatch.label import check, features

CLASSES = tuple("0123456789")


def pictures_of_digits() -> tuple[np.ndarray, np.ndarray]:
    source = data.load("digits")
    images = [Image.fromarray(image[..., 0]).convert("RGB").resize((32, 32)) for image in source.train.inputs]
    return np.stack([np.asarray(image) for image in images]), source.train.labels.copy()


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    pictures, labels = pictures_of_digits()
    described = features.describe(pictures)
    return features.Projection.fit(described, len(described))(described), labels


def test_planted_errors_are_found(digits: tuple[np.ndarray, np.ndarray]) -> None:
    vectors, truth = digits
    labels, rng = truth.copy(), np.random.default_rng(0)
    unlabeled, planted = np.split(rng.permutation(len(labels)), [897])[0], rng.permutation(len(labels))
    labels[unlabeled] = -1
    planted = np.setdiff1d(planted, unlabeled)[:20]
    labels[planted] = (labels[planted] + rng.integers(1, 10, 20)) % 10
    found = check.suspects(vectors, labels, classes=CLASSES)
    right = [each for each in found if each.row in planted]
    assert len(right) >= 13  # of 20: 65 %
    assert len(right) >= 0.8 * len(found)
    assert sum(each.likely == truth[each.row] for each in right) >= 0.9 * len(right)
    assert all(each.label == labels[each.row] != each.likely for each in found)
    first = found[0]
    likely = CLASSES[first.likely]
    said = rf"\d+ of the 10 labeled pictures most like it are {likely}, and a model that .* gives {likely} \d+%"
    assert re.fullmatch(said, first.reason)
    without = check.suspects(vectors, labels, classes=CLASSES, exclude=np.isin(np.arange(len(labels)), planted[:10]))
    assert not {each.row for each in without} & set(planted[:10].tolist())


def test_no_label_is_doubted_where_too_little_is_known(digits: tuple[np.ndarray, np.ndarray]) -> None:
    vectors, truth = digits
    few = np.full(len(truth), -1)
    few[:20] = truth[:20]  # no class has five
    assert check.suspects(vectors, few, classes=CLASSES) == []
    assert check.suspects(vectors, np.full(len(truth), -1), classes=CLASSES) == []
    assert check.suspects(vectors, np.zeros(len(truth), np.int64), classes=CLASSES) == []
    chance = np.random.default_rng(0).integers(0, 10, 300)
    assert check.suspects(vectors[:300], chance, classes=CLASSES) == []  # labels by chance: nothing to learn


def test_neighbors_vote_without_the_row_itself_by_hand() -> None:
    angles = np.array([0.0, 0.1, 0.2, 3.0, 3.1])
    unit = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    labels = np.array([0, 0, 1, 1, 1])
    probabilities, votes = check.neighbors(unit, labels, 2)
    assert votes.tolist() == [[1, 3], [1, 3], [2, 2], [2, 2], [2, 2]]  # all others are near: there are only four
    near, next_to = np.exp((np.cos(0.1) - 1) / 0.1), np.exp((np.cos(0.2) - 1) / 0.1)
    assert probabilities[0] == pytest.approx([near / (near + next_to), next_to / (near + next_to)], abs=2e-3)


def distorted(picture: np.ndarray) -> dict[str, np.ndarray]:
    """The picture as other files may hold it, read as 32x32."""
    image, file = Image.fromarray(picture), io.BytesIO()
    image.resize((128, 96), Image.Resampling.BICUBIC).save(file, "JPEG", quality=70)
    ways = {
        "re-encoded and larger": Image.open(file),
        "smaller": image.resize((20, 20), Image.Resampling.BICUBIC),
        "brighter": ImageEnhance.Brightness(image).enhance(1.15),
    }
    return {name: np.asarray(way.resize((32, 32), Image.Resampling.BICUBIC)) for name, way in ways.items()}


def scenes(number: int) -> np.ndarray:
    """Pictures with some structure: smooth random colors."""
    rng = np.random.default_rng(0)
    coarse = [Image.fromarray(rng.integers(0, 220, (5, 5, 3), dtype=np.uint8)) for _ in range(number)]
    return np.stack([np.asarray(image.resize((32, 32), Image.Resampling.BICUBIC)) for image in coarse])


def test_near_copies_and_their_conflicts() -> None:
    pictures = scenes(200)
    copies = distorted(pictures[7])
    gray = np.asarray(Image.fromarray(pictures[8]).convert("L").convert("RGB"))  # without its colors: another picture
    everything = np.concatenate([pictures, np.stack([*copies.values(), pictures[9], gray])])
    prints = features.fingerprint(everything)
    groups = check.near_copies(prints)
    assert groups == [(7, 200, 201, 202), (9, 203)]
    assert check.near_copies(prints, np.array([7, 9, 203])) == [(9, 203)]
    assert check.near_copies(prints[:1]) == []
    labels = np.full(len(everything), -1)
    labels[[7, 201, 9, 203]] = 0, 1, 2, 2
    (conflict,) = check.conflicts(groups, labels, ["cat", "dog", "owl"])
    assert conflict == ((7, 201), (0, 1), "2 near copies, labeled cat, dog")


def test_plain_pictures_are_near_copies_only_of_like_color() -> None:
    plain = np.zeros((4, 32, 32, 3), np.uint8)
    plain[0], plain[1], plain[2], plain[3] = 200, 201, (200, 0, 0), (0, 0, 200)
    assert check.near_copies(features.fingerprint(plain)) == [(0, 1)]

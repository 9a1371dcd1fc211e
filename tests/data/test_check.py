"""Findings about data whose faults are known, because the test made them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

from mixmatch.data.source import UNKNOWN
from mixmatch.data.user import check as inspect
from mixmatch.data.user.arrays import read_arrays
from mixmatch.data.user.check import duplicates, findings, separability
from mixmatch.data.user.folder import read_folder
from mixmatch.data.user.rows import Finding, UserData
from mixmatch.data.user.table import read_table

DIGITS = np.rint(load_digits().images * (255 / 16)).astype(np.uint8)[..., None]
TARGET = load_digits().target.astype(np.int64)


def images(labels: Any, pixels: Any, test: int = 0, **more: Any) -> UserData:
    """Rows with these labels, whose files are called 0, 1, 2 ...; the last `test` of them are the test set."""
    labels = np.array(labels, np.int64)
    return UserData(
        name="own",
        classes=tuple("abcdefghij"[: labels.max() + 1]),
        labels=labels,
        files=tuple(map(str, range(len(labels)))),
        part=("train",) * (len(labels) - test) + ("test",) * test,
        inputs=np.asarray(pixels, np.uint8),
        **more,
    )


def flat(values: list[int]) -> np.ndarray:
    return np.array(values, np.uint8)[:, None, None, None] * np.ones((1, 4, 4, 1), np.uint8)


def kinds(found: Any) -> dict[str, Finding]:
    return {finding.kind: finding for finding in found}


def test_counts_and_few_labels() -> None:
    user = images([0, 0, 0, 0, 1, 1, UNKNOWN, UNKNOWN, UNKNOWN, 1], flat(list(range(10))), test=1)
    found = kinds(findings(user))
    assert found["counts"].message == "6 labeled images of 2 classes (a 4, b 2), 3 unlabeled, 1 to test on (b 1, a 0)"
    assert found["counts"].severity == "info"
    assert found["few-labels"].message == "1 class with fewer than 4 labels: b 2"
    assert found["few-labels"].files == ("4", "5")
    assert found["few-labels"].severity == "warning"


def test_classes_that_may_be_one() -> None:
    user = replace(images([0, 1, 2, 3, 4], flat([0, 1, 2, 3, 4])), classes=("Cat", "big dog", "cat", "bigDog", "cats"))
    (found,) = inspect.similar_names(user)
    assert (found.severity, found.kind) == ("warning", "similar-names")
    assert found.message.endswith(": 'Cat' and 'cat', 'big dog' and 'bigDog'")
    assert list(inspect.similar_names(replace(user, classes=("C", "C++", "1", "-1", "cats")))) == []


@pytest.mark.parametrize(("a", "b", "uneven"), [(20, 4, True), (4, 20, True), (19, 4, False), (4, 4, False)])
def test_uneven_classes_are_worth_a_word(a: int, b: int, uneven: bool) -> None:
    labels = [*[0] * a, *[1] * b]
    found = list(inspect.uneven(images([*labels, UNKNOWN], flat([*range(len(labels) + 1)]))))
    assert [finding.kind for finding in found] == ["uneven-classes"] * uneven
    if uneven:
        more, fewer = ("a", "b") if a > b else ("b", "a")
        assert found[0].message == f"classes are uneven: '{more}' has 20 labels, '{fewer}' has 4"
        assert found[0].severity == "info"
        assert "lambda_u=1" in found[0].advice
        assert "balance=abc" in found[0].advice
        (without,) = inspect.uneven(images(labels, flat([*range(len(labels))])))
        assert "label_sampling=balanced" in without.advice
        assert "abc" not in without.advice  # it is about unlabeled images


@pytest.mark.parametrize(
    ("labels", "values", "test", "expected"),
    [
        ([0, 1, -1], [1, 2, 3], 0, {}),
        ([0, 0, 1, -1], [1, 1, 2, 3], 0, {"duplicate-labeled": ("warning", "01")}),
        ([0, 1, 1, -1], [1, 1, 2, 3], 0, {"conflicting-labels": ("warning", "01")}),
        ([0, 1, -1, -1], [1, 2, 3, 3], 0, {"duplicate-unlabeled": ("info", "23")}),
        ([0, 1, -1, -1], [1, 2, 1, 3], 0, {"labeled-and-unlabeled": ("warning", "02")}),
        ([0, 1, -1, 0], [1, 2, 3, 1], 1, {"test-in-training": ("error", "03")}),
        ([0, 1, -1, 0], [1, 2, 3, 3], 1, {"test-in-training": ("error", "23")}),
        (
            [0, 1, -1, 1], [1, 2, 3, 1], 1,
            {"test-in-training": ("error", "03"), "conflicting-labels": ("warning", "03")},
        ),
        ([0, 1, -1, 0, 0], [1, 2, 3, 4, 4], 2, {"duplicate-test": ("warning", "34")}),
    ],
)  # fmt: skip
def test_duplicates(labels: list[int], values: list[int], test: int, expected: dict[str, tuple[str, str]]) -> None:
    found = kinds(duplicates(images(labels, flat(values), test)))
    assert {kind: (finding.severity, "".join(finding.files)) for kind, finding in found.items()} == expected
    assert all(finding.advice for finding in found.values())


def test_duplicates_name_examples() -> None:
    (finding,) = duplicates(images([0, 1, -1], flat([1, 1, 2])))
    assert finding.message == "1 image under different labels (0 (a) = 1 (b))"


def test_shapes_and_modes() -> None:
    sizes = np.array([[300, 100], [301, 100], [100, 301], [40, 40], [9, 9], [10, 10]], np.int32)
    modes = ("RGB", "RGB", "L", "P", "RGB", "RGB")
    pixels = np.arange(6, dtype=np.uint8)[:, None, None, None] * np.ones((1, 40, 40, 3), np.uint8)
    found = kinds(inspect.shapes_and_modes(images([0, 1, 0, 1, 0, 1], pixels, sizes=sizes, modes=modes)))
    assert found["odd-shape"].files == ("1", "2")
    assert "1, 301 x 100" in found["odd-shape"].message
    assert found["small"].files == ("4",)
    assert found["mixed-modes"].files == ("2", "3")
    assert "RGB 4, L 1, P 1" in found["mixed-modes"].message
    assert found["mixed-modes"].severity == "info"


# ---------------------------------------------------------------------------------------------------------- likeness


def test_separability_is_the_probability_of_a_right_guess() -> None:
    """Of two normal populations one deviation apart, the best possible score is Phi(1 / sqrt 2) = 0.760."""
    random = np.random.default_rng(0)
    a, b = random.normal(0, 1, (1000, 1)), random.normal(1, 1, (1000, 1))
    exact = roc_auc_score(np.repeat([0, 1], 1000), np.concatenate([a, b])[:, 0])
    assert separability(a, b) == pytest.approx(exact, abs=0.01)
    assert exact == pytest.approx(0.760, abs=0.02)


def half_labeled(pixels: np.ndarray, seed: int = 0, labels: int = 300) -> UserData:
    chosen = np.random.default_rng(seed).permutation(len(pixels))[:labels]
    known = np.full(len(pixels), UNKNOWN)
    known[chosen] = TARGET[chosen]
    return images(known, pixels)


@pytest.mark.parametrize("labels", [40, 300, 1200])
def test_alike(labels: int) -> None:
    finding = inspect.likeness(half_labeled(DIGITS, labels=labels))
    assert "look alike" in finding.message
    assert finding.severity == "info"


def test_different() -> None:
    user = half_labeled(DIGITS)
    pixels = DIGITS.copy()
    pixels[user.unlabeled] = 255 - pixels[user.unlabeled]
    finding = inspect.likeness(images(user.labels, pixels))
    assert "data differ: " in finding.message
    assert "100 % of the time" in finding.message
    assert finding.severity == "warning"
    assert finding.advice


def test_somewhat_different() -> None:
    """If two in five unlabeled images are negatives, nobody can tell which is which more often than 50 + 20 %."""
    user = half_labeled(DIGITS)
    pixels = DIGITS.copy()
    negatives = np.random.default_rng(1).permutation(user.unlabeled)[: 2 * len(user.unlabeled) // 5]
    pixels[negatives] = 255 - pixels[negatives]
    finding = inspect.likeness(images(user.labels, pixels))
    assert "differ somewhat" in finding.message
    assert 66 <= int(finding.message.split(" % ")[0].split()[-1]) <= 74


def table(path: Path, columns: dict[str, Any], labeled: int) -> UserData:
    """A table whose first `labeled` rows have a label."""
    lines = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    rows = [f"{line},{'ab'[i % 2] if i < labeled else ''}" for i, line in enumerate(lines)]
    path.write_text("\n".join([",".join([*columns, "label"]), *rows]))
    return read_table(path)


def test_identifiers_are_not_compared(tmp_path: Path) -> None:
    """The first rows are labeled: the column that counts them tells them apart, and has a finding of its own."""
    x, y = np.random.default_rng(0).normal(size=(2, 200)).round(3)
    found = kinds(findings(table(tmp_path / "own.csv", {"id": range(200), "x": x, "y": y}, labeled=80)))
    assert "row-number" in found
    assert "look alike: shown one of each (without 'id'), a simple model" in found["likeness"].message
    x[80:] += 3
    found = kinds(findings(table(tmp_path / "own.csv", {"id": range(200), "x": x, "y": y}, labeled=80)))
    assert "data differ: shown one of each (without 'id')" in found["likeness"].message
    alone = kinds(findings(table(tmp_path / "own.csv", {"id": range(200)}, labeled=80)))
    assert "data differ: shown one of each, a" in alone["likeness"].message  # nothing else is left


def test_too_few_to_compare() -> None:
    finding = inspect.likeness(images([0, 1, UNKNOWN], flat([1, 2, 3])))
    assert "too few" in finding.message
    assert finding.severity == "info"


def test_sample_is_bounded() -> None:
    a, b = np.arange(30), np.arange(30, 100_000)
    few, many = inspect._sample(a, b)
    assert (len(few), len(many)) == (30, 1970)
    assert [len(rows) for rows in inspect._sample(b, b)] == [1000, 1000]
    assert [len(rows) for rows in inspect._sample(b, a)] == [1970, 30]


def test_features(tmp_path: Path) -> None:
    x = load_digits().data
    y = np.where(np.arange(len(x)) % 3 == 0, TARGET, UNKNOWN)
    x[1] = x[0]
    np.savez(tmp_path / "own.npz", x=x, y=y)
    user: UserData = read_arrays(tmp_path / "own.npz")
    found = kinds(findings(user))
    assert found["labeled-and-unlabeled"].files == ("x[0]", "x[1]")
    assert "look alike" in found["likeness"].message


# --------------------------------------------------------------------------------------------------------- end to end


def test_folder_with_known_faults(tmp_path: Path) -> None:
    """Digits as PNG, BMP and TIFF in mixed sizes, gray and color, with damaged files and copies among them."""
    random = np.random.default_rng(0)
    for i, (digit, label) in enumerate(zip(DIGITS[:300, ..., 0], TARGET[:300], strict=True)):
        place = f"{label}" if i < 100 else "unlabeled" if i < 250 else f"test/{label}"
        factor, suffix = [(4, "png"), (5, "bmp"), (8, "tif")][i % 3]
        large = np.kron(digit, np.ones((factor, factor), np.uint8))
        if random.random() < 0.5:
            large = np.stack([large] * 3, axis=-1)
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        Image.fromarray(large).save(tmp_path / place / f"{i}.{suffix}")
    source = tmp_path / str(TARGET[0]) / "0.png"
    for copy in ("unlabeled/copy.png", f"test/{TARGET[0]}/copy.png", f"{TARGET[1]}/copy.png"):
        (tmp_path / copy).write_bytes(source.read_bytes())
    (tmp_path / "unlabeled/damaged.png").write_bytes(source.read_bytes()[:-40])
    Image.new("L", (100, 20), 50).save(tmp_path / "unlabeled/wide.png")
    user = read_folder(tmp_path)
    found = kinds(findings(user))
    assert user.inputs.shape == (304, 32, 32, 3)
    assert found["unreadable"].files == ("unlabeled/damaged.png",)
    assert {"unlabeled/copy.png", f"test/{TARGET[0]}/copy.png"} < set(found["test-in-training"].files)
    assert f"{TARGET[1]}/copy.png" in found["conflicting-labels"].files
    assert found["odd-shape"].files == ("unlabeled/wide.png",)
    assert found["mixed-modes"].severity == "info"
    assert "101 labeled images of 10 classes" in found["counts"].message
    assert "look alike" in found["likeness"].message
    for finding in found.values():
        assert finding.kind == "counts" or finding.advice
        assert finding.as_dict()["message"]
        assert "\n" not in finding.message

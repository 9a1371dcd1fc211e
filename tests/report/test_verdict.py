"""What a verdict says, in which order, and what it advises."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mixmatch.data.opened import Basis
from mixmatch.measure import ClassScore
from mixmatch.report.verdict import Favorite, Findings, Verdict, favorite, guessing, next_steps
from mixmatch.training.gain import Gain

CLASSES = ("airplane", "cat", "dog", "truck")
GOOD = Verdict(
    Basis("the 400 images under test/"),
    images=400,
    wrong=140,
    commonest="airplane",
    guessing=75.0,
    gain=Gain(35.0, 55.25, 15.0, 25.5, 400),
)
FOUND = Findings(
    CLASSES,
    [15, 15, 15, 15],
    scores=[ClassScore(100, error, None, None) for error in (10.0, 60.0, 65.0, 5.0)],
    suggestions=75,
    features="none",
    steps=1000,
    lambda_u=75.0,
)


def test_the_error_beside_guessing_and_labels_alone_comes_first() -> None:
    # Wilson's interval of 140 of 400, worked out by statsmodels: 0.3049, 0.3980.
    assert GOOD.how_good == (
        "35.0 % test error: 140 of 400 test images wrong (95 % interval 30.5 to 39.8 %). Guessing: 75.0 %. "
        "Labels alone: 55.2 %."
    )
    assert GOOD.trust == "Evaluated on the 400 images under test/."
    assert GOOD.unlabeled == "The unlabeled images helped: 20.2 points less error (95 % interval 15.0 to 25.5)."
    assert [name for name, _ in GOOD.parts] == ["how good", "trust", "unlabeled"]
    assert str(GOOD).startswith(GOOD.how_good)


def test_few_images_are_a_rough_number() -> None:
    verdict = replace(GOOD, images=12, wrong=0)
    assert verdict.how_good.startswith("0.0 % test error: 0 of 12 test images wrong (95 % interval 0.0 to 24.2 %)")
    assert "A rough number: 12 images." in verdict.trust


@pytest.mark.parametrize(("wrong", "says"), [(300, "cannot be told from guessing"), (330, "is worse than guessing")])
def test_not_better_than_guessing(wrong: int, says: str) -> None:
    verdict = replace(GOOD, wrong=wrong)
    assert f"It {says}: always predicting airplane has 75.0 % error." in verdict.trust
    assert verdict.to_dict()["better_than_guessing"] is False
    assert "guessing:" not in GOOD.trust
    assert GOOD.to_dict()["better_than_guessing"] is True


def test_always_the_same_class() -> None:
    assert replace(GOOD, favorite=Favorite("airplane", 1.0, 0.25)).trust.startswith("It always predicts airplane. ")
    assert replace(GOOD, favorite=Favorite("airplane", 0.93, 0.25)).trust.startswith(
        "It predicts airplane for 93 % of the images; 25 % of the labels are airplane. "
    )


def counts(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_a_favorite_is_far_beyond_its_share_of_the_labels() -> None:
    even = counts(25, 25, 25, 25)
    found = favorite(CLASSES, (counts(90, 4, 3, 3), even), (counts(1000, 0, 0, 0), even))
    assert found == Favorite("airplane", pytest.approx(1090 / 1100), 0.25)  # type: ignore[arg-type]
    assert favorite(CLASSES, (counts(40, 20, 20, 20), even), (counts(500, 200, 150, 150), even)) is None
    # Most of the unlabeled images are airplanes, and the test images show that it knows the others.
    assert favorite(CLASSES, (even, even), (counts(1000, 10, 10, 10), even)) is None
    # Nothing to evaluate on: the unlabeled images alone.
    assert favorite(CLASSES, (counts(0, 0, 0, 0), counts(0, 0, 0, 0)), (counts(1000, 10, 10, 10), even)) is not None
    assert favorite(CLASSES, (counts(0, 0, 0, 0), even)) is None
    # Nine of ten labels are airplanes: so should be the predictions.
    assert favorite(CLASSES, (counts(94, 2, 2, 2), counts(90, 4, 3, 3))) is None


def test_guessing_is_the_commonest_class() -> None:
    assert guessing(np.array([0, 1, 1, 3]), CLASSES) == ("cat", 50.0)


def test_nothing_evaluated() -> None:
    verdict = Verdict(Basis(missing="too few labels"), uses_unlabeled=False)
    assert verdict.how_good == "The error is not known: too few labels."
    assert (verdict.error, verdict.trust) == (None, "")
    assert verdict.to_dict()["interval"] is None
    assert next_steps(verdict, Findings(CLASSES, [9, 2, 3, 9], suggestions=9)) == (
        "To know the error, label 10 images of each class, or cross-validate (the option cross-validate).",
        "Label more of cat and dog (2 and 3 now); label-next.csv lists the images that help most.",
        "Predict new images with it: mixmatch predict.",
    )
    # A label that is the only one of its class is never left out, so this is no way to know.
    first = next_steps(verdict, Findings(CLASSES, [1, 1, 1, 1]))[0]
    assert first == "To know the error, label 10 images of each class."


def test_classes_that_are_not_evaluated_are_named() -> None:
    held = Verdict(Basis("some", left_out=("owl", "fox")), images=9, wrong=1, guessing=50.0)
    assert "Not evaluated: owl, fox, with fewer than 10 labels." in held.trust
    assert "with fewer than 2 labels." in replace(held, cross_validated=True).trust


@pytest.mark.parametrize(
    ("verdict", "found", "first"),
    [
        (
            replace(GOOD, favorite=Favorite("cat", 1.0, 0.25)),
            {},
            "Lower lambda_u, the weight of the unlabeled loss: it",
        ),
        (replace(GOOD, gain=Gain(35.0, 30.0, -7.0, -2.0, 400)), {}, "Use the method supervised"),
        (
            replace(GOOD, wrong=300),
            {},
            "Train on features of a pretrained network (the option features timm:tf_efficientnet_lite0.in1k), or train",
        ),
        (replace(GOOD, wrong=300), {"features": "timm:resnet18"}, "Train longer than 1,000 steps."),
        (replace(GOOD, wrong=300), {"features": None}, "Train longer than 1,000 steps."),
        (
            replace(GOOD, wrong=300),
            {"features": "basic"},
            "Train on features of a pretrained network (the option features timm:tf_efficientnet_lite0.in1k).",
        ),
        (GOOD, {"suspects": ["a.png", "b.png"]}, "Look at the 2 labels that may be wrong, beginning with a.png."),
        (GOOD, {"no_class": 7}, "Look at the 7 unlabeled images in no-class.csv, which may show none of your classes."),
        (
            GOOD,
            {},
            "Label more of dog (65 of 100 wrong) and cat (60 of 100 wrong); label-next.csv lists the images that help "
            "most.",
        ),
        (
            replace(GOOD, images=12, wrong=0),
            {"scores": [ClassScore(3, 0.0, 1, 1)] * 4},
            "Label more images to evaluate on, 12 say little.",
        ),
        (
            replace(GOOD, basis=Basis("12 held out", held_out=True), images=12, wrong=0),
            {"scores": [ClassScore(3, 0.0, 1, 1)] * 4, "features": "basic"},
            "Label more images to evaluate on, 12 say little, or cross-validate over all labels (the option hold-out",
        ),
    ],
)
def test_the_next_steps_follow_from_what_was_found(verdict: Verdict, found: dict[str, object], first: str) -> None:
    steps = next_steps(verdict, replace(FOUND, **found))  # type: ignore[arg-type]
    assert steps[0].startswith(first)
    assert len(set(steps)) == 3

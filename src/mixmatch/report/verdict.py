"""The verdict on a run, in the order of a user's questions: how good is it, can that be trusted, did the unlabeled data
help, what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from mixmatch.data.opened import MIN_LABELS, Basis
from mixmatch.measure import ClassScore, Ints, share_interval
from mixmatch.text import count, listed
from mixmatch.training.choose import SUGGESTED
from mixmatch.training.gain import Gain

ROUGH = 100
"""Rows below which an error is a rough number: its interval is some ten points wide or more."""

ALWAYS = 0.995
"""From this share of the predictions on, a model always says the same."""

HIGH = 10.0
"""An error, in percent, at which a better way to train comes before more labels."""


class Favorite(NamedTuple):
    """A class that is predicted far more often than it occurs, and both shares, 0 to 1."""

    name: str
    said: float
    labeled: float


@dataclass(frozen=True)
class Verdict:
    """Numbers and sentences. `images` is 0 where there is nothing to evaluate on; `basis` says why."""

    basis: Basis
    noun: str = "image"
    images: int = 0
    """Test rows, or labels predicted in cross-validation."""
    wrong: int = 0
    commonest: str = ""
    """The class that most of them have."""
    guessing: float = 0.0
    """The error of always naming it, in percent. No way of guessing has less."""
    gain: Gain | None = None
    uses_unlabeled: bool = True
    favorite: Favorite | None = None
    next_steps: tuple[str, ...] = ()
    cross_validated: bool = False
    places: int = 1
    """Decimals of an error."""

    def of(self, labels: Ints, predicted: Ints, classes: Sequence[str]) -> Verdict:
        """The same with how predictions compare with labels."""
        commonest, error = guessing(labels, classes)
        wrong = int(np.count_nonzero(predicted != labels))
        return replace(self, images=len(labels), wrong=wrong, commonest=commonest, guessing=error)

    @property
    def error(self) -> float | None:
        """Percent."""
        return 100 * self.wrong / self.images if self.images else None

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the error (Wilson's), in percent."""
        return share_interval(self.wrong, self.images)

    @property
    def guesses(self) -> bool:
        """Whether it may be no better than guessing."""
        return self.images > 0 and self.interval[1] >= self.guessing

    def percent(self, error: float) -> str:
        return f"{error:.{self.places}f} %"

    @property
    def how_good(self) -> str:
        """The error, beside guessing and labels alone."""
        parts = [self.measured]
        if self.images:
            parts.append(f"Guessing: {self.percent(self.guessing)}.")
        if self.images and self.gain is not None:
            parts.append(f"Labels alone: {self.percent(self.gain.baseline)}.")
        return " ".join(parts)

    @property
    def measured(self) -> str:
        """The error and its interval, or why it is not known."""
        if self.error is None:
            return f"The error is not known: {self.basis.missing or f'no test {self.noun} has a label'}."
        low, high = self.interval
        what, kind = ("error in cross-validation", "labeled") if self.cross_validated else ("test error", "test")
        rows = count(self.images, f"{kind} {self.noun}")
        interval = f"95 % interval {low:.{self.places}f} to {self.percent(high)}"
        return f"{self.percent(self.error)} {what}: {self.wrong:,} of {rows} wrong ({interval})."

    @property
    def trust(self) -> str:
        """How far to trust the error and the model; '' if there is nothing to say."""
        parts = []
        if self.images:
            if self.guesses:
                worse = self.interval[0] > self.guessing
                start = "It is worse than guessing" if worse else "It cannot be told from guessing"
                parts.append(f"{start}: always predicting {self.commonest} has {self.percent(self.guessing)} error.")
            if self.images < ROUGH:
                parts.append(f"A rough number: {count(self.images, self.noun)}.")
            parts.append(self.basis.sentence)
        if self.basis.left_out:
            fewer = 2 if self.cross_validated else MIN_LABELS
            parts.append(f"Not evaluated: {listed(self.basis.left_out, 5)}, with fewer than {fewer} labels.")
        if self.favorite is not None:
            name, said, labeled = self.favorite
            if said >= ALWAYS:
                parts.insert(0, f"It always predicts {name}.")
            else:
                share = f"{100 * said:.0f} % of the {self.noun}s"
                parts.insert(0, f"It predicts {name} for {share}; {100 * labeled:.0f} % of the labels are {name}.")
        return " ".join(parts)

    @property
    def unlabeled(self) -> str:
        """Whether the unlabeled data helped."""
        if not self.uses_unlabeled:
            return f"The method learns from the labels alone, not from unlabeled {self.noun}s."
        if self.gain is None:
            return f"Whether the unlabeled {self.noun}s helped is not known: there is no run on the labels alone."
        return self.gain.sentence

    @property
    def parts(self) -> list[tuple[str, str]]:
        """The answers, each under the question's short name; those that have something to say."""
        answers = [("how good", self.how_good), ("trust", self.trust), ("unlabeled", self.unlabeled)]
        return [(name, text) for name, text in answers if text]

    @property
    def text(self) -> str:
        steps = " ".join(f"{i}. {step}" for i, step in enumerate(self.next_steps, 1))
        return " ".join([*(text for _, text in self.parts), *([f"Next: {steps}"] if steps else [])])

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        gain = self.gain
        return {
            "error": self.error,
            "wrong": self.wrong,
            "images": self.images,
            "interval": list(self.interval) if self.images else None,
            "guessing_error": self.guessing if self.images else None,
            "better_than_guessing": not self.guesses if self.images else None,
            "cross_validated": self.cross_validated,
            "not_evaluated": list(self.basis.left_out),
            "baseline_error": None if gain is None else gain.baseline,
            "gain": None if gain is None else gain.points,
            "gain_interval": None if gain is None else [gain.low, gain.high],
            "favorite_class": None if self.favorite is None else self.favorite._asdict(),
            **{name.replace(" ", "_"): text for name, text in self.parts},
            "next_steps": list(self.next_steps),
        }


def guessing(labels: Ints, classes: Sequence[str]) -> tuple[str, float]:
    """The commonest class, and the error of always naming it, in percent. Guessing at random never has less."""
    counts = np.bincount(labels, minlength=len(classes))
    top = int(counts.argmax())
    return classes[top], 100 * (1 - counts[top] / len(labels))


def favorite(classes: Sequence[str], *said_and_labeled: tuple[Ints, Ints]) -> Favorite | None:
    """The class that takes most predictions, if that is far more than its share: more than half way to all of them.

    Each argument is a set of rows: how often each class is predicted, and how often it is a label. The class must be
    so common in all of them: unlabeled data may truly be of one class, but test labels show whether it is.
    """
    sets = [(said, labeled) for said, labeled in said_and_labeled if said.sum() and labeled.sum()]
    if not sets:
        return None
    said, labeled = (np.sum(part, axis=0) for part in zip(*sets, strict=True))
    top = int(said.argmax())
    for some, known in sets:
        if some[top] / some.sum() <= (1 + known[top] / known.sum()) / 2:
            return None
    return Favorite(classes[top], float(said[top] / said.sum()), float(labeled[top] / labeled.sum()))


@dataclass(frozen=True)
class Findings:
    """What the next steps are chosen by, beside the verdict itself."""

    classes: tuple[str, ...]
    labels: Sequence[int]
    """Labels of each class."""
    scores: Sequence[ClassScore] = ()
    suspects: Sequence[str] = ()
    """Names of rows whose label may be wrong."""
    suggestions: int = 0
    """Unlabeled rows worth labeling."""
    no_class: int = 0
    """Unlabeled rows that may be of no class."""
    features: str | None = None
    """What of images it learns from: none (their pixels), basic, or timm:NAME. None if its rows are no images."""
    steps: int = 0
    lambda_u: float | None = None


def next_steps(verdict: Verdict, found: Findings) -> tuple[str, ...]:
    """The three things to do next, most useful first."""
    return tuple(dict.fromkeys(_steps(verdict, found)))[:3]


def _steps(verdict: Verdict, found: Findings) -> Iterator[str]:
    noun, error, better = verdict.noun, verdict.error, _better_training(found)
    if verdict.favorite is not None and found.lambda_u:
        lower = f"{found.lambda_u / 5:.2g}"
        yield f"Lower lambda_u, the weight of the unlabeled loss: it is {found.lambda_u:g}, try {lower}."
    if verdict.gain is not None and verdict.gain.high < 0:
        yield "Use the method supervised, which learns from the labels alone: it does better here."
    if verdict.guesses or verdict.favorite is not None:
        yield better
    if error is None:
        other = ", or cross-validate (the option cross-validate)" if max(found.labels) > 1 else ""
        yield f"To know the error, label {MIN_LABELS} {noun}s of each class{other}."
    if found.suspects:
        many = f"the {count(len(found.suspects), 'label')} that may be wrong, beginning with {found.suspects[0]}"
        yield f"Look at {many}."
    if found.no_class:
        unlabeled = count(found.no_class, f"unlabeled {noun}")
        yield f"Look at the {unlabeled} in no-class.csv, which may show none of your classes."
    if weak := _weakest(found):
        listing = f"; label-next.csv lists the {noun}s that help most" if found.suggestions else ""
        yield f"Label more of {weak}{listing}."
    if error is not None and error >= HIGH:
        yield better
    if 0 < verdict.images < ROUGH:
        takes_seconds = verdict.basis.held_out and found.features != "none"  # pixels would take minutes per fold
        other = ", or cross-validate over all labels (the option hold-out none)" if takes_seconds else ""
        yield f"Label more {noun}s to evaluate on, {verdict.images:,} say little{other}."
    if found.suggestions and not weak:
        yield f"Label the {noun}s in label-next.csv, which help most, and train again in another folder."
    yield f"Predict new {noun}s with it: mixmatch predict."
    yield better


def _better_training(found: Findings) -> str:
    if found.features in ("none", "basic"):
        longer = f", or train longer than {found.steps:,} steps" if found.features == "none" else ""
        return f"Train on features of a pretrained network (the option features {SUGGESTED}){longer}."
    return f"Train longer than {found.steps:,} steps."


def _weakest(found: Findings) -> str:
    """The two classes with the highest error, as far as the number of test rows lets one say so; or if nothing was
    evaluated, with the fewest labels."""
    wrong = [
        (s.images, round(s.images * s.error / 100), n)
        for s, n in zip(found.scores, found.classes, strict=False)
        if s.error
    ]
    if wrong:
        worst = sorted(wrong, key=lambda each: share_interval(each[1], each[0]), reverse=True)[:2]
        return " and ".join(f"{name} ({part:,} of {images:,} wrong)" for images, part, name in worst)
    if found.scores:  # every class is right
        return ""
    fewest = sorted(zip(found.labels, found.classes, strict=True))[:2]
    return f"{' and '.join(name for _, name in fewest)} ({' and '.join(f'{n:,}' for n, _ in fewest)} now)"

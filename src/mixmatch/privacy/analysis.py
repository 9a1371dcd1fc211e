"""What a set of queries costs, as one record and one picture: epsilon for each way of charging, and accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mixmatch import plotting
from mixmatch.privacy.accountant import Accountant, Epsilon, answer_distribution, log_answer_probability
from mixmatch.privacy.answers import Answers
from mixmatch.privacy.mechanisms import Mechanism, SystemNoise, describe
from mixmatch.privacy.smooth import sanitize
from mixmatch.privacy.votes import Floats, Votes

WARNING = (
    "a data-dependent epsilon is computed from private votes and is itself sensitive: publish only a sanitized release "
    "of it, or publish a data-independent one"
)
MEANINGS = {
    "epsilon_expected": "data-dependent, charged by the probability of an answer, as in the papers; not sanitized",
    "epsilon_realised": "data-dependent, charged for the answers given (a privacy filter); not sanitized",
    "epsilon_all_charged": "data-dependent, every query charged as if answered (plain composition); not sanitized",
    "epsilon_data_independent": "the same for all votes but for the expected number of answers",
    "epsilon_data_independent_realised": "the same for all votes, charged for the answers given",
    "epsilon_data_independent_all_charged": (
        "the same for all votes, every query charged: safe to publish, unless the votes ended the queries"
    ),
    "epsilon_sanitised": "data-dependent with the noise and the cost of the GNSS release: safe to publish",
    "epsilon_sanitised_mean": "mean of the GNSS release with parameters chosen by a look at the votes; for planning",
}
WAYS = {
    "epsilon_expected": ("expected", "data-dependent"),
    "epsilon_realised": ("realised", "data-dependent"),
    "epsilon_all_charged": ("all", "data-dependent"),
    "epsilon_data_independent": ("expected", "data-independent"),
    "epsilon_data_independent_realised": ("realised", "data-independent"),
    "epsilon_data_independent_all_charged": ("all", "data-independent"),
}


class Point(NamedTuple):
    """The state after some queries: how many, how many answered, epsilon by name, accuracy of the answers."""

    queries: int
    answered: float
    epsilon: dict[str, Epsilon]
    accuracy: float | None


class Analysis(NamedTuple):
    record: dict[str, Any]
    points: list[Point]


@dataclass(frozen=True)
class Queries:
    """Queries to analyze: rows of a vote file, in order, and how they are asked and accounted for."""

    votes: Votes
    mechanism: Mechanism
    rows: npt.NDArray[np.int64]
    delta: float
    conversion: str = "classic"
    probabilities: Floats | None = None
    """A student's, for the whole vote file (interactive-gnmax)."""
    answers: Answers | None = None
    """The answers to these queries, if they were asked already."""

    @property
    def asked(self) -> Votes:
        """The votes on these queries alone."""
        return Votes(self.votes.counts[self.rows], self.votes.teachers)

    @property
    def chances(self) -> Floats | None:
        """The student's probabilities for these queries alone."""
        return None if self.probabilities is None else self.probabilities[self.rows]


def analyze(
    queries: Queries,
    *,
    orders: Sequence[float] | None = None,
    labels: npt.NDArray[np.int64] | None = None,
    points: int = 1,
) -> Analysis:
    """The cost of asking queries, in every way of charging, at `points` moments on the way.

    `labels` are the true classes of the whole vote file.
    """
    counts, chances, answers = queries.asked.counts, queries.chances, queries.answers
    accountant = Accountant(queries.mechanism, orders)
    right = None if labels is None else _right(queries, labels[queries.rows])
    ends = np.unique(np.linspace(0, len(counts), min(points, len(counts)) + 1).round().astype(int)[1:])
    path, start = [], 0
    for end in ends.tolist():
        part = slice(start, end)
        mask = None if answers is None else answers.by_teachers[part]
        accountant.charge(counts[part], mask, None if chances is None else chances[part])
        path.append(_point(accountant, queries, None if right is None else right[:end]))
        start = end
    return Analysis(_record(accountant, queries, path[-1]), path)


def plan_release(queries: Queries, order: float) -> dict[str, Any]:
    """What a sanitized epsilon would be, with parameters chosen by a look at the votes; for planning only."""
    found = sanitize(
        queries.mechanism,
        queries.asked,
        order,
        queries.delta,
        "expected",
        probabilities=queries.chances,
        conversion=queries.conversion,
    )
    return {
        "epsilon_sanitised_mean": found.epsilon,
        "epsilon_sanitised_deviation": found.sd,
        "smooth_sensitivity": {
            "order": found.order,
            "beta": found.beta,
            "sigma_ss": found.sigma_ss,
            "smooth_sensitivity": found.smooth_sensitivity,
            "release_cost": found.cost,
        },
    }


def release(queries: Queries, order: float, beta: float, sigma_ss: float) -> dict[str, Any]:
    """Draw a sanitized epsilon. The record may be published: it has neither the noise-free value nor the smooth
    sensitivity. `order`, `beta` and `sigma_ss` must be fixed without looking at the votes."""
    drawn = sanitize(
        queries.mechanism,
        queries.asked,
        order,
        queries.delta,
        "all" if queries.answers is None else queries.answers.by_teachers,
        parameters=(beta, sigma_ss),
        probabilities=queries.chances,
        noise=SystemNoise(),
        conversion=queries.conversion,
    )
    return {
        **describe(queries.mechanism),
        "teachers": queries.votes.teachers,
        "queries": len(queries.rows),
        "delta": queries.delta,
        "conversion": queries.conversion,
        "charging": "all" if queries.answers is None else "realised",
        "order": drawn.order,
        "beta": drawn.beta,
        "sigma_ss": drawn.sigma_ss,
        "epsilon_sanitised": drawn.epsilon,
        "meaning": {"epsilon_sanitised": MEANINGS["epsilon_sanitised"]},
        "warning": "draw once: every further draw reveals more about the votes and costs as much again",
    }


def _point(accountant: Accountant, queries: Queries, right: Floats | None) -> Point:
    epsilon = {
        name: accountant.epsilon(queries.delta, charging, bound, queries.conversion)
        for name, (charging, bound) in WAYS.items()
        if charging != "realised" or accountant.answered is not None
    }
    answered = accountant.expected_answered if accountant.answered is None else accountant.answered
    accuracy = None
    if right is not None and right[:, 1].sum() > 0:
        accuracy = float(right[:, 0].sum() / right[:, 1].sum())
    return Point(accountant.queries, float(answered), epsilon, accuracy)


def _record(accountant: Accountant, queries: Queries, last: Point) -> dict[str, Any]:
    found = last.epsilon
    order = found["epsilon_expected"].order
    at = int(np.flatnonzero(accountant.orders == order)[0])
    record: dict[str, Any] = {
        **describe(accountant.mechanism),
        "teachers": queries.votes.teachers,
        "classes": queries.votes.classes,
        "votes_sha256": queries.votes.sha256,
        "queries": accountant.queries,
        "delta": queries.delta,
        "conversion": queries.conversion,
        "expected_answered": accountant.expected_answered,
        "order": order,
        **{name: value.value for name, value in found.items()},
        "orders": {name.removeprefix("epsilon_"): value.order for name, value in found.items()},
        "rdp_expected": float(accountant.rdp("expected")[at]),
        "rdp_expected_deviation": accountant.deviation(order),
        "meaning": {name: MEANINGS[name] for name in found},
        "warning": WARNING,
    }
    if accountant.answered is not None:
        record["answered"] = accountant.answered
    if last.accuracy is not None:
        record["accuracy"] = last.accuracy
    return record


def _right(queries: Queries, truth: npt.NDArray[np.int64]) -> Floats:
    """For each query (N, 2): the right answers and the answers, counted where they are known, else expected."""
    if queries.answers is not None:
        given = queries.answers.answered
        return np.stack([given & (queries.answers.labels == truth), given], axis=1).astype(np.float64)
    counts = queries.asked.counts
    answered = np.exp(log_answer_probability(counts, queries.mechanism, queries.chances))
    distribution = answer_distribution(counts, queries.mechanism)
    return np.stack([answered * distribution[np.arange(len(truth)), truth], answered], axis=1)


LINES = {
    "epsilon_data_independent_all_charged": ("data-independent, all charged", "#555555", ":"),
    "epsilon_data_independent_realised": ("data-independent, realised", "#555555", "--"),
    "epsilon_data_independent": ("data-independent, expected", "#999999", "-"),
    "epsilon_all_charged": ("all charged", "#30638e", "-"),
    "epsilon_realised": ("realised", "#00798c", "-"),
    "epsilon_expected": ("expected", "#d1495b", "-"),
}


def plot(points: Sequence[Point], record: dict[str, Any], path: Path) -> None:
    """Epsilon against queries for each way of charging, and below it the accuracy of the answers where it is known."""
    queries = np.array([point.queries for point in points])
    answered = np.array([point.answered for point in points])
    with_accuracy = any(point.accuracy is not None for point in points)
    figure, rows = plotting.pyplot().subplots(
        1 + with_accuracy, 1, sharex=True, squeeze=False, layout="constrained",
        figsize=(8.4, 6.4 if with_accuracy else 4.8), height_ratios=[2.6, 1][: 1 + with_accuracy],
    )  # fmt: skip
    top = rows[0][0]
    _draw_epsilons(top, points, queries)
    top.set_ylabel(f"epsilon at delta = {record['delta']:g}")
    mechanism = f"{record['mechanism']} ({parameters_text(record)})"
    top.set_title(f"{mechanism}, {record['teachers']} teachers", loc="left", fontsize=10)
    top.set_xlim(0, queries[-1])
    if with_accuracy:
        low = rows[1][0]
        low.plot(queries, [100 * p.accuracy if p.accuracy is not None else np.nan for p in points], color="#3f8f5f")
        values = [100 * p.accuracy for p in points if p.accuracy is not None]
        low.annotate(f"{values[-1]:.1f} %", (queries[-1], values[-1]), (6, 0), textcoords="offset points",
                     va="center", fontsize=9, color="#3f8f5f", annotation_clip=False)  # fmt: skip
        bottom = min(80.0, 5 * np.floor(min(values[len(values) // 10 :]) / 5))
        low.set_ylim(max(0.0, bottom), 100.5)
        low.set_ylabel("answers right, %")
    for axis in rows[:, 0]:
        plotting.tidy(axis)
    rows[-1][0].set_xlabel("queries")
    if answered[-1] < queries[-1]:
        _answered_axis(top, queries, answered, "answered" if "answered" in record else "answered (expected)")
    plotting.save(figure, path)


def parameters_text(record: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in record["parameters"].items())


def _draw_epsilons(axis: Any, points: Sequence[Point], queries: npt.NDArray[np.int64]) -> None:
    drawn: list[tuple[str, str, npt.NDArray[np.float64]]] = []
    last = points[-1]
    checked = last.epsilon["epsilon_expected"].value != last.epsilon["epsilon_all_charged"].value
    for name, (label, color, style) in LINES.items():
        if name not in last.epsilon:
            continue
        values = np.array([point.epsilon[name].value for point in points])
        if any(np.allclose(values, other, rtol=1e-9) for _, _, other in drawn):
            continue  # without a check all ways of charging are one line
        if not checked:
            label = WAYS[name][1]
        axis.plot(queries, values, color=color, linestyle=style, linewidth=2 if name == "epsilon_expected" else 1.6)
        drawn.append((label, color, values))
    axis.set_ylim(bottom=0)
    ends = [
        (values[-1], f"{label}  {values[-1]:{'.3f' if values[-1] < 1 else '.2f'}}", color)
        for label, color, values in drawn
    ]
    plotting.name_line_ends(axis, ends, gap=0.045, fontsize=9)


def _answered_axis(axis: Any, queries: npt.NDArray[np.int64], answered: npt.NDArray[np.float64], label: str) -> None:
    """A second scale above: how many of the queries were answered."""
    above = axis.secondary_xaxis("top")
    ticks = [tick for tick in axis.get_xticks() if 0 <= tick <= queries[-1]]
    places = np.concatenate([[0], queries])
    values = np.interp(ticks, places, np.concatenate([[0], answered]))
    above.set_xticks(ticks, [f"{value:,.0f}" for value in values])
    above.set_xlabel(label, fontsize=9)
    above.tick_params(labelsize=8, length=3)
    above.spines["top"].set_visible(False)
    axis.set_title(axis.get_title(loc="left"), loc="left", fontsize=10, pad=30)

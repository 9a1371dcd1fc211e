"""Options that several `pate` commands share, in groups: each field of a group is an option."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from mixmatch.cli.options import DataDir, Device, RayCluster, print_json, say, warn
from mixmatch.data.split import Indices
from mixmatch.errors import MixMatchError
from mixmatch.execution.executor import executor_for
from mixmatch.privacy.ledger import Budget
from mixmatch.privacy.mechanisms import InteractiveGNMax, Mechanism, build
from mixmatch.privacy.runs import RunOptions, Say, silent
from mixmatch.privacy.votes import Floats, Votes, read_probabilities, read_rows, read_votes
from mixmatch.text import count
from mixmatch.training.progress import Reporter

Threshold = Annotated[float | None, typer.Option(help="T: the votes needed for an answer.")]
Sigma1 = Annotated[float | None, typer.Option(help="Noise of the check against the threshold.")]
Sigma2 = Annotated[float | None, typer.Option(help="Noise of the answer.")]
Delta = Annotated[float, typer.Option(help="The delta of the guarantee: less than 1 / the number of private records.")]
Conversion = Annotated[
    str, typer.Option(help="Conversion from Renyi to (epsilon, delta): classic (as in the papers) or improved.")
]
NoiseSeed = Annotated[
    int | None, typer.Option(help="Seed of the noise, for experiments only (default: the system's randomness).")
]
All = Annotated[
    bool, typer.Option("--all", help="Also show the other epsilons, of which most are private (docs/privacy.md).")
]
PUBLISHED = "epsilon_data_independent_all_charged"
"""The epsilon that holds for any votes with every query charged: nothing private goes into it."""
Network = Annotated[str | None, typer.Option(help="Their network (default: the data set's).")]
BatchSize = Annotated[
    int | None, typer.Option(help="Labeled images per step; unlabeled ones: this times the method's ratio.")
]


@dataclass(frozen=True, kw_only=True)
class VoteOptions:
    """The vote file."""

    votes: Annotated[Path, typer.Option(help="The teachers' votes: .npy, .npz or CSV.")]
    votes_format: Annotated[str, typer.Option(help="counts (queries x classes) or labels (teachers x queries).")] = (
        "counts"
    )
    teachers: Annotated[int | None, typer.Option(help="The expected number of teachers.")] = None
    num_classes: Annotated[
        int | None, typer.Option(help="How many classes there are (default: as many as were voted for).")
    ] = None

    def read(self) -> Votes:
        return read_votes(self.votes, self.votes_format, teachers=self.teachers, num_classes=self.num_classes)


@dataclass(frozen=True, kw_only=True)
class MechanismOptions:
    """How queries are answered."""

    mechanism: Annotated[str, typer.Option(help="lnmax, gnmax, confident-gnmax or interactive-gnmax.")] = (
        "confident-gnmax"
    )
    threshold: Threshold = None
    sigma1: Sigma1 = None
    sigma2: Sigma2 = None
    sigma: Annotated[float | None, typer.Option(help="Noise of gnmax.")] = None
    gamma: Annotated[float | None, typer.Option(help="Inverse noise of lnmax: Laplace noise of scale 1/gamma.")] = None
    confidence: Annotated[
        float | None,
        typer.Option(help="interactive-gnmax: the confidence above which a student keeps its own label (default 0.9)."),
    ] = None
    baseline: Annotated[
        Path | None, typer.Option(help="interactive-gnmax: the student's probabilities (queries x classes).")
    ] = None

    def build(self) -> Mechanism:
        names = ("threshold", "sigma1", "sigma2", "sigma", "gamma", "confidence")
        return build(self.mechanism, **{name: getattr(self, name) for name in names})

    def probabilities(self, mechanism: Mechanism, votes: Votes) -> Floats | None:
        interactive = isinstance(mechanism, InteractiveGNMax)
        if interactive and self.baseline is None:
            raise MixMatchError("interactive-gnmax needs a student's probabilities: give --baseline")
        if self.baseline is not None and not interactive:
            raise MixMatchError(f"--baseline goes with interactive-gnmax, not with {mechanism.name}")
        return None if self.baseline is None else read_probabilities(self.baseline, votes)


@dataclass(frozen=True, kw_only=True)
class QueryOptions:
    """Which queries, in which order."""

    queries: Annotated[int | None, typer.Option(help="Take the first N queries (default: all).")] = None
    indices: Annotated[Path | None, typer.Option(help="Take queries by row number, in this file's order.")] = None

    def rows(self, votes: Votes) -> Indices:
        rows = np.arange(votes.queries) if self.indices is None else read_rows(self.indices, votes)
        if self.queries is None:
            return rows
        if not 1 <= self.queries <= len(rows):
            raise MixMatchError(f"--queries {self.queries}: there are {len(rows)} to ask")
        return rows[: self.queries]


@dataclass(frozen=True, kw_only=True)
class BudgetOptions:
    """What may be spent."""

    delta: Delta
    max_epsilon: Annotated[float | None, typer.Option(help="The budget: stop before a query that could cross it.")] = (
        None
    )
    charging: Annotated[str, typer.Option(help="How the budget is charged: expected, realised or all.")] = "realised"
    bound: Annotated[str, typer.Option(help="The budget's bound: data-dependent or data-independent.")] = (
        "data-dependent"
    )
    conversion: Conversion = "classic"

    def build(self) -> Budget:
        budget = Budget(self.max_epsilon, self.delta, self.charging, self.bound, self.conversion)
        budget.check()
        return budget


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """How runs are trained."""

    resume: Annotated[bool, typer.Option("--resume", help="Resume the runs in --out; finished ones are kept.")] = False
    device: Device = "auto"
    data_dir: DataDir = None
    ray: RayCluster = None
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False

    @property
    def say(self) -> Say:
        return silent if self.quiet else say

    def build(
        self, reporter: Callable[[], Reporter] | None, *, strict: bool = False, checkpoint_every: int | None = None
    ) -> RunOptions:
        executor = executor_for(self.ray, warn)
        return RunOptions(self.resume, checkpoint_every, self.device, self.data_dir, strict, reporter, executor)


def show_part(part: str, done: int, noun: str, as_json: bool) -> None:
    """The result of a part of the runs. Others may still be at work."""
    if as_json:
        print_json({"part": part, f"{noun}s": done})
    else:
        again = "the same command with --resume instead of --part takes all of them"
        print(f"part {part}: {count(done, noun)} finished; {again}")


SAFE = "which is safe to publish"
OF_ANSWERS = f"{SAFE} unless a budget ended the queries (pate label says whether one did)"
"""Of answers in a file, which does not say how their number came about."""


def in_words(privacy: dict[str, Any], safe: str = SAFE) -> str:
    """The epsilon that holds for any votes, whether it is safe to publish, and what it and its delta mean.

    >>> print(in_words({"epsilon_data_independent_all_charged": 3.1277, "delta": 1e-6}))
    privacy: epsilon 3.13 at delta 1e-06, which is safe to publish
      epsilon: one private record makes no outcome more than 23 times as likely
      delta: the probability that this fails; keep it below 1 / number of records
    """
    epsilon = privacy[PUBLISHED]
    factor = f"{math.exp(epsilon):,.{0 if epsilon > 2 else 1}f}" if epsilon < 14 else f"10^{epsilon / math.log(10):.0f}"
    return (
        f"privacy: epsilon {epsilon:.2f} at delta {privacy['delta']:g}, {safe}\n"
        f"  epsilon: one private record makes no outcome more than {factor} times as likely\n"
        "  delta: the probability that this fails; keep it below 1 / number of records"
    )


def charged(privacy: dict[str, Any]) -> str:
    """The data-dependent epsilons, which are private, in one line."""
    return (
        f"private: epsilon {privacy['epsilon_expected']:.3f} expected, {privacy['epsilon_realised']:.3f} realised, "
        f"{privacy['epsilon_all_charged']:.3f} all charged, computed from these votes"
    )

"""`mixmatch pate`: labels from the noisy vote of teachers that saw private data, and what they cost in privacy."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from mixmatch.cli.options import Json, console, print_json
from mixmatch.errors import MixMatchError

if TYPE_CHECKING:  # the privacy modules need SciPy, which the other commands do without
    import numpy as np
    import numpy.typing as npt

    from mixmatch.privacy.ledger import Budget, Labeled
    from mixmatch.privacy.mechanisms import Mechanism, Outcome
    from mixmatch.privacy.smooth import Release
    from mixmatch.privacy.votes import Answers, Floats, Votes

app = typer.Typer(
    name="pate",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="""Learn from private data: PATE, with what it costs in privacy.

    Examples:

      mixmatch pate run --out runs/pate-digits

      mixmatch pate analyze --votes votes.npy --threshold 200 --sigma1 200 --sigma2 40 --queries 250 --delta 1e-6

      mixmatch pate label --votes votes.npy --threshold 200 --sigma1 200 --sigma2 40 --delta 1e-6 --max-epsilon 1
        --output answers.json

      mixmatch pate student --repeats 10 --out runs/pate
    """,
)

VotesFile = Annotated[Path, typer.Option(help="The teachers' votes: .npy, .npz or CSV.")]
VotesFormat = Annotated[str, typer.Option(help="counts (queries x classes) or labels (teachers x queries).")]
Teachers = Annotated[int | None, typer.Option(help="How many teachers there must be.")]
NumClasses = Annotated[
    int | None, typer.Option(help="How many classes there are (default: as many as were voted for).")
]
MechanismName = Annotated[str, typer.Option(help="lnmax, gnmax, confident-gnmax or interactive-gnmax.")]
Threshold = Annotated[float | None, typer.Option(help="T: the votes it takes to be answered.")]
Sigma1 = Annotated[float | None, typer.Option(help="Noise of the check against the threshold.")]
Sigma2 = Annotated[float | None, typer.Option(help="Noise of the answer.")]
Sigma = Annotated[float | None, typer.Option(help="Noise of gnmax.")]
Gamma = Annotated[float | None, typer.Option(help="Inverse noise of lnmax: Laplace noise of scale 1/gamma.")]
Confidence = Annotated[
    float | None, typer.Option(help="interactive-gnmax: above it a student keeps its own label (default 0.9).")
]
Baseline = Annotated[
    Path | None, typer.Option(help="interactive-gnmax: the student's probabilities (queries x classes).")
]
Queries = Annotated[int | None, typer.Option(help="Take the first N queries (default: all).")]
Indices = Annotated[Path | None, typer.Option(help="Take queries by row number, in this file's order.")]
Delta = Annotated[float, typer.Option(help="The delta of the guarantee: less than 1 / the number of private records.")]
Conversion = Annotated[str, typer.Option(help="From Renyi to (epsilon, delta): classic (as the papers) or improved.")]


@app.command()
def analyze(
    votes: VotesFile,
    delta: Delta,
    mechanism: MechanismName = "confident-gnmax",
    threshold: Threshold = None,
    sigma1: Sigma1 = None,
    sigma2: Sigma2 = None,
    sigma: Sigma = None,
    gamma: Gamma = None,
    confidence: Confidence = None,
    baseline: Baseline = None,
    queries: Queries = None,
    indices: Indices = None,
    order: Annotated[float | None, typer.Option(help="Fix the Renyi order (default: the best of a grid).")] = None,
    conversion: Conversion = "classic",
    answers: Annotated[Path | None, typer.Option(help="Answers that were given, for the realised epsilon.")] = None,
    labels: Annotated[Path | None, typer.Option(help="True classes of all rows, for the answers' accuracy.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw epsilon against queries into this .png file.")] = None,
    smooth_sensitivity: Annotated[
        bool, typer.Option("--smooth-sensitivity", help="Tell what a sanitised epsilon would be, for planning.")
    ] = False,
    release: Annotated[
        bool,
        typer.Option("--release", help="Draw a sanitised epsilon to publish; needs --order, --beta and --sigma-ss."),
    ] = False,
    beta: Annotated[float | None, typer.Option(help="Smoothness of the release, fixed beforehand.")] = None,
    sigma_ss: Annotated[float | None, typer.Option(help="Noise of the release, fixed beforehand.")] = None,
    votes_format: VotesFormat = "counts",
    teachers: Teachers = None,
    num_classes: NumClasses = None,
    as_json: Json = False,
) -> None:
    """Tell what queries cost in privacy, in every way of charging. Reads only; answers nothing.

    Examples:

      mixmatch pate analyze --votes votes.npy --mechanism confident-gnmax --threshold 200 --sigma1 200 --sigma2 40
        --queries 250 --delta 1e-6 --json

      mixmatch pate analyze --votes votes.npy --mechanism lnmax --gamma 0.1 --queries 500 --delta 1e-6

      mixmatch pate analyze --votes votes.npy --mechanism gnmax --sigma 40 --queries 250 --delta 1e-6
        --labels labels.npy --plot privacy.png
    """
    from mixmatch.privacy import analysis, checks
    from mixmatch.privacy import votes as vote_files

    chosen = _mechanism(mechanism, threshold, sigma1, sigma2, sigma, gamma, confidence)
    checks.check_delta(delta)
    if order is not None and not order > 1:
        raise MixMatchError(f"--order {order:g}: a Renyi order must be above 1")
    if release and (order is None or beta is None or sigma_ss is None):
        raise MixMatchError("--release needs --order, --beta and --sigma-ss, fixed without a look at the votes")
    if not release and (beta is not None or sigma_ss is not None):
        raise MixMatchError("--beta and --sigma-ss go with --release")
    if plot is not None and plot.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise MixMatchError(f"--plot {plot}: it must end in .png, .svg or .pdf")
    read = vote_files.read_votes(votes, votes_format, teachers=teachers, num_classes=num_classes)
    probabilities = _baseline(chosen, baseline, read)
    rows = _rows(read, queries, indices)
    given = None if answers is None else vote_files.read_answers(answers, read, rows)
    if given is not None:
        _warn_of_other_classes(read, rows, given)
    if release:
        assert order is not None
        assert beta is not None
        assert sigma_ss is not None
        drawn = _release(chosen, read, rows, order, delta, (beta, sigma_ss), given, probabilities, conversion)
        _print_release(
            drawn, read, rows, delta, conversion, chosen, "realised" if given is not None else "all", as_json
        )
        return
    result = analysis.analyze(
        read,
        chosen,
        rows,
        delta,
        conversion=conversion,
        orders=None if order is None else [order],
        answers=given,
        labels=None if labels is None else vote_files.read_labels(labels, read),
        probabilities=probabilities,
        points=1 if plot is None else 200,
    )
    record = result.record
    if smooth_sensitivity:
        record |= _planned(chosen, read, rows, order or record["order"], delta, probabilities, conversion)
        record["meaning"]["epsilon_sanitised_mean"] = analysis.MEANINGS["epsilon_sanitised_mean"]
    if plot is not None:
        try:
            analysis.plot(result.points, record, plot)
        except OSError as error:
            raise MixMatchError(f"cannot write {plot}: {error.strerror or error}") from None
    if as_json:
        print_json(record)
        return
    _print_analysis(record)
    if plot is not None:
        console().print(f"picture: {plot}", soft_wrap=True, markup=False)


@app.command()
def label(
    votes: VotesFile,
    delta: Delta,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the answers go: .json or .csv.")],
    mechanism: MechanismName = "confident-gnmax",
    threshold: Threshold = None,
    sigma1: Sigma1 = None,
    sigma2: Sigma2 = None,
    sigma: Sigma = None,
    gamma: Gamma = None,
    confidence: Confidence = None,
    baseline: Baseline = None,
    queries: Queries = None,
    indices: Indices = None,
    max_epsilon: Annotated[
        float | None, typer.Option(help="The budget: stop before a query that could cross it.")
    ] = None,
    charging: Annotated[str, typer.Option(help="How the budget is charged: expected, realised or all.")] = "realised",
    bound: Annotated[str, typer.Option(help="The budget's bound: data-dependent or data-independent.")] = (
        "data-dependent"
    ),
    conversion: Conversion = "classic",
    ledger: Annotated[
        Path | None, typer.Option(help="The ledger of what was spent (default: beside the votes, .ledger.jsonl).")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed the noise, for experiments only; else the system's randomness.")
    ] = None,
    votes_format: VotesFormat = "counts",
    teachers: Teachers = None,
    num_classes: NumClasses = None,
    as_json: Json = False,
) -> None:
    """Answer queries by the teachers' noisy vote, within a budget. -1 means refused.

    What is spent is kept in a ledger beside the votes. Run again to go on after an interruption or with more queries:
    queries already answered keep their answers and cost nothing.

    Examples:

      mixmatch pate label --votes votes.npy --threshold 200 --sigma1 200 --sigma2 40 --queries 250 --delta 1e-6
        --max-epsilon 1 --output answers.json

      mixmatch pate label --votes votes.npy --mechanism gnmax --sigma 40 --queries 100 --delta 1e-6 -o answers.csv
    """
    from mixmatch.privacy import ledger as ledgers
    from mixmatch.privacy import mechanisms
    from mixmatch.privacy.votes import read_votes, vote_classes
    from mixmatch.storage import replace_durably

    chosen = _mechanism(mechanism, threshold, sigma1, sigma2, sigma, gamma, confidence)
    budget = ledgers.Budget(max_epsilon, delta, charging, bound, conversion)
    budget.check()
    if output.suffix not in (".json", ".csv"):
        raise MixMatchError(f"--output {output}: it must end in .json or .csv")
    if not output.parent.is_dir():
        raise MixMatchError(f"--output {output}: the folder {output.parent} does not exist")
    read = read_votes(votes, votes_format, teachers=teachers, num_classes=num_classes)
    probabilities = _baseline(chosen, baseline, read)
    rows = _rows(read, queries, indices)
    if seed is not None:
        print(f"warning: {mechanisms.SEED_WARNING}", file=sys.stderr)
    path = ledger if ledger is not None else votes.resolve().with_suffix(".ledger.jsonl")
    with ledgers.Ledger(path, read, chosen, probabilities) as book:
        result = ledgers.answer_queries(book, rows.tolist(), budget, seed)
        spent = {
            "epsilon_realised": book.epsilon(budget, "realised", "data-dependent").value,
            "epsilon_expected": book.epsilon(budget, "expected", "data-dependent").value,
            "epsilon_all_charged": book.epsilon(budget, "all", "data-dependent").value,
            "epsilon_data_independent_realised": book.epsilon(budget, "realised", "data-independent").value,
            "epsilon_data_independent_all_charged": book.epsilon(budget, "all", "data-independent").value,
        }
    content = _answers_text(result.outcomes, read, output.suffix, vote_classes(votes, read))
    try:
        replace_durably(output, content.encode())
    except OSError as error:
        why = error.strerror or error
        raise MixMatchError(
            f"cannot write {output} ({why}): the answers are in {path}; run again with another --output"
        ) from None
    wanted = len(set(rows.tolist()))
    _print_labeled(result, spent, budget, chosen, path, output, wanted, as_json)


# -- parsing -----------------------------------------------------------------------------------------------------------


def _mechanism(
    name: str,
    threshold: float | None,
    sigma1: float | None,
    sigma2: float | None,
    sigma: float | None,
    gamma: float | None,
    confidence: float | None,
) -> Mechanism:
    from mixmatch.privacy.mechanisms import build

    return build(
        name, threshold=threshold, sigma1=sigma1, sigma2=sigma2, sigma=sigma, gamma=gamma, confidence=confidence
    )


def _baseline(mechanism: Mechanism, path: Path | None, votes: Votes) -> Floats | None:
    from mixmatch.privacy.votes import read_probabilities

    interactive = mechanism.name == "interactive-gnmax"
    if interactive and path is None:
        raise MixMatchError("interactive-gnmax needs a student's probabilities: give --baseline")
    if path is not None and not interactive:
        raise MixMatchError(f"--baseline goes with interactive-gnmax, not with {mechanism.name}")
    return None if path is None else read_probabilities(path, votes)


def _warn_of_other_classes(votes: Votes, rows: npt.NDArray[np.int64], answers: Answers) -> None:
    answered = answers.by_teachers
    agree = (answers.labels == votes.counts[rows].argmax(axis=1))[answered]
    if len(agree) and agree.mean() < 0.5:
        print("warning: few answers are the teachers' plurality: are the classes numbered alike?", file=sys.stderr)


def _rows(votes: Votes, queries: int | None, indices: Path | None) -> npt.NDArray[np.int64]:
    import numpy as np

    from mixmatch.privacy.votes import read_rows

    rows = np.arange(votes.queries) if indices is None else read_rows(indices, votes)
    if queries is None:
        return rows
    if not 1 <= queries <= len(rows):
        raise MixMatchError(f"--queries {queries}: there are {len(rows)} to ask")
    return rows[:queries]


# -- sanitised epsilons ------------------------------------------------------------------------------------------------


def _subset(votes: Votes, rows: npt.NDArray[np.int64]) -> Votes:
    from mixmatch.privacy.votes import Votes

    return Votes(votes.counts[rows], votes.teachers)


def _release(
    mechanism: Mechanism,
    votes: Votes,
    rows: npt.NDArray[np.int64],
    order: float,
    delta: float,
    parameters: tuple[float, float],
    answers: Answers | None,
    probabilities: Floats | None,
    conversion: str,
) -> Release:
    from mixmatch.privacy.mechanisms import SystemNoise
    from mixmatch.privacy.smooth import sanitise

    return sanitise(
        mechanism,
        _subset(votes, rows),
        order,
        delta,
        "all" if answers is None else answers.by_teachers,
        parameters=parameters,
        probabilities=None if probabilities is None else probabilities[rows],
        noise=SystemNoise(),
        conversion=conversion,
    )


def _planned(
    mechanism: Mechanism,
    votes: Votes,
    rows: npt.NDArray[np.int64],
    order: float,
    delta: float,
    probabilities: Floats | None,
    conversion: str,
) -> dict[str, Any]:
    from mixmatch.privacy.smooth import sanitise

    chances = None if probabilities is None else probabilities[rows]
    subset = _subset(votes, rows)
    found = sanitise(mechanism, subset, order, delta, "expected", probabilities=chances, conversion=conversion)
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


# -- printing ----------------------------------------------------------------------------------------------------------


def _print_analysis(record: dict[str, Any]) -> None:
    screen = console()
    parameters = ", ".join(f"{name} {value:g}" for name, value in record["parameters"].items())
    screen.print(f"{record['mechanism']} ({parameters}), {record['teachers']} teachers, {record['classes']} classes")
    answered = f", {record['answered']:,} answered" if "answered" in record else ""
    screen.print(
        f"{record['queries']:,} queries, {record['expected_answered']:,.2f} answers expected{answered}, "
        f"delta {record['delta']:g}, {record['conversion']} conversion"
    )
    if "accuracy" in record:
        screen.print(f"answers right: {100 * record['accuracy']:.2f} %")
    table = Table("which", "epsilon", "order", "what it is", box=box.SIMPLE)
    for name, meaning in record["meaning"].items():
        short = name.removeprefix("epsilon_")
        order = record["orders"].get(short)
        deviation = f" ± {record['epsilon_sanitised_deviation']:.3f}" if short == "sanitised_mean" else ""
        order = record["smooth_sensitivity"]["order"] if order is None else order
        table.add_row(short.replace("_", " "), f"{record[name]:.4f}{deviation}", f"{order:g}", meaning)
    screen.print(table)
    screen.print(f"note: {record['warning']}", soft_wrap=True)


def _print_release(
    drawn: Release,
    votes: Votes,
    rows: npt.NDArray[np.int64],
    delta: float,
    conversion: str,
    mechanism: Mechanism,
    charging: str,
    as_json: bool,
) -> None:
    """What may be published, and nothing else: neither the noise-free value nor the smooth sensitivity."""
    from mixmatch.privacy.analysis import MEANINGS
    from mixmatch.privacy.mechanisms import describe

    record = {
        **describe(mechanism),
        "teachers": votes.teachers,
        "queries": len(rows),
        "delta": delta,
        "conversion": conversion,
        "charging": charging,
        "order": drawn.order,
        "beta": drawn.beta,
        "sigma_ss": drawn.sigma_ss,
        "epsilon_sanitised": drawn.epsilon,
        "meaning": {"epsilon_sanitised": MEANINGS["epsilon_sanitised"]},
        "warning": "draw once: every further draw tells more about the votes and costs as much again",
    }
    if as_json:
        print_json(record)
        return
    screen = console()
    screen.print(
        f"sanitised epsilon: {drawn.epsilon:.4f} at delta {delta:g}, order {drawn.order:g}, {charging} charged"
    )
    screen.print(f"note: {record['warning']}", soft_wrap=True)


def _answers_text(outcomes: dict[int, Outcome], votes: Votes, suffix: str, classes: list[str] | None) -> str:
    """JSON: a label for every row of the votes, -1 where refused or not asked. CSV: a line for every query asked."""
    if suffix == ".json":
        labels = [-1] * votes.queries
        for row, outcome in outcomes.items():
            labels[row] = outcome.label
        kept = [row for row, outcome in outcomes.items() if outcome.source == "student"]
        record: dict[str, Any] = {"label": labels, "queries": list(outcomes)} | ({"kept": kept} if kept else {})
        record |= {} if classes is None else {"classes": classes}
        return json.dumps(record) + "\n"
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["query", "label", "source"])
    writer.writerows([row, outcome.label, outcome.source] for row, outcome in outcomes.items())
    return text.getvalue()


def _print_labeled(
    result: Labeled,
    spent: dict[str, float],
    budget: Budget,
    mechanism: Mechanism,
    ledger: Path,
    output: Path,
    asked_for: int,
    as_json: bool,
) -> None:
    from mixmatch.privacy.analysis import MEANINGS, WARNING
    from mixmatch.privacy.mechanisms import describe

    outcomes, stopped = result
    answered = sum(outcome.by_teachers for outcome in outcomes.values())
    kept = sum(outcome.source == "student" for outcome in outcomes.values())
    record = {
        **describe(mechanism),
        "asked": len(outcomes),
        "answered": answered,
        "kept_by_student": kept,
        "refused": len(outcomes) - answered - kept,
        "not_asked": asked_for - len(outcomes),
        "stopped_by_budget": stopped,
        "max_epsilon": budget.max_epsilon,
        "charging": budget.charging,
        "bound": budget.bound,
        "delta": budget.delta,
        "conversion": budget.conversion,
        **spent,
        "ledger": str(ledger),
        "output": str(output),
        "meaning": {name: MEANINGS[name] for name in spent},
        "warning": WARNING,
    }
    if stopped:
        print(
            f"note: the budget of {budget.max_epsilon:g} ended it after {len(outcomes):,} of {asked_for:,} queries",
            file=sys.stderr,
        )
    if as_json:
        print_json(record)
        return
    screen = console()
    own = f", {kept:,} kept by the student" if kept else ""
    screen.print(f"{len(outcomes):,} queries asked: {answered:,} answered{own}, {record['refused']:,} refused")
    table = Table("spent by this ledger", "epsilon", "what it is", box=box.SIMPLE)
    for name, value in spent.items():
        table.add_row(name.removeprefix("epsilon_").replace("_", " "), f"{value:.4f}", MEANINGS[name])
    screen.print(table)
    screen.print(f"answers: {output}\nledger: {ledger} (private)", soft_wrap=True, markup=False)
    screen.print(f"note: {WARNING}", soft_wrap=True)

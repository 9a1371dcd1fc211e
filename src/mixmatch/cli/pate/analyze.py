"""`mixmatch pate analyze`: what queries cost, before or after they are asked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from mixmatch.cli.options import Json, console, expand_options, print_json, show, warn
from mixmatch.cli.pate.options import (
    OF_ANSWERS,
    SAFE,
    All,
    Conversion,
    Delta,
    MechanismOptions,
    QueryOptions,
    VoteOptions,
    in_words,
)
from mixmatch.errors import MixMatchError
from mixmatch.privacy import analysis
from mixmatch.privacy.answers import read_for_votes
from mixmatch.privacy.checks import check_delta
from mixmatch.privacy.votes import read_labels


@expand_options
def analyze(
    vote_file: VoteOptions,
    delta: Delta,
    mechanism: MechanismOptions,
    queries: QueryOptions,
    order: Annotated[float | None, typer.Option(help="Fix the Renyi order (default: the best of a grid).")] = None,
    conversion: Conversion = "classic",
    answers: Annotated[Path | None, typer.Option(help="Answers that were given, for the realised epsilon.")] = None,
    labels: Annotated[Path | None, typer.Option(help="True classes of all rows, for the answers' accuracy.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw epsilon against queries into this .png file.")] = None,
    smooth_sensitivity: Annotated[
        bool, typer.Option("--smooth-sensitivity", help="Show what a sanitized epsilon would be, for planning.")
    ] = False,
    release: Annotated[
        bool,
        typer.Option("--release", help="Draw a sanitized epsilon to publish; needs --order, --beta and --sigma-ss."),
    ] = False,
    beta: Annotated[float | None, typer.Option(help="Smoothness of the release, fixed beforehand.")] = None,
    sigma_ss: Annotated[float | None, typer.Option(help="Noise of the release, fixed beforehand.")] = None,
    everything: All = False,
    as_json: Json = False,
) -> None:
    """Show the privacy cost of queries, without answering any.

    The epsilon that is shown holds for any votes and may be published. --all and --json show every way of charging.

    Examples:
      mixmatch pate analyze --votes votes.npy --mechanism confident-gnmax --threshold 200 --sigma1 200 --sigma2 40
        --queries 250 --delta 1e-6 --json
      mixmatch pate analyze --votes votes.npy --threshold 200 --sigma1 200 --sigma2 40 --queries 250 --delta 1e-6 --all
      mixmatch pate analyze --votes votes.npy --mechanism lnmax --gamma 0.1 --queries 500 --delta 1e-6
      mixmatch pate analyze --votes votes.npy --mechanism gnmax --sigma 40 --queries 250 --delta 1e-6
        --labels labels.npy --plot privacy.png
    """
    chosen = mechanism.build()
    check_delta(delta)
    _check(order, release, beta, sigma_ss, plot)
    votes = vote_file.read()
    probabilities = mechanism.probabilities(chosen, votes)
    rows = queries.rows(votes)
    given = None if answers is None else read_for_votes(answers, votes, rows)
    if given is not None:
        agree = (given.labels == votes.counts[rows].argmax(axis=1))[given.by_teachers]
        if len(agree) and agree.mean() < 0.5:
            warn("few answers agree with the teachers' plurality: are the classes numbered in the same way?")
    asked = analysis.Queries(votes, chosen, rows, delta, conversion, probabilities, given)
    if order is not None and beta is not None and sigma_ss is not None:  # with --release, as checked above
        _print_release(analysis.release(asked, order, beta, sigma_ss), as_json)
        return
    result = analysis.analyze(
        asked,
        orders=None if order is None else [order],
        labels=None if labels is None else read_labels(labels, votes),
        points=1 if plot is None else 200,
    )
    record = result.record
    if smooth_sensitivity:
        record |= analysis.plan_release(asked, order or record["order"])
        record["meaning"]["epsilon_sanitised_mean"] = analysis.MEANINGS["epsilon_sanitised_mean"]
    if plot is not None:
        analysis.plot(result.points, record, plot)
    if as_json:
        print_json(record)
        return
    _print_analysis(record, SAFE if answers is None else OF_ANSWERS, everything)
    if plot is not None:
        show(f"picture: {plot}")


def _check(order: float | None, release: bool, beta: float | None, sigma_ss: float | None, plot: Path | None) -> None:
    """Options that contradict each other, before anything is read."""
    if order is not None and not order > 1:
        raise MixMatchError(f"--order {order:g}: a Renyi order must be above 1")
    if release and (order is None or beta is None or sigma_ss is None):
        raise MixMatchError("--release needs --order, --beta and --sigma-ss, fixed without looking at the votes")
    if not release and (beta is not None or sigma_ss is not None):
        raise MixMatchError("--beta and --sigma-ss go with --release")
    if plot is not None and plot.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise MixMatchError(f"--plot {plot}: it must end in .png, .svg or .pdf")


def _print_analysis(record: dict[str, Any], safe: str, everything: bool) -> None:
    screen = console()
    screen.print(
        f"{record['mechanism']} ({analysis.parameters_text(record)}), {record['teachers']} teachers, "
        f"{record['classes']} classes"
    )
    answered = f", {record['answered']:,} answered" if "answered" in record else ""
    screen.print(
        f"{record['queries']:,} queries, {record['expected_answered']:,.2f} answers expected{answered}, "
        f"delta {record['delta']:g}, {record['conversion']} conversion"
    )
    if "accuracy" in record:
        screen.print(f"answers right: {100 * record['accuracy']:.2f} %")
    screen.print(in_words(record, safe), soft_wrap=True)
    shown = [name for name in record["meaning"] if everything or name == "epsilon_sanitised_mean"]
    if not shown:
        return
    table = Table("which", "epsilon", "order", "what it is", box=box.SIMPLE)
    for name in shown:
        short = name.removeprefix("epsilon_")
        order = record["orders"].get(short)
        deviation = f" ± {record['epsilon_sanitised_deviation']:.3f}" if short == "sanitised_mean" else ""
        order = record["smooth_sensitivity"]["order"] if order is None else order
        table.add_row(short.replace("_", " "), f"{record[name]:.4f}{deviation}", f"{order:g}", record["meaning"][name])
    screen.print(table)
    screen.print(f"note: {record['warning']}", soft_wrap=True)


def _print_release(record: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(record)
        return
    screen = console()
    screen.print(
        f"sanitized epsilon: {record['epsilon_sanitised']:.4f} at delta {record['delta']:g}, "
        f"order {record['order']:g}, {record['charging']} charged"
    )
    screen.print(f"note: {record['warning']}", soft_wrap=True)

"""`mixmatch pate label`: answers within a budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from mixmatch.cli.options import Json, console, expand_options, print_json, say, show, warn
from mixmatch.cli.pate.options import (
    SAFE,
    All,
    BudgetOptions,
    MechanismOptions,
    NoiseSeed,
    QueryOptions,
    VoteOptions,
    in_words,
)
from mixmatch.errors import MixMatchError
from mixmatch.privacy.analysis import MEANINGS, WARNING, WAYS
from mixmatch.privacy.answers import collect, to_csv, to_json
from mixmatch.privacy.ledger import Budget, Ledger, answer_queries
from mixmatch.privacy.mechanisms import SEED_WARNING, describe
from mixmatch.privacy.votes import vote_classes
from mixmatch.storage import replace_durably

FORMATS = {".json": to_json, ".csv": to_csv}
SPENT = (
    "epsilon_realised",
    "epsilon_expected",
    "epsilon_all_charged",
    "epsilon_data_independent_realised",
    "epsilon_data_independent_all_charged",
)


@expand_options
def label(
    vote_file: VoteOptions,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the answers go: .json or .csv.")],
    budget: BudgetOptions,
    mechanism: MechanismOptions,
    queries: QueryOptions,
    ledger: Annotated[
        Path | None, typer.Option(help="The ledger of charges (default: next to the votes, .ledger.jsonl).")
    ] = None,
    seed: NoiseSeed = None,
    everything: All = False,
    as_json: Json = False,
) -> None:
    """Answer queries by the teachers' noisy vote, within a budget. -1 means refused.

    Charges are recorded in a ledger next to the votes. Run again to resume after an interruption, or with more queries:
    queries already answered keep their answers and cost nothing.

    Examples:
      mixmatch pate label --votes votes.npy --threshold 200 --sigma1 200 --sigma2 40 --queries 250 --delta 1e-6
        --max-epsilon 1 --output answers.json
      mixmatch pate label --votes votes.npy --mechanism gnmax --sigma 40 --queries 100 --delta 1e-6 -o answers.csv
    """
    chosen, limit = mechanism.build(), budget.build()
    if output.suffix not in FORMATS:
        raise MixMatchError(f"--output {output}: it must end in .json or .csv")
    if not output.parent.is_dir():
        raise MixMatchError(f"--output {output}: the folder {output.parent} does not exist")
    votes = vote_file.read()
    probabilities = mechanism.probabilities(chosen, votes)
    rows = queries.rows(votes).tolist()
    if seed is not None:
        warn(SEED_WARNING)
    path = ledger if ledger is not None else vote_file.votes.resolve().with_suffix(".ledger.jsonl")
    with Ledger(path, votes, chosen, probabilities) as book:
        given = answer_queries(book, rows, limit, seed)
        spent = {name: book.epsilon(limit, *WAYS[name]).value for name in SPENT}
        of_budget = book.epsilon(limit, limit.charging, limit.bound).value
        earlier, by_votes = len(book.answers) - len(given), book.ended_by_votes
    answers = collect(given, votes.queries, vote_classes(vote_file.votes, votes))
    try:
        replace_durably(output, FORMATS[output.suffix](answers).encode())
    except OSError as error:
        why = error.strerror or error
        raise MixMatchError(
            f"cannot write {output} ({why}): the answers are in {path}; run again with another --output"
        ) from None
    answered, labeled, wanted = int(answers.by_teachers.sum()), int(answers.answered.sum()), len(set(rows))
    record = {
        **describe(chosen),
        "asked": len(answers),
        "answered": answered,
        "kept_by_student": labeled - answered,
        "refused": len(answers) - labeled,
        "not_asked": wanted - len(answers),
        "stopped_by_budget": len(answers) < wanted,
        "ended_by_votes": by_votes,
        **{name: getattr(limit, name) for name in ("max_epsilon", "charging", "bound", "delta", "conversion")},
        **spent,
        "ledger": str(path),
        "output": str(output),
        "meaning": {name: MEANINGS[name] for name in spent},
        "warning": WARNING,
    }
    if record["stopped_by_budget"]:
        say(
            f"note: the budget of {record['max_epsilon']:g} ended it after {record['asked']:,} of "
            f"{record['asked'] + record['not_asked']:,} queries"
        )
    if as_json:
        print_json(record)
    else:
        _print(record, limit, of_budget, earlier, everything)


def _print(record: dict[str, Any], budget: Budget, of_budget: float, earlier: int, everything: bool) -> None:
    screen = console()
    kept = f", {record['kept_by_student']:,} kept by the student" if record["kept_by_student"] else ""
    screen.print(
        f"{record['asked']:,} queries asked: {record['answered']:,} answered{kept}, {record['refused']:,} refused"
    )
    if earlier:
        screen.print(f"{earlier:,} more were asked before; the epsilon is of all {record['asked'] + earlier:,}")
    if not record["ended_by_votes"]:
        safe = SAFE
    elif record["stopped_by_budget"] and budget.by_votes:
        safe = "not safe to publish: the budget ended it, so the votes did"
    else:
        safe = "not safe to publish: the votes may have ended an earlier call, through its budget"
    screen.print(in_words(record, safe), soft_wrap=True)
    if budget.max_epsilon is not None:
        how = f"--charging {budget.charging} --bound {budget.bound}"
        private = "; private" if budget.by_votes else ""
        screen.print(f"budget: {of_budget:.2f} of {budget.max_epsilon:g} spent ({how}{private})", soft_wrap=True)
    if everything:
        table = Table("spent by this ledger", "epsilon", "what it is", box=box.SIMPLE)
        for name in SPENT:
            table.add_row(name.removeprefix("epsilon_").replace("_", " "), f"{record[name]:.4f}", MEANINGS[name])
        screen.print(table)
    show(f"answers: {record['output']}\nledger: {record['ledger']} (private)")
    if everything:
        screen.print(f"note: {record['warning']}", soft_wrap=True)

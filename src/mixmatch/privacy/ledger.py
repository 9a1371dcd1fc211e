"""The budget: a file of what was asked, answered and charged, crash-safe and locked against a second process.

A ledger is an append-only file of JSON lines. Its first line says which votes, mechanism and orders it belongs to.
A query leaves two lines. "charge" is written and flushed to disk before any noise is drawn and reserves the cost of an
answer; "answer" is written and flushed before the answer is given to anyone and settles what was spent. So a crash
leaves either nothing (nothing was drawn), or a charge without an answer: it stays charged in full, and the query is
answered under that charge, since no one has seen an answer. Nothing has followed from a line that a crash cut short.
"ended" says that a budget which depends on the votes ended a call: then how many queries were asked depends on them.

Lines are a chain: each carries the hash of all before it. How many there are and the hash of them all, the head, is
kept in a second file, NAME.head, written after the lines and before anything follows from them. So a ledger that was
cut, filled with zeros, edited or emptied is found out. Whoever can write both files can still forge both.

The ledger is private: its charges are computed from the votes.
"""

from __future__ import annotations

import hashlib
import json
import operator
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mixmatch.privacy import accountant
from mixmatch.privacy.accountant import Accountant, Costs, Epsilon
from mixmatch.privacy.checks import PrivacyError, check_delta, check_known, positive
from mixmatch.privacy.mechanisms import Answer, Mechanism, describe, noise_for
from mixmatch.privacy.votes import Floats, Votes, array_sha256
from mixmatch.storage import PRIVATE, open_own, parse_json, read_json, replace_durably, sync_folder, try_lock

FORMAT = 2
UNCHAINED = 1
"""The format whose lines carry no hash. Such a ledger is continued with lines that do."""
MOST_BYTES = 2**30
"""Bytes of a ledger, at most: some millions of answers."""

BLOCK = 64
SHOWN_ORDERS = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


class Budget(NamedTuple):
    """What may be spent: epsilon at delta, by a way of charging, a bound and a conversion. None: no limit."""

    max_epsilon: float | None
    delta: float
    charging: str = "realised"
    bound: str = "data-dependent"
    conversion: str = "classic"

    @property
    def by_votes(self) -> bool:
        """Whether the votes decide where it ends."""
        return (self.charging, self.bound) != ("all", "data-independent")

    def check(self) -> None:
        check_delta(self.delta)
        if self.max_epsilon is not None:
            positive("max-epsilon", self.max_epsilon)
        check_known("conversion", self.conversion, accountant.CONVERSIONS)
        check_known("way of charging", self.charging, accountant.CHARGING)
        check_known("bound", self.bound, accountant.BOUNDS)


class Chain(NamedTuple):
    """The number of lines of a ledger, and their hash."""

    lines: int = 0
    sha256: str = ""

    def then(self, line: bytes) -> Chain:
        return Chain(self.lines + 1, hashlib.sha256(self.sha256.encode() + line).hexdigest())


def head_of(path: Path) -> Path:
    """Where the head of a ledger is kept."""
    return path.with_name(f"{path.name}.head")


def read_lines(path: Path, content: bytes) -> tuple[list[dict[str, Any]], Chain, int]:
    """The lines of a ledger, their chain, and their size in bytes: what follows is a line that a crash cut short.
    Raises an error if lines that were written are missing or changed."""
    try:
        kept = read_json(head_of(path), follow=True)
        head = Chain(operator.index(kept["lines"]), str(kept["sha256"]))
    except FileNotFoundError:
        head = Chain()
    except (OSError, ValueError, KeyError, TypeError):
        raise _lost(head_of(path), "cannot be read") from None
    lines: list[dict[str, Any]] = []
    chains, end = [Chain()], 0
    raw = content.split(b"\n")
    for number, text in enumerate(raw if raw[-1] else raw[:-1], 1):
        line, expected = _parse(text), chains[-1].sha256
        if line is None and number == len(raw) and number > head.lines:
            break  # cut short by a crash before anything followed from it
        if line is None:
            raise _lost(path, f"is damaged: line {number} cannot be read")
        begun_unchained = (lines[0] if lines else line).get("ledger") == UNCHAINED
        chained = not begun_unchained or any("before" in last for last in lines[-1:])
        if line.get("before", None if chained else expected) != expected:
            raise _lost(path, f"is damaged: lines before line {number} have changed")
        lines.append(line)
        chains.append(chains[-1].then(text))
        end += len(text) + 1
    if head.lines >= len(chains) or chains[head.lines] != head:
        raise _lost(path, f"is damaged: its first {head.lines:,} lines are not those that were written")
    if not head.lines and len(lines) > 1 and lines[0].get("ledger") != UNCHAINED:
        raise _lost(path, f"has lost {head_of(path).name}, which says how long it must be")
    return lines, chains[-1], min(end, len(content))


def _lost(path: Path, what: str) -> PrivacyError:
    return PrivacyError(
        f"{path} {what}, so what was spent cannot be known: restore the ledger and its head from a backup, or ask "
        "these teachers nothing more"
    )


class Ledger:
    """One ledger file, held against other processes from opening to closing.

    `answers` are the answers so far by row; `open_charges` the rows charged but not yet answered; `ended_by_votes`
    whether the votes ended a call, through its budget. A ledger of version 0.1.0 does not say: it may have been.
    """

    def __init__(self, path: Path, votes: Votes, mechanism: Mechanism, probabilities: Floats | None = None) -> None:
        self.path, self.votes, self.mechanism, self.probabilities = path, votes, mechanism, probabilities
        self.orders = accountant.default_orders(mechanism)
        self.answers: dict[int, Answer] = {}
        self.open_charges: list[int] = []
        self.ended_by_votes = False
        self._settled = Accountant(mechanism, self.orders)
        self._chain = Chain()
        self._file = self._open()
        try:
            with self._writing():
                self._load()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    # -- asking ----------------------------------------------------------------------------------------------------

    def affordable(self, rows: Sequence[int], budget: Budget) -> int:
        """How many of these queries, in order, surely stay within the budget, even if all of them are answered."""
        if budget.max_epsilon is None:
            return len(rows)
        of = self._costs(rows, budget.bound)
        worst = "all" if budget.charging == "realised" else budget.charging
        totals = self.rdp(budget.charging, budget.bound) + accountant.charged(of, worst).cumsum(axis=0)
        values = accountant.epsilons(totals, self.orders, budget.delta, budget.conversion).min(axis=1)
        crossed = np.flatnonzero(values > budget.max_epsilon)
        return int(crossed[0]) if len(crossed) else len(rows)

    def reserve(self, rows: Sequence[int]) -> None:
        """Charge queries, to disk, before any noise is drawn for them."""
        for row in rows:
            if row in self.answers or row in self.open_charges:
                raise PrivacyError(f"query {row} is already in {self.path}")
        of = self._costs(rows, "data-dependent")
        rdp = accountant.charged(of, "all")
        self._append([{"charge": row, "rdp": self._shown(rdp[i])} for i, row in enumerate(rows)])
        self.open_charges.extend(rows)

    def settle(self, answers: dict[int, Answer]) -> None:
        """Record answers to reserved queries, to disk, before anyone sees them. Refused ones cost the check alone."""
        rows = list(answers)
        for row in rows:
            if row not in self.open_charges:
                raise PrivacyError(f"query {row} is not reserved in {self.path}")
        of = self._costs(rows, "data-dependent")
        answered = np.array([answer.by_teachers for answer in answers.values()], dtype=bool)
        rdp = accountant.charged(of, "realised", answered)
        self._append(
            [
                {"answer": row, "label": answer.label, "source": answer.source, "rdp": self._shown(rdp[i])}
                for i, (row, answer) in enumerate(answers.items())
            ]
        )
        self._add(answers)
        self.answers.update(answers)
        self.open_charges = [row for row in self.open_charges if row not in answers]

    def answer_open(self, seed: int | None) -> None:
        """Draw the noise for the reserved queries, and record their answers."""
        answers = {}
        for row in self.open_charges:
            probabilities = None if self.probabilities is None else self.probabilities[row]
            answers[row] = self.mechanism.answer(self.votes.counts[row], noise_for(seed, row), probabilities)
        if answers:
            self.settle(answers)

    def end(self, budget: Budget) -> None:
        """Record that a budget ended a call, to disk, before anyone sees where."""
        if budget.by_votes and not self.ended_by_votes:
            self._append([{"ended": budget._asdict()}])
            self.ended_by_votes = True

    def epsilon(self, budget: Budget, charging: str | None = None, bound: str | None = None) -> Epsilon:
        """What has been spent, by the budget's way of charging and bound or another."""
        if not self.answers and not self.open_charges:
            return Epsilon(0.0, float(self.orders[-1]))
        rdp = self.rdp(charging or budget.charging, bound or budget.bound)
        return accountant.to_epsilon(rdp, self.orders, budget.delta, budget.conversion)

    def rdp(self, charging: str, bound: str = "data-dependent") -> Floats:
        """The total so far at every order. A charge without an answer counts as answered."""
        total = self._settled.rdp(charging, bound)
        if not self.open_charges:
            return total.copy()
        worst = "all" if charging == "realised" else charging
        return np.asarray(total + accountant.charged(self._costs(self.open_charges, bound), worst).sum(axis=0))

    # -- the file --------------------------------------------------------------------------------------------------

    def _header(self) -> dict[str, Any]:
        return {
            "ledger": FORMAT,
            "votes_sha256": self.votes.sha256,
            "queries": self.votes.queries,
            "classes": self.votes.classes,
            "teachers": self.votes.teachers,
            **describe(self.mechanism),
            "baseline_sha256": None if self.probabilities is None else array_sha256(self.probabilities),
            "rdp_orders": [order for order in SHOWN_ORDERS if order in self.orders],
        }

    def _open(self) -> FileIO:
        try:
            if not self.path.parent.exists():
                self.path.parent.mkdir(0o700, parents=True)
            handle = open_own(self.path, PRIVATE, most=MOST_BYTES, follow=True)
            file = os.fdopen(handle, "ab+", buffering=0)
            if os.name == "posix":
                self.path.chmod(PRIVATE)  # one that was made before, too
        except OSError as error:
            raise PrivacyError(
                f"cannot write {self.path}: {error.strerror}; choose another file with ledger="
            ) from None
        if not try_lock(file.fileno()):
            file.close()
            raise PrivacyError(f"another process is spending from {self.path}: wait for it to end")
        return file

    def _load(self) -> None:
        """Read the ledger, check that it is whole and this one's, and cut off a last line that a crash left
        unfinished."""
        self._file.seek(0)
        content = self._file.read()
        foreign = _parse(content.split(b"\n")[0]) is None and not content.startswith(b'{"ledger"'[: len(content)])
        if foreign and not head_of(self.path).exists():
            raise PrivacyError(f"{self.path} is not a ledger: nothing was changed")
        lines, self._chain, end = read_lines(self.path, content)
        if lines:
            self._check_header(lines[0])
            self.ended_by_votes = lines[0]["ledger"] == UNCHAINED
            for number, parsed in enumerate(lines[1:], 2):
                self._replay(number, parsed)
            self._add(self.answers)
        if end < len(content):
            self._file.truncate(end)
        elif content and not content.endswith(b"\n"):
            self._write(b"\n")
        if not lines:
            self._append([self._header()])
            sync_folder(self.path.parent)
        else:
            self._keep_head()

    def _keep_head(self) -> None:
        replace_durably(head_of(self.path), json.dumps(self._chain._asdict()).encode(), PRIVATE)

    def _check_header(self, found: dict[str, Any]) -> None:
        expected = self._header()
        if found.get("ledger") not in (UNCHAINED, FORMAT):
            raise PrivacyError(f"{self.path} is not a ledger of this version: nothing was changed")
        if found.get("votes_sha256") != expected["votes_sha256"]:
            raise PrivacyError(f"{self.path} is the ledger of other votes: give these their own with ledger=")
        for key in ("mechanism", "parameters", "baseline_sha256"):
            if found.get(key) != expected[key]:
                raise PrivacyError(
                    f"{self.path} was begun with {key} {json.dumps(found.get(key))}, not {json.dumps(expected[key])}: "
                    "use the same"
                )

    def _replay(self, number: int, line: dict[str, Any]) -> None:
        if "ended" in line:
            self.ended_by_votes = True
            return
        try:
            if "charge" in line:
                row = int(line["charge"])
                if row in self.answers or row in self.open_charges or not 0 <= row < self.votes.queries:
                    raise KeyError
                self.open_charges.append(row)
            else:
                row, label, source = int(line["answer"]), int(line["label"]), str(line["source"])
                if row not in self.open_charges or not -1 <= label < self.votes.classes:
                    raise KeyError
                self.open_charges.remove(row)
                self.answers[row] = Answer(label, source)
        except (KeyError, TypeError, ValueError, OverflowError):
            raise _lost(self.path, f"is damaged: line {number} makes no sense after those before it") from None

    def _append(self, lines: Sequence[dict[str, Any]]) -> None:
        """All lines or none: what a full disk left of them is taken back, since nothing followed from it yet."""
        end, before, content = self._file.seek(0, os.SEEK_END), self._chain, b""
        for line in lines:
            text = json.dumps({**line, "before": self._chain.sha256}).encode()
            self._chain, content = self._chain.then(text), content + text + b"\n"
        with self._writing():
            try:
                self._write(content)
                self._keep_head()
            except OSError:
                self._chain = before
                self._file.truncate(end)
                if before.lines:
                    with suppress(OSError):
                        self._keep_head()
                raise

    def _write(self, content: bytes) -> None:
        while content:
            content = content[self._file.write(content) :]
        os.fsync(self._file.fileno())

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise PrivacyError(
                f"cannot write {self.path} ({error.strerror or error}): make room, then run it again"
            ) from None

    # -- totals ----------------------------------------------------------------------------------------------------

    def _costs(self, rows: Sequence[int], bound: str) -> Costs:
        chosen = list(rows)
        probabilities = None if self.probabilities is None else self.probabilities[chosen]
        return accountant.costs(self.mechanism, self.votes.counts[chosen], self.orders, probabilities, bound)

    def _add(self, answers: dict[int, Answer]) -> None:
        rows = list(answers)
        answered = np.array([answer.by_teachers for answer in answers.values()], dtype=bool)
        probabilities = None if self.probabilities is None else self.probabilities[rows]
        self._settled.charge(self.votes.counts[rows], answered, probabilities)

    def _shown(self, rdp: Floats) -> list[float]:
        return [float(rdp[np.flatnonzero(self.orders == order)[0]]) for order in SHOWN_ORDERS if order in self.orders]


def _parse(line: bytes) -> dict[str, Any] | None:
    """A line of a ledger; None if it is damaged."""
    try:
        value = parse_json(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def answer_queries(
    ledger: Ledger,
    rows: Sequence[int],
    budget: Budget,
    seed: int | None = None,
    *,
    block: int = BLOCK,
) -> dict[int, Answer]:
    """Answer queries by row number, in order, until the next one could cross the budget. Rows after that are left out.

    A row already in the ledger keeps its answer and costs nothing. Up to `block` queries share a write to disk. With a
    seed, the noise of a query is a function of (seed, row), so an interrupted run resumes as it would have continued.
    """
    budget.check()
    wanted = list(dict.fromkeys(int(row) for row in rows))
    outside = [row for row in wanted if not 0 <= row < ledger.votes.queries]
    if outside:
        raise PrivacyError(f"query {outside[0]} is not in the votes (0..{ledger.votes.queries - 1})")
    ledger.answer_open(seed)
    todo = [row for row in wanted if row not in ledger.answers]
    while todo:
        chosen = todo[:block]
        chosen = chosen[: ledger.affordable(chosen, budget)]
        if not chosen:
            ledger.end(budget)
            break
        ledger.reserve(chosen)
        ledger.answer_open(seed)
        todo = todo[len(chosen) :]
    return {row: ledger.answers[row] for row in wanted if row in ledger.answers}

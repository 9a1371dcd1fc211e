"""The teachers' answers to queries: what was asked, in which order, and what came back. Read and written here."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mixmatch.data.published.pate_answers import ANSWERS
from mixmatch.data.split import Indices
from mixmatch.privacy.checks import PrivacyError
from mixmatch.privacy.ledger import read_lines
from mixmatch.privacy.mechanisms import Answer
from mixmatch.privacy.votes import REFUSED, Votes, read_integers, read_json, reading
from mixmatch.text import csv_text


@dataclass(frozen=True)
class Answers:
    """Queries by row number, in the order they were asked, and their labels, `REFUSED` where there is none."""

    rows: Indices
    labels: Indices
    kept: npt.NDArray[np.bool_] | None = None
    """Where a student kept its own label (interactive-gnmax), which is free; None if nowhere."""
    images: int | None = None
    """How many images there were to ask about; None where the file lists only what was asked."""
    classes: tuple[str, ...] | None = None
    """The classes in the order in which the labels number them, where the file says so."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def answered(self) -> npt.NDArray[np.bool_]:
        return np.asarray(self.labels != REFUSED)

    @property
    def by_teachers(self) -> npt.NDArray[np.bool_]:
        """Where the teachers' noisy vote gave the label. Only these cost more than the check."""
        return self.answered if self.kept is None else self.answered & ~self.kept

    def first(self, queries: int) -> Answers:
        """The first queries, and no more."""
        if not 1 <= queries <= len(self):
            raise PrivacyError(f"queries={queries}: the answers are to {len(self):,} queries")
        kept = None if self.kept is None else self.kept[:queries]
        return replace(self, rows=self.rows[:queries], labels=self.labels[:queries], kept=kept)


def collect(given: Mapping[int, Answer], images: int, classes: Sequence[str] | None = None) -> Answers:
    """Answers by row as one object. `images` are all that could have been asked about."""
    return Answers(
        np.array(list(given), np.int64),
        np.array([answer.label for answer in given.values()], np.int64),
        np.array([answer.source == "student" for answer in given.values()], bool),
        images,
        None if classes is None else tuple(classes),
    )


def authors() -> Answers:
    """The authors' answers to the first 250 queries, 138 of them answered."""
    labels = [REFUSED if c == "." else int(c) for c in ANSWERS]
    return Answers(np.arange(len(labels)), np.array(labels, np.int64))


# -- files -------------------------------------------------------------------------------------------------------------


def to_json(answers: Answers) -> str:
    """A label for every image, -1 where it was refused or not asked; the queries in order; the rows kept, if any."""
    labels = np.full(answers.images or 0, REFUSED)
    labels[answers.rows] = answers.labels
    record: dict[str, Any] = {"label": labels.tolist(), "queries": answers.rows.tolist()}
    if answers.kept is not None and answers.kept.any():
        record["kept"] = answers.rows[answers.kept].tolist()
    if answers.classes is not None:
        record["classes"] = list(answers.classes)
    return json.dumps(record) + "\n"


def to_csv(answers: Answers) -> str:
    """A line for every query asked."""
    source = np.where(answers.by_teachers, "teachers", np.where(answers.answered, "student", ""))
    rows = zip(answers.rows.tolist(), answers.labels.tolist(), source.tolist(), strict=True)
    return csv_text([("query", "label", "source"), *rows])


def read(path: Path) -> Answers:
    """Answers from what `pate label` wrote (JSON or CSV), from its ledger (.jsonl), or from a label for every image.

    The last is the format of the authors' noisy labels: `{"label": [...]}`, -1 where refused, every image asked in
    order.
    """
    if path.suffix == ".jsonl":
        return _read_ledger(path)
    if (by_row := _read_by_row(path)) is not None:
        return _checked(path, list(by_row), [answer.label for answer in by_row.values()])
    labels = read_integers(path)
    about = _about(path)
    rows, classes = about.get("queries"), about.get("classes")
    if rows is None:
        rows = list(range(len(labels)))
    if not isinstance(rows, list) or not all(isinstance(r, int) and 0 <= r < len(labels) for r in rows):
        raise PrivacyError(f'{path}: "queries" must be row numbers of its {len(labels):,} labels')
    if classes is not None and not (isinstance(classes, list) and all(isinstance(c, str) for c in classes)):
        raise PrivacyError(f'{path}: "classes" must be a list of names')
    found = _checked(path, rows, labels[rows].tolist())
    return replace(found, images=len(labels), classes=None if classes is None else tuple(classes))


def read_for_votes(path: Path, votes: Votes, rows: Indices) -> Answers:
    """The answers to the queries `rows`: a label for each row of the vote file, or for each of these queries.

    JSON (`{"label": [...]}` or a list), `.npy`, CSV of labels, or CSV with the columns query and label.
    """
    if (by_row := _read_by_row(path)) is not None:
        missing = [row for row in rows.tolist() if row not in by_row]
        if missing:
            raise PrivacyError(f"{path}: no answer to query {missing[0]}")
        found = collect({row: by_row[row] for row in rows.tolist()}, votes.queries)
        labels, kept = found.labels, found.kept
    else:
        labels = read_integers(path)
        if len(labels) not in (votes.queries, len(rows)):
            raise PrivacyError(
                f"{path}: {len(labels)} answers, but there are {votes.queries} rows of votes and {len(rows)} queries"
            )
        about = _about(path)
        kept = np.isin(rows, about.get("kept", []))
        if isinstance(about.get("queries"), list) and len(never := rows[~np.isin(rows, about["queries"])]):
            raise PrivacyError(f"{path}: no answer to query {never[0]}")
        labels = labels[rows] if len(labels) == votes.queries else labels
    if ((labels < REFUSED) | (labels >= votes.classes)).any():
        raise PrivacyError(f"{path}: answers must be -1 (refused) or a class 0..{votes.classes - 1}")
    return Answers(rows, labels, kept)


def _read_by_row(path: Path) -> dict[int, Answer] | None:
    """Answers of a CSV with the columns query and label (and source), if it is one."""
    if path.suffix in (".json", ".npy", ".npz"):
        return None
    with reading(path), path.open(newline="") as file:
        reader = csv.DictReader(file)
        if not {"query", "label"} <= set(reader.fieldnames or ()):
            return None
        return {int(line["query"]): Answer(int(line["label"]), line.get("source") or "") for line in reader}


def _about(path: Path) -> dict[str, Any]:
    """What `pate label` writes beside the labels: the rows asked, those a student kept, the classes."""
    content = read_json(path) if path.suffix == ".json" else None
    return content if isinstance(content, dict) else {}


def _read_ledger(path: Path) -> Answers:
    with reading(path):
        try:
            (header, *lines), *_ = read_lines(path, path.read_bytes())
            if "ledger" not in header:
                raise ValueError
            answers = [line for line in lines if "answer" in line]
            rows, labels = ([int(line[name]) for line in answers] for name in ("answer", "label"))
        except (ValueError, KeyError, TypeError):
            raise PrivacyError(f"{path} is not a ledger of pate label, or it is damaged") from None
    return _checked(path, rows, labels)


def _checked(path: Path, rows: Sequence[int], labels: Sequence[int]) -> Answers:
    if not rows:
        raise PrivacyError(f"{path}: no queries were asked")
    if len(set(rows)) < len(rows):
        raise PrivacyError(f"{path}: a query is listed twice")
    if min(rows) < 0 or min(labels) < REFUSED:
        raise PrivacyError(f"{path}: queries are row numbers from 0, answers are classes or -1 (refused)")
    return Answers(np.array(rows, np.int64), np.array(labels, np.int64))


# -- classes -----------------------------------------------------------------------------------------------------------


def renumber(answers: Answers, names: Sequence[str], order: str | None = None) -> Answers:
    """The same answers numbered as a data set numbers its classes, which are called `names`.

    Args:
        order: the classes in the order in which the answers number them: "0123456789", or "cat,dog,...". By default
            what the file says. A file that does not say is taken to number classes as the data set does, unless the
            data set's classes are numbers themselves and not in order: SVHN's first class is the digit 1, so answers
            that count from the digit 0 would be misread.
    """
    said = answers.classes
    if order is not None:
        said = tuple(part.strip() for part in order.split(",")) if "," in order else tuple(order)
        if answers.classes is not None and answers.classes != said:
            raise PrivacyError(f"classes={order}: the answers say that theirs are {','.join(answers.classes)}")
    if said is None and _misleading(names) and not _are_the_authors(answers):
        in_order = "".join(sorted(names))
        raise PrivacyError(
            f"the answers do not say which class is which: give classes={''.join(names)} if 0 means '{names[0]}' as "
            f"in this data set, or classes={in_order} if 0 means '{in_order[0]}' as in the public SVHN votes"
        )
    said = tuple(names) if said is None else said
    if sorted(said) != sorted(names):
        raise PrivacyError(f"the answers are of the classes {','.join(said)}, but the data set has {','.join(names)}")
    if answers.labels.max() >= len(names):
        raise PrivacyError(f"an answer is {answers.labels.max()}, but there are {len(names)} classes")
    number = np.array([*(list(names).index(name) for name in said), REFUSED])  # the last is that of -1
    return replace(answers, labels=number[answers.labels], classes=tuple(names))


def _misleading(names: Sequence[str]) -> bool:
    return all(name.isdigit() for name in names) and list(names) != [str(i) for i in range(len(names))]


def _are_the_authors(answers: Answers) -> bool:
    """Whether these are the published noisy labels, whose numbering is known."""
    known = authors()
    count = min(len(answers), len(known))
    return (
        count >= 100
        and np.array_equal(answers.rows[:count], known.rows[:count])
        and np.array_equal(answers.labels[:count], known.labels[:count])
    )

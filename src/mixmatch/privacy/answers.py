"""The teachers' answers as a student gets them: what was asked, in which order, and what came back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mixmatch.data.split import Indices
from mixmatch.privacy.checks import PrivacyError
from mixmatch.privacy.votes import REFUSED, read_answers_by_row, read_integers, read_json

AUTHORS = (
    "4..9..80.7.54...0...1..81.3.3...4.904.011.5...019.80..87.46.11.3.9...1.40.35.420..60.060.06353316.6..71..1...5265"
    "..61..1770.09..11....7..0.2.135..0..2..80..853538..0.01.16411.3185....037..0......250.26..4..09360912.200..9.6.1."
    ".1..14.5.0.52.6.0..6292."
)
"""The noisy labels of the paper's authors for the first 250 SVHN test images (Confident-GNMax, T 200, sigma1 200,
sigma2 40): a class a query, numbered as SVHN's (0 is the digit 1, 9 the digit 0), a dot where refused."""


@dataclass(frozen=True)
class Asked:
    """Queries by row number, in the order they were asked, and their answers, `REFUSED` where there is none."""

    rows: Indices
    labels: Indices
    images: int | None = None
    """How many images the file has a label for; None where it lists only what was asked."""
    classes: tuple[str, ...] | None = None
    """The classes in the order in which the answers number them, where the file says so."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def answered(self) -> npt.NDArray[np.bool_]:
        return np.asarray(self.labels != REFUSED)

    def first(self, queries: int) -> Asked:
        """The first queries, and no more."""
        if not 1 <= queries <= len(self):
            raise PrivacyError(f"--queries {queries}: the answers are to {len(self):,} queries")
        return replace(self, rows=self.rows[:queries], labels=self.labels[:queries])


def authors() -> Asked:
    """The authors' answers to the first 250 queries, 138 of them answered."""
    labels = [REFUSED if c == "." else int(c) for c in AUTHORS]
    return Asked(np.arange(len(labels)), np.array(labels, np.int64))


def read(path: Path) -> Asked:
    """Answers from what `pate label` wrote (JSON or CSV), from its ledger (.jsonl), or from a label for every image.

    The last is the format of the authors' noisy labels: `{"label": [...]}`, -1 where refused, every image asked in
    order.
    """
    if path.suffix == ".jsonl":
        return _read_ledger(path)
    if (by_row := read_answers_by_row(path)) is not None:
        return _asked(path, list(by_row), [label for label, _ in by_row.values()])
    labels = read_integers(path)
    about = read_json(path) if path.suffix == ".json" else {}
    about = about if isinstance(about, dict) else {}
    rows, classes = about.get("queries"), about.get("classes")
    if rows is None:
        rows = list(range(len(labels)))
    if not isinstance(rows, list) or not all(isinstance(r, int) and 0 <= r < len(labels) for r in rows):
        raise PrivacyError(f'{path}: "queries" must be row numbers of its {len(labels):,} labels')
    if classes is not None and not (isinstance(classes, list) and all(isinstance(c, str) for c in classes)):
        raise PrivacyError(f'{path}: "classes" must be a list of names')
    found = _asked(path, rows, labels[rows].tolist())
    return replace(found, images=len(labels), classes=None if classes is None else tuple(classes))


def _read_ledger(path: Path) -> Asked:
    rows, labels = [], []
    try:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines[1:]:
            if "answer" in line:
                rows.append(int(line["answer"]))
                labels.append(int(line["label"]))
        if "ledger" not in lines[0]:
            raise ValueError
    except FileNotFoundError:
        raise PrivacyError(f"{path} does not exist") from None
    except OSError as error:
        raise PrivacyError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, IndexError):
        raise PrivacyError(f"{path} is not a ledger of pate label, or it is damaged") from None
    return _asked(path, rows, labels)


def _asked(path: Path, rows: Sequence[int], labels: Sequence[int]) -> Asked:
    if not rows:
        raise PrivacyError(f"{path}: no queries were asked")
    if len(set(rows)) < len(rows):
        raise PrivacyError(f"{path}: a query is listed twice")
    if min(rows) < 0 or min(labels) < REFUSED:
        raise PrivacyError(f"{path}: queries are row numbers from 0, answers are classes or -1 (refused)")
    return Asked(np.array(rows, np.int64), np.array(labels, np.int64))


def renumber(asked: Asked, names: Sequence[str], order: str | None = None) -> Asked:
    """The same answers numbered as a data set numbers its classes, which are called `names`.

    Args:
        order: the classes in the order in which the answers number them: "0123456789", or "cat,dog,...". By default
            what the file says. A file that does not say is taken to number classes as the data set does, unless the
            data set's classes are numbers themselves and not in order: SVHN's first class is the digit 1, and who
            counts from the digit 0 would be misunderstood.
    """
    said = asked.classes
    if order is not None:
        said = tuple(part.strip() for part in order.split(",")) if "," in order else tuple(order)
        if asked.classes is not None and asked.classes != said:
            raise PrivacyError(f"--classes {order}: the answers say that theirs are {','.join(asked.classes)}")
    if said is None and _misleading(names) and not _are_the_authors(asked):
        in_order = "".join(sorted(names))
        raise PrivacyError(
            f"the answers do not say which class is which: say --classes {''.join(names)} if 0 means '{names[0]}' as "
            f"in this data set, or --classes {in_order} if 0 means '{in_order[0]}' as in the public SVHN votes"
        )
    said = tuple(names) if said is None else said
    if sorted(said) != sorted(names):
        raise PrivacyError(f"the answers are of the classes {','.join(said)}, but the data set has {','.join(names)}")
    if asked.labels.max() >= len(names):
        raise PrivacyError(f"an answer is {asked.labels.max()}, but there are {len(names)} classes")
    number = np.array([*(list(names).index(name) for name in said), REFUSED])  # the last is that of -1
    return replace(asked, labels=number[asked.labels], classes=tuple(names))


def _misleading(names: Sequence[str]) -> bool:
    return all(name.isdigit() for name in names) and list(names) != [str(i) for i in range(len(names))]


def _are_the_authors(asked: Asked) -> bool:
    """Whether these are the published noisy labels, whose numbering is known."""
    known = authors()
    count = min(len(asked), len(known))
    return (
        count >= 100
        and np.array_equal(asked.rows[:count], known.rows[:count])
        and np.array_equal(asked.labels[:count], known.labels[:count])
    )


def student_part(pool: int | str, rows: Indices, answers: Indices, valid: Indices | None = None) -> dict[str, Any]:
    """What a student run's settings keep: the size of its pool, and the answers to learn from."""
    kept: dict[str, Any] = {"pool": pool, "rows": rows.tolist(), "answers": answers.tolist()}
    return {"student": kept if valid is None else {**kept, "valid": valid.tolist()}}

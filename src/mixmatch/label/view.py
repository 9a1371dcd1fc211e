"""The data for the page: the state as JSON, and all pictures as columns of small numbers."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from mixmatch.label.body import Body
from mixmatch.label.book import Book
from mixmatch.label.state import BROKEN, MARKS, NONE, SKIP, TAKEN, UNLABELED, Mark, State, Step
from mixmatch.text import printable

EXAM, TEST, CONFLICT, GONE, UNREADABLE, FOREIGN = 1, 2, 4, 8, 16, 32
"""Flags of a picture: of the exam, of a test set that was there before, in conflict, gone, cannot be decoded, label not
given on this page."""

MOST_CHANGES = 20_000
"""Pictures in an answer of changes; a page that missed more reads everything again."""

AT_ONCE = 10_000
"""Pictures in an answer while there are more to be found."""

GROUP = 500
"""Pictures of a group that are shown at once."""


class Guesses:
    """What a run guesses of each picture: probabilities (N, L), with the classes' names."""

    def __init__(
        self, run: str, classes: Sequence[str], numbers: npt.ArrayLike, probabilities: npt.NDArray[Any]
    ) -> None:
        self.run, self.classes = run, list(classes)
        self.numbers = np.asarray(numbers, np.int64)
        self.best = probabilities.argmax(axis=1) if len(probabilities) else np.zeros(0, np.int64)
        self.sure = probabilities.max(axis=1) if len(probabilities) else np.zeros(0, np.float16)


class View:
    """The columns of all pictures, kept up to date event by event. Use it while holding the book's lock."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.scanning = False
        self.found: int | None = len(book.listing) or None
        """Pictures that the last whole scan had found; those of the kept list while there was none."""
        self.notes: dict[str, str] = {}
        """Things to show once, by a key."""
        self.training: Callable[[], Body] = dict
        """The short form of what training does."""
        self.guesses: Guesses | None = None
        self._label = np.full(0, UNLABELED, np.int16)
        self._who = np.full(0, -1, np.int16)
        self._flags = np.zeros(0, np.uint8)
        self._seq = np.zeros(0, np.int64)
        self._guess = np.full(0, -1, np.int16)
        self._sure = np.zeros(0, np.int16)
        self._names: tuple[int, list[str]] = (0, [])
        self._server = uuid4().hex[:8]
        book.changed = self.refresh
        self.rebuild()

    # ---------------------------------------------------------------------------------------------------------- columns

    def grow(self) -> None:
        """Make room for pictures that were found since."""
        listing, have = self.book.listing, len(self._label)
        if (more := len(listing) - have) <= 0:
            return
        self._label = np.concatenate([self._label, np.full(more, UNLABELED, np.int16)])
        self._who = np.concatenate([self._who, np.full(more, -1, np.int16)])
        self._flags = np.concatenate([self._flags, np.zeros(more, np.uint8)])
        self._seq = np.concatenate([self._seq, np.zeros(more, np.int64)])
        self._guess = np.concatenate([self._guess, np.full(more, -1, np.int16)])
        self._sure = np.concatenate([self._sure, np.zeros(more, np.int16)])
        state = self.book.state
        tables = (state.marks, state.conflicts, state.exam, state.tests)
        if have:
            self.refresh(file for file in listing.files[have:] if any(file in table for table in tables))
        else:
            self.refresh(dict.fromkeys(chain(*tables)))

    def rebuild(self) -> None:
        """All columns from the state, as after files moved or went."""
        self._label, self._who, self._flags = self._label[:0], self._who[:0], self._flags[:0]
        self._guess, self._sure, self._seq = self._guess[:0], self._sure[:0], self._seq[:0]
        self.grow()
        self._flags[list(self.book.listing.gone)] |= GONE
        if self.guesses is not None:
            self.show_guesses(self.guesses)

    def refresh(self, files: Iterable[str]) -> None:
        """Update these files from the state."""
        state, numbers, room = self.book.state, self.book.listing.numbers, len(self._label)
        files = [file for file in files if numbers.get(file, room) < room]
        if not files:
            return
        at = np.array([numbers[file] for file in files])
        values, who, seq, source = zip(*[state.marks.get(file, _NO_MARK) for file in files], strict=True)
        self._label[at], self._who[at], self._seq[at] = values, who, seq
        flags = np.where([each in TAKEN for each in source], FOREIGN, 0) | (self._flags[at] & (GONE | UNREADABLE))
        for flag, table in ((EXAM, state.exam), (TEST, state.tests), (CONFLICT, state.conflicts)):
            if table:
                flags |= np.where([file in table for file in files], flag, 0)
        self._flags[at] = flags

    def digest(self) -> str:
        """Identifies all pictures and their labels."""
        found = hashlib.sha256("\0".join(self.book.listing.files).encode("utf-8", "surrogateescape"))
        for column in (self._label, self._who, self._flags):
            found.update(column.tobytes())
        return found.hexdigest()

    def unreadable(self, n: int) -> None:
        self._flags[n] |= UNREADABLE

    def show_guesses(self, guesses: Guesses | None) -> None:
        """Guesses of a run, by number; classes are found by name."""
        self.guesses = guesses
        self._guess[:], self._sure[:] = -1, 0
        if guesses is not None:
            ids = np.array([self.book.state.named(name) if name else -1 for name in guesses.classes], object)
            ids = np.array([-1 if i is None else i for i in ids], np.int16)
            self._guess[guesses.numbers] = ids[guesses.best]
            self._sure[guesses.numbers] = np.rint(1000 * guesses.sure.astype(np.float32)).astype(np.int16)

    def labels_after(self, seq: int) -> int:
        """Labels to train on that were given after an event."""
        return int(((self._seq > seq) & (self._label >= 0) & ((self._flags & (EXAM | TEST)) == 0)).sum())

    def column(self, name: str) -> npt.NDArray[np.int16]:
        """A column by name, guesses hidden where they must not be seen: an exam is taken blind."""
        if name in ("guess", "sure"):
            values = (self._guess if name == "guess" else self._sure).copy()
            values[(self._flags & EXAM) != 0] = -1 if name == "guess" else 0
            return values
        return {"label": self._label, "who": self._who, "flags": self._flags.astype(np.int16)}[name]

    # ---------------------------------------------------------------------------------------------------------- guesses

    def groups(self, least: float) -> Body:
        """Unlabeled pictures by guessed class, surest first. Never those of the exam."""
        self.grow()
        if self.guesses is None:
            return {"run": None, "least": least, "groups": []}
        hidden = (self._flags & (EXAM | TEST | GONE)) != 0
        free = (self._label == UNLABELED) & ~hidden & (self._guess >= 0) & (self._sure >= round(1000 * least))
        numbers = np.flatnonzero(free)
        numbers = numbers[np.argsort(-self._sure[numbers], kind="stable")]
        groups = []
        for c in self.book.state.classes:
            of_class = numbers[self._guess[numbers] == c.id]
            if len(of_class):
                shown = of_class[:GROUP]
                sure = self._sure[shown].tolist()
                groups.append({"class": c.name, "id": c.id, "total": len(of_class), "n": shown.tolist(), "sure": sure})
        return {"run": self.guesses.run, "least": least, "groups": groups}

    def least_sure(self, numbers: Sequence[int], most: int) -> list[int]:
        """The pictures among these that the model is least sure of."""
        given = np.array(numbers, np.int64)
        return [int(n) for n in given[np.argsort(self._sure[given], kind="stable")][:most]]

    # ----------------------------------------------------------------------------------------------------------- bodies

    @property
    def generation(self) -> str:
        """Another text means that all pictures should be read again."""
        run = "" if self.guesses is None else self.guesses.run
        return f"{self.book.listing.version}:{self.found}:{run}"

    def images(self, first: int) -> Body:
        """The columns from a number on."""
        self.grow()
        listing = self.book.listing
        # While files are found for the first time, a page gets some soon rather than all later.
        partly = self.scanning and self.found is None
        end = min(len(listing), first + AT_ONCE) if partly else len(listing)
        body: Body = {
            "listing": listing.id,
            "version": listing.version,
            "images": self.generation,
            "seq": self.book.state.seq,
            "from": first,
            "total": max(first, end),
            "scanning": partly,
            "name": self.shown_names()[first:end],
        }
        for name in ("label", "who", "flags", "guess", "sure"):
            body[name] = self.column(name)[first:end].tolist()
        if first == 0:
            body["order"] = None if partly else listing.in_order()
        return body

    def etag(self, first: int) -> str:
        """Changes with whatever `images` would answer. Another server's may be of another log."""
        found, unreadable = len(self.book.listing), int((self._flags & UNREADABLE).sum())
        shown = f"{self.generation}:{self.book.state.seq}:{first}:{found}:{unreadable}:{int(self.scanning)}"
        return f'"{self._server}:{shown}"'

    def state(self, who: str) -> Body:
        self.grow()
        book, state, listing = self.book, self.book.state, self.book.listing
        person = state.person(who)
        return {
            "folder": printable(book.root.resolve().name),
            "path": printable(str(book.root.resolve())),
            "who": who,
            "people": [p.name for p in state.people],
            "listing": listing.id,
            "version": listing.version,
            "images": self.generation,
            "seq": state.seq,
            "total": len(listing),
            "scanning": self.scanning,
            "gone": len(listing.gone),
            "classes": self._classes(),
            "counts": self._counts(who),
            "rate": self._rate(),
            "exam": self._exam(),
            "undo": _step(person.undo[-1] if person is not None and person.undo else None, state),
            "redo": _step(person.redo[-1] if person is not None and person.redo else None, state),
            "train": self.training(),
            "guesses": None if self.guesses is None else {"run": self.guesses.run, "count": len(self.guesses.numbers)},
            "disk": book.disk,
            "notes": [{"key": key, "text": text} for key, text in self.notes.items()],
        }

    def changes(self, who: str, since: int | None) -> Body:
        """The state, and the pictures that changed after an event. A page that knows events which the log does not
        have (it was put back from a copy) reads everything again."""
        files = None if since is None else self.book.state.changed_since(since)
        reset = files is None or len(files) > MOST_CHANGES
        numbers = sorted(self.book.listing.numbers.get(file, -1) for file in (files or ()) if not reset)
        body = self.state(who) | {"reset": reset}
        found = np.array([n for n in numbers if n >= 0], np.int64)
        columns = {name: self.column(name)[found].tolist() for name in ("label", "who", "flags")}
        return body | {"pictures": {"n": found.tolist(), **columns}}

    def _classes(self) -> list[Body]:
        state = self.book.state
        is_exam = (self._flags & EXAM) != 0
        room = len(state.classes)
        given = np.bincount(self._label[self._label >= 0], minlength=room)
        exam = np.bincount(self._label[is_exam & (self._label >= 0)], minlength=room)
        found = [state.classes[i] for i in state.order]
        return [
            {
                "id": c.id,
                "name": c.name,
                "key": c.key,
                "hidden": c.hidden,
                "labeled": int(given[c.id]),
                "exam": int(exam[c.id]),
            }
            for c in found
        ]

    def _counts(self, who: str) -> Body:
        label, there = self._label, (self._flags & GONE) == 0
        number = next((i for i, p in enumerate(self.book.state.people) if p.name == who), -2)
        return {
            "labeled": int((label >= 0).sum()),
            "learned": int(((label >= 0) & (self._flags & (EXAM | TEST) == 0)).sum()),
            "unlabeled": int(((label == UNLABELED) & there).sum()),
            **{name[1:]: int((label == value).sum()) for name, value in MARKS.items()},
            "conflicts": int(((self._flags & CONFLICT) != 0).sum()),
            "mine": int(((self._who == number) & (label != UNLABELED) & ((self._flags & FOREIGN) == 0)).sum()),
        }

    def _exam(self) -> Body:
        is_exam = ((self._flags & EXAM) != 0) & ((self._flags & GONE) == 0)
        label = self._label[is_exam]
        return {
            "size": len(label),
            "labeled": int((label >= 0).sum()),
            "left": int((label == UNLABELED).sum()),
            "skipped": int(np.isin(label, (SKIP, NONE, BROKEN)).sum()),
            "test_folder": int(((self._flags & TEST) != 0).sum()),
        }

    def _rate(self) -> Body:
        now = self.book.clock()
        midnight = time.mktime((*time.localtime(now)[:3], 0, 0, 0, 0, 0, -1))
        counts = {"minute": 0, "hour": 0, "today": 0}
        for t, n in reversed(self.book.state.given):
            if t < midnight and t < now - 3600:
                break
            if t > now:  # the clock was set back since
                continue
            counts["minute"] += n * (t > now - 60)
            counts["hour"] += n * (t > now - 3600)
            counts["today"] += n * (t >= midnight)
        return {name: max(0, n) for name, n in counts.items()}

    def shown_names(self) -> list[str]:
        """Files as text that can be shown; those of bytes that are no text have marks in their place."""
        known, names = self._names
        files = self.book.listing.files
        if known < len(files):
            names += [f if f.isascii() else f.encode("utf-8", "replace").decode() for f in files[known:]]
            self._names = len(files), names
        return names


_NO_MARK = Mark(UNLABELED, -1, 0, "")


def _step(step: Step | None, state: State) -> Body | None:
    return None if step is None else {"what": state.describe(step), "count": len(step.files)}

"""What to label next and which labels to look at again, found by a program in the background and kept until it is out
of date. A page never waits for it: it shows what there is, minus what has been labeled since."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import numpy as np

from mixmatch.data.packed import write_packed
from mixmatch.errors import MixMatchError
from mixmatch.label.body import Body
from mixmatch.label.choice import RUN, Choice
from mixmatch.label.listing import NAME as LISTING
from mixmatch.label.program import MOST_OUTPUT, Program, call, read_answer
from mixmatch.label.state import UNLABELED
from mixmatch.label.view import EXAM, GONE, TEST, UNREADABLE, View
from mixmatch.storage import read_plain

HIDDEN = EXAM | TEST | GONE | UNREADABLE
"""Flags of pictures that are not asked about."""
AHEAD = 200
"""Suggestions that are made at once; pages take them as they need them."""
STALE = 10
"""Suggestions are made again after this many labels."""
FEW_LABELS = "There are too few labels to check: two classes need five each."
HOW = (
    "Each label is compared with the labels of the pictures most like it, and with a model that never saw it "
    "(features: {}). Both are out of sample: the label itself is not used."
)


class Thinking:
    """Suggestions and doubts of a folder."""

    def __init__(self, view: View, home: Path, choice: Choice | None = None) -> None:
        self.view, self.book, self.home = view, view.book, home
        self.choice = choice or Choice()
        self._folder = home / "thinking"
        self._lock = threading.Lock()
        self._program: Program | None = None
        self._thread: threading.Thread | None = None
        self._ended = False
        self._wanted: list[str] = []
        self._answers: dict[str, Body] = {}
        self._errors: dict[str, str] = {}
        self._features_of: str | None = None
        """The version of the listing whose features are computed."""
        self._cache = ""
        """The file they are in."""

    def next(self, count: int) -> Body:
        """Pictures to label next, each with the reason. Call it while holding the book's lock."""
        answer = self._answers.get("next")
        free = self._free()
        items = [item for item in answer["items"] if item["n"] < len(free) and free[item["n"]]] if answer else []
        if self._is_stale("next", answer) or len(items) < min(count, int(free.sum())):
            self._want("next")
        if answer is None:
            numbers = np.flatnonzero(free).tolist()
            drawn = random.Random(self.book.state.seq).sample(numbers, min(count, len(numbers)))
            why = self._errors.get("next") or f"The pictures are being compared{self._done()}; until then, any will do."
            items = [{"n": n, "rule": "random", "why": "drawn at random"} for n in drawn]
            return {"ready": "next" in self._errors, "rule": "random", "why": why, "features": None, "items": items}
        rules = [item["rule"] for item in items] or ["random"]
        rule = max(set(rules), key=rules.count)
        # With a model that is newer than they are, better ones are being made.
        older = answer["run"] != self._run() and "next" not in self._errors
        why = f"{WHY[rule]} {NEWER}" if older else WHY[rule]
        return {"ready": not older, "rule": rule, "why": why, "features": answer["features"], "items": items[:count]}

    def suspects(self) -> Body:
        """Labels that may be wrong, and near copies with different labels. Call it while holding the book's lock."""
        answer, error = self._answers.get("suspects"), self._errors.get("suspects")
        if stale := self._is_stale("suspects", answer):
            self._want("suspects")
        current = not stale or error is not None
        if answer is None:
            why = error or "The labels are being compared with each other."
            found: Body = {"ready": current, "current": current, "at": None, "how": None}
            return found | {"why": why, "items": [], "copies": []}
        names = {c.name: c.id for c in self.book.state.classes}
        label = self.view.column("label")
        items = [item for item in answer["items"] if names.get(item["label"]) == label[item["n"]]]
        copies = [c for c in answer["copies"] if len({int(label[n]) for n in c["n"]} - {UNLABELED}) > 1]
        why = HOW.format(self.choice.computed) if answer["items"] or answer["labeled"] >= 10 else FEW_LABELS
        found = {"ready": True, "current": current, "at": answer["at"], "how": "neighbors and folds"}
        return found | {"why": why, "items": items, "copies": copies}

    def close(self) -> None:
        with self._lock:
            self._ended = True
            if self._program is not None:
                self._program.kill()
        if self._thread is not None:
            self._thread.join(5)

    # ---------------------------------------------------------------------------------------------------------- working

    def _done(self) -> str:
        """How many pictures have been looked at, where that is known."""
        try:
            lines = read_plain(self._folder / "features.output.txt", MOST_OUTPUT).decode(errors="replace").splitlines()
        except OSError:
            return ""
        return f" ({lines[-1]})" if lines else ""

    def _free(self) -> Any:
        flags, label = self.view.column("flags"), self.view.column("label")
        return (label == UNLABELED) & ((flags & HIDDEN) == 0)

    def _run(self) -> str | None:
        return None if self.view.guesses is None else self.view.guesses.run

    def _is_stale(self, what: str, answer: Body | None) -> bool:
        if answer is None or answer["run"] != self._run() or answer["version"] != self.book.listing.version:
            return True
        if what == "suspects":
            return bool(answer["at"] != self.book.state.changed_at)
        given: int = answer["given"]
        return abs(self._given() - given) >= STALE

    def _given(self) -> int:
        return int((self.view.column("label") != UNLABELED).sum())

    def _want(self, what: str) -> None:
        with self._lock:
            if self.view.scanning or self._ended or what in self._wanted:
                return
            self._wanted.append(what)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="thinking", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._wanted or self._ended:
                    self._thread = None
                    return
                what = self._wanted[0]
            try:
                self._make_features()
                self._answers[what] = self._ask(what)
                self._errors.pop(what, None)
            except (MixMatchError, OSError) as error:
                self._errors[what] = f"This cannot be worked out: {getattr(error, 'strerror', None) or error}"
            finally:
                with self._lock:
                    self._wanted.remove(what)

    def _make_features(self) -> None:
        with self.book.lock:
            listing = self.book.listing
            if self._features_of == f"{listing.version} {len(listing)}":
                return
            listing.save(self.home)
            version, gone = f"{listing.version} {len(listing)}", sorted(listing.gone)
        weights = None if self.choice.weights is None else str(self.choice.weights.absolute())
        asked = {"root": str(self.book.root.absolute()), "gone": gone, "weights": weights, "folder": str(self._folder)}
        self._cache = self._answer("mixmatch.label.embed", "features", asked)["cache"]
        self._features_of = version

    def _ask(self, what: str) -> Body:
        with self.book.lock:
            view, state = self.view, self.book.state
            view.grow()
            label = view.column("label").astype(np.int64)
            flags = view.column("flags")
            about: Body = {"run": self._run(), "version": self.book.listing.version}
            about |= {"given": self._given(), "at": state.changed_at}
            hidden = (flags & HIDDEN) != 0
            # A mark is no class, and a marked picture is not asked for again.
            arrays = {"labels": np.where(hidden, -1, np.maximum(label, -1)), "exclude": hidden | (label < -1)}
            asked = {
                "classes": [c.name for c in state.classes],
                "guessed": [] if view.guesses is None else view.guesses.classes,
                "guesses": about["run"] and str(self.home / "trainings" / about["run"] / "guesses.npz"),
                "by_run": self.choice.features == RUN,
                "cache": self._cache,
                "count": AHEAD,
                "seed": state.seq,
            }
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{what}.npz"
        write_packed(path, arrays, "a question about pictures", "ask again")
        return self._answer("mixmatch.label.think", what, asked | {"arrays": str(path)}) | about

    def _answer(self, module: str, what: str, asked: Body) -> Body:
        asked = asked | {"what": what, "listing": str(self.home / LISTING), "features": self.choice.computed}
        with self._lock:
            if self._ended:
                raise MixMatchError("the server stops")
            self._program, answer = call(module, asked, self._folder, what)
        status = self._program.wait()
        found = read_answer(answer)
        if status != 0 or not isinstance(found, dict):
            raise MixMatchError(self._program.last_words())
        return found


WHY = {
    "typical": "Typical pictures of the groups with the fewest labels.",
    "unsure": "Pictures the model is unsure of and that differ from each other, with some at random.",
    "random": "Pictures drawn at random.",
}
NEWER = "Suggestions of the newest model are on their way."

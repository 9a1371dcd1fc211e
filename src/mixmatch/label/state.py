"""The result of all events so far: classes, the label of every picture, who gave it, what can be undone.

`State.apply` is the only way anything changes, while the log is replayed and while people label: so what a restart
rebuilds is what was there before. Pictures are files here, as they are in the log; numbers belong to the listing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from sys import intern
from typing import Any, NamedTuple

from mixmatch.label.log import Event

UNLABELED, SKIP, NONE, BROKEN = -1, -2, -3, -4
MARKS = {":skip": SKIP, ":none": NONE, ":broken": BROKEN}
"""Marks that a person can give a picture instead of a class: later, none of these, not an image."""
MARK_WORDS = {SKIP: "skipped", NONE: "marked as none of these", BROKEN: "marked as not an image"}
MARK_NAMES = {number: name for name, number in MARKS.items()}

TAKEN = ("folder", "csv", "import")
"""Sources of labels that nobody gave by hand on this page."""
FIRST = ("folder", "csv")
"""Those of the first start, which nobody undoes."""

STEPS = 1000
"""Steps that each person can undo."""

MOST = 2**15 - 1
"""Classes, and people: their numbers are kept in 16 bits."""

RECENT = 2000
"""Events whose pictures a page can still ask for; an older page reads everything again."""

KEYS = "123456789qwertyuiopasdfhjklvbnm"
"""Keys that classes get by themselves, in this order."""

TAKEN_KEYS = {
    "0": "none of these",
    "x": "not an image",
    "z": "skip for now",
    "c": "the label is right",
    "g": "grid or single",
    "/": "search",
    "?": "all keys",
}
"""Keys that the page itself uses."""

CLASS_ACTIONS = ("add", "rename", "merge", "order", "hide", "show", "key")


class Mark(NamedTuple):
    """What is known of a picture: a class's number or one of the marks, and which event said so."""

    value: int
    who: int
    seq: int
    source: str


class Conflict(NamedTuple):
    """A label that was not taken, because the picture had got another one meanwhile."""

    value: int
    who: int
    before: int


@dataclass
class LabelClass:
    """A class. It is never removed: its number and its labels stay."""

    id: int
    name: str
    key: str | None = None
    hidden: bool = False


class Step(NamedTuple):
    """Something that can be undone or redone: the marks of files before and after it, or what it did to a class."""

    of: int
    files: Sequence[str]
    before: Sequence[Mark | None]
    after: Sequence[Mark | None]
    action: Event | None = None
    settled: Sequence[tuple[str, Conflict]] = ()
    """Conflicts that it decided."""


@dataclass
class Person:
    """What one person can undo and redo."""

    name: str
    undo: deque[Step] = field(default_factory=lambda: deque(maxlen=STEPS))
    redo: list[Step] = field(default_factory=list)


class State:
    """Everything the log says."""

    def __init__(self) -> None:
        self.seq = 0
        self.changed_at = 0
        """The last event that is more than a note about a file's content."""
        self.begun = False
        """Whether labels that were there before have been taken over."""
        self.marks: dict[str, Mark] = {}
        self.conflicts: dict[str, Conflict] = {}
        self.exam: dict[str, None] = {}
        """The exam's pictures, in the order they were drawn."""
        self.tests: set[str] = set()
        """Pictures of a test set that was there before."""
        self.contents: dict[str, str] = {}
        """The hash of what labeled files held, to find them again when they have moved."""
        self.classes: list[LabelClass] = []
        self.order: list[int] = []
        self.people: list[Person] = []
        self.answered: dict[str, Event | None] = {}
        """Ids of requests that are in the log, with the event if it had conflicts."""
        self.recent: deque[tuple[int, Sequence[str]]] = deque(maxlen=RECENT)
        self.given: deque[tuple[float, int]] = deque(maxlen=20_000)
        """When how many labels were given by hand; negative where they were undone."""
        self._names: dict[str, int] = {}
        self._who: dict[str, int] = {}

    # ------------------------------------------------------------------------------------------------------- questions

    def value(self, file: str) -> int:
        mark = self.marks.get(file)
        return UNLABELED if mark is None else mark.value

    def person(self, name: str) -> Person | None:
        number = self._who.get(name)
        return None if number is None else self.people[number]

    def named(self, label: str | None) -> int | None:
        """The number of a class or mark; old names of classes that were renamed or merged count. None if unknown."""
        if label is None:
            return UNLABELED
        return MARKS[label] if label in MARKS else self._names.get(label)

    def name(self, value: int) -> str | None:
        return None if value == UNLABELED else MARK_NAMES[value] if value < 0 else self.classes[value].name

    def words(self, value: int) -> str:
        """A value in words, as in "12 labeled cat"."""
        if value == UNLABELED:
            return "without a label"
        return MARK_WORDS[value] if value < 0 else f"labeled {self.classes[value].name}"

    def describe(self, step: Step) -> str:
        """A step in words: "12 labeled cat"."""
        if step.action is not None:
            return _describe(step.action["do"])
        mark = next(iter(step.after), None)
        return f"{len(step.files):,} {self.words(UNLABELED if mark is None else mark.value)}"

    def similar(self, name: str) -> LabelClass | None:
        """The class of that name, in any case of letters."""
        return next((c for c in self.classes if c.name.casefold() == name.casefold()), None)

    def changed_since(self, seq: int) -> list[str] | None:
        """The files whose marks changed after an event; None if that is too long ago, or too much."""
        if seq == self.seq:
            return []
        if seq > self.seq or not self.recent or self.recent[0][0] > seq + 1:
            return None
        files: dict[str, None] = {}
        for at, changed in reversed(self.recent):
            if at <= seq:
                break
            files.update(dict.fromkeys(changed))
        return list(files)

    # --------------------------------------------------------------------------------------------------------- changes

    def apply(self, event: Event) -> Sequence[str]:
        """Apply one event; returns the files whose marks changed."""
        kind = event["kind"]
        handler = _HANDLERS.get(kind)
        changed: Sequence[str] = () if handler is None else handler(self, event)
        if (seq := event["seq"]) > self.seq:
            self.seq = seq
        if (id := event.get("id")) is not None:
            self.answered[id] = event if kind == "label" and event.get("conflicts") else None
        self.recent.append((seq, changed))
        if kind != "content":
            self.changed_at = self.seq
        return changed

    def _begin(self, event: Event) -> Sequence[str]:
        self.begun = True
        return ()

    def _label(self, event: Event) -> Sequence[str]:
        files, source, marks = event["files"], intern(event["source"]), self.marks
        who = self._person(event["who"])
        mark = Mark(self._value(event["label"]), who, event["seq"], source)
        before = list(map(marks.get, files))
        for file in files:
            marks[file] = mark
        conflicts = self.conflicts
        settled = [(file, conflicts.pop(file)) for file in files if file in conflicts] if conflicts else ()
        if files and source not in FIRST:
            self._did(who, Step(event["seq"], files, before, [mark] * len(files), settled=settled))
            if source not in TAKEN:
                self.given.append((event["t"], len(files)))
        if not (refused := event.get("conflicts")):
            return files  # type: ignore[no-any-return]
        for file, seen in zip(refused["files"], refused["seen"], strict=True):
            self.conflicts[file] = Conflict(mark.value, who, self._value(seen))
        return [*files, *refused["files"]]

    def _class(self, event: Event) -> Sequence[str]:
        reverse, changed = self._act(event)
        if reverse is not None:
            who = self._person(event["who"])
            action = {"do": event, "reverse": reverse, "class": self._class_named(reverse["name"]).id}
            self._did(who, Step(event["seq"], *changed, action=action))
        return changed[0]

    def _act(
        self, event: Event
    ) -> tuple[Event | None, tuple[Sequence[str], Sequence[Mark | None], Sequence[Mark | None]]]:
        """Do something to a class; returns what reverses it, if anything, and the marks that changed."""
        do, nothing = event["do"], ((), (), ())
        if do == "order":
            first = list(dict.fromkeys(self._class_named(name).id for name in event["names"]))
            self.order = [*first, *(n for n in self.order if n not in first)]
            return None, nothing
        name = event["name"]
        chosen = self._class_named(name)
        if do == "add":
            chosen.hidden, chosen.key = False, event.get("key") or chosen.key
            return {"do": "hide", "name": name}, nothing
        if do == "key":
            for other in self.classes:
                if other.key == event["key"]:
                    other.key = None
            chosen.key = event["key"]
            return None, nothing
        if do == "rename":
            chosen.name = event["to"]
            self._names[event["to"]] = chosen.id
            return {"do": "rename", "name": event["to"], "to": name}, nothing
        if do in ("hide", "show"):
            chosen.hidden = do == "hide"
            if do == "show":
                self._names[chosen.name] = chosen.id  # it may have been merged
            return {"do": "show" if do == "hide" else "hide", "name": name}, nothing
        if do != "merge":
            raise ValueError(do)
        into = self._class_named(event["into"]).id
        files = [file for file, mark in self.marks.items() if mark.value == chosen.id]
        before = [self.marks[file] for file in files]
        after = [mark._replace(value=into) for mark in before]
        self.marks.update(zip(files, after, strict=True))
        chosen.hidden = True
        self._names[chosen.name] = into
        return {"do": "show", "name": name}, (files, before, after)

    def _step_back(self, event: Event, *, undo: bool) -> Sequence[str]:
        number = self._person(event["who"])
        person = self.people[number]
        stack = person.undo if undo else person.redo
        step = stack.pop() if stack and stack[-1].of == event["of"] else None
        files = event["files"]
        if step is not None and list(step.files) == list(files):
            before, after = step.before, step.after
        else:
            wanted = dict(zip(step.files, zip(step.before, step.after, strict=True), strict=True)) if step else {}
            # Where the event it refers to is lost with a damaged line, the undo itself says what each picture became.
            values = [self._value(label) for label in event["labels"]]
            marks = [None if v == UNLABELED else Mark(v, number, event["seq"], "undo") for v in values]
            pairs = [wanted.get(file, (mark, mark)) for file, mark in zip(files, marks, strict=True)]
            before, after = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        for file, mark in zip(files, before if undo else after, strict=True):
            if mark is None:
                self.marks.pop(file, None)
            else:
                self.marks[file] = mark
        if event.get("action"):
            self._act(event["action"])
        if step is not None:
            chosen = {*files} if step.settled else set()
            for file, conflict in step.settled:
                if file in chosen and undo:
                    self.conflicts.setdefault(file, conflict)
                elif file in chosen:
                    self.conflicts.pop(file, None)
            (person.redo if undo else person.undo).append(step._replace(files=files, before=before, after=after))
            if step.action is None and all(mark is None or mark.source not in TAKEN for mark in step.after[:1]):
                self.given.append((event["t"], -len(files) if undo else len(files)))
        return list(files)

    def _exam(self, event: Event) -> Sequence[str]:
        self.exam.update(dict.fromkeys(event["files"]))
        return list(event["files"])

    def _test(self, event: Event) -> Sequence[str]:
        self.tests.update(event["files"])
        return list(event["files"])

    def _content(self, event: Event) -> Sequence[str]:
        self.contents.update(zip(event["files"], event["hashes"], strict=True))
        return ()

    def _moved(self, event: Event) -> Sequence[str]:
        for old, new in zip(event["files"], event["to"], strict=True):
            for table in (self.marks, self.conflicts, self.contents):
                if old in table:
                    table[new] = table.pop(old)  # type: ignore[assignment]
            if old in self.exam:
                self.exam = {new if file == old else file: None for file in self.exam}
            if old in self.tests:
                self.tests.remove(old)
                self.tests.add(new)
        return [*event["files"], *event["to"]]

    def _did(self, who: int, step: Step) -> None:
        person = self.people[who]
        person.undo.append(step)
        if person.redo:
            person.redo.clear()

    def _person(self, name: str) -> int:
        number = self._who.get(name)
        if number is None:
            if len(self.people) >= MOST:
                raise ValueError("too many people")
            number = self._who[name] = len(self.people)
            self.people.append(Person(name))
        return number

    def _value(self, label: str | None) -> int:
        """The number of a label. A class that is not known yet (its line may be damaged) is added, never dropped."""
        number = self.named(label)
        if number is None:
            assert label is not None
            number = self._new_class(label).id
        return number

    def _class_named(self, name: str) -> LabelClass:
        """The class that is called so now. An old name of another one is no match: it can be given again."""
        found = next((c for c in self.classes if c.name == name), None)
        return self._new_class(name) if found is None else found

    def _new_class(self, name: str) -> LabelClass:
        if len(self.classes) >= MOST:
            raise ValueError("too many classes")
        taken = {c.key for c in self.classes}
        key = next((key for key in KEYS if key not in taken), None)
        self.classes.append(LabelClass(len(self.classes), name, key))
        self._names[name] = self.classes[-1].id
        self.order.append(self.classes[-1].id)
        return self.classes[-1]


_HANDLERS: dict[str, Any] = {
    "begin": State._begin,
    "label": State._label,
    "class": State._class,
    "undo": partial(State._step_back, undo=True),
    "redo": partial(State._step_back, undo=False),
    "exam": State._exam,
    "test": State._test,
    "content": State._content,
    "moved": State._moved,
}


def _describe(event: Event) -> str:
    do, name = event["do"], event["name"]
    words = {
        "add": f"class {name} added",
        "rename": f"class {name} renamed to {event.get('to')}",
        "merge": f"class {name} merged into {event.get('into')}",
        "hide": f"class {name} hidden",
        "show": f"class {name} shown",
    }
    return words[do]

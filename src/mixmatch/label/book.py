"""The labels of one folder while people work on them: the log on disk, the state that results from it, the listing of
pictures.

Every change goes through `_commit`: made into events, written, on the disk, and only then answered. If it cannot be
written, the state is read again from the log, as if nothing had been asked.
"""

from __future__ import annotations

import json
import random
import threading
import time
import unicodedata
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixmatch.errors import MixMatchError
from mixmatch.label.events import check_event
from mixmatch.label.listing import Listing, load_listing
from mixmatch.label.log import DiskFull, Event, Log
from mixmatch.label.state import CLASS_ACTIONS, MARKS, TAKEN_KEYS, UNLABELED, LabelClass, State, Step

LONGEST_NAME = 80
SOURCES = ("key", "bulk", "exam", "fix", "next", "confirm")
MOST_CLASSES = 1000


class Refused(MixMatchError):
    """A request that was understood and cannot be done; nothing was changed."""


@dataclass(frozen=True)
class Change:
    """One act of a person: these pictures get this label. `before` is what the person saw on each of them."""

    id: str
    files: Sequence[str]
    label: str | None
    before: Sequence[str | None]
    source: str = "key"


class Book:
    """The labels of a folder. All methods may be called from any thread."""

    def __init__(self, root: Path, home: Path, clock: Callable[[], float] = time.time) -> None:
        self.root, self.home = root, home
        self.lock = threading.RLock()
        self.clock = clock
        self.disk: str | None = None
        """Why the last write failed, until one succeeds."""
        self.changed: Callable[[Sequence[str]], None] = lambda files: None
        """Called with files whose marks changed, while the lock is held."""
        self.log = Log(home)
        self.listing: Listing = load_listing(home)
        self._read()
        self.log.copy_daily(self.clock())

    def _read(self) -> None:
        """The state according to the log. The number of a line that was set aside is not reused: a page may have seen
        it."""
        self.state = State()
        self.log.read(self._replay)
        self.state.seq = max(self.state.seq, self.log.last)

    def _replay(self, event: Event) -> None:
        if (named := event.get("files")) is not None:  # one text per file, not one per event about it
            files, numbers = self.listing.files, self.listing.numbers
            event["files"] = [files[numbers[file]] if file in numbers else file for file in named]
        self.state.apply(event)

    @property
    def is_new(self) -> bool:
        """Whether the folder has not been searched yet for existing labels."""
        return not self.state.begun

    def begin(self) -> None:
        """Note that it was done."""
        with self.lock:
            self._commit([self._event("begin", "", format=1)])

    # --------------------------------------------------------------------------------------------------------- labels

    def label(self, who: str, changes: Sequence[Change]) -> list[dict[str, Any]]:
        """Give labels, in order, in one write. Returns the conflicts: pictures that had got another label than the one
        the person saw. They keep it, and both are in the log."""
        with self.lock:
            for change in changes:
                if self.state.named(change.label) is None:
                    raise Refused(f"there is no class '{change.label}': add it first")
            answers: list[dict[str, Any]] = []
            events: list[Event] = []
            for change in changes:
                if change.id in self.state.answered:
                    event = self.state.answered[change.id]
                else:
                    event = self._add(events, self._label_event(who, change))
                if event is not None:
                    answers += conflicts_of(event)
            self._commit(events, applied=True)
            return answers

    def _label_event(self, who: str, change: Change) -> Event:
        state = self.state
        wanted = state.named(change.label)
        taken: list[int] = []
        refused: list[int] = []
        for i, (file, seen) in enumerate(zip(change.files, change.before, strict=True)):
            now = state.value(file)
            (taken if now == wanted or now == state.named(seen) else refused).append(i)
        names = [change.files[i] for i in taken]
        more: dict[str, Any] = {}
        if refused:
            others = [change.files[i] for i in refused]
            marks = [state.marks.get(file) for file in others]
            more["conflicts"] = {
                "files": others,
                "seen": [change.before[i] for i in refused],
                "theirs": [state.name(UNLABELED if mark is None else mark.value) for mark in marks],
                "by": [None if mark is None else state.people[mark.who].name for mark in marks],
            }
        return self._event(
            "label",
            who,
            change.id,
            label=None if wanted is None else state.name(wanted),
            files=names,
            before=[state.name(state.value(file)) for file in names],
            source=change.source,
            **more,
        )

    def take_over(self, who: str, labels: Mapping[str, Sequence[str]], source: str, tests: Sequence[str] = ()) -> None:
        """Labels that were given elsewhere: files by class. For files that have none here."""
        with self.lock:
            events, names = list[Event](), self._class_names(labels)
            for label, all_files in labels.items():
                if files := [file for file in all_files if file not in self.state.marks]:
                    name = names[label]
                    before = [self.state.name(self.state.value(file)) for file in files]
                    self._add(events, self._event("label", who, label=name, files=files, before=before, source=source))
            if tests:
                self._add(events, self._event("test", who, files=list(tests)))
            self._commit(events, applied=True)

    def import_labels(
        self, who: str, id: str, labels: Sequence[tuple[str, str]], tests: Collection[str]
    ) -> dict[str, int]:
        """Labels from elsewhere, one event per class. A picture that has another label keeps it, and is in conflict."""
        with self.lock:
            state, counts = self.state, {"labeled": 0, "same": 0, "conflicts": 0}
            if id in state.answered:
                return counts
            names = self._class_names(dict.fromkeys(label for _, label in labels))
            by_class: dict[str, list[str]] = {}
            for file, label in labels:
                by_class.setdefault(names[label], []).append(file)
            events: list[Event] = []
            for number, (name, files) in enumerate(by_class.items()):
                wanted = state.named(name)
                have = {file for file in files if wanted is not None and state.value(file) == wanted}
                counts["same"] += len(have)
                rest = [file for file in files if file not in have]
                if wanted is None:
                    self._add(events, self._event("class", who, do="add", name=name))
                if rest:
                    change = Change(f"{id}-{number}", rest, name, [None] * len(rest), "import")
                    event = self._add(events, self._label_event(who, change))
                    counts["labeled"] += len(event["files"])
                    counts["conflicts"] += len(conflicts_of(event))
            if new := sorted(set(tests) - state.tests - state.exam.keys()):
                self._add(events, self._event("test", who, files=new))
            self._add(events, self._event("import", who, id, counts=counts))
            self._commit(events, applied=True)
            return counts

    def _class_names(self, labels: Iterable[str]) -> dict[str, str]:
        """The class that each label means: an existing one, ignoring case, or a new one; or a mark. A label that cannot
        be the name of a class is refused here, before anything is changed."""
        known: dict[str, str] = {}
        for each in self.state.classes:
            known.setdefault(each.name.casefold(), each.name)
        names = {
            label: label if label in MARKS else known.setdefault((name := class_name(label)).casefold(), name)
            for label in labels
        }
        if len(known) > MOST_CLASSES:
            raise Refused(f"more than {MOST_CLASSES:,} classes are too many for this page")
        return names

    # ----------------------------------------------------------------------------------------------------- undo, redo

    def undo(self, who: str, id: str, *, redo: bool = False) -> dict[str, Any]:
        """Undo or redo this person's last step. Pictures that somebody has changed since are left alone."""
        with self.lock:
            word = "redo" if redo else "undo"
            if id in self.state.answered:
                return {"what": "", "left": None, "files": [], "kept": []}
            person = self.state.person(who)
            stack: Sequence[Step] = [] if person is None else person.redo if redo else list(person.undo)
            if not stack:
                raise Refused(f"there is nothing to {word}")
            step = stack[-1]
            now, then = (step.before, step.after) if redo else (step.after, step.before)
            marks = self.state.marks
            fits = [marks.get(file) == mark for file, mark in zip(step.files, now, strict=True)]
            files = [file for file, fit in zip(step.files, fits, strict=True) if fit]
            values = [mark for mark, fit in zip(then, fits, strict=True) if fit]
            labels = [self.state.name(UNLABELED if mark is None else mark.value) for mark in values]
            action, left = (None, None) if step.action is None else self._reversal(step.action, redo=redo)
            event = self._event(word, who, id, of=step.of, files=files, labels=labels, action=action)
            done = {"what": self.state.describe(step), "left": left, "files": files}
            self._commit([event])
            return done | {"kept": sorted({*step.files} - {*files})}

    def _reversal(self, step: Event, *, redo: bool) -> tuple[Event | None, str | None]:
        """The change to a class, whatever it is called by now; or why its name is left alone, so that earlier steps can
        still be undone."""
        action, chosen = step["do" if redo else "reverse"], self.state.classes[step["class"]]
        if action["do"] == "rename":
            keeps = f"class {chosen.name} keeps its name"
            if chosen.name != action["name"]:
                return None, f"{keeps}: it has been changed since"
            if self._other(action["to"], chosen.name):
                return None, f"{keeps}: another class is called '{action['to']}' now"
        elif action["do"] == "merge":
            action = action | {"into": self._known(action["into"]).name}
        return action | {"name": chosen.name}, None

    def _other(self, name: str, besides: str) -> LabelClass | None:
        same = self.state.similar(name)
        return None if same is None or same.name == besides else same

    # -------------------------------------------------------------------------------------------------------- classes

    def act(self, who: str, id: str, do: str, asked: Mapping[str, Any]) -> None:
        """Add, rename, merge, order, hide or show classes, or choose their keys."""
        with self.lock:
            if id in self.state.answered:
                return
            if do not in CLASS_ACTIONS:
                raise Refused(f"'{do}' cannot be done to a class ({', '.join(CLASS_ACTIONS)})")
            self._commit([self._event("class", who, id, do=do, **self._class_change(do, asked))])

    def _class_change(self, do: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of the event, with classes by the names they have now; `Refused` if it cannot be done."""
        if do == "order":
            return {"names": [self._known(name).name for name in asked["names"]]}
        if do == "add":
            return self._new_class(asked)
        name = self._known(asked["name"]).name
        if do == "rename":
            to = class_name(asked["to"])
            if (same := self._other(to, name)) is not None:
                raise Refused(f"there is a class '{same.name}' already: merge the two, or choose another name")
            return {"name": name, "to": to}
        if do == "merge":
            into = self._known(asked["into"]).name
            if into == name:
                raise Refused(f"'{name}' cannot be merged into itself")
            return {"name": name, "into": into}
        if do == "key":
            return {"name": name, "key": None if asked["key"] is None else self._free_key(asked["key"], name)}
        return {"name": name}

    def _new_class(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        name = class_name(asked["name"])
        if (same := self.state.similar(name)) is not None:
            hint = "show it" if same.hidden else "use it, or choose another name"
            raise Refused(f"there is a{' hidden' if same.hidden else ''} class '{same.name}': {hint}")
        if len(self.state.classes) >= MOST_CLASSES:
            raise Refused(f"more than {MOST_CLASSES:,} classes are too many for this page")
        return {"name": name} if (key := asked.get("key")) is None else {"name": name, "key": self._free_key(key)}

    def _known(self, name: object) -> LabelClass:
        found = next((c for c in self.state.classes if c.name == name), None)
        if found is None and isinstance(name, str) and (number := self.state.named(name)) is not None and number >= 0:
            found = self.state.classes[number]
        if found is None:
            raise Refused(f"there is no class '{name}'")
        return found

    def _free_key(self, key: str, own: str | None = None) -> str:
        """A key that no class other than `own` has."""
        key = _key(key)
        if (other := next((c for c in self.state.classes if c.key == key and c.name != own), None)) is not None:
            raise Refused(f"the key {key} is that of '{other.name}': choose another")
        return key

    # ----------------------------------------------------------------------------------------------------------- exam

    def draw_exam(self, who: str, id: str, more: int) -> list[str]:
        """Draw pictures at random among those without any label or mark."""
        with self.lock:
            if id in self.state.answered:
                return []
            free = [
                file
                for n, file in enumerate(self.listing.files)
                if n not in self.listing.gone
                and file not in self.state.exam
                and file not in self.state.tests
                and self.state.value(file) == UNLABELED
            ]
            if not free:
                raise Refused("every picture has a label already: there is nothing left to draw an exam from")
            drawn = random.SystemRandom().sample(free, min(more, len(free)))
            self._commit([self._event("exam", who, id, files=drawn)])
            return drawn

    # ----------------------------------------------------------------------------------------------------------- files

    def note_contents(self, hashes: Mapping[str, str]) -> None:
        """Remember the content of labeled files."""
        with self.lock:
            self._commit([self._event("content", "", files=list(hashes), hashes=list(hashes.values()))])

    def note_moves(self, moves: Mapping[str, str]) -> None:
        """Files that have the content of a labeled one that is gone: the same picture elsewhere."""
        with self.lock:
            self._commit([self._event("moved", "", files=list(moves), to=list(moves.values()))])

    def history(self, file: str, most: int = 50) -> list[dict[str, Any]]:
        """The history of a picture, newest first: read from the log, which has all of it."""
        needle = json.dumps(file).encode()
        found: deque[dict[str, Any]] = deque(maxlen=most)
        for line in self.log.content().splitlines():  # also of a log that was removed
            if needle not in line:
                continue
            with suppress(ValueError, KeyError, TypeError, RecursionError):
                event = json.loads(line)
                check_event(event)
                if file in event["files"] and event["kind"] in ("label", "undo", "redo"):
                    at = event["files"].index(file)
                    what = event["label"] if event["kind"] == "label" else event["labels"][at]
                    source = event.get("source", event["kind"])
                    found.append({"t": event["t"], "who": event["who"], "what": what, "source": source})
        return list(reversed(found))

    # --------------------------------------------------------------------------------------------------------- writing

    def _event(self, kind: str, who: str, id: str | None = None, **content: Any) -> Event:
        event: Event = {"seq": self.state.seq + 1, "t": round(self.clock(), 3), "kind": kind, "who": who}
        return event | ({} if id is None else {"id": id}) | content

    def _add(self, events: list[Event], event: Event) -> Event:
        """Apply an event that the next ones build upon, to be written with them."""
        if not events:
            with self._noting():
                self.log.check()
        events.append(event)
        self._apply(event)
        return event

    def _apply(self, event: Event) -> None:
        self.changed(self.state.apply(event))

    def _commit(self, events: Sequence[Event], *, applied: bool = False) -> None:
        """Write events, then apply them. If they had to be `applied` to make the next ones, that is reverted when
        writing fails."""
        if not events:
            return
        try:
            with self._noting():
                self.log.copy_daily(events[-1]["t"])
                self.log.append(events)
        except DiskFull:
            if applied:
                self._reread()
            raise
        self.disk = None
        if not applied:
            for event in events:
                self._apply(event)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Note for all pages why nothing can be written."""
        try:
            yield
        except DiskFull as error:
            self.disk = str(error)
            raise

    def _reread(self) -> None:
        touched = list(self.state.marks)
        self._read()
        self.changed([*touched, *self.state.marks])

    def keep(self) -> None:
        """Write a log that somebody removed again; an error if it cannot be."""
        with self.lock:
            self.log.append([])

    def close(self) -> None:
        with self.lock:
            self.log.close()


def conflicts_of(event: Event) -> list[dict[str, Any]]:
    """The conflicts of an event, one entry per picture."""
    if not (found := event.get("conflicts")):
        return []
    columns = zip(found["files"], found["theirs"], found["by"], found["seen"], strict=True)
    return [
        {"id": event["id"], "file": file, "yours": event["label"], "theirs": theirs, "who": by, "before": seen}
        for file, theirs, by, seen in columns
    ]


def class_name(name: object) -> str:
    """The normalized name of a class, or `Refused`."""
    if not isinstance(name, str):
        raise Refused("a class needs a name")
    name = unicodedata.normalize("NFC", name).strip()
    if not name:
        raise Refused("a class needs a name")
    if len(name) > LONGEST_NAME:
        raise Refused(f"a class's name has at most {LONGEST_NAME} characters")
    if name.startswith(":"):
        raise Refused("a class's name cannot start with a colon")
    if any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") or c in "\u202a\u202b\u202c\u202d\u202e" for c in name):
        raise Refused("a class's name cannot hold control characters")
    return name


def _key(key: object) -> str:
    if not isinstance(key, str) or len(key) != 1 or not key.isprintable() or key.isspace():
        raise Refused("a key is one character")
    if (key := key.lower()) in TAKEN_KEYS:
        raise Refused(f"the key {key} is for '{TAKEN_KEYS[key]}': choose another")
    return key

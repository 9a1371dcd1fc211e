"""One folder being labeled: its book, what the page sees of it, its pictures, and the background work, such as looking
for files, writing labels.csv and remembering the content of labeled files."""

from __future__ import annotations

import gzip
import shutil
import threading
import time
from contextlib import suppress
from itertools import islice
from pathlib import Path

from mixmatch.data.user.tree import Entry, Tree, left_out, scan
from mixmatch.errors import MixMatchError
from mixmatch.label.body import Body, encode
from mixmatch.label.book import Book
from mixmatch.label.choice import Choice
from mixmatch.label.exchange import (
    CSV_NAME,
    Found,
    check_folder_name,
    labeled,
    read_csv,
    read_folders,
    read_label_studio,
    take_over,
    to_csv,
    to_folders,
)
from mixmatch.label.home import check_links
from mixmatch.label.log import DiskFull
from mixmatch.label.opening import FirstPage, stamp
from mixmatch.label.pictures import THUMBNAILS, CannotShow, Pictures
from mixmatch.label.state import UNLABELED
from mixmatch.label.thinking import Thinking
from mixmatch.label.training import Trainings
from mixmatch.label.view import EXAM, GONE, View
from mixmatch.storage import digest, file_sha256, replace_durably
from mixmatch.text import count, listed, printable

PAUSE = 1.0
"""Seconds between two writes of labels.csv."""
IN_SIGHT = 200
"""How many pictures' identities are kept for the first page of the next start."""
CHUNK = 500
"""Files that are taken into the listing at once while it is scanned."""
FIRST_SECONDS = 1.5
"""The first scan of a folder goes slowly for so long: the page is being shown, and needs the processor."""


class CutOff(Exception):
    """The server stops while files are looked for."""


class Desk:
    """Everything a server needs of one folder."""

    def __init__(self, root: Path, home: Path, user: str, choice: Choice | None = None) -> None:
        self.root, self.home, self.user = root, home, user
        check_links(home)
        self.book = Book(root, home)
        self.view = View(self.book)
        self.pictures = Pictures(home / THUMBNAILS)
        self.trainings = Trainings(self.view, home)
        self.thinking = Thinking(self.view, home, choice)
        self._ended = threading.Event()
        self._scanned = threading.Event()
        self._rescan = threading.Event()
        self._written: int | None = None
        self._remembered: int | None = None
        self._threads = [
            threading.Thread(target=run, name=run.__name__, daemon=True) for run in (self._look, self._keep)
        ]
        for i, note in enumerate(self.book.log.notes):
            self.view.notes[f"log-{i}-{digest(note)}"] = note

    def start(self) -> None:
        """Begin to look for files, and all other background work."""
        self.view.scanning = True
        self.pictures.prepare()
        for thread in self._threads:
            thread.start()

    def wait(self, seconds: float = 60.0) -> None:
        """Until the first scan has ended."""
        self._scanned.wait(seconds)

    def close(self) -> None:
        """End everything and write what is not written yet."""
        self._ended.set()
        self._rescan.set()
        self.thinking.close()
        self.trainings.close()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(10)
        with suppress(MixMatchError, OSError):
            self.write_csv()
        self.pictures.close()
        self.book.close()

    def first_page(self) -> FirstPage | None:
        """What the next page will ask for first, if nothing changes until then. None where the next server may find
        other pictures by these numbers: the first scan was cut off, or the list could not be kept."""
        if self.book.is_new or not self.book.listing.is_kept:
            return None
        view = View(self.book)  # what is known of guesses or unreadable files is found out again by the next server
        view.training, view.scanning = self.trainings.short, True
        state, listing = view.state(self.user), self.book.listing
        in_order, label, flags = listing.in_order(), view.column("label"), view.column("flags")
        free = (n for n in in_order if label[n] == UNLABELED and not flags[n] & (EXAM | GONE))
        return FirstPage(
            stamp(self.book.log.path),
            self.user,
            listing.version,
            view.digest(),
            {str(n): listing.identity(n) for n in (*in_order[:IN_SIGHT], *islice(free, IN_SIGHT))},
            state | {"rate": dict.fromkeys(state["rate"], 0)},
            gzip.compress(encode(view.images(0)), 1, mtime=0),
        )

    def check(self, shown: FirstPage) -> None:
        """If a page was shown anything that differs from the log, pages read everything again."""
        with self.book.lock:
            if shown.content != self.view.digest() or shown.state["seq"] != self.book.state.seq:
                self.book.listing.changes += 1
                self.book.listing.is_kept = False
                with suppress(OSError):
                    self.book.listing.save(self.home)

    # --------------------------------------------------------------------------------------------------------- pictures

    def jpeg(self, n: int, side: int) -> bytes:
        """A picture as a JPEG; FileNotFoundError if it is gone."""
        with self.book.lock:
            path, key = self.root / self.book.listing.files[n], self.book.listing.identity(n)
        try:
            return self.pictures.get(path, key, side)
        except CannotShow:
            if not path.exists():
                raise FileNotFoundError(path) from None
            with self.book.lock:
                self.view.unreadable(n)
            raise

    def about(self, n: int) -> Body:
        """All information about one picture."""
        with self.book.lock:
            book, state = self.book, self.book.state
            file = book.listing.files[n]
            guess = int(self.view.column("guess")[n])
            lost = state.conflicts.get(file)
            body: Body = {
                "n": n,
                "name": self.view.shown_names()[n],
                "bytes": book.listing.sizes[n],
                "changed": book.listing.times[n] / 1e9,
                "label": state.name(state.value(file)),
                "flags": int(self.view.column("flags")[n]),
                "guess": None if guess < 0 else {"class": state.name(guess), "sure": int(self.view.column("sure")[n])},
                "conflict": None
                if lost is None
                else {"label": state.name(lost.value), "who": state.people[lost.who].name},
                "history": book.history(file),
            }
        try:
            width, height = self.pictures.size(self.root / file)
        except MixMatchError as error:
            return body | {"width": None, "height": None, "readable": False, "reason": str(error)}
        return body | {"width": width, "height": height, "readable": True, "reason": None}

    # --------------------------------------------------------------------------------------------------------- looking

    def rescan(self) -> None:
        """Look for new, changed and missing files now."""
        self.view.scanning = True
        self._rescan.set()

    def _look(self) -> None:
        while not self._ended.is_set():
            self._rescan.clear()
            try:
                self._scan()
            except CutOff:
                return
            except (MixMatchError, OSError) as error:
                self.view.notes["scan"] = str(error)
            with self.book.lock:
                self.view.scanning, self.view.found = False, len(self.book.listing)
            self._scanned.set()
            self._rescan.wait()

    def _scan(self) -> None:
        listing, changed, waiting = self.book.listing, False, list[Entry]()
        is_first, seen, began = self.book.is_new, bytearray(), time.monotonic()

        def take() -> None:
            nonlocal changed
            with self.book.lock:
                changed |= listing.take(waiting, seen)
            waiting.clear()

        def found(entry: Entry) -> bool:
            if self._ended.is_set():
                raise CutOff
            waiting.append(entry)
            if len(waiting) >= CHUNK:
                take()
                # Whoever looks at pictures goes first. Where there is a list from before, nobody waits for this one.
                opening = time.monotonic() - began < FIRST_SECONDS
                time.sleep((0.05 if opening else 0.001) if is_first else 0.005)
            return is_first  # later on they are not needed again, and 100,000 take memory

        tree = scan(self.root, found)
        take()
        unread = [f"{note.message}: {note.advice}" for note in left_out(tree) if note.kind == "format"]
        with self.book.lock:
            for key in [key for key in self.view.notes if key.startswith("format-")]:
                del self.view.notes[key]
            self.view.notes |= {f"format-{digest(note)}": note for note in unread}  # one put away hides no other
            went = listing.only(seen)
            if went or changed:
                self._find_moved()
                self.view.rebuild()
            if is_first:
                self._first_start(tree)
            if self.view.guesses is None:
                self.trainings.show_newest()
        if not listing.is_kept:
            with suppress(OSError):
                listing.save(self.home)

    def _first_start(self, tree: Tree) -> None:
        """Import the labels that the folder already has."""
        try:
            note = take_over(self.book, self.user, tree)
        except MixMatchError as error:
            note = f"the existing labels were not imported ({error}): correct that, then import them"
        self.book.begin()
        if note:
            self.view.notes["takeover"] = note

    def _find_moved(self) -> None:
        """Labeled files that are gone may exist under another name."""
        listing, state = self.book.listing, self.book.state
        lost: dict[tuple[int, str], str] = {}
        for file, known in state.contents.items():
            n = listing.numbers.get(file)
            if n is not None and n in listing.gone and file in state.marks:
                lost[listing.sizes[n], known] = file
        sizes = {size for size, _ in lost}
        moves: dict[str, str] = {}
        for n, file in enumerate(listing.files):
            if listing.sizes[n] in sizes and n not in listing.gone and file not in state.marks:
                content = content_of(self.root / file)
                if content is not None and (old := lost.pop((listing.sizes[n], content), None)) is not None:
                    moves[old] = file
        if moves:
            with suppress(DiskFull):
                self.book.note_moves(moves)
            names = listed(f"{old} is now {new}" for old, new in moves.items())
            self.view.notes["moved"] = f"{count(len(moves), 'labeled picture')} moved and kept the label ({names})"

    # --------------------------------------------------------------------------------------------------------- exchange

    def import_labels(self, who: str, id: str, kind: str, text: str) -> Body:
        """Labels of a file, or of the folders. A picture that has another label keeps it and is in conflict."""
        with self.book.lock:
            if kind == "folders":
                by_class, tests = read_folders(scan(self.root))
                pairs = [(file, label) for label, files in by_class.items() for file in files]
                found = Found([(f, label) for f, label in pairs if f in self.book.listing.numbers], set(tests), [])
            else:
                found = (read_csv if kind == "csv" else read_label_studio)(text, self.book.listing.numbers)
            done = self.book.import_labels(who, id, found.labels, found.tests)
        return done | {"unknown": found.unknown[:20], "unknown_count": len(found.unknown)}

    def export_folders(self, *, links: bool) -> Body:
        """Folders per class beside the folder itself, or where that cannot be written to, beside the labels."""
        name = f"{self.root.resolve().name}-by-class-{time.strftime('%Y%m%d-%H%M%S')}"
        with self.book.lock:
            pictures = list(labeled(self.book, any_name=True))
            all_labels = sum(mark.value >= 0 for mark in self.book.state.marks.values())
        for label in {picture.label for picture in pictures}:
            check_folder_name(label)
        for place in (self.root.resolve().parent, self.home / "export"):
            target = place / name
            with suppress(OSError):
                target.mkdir(parents=True)
                break
        try:
            made = to_folders(pictures, self.root, target, links=links)
        except OSError as error:
            shutil.rmtree(target, ignore_errors=True)  # a part of it helps nobody, and labels need the room
            raise MixMatchError(f"cannot write {target}: {error.strerror or error}") from None
        return {"to": printable(str(target)), "count": made, "left_out": all_labels - made}

    # --------------------------------------------------------------------------------------------------------- keeping

    def write_csv(self) -> None:
        """labels.csv as the labels are now."""
        with self.book.lock:
            seq = self.book.state.changed_at
            if seq == self._written or not self._scanned.is_set():
                return
            content = to_csv(self.book)
        try:
            replace_durably(self.home / CSV_NAME, content)
        except OSError as error:
            self.view.notes["csv"] = f"{CSV_NAME} cannot be written ({error.strerror}); the labels are safe in the log"
            return
        self._written = seq
        self.view.notes.pop("csv", None)

    def _keep(self) -> None:
        while not self._ended.wait(PAUSE):
            for task in (self.write_csv, self._remember_contents, self.trainings.tick):
                with suppress(OSError, MixMatchError):
                    task()

    def _remember_contents(self) -> None:
        """Remember the content of labeled files, so that they are found again when they have moved."""
        with self.book.lock:
            state, listing = self.book.state, self.book.listing
            if self.book.disk is not None:
                self.book.note_contents({})  # shows whether the disk has room again
            if state.changed_at == self._remembered:
                return
            files = [f for f in state.marks if f not in state.contents and f in listing.numbers]
            files = [f for f in files if listing.numbers[f] not in listing.gone]
            if not files:
                self._remembered = state.changed_at
        hashes, until = dict[str, str](), time.monotonic() + PAUSE / 4
        for file in files:
            hashes[file] = content_of(self.root / file) or ""
            if time.monotonic() > until:
                break
        if hashes:
            self.book.note_contents(hashes)


def content_of(path: Path) -> str | None:
    """The hash of a file's content, None if it cannot be read."""
    try:
        return file_sha256(path, follow=True)[:32]
    except OSError:
        return None

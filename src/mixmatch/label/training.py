"""Training from the page: a process on a frozen copy of the labels, watched while people go on labeling.

runs/run-0001/        the run folder, as `mixmatch train --out` makes it
trainings/run-0001/   labels.csv, the frozen copy; about.json; output.txt; guesses.npz, what the model says of pictures
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mixmatch import __version__
from mixmatch.data.packed import read_packed
from mixmatch.errors import MixMatchError
from mixmatch.label.body import Body
from mixmatch.label.book import Refused
from mixmatch.label.course import (
    AT_WORK,
    EVERY,
    METHOD,
    RUN,
    check_enough,
    checked,
    checked_about,
    checked_auto,
    in_one_line,
    last_step,
    name_of,
    read_lines,
    share,
)
from mixmatch.label.events import number
from mixmatch.label.exchange import labeled, to_csv
from mixmatch.label.listing import NAME as LISTING
from mixmatch.label.pictures import Busy
from mixmatch.label.program import Program, call, read_answer
from mixmatch.label.view import Guesses, View
from mixmatch.storage import open_own, read_json, replace_durably, try_lock

MINUTES = 10
EVALUATIONS = 25
"""Points of the error curve."""
ENDING = 20.0
"""Seconds that a training has to save itself when the server stops."""


class Trainings:
    """The trainings of a folder. One at a time."""

    def __init__(self, view: View, home: Path) -> None:
        self.view, self.book, self.home = view, view.book, home
        self._lock = threading.Lock()
        self._program: Program | None = None
        self._thread: threading.Thread | None = None
        self._stop = False
        self._pace: list[tuple[float, int]] = []
        self._auto: Body = {"on": False, "every": EVERY}
        self._known_methods: list[str] = ["mixmatch"]
        self._asking: Program | None = None
        self._about: dict[str, Body] = {}
        for path in sorted((home / "trainings").glob("run-*/about.json")):
            if (about := checked_about(path)) is not None:
                self._about[path.parent.name] = about
        self._latest = next(reversed(self._about), None)
        """The run that is at work, or was last."""
        with suppress(OSError, ValueError, AttributeError, Refused):
            self._auto = checked_auto(read_json(home / "auto.json"))
        view.training = self.short
        for run, about in self._about.items():
            if about["state"] in AT_WORK:  # the server was killed meanwhile
                self._end_orphan(run, about)
                self._note(run, state="stopped")

    def show_newest(self) -> None:
        """Show the guesses of the newest run that has some."""
        for run in reversed(self._about):
            if self._about[run]["state"] == "done" and self._show(run):
                return

    # ----------------------------------------------------------------------------------------------------------- asking

    def start(self, asked: Mapping[str, Any]) -> None:
        """Begin a training, or resume one."""
        with self._lock:
            if self.at_work():
                raise Busy("a training is running: wait for it or stop it")
            if (run := asked.get("resume")) is not None:
                if run not in self._about or self._about[run]["state"] not in ("stopped", "failed"):
                    raise Refused(f"there is no stopped training '{run}'")
            else:
                run = self._freeze(checked(asked))
            self._stop, self._pace, self._latest = False, [], run
            self._note(run, state="running" if self._about[run]["steps"] else "trial", error=None)
            self._thread = threading.Thread(target=self._work, args=(run,), name=run, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Let the training save itself and end. Returns at once."""
        self._stop = True
        if (program := self._program) is not None and self.at_work():
            program.stop()
            self._note(str(self._latest), state="stopping")

    def automatic(self, asked: Mapping[str, Any]) -> None:
        """Train again automatically after a number of new labels, or stop doing so."""
        self._auto = checked_auto(asked)
        replace_durably(self.home / "auto.json", json.dumps(self._auto).encode())

    def tick(self) -> None:
        """Begin a training if it is time for one; called now and then."""
        if self._auto["on"] and not self.at_work() and self._changed() >= self._auto["every"]:
            with suppress(Refused, Busy), self.book.lock:  # as a request has it: locks are taken in one order
                self.start(self._auto)

    def at_work(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def close(self) -> None:
        """Stop in order: what is trained so far is saved."""
        self.stop()
        if self._thread is not None:
            self._thread.join(ENDING)
        if (program := self._program) is not None:
            program.kill()

    # ---------------------------------------------------------------------------------------------------------- telling

    def short(self) -> Body:
        """For every answer of the page: what is going on."""
        run = self._latest
        about = self._about[run] if run is not None else {"state": "idle", "steps": None}
        step, left = self._progress(run, about) if run is not None else (0, None)
        return {
            "state": about["state"],
            "run": run,
            "step": step,
            "steps": about["steps"] or 0,
            "seconds_left": left,
            "changed": self._changed(),
        }

    def status(self) -> Body:
        """All about the newest training, and the earlier ones."""
        body = self.short()
        about = self._about.get(body["run"] or "", {})
        newest = self.view.guesses.run if self.view.guesses is not None else None
        history = [self._in_history(run) for run in reversed(self._about)]
        return body | {
            "method": about.get("method"),
            "began": about.get("began"),
            "error": about.get("error"),
            "line": in_one_line(body),
            "curve": self._curve(body["run"], about) if about else [],
            "auto": self._auto,
            "methods": self._methods(),
            "exam": None if newest is None else self.exam_error(newest),
            "history": history,
        }

    def exam_error(self, run: str) -> Body | None:
        """The error of the model that is shown on the exam, and only there."""
        guesses, state, numbers = self.view.guesses, self.book.state, self.book.listing.numbers
        if guesses is None or guesses.run != run:
            kept: Body | None = self._about[run].get("exam")
            return kept
        ids = [state.named(name) for name in guesses.classes]
        said = {int(n): ids[int(best)] for n, best in zip(guesses.numbers, guesses.best, strict=True)}
        asked = [(numbers.get(file, -1), state.value(file)) for file in state.exam]
        judged = [(said[n], value) for n, value in asked if value >= 0 and n in said]
        wrong = sum(guess != value for guess, value in judged)
        return {"run": run} | share(wrong, len(judged)) if judged else None

    def _in_history(self, run: str) -> Body:
        about = self._about[run]
        keep = ("state", "began", "seconds", "method", "steps", "labels", "error")
        return {
            "run": run,
            **{name: about.get(name) for name in keep},
            "exam": self.exam_error(run) if about["state"] == "done" else None,
            "report": (self.home / "runs" / run / "report.html").is_file(),
        }

    def report(self, run: str) -> Path | None:
        path = self.home / "runs" / run / "report.html"
        return path if run in self._about and path.is_file() else None

    def _changed(self) -> int:
        """Labels given since the newest training."""
        return self.view.labels_after(max((about["seq"] for about in self._about.values()), default=0))

    def _progress(self, run: str, about: Body) -> tuple[int, float | None]:
        if about["state"] == "done":
            return about["steps"] or 0, None
        step = last_step(self._folder(run) / "output.txt", self.home / "runs" / run / "metrics.jsonl")
        if about["state"] != "running" or not about["steps"] or not step:
            return step, None
        if not self._pace or self._pace[-1][1] != step:
            self._pace.append((time.monotonic(), step))
        (t0, first), (t1, last) = self._pace[0], self._pace[-1]
        return step, None if last <= first else max(0.0, (about["steps"] - step) * (t1 - t0) / (last - first))

    def _curve(self, run: str, about: Body) -> list[Body]:
        if not about["tests"]:
            return []  # a fifth of labels that were chosen says nothing about the folder
        points = []
        for line in read_lines(self.home / "runs" / run / "metrics.jsonl"):
            error: Any = line.get("test_error")
            if number(error) and 0 <= error <= 100:
                loss = line.get("loss")
                point = share(round(error * about["tests"] / 100), about["tests"])
                points.append({"step": line["step"], **point, "loss": loss if number(loss) else None})
        return points

    def _methods(self) -> list[str]:
        """The names of all methods. Only a program that has torch knows them; it is asked once."""
        path = self.home / "trainings" / f"methods-{__version__}.json"
        if len(self._known_methods) == 1:
            if self._asking is None and not path.exists():
                with suppress(OSError):  # a full disk: asked again later
                    self._asking = Program(["mixmatch", "methods", "--json"], path)
            found = read_answer(path)
            names = [name_of(method) for method in found] if isinstance(found, list | dict) else []
            if names and all(map(METHOD.fullmatch, names)):
                self._known_methods = names
        return self._known_methods

    # ---------------------------------------------------------------------------------------------------------- working

    def _folder(self, run: str) -> Path:
        return self.home / "trainings" / run

    def _freeze(self, asked: Body) -> str:
        """Keep a copy of the labels as they are now; the training knows no others."""
        with self.book.lock:
            pictures = list(labeled(self.book))
            check_enough(pictures)
            content, seq = to_csv(self.book), self.book.state.seq
            self.book.listing.save(self.home)
        there = [path.name for part in ("trainings", "runs") for path in (self.home / part).glob("run-*")]
        run = f"run-{1 + max((int(name[4:]) for name in there if RUN.fullmatch(name)), default=0):04}"
        self._folder(run).mkdir(parents=True, exist_ok=True)
        replace_durably(self._folder(run) / "labels.csv", content)
        tests = sum(picture.is_test for picture in pictures)
        self._about[run] = {
            "state": "trial",
            "method": "mixmatch",
            "steps": None,
            "image_size": None,
            "options": {},
            **asked,
            "began": self.book.clock(),
            "labels": len(pictures) - tests,
            "tests": tests,
            "seq": seq,
        }
        return run

    def _note(self, run: str, **values: Any) -> None:
        self._about[run] |= values
        with suppress(OSError):
            replace_durably(self._folder(run) / "about.json", json.dumps(self._about[run], indent=1).encode())

    def _work(self, run: str) -> None:
        began = time.monotonic()
        try:
            for part in (self._try, self._train, self._guess):
                part(run)
                if self._stop:
                    self._note(run, state="stopped")
                    return
            with self.book.lock:
                self._show(run)
                self._note(run, state="done", exam=self.exam_error(run))
        except MixMatchError as error:
            self._note(run, state="stopped" if self._stop else "failed", error=None if self._stop else str(error))
        except OSError as error:
            self._note(run, state="failed", error=f"{error.strerror or error}")
        finally:
            self._note(run, seconds=round(time.monotonic() - began + self._about[run].get("seconds", 0.0), 1))

    def _run(self, run: str, state: str, program: Program) -> None:
        self._program = program
        self._note(run, state=state, pid=program.pid)
        if self._stop:
            program.stop()
        try:
            if program.wait() != 0 and not self._stop:
                raise MixMatchError(program.last_words())
        finally:
            self._program = None

    def _try(self, run: str) -> None:
        about = self._about[run]
        if about["steps"]:
            return
        asked = {
            "root": str(self.book.root.absolute()),
            "labels": str(self._folder(run) / "labels.csv"),
            "method": about["method"],
            "minutes": about.get("minutes", MINUTES),
        }
        program, answer = call("mixmatch.label.trial", asked, self._folder(run), "trial")
        self._run(run, "trial", program)
        if (found := read_answer(answer)) is not None:
            self._note(run, steps=found["steps"], image_size=found["image_size"])

    def _train(self, run: str) -> None:
        about, out = self._about[run], self.home / "runs" / run
        steps = about["steps"]
        options = {"eval_every": max(1, steps // EVALUATIONS), "image_size": about["image_size"], **about["options"]}
        words = ["mixmatch", "train", str(self.book.root.absolute()), "--out", str(out), "--no-baseline"]
        words += ["--labels-file", str(self._folder(run) / "labels.csv"), "--method", about["method"]]
        words += ["--steps", str(steps), *(["--resume"] if (out / "config.json").exists() else [])]
        for name, value in options.items():
            words += [] if value is None else [f"--{name.replace('_', '-')}", str(value)]
        self._run(run, "running", Program(words, self._folder(run) / "output.txt"))

    def _guess(self, run: str) -> None:
        with self.book.lock:
            listing = self.book.listing
            listing.save(self.home)
            there = [n for n in range(len(listing)) if n not in listing.gone]
        asked = {
            "run": str(self.home / "runs" / run),
            "root": str(self.book.root.absolute()),
            "listing": str(self.home / LISTING),
            "numbers": there,
            "guesses": str(self._folder(run) / "guesses.npz"),
        }
        program, answer = call("mixmatch.label.guess", asked, self._folder(run), "guess")
        self._run(run, "guessing", program)
        if (found := read_answer(answer)) is not None:
            self._note(run, classes=found["classes"], listing=listing.id)

    def _show(self, run: str) -> bool:
        """Show what a run guesses; False if that is not kept, or of another listing."""
        about = self._about[run]
        if about.get("listing") != self.book.listing.id:
            return False
        arrays = read_packed(self._folder(run) / "guesses.npz") or {}
        numbers, probabilities = arrays.get("numbers"), arrays.get("probabilities")
        classes = about.get("classes", [])
        if numbers is None or probabilities is None or numbers.ndim != 1 or numbers.dtype.kind != "i":
            return False
        if probabilities.shape != (len(numbers), len(classes)) or probabilities.dtype.kind != "f":
            return False
        if not ((numbers >= 0) & (numbers < len(self.book.listing))).all() or not classes:
            return False
        if not ((probabilities >= 0) & (probabilities <= 1)).all():
            return False
        with self.book.lock:
            self.view.grow()
            self.view.show_guesses(Guesses(run, classes, numbers, probabilities))
        return True

    def _end_orphan(self, run: str, about: Body) -> None:
        """A training whose server was killed goes on by itself: let it save and end. Its lock proves it is that one."""
        pid: Any = about.get("pid")
        with suppress(OSError), os.fdopen(open_own(self.home / "runs" / run / ".lock"), "rb") as file:
            # Not a second name of a lock that is held elsewhere, and never a group of processes.
            is_own = os.fstat(file.fileno()).st_nlink == 1 and type(pid) is int and pid > 1
            if is_own and not try_lock(file.fileno()):
                os.kill(pid, signal.SIGTERM)

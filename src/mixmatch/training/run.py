"""A run is a folder: its settings, a line of metrics per evaluation, checkpoints, the finished model, the result.

config.json          settings, split, classes; enough to do the run again
metrics.jsonl        a line per evaluation
checkpoint/          the last two checkpoints
model.safetensors    the averaged model, with what it takes to use it in its metadata
result.json          written when the run is finished: the record that tables and reports are made from, with hashes
.attempt             which attempt at the run may write: its number, and a mark of its own
.end                 that the run shall end early, and why: a search for settings writes it, from whatever machine
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from uuid import uuid4

from mixmatch import networks
from mixmatch.errors import MixMatchError, explaining
from mixmatch.settings import Settings, from_dict
from mixmatch.storage import (
    NotPlain,
    can_be_path,
    file_sha256,
    open_own,
    open_plain,
    parse_json,
    read_json,
    read_plain,
    refuse_link,
    remove_folder,
    replace_durably,
    try_lock,
)
from mixmatch.training import checkpoint, damage, tensors
from mixmatch.training.checkpoint import Checkpoint, Damaged
from mixmatch.training.record import Record as Record
from mixmatch.training.record import RunRecord as RunRecord

FORMAT = 1
MOST_METRICS, LONGEST_LINE = 2**30, 2**20
"""Bytes of metrics.jsonl and of a line in it, at most."""

MOST_THREADS = 1024

SEALED = ("model.safetensors", "metrics.jsonl")
"""The files whose hashes a result holds."""

EVENTS = "events.out.tfevents"
"""What the names of TensorBoard's files begin with."""


class Busy(MixMatchError):
    """Another process holds the run folder."""


class Ended(MixMatchError):
    """The run was asked to end before all its steps were taken."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} ended early ({why}): remove its file .end to resume it")


class RunFolder:
    """Reads and writes one run. Write only while holding `lock()`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held, self._attempt = False, ""
        self._began_in: tuple[int, int] | None = None
        self.checkpoints = path / "checkpoint"
        self.model = path / "model.safetensors"

    def exists(self) -> bool:
        # Unlike a Path's, these know no file in a folder that one may not look into: `lock` says so.
        return os.path.exists(self.path / "config.json")  # noqa: PTH110

    def _has_model(self) -> bool:
        return os.path.isfile(self.model)  # noqa: PTH113

    def saved_nothing(self) -> bool:
        """Whether a run was started here and ended before it had anything to keep, for example by an error in its first
        step."""
        if not self.exists():
            return False
        self.config()  # an error if the file is another program's
        own = ("config.json", "metrics.jsonl", "checkpoint")
        others = [e for e in self.path.iterdir() if e.name not in own and not e.name.startswith((".", EVENTS))]
        metrics = self.path / "metrics.jsonl"
        evaluated = metrics.exists() and metrics.stat().st_size > 0
        return not (others or evaluated or self._checkpoints())

    def continues(self, resume: bool) -> bool:
        """Whether a job in this folder continues what is there. A run that saved nothing starts over, unless it is to
        be resumed."""
        return self.exists() and (resume or not self.saved_nothing())

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder against other processes. The system lets go of it even if the process is killed.

        Not every file system keeps locks between machines. There the last attempt to begin may write, and no other.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            checkpoint.list_checkpoints(self.checkpoints)
            handle = open_own(self.path / ".lock")
        except NotPlain as error:
            raise MixMatchError(f"cannot write to {self.path}: {_place(error)}") from None
        except OSError as error:
            raise MixMatchError(
                f"cannot write to {self.path}: {error.strerror}; choose another folder with out="
            ) from None
        try:
            if not try_lock(handle):
                raise Busy(f"another process is writing to {self.path}: wait for it or choose another folder with out=")
            self._held, self._attempt, self._began_in = True, "", self._folder()
            yield
        except OSError as error:
            raise self.cannot_write(error) from None
        finally:
            self._held, self._began_in = False, None
            os.close(handle)

    def cannot_write(self, error: OSError, kept: str = "") -> MixMatchError:
        """The error for a failed write."""
        if (moved := self._moved()) is not None:
            return moved
        if isinstance(error, NotPlain):
            return MixMatchError(f"cannot write to {self.path}: {_place(error)}")
        why = error.strerror or error
        return MixMatchError(f"cannot write to {self.path} ({why}): {kept}make room, then continue with resume=True")

    def _folder(self) -> tuple[int, int] | None:
        """What the system knows the folder by, whatever its name; None if it is not there."""
        try:
            about = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return about.st_dev, about.st_ino

    def _moved(self) -> MixMatchError | None:
        """The error if the folder is no longer where it was: to write on would make a second one."""
        if self._began_in in (None, self._folder()):
            return None
        return MixMatchError(
            f"{self.path} was moved or removed while the run was in it, and the run ends: what was saved is where the "
            "folder is now; continue it there with resume=True and out="
        )

    def attempt(self) -> int:
        """How many times this run was started or resumed; 0 if an earlier version did it."""
        number = self._attempt_file().partition(" ")[0]
        return int(number) if number.isdecimal() else 0

    def _attempt_file(self) -> str:
        try:
            return read_plain(self.path / ".attempt", 4096).decode(errors="replace").strip()
        except FileNotFoundError:
            return ""

    def _begin_attempt(self) -> None:
        """Two that begin at once have the same number; their marks differ, and the last one written counts."""
        self._attempt = f"{self.attempt() + 1} {uuid4().hex}"
        replace_durably(self.path / ".attempt", self._attempt.encode())

    def check_attempt(self) -> None:
        """Before a write. The first one begins the attempt, so that a job that is refused leaves no trace; later it is
        an error if another has begun since."""
        if (moved := self._moved()) is not None:
            raise moved
        if self._held and not self._attempt:
            self._begin_attempt()
        if self._attempt and self._attempt_file() not in ("", self._attempt):
            raise MixMatchError(f"another attempt at {self.path} has begun since: this one ends, the other continues")

    def ask_to_end(self, why: str) -> None:
        """Let the run end at its next evaluation, or before it begins. Whoever asks need not hold the folder, nor be on
        the machine that the run is on."""
        with explaining(f"cannot write to {self.path}"):
            self.path.mkdir(parents=True, exist_ok=True)
            replace_durably(self.path / ".end", why.encode())

    def asked_to_end(self) -> str | None:
        """Why the run shall end early; None if it shall not."""
        try:
            return " ".join(read_plain(self.path / ".end", 4096).decode(errors="replace").split())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except NotPlain as error:
            raise MixMatchError(_place(error)) from None
        except OSError as error:
            raise MixMatchError(f"cannot read {_place(error)}; choose another folder with out=") from None

    def write_config(self, config: Record) -> None:
        self._write("config.json", {"format": FORMAT, **config})

    def config(self) -> Record:
        config = self._read("config.json")
        for name, kind in {"settings": dict, "classes": list, "input_shape": list, "split": dict}.items():
            if not isinstance(config.get(name), kind):
                raise self.damaged("config.json", f"it has no {name}")
        if not isinstance(config["split"].get("hash"), str):
            raise self.damaged("config.json", "its split has no hash")
        if not all(type(config["split"].get(part, 0)) is int for part in ("labeled", "unlabeled", "valid", "test")):
            raise self.damaged("config.json", "its split counts no rows")
        if config.get("threads") is not None and config["threads"] not in range(1, MOST_THREADS + 1):
            raise self.damaged("config.json", "no run computes with so many threads")
        if not isinstance(config.get("compile"), bool | None):
            raise self.damaged("config.json", "it does not say whether the run is compiled")
        if not can_be_path(config.get("folder", "")):
            raise self.damaged("config.json", "its folder is none")
        return config

    def settings(self) -> Settings:
        """The settings that the run was begun with."""
        try:
            settings = from_dict(self.config()["settings"])
        except (TypeError, AttributeError) as error:  # a list where a name should be
            raise self.damaged("config.json", f"its settings make no sense ({error})") from None
        for path in (settings.data, settings.weights, settings.data_options.get("labels_file", "")):
            if not can_be_path(path):
                raise self.damaged("config.json", "its settings name a file by what cannot be a name")
        return settings

    def end_at(self, steps: int) -> None:
        """Change the number of steps. The result is deleted after that: a crash in between leaves a finished run whose
        settings ask for more, and which takes those steps when it is resumed."""
        config = self.config()
        self.write_config({**config, "settings": {**config["settings"], "steps": steps}})
        self._forget_end()

    def write_result(self, result: Record) -> RunRecord:
        """Write the record, with the hashes of the files it is about; returns it with them."""
        there = [name for name in SEALED if (self.path / name).exists()]
        hashes = {name: file_sha256(self.path / name, tensors.MOST) for name in there}
        whole = damage.sealed({"format": FORMAT, **result}, hashes)
        self._write("result.json", whole)
        return _without_format(whole)

    def finished(self) -> bool:
        """Whether there is a result, even a damaged one."""
        return os.path.lexists(self.path / "result.json")

    def result(self) -> RunRecord | None:
        """The record of a finished run, as `write_result` gave it."""
        if not self.finished():
            return None
        content = self._read("result.json")
        if not damage.is_whole(content):
            raise self.damaged("result.json", "it is not what was written")
        return _without_format(content)

    def verify(self, *names: str) -> None:
        """Check files of a finished run against its result. Of an earlier version's there is nothing to check."""
        result = self.result()
        hashes = {} if result is None else result.get(damage.HASHES, {})
        for name in names:
            try:
                same = name not in hashes or file_sha256(self.path / name, tensors.MOST) == hashes[name]
            except FileNotFoundError:
                raise self.damaged(name, "it is missing") from None
            except OSError as error:
                raise self.damaged(name, error.strerror or str(error)) from None
            if not same:
                raise self.damaged(name, "it is not what the run wrote")

    def damaged(self, name: str, why: str, is_damaged: str = "is damaged") -> MixMatchError:
        """The error for an unusable file: what can still be used, and what to do."""
        return MixMatchError(f"{self.path / name} {is_damaged} ({why}): {self._way_out(name)}")

    def _way_out(self, name: str) -> str:
        """What can still be used of a run whose file `name` is damaged, and what to do."""
        model = self.model if name != self.model.name and self._has_model() else None
        again, anew = "start again in another folder with out=", None
        with suppress(OSError):
            if found := checkpoint.list_checkpoints(self.checkpoints):
                anew = f"resume=True with checkpoint={found[0].name} writes it anew"
        alone = f"the model still works on its own, give {model} in place of the folder"
        if name == self.model.name:
            return anew or again
        if name == damage.ITSELF:
            return "; ".join([*([alone] if model else []), anew or again])
        if name == "metrics.jsonl":
            works = "predict, evaluate and export still work; to train on or to report, " if model or anew else ""
            return f"{works}{again}"
        return f"{alone}; to train on, restore the file or {again}" if model else f"restore the file, or {again}"

    def metrics(self) -> list[Record]:
        """The evaluations so far. A last line cut short by a crash does not count."""
        self.verify("metrics.jsonl")
        return self._evaluations()

    def _evaluations(self) -> list[Record]:
        records: list[Record] = []
        for line in self._lines():
            try:
                record = parse_json(line)
            except ValueError:
                record = None
            if not isinstance(record, dict) or not isinstance(record.get("step"), int):
                where = f"line {len(records) + 1} of {self.path / 'metrics.jsonl'}"
                raise MixMatchError(f"{where} is damaged: {self._way_out('metrics.jsonl')}")
            records.append(record)
        return records

    def _lines(self) -> Iterator[bytes]:
        """The whole lines of metrics.jsonl."""
        path = self.path / "metrics.jsonl"
        try:
            with open_plain(path, MOST_METRICS) as file:
                while line := file.readline(LONGEST_LINE):
                    if len(line) == LONGEST_LINE:
                        raise ValueError("a line without an end")
                    if line.endswith(b"\n"):
                        yield line
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise self.damaged("metrics.jsonl", why, "cannot be read") from None

    def metrics_sha256(self, count: int | None = None) -> str:
        """The hash of the evaluations so far, or of the first `count`."""
        return hashlib.sha256(b"".join(islice(self._lines(), count))).hexdigest()

    def append_metrics(self, record: Record) -> None:
        self.check_attempt()
        with os.fdopen(open_own(self.path / "metrics.jsonl"), "ab") as file:
            file.write(json.dumps(record).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def cut_metrics(self, count: int, sha256: str | None = None) -> None:
        """Keep the first `count` evaluations: those a checkpoint knows of, and the hash of."""
        there = len(self._evaluations())
        if there < count:
            raise self.damaged("metrics.jsonl", f"it has {there} of the {count} evaluations its checkpoint knows of")
        if sha256 not in (None, self.metrics_sha256(count)):
            raise self.damaged("metrics.jsonl", "it is not what the run wrote")
        self.check_attempt()
        replace_durably(self.path / "metrics.jsonl", b"".join(islice(self._lines(), count)))

    def save_checkpoint(self, now: Checkpoint) -> None:
        self.check_attempt()
        try:
            checkpoint.save(self.checkpoints, now, self.check_attempt)
        except OSError:
            self.check_attempt()  # another attempt may have removed what this one was writing
            raise

    def load_checkpoint(self, name: str | None = None) -> Checkpoint | None:
        """The newest checkpoint, or the one named; None if there is none yet.

        A damaged one is an error that names the older one to continue from: that is for the user to decide.
        """
        found = self._checkpoints()
        if name is not None and name not in [path.name for path in found]:
            have = ", ".join(path.name for path in found) or "none"
            raise MixMatchError(
                f"{self.path} has no checkpoint '{name}' (there is: {have}): name one that is there, or leave out "
                "checkpoint="
            )
        chosen = next((path for path in found if name is None or path.name == name), None)
        if chosen is None:
            return None
        try:
            return checkpoint.load(chosen, self._most_tensors())
        except Damaged as error:
            older = next((path.name for path in found[found.index(chosen) + 1 :]), None)
            advice = f"continue from the one before it with checkpoint={older}"
            if older is None:
                works = "the finished model still works; to train on, " if self._has_model() else ""
                advice = f"there is no older one; {works}start again in another folder with out="
            raise MixMatchError(f"the checkpoint {chosen} is damaged: {error}; {advice}") from None

    def forget_after(self, step: int) -> None:
        """Remove what came after a checkpoint one goes back to, so that a run stopped again continues from there."""
        self._forget_end()
        for path in self._checkpoints():
            if path.name == checkpoint.name_of(step):
                break
            remove_folder(path)

    def tidy_checkpoints(self) -> None:
        """Remove what a process left that was killed as it saved: a run that resumes at its end saves no more."""
        self.check_attempt()
        checkpoint.tidy(self.checkpoints)

    def _checkpoints(self) -> list[Path]:
        """Newest first."""
        try:
            return checkpoint.list_checkpoints(self.checkpoints)
        except NotPlain as error:
            raise MixMatchError(_place(error)) from None

    def _most_tensors(self) -> int:
        """Bytes that a file of a checkpoint may have: a stranger's is not read beyond what its network needs."""
        if not self.exists():
            return tensors.MOST
        config = self.config()
        settings = config["settings"]
        if str(settings.get("features", "none")).startswith("timm:"):  # only timm knows how large it is
            return tensors.MOST
        name, shape = str(settings.get("network", "")), tuple(config["input_shape"])
        parameters = networks.count(name, len(config["classes"]), shape)
        return tensors.MOST if parameters is None else 32 * parameters + 2**28

    def _forget_end(self) -> None:
        """Remove the results of a finished run: until it has new ones, its newest checkpoint is its model."""
        self.check_attempt()
        (self.path / "result.json").unlink(missing_ok=True)
        if self._checkpoints():
            self.model.unlink(missing_ok=True)

    def _write(self, name: str, content: Record) -> None:
        self.check_attempt()
        replace_durably(self.path / name, json.dumps(content, indent=1).encode())

    def _read(self, name: str) -> Record:
        path = self.path / name
        try:
            content = read_json(path)
        except (FileNotFoundError, NotADirectoryError):
            if not self._has_model() and name == "config.json":
                raise MixMatchError(
                    f"{self.path} is not a run folder: it has no {name}; name one that train has written"
                ) from None
            raise self.damaged(name, "it is missing") from None
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise self.damaged(name, why, "cannot be read") from None
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise MixMatchError(
                f"{path} was not written by this version of mixmatch: use the one that wrote it, or start again in "
                "another folder with out="
            )
        return content


def _without_format(content: Record) -> RunRecord:
    return RunRecord((name, value) for name, value in content.items() if name != "format")


def baseline_of(run: Path) -> Path:
    """The folder of a run's baseline, the run on the labels alone."""
    try:
        refuse_link(run / "baseline")
    except NotPlain as error:
        raise MixMatchError(_place(error)) from None
    return run / "baseline"


def _place(error: OSError) -> str:
    """What is in the way, and where."""
    return f"{error.filename}: {error.strerror}"

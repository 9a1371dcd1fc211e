"""The journal of a sweep: Optuna's file of what was asked and told, in a folder that one process holds.

The folder may come from anyone. Optuna trusts what it reads, so the journal is checked before and after.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mixmatch import settings as settings_
from mixmatch.data import is_path
from mixmatch.declare import Range
from mixmatch.errors import MixMatchError, explaining
from mixmatch.experiments.tune.space import Choices, contains
from mixmatch.experiments.tune.sweep import Sweep
from mixmatch.storage import keep_alone, open_own, parse_json, refuse_link, try_lock
from mixmatch.training.evaluate import LEAST_VALID
from mixmatch.training.run import Record

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import JournalStorage

COMPARED = 4
"""Finished trials needed before others are compared with them and stopped."""

WARM_UP = 3
"""No trial is stopped in the first third of its steps, where weights of unlabeled losses still rise."""

JOURNAL = "journal.log"
MOST = 2**30
"""Bytes of a journal, at most."""

AGAIN = "fix that, then give the same command again"

ENDED = (None, "stopped", "diverged")
"""What is recorded about the end of a trial."""


@contextmanager
def held(out: Path) -> Iterator[None]:
    """Hold a sweep's folder against other processes."""
    try:
        if out.is_dir() and not (out / JOURNAL).exists() and any(not e.name.startswith(".") for e in out.iterdir()):
            raise MixMatchError(f"{out} holds other files and is not a sweep: choose another folder with out=")
        out.mkdir(parents=True, exist_ok=True)
        for folder in (*out.glob("trial-*"), *out.glob("trial-*/fold-*")):
            refuse_link(folder)
        file = os.fdopen(open_own(out / ".lock"), "ab")
    except OSError as error:
        place = error.filename or out
        raise MixMatchError(f"cannot write to {place}: {error.strerror}; choose another folder with out=") from None
    with file:
        if not try_lock(file.fileno()):
            raise MixMatchError(f"another process is tuning in {out}: wait for it or choose another folder with out=")
        yield


def open_study(sweep: Sweep) -> Study:
    """The study in a sweep's journal, a new one if there is none. One of another sweep is refused."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path = sweep.out / JOURNAL
    _mend(path)
    try:
        study = optuna.create_study(
            storage=_storage(path), study_name="tune", direction="minimize", load_if_exists=True
        )
        before, now = study.user_attrs.get("sweep"), sweep.to_dict()
        other = None if before is None or before == _named_as_before(now, before) else _difference(before, now)
        if other is None:
            _check(study, sweep)
    except MixMatchError:
        raise
    except Exception as error:  # what a damaged line leads to
        raise damaged(path, f"{type(error).__name__}: {error}") from None
    if other is not None:
        raise MixMatchError(
            f"{sweep.out} holds a sweep with other settings ({other}): continue it with its own, or choose another "
            "folder with out="
        )
    if before is None:
        study.set_user_attr("sweep", now)
    study.pruner = optuna.pruners.MedianPruner(n_startup_trials=COMPARED, n_warmup_steps=warm_up(sweep))
    return study


def _storage(path: Path) -> JournalStorage:
    """The journal as Optuna's storage."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    class Held(JournalFileOpenLock):
        """The whole folder is held, by a lock that ends with the process; Optuna's would outlive a kill."""

        def acquire(self) -> bool:
            return True

        def release(self) -> None: ...

    class File(JournalFileBackend):
        """What cannot be written, as on a full disk, is one line; a part of it is cut off again."""

        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            with explaining(f"cannot write {path}", AGAIN):
                whole = path.stat().st_size
                try:
                    super().append_logs(logs)
                except OSError:
                    os.truncate(path, whole)
                    raise

    return JournalStorage(File(str(path), Held(str(path))))


def damaged(path: Path, why: str) -> MixMatchError:
    """The error for a damaged file of a sweep."""
    return MixMatchError(f"{path} is damaged ({' '.join(why.split())[:200]}): choose another folder with out=")


def _check(study: Study, sweep: Sweep) -> None:
    """Refuse trials that this sweep cannot have, and folders of trials that the journal does not know."""
    known = {f"trial-{trial.number:03}" for trial in study.get_trials(deepcopy=False)}
    if unknown := {folder.name for folder in sweep.out.glob("trial-[0-9]*")} - known:
        raise ValueError(f"it has lost {min(unknown)}")
    if [direction.name for direction in study.directions] != ["MINIMIZE"]:
        raise ValueError("errors are to be low")
    for trial in study.get_trials(deepcopy=False):
        numbers = [*trial.intermediate_values.values(), *([] if trial.value is None else [trial.value])]
        inside = {name for name in sweep.space if trial.number or contains(sweep.space[name], sweep.defaults[name])}
        fixed = trial.system_attrs.get("fixed_params", {})
        done = trial.state.name in ("COMPLETE", "PRUNED")
        fits = (
            all(type(step) is int for step in trial.intermediate_values)
            and all(type(number) in (int, float) and math.isfinite(number) for number in numbers)
            and (trial.state.name != "COMPLETE" or trial.value is not None)
            and (trial.number > 0 or trial.state.name not in ("PRUNED", "FAIL"))
            and trial.params.keys() <= inside
            and (not done or trial.params.keys() == inside)
            and all(_suggested(value, sweep.space[name]) for name, value in trial.params.items())
            and all(name in inside and value == sweep.defaults[name] for name, value in fixed.items())
            and trial.user_attrs.get("ended") in ENDED
        )
        if not fits:
            raise ValueError(f"trial {trial.number} is none of this sweep")


def _suggested(value: Any, where: Range | Choices) -> bool:
    """Whether a value may have been suggested for a setting that is searched there."""
    return (isinstance(where, Choices) or type(value) in (int, float)) and contains(where, value)


def _named_as_before(now: Record, before: Record) -> Record:
    """A sweep with its data called as it was, if that is the same place: photos/ is photos."""
    then, given = before["settings"]["data"], now["settings"]["data"]
    if not (is_path(then) and is_path(given) and Path(then).resolve() == Path(given).resolve()):
        return now
    return {**now, "settings": {**now["settings"], "data": then}}


def warm_up(sweep: Sweep) -> int:
    """Steps of a trial, fold after fold, before which it is not stopped: a third of the first fold with which there are
    enough rows to compare by. Without such a fold, all of them."""
    enough = np.flatnonzero(np.cumsum(sweep.sizes) >= LEAST_VALID)
    steps = sweep.settings.steps
    return int(enough[0]) * steps + steps // WARM_UP if len(enough) else sweep.folds * steps


def _mend(path: Path) -> None:
    """Cut a line off that a crash has left unfinished: nobody has acted on it yet. Other lines must be JSON."""
    try:
        keep_alone(path, MOST)
        with os.fdopen(open_own(path, most=MOST), "r+b") as file:
            whole = 0
            for line in file:
                if line.endswith(b"\n"):
                    whole += len(line)
                    if not isinstance(parse_json(line), dict):
                        raise ValueError("a line of it is something else")
            if not whole and any(path.parent.glob("trial-*")):
                raise ValueError("it is empty, and there are trials")
            if whole < file.tell():
                file.truncate(whole)
    except (OSError, ValueError) as error:
        raise damaged(path, getattr(error, "strerror", None) or str(error)) from None


def _difference(before: Record, now: Record) -> str:
    found = settings_.differences(settings_.from_dict(before["settings"]), settings_.from_dict(now["settings"]))
    names = sorted({*before["space"], *now["space"]})
    found += [f"search of {name}" for name in names if before["space"].get(name) != now["space"].get(name)]
    return "; ".join(found) or "the data has changed"

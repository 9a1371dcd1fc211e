"""The journal of a sweep: Optuna's file of what was asked and told, in a folder that one process holds."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mixmatch import settings as settings_
from mixmatch.data import is_path
from mixmatch.errors import MixMatchError
from mixmatch.experiments.tune.sweep import Sweep
from mixmatch.storage import try_lock
from mixmatch.training.evaluate import LEAST_VALID
from mixmatch.training.run import Record

if TYPE_CHECKING:
    from optuna import Study

COMPARED = 4
"""Finished trials it takes before others are compared with them and stopped."""

WARM_UP = 3
"""No trial is stopped in the first third of its steps, where weights of unlabeled losses still rise."""

JOURNAL = "journal.log"


def require_optuna() -> None:
    if importlib.util.find_spec("optuna") is None:
        raise MixMatchError("tune needs Optuna: install it with pip install 'mixmatch[tune]'")


@contextmanager
def held(out: Path) -> Iterator[None]:
    """Hold a sweep's folder against other processes."""
    try:
        if out.is_dir() and not (out / JOURNAL).exists() and any(not e.name.startswith(".") for e in out.iterdir()):
            raise MixMatchError(f"{out} holds other files and is not a sweep: choose another folder with out=")
        out.mkdir(parents=True, exist_ok=True)
        file = (out / ".lock").open("a+")
    except OSError as error:
        raise MixMatchError(f"cannot write to {out}: {error.strerror}; choose another folder with out=") from None
    with file:
        if not try_lock(file.fileno()):
            raise MixMatchError(f"another process is tuning in {out}: wait for it or choose another folder with out=")
        yield


def open_study(sweep: Sweep) -> Study:
    """The study in a sweep's journal, a new one if there is none. One of another sweep is refused."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    class Held(JournalFileOpenLock):
        """The whole folder is held, by a lock that ends with the process; Optuna's would outlive a kill."""

        def acquire(self) -> bool:
            return True

        def release(self) -> None: ...

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path = sweep.out / JOURNAL
    _mend(path)
    storage = JournalStorage(JournalFileBackend(str(path), Held(str(path))))
    study = optuna.create_study(storage=storage, study_name="tune", direction="minimize", load_if_exists=True)
    study.pruner = optuna.pruners.MedianPruner(n_startup_trials=COMPARED, n_warmup_steps=warm_up(sweep))
    before, now = study.user_attrs.get("sweep"), sweep.to_dict()
    if before is None:
        study.set_user_attr("sweep", now)
    elif before != _named_as_before(now, before):
        raise MixMatchError(
            f"{sweep.out} holds a sweep with other settings ({_difference(before, now)}): continue it with its own, or "
            "choose another folder with out="
        )
    return study


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
    """Cut a line off that a crash has left unfinished. Nobody has acted on it yet."""
    content = path.read_bytes() if path.exists() else b""
    if content and not content.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)


def _difference(before: Record, now: Record) -> str:
    found = settings_.differences(settings_.from_dict(before["settings"]), settings_.from_dict(now["settings"]))
    names = sorted({*before["space"], *now["space"]})
    found += [f"search of {name}" for name in names if before["space"].get(name) != now["space"].get(name)]
    return "; ".join(found) or "the data has changed"

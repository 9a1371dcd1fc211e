"""What a sweep is: the settings that all trials share, where it searches, and what trials are compared on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mixmatch import settings as settings_
from mixmatch.data import Reading, is_path, read_user_data, source_info
from mixmatch.data.opened import Data
from mixmatch.data.source import labels_sha256
from mixmatch.data.user.rows import UserData
from mixmatch.data.validation import FOLDS, OPTION, assign_folds, for_validation, number_of_folds
from mixmatch.errors import MixMatchError, explaining
from mixmatch.experiments.tune.space import Choices, Space, space_of
from mixmatch.settings import Settings
from mixmatch.text import count
from mixmatch.training.job import Job, Work
from mixmatch.training.opening import open_data, say_findings
from mixmatch.training.plan import plan
from mixmatch.training.progress import Reporter
from mixmatch.training.run import Record, RunFolder

PAPERS_VALID = 5000
"""Validation images of the paper, Section 4.1."""


@dataclass(frozen=True)
class Sweep:
    """What a sweep is: everything that must be the same when it is continued."""

    out: Path
    base: Job
    """A run with the defaults, on all of the data."""
    space: Space
    sizes: tuple[int, ...]
    """Rows that the models of a trial are evaluated on: one model where there are validation images, one per fold
    else."""
    fingerprint: str
    """Of the labels and the split."""
    read: UserData | None = None
    note: str = ""

    @property
    def folds(self) -> int:
        return len(self.sizes)

    @property
    def rows(self) -> int:
        """That trials are compared on."""
        return sum(self.sizes)

    @property
    def settings(self) -> Settings:
        return self.base.settings

    @property
    def defaults(self) -> dict[str, Any]:
        """The values of trial 0."""
        values = settings_.flat(self.settings)
        return {name: values[name] for name in self.space}

    @property
    def noun(self) -> str:
        return "image" if self.read is None else self.read.noun

    @property
    def chosen_by(self) -> str:
        """What trials are compared by, in words."""
        rows = count(self.rows, f"{'validation' if self.folds == 1 else 'labeled'} {self.noun}")
        if self.folds == 1:
            return f"the error on {rows}, which are not trained on; no test {self.noun} is looked at"
        return (
            f"the error on {rows}, each predicted by one of {self.folds} models that was trained without it "
            f"(cross-validation); no test {self.noun} is looked at"
        )

    def to_dict(self) -> Record:
        """As the journal has it."""
        space = {name: ["choices" if isinstance(s, Choices) else "range", *s] for name, s in self.space.items()}
        about = {"settings": self.settings.to_dict(), "space": space, "fingerprint": self.fingerprint}
        return dict(json.loads(json.dumps(about)))

    def folder(self, trial: int, fold: int) -> Path:
        folder = self.out / f"trial-{trial:03}"
        return folder if self.folds == 1 else folder / f"fold-{fold + 1}"

    def runs(self, trial: int) -> list[RunFolder]:
        return [RunFolder(self.folder(trial, fold)) for fold in range(self.folds)]

    def metrics(self, trial: int) -> list[list[Record]]:
        """The evaluations of each of a trial's runs."""
        found = [run.metrics() for run in self.runs(trial)]
        for fold, records in enumerate(found):
            for record in records:
                if not all(type(record.get(name)) in (int, float) for name in ("valid_error", "seconds")):
                    file = self.folder(trial, fold) / "metrics.jsonl"
                    raise MixMatchError(f"{file} is damaged (it has no errors): choose another folder with out=")
        return found

    def job(self, trial: int, fold: int, values: Mapping[str, Any]) -> Job:
        """The run of one fold of a trial."""
        option = {} if self.folds == 1 else {"fold": fold, "folds": self.folds}
        options = {**self.settings.data_options, OPTION: option}
        settings = settings_.check(settings_.updated(self.settings, {**values, "data_options": options}))
        given = None if self.base.given is None else tuple(sorted({*self.base.given, *values}))
        return replace(self.base, settings=settings, out=self.folder(trial, fold), given=given, resume=True)

    def open(self, settings: Settings) -> Data:
        """The data of a trial's run; user data is read once."""
        job = self.base
        return open_data(settings, job.data_dir, strict=job.strict, device=job.device, read=self.read)

    def work(self, trial: int, fold: int, values: Mapping[str, Any], reporter: Reporter) -> Work:
        job = self.job(trial, fold, values)
        note = "the defaults" if trial == 0 else described(values)
        opener = None if self.read is None else self.open
        return Work(job, data=opener, reads_again=True, reporter=reporter, note=note if fold == 0 else "")


def described(values: Mapping[str, Any]) -> str:
    """
    >>> described({"lambda_u": 12.5, "mix": "all"})
    'lambda_u 12.5, mix all'
    """
    shown = {name: f"{value:g}" if isinstance(value, float) else value for name, value in values.items()}
    return ", ".join(f"{name} {value}" for name, value in shown.items())


def make_sweep(
    data: str,
    given: Mapping[str, Any],
    reading: Mapping[str, Any] | None,
    out: Path | None,
    search: Sequence[str],
    only: bool,
    say: Callable[[str], None],
    **options: Any,
) -> Sweep:
    given = {name: value for name, value in given.items() if value is not None}
    if not is_path(data):
        info = source_info(data)
        given.setdefault("valid", min(PAPERS_VALID, info.train // 5))
        if given["valid"] < 1:
            raise MixMatchError("valid=0 leaves no validation images to compare trials on: leave it out")
    work = plan(data, given, reading, **options)
    job = work.job
    if out is None:
        name = Path(data).resolve().name if is_path(data) else data
        out = Path("runs") / f"tune-{name}-{job.settings.method}"
    space = space_of(job.settings, job.given or (), search, only)
    read = read_user_data(Path(data), Reading.of(job.settings.data_options)) if is_path(data) else None
    if read is not None and not out.exists():
        say_findings(read, job.settings, job.settings.build_method(), say)
    whole = open_data(job.settings, job.data_dir, strict=job.strict, device=job.device, read=read)
    if read is None:
        valid = for_validation(whole, {}, job.settings.seed)
        return Sweep(out, job, space, (len(valid.split.valid),), fingerprint(whole), note=work.note)
    folds = _folds_of(out) or number_of_folds(whole)
    if folds == 0:
        raise MixMatchError(f"no class of {data} has two labels: one to learn from and one to validate; add labels")
    labels = whole.source.train.labels[whole.split.labeled]
    assigned = assign_folds(labels, folds, job.settings.seed)
    sizes = tuple(np.bincount(assigned[assigned >= 0], minlength=folds).tolist())
    return Sweep(out, job, space, sizes, fingerprint(whole), read, work.note)


def _folds_of(out: Path) -> int:
    """How many folds the trials of a sweep that was begun have: an earlier version dealt fewer to small classes. 0 if
    no trial was begun."""
    run = RunFolder(out / "trial-000" / "fold-1")
    with explaining(f"cannot read {run.path}", "choose another folder with out="):
        if not (run.path / "config.json").exists():
            return 0
    options = run.config()["settings"].get("data_options")
    match options.get(OPTION) if isinstance(options, dict) else None:
        case {"fold": 0, "folds": int(folds)} if 1 < folds <= FOLDS:
            return folds
    raise run.damaged("config.json", "it is not the first fold of a trial")


def fingerprint(data: Data) -> str:
    return f"{data.split.hash} {labels_sha256(data.source)}"

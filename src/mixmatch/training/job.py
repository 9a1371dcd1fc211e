"""A run to do: in plain values, and with the objects of this process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from mixmatch import settings as settings_
from mixmatch.data.opened import Data
from mixmatch.methods.base import Method
from mixmatch.settings import Settings
from mixmatch.training import progress
from mixmatch.training.opening import open_data


@dataclass(frozen=True)
class Job:
    """A run to do. Plain values only, so that it can be sent to another process or machine."""

    settings: Settings
    out: Path
    given: tuple[str, ...] | None = None
    """Settings that were chosen. The others may follow the data and the device and, on resume, the run. None: all."""
    resume: bool = False
    checkpoint: str | None = None
    """Resume from this checkpoint instead of the newest."""
    checkpoint_every: int | None = None
    device: str = "auto"
    compile: bool | None = None
    data_dir: Path | None = None
    strict: bool = False

    def chosen(self, name: str) -> bool:
        return self.given is None or name in self.given

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON; `from_dict` reads it."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        folders = {name: None if values[name] is None else str(values[name]) for name in ("out", "data_dir")}
        given = None if self.given is None else list(self.given)
        return {**values, **folders, "settings": self.settings.to_dict(), "given": given}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Job:
        folders = {name: None if values[name] is None else Path(values[name]) for name in ("out", "data_dir")}
        given = None if values["given"] is None else tuple(values["given"])
        return Job(**{**values, **folders, "settings": settings_.from_dict(values["settings"]), "given": given})


@dataclass
class Work:
    """A job, and the objects it uses in place of what its settings name."""

    job: Job
    data: Data | Callable[[Settings], Data] | None = None
    """Data that is already open, or a function that opens it."""
    reads_again: bool = False
    """Whether another process can open the same data from the job alone."""
    network: nn.Module | None = None
    method: Method | None = None
    reporter: progress.Reporter | None = None
    also: tuple[progress.Reporter, ...] = ()
    """Observers of this run, but not of the runs that come with it."""
    note: str = ""
    """What to say when the run begins."""
    shared: bool = False
    """Whether the processes that torchrun started do it together."""

    def open(self, settings: Settings) -> Data:
        if isinstance(self.data, Data):
            return self.data
        if self.data is not None:
            return self.data(settings)
        return open_data(settings, self.job.data_dir, strict=self.job.strict, device=self.job.device)

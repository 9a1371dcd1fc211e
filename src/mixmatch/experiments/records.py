"""Records of finished runs: one JSON file each, in one folder. Merging results of several machines is copying files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from mixmatch.errors import MixMatchError
from mixmatch.settings import Settings, from_dict
from mixmatch.storage import read_json, replace_durably
from mixmatch.training import damage
from mixmatch.training.record import NAMED_BY
from mixmatch.training.run import FORMAT, Record

Experiment = tuple[tuple[str, Any], ...]

NEEDED: dict[str, Any] = {
    "data": str, "method": str, "labels": int | str, "seed": int, "steps": int, "error": int | float,
    "median_of": int, "last_error": int | float, "seconds": int | float, "curve": list, "settings": dict,
    "split": dict, "hardware": dict,
}  # fmt: skip
"""The fields that tables and figures are made from."""


def experiment(settings: Settings, apart: tuple[str, ...] = ()) -> Experiment:
    """What makes two runs the same experiment: all of their settings except the seed and those named in `apart`.

    The number of steps, the precision, the passes and how often a run is evaluated are part of it, because the reported
    number depends on each. The machine is not, nor whether steps were compiled: those change how sums are rounded, as
    much as another GPU does.
    """
    values = settings.to_dict()
    values.update(values.pop("method_settings"))
    values["data_options"] = json.dumps(values["data_options"], sort_keys=True)
    return tuple(sorted((name, value) for name, value in values.items() if name not in ("seed", *apart)))


def experiment_of(record: Record, apart: tuple[str, ...] = ()) -> Experiment:
    """The experiment a record is of. Every cell of every table asks this of every record, so the answers are kept."""
    return _experiment_of(json.dumps(record["settings"]), apart)


@lru_cache(maxsize=8192)
def _experiment_of(settings: str, apart: tuple[str, ...]) -> Experiment:
    return experiment(from_dict(json.loads(settings)), apart)


def file_name(record: Record) -> str:
    """The same run gives the same name on every machine."""
    settings = json.dumps(record["settings"], sort_keys=True)
    short = hashlib.sha256(settings.encode()).hexdigest()[:8]
    parts = (record["data"], record["method"], record["labels"], f"seed{record['seed']}", f"steps{record['steps']}")
    return "-".join(map(str, parts)) + f"-{short}.json"


def minutes(record: Record) -> list[float]:
    """After how many minutes of training each point of a record's curve was reached, assuming that all steps take
    equally long."""
    return [record["seconds"] * point["step"] / record["steps"] / 60 for point in record["curve"]]


def save(record: Record, folder: Path) -> Path:
    """Put a record into the folder; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name(record)
    record = {name: value for name, value in record.items() if name != damage.HASHES}  # of files that are not here
    replace_durably(path, (json.dumps({"format": FORMAT, **record}, indent=1) + "\n").encode())
    return path


def load(path: Path) -> Record:
    """One record, from its file."""
    try:
        return _load(path)
    except MixMatchError as error:
        raise MixMatchError(f"{path} is not a record of a finished run: {error}") from None


def load_all(folder: Path, warn: Callable[[str], None]) -> list[Record]:
    """All records of a folder, in the order of their names. `warn` is called for each one that is left out: damaged, of
    another version, or at odds with its own settings."""
    records = []
    for path in sorted(folder.rglob("*.json")):
        try:
            records.append(_load(path))
        except MixMatchError as error:
            warn(f"{path} is left out: {error}")
    return records


def _load(path: Path) -> Record:
    try:
        record = read_json(path, follow=True)
    except (OSError, ValueError) as error:
        raise MixMatchError(f"it cannot be read ({error})") from None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise MixMatchError("it is not a record of this version")
    if not damage.is_whole(record):
        raise MixMatchError("it is damaged: it is not what was written")
    missing = [name for name, kind in NEEDED.items() if not isinstance(record.get(name), kind)]
    if missing:
        raise MixMatchError(f"it has no {', '.join(missing)}")
    try:
        settings = from_dict(record["settings"])
    except TypeError as error:  # a list where a name should be
        raise MixMatchError(f"its settings make no sense ({error})") from None
    for name in NAMED_BY:
        if record[name] != getattr(settings, name):
            raise MixMatchError(f"its {name} is {record[name]}, but its settings say {getattr(settings, name)}")
    return record

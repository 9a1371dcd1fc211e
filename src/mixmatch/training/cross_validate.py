"""Cross-validation over the labels: each is predicted by a model that was trained without it.

That is how a model is evaluated where there are too few labels to hold some out, and it is what shows which labels may
be wrong: a model that has learned a label would repeat it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from mixmatch.data.opened import Basis, Data
from mixmatch.data.validation import assign_folds, number_of_folds
from mixmatch.errors import MixMatchError
from mixmatch.measure import Ints
from mixmatch.methods.base import Method
from mixmatch.settings import Settings
from mixmatch.storage import read_json, replace_durably
from mixmatch.text import count
from mixmatch.training.progress import Quiet, Reporter
from mixmatch.training.run import Record
from mixmatch.training.session import CUSTOM, train_whole
from mixmatch.training.trainer import NotFinite, Trainer

FILE = "cross_validation.json"
"""In the run folder."""


@dataclass(frozen=True)
class OutOfFold:
    """Labeled rows, and the predictions of models trained without them. All arrays have an entry per row."""

    folds: int
    rows: Ints
    """Numbers of the rows among the training rows."""
    fold: Ints
    """Which of the models was trained without the row."""
    labels: Ints
    predicted: Ints
    probability: npt.NDArray[np.float64]
    """Of the class predicted."""
    label_probability: npt.NDArray[np.float64]
    """Of the label."""
    left_out: tuple[str, ...] = ()
    """Classes with a single label, which is always trained on."""

    @property
    def wrong(self) -> npt.NDArray[np.bool_]:
        wrong: npt.NDArray[np.bool_] = self.predicted != self.labels
        return wrong

    def basis(self, noun: str) -> Basis:
        """What the model was evaluated on."""
        rows = count(len(self.rows), f"labeled {noun}")
        how = f"each predicted by one of {self.folds} models that was trained without it (cross-validation)"
        return Basis(f"{rows}, {how}", left_out=self.left_out)


def cross_validate(
    settings: Settings,
    data: Data,
    device: torch.device,
    out: Path,
    *,
    method: Method | None = None,
    reporter: Reporter | None = None,
) -> OutOfFold:
    """Train a model without each fold of the labels in turn, and predict that fold.

    The predictions are kept in `out`/cross_validation.json, fold by fold: folds that are there already, of the same
    settings and split, are not computed again.

    Args:
        settings: those of the run, as its config.json has them.
        data: the data of the run.
        method: as for `prepare`.
    """
    folds = possible_folds(data, by_name=not settings.network.startswith(CUSTOM))
    source, labeled = data.source, data.split.labeled
    assigned = assign_folds(source.train.labels[labeled], folds, settings.seed)
    name = str if data.user is None else data.user.files.__getitem__
    about: Record = {"split": data.split.hash, "settings": settings.to_dict(), "folds": folds}
    rows = _kept(out / FILE, about)
    there = {row["fold"] for row in rows}
    missing = [fold for fold in range(folds) if fold not in there]
    bar = reporter if reporter is not None and missing else Quiet()
    with contextlib.closing(bar):
        title = f"cross-validation of {settings.method}, {folds} models"
        bar.start(title, len(there) * settings.steps, folds * settings.steps)
        for done, fold in enumerate(missing, len(there)):
            held = labeled[assigned == fold]
            shown = lambda trainer, done=done: bar.steps(done * settings.steps + trainer.step, {})  # noqa: E731
            for row, values in zip(held.tolist(), _predicted(settings, data, held, device, method, shown), strict=True):
                label, top = int(source.train.labels[row]), int(values.argmax())
                rows.append(
                    {
                        "file": name(row),
                        "row": row,
                        "fold": fold,
                        "label": source.classes[label],
                        "predicted": source.classes[top],
                        "probability": round(float(values[top]), 6),
                        "label_probability": round(float(values[label]), 6),
                    }
                )
            out.mkdir(parents=True, exist_ok=True)
            replace_durably(out / FILE, json.dumps({"format": 1, **about, "rows": rows}, indent=1).encode())
    return _out_of_fold(data, folds, rows)


def possible_folds(data: Data, *, by_name: bool) -> int:
    """How many models it takes; refused if there is nothing to leave out, or the network cannot be rebuilt.

    Args:
        by_name: whether the network is built by name.
    """
    folds = number_of_folds(data)
    if folds == 0:
        raise MixMatchError("cross-validation takes a class with two labels or more: add labels")
    if not by_name:
        raise MixMatchError("cross_validate= needs a network that is built by name, to train it anew for each fold")
    return folds


def load_cross_validation(folder: Path, data: Data) -> OutOfFold | None:
    """What `cross_validate` has kept in a run folder; None if it is missing, lacks folds, or is of other data."""
    content = _read(folder / FILE)
    if content is None or content["split"] != data.split.hash:
        return None
    complete = {row["fold"] for row in content["rows"]} == set(range(content["folds"]))
    return _out_of_fold(data, content["folds"], content["rows"]) if complete else None


def _predicted(
    settings: Settings,
    data: Data,
    held: Ints,
    device: torch.device,
    method: Method | None,
    after: Callable[[Trainer], None],
) -> npt.NDArray[np.float64]:
    """Probabilities of these labeled rows, by a model that never saw them."""
    split = replace(
        data.split,
        labeled=np.setdiff1d(data.split.labeled, held),
        unlabeled=data.split.unlabeled[~np.isin(data.split.unlabeled, held)],
        test=data.split.test[:0],
    )
    try:
        model = train_whole(settings, replace(data, split=split), device, method, after)
    except NotFinite as error:
        raise MixMatchError(
            f"the loss was not finite at step {error.step:,} of cross-validation: try a lower learning_rate="
        ) from None
    return model.probabilities(np.array(data.source.train.inputs[held]))


def _out_of_fold(data: Data, folds: int, rows: list[Record]) -> OutOfFold:
    number = {name: c for c, name in enumerate(data.source.classes)}
    rows = sorted(rows, key=lambda row: int(row["row"]))
    counts = np.bincount(data.source.train.labels[data.split.labeled], minlength=len(number))
    return OutOfFold(
        folds,
        np.array([row["row"] for row in rows], np.int64),
        np.array([row["fold"] for row in rows], np.int64),
        np.array([number[row["label"]] for row in rows], np.int64),
        np.array([number[row["predicted"]] for row in rows], np.int64),
        np.array([row["probability"] for row in rows], np.float64),
        np.array([row["label_probability"] for row in rows], np.float64),
        tuple(name for name, n in zip(number, counts, strict=True) if n < 2),
    )


def _kept(path: Path, about: Record) -> list[Record]:
    """The rows of earlier folds, if they are of the same cross-validation."""
    content = _read(path)
    same = content is not None and all(content[name] == value for name, value in about.items())
    return list(content["rows"]) if content is not None and same else []


def _read(path: Path) -> Record | None:
    try:
        content = read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError):
        content = None
    if not isinstance(content, dict) or content.get("format") != 1:
        raise MixMatchError(f"{path} cannot be read: remove it, and cross-validate again")
    return content

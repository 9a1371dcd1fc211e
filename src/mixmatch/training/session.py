"""From settings to a record, one corridor: open the data, prepare a trainer, run the job in its folder."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from mixmatch import data as data_
from mixmatch import networks
from mixmatch import settings as settings_
from mixmatch.classifier import Classifier
from mixmatch.data import is_path
from mixmatch.data.cache import cache_folder
from mixmatch.data.embedding import Callback, embed
from mixmatch.data.opened import Basis, Data, to_data
from mixmatch.data.pate import open_shard, open_student
from mixmatch.data.published.files import data_folder
from mixmatch.data.source import Source, labels_sha256
from mixmatch.data.split import Split, make_split
from mixmatch.data.user.rows import UserData
from mixmatch.data.validation import OPTION as VALIDATION
from mixmatch.data.validation import for_validation
from mixmatch.draws import torch_seed
from mixmatch.errors import MixMatchError
from mixmatch.methods.base import Method
from mixmatch.networks.frozen import ON
from mixmatch.networks.heads import WithHeads
from mixmatch.presets import Kind
from mixmatch.settings import Settings
from mixmatch.training import progress
from mixmatch.training.checkpoint import Checkpoint
from mixmatch.training.device import (
    default_precision,
    default_speed,
    default_threads,
    explained_shortage,
    has_own_randomness,
    pick_device,
)
from mixmatch.training.loop import Loop
from mixmatch.training.record import make_record
from mixmatch.training.run import SEALED, Ended, Record, RunFolder, RunRecord
from mixmatch.training.stop import Stop
from mixmatch.training.torchrun import STALE_ADDRESSES, restarts_may_fail
from mixmatch.training.trainer import Trainer
from mixmatch.training.watch import Watch
from mixmatch.training.world import World, joined

CUSTOM = "custom:"
"""What the name of a network from outside the package begins with: its class's name follows."""


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
    """A job, and what it is done with where that is not what its settings name."""

    job: Job
    data: Data | Callable[[Settings], Data] | None = None
    """Data that is open already, or how to open it."""
    reads_again: bool = False
    """Whether another process can open the same data by the job alone."""
    network: nn.Module | None = None
    method: Method | None = None
    reporter: progress.Reporter | None = None
    also: tuple[progress.Reporter, ...] = ()
    """Who else follows this run, and no other that comes with it."""
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


# ---------------------------------------------------------------- data


def kind_of(data: str) -> Kind | None:
    """Which presets for user data apply: those for images, those for features, or none."""
    if not is_path(data):
        return None
    return "features" if data_.holds_features(Path(data)) else "images"


def open_data(
    settings: Settings,
    data_dir: str | Path | None = None,
    *,
    strict: bool = False,
    device: str | torch.device = "auto",
) -> Data:
    """Read the data that the settings name, or the part of it that is a teacher's, a student's or a search's, and split
    it."""
    if VALIDATION in settings.data_options:
        options = {name: value for name, value in settings.data_options.items() if name != VALIDATION}
        whole = open_data(replace(settings, data_options=options), data_dir, strict=strict, device=device)
        return for_validation(whole, settings.data_options[VALIDATION], settings.seed)
    for part, opener in (("shard", open_shard), ("student", open_student)):
        if part in settings.data_options:
            if settings.imbalance != 1:
                raise MixMatchError("imbalance= is not for PATE, whose shards and pools are given: leave it out")
            return opener(settings, data_dir, strict=strict)
    if not is_path(settings.data):
        if settings.hold_out != "all-classes":
            raise MixMatchError(f"hold_out= is for your own data, not for '{settings.data}': leave it out")
        source = data_.load(settings.data, data_dir, strict=strict)
        split = split_of(source, settings)
        data = Data(source, split, Basis(f"its {len(split.test):,} test images"))
        return embedded(data, settings, device, cache_folder(data_folder(data_dir), strict=strict))
    read = data_.read_user_data(Path(settings.data), data_.Reading.of(settings.data_options))
    return user_data(read, settings, device)


def split_of(source: Source, settings: Settings) -> Split:
    """The split of a data set whose classes are known, as the settings say."""
    s = settings
    return make_split(source, s.labels, s.seed, s.valid, s.unlabeled, s.imbalance)


def embedded(
    data: Data,
    settings: Settings,
    device: str | torch.device = "auto",
    cache: Path | None = None,
    progress: Callback | None = None,
) -> Data:
    """The data with frozen features in place of images, if the settings ask for them."""
    if settings.features == "none":
        return data
    where = pick_device(device)
    source = embed(
        data.source, settings.features, settings.weights, views=settings.views, flip=settings.flip, device=where,
        cache=cache, progress=progress,
    )  # fmt: skip
    return replace(data, source=source)


def say_findings(read: UserData, settings: Settings, method: Method, warn: Callable[[str], None]) -> None:
    """Say what was left out of user data. A method that learns from unlabeled rows is refused where there are none."""
    for finding in read.findings:
        text = f"{finding.message}: {finding.advice}" if finding.advice else finding.message
        if finding.kind != "no-unlabeled":
            if finding.severity != "info":
                warn(text)
        elif method.views and settings.unlabeled != "all":
            raise MixMatchError(text)


def user_data(
    read: UserData,
    settings: Settings,
    device: str | torch.device = "auto",
    progress: Callback | None = None,
) -> Data:
    """User data that was read, split as the settings say, embedded if they say so."""
    if settings.labels != "all" or settings.valid:
        raise MixMatchError(
            "labels= and valid= do not apply to your own data, whose labels are all used: leave them out"
        )
    if settings.imbalance != 1:
        raise MixMatchError("imbalance= is for published data sets, not for your own data: leave it out")
    place = Path(settings.data)
    cache = cache_folder(place if place.is_dir() else place.parent) if settings.features != "none" else None
    data = embedded(to_data(read, settings.seed, settings.hold_out), settings, device, cache, progress)
    if settings.unlabeled == "rest":
        return data
    everything = np.concatenate([data.split.labeled, data.split.unlabeled])
    return replace(data, split=replace(data.split, unlabeled=everything))


def open_run(run: RunFolder, opener: Callable[[Settings], Data], data: str | Path | None = None) -> Data:
    """The data of a run that was trained, at another place if `data` is given. Data that has changed since is refused:
    it would be split anew, and the run evaluated on what it has learned from."""
    config = run.config()
    settings = run.settings()
    if data is not None and settings.data.removesuffix("-test") in data_.SOURCES:
        raise MixMatchError(f"data= is for a run on your own data, but {run.path} is of '{settings.data}'")
    settings = located(settings, config.get("folder"), data)
    if settings.data.removesuffix("-test") not in data_.SOURCES and not Path(settings.data).exists():
        raise MixMatchError(
            f"the data of {run.path} is not at {settings.data}: say where it is with data= (if it was a Source, only "
            "Python can open it)"
        )
    opened = opener(settings)
    _refuse_changed(run, config, opened)
    return opened


def located(settings: Settings, folder: str | None, moved: str | Path | None = None) -> Settings:
    """The settings of a run with its files where they are now: as they are named, or in the `folder` where the run
    began. Data that has `moved` takes with it what lies inside."""
    began = Path(folder or "")

    def place(path: str) -> str:
        if moved is not None and (began / path).is_relative_to(began / settings.data):
            return str(Path(moved) / (began / path).relative_to(began / settings.data))
        return path if Path(path).exists() or not (began / path).exists() else str(began / path)

    options, labels_file = settings.data_options, settings.data_options.get("labels_file")
    if labels_file is not None:
        options = {**options, "labels_file": place(labels_file)}
    is_published = settings.data.removesuffix("-test") in data_.SOURCES
    return replace(settings, data=settings.data if is_published else place(settings.data), data_options=options)


def _refuse_changed(run: RunFolder, config: Record, data: Data) -> None:
    if (what := _changed(config, _described(data))) is not None:
        raise MixMatchError(
            f"the data has changed since {run.path} was trained ({what}), so some of what it learned from might be "
            "among what it is evaluated on: train again in another folder"
        )


# ---------------------------------------------------------------- trainer


def completed(
    settings: Settings, given: Callable[[str], bool], source: Source, device: torch.device, kind: Kind | None
) -> Settings:
    """The settings with what follows from the data and the device, where it was not given. `kind` is that of user
    data."""
    if kind == "images" and source.train.is_images and not given("pad"):
        settings = replace(settings, pad=min(source.image_shape[:2]) // 8)  # as the paper's 4 of 32
    if not given("precision"):
        settings = replace(settings, precision=default_precision(settings, device, source.input_shape))
    return settings


def prepare(
    settings: Settings,
    data: Data,
    device: torch.device,
    *,
    network: nn.Module | None = None,
    method: Method | None = None,
    compile: bool = False,
    graph: bool = False,
    side_by_side: bool = False,
    threads: int | None = None,
    world: World | None = None,
) -> Trainer:
    """A trainer at step 0: initial weights follow from the seed, unless a `network` is given."""
    source = data.source
    torch.manual_seed(torch_seed(settings.seed, "init"))
    if network is None:
        weights = settings.weights if source.embedding is None else ""  # those of the frozen network
        network = networks.build(settings.network, len(source.classes), source.input_shape, weights or None)
    else:
        _check_network(network, len(source.classes), source.input_shape)
    if source.embedding is not None:
        network = source.embedding.under(network)
    alone = side_by_side and graph and has_own_randomness(network)
    trainer = Trainer(
        settings,
        source,
        data.split,
        network,
        device,
        method=method,
        compile=compile,
        graph=graph and not alone,
        threads=threads,
        world=world,
    )
    if alone:
        trainer.queue_note("a network with randomness of its own is not graphed next to other runs: it trains slower")
    return trainer


def watch_for(trainer: Trainer) -> Watch | None:
    """A watch on the guesses of a run that makes any. Published data sets have none: their settings are known not to
    collapse, and evaluations cost what they did."""
    settings, source = trainer.settings, trainer.source
    if not trainer.objective.method.views or settings.data.removesuffix("-test") in data_.SOURCES:
        return None
    return Watch(settings, source.classes, source.train.labels[trainer.split.labeled], source.noun)


def averaged(trainer: Trainer) -> Classifier:
    """The classifier that a trainer has made: its network gets the averaged weights."""
    trainer.wait()
    network, source = trainer.model.network, trainer.source
    network.load_state_dict({**network.state_dict(), **trainer.model.ema})
    if isinstance(network, WithHeads):  # further heads are of use in training alone
        network = network.network
    name, shape = trainer.settings.network, source.input_shape
    if source.embedding is not None:
        name, shape = f"{source.embedding.name}{ON}{name}", source.embedding.input_shape
    return Classifier(network, name, source.classes, shape, source.encoding)


@torch.no_grad()
def _check_network(network: nn.Module, classes: int, shape: tuple[int, ...]) -> None:
    """A network from outside must map rows to logits; found out before anything is written."""
    what = "images" if len(shape) == 3 else "features"
    tensors = [*network.parameters(), *network.buffers()]
    if any(tensor.is_meta for tensor in tensors):
        raise MixMatchError(
            "the network is on the meta device, where it has no weights: build it on the CPU, or fill it with "
            "network.to_empty(device='cpu') and initialize it"
        )
    if not any(parameter.requires_grad for parameter in network.parameters()):
        none = "no parameters" if not any(True for _ in network.parameters()) else "none with requires_grad"
        raise MixMatchError(f"the network has nothing to train ({none}): give one with parameters that learn")
    try:
        logits = network.eval()(torch.zeros(2, *shape, device=next(network.parameters()).device))
    except (RuntimeError, ValueError, StopIteration) as error:
        reason = str(error).splitlines()[0] if str(error) else "it has no parameters"
        raise MixMatchError(
            f"the network does not take {what} of shape (N, {', '.join(map(str, shape))}): {reason}"
        ) from None
    if not isinstance(logits, torch.Tensor) or logits.shape != (2, classes):
        got = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise MixMatchError(f"the network must give logits (N, {classes}) for N {what}, not {got}")


# ---------------------------------------------------------------- run


def running(work: Work, stop: Stop, side_by_side: bool = False) -> Generator[None, None, RunRecord]:
    """Do a job, pausing after every few steps so that runs can take turns; returns its record."""
    device = pick_device(work.job.device)
    with joined(device, work.shared) as world:
        return (yield from _running(work, stop, device, world, side_by_side))


def _running(
    work: Work, stop: Stop, device: torch.device, world: World, side_by_side: bool
) -> Generator[None, None, RunRecord]:
    job, run = work.job, RunFolder(work.job.out)
    if job.checkpoint_every is not None and job.checkpoint_every < 1:
        raise MixMatchError(f"checkpoint_every={job.checkpoint_every} must be 1 or more")
    began, finished = run.continues(job.resume), run.finished()
    settings = job.settings
    if began:
        settings = resumed(job, run, work.method)
        record = run.result() if job.checkpoint is None else None
        if record is not None and record["steps"] == settings.steps:
            run.verify(*SEALED)
            if isinstance(work.data, Data):
                _refuse_changed(run, run.config(), work.data)
            return record
    if (why := run.asked_to_end()) is not None:
        raise Ended(run.path, why)
    _check_folder(job, run, settings, work, began)
    config = run.config() if began else {}
    moved = job.settings.data if began and is_path(job.settings.data) else None
    data = work.open(located(settings, config.get("folder"), moved))
    if not began:
        settings = completed(settings, job.chosen, data.source, device, _user_kind(work, data))
    compile = job.compile if job.compile is not None else config.get("compile")
    speed = default_speed(settings.steps, device, compile)
    # On a CPU bits depend on the number of threads, so a run keeps it. What drives a GPU does not matter.
    count = config.get("threads") or default_threads(data.source.input_shape) if device.type == "cpu" else None
    reporter = work.reporter
    if not world.leads:
        reporter = progress.Quiet()
    elif reporter is None:
        reporter = progress.on_stderr(f" {settings.labels} seed {settings.seed}" if side_by_side else "")
    with contextlib.ExitStack() as held:
        held.enter_context(explained_shortage(device, lambda: str(run.path) if run.exists() else None))
        trainer = prepare(
            settings, data, device, network=work.network, method=work.method, side_by_side=side_by_side,
            compile=speed.compile, graph=speed.graph, threads=count, world=world,
        )  # fmt: skip
        if work.note and not began:
            trainer.queue_note(work.note)
        if world.size > 1 and restarts_may_fail():
            trainer.queue_note(f"restarts may fail: set {STALE_ADDRESSES}=1 before torchrun")
        world.barrier()  # all have looked at the folder before it changes
        if not world.leads:
            return (yield from _following(trainer, run, stop, job, began))
        held.enter_context(run.lock())  # makes the folder, so everything that may be refused is refused above
        if run.continues(resume=False) if not began else run.finished() and not finished:
            raise MixMatchError(f"another process has worked in {run.path} meanwhile: look at it, then start again")
        about = {"settings": settings.to_dict(), **_described(data), "compile": compile, "threads": count}
        if world.size > 1:
            about["processes"] = world.size
        if data.user is not None:
            about["folder"] = str(Path.cwd())  # where relative paths begin
        if began:
            saved = _resume(run, about, job.checkpoint)
        else:
            saved = None
            run.write_config(about)
        world.barrier()  # the others read the checkpoint next
        shown = progress.Several(reporter, progress.TensorBoard(run.path), *work.also)
        seconds = yield from Loop(trainer, run, shown, stop, saved, job.checkpoint_every, watch_for(trainer)).turns()
        run.check_attempt()
        averaged(trainer).save(run.model)
        record = make_record(
            settings, data.split, run.metrics(), seconds, device, trainer.engine, trainer.machines, threads=count
        )
        return world.from_leader(run.write_result(record))


def _following(trainer: Trainer, run: RunFolder, stop: Stop, job: Job, began: bool) -> Generator[None, None, RunRecord]:
    """The part in a run of a process that does not lead: it takes steps, and leaves the folder alone."""
    trainer.world.barrier()  # until the one that leads has locked and prepared the folder
    saved = run.load_checkpoint(job.checkpoint) if began else None
    yield from Loop(trainer, run, progress.Quiet(), stop, saved, job.checkpoint_every).turns()
    return trainer.world.from_leader(RunRecord())  # when it is written


def _user_kind(work: Work, data: Data) -> Kind | None:
    """Of user data, what it holds; None of a `Source`, whose name means nothing on this disk."""
    return kind_of(work.job.settings.data) if work.data is None or data.user is not None else None


def _check_folder(job: Job, run: RunFolder, settings: Settings, work: Work, began: bool) -> None:
    """Refuse what cannot be begun or resumed in this folder."""
    if settings.network.startswith(CUSTOM) and work.network is None:
        name = settings.network.removeprefix(CUSTOM)
        raise MixMatchError(f"the settings are for a network of your own, {name}: pass it, train(network=...)")
    if began:
        if work.method is None:
            settings.build_method()  # an error if it is one from outside
    elif job.checkpoint is not None:
        raise MixMatchError(f"{run.path} holds no run, so it has no checkpoint '{job.checkpoint}' to resume from")
    elif run.path.is_dir() and not run.exists() and any(not entry.name.startswith(".") for entry in run.path.iterdir()):
        raise MixMatchError(f"{run.path} holds other files and is not a run folder: choose another with out=")


def resumed(job: Job, run: RunFolder, method: Method | None) -> Settings:
    """The settings of a run that is to be resumed; those chosen must not contradict them."""
    if not job.resume:
        raise MixMatchError(
            f"{run.path} holds a run already: continue it with resume=True, or choose another with out="
        )
    before, wanted = run.settings(), job.settings
    if job.chosen("method") and wanted.method != before.method:  # what follows from it is not worth saying
        raise _other_settings(run, [f"method: {before.method} -> {wanted.method}"])
    values = {name: value for name, value in settings_.flat(wanted).items() if job.chosen(name)}
    known = {**settings_.of_run(), **before.method_settings}
    now = settings_.updated(before, {name: value for name, value in values.items() if name in known})
    places = {Path(before.data).resolve(), Path(run.config().get("folder", ""), before.data).resolve()}
    same_place = is_path(wanted.data) and Path(wanted.data).resolve() in places
    moved = is_path(wanted.data) and before.data not in data_.SOURCES and not any(map(Path.exists, places))
    now = replace(
        now,
        data=before.data if same_place or moved else wanted.data,
        data_options={**before.data_options, **wanted.data_options},
    )
    different = settings_.differences(before, now)
    if settings_.differences(replace(before, steps=now.steps), now):
        raise _other_settings(run, different)
    if different:  # only the number of steps is another
        why = settings_.depends_on_steps(before, type(method if method is not None else before.build_method()))
        if why is not None:
            raise MixMatchError(
                f"{run.path} was made for {before.steps:,} steps, not {now.steps:,}: {why}; start another run"
            )
    return now


def _other_settings(run: RunFolder, different: list[str]) -> MixMatchError:
    return MixMatchError(
        f"{run.path} was made with other settings ({'; '.join(different)}): resume with its own, or choose another "
        "folder with out="
    )


def _resume(run: RunFolder, config: Record, checkpoint: str | None) -> Checkpoint | None:
    steps = config["settings"]["steps"]
    if (what := _changed(run.config(), config)) is not None:
        raise MixMatchError(
            f"the data has changed since {run.path} was started ({what}): start again in another folder"
        )
    saved = run.load_checkpoint(checkpoint)
    if saved is None and run.finished():
        raise MixMatchError(
            f"{run.path} is finished and has no checkpoint to resume from: start again in another folder"
        )
    if saved is not None and saved.step > steps:
        raise MixMatchError(
            f"{run.path} has taken {saved.step:,} steps already: it cannot end after {steps:,}; give more "
            "steps=, or go back to an earlier one with checkpoint="
        )
    if saved is not None and checkpoint is not None:
        run.forget_after(saved.step)
    if saved is not None:
        run.tidy_checkpoints()
    if run.config()["settings"]["steps"] != steps or run.finished():
        run.end_at(steps)
    return saved


def _described(data: Data) -> Record:
    """What a run's configuration says about its data."""
    source, split = data.source, data.split
    about = {
        "classes": list(source.classes),
        "input_shape": list(source.input_shape),
        "split": {"hash": split.hash, **split.counts(), "labeled_rows": split.labeled.tolist()},
        "labels_sha256": labels_sha256(source),
    }
    if source.embedding is not None:
        about["image_shape"] = list(source.embedding.input_shape)
    return about if source.encoding is None else {**about, "encoding": source.encoding.to_dict()}


def _changed(before: Record, now: Record) -> str | None:
    """What of the data is no longer as a run's configuration has it; None if nothing is. Pixels are not compared:
    decoders differ from machine to machine."""
    if before["classes"] != now["classes"]:
        return f"classes {', '.join(map(str, before['classes']))} -> {', '.join(now['classes'])}"
    if before["input_shape"] != now["input_shape"]:
        return f"inputs of shape {tuple(before['input_shape'])} -> {tuple(now['input_shape'])}"
    if before["split"]["hash"] != now["split"]["hash"]:
        return "another split"
    if before.get("labels_sha256", now["labels_sha256"]) != now["labels_sha256"]:
        return "other labels"
    if not _alike(before.get("encoding"), now.get("encoding")):
        return "other features"
    return None


def _alike(a: Any, b: Any) -> bool:
    """Whether JSON values are the same, numbers as far as two machines agree on a mean."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_alike(a[name], b[name]) for name in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_alike, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)
    return bool(a == b)

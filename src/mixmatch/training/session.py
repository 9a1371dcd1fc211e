"""From settings to a record: open the data (`opening`), prepare a trainer, run the job in its folder."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from mixmatch import data as data_
from mixmatch import networks
from mixmatch import settings as settings_
from mixmatch.classifier import Classifier
from mixmatch.data import is_path
from mixmatch.data.opened import Data
from mixmatch.data.source import Source
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
    own_generator,
    pick_device,
)
from mixmatch.training.job import Job, Work
from mixmatch.training.loop import Loop
from mixmatch.training.opening import changed, described, kind_of, located, refuse_changed
from mixmatch.training.progress import Reporter
from mixmatch.training.record import make_record, versions
from mixmatch.training.run import SEALED, Ended, Record, RunFolder, RunRecord
from mixmatch.training.stop import Stop
from mixmatch.training.torchrun import STALE_ADDRESSES, restarts_may_fail
from mixmatch.training.trainer import CHUNK, Trainer
from mixmatch.training.watch import Watch
from mixmatch.training.world import World, joined

CUSTOM = "custom:"
"""What the name of a network from outside the package begins with: its class's name follows."""


# ---------------------------------------------------------------- trainer


def completed(
    settings: Settings, given: Callable[[str], bool], source: Source, device: torch.device, kind: Kind | None
) -> Settings:
    """The settings, completed with what follows from the data and the device. `kind` is that of user
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
        trainer.note(
            "a network that draws random numbers itself is not captured as a graph next to other runs: it "
            "trains more slowly"
        )
    return trainer


def watch_for(trainer: Trainer) -> Watch | None:
    """A watch on the guesses of a run that makes any. Published data sets have none: their settings are known not to
    collapse, and evaluations cost what they did."""
    settings, source = trainer.settings, trainer.source
    if not trainer.objective.method.views or data_.is_published(settings.data):
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


def train_whole(
    settings: Settings, data: Data, device: torch.device, method: Method | None, after: Callable[[Trainer], None]
) -> Classifier:
    """Train to the end without a run folder. `after` is called after every few steps; a loss that is not finite is a
    `NotFinite`."""
    threads = default_threads(data.source.input_shape, device)
    with own_generator(device):
        trainer = prepare(settings, data, device, method=method, graph=device.type == "cuda", threads=threads)
        while trainer.step < settings.steps:
            trainer.advance(min(settings.steps, trainer.step + CHUNK))
            trainer.check_finite()
            after(trainer)
        return averaged(trainer)


@torch.no_grad()
def _check_network(network: nn.Module, classes: int, shape: tuple[int, ...]) -> None:
    """A network from outside must map rows to logits; found out before anything is written."""
    what = "images" if len(shape) == 3 else "features"
    if isinstance(network, torch.jit.ScriptModule):
        raise MixMatchError("the network is a compiled script, which cannot be trained here: pass the module itself")
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
        raise MixMatchError(f"the network must return logits (N, {classes}) for N {what}, not {got}")


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
    settings = resumed(job, run, work.method) if began else job.settings
    if began and (record := _record_of(work, run, settings)) is not None:
        return record
    if (why := run.asked_to_end()) is not None:
        raise Ended(run.path, why)
    _check_folder(job, run, settings, work, began)
    config = run.config() if began else {}
    settings, data = _opened(work, settings, config, device)
    compile = job.compile if job.compile is not None else config.get("compile")
    speed = default_speed(settings.steps, device, compile)
    # On a CPU bits depend on the number of threads, so a run keeps it. What drives a GPU does not matter.
    count = config.get("threads") or default_threads(data.source.input_shape, device) if device.type == "cpu" else None
    reporter = _reporter(work, settings, world, side_by_side)
    with explained_shortage(device, lambda: str(run.path) if run.exists() else None):
        trainer = prepare(
            settings, data, device, network=work.network, method=work.method, side_by_side=side_by_side,
            compile=speed.compile, graph=speed.graph, threads=count, world=world,
        )  # fmt: skip
        if work.note and not began:
            trainer.note(work.note)
        if world.size > 1 and restarts_may_fail():
            trainer.note(f"restarts may fail: set {STALE_ADDRESSES}=1 before torchrun")
        world.barrier()  # all have looked at the folder before it changes
        if not world.leads:
            return (yield from _following(trainer, run, stop, job, began))
        with run.lock():  # makes the folder, so everything that may be refused is refused above
            if run.continues(resume=False) if not began else run.finished() and not finished:
                raise MixMatchError(f"another process has worked in {run.path} meanwhile: look at it, then start again")
            about = {"settings": settings.to_dict(), **described(data), "compile": compile, "threads": count}
            if world.size > 1:
                about["processes"] = world.size
            if data.user is not None:
                about["folder"] = str(Path.cwd())  # where relative paths begin
            return (yield from _leading(trainer, run, stop, work, reporter, about, began))


def _record_of(work: Work, run: RunFolder, settings: Settings) -> RunRecord | None:
    """The record of a run that has taken all the steps that are asked for; None if there is something to do."""
    record = run.result() if work.job.checkpoint is None else None
    if record is None or record["steps"] != settings.steps:
        return None
    run.verify(*SEALED)
    if isinstance(work.data, Data):
        refuse_changed(run, run.config(), work.data)
    return record


def _opened(work: Work, settings: Settings, config: Record, device: torch.device) -> tuple[Settings, Data]:
    """The settings of a run and its data, open. A new run, which has no `config` yet, has its settings completed."""
    named = work.job.settings.data
    if config:
        return settings, work.open(located(settings, config.get("folder"), named if is_path(named) else None))
    data = work.open(located(settings, None))
    # The name of a `Source` means nothing on this disk.
    kind = kind_of(named) if work.data is None or data.user is not None else None
    return completed(settings, work.job.chosen, data.source, device, kind), data


def _reporter(work: Work, settings: Settings, world: World, side_by_side: bool) -> Reporter:
    if not world.leads:
        return progress.Quiet()
    if work.reporter is not None:
        return work.reporter
    return progress.on_stderr(f" {settings.labels} seed {settings.seed}" if side_by_side else "")


def _leading(
    trainer: Trainer, run: RunFolder, stop: Stop, work: Work, reporter: Reporter, about: Record, began: bool
) -> Generator[None, None, RunRecord]:
    """The leading process's part in a run; it holds the folder's lock. `about` is what `config.json` says."""
    saved, began_with, job = None, None, work.job
    if began:
        saved, began_with = _resume(run, about, job.checkpoint), run.config().get("versions")
    else:
        run.write_config({**about, "versions": versions()})
    trainer.world.barrier()  # the others read the checkpoint next
    shown = progress.Several(reporter, progress.TensorBoard(run.path), *work.also)
    seconds = yield from Loop(trainer, run, shown, stop, saved, job.checkpoint_every, watch_for(trainer)).turns()
    run.check_attempt()
    averaged(trainer).save(run.model)
    record = make_record(
        trainer.settings, trainer.split, run.metrics(), seconds, trainer.device, trainer.engine, trainer.machines,
        threads=about["threads"], began_with=began_with,
    )  # fmt: skip
    return trainer.world.from_leader(run.write_result(record))


def _following(trainer: Trainer, run: RunFolder, stop: Stop, job: Job, began: bool) -> Generator[None, None, RunRecord]:
    """Another process's part in a run: it takes steps, and leaves the folder alone."""
    trainer.world.barrier()  # until the one that leads has locked and prepared the folder
    saved = run.load_checkpoint(job.checkpoint) if began else None
    yield from Loop(trainer, run, progress.Quiet(), stop, saved, job.checkpoint_every).turns()
    return trainer.world.from_leader(RunRecord())  # when it is written


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
    if (what := changed(run.config(), config)) is not None:
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

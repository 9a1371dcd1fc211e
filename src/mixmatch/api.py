"""Train, load: the two calls most people need. The command line is a thin layer over them."""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from mixmatch import networks
from mixmatch import settings as settings_
from mixmatch.classifier import Classifier
from mixmatch.data import SOURCES, holds_features, read_user_data, source_info
from mixmatch.data import load as load_data
from mixmatch.data.source import UNKNOWN, Features, Source, labels_sha256
from mixmatch.data.split import Split, make_split
from mixmatch.data.user.rows import UserData
from mixmatch.data.user.table import Encoding
from mixmatch.draws import torch_seed
from mixmatch.errors import MixMatchError, OutOfMemory
from mixmatch.execution.here import SIDE_BY_SIDE, Turns, draws_itself
from mixmatch.settings import Kind, Precision, Settings
from mixmatch.training import progress
from mixmatch.training import trainer as engine
from mixmatch.training.checkpoint import Checkpoint
from mixmatch.training.record import make_record
from mixmatch.training.run import Record, RunFolder

Device = Literal["auto", "cpu", "cuda", "mps"]

WORTH_COMPILING = 4096
"""A run of so many steps on CUDA repays the minute it takes to compile them."""
READING = ("labels_file", "image_size", "label_column", "part_column", "ignore")
"""The options that tell how own data is read."""


def train(
    data: str | Source,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    checkpoint: str | None = None,
    checkpoint_every: int | None = None,
    network: str | nn.Module | None = None,
    device: str = "auto",
    compile: bool | None = None,
    data_dir: str | Path | None = None,
    strict: bool = False,
    labels_file: str | Path | None = None,
    image_size: int | None = None,
    label_column: str | None = None,
    part_column: str | None = None,
    ignore: Sequence[str] | None = None,
    split: Split | None = None,
    part: Mapping[str, Any] | None = None,
    reporter: progress.Reporter | None = None,
    **settings: Any,
) -> Record:
    """Train a classifier; the run is a folder that holds the model, its metrics and all it takes to go on.

    Args:
        data: a built-in name (`digits`, `cifar10`, ...), a folder of your own images, a file of your own arrays
            (.npz, .npy) or a table (.csv, .parquet), or a `Source` of your own arrays.
        out: the run folder; by default `runs/DATA-METHOD-LABELS-seedSEED`.
        resume: go on with the run in `out`. Settings not given are the run's own; others are refused, but for `steps`
            where nothing else depends on them: a run can be taken further, finished or not, or ended sooner.
        checkpoint: resume from this checkpoint instead of the newest.
        checkpoint_every: steps between checkpoints; by default one a minute.
        network: a name for `mixmatch.networks.build`, or any `torch.nn.Module` that maps images (or features) to
            logits.
        device: `auto`, `cpu`, `cuda`, `mps`.
        compile: compile the step for speed: by default on CUDA, where a run is long enough to repay it.
        data_dir: where the data files are; by default MIXMATCH_DATA or a cache folder.
        strict: refuse data files that are not the published ones.
        labels_file: own images: a CSV of file and label, instead of a folder per class; of a .npy file: a .npy file.
        image_size: own images: pixels to resize to; by default chosen from the images.
        label_column: own table: the column with the label, empty where there is none; by default `label`.
        part_column: own table: a column that is `test` for rows to judge by.
        ignore: own table: columns that are no features.
        split: who is labeled in a `Source` of your own; by default the official procedure deals out `labels`.
        part: learn from a part of a data set as `mixmatch.privacy` describes it: a teacher's shard, a student's pool.
        reporter: what to show meanwhile; by default a progress bar on a terminal.
        **settings: any of `mixmatch.settings.Settings` and of the method: `method`, `labels`, `seed`, `steps`,
            `batch_size`, `lambda_u`, ... What is not given is what the paper used for this data set.

    Returns:
        The record of the finished run; `record["error"]` is the test error in percent, None if there is nothing to
        judge by.

    Raises:
        MixMatchError: for anything the caller can put right; too little memory on the device is also a
            `torch.OutOfMemoryError`.
        Interrupted: after Ctrl-C or SIGTERM, when a checkpoint is saved.
    """
    given = {name: value for name, value in locals().items() if name != "settings"}
    (outcome,) = train_many([{**given, **settings}], limit=1)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def train_many(
    jobs: Sequence[Mapping[str, Any]],
    limit: int | None = None,
    started: Callable[[int], None] = lambda number: None,
    ended: Callable[[int, Record | Exception], None] = lambda number, outcome: None,
) -> list[Record | Exception]:
    """Train several runs side by side on one device, where they take turns and fill each other's gaps.

    Each ends as it would have ended alone: bit for bit on a CPU, and on a GPU as near as it is to itself. One that
    fails does not stop the others.

    Args:
        jobs: what `train` is to be called with, for each run.
        limit: how many at a time; by default as many as are worth it and fit into memory, on a CPU one.
        started: called with the number of a job when it begins.
        ended: called with the number of a job and what came of it.

    Returns:
        The record of each run, or the error that ended it.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, when every run has saved a checkpoint.
    """
    devices = {pick_device(job.get("device", "auto")) for job in jobs}
    cuda = sorted({device.index or 0 for device in devices if device.type == "cuda"})
    gpu = next((device for device in devices if device.type == "cuda"), None)
    turns = Turns(limit if limit is not None else SIDE_BY_SIDE if cuda else 1, gpu)
    stop = engine.Stop()
    own = [id(job["network"]) for job in jobs if isinstance(job.get("network"), nn.Module)]
    if len(set(own)) < len(own):
        raise MixMatchError("two runs cannot train the same network object: give each a copy of its own")
    begun: dict[int, Mapping[str, Any]] = {}

    def make(number: int) -> Generator[None, None, Record]:
        job = jobs[number]
        network = job.get("network")
        if number in begun:  # there was too little memory for it beside others; now it goes on from its checkpoint
            job = {**job, "resume": True}
            if isinstance(network, nn.Module):
                network.load_state_dict(begun[number])
        elif turns.limit > 1:
            begun[number] = copy.deepcopy(network.state_dict()) if isinstance(network, nn.Module) else {}
        return _training(job, stop, turns.limit > 1)

    with torch.random.fork_rng(devices=cuda), stop.listening():
        return turns.take(len(jobs), make, stop, started, ended)


def _training(job: Mapping[str, Any], stop: engine.Stop, beside: bool) -> Generator[None, None, Record]:
    """`train` bit by bit."""
    options = {**_DEFAULTS, **job}
    settings = {name: value for name, value in options.items() if name not in _DEFAULTS and name != "data"}
    data, network, split = options["data"], options["network"], options["split"]
    checkpoint, checkpoint_every, compile = options["checkpoint"], options["checkpoint_every"], options["compile"]
    name = data if isinstance(data, str) else data.name
    if isinstance(network, str):
        settings["network"] = network
    elif network is not None:
        settings["network"] = f"custom:{type(network).__name__}"
    where = pick_device(options["device"])
    settings = {name: value for name, value in settings.items() if value is not None}
    if checkpoint_every is not None and checkpoint_every < 1:
        raise MixMatchError(f"checkpoint_every={checkpoint_every} must be 1 or more")
    settings = {**_of_split(data, split, settings), **settings}
    reading = {name: options[name] for name in READING}
    if reading["labels_file"] is not None:
        reading["labels_file"] = str(reading["labels_file"])
    reading["ignore"] = list(reading["ignore"] or ()) or None
    reading = {name: value for name, value in reading.items() if value is not None}
    if reading and not (isinstance(data, str) and is_path(data)):
        if isinstance(data, str):
            source_info(data)  # there may be no such thing at all
        given = " and ".join(f"--{option.replace('_', '-')}" for option in reading)
        raise MixMatchError(f"{given} {'is' if len(reading) == 1 else 'are'} for your own data, not for '{name}'")
    own = kind_of(data)

    wanted = settings_.resolve(name, settings, own)
    reading |= options["part"] or {}
    wanted = replace(wanted, data_options=reading)
    run = RunFolder(Path(options["out"]) if options["out"] is not None else default_folder(wanted))
    begun, finished = run.exists(), None
    if begun:
        wanted = _continued(run, name, settings, reading, options["resume"], own)
        finished = run.result()
        if finished is not None and checkpoint is None and finished["steps"] == wanted.steps:
            return finished
        if wanted.network.startswith("custom:") and network is None:
            raise MixMatchError(f"{run.path} is of a network of your own, {wanted.network[7:]}: pass it to train()")
    elif checkpoint is not None:
        raise MixMatchError(f"{run.path} holds no run, so it has no checkpoint '{checkpoint}' to go on from")
    elif run.path.is_dir() and any(not entry.name.startswith(".") for entry in run.path.iterdir()):
        raise MixMatchError(
            f"{run.path} holds other files and is not a run folder: choose another folder (--out; out=)"
        )
    if isinstance(data, str):
        source, split, _ = open_data(wanted, options["data_dir"], strict=options["strict"])
    else:
        source, split = data, split or make_split(data, wanted.labels, wanted.seed, wanted.valid)
    if own == "images" and "pad" not in settings and not run.exists():
        wanted = replace(wanted, pad=min(source.image_shape[:2]) // 8)  # as the paper's 4 of 32
    if "precision" not in settings and not run.exists():
        wanted = replace(wanted, precision=default_precision(wanted, where, source.input_shape))
    torch.manual_seed(torch_seed(wanted.seed, "init"))
    if isinstance(network, nn.Module):
        module = network
        _check_network(module, len(source.classes), source.input_shape)
    else:
        module = networks.build(wanted.network, len(source.classes), source.input_shape, wanted.weights or None)
    speed = _speed(run, wanted, where, compile)
    shown = (
        options["reporter"]
        if options["reporter"] is not None
        else progress.on_stderr(f" {wanted.labels} seed {wanted.seed}" if beside else "")
    )
    if beside and speed["record"] and draws_itself(module):
        speed["record"] = False
        shown.note("a network with randomness of its own is not recorded beside other runs: it trains more slowly")
    with _memory_shortage_told(where, run), contextlib.ExitStack() as held:
        trainer = engine.Trainer(wanted, source, split, module, where, **speed)
        held.enter_context(run.lock())  # makes the folder, so everything that may be refused is refused above
        if run.exists() and (not begun or (finished is None and run.result() is not None)):
            raise MixMatchError(f"another process has worked in {run.path} meanwhile: look at it, then start again")
        saved = _begin_or_go_on(run, wanted, source, trainer, checkpoint, compile)
        reporter = progress.Several(shown, progress.TensorBoard(run.path))
        seconds = yield from engine.fitting(trainer, run, reporter, stop, saved, checkpoint_every)
        averaged(trainer).save(run.model)
        record = make_record(wanted, split, run.metrics(), seconds, where, trainer.engine, trainer.machines)
        run.write_result(record)
        return record


@contextlib.contextmanager
def _memory_shortage_told(device: torch.device, run: RunFolder) -> Iterator[None]:
    """One line that says what to do, in the place of PyTorch's page."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        more = re.search(r"Tried to allocate ([\d.]+ \w+)", str(error))
        wanted = f" (it wanted {more[1]} more)" if more else ""
        again = f"go on (what was saved is in {run.path})" if run.exists() else "try again"
        raise OutOfMemory(
            f"{device} has too little memory for this run{wanted}: make room and {again}, or begin anew with smaller "
            "batches or a smaller network"
        ) from error


_DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(train).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
}
"""The options of `train` that are not settings."""


def averaged(trainer: engine.Trainer) -> Classifier:
    """The classifier that a trainer has made: its network gets the averaged weights."""
    trainer.wait()
    network, source = trainer.model.network, trainer.source
    network.load_state_dict({**network.state_dict(), **trainer.model.ema})
    return Classifier(network, trainer.settings.network, source.classes, source.input_shape, source.encoding)


def load(path: str | Path, *, device: str = "auto", network: nn.Module | None = None) -> Classifier:
    """The classifier of a run folder or of a model.safetensors file. An unfinished run gives its newest checkpoint."""
    where = pick_device(device)
    path = Path(path)
    if path.is_file():
        return Classifier.load(path, where, network)
    run = RunFolder(path)
    config = run.config()
    if run.model.exists():
        return Classifier.load(run.model, where, network)
    saved = run.load_checkpoint()
    if saved is None:
        raise MixMatchError(f"{path} has no model yet: its training has not reached a checkpoint")
    shape = tuple(config["input_shape"])
    settings, classes = settings_.from_dict(config["settings"]), tuple(config["classes"])
    tensors = {**saved.weights, **saved.ema}
    encoding = Encoding.from_dict(config["encoding"]) if "encoding" in config else None
    return Classifier.filled(path, tensors, settings.network, classes, shape, where, network, encoding)


def pick_device(name: str) -> torch.device:
    """A device by name; `auto` is the best there is."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return torch.device(next(kind for kind in ("cuda", "mps", "cpu") if available[kind]))
    kind = name.partition(":")[0]
    if kind not in available:
        raise MixMatchError(f"unknown device '{name}': use auto, cpu, cuda or mps")
    if not available[kind]:
        raise MixMatchError(f"device '{name}' is not available here: use --device cpu")
    try:
        return torch.device(name)
    except RuntimeError:
        raise MixMatchError(f"unknown device '{name}': use auto, cpu, cuda or mps") from None


def default_folder(settings: Settings) -> Path:
    data = Path(settings.data).resolve().name if is_path(settings.data) else settings.data
    return Path("runs") / f"{data}-{settings.method}-{settings.labels}-seed{settings.seed}"


def is_path(data: str) -> bool:
    """Whether a name is a path to own data, not a built-in data set nor the public part of one, as in "svhn-test"."""
    return data.removesuffix("-test") not in SOURCES and Path(data).exists()


def kind_of(data: str | Source) -> Kind | None:
    """Which of the settings for own data apply: those for images, those for features, or none."""
    if not isinstance(data, str):
        return "features" if isinstance(data.train, Features) else None
    if not is_path(data):
        return None
    return "features" if holds_features(Path(data)) else "images"


def open_user_data(settings: Settings) -> UserData:
    """A person's own data, read as the settings say."""
    return read_user_data(Path(settings.data), **settings.data_options)


def open_data(
    settings: Settings, data_dir: str | Path | None = None, *, strict: bool = False
) -> tuple[Source, Split, str]:
    """The data of a run: its source, its split, and one line on what it is judged by."""
    if "student" in settings.data_options:
        from mixmatch.privacy.student import open_student

        return open_student(settings, data_dir, strict=strict)
    if "shard" in settings.data_options:
        from mixmatch.privacy.teachers import open_shard

        return open_shard(settings, data_dir, strict=strict)
    if not is_path(settings.data):
        source = load_data(settings.data, data_dir, strict=strict)
        split = make_split(source, settings.labels, settings.seed, settings.valid)
        return source, split, f"judged by its {len(split.test):,} test images"
    from mixmatch.data.user.hold_out import to_source

    if settings.labels != "all" or settings.valid:
        raise MixMatchError("own data is trained with all its labels: leave --labels and --valid away")
    return to_source(open_user_data(settings), settings.seed)


def data_of_run(
    run: RunFolder, data_dir: str | Path | None = None, *, strict: bool = False
) -> tuple[Source, Split, str]:
    """What `open_data` gives for a run that was trained. Data that has changed since is refused: it would be split
    anew, and the run judged by what it has learned from."""
    config = run.config()
    settings = settings_.from_dict(config["settings"])
    if settings.data.removesuffix("-test") not in SOURCES and not Path(settings.data).exists():
        raise MixMatchError(
            f"the data of {run.path} is not at {settings.data}: do this where it was trained (in Python, if it was "
            "trained on a Source)"
        )
    source, split, basis = open_data(settings, data_dir, strict=strict)
    if (what := _changed(config, _described(source, split))) is not None:
        raise MixMatchError(
            f"the data has changed since {run.path} was trained ({what}), so some of what it learned from might judge "
            "it: train again"
        )
    return source, split, basis


def _of_split(data: str | Source, split: Split | None, given: Mapping[str, Any]) -> dict[str, int]:
    """The settings that a split of one's own decides; others given for them are refused."""
    if split is None:
        return {}
    if isinstance(data, str):
        raise MixMatchError(f"split= is for a Source of your own, not for '{data}'")
    for name, count in split.counts().items():
        rows, there = getattr(split, name), len(data.test if name == "test" else data.train)
        if count and not (rows.min() >= 0 and rows.max() < there):
            raise MixMatchError(f"the split's {name} rows go beyond the {there:,} of {data.name}")
    if len(split.labeled) == 0 or (data.train.labels[split.labeled] == UNKNOWN).any():
        raise MixMatchError(f"the split of {data.name} must have labeled rows, and each of them a label")
    decided = {"labels": len(split.labeled), "valid": len(split.valid)}
    for name, count in decided.items():
        if given.get(name, count) != count:
            raise MixMatchError(f"{name}={given[name]} contradicts the split, which has {count:,}")
    return decided


@torch.no_grad()
def _check_network(network: nn.Module, classes: int, shape: tuple[int, ...]) -> None:
    """A network of one's own must map rows to logits; found out before anything is written."""
    what = "images" if len(shape) == 3 else "features"
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


def default_precision(settings: Settings, device: torch.device, input_shape: Sequence[int]) -> Precision:
    """bf16 where it pays: for images on CUDA, and on a processor with instructions for it if they are not tiny."""
    if settings.network == "mlp" or len(input_shape) != 3:
        return "fp32"
    if device.type == "cpu":
        known = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
        return "bf16" if known is not None and known() and min(input_shape[1:]) >= 24 else "fp32"
    return "bf16" if device.type == "cuda" else "fp32"


def _speed(run: RunFolder, settings: Settings, device: torch.device, compile: bool | None) -> dict[str, bool]:
    """How to take steps. A run that goes on does as it did, because compiled code rounds in other places."""
    if compile is None and run.exists():
        compile = run.config().get("compile")
    if compile is None:
        on_cuda = device.type == "cuda"
        return {"compile": on_cuda and settings.steps >= WORTH_COMPILING, "record": on_cuda}
    return {"compile": compile, "record": compile}


def _continued(
    run: RunFolder, data: str, given: dict[str, Any], options: dict[str, Any], resume: bool, own: Kind | None
) -> Settings:
    """The settings of a run that is to be gone on with; what is given must not contradict them."""
    if not resume:
        raise MixMatchError(
            f"{run.path} holds a run already: go on with it (--resume; resume=True), "
            "or choose another folder (--out; out=)"
        )
    before = settings_.from_dict(run.config()["settings"])
    if is_path(data) and Path(data).resolve() == Path(before.data).resolve():
        data = before.data  # only spelled otherwise
    flat = {**before.to_dict(), **before.method_settings}
    apart = ("data", "data_options", "method_settings")
    known = {name: value for name, value in flat.items() if name not in apart}
    if "method" in given and given["method"] != before.method:  # another method has other settings
        known = {}
    now = settings_.resolve(data, {**known, **given}, own)
    now = replace(now, data_options={**before.data_options, **options})
    different = settings_.differences(before, now)
    if not settings_.differences(replace(before, steps=now.steps), now):  # only the end is another
        why = settings_.made_for_its_steps(before) if different else None
        if why is None:
            return now
        raise MixMatchError(
            f"{run.path} was made for {before.steps:,} steps, not {now.steps:,}: {why}; start another run"
        )
    if now.method != before.method:  # what follows from it is not worth telling
        different = [f"method: {before.method} -> {now.method}"]
    if different:
        raise MixMatchError(
            f"{run.path} was made with other settings ({'; '.join(different)}): "
            "resume with its own, or choose another --out"
        )
    return before


def _begin_or_go_on(
    run: RunFolder,
    settings: Settings,
    source: Source,
    trainer: engine.Trainer,
    name: str | None,
    compile: bool | None,
) -> Checkpoint | None:
    config = {"settings": settings.to_dict(), **_described(source, trainer.split), "compile": compile}
    if not run.exists():
        run.write_config(config)
        return None
    if (what := _changed(run.config(), config)) is not None:
        raise MixMatchError(
            f"the data has changed since {run.path} was started ({what}): start again in another folder"
        )
    saved = run.load_checkpoint(name)
    if saved is None and run.result() is not None:
        raise MixMatchError(
            f"{run.path} is finished and has no checkpoint to go on from: start again in another folder"
        )
    if saved is not None and saved.step > settings.steps:
        raise MixMatchError(
            f"{run.path} has taken {saved.step:,} steps already: it cannot end after {settings.steps:,}"
        )
    if saved is not None and name is not None:
        run.forget_after(saved.step)
    if run.config()["settings"]["steps"] != settings.steps:
        run.end_at(settings.steps)
    return saved


def _described(source: Source, split: Split) -> Record:
    """What a run's configuration says of its data."""
    about = {
        "classes": list(source.classes),
        "input_shape": list(source.input_shape),
        "split": {"hash": split.hash, **split.counts(), "labeled_rows": split.labeled.tolist()},
        "labels_sha256": labels_sha256(source),
    }
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
    """Whether values of JSON are the same, numbers as far as two machines agree on a mean."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_alike(a[name], b[name]) for name in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_alike, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)
    return bool(a == b)

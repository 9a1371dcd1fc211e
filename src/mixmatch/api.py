"""Train, load: the two calls most people need. The command line is a thin layer over them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from mixmatch import networks
from mixmatch import settings as settings_
from mixmatch.classifier import Classifier
from mixmatch.data import SOURCES, read_own
from mixmatch.data import load as load_data
from mixmatch.data.source import Source
from mixmatch.data.split import Split, make_split
from mixmatch.draws import torch_seed
from mixmatch.errors import MixMatchError
from mixmatch.settings import Settings
from mixmatch.training import engine, progress
from mixmatch.training.checkpoint import Checkpoint
from mixmatch.training.record import make_record
from mixmatch.training.run import Record, RunFolder

Device = Literal["auto", "cpu", "cuda", "mps"]


def train(
    data: str | Source,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    checkpoint: str | None = None,
    checkpoint_every: int | None = None,
    network: str | nn.Module | None = None,
    device: str = "auto",
    data_dir: str | Path | None = None,
    strict: bool = False,
    labels_file: str | Path | None = None,
    image_size: int | None = None,
    reporter: progress.Reporter | None = None,
    **settings: Any,
) -> Record:
    """Train a classifier; the run is a folder that holds the model, its metrics and all it takes to go on.

    Args:
        data: a built-in name (`digits`, `cifar10`, ...), a folder of your own images, or a `Source` of your own
            arrays.
        out: the run folder; by default `runs/DATA-METHOD-LABELS-seedSEED`.
        resume: go on with the run in `out`. Settings not given are the run's own; others are refused.
        checkpoint: resume from this checkpoint instead of the newest.
        checkpoint_every: steps between checkpoints; by default one a minute.
        network: a name for `mixmatch.networks.build`, or any `torch.nn.Module` that maps images to logits.
        device: `auto`, `cpu`, `cuda`, `mps`.
        data_dir: where the data files are; by default MIXMATCH_DATA or a cache folder.
        strict: refuse data files that are not the published ones.
        labels_file: own images: a CSV of file and label, instead of a folder per class.
        image_size: own images: pixels to resize to; by default chosen from the images.
        reporter: what to show meanwhile; by default a progress bar on a terminal.
        **settings: any of `mixmatch.settings.Settings` and of the method: `method`, `labels`, `seed`, `steps`,
            `batch_size`, `lambda_u`, ... What is not given is what the paper used for this data set.

    Returns:
        The record of the finished run; `record["error"]` is the test error in percent, None if there is nothing to
        judge by.

    Raises:
        MixMatchError: for anything the caller can put right.
        Interrupted: after Ctrl-C or SIGTERM, when a checkpoint is saved.
    """
    name = data if isinstance(data, str) else data.name
    if isinstance(network, str):
        settings["network"] = network
    elif network is not None:
        settings["network"] = f"custom:{type(network).__name__}"
    where = pick_device(device)
    settings = {name: value for name, value in settings.items() if value is not None}
    if checkpoint_every is not None and checkpoint_every < 1:
        raise MixMatchError(f"checkpoint_every={checkpoint_every} must be 1 or more")
    given_options = {"labels_file": None if labels_file is None else str(labels_file), "image_size": image_size}
    options = {name: value for name, value in given_options.items() if value is not None}
    own = isinstance(data, str) and is_own(data)
    if options and not own:
        raise MixMatchError(f"{' and '.join(options)} are for your own images, not for '{name}'")

    wanted = _with_precision(settings_.resolve(name, settings, own), settings, where)
    wanted = replace(wanted, data_options=options)
    run = RunFolder(Path(out) if out is not None else default_folder(wanted))
    if run.exists():
        wanted = _continued(run, name, settings, options, resume, own)
        finished = run.result()
        if finished is not None and checkpoint is None:
            return finished
        if wanted.network.startswith("custom:") and network is None:
            raise MixMatchError(f"{run.path} is of a network of your own, {wanted.network[7:]}: pass it to train()")
    elif run.path.is_dir() and any(not entry.name.startswith(".") for entry in run.path.iterdir()):
        raise MixMatchError(
            f"{run.path} holds other files and is not a run folder: choose another folder (--out; out=)"
        )
    if isinstance(data, str):
        source, split, _ = open_data(wanted, data_dir, strict=strict)
    else:
        source, split = data, make_split(data, wanted.labels, wanted.seed, wanted.valid)
    if own and "pad" not in settings and not run.exists():  # an eighth of the image, as the paper's 4 of 32
        wanted = replace(wanted, pad=min(source.image_shape[:2]) // 8)
    with torch.random.fork_rng(devices=[where] if where.type == "cuda" else []):
        height, width, channels = source.image_shape
        torch.manual_seed(torch_seed(wanted.seed, "init"))
        module = (
            network
            if isinstance(network, nn.Module)
            else networks.build(wanted.network, len(source.classes), (channels, height, width))
        )
        if isinstance(network, nn.Module):
            _check_network(module, len(source.classes), (channels, height, width))
        trainer = engine.Trainer(wanted, source, split, module, where)
        with run.lock():  # makes the folder, so everything that may be refused is refused above
            saved = _begin_or_go_on(run, wanted, source, trainer, checkpoint)
            shown = reporter if reporter is not None else progress.on_stderr()
            seconds = engine.fit(
                trainer, run, progress.Several(shown, progress.TensorBoard(run.path)), saved, checkpoint_every
            )
            module.load_state_dict({**module.state_dict(), **trainer.model.ema})
            Classifier(module, wanted.network, source.classes, (channels, height, width)).save(run.model)
            record = make_record(wanted, split, run.metrics(), seconds, where)
            run.write_result(record)
            return record


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
    return Classifier.filled(path, tensors, settings.network, classes, shape, where, network)


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
    data = Path(settings.data).resolve().name if is_own(settings.data) else settings.data
    return Path("runs") / f"{data}-{settings.method}-{settings.labels}-seed{settings.seed}"


def is_own(data: str) -> bool:
    """Whether a name is a path to own data, not a built-in data set."""
    return data not in SOURCES and Path(data).exists()


def open_data(
    settings: Settings, data_dir: str | Path | None = None, *, strict: bool = False
) -> tuple[Source, Split, str]:
    """The data of a run: its source, its split, and one line on what it is judged by."""
    if not is_own(settings.data):
        source = load_data(settings.data, data_dir, strict=strict)
        split = make_split(source, settings.labels, settings.seed, settings.valid)
        return source, split, f"judged by its {len(split.test):,} test images"
    from mixmatch.data.hold_out import to_source
    from mixmatch.data.own import OwnData

    options = dict(settings.data_options)
    labels_file = options.pop("labels_file", None)
    own = read_own(Path(settings.data), labels_file=labels_file and Path(labels_file), **options)
    if not isinstance(own, OwnData):
        raise MixMatchError(f"{settings.data} holds features, not images: only images can be trained on so far")
    if settings.labels != "all" or settings.valid:
        raise MixMatchError("own data is trained with all its labels: leave --labels and --valid away")
    return to_source(own, settings.seed)


@torch.no_grad()
def _check_network(network: nn.Module, classes: int, shape: tuple[int, int, int]) -> None:
    """A network of one's own must map images to logits; found out before anything is written."""
    try:
        logits = network.eval()(torch.zeros(2, *shape, device=next(network.parameters()).device))
    except (RuntimeError, ValueError, StopIteration) as error:
        what = str(error).splitlines()[0] if str(error) else "it has no parameters"
        raise MixMatchError(
            f"the network does not take images of shape (N, {', '.join(map(str, shape))}): {what}"
        ) from None
    if not isinstance(logits, torch.Tensor) or logits.shape != (2, classes):
        got = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise MixMatchError(f"the network must give logits (N, {classes}) for N images, not {got}")


def _with_precision(resolved: Settings, given: dict[str, Any], device: torch.device) -> Settings:
    """bf16 where it pays, on CUDA, unless said otherwise."""
    return resolved if "precision" in given or device.type != "cuda" else replace(resolved, precision="bf16")


def _continued(
    run: RunFolder, data: str, given: dict[str, Any], options: dict[str, Any], resume: bool, own: bool
) -> Settings:
    """The settings of a run that is to be gone on with; what is given must not contradict them."""
    if not resume:
        raise MixMatchError(
            f"{run.path} holds a run already: go on with it (--resume; resume=True), "
            "or choose another folder (--out; out=)"
        )
    before = settings_.from_dict(run.config()["settings"])
    flat = {**before.to_dict(), **before.method_settings}
    apart = ("data", "data_options", "method_settings")
    known = {name: value for name, value in flat.items() if name not in apart}
    if "method" in given and given["method"] != before.method:  # another method has other settings
        known = {}
    now = settings_.resolve(data, {**known, **given}, own)
    different = settings_.differences(before, replace(now, data_options={**before.data_options, **options}))
    if now.method != before.method:  # what follows from it is not worth telling
        different = [f"method: {before.method} -> {now.method}"]
    if different:
        raise MixMatchError(
            f"{run.path} was made with other settings ({'; '.join(different)}): "
            "resume with its own, or choose another --out"
        )
    return before


def _begin_or_go_on(
    run: RunFolder, settings: Settings, source: Source, trainer: engine.Trainer, name: str | None
) -> Checkpoint | None:
    height, width, channels = source.image_shape
    split = {"hash": trainer.split.hash, **trainer.split.counts(), "labeled_rows": trainer.split.labeled.tolist()}
    config = {
        "settings": settings.to_dict(),
        "classes": list(source.classes),
        "input_shape": [channels, height, width],
        "split": split,
    }
    if not run.exists():
        run.write_config(config)
        return None
    if run.config()["split"]["hash"] != split["hash"]:
        raise MixMatchError(
            f"the data has changed since {run.path} was started (another split): start again in another folder"
        )
    saved = run.load_checkpoint(name)
    if saved is not None and name is not None:
        run.forget_after(saved.step)
    return saved

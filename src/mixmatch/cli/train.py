"""`mixmatch train`: few labels in, a trained and saved classifier out."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from mixmatch import api
from mixmatch.cli.data import read_with_bar
from mixmatch.cli.options import (
    OWN,
    DataDir,
    Ignore,
    ImageSize,
    Json,
    LabelColumn,
    LabelsFile,
    PartColumn,
    Strict,
    console,
    parse_labels,
    print_json,
)
from mixmatch.errors import MixMatchError
from mixmatch.methods import METHODS
from mixmatch.report import write_report
from mixmatch.settings import Settings, from_dict, resolve
from mixmatch.text import duration
from mixmatch.training.evaluate import REPORTED
from mixmatch.training.gain import gain
from mixmatch.training.progress import Quiet
from mixmatch.training.run import RunFolder

RUN, SETTINGS, METHOD = "Run", "Settings (default: what the paper used for this data set)", "Settings of the method"


def train(
    data: Annotated[
        str,
        typer.Argument(metavar="DATA", help="A data set ([b]mixmatch data list[/b]), or a path to your own."),
    ],
    method: Annotated[str | None, typer.Option(help=f"How to learn: {', '.join(METHODS)}.")] = None,
    labels: Annotated[str | None, typer.Option(metavar="N|all", help="How many images are labeled.")] = None,
    seed: Annotated[int | None, typer.Option(help="Decides who is labeled and every random draw.")] = None,
    steps: Annotated[
        int | None, typer.Option(help="How many steps to train. With --resume: another number than before.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Labeled images a step, and unlabeled ones.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder (default: runs/DATA-METHOD-LABELS-seedSEED).", rich_help_panel=RUN)
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out, if there is one.", rich_help_panel=RUN)
    ] = False,
    checkpoint: Annotated[
        str | None, typer.Option(help="Resume from this checkpoint, not the newest.", rich_help_panel=RUN)
    ] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option(help="Steps between checkpoints (default: one a minute).", rich_help_panel=RUN)
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.", rich_help_panel=RUN)] = "auto",
    compile: Annotated[
        bool | None, typer.Option(help="Compile steps for speed (default: long runs on CUDA).", rich_help_panel=RUN)
    ] = None,
    data_dir: DataDir = None,
    strict: Strict = False,
    labels_file: LabelsFile = None,
    image_size: ImageSize = None,
    label_column: LabelColumn = None,
    part_column: PartColumn = None,
    ignore: Ignore = None,
    baseline: Annotated[
        bool, typer.Option(help="Also train on the labels alone and tell the difference.", rich_help_panel=OWN)
    ] = True,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.", rich_help_panel=RUN)] = False,
    as_json: Json = False,
    network: Annotated[
        str | None, typer.Option(help="wrn-28-2, wrn-28-large, mlp, timm:NAME, ...", rich_help_panel=SETTINGS)
    ] = None,
    weights: Annotated[
        str | None, typer.Option(metavar="FILE", help="What a timm network starts from.", rich_help_panel=SETTINGS)
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Adam's.", rich_help_panel=SETTINGS)] = None,
    schedule: Annotated[
        str | None, typer.Option(help="Of the learning rate: constant, cosine, linear.", rich_help_panel=SETTINGS)
    ] = None,
    weight_decay: Annotated[
        float | None, typer.Option(help="Times the learning rate, off each kernel a step.", rich_help_panel=SETTINGS)
    ] = None,
    ema_decay: Annotated[float | None, typer.Option(help="Of the averaged weights.", rich_help_panel=SETTINGS)] = None,
    valid: Annotated[
        int | None, typer.Option(help="Unlabeled images held out for validation.", rich_help_panel=SETTINGS)
    ] = None,
    pad: Annotated[int | None, typer.Option(help="Padding for random crops, pixels.", rich_help_panel=SETTINGS)] = None,
    flip: Annotated[bool | None, typer.Option(help="Flip images at random.", rich_help_panel=SETTINGS)] = None,
    noise: Annotated[
        float | None, typer.Option(help="Features: deviation of the noise added.", rich_help_panel=SETTINGS)
    ] = None,
    mask: Annotated[
        float | None, typer.Option(help="Features: share of them hidden at random.", rich_help_panel=SETTINGS)
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="fp32 or bf16 (default: bf16 where it pays).", rich_help_panel=SETTINGS)
    ] = None,
    eval_every: Annotated[int | None, typer.Option(help="Steps between evaluations.", rich_help_panel=SETTINGS)] = None,
    K: Annotated[int | None, typer.Option("--K", help="Augmentations to guess from.", rich_help_panel=METHOD)] = None,
    T: Annotated[float | None, typer.Option("--T", help="Sharpening temperature.", rich_help_panel=METHOD)] = None,
    alpha: Annotated[float | None, typer.Option(help="MixUp's Beta(alpha, alpha).", rich_help_panel=METHOD)] = None,
    lambda_u: Annotated[
        float | None, typer.Option(help="Weight of the unlabeled loss.", rich_help_panel=METHOD)
    ] = None,
    ramp: Annotated[int | None, typer.Option(help="Steps until that weight is full.", rich_help_panel=METHOD)] = None,
    guess_weights: Annotated[
        str | None, typer.Option(help="Which weights guess: live or ema.", rich_help_panel=METHOD)
    ] = None,
    mix: Annotated[
        str | None, typer.Option(help="Mix all, separate, labeled, unlabeled or none.", rich_help_panel=METHOD)
    ] = None,
    passes: Annotated[
        str | None, typer.Option(help="official (as published) or fused (faster).", rich_help_panel=METHOD)
    ] = None,
    consistency_weight: Annotated[
        float | None, typer.Option(help="Weight of the unlabeled loss of a baseline.", rich_help_panel=METHOD)
    ] = None,
    warmup: Annotated[
        float | None, typer.Option(help="Part of training until that weight is full.", rich_help_panel=METHOD)
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Pseudo-Label: what is confident.", rich_help_panel=METHOD)
    ] = None,
    masking: Annotated[
        str | None, typer.Option(help="Pseudo-Label: official or intended.", rich_help_panel=METHOD)
    ] = None,
    keep_order: Annotated[
        bool | None, typer.Option(help="MixUp with max(lambda, 1 - lambda).", rich_help_panel=METHOD)
    ] = None,
    vat_weight: Annotated[float | None, typer.Option(help="VAT: adversarial weight.", rich_help_panel=METHOD)] = None,
    epsilon: Annotated[float | None, typer.Option(help="VAT: perturbation length.", rich_help_panel=METHOD)] = None,
    xi: Annotated[float | None, typer.Option(help="VAT: trial perturbation length.", rich_help_panel=METHOD)] = None,
    entropy_weight: Annotated[float | None, typer.Option(help="VAT: entropy weight.", rich_help_panel=METHOD)] = None,
    divergence: Annotated[
        str | None, typer.Option(help="VAT: direction of the KL, official or paper.", rich_help_panel=METHOD)
    ] = None,
    smoothing: Annotated[
        float | None, typer.Option(help="Supervised: label smoothing.", rich_help_panel=METHOD)
    ] = None,
) -> None:
    """Train a classifier from few labels and many unlabeled images, or rows of a table.

    A run is a folder. Stop it with Ctrl-C and go on with --resume: it ends where it would have ended.

    Examples:

      mixmatch train digits --labels 20

      mixmatch train cifar10 --data-dir ~/data --labels 250 --out runs/cifar

      mixmatch train cifar10 --out runs/cifar --resume

      mixmatch train svhn --method supervised --labels all --precision bf16

      mixmatch train photos/ --out runs/photos  # photos/CLASS/* labeled, photos/unlabeled/*

      mixmatch train patients.csv --label-column diagnosis  # empty where it is not known

      mixmatch train embeddings.npz  # x: numbers, y: classes, -1 where not known
    """
    run = ("data", "out", "resume", "checkpoint", "checkpoint_every", "device", "compile", "data_dir", "strict")
    own = (*api.READING, "baseline")
    given: dict[str, Any] = {
        name: value for name, value in locals().items() if name not in (*run, *own, "run", "own", "quiet", "as_json")
    }
    given["labels"] = parse_labels(labels)
    common: dict[str, Any] = {
        "resume": resume,
        "checkpoint_every": checkpoint_every,
        "device": device,
        "compile": compile,
        "data_dir": data_dir,
        "strict": strict,
        "labels_file": labels_file,
        "image_size": image_size,
        "label_column": label_column,
        "part_column": part_column,
        "ignore": ignore,
        "reporter": Quiet() if quiet else None,
    }
    if api.is_path(data):
        _look(data, out, given, {name: common[name] for name in own if name in common}, quiet)
    record = api.train(data, out=out, checkpoint=checkpoint, **common, **given)
    settings = from_dict(record["settings"])
    folder = out or api.default_folder(settings)
    verdict = page = None
    if api.is_path(data):
        verdict = _judge(folder, settings, common, given, baseline)
        page = write_report(folder, device=device)[1]
    if as_json:
        print_json(record if verdict is None else {**record, "verdict": verdict, "report": str(page)})
        return
    screen = console()
    if record["error"] is not None:
        screen.print(
            f"test error [bold]{record['last_error']:.2f} %[/bold] after {record['steps']:,} steps and "
            f"{duration(record['seconds'])}{_median(record['error'], record['median_of'])}",
            soft_wrap=True,
        )
    if verdict is not None:
        screen.print(f"{verdict}\nreport: {page}", soft_wrap=True, markup=False)
    screen.print(f"model: {folder / 'model.safetensors'}", soft_wrap=True, markup=False)


def _median(error: float, count: int) -> str:
    """The paper's number. Of a short run it is of all evaluations, the first ones too, so it is not the one to report.

    >>> _median(4, 1), _median(4, 5)
    ('', '; the median of all 5 evaluations is 4.00 %')
    """
    if count == 1:
        return ""
    if count < REPORTED:
        return f"; the median of all {count} evaluations is {error:.2f} %"
    return f"; the number to report, the median of the last {count} evaluations, is [bold]{error:.2f} %[/bold]"


def _look(data: str, out: Path | None, given: dict[str, Any], reading: dict[str, Any], quiet: bool) -> None:
    """Before a run begins, read own data with a bar (then its images are cached) and tell what was left out of it."""
    settings = resolve(data, {name: value for name, value in given.items() if value is not None}, api.kind_of(data))
    if settings.labels != "all" or settings.valid or RunFolder(out or api.default_folder(settings)).exists():
        return  # refused, or told when the run began
    own = read_with_bar(Path(data), {**reading, "ignore": reading["ignore"] or None}, shown=not quiet)
    for finding in own.findings:
        told = f"{finding.message}: {finding.advice}" if finding.advice else finding.message
        if finding.kind != "no-unlabeled":
            if finding.severity != "info":
                print(f"warning: {told}", file=sys.stderr)
        elif settings.build_method().unlabeled_views:
            raise MixMatchError(told)


def _judge(folder: Path, settings: Settings, common: dict[str, Any], given: dict[str, Any], baseline: bool) -> str:
    """One sentence on what the unlabeled data brought, from a second run on the labels alone."""
    source, split, basis = api.data_of_run(RunFolder(folder))
    judged = f"{basis[0].upper()}{basis[1:]}."
    if len(split.test) == 0 or not baseline or settings.method.startswith("supervised"):
        return judged
    # What a resumed run was given is not given again: then it is what differs from the defaults.
    default = resolve(settings.data, {"method": settings.method}, api.kind_of(settings.data))
    of_run = {f.name for f in dataclasses.fields(settings)} - {"data", "data_options", "method_settings"}
    values = {name: getattr(settings, name) for name in of_run}
    changed = {name: value for name, value in values.items() if value != getattr(default, name)}
    alike = {name: value for name, value in given.items() if name in of_run and value is not None}
    options = {**common, **settings.data_options, "resume": True, **changed, **alike, "method": "supervised"}
    api.train(settings.data, out=folder / "baseline", **options)
    device = common["device"]
    model, alone = api.load(folder, device=device), api.load(folder / "baseline", device=device)
    return f"{gain(model, alone, source.test).sentence} {judged}"

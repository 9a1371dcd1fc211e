"""`mixmatch predict`: classes and probabilities for image files, arrays or tables, written as they come."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mixmatch.classifier import load_run
from mixmatch.cli.options import Device, Run, parse_part, print_json, ray_cluster, say, warn
from mixmatch.data import TABLES
from mixmatch.data.user.images import quiet_pillow
from mixmatch.errors import MixMatchError
from mixmatch.predict import Prediction, holds_rows, predict_files, predict_shards
from mixmatch.predict.formats import Format, check_parquet, write
from mixmatch.predict.shards import SHARD_SIZE, Summary
from mixmatch.storage import refuse_device, temporary
from mixmatch.terminal import Plain, Screen
from mixmatch.text import count

MANY = "Many files"
many_option = partial(typer.Option, rich_help_panel=MANY)
ENDINGS = {".json": Format.JSON, ".parquet": Format.PARQUET, ".pq": Format.PARQUET}
"""What is in a file of that name."""
FEW = 16
"""For so few files no bar is shown."""


def predict(
    run: Run,
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH", help="Image files, folders, globs, addresses such as s3://bucket/photos; arrays or tables."
        ),
    ],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write here, not to standard output.")] = None,
    kind: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="Default: by the ending of --output, else csv. "
            r"parquet takes pip install 'mixmatch\[tables]' and --output.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The same as --format json; with --output-dir, a summary.")
    ] = False,
    sort: Annotated[
        Literal["uncertain"] | None,
        typer.Option(help="uncertain: the least certain first, written once everything is predicted."),
    ] = None,
    id_column: Annotated[
        str | None, typer.Option(help="A table: the column that names each row (default: the one that training had).")
    ] = None,
    device: Device = "auto",
    output_dir: Annotated[
        str | None,
        many_option(
            help="Write to this folder or address, one file per shard; the same command continues after a stop."
        ),
    ] = None,
    shard_size: Annotated[int, many_option(help="Files per shard.")] = SHARD_SIZE,
    ray: Annotated[str | None, ray_cluster("Spread the shards over", MANY)] = None,
    part: Annotated[
        str | None,
        many_option(metavar="K/N", help="Do the K-th of N parts of the shards, for example in a Slurm array."),
    ] = None,
) -> None:
    """Predict the classes of image files, or of rows, as CSV, JSON or Parquet with every class's probability.

    Predictions are written as they come, in the order of the files. Files that cannot be read are named on standard
    error, the others predicted, and the exit code is 1. Columns of a table are found by name, in any order.

    For millions of files, --output-dir writes a folder of one file per shard, where a file that cannot be read is a row
    that says why. The same command skips finished shards, so it can be stopped or killed at any time.

    Examples:
      mixmatch predict runs/cifar photo.jpg
      mixmatch predict runs/cifar photos/ --output predictions.csv
      mixmatch predict runs/cifar photos/ --sort uncertain | head
      mixmatch predict runs/cifar photos/ --output predictions.parquet
      mixmatch predict runs/patients new.csv --id-column patient
      mixmatch predict runs/cifar s3://bucket/photos --output-dir classes/ --format parquet --ray auto
    """
    if output_dir is not None:
        if output is not None or sort is not None or id_column is not None:
            raise MixMatchError("--output, --sort and --id-column are not for --output-dir")
        bar = _Bar("image", shown=True)
        with closing(bar):
            done = predict_shards(
                run, paths, output_dir, format=kind or Format.CSV, shard_size=shard_size, device=device, ray=ray,
                part=parse_part(part), progress=bar.progress,
            )  # fmt: skip
        _show_shards(output_dir, done, as_json)
        return
    if ray is not None or part is not None:
        raise MixMatchError("--ray and --part need --output-dir: each shard is a file there")
    kind = _format(kind, as_json, output)
    if output is not None and output.exists() and any(Path(path).exists() and output.samefile(path) for path in paths):
        raise MixMatchError(f"--output {output} is one of the inputs and would be overwritten: name another file")
    classifier = load_run(run, device)
    # Predictions that scroll by on the same terminal are progress enough, and would break a bar.
    same = output is None and sys.stdout.isatty()
    bar = _Bar("row" if holds_rows(paths[0]) else "image", shown=sort is not None or not same, transient=same)
    own = classifier.encoding.id_column if classifier.encoding is not None else None
    named = id_column or (own if any(path.lower().endswith(TABLES) for path in paths) else None)
    predictions = predict_files(classifier, paths, id_column=id_column, on_error=bar.unreadable, progress=bar.progress)
    try:
        with quiet_pillow(), closing(predictions), closing(bar):
            rows = _least_certain_first(predictions, bar) if sort else predictions
            written = _write(kind, output, rows, classifier.classes, named)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise MixMatchError(f"cannot write {output or 'the output'}: {error.strerror or error}") from None
    if output is not None:
        say(f"wrote {count(written, 'prediction')} to {output}")
    if bar.warned:
        raise typer.Exit(1)


def _format(kind: Format | None, as_json: bool, output: Path | None) -> Format:
    """The format asked for, by its name or by the ending of the file; refused if it cannot be written there."""
    if as_json and kind not in (None, Format.JSON):
        raise MixMatchError(f"--json and --format {kind} contradict each other")
    by_ending = ENDINGS.get(output.suffix.lower()) if output is not None else None
    chosen = Format.JSON if as_json else kind or by_ending or Format.CSV
    if chosen is Format.PARQUET:
        check_parquet()
        if output is None:
            raise MixMatchError("--format parquet is not for standard output: name a file with --output")
    return chosen


def _show_shards(output_dir: str, done: Summary, as_json: bool) -> None:
    if as_json:
        print_json({"output_dir": output_dir, **done._asdict()})
    skipped = f" ({done.finished_before:,} finished before)" if done.finished_before else ""
    say(f"{output_dir}: {count(done.files, 'prediction')} in {count(done.shards, 'shard')}{skipped}")
    if done.unreadable:
        warn(f"{count(done.unreadable, 'file')} cannot be read: the column error says why")
        raise typer.Exit(1)


def _least_certain_first(predictions: Iterable[Prediction], bar: _Bar) -> Iterator[Prediction]:
    """Nothing is predicted before the first is asked for, so that the output is opened first."""
    found = sorted(predictions, key=lambda p: p.probability)
    bar.close()  # what follows may scroll by on the same terminal
    yield from found


class _Bar:
    """A bar on a terminal, and a line on standard error for each file that cannot be read."""

    def __init__(self, noun: str, *, shown: bool, transient: bool = False) -> None:
        self.console = Screen(stderr=True)
        self.shown = shown and sys.stderr.isatty() and not self.console.is_dumb_terminal
        self.warned = False
        columns = (
            TextColumn("[bold]predicting"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("rows" if noun == "row" else "files"),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
        )
        # Standard output is for the predictions: rich would take it over.
        self.bar = Progress(
            *columns, console=self.console, transient=transient, redirect_stdout=False, redirect_stderr=False
        )
        self.noun, self.task = noun, self.bar.add_task("", speed="")

    def progress(self, done: int, total: int) -> None:
        if self.shown and total > FEW:
            self.bar.start()
            self.bar.update(self.task, completed=done, total=total)
            task = self.bar.tasks[0]
            if done:  # rich has a speed from the second batch on
                speed = task.finished_speed or task.speed or done / (task.elapsed or 1)
                self.bar.update(self.task, speed=f"{speed:,.0f} {self.noun}s/s")

    def unreadable(self, file: Path | str, reason: str) -> None:
        self.warned = True
        line = f"warning: cannot read {file}: {reason}"
        self.console.print(line, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        if self.bar.live.is_started:
            self.bar.stop()


def _write(
    kind: Format, output: Path | None, rows: Iterable[Prediction], classes: Sequence[str], id_column: str | None
) -> int:
    """Write predictions to a file, or to standard output, with the id of each row first if there is a column of ids;
    returns how many. The file is opened before the first prediction is taken."""
    written = 0

    def counted() -> Iterator[Prediction]:
        nonlocal written
        for written, row in enumerate(rows, 1):  # noqa: B007
            yield row

    with _target(output, binary=kind is Format.PARQUET) as out:
        write(kind, out, counted(), classes, id_column)
    return written


@contextmanager
def _target(output: Path | None, *, binary: bool) -> Iterator[Any]:
    """A Parquet file is of no use before its end is written, so it gets its name only then."""
    if output is None:
        # A terminal would obey the escape codes of a file's name; a program wants the name as it is.
        yield Plain(sys.stdout) if sys.stdout.isatty() else sys.stdout
    elif not binary:
        with output.open("w", encoding="utf-8", errors="surrogateescape", newline="") as out:
            yield out
    else:
        refuse_device(output)
        output.parent.stat()  # an error where there is no such folder
        with temporary(output) as part:
            with part.open("xb") as raw:
                yield raw
            part.replace(output)

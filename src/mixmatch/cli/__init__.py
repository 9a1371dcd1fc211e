"""The command line. One file a command, each thin: parse, call, print."""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import torch
import typer

from mixmatch import __version__
from mixmatch.cli import compare, data, evaluate, export, pate, pate_train, predict, report, reproduce, train
from mixmatch.cli.options import ManyValues, unwrapped
from mixmatch.errors import MixMatchError
from mixmatch.training.trainer import Interrupted

app = typer.Typer(
    name="mixmatch",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="""Train image classifiers from few labels and many unlabeled images.

    Examples:

      mixmatch compare digits --labels 20

      mixmatch train cifar10 --labels 250 --out runs/cifar

      mixmatch predict runs/cifar photos/
    """,
)
app.command()(train.train)
app.command(cls=ManyValues)(compare.compare)
app.command()(evaluate.evaluate)
app.command()(predict.predict)
app.command()(report.report)
app.command()(export.export)
app.command(cls=ManyValues)(reproduce.reproduce)
app.command("results")(reproduce.results_page)
app.add_typer(data.app)
pate.app.command()(pate_train.teachers)
pate.app.command()(pate_train.student)
pate.app.command()(pate_train.run)
app.add_typer(pate.app)
for group in (app, data.app, pate.app):
    group.info.help = unwrapped(str(group.info.help))
    for command in group.registered_commands:
        command.help = unwrapped(command.callback.__doc__ or "" if command.callback else "")


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None: ...


def main() -> None:
    """Run a command. What a user can put right is one line on standard error and exit code 2."""
    try:
        code = app(standalone_mode=False)
    except MixMatchError as error:
        _fail(str(error), 2)
    except torch.OutOfMemoryError:
        _fail("the GPU has too little memory: make room there, or use --device cpu", 2)
    except Interrupted as stopped:
        asks = sys.argv[1:2] in (["train"], ["pate"])
        again = "go on with --resume" if asks else "the same command goes on from there"
        where = f"stopped at step {stopped.step:,}, which is saved" if stopped.step else "stopped"
        print(f"{where}: {again}", file=sys.stderr)
        sys.exit(128 + stopped.signal)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:  # `mixmatch ... | head`
        sys.stderr.close()
        sys.exit(141)
    except Exception as error:
        # The option parser's own errors; their class depends on typer's version.
        if not hasattr(error, "format_message"):
            raise
        message = " ".join(error.format_message().split())
        if not message:  # no arguments at all: the help
            error.show()  # type: ignore[attr-defined]
            sys.exit(2)
        command = getattr(getattr(error, "ctx", None), "command_path", "mixmatch")
        _fail(f"{message} (see {command} --help)", 2)
    if code == 130:  # also what typer makes of Ctrl-C
        print("stopped", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(code)

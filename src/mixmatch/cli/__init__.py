"""The command line. One file per command, each thin: parse, call, print. A command is imported when it is run."""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Annotated, Any, NamedTuple, NoReturn, TextIO

import typer
from typer.core import TyperGroup

from mixmatch import __version__
from mixmatch.cli.commands import ManyValues, PlainCommand, PlainFlags, unwrapped
from mixmatch.errors import MixMatchError
from mixmatch.text import printable
from mixmatch.training.stop import Interrupted, stop_as_usual
from mixmatch.training.torchrun import leads, started_processes


class Command(NamedTuple):
    """Where a command is, and what the list of commands says about it: the first paragraph of its help."""

    about: str
    where: str = ""
    """`module:function` under `mixmatch.cli`, if not both are called as the command."""
    built: bool = False
    """Whether the module's function `build` makes the command from its arguments."""
    many: bool = False
    """Whether options that can be repeated take several values at once, as in `--seeds 1 2 3`."""


class Group(NamedTuple):
    """Commands that share a name, as in `mixmatch data list`."""

    about: str
    commands: Mapping[str, Command]


COMMANDS: dict[str, Command | Group] = {
    "train": Command("Train a classifier from few labels and many unlabeled images, or rows of a table.", built=True),
    "label": Command("Label a folder of images in the browser, train on the labels, and label what matters next."),
    "compare": Command("Train several methods on the same labels and compare their errors.", many=True),
    "tune": Command("Search for better settings of a method on validation data alone.", built=True, many=True),
    "evaluate": Command("Evaluate a run's averaged model on its test images, or on new labeled data."),
    "predict": Command(
        "Predict the classes of image files, or of rows, as CSV, JSON or Parquet with every class's probability."
    ),
    "report": Command("Write a page on a finished run: the verdict, where it errs, and what to label next."),
    "export": Command("Write a run's model as one file for other programs."),
    "methods": Command("List the methods, or the settings of one."),
    "reproduce": Command(
        "Train the runs of one of the paper's tables and report them beside the paper's numbers.", many=True
    ),
    "results": Command("Write the page of all results, or draw a run's error over its steps, from the records alone."),
    "data": Group(
        """List the data sets, check the ones you have, decode large ones once.

        Examples:
          mixmatch data list
          mixmatch data list --data-dir ~/data --json
          mixmatch data check digits
          mixmatch data check photos/ --strict
        """,
        {
            "list": Command(
                "List the data sets: how many images, how large, and which files are in the data folder.",
                "data_list:list_",
            ),
            "check": Command(
                "Load a data set and show what it holds, or check your own data before training on it.",
                "data_check:check",
            ),
            "shard": Command(
                "Decode a folder of images into memory-mapped shards, which train as the folder itself would.",
                "data_shard:shard",
            ),
        },
    ),
    "pate": Group(
        """Learn from private data with PATE, and see the privacy cost.

        Examples:
          mixmatch pate run --out runs/pate-digits
          mixmatch pate analyze --votes votes.npy --threshold 200 --sigma1 200 --sigma2 40 --queries 250 --delta 1e-6
          mixmatch pate label --votes votes.npy --threshold 200 --sigma1 200 --sigma2 40 --delta 1e-6 --max-epsilon 1
            --output answers.json
          mixmatch pate student --repeats 10 --out runs/pate
        """,
        {
            "analyze": Command("Show the privacy cost of queries, without answering any.", "pate.analyze:analyze"),
            "label": Command(
                "Answer queries by the teachers' noisy vote, within a budget. -1 means refused.", "pate.label:label"
            ),
            "teachers": Command(
                "Train teachers on disjoint shards of private images and let them vote on public ones.",
                "pate.teachers:teachers",
            ),
            "student": Command(
                "Train students on public images of which the teachers labeled a few; refused queries stay unlabeled.",
                "pate.student:student",
            ),
            "run": Command(
                "All of PATE on a small data set: teachers, noisy answers, a MixMatch student and one on the answers "
                "alone.",
                "pate.run:run",
            ),
        },
    ),
}

HELP = """Train image classifiers from few labels and many unlabeled images.

Examples:
  mixmatch compare digits --labels 20
  mixmatch train cifar10 --labels 250 --out runs/cifar
  mixmatch predict runs/cifar photos/
"""


class Lazy(PlainFlags, TyperGroup):
    """A group whose commands are imported when they are run. Its own help takes what it says about them from
    `COMMANDS`, so `mixmatch --help` needs none of them."""

    table: Mapping[str, Command | Group] = COMMANDS

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = {name: _named(name, entry) for name, entry in self.table.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        entry = self.table.get(name or "")
        if self.table is COMMANDS and name != "train" and (processes := started_processes()) > 1:
            raise MixMatchError(
                f"torchrun started {processes} processes, but only mixmatch train shares a run among them: start "
                f"mixmatch {name} without torchrun"
            )
        if isinstance(entry, Command):
            command = _loaded(str(name), entry, rest)
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:  # the option parser would exit with 1
            raise NobodyReads from error


class NobodyReads(Exception):
    """What is written is not read any more, as in `mixmatch ... | head`."""


def _named(name: str, entry: Command | Group) -> Any:
    """A group, or what the help shows of a command that is not imported."""
    if isinstance(entry, Command):
        return PlainCommand(name, help=entry.about, rich_markup_mode="rich")
    kind = type(f"{name.title()}Commands", (Lazy,), {"table": entry.commands})
    return typer.main.get_command(_app(name, entry.about, kind, lambda: None))


def _app(
    name: str, about: str, kind: type[Lazy], callback: Callable[..., None], completion: bool = False
) -> typer.Typer:
    app = typer.Typer(
        name=name,
        cls=kind,
        no_args_is_help=True,
        add_completion=completion,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        help=unwrapped(about),
    )
    app.callback()(callback)
    return app


def function_of(name: str, command: Command) -> Callable[..., Any]:
    """What a command calls, imported now."""
    module, _, function = (command.where or f"{name}:{'build' if command.built else name}").partition(":")
    called: Callable[..., Any] = getattr(import_module(f"mixmatch.cli.{module}"), function)
    return called


def _loaded(name: str, command: Command, args: list[str]) -> Any:
    callback = function_of(name, command)
    if command.built:
        callback = callback(args)
    stop_as_usual()
    app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
    app.command(name, cls=ManyValues if command.many else PlainCommand, help=unwrapped(callback.__doc__ or ""))(
        callback
    )
    return typer.main.get_command(app)


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None: ...


app = _app("mixmatch", HELP, Lazy, _main, completion=True)


def command_line() -> Any:
    """The command `mixmatch` with all that it can do."""
    return typer.main.get_command(app)


def main(failed: BaseException | None = None) -> None:
    """Run a command, unless one was run already and `failed`. What a user can fix is one line on standard error and
    exit code 2."""
    try:
        if failed is not None:
            raise failed
        code = command_line()(prog_name="mixmatch", standalone_mode=False)
        print(end="", flush=True)
    except Interrupted as stopped:
        continues = RESUME if _takes_resume() else "the same command continues from there"
        where = f"stopped at step {stopped.step:,}, which is saved" if stopped.step else "stopped"
        if leads():
            print(f"{where}: {continues}", file=sys.stderr)
        sys.exit(128 + stopped.signal)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except (NobodyReads, BrokenPipeError):
        _nobody_reads()
    except Exception as error:
        if (message := _mistake(error)) is None:
            raise
        if not message:  # no arguments at all: the help
            error.show()  # type: ignore[attr-defined]
            sys.exit(2)
        if message is FULL:
            _give_up(sys.stdout)
        _fail(message)
    if code == 130:  # also what typer makes of Ctrl-C
        print("stopped", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


def _nobody_reads() -> NoReturn:
    _give_up(sys.stdout)
    _give_up(sys.stderr)
    sys.exit(141)


def _give_up(stream: TextIO | None) -> None:
    """Forget what cannot be written, or Python would try again at its end, and complain."""
    with suppress(OSError):
        if stream is not None:
            stream.close()


FULL = "no space is left where this is written: free some, then give the same command again"


def _mistake(error: Exception) -> str | None:
    """What a user can fix, in a line; None if the error is none of those."""
    if isinstance(error, MixMatchError):
        return in_command(str(error))
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return "this machine has too little memory: use less data, smaller batches or a smaller network"
    if type(error).__name__ == "OutOfMemoryError":  # PyTorch's, which is imported only where it is needed
        return "the GPU has too little memory: free some, or use --device cpu"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return FULL
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return f"the path {str(error.filename)[:40]}... is too long: name a shorter one"
    if isinstance(error, RuntimeError) and "home directory" in str(error):
        return "a path begins with ~ and an unknown user name: write it in full"
    if not hasattr(error, "format_message"):
        return None
    # The option parser's own errors; their class depends on typer's version.
    message = " ".join(error.format_message().split()).replace("Value error, ", "")  # pydantic's, in typer
    path = getattr(getattr(error, "ctx", None), "command_path", "mixmatch")
    return message and f"{message} (see {path} --help)"


def _takes_resume() -> bool:
    return sys.argv[1:2] in (["train"], ["pate"])


def in_command(message: str) -> str:
    """A library's message as the command that was given says it. Most commands continue runs unasked."""
    text = with_options(message, sys.argv[1:])
    return text if _takes_resume() else text.replace(RESUME, "give the same command again")


RESUME = "continue with --resume"
_VALUE = r"""True\b|\w+://[\w.:\[\]-]*+|'[^']*'|"[^"]*"|[\w.:+-]*+"""
_PARAMETER = re.compile(rf"(?<![\w'\"{{/\\?&.=,-])(?<!\w\()([A-Za-z][A-Za-z_0-9]*)=({_VALUE})(?![\w/\\=>{{\[])")


def with_options(message: str, arguments: Iterable[str] = ()) -> str:
    """A library's message, which names parameters, with the options of the command line in their place. What was given
    as one of the `arguments`, such as a path with a = in it, is left alone; so are calls in Python.

    >>> with_options("runs/a holds a run already: continue it with resume=True, or choose another out=")
    'runs/a holds a run already: continue it with --resume, or choose another --out'
    >>> with_options("batch_size=0 must be a whole number of at least 1")
    '--batch-size 0 must be a whole number of at least 1'
    """

    def option(match: re.Match[str]) -> str:
        name, value = match.groups()
        if name.startswith("MIXMATCH_") or name == "NAME":  # a variable of the environment; any parameter
            return match[0]
        flag = f"--{name.replace('_', '-')}"
        ended = re.fullmatch(r"(.*?)([.:]*)", value)  # a full stop or a colon may end the sentence
        assert ended is not None
        value, end = ended.groups()
        return f"{flag}{end}" if value in ("", "True") else f"{flag} {value}{end}"

    values = (arg.partition("=")[2] if arg.startswith("--") else arg for arg in arguments)
    given = sorted({value.removeprefix("./").rstrip("/") for value in values if "=" in value}, key=len, reverse=True)
    if not given:
        return _PARAMETER.sub(option, message)
    apart = re.split(f"({'|'.join(map(re.escape, given))})", message)
    return "".join(part if part in given else _PARAMETER.sub(option, part) for part in apart)


def _fail(message: str) -> NoReturn:
    try:
        print(f"{'' if leads() else 'another process: '}error: {printable(message)}", file=sys.stderr)
    except BrokenPipeError:
        _nobody_reads()
    sys.exit(2)

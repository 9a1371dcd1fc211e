"""The pages of reference that are made from the code when the site is built: Python from docstrings, commands from the
parser. They are never stale and never committed."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mixmatch
from mixmatch import callbacks, functional
from mixmatch.classifier import Classifier
from mixmatch.cli import Lazy, command_line
from mixmatch.methods import base

FIRST = ("train", "load", "predict_files", "evaluate", "write_report", "export_model")
"""What most people call, in the order in which they do."""


def write(folder: Path) -> None:
    """Write the pages, if they are others than those there."""
    folder.mkdir(exist_ok=True)
    for name, text in {"python": python(), "commands": commands()}.items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


# ---------------------------------------------------------------- Python


def python() -> str:
    """What users call, from its docstrings."""
    names = [name for name in mixmatch.__all__ if callable(getattr(mixmatch, name))]
    top = [*FIRST, *(name for name in names if name not in FIRST)]
    equations = [name for name, _ in inspect.getmembers(functional, _is_equation)]
    contract = ["Method", "Batch", "Step", "Progress", "DataInfo", "setting", "forward_each", "targets_and_logits"]
    parts = [
        "# Python",
        "Made from docstrings. [In Python](../python.md) shows how these fit together.",
        "## mixmatch",
        *(_auto("mixmatch", name, getattr(mixmatch, name)) for name in top),
        "## mixmatch.functional",
        "The equations, one function each, for use in a loop of your own.",
        *(_auto("mixmatch.functional", name, getattr(functional, name)) for name in equations),
        "## mixmatch.methods.base",
        "What a [method of your own](../adding-a-method.md) is made of.",
        *(_auto("mixmatch.methods.base", name, getattr(base, name)) for name in contract),
        "## mixmatch.callbacks",
        "What [follows a run](../tracking.md).",
        *(_auto("mixmatch.callbacks", name, getattr(callbacks, name)) for name in callbacks.__all__),
        "## A trained model",
        _auto("mixmatch.classifier", "Classifier", Classifier),
    ]
    return "\n\n".join(parts) + "\n"


def _is_equation(thing: Any) -> bool:
    return inspect.isfunction(thing) and thing.__module__ == functional.__name__ and not thing.__name__.startswith("_")


def _auto(module: str, name: str, thing: Any) -> str:
    kind = "autoclass" if inspect.isclass(thing) else "autofunction"
    members = "\n   :members:" if kind == "autoclass" else ""
    if name == "MixMatchClassifier":  # every setting is a parameter: too many to show
        name = "MixMatchClassifier(method='mixmatch', *, network='auto', random_state=None, verbose=False, **settings)"
        members = "\n   :members: fit, predict, predict_proba, score"
    return f"```{{eval-rst}}\n.. {kind}:: {module}.{name}{members}\n```"


# ---------------------------------------------------------------- commands


def commands() -> str:
    """Every command with its arguments and options, as the parser has them."""
    parts = [
        "# Commands",
        "Made from the parser: what `mixmatch COMMAND --help` shows, on one page. Results go to standard output, "
        "everything else to standard error; an error a user can cause is one line, and the exit status is 0 only if "
        "the command did what it says. Settings of `train` are explained under [settings](../settings.md).",
    ]
    for path, command, context in leaves():
        parts += [f"## {path}", _help(command), "```text\n" + command.get_usage(context).strip() + "\n```"]
        rows = [_row(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
        parts.append("\n".join(["| option | default | what it is |", "|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def leaves(group: Any = None, path: str = "mixmatch", parent: Any = None) -> Iterator[tuple[str, Any, Any]]:
    """Every command that does something: its path, the command, its context."""
    group = group if group is not None else command_line()
    context = group.context_class(group, info_name=path.split()[-1], parent=parent, resilient_parsing=True)
    for name in group.list_commands(context):
        _, command, _ = group.resolve_command(context, [name])
        if isinstance(command, Lazy):
            yield from leaves(command, f"{path} {name}", context)
        else:
            yield f"{path} {name}", command, command.context_class(command, info_name=name, parent=context)


def _help(command: Any) -> str:
    """Its help, with the examples as a block."""
    text = _plain(inspect.cleandoc(command.help or "").replace("\b", ""))
    text, _, examples = text.partition("Examples:")
    shown = "\n".join(line.strip() for line in examples.splitlines() if line.strip())
    return _coded(text.strip()) + (f"\n\n```sh\n{shown}\n```" if shown else "")


def _row(parameter: Any) -> str:
    argument = parameter.param_type_name == "argument"
    options = ", ".join([*parameter.opts, *parameter.secondary_opts])
    name = parameter.metavar or parameter.name.upper() if argument else options
    default = parameter.default
    if isinstance(default, bool):
        default = "yes" if default else "no"
    if isinstance(default, list | tuple):
        default = " ".join(map(str, default))
    given = default not in (None, "", ()) and not callable(default) and not parameter.required
    text, _, of_setting = _plain(parameter.help or "").partition("[default: ")  # settings say theirs in their help
    cells = [f"`{name}`", str(default) if given else of_setting.removesuffix("]"), _coded(text.strip())]
    return "| " + " | ".join(_plain(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _plain(text: str) -> str:
    """Without the marks of the terminal's own markup."""
    return re.sub(r"\\(?=\[)|\[/?b\]", "", text)


def _coded(text: str) -> str:
    """Options as code: two dashes would become a long one."""
    return re.sub(r"(?<![`\w-])(--?[a-z][\w-]*)(?![\w`-])", r"`\1`", text)

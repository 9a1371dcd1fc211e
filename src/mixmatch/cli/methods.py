"""`mixmatch methods`: which methods there are, and what each can be set to."""

from __future__ import annotations

import inspect
from typing import Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from mixmatch import methods as methods_
from mixmatch.cli.commands import unwrapped
from mixmatch.cli.options import Json, console, print_json


def methods(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A method, to see its settings.")] = None,
    as_json: Json = False,
) -> None:
    """List the methods, or the settings of one.

    Examples:
      mixmatch methods
      mixmatch methods ict
    """
    if name is None:
        _list(as_json)
    else:
        _describe(name, as_json)


def _list(as_json: bool) -> None:
    documents = {name: inspect.getdoc(inspect.getmodule(cls)) for name, cls in methods_.METHODS.items()}
    listed = {name: (text or "").splitlines()[0] for name, text in documents.items()}  # which names the paper
    if as_json:
        print_json([{"name": name, "about": about} for name, about in listed.items()])
        return
    table = Table("name", "what it does", box=box.SIMPLE)
    for name, about in listed.items():
        table.add_row(name, escape(about))
    console().print(table)
    console().print("the settings of one: mixmatch methods NAME", markup=False)


def _describe(name: str, as_json: bool) -> None:
    cls, settings = methods_.find(name), methods_.declared(name).values()
    if as_json:
        rows = [
            {
                "name": setting.name,
                "default": setting.default,
                "must_be": setting.wanted,
                "help": setting.help,
                "tune": None if setting.search is None else str(setting.search),
            }
            for setting in settings
        ]
        about = {"name": name, "about": inspect.getdoc(cls), "run_defaults": dict(cls.run_defaults)}
        print_json({**about, "settings": rows})
        return
    screen = console()
    screen.print(f"[bold]{name}[/bold]: {escape(unwrapped(cls.__doc__ or ''))}\n", soft_wrap=False)
    if cls.run_defaults:
        values = ", ".join(f"{setting} {value}" for setting, value in cls.run_defaults.items())
        screen.print(f"It changes the run's defaults: {values}\n", markup=False)
    table = Table("setting", "default", "must be", "meaning", box=box.SIMPLE)
    for setting in settings:
        table.add_row(setting.name, str(setting.default), escape(setting.wanted), escape(setting.help))
    screen.print(table)
    searched = [f"{setting.name} {setting.search}" for setting in settings if setting.search is not None]
    if searched:
        screen.print(f"mixmatch tune searches: {'; '.join(searched)}", markup=False)

"""Write the tables of settings in these pages from their declarations.

    python docs/generate.py            # after a setting, a preset or a method has changed

`tests/test_docs_tables.py` fails if a page is not what this writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mixmatch import methods, presets
from mixmatch.data import SOURCES
from mixmatch.declare import Setting
from mixmatch.settings import of_run, resolve

DOCS = Path(__file__).parent
BEGIN, END = "<!-- settings: written by docs/generate.py -->", "<!-- end of settings -->"
BY_DEVICE = "bf16 where it is faster, else fp32"

FILE = """```toml
method = "mixmatch"
steps = 2048
lambda_u = 20.0          # a setting of the method
ema_decay = 0.99

[data_options]           # for user data alone
label_column = "diagnosis"
ignore = ["visit"]
```"""


def pages() -> dict[Path, str]:
    """Every page with generated tables, as it should be."""
    cards = {DOCS / "methods" / f"{name}.md": name for name in methods.METHODS}
    return {DOCS / "settings.md": settings_page(), **{path: card(path, name) for path, name in cards.items()}}


def card(path: Path, method: str) -> str:
    """A method's card with its table of settings."""
    table = f"{BEGIN}\n{method_table(method)}\n{END}"
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: table, path.read_text(), flags=re.S)


def method_table(method: str) -> str:
    """The settings of a method: its defaults, and what the paper used for each data set."""
    used = [data for data in SOURCES if data != "digits" and presets.of_method(data, None, method)]
    published = {data: resolve(data, {"method": method}) for data in used}
    default = resolve("other data", {"method": method})
    run = [
        n
        for n in of_run()
        if any(getattr(s, n) != getattr(default, n) for s in published.values()) and n in scoped(used, method)
    ]
    rows = [
        [f"`{s.name}`", _value(s.default), s.help, *(_value(p.method_settings[s.name]) for p in published.values())]
        for s in methods.declared(method).values()
    ]
    for name in run:
        values = [_value(getattr(p, name)) for p in published.values()]
        rows.append([f"`{name}` (run)", _value(getattr(default, name)), of_run()[name].help, *values])
    return _table(["setting", "default", "what it is", *(SOURCES[data].title for data in used)], rows)


def scoped(data_sets: Iterable[str], method: str) -> set[str]:
    """The settings that presets of this method name."""
    return {name for data in data_sets for name in presets.of_method(data, None, method)}


def settings_page() -> str:
    parts = [
        "# Settings",
        "Every setting of a run and of a method, from its declaration in the code. On the command line `batch_size` is "
        "`--batch-size`; in Python and in a config file it is `batch_size`. A setting that is not given has the "
        "preset of the data set and the method, or else the default below. `mixmatch methods NAME` shows the same "
        "for one method.",
        "## In a file",
        "`--config FILE` (in Python `config=`) starts from the settings of an earlier run, its `config.json`, or "
        "from a TOML file such as this one. Options override it.",
        FILE,
        "Settings of the run and of the method go together at the top, outside any table, options for reading user "
        "data under `[data_options]`, last. The data itself and the run folder are not settings: "
        "`mixmatch train patients.csv --config settings.toml --out runs/patients`.",
        "## Of the run",
        _declared(of_run().values()),
        "Runs that differ only in settings that are not part of the experiment are replicates of one experiment. A run "
        "whose settings depend on the number of steps cannot be extended with `--resume --steps N`. `--search` "
        "chooses what [tune](tune.md) searches; a setting that is 0, which means off, is searched only on request.",
        "## Of the methods",
    ]
    for name in methods.METHODS:
        parts += [f"### {name}", f"[Its card](methods/{name}.md).", _declared(methods.declared(name).values())]
    parts += [
        "## Presets for user data",
        "For folders and arrays of images, and for tables and arrays of numbers.",
        _table(
            ["setting", "images", "features"],
            [
                [f"`{name}`", *(_value(presets.USER[kind].get(name, "")) for kind in presets.USER)]
                for name in dict.fromkeys(n for values in presets.USER.values() for n in values)
            ],
        ),
        "For one method alone:",
        _table(
            ["data", "method", "settings"],
            [
                [kind, method, ", ".join(f"`{n}` {_value(v)}" for n, v in values.items())]
                for (kind, method), values in [
                    *presets.USER_METHOD.items(),
                    *((("frozen features of images", n), each) for n, each in presets.EMBEDDED_METHOD.items()),
                ]
            ],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _declared(settings: Iterable[Setting]) -> str:
    rows = [
        [
            f"`{s.name}`",
            BY_DEVICE if s.name == "precision" else _value(s.default),
            s.help,
            s.wanted,
            "yes" if s.experiment else "no",
            "no" if s.of_steps is None else "may",
            "" if s.search is None else str(s.search),
        ]
        for s in settings
    ]
    head = ["setting", "default", "what it is", "must be"]
    return _table([*head, "part of the experiment", "depends on steps", "`tune` searches"], rows)


def _value(value: Any) -> str:
    if isinstance(value, presets.PartOfSteps):
        return f"steps / {value.divisor}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:,g}"
    return str(value)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    for path, text in pages().items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(path)


if __name__ == "__main__":
    main()

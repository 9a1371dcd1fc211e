"""Errors of the library name parameters (`out=`); only the command line knows options (`--out`)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import mixmatch

PACKAGE = Path(mixmatch.__file__).parent
FILES = sorted(str(p.relative_to(PACKAGE)) for p in PACKAGE.rglob("*.py") if p.relative_to(PACKAGE).parts[0] != "cli")
SAYS = re.compile(r"Error$|^(Finding|NotFinite|OutOfMemory|unknown)$")
"""What is called with a message for the user."""
OPTION = re.compile(r"(?<![-\w])--(?=[a-zA-Z]|$)")
"""An option, or the beginning of one whose name is filled in."""


def texts(node: ast.AST) -> Iterator[ast.Constant]:
    """The literal text in an expression, also in the parts of f-strings."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield inner


def options_in(source: str) -> list[str]:
    """Options in messages: in calls that make one, and in what is put into them within the same function."""
    tree, found = ast.parse(source), set()
    for scope in ast.walk(tree):
        if not isinstance(scope, ast.FunctionDef | ast.Module):
            continue
        calls = [n for n in ast.walk(scope) if isinstance(n, ast.Call) and SAYS.search(_name(n.func))]
        used = {n.id for call in calls for n in ast.walk(call) if isinstance(n, ast.Name)}
        parts: list[ast.AST] = [argument for call in calls for argument in [*call.args, *call.keywords]]
        for n in ast.walk(scope):
            if isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id in used for t in n.targets):
                parts.append(n.value)
        for part in parts:
            found |= {(text.lineno, text.value) for text in texts(part) if OPTION.search(text.value)}
    return [f"line {line}: {text}" for line, text in sorted(found)]


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


@pytest.mark.parametrize("file", FILES)
def test_messages_name_parameters(file: str) -> None:
    assert options_in((PACKAGE / file).read_text()) == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("raise MixMatchError('choose another --out')", 1),
        ("raise MixMatchError(f'{path} holds a run: ' f'use --resume')", 1),
        ("def f(name):\n    raise PrivacyError(f'--{name} is not for this')", 1),
        ("def f():\n    advice = 'with --checkpoint x'\n    raise MixMatchError(f'damaged; {advice}')", 1),
        ("found.append(Finding('small', 'too small', advice='choose a smaller --image-size'))", 1),
        ("raise MixMatchError('choose another with out=')", 0),
        ("raise MixMatchError('a -- b, x--y')", 0),
        ("run(['git', 'describe', '--always'])", 0),
        ("def f():\n    '''For `--json`.'''", 0),
    ],
)
def test_this_file_finds_options(source: str, count: int) -> None:
    assert len(options_in(source)) == count

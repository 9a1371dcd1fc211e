"""The examples in docstrings give what they say."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
FILES = [path.relative_to(SOURCE).with_suffix("") for path in SOURCE.rglob("*.py") if ">>> " in path.read_text()]
MODULES = sorted(".".join(path.parts).removesuffix(".__init__") for path in FILES)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    done = doctest.testmod(import_module(name))
    assert done.attempted > 0
    assert done.failed == 0

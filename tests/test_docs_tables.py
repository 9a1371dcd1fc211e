"""The tables of settings in the docs are what the declarations say."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from mixmatch import methods
from mixmatch.data import Reading
from mixmatch.methods import METHODS
from mixmatch.settings import of_run, read_file, resolve

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["generate"] = module
    spec.loader.exec_module(module)
    return module


def test_pages_are_as_generated(generate: ModuleType) -> None:
    stale = [path.name for path, text in generate.pages().items() if path.read_text() != text]
    assert not stale, f"run python docs/generate.py: {stale} differ"


def test_the_file_of_settings_is_read(generate: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text("\n".join(generate.FILE.splitlines()[1:-1]))
    values, reading = read_file(tmp_path / "settings.toml")
    assert resolve("patients.csv", values, "features").method_settings["lambda_u"] == 20.0
    assert Reading.of(reading).ignore == ("visit",)


def test_every_method_has_a_card_with_its_settings(generate: ModuleType) -> None:
    for name in METHODS:
        text = (ROOT / "docs" / "methods" / f"{name}.md").read_text()
        assert generate.BEGIN in text, name
        assert generate.END in text, name


def test_settings_that_follow_the_number_of_steps_are_on_the_page_about_resume() -> None:
    page = (ROOT / "docs" / "resume.md").read_text()
    refused = [line.split("|")[1] for line in page.splitlines() if line.startswith("|") and "| no: " in line]
    declared = {**of_run(), **{n: s for name in METHODS for n, s in methods.declared(name).items()}}
    missing = [
        n for n, s in declared.items() if s.of_steps is not None and not any(f"`{n}`" in cell for cell in refused)
    ]
    assert not missing


def test_a_changed_default_makes_a_page_stale(generate: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(generate.presets.DATA_METHOD[("cifar10", "ict")], "alpha", 0.123)
    path = ROOT / "docs" / "methods" / "ict.md"
    assert generate.pages()[path] != path.read_text()

"""The examples run from top to bottom, at a tiny size, and are well-formed notebooks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
TINY = {
    "own_photos": {"STEPS": 8, "LABELS": 3, "UNLABELED": 40},
    "own_method": {"STEPS": 8, "SEEDS": [1]},
    "scikit_learn": {"STEPS": 8, "LABELS": 3, "FOLDS": 2},
    "text_embeddings": {"STEPS": 8},
    "audio_embeddings": {"STEPS": 8, "SOUNDS": 120},
    "pate": {"TEACHERS": 6, "TEACHER_STEPS": 30, "QUERIES": 40, "STUDENT_STEPS": 8, "NOISE_SEED": 1},
}
ENDS = {
    "own_photos": r"weights: runs/examples/photos/photos.safetensors\n$",
    "own_method": r"custom:EntropyMinimization +\d+\.\d % test error.*\nmixmatch +\d",
    "scikit_learn": r"MixMatch +\d+\.\d% test error\n(.*\n)*lambda_u 20.0: \d",
    "text_embeddings": r"% test error.*\n(.* is .*\.\.\.\n){5}$",
    "audio_embeddings": r"% test error: \d+ of 40 test rows wrong",
    "pate": r"student by mixmatch: .*\nstudent by supervised: .*\nepsilon \d",
}


def cells(text: str) -> list[tuple[str, str]]:
    """The cells of a script in percent format: what their marker says, and their lines."""
    first, *rest = re.split(r"^# %%(.*)\n", text, flags=re.MULTILINE)
    assert not first
    return [(kind.strip(), body) for kind, body in zip(rest[::2], rest[1::2], strict=True)]


def set_to(text: str, values: dict[str, object]) -> str:
    """The script with other values in its first cell of code."""
    for name, value in values.items():
        text, found = re.subn(rf"^{name} = [^#\n]*", f"{name} = {value!r}  ", text, count=1, flags=re.MULTILINE)
        assert found, name
    return text


def test_all_examples_are_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(TINY) == set(ENDS)
    listed = re.findall(r"^\| \[(\w+)\.py\]", (EXAMPLES / "README.md").read_text(), flags=re.MULTILINE)
    assert sorted(listed) == sorted(TINY)


@pytest.mark.parametrize("name", TINY)
def test_is_a_notebook(name: str) -> None:
    found = cells((EXAMPLES / f"{name}.py").read_text())
    (kind, title), (parameters, values) = found[:2]
    assert kind == "[markdown]"
    assert title.startswith("# # ")
    assert parameters == 'tags=["parameters"]'  # as papermill and jupytext have it
    assert all(re.match(r"[A-Z_]+ = ", line) for line in values.strip().splitlines())
    for kind, body in found:
        assert kind in ("", "[markdown]", 'tags=["parameters"]')
        text = [line for line in body.splitlines() if line]
        assert text
        assert (kind == "[markdown]") == all(line.startswith("#") for line in text)


@pytest.mark.parametrize("name", TINY)
def test_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MIXMATCH_OFFLINE", "1")
    code = set_to((EXAMPLES / f"{name}.py").read_text(), TINY[name])
    exec(compile(code, f"{name}.py", "exec", dont_inherit=True), {"__name__": "__main__"})
    shown = capsys.readouterr().out
    assert re.search(ENDS[name], shown), shown
    assert {path.name for path in tmp_path.iterdir()} <= {"runs"}  # nothing elsewhere

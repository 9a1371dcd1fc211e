"""What the README shows works: its Python runs, its commands parse, its make targets exist."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mixmatch.cli import Lazy, command_line

ROOT = Path(__file__).parents[1]


def blocks(text: str, *languages: str) -> list[str]:
    """The fenced blocks in any of these languages."""
    found = re.findall(r"^```(\w+)[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [content for language, content in found if language in languages]


def commands(text: str, program: str) -> list[list[str]]:
    """Lines of shell blocks that run a program, as words: prompts, comments, redirections and other programs apart."""
    lines = "\n".join(blocks(text, "sh", "bash")).replace("\\\n", " ").splitlines()
    shown = "\n".join(blocks(text, "console")).replace("\\\n", " ").splitlines()
    lines += [line.removeprefix("$ ") for line in shown if line.startswith("$ ")]  # the others are output
    found = []
    for line in lines:
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        words, start = list(lexer), 0
        for end in [i for i, word in enumerate(words) if set(word) <= set("|&;<>")] + [len(words)]:
            part = words[start:end]
            while part and re.fullmatch(r"[A-Z_]+=.*", part[0]):  # settings of the environment
                part = part[1:]
            if part and Path(part[0]).name == program:
                found.append(part[1:])
            start = end + 1
    return found


def parse(words: list[str]) -> None:
    """Parse a command line as the command would, without running it. Raises what a wrong one ends with."""
    group: Any = command_line()
    if words in (["--help"], ["--version"]):
        return
    with group.make_context("mixmatch", list(words)) as context:
        while True:
            name, command, rest = group.resolve_command(context, words)
            if not isinstance(command, Lazy):
                break
            group, words = command, rest
        if "--help" not in rest:
            command.make_context(name, rest, parent=context)


README = (ROOT / "README.md").read_text()
PYTHON = blocks(README, "python")
COMMANDS = commands(README, "mixmatch")


def test_there_is_something_to_check() -> None:
    assert PYTHON
    assert COMMANDS


@pytest.mark.parametrize("code", PYTHON, ids=range(len(PYTHON)))
def test_python(code: str, tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1", "MIXMATCH_OFFLINE": "1", "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, f"{code}\n{result.stderr}"


@pytest.mark.parametrize("words", COMMANDS, ids=shlex.join)
def test_command(words: list[str]) -> None:
    parse(words)


def test_make_targets() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    mentioned = [words[0] for words in commands(README, "make") if words and "=" not in words[0]]
    mentioned += re.findall(r"`make ([\w-]+)", README)
    assert mentioned
    assert set(mentioned) <= targets


def test_this_file_finds_mistakes() -> None:
    """The checks above are worth something only if they fail where they should."""
    text = """
```console
$ MIXMATCH_OFFLINE=1 mixmatch train digits --labels 20 \\
    --out runs/x > log.txt && make run  # a comment
$ mixmatch compare digits --seeds 1 2 3 | head
it's 3.1 %
```
```python
print(1)
```
"""
    assert blocks(text, "python") == ["print(1)\n"]
    assert commands(text, "make") == [["run"]]
    first, second = commands(text, "mixmatch")
    assert first == ["train", "digits", "--labels", "20", "--out", "runs/x"]
    parse(first)
    parse(second)
    for wrong in (["train", "digits", "--label", "20"], ["train", "digits", "--steps", "x"], ["trian"], ["train"]):
        with pytest.raises(Exception, match=r"(?i)no such|missing|must be a whole number"):
            parse(wrong)

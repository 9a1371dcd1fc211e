"""The list of commands, `mixmatch methods`, and how the parameters in a message become options."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from saying import one_line

from mixmatch import methods
from mixmatch.cli import COMMANDS, Command, Group, function_of, in_command, with_options
from mixmatch.cli.commands import unwrapped
from mixmatch.cli.report import show_verdict
from mixmatch.data.opened import Basis
from mixmatch.report import Verdict

Call = Callable[..., Any]


# ---------------------------------------------------------------- the list of commands


def commands() -> Iterator[tuple[str, Command]]:
    """All but the groups, with the words that run them."""
    for name, entry in COMMANDS.items():
        if isinstance(entry, Command):
            yield name, entry
        else:
            yield from ((f"{name} {inner}", command) for inner, command in entry.commands.items())


@pytest.mark.parametrize(("name", "command"), list(commands()), ids=[name for name, _ in commands()])
def test_the_list_says_what_the_help_of_a_command_begins_with(name: str, command: Command) -> None:
    """A command is imported only when it is run, so the list cannot ask it."""
    callback = function_of(name.split()[-1], command)
    help = (callback([]) if command.built else callback).__doc__
    assert command.about == unwrapped(help).split("\n\n")[0]


def test_every_command_is_listed(call: Call) -> None:
    shown = call("--help").out
    for name in ("train", "compare", "evaluate", "predict", "report", "export", "methods", "reproduce", "results"):
        assert f"│ {name} " in shown
    for name, entry in COMMANDS.items():
        assert f"│ {name} " in shown
        if isinstance(entry, Group):
            inner = call(name, "--help").out
            for command in entry.commands:
                assert f"│ {command} " in inner


LIGHT = [["--help"], ["--version"], ["data", "--help"], ["data", "list"], ["nosuch"]]


@pytest.mark.parametrize("arguments", LIGHT, ids=" ".join)
def test_without_torch(arguments: list[str], tmp_path: Path) -> None:
    """PyTorch takes seconds to import; what does not need it answers at once. Help does without NumPy, too."""
    slow = ("torch", "sklearn", "matplotlib", *(() if "list" in arguments else ("numpy", "PIL")))
    code = f"""
import sys
from mixmatch.__main__ import main
sys.argv = ["mixmatch", *{arguments!r}]
try:
    main()
except SystemExit:
    pass
print([name for name in {slow!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "Traceback" not in done.stderr


def test_training_imports_torch_without_its_compiler(tmp_path: Path) -> None:
    """It is not needed on a CPU, and takes longer to import than the rest together."""
    code = """
import sys
from mixmatch.__main__ import main
sys.argv = ["mixmatch", "train", "digits", "--steps", "2", "--quiet"]
try:
    main()
except SystemExit:
    pass
print([name for name in ("torch", "torch._dynamo", "sklearn", "matplotlib") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.splitlines()[-1] == "['torch']"


def test_help_leaves_its_text_room_in_80_columns(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = call("train", "--help").out.splitlines()
    (momentum,) = (line for line in lines if "Momentum of SGD." in line)
    assert momentum.index("Momentum") < 40
    assert any("--[no-]flip " in line for line in lines)
    first = next(i for i, line in enumerate(lines) if "Examples:" in line)
    assert [line[:18] for line in lines[first + 1 : first + 4]] == ["   mixmatch train "] * 3


def test_help_and_tables_fit_80_columns(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """No word is cut, and a flag has no type."""
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    helps = [(*name.split(), "--help") for name, _ in commands()]
    for words in [("--help",), *helps, ("data", "list"), ("methods",), ("methods", "mixmatch")]:
        shown = re.sub(r"\x1b\[[\d;]*m", "", call(*words).out)
        assert max(map(len, shown.splitlines())) <= 80, words
        for bad in ("…", "<bool>", "BOOLEAN"):
            assert bad not in shown, words
    assert "svhn-extra" in call("data", "list").out


def test_a_number_and_its_percent_sign_are_on_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    verdict = Verdict(Basis("the 400 images under test/"), images=400, wrong=140, guessing=75.0)
    for width in range(40, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        show_verdict(verdict)
        lines = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines()
        assert max(map(len, lines)) <= width
        assert not [line for line in lines if line.lstrip().startswith("%")], width
        assert "35.0 % test" in lines[0]


def test_a_pipe_is_as_wide_as_columns_says(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for width in (80, 100):
        monkeypatch.setenv("COLUMNS", str(width))
        for words in (("methods",), ("methods", "ict")):
            lines = call(*words).out.splitlines()
            assert 70 < max(map(len, lines)) <= width
            assert not any("…" in line for line in lines)


def test_defaults_are_shown_where_they_are_fixed(call: Call) -> None:
    shown = " ".join(call("train", "--method", "vat", "--help").out.replace("│", " ").split())
    for words in (
        "How to learn; `mixmatch methods` lists the methods. [default: mixmatch]",
        "every random draw. [default: 1]",
        "Momentum of SGD. [default: 0.9]",
        "One of constant, cosine, linear, cosine-7/16. [default: constant]",
        "[default: 1e-06]",
    ):
        assert words in shown
    for name in ("steps", "ema-decay", "network", "epsilon"):  # presets have other values
        declared = shown.split(f"--{name} ")[1].split(" --")[0]
        assert "default:" not in declared


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("tr", ["train"]),
        ("data ", ["list", "check", "shard"]),
        ("data check --label-c", ["--label-column"]),
        ("train x --lambda", ["--lambda-u"]),
        ("train x --method vat --x", ["--xi"]),
        ("evaluate run --da", ["--data", "--data-dir"]),
        ("compare x --se", ["--seeds"]),
    ],
)
def test_completion(typed: str, offered: list[str], call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """As bash asks for it: commands and options, of commands that are imported only then."""
    words = ["mixmatch", *typed.split(" ")]
    asked = {"_MIXMATCH_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    assert call().out.split() == offered


def test_completion_can_be_installed(call: Call) -> None:
    shown = call("--help").out
    assert "--install-completion" in shown
    assert "--show-completion" in shown


def test_a_mistyped_command(call: Call) -> None:
    one_line(call("trian", "digits"), "'trian'", "'train'", "(see mixmatch --help)")
    one_line(call("data", "chek"), "'chek'", "'check'", "(see mixmatch data --help)")


# ---------------------------------------------------------------- methods


def test_methods(call: Call) -> None:
    result = call("methods")
    assert (result.code, result.err) == (0, "")
    shown = {words[0]: words[1:] for line in result.out.splitlines() if (words := line.split())}
    for name in methods.METHODS:
        assert shown[name]
    listed = json.loads(call("methods", "--json").out)
    assert [each["name"] for each in listed] == list(methods.METHODS)
    assert {each["name"]: each["about"] for each in listed}["ict"].startswith("Interpolation Consistency Training")


@pytest.mark.parametrize("name", methods.METHODS)
def test_a_method(name: str, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # so that words stay side by side
    result = call("methods", name)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"{name}: ")
    about = json.loads(call("methods", name, "--json").out)
    assert about["name"] == name
    declared = methods.declared(name)
    assert [each["name"] for each in about["settings"]] == list(declared)
    defaults = methods.build(name, {})
    for each in about["settings"]:
        assert each["default"] == getattr(defaults, each["name"])
        assert each["must_be"] in result.out
        assert f" {each['name']} " in result.out
        assert each["help"]


def test_what_a_method_asks_of_the_run(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods.METHODS["ict"], "run_defaults", {"optimizer": "sgd", "weight_decay": 5e-4})
    result = call("methods", "ict")
    assert "It changes the run's defaults: optimizer sgd, weight_decay 0.0005" in result.out
    assert json.loads(call("methods", "ict", "--json").out)["run_defaults"] == {
        "optimizer": "sgd",
        "weight_decay": 5e-4,
    }


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_method_that_is_not_there(call: Call, more: list[str]) -> None:
    one_line(call("methods", "nosuch", *more), "unknown method 'nosuch'")
    one_line(call("methods", "mixmach", *more), "did you mean 'mixmatch'?")


# ---------------------------------------------------------------- options in place of parameters


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("steps=0 must be at least 1", "--steps 0 must be at least 1"),
        ("batch_size=0 must be at least 1", "--batch-size 0 must be at least 1"),
        ("learning_rate=-0.1 must be", "--learning-rate -0.1 must be"),
        ("learning_rate=1e-05 must be", "--learning-rate 1e-05 must be"),
        ("K=0 must be", "--K 0 must be"),
        ("choose another with out=", "choose another with --out"),
        ("choose another with out=.", "choose another with --out."),
        ("with resume=True", "with --resume"),
        ("with resume=True, or", "with --resume, or"),
        ("go back (resume=True): it", "go back (--resume): it"),
        ("use method=supervised.", "use --method supervised."),
        ("labels=138: the student", "--labels 138: the student"),
        ("image_size= and label_column= are for", "--image-size and --label-column are for"),
        ("needs threshold=, sigma1=, sigma2=", "needs --threshold, --sigma1, --sigma2"),
        ("continue with checkpoint=step-00000005", "continue with --checkpoint step-00000005"),
        # What a person wrote stays as it is, also in quotes.
        ("schedule='cosin' must be", "--schedule 'cosin' must be"),
        ("schedule='a b=c' must be", "--schedule 'a b=c' must be"),
        ('method="it\'s" is', '--method "it\'s" is'),
        ("no column 'color=blue'", "no column 'color=blue'"),
        ('no column "color=blue"', 'no column "color=blue"'),
        # Paths and addresses.
        ("cannot write to runs/lr=0.1/x: full", "cannot write to runs/lr=0.1/x: full"),
        ("lr=0.1/x is not a run folder", "lr=0.1/x is not a run folder"),
        ("runs/x-lr=0.1,wd=3 is not", "runs/x-lr=0.1,wd=3 is not"),
        ("/data/.a=b is not", "/data/.a=b is not"),
        ("see https://example.org/a?b=c&d=e", "see https://example.org/a?b=c&d=e"),
        ("no cluster at ray=ray://127.0.0.1:1 (refused)", "no cluster at --ray ray://127.0.0.1:1 (refused)"),
        ("no cluster at ray=ray://[::1]:1: refused", "no cluster at --ray ray://[::1]:1: refused"),
        # Python.
        ("pass it, train(network=...)", "pass it, train(network=...)"),
        ("settings={'labels': 3}", "settings={'labels': 3}"),
        ("a == b, a=>b", "a == b, a=>b"),
        # Any parameter.
        ("'T=': it is not NAME=LOW..HIGH or NAME=a,b,c", "'T=': it is not NAME=LOW..HIGH or NAME=a,b,c"),
        # The environment.
        ("if that is right, set MIXMATCH_UNPACK_GB=4", "if that is right, set MIXMATCH_UNPACK_GB=4"),
        ("nothing to do", "nothing to do"),
    ],
)
def test_options_in_place_of_parameters(message: str, shown: str) -> None:
    assert with_options(message) == shown


@pytest.mark.parametrize(
    "arguments", [["--out", "seed=1"], ["--out=seed=1"], ["--out", "./seed=1"], ["--out", "seed=1/"]]
)
def test_an_argument_that_looks_like_a_parameter_is_left_alone(arguments: list[str]) -> None:
    message = "seed=1 holds a run already: continue it with resume=True"
    assert with_options(message, ["train", "digits", *arguments]) == (
        "seed=1 holds a run already: continue it with --resume"
    )
    assert with_options("seed=2 and seed=1", ["train", *arguments]) == "--seed 2 and seed=1"


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("train", "make room, then continue with --resume"),
        ("pate", "make room, then continue with --resume"),
        ("compare", "make room, then give the same command again"),
        ("tune", "make room, then give the same command again"),
        ("reproduce", "make room, then give the same command again"),
    ],
)
def test_only_commands_that_have_it_are_told_to_resume(
    command: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["mixmatch", command, "digits"])
    assert in_command("make room, then continue with resume=True") == shown


@pytest.mark.parametrize(
    "words", [["compare", "digits"], ["tune", "digits"], ["predict", "run", "a.png"], ["data", "list"], ["label", "."]]
)
def test_torchrun_is_for_train_alone(words: list[str], call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    refused = call(*words)
    one_line(refused, f"start mixmatch {words[0]} without torchrun")
    assert refused.code == 2
    assert call("train", "--help").code == 0


def test_the_command_line_shows_options(call: Call) -> None:
    Path("seed=1").mkdir()
    (Path("seed=1") / "mine").write_text("")
    refused = call("train", "digits", "--out", "seed=1")
    one_line(refused)
    assert refused.err == "error: seed=1 holds other files and is not a run folder: choose another with --out\n"

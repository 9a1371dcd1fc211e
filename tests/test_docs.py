"""Every page is true: its Python runs, its commands parse, its links lead somewhere, the names it mentions exist."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import mixmatch
from mixmatch import api, callbacks, estimator
from mixmatch.cli import COMMANDS, Group, Lazy, command_line
from mixmatch.methods.base import Batch, Method
from mixmatch.training.run import RunFolder

ROOT = Path(__file__).parents[1]
ELSEWHERE = ("examples/README.md", "benchmarks/NOTES.md")
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / page for page in ELSEWHERE)]
    if not {"_build", "reference"} & set(path.parts)
)
BLOCK = re.compile(r"^([ ]*)```(\w+)[^\n]*\n(.*?)^[ ]*```", re.MULTILINE | re.DOTALL)
TEXTS = {page: (ROOT / page).read_text() for page in PAGES}


def blocks(text: str, *languages: str) -> list[str]:
    """The fenced blocks in any of these languages."""
    return [content for _, language, content in BLOCK.findall(text) if language in languages]


# ---------------------------------------------------------------- commands


def commands(text: str) -> list[list[str]]:
    """What shell blocks run, as words: prompts, output, comments and redirections apart."""
    scripts = blocks(text, "sh", "bash")
    shown = "\n".join(blocks(text, "console")).replace("\\\n", " ").splitlines()
    scripts += [line.removeprefix("$ ") for line in shown if line.startswith("$ ")]
    return [words for script in scripts for words in in_script(script)]


def in_script(script: str) -> list[list[str]]:
    """The commands of a script, and of scripts that are words of theirs."""
    found, line = [], ""
    for piece in script.replace("\\\n", " ").splitlines():
        line = f"{line}\n{piece}" if line else piece
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:  # a quotation goes on in the next line
            continue
        start, line = 0, ""
        for end in [i for i, word in enumerate(words) if word and set(word) <= set("|&;<>")] + [len(words)]:
            part = words[start:end]
            if start and set(words[start - 1]) & set("<>"):
                part = part[1:]  # the file
            while part and re.fullmatch(r"[A-Z_]+=.*|exec|srun", part[0]):
                part = part[1:]
            if part:
                found.append(part)
            start = end + 1
        for word in words:
            if " " in word:
                found += in_script(re.sub(r"\$\w+", "1", word))
    assert not line, f"a quotation does not end: {line}"
    return found


def of_mixmatch(words: list[str]) -> list[str] | None:
    """The arguments of a command of ours, also one that torchrun starts."""
    if Path(words[0]).name == "mixmatch":
        return words[1:]
    at = next((i for i in range(len(words) - 1) if words[i : i + 2] == ["-m", "mixmatch"]), None)
    return None if at is None else words[at + 2 :]


def parse(words: list[str]) -> None:
    """Parse a command line as the command would, without running it. Raises what a wrong one ends with."""
    group: Any = command_line()
    if words[0] in ("--help", "--version", "--install-completion"):
        return
    with group.make_context("mixmatch", list(words)) as context:
        while True:
            name, command, rest = group.resolve_command(context, words)
            if not isinstance(command, Lazy):
                break
            group, words = command, rest
        if "--help" not in rest:
            command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(TEXTS[page], "sh", "bash", "console")])
def test_commands(page: str) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for words in commands(TEXTS[page]):
        ours = of_mixmatch(words)
        if ours is not None:
            parse(ours)
        elif words[0] == "make":
            assert {word for word in words[1:] if "=" not in word} <= targets, words
        elif words[0] == "python" and words[1].endswith(".py") and not words[1].startswith("/"):
            program = (ROOT / words[1]).read_text()
            for option in [word for word in words[2:] if word.startswith("--")]:
                assert f'"{option}"' in program, f"{words[1]} has no option {option}"


# ---------------------------------------------------------------- links and names


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as code hosts and the site make them."""
    text = BLOCK.sub("", text)
    titles = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line) for line in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_links(page: str) -> None:
    text = BLOCK.sub("", TEXTS[page])
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
        if re.match(r"\w+:", target):
            assert target.startswith("https://"), target
            continue
        path, _, anchor = target.partition("#")
        place = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        assert place.exists(), f"{page}: {target}"
        if anchor:
            assert anchor in anchors(place.read_text()), f"{page}: {target}"


def resolves(name: str) -> bool:
    """Whether a dotted name is a module or lies in one."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for part in parts[end:]:
            if not hasattr(found, part):
                return part in getattr(found, "__dataclass_fields__", {})
            found = getattr(found, part)
        return True
    return False


@pytest.mark.parametrize("page", PAGES)
def test_names(page: str) -> None:
    """Of the code and of files, in running text. The changelog speaks of the past."""
    if page == "CHANGELOG.md":
        return
    text = BLOCK.sub("", TEXTS[page])
    for name in re.findall(r"`(mixmatch(?:\.[A-Za-z_]\w*)+)", text):
        assert resolves(name), f"{page}: {name}"
    for name in re.findall(r"`((?:src|tests|benchmarks|docs|examples)/[\w./-]+\.\w+)", text):
        assert (ROOT / name).exists(), f"{page}: {name}"


def test_every_page_is_in_the_contents() -> None:
    linked = set(re.findall(r"\]\(([\w/-]+\.md)", TEXTS["docs/README.md"]))
    there = {page.removeprefix("docs/") for page in PAGES if page.startswith("docs/")} - {"README.md", "index.md"}
    assert there == linked


# ---------------------------------------------------------------- Python

STEPS = 8
"""What a page trains here at most."""
ONLY_COMPILED = {"docs/questions/vat-xi.md", "docs/predict-many.md"}
"""Pages whose Python takes too long or a cluster: it is compiled, its imports are made, its names of ours exist."""


def picture(path: Path, bright: bool, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 60, (36, 40, 3)) + (180 if bright else 20)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).save(path)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pages speak of: photos, and a run on them with its exports."""
    folder = tmp_path_factory.mktemp("docs")
    for i in range(24):
        name = ("cat", "dog")[i % 2]
        picture(folder / "photos" / name / f"{i}.png", i % 2 == 0, i)
        picture(folder / "photos" / "unlabeled" / f"{i}.png", i % 2 == 0, 100 + i)
        picture(folder / "new-labeled" / name / f"{i}.png", i % 2 == 0, 200 + i)
        picture(folder / "new" / f"{i:02}.png", i % 2 == 0, 300 + i)
    with inside(folder):
        mixmatch.train("photos/", out="runs/photos", steps=STEPS, device="cpu", baseline=False)
        mixmatch.export_model("runs/photos", "photos.onnx")
        mixmatch.export_model("runs/photos", "photos.safetensors", "safetensors")
        np.save("images.npy", np.zeros((2, *mixmatch.load("runs/photos").input_shape[1:], 3), np.uint8))
    return folder


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Everything trains for a few steps on a CPU, and nothing leaves the machine."""
    train, fit, tracker = api.train, estimator.MixMatchClassifier.fit, callbacks.MLflow

    def few(data: Any, **given: Any) -> Any:
        steps = min(given.get("steps") or STEPS, 10 * STEPS)
        return train(data, **{**given, "steps": steps, "device": "cpu"})

    def fit_briefly(self: Any, *given: Any) -> Any:
        self.steps = STEPS
        return fit(self, *given)

    monkeypatch.setattr(api, "train", few)
    monkeypatch.setattr(estimator.MixMatchClassifier, "fit", fit_briefly)
    monkeypatch.setattr(callbacks, "MLflow", lambda name: tracker(name, tracking_uri=(tmp_path / "mlruns").as_uri()))
    for name, value in {"MLFLOW_ALLOW_FILE_STORE": "true", "WANDB_SILENT": "true", "MIXMATCH_OFFLINE": "1"}.items():
        monkeypatch.setenv(name, value)


PYTHON = [page for page in PAGES if blocks(TEXTS[page], "python")]
NEEDED = {"docs/export.md": ["onnxruntime"], "docs/python.md": ["onnxruntime"], "docs/tracking.md": ["mlflow", "wandb"]}


@pytest.mark.parametrize("page", PYTHON)
def test_python(
    page: str,
    world: Path,
    tmp_path: Path,
    short: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A page's blocks run one after the other, as a reader would, in a folder with what it speaks of."""
    for package in NEEDED.get(page, []):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install -r requirements-dev.txt")
    code = blocks(TEXTS[page], "python")
    if page in ONLY_COMPILED:
        for block in code:
            tree = ast.parse(block)
            exec("\n".join(ast.unparse(n) for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)), {})
            for node in ast.walk(tree):
                dotted = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
                assert not re.fullmatch(r"mixmatch(\.\w+)+", dotted) or resolves(dotted), dotted
        return
    place = tmp_path / "reader"
    shutil.copytree(world, place)
    if 'train("photos/", out="runs/photos"' in TEXTS[page]:
        shutil.rmtree(place / "runs")
    names: dict[str, Any] = {"__name__": "__main__"}
    monkeypatch.setitem(sys.modules, "__main__", sys.modules[__name__])
    with inside(place):
        for block in code:
            exec(compile(block, page, "exec", dont_inherit=True), names)
        if page in CHECKS:
            CHECKS[page](names, capsys.readouterr().out, place)


def check_python(names: dict[str, Any], shown: str, place: Path) -> None:
    lines = shown.splitlines()
    assert lines[0].startswith("<run: data photos/, method mixmatch, labels 20, seed 1, error ")
    assert lines[2] == "runs/photos/report.html"
    assert next(line for line in lines if line.startswith("Classifier(")) in TEXTS["docs/python.md"]
    assert str(mixmatch.load("runs/photos").predict(sorted(Path("new").iterdir()))) in lines
    assert Path("photos.onnx").exists()


def check_method(names: dict[str, Any], shown: str, place: Path) -> None:
    assert "% test error" in shown
    first = blocks(TEXTS["docs/adding-a-method.md"], "python")[0]
    method = first[first.index("@dataclass") :]
    assert len([line for line in method.splitlines() if line.strip()]) <= 35  # about thirty lines, as promised
    saved = RunFolder(Path("runs/longer")).load_checkpoint()
    assert saved is not None
    # Every row was counted each time it was seen; one at the end of an epoch and the start of the next counts once.
    assert saved.step == 80
    assert 80 * 64 - 5 < saved.method["times"].sum() <= 80 * 64
    assert names["record"]["method"] == "custom:TemporalEnsembling"
    assert names["record"]["settings"]["method_settings"]["weight"] == 10.0


def test_the_page_about_methods_names_all_that_a_method_may_say_and_gets() -> None:
    page = TEXTS["docs/adding-a-method.md"]
    said = [name for name in vars(Method) if not name.startswith("_")]
    assert [name for name in said if f"| `{name}" not in page] == []
    assert [name for name in Batch._fields if f"`batch.{name}`" not in page] == []


def check_tracking(names: dict[str, Any], shown: str, place: Path) -> None:
    assert re.search(r"best: mixmatch from step 0\nbest \d+\.\d %, last \d+\.\d %\n$", shown)
    assert list(place.glob("wandb/offline-run-*/*.wandb"))
    assert list(place.parent.glob("mlruns/*/*/params/lambda_u"))


CHECKS: dict[str, Callable[[dict[str, Any], str, Path], None]] = {
    "docs/python.md": check_python,
    "docs/adding-a-method.md": check_method,
    "docs/tracking.md": check_tracking,
}


def test_the_page_on_python_names_everything_public() -> None:
    apart = {"functional", "MixMatchClassifier", "LabeledKFold", "__version__"}  # have pages of their own
    missing = {name for name in mixmatch.__all__ if f"mixmatch.{name}(" not in TEXTS["docs/python.md"]}
    assert missing <= apart


def test_the_page_on_run_folders_names_what_is_in_one(world: Path) -> None:
    page, run = TEXTS["docs/run-folder.md"], world / "runs" / "photos"
    config, result = (json.loads((run / f"{name}.json").read_text()) for name in ("config", "result"))
    line = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    for name in {*config, *result, *line} - {"image_shape"}:  # of frozen features alone
        assert f"`{name}`" in page, name
    for path in run.iterdir():
        if not path.name.startswith("."):
            assert f"`{path.name.partition('.tfevents')[0]}" in page, path.name


def test_the_reference_has_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """The site's pages that are made from the code."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    reference = importlib.import_module("reference")
    names = {name for name in mixmatch.__all__ if callable(getattr(mixmatch, name))}
    assert names <= set(re.findall(r":: mixmatch\.(\w+)", reference.python()))
    page = reference.commands()
    for name, entry in COMMANDS.items():
        for path in [f"{name} {sub}" for sub in entry.commands] if isinstance(entry, Group) else [name]:
            assert f"\n## mixmatch {path}\n" in page
    section = page[page.index("## mixmatch pate label") : page.index("## mixmatch pate teachers")]
    assert "| `--max-epsilon` |" in section
    assert "`mixmatch pate label" not in section  # examples are a block
    for words in commands(page):
        ours = of_mixmatch(words)
        if ours is not None:
            parse(ours)


# ---------------------------------------------------------------- this file


def test_this_file_finds_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks above are worth something only if they fail where they should."""
    text = """
```console
$ MIXMATCH_OFFLINE=1 mixmatch train digits --labels 20 \\
    --out runs/x > log.txt && make run  # a comment
$ torchrun --nproc-per-node 2 -m mixmatch compare digits --seeds 1 2 3 | head
it's 3.1 %
```
```python
print(1)
```
"""
    assert blocks(text, "python") == ["print(1)\n"]
    first, second, third, _ = commands(text)
    assert second == ["make", "run"]
    assert of_mixmatch(first) == ["train", "digits", "--labels", "20", "--out", "runs/x"]
    assert of_mixmatch(third) == ["compare", "digits", "--seeds", "1", "2", "3"]
    parse(of_mixmatch(first) or [])
    for wrong in (["train", "digits", "--label", "20"], ["train", "digits", "--steps", "x"], ["trian"], ["train"]):
        with pytest.raises(Exception, match=r"(?i)no such|missing|must be a whole number"):
            parse(wrong)
    assert anchors("# What's `pate run`?\n## [A link](b.md), too") == {"whats-pate-run", "a-link-too"}
    assert resolves("mixmatch.functional.sharpen")
    assert not resolves("mixmatch.functional.blunt")
    monkeypatch.setitem(TEXTS, "README.md", "[x](docs/nowhere.md)")
    with pytest.raises(AssertionError, match=r"nowhere\.md"):
        test_links("README.md")

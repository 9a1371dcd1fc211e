"""What is released: built without a network, from the sdist, and used alone, away from the checkout."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_string
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import mixmatch

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DECLARED = {"core": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel made of what is in it and nothing else."""
    pytest.importorskip("hatchling", reason="hatchling is not installed: pip install -r requirements-dev.txt")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (source,) = (folder / "unpacked").iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=source)
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


def test_the_wheel_has_every_file_of_the_package(built: tuple[Path, Path]) -> None:
    _, wheel = built
    assert wheel.name == f"mixmatch-{mixmatch.__version__}-py3-none-any.whl"
    here = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src" / "mixmatch").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        there = {name for name in archive.namelist() if ".dist-info/" not in name}
        about = message_from_string(archive.read(f"mixmatch-{mixmatch.__version__}.dist-info/METADATA").decode())
    assert there == here
    assert set(about.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    assert about["License-Expression"] == "Apache-2.0"


def test_the_sdist_has_what_its_tests_need(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as archive:
        names = {Path(name).parts[1] for name in archive.getnames() if len(Path(name).parts) > 1}
    wanted = {"src", "tests", "docs", "examples", "benchmarks", "results", "Makefile", "requirements-dev.txt"}
    assert wanted | {"constraints.txt", "README.md", "CHANGELOG.md", "CITATION.cff", "LICENSE"} <= names


def test_it_works_when_installed_alone(built: tuple[Path, Path], tmp_path: Path) -> None:
    place = tmp_path / "site"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "--no-deps", "--no-index", "--no-compile", "--target", place, built[1], cwd=tmp_path)
    code = (
        "import mixmatch, sys; print(mixmatch.__file__, mixmatch.__version__)\n"
        "record = mixmatch.train('digits', labels=20, steps=2, batch_size=8, out='run', device='cpu')\n"
        "print(record['versions']['mixmatch'], len(mixmatch.load('run').classes))"
    )
    environment = {**os.environ, "PYTHONPATH": str(place), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    version = mixmatch.__version__
    assert done.stdout.splitlines() == [f"{place / 'mixmatch' / '__init__.py'} {version}", f"{version} 10"]
    shown = subprocess.run([place / "bin" / "mixmatch", "--version"], env=environment, capture_output=True, text=True)
    assert (shown.returncode, shown.stdout) == (0, f"{version}\n")


def named(requirement: str) -> str:
    return re.split(r"[\s>=<~!;\[]", requirement)[0].lower().replace("_", "-")


def imported() -> dict[str, str]:
    """The packages that the code imports, each with a file that does."""
    found = {}
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            found |= {name.partition(".")[0]: path.name for name in names}
    return {name: path for name, path in found.items() if name not in sys.stdlib_module_names | {"mixmatch"}}


def test_what_is_imported_is_declared() -> None:
    """Required, or in an extra. Triton comes with PyTorch on CUDA."""
    declared = {named(each) for group in DECLARED.values() for each in group}
    provided = packages_distributions()
    for module, path in imported().items():
        by = {name.lower().replace("_", "-") for name in provided.get(module, [module])}
        assert by & declared or module == "triton", f"{path} imports {module}, of {by}, which no requirement names"


def test_the_extra_all_has_every_other() -> None:
    (everything,) = DECLARED["all"]
    assert set(re.findall(r"[\w-]+", everything)) - {"mixmatch"} == DECLARED.keys() - {"core", "all"}


def test_every_extra_that_is_mentioned_exists() -> None:
    texts = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"]
    for path in texts:
        for names in re.findall(r"pip install '?mixmatch\\?\[([\w,-]+)\\?\]", path.read_text()):
            assert set(names.split(",")) <= DECLARED.keys() - {"core"}, (path, names)


def test_one_version_everywhere() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.search(r"^version: (.*)$", citation, re.MULTILINE)[1] == mixmatch.__version__  # type: ignore[index]
    released = re.search(r"^date-released: (.*)$", citation, re.MULTILINE)[1]  # type: ignore[index]
    assert f"## {mixmatch.__version__} ({released})" in (ROOT / "CHANGELOG.md").read_text()


def test_the_workflow_calls_make() -> None:
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = [step["run"].split()[1] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert set(called) == {"test", "docs"} <= targets
    for path in [*(ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"), ROOT / ".pre-commit-config.yaml"]:
        assert yaml.safe_load(path.read_text())

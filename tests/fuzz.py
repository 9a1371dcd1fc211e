"""Attack the program with damaged and hostile files: run folders, images, tables, arrays, ledgers, labels, and what
drivers and workers leave for each other.

python tests/fuzz.py [--seconds 300 | --cases N] [--seed S] [--kind folder]

Each case changes real files as its seed says and runs a command on them in a process of its own. It must end within a
minute and 4 GiB with success or with one line that begins with "error:", load no pickle and change no file outside its
folders. What does not is printed with its seed, which does it again: `--seed S --cases 1`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import forks
import fuzz_execution
import fuzz_labels
import mutate

SECONDS = 60
MEMORY = 4 * 2**30
UNPICKLED = 99
RUN = {"steps": 4, "eval_every": 2, "checkpoint_every": 2, "batch_size": 8, "device": "cpu"}
FOLDERS = Path(__file__).parent / "fixtures" / "run_folders"
Command = list[object]
"""The words of a command, or a function and its arguments."""


class Materials:
    """Real files to start from, made once."""

    def __init__(self, folder: Path) -> None:
        from PIL import Image

        self.folder = folder
        rng = np.random.default_rng(0)
        images = rng.integers(0, 255, (12, 8, 8), np.uint8)
        for number, image in enumerate(images):
            kind = ("png", "jpg", "gif", "bmp", "tiff", "webp")[number % 6]
            place = folder / "photos" / ("cat", "dog")[number % 2]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.kron(image, np.ones((4, 4), np.uint8))).save(place / f"{number}.{kind}")
        Image.fromarray(images[0]).save(folder / "digit.png")
        labels = np.arange(12) % 2
        (folder / "arrays").mkdir()
        np.savez(folder / "arrays" / "plain.npz", x=images, y=labels)
        np.savez_compressed(folder / "arrays" / "packed.npz", x=images, y=labels)
        np.savez(folder / "arrays" / "rows.npz", x=rng.standard_normal((12, 5)), y=np.where(labels, "a", "b"))
        (folder / "tables").mkdir()
        shutil.copy(FOLDERS / "rows.csv", folder / "tables" / "rows.csv")
        with contextlib.suppress(ImportError):
            import pyarrow as pa
            import pyarrow.parquet as pq

            pq.write_table(
                pa.table({"a": rng.standard_normal(12), "label": ["x", "y"] * 6}), folder / "tables/t.parquet"
            )
        (folder / "votes").mkdir()
        votes = np.eye(10, dtype=np.int64)[rng.integers(0, 10, 20)] * 200 + 5
        np.save(folder / "votes" / "votes.npy", votes)
        label = ["--threshold", 100, "--sigma1", 40, "--sigma2", 20, "--delta", 1e-5, "--seed", 1, "--queries", 5]
        self.label = ["pate", "label", *label]
        command = [*self.label, "--votes", folder / "votes" / "votes.npy", "--output", folder / "votes" / "a.json"]

        def work() -> None:
            import mixmatch

            mixmatch.train("digits", out=folder / "runs" / "finished", **RUN)
            forks.command(*command)
            forks.command("data", "check", folder / "tables" / "rows.csv")
            forks.command("report", folder / "runs" / "finished")
            fuzz_labels.make(shutil.copytree(folder / "photos", folder / "labeled"), folder / "runs" / "finished")
            fuzz_execution.make(folder, folder / "photos", folder / "runs" / "finished")
            forks.command(*fuzz_execution.TUNE, "--out", folder / "sweep", "--trials", 2)
            (folder / "modules").write_text("\n".join(sys.modules))

        self.ended = forked(work, folder / "out.txt", SECONDS)
        assert self.ended == 0, (folder / "out.txt").read_text()
        for name in (folder / "modules").read_text().split():  # so that no case imports them again
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        stopped = shutil.copytree(folder / "runs" / "finished", folder / "runs" / "stopped")
        for name in ("result.json", "model.safetensors", "report.html", "label-next.csv"):
            (stopped / name).unlink(missing_ok=True)
        shutil.copytree(FOLDERS / "table-mixmatch", folder / "runs" / "table")


Case = Callable[[Materials, Path, random.Random], Command]


# ---------------------------------------------------------------- cases


def folder_case(made: Materials, here: Path, rng: random.Random) -> Command:
    name = rng.choice(["finished", "finished", "stopped", "stopped", "table"])
    run = shutil.copytree(made.folder / "runs" / name, here / "run")
    if rng.random() < 0.15:
        place = rng.choice([run / "checkpoint", run / "checkpoint" / "step-00000004", run / "baseline", run / ".lock"])
        if place.is_dir():
            shutil.rmtree(place)
        place.unlink(missing_ok=True)
        if place.parent.is_dir():
            place.symlink_to(here.parent / "outside")
    files = sorted(path for path in run.rglob("*") if path.is_file() and not path.name.startswith("events"))
    for path in rng.sample(files, min(len(files), rng.choice([1, 1, 1, 2, 4]))):
        mutate.change_file(path, rng, here.parent / "outside")
    resume: Command = ["train", "digits", "--resume", "--out", run, "--quiet"]
    if name == "table":
        return rng.choice([["evaluate", run], ["predict", run, made.folder / "tables" / "rows.csv"], ["report", run]])
    return rng.choice(
        [
            resume,
            resume,
            [*resume, "--steps", "6"],
            [*resume, "--checkpoint", "step-00000002"],
            ["evaluate", run],
            ["report", run],
            ["predict", run, made.folder / "digit.png"],
            ["export", run, "--format", "safetensors", "--output", here / "model.safetensors"],
            ["results", "--curve", run, "--output", here / "curve.svg"],
            ["results", "--results", run],
            ["train", "digits", "--config", run / "config.json", "--out", here / "new", "--steps", "2", "--quiet"],
        ]
    )


def image_case(made: Materials, here: Path, rng: random.Random) -> Command:
    photos = shutil.copytree(made.folder / "photos", here / "photos")
    files = sorted(path for path in photos.rglob("*") if path.is_file())
    for path in rng.sample(files, rng.choice([1, 3, len(files)])):
        mutate.change_file(path, rng, here.parent / "outside")
    one: Command = ["predict", made.folder / "runs" / "finished", photos]
    return rng.choice([["data", "check", photos], one])


def table_case(made: Materials, here: Path, rng: random.Random) -> Command:
    source = rng.choice(sorted((made.folder / "tables").iterdir()))
    path = Path(shutil.copy(source, here / source.name))
    mutate.change_file(path, rng, here.parent / "outside")
    predict: Command = ["predict", made.folder / "runs" / "table", path, "--output", here / "out.csv"]
    return rng.choice([["data", "check", path], predict])


def array_case(made: Materials, here: Path, rng: random.Random) -> Command:
    source = rng.choice(sorted((made.folder / "arrays").iterdir()))
    path = Path(shutil.copy(source, here / source.name))
    mutate.change_file(path, rng, here.parent / "outside")
    return ["data", "check", path]


def ledger_case(made: Materials, here: Path, rng: random.Random) -> Command:
    votes = shutil.copytree(made.folder / "votes", here / "votes")
    path = rng.choice(sorted(path for path in votes.iterdir() if path.name != "a.json"))
    mutate.change_file(path, rng, here.parent / "outside")
    return [*made.label, "--votes", votes / "votes.npy", "--output", here / "answers.json", "--queries", "8"]


def label_case(made: Materials, here: Path, rng: random.Random) -> Command:
    photos = shutil.copytree(made.folder / "labeled", here / "photos")
    fuzz_labels.change(photos, rng, here.parent / "outside")
    return [fuzz_labels.session, photos, rng.random() < 0.05]


def executed(case: Callable[[Path, Path, random.Random, Path], Command]) -> Case:
    return lambda made, here, rng: case(made.folder, here, rng, here.parent / "outside")


KINDS: dict[str, Case] = {
    "folder": folder_case, "image": image_case, "table": table_case, "array": array_case, "ledger": ledger_case,
    "label": label_case, **{kind: executed(case) for kind, case in fuzz_execution.CASES.items()},
}  # fmt: skip


# ---------------------------------------------------------------- running


def forked(work: Callable[[], object], output: Path, seconds: float) -> int:
    """Do something in a process of its own, with what it prints in a file; its exit status, negative for a signal."""
    child, end = forks.fork(work, output), time.monotonic() + seconds
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.005)


def guarded(command: Command, here: Path) -> None:
    """Run a command where memory is bounded and no pickle can be loaded."""
    import pickle

    import torch

    def refuse(*_: Any, **__: Any) -> Any:
        os._exit(UNPICKLED)

    for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")):
        setattr(module, name, refuse)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    os.chdir(here)
    function, *arguments = command
    if not callable(function):
        forks.command(*command)
        return
    from mixmatch.errors import MixMatchError

    try:
        function(*arguments)
    except MixMatchError as error:  # as it ends a command
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def attempt(kind: str, seed: int, made: Materials, folder: Path) -> str | None:
    """Do one case; what is wrong with how it ended."""
    rng = random.Random(seed)
    outside, here = folder / "outside", folder / "case"
    for place in (outside, here):
        shutil.rmtree(place, ignore_errors=True)
    (outside / "step-00000001").mkdir(parents=True)
    (outside / "diary.txt").write_text("mine")
    (outside / "step-00000001" / "state.json").write_text("{}")
    before, here_path = _content(outside), here
    here_path.mkdir()
    command = KINDS[kind](made, here, rng)
    output = folder / "output.txt"
    code = forked(lambda: guarded(command, here), output, SECONDS)
    said = output.read_text(errors="replace")
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    wrong = None
    if code == UNPICKLED:
        wrong = "it loaded a pickle"
    elif code < 0:
        wrong = f"it ended by signal {-code}" + (f" after {SECONDS} s" if code == -signal.SIGKILL else "")
    elif "Traceback" in said or code not in (0, 1, 2):  # 1: some files were left out
        wrong = f"it ended with {code} and a traceback: {' | '.join(said.strip().splitlines()[-3:])}"
    elif code == 2 and len(errors) != 1:
        wrong = f"it ended with 2 and {len(errors)} lines of error"
    if _content(outside) != before:
        wrong = "it changed a file outside"
    words = (getattr(word, "__name__", str(word)) for word in command)
    return None if wrong is None else f"{kind} {seed}: {' '.join(words)}: {wrong}"


def _content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in sorted(folder.rglob("*"))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300, help="how long to go on")
    parser.add_argument("--cases", type=int, help="how many cases to do, however long it takes")
    parser.add_argument("--seed", type=int, help="of the first case (default: a new one each time)")
    parser.add_argument("--kind", choices=[*KINDS], action="append")
    options = parser.parse_args()
    first = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    kinds = options.kind or [*KINDS]
    wrong: list[str] = []
    done: dict[str, int] = dict.fromkeys(kinds, 0)
    os.environ |= {"MIXMATCH_OFFLINE": "1", "COLUMNS": "200"}
    with tempfile.TemporaryDirectory(prefix="mixmatch-fuzz-") as name:
        folder = Path(name)
        (folder / "materials").mkdir()
        made = Materials(folder / "materials")
        print(f"seeds from {first}, in {name}", flush=True)
        end, seed = time.monotonic() + options.seconds, first
        while (seed < first + options.cases) if options.cases else (time.monotonic() < end):
            kind = kinds[seed % len(kinds)] if len(kinds) < len(KINDS) else _weighted(seed)
            problem = attempt(kind, seed, made, folder)
            done[kind] += 1
            if problem is not None:
                print(problem, flush=True)
                wrong.append(problem)
            seed += 1
    said = ", ".join(f"{count} {kind}" for kind, count in done.items())
    print(json.dumps({"cases": sum(done.values()), "wrong": len(wrong), **done}))
    print(f"{'WRONG' if wrong else 'GOOD'}: {len(wrong)} of {sum(done.values())} cases ({said})")
    sys.exit(bool(wrong))


def _weighted(seed: int) -> str:
    """Half of the cases are run folders, of which there is most to get wrong."""
    return ("folder", [*KINDS][1 + seed // 2 % (len(KINDS) - 1)])[seed % 2]


if __name__ == "__main__":
    main()

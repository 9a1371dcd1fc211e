"""Attack the program with damaged and hostile files: run folders, images, tables, arrays, ledgers, labels, and what
drivers and workers leave for each other.

python tests/fuzz.py [--seconds 300 | --cases N] [--seed S] [--kind folder]

Each case changes real files as its seed says and runs a command on them in a process of its own. It must end within a
minute and 4 GiB with success or with one line that begins with "error:", load no pickle, run no other program, write
nothing outside its folders, print no control characters, and not use a model that is not the one its run wrote. What
does not is printed with its seed, which does it again: `--seed S --cases 1`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import re
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
UNPICKLED, OUTSIDE = 99, 98
FULL = "this machine has too little memory"
"""Only a stranger's settings may ask for as much: they are those of a large network."""
PROGRAMS = ("git", sys.executable)
"""What is run: git for the commit of a record, and Python to decode thumbnails."""
RUN = {"steps": 4, "eval_every": 2, "checkpoint_every": 2, "batch_size": 8, "device": "cpu"}
FOLDERS = Path(__file__).parent / "fixtures" / "run_folders"
SUFFIXES = ("png", "jpg", "gif", "bmp", "tiff", "webp", "avif", "heic")
Command = list[object]
"""The words of a command, or a function and its arguments."""


class Materials:
    """Real files to start from, made once."""

    def __init__(self, folder: Path) -> None:
        from PIL import Image
        from pillow_heif import register_heif_opener

        register_heif_opener()
        self.folder = folder
        rng = np.random.default_rng(0)
        images = rng.integers(0, 255, (12, 8, 8), np.uint8)
        for number, image in enumerate(images):
            kind = SUFFIXES[number % len(SUFFIXES)]
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
            mixmatch.train(folder / "tables" / "rows.csv", out=folder / "runs" / "rows", baseline=False, **RUN)
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
        half = shutil.copytree(folder / "runs" / "rows", folder / "runs" / "half")
        for name in ("result.json", "model.safetensors", "report.html"):
            (half / name).unlink()


Case = Callable[[Materials, Path, random.Random], Command]


# ---------------------------------------------------------------- cases


def folder_case(made: Materials, here: Path, rng: random.Random) -> Command:
    name = rng.choice(["finished", "finished", "stopped", "stopped", "rows", "half"])
    run = shutil.copytree(made.folder / "runs" / name, here / "run")
    if rng.random() < 0.15:
        inner = ("step-00000004", "step-00000002", ".writing", ".replaced", ".removing-1")
        place = rng.choice([run / name for name in ("checkpoint", "baseline", ".lock", ".end")])
        place = rng.choice([place, run / "checkpoint" / rng.choice(inner)])
        if place.is_dir():
            shutil.rmtree(place)
        place.unlink(missing_ok=True)
        if place.parent.is_dir() and rng.random() < 0.3:
            os.mkfifo(place)
        elif place.parent.is_dir():
            place.symlink_to(here.parent / "outside")
    files = sorted(path for path in run.rglob("*") if path.is_file() and not path.name.startswith("events"))
    for path in rng.sample(files, min(len(files), rng.choice([1, 1, 1, 2, 4]))):
        mutate.change_file(path, rng, here.parent / "outside")
    resume: Command = ["train", "digits", "--resume", "--out", run, "--quiet"]
    if name in ("rows", "half"):
        rows = made.folder / "tables" / "rows.csv"
        again: Command = ["train", rows, "--resume", "--out", run, "--quiet", "--no-baseline"]
        return rng.choice([["evaluate", run], ["predict", run, rows], ["report", run], again, [*again, "--steps", "6"]])
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
    watch(here, here.parent / "cache")
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


def watch(*folders: Path) -> None:
    """End this process where it writes outside of these folders, runs a program, or speaks to another machine."""
    places = [*(folder.resolve() for folder in folders), Path("/dev"), Path("/proc")]
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
    at = {"os.remove": 0, "os.rmdir": 0, "os.mkdir": 0, "os.chmod": 0, "os.rename": 1, "os.link": 1, "os.symlink": 1}

    def inside(path: Any) -> bool:
        given = Path(os.fsdecode(path)).absolute()
        real = given.parent.resolve() / given.name
        return any(real.is_relative_to(place) for place in places)

    def look(event: str, values: tuple[Any, ...]) -> None:
        path = values[0] if event == "open" and values[2] & writing else values[at[event]] if event in at else 0
        ran = event == "subprocess.Popen" and os.fsdecode(values[0]) not in PROGRAMS
        if (not isinstance(path, int) and not inside(path)) or ran or event in ("os.system", "socket.connect"):
            os.write(2, f"it did what it may not: {event} {values[:2]}\n".encode(errors="replace"))
            os._exit(OUTSIDE)

    sys.addaudithook(look)


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
    elif code == OUTSIDE:
        wrong = said.strip().splitlines()[-1]
    elif code < 0:
        wrong = f"it ended by signal {-code}" + (f" after {SECONDS} s" if code == -signal.SIGKILL else "")
    elif "Traceback" in said or code not in (0, 1, 2):  # 1: some files were left out
        wrong = f"it ended with {code} and a traceback: {' | '.join(said.strip().splitlines()[-3:])}"
    elif code == 2 and len(errors) != 1:
        wrong = f"it ended with 2 and {len(errors)} lines of error"
    elif code == 1 and command[0] not in ("predict", "data"):
        wrong = "it ended with 1"
    elif FULL in said and kind not in ("folder", "driver", "sweep"):
        wrong = "it filled the memory"
    elif re.search(r"[^\n\r\t -~\x80-\U0010ffff]|[\x80-\x9f]", said) and kind not in ("predictions", "shards"):
        wrong = "it printed control characters"
    elif code == 0 and kind == "folder" and command[0] in ("predict", "evaluate", "export") and believed(made, here):
        wrong = "it used a model that is not the one its run wrote"
    if _content(outside) != before:
        wrong = "it changed a file outside"
    words = (getattr(word, "__name__", str(word)) for word in command)
    return None if wrong is None else f"{kind} {seed}: {' '.join(words)}: {wrong}"


def believed(made: Materials, here: Path) -> bool:
    """Whether a finished run has a model other than the one in its record."""
    result, model = here / "run" / "result.json", here / "run" / "model.safetensors"
    for name in ("finished", "rows"):
        original = made.folder / "runs" / name
        if _same(result, original / result.name):
            return not _same(model, original / model.name)
    return False


def _same(path: Path, other: Path) -> bool:
    plain = path.is_file() and not path.is_symlink() and path.stat().st_size == other.stat().st_size
    return plain and path.read_bytes() == other.read_bytes()


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
        os.environ |= dict.fromkeys(("XDG_CACHE_HOME", "TMPDIR", "MIXMATCH_DATA"), str(folder / "cache"))
        (folder / "cache").mkdir()
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

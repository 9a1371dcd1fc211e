"""Kill a run many times at random moments, resume it each time, and compare it with one that was left alone.

python tests/soak.py --kills 20 [--seed S]

The moments are spread over the whole life of the process: start-up, steps, evaluations, checkpoints being written.
Processes are forked from one that has everything imported, so that a thousand kills take minutes.
Ends with 0 only if the two runs are equal bit for bit (but for the clock).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from forks import command, fork

ARGUMENTS = ["digits", "--eval-every", "10", "--checkpoint-every", "5", "--quiet", "--json"]
PATIENCE = 120.0
"""Seconds after which a process that makes no progress has failed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, help="of the run (default: 3 for each kill, and at least 600)")
    parser.add_argument("--seed", type=int, help="of the moments (default: a new one each time)")
    options = parser.parse_args()
    steps = options.steps or max(600, 3 * options.kills)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    folder = Path(tempfile.mkdtemp(prefix="mixmatch-soak-"))
    print(f"{options.kills} kills with seed {seed}, {steps} steps, in {folder}", flush=True)
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MIXMATCH_OFFLINE": "1"}  # before torch is imported
    warm(folder)
    problems = soak(folder, options.kills, steps, random.Random(seed))
    if problems:
        print(f"DIFFERENT after kills with seed {seed}: {'; '.join(problems)} (both runs are kept in {folder})")
        sys.exit(1)
    shutil.rmtree(folder)


def soak(folder: Path, kills: int, steps: int, rng: random.Random) -> list[str]:
    """Do both runs; what differs between them."""
    reference, killed = folder / "left-alone", folder / "killed"
    began = time.monotonic()
    process = Process(reference, steps)
    said = process.wait()
    if process.returncode:
        return [f"the run that was left alone ended with {process.returncode}: {said.strip()}"]
    training = float(json.loads((reference / "result.json").read_text())["seconds"])
    startup = time.monotonic() - began - training
    print(f"left alone: {startup:.1f} s to start, {training:.1f} s to train", flush=True)

    began = time.monotonic()
    done, best, in_vain = 0, 0, 0
    seen: dict[str, int] = {}
    while done < kills:
        # Some die while starting, some while writing a checkpoint, the others anywhere: but all before the end.
        allowance = 2 * (steps - best) / (kills - done + 2)
        kind = rng.choices(("starting", "writing", "any"), (1, 1, 2))[0]
        life = rng.uniform(0, startup) if kind == "starting" else startup + rng.uniform(0, allowance) / steps * training
        left_over = half_written(killed)
        process = Process(killed, steps)
        moment = time.monotonic() + life
        if in_vain >= 3:  # the guard: no more deaths in vain until there is a newer checkpoint
            patience = time.monotonic() + PATIENCE
            while newest(killed) <= best and process.poll() is None and time.monotonic() < patience:
                time.sleep(0.002)
            if newest(killed) <= best and process.poll() is None:
                process.kill()
                return [f"no progress beyond step {best} in {PATIENCE:.0f} s"]
            moment = time.monotonic() + rng.uniform(0, 0.3)
        while process.poll() is None and time.monotonic() < moment and newest(killed) < best + allowance:
            time.sleep(0.001)
        while kind == "writing" and process.poll() is None and half_written(killed) in (0, left_over):
            time.sleep(0.0005)
        if process.poll() is not None:
            said = process.wait()
            if process.returncode:
                return [f"after {done} kills the run ended with {process.returncode}: {said.strip()}"]
            print(f"the run was finished after {done} kills", flush=True)
            break
        process.kill()
        process.wait()
        done += 1
        step, phase = newest(killed), where(killed, best, left_over)
        seen[phase] = seen.get(phase, 0) + 1
        in_vain = in_vain + 1 if step <= best else 0
        best = max(best, step)
        spent = time.monotonic() - began
        left = spent / done * (kills - done) + startup + (steps - best) / steps * training
        print(f"kill {done:>3}/{kills}  saved step {step:>4}/{steps}  in {phase:<24} {clock(left)} left", flush=True)

    process = Process(killed, steps)
    said = process.wait()
    if process.returncode:
        return [f"the last resumed run ended with {process.returncode}: {said.strip()}"]
    problems = differences(reference, killed)
    if not problems:
        phases = ", ".join(f"{count} in {phase}" for phase, count in sorted(seen.items()))
        print(f"EQUAL: killed {done} times ({phases}) and bit for bit what the run left alone is")
    return problems


class Process:
    """A run in a process that is forked from this one, which has everything imported: a start takes no seconds."""

    def __init__(self, folder: Path, steps: int) -> None:
        self.output = folder.with_suffix(".output")
        self.returncode: int | None = None
        words = ["train", *ARGUMENTS, "--steps", steps, "--out", folder, "--resume"]
        self.pid = fork(lambda: command(*words), self.output)

    def poll(self) -> int | None:
        """Its exit status once it has ended, negative for a signal."""
        if self.returncode is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if done else None
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> str:
        """What it has printed, when it has ended."""
        while self.poll() is None:
            time.sleep(0.002)
        return self.output.read_text()


def warm(folder: Path) -> None:
    """Import what training imports, without training: a process that has trained cannot be forked."""
    modules = folder / "modules"

    def work() -> None:
        command("train", *ARGUMENTS, "--steps", 1, "--out", folder / "warm")
        modules.write_text("\n".join(sys.modules))

    os.waitpid(fork(work, folder / "warm.output"), 0)
    for name in modules.read_text().split():
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def newest(folder: Path) -> int:
    """The step of the newest checkpoint, 0 before the first."""
    return max((int(path.name[5:]) for path in (folder / "checkpoint").glob("step-*")), default=0)


def half_written(folder: Path) -> int:
    """Tells one checkpoint that is being written from another; 0 if none is."""
    try:
        return (folder / "checkpoint/.writing").stat().st_ctime_ns
    except FileNotFoundError:
        return 0


def where(folder: Path, before: int, left_over: int) -> str:
    """What the process was about when it died, as far as its folder tells."""
    if (folder / "result.json").exists():
        return "the end"
    if half_written(folder) not in (0, left_over):
        return "writing a checkpoint"
    if newest(folder) > before:
        return "training"
    return "start-up or first steps"


def differences(a: Path, b: Path) -> list[str]:
    """What two finished runs differ in, the clock aside."""
    files = ["model.safetensors", *(str(f.relative_to(a)) for f in sorted(a.glob("checkpoint/*/*.safetensors")))]
    found = [f for f in files if not (b / f).exists() or (a / f).read_bytes() != (b / f).read_bytes()]
    found += [
        name for name in ("metrics.jsonl", "result.json", "config.json") if timeless(a / name) != timeless(b / name)
    ]
    names = [sorted(path.name for path in (folder / "checkpoint").iterdir()) for folder in (a, b)]
    return found + ([f"checkpoints {names[0]} and {names[1]}"] if names[0] != names[1] else [])


def timeless(path: Path) -> list[dict[str, Any]]:
    """A file's JSON objects without their seconds, and the hashes of files that hold seconds."""
    text = path.read_text()
    objects = map(json.loads, text.splitlines() if path.suffix == ".jsonl" else [text])
    return [
        {name: value for name, value in content.items() if name not in ("seconds", "sha256")} for content in objects
    ]


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


if __name__ == "__main__":
    main()

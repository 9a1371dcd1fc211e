"""Kill what several processes do, many times at random moments, start it again each time, and compare it with what was
left alone.

python tests/soak_many.py --way processes|driver [--kills 30] [--seed S]

The ways: `processes` is one run over two processes that reach each other by gloo, as torchrun starts them; one or both
die. `driver` is a list of runs that a driver has done by two workers; the driver dies, or a worker, or all of them, as
with their machine. Ends with 0 only if all runs are equal bit for bit (but for the clock).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from forks import command, fork
from soak import clock, differences, newest, warm

PATIENCE = 120.0
"""Seconds after which processes that make no progress have failed."""

ALONE = 20.0
"""Seconds that the others have to end by themselves when one died; then they are killed, as torchrun does it."""


class Way(ABC):
    """Something that several processes do in a folder."""

    deaths: Sequence[str]
    """Who may be killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pids: list[int] = []
        self.codes: dict[int, int] = {}

    @abstractmethod
    def start(self) -> None:
        """Begin or resume."""

    @abstractmethod
    def kill(self, who: str, rng: random.Random) -> None: ...

    @property
    @abstractmethod
    def runs(self) -> list[Path]: ...

    @property
    @abstractmethod
    def steps(self) -> int:
        """Of all runs."""

    def saved(self) -> int:
        """How many steps the newest checkpoints have."""
        return sum(map(newest, self.runs))

    def fork(self, work: Callable[[], object]) -> None:
        """Do something in a process that has everything imported."""
        self.pids.append(fork(work, self.folder.with_suffix(".output"), append=True))

    def alive(self) -> list[int]:
        for pid in [pid for pid in self.pids if pid not in self.codes]:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self.codes[pid] = os.waitstatus_to_exitcode(status)
        return [pid for pid in self.pids if pid not in self.codes]

    def wait(self, seconds: float) -> bool:
        """Whether all processes have ended by then."""
        end = time.monotonic() + seconds
        while self.alive() and time.monotonic() < end:
            time.sleep(0.005)
        return not self.alive()

    def end(self) -> bool:
        """Wait until they end by themselves, or kill them; whether they did."""
        alone = self.wait(ALONE)
        for pid in self.alive():
            os.kill(pid, signal.SIGKILL)
        self.wait(PATIENCE)
        return alone


class Processes(Way):
    """One run over two processes."""

    deaths = ("the first", "the second", "both")
    arguments = ("digits", "--groups", 2, "--eval-every", 10, "--checkpoint-every", 5, "--batch-size", 8, "--quiet")
    steps = 300

    @property
    def runs(self) -> list[Path]:
        return [self.folder]

    def start(self) -> None:
        self.pids, self.codes = [], {}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        for rank in ("0", "1"):
            self.fork(lambda rank=rank: self.train(rank, port))

    def train(self, rank: str, port: int) -> None:
        os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        command("train", *self.arguments, "--steps", self.steps, "--out", self.folder, "--resume")

    def kill(self, who: str, rng: random.Random) -> None:
        for pid, name in zip(self.pids, self.deaths, strict=False):
            if who in (name, "both") and pid in self.alive():
                os.kill(pid, signal.SIGKILL)


class Driver(Way):
    """Four runs, by a driver with two workers."""

    deaths = ("the driver", "a worker", "all")
    seeds, each = (1, 2, 3, 4), 150

    @property
    def runs(self) -> list[Path]:
        return [self.folder / f"seed-{seed}" for seed in self.seeds]

    @property
    def steps(self) -> int:
        return len(self.seeds) * self.each

    def start(self) -> None:
        self.pids, self.codes = [], {}
        self.fork(self.drive)

    def drive(self) -> int:
        from mixmatch.execution.executor import Here
        from mixmatch.training.plan import plan

        given = {"steps": self.each, "eval_every": 10, "batch_size": 8}
        options: dict[str, Any] = {"resume": True, "device": "cpu", "checkpoint_every": 5}
        work = [
            plan("digits", {**given, "seed": seed}, out=out, **options)
            for seed, out in zip(self.seeds, self.runs, strict=True)
        ]
        outcomes = dict(Here(devices=["cpu", "cpu"]).run(work))
        for number, outcome in outcomes.items():
            if isinstance(outcome, Exception):
                print(f"run {number}: {outcome}", file=sys.stderr)
        return int(any(isinstance(outcome, Exception) for outcome in outcomes.values()))

    def workers(self) -> list[int]:
        (driver,) = self.pids
        with contextlib.suppress(OSError):
            tasks = Path(f"/proc/{driver}/task").iterdir()
            return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
        return []

    def kill(self, who: str, rng: random.Random) -> None:
        workers = self.workers()
        doomed = list(self.pids) if who != "a worker" else []
        doomed += workers if who == "all" else rng.sample(workers, 1) if who == "a worker" and workers else []
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if who == "a worker":  # the driver would have the others' work done first
            time.sleep(rng.uniform(0, 1))
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pids[0], signal.SIGTERM)
        end = time.monotonic() + PATIENCE
        while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < end:
            self.alive()
            time.sleep(0.01)  # they save what they are at, and end


WAYS: dict[str, type[Way]] = {"processes": Processes, "driver": Driver}


def soak(way: type[Way], folder: Path, kills: int, rng: random.Random) -> list[str]:
    """Do it twice; what differs."""
    reference, killed = way(folder / "left-alone"), way(folder / "killed")
    began = time.monotonic()
    reference.start()
    while reference.alive() and not reference.saved():
        time.sleep(0.01)
    startup = time.monotonic() - began
    if not reference.wait(10 * PATIENCE) or any(reference.codes.values()):
        return [f"what was left alone ended with {reference.codes}"]
    training = time.monotonic() - began - startup
    print(f"left alone: {startup:.1f} s to the first checkpoint, {training:.1f} s to the end", flush=True)

    began, done, best, in_vain = time.monotonic(), 0, 0, 0
    seen: dict[str, int] = {}
    while done < kills:
        killed.start()
        if in_vain >= 3:  # no more deaths in vain until there is a newer checkpoint
            end = time.monotonic() + PATIENCE
            while killed.saved() <= best and killed.alive() and time.monotonic() < end:
                time.sleep(0.002)
            life = rng.uniform(0, 0.3)
        elif rng.random() < 0.25:
            life = rng.uniform(0, startup)
        else:
            life = startup + rng.uniform(0, 2) * (killed.steps - best) / (kills - done + 2) / killed.steps * training
        end, allowance = time.monotonic() + life, best + 2 * (killed.steps - best) / (kills - done + 2)
        while time.monotonic() < end and killed.alive() and killed.saved() < allowance:
            time.sleep(0.002)
        if not killed.alive():
            if any(killed.codes.values()):
                return [f"after {done} kills it ended with {killed.codes}: see {killed.folder.with_suffix('.output')}"]
            print(f"it was finished after {done} kills", flush=True)
            break
        who = rng.choice(way.deaths)
        killed.kill(who, rng)
        how = "" if killed.end() else ", the others had to be killed"
        done += 1
        step = killed.saved()
        in_vain, best = in_vain + 1 if step <= best else 0, max(best, step)
        seen[who] = seen.get(who, 0) + 1
        left = (time.monotonic() - began) / done * (kills - done)
        print(
            f"kill {done:>3}/{kills}  saved {step:>4}/{killed.steps} steps  {who} died{how}  {clock(left)} left",
            flush=True,
        )

    killed.start()
    if not killed.wait(10 * PATIENCE) or any(killed.codes.values()):
        return [f"what was resumed last ended with {killed.codes}: see {killed.folder.with_suffix('.output')}"]
    for run in (*reference.runs, *killed.runs):  # the last is the same: who is asked to stop saves where it is
        for older in sorted((run / "checkpoint").iterdir())[:-1]:
            shutil.rmtree(older)
    pairs = zip(reference.runs, killed.runs, strict=True)
    problems = [f"{b.name}: {problem}" for a, b in pairs for problem in differences(a, b)]
    if not problems:
        whom = ", ".join(f"{count} times {who}" for who, count in sorted(seen.items()))
        print(f"EQUAL: killed {done} times ({whom}) and bit for bit what was left alone is")
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--way", choices=[*WAYS], required=True)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, help="of the moments (default: a new one each time)")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    folder = Path(tempfile.mkdtemp(prefix="mixmatch-soak-"))
    print(f"{options.way}: {options.kills} kills with seed {seed}, in {folder}", flush=True)
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MIXMATCH_OFFLINE": "1"}  # before torch is imported
    warm(folder)
    problems = soak(WAYS[options.way], folder, options.kills, random.Random(seed))
    if problems:
        print(f"DIFFERENT after kills with seed {seed}: {'; '.join(problems)} (all is kept in {folder})")
        sys.exit(1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()

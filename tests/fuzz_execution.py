"""For `fuzz.py`: the folders in which drivers and workers meet, on one machine or on many, and those who read them.

What a driver leaves for its workers and they for it are files: the plan of predictions and its lists, shards of
decoded images, the journal of a sweep, run folders with their attempts. The same functions read them here as on a Ray
cluster; Ray itself and torchrun are not started for a case, which would take seconds.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import mutate

RUN: dict[str, Any] = {"steps": 4, "eval_every": 2, "batch_size": 8, "labels": 20, "device": "cpu"}
METHODS = ("supervised", "mixup")
TUNE = [
    "tune", "digits", "--only", "--search", "learning_rate=0.001..0.01:log", "weight_decay=0,0.01", "--method",
    "supervised", "--labels", 20, "--steps", 4, "--eval-every", 2, "--batch-size", 4, "--device", "cpu", "--quiet",
]  # fmt: skip
Command = list[object]


def make(folder: Path, photos: Path, run: Path) -> None:
    """Let the commands leave what a case changes."""
    from mixmatch.cli import main  # noqa: F401  all commands, once
    from mixmatch.predict.shards import predict_shards

    shard_again(photos, folder / "shards")
    predict_shards(run, photos, folder / "classes", shard_size=5, device="cpu")
    compare_elsewhere(folder / "compared")
    stopped = folder / "compared" / f"{METHODS[1]}-seed1"
    for name in ("result.json", "model.safetensors"):
        (stopped / name).unlink()


def shard_again(photos: Path, out: Path) -> None:
    """`mixmatch data shard` with its processes in this one."""
    from mixmatch.data.user import shards

    order, count, _ = shards.begin(photos, out, None, None, 5)
    for number in range(count):
        shards.decode_shard(order, number)
    shards.finish(out, count)
    list(shards.unreadable_files(out, count))


def compare_elsewhere(out: Path) -> None:
    """`mixmatch compare --ray` with the worker in this process: orders and answers travel as JSON, runs are followed by
    their folders."""
    from mixmatch.execution import worker
    from mixmatch.execution.elsewhere import Answers, Elsewhere
    from mixmatch.experiments.compare import compare
    from mixmatch.training.job import Job
    from mixmatch.training.progress import Quiet

    class Worker(Elsewhere):
        @contextlib.contextmanager
        def sending(self, jobs: Sequence[tuple[int, Job]]) -> Iterator[Answers]:
            answers = worker.do(json.loads(json.dumps(worker.order(jobs, "cpu", 1))))

            def received(seconds: float) -> Iterable[tuple[int, worker.Answer]]:
                for number, answer in [next(answers)]:
                    yield number, json.loads(json.dumps(answer))

            yield received

        def places(self, device: str) -> int:
            return 1

    compare("digits", METHODS, [1], out, executor=Worker(), reporter=Quiet(), **RUN)


# ---------------------------------------------------------------- cases


def shards_case(folder: Path, here: Path, rng: random.Random, outside: Path) -> Command:
    """Images that were decoded into shards."""
    out = shutil.copytree(folder / "shards", here / "shards")
    change(out, rng, outside, ["shards.json"] * 2)
    if rng.random() < 0.5:
        reseal(out)
    train = ["train", out, "--method", "supervised", "--steps", 2, "--out", here / "run", "--quiet", "--no-baseline"]
    again: Command = [shard_again, folder / "photos", out]
    return rng.choice([["data", "check", out, "--no-trial"], again, again, train])


def reseal(out: Path) -> None:
    """Make the hashes of an index right again, as one who means harm would."""
    if any(not file.is_file() or file.stat().st_size > 2**20 for file in out.iterdir()):
        return
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        index = json.loads((out / "shards.json").read_text())
        index["shards"] = [
            [hashlib.sha256((out / f"{n:06}{kind}").read_bytes()).hexdigest() for kind in (".json", ".npy")]
            for n in range(len(index["shards"]))
        ]
        (out / "shards.json").write_text(json.dumps(index))


def predictions_case(folder: Path, here: Path, rng: random.Random, outside: Path) -> Command:
    """Predictions that were stopped, to be continued."""
    out = shutil.copytree(folder / "classes", here / "classes")
    (lists,) = (place for place in (out / "_plan").iterdir() if place.is_dir() and place.name != "done")
    for name in ("part-000001.csv", "_plan/done/000001.json"):
        (out / name).unlink()
    if rng.random() < 0.2:
        to_link(rng.choice([out / "_plan", out / "_plan/done", lists]), outside)
    change(out, rng, outside, ["_plan/plan.json"] * 2 + [f"_plan/{lists.name}/000001.json"] * 2)
    command = ["predict", folder / "runs" / "finished", folder / "photos", "--output-dir", out, "--shard-size", 5]
    return [*command, "--device", "cpu"]


def sweep_case(folder: Path, here: Path, rng: random.Random, outside: Path) -> Command:
    """A search for settings, to be continued: its journal, its lock, its trials."""
    out = shutil.copytree(folder / "sweep", here / "sweep")
    if rng.random() < 0.15:
        to_link(rng.choice([out / "trial-000", out / "trial-001"]), outside)
    if rng.random() < 0.15:  # what is written there, a stranger may have put there before
        for name in ("best.toml", "trials.csv", "slices.png", ".lock"):
            (out / name).unlink(missing_ok=True)
            (out / name).symlink_to(outside / rng.choice(["diary.txt", "new.txt"]))
    change(out, rng, outside, ["journal.log"] * 12)
    return [*TUNE, "--out", out, "--trials", rng.choice([2, 3])]


def driver_case(folder: Path, here: Path, rng: random.Random, outside: Path) -> Command:
    """Runs that a driver has done by workers, to be continued."""
    out = shutil.copytree(folder / "compared", here / "compared")
    stopped = out / f"{METHODS[1]}-seed1"
    if rng.random() < 0.1:
        to_link(rng.choice([stopped, stopped / "checkpoint"]), outside)
    elif rng.random() < 0.3:
        name = rng.choice([".end", ".attempt"])
        (stopped / name).write_text(rng.choice(["", "9" * 4000, "\u0664 x", "-1 x", "1e9 \x1b[31m", "7"]))
        if rng.random() < 0.3:
            mutate.replace_file(stopped / name, rng, outside)
    change(out, rng, outside, [f"{stopped.name}/{name}" for name in (".attempt", ".lock", "metrics.jsonl")])
    return [compare_elsewhere, out]


CASES = {"shards": shards_case, "predictions": predictions_case, "sweep": sweep_case, "driver": driver_case}


def to_link(place: Path, outside: Path) -> None:
    """A link to elsewhere in the place of a folder."""
    shutil.rmtree(place)
    place.symlink_to(outside)


def change(out: Path, rng: random.Random, outside: Path, often: list[str]) -> None:
    """Damage a few files of a folder, some of them more often."""
    names = [str(path.relative_to(out)) for path in sorted(out.rglob("*")) if path.is_file()]
    for name in {rng.choice([*names, *often]) for _ in range(rng.choice([1, 1, 2, 4]))}:
        path = out / name
        if path.is_file() and not path.is_symlink() and not any(parent.is_symlink() for parent in path.parents):
            mutate.change_file(path, rng, outside)

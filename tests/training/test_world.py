"""One run over several processes ends as in one process, whatever happens to it on the way."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import mixmatch
from forks import Fork, command, ended
from mixmatch import api
from mixmatch.data.source import Rows, Source
from mixmatch.data.split import make_split
from mixmatch.errors import MixMatchError
from mixmatch.methods import METHODS
from mixmatch.methods.base import combine
from mixmatch.methods.flexmatch import FlexMatch
from mixmatch.networks import WideResNet
from mixmatch.settings import resolve
from mixmatch.training import checkpoint, world
from mixmatch.training.checkpoint import Checkpoint
from mixmatch.training.device import pick_device
from mixmatch.training.progress import Quiet
from mixmatch.training.run import RunRecord
from mixmatch.training.trainer import Trainer
from mixmatch.training.world import Total, World, joined

CPU = torch.device("cpu")
PATIENCE = 120.0
"""Seconds after which a process hangs."""

CLASSES, GROUPS = 3, 4
TINY: dict[str, Any] = {"labels": 12, "batch_size": 8, "pad": 1, "steps": 2, "ema_decay": 0.8, "groups": GROUPS}
VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {"method": name} for name in METHODS},
    "flexmatch-abc": {"method": "flexmatch", "balance": "abc", "align": "model", "threshold": 0.4},
    "fixmatch-ctaugment": {"method": "fixmatch", "strong": "ctaugment", "label_sampling": "balanced"},
    "remixmatch": {"method": "remixmatch", "K": 2},
    "mean-teacher": {"method": "mean-teacher", "ema_warmup": True},
}
REDUCED = ("mixmatch", "flexmatch-abc", "remixmatch")
RUN: dict[str, Any] = {
    "labels": 20, "batch_size": 8, "groups": GROUPS, "eval_every": 3, "network": "wrn-small", "device": "cpu",
}  # fmt: skip


def source() -> Source:
    rng = np.random.default_rng(0)

    def part(count: int) -> Rows:
        labels = np.arange(count) % CLASSES
        images = rng.integers(0, 120, (count, 8, 8, 1)) + 60 * labels[:, None, None, None]
        return Rows(images.astype(np.uint8), labels.astype(np.int64))

    return Source("tiny", ("a", "b", "c"), part(60), part(12))


class Exact(WideResNet):
    """In float64, if that is PyTorch's default: the difference between orders of addition is then below 1e-9."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(CLASSES, in_channels=1, filters=4, repeat=1, scales=2, momentum=0.1)

    def features(self, x: Tensor) -> Tensor:
        return super().features(x.to(self.head.weight.dtype))


def trainer_for(world: World | None = None, network: nn.Module | None = None, **given: Any) -> Trainer:
    settings, data = resolve("tiny", {**TINY, **given}), source()
    split = make_split(data, settings.labels, settings.seed, settings.valid, settings.unlabeled, settings.imbalance)
    return Trainer(settings, data, split, network or Exact(), CPU, threads=1, world=world)


# ---------------------------------------------------------------- a process


def parts(saved: Checkpoint) -> dict[str, Tensor]:
    named = {"weights": saved.weights, "ema": saved.ema, "optimizer": saved.optimizer, "method": saved.method}
    values = {f"{part}/{name}": value for part, tensors in named.items() for name, value in tensors.items()}
    return values | {f"metrics/{name}": torch.tensor(value) for name, value in saved.state["sums"].items()}


def train(folder: Path, steps: int) -> None:
    mixmatch.train("digits", out=folder / "run", steps=steps, resume=True, reporter=Quiet(), **RUN)


def take_steps(folder: Path, world: World | None = None, variants: Iterable[str] = VARIANTS) -> None:
    """Two steps with every method; each process keeps what it has then."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_default_dtype(torch.float64)
    try:
        for name in variants:
            trainer = trainer_for(world, **VARIANTS[name])
            trainer.advance(2)
            kept = {part: value.contiguous() for part, value in parts(trainer.checkpoint()).items()}
            save_file(kept, folder / f"{name}-{trainer.world.rank}")
    finally:
        torch.set_default_dtype(torch.float32)


def share(folder: Path, steps: int) -> None:
    """What each of several processes does: train a run to so many steps, then take steps with every method."""
    train(folder, steps)
    with joined(CPU) as world:
        take_steps(folder / f"in-{world.size}", world)
        world.backend = "nccl"  # the order of addition is then not that of the groups
        take_steps(folder / f"in-{world.size}-reduced", world, REDUCED)


# ---------------------------------------------------------------- many processes


def free_port() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return str(taken.getsockname()[1])


def start(count: int, folder: Path, function: Callable[..., None], *arguments: object) -> list[Fork]:
    """Processes with what torchrun tells them."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": str(count)}
    return [
        Fork(
            function,
            *arguments,
            output=folder / f"said-{count}-{rank}",
            environment={**where, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(count)
    ]


def until(condition: Any) -> Any:
    """Wait for something to be so."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.05)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run that 2 processes began, 1 continued and 4 ended, and every method's steps in 1, 2 and 4."""
    folder = tmp_path_factory.mktemp("world")
    for count, steps in ((2, 4), (4, 12)):
        processes = start(count, folder, share, folder, steps)
        if count == 2:  # meanwhile
            take_steps(folder / "in-1")
        assert ended(processes, PATIENCE) == [(0, "")] * count
        if count == 2:
            train(folder, 8)
    return folder


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_method_ends_the_same_in_1_2_and_4_processes(variant: str, folder: Path) -> None:
    alone = load_file(folder / "in-1" / f"{variant}-0")
    assert {"weights/head.weight", "ema/head.weight", "metrics/loss"} <= alone.keys()
    assert alone["weights/head.weight"].dtype == torch.float64
    start = parts(trainer_for(**VARIANTS[variant]).checkpoint())
    assert not torch.allclose(alone["weights/head.weight"], start["weights/head.weight"].double(), atol=1e-4)
    reduced = [f"in-{count}-reduced" for count in (2, 4) if variant in REDUCED]
    for where in ("in-2", "in-4", *reduced):
        for rank in range(int(where[3])):
            shared = load_file(folder / where / f"{variant}-{rank}")
            assert shared.keys() == alone.keys()
            for name, value in alone.items():
                torch.testing.assert_close(shared[name], value, rtol=0, atol=1e-9, msg=f"{name} {where}")


def test_a_run_that_2_processes_began_and_1_continued_and_4_ended_is_that_of_1(folder: Path, tmp_path: Path) -> None:
    """In float32, to the last bit."""
    train(tmp_path, 12)
    model = "run/model.safetensors"
    assert (folder / model).read_bytes() == (tmp_path / model).read_bytes()
    lines = [(at / "run/metrics.jsonl").read_text().splitlines() for at in (folder, tmp_path)]
    shared, alone = ([{**json.loads(line), "seconds": 0} for line in each] for each in lines)
    # It was evaluated where it ended for a while, too, and the metrics of an interval begin anew there.
    assert [each["step"] for each in shared] == [3, 4, 6, 8, 9, 12]
    errors = [{each["step"]: each["test_error"] for each in records} for records in (shared, alone)]
    assert {step: errors[0][step] for step in errors[1]} == errors[1]
    assert shared[-1] == alone[-1]
    engine = json.loads((folder / "run/result.json").read_text())["engine"]
    assert (engine["processes"], engine["groups"], engine["backend"]) == (4, 4, "gloo")
    assert json.loads((folder / "run/config.json").read_text())["processes"] == 2


def test_a_signal_to_one_process_stops_all_at_one_step(tmp_path: Path) -> None:
    words = ["train", "digits", "--batch-size", "8", "--groups", "2", "--steps", "100000", "--out", tmp_path / "run"]
    more = ["--network", "wrn-small", "--eval-every", "5", "--checkpoint-every", "100000", "--device", "cpu"]
    processes = start(2, tmp_path, command, *words, *more)
    metrics = tmp_path / "run" / "metrics.jsonl"
    until(lambda: (metrics.exists() and metrics.read_text()) or not processes[0].is_alive())
    processes[1].send_signal(signal.SIGTERM)
    (first, said), (second, nothing) = ended(processes, PATIENCE)
    assert (first, second) == (143, 143), said + nothing
    stopped = re.search(r"stopped at step ([\d,]+), which is saved: continue with --resume", said)
    assert stopped is not None, said
    assert "Traceback" not in nothing
    (saved,) = checkpoint.list_checkpoints(tmp_path / "run" / "checkpoint")
    assert saved.name == checkpoint.name_of(int(stopped[1].replace(",", "")))


def test_a_killed_process_is_started_again_and_the_run_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    steps, out = 40, tmp_path / "run"
    command = ["-m", "mixmatch", "train", "digits", "--labels", "20", "--batch-size", "8", "--groups", str(GROUPS)]
    more = ["--network", "wrn-small", "--eval-every", "20", "--steps", str(steps), "--device", "cpu", "--out", str(out)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=2"]
    process = subprocess.Popen(
        [*torchrun, *command, *more, "--checkpoint-every", "2", "--resume"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: checkpoint.list_checkpoints(out / "checkpoint") or process.poll() is not None)
        workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        (second,) = (pid for pid in workers if b"\0RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes())
        os.kill(int(second), signal.SIGKILL)
        _, said = process.communicate(timeout=PATIENCE)
    finally:
        process.terminate()
    assert process.returncode == 0, said
    assert re.search(r"resumed at step \d+ of 40", said), said
    assert "restarts may fail" not in said
    mixmatch.train("digits", out=tmp_path / "alone", steps=steps, reporter=Quiet(), **{**RUN, "eval_every": 20})
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "alone" / "model.safetensors").read_bytes()


# ---------------------------------------------------------------- groups


@pytest.mark.parametrize("method", ["mixmatch", "fixmatch", "freematch", "remixmatch", "softmatch"])
def test_a_step_over_groups_is_the_mean_of_the_steps_its_groups_would_take(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With plain gradient descent. Weights, running statistics and the state are the means of those that runs on a
    group each have after a step, and the groups' rows are those of the whole batch."""
    plain = {"method": method, "optimizer": "sgd", "momentum": 0.0, "learning_rate": 0.1, "strong": "cutout"}
    together = trainer_for(**plain)
    whole = trainer_for(**plain, groups=1).batches.draw(0)
    together.advance(1)
    each, rows = [], []
    for group in range(GROUPS):
        alone = trainer_for(**plain, groups=1, batch_size=2)
        draws = alone.batches.draw(group)
        monkeypatch.setattr(alone.batches, "draw", lambda step, group, draws=draws: {**draws, "step": np.float32(0)})
        alone.advance(1)
        each.append(parts(alone.checkpoint()))
        rows.append(draws)
    for name in ("labeled", "unlabeled"):
        assert np.array_equal(np.concatenate([draws[name] for draws in rows]), whole[name])
    found = parts(together.checkpoint())
    assert found.keys() == each[0].keys()
    for name, value in found.items():
        mean = torch.stack([part[name].double() for part in each]).mean(dim=0)
        torch.testing.assert_close(value.double(), mean, rtol=1e-5, atol=1e-6, msg=name)


def test_what_groups_make_of_a_state_is_combined_entry_by_entry() -> None:
    """An average that both change, a table of which each changes its rows, and labels of rows."""
    state = {
        "average": torch.tensor([0.5, 0.5]), "table": torch.tensor([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]),
        "labels": torch.tensor([-1, -1, 7]),
    }  # fmt: skip
    first = {
        "average": torch.tensor([0.7, 0.3]), "table": torch.tensor([[8.0, 6.0], [2.0, 3.0], [4.0, 5.0]]),
        "labels": torch.tensor([3, 4, 7]),
    }  # fmt: skip
    second = {
        "average": torch.tensor([0.6, 0.4]), "table": torch.tensor([[4.0, 1.0], [9.0, 3.0], [4.0, 5.0]]),
        "labels": torch.tensor([-1, 5, 7]),
    }  # fmt: skip
    combined = combine(state, [first, second])
    torch.testing.assert_close(combined["average"], torch.tensor([0.65, 0.35]))
    assert combined["table"].tolist() == [[6, 6], [9, 3], [4, 5]]
    assert combined["labels"].tolist() == [3, 5, 7]


def test_flexmatch_counts_a_row_once_that_two_groups_have() -> None:
    """Of 5 rows, row 1 is in both groups, and each makes another label of it."""
    method, state = FlexMatch(), {
        "labels": torch.tensor([-1, -1, 2, -1, 0]), "counts": torch.tensor([3, 1, 0, 1]),
        "learned": torch.tensor([0.1, 0.2, 0.3]),
    }  # fmt: skip
    sure = torch.tensor([True, True])
    first = method.remembered(state, torch.tensor([0, 1]), torch.tensor([1, 1]), sure)
    second = method.remembered(state, torch.tensor([1, 2]), torch.tensor([0, 1]), sure)
    combined = method.combine(state, [first, second])
    assert combined["labels"].tolist() == [1, 0, 1, -1, 0]
    assert combined["counts"].tolist() == [1, 2, 2, 0]
    torch.testing.assert_close(combined["learned"], torch.tensor([1.0, 1.0, 0.0]))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"groups": 3}, "^groups=3 must divide batch_size=8$"),
        ({"groups": 0}, "^groups=0 must be"),
    ],
)
def test_groups_must_divide_the_batch(given: dict[str, Any], message: str) -> None:
    with pytest.raises(MixMatchError, match=message):
        trainer_for(**given)


class Launched(TorchDispatchMode):
    """Counts what a GPU would have to launch: neither views nor tensors without content."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        self.count += not (function.is_view or (isinstance(found, Tensor) and found.is_meta))
        return found


class Alone(World):
    """A process that exchanges with no one, but as if there were others."""

    backend = "nccl"


def test_an_exchange_is_a_few_operations_however_many_tensors_a_network_has() -> None:
    """And a process whose exchange is with itself ends as one that has none."""
    launched, ends = [], []
    for alone in (None, Alone()):
        trainer = trainer_for(alone, groups=1, method="supervised")
        trainer.advance(1)
        with Launched() as counter:
            trainer.advance(2)
        launched.append(counter.count)
        ends.append(parts(trainer.checkpoint()))
    assert len(list(trainer.model.network.parameters())) > 20
    assert 0 < launched[1] - launched[0] <= 10
    assert ends[0].keys() == ends[1].keys()
    for name, value in ends[0].items():
        assert torch.equal(value, ends[1][name]), name


def test_sums_keep_types_and_shapes() -> None:
    total, tensors = Total(World()), [torch.randn(3, 4, 5, 6).to(memory_format=torch.channels_last), torch.tensor(2.0)]
    tensors += [torch.tensor(3.0, dtype=torch.float64), torch.ones(1).expand(4), torch.randn(2, 3).T]
    for _ in range(2):
        total.add(tensors)
    for mean, value in zip(total.mean(4), tensors, strict=True):
        assert mean.dtype == value.dtype
        torch.testing.assert_close(mean, value / 2)


class Three(World):
    """Three processes, of which the others fail."""

    size = 3

    def any(self, flag: bool) -> bool:
        return True


def test_processes_must_divide_the_groups() -> None:
    with pytest.raises(MixMatchError, match=r"^3 processes cannot divide groups=4 evenly: use groups=3 or a multiple"):
        trainer_for(Three())


def test_a_network_that_draws_random_numbers_is_for_one_process() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, CLASSES))
    with pytest.raises(MixMatchError, match=r"draws random numbers itself .* train it with one$"):
        trainer_for(Three(), network, groups=3, batch_size=6)
    trainer_for(network=network, groups=3, batch_size=6)
    network[1].p = 0.0  # as in many networks of timm
    trainer_for(Three(), network, groups=3, batch_size=6)


def test_a_step_that_another_process_cannot_compile_is_compiled_by_none() -> None:
    """And is as if nobody had tried."""
    trainer, plain = (trainer_for(Three(), groups=3, batch_size=6, method="supervised") for _ in range(2))
    notes: list[str] = []
    trainer._compiled = lambda tensors, ema, *given: trainer.objective.loss(trainer.model, *given)
    trainer.send_notes_to(notes.append)
    for each in (trainer, plain):
        each.advance(2)
    assert not trainer.engine["compiled"]
    for name, value in parts(plain.checkpoint()).items():
        assert torch.equal(parts(trainer.checkpoint())[name], value), name
    assert notes == ["the step cannot be compiled (in another process): training continues without, more slowly"]


# ---------------------------------------------------------------- one of several


@pytest.fixture
def second_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "WORLD_SIZE": "3", "RANK": "1", "LOCAL_RANK": "1"}
    for name, value in where.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("second_of_three")
def test_each_process_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [str(pick_device(name)) for name in ("auto", "cuda", "cpu")] == ["cuda:1", "cuda:1", "cpu"]
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(MixMatchError, match=r"^torchrun started 3 processes or more here, but there are 2 GPUs"):
        pick_device("auto")


@pytest.mark.usefixtures("second_of_three")
def test_only_the_first_process_makes_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "rows.csv"
    rows = [f"{np.sin(i):.3f},{np.cos(i):.3f},{'x' if i % 2 else 'y' if i < 30 else ''}" for i in range(60)]
    table.write_text("\n".join(["a,b,label", *rows]))
    done: list[bool] = []
    monkeypatch.setattr(api.here, "run_one", lambda work: done.append(work.shared) or RunRecord(steps=1))
    monkeypatch.setattr(api, "conclude", lambda *args, **given: pytest.fail("it concludes"))
    assert mixmatch.train(table, out=tmp_path / "run", reporter=Quiet()) == {"steps": 1}
    assert done == [True]


def test_without_the_others_a_process_ends_with_one_line() -> None:
    with pytest.raises(MixMatchError) as ended, world._explained():
        raise RuntimeError("Connection reset by peer\nand more")
    message = "the other processes of this run cannot be reached (Connection reset by peer): see what ended them, then"
    assert str(ended.value) == f"{message} resume"

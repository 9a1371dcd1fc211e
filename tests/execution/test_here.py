"""Runs side by side: each ends as it would have ended alone."""

from __future__ import annotations

import gc
import signal
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import mixmatch
from mixmatch.data.source import Rows, Source
from mixmatch.errors import MixMatchError
from mixmatch.execution import here
from mixmatch.execution.here import Outcome, Scheduler
from mixmatch.training import device as device_
from mixmatch.training import trainer as engine
from mixmatch.training.device import OutOfMemory, has_own_randomness
from mixmatch.training.plan import plan
from mixmatch.training.progress import Quiet
from mixmatch.training.stop import Interrupted, Stop


def source() -> Source:
    rng = np.random.default_rng(0)
    images = Rows(rng.integers(0, 256, (60, 8, 8, 1), np.uint8), np.arange(60, dtype=np.int64) % 3)
    return Source("tiny", ("a", "b", "c"), images, images)


def job(out: Path, seed: int, **given: Any) -> dict[str, Any]:
    settings = {"method": "mixmatch", "labels": 12, "batch_size": 6, "pad": 1, "steps": 24, "eval_every": 10}
    more = {"network": "wrn-10-1", "device": "cpu", "reporter": Quiet()}
    return {"data": source(), "out": out, "seed": seed, **settings, **more, **given}


def run_all(
    jobs: list[dict[str, Any]],
    limit: int | None = None,
    started: Callable[[int], None] = lambda number: None,
    ended: Callable[[int, Outcome], None] = lambda number, outcome: None,
) -> list[Outcome]:
    """What `train` would do for each of these, side by side."""
    how = ("data", "out", "resume", "checkpoint_every", "device", "reporter")
    work = [
        plan(
            each["data"],
            {name: value for name, value in each.items() if name not in how},
            **{name: each[name] for name in how[1:] if name in each},
        )
        for each in jobs
    ]
    outcomes = {}
    for number, outcome in here.run(work, limit, started):
        ended(number, outcome)
        outcomes[number] = outcome
    return [outcomes[number] for number in range(len(jobs))]


def test_each_run_is_bit_for_bit_what_it_is_alone(tmp_path: Path) -> None:
    jobs = [job(tmp_path / f"beside{seed}", seed) for seed in (1, 2, 3)]
    jobs[1]["method"] = "vat"
    events: list[Any] = []
    records = run_all(
        jobs, 3, lambda number: events.append(f"start {number}"), lambda number, outcome: events.append(f"end {number}")
    )
    assert events[:3] == ["start 0", "start 1", "start 2"]
    assert sorted(events[3:]) == ["end 0", "end 1", "end 2"]
    for number, beside in enumerate(records):
        assert isinstance(beside, dict)
        alone = mixmatch.train(**{**jobs[number], "out": tmp_path / f"alone{number}"})
        assert beside["curve"] == alone["curve"]
        ours = load_file(jobs[number]["out"] / "model.safetensors")
        for name, value in load_file(tmp_path / f"alone{number}" / "model.safetensors").items():
            assert torch.equal(ours[name], value), name


def test_a_run_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    jobs = [job(tmp_path / "a", 1, steps=6), job(tmp_path / "b", 1, labels=1000), job(tmp_path / "c", 2, steps=6)]
    first, second, third = run_all(jobs, 2)
    assert isinstance(first, dict)
    assert isinstance(third, dict)
    assert isinstance(second, MixMatchError)


def test_an_interruption_saves_every_run(tmp_path: Path) -> None:
    class Stops(Quiet):
        def steps(self, step: int, values: Any) -> None:
            if step >= 11:
                signal.raise_signal(signal.SIGINT)

    jobs = [job(tmp_path / "a", 1), job(tmp_path / "b", 2, reporter=Stops()), job(tmp_path / "c", 3)]
    jobs += [job(tmp_path / "d", 4)]
    with pytest.raises(Interrupted):
        run_all(jobs, 3)
    assert not (tmp_path / "d").exists()
    whole = run_all([job(tmp_path / f"whole{seed}", seed) for seed in (1, 2)], 1)
    resumed = run_all([job(tmp_path / name, seed, resume=True) for name, seed in (("a", 1), ("b", 2))], 2)
    for ours, theirs in zip(resumed, whole, strict=True):
        assert isinstance(ours, dict)
        assert isinstance(theirs, dict)
        assert ours["curve"] == theirs["curve"]


def test_what_does_not_fit_beside_others_is_tried_with_fewer() -> None:
    begun: list[tuple[int, int]] = []
    scheduler = Scheduler(3)

    def make(number: int) -> Any:
        begun.append((number, scheduler.limit))
        if number == 2 and scheduler.limit > 2:
            raise OutOfMemory
        for _ in range(9):
            yield
        return {"number": number}

    outcomes = dict(scheduler.run(4, make, Stop(), lambda number: None))
    assert outcomes == {number: {"number": number} for number in range(4)}
    assert (2, 3) in begun
    assert (2, 2) in begun
    assert scheduler.limit == 2


def test_after_running_out_of_memory_a_run_resumes_in_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No job says `resume`; one brings its network, which must not begin again with what it has learned."""

    def network() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))

    class Full(Quiet):
        def __init__(self) -> None:
            self.times = 0

        def steps(self, step: int, values: Any) -> None:
            self.times += 1
            if self.times == 1:
                raise torch.OutOfMemoryError

    jobs = [job(tmp_path / "a", 1), job(tmp_path / "b", 2, network=network(), reporter=Full())]
    first, second = run_all(jobs, 2)
    assert isinstance(first, dict)
    assert isinstance(second, dict), second
    alone = mixmatch.train(**job(tmp_path / "alone", 2, network=network()))
    assert second["curve"] == alone["curve"]
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("b", "alone"))
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())


@pytest.mark.parametrize("steps", [0, 20])
def test_too_little_memory_for_a_run_alone_is_one_line(
    steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is a matter of the data; and with memory again, it resumes and ends as if nothing had been."""
    enough = False

    class Full(Quiet):
        def steps(self, step: int, values: Any) -> None:
            if step >= steps and not enough:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 64.00 MiB.\nlines and lines")

    message = r"^cpu has too little memory for this run \(it wanted 64.00 MiB more\): make room and resume \(what was"
    trainers: list[weakref.ref[engine.Trainer]] = []
    advance = engine.Trainer.advance

    def noted(trainer: engine.Trainer, *args: Any) -> None:
        trainers.append(weakref.ref(trainer))
        advance(trainer, *args)

    monkeypatch.setattr(engine.Trainer, "advance", noted)
    with pytest.raises(MixMatchError, match=message) as told:
        mixmatch.train(**job(tmp_path / "run", 1, reporter=Full(), checkpoint_every=10))
    assert "\n" not in str(told.value)
    assert str(tmp_path / "run") in str(told.value)
    assert isinstance(told.value, torch.OutOfMemoryError)  # as who calls PyTorch may expect
    assert trainers[0]() is None  # whoever tries again, with smaller batches, has its memory
    enough = True
    resumed = mixmatch.train(**job(tmp_path / "run", 1, reporter=Full(), resume=True))
    assert resumed["curve"] == mixmatch.train(**job(tmp_path / "whole", 1))["curve"]

    def full(*args: Any) -> Any:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(engine, "Pool", full)
    with pytest.raises(MixMatchError, match=r"^cpu has too little memory for this run: make room and try again, or"):
        mixmatch.train(**job(tmp_path / "another", 1))
    assert not (tmp_path / "another").exists()


def test_a_run_alone_starts_however_little_memory_there_seems_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def free(scheduler: Scheduler) -> int:
        nonlocal looks
        looks += 1
        assert looks < 1000, "it waits for ever"
        return 100 if looks == 1 else 20  # what the first run took is not given back

    monkeypatch.setattr(Scheduler, "_memory", free)

    def make(number: int) -> Any:
        yield
        return {"number": number}

    outcomes = list(Scheduler(2).run(6, make, Stop(), lambda number: None))
    assert len(outcomes) == 6


def test_memory_decides_how_many_run_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: set[int] = set()
    most = 0
    monkeypatch.setattr(Scheduler, "_memory", lambda scheduler: 100 - 30 * len(alive))

    def make(number: int) -> Any:
        nonlocal most
        alive.add(number)
        most = max(most, len(alive))
        for _ in range(9):
            yield
        alive.remove(number)
        return {"number": number}

    list(Scheduler(5).run(6, make, Stop(), lambda number: None))
    assert most == 3  # a fourth would find 10 of the 30 it needs


def test_the_stream_of_a_run_that_is_gone_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Owner: ...

    made: list[object] = []

    def stream(device: torch.device, priority: int) -> object:
        made.append(object())
        return made[-1]

    monkeypatch.setattr(torch.cuda, "Stream", stream)
    monkeypatch.setattr(device_, "_idle", {})
    owners = [Owner(), Owner()]
    first, second = (device_.stream_for(owner, torch.device("cuda")) for owner in owners)
    assert first is not second
    del owners[0]
    gc.collect()
    assert device_.stream_for(owners[0], torch.device("cuda", 1)) not in (first, second)  # not of that device
    assert device_.stream_for(owners[0], torch.device("cuda")) is first
    assert len(made) == 3


def test_runs_on_the_processor_leave_a_gpu_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: Any) -> Any:
        raise AssertionError("a look at the GPU")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", never)
    monkeypatch.setattr(torch.cuda, "empty_cache", never)
    # PyTorch's optimizers ask a GPU that is available, which fails in a build for CUDA on a machine without one.
    for name in ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check"):
        monkeypatch.setattr(torch.optim.Optimizer, name, lambda self: None, raising=False)
    records = run_all([job(tmp_path / "a", 1, steps=2), job(tmp_path / "b", 2, steps=2)], 2)
    assert all(isinstance(record, dict) for record in records)


def test_asked_to_stop_between_two_runs(tmp_path: Path) -> None:
    """The request comes while the first run is at its end: the second must not count as done."""

    class AtTheEnd(Quiet):
        def evaluated(self, record: Any) -> None:
            if record["step"] == 4:
                signal.raise_signal(signal.SIGTERM)

    jobs = [job(tmp_path / "a", 1, steps=4, reporter=AtTheEnd()), job(tmp_path / "b", 2, steps=4)]
    ended: list[Any] = []
    with pytest.raises(Interrupted) as stopped:
        run_all(jobs, 1, ended=lambda number, outcome: ended.append((number, outcome["error"])))  # type: ignore[index]
    assert stopped.value.signal == signal.SIGTERM
    assert [number for number, _ in ended] == [0]
    assert not (tmp_path / "b").exists()


def test_before_there_is_anything_to_save_a_request_to_stop_has_its_usual_effect(tmp_path: Path) -> None:
    def started(number: int) -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had the tests ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            run_all([job(tmp_path / "a", 1)], started=started)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert not (tmp_path / "a").exists()


def test_what_ends_all_runs_leaves_no_folder_locked(tmp_path: Path) -> None:
    """Also while someone, as a notebook does, keeps the error."""
    closed: list[str] = []

    class Impatient(Quiet):
        def steps(self, step: int, values: Any) -> None:
            raise KeyboardInterrupt

    class Closed(Quiet):
        def close(self) -> None:
            closed.append("a")

    jobs = [job(tmp_path / "a", 1, reporter=Closed()), job(tmp_path / "b", 2, reporter=Impatient())]
    with pytest.raises(KeyboardInterrupt) as kept:
        run_all(jobs, 2)
    assert closed == ["a"]
    assert isinstance(mixmatch.train(**{**jobs[0], "resume": True, "reporter": Quiet()}), dict)
    del kept


def test_a_run_that_failed_gives_its_memory_back_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Any] = []
    build = mixmatch.networks.build

    def noted(*args: Any) -> nn.Module:
        network = build(*args)
        network.around = [network]  # as many are: it goes only when garbage is collected
        built.append(weakref.ref(network))
        return network

    monkeypatch.setattr(mixmatch.networks, "build", noted)
    left: list[bool] = []

    class Breaks(Quiet):
        def steps(self, step: int, values: Any) -> None:
            raise RuntimeError("out of luck")

    jobs = [job(tmp_path / "a", 1, reporter=Breaks()), job(tmp_path / "b", 2, steps=2)]
    gc.disable()
    try:
        first, second = run_all(jobs, 1, started=lambda number: left.append(any(ref() for ref in built)))
    finally:
        gc.enable()
    assert isinstance(first, RuntimeError)
    assert isinstance(second, dict)
    assert left == [False, False]


def test_two_runs_of_one_network_object_are_refused(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    with pytest.raises(MixMatchError, match="a copy of its own"):
        run_all([job(tmp_path / str(seed), seed, network=network) for seed in (1, 2)], 2)


def test_two_runs_in_one_folder(tmp_path: Path) -> None:
    jobs = [job(tmp_path / "a", 1, resume=True), job(tmp_path / "a", 1, resume=True)]
    first, second = run_all(jobs, 2)
    assert isinstance(first, dict)
    assert isinstance(second, MixMatchError)
    assert "another process" in str(second)


def test_randomness_of_its_own() -> None:
    assert has_own_randomness(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)))
    assert not has_own_randomness(mixmatch.networks.build("wrn-10-1", 3, (1, 8, 8)))

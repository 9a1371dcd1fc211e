"""Runs on a Ray cluster of two nodes: one is lost, the driver is killed, and the models are what they would have been.

Never `ray stop`, which ends every Ray process of the machine: the cluster ends its own.
"""

from __future__ import annotations

import signal
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jobs import driver, models, saved, tiny, undisturbed

from forks import Fork, wait_until
from mixmatch.errors import MixMatchError
from mixmatch.execution.ray import Ray, connect, share_of
from mixmatch.training.job import Work
from mixmatch.training.run import RunFolder

ray: Any = pytest.importorskip("ray", reason="Ray is not installed: pip install 'mixmatch[ray]'")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[int, bytes]:
    return undisturbed(tmp_path_factory.mktemp("undisturbed"))


def is_under_way(run: Path, node: Any) -> bool:
    """Whether a process of a node is at work in a run folder: TensorBoard's name of a file has its number."""
    events = next(run.glob("events.out.tfevents.*"), None)
    if events is None or (run / "result.json").exists():
        return False
    asked = ["ps", "-o", "ppid=", "-p", events.name.split(".")[-2]]
    parent = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return parent == str(node.all_processes["raylet"][0].process.pid)


def test_a_node_is_lost(
    cluster: Any, reference: dict[int, bytes], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its run is resumed elsewhere, to the very model. An error that a user can fix ends its run alone, at once. What
    Ray has to say of it stays out of standard output."""
    doomed = cluster.add_node(num_cpus=1, object_store_memory=100 * 2**20)
    folders = {seed: tmp_path / str(seed) for seed in (2, 3)}
    work = [tiny(folder, seed) for seed, folder in folders.items()]
    work += [tiny(tmp_path / "diverges", learning_rate=1e30)]

    def lose() -> None:
        wait_until(lambda: any(saved(run) and is_under_way(run, doomed) for run in folders.values()))
        doomed.all_processes["raylet"][0].process.kill()  # at once; the rest of the node after it
        cluster.remove_node(doomed, allow_graceful=False)

    loses = threading.Thread(target=lose, daemon=True)
    loses.start()
    begun: list[int] = []
    outcomes = dict(Ray(cluster.address).run(work, begun.append))
    loses.join(timeout=60)
    out, err = capfd.readouterr()
    assert out == ""
    assert "(raylet" in err
    assert share_of(connect(cluster.address), {"auto"}).cores == 1
    assert Ray(cluster.address).places("auto") in (1, 2)  # the lost one may be counted for a while
    assert sorted(begun) == [0, 1, 2]
    error = outcomes.pop(2)
    assert isinstance(error, MixMatchError)
    assert "the loss was not finite" in str(error)
    assert RunFolder(tmp_path / "diverges").attempt() == 1
    assert all(isinstance(outcome, dict) for outcome in outcomes.values()), outcomes
    assert [outcomes[number]["seed"] for number in range(2)] == [2, 3]
    assert sorted(RunFolder(folder).attempt() for folder in folders.values()) == [1, 2]
    assert models(tmp_path, [2, 3]) == {seed: reference[seed] for seed in (2, 3)}


def test_runs_that_wait_for_a_gpu_say_so(cluster: Any, tmp_path: Path) -> None:
    """A cluster may begin without GPUs, and grow when it is asked for one. One that was started here does not."""
    job, said = replace(tiny(tmp_path / "a").job, device="cuda"), list[str]()
    with Ray(cluster.address, said.append).sending([(0, job)]) as answers:
        assert list(answers(0.1)) == []
    assert said == ["the cluster has no GPU now: the runs wait for a node that has one"]
    with pytest.raises(MixMatchError, match="device 'cuda' is not available here"):
        Ray("local").places("cuda")
    with pytest.raises(MixMatchError, match="device 'cuda' is not available here"):
        list(Ray("local").run([Work(job)]))


def test_the_driver_is_killed_and_started_again(cluster: Any, reference: dict[int, bytes], tmp_path: Path) -> None:
    """Finished runs are kept, the others resumed."""
    work, record = [tiny(tmp_path / str(seed), seed) for seed in (1, 2)], tmp_path / "1/result.json"
    ended = tmp_path / "ended"
    first = Fork(driver, cluster.address, work, ended, output=tmp_path / "first")
    try:
        wait_until(lambda: record.exists() and saved(tmp_path / "2"))
        wait_until(lambda: ended.read_text() == "0 record\n")
    finally:
        first.kill()
    kept = record.stat().st_mtime_ns
    assert Fork(driver, cluster.address, work, ended, output=tmp_path / "second").ended(240)[0] == 0
    assert sorted(ended.read_text().splitlines()) == ["0 record", "1 record"]
    assert record.stat().st_mtime_ns == kept
    assert RunFolder(tmp_path / "1").attempt() == 1
    assert RunFolder(tmp_path / "2").attempt() == 2
    assert models(tmp_path, [1, 2]) == {seed: reference[seed] for seed in (1, 2)}


def test_asked_to_stop_the_runs_are_saved(cluster: Any, tmp_path: Path) -> None:
    work = [tiny(tmp_path / "endless", steps=10**6, checkpoint_every=10**6, eval_every=10)]
    stopped = Fork(driver, cluster.address, work, tmp_path / "ended", output=tmp_path / "said")
    try:
        wait_until(lambda: bool(RunFolder(tmp_path / "endless").metrics()))
        assert not saved(tmp_path / "endless")
        stopped.send_signal(signal.SIGTERM)
        ended, said = stopped.ended(120)
        assert ended == 128 + signal.SIGTERM, said
    finally:
        stopped.kill()
    assert saved(tmp_path / "endless")

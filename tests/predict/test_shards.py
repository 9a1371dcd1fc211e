"""Predictions as a folder of shards: killed and begun again, here and on a cluster, each file exactly once."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

import mixmatch
from forks import Fork, command, wait_until
from mixmatch.errors import MixMatchError
from mixmatch.execution import ray_data
from mixmatch.execution.decode import shard_folder
from mixmatch.execution.ray_data import Place, place_of
from mixmatch.predict.shards import _tally
from mixmatch.predict.store import Store
from mixmatch.training.stop import Interrupted

PIXELS = np.rint(load_digits().images * (255 / 16)).astype(np.uint8)
FILES, BROKEN = 2000, 97
"""How many files there are, and that every 97th is broken."""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many") / "photos"
    for number in range(FILES):
        file = folder / str(number % 7) / f"{number:05}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        if number % BROKEN:
            Image.fromarray(PIXELS[number % len(PIXELS)]).save(file, compress_level=0)
        else:
            file.write_bytes(b"broken")
    return folder


def rows_of(folder: Path) -> list[dict[str, str]]:
    return [row for part in sorted(folder.glob("*.csv")) for row in csv.DictReader(part.read_text().splitlines())]


def check(rows: list[dict[str, str]], photos: Path, run: Path) -> None:
    """Each file once, with its class or what is wrong with it."""
    files = sorted(str(file) for file in photos.rglob("*.png"))
    assert sorted(row["file"].removeprefix("file://") for row in rows) == files
    expected = mixmatch.load(run, device="cpu").predict_proba(PIXELS[..., None])
    for row in rows:
        number = int(Path(row["file"]).stem)
        found = [row[str(digit)] for digit in range(10)]
        if number % BROKEN:
            np.testing.assert_allclose(np.array(found, float), expected[number % len(PIXELS)], atol=2e-5)
            assert (row["class"], row["error"]) == (str(expected[number % len(PIXELS)].argmax()), "")
        else:
            assert (row["class"], row["probability"], found) == ("", "", [""] * 10)
            assert row["error"].startswith("not an image")


def finished(folder: Path) -> list[Path]:
    return sorted((folder / "_plan/done").glob("[0-9]*.json"))


def test_killed_and_begun_again(run: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "classes"
    words = ["predict", run, photos, "--output-dir", out, "--shard-size", 50, "--device", "cpu", "--json"]
    first = Fork(command, *words, output=tmp_path / "said")
    try:
        wait_until(lambda: len(finished(out)) >= 3)
    finally:
        first.kill()
    kept = [mark.stem for mark in finished(out)]
    assert 3 <= len(kept) < FILES // 50
    before = {number: (out / f"part-{number}.csv").stat().st_mtime_ns for number in kept}
    program = [sys.executable, "-m", "mixmatch", *map(str, words)]
    again = subprocess.run(program, capture_output=True, text=True, timeout=240)
    assert again.returncode == 1, again.stderr  # some files cannot be read
    assert again.stderr.splitlines() == [
        f"{out}: 2,000 predictions in 40 shards ({len(kept)} finished before)",
        "warning: 21 files cannot be read: the column error says why",
    ]
    summary = json.loads(again.stdout)
    assert summary == {
        "output_dir": str(out), "files": FILES, "unreadable": 21, "shards": 40, "finished_before": len(kept)
    }  # fmt: skip
    assert before == {number: (out / f"part-{number}.csv").stat().st_mtime_ns for number in kept}
    check(rows_of(out), photos, run)


def test_what_killed_processes_left_is_removed_in_the_end(run: Path, photos: Path, tmp_path: Path) -> None:
    left = [tmp_path / f".part-000000.csv.{'0' * 32}.part", tmp_path / f"_plan/done/.000000.json.{'1' * 32}.part"]
    for _ in range(2):
        mixmatch.predict_shards(run, photos / "0", tmp_path, device="cpu")
        assert not any(file.exists() for file in left)
        for file in left:
            file.touch()
            os.utime(file, (0, 0))


@pytest.mark.parametrize(
    "content",
    [None, b"", b"{", b"3", b"[]", b"{}", b'{"shard": 0, "files": "2"}', b'{"shard": 0, "files": 9, "unreadable": 1}'],
)
def test_a_shard_whose_note_is_damaged_is_done_again(content: bytes | None) -> None:
    assert _tally(content, 0, 2) is None
    assert _tally(b'{"shard": 0, "files": 2, "unreadable": 3}', 0, 2) is None
    assert _tally(b'{"shard": 0, "files": 2, "unreadable": 1}', 0, 2) == {"shard": 0, "files": 2, "unreadable": 1}


def test_what_a_stranger_left_is_one_line(run: Path, photos: Path, tmp_path: Path) -> None:
    """Numbers that would be counted for hours, folders elsewhere, lists of something else, links."""
    model, files = mixmatch.load(run, device="cpu"), [photos / "1" / f"{n:05}.png" for n in (1, 8, 15)]
    whole, outside = tmp_path / "whole", tmp_path / "outside"
    mixmatch.predict_shards(model, files, whole, shard_size=2)
    (outside / "done").mkdir(parents=True)
    plan = json.loads((whole / "_plan/plan.json").read_text())
    lists = f"_plan/{plan['names']}"

    def continued(name: str, content: Any = None) -> mixmatch.predict.Summary:
        out = shutil.copytree(whole, tmp_path / uuid4().hex)
        (out / "_plan/done/000001.json").unlink()
        if content is not None:
            (out / name).write_text(content if isinstance(content, str) else json.dumps(content))
        else:
            shutil.rmtree(out / name)
            (out / name).symlink_to(outside)
        return mixmatch.predict_shards(model, files, out, shard_size=2)

    for edit in ({"shards": 10**15, "files": 2 * 10**15 - 1}, {"names": "../../outside"}, {"files": True}):
        with pytest.raises(MixMatchError, match=r"plan.json is damaged|the list of files in .* is gone"):
            continued("_plan/plan.json", {**plan, **edit})
    for content in ("[", [], [5], ["\ud800"], ["a", "b"], "[" * 10**5):
        with pytest.raises(MixMatchError, match=r"000001.json is damaged: choose another output_dir="):
            continued(f"{lists}/000001.json", content)
    for name in (lists, "_plan/done", "_plan"):
        with pytest.raises(MixMatchError, match="it is a link, which is not followed here"):
            continued(name)
    assert [path.name for path in outside.rglob("*")] == ["done"]
    assert continued("_plan/done/000000.json", {"shard": 0, "files": 10**9, "unreadable": 0}) == (3, 0, 2, 0)


def test_parts_make_a_whole(run: Path, photos: Path, tmp_path: Path) -> None:
    """As jobs of a Slurm array do, here into an object store and as Parquet."""
    parquet = pytest.importorskip("pyarrow.parquet")
    memory = fsspec.filesystem("memory")
    seen: list[tuple[int, int]] = []
    for number in range(2):
        done = mixmatch.predict_shards(
            run,
            [photos / "0", photos / "0" / "00000.png", photos / "*"],
            "memory://classes",
            format="parquet",
            shard_size=300,
            device="cpu",
            part=slice(number, None, 2),
            progress=lambda *counts: seen.append(counts),
        )
    assert (done.files, done.unreadable, done.shards, done.finished_before) == (FILES, 21, 7, 4)
    assert seen == sorted(seen)
    assert seen[-1] == (FILES, FILES)
    names = [name for name in memory.ls("/classes", detail=False) if name.endswith(".parquet")]
    tables = [parquet.read_table(memory.open(name)) for name in names]
    assert len(tables) == 7
    rows = [row for table in tables for row in table.to_pylist()]
    check([{name: "" if value is None else str(value) for name, value in row.items()} for row in rows], photos, run)


def test_what_cannot_be_continued_is_refused(run: Path, photos: Path, tmp_path: Path) -> None:
    out, model = tmp_path / "classes", mixmatch.load(run, device="cpu")
    mixmatch.predict_shards(model, photos / "1" / "00001.png", out)
    mixmatch.predict_shards(model, [photos / "1" / "00001.png"], out)
    np.save(tmp_path / "rows.npy", PIXELS)
    (tmp_path / "file").touch()
    for given, options, why in (
        (photos, {}, "holds predictions with other paths"),
        (photos / "1" / "00001.png", {"shard_size": 7}, "holds predictions with another shard size"),
        (photos / "1" / "00001.png", {"format": "json"}, "format=json is not for shards"),
        (photos, {"shard_size": 0}, "shard_size=0 must be 1 or more"),
        (tmp_path / "rows.npy", {}, "holds rows"),
        (photos / "missing", {"output_dir": tmp_path / "new"}, "there is no file or folder"),
        (photos, {"output_dir": tmp_path / "file"}, "cannot read .*file: Not a directory"),
        (photos, {"output_dir": "abacus://x"}, "Protocol not known"),
    ):
        with pytest.raises(MixMatchError, match=why):
            mixmatch.predict_shards(model, given, **{"output_dir": out, **options})
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "part-000000.csv").write_text("precious")
    fsspec.filesystem("memory").pipe_file("/mine/part-000000.csv", b"precious")
    for where in (mine, "memory://mine"):
        with pytest.raises(MixMatchError, match=r"mine holds other files \(part-000000.csv\): choose another"):
            mixmatch.predict_shards(model, photos / "1" / "00001.png", where)
    assert [path.name for path in mine.iterdir()] == ["part-000000.csv"]
    assert (mine / "part-000000.csv").read_text() == "precious"
    next(model.network.parameters()).data.add_(1)
    with pytest.raises(MixMatchError, match="holds predictions with another model"):
        mixmatch.predict_shards(model, photos / "1" / "00001.png", out)


def test_on_a_cluster(cluster: Any, run: Path, photos: Path, tmp_path: Path) -> None:
    """The process with the model is lost in the middle; files are read through their addresses."""
    out = tmp_path / "classes"
    raylet = cluster.head_node.all_processes["raylet"][0].process.pid
    lost: list[int] = []

    def lose(done: int, total: int) -> None:
        if done and not lost:
            asked = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True)
            processes = [line.split(None, 2) for line in asked.stdout.splitlines()]
            lost.extend(int(pid) for pid, parent, name in processes if parent == str(raylet) and "MapWorker" in name)
            for pid in lost:
                os.kill(pid, signal.SIGKILL)

    done = mixmatch.predict_shards(run, f"file://{photos}", out, shard_size=200, ray=cluster.address, progress=lose)
    assert lost
    assert (done.files, done.unreadable, done.shards, done.finished_before) == (FILES, 21, 10, 0)
    check(rows_of(out), photos, run)
    lists = json.loads((out / "_plan/plan.json").read_text())["names"]
    for lost_too in ("part-000001.csv", f"_plan/{lists}/000001.json"):
        (out / lost_too).unlink()
    with pytest.raises(MixMatchError, match=r"the list of files in .* is gone"):
        mixmatch.predict_shards(run, f"file://{photos}", out, shard_size=200, ray=cluster.address)


def test_what_a_process_of_a_cluster_gets() -> None:
    class Nodes:
        def __init__(self, *resources: dict[str, float]) -> None:
            self._resources = resources

        def nodes(self) -> list[dict[str, Any]]:
            return [{"Alive": True, "Resources": each} for each in self._resources]

    assert place_of(Nodes({"CPU": 2}), "auto") == Place("cpu", 1, 2)
    assert place_of(Nodes({"CPU": 64}, {"CPU": 6}, {}), "auto") == Place("cpu", 1, 70)
    assert place_of(Nodes({"CPU": 64, "GPU": 8}, {"CPU": 6}, {"CPU": 10, "GPU": 2}), "auto") == Place("cuda", 5, 10)
    assert place_of(Nodes({"CPU": 64, "GPU": 8}), "cpu") == Place("cpu", 1, 64)
    with pytest.raises(MixMatchError, match="the cluster has no GPU"):
        place_of(Nodes({"CPU": 2}), "cuda")


def test_decoding_on_the_cluster(cluster: Any, tmp_path: Path) -> None:
    """`mixmatch data shard --ray` makes the same shards."""
    for number in range(60):
        place = f"{number % 2}" if number < 30 else "unlabeled"
        (tmp_path / "photos" / place).mkdir(parents=True, exist_ok=True)
        Image.fromarray(PIXELS[number]).save(tmp_path / "photos" / place / f"{number}.png")
    (tmp_path / "photos" / "0" / "0.png").write_bytes(b"broken")
    for out, options in (("here", {"processes": 1}), ("there", {"ray": cluster.address})):
        done = shard_folder(tmp_path / "photos", tmp_path / out, shard_size=20, image_size=32, **options)
        assert done == (59, 1, 3, 0)
    hashes = [json.loads((tmp_path / out / "shards.json").read_text())["shards"] for out in ("here", "there")]
    assert hashes[0] == hashes[1]


def test_sigterm_stops_what_waits_for_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray.data", reason="Ray is not installed: pip install 'mixmatch[ray]'")
    monkeypatch.setattr(ray_data, "connect", lambda address: None)
    monkeypatch.setattr(ray_data, "place_of", lambda ray, device: signal.raise_signal(signal.SIGTERM))

    def outer(*args: object) -> None:
        pytest.fail("not handled")

    before = signal.signal(signal.SIGTERM, outer)
    try:
        with pytest.raises(Interrupted) as stopped:
            list(ray_data.over_cluster("auto", lambda place: lambda number: {}, [0], "cpu"))
        assert (stopped.value.signal, signal.getsignal(signal.SIGTERM)) == (signal.SIGTERM, outer)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_two_plans_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is everyone's, also where files cannot be linked."""
    for number, linked in enumerate((True, False)):
        if not linked:
            monkeypatch.setattr(Path, "hardlink_to", refuse)
        store = Store(tmp_path / str(number))
        for content in (b"first", b"second"):
            store.write_first("_plan/plan.json", content)
        assert store.read("_plan/plan.json") == b"first"
        assert store.names("_plan") == {"plan.json"}
        assert store.names("nothing") == set()


def test_an_address_on_the_disk_is_a_folder(tmp_path: Path) -> None:
    store = Store(f"file://{tmp_path}/new/classes/")
    assert store.names("") == set()
    store.write("done/1.json", b"1")
    store.write_first("done/1.json", b"2")
    assert (tmp_path / "new/classes/done/1.json").read_bytes() == b"1"
    assert not any((tmp_path / "new/classes/done").glob(".*"))


def refuse(path: Path, target: Path) -> None:
    raise PermissionError(1, "Operation not permitted")

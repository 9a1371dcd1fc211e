"""A folder decoded into shards trains as the folder itself; killed and begun again, damaged and mended."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

import mixmatch
from forks import wait_until
from mixmatch.data import read_labeled, read_user_data
from mixmatch.data.user.folder import read_folder
from mixmatch.data.user.shards import begin, decode_shard, finish, read_shards
from mixmatch.errors import MixMatchError
from mixmatch.execution.decode import shard_folder
from mixmatch.training.progress import Quiet

DIGITS = load_digits()
FILES, SHARD = 300, 40


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits, a few labeled, some to test on, some broken."""
    folder = tmp_path_factory.mktemp("data") / "photos"
    for number in range(FILES):
        label = DIGITS.target[number] % 3
        place = f"{label}" if number < 60 else f"test/{label}" if number < 120 else "unlabeled"
        file = folder / place / f"{number:05}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.rint(DIGITS.images[number] * (255 / 16)).astype(np.uint8)).resize((32, 32)).save(file)
        if number % 97 == 5:
            file.write_bytes(b"broken")
    (folder / "unlabeled" / "moved.png").symlink_to(folder / "nothing.png")
    return folder


def same(a: Any, b: Any) -> None:
    for field in dataclasses.fields(a):
        ours, theirs = getattr(a, field.name), getattr(b, field.name)
        if isinstance(ours, np.ndarray):
            np.testing.assert_array_equal(np.array(theirs), ours)
        else:
            assert theirs == ours, field.name


def test_shards_train_as_the_folder(photos: Path, tmp_path: Path) -> None:
    """To the last bit, report included; pixels stay where they are."""
    done = shard_folder(photos, tmp_path / "shards", shard_size=SHARD, processes=1)
    assert done == (FILES - 4, 4, 8, 0)
    read = read_user_data(tmp_path / "shards")
    same(read_folder(photos), read)
    assert not isinstance(read.inputs, np.ndarray)
    assert not isinstance(read.train.inputs, np.ndarray)
    settings = {"steps": 6, "eval_every": 3, "network": "wrn-10-1", "batch_size": 8, "baseline": False}
    records = [
        mixmatch.train(data, out=tmp_path / name, device="cpu", reporter=Quiet(), **settings)
        for name, data in (("a", photos), ("b", tmp_path / "shards"))
    ]
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
    assert models[0] == models[1]
    assert records[0]["last_error"] == records[1]["last_error"]
    assert records[0]["verdict"] == records[1]["verdict"]


def test_killed_begun_again_damaged_and_mended(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "shards"
    words = [sys.executable, "-m", "mixmatch", "data", "shard", photos, "--out", out, "--shard-size", "6"]
    command = [*map(str, words), "--json"]
    lists = lambda: [file for file in out.glob("0*.json") if "sha256" in file.read_text()]  # noqa: E731
    first = subprocess.Popen(command, stderr=subprocess.DEVNULL, process_group=0)
    try:
        wait_until(lambda: len(lists()) >= 2)
    finally:
        first.kill()
        first.wait(timeout=60)
    wait_until(lambda: not group_lives(first.pid))  # its processes end with it
    kept = {file: file.with_suffix(".npy").stat().st_mtime_ns for file in lists()}
    assert 2 <= len(kept) < FILES // 6
    with pytest.raises(MixMatchError, match="is not finished: the same mixmatch data shard command continues it"):
        read_shards(out)
    again = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert again.returncode == 0, again.stderr
    summary = json.loads(again.stdout)
    assert (summary["images"], summary["shards"], summary["finished_before"]) == (FILES - 4, 50, len(kept))
    assert len(summary["unreadable_files"]) == 4
    assert "4 images cannot be read: left out (2/00005.png: not an image" in again.stderr
    assert "warning: cannot read unlabeled/moved.png (No such file or directory): left out" in again.stderr
    assert [found["files"] for found in summary["findings"]] == [["unlabeled/moved.png"]]
    assert kept == {file: file.with_suffix(".npy").stat().st_mtime_ns for file in kept}
    same(read_folder(photos), read_shards(out, verify=True))

    damaged = out / "000007.npy"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    read_shards(out)  # pixels are not read
    with pytest.raises(MixMatchError, match=r"000007.npy is missing or damaged: the same mixmatch data shard command"):
        read_shards(out, verify=True)
    others = [out / "7a.npy", out / "2024-12.jpg"]
    for other in others:
        other.touch()
    assert shard_folder(photos, out, shard_size=6, processes=1).finished_before == 49
    assert all(other.exists() for other in others)
    same(read_folder(photos), read_shards(out, verify=True))
    (out / "000003.json").write_text("{}")
    with pytest.raises(MixMatchError, match=r"000003.json is missing or damaged"):
        read_shards(out)


GONE = "a key that was removed"
ELSEWHERE = ["../secret.png", 1, 1, None, "train"]
EDITS: list[tuple[str, dict[str, Any], str]] = [
    ("shards.json", {"shape": [10**9, 8]}, "shards.json is damaged"),
    ("shards.json", {"shape": GONE}, "shards.json is damaged"),
    ("shards.json", {"shards": 7}, "shards.json is damaged"),
    ("shards.json", {"shards": []}, "shards.json is damaged"),
    ("shards.json", {"name": ["a"]}, "shards.json is damaged"),
    ("shards.json", {"findings": [{}]}, "shards.json is damaged"),
    ("000000.json", {"entries": 5}, "000000.json is missing or damaged"),
    ("000000.json", {"entries": [ELSEWHERE]}, "000000.json is missing or damaged"),
    ("000000.json", {"headers": [{"width": -1}]}, "000000.json is missing or damaged"),
    ("000000.json", {"headers": []}, "000000.npy is missing or damaged"),
]


def test_hand_edited_files_are_one_line_and_mended(photos: Path, tmp_path: Path) -> None:
    """Also if their hashes were made right again; the same command makes what is wrong again."""
    whole = tmp_path / "whole"
    _shard(photos, whole)
    for number, (name, edit, why) in enumerate(EDITS):
        out = shutil.copytree(whole, tmp_path / str(number))
        content = {**json.loads((out / name).read_text()), **edit}
        (out / name).write_text(json.dumps({key: value for key, value in content.items() if value != GONE}))
        if name != "shards.json":
            index = json.loads((out / "shards.json").read_text())
            index["shards"][0][0] = hashlib.sha256((out / name).read_bytes()).hexdigest()
            (out / "shards.json").write_text(json.dumps(index))
        with pytest.raises(MixMatchError, match=why):
            read_shards(out)
        _shard(photos, out)
        same(read_folder(photos / "test"), read_shards(out, verify=True))


def test_what_killed_processes_left_is_removed_in_the_end(photos: Path, tmp_path: Path) -> None:
    """Not what another process is writing at this moment, nor a file that only looks like it."""
    killed, at_work, others = ([f".{name}.part" for name in names] for names in (
        (f"000001.npy.{'0' * 32}", f"shards.json.{'1' * 32}", f"000099.npy.{'2' * 32}"),
        (f"000001.npy.{'a' * 32}",),
        ("000001.npy", "notes"),
    ))  # fmt: skip
    out = tmp_path / "shards"
    begin(photos / "test", out, None, None, SHARD)
    for name in (*killed, *at_work, *others):
        (out / name).touch()
        if name not in at_work:
            os.utime(out / name, (0, 0))
    os.utime(out / at_work[0], (time.time() + 60,) * 2)
    _shard(photos, out)
    assert sorted(file.name for file in out.glob(".*")) == sorted([*at_work, *others])


def test_a_folder_without_an_image_that_can_be_read_makes_no_shards(tmp_path: Path) -> None:
    for number in range(6):
        file = tmp_path / "photos" / f"{number % 2}" / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"broken")
    with pytest.raises(MixMatchError, match=r"none of the images in .*photos can be read, for example 0/0\.png: not a"):
        shard_folder(tmp_path / "photos", tmp_path / "shards", shard_size=4, processes=1)
    with pytest.raises(MixMatchError, match="is not finished"):
        read_shards(tmp_path / "shards")


def test_pillow_does_not_warn_of_large_images(tmp_path: Path) -> None:
    (tmp_path / "photos" / "a").mkdir(parents=True)
    Image.new("1", (10_000, 9_000)).save(tmp_path / "photos" / "a" / "large.png")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        begin(tmp_path / "photos", tmp_path / "shards", None, None, SHARD)
    assert not warned


def _shard(photos: Path, out: Path) -> None:
    """As `shard_folder` does it, in this process."""
    order, count, _ = begin(photos / "test", out, None, None, SHARD)
    for number in range(count):
        decode_shard(order, number)
    finish(out, count)


def group_lives(group: int) -> bool:
    """Whether a process of a group runs. One that has ended may stay listed, if its new parent does not ask for it."""
    for process in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, own = process.read_text().rpartition(")")[2].split()[:3]
            if own == str(group) and state != "Z":
                return True
    return False


def test_what_is_refused(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    begin(photos / "test", tmp_path / "shards", None, 32, SHARD)
    for path, out, options, why in (
        (photos, "full", {}, "holds something else: choose another out="),
        (photos, "shards", {}, "holds shards of .*test: choose another out="),
        (tmp_path / "shards", "more", {}, "is a folder of shards already"),
        (photos, "new", {"shard_size": 0}, "shard_size=0 must be 1 or more"),
        (photos, "new", {"image_size": 7}, "image_size=7"),
        (tmp_path / "missing", "new", {}, "there is no folder"),
    ):
        with pytest.raises(MixMatchError, match=why):
            shard_folder(path, tmp_path / out, **options)
    with pytest.raises(MixMatchError, match="is a folder of shards: give the folder of images"):
        read_labeled(tmp_path / "shards", ("0", "1"), (1, 32, 32))
    with pytest.raises(MixMatchError, match="image_size= is not for a folder of shards"):
        mixmatch.train(tmp_path / "shards", image_size=32, out=tmp_path / "run")

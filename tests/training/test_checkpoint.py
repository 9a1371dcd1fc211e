"""Checkpoints are whole or not there: saving, every kind of damage, and a disk that takes no more."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fitting import fit
from torch import Tensor, nn

from forks import Fork
from mixmatch import networks, storage
from mixmatch.data.source import Rows, Source
from mixmatch.data.split import make_split
from mixmatch.errors import MixMatchError
from mixmatch.settings import resolve
from mixmatch.training import checkpoint
from mixmatch.training.checkpoint import Checkpoint, Damaged, list_checkpoints, load, save
from mixmatch.training.progress import Quiet
from mixmatch.training.run import RunFolder
from mixmatch.training.tensors import to_bytes
from mixmatch.training.trainer import Trainer

NAMES = ["ema.safetensors", "optimizer.safetensors", "state.json", "weights.safetensors"]


def made(step: int) -> Checkpoint:
    torch.manual_seed(step)
    return Checkpoint(
        weights={"a.weight": torch.randn(3, 2), "a.count": torch.tensor(step), "b": torch.randn(0, 4)},
        ema={"a.weight": torch.randn(3, 2)},
        optimizer={"exp_avg.a.weight": torch.randn(3, 2).to(torch.bfloat16)},
        state={"step": step, "sums": {"loss": 0.1 + step, "odd": 1e-300}, "summed": 3, "seconds": 1.25},
    )


def assert_same(a: Checkpoint, b: Checkpoint) -> None:
    assert a.state == b.state
    for part in ("weights", "ema", "optimizer"):
        x, y = getattr(a, part), getattr(b, part)
        assert x.keys() == y.keys()
        for name in x:
            assert x[name].dtype == y[name].dtype
            assert torch.equal(x[name], y[name]), name


def read_safetensors(content: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The format read by hand: a length, a JSON header, the bytes."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    kinds = {"F32": "<f4", "I64": "<i8"}
    arrays = {}
    for name, about in header.items():
        begin, end = about["data_offsets"]
        raw = content[8 + length + begin : 8 + length + end]
        arrays[name] = np.frombuffer(raw, kinds[about["dtype"]]).reshape(about["shape"])
    return metadata, arrays


# ---------------------------------------------------------------- saving


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = save(tmp_path / "checkpoint", made(12))
    assert path == tmp_path / "checkpoint" / "step-00000012"
    assert_same(load(path), made(12))
    assert load(path).step == 12


def test_it_is_plain_tensors_and_json_with_their_hashes(tmp_path: Path) -> None:
    path = save(tmp_path, made(3))
    assert sorted(p.name for p in path.iterdir()) == NAMES
    state = json.loads((path / "state.json").read_text())
    assert state["step"] == 3
    for part in ("weights", "ema", "optimizer"):
        assert state["sha256"][part] == hashlib.sha256((path / f"{part}.safetensors").read_bytes()).hexdigest()
    _, arrays = read_safetensors((path / "weights.safetensors").read_bytes())
    np.testing.assert_array_equal(arrays["a.weight"], made(3).weights["a.weight"].numpy())
    assert arrays["a.count"] == 3


def test_no_pickle_is_ever_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("pickle was used")

    for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "dump"), (pickle, "dumps")):
        monkeypatch.setattr(module, name, refuse)
    for name in ("load", "save"):
        monkeypatch.setattr(torch, name, refuse)
    for name in ("Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    assert_same(load(save(tmp_path, made(1))), made(1))
    source = Path(checkpoint.__file__).parents[1]
    for folder in ("training", "methods", "networks", "experiments"):
        for file in (source / folder).rglob("*.py"):
            assert "import pickle" not in file.read_text(), file
            assert not re.search(r"(?<!safetensors\.)torch\.load\((?!.*weights_only=True)", file.read_text()), file


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    for step in (2, 4, 10, 100):
        save(tmp_path, made(step))
    assert [p.name for p in list_checkpoints(tmp_path)] == ["step-00000100", "step-00000010"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000010", "step-00000100"]
    for step in (10, 100):
        assert_same(load(tmp_path / f"step-{step:08d}"), made(step))


def test_steps_of_nine_digits_come_after_those_of_eight(tmp_path: Path) -> None:
    (tmp_path / "step-of-someone-else").mkdir()
    for step in (99_999_998, 99_999_999, 100_000_000):
        save(tmp_path, made(step))
    assert [p.name for p in list_checkpoints(tmp_path)] == ["step-100000000", "step-99999999"]


def test_a_step_saved_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, made(1))
    save(tmp_path, made(2))
    changed = Checkpoint({"w": torch.ones(1)}, {}, {}, {"step": 2})
    assert_same(load(save(tmp_path, changed)), changed)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]


def test_going_back_to_an_older_one_forgets_what_came_after_it(tmp_path: Path) -> None:
    """Else a checkpoint at step 12 would be removed for those of 20 and 15, which are of a past that is no more."""
    run = RunFolder(tmp_path)
    for step in (15, 20):
        save(run.checkpoints, made(step))
    run.forget_after(15)
    assert [p.name for p in list_checkpoints(run.checkpoints)] == ["step-00000015"]
    save(run.checkpoints, made(17))
    assert [p.name for p in list_checkpoints(run.checkpoints)] == ["step-00000017", "step-00000015"]


def test_views_and_shared_memory_can_be_saved(tmp_path: Path) -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    weights = {"whole": whole, "same": whole, "turned": whole.T, "part": whole[1:]}
    found = load(save(tmp_path, Checkpoint(weights, {}, {}, {"step": 0}))).weights
    for name, value in weights.items():
        assert torch.equal(found[name], value)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("at", NAMES)
def test_a_failure_at_any_file_leaves_the_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, at: str
) -> None:
    save(tmp_path, made(1))
    save(tmp_path, made(2))
    write = checkpoint.write_durably

    def fail(path: Path, content: bytes) -> None:
        write(path, content[: len(content) // 2] if path.name == at else content)
        if path.name == at:
            raise error

    monkeypatch.setattr(checkpoint, "write_durably", fail)
    with pytest.raises(type(error)):
        save(tmp_path, made(3))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]
    for step in (1, 2):
        assert_same(load(tmp_path / f"step-{step:08d}"), made(step))


def test_what_a_killed_process_left_is_not_a_checkpoint_and_is_cleaned_up(tmp_path: Path) -> None:
    save(tmp_path, made(1))
    (tmp_path / ".writing").mkdir()
    (tmp_path / ".writing" / "weights.safetensors").write_bytes(b"half")
    assert [p.name for p in list_checkpoints(tmp_path)] == ["step-00000001"]
    save(tmp_path, made(2))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]


def test_wrn_28_2_fits_files_of_16_mib(tmp_path: Path) -> None:
    network = networks.build("wrn-28-2", 10)
    parameters = dict(network.named_parameters())
    moments: dict[str, Tensor] = {f"{m}.{n}": p for m in ("exp_avg", "exp_avg_sq") for n, p in parameters.items()}
    path = save(tmp_path, Checkpoint(network.state_dict(), parameters, moments, {"step": 1}))
    sizes = {p.name: p.stat().st_size for p in path.iterdir()}
    assert sizes["optimizer.safetensors"] > 2 * 4 * 1_469_642  # two moments of each parameter in float32
    assert max(sizes.values()) < 16 * 2**20


# ---------------------------------------------------------------- damage


def two(tmp_path: Path) -> tuple[RunFolder, Path]:
    run = RunFolder(tmp_path)
    save(run.checkpoints, made(7))
    return run, save(run.checkpoints, made(9))


def assert_refused(run: RunFolder, path: Path, *words: str) -> None:
    """As `Damaged`, and to the user with the file, the reason and the older one, which still loads."""
    with pytest.raises(Damaged) as damaged:
        load(path)
    with pytest.raises(MixMatchError) as told:
        run.load_checkpoint()
    assert str(path) in str(told.value)
    assert "checkpoint=step-00000007" in str(told.value)
    for word in words:
        assert word in str(damaged.value)
        assert word in str(told.value)
    assert "\n" not in str(told.value)
    older = run.load_checkpoint("step-00000007")
    assert older is not None
    assert_same(older, made(7))


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file(tmp_path: Path, name: str) -> None:
    run, path = two(tmp_path)
    (path / name).unlink()
    assert_refused(run, path, name, "missing")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("keep", [0, 0.5, -1])
def test_a_truncated_file(tmp_path: Path, name: str, keep: float) -> None:
    run, path = two(tmp_path)
    content = (path / name).read_bytes()
    (path / name).write_bytes(content[: int(len(content) * keep) if keep >= 0 else -1])
    assert_refused(run, path, name)


@pytest.mark.parametrize("name", ["weights.safetensors", "ema.safetensors", "optimizer.safetensors"])
@pytest.mark.parametrize("where", [0, 20, -1])
def test_a_flipped_byte(tmp_path: Path, name: str, where: int) -> None:
    run, path = two(tmp_path)
    content = bytearray((path / name).read_bytes())
    content[where] ^= 1
    (path / name).write_bytes(content)
    assert_refused(run, path, name, "not what was written")


def test_any_flipped_byte_of_the_state_is_noticed(tmp_path: Path) -> None:
    """A number or a name changed by one bit must not train on as if nothing had happened."""
    path = save(tmp_path, made(9))
    content = (path / "state.json").read_bytes()
    refused = 0
    for i in range(len(content)):
        for bit in (1, 2, 16, 128):
            (path / "state.json").write_bytes(content[:i] + bytes([content[i] ^ bit]) + content[i + 1 :])
            try:
                found = load(path)
            except Damaged:
                refused += 1
            else:
                assert_same(found, made(9))  # white space
    assert refused > 3 * len(content)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"step": 9}', '{"step": 9, "sha256": []}', "\xff"])
def test_bad_json(tmp_path: Path, text: str) -> None:
    run, path = two(tmp_path)
    (path / "state.json").write_bytes(text.encode("latin1"))
    assert_refused(run, path, "state.json")


def test_a_checkpoint_under_another_steps_name(tmp_path: Path) -> None:
    run, path = two(tmp_path)
    path = path.rename(path.with_name("step-00000011"))
    assert_refused(run, path, "state.json is of step 9")


def test_a_file_exchanged_for_another_checkpoints(tmp_path: Path) -> None:
    run, path = two(tmp_path)
    (path / "ema.safetensors").write_bytes((run.checkpoints / "step-00000007" / "ema.safetensors").read_bytes())
    assert_refused(run, path, "ema.safetensors is not what was written")


def test_damage_without_an_older_one(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    path = save(run.checkpoints, made(5))
    (path / "ema.safetensors").unlink()
    with pytest.raises(MixMatchError, match=r"ema\.safetensors is missing; there is no older one; start again"):
        run.load_checkpoint()


def test_checkpoints_by_name(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert run.load_checkpoint() is None
    with pytest.raises(MixMatchError, match=r"has no checkpoint 'step-00000001' \(there is: none\)"):
        run.load_checkpoint("step-00000001")
    save(run.checkpoints, made(7))
    save(run.checkpoints, made(9))
    newest, named = run.load_checkpoint(), run.load_checkpoint("step-00000007")
    assert newest is not None
    assert named is not None
    assert (newest.step, named.step) == (9, 7)
    with pytest.raises(MixMatchError, match=r"there is: step-00000009, step-00000007"):
        run.load_checkpoint("latest")


# ---------------------------------------------------------------- real processes


def fill_the_disk(folder: Path, at: int) -> None:
    """Train in a process that can write no more at a step."""
    import resource

    class FillsUp(Quiet):
        def steps(self, step: int, values: Any) -> None:
            if step == at:
                resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    rng = np.random.default_rng(0)
    images = Rows(rng.integers(0, 256, (20, 4, 4, 1), np.uint8), np.arange(20) % 2)
    source = Source("tiny", ("a", "b"), images, images)
    given = {"method": "supervised", "labels": 4, "steps": 6, "batch_size": 4, "pad": 1, "eval_every": 2}
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 200), nn.ReLU(), nn.Linear(200, 2))
    trainer = Trainer(resolve("tiny", given), source, make_split(source, 4, 1), network, torch.device("cpu"))
    try:
        fit(trainer, RunFolder(folder), FillsUp(), checkpoint_every=2)
    except MixMatchError as error:
        print(error, file=sys.stderr)


@pytest.mark.skipif(os.name != "posix", reason="limits the size of files with setrlimit")
@pytest.mark.parametrize(
    ("full_at", "left", "told"),
    [
        (6, ["step-00000002", "step-00000004"], "the last checkpoint, step 4, is intact"),
        (2, [], "nothing was saved yet"),
    ],
)
def test_a_disk_that_takes_no_more(tmp_path: Path, full_at: int, left: list[str], told: str) -> None:
    run = tmp_path / "run"
    run.mkdir()
    assert Fork(fill_the_disk, run, full_at, output=tmp_path / "said").ended(120) == (
        0, f"cannot write to {run} (File too large): {told}; make room, then continue with resume=True\n"
    )  # fmt: skip
    assert sorted(p.name for p in (run / "checkpoint").iterdir()) == left
    for name in left:
        assert load(run / "checkpoint" / name).state["evaluations"] == int(name[-1]) // 2


MAKE_BYTES = """if True:
    import sys, torch
    from mixmatch.training.tensors import to_bytes
    tensors = {"b": torch.arange(6.0).reshape(2, 3), "a": torch.tensor(3)}
    metadata = {name: name * 3 for name in ("zeta", "format", "classes", "input_shape", "normalization", "network")}
    sys.stdout.buffer.write(to_bytes(tensors, metadata))
"""


def test_the_same_content_is_the_same_bytes_in_every_process() -> None:
    made = {
        subprocess.run(
            [sys.executable, "-c", MAKE_BYTES],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in range(2)
    }
    assert len(made) == 1
    metadata, arrays = read_safetensors(made.pop())
    assert list(metadata) == ["classes", "format", "input_shape", "network", "normalization", "zeta"]
    assert metadata["zeta"] == "zetazetazeta"
    np.testing.assert_array_equal(arrays["b"], [[0, 1, 2], [3, 4, 5]])
    assert arrays["a"] == 3


def test_bytes_do_not_depend_on_the_order_of_the_metadata_and_the_data_is_aligned() -> None:
    tensors = {"x": torch.ones(3)}
    for length in range(9):  # the header is filled up to a multiple of 8, as the format asks
        metadata = {"k": "v" * length, "a": "1"}
        content = to_bytes(tensors, metadata)
        assert content == to_bytes(tensors, dict(reversed(metadata.items())))
        assert int.from_bytes(content[:8], "little") % 8 == 0
        found, arrays = read_safetensors(content)
        assert found == metadata
        np.testing.assert_array_equal(arrays["x"], np.ones(3, np.float32))
    assert read_safetensors(to_bytes(tensors))[0] == {}


def test_replacing_a_file_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    storage.replace_durably(path, b"old")

    def fail(path: Path, content: bytes, mode: int) -> None:
        path.write_bytes(content[:1])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(storage, "write_durably", fail)
        with pytest.raises(OSError, match="No space"):
            storage.replace_durably(path, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]
    assert path.read_bytes() == b"old"
    storage.replace_durably(path, b"new")
    assert path.read_bytes() == b"new"


def test_writing_follows_no_link(tmp_path: Path) -> None:
    """Not one that lies where a file is to be, and not one under any name that could be foreseen."""
    outside = tmp_path / "outside"
    outside.write_bytes(b"mine")
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("result.json", ".result.json.writing", ".result.json.part"):
        (folder / name).symlink_to(outside)
    storage.replace_durably(folder / "result.json", b"new")
    assert outside.read_bytes() == b"mine"
    assert not (folder / "result.json").is_symlink()
    assert (folder / "result.json").read_bytes() == b"new"
    (folder / "there").symlink_to(outside)
    with pytest.raises(FileExistsError):
        storage.write_durably(folder / "there", b"new")
    assert outside.read_bytes() == b"mine"


@pytest.mark.parametrize(
    "state",
    [
        {"machines": [[]]},
        {"machines": 3},
        {"seconds": "1"},
        {"evaluations": -1},
        {"summed": 1e300},
        {"sums": {"a": []}},
    ],
)
def test_a_state_that_no_run_has_written_under_hashes_that_fit(tmp_path: Path, state: dict[str, object]) -> None:
    now = made(3)
    now.state.update(state)
    path = save(tmp_path, now)
    with pytest.raises(Damaged, match="no run"):
        load(path)

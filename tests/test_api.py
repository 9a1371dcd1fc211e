"""`mixmatch.train` and `mixmatch.load` on arrays and a network of one's own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

import mixmatch
from mixmatch.data.source import UNKNOWN, Rows, Source
from mixmatch.data.split import make_split
from mixmatch.errors import MixMatchError
from mixmatch.methods.base import Batch, Method, Step, setting
from mixmatch.methods.mixmatch import MixMatch
from mixmatch.settings import resolve
from mixmatch.training import record as records
from mixmatch.training import session
from mixmatch.training.device import COMPILE_FROM, default_precision, default_speed
from mixmatch.training.progress import Quiet
from mixmatch.training.run import RunFolder
from mixmatch.training.stop import Interrupted
from mixmatch.training.trainer import Trainer

CLASSES = ("cat", "dog", "elk")
TINY: dict[str, Any] = {"labels": 6, "batch_size": 5, "pad": 1, "steps": 11, "eval_every": 4, "ema_decay": 0.8}


def tiny_source(count: int = 40, name: str = "tiny") -> Source:
    """Classes differ by brightness, rows from columns."""
    rng = np.random.default_rng(0)

    def part(count: int) -> Rows:
        labels = np.arange(count) % 3
        images = rng.integers(0, 120, (count, 6, 5, 2)) + 60 * labels[:, None, None, None]
        return Rows(images.astype(np.uint8), labels.astype(np.int64))

    return Source(name, CLASSES, part(count), part(90))


class Network(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(2, width, 3)
        self.norm = nn.BatchNorm2d(width)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(torch.relu(self.norm(self.conv(x)))).mean(dim=(2, 3)))


def train(out: Path, network: nn.Module | str | None = None, **given: Any) -> dict[str, Any]:
    data = given.pop("data", None) or tiny_source()
    return mixmatch.train(
        data, out=out, network=network or Network(), **{"reporter": Quiet(), "device": "cpu", **TINY, **given}
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run. Not to be written to."""
    out = tmp_path_factory.mktemp("api") / "deep" / "run"
    train(out)
    return out


class StopAt(Quiet):
    def __init__(self, step: int) -> None:
        self.step = step

    def steps(self, step: int, values: Mapping[str, float]) -> None:
        if step >= self.step:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """The folder of a run stopped at step 4, before its evaluation."""
    with pytest.raises(Interrupted):
        train(tmp_path / "run", reporter=StopAt(4))
    return tmp_path / "run"


def test_the_public_names_are_imported_when_they_are_used() -> None:
    code = """
import sys, mixmatch
assert not {"torch", "numpy", "sklearn"} & sys.modules.keys()
assert set(mixmatch.__all__) <= set(dir(mixmatch))
for name in mixmatch.__all__:
    assert getattr(mixmatch, name)
assert mixmatch.functional is sys.modules["mixmatch.functional"]
assert mixmatch.methods.METHODS
assert not hasattr(mixmatch, "nothing")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# ---------------------------------------------------------------- train


def test_the_record_tells_what_was_done(finished: Path) -> None:
    record = json.loads((finished / "result.json").read_text())
    assert record["data"] == "tiny"
    assert (record["method"], record["labels"], record["seed"], record["steps"]) == ("mixmatch", 6, 1, 11)
    assert [point["step"] for point in record["curve"]] == [4, 8, 11]
    errors = [point["error"] for point in record["curve"]]
    assert record["error"] == sorted(errors)[1]
    assert (record["last_error"], record["median_of"]) == (errors[-1], 3)
    assert record["settings"]["network"] == "custom:Network"
    assert record["split"] == {"hash": record["split"]["hash"], "labeled": 6, "unlabeled": 34, "valid": 0, "test": 90}
    assert record["versions"]["torch"] == torch.__version__
    config = json.loads((finished / "config.json").read_text())
    assert config["classes"] == list(CLASSES)
    assert config["input_shape"] == [2, 6, 5]
    assert len(set(config["split"]["labeled_rows"])) == 6


def test_a_finished_run_gives_its_record_again_and_does_nothing(finished: Path) -> None:
    class Fails(Quiet):
        def start(self, title: str, step: int, total: int) -> None:
            raise AssertionError("it trains")

    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file()}
    record = train(finished, resume=True, reporter=Fails())
    assert record == {k: v for k, v in json.loads((finished / "result.json").read_text()).items() if k != "format"}
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file()} == before


def test_a_folder_with_a_run_is_not_written_to_without_resume(finished: Path) -> None:
    with pytest.raises(MixMatchError, match="holds a run already: continue it with resume=True") as caught:
        train(finished)
    assert str(finished) in str(caught.value)


def test_resuming_with_other_settings_lists_them(finished: Path) -> None:
    with pytest.raises(MixMatchError) as caught:
        train(finished, resume=True, steps=20, lambda_u=3.0)
    assert "was made with other settings (steps: 11 -> 20; lambda_u: 100.0 -> 3.0)" in str(caught.value)
    with pytest.raises(MixMatchError, match="method: mixmatch -> supervised"):
        train(finished, resume=True, method="supervised")
    with pytest.raises(MixMatchError, match="data: tiny -> other"):
        train(finished, resume=True, data=tiny_source(name="other"))
    with pytest.raises(MixMatchError, match="network: custom:Network -> custom:Linear"):
        train(finished, resume=True, network=nn.Linear(1, 1))


@pytest.mark.parametrize("stop", [False, True])
def test_a_run_can_be_taken_further_and_ends_as_a_longer_one(tmp_path: Path, stop: bool) -> None:
    """Finished at step 8 and taken on to 14; or stopped before 4 of 11, and ended at 14 all the same."""
    whole, ours = tmp_path / "whole", tmp_path / "ours"
    record = train(whole, steps=14)
    if stop:
        with pytest.raises(Interrupted):
            train(ours, reporter=StopAt(3))
    else:
        assert train(ours, steps=8)["steps"] == 8
    further = train(ours, steps=14, resume=True)
    assert further["curve"] == record["curve"]
    assert (further["steps"], further["settings"]) == (14, record["settings"])
    assert (ours / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert RunFolder(ours).config() == RunFolder(whole).config()
    assert train(ours, steps=14, resume=True) == further == train(ours, resume=True, steps=None)


def test_a_run_can_be_ended_where_it_stands_but_not_before(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        train(tmp_path, reporter=StopAt(6))
    step = RunFolder(tmp_path).load_checkpoint().step  # type: ignore[union-attr]
    assert 6 <= step < 11
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(MixMatchError, match=f"has taken {step} steps already: it cannot end after 5"):
        train(tmp_path, resume=True, steps=5)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    record = train(tmp_path, resume=True, steps=step)
    assert record["steps"] == record["curve"][-1]["step"] == step


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"schedule": "cosine"}, "its schedule=cosine depends on the number of steps"),
        ({"method": "pi-model"}, "its warmup=0.4 depends on the number of steps"),
    ],
)
def test_what_follows_the_number_of_steps_cannot_be_taken_further(tmp_path: Path, given: Any, why: str) -> None:
    train(tmp_path, **given)
    with pytest.raises(MixMatchError, match=f"was made for 11 steps, not 20: {why}"):
        train(tmp_path, resume=True, steps=20, **given)


def test_the_record_names_every_machine(stopped: Path, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "machines" not in json.loads((finished / "result.json").read_text())["hardware"]
    here = RunFolder(stopped).load_checkpoint().state["machines"]  # type: ignore[union-attr]
    assert [machine["from_step"] for machine in here] == [0]
    monkeypatch.setattr(records, "machine_name", lambda device: "another")
    hardware = train(stopped, resume=True)["hardware"]
    assert hardware["name"] == "another"
    assert hardware["machines"] == [*here, {"from_step": 4, "name": "another"}]
    assert records.on_machines(None, 7, torch.device("cpu")) == [
        {"from_step": 0, "name": "unknown"},  # its checkpoint is of an earlier version
        {"from_step": 7, "name": "another"},
    ]


def test_settings_need_not_be_repeated_to_resume(finished: Path) -> None:
    record = mixmatch.train(tiny_source(), out=finished, resume=True, reporter=Quiet(), device="cpu")
    assert record["settings"]["batch_size"] == 5


def test_a_stopped_run_resumes_to_the_same_file(stopped: Path, finished: Path) -> None:
    assert not (stopped / "result.json").exists()
    record = train(stopped, resume=True)
    assert (stopped / "model.safetensors").read_bytes() == (finished / "model.safetensors").read_bytes()
    assert record["curve"] == json.loads((finished / "result.json").read_text())["curve"]


def test_resuming_in_an_empty_place_begins(tmp_path: Path, finished: Path) -> None:
    train(tmp_path / "new", resume=True)
    assert (tmp_path / "new" / "model.safetensors").read_bytes() == (finished / "model.safetensors").read_bytes()


def test_going_back_to_a_named_checkpoint(tmp_path: Path, finished: Path) -> None:
    train(tmp_path, checkpoint_every=4)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(MixMatchError, match=r"no checkpoint 'step-00000003' \(there is: step-00000011, step-00000008"):
        train(tmp_path, resume=True, checkpoint="step-00000003")
    train(tmp_path, resume=True, checkpoint="step-00000008")
    assert (tmp_path / "model.safetensors").read_bytes() == (finished / "model.safetensors").read_bytes()
    assert [record["step"] for record in RunFolder(tmp_path).metrics()] == [4, 8, 11]


def test_data_that_changed_since_is_refused(stopped: Path) -> None:
    with pytest.raises(MixMatchError, match="the data has changed since"):
        train(stopped, resume=True, data=tiny_source(count=44))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"classes": ("dog", "cat", "elk")}, "classes cat, dog, elk -> dog, cat, elk"),
        ({"images": np.s_[:, :, :4]}, r"inputs of shape \(2, 6, 5\) -> \(2, 6, 4\)"),
        ({"labels": (1, 2)}, "other labels"),
        ({"labels": (39, UNKNOWN)}, "other labels"),
    ],
)
def test_data_of_the_same_split_that_changed_since(stopped: Path, change: Any, what: str) -> None:
    source = tiny_source()
    train_, test = source.train, source.test
    if "images" in change:
        train_, test = (Rows(part.inputs[change["images"]], part.labels) for part in (train_, test))
    if "labels" in change:
        row, label = change["labels"]
        train_ = Rows(train_.inputs, np.where(np.arange(len(train_)) == row, label, train_.labels))
    split = make_split(source, TINY["labels"], seed=1)
    assert split.hash == RunFolder(stopped).config()["split"]["hash"]  # so this alone would not tell
    changed = Source("tiny", change.get("classes", CLASSES), train_, test)
    before = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}
    with pytest.raises(MixMatchError, match=f"the data has changed since .* \\({what}\\)"):
        train(stopped, resume=True, data=changed, split=split)
    assert {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()} == before


def test_the_hash_of_labels_of_an_earlier_version_is_not_missed(stopped: Path) -> None:
    config = RunFolder(stopped).config()
    del config["labels_sha256"]
    RunFolder(stopped).write_config(config)
    assert train(stopped, resume=True)["steps"] == 11


def test_a_checkpoint_of_a_run_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MixMatchError, match="holds no run, so it has no checkpoint 'step-00000008'"):
        train(tmp_path / "new", resume=True, checkpoint="step-00000008")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("other", ["began", "finished"])
def test_another_process_in_the_folder_meanwhile(
    tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """Between looking into the folder and locking it there is time: data is read."""
    out = tmp_path / "run"
    if other == "finished":
        with pytest.raises(Interrupted):
            train(out, reporter=StopAt(4))
    meanwhile = session.Trainer

    def slowly(*arguments: Any, **options: Any) -> Trainer:
        shutil.copytree(finished, out, dirs_exist_ok=True)
        return meanwhile(*arguments, **options)

    monkeypatch.setattr(session, "Trainer", slowly)
    with pytest.raises(MixMatchError, match=r"another process has worked in .* meanwhile"):
        train(out, resume=True)
    assert (out / "result.json").read_bytes() == (finished / "result.json").read_bytes()


def test_a_network_that_changed_since_is_refused(stopped: Path) -> None:
    with pytest.raises(MixMatchError, match="is of another network"):
        train(stopped, resume=True, network=Network(width=9))


def test_a_network_from_outside_has_to_be_given_again(stopped: Path) -> None:
    with pytest.raises(MixMatchError, match="network of your own, Network: pass it"):
        mixmatch.train(tiny_source(), out=stopped, resume=True, reporter=Quiet(), device="cpu")


def test_the_folder_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train(None, method="supervised", steps=1, seed=3)  # type: ignore[arg-type]
    assert (tmp_path / "runs" / "tiny-supervised-6-seed3" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lamda_u": 3}, "did you mean 'lambda_u'"),
        ({"labels": 41}, "41 labels asked for, but there are only 40"),
        ({"labels": "all"}, "no unlabeled images are left"),
        ({"pad": 5}, "pad must be between 0 and 4"),
        ({"network": "wrn-29-2"}, "network 'wrn-29-2'"),
        ({"checkpoint_every": 0}, "checkpoint_every=0 must be 1 or more"),
        ({"device": "tpu"}, "unknown device 'tpu': use auto, cpu, cuda or mps"),
        ({"device": "cpu:x"}, "unknown device 'cpu:x'"),
    ],
)
def test_what_is_refused_leaves_no_folder(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(MixMatchError, match=message):
        train(tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_a_device_that_is_not_there(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(MixMatchError, match="device 'cuda' is not available here: use device=cpu"):
        train(tmp_path / "run", device="cuda")
    with pytest.raises(MixMatchError, match="device 'cuda:0' is not available here"):
        mixmatch.load(finished, device="cuda:0", network=Network())


def test_settings_of_none_are_as_if_not_given(tmp_path: Path) -> None:
    record = train(tmp_path, method="supervised", steps=1, learning_rate=None, seed=None)
    assert (record["settings"]["learning_rate"], record["seed"]) == (0.002, 1)


def test_random_numbers_of_the_caller_are_left_alone(tmp_path: Path) -> None:
    network = Network()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(tmp_path, network=network, steps=2)
    assert torch.equal(torch.rand(3), expected)


def test_a_reporter_is_told(tmp_path: Path) -> None:
    told: list[Any] = []

    class Tells(Quiet):
        def start(self, title: str, step: int, total: int) -> None:
            told.append((step, total))

        def evaluated(self, record: Mapping[str, Any]) -> None:
            told.append(record["step"])

        def close(self) -> None:
            told.append("closed")

    train(tmp_path, reporter=Tells())
    assert told == [(0, 11), 4, 8, 11, "closed"]


def test_a_network_by_name(tmp_path: Path) -> None:
    train(tmp_path, network="wrn-10-1", steps=2)
    classifier = mixmatch.load(tmp_path, device="cpu")
    source = tiny_source()
    names = classifier.predict(source.test.inputs)
    wrong = 100 * np.mean([name != CLASSES[label] for name, label in zip(names, source.test.labels, strict=True)])
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["last_error"] == pytest.approx(wrong)


@dataclass(frozen=True)
class Alone(Method):
    """A method from outside the package: the labeled loss, scaled."""

    scale: float = setting(1.0, "Factor of the loss.", above=0)

    def loss(self, model: Any, batch: Batch, draws: Any, progress: Any, state: Any) -> Step:
        loss = -(batch.y * model(batch.x, stats="update").log_softmax(1)).sum(1).mean()
        return Step(self.scale * loss, {})


def test_a_method_from_outside(tmp_path: Path) -> None:
    record = train(tmp_path, method=Alone(2.0), steps=3)
    assert record["method"] == "custom:Alone"
    assert record["settings"]["method_settings"] == {"scale": 2.0}
    assert train(tmp_path, method=Alone(2.0), steps=5, resume=True)["steps"] == 5
    with pytest.raises(MixMatchError, match=r"other settings \(scale: 2.0 -> 3.0\)"):
        train(tmp_path, method=Alone(3.0), resume=True, steps=5)
    with pytest.raises(MixMatchError, match="method: custom:Alone -> ict"):
        train(tmp_path, method="ict", resume=True, steps=5)
    with pytest.raises(MixMatchError, match=r"Alone is not part of mixmatch: pass the object, train\(method=Alone"):
        train(tmp_path, resume=True, steps=5)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (Alone, r"method=Alone is a class: give an object of it, Alone\(...\)"),
        (["mixmatch"], r"unknown method '\['mixmatch'\]'"),
        ("custom:Alone", "Alone is not part of mixmatch"),
    ],
)
def test_what_is_not_a_method(tmp_path: Path, method: Any, message: str) -> None:
    with pytest.raises(MixMatchError, match=message):
        train(tmp_path / "run", method=method)
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------- settings from a file


def test_settings_of_another_run(tmp_path: Path, finished: Path) -> None:
    """The network of that run is from outside, and given again; the data is not taken from the file."""
    options: dict[str, Any] = {"config": finished / "config.json", "reporter": Quiet(), "device": "cpu"}
    mixmatch.train(tiny_source(), out=tmp_path / "same", network=Network(), **options)
    assert (tmp_path / "same" / "model.safetensors").read_bytes() == (finished / "model.safetensors").read_bytes()
    record = mixmatch.train(
        tiny_source(name="other"), out=tmp_path / "other", network=Network(), steps=2, lambda_u=3.0, **options
    )
    before = RunFolder(finished).config()["settings"]
    assert record["settings"] == {
        **before,
        "data": "other",
        "steps": 2,
        "method_settings": {**before["method_settings"], "lambda_u": 3.0},
    }


def test_settings_of_a_run_of_another_method(tmp_path: Path, finished: Path) -> None:
    """Those of the run are taken, those of its method are not."""
    options: dict[str, Any] = {"config": finished / "config.json", "reporter": Quiet(), "device": "cpu"}
    record = mixmatch.train(tiny_source(), out=tmp_path / "run", network=Network(), method="ict", **options)
    assert (record["method"], record["settings"]["batch_size"]) == ("ict", 5)
    assert record["settings"]["method_settings"] == resolve("tiny", {"method": "ict"}).method_settings
    same = mixmatch.train(
        tiny_source(), out=tmp_path / "same", network=Network(), method=MixMatch(lambda_u=3.0), **options
    )
    assert same["settings"]["method_settings"]["lambda_u"] == 3.0


def test_a_network_that_a_file_names_has_to_be_given(tmp_path: Path, finished: Path) -> None:
    with pytest.raises(MixMatchError, match="network of your own, Network: pass it"):
        mixmatch.train(tiny_source(), out=tmp_path / "run", config=finished / "config.json", device="cpu")
    assert not (tmp_path / "run").exists()


def test_settings_in_toml(tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text('method = "pi-model"\nconsistency_weight = 3\nsteps = 9\nlabels = 6\nbatch_size = 5\npad = 1\n')
    record = mixmatch.train(
        tiny_source(),
        out=tmp_path / "run",
        network=Network(),
        config=str(file),
        steps=2,
        reporter=Quiet(),
        device="cpu",
    )
    settings = record["settings"]
    assert (settings["method"], settings["steps"], settings["batch_size"]) == ("pi-model", 2, 5)
    assert settings["method_settings"]["consistency_weight"] == 3.0


def test_what_comes_from_a_file_counts_as_given(tmp_path: Path, finished: Path) -> None:
    """On resume it must not contradict the run."""
    file = tmp_path / "other.toml"
    file.write_text("batch_size = 7\n")
    with pytest.raises(MixMatchError, match="other settings \\(batch_size: 5 -> 7\\)"):
        mixmatch.train(tiny_source(), out=finished, network=Network(), resume=True, config=file, device="cpu")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("colour = 3", "unknown setting 'colour'"),
        ("steps = 0", "steps=0 must be a whole number of at least 1"),
        ('method = "ict"\nK = 3', "method 'ict' has no setting K="),
        ("steps = = 3", "bad.toml is not a file of settings"),
        ("", "bad.toml holds no settings"),
        ("[data_options]\nimage_size = 8", "image_size= is for your own data, not for 'tiny'"),
        (None, "bad.toml cannot be read: No such file"),
    ],
)
def test_files_of_settings_that_are_refused(tmp_path: Path, content: str | None, message: str) -> None:
    file = tmp_path / "bad.toml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(MixMatchError) as caught:
        mixmatch.train(tiny_source(), out=tmp_path / "run", network=Network(), config=file, device="cpu")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------- how fast


def test_how_steps_are_taken() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    short, long = COMPILE_FROM - 1, COMPILE_FROM
    for compile in (True, False):
        for where in (cpu, cuda):
            assert default_speed(short, where, compile) == (compile, compile)
    assert default_speed(long, cpu, None) == (False, False)
    assert default_speed(short, cuda, None) == (False, True)
    assert default_speed(long, cuda, None) == (True, True)


@pytest.mark.parametrize(
    ("first", "then", "expected"), [(True, None, True), (False, None, False), (True, False, False)]
)
def test_a_run_continues_as_it_was_begun(
    first: bool, then: bool | None, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[bool, bool]] = []

    class Noted(Trainer):
        def __init__(self, *args: Any, compile: bool, graph: bool, **options: Any) -> None:
            seen.append((compile, graph))
            super().__init__(*args, **options)

    monkeypatch.setattr(session, "Trainer", Noted)
    with pytest.raises(Interrupted):
        train(tmp_path / "run", reporter=StopAt(4), compile=first)
    train(tmp_path / "run", resume=True, compile=then)
    assert seen == [(first, first), (expected, expected)]
    assert RunFolder(tmp_path / "run").config()["compile"] is first


@pytest.mark.parametrize(
    ("device", "network", "shape", "known", "expected"),
    [
        ("cuda", "wrn-28-2", (3, 32, 32), False, "bf16"),
        ("cuda", "wrn-small", (1, 8, 8), False, "bf16"),
        ("cuda", "mlp", (64,), True, "fp32"),
        ("cuda", "custom:Network", (64,), True, "fp32"),
        ("cpu", "wrn-28-2", (3, 32, 32), True, "bf16"),
        ("cpu", "wrn-28-2", (3, 32, 32), False, "fp32"),
        ("cpu", "wrn-28-2", (3, 24, 23), True, "fp32"),
        ("mps", "wrn-28-2", (3, 32, 32), True, "fp32"),
    ],
)
def test_the_default_precision(
    device: str, network: str, shape: tuple[int, ...], known: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: known, raising=False)
    settings = replace(resolve("digits", {}), network=network)
    assert default_precision(settings, torch.device(device), shape) == expected


# ---------------------------------------------------------------- load and predict


def by_hand(weights: Mapping[str, Tensor], images: np.ndarray) -> np.ndarray:
    """Probabilities in float64."""
    network = Network().double()
    network.load_state_dict({name: value.double() for name, value in weights.items()})
    network.eval()
    x = torch.from_numpy((images.astype(np.float64) * 2 / 255 - 1).transpose(0, 3, 1, 2).copy())
    with torch.no_grad():
        logits = network(x).numpy()
    e = np.exp(logits - logits.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def test_the_classifier_is_the_averaged_model(finished: Path) -> None:
    classifier = mixmatch.load(finished, network=Network(), device="cpu")
    assert classifier.classes == CLASSES
    assert classifier.input_shape == (2, 6, 5)
    source = tiny_source()
    found = classifier.predict_proba(source.test.inputs)
    assert found.shape == (90, 3)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-12)
    saved = RunFolder(finished).load_checkpoint()
    assert saved is not None
    expected = by_hand({**saved.weights, **saved.ema}, source.test.inputs)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(by_hand(saved.weights, source.test.inputs) - expected).max() > 1e-3
    names = classifier.predict(source.test.inputs)
    assert names == [CLASSES[c] for c in expected.argmax(axis=1)]
    wrong = np.mean([name != CLASSES[label] for name, label in zip(names, source.test.labels, strict=True)])
    assert json.loads((finished / "result.json").read_text())["last_error"] == pytest.approx(100 * wrong)


def test_from_the_file_itself(finished: Path) -> None:
    images = tiny_source().test.inputs
    a = mixmatch.load(str(finished / "model.safetensors"), network=Network()).predict_proba(images)
    np.testing.assert_array_equal(a, mixmatch.load(finished, network=Network()).predict_proba(images))


def test_one_image_or_none(finished: Path) -> None:
    classifier = mixmatch.load(finished, network=Network())
    images = tiny_source().test.inputs
    np.testing.assert_allclose(classifier.predict_proba(images[3:4])[0], classifier.predict_proba(images)[3], atol=1e-6)
    assert classifier.predict_proba(images[:0]).shape == (0, 3)
    assert classifier.predict(images[:0]) == []


@pytest.mark.parametrize(
    "images",
    [np.zeros((2, 6, 5, 2)), np.zeros((2, 5, 6, 2), np.uint8), np.zeros((6, 5, 2), np.uint8)],
)
def test_other_images_are_refused(finished: Path, images: Any) -> None:
    with pytest.raises(MixMatchError, match=r"takes uint8 images of shape \(N, 6, 5, 2\), not"):
        mixmatch.load(finished, network=Network()).predict_proba(images)


def test_the_file_tells_what_it_takes_to_use_it(finished: Path) -> None:
    with safetensors.safe_open(finished / "model.safetensors", framework="np") as file:
        about = file.metadata()
    assert json.loads(about["classes"]) == ["cat", "dog", "elk"]
    assert json.loads(about["input_shape"]) == [2, 6, 5]
    assert about["normalization"] == "pixel * 2 / 255 - 1"
    assert about["network"] == "custom:Network"


def test_an_unfinished_run_gives_its_checkpoint(stopped: Path) -> None:
    images = tiny_source().test.inputs
    saved = RunFolder(stopped).load_checkpoint()
    assert saved is not None
    assert saved.step == 4
    classifier = mixmatch.load(stopped, network=Network(), device="cpu")
    assert classifier.classes == CLASSES
    expected = by_hand({**saved.weights, **saved.ema}, images)
    np.testing.assert_allclose(classifier.predict_proba(images), expected, atol=1e-5)
    with pytest.raises(MixMatchError, match="network of your own, Network: pass it, load"):
        mixmatch.load(stopped)
    with pytest.raises(MixMatchError, match="does not fit its network"):
        mixmatch.load(stopped, network=Network(width=9))


@pytest.mark.parametrize("given", [{"steps": 20}, {"checkpoint": "step-00000004"}])
def test_a_run_that_goes_on_after_its_end_gives_its_checkpoint(tmp_path: Path, given: dict[str, Any]) -> None:
    train(tmp_path, steps=8, checkpoint_every=4)
    with pytest.raises(Interrupted):
        train(tmp_path, resume=True, reporter=StopAt(5), **{"steps": 8, **given})
    saved = RunFolder(tmp_path).load_checkpoint()
    assert saved is not None
    images = tiny_source().test.inputs
    expected = by_hand({**saved.weights, **saved.ema}, images)
    got = mixmatch.load(tmp_path, network=Network(), device="cpu").predict_proba(images)
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_a_finished_run_without_a_checkpoint_cannot_be_taken_further(tmp_path: Path) -> None:
    train(tmp_path, steps=8)
    shutil.rmtree(tmp_path / "checkpoint")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(MixMatchError, match="is finished and has no checkpoint to resume from"):
        train(tmp_path, resume=True, steps=20)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_run_without_a_checkpoint(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((finished / "config.json").read_bytes())
    with pytest.raises(MixMatchError, match="has no model yet: its training has not reached a checkpoint"):
        mixmatch.load(tmp_path, network=Network())


def test_what_is_not_a_run(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(MixMatchError, match="is not a run folder"):
            mixmatch.load(path)


def test_the_network_of_a_finished_run_has_to_be_given(finished: Path) -> None:
    with pytest.raises(MixMatchError, match="network of your own, Network: pass it, load"):
        mixmatch.load(finished)
    with pytest.raises(MixMatchError, match="does not fit its network") as caught:
        mixmatch.load(finished, network=Network(width=9))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_model_file_cut_short(finished: Path, tmp_path: Path, keep: int) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes((finished / "model.safetensors").read_bytes()[:keep])
    with pytest.raises(MixMatchError, match=r"model\.safetensors cannot be read as a model"):
        mixmatch.load(path, network=Network())


@pytest.mark.parametrize("where", [0, 8, 9, 30])
def test_a_model_file_with_a_damaged_header(finished: Path, tmp_path: Path, where: int) -> None:
    path = tmp_path / "model.safetensors"
    content = bytearray((finished / "model.safetensors").read_bytes())
    content[where] = 0xFF
    path.write_bytes(content)
    with pytest.raises(MixMatchError, match=r"model\.safetensors (cannot be read as a model|is not a model)"):
        mixmatch.load(path, network=Network())


@pytest.mark.parametrize("name", ["classes", "input_shape", "network"])
def test_a_model_file_that_lacks_something(finished: Path, tmp_path: Path, name: str) -> None:
    with safetensors.safe_open(finished / "model.safetensors", framework="pt") as file:
        about = {key: value for key, value in file.metadata().items() if key != name}
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors", about)
    with pytest.raises(MixMatchError, match=r"model\.safetensors cannot be read as a model"):
        mixmatch.load(tmp_path / "model.safetensors", network=Network())


def test_someone_elses_file(tmp_path: Path) -> None:
    safetensors.torch.save_file({"w": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(MixMatchError, match="is not a model of mixmatch"):
        mixmatch.load(tmp_path / "model.safetensors")


def test_a_record_names_our_commit_and_nobody_elses(tmp_path: Path) -> None:
    """An environment in somebody's repository has mixmatch under it, which is not a part of theirs."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "theirs"], check=True)
    installed = tmp_path / "env" / "lib" / "site-packages" / "mixmatch"
    ours = tmp_path / "src" / "mixmatch"
    for folder in (installed, ours):
        folder.mkdir(parents=True)
    assert records._commit(installed) is None
    assert records._commit(ours) is not None


def test_a_sources_name_stays_inside_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    evil = tiny_source(name="../../evil")
    mixmatch.train(evil, **TINY, network=Network(), device=torch.device("cpu"), reporter=Quiet())
    assert [path.name for path in tmp_path.iterdir()] == ["here"]
    assert [path.name for path in (tmp_path / "here" / "runs").iterdir()] == ["evil-mixmatch-6-seed1"]


@pytest.mark.parametrize("name", ["", " "])
def test_no_name_is_not_the_current_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MixMatchError, match="data is empty: give a name"):
        mixmatch.train(name)
    assert not list(tmp_path.iterdir())


def test_a_commit_that_was_only_told_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside a checkout nobody can tell whether the files are those of the commit."""
    from mixmatch.training import record

    monkeypatch.setattr(record, "_commit", lambda folder: None)
    monkeypatch.setenv("MIXMATCH_COMMIT", "abc123")
    assert record.versions()["commit"] == "abc123 (from MIXMATCH_COMMIT, not verified)"
    monkeypatch.delenv("MIXMATCH_COMMIT")
    assert record.versions()["commit"] is None


def test_a_run_that_other_software_began_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {**TINY, "network": Network(), "device": "cpu", "reporter": Quiet(), "resume": True}
    first = mixmatch.train(tiny_source(), out=tmp_path, **{**given, "steps": 1})
    assert json.loads((tmp_path / "config.json").read_text())["versions"] == first["versions"]
    assert "began_with" not in mixmatch.train(tiny_source(), out=tmp_path, **{**given, "steps": 2})
    later = {**first["versions"], "torch": "99.0"}
    monkeypatch.setattr("mixmatch.training.record.versions", lambda: later)
    record = mixmatch.train(tiny_source(), out=tmp_path, **{**given, "steps": 3})
    assert (record["began_with"], record["versions"]) == (first["versions"], later)

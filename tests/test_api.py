"""`mixmatch.train` and `mixmatch.load` on arrays and a network of one's own."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

import mixmatch
from mixmatch import api
from mixmatch.data.source import UNKNOWN, Images, Source
from mixmatch.data.split import make_split
from mixmatch.errors import MixMatchError
from mixmatch.settings import resolve
from mixmatch.training import record as records
from mixmatch.training import trainer as engine
from mixmatch.training.progress import Quiet
from mixmatch.training.run import RunFolder
from mixmatch.training.trainer import Interrupted

CLASSES = ("cat", "dog", "elk")
TINY: dict[str, Any] = {"labels": 6, "batch_size": 5, "pad": 1, "steps": 11, "eval_every": 4, "ema_decay": 0.8}


def tiny_source(count: int = 40, name: str = "tiny") -> Source:
    """Classes differ by brightness, rows from columns."""
    rng = np.random.default_rng(0)

    def part(count: int) -> Images:
        labels = np.arange(count) % 3
        images = rng.integers(0, 120, (count, 6, 5, 2)) + 60 * labels[:, None, None, None]
        return Images(images.astype(np.uint8), labels.astype(np.int64))

    return Source(name, CLASSES, part(count), part(90))


class UserData(nn.Module):
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
        data, out=out, network=network or UserData(), **{"reporter": Quiet(), "device": "cpu", **TINY, **given}
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


# ---------------------------------------------------------------- train


def test_the_record_tells_what_was_done(finished: Path) -> None:
    record = json.loads((finished / "result.json").read_text())
    assert record["data"] == "tiny"
    assert (record["method"], record["labels"], record["seed"], record["steps"]) == ("mixmatch", 6, 1, 11)
    assert [point["step"] for point in record["curve"]] == [4, 8, 11]
    errors = [point["error"] for point in record["curve"]]
    assert record["error"] == sorted(errors)[1]
    assert (record["last_error"], record["median_of"]) == (errors[-1], 3)
    assert record["settings"]["network"] == "custom:UserData"
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
    with pytest.raises(MixMatchError, match="holds a run already: go on with it \\(--resume") as caught:
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
    with pytest.raises(MixMatchError, match="network: custom:UserData -> custom:Linear"):
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
        ({"schedule": "cosine"}, "its learning rate follows them"),
        ({"method": "pi-model"}, "the unlabeled weight of pi-model rises over a part of them"),
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


def test_a_stopped_run_goes_on_to_the_same_file(stopped: Path, finished: Path) -> None:
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
        train_, test = (Images(part.images[change["images"]], part.labels) for part in (train_, test))
    if "labels" in change:
        row, label = change["labels"]
        train_ = Images(train_.images, np.where(np.arange(len(train_)) == row, label, train_.labels))
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
    meanwhile = engine.Trainer

    def slowly(*arguments: Any, **options: Any) -> engine.Trainer:
        shutil.copytree(finished, out, dirs_exist_ok=True)
        return meanwhile(*arguments, **options)

    monkeypatch.setattr(engine, "Trainer", slowly)
    with pytest.raises(MixMatchError, match=r"another process has worked in .* meanwhile"):
        train(out, resume=True)
    assert (out / "result.json").read_bytes() == (finished / "result.json").read_bytes()


def test_a_network_that_changed_since_is_refused(stopped: Path) -> None:
    with pytest.raises(MixMatchError, match="is of another network"):
        train(stopped, resume=True, network=UserData(width=9))


def test_an_own_network_has_to_be_given_again(stopped: Path) -> None:
    with pytest.raises(MixMatchError, match="network of your own, UserData: pass it"):
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
    with pytest.raises(MixMatchError, match="device 'cuda' is not available here: use --device cpu"):
        train(tmp_path / "run", device="cuda")
    with pytest.raises(MixMatchError, match="device 'cuda:0' is not available here"):
        mixmatch.load(finished, device="cuda:0", network=UserData())


def test_settings_of_none_are_as_if_not_given(tmp_path: Path) -> None:
    record = train(tmp_path, method="supervised", steps=1, learning_rate=None, seed=None)
    assert (record["settings"]["learning_rate"], record["seed"]) == (0.002, 1)


def test_random_numbers_of_the_caller_are_left_alone(tmp_path: Path) -> None:
    network = UserData()
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
    names = classifier.predict(source.test.images)
    wrong = 100 * np.mean([name != CLASSES[label] for name, label in zip(names, source.test.labels, strict=True)])
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["last_error"] == pytest.approx(wrong)


# ---------------------------------------------------------------- how fast


def test_how_steps_are_taken(tmp_path: Path) -> None:
    run, cpu, cuda = RunFolder(tmp_path), torch.device("cpu"), torch.device("cuda")
    short, long = (resolve("digits", {"steps": steps}) for steps in (api.WORTH_COMPILING - 1, api.WORTH_COMPILING))
    for compile in (True, False):
        for where in (cpu, cuda):
            assert api._speed(run, short, where, compile) == {"compile": compile, "record": compile}
    assert api._speed(run, long, cpu, None) == {"compile": False, "record": False}
    assert api._speed(run, short, cuda, None) == {"compile": False, "record": True}
    assert api._speed(run, long, cuda, None) == {"compile": True, "record": True}


@pytest.mark.parametrize(
    ("first", "then", "expected"), [(True, None, True), (False, None, False), (True, False, False)]
)
def test_a_run_goes_on_as_it_was_begun(
    first: bool, then: bool | None, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    class Noted(engine.Trainer):
        def __init__(self, *args: Any, compile: bool, record: bool) -> None:
            seen.append(compile)
            super().__init__(*args)

    monkeypatch.setattr(engine, "Trainer", Noted)
    with pytest.raises(Interrupted):
        train(tmp_path / "run", reporter=StopAt(4), compile=first)
    train(tmp_path / "run", resume=True, compile=then)
    assert seen == [first, expected]
    assert RunFolder(tmp_path / "run").config()["compile"] is first


@pytest.mark.parametrize(
    ("device", "network", "shape", "known", "expected"),
    [
        ("cuda", "wrn-28-2", (3, 32, 32), False, "bf16"),
        ("cuda", "wrn-small", (1, 8, 8), False, "bf16"),
        ("cuda", "mlp", (64,), True, "fp32"),
        ("cuda", "custom:UserData", (64,), True, "fp32"),
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
    assert api.default_precision(settings, torch.device(device), shape) == expected


# ---------------------------------------------------------------- load and predict


def by_hand(weights: Mapping[str, Tensor], images: np.ndarray) -> np.ndarray:
    """Probabilities in float64."""
    network = UserData().double()
    network.load_state_dict({name: value.double() for name, value in weights.items()})
    network.eval()
    x = torch.from_numpy((images.astype(np.float64) * 2 / 255 - 1).transpose(0, 3, 1, 2).copy())
    with torch.no_grad():
        logits = network(x).numpy()
    e = np.exp(logits - logits.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def test_the_classifier_is_the_averaged_model(finished: Path) -> None:
    classifier = mixmatch.load(finished, network=UserData(), device="cpu")
    assert classifier.classes == CLASSES
    assert classifier.input_shape == (2, 6, 5)
    source = tiny_source()
    found = classifier.predict_proba(source.test.images)
    assert found.shape == (90, 3)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-12)
    saved = RunFolder(finished).load_checkpoint()
    assert saved is not None
    expected = by_hand({**saved.weights, **saved.ema}, source.test.images)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(by_hand(saved.weights, source.test.images) - expected).max() > 1e-3
    names = classifier.predict(source.test.images)
    assert names == [CLASSES[c] for c in expected.argmax(axis=1)]
    wrong = np.mean([name != CLASSES[label] for name, label in zip(names, source.test.labels, strict=True)])
    assert json.loads((finished / "result.json").read_text())["last_error"] == pytest.approx(100 * wrong)


def test_from_the_file_itself(finished: Path) -> None:
    images = tiny_source().test.images
    a = mixmatch.load(str(finished / "model.safetensors"), network=UserData()).predict_proba(images)
    np.testing.assert_array_equal(a, mixmatch.load(finished, network=UserData()).predict_proba(images))


def test_one_image_or_none(finished: Path) -> None:
    classifier = mixmatch.load(finished, network=UserData())
    images = tiny_source().test.images
    np.testing.assert_allclose(classifier.predict_proba(images[3:4])[0], classifier.predict_proba(images)[3], atol=1e-6)
    assert classifier.predict_proba(images[:0]).shape == (0, 3)
    assert classifier.predict(images[:0]) == []


@pytest.mark.parametrize(
    "images",
    [np.zeros((2, 6, 5, 2)), np.zeros((2, 5, 6, 2), np.uint8), np.zeros((6, 5, 2), np.uint8)],
)
def test_other_images_are_refused(finished: Path, images: Any) -> None:
    with pytest.raises(MixMatchError, match=r"takes uint8 images of shape \(N, 6, 5, 2\), not"):
        mixmatch.load(finished, network=UserData()).predict_proba(images)


def test_the_file_tells_what_it_takes_to_use_it(finished: Path) -> None:
    with safetensors.safe_open(finished / "model.safetensors", framework="np") as file:
        about = file.metadata()
    assert json.loads(about["classes"]) == ["cat", "dog", "elk"]
    assert json.loads(about["input_shape"]) == [2, 6, 5]
    assert about["normalization"] == "pixel * 2 / 255 - 1"
    assert about["network"] == "custom:UserData"


def test_an_unfinished_run_gives_its_checkpoint(stopped: Path) -> None:
    images = tiny_source().test.images
    saved = RunFolder(stopped).load_checkpoint()
    assert saved is not None
    assert saved.step == 4
    classifier = mixmatch.load(stopped, network=UserData(), device="cpu")
    assert classifier.classes == CLASSES
    expected = by_hand({**saved.weights, **saved.ema}, images)
    np.testing.assert_allclose(classifier.predict_proba(images), expected, atol=1e-5)
    with pytest.raises(MixMatchError, match="network of your own, UserData: pass it to load"):
        mixmatch.load(stopped)
    with pytest.raises(MixMatchError, match="does not fit its network"):
        mixmatch.load(stopped, network=UserData(width=9))


@pytest.mark.parametrize("given", [{"steps": 20}, {"checkpoint": "step-00000004"}])
def test_a_run_that_goes_on_after_its_end_gives_its_checkpoint(tmp_path: Path, given: dict[str, Any]) -> None:
    train(tmp_path, steps=8, checkpoint_every=4)
    with pytest.raises(Interrupted):
        train(tmp_path, resume=True, reporter=StopAt(5), **{"steps": 8, **given})
    saved = RunFolder(tmp_path).load_checkpoint()
    assert saved is not None
    images = tiny_source().test.images
    expected = by_hand({**saved.weights, **saved.ema}, images)
    got = mixmatch.load(tmp_path, network=UserData(), device="cpu").predict_proba(images)
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_a_finished_run_without_a_checkpoint_cannot_be_taken_further(tmp_path: Path) -> None:
    train(tmp_path, steps=8)
    shutil.rmtree(tmp_path / "checkpoint")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(MixMatchError, match="is finished and has no checkpoint to go on from"):
        train(tmp_path, resume=True, steps=20)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_run_without_a_checkpoint(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((finished / "config.json").read_bytes())
    with pytest.raises(MixMatchError, match="has no model yet: its training has not reached a checkpoint"):
        mixmatch.load(tmp_path, network=UserData())


def test_what_is_not_a_run(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(MixMatchError, match="is not a run folder"):
            mixmatch.load(path)


def test_a_finished_own_network_has_to_be_given(finished: Path) -> None:
    with pytest.raises(MixMatchError, match="network of your own, UserData: pass it to load"):
        mixmatch.load(finished)
    with pytest.raises(MixMatchError, match="does not fit its network") as caught:
        mixmatch.load(finished, network=UserData(width=9))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_model_file_cut_short(finished: Path, tmp_path: Path, keep: int) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes((finished / "model.safetensors").read_bytes()[:keep])
    with pytest.raises(MixMatchError, match=r"model\.safetensors cannot be read as a model"):
        mixmatch.load(path, network=UserData())


@pytest.mark.parametrize("where", [0, 8, 9, 30])
def test_a_model_file_with_a_damaged_header(finished: Path, tmp_path: Path, where: int) -> None:
    path = tmp_path / "model.safetensors"
    content = bytearray((finished / "model.safetensors").read_bytes())
    content[where] = 0xFF
    path.write_bytes(content)
    with pytest.raises(MixMatchError, match=r"model\.safetensors (cannot be read as a model|is not a model)"):
        mixmatch.load(path, network=UserData())


@pytest.mark.parametrize("name", ["classes", "input_shape", "network"])
def test_a_model_file_that_lacks_something(finished: Path, tmp_path: Path, name: str) -> None:
    with safetensors.safe_open(finished / "model.safetensors", framework="pt") as file:
        about = {key: value for key, value in file.metadata().items() if key != name}
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors", about)
    with pytest.raises(MixMatchError, match=r"model\.safetensors cannot be read as a model"):
        mixmatch.load(tmp_path / "model.safetensors", network=UserData())


def test_someone_elses_file(tmp_path: Path) -> None:
    safetensors.torch.save_file({"w": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(MixMatchError, match="is not a model of mixmatch"):
        mixmatch.load(tmp_path / "model.safetensors")


def test_a_commit_that_was_only_told_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside a checkout nobody can tell whether the files are those of the commit."""
    from mixmatch.training import record

    monkeypatch.setattr(record, "_commit", lambda folder: None)
    monkeypatch.setenv("MIXMATCH_COMMIT", "abc123")
    assert record.versions()["commit"] == "abc123 (told, not checked)"
    monkeypatch.delenv("MIXMATCH_COMMIT")
    assert record.versions()["commit"] is None

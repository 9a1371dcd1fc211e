"""What people pass from Python that is not quite what is asked for: it works, or one error says what to pass."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import mixmatch
from mixmatch import networks
from mixmatch.classifier import Classifier
from mixmatch.data.source import Rows, Source
from mixmatch.data.user.encoding import Categorical, Encoding, Numeric
from mixmatch.errors import MixMatchError
from mixmatch.settings import resolve
from mixmatch.training.plan import default_folder
from mixmatch.training.progress import Quiet

SHORT = {"labels": 50, "batch_size": 16, "method": "supervised", "device": "cpu", "reporter": Quiet()}
PIXELS = np.rint(load_digits().images * (255 / 16)).astype(np.uint8)[:, :, :, None]


class Small(nn.Module):
    """With randomness of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.flat, self.drop, self.out = nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.drop(self.flat(x)))


def small(seed: int = 0) -> Small:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Small()


def of_table() -> Classifier:
    """A model of a table: a number and a name."""
    encoding = Encoding((Numeric("x", 0.0, 1.0, 2.0), Categorical("c", ("3", "red"), other=False)))
    return Classifier(networks.build("mlp", 2, (3,)), "mlp", ("a", "b"), (3,), encoding)


def of_array() -> Classifier:
    encoding = Encoding((Numeric("0", 0.0, 1.0, 2.0), Numeric("1", 0.0, 0.0, 1.0)))
    return Classifier(networks.build("mlp", 2, (2,)), "mlp", ("a", "b"), (2,), encoding)


# -------------------------------------------------------------------------------------------------------------- rows


def test_lists_and_tensors_for_images_and_labels() -> None:
    images, labels = PIXELS[:6], [0, 1, 2, 3, 4, 5]
    for given in (images.tolist(), list(images), torch.from_numpy(images)):
        rows = Rows(given, labels)
        np.testing.assert_array_equal(rows.inputs, images)
        assert (rows.inputs.dtype, rows.labels.tolist()) == (np.uint8, labels)
    assert Rows([[1, 2], [3.5, 4]], [0, 1]).inputs.dtype == np.float32
    with pytest.raises(MixMatchError, match=r"images must be uint8 \(N, H, W, C\), not int64"):
        Rows([[[[300]]]], [0])
    with pytest.raises(MixMatchError, match="not all of the same shape"):
        Rows([[[1]], [[1, 2]]], [0, 1])
    with pytest.raises(MixMatchError, match="labels must be one whole number for each"):
        Rows(images, ["a"] * 6)


def test_lists_and_tensors_to_predict() -> None:
    model = Classifier(small(), "custom:Small", tuple("0123456789"), (1, 8, 8))
    expected = model.predict_proba(PIXELS[:3])
    for given in (PIXELS[:3].tolist(), list(PIXELS[:3]), torch.from_numpy(PIXELS[:3]), PIXELS[:3].astype(int).tolist()):
        np.testing.assert_array_equal(model.predict_proba(given), expected)
    for wrong in ([1, 2], "nowhere.png", 3, None, [[[[0.5]]]], {"a": [1]}):
        with pytest.raises(MixMatchError):
            model.predict_proba(wrong)
    np.testing.assert_array_equal(
        of_array().predict_proba([[1, 2], [3, 4]]).shape, of_array().predict_proba(np.eye(2)).shape
    )
    with pytest.raises(MixMatchError, match=r"paths must be files and folders, not ndarray; load\(run\).predict_proba"):
        mixmatch.predict_files(model, PIXELS[:3])


def test_lists_of_images_for_the_estimator() -> None:
    y = [*range(10)] * 3
    fitted = mixmatch.MixMatchClassifier("supervised", steps=1, random_state=0, device=torch.device("cpu"))
    fitted.fit(list(PIXELS[:30]), y)
    expected = fitted.predict_proba(PIXELS[:3])
    np.testing.assert_array_equal(fitted.predict_proba(PIXELS[:3].tolist()), expected)


class Frame:
    """A table as pandas and polars have them: columns by name, each with its own type."""

    def __init__(self, **columns: Any) -> None:
        self._columns = {name: np.asarray(values) for name, values in columns.items()}

    @property
    def columns(self) -> list[str]:
        return list(self._columns)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._columns[name]


def test_tables_of_other_libraries() -> None:
    """Columns by name in any order; missing values as each library has them; numbers for names."""
    arrow = pytest.importorskip("pyarrow")
    model = of_table()
    expected = model.predict_proba({"c": ["red", "3", "", "blue"], "x": ["1", "2.5", "", "-4"]})
    tables = [
        Frame(more=[0] * 4, c=np.array(["red", 3, None, "blue"], object), x=[1, 2.5, np.nan, -4]),
        Frame(x=np.array([1, 2.5, None, -4], object), c=["red", "3", "", "blue"]),
        arrow.table({"c": ["red", "3", None, "blue"], "x": [1, 2.5, None, -4]}),
        {"x": [1, 2.5, None, -4], "c": ["red", 3, None, "blue"]},
    ]
    for table in tables:
        np.testing.assert_array_equal(model.predict_proba(table), expected)
    numbers = model.predict_proba({"c": ["3", "", "4"], "x": ["1"] * 3})
    np.testing.assert_array_equal(model.predict_proba(Frame(c=[3.0, np.nan, 4.0], x=[1, 1, 1])), numbers)
    by_place = of_array()
    named = by_place.predict_proba(Frame(height=[1, 2], width=[3.0, np.nan]))
    np.testing.assert_array_equal(named, by_place.predict_proba(np.array([[1, 3], [2, np.nan]])))
    for wrong, why in (
        (Frame(x=[1]), "the rows have no column 'c'"),
        (Frame(x=[1], c=["red", "3"]), "column 'c' has 2 rows, but column 'x' has 1"),
        (Frame(x=["much"], c=["red"]), "column 'x' holds numbers, but one value is 'much'"),
    ):
        with pytest.raises(MixMatchError, match=why):
            model.predict_proba(wrong)


def test_predictions_are_never_nan(tmp_path: Path) -> None:
    """A cell of 1e300 is refused where its column is known, and whatever gets through where it is not."""
    model = of_table()
    with pytest.raises(
        MixMatchError, match=r"1 value of column 'x' is far too large \(1e\+300\): correct it, or leave"
    ):
        model.predict_proba({"x": ["1", "1e300"], "c": ["", ""]})
    with pytest.raises(MixMatchError, match="2 values of the features are far too large"):
        of_array().predict_proba(np.array([[1, 1e300], [1e200, 2]]))
    path = tmp_path / "new.csv"
    path.write_text("x,c\n1,red\n1e300,red\n")
    with pytest.raises(MixMatchError, match=f"{path}: 1 value of column 'x' is far too large"):
        list(mixmatch.predict_files(model, path))
    assert np.isfinite(model.predict_proba({"x": ["1e29"], "c": [""]})).all()
    with torch.no_grad():
        next(model.network.parameters()).fill_(torch.nan)
    with pytest.raises(MixMatchError, match="gives no number for 1 feature, the first of them 0: its values are far"):
        model.predict_proba({"x": ["1"], "c": [""]})


# ---------------------------------------------------------------------------------------------------- data and device


def test_data_and_device_as_objects(tmp_path: Path) -> None:
    table, device = tmp_path / "rows.csv", torch.device("cpu")
    table.write_text("x,y,label\n" + "".join(f"{i % 7},{i % 5},{'ab'[i % 2] if i < 20 else ''}\n" for i in range(40)))
    out = tmp_path / "run"
    options: dict[str, Any] = {"steps": 2, "baseline": False, "cross_validate": False, "reporter": Quiet()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mixmatch.train(table, out=out, device=device, **options)
    assert len(list(mixmatch.predict_files(out, table, device=device))) == 40
    assert int(mixmatch.evaluate(out, table, device=device).confusion.sum()) == 20
    assert mixmatch.write_report(out, device=device).page.is_file()
    assert mixmatch.load(out, device=device).classes == ("a", "b")
    for wrong in (np.zeros((3, 2)), [1, 2], Frame(x=[1]), None):
        with pytest.raises(MixMatchError, match="data must be a name, a path or a Source, not"):
            mixmatch.train(wrong)  # type: ignore[arg-type]
    for device in ("meta", torch.device("meta"), "gpu"):
        with pytest.raises(MixMatchError, match="unknown device"):
            mixmatch.train("digits", device=device, out=tmp_path / "never")
    assert not (tmp_path / "never").exists()


# ------------------------------------------------------------------------------------------------------------ networks


def weights(out: Path) -> bytes:
    return (out / "model.safetensors").read_bytes()


def test_networks_in_wrappers_are_trained_as_they_are(tmp_path: Path) -> None:
    mixmatch.train("digits", network=small(), out=tmp_path / "bare", steps=3, **SHORT)
    wrapped = {"parallel": nn.DataParallel(small()), "compiled": torch.compile(small())}
    for name, network in wrapped.items():
        mixmatch.train("digits", network=network, out=tmp_path / name, steps=3, **SHORT)
        assert weights(tmp_path / name) == weights(tmp_path / "bare")
        again = mixmatch.load(tmp_path / name, network=network, device="cpu")
        expected = mixmatch.load(tmp_path / "bare", network=Small(), device="cpu")
        np.testing.assert_array_equal(again.predict_proba(PIXELS[:3]), expected.predict_proba(PIXELS[:3]))


def test_networks_that_cannot_be_trained(tmp_path: Path) -> None:
    class Nothing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1)[:, :10]

    with torch.device("meta"):
        unbuilt = Small()
    for network, why in (
        (unbuilt, "on the meta device, where it has no weights: build it on the CPU, or"),
        (Nothing(), r"nothing to train \(no parameters\)"),
        (small().requires_grad_(False), r"nothing to train \(none with requires_grad\)"),
        (
            torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(64, 10))),
            "a compiled script, .* pass the module itself",
        ),
    ):
        with pytest.raises(MixMatchError, match=why):
            mixmatch.train("digits", network=network, out=tmp_path / "never", steps=3, **SHORT)
        assert not (tmp_path / "never" / "config.json").exists()


def test_a_long_name_makes_a_short_folder() -> None:
    folder = default_folder(replace(resolve("digits", {}), data="../" + "x" * 5000))
    assert len(folder.name) < 255
    assert folder.parent == Path("runs")


# ------------------------------------------------------------------------------------------------------------- threads


def test_two_threads_train_as_one_after_the_other(tmp_path: Path) -> None:
    """Dropout draws from PyTorch's one generator in every step."""

    def train(name: str, seed: int, network: nn.Module) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mixmatch.train("digits", network=network, seed=seed, out=tmp_path / name, steps=60, **SHORT)

    for seed in (1, 2):
        train(f"alone-{seed}", seed, small(seed))
    # The networks are built here: in the threads they would draw their weights from the generator of the other's run.
    threads = [threading.Thread(target=train, args=(f"both-{seed}", seed, small(seed))) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in (1, 2):
        assert weights(tmp_path / f"both-{seed}") == weights(tmp_path / f"alone-{seed}")


def test_source_of_lists_trains(tmp_path: Path) -> None:
    rows = Rows(list(PIXELS[:60]), load_digits().target[:60].tolist())
    source = Source("mine", tuple("0123456789"), rows, rows)
    record = mixmatch.train(source, network=small(), out=tmp_path / "run", steps=2, **{**SHORT, "labels": 20})
    assert record["steps"] == 2


# ------------------------------------------------------------------------------------------------------------- Ctrl-C

INTERRUPTED = """if True:
    import os, signal, sys

    class Gone:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGINT)

    class Interrupt:
        def find_spec(self, name, path=None, target=None):
            if name == module:
                Gone()

    module, sys.argv = sys.argv[1], ["mixmatch", "data", "list"]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.meta_path.insert(0, Interrupt())
    from mixmatch.__main__ import main
    main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")
@pytest.mark.parametrize("module", ["mixmatch.cli", "typer", "numpy._core._multiarray_umath", "mixmatch.cli.data_list"])
def test_ctrl_c_while_programs_are_imported(module: str) -> None:
    """Also where no exception gets through, as while an object is deleted."""
    command = [sys.executable, "-c", INTERRUPTED, module]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stopped\n")

"""The estimator passes scikit-learn's own checks, means what it says of unlabeled rows, and equals the command line."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits, make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import mixmatch
from mixmatch import LabeledKFold, MixMatchClassifier, methods, settings
from mixmatch.estimator import NOT_USED
from mixmatch.methods.base import Batch, Method, Step, setting

FAST: dict[str, Any] = {"steps": 12, "batch_size": 16, "device": "cpu", "random_state": 0}
GOOD: dict[str, Any] = {"steps": 80, "ema_decay": 0.9, "mask": 0.0, "device": "cpu", "random_state": 0}
"""Few steps, so that a slow average would still be near the initial weights; of two features none can be spared."""

EXPECTED_FAILURES = {
    "check_classifiers_classes": "It fits the labels -1 and 1; here -1 means unlabeled, so that one class is left.",
}
"""Of scikit-learn's checks: each feeds data that a semi-supervised classifier must understand differently."""


@pytest.mark.filterwarnings("ignore:y has no unlabeled rows")
@parametrize_with_checks(
    # A quick average: after so few steps a slow one is still near the initial weights, and a check asks for accuracy.
    [MixMatchClassifier(steps=40, ema_decay=0.9, device="cpu")],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def blobs(labeled: int = 12, rows: int = 90) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Three far groups, the first `labeled` rows labeled; also all labels."""
    X, truth = make_blobs(rows, centers=[[0, 0], [5, 0], [0, 5]], random_state=0)
    order = np.argsort(np.arange(rows) * 7 % rows)  # any fixed order in which classes alternate
    X, truth = X[order], truth[order]
    y = truth.copy()
    y[labeled:] = -1
    return X, y, truth


# ---------------------------------------------------------------- what a label is


@pytest.mark.parametrize(
    "spell",
    [
        lambda y: y,
        lambda y: y.tolist(),
        lambda y: np.where(y == -1, np.nan, y),
        lambda y: np.array([None if v == -1 else int(v) for v in y], object),
        lambda y: np.array([float("nan") if v == -1 else int(v) for v in y], object),
        lambda y: y.reshape(-1, 1)[:, 0].astype(np.float32),
    ],
)
def test_every_way_to_say_unlabeled_is_the_same(spell: Any) -> None:
    X, y, _ = blobs()
    plain = MixMatchClassifier(**FAST).fit(X, y)
    other = MixMatchClassifier(**FAST).fit(X, spell(y))
    np.testing.assert_array_equal(plain.predict_proba(X), other.predict_proba(X))
    np.testing.assert_array_equal(plain.predict(X), other.predict(X))


@pytest.mark.parametrize("missing", [None, float("nan"), "", -1, "-1"])
def test_names(missing: Any) -> None:
    X, y, truth = blobs()
    names = np.array(["ant", "bee", "cat"], object)
    given = np.array([missing if v == -1 else names[v] for v in y], object)
    model = MixMatchClassifier(**GOOD).fit(X, given)
    assert model.classes_.tolist() == ["ant", "bee", "cat"]
    assert (model.predict(X) == names[truth]).mean() > 0.95
    if isinstance(missing, str):
        again = MixMatchClassifier(**GOOD).fit(X, given.astype(str))
        np.testing.assert_array_equal(model.predict_proba(X), again.predict_proba(X))


def test_classes_need_not_begin_at_zero() -> None:
    X, y, truth = blobs()
    model = MixMatchClassifier(**GOOD)
    model.fit(X, np.where(y == -1, -1, 10 * y - 7))
    assert model.classes_.tolist() == [-7, 3, 13]
    assert (model.predict(X) == 10 * truth - 7).mean() > 0.95


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda X, y: (X, np.full_like(y, -1)), "no labels at all"),
        (lambda X, y: (X, np.where(y > 0, 1, -1)), r"one class only \(1\): .* -1, None and NaN mean"),
        (lambda X, y: (X, y[:-1]), "inconsistent|90 rows"),
        (lambda X, y: (X[:, :0], y), "0 feature"),
        (lambda X, y: (X + np.inf, y), "infinity"),
        (lambda X, y: (X.astype(str).astype(object) + "x", y), "could not convert|x"),
        (lambda X, y: (X, y + 0.5), "[Uu]nknown label type"),
    ],
)
def test_bad_data_is_a_value_error(change: Any, says: str) -> None:
    X, y, _ = blobs()
    with pytest.raises(ValueError, match=says):
        MixMatchClassifier(**FAST).fit(*change(X, y))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"method": "mixmach"}, "did you mean 'mixmatch'"),
        ({"network": "wrn-28-2"}, "takes images"),
        ({"steps": 0}, "steps=0 must be"),
        ({"mask": 2.0}, "mask=2.0 must be"),
        ({"settings": {"flip": True}}, "for images"),
        ({"settings": {"lamda_u": 1}}, "did you mean 'lambda_u'"),
        ({"learning_rate": 1e30}, "not finite"),
        ({"device": "abacus"}, "unknown device"),
        ({"settings": {"labels": 4}}, "not used here: y says"),
        ({"settings": {"valid": 10}}, "not used here: nothing is held out"),
        ({"batch_size": 1, "method": "supervised"}, "needs at least 2 rows"),
    ],
)
def test_bad_settings_are_a_value_error(given: dict[str, Any], says: str) -> None:
    X, y, _ = blobs()
    with pytest.raises(ValueError, match=says):
        MixMatchClassifier(**{**FAST, **given}).fit(X, y)


def test_rows_of_another_width() -> None:
    X, y, _ = blobs()
    model = MixMatchClassifier(**FAST).fit(X, y)
    with pytest.raises(ValueError, match="X has 1 features, but MixMatchClassifier is expecting 2"):
        model.predict(X[:, :1])
    with pytest.raises(NotFittedError):
        MixMatchClassifier().predict(X)


def test_no_unlabeled_rows_are_a_warning() -> None:
    X, _, truth = blobs()
    with pytest.warns(UserWarning, match="no unlabeled rows"):
        MixMatchClassifier(**FAST).fit(X, truth)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MixMatchClassifier("supervised", **FAST).fit(X, truth)


def test_missing_values_are_filled_in() -> None:
    X, y, _ = blobs()
    X[5, 1] = np.nan
    model = MixMatchClassifier(**FAST).fit(X, y)
    filled = X.copy()
    filled[5, 1] = np.nanmedian(X[:, 1])
    np.testing.assert_allclose(model.predict_proba(X), model.predict_proba(filled), atol=1e-6)


# ---------------------------------------------------------------- its parameters

APART = {"settings", "device", "random_state", "verbose"}
"""Parameters of the constructor that are no settings."""


def test_the_parameters_are_the_declared_settings() -> None:
    of_methods = {name for method in methods.METHODS for name in methods.declared(method)}
    parameters = MixMatchClassifier().get_params()
    assert parameters.keys() == (settings.of_run().keys() | of_methods | APART) - NOT_USED.keys() - {"seed"}
    given = {name: value for name, value in parameters.items() if name not in APART and value is not None}
    assert given == {"method": "mixmatch", "network": "auto"}
    with pytest.raises(TypeError, match="lamda_u"):
        MixMatchClassifier(lamda_u=1)
    search = GridSearchCV(MixMatchClassifier("fixmatch"), {"threshold": [0.9, 0.99]})
    assert search.estimator.set_params(threshold=0.9)._settings("features").method_settings["threshold"] == 0.9


@pytest.mark.parametrize("kind", ["features", "images"])
def test_none_is_the_default_for_such_data(kind: Any) -> None:
    """What is not given is what `mixmatch train` takes for user data; what is given is used."""
    default = settings.resolve("X", {"seed": 0}, kind)
    assert MixMatchClassifier(random_state=0)._settings(kind) == default
    flat = settings.flat(default)
    numbers = ("learning_rate", "weight_decay", "ema_decay", "noise", "mask", "lambda_u", "alpha", "T")
    for name, value in {"batch_size": 7, "steps": 33, "K": 3, **dict.fromkeys(numbers, 0.25)}.items():
        assert value != flat[name]
        found = settings.flat(MixMatchClassifier(random_state=0, **{name: value})._settings(kind))
        expected = {**flat, name: value}
        if name == "steps":  # the ramp follows them
            expected["ramp"] = 11
        assert found == expected
    further = MixMatchClassifier(random_state=0, settings={"weight_decay": 0.1, "ramp": 5})._settings(kind)
    assert settings.flat(further) == {**flat, "weight_decay": 0.1, "ramp": 5}


@pytest.mark.parametrize(("name", "value"), [("pad", 3), ("precision", "bf16")])
def test_a_parameter_wins_over_what_follows_from_the_images(name: str, value: Any) -> None:
    digits = load_digits(n_class=2)
    x, y = (digits.images[:40] * 15).astype(np.uint8), np.where(np.arange(40) < 20, digits.target[:40], -1)
    model = MixMatchClassifier(**{**FAST, "steps": 2, "batch_size": 8})
    probabilities = {
        way: clone(model).set_params(**given).fit(x, y).predict_proba(x)
        for way, given in {"default": {}, "parameter": {name: value}, "further": {"settings": {name: value}}}.items()
    }
    np.testing.assert_array_equal(probabilities["parameter"], probabilities["further"])
    assert not np.array_equal(probabilities["parameter"], probabilities["default"])


@dataclass(frozen=True)
class Agree(Method):
    """Two views of a row should get the same prediction."""

    weight: float = setting(1.0, "Weight of the unlabeled loss.", least=0)

    views = ("weak", "weak")

    def loss(self, model: Any, batch: Batch, draws: Any, progress: Any, state: Any) -> Step:
        loss_x = -(batch.y * model(batch.x, stats="update").log_softmax(1)).sum(1).mean()
        first, second = (model(view).softmax(1) for view in batch.u)
        loss_u = (first - second).square().mean()
        CALLS.append(self.weight)
        return Step(loss_x + self.weight * loss_u, {"loss_u": loss_u})


CALLS: list[float] = []


def test_a_method_from_outside() -> None:
    X, y, truth = blobs()
    CALLS.clear()
    model = MixMatchClassifier(Agree(weight=2.0), **GOOD).fit(X, y)
    assert len(CALLS) == 80
    assert set(CALLS) == {2.0}
    assert (model.predict(X) == truth).mean() > 0.95
    assert model._settings("features").method == "custom:Agree"
    assert model._settings("features").method_settings == {"weight": 2.0}
    again = clone(model)
    assert again.get_params()["method"] == Agree(weight=2.0)
    np.testing.assert_array_equal(again.fit(X, y).predict_proba(X), model.predict_proba(X))
    with pytest.raises(ValueError, match="weight is a setting of the method object"):
        MixMatchClassifier(Agree(), settings={"weight": 3.0}, **FAST).fit(X, y)
    with pytest.raises(ValueError, match="lambda_u"):
        MixMatchClassifier(Agree(), lambda_u=3.0, **FAST).fit(X, y)


def test_a_method_object_of_the_package_is_the_method_by_name() -> None:
    X, y, _ = blobs()
    by_name = MixMatchClassifier("ict", settings={"alpha": 0.3}, **FAST).fit(X, y)
    object_ = MixMatchClassifier(methods.METHODS["ict"](alpha=0.3), **FAST).fit(X, y)  # type: ignore[call-arg]
    np.testing.assert_array_equal(by_name.predict_proba(X), object_.predict_proba(X))


# ---------------------------------------------------------------- the same as the command line


@pytest.mark.parametrize("kind", ["features", "images"])
def test_it_equals_the_command_line(kind: str, tmp_path: Path) -> None:
    digits = load_digits(n_class=3)
    x = digits.data if kind == "features" else (digits.images * 15).astype(np.uint8)[..., None]
    y = digits.target.copy()
    y[20:300] = -1
    np.savez(tmp_path / "x.npz", x=x[:300], y=y[:300], x_test=x[300:], y_test=digits.target[300:])
    few = [
        "--steps",
        "10",
        "--batch-size",
        "8",
        "--eval-every",
        "5",
        *(["--network", "wrn-small"] * (kind == "images")),
    ]
    command = [sys.executable, "-m", "mixmatch", "train", "x.npz", "--seed", "7", "--out", "run", "--device", "cpu"]
    subprocess.run([*command, "--quiet", "--no-baseline", *few], cwd=tmp_path, check=True, capture_output=True)
    network = "wrn-small" if kind == "images" else "auto"
    model = MixMatchClassifier(network=network, steps=10, batch_size=8, device="cpu", random_state=7)
    model.fit(x[:300], y[:300])
    trained = mixmatch.load(tmp_path / "run", device="cpu")
    np.testing.assert_array_equal(model.predict_proba(x[300:]), trained.predict_proba(x[300:]).astype(np.float32))
    assert tuple(map(str, model.classes_)) == trained.classes


def test_its_model_is_one_for_the_command_line(tmp_path: Path) -> None:
    X, y, _ = blobs()
    model = MixMatchClassifier(**FAST).fit(X, y)
    model.model_.save(tmp_path / "m.safetensors")
    again = mixmatch.load(tmp_path / "m.safetensors", device="cpu")
    np.testing.assert_allclose(again.predict_proba(X), model.predict_proba(X), atol=1e-7)


# ---------------------------------------------------------------- among scikit-learn's tools


def test_images() -> None:
    digits = load_digits(n_class=2)
    x = (digits.images * 15).astype(np.uint8)
    y = digits.target.copy()
    y[30:] = -1
    model = MixMatchClassifier(network="wrn-small", **FAST).fit(x, y)
    assert model.predict_proba(x[:4]).shape == (4, 2)
    np.testing.assert_array_equal(model.predict_proba(x[:4]), model.predict_proba(x[:4, :, :, None]))
    with pytest.raises(ValueError, match="fitted to images"):
        model.predict(digits.data)
    with pytest.raises(ValueError, match="the model takes uint8 images of shape"):
        model.predict(x[:, :7])
    with pytest.raises(ValueError, match="values from -1 to"):
        MixMatchClassifier(network="wrn-small", **FAST).fit(x.astype(np.float32) - 1, y)


@pytest.mark.parametrize("top", [1, 255])
def test_what_numbers_of_images_mean_is_decided_once(top: int) -> None:
    """A dark image alone is the same as among others."""
    digits = load_digits(n_class=2)
    x = (digits.images / 16 * top).astype(np.float32)
    x[0] = x[0] / x[0].max()  # a value of 1 at most, whatever the others have
    y = digits.target.copy()
    y[30:] = -1
    model = MixMatchClassifier(network="wrn-small", **FAST).fit(x, y)
    expected = model.predict_proba(x[:9])
    np.testing.assert_allclose(model.predict_proba(x[:1]), expected[:1], atol=1e-5)
    others = np.rint(x[:9] * (255 / top))
    for kind in (np.uint8, np.int64, np.float64):  # the same images, in other numbers
        np.testing.assert_allclose(model.predict_proba(others.astype(kind)), expected, atol=1e-2)


def test_seeds() -> None:
    X, y, _ = blobs()
    options = {**FAST, "random_state": 1}
    a, b = (MixMatchClassifier(**options).fit(X, y).predict_proba(X) for _ in range(2))
    np.testing.assert_array_equal(a, b)
    other = MixMatchClassifier(**{**options, "random_state": 2}).fit(X, y).predict_proba(X)
    assert not np.array_equal(a, other)
    drawn = [
        MixMatchClassifier(**{**options, "random_state": np.random.RandomState(3)}).fit(X, y).predict_proba(X)
        for _ in range(2)
    ]
    np.testing.assert_array_equal(*drawn)


def test_pickle_and_clone() -> None:
    X, y, _ = blobs()
    model = MixMatchClassifier(lambda_u=3.0, settings={"weight_decay": 0.1}, **FAST).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    fresh = clone(model)
    assert fresh.get_params() == model.get_params()
    assert not hasattr(fresh, "model_")


def test_pipeline_grid_search_and_cross_validation() -> None:
    X, y, _ = blobs(labeled=30)
    steps = make_pipeline(StandardScaler(), MixMatchClassifier(**GOOD))
    scores = cross_val_score(steps, X, y, cv=LabeledKFold(3))
    assert scores.shape == (3,)
    assert scores.min() > 0.8
    search = GridSearchCV(MixMatchClassifier(**GOOD), {"lambda_u": [1.0, 10.0]}, cv=LabeledKFold(2)).fit(X, y)
    assert search.best_params_["lambda_u"] in (1.0, 10.0)
    assert search.best_estimator_.n_iter_ == 80


def test_score_is_over_the_labeled_rows() -> None:
    X, y, _ = blobs()
    model = MixMatchClassifier(**GOOD).fit(X, y)
    wrong = y.copy()
    wrong[0] = (y[0] + 1) % 3
    right = (model.predict(X[:12]) == y[:12]).mean()
    assert model.score(X, y) == pytest.approx(right)
    assert model.score(X, wrong) == pytest.approx(right - 1 / 12)
    weights = np.zeros(90)
    weights[0] = 1
    assert model.score(X, wrong, sample_weight=weights) == 0
    with pytest.raises(ValueError, match="no labels at all"):
        model.score(X, np.full(90, -1))


def test_quiet_unless_asked(capfd: pytest.CaptureFixture[str]) -> None:
    X, y, _ = blobs()
    MixMatchClassifier(**FAST).fit(X, y)
    assert capfd.readouterr() == ("", "")
    MixMatchClassifier(verbose=True, **FAST).fit(X, y)
    out, err = capfd.readouterr()
    assert out == ""
    assert "12 steps" in err


def test_importing_the_package_does_not_import_it() -> None:
    code = "import sys, mixmatch; assert 'sklearn' not in sys.modules and 'mixmatch.estimator' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert set(mixmatch.__all__) >= {"MixMatchClassifier", "LabeledKFold"}
    with pytest.raises(AttributeError, match="no attribute 'MixMatchClassfier'"):
        mixmatch.MixMatchClassfier  # noqa: B018


# ---------------------------------------------------------------- the splitter


def test_folds_keep_unlabeled_rows_for_training() -> None:
    y = np.array([0, 1, -1, 0, 1, -1, 0, 1, -1, 0, 1, -1])
    folds = list(LabeledKFold(2).split(np.zeros((12, 1)), y))
    assert LabeledKFold(2).get_n_splits() == len(folds) == 2
    for train, test in folds:
        assert set(test) <= set(np.flatnonzero(y >= 0))
        assert set(train) == set(range(12)) - set(test)
        assert np.bincount(y[test]).tolist() == [2, 2]
    assert sorted(np.concatenate([test for _, test in folds])) == np.flatnonzero(y >= 0).tolist()


def test_folds_of_names_and_in_another_order() -> None:
    y = np.array(["a", "b", None, "a", "b", None], object)
    (train, test), _ = LabeledKFold(2, shuffle=True, random_state=1).split(None, y)
    assert set(train) >= {2, 5}
    assert sorted(y[test]) == ["a", "b"]
    with pytest.raises(ValueError, match="no labels"):
        next(LabeledKFold(2).split(None, np.full(4, -1)))

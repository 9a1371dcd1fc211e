"""MixMatch as a scikit-learn estimator, and cross-validation that makes sense of unlabeled rows.

>>> from sklearn.datasets import load_digits
>>> X, y = load_digits(return_X_y=True)
>>> y[50:] = -1  # unlabeled
>>> MixMatchClassifier(steps=20, random_state=0).fit(X, y).predict(X[:2]).shape
(2,)
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.model_selection import StratifiedKFold
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from mixmatch import methods
from mixmatch import settings as settings_
from mixmatch.classifier import Classifier
from mixmatch.data.opened import Basis, Data
from mixmatch.data.source import UNKNOWN, Rows, Source
from mixmatch.data.split import Split
from mixmatch.data.user.arrays import scale_of, to_images
from mixmatch.data.user.encoding import Encoding, fit_numbers
from mixmatch.errors import MixMatchError
from mixmatch.methods.base import Method
from mixmatch.presets import Kind
from mixmatch.training import progress
from mixmatch.training.device import pick_device
from mixmatch.training.opening import embedded
from mixmatch.training.session import completed, train_whole
from mixmatch.training.trainer import NotFinite

Array = npt.NDArray[Any]
NOT_USED = {
    "labels": "y says which rows have a label",
    "valid": "nothing is held out",
    "hold_out": "nothing is held out",
    "imbalance": "all rows are used",
    "eval_every": "nothing is evaluated",
}
"""Settings of a run that mean nothing here, and why."""


@contextlib.contextmanager
def _as_value_errors() -> Iterator[None]:
    """The error that scikit-learn expects of an estimator that is given something wrong."""
    try:
        yield
    except MixMatchError as error:
        raise ValueError(str(error)) from None
    except NotFinite as error:
        raise ValueError(f"the loss was not finite at step {error.step}: try a lower learning_rate") from None


def _parameters() -> list[tuple[str, Any, Any]]:
    """The parameters of the estimator as fields of a dataclass: some of its own, and every declared setting of a run
    and of the methods, where None is the default of `mixmatch train` for such data."""
    own = {"network": "auto", "settings": None, "device": "auto", "random_state": None, "verbose": False}
    declared = [settings_.of_run(), *map(methods.declared, methods.METHODS)]
    names = dict.fromkeys(name for part in declared for name in part if name not in {"method", "seed", *NOT_USED, *own})
    defaults = {**own, **dict.fromkeys(names)}
    keywords = [(name, Any, dataclasses.field(default=value, kw_only=True)) for name, value in defaults.items()]
    return [("method", str | Method, "mixmatch"), *keywords]


_Parameters = dataclasses.make_dataclass("_Parameters", _parameters(), repr=False, eq=False)


class MixMatchClassifier(ClassifierMixin, BaseEstimator, _Parameters):  # type: ignore[misc, valid-type]
    """A classifier that also learns from rows without a label.

    `y` is -1 where there is no label (None or NaN do as well). So -1 is never a class: of labels -1 and 1 there is one
    class to learn, which is refused; name them 0 and 1. If every row has a label, the method uses the rows themselves
    as its unlabeled ones, and warns of it.

    `X` is a matrix of numbers (N, F), NaN where a value is missing, which is standardized by all rows, labeled or not;
    or images, uint8 (N, H, W, C) or (N, H, W). The same arrays and seed give the same model as `mixmatch train`, where
    that holds nothing out: where the data has a test part, with `hold_out=none`, or where labels are few (of features,
    a class has fewer than ten; of pixels, all classes but one have).

    Every setting of a run and of the methods is a parameter too: `steps`, `learning_rate`, `lambda_u`, and so on, as
    docs/settings.md lists them. None is the default of `mixmatch train` for such data.

    Args:
        method: one of `mixmatch.methods.METHODS`, or a `Method` object of your own class.
        network: a name for `mixmatch.networks.build`; `auto` is `mlp` for features, `wrn-auto` for images.
        settings: further settings by name, as those of a method of your own.
        device: `auto`, `cpu`, `cuda` or `mps`.
        random_state: a whole number is the seed of `mixmatch train`.
        verbose: whether to show progress on standard error.

    Attributes:
        classes_: the classes, sorted.
        model_: the `mixmatch.classifier.Classifier`; its `save` makes a file that `mixmatch predict` takes.
        n_features_in_, feature_names_in_: of a matrix.
        n_iter_: steps taken.
    """

    def fit(self, X: Any, y: Any) -> MixMatchClassifier:
        """Learn from rows with a label and from rows without one.

        Args:
            X: (N, F), or images (N, H, W, C) or (N, H, W).
            y: (N,): whole numbers, -1 without a label; or names, None or NaN without one.
        """
        with _as_value_errors():
            rows, encoding = self._training_rows(X, y)
        values, labeled = known_labels(y)
        if len(values) != len(rows):
            raise ValueError(f"X has {len(rows)} rows, but y has {len(values)}")
        check_classification_targets(values[labeled])
        self.classes_, numbers = np.unique(values[labeled], return_inverse=True)
        if len(self.classes_) < 2:
            what = f"labels of one class only ({self.classes_[0]})" if len(self.classes_) else "no labels at all"
            raise ValueError(
                f"y has {what}: a classifier needs at least two classes; -1, None and NaN mean that a row has no label"
            )
        labels = np.full(len(rows), UNKNOWN, np.int64)
        labels[labeled] = numbers
        names = tuple(map(str, self.classes_))
        part = Rows(rows, labels)
        source = Source("X", names, part, part.take(np.empty(0, np.int64)), encoding=encoding)
        with _as_value_errors():
            self.model_ = self._train(source, labeled)
        return self

    def predict_proba(self, X: Any) -> Array:
        """Probabilities (N, classes), in the order of `classes_`; float32, which is what the network computes in."""
        check_is_fitted(self)
        with _as_value_errors():
            return self.model_.probabilities(self._rows(X)).astype(np.float32)

    def predict(self, X: Any) -> Array:
        """Classes (N,)."""
        best = self.predict_proba(X).argmax(axis=1)
        predicted: Array = self.classes_[best]
        return predicted

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The mean accuracy on the rows that have a label."""
        values, labeled = known_labels(y)
        if not labeled.any():
            raise ValueError("y has no labels at all: there is nothing to score")
        weights = None if sample_weight is None else np.asarray(sample_weight)[labeled]
        right = self.predict(X)[labeled] == values[labeled]
        return float(np.average(right, weights=weights))

    # ---------------------------------------------------------------- inside

    def _settings(self, kind: Kind) -> settings_.Settings:
        apart = ("network", "settings", "device", "random_state", "verbose")
        given = {name: value for name, value in self.get_params().items() if name not in apart and value is not None}
        if self.network != "auto":
            given["network"] = self.network
        for name in self.settings or {}:
            if name in NOT_USED:
                raise MixMatchError(f"settings={{'{name}': ...}} is not used here: {NOT_USED[name]}")
        whole = isinstance(self.random_state, int | np.integer)
        given["seed"] = int(self.random_state if whole else check_random_state(self.random_state).randint(2**31 - 1))
        numpy_free = {name: value.item() if isinstance(value, np.generic) else value for name, value in given.items()}
        return settings_.resolve("X", {**numpy_free, **(self.settings or {})}, kind)

    def _train(self, source: Source, labeled: npt.NDArray[np.bool_]) -> Classifier:
        kind: Kind = "images" if source.train.is_images else "features"
        device = pick_device(self.device)
        given = {name for name, value in {**self.get_params(), **(self.settings or {})}.items() if value is not None}
        settings = completed(self._settings(kind), given.__contains__, source, device, kind)
        method = self.method if isinstance(self.method, Method) else settings.build_method()
        unlabeled = np.flatnonzero(~labeled)
        if settings.unlabeled == "all":
            unlabeled = np.arange(len(labeled))
        elif len(unlabeled) == 0 and method.views:
            warnings.warn("y has no unlabeled rows: all rows are used as unlabeled ones, too", stacklevel=3)
            unlabeled = np.arange(len(labeled))
        empty = np.empty(0, np.int64)
        split = Split(np.flatnonzero(labeled), unlabeled, empty, empty)
        data = embedded(Data(source, split, Basis(missing="nothing is held out")), settings, self.device)
        reporter = progress.on_stderr() if self.verbose else progress.Quiet()
        with contextlib.closing(reporter):
            reporter.start(f"MixMatchClassifier {settings.method}", 0, settings.steps)
            shown = lambda trainer: reporter.steps(trainer.step, trainer.metrics() if self.verbose else {})  # noqa: E731
            model = train_whole(settings, data, device, method, after=shown)
        self.n_iter_ = settings.steps
        return model

    def _training_rows(self, X: Any, y: Any) -> tuple[Array, Encoding | None]:
        if _are_images(X):
            pixels = np.asarray(X)
            whole = pixels.dtype.kind == "f" and scale_of([pixels], "X") == 1
            self._whole = pixels.dtype if whole else None
            return to_images([pixels], "X")[0], None
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        matrix = validate_data(self, X, dtype="numeric", ensure_all_finite="allow-nan")
        encoding = Encoding(tuple(fit_numbers([str(i) for i in range(matrix.shape[1])], matrix)))
        return encoding.apply_matrix(matrix), encoding

    def _rows(self, X: Any) -> Array:
        if len(self.model_.input_shape) == 3:
            if not _are_images(X):
                raise ValueError(f"X has shape {np.shape(X)}, but the classifier was fitted to images")
            pixels = np.asarray(X)
            # A batch of dark images does not tell by itself that its values go to 255, as those of training did.
            dark = getattr(self, "_whole", None) == pixels.dtype
            return to_images([pixels], "X", 1 if dark else None)[0]
        matrix = validate_data(self, X, reset=False, dtype="numeric", ensure_all_finite="allow-nan")
        encoded: Array = self.model_.encode(matrix)
        return encoded

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


class LabeledKFold(StratifiedKFold):  # type: ignore[misc]
    """Stratified folds over the labeled rows: every unlabeled row is in every training part, and in no test part.

    Args:
        n_splits: how many folds; each class needs as many labels.
        shuffle, random_state: as for `sklearn.model_selection.StratifiedKFold`.
    """

    def split(self, X: Any, y: Any, groups: Any = None) -> Iterator[tuple[Array, Array]]:
        """Row numbers to train on and to test on, fold by fold."""
        values, labeled = known_labels(y)
        rows, others = np.flatnonzero(labeled), np.flatnonzero(~labeled)
        if len(rows) == 0:
            raise ValueError("y has no labels at all: there is nothing to test on")
        for train, test in super().split(rows, values[rows]):
            yield np.sort(np.concatenate([rows[train], others])), rows[test]


def known_labels(y: Any) -> tuple[Array, npt.NDArray[np.bool_]]:
    """The labels as an array (N,), and where there is one: not where it is -1, None, NaN or ''."""
    values = column_or_1d(y, warn=True, dtype=None)
    if values.dtype.kind == "O":
        missing = np.array([_is_missing(value) for value in values], bool)
        known = values[~missing]
        if len(known) and all(isinstance(value, bool | int | np.integer) for value in known):
            values = np.where(missing, UNKNOWN, values).astype(np.int64)
        return values, ~missing
    if values.dtype.kind in "US":
        return values, ~np.isin(values, np.array(["", "-1"], values.dtype))  # NumPy makes text of -1 among names
    if values.dtype.kind == "f":
        return values, ~(np.isnan(values) | (values == UNKNOWN))
    return values, values != UNKNOWN


def _is_missing(value: Any) -> bool:
    if isinstance(value, str):
        return value in ("", "-1")
    return value is None or value != value or value == UNKNOWN


def _are_images(X: Any) -> bool:
    """Whether it is an array, or a list of arrays, of three or four axes."""
    if not hasattr(X, "shape") and not (isinstance(X, list | tuple) and len(X) and np.ndim(X[0]) in (2, 3)):
        return False
    return np.ndim(X) in (3, 4)

# %% [markdown]
# # Inside scikit-learn
#
# `MixMatchClassifier` is an ordinary estimator in which -1 means unlabeled. Here it is used in a pipeline,
# cross-validated on the rows that have labels, and is compared with self-training.

# %% tags=["parameters"]
STEPS = 500
LABELS = 6  # per class
FOLDS = 3

# %%
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import SelfTrainingClassifier

from mixmatch import LabeledKFold, MixMatchClassifier

X, truth = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(X))
X, truth = X[order], truth[order]
train, test = slice(0, 1300), slice(1300, None)
known = np.concatenate([np.flatnonzero(truth[train] == digit)[:LABELS] for digit in range(10)])
y = np.full(1300, -1)  # not known
y[known] = truth[known]

# %% [markdown]
# ## Fit and score

# %%
models = {
    "labels alone, logistic regression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
    "self-training, logistic regression": make_pipeline(
        StandardScaler(), SelfTrainingClassifier(LogisticRegression(max_iter=1000))
    ),
    "MixMatch": make_pipeline(StandardScaler(), MixMatchClassifier(steps=STEPS, random_state=0)),
}
for name, model in models.items():
    rows = known if name.startswith("labels") else slice(None)
    model.fit(X[train][rows], y[rows])
    print(f"{name:36} {np.mean(model.predict(X[test]) != truth[test]):.1%} test error")

# %% [markdown]
# ## Cross-validation
#
# `LabeledKFold` keeps every unlabeled row in the training part and tests on labeled rows only. Every setting of a run
# is a parameter, so `GridSearchCV` works as usual.

# %%
for lambda_u in (1.0, 20.0):
    model = MixMatchClassifier(steps=STEPS, lambda_u=lambda_u, random_state=0)
    scores = cross_val_score(model, X[train], y, cv=LabeledKFold(FOLDS))
    print(f"lambda_u {lambda_u:4}: {1 - scores.mean():.1%} error on the labels, {FOLDS} folds")

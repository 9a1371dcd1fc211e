# %% [markdown]
# # Texts, as embeddings
#
# Turn each text into a row of numbers, with any embedding you like, and train on those. Here with scikit-learn alone:
# the documentation of SciPy's functions is classified by package, a few of them labeled.

# %% tags=["parameters"]
OUT = "runs/examples/text"
STEPS = 1024
LABELS = 40

# %%
import inspect
import re
from pathlib import Path

import numpy as np
from scipy import linalg, ndimage, signal, stats
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

import mixmatch

texts, topics = [], []
for module in (linalg, ndimage, signal, stats):
    for name in sorted(module.__all__):
        text = inspect.getdoc(getattr(module, name)) or ""
        if len(text) > 500:
            texts.append(re.sub(r">>>.*|[^a-z ]", " ", text.lower())[:2000])
            topics.append(module.__name__.removeprefix("scipy."))
print(len(texts), "texts")

# %% [markdown]
# ## Embed
#
# Replace these two lines with your own model's vectors, one row per text.

# %%
vectors = TfidfVectorizer(stop_words="english", min_df=3, sublinear_tf=True).fit_transform(texts)
x = TruncatedSVD(32, random_state=0).fit_transform(vectors)

# %% [markdown]
# ## One file, then train
#
# An empty label means unlabeled. Test rows are left out of training; without them, some labels are held out.

# %%
topics = np.array(topics)
order = np.random.default_rng(0).permutation(len(x))
test, train = np.split(order, [len(order) // 3])
y = topics[train].copy()
y[LABELS:] = ""
file = Path(OUT).with_suffix(".npz")
file.parent.mkdir(parents=True, exist_ok=True)
np.savez(file, x=x[train], y=y, x_test=x[test], y_test=topics[test])
record = mixmatch.train(file, out=OUT, steps=STEPS, resume=True)
print(record["verdict"])

# %%
model = mixmatch.load(OUT)
for row in test[:5]:
    print(f"{model.predict(x[row : row + 1])[0]:8} is {topics[row]}: {texts[row][:60]}...")

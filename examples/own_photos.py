# %% [markdown]
# # A classifier from your own photos
#
# A folder of images, of which a few are sorted into a folder per class and the others are not. Here scikit-learn's
# digits stand in for photos, so that the example runs anywhere: put the path of your own folder in the first cell.

# %% tags=["parameters"]
PHOTOS = None  # such as "photos/": photos/CLASS/* labeled, photos/unlabeled/* not
OUT = "runs/examples/photos"
STEPS = 300
LABELS = 3  # per class, of the digits
UNLABELED = 800

# %%
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

import mixmatch


def write_digits(folder: Path) -> Path:
    """Digits as image files: a few in class folders, many without a label, some to test on, some new ones for later."""
    images, labels = load_digits(return_X_y=True)
    pixels = (images.reshape(-1, 8, 8) * 255 / 16).astype(np.uint8)
    order = np.random.default_rng(0).permutation(len(pixels))
    seen = np.zeros(10, dtype=int)
    for number, row in enumerate(order[: 10 * LABELS + UNLABELED + 40]):
        label = labels[row]
        part = f"digits/{label}" if seen[label] < LABELS else "digits/unlabeled"
        if seen[label] >= LABELS and number % 4 == 0:
            part = f"digits/test/{label}"
        if number >= 10 * LABELS + UNLABELED:
            part = f"new/{label}"
        seen[label] += 1
        (folder / part).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[row]).resize((32, 32)).save(folder / part / f"{row:04}.png")
    return folder / "digits"


photos = Path(PHOTOS) if PHOTOS else write_digits(Path(OUT).parent / "images")

# %% [markdown]
# ## Train
#
# On a CPU it learns from features that are computed once. A second run on the labels alone shows how much the unlabeled
# images help. `mixmatch data check FOLDER` checks the folder first.

# %%
record = mixmatch.train(photos, out=OUT, steps=STEPS, resume=True)
record  # in a notebook: a table

# %%
print(record["verdict"])
print("the report:", record["report"])

# %% [markdown]
# ## Predict
#
# The model takes paths of image files, or arrays. `predict_files` goes through folders of any size, image by image.

# %%
model = mixmatch.load(OUT)
print(model)
new = photos.parent / "new"
if new.is_dir():
    files = sorted(new.rglob("*.png"))
    right = np.mean([name == file.parent.name for name, file in zip(model.predict(files), files, strict=True)])
    print(f"{right:.0%} of {len(files)} new images are right")
    print(mixmatch.evaluate(OUT, new))
    for found in list(mixmatch.predict_files(OUT, new))[:3]:
        print(f"{found.file}: {found.class_name}, {found.probability:.0%}")

# %% [markdown]
# ## Use it elsewhere
#
# `mixmatch.export_model` writes ONNX (`pip install 'mixmatch[onnx]'`) or plain weights.

# %%
path, _ = mixmatch.export_model(OUT, Path(OUT) / "photos.safetensors", "safetensors")
print("weights:", path)

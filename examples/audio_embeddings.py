# %% [markdown]
# # Sounds, as embeddings
#
# The energy in a few frequency bands is the embedding. To have some data, the example first writes short sounds as WAV
# files; a few are labeled.

# %% tags=["parameters"]
OUT = "runs/examples/audio"
STEPS = 1024
SOUNDS = 600
LABELS = 40

# %%
import wave
from itertools import pairwise
from pathlib import Path

import numpy as np

import mixmatch

RATE, SECONDS = 16_000, 0.5
rng = np.random.default_rng(0)
time = np.arange(int(RATE * SECONDS)) / RATE
shapes = {
    "sine": lambda phase: np.sin(2 * np.pi * phase),
    "square": lambda phase: np.sign(np.sin(2 * np.pi * phase)),
    "saw": lambda phase: 2 * (phase % 1) - 1,
    "pluck": lambda phase: np.sin(2 * np.pi * phase) * np.exp(-8 * time),
}
sounds = Path(OUT).parent / "sounds"
sounds.mkdir(parents=True, exist_ok=True)
for i in range(SOUNDS):  # recordings: any pitch and loudness, with noise
    name = list(shapes)[i % 4]
    sound = shapes[name](rng.uniform(100, 800) * time + rng.uniform()) * rng.uniform(0.1, 1)
    sound = sound + rng.normal(0, rng.uniform(0.01, 0.1), len(time))
    with wave.open(str(sounds / f"{i:03}-{name}.wav"), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes((np.clip(sound / 3, -1, 1) * 32767).astype("<i2").tobytes())

# %% [markdown]
# ## Embed


# %%
def embed(path):
    """Mean and deviation over time of the energy in 24 bands, in decibels, without the loudness."""
    with wave.open(str(path)) as file:
        sound = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768
    frames = np.lib.stride_tricks.sliding_window_view(sound, 512)[::256] * np.hanning(512)
    energy = np.abs(np.fft.rfft(frames)) ** 2
    edges = np.geomspace(2, energy.shape[1], 25).astype(int)
    bands = np.stack([energy[:, a : max(b, a + 1)].mean(axis=1) for a, b in pairwise(edges)], axis=1)
    decibels = 10 * np.log10(bands + 1e-9)
    return np.concatenate([decibels.mean(axis=0) - decibels.mean(), decibels.std(axis=0)])


files = sorted(sounds.glob("*.wav"))[:SOUNDS]
x = np.stack([embed(file) for file in files])
y = np.array([file.stem.split("-")[1] for file in files])

# %% [markdown]
# ## Train

# %%
first = 2 * SOUNDS // 3  # to train on; the others are test rows
known = np.where(np.arange(first) < LABELS, y[:first], "")
data = Path(OUT).with_suffix(".npz")
np.savez(data, x=x[:first], y=known, x_test=x[first:], y_test=y[first:])
record = mixmatch.train(data, out=OUT, steps=STEPS, resume=True)
print(record["verdict"])

"""How much memory loading takes, measured in a process of its own.

Plain binary files are read in pieces. A MATLAB file and a Python pickle are in memory once while they are decoded for
the first time; SVHN's extra images, the largest such file, take 1.7 GB.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from mixmatch.data.user.columns import Places
from mixmatch.data.user.rows import UserData

MB = 80
"""Megabytes of images."""

# The peak of this process's own memory (VmHWM): ru_maxrss would begin with that of the parent's, which is larger.
PROGRAM = """if True:
    import pathlib, re, sys, numpy, requests, scipy.io
    from mixmatch.data import load
    def peak():
        return int(re.search(r"VmHWM:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1]) / 1000
    before = peak()
    source = load(sys.argv[1], sys.argv[2], download=False, warn=lambda _: None)
    print(peak() - before, source.train.inputs.nbytes / 1e6, int(source.train.inputs[-1].sum()))
"""


def pixels(*shape: int) -> np.ndarray:
    """Noise that repeats, so that compressing it takes little time."""
    noise = np.random.default_rng(0).integers(0, 256, 50_000, np.uint8)
    return np.resize(noise, int(np.prod(shape))).reshape(shape)


def svhn(folder: Path, compressed: bool) -> int:
    images = pixels(MB * 10**6 // 3072, 32, 32, 3)
    for title, part in (("train", images), ("test", images[:10])):
        variables = {"X": part.transpose(1, 2, 3, 0), "y": np.ones((len(part), 1), np.uint8)}
        savemat(folder / f"{title}_32x32.mat", variables, do_compression=compressed)
    return int(images[-1].sum())


def svhn_compressed(folder: Path) -> int:
    return svhn(folder, compressed=True)


def svhn_uncompressed(folder: Path) -> int:
    return svhn(folder, compressed=False)


def stl10(folder: Path) -> int:
    where = folder / "stl10_binary"
    where.mkdir()
    images = pixels(MB * 10**6 // 27648, 3, 96, 96)
    for title, part in (("unlabeled", images), ("train", images[:10]), ("test", images[:10])):
        (where / f"{title}_X.bin").write_bytes(part.tobytes())
        (where / f"{title}_y.bin").write_bytes(b"\x01" * len(part))
    return int(images[-1].sum())


def cifar100_python(folder: Path, protocol: int = 4) -> int:
    where = folder / "cifar-100-python"
    where.mkdir()
    images = pixels(MB * 10**6 // 3072, 3072)
    for title, part in (("train", images), ("test", images[:10])):
        with (where / title).open("wb") as file:
            pickle.dump({"data": part, "fine_labels": [0] * len(part)}, file, protocol=protocol)
    return int(images[-1].sum())


def cifar100_python_protocol_2(folder: Path) -> int:
    return cifar100_python(folder, protocol=2)


def cifar100_binary(folder: Path) -> int:
    where = folder / "cifar-100-binary"
    where.mkdir()
    images = pixels(MB * 10**6 // 3072, 3072)
    for title, part in (("train", images), ("test", images[:10])):
        labels = np.zeros((len(part), 2), np.uint8)
        np.concatenate([labels, part], axis=1).tofile(where / f"{title}.bin")
    return int(images[-1].sum())


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="needs Linux's /proc to measure memory")
@pytest.mark.parametrize(
    ("write", "most"),
    [
        (stl10, 0.5),
        (cifar100_binary, 0.5),
        (svhn_compressed, 1.25),
        (svhn_uncompressed, 1.25),
        (cifar100_python, 1.25),
        (cifar100_python_protocol_2, 3.0),  # as Python 3 writes it, bytes as text; the published ones are of Python 2
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_peak(write: Callable[[Path], int], most: float, tmp_path: Path) -> None:
    last = write(tmp_path)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, write.__name__.split("_")[0], str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    growth, size, found = (float(value) for value in done.stdout.split())
    print(f"{write.__name__}: {growth:.1f} MB for {size:.1f} MB of images")
    assert found == last
    assert size > 0.99 * MB
    assert growth < most * MB


def test_user_data_is_made_without_a_copy_of_it() -> None:
    """A table of a million rows is as large as all else in the process: what asks about every value asks in pieces."""
    rows = 100_000
    inputs, labels = np.ones((rows, 50), np.float32), np.zeros(rows, np.int64)
    files, part = Places("line ", range(rows)), ("train",) * rows
    tracemalloc.start()
    try:
        UserData(inputs=inputs, labels=labels, name="t", classes=("a", "b"), files=files, part=part)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < inputs.nbytes / 20

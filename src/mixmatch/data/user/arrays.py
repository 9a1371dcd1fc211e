"""User data in .npz and .npy files: arrays of images, or matrices of features such as embeddings."""

from __future__ import annotations

import errno
import math
import os
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mixmatch.data.user.encoding import Encoding, fit_numbers, missing_values, refuse_infinite
from mixmatch.data.user.rows import Finding, Part, UserData, class_order, match_labels, number_labels
from mixmatch.errors import MixMatchError
from mixmatch.storage import NotPlain, check_plain
from mixmatch.text import count, listed

Array = npt.NDArray[Any]
Names = list[str | None]

X_KEYS = ("x", "X", "images", "features", "x_train", "X_train", "data")
Y_KEYS = ("y", "Y", "labels", "y_train", "target")
X_UNLABELED_KEYS = ("x_unlabeled", "X_unlabeled", "unlabeled")
X_TEST_KEYS = ("x_test", "X_test", "test_images", "test_features")
Y_TEST_KEYS = ("y_test", "Y_test", "test_labels")
CLASSES_KEYS = ("classes", "class_names", "target_names")
HOW_TO_LABEL = "give y with class numbers from 0 (or names), and -1, NaN or '' where a row is unlabeled"
CONVERTED = "converted"
"""The kind of the finding that images were not uint8."""
PIECE = 1024
"""Images converted at a time."""


@dataclass(frozen=True)
class Block:
    """Rows of one array: where they are, their labels by name, and what they are for."""

    key: str
    x: Array
    labels: Names
    part: Part


def read_arrays(path: str | os.PathLike[str], *, labels_file: str | os.PathLike[str] | None = None) -> UserData:
    """A .npz or .npy file as images or as standardized features. Files with pickled objects are refused.

    A .npz file holds `x` (or X, images, features), `y` (or labels) and, if you like, `x_unlabeled`, `x_test` with
    `y_test`, and `classes`, the names of the classes in the order of their numbers. A .npy file holds `x` alone and
    needs `labels_file`, a .npy file with `y`.

    Args:
        path: `x` is (N, F) for features; (N, H, W) or (N, H, W, C) for images, uint8, or numbers in 0..1 or 0..255.
        labels_file: `y` (N,): whole numbers or names; -1, NaN, '' mean unlabeled.
    """
    path = Path(path).expanduser()
    blocks, classes = _read(path, labels_file)
    shapes = {block.x.shape[1:] for block in blocks}
    if len(shapes) > 1:
        shapes_text = ", ".join(f"{block.key} {block.x.shape}" for block in blocks)
        raise MixMatchError(f"{path} has rows of different shapes: {shapes_text}")
    files = [f"{block.key}[{row}]" for block in blocks for row in range(len(block.x))]
    numbered = number_labels(
        [label for block in blocks for label in block.labels],
        [block.part for block in blocks for _ in block.labels],
        files,
        path.name,
        classes,
        noun="row",
        how=HOW_TO_LABEL,
        order=class_order,
    )
    x = [block.x for block in blocks]
    encoding = None
    if x[0].ndim == 2:
        encoding, findings = _fit([block.x for block in blocks if block.part == "train"], path)
        inputs: Array = np.concatenate([encoding.apply_matrix(rows) for rows in x])
    else:
        inputs, findings = to_images(x, path.name)
    inputs = inputs if len(numbered.rows) == len(files) else inputs[numbered.rows]
    return numbered.with_inputs(inputs, findings, encoding=encoding)


def read_labeled_arrays(
    path: Path, classes: Sequence[str], encoding: Encoding | None, *, labels_file: str | os.PathLike[str] | None = None
) -> UserData:
    """The labeled rows of a .npz or .npy file as a model of these classes takes them: `x_test` if there is one, else
    `x`. Numbers in `y` are names of classes, unless the file has `classes`."""
    blocks, _ = _read(path, labels_file)
    block = next((block for block in blocks if block.part == "test"), blocks[0])
    files = [f"{block.key}[{row}]" for row in range(len(block.x))]
    numbered = match_labels(block.labels, [block.part] * len(files), files, path.name, classes, noun="row")
    if block.x.ndim != 2:
        inputs: Array = to_images([block.x], path.name)[0]
    elif encoding is None:
        raise MixMatchError(f"the model takes images, but {path} has {block.key} of shape {block.x.shape}")
    else:
        inputs = encoding.apply_matrix(block.x)
    return numbered.with_inputs(inputs[numbered.rows], encoding=encoding if block.x.ndim == 2 else None)


def _read(path: Path, labels_file: str | os.PathLike[str] | None) -> tuple[list[Block], list[str] | None]:
    """The arrays of a file, each with its labels by name, and the classes if the file names them."""
    arrays = load_arrays(path)
    if labels_file is not None:
        labels = load_arrays(Path(labels_file).expanduser())
        arrays |= {"y": next((labels[key] for key in (*Y_KEYS, "x") if key in labels), np.empty(0))}
    named = _pick(arrays, CLASSES_KEYS)
    classes = None if named is None else [str(name) for name in _text(named.ravel())]
    return list(_blocks(arrays, path, classes)), classes


def read_matrix(path: Path) -> Array:
    """The rows `x` of a .npz or .npy file that needs no labels: rows to predict."""
    x = _pick(load_arrays(path), X_KEYS)
    if x is None:
        raise MixMatchError(f"{path} has no array '{X_KEYS[0]}'")
    _check_rows("x", x, path)
    return x


def input_axes(path: Path) -> int:
    """How many axes the array of rows has, read from its header alone; 0 where there is none."""
    try:
        if path.suffix.lower() == ".npy":
            with np.errstate(over="ignore"):
                return int(np.load(path, mmap_mode="r", allow_pickle=False).ndim)
        with zipfile.ZipFile(path) as file:
            name = next((f"{key}.npy" for key in X_KEYS if f"{key}.npy" in file.namelist()), None)
            if name is None:
                return 0
            with file.open(name) as member:
                version = np.lib.format.read_magic(member)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                return len(read(member)[0])
    except Exception:  # reading it says why
        return 0


# ------------------------------------------------------------------------------------------------- reading the file


def load_arrays(path: Path) -> dict[str, Array]:
    """The arrays of a .npz file by name, the one of a .npy file as `x`, memory-mapped. No pickles."""
    try:
        check_plain(path)
        if zipfile.is_zipfile(path):
            check_unpacked(path)
        with np.errstate(over="ignore"):  # of sizes that no file has
            loaded = np.load(path, mmap_mode="r", allow_pickle=False)  # of a .npz nothing is mapped
        if isinstance(loaded, np.ndarray):
            return {"x": loaded}
        with loaded:
            found = {key: loaded[key] for key in loaded.files}
        return {key: value for key, value in found.items() if isinstance(value, np.ndarray)}  # else another file
    except FileNotFoundError:
        raise MixMatchError(f"there is no file {path}") from None
    except MixMatchError:
        raise
    except Exception as error:  # a damaged file makes zipfile, zlib and NumPy raise nearly everything
        raise MixMatchError(f"cannot read {path}: {_reason(path, error)}") from None


def _reason(path: Path, error: Exception) -> str:
    seek_to_nowhere = isinstance(error, OSError) and error.errno in (None, errno.EINVAL)
    if isinstance(error, NotPlain) or (isinstance(error, OSError) and not seek_to_nowhere):
        return error.strerror or str(error)
    if re.search("pickle|Python objects", str(error)) and _starts_with(path, b"\x93NUMPY", b"PK", b"\x80"):
        return "it holds Python objects, which could run anything when loaded; save plain numbers or text"
    if "encrypted" in str(error) or "strong encryption" in str(error):
        return "it is encrypted; unpack it and save its arrays without a password"
    if isinstance(error, NotImplementedError):
        return "it is compressed in a way that is not known here; save it with numpy.savez_compressed"
    return "it is damaged or no .npz or .npy file"


def check_unpacked(path: Path) -> None:
    """Refuse a file that unpacks to far more than it is: it may be made to fill the memory."""
    with zipfile.ZipFile(path) as file:
        unpacked = sum(member.file_size for member in file.infolist())
    try:
        limit = float(given := os.environ.get("MIXMATCH_UNPACK_GB") or "1") * 2**30
    except ValueError:
        raise MixMatchError(f"MIXMATCH_UNPACK_GB is '{given}', but must be a number of gigabytes") from None
    if unpacked > limit and unpacked > 100 * path.stat().st_size:
        raise MixMatchError(
            f"{path} unpacks to {unpacked / 2**30:,.1f} GB, {unpacked / path.stat().st_size:,.0f} times its size: if "
            f"that is right, set MIXMATCH_UNPACK_GB={math.ceil(unpacked / 2**30)}"
        )


def _starts_with(path: Path, *marks: bytes) -> bool:
    """Whether a file is an array, a zip file or a pickle: NumPy takes anything else for a pickle, too."""
    with path.open("rb") as file:
        return file.read(6).startswith(marks)


def _pick(arrays: Mapping[str, Array], keys: Sequence[str]) -> Array | None:
    return next((arrays[key] for key in keys if key in arrays), None)


def _blocks(arrays: Mapping[str, Array], path: Path, classes: Sequence[str] | None) -> Iterator[Block]:
    x, y = _pick(arrays, X_KEYS), _pick(arrays, Y_KEYS)
    if x is None:
        raise MixMatchError(f"{path} has no array '{X_KEYS[0]}' (it has {listed(arrays, 8) or 'none'})")
    if y is None:
        more = "give labels_file=, a .npy file with them" if path.suffix == ".npy" else HOW_TO_LABEL
        raise MixMatchError(f"{path} has no labels 'y': {more}")
    yield _block("x", x, y, "train", path, classes)
    if (unlabeled := _pick(arrays, X_UNLABELED_KEYS)) is not None:
        yield _block("x_unlabeled", unlabeled, np.full(len(unlabeled), -1), "train", path, classes)
    x_test, y_test = _pick(arrays, X_TEST_KEYS), _pick(arrays, Y_TEST_KEYS)
    if (x_test is None) != (y_test is None):
        raise MixMatchError(f"{path} has only one of 'x_test' and 'y_test': a test set takes both")
    if x_test is not None and y_test is not None:
        yield _block("x_test", x_test, y_test, "test", path, classes)


def _block(key: str, x: Array, y: Array, part: Part, path: Path, classes: Sequence[str] | None) -> Block:
    _check_rows(key, x, path)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.shape != x.shape[:1]:
        raise MixMatchError(f"{path} has {key} with {count(len(x), 'row')}, but labels of shape {y.shape}")
    labels = _text(y)
    if classes is not None and y.dtype.kind not in "US":
        labels = [None if label is None else _class(int(label), classes, path) for label in labels]
    return Block(key, x, labels, part)


def _check_rows(key: str, x: Array, path: Path) -> None:
    if 0 in x.shape:
        raise MixMatchError(f"{path} has {key} of shape {x.shape}, which is empty")
    if x.ndim not in (2, 3, 4):
        raise MixMatchError(f"{path} has {key} of shape {x.shape}; it must be (N, F), (N, H, W) or (N, H, W, C)")
    if not (np.issubdtype(x.dtype, np.number) or x.dtype == bool) or np.issubdtype(x.dtype, np.complexfloating):
        raise MixMatchError(f"{path} has {key} of type {x.dtype}; it must hold real numbers")


def _text(y: Array) -> Names:
    """Labels as text, None where there is none; whole numbers are written as such."""
    if y.dtype.kind in "US":
        return [(_decoded(value) if isinstance(value, bytes) else str(value)).strip() or None for value in y]
    if y.dtype.kind == "f":
        known = y[~np.isnan(y)]
        if not np.isfinite(known).all() or (known != np.rint(known)).any():
            raise MixMatchError("the labels are real numbers, but classes have whole ones (or names)")
        return [None if np.isnan(value) or value == -1 else str(int(value)) for value in y]
    if y.dtype.kind in "iub":
        return [None if value == -1 and y.dtype.kind == "i" else str(int(value)) for value in y]
    raise MixMatchError(f"the labels are of type {y.dtype}, but must be whole numbers or names")


def _decoded(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise MixMatchError(
            f"the name {bytes(name)!r} of a class is not UTF-8: save the names as text, not as bytes"
        ) from None


def _class(number: int, classes: Sequence[str], path: Path) -> str:
    if not 0 <= number < len(classes):
        names = listed(classes, 5)
        raise MixMatchError(f"{path} has the label {number}, but its classes are 0 to {len(classes) - 1} ({names})")
    return classes[number]


# -------------------------------------------------------------------------------------------------------- features


def _fit(train: Sequence[Array], path: Path) -> tuple[Encoding, list[Finding]]:
    """Standardize by the training rows; NaN is a missing value, infinity a mistake."""
    rows = train[0] if len(train) == 1 else np.concatenate(train)
    refuse_infinite(rows, "the features")
    names = [str(i) for i in range(rows.shape[1])]
    gaps = np.isnan(rows).sum(axis=0)
    missing = {name: int(n) for name, n in zip(names, gaps, strict=True) if n}
    findings = missing_values(missing, len(rows))
    constant = [name for name, values in zip(names, rows.T, strict=True) if _is_constant(values)]
    if len(constant) == len(names):
        raise MixMatchError(f"{path} has the same values in every row: there is nothing to learn from")
    if constant:
        be = "is" if len(constant) == 1 else "are"
        message = f"{count(len(constant), 'column')} of {len(names):,} {be} the same in every row ({listed(constant)})"
        findings.append(Finding("constant-column", message, tuple(constant), "nothing to do", "info"))
    return Encoding(tuple(fit_numbers(names, rows))), findings


def _is_constant(values: Array) -> bool:
    """Whether a column has one value only: missing ones become the median."""
    known = values[~np.isnan(values)]
    return len(known) == 0 or bool(known.min() == known.max())


# ---------------------------------------------------------------------------------------------------------- images


def to_images(
    blocks: Sequence[Array], name: str, scale: int | None = None
) -> tuple[npt.NDArray[np.uint8], list[Finding]]:
    """Arrays (N, H, W) or (N, H, W, C) as one uint8 array (N, H, W, C), and what had to be converted for it. Numbers
    are multiplied by `scale`; by default it is found out from all of them."""
    findings = []
    shape = blocks[0].shape
    if len(shape) == 4 and shape[1] in (1, 3, 4) and shape[3] > 4:
        blocks = [x.transpose(0, 2, 3, 1) for x in blocks]
        message = f"the images of {name} are taken for (N, C, H, W), channels first"
        findings.append(Finding("channels-first", message, (), "save them as (N, H, W, C) if they are not", "info"))
    blocks = [x[..., None] if x.ndim == 3 else x for x in blocks]
    if all(x.dtype == np.uint8 for x in blocks):
        return (blocks[0] if len(blocks) == 1 else np.concatenate(blocks)), findings
    found = scale_of(blocks, name)
    scale = found if scale is None else scale
    out = np.empty((sum(map(len, blocks)), *blocks[0].shape[1:]), np.uint8)
    row = 0
    for x in blocks:
        for start in range(0, len(x), PIECE):
            piece = x[start : start + PIECE]
            out[row : row + len(piece)] = np.rint(piece.astype(np.float64) * scale)
            row += len(piece)
    kept = "0..1 became 0..255" if scale == 255 else "rounded"
    message = f"the images of {name} are {blocks[0].dtype}, not uint8: {kept}"
    findings.append(Finding(CONVERTED, message, (), "save them as uint8 to take less space", "info"))
    return out, findings


def scale_of(blocks: Sequence[Array], name: str) -> int:
    """255 for values in 0..1, 1 for values in 0..255; decided for train and test at once."""
    if blocks[0].dtype == bool:
        return 255
    if bad := sum(int((~np.isfinite(x)).sum()) for x in blocks):
        raise MixMatchError(
            f"the images of {name} have {count(bad, 'value')} that {'is' if bad == 1 else 'are'} no number"
        )
    low, high = min(float(x.min()) for x in blocks), max(float(x.max()) for x in blocks)
    if low < 0 or high > 255:
        raise MixMatchError(
            f"the images of {name} have values from {low:g} to {high:g}; bring them into 0..1 or 0..255"
        )
    return 255 if high <= 1 and np.issubdtype(blocks[0].dtype, np.floating) else 1

"""Training data by name: scikit-learn's digits, .npz and .csv files, RecordIO files of images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flowmx import io
from flowmx.ops.registry.operators import Array

__all__ = ["SOURCES", "Data", "DataOptions", "load"]

Arrays = tuple[Array, Array]

_PIXELS, _SCALE = 8, 4
_DEVIATION = 58.0
"""Approximate standard deviation of pixels from 0 to 255."""


class DataOptions(NamedTuple):
    """Options of the data.

    Attributes:
        path: name of the data, or its file.
        validation: file of the validation data; empty: a fraction of the data, if it is in memory.
        batch_size: the batch size.
        shape: shape of a row, if the data does not define it.
        classes: number of classes, if the data does not define it.
        held_out: fraction of rows for validation.
        seed: seed of random choices.
    """

    path: str
    validation: str = ""
    batch_size: int = 64
    shape: tuple[int, ...] | None = None
    classes: int | None = None
    held_out: float = 0.2
    seed: int = 0


class Data(NamedTuple):
    """Batches to train on and to validate on.

    Attributes:
        train: the training batches.
        validation: the validation batches, if any.
        shape: shape of a row.
        classes: number of classes.
        batches: number of batches per epoch; None if unknown.
    """

    train: io.DataIter
    validation: io.DataIter | None
    shape: tuple[int, ...]
    classes: int
    batches: int | None


def load(options: DataOptions) -> Data:
    """Load the data.

    Raises:
        ValueError: the name is unknown, or the content of a file is invalid.
        ImportError: a package is missing.
        OSError: a file cannot be read.
    """
    return _source(options.path)(options)


def _source(path: str) -> Callable[[DataOptions], Data]:
    ending = Path(path).suffix.lower()
    source = SOURCES.get(path) or SOURCES.get(ending)
    if source is None:
        raise ValueError(f"--data {path}: expected one of {', '.join(SOURCES)}")
    return source


# -- in memory -------------------------------------------------------------------------------------------------


def _digits(options: DataOptions) -> Data:
    """Load the 1,797 digits of 8x8 pixels as 1x32x32 images in [0, 1]."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ImportError("--data digits needs scikit-learn: pip install scikit-learn") from None
    bunch = load_digits()
    images = bunch.images.reshape(-1, 1, _PIXELS, _PIXELS).astype(np.float32) / 16
    return _in_memory(options, (images.repeat(_SCALE, axis=2).repeat(_SCALE, axis=3), bunch.target))


def _npz(options: DataOptions) -> Data:
    arrays = _members(options.path, ("data", "label"), ("x", "y"), ("x_train", "y_train"))
    with np.load(options.path, allow_pickle=False) as file:
        validation = (file["x_test"], file["y_test"]) if {"x_test", "y_test"} <= set(file.files) else None
    return _in_memory(options, arrays, validation)


def _members(path: str, *pairs: tuple[str, str]) -> Arrays:
    """Return the first of these pairs of arrays that a .npz file has."""
    with np.load(path, allow_pickle=False) as file:
        for x, y in pairs:
            if {x, y} <= set(file.files):
                return file[x], file[y]
        names = ", ".join(sorted(file.files)) or "no arrays"
    raise ValueError(f"{path} has {names}, expected {', or '.join(f'{x} and {y}' for x, y in pairs)}")


def _csv(options: DataOptions) -> Data:
    return _in_memory(options, _table(options.path))


def _table(path: str) -> Arrays:
    """Return the rows of a file, and the labels from its last column. A first line without numbers is a heading."""
    lines = [line for line in Path(path).read_text("utf-8").splitlines() if line.strip()]
    rows_of = lines if lines and _is_numbers(lines[0]) else lines[1:]
    if not rows_of:
        raise ValueError(f"{path} has no rows, expected comma-separated numbers, the label last")
    try:
        rows = np.loadtxt(rows_of, np.float32, delimiter=",", ndmin=2)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; expected comma-separated numbers, the label last") from None
    if rows.shape[1] < 2:
        raise ValueError(f"{path} has {rows.shape[1]} column, expected at least one, and the label last")
    return rows[:, :-1], rows[:, -1]


def _is_numbers(line: str) -> bool:
    try:
        return bool([float(cell) for cell in line.split(",")])
    except ValueError:
        return False


def _in_memory(options: DataOptions, arrays: Arrays, held_out: Arrays | None = None) -> Data:
    if options.validation:
        held_out = _validation_arrays(options.validation)
    train, validation = (arrays, held_out) if held_out is not None else _split(options, arrays)
    shape = options.shape or tuple(train[0].shape[1:])
    size = min(options.batch_size, len(train[0]))

    def batches(arrays: Arrays, shuffle: bool) -> io.NDArrayIter:
        rows = arrays[0].reshape(len(arrays[0]), *shape).astype(np.float32)
        return io.NDArrayIter(rows, arrays[1].astype(np.float32), size, shuffle, "discard" if shuffle else "pad")

    classes = _classes(options, [train[1], validation[1]])
    return Data(
        batches(train, True), batches(validation, False) if len(validation[0]) else None, shape, classes,
        len(train[0]) // size,
    )  # fmt: skip


def _classes(options: DataOptions, labels: Sequence[Array]) -> int:
    """Return the number of classes, after checking that all labels are class indices."""
    values = np.concatenate([array.reshape(-1) for array in labels])
    if not len(values):
        raise ValueError(f"{options.path} has no samples")
    classes = options.classes or (int(values.max()) + 1 if np.isfinite(values).all() else 1)
    wrong = values[~((values >= 0) & (values < classes) & (values == np.floor(values)))]
    if len(wrong):
        raise ValueError(f"{options.path} has the label {wrong[0]:g}, expected ints from 0 to {classes - 1}")
    return classes


def _validation_arrays(path: str) -> Arrays:
    """Load the validation data from its file."""
    if path.endswith(".csv"):
        return _table(path)
    if path.endswith(".npz"):
        return _members(path, ("data", "label"), ("x", "y"), ("x_test", "y_test"))
    raise ValueError(f"--validation {path}: expected a .csv file, or a .npz file with data and label")


def _split(options: DataOptions, arrays: Arrays) -> tuple[Arrays, Arrays]:
    """Split the data randomly into training and validation data."""
    if not 0 <= options.held_out < 1:
        raise ValueError(f"--held-out is {options.held_out}, expected a fraction from 0 to less than 1")
    data, labels = arrays
    if len(data) != len(labels) or not len(data):
        raise ValueError(
            f"{options.path} has {len(data)} samples and {len(labels)} labels, expected equal numbers above 0"
        )
    order = np.random.default_rng(options.seed).permutation(len(data))
    count = int(len(data) * options.held_out)
    return (data[order[count:]], labels[order[count:]]), (data[order[:count]], labels[order[:count]])


# -- images in RecordIO files ----------------------------------------------------------------------------------


def _rec(options: DataOptions) -> Data:
    shape = options.shape or (3, 224, 224)
    if options.classes is None:
        raise ValueError(f"--data {options.path}: the number of classes is unknown: pass --classes")
    if len(shape) != 3 or shape[0] != 3:
        raise ValueError(f"--shape is {shape}, expected 3 channels, height and width of an image")
    common: dict[str, Any] = {
        "data_shape": shape, "batch_size": options.batch_size, "seed": options.seed,
        "resize": round(min(shape[1:]) * 8 / 7),
        **{f"mean_{channel}": value for channel, value in zip("rgb", (123.68, 116.78, 103.94), strict=True)},
        **{f"std_{channel}": _DEVIATION for channel in "rgb"},
    }  # fmt: skip
    train = io.ImageRecordIter(
        path_imgrec=options.path, shuffle=True, rand_crop=True, rand_mirror=True, round_batch=False, **common
    )
    validation = io.ImageRecordIter(path_imgrec=options.validation, **common) if options.validation else None
    return Data(train, validation, shape, options.classes, None)


SOURCES: dict[str, Callable[[DataOptions], Data]] = {"digits": _digits, ".npz": _npz, ".csv": _csv, ".rec": _rec}
"""Readers of data, by name or file suffix."""

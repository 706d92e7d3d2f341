"""Data to train on, by name: scikit-learn's digits, .npz and .csv files, RecordIO files of images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flowmx import io

__all__ = ["SOURCES", "Data", "Wanted", "load"]

Arrays = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]

_PIXELS, _SCALE = 8, 4
_DEVIATION = 58.0
"""Of pixels from 0 to 255, about."""


class Wanted(NamedTuple):
    """Options of the data.

    Attributes:
        path: its name.
        validation: the name of that to validate on; empty: a part of the data, where it is in memory.
        batch_size: rows of a batch.
        shape: of a row, where the data does not say it.
        classes: the number of classes, where the data does not say it.
        held_out: the fraction of rows to validate on.
        seed: of what is drawn at random.
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
        train: those to train on.
        validation: those to validate on, if there are any.
        shape: of a row.
        classes: the number of classes.
        batches: the number of batches of an epoch; None where it is unknown.
    """

    train: io.DataIter
    validation: io.DataIter | None
    shape: tuple[int, ...]
    classes: int
    batches: int | None


def load(wanted: Wanted) -> Data:
    """Find the data.

    Raises:
        ValueError: there is no such source, or a file holds something else than it should.
        ImportError: a source needs a package that is not there.
        OSError: a file can not be read.
    """
    return _source(wanted.path)(wanted)


def _source(path: str) -> Callable[[Wanted], Data]:
    ending = Path(path).suffix.lower()
    found = SOURCES.get(path) or SOURCES.get(ending)
    if found is None:
        raise ValueError(f"--data {path}: expected one of {', '.join(SOURCES)}")
    return found


# -- in memory -------------------------------------------------------------------------------------------------


def _digits(wanted: Wanted) -> Data:
    """The 1,797 digits, 8x8, as 1x32x32 images in [0, 1]."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ImportError("--data digits needs scikit-learn: pip install 'flowmx[examples]'") from None
    bunch = load_digits()
    images = bunch.images.reshape(-1, 1, _PIXELS, _PIXELS).astype(np.float32) / 16
    return _in_memory(wanted, (images.repeat(_SCALE, axis=2).repeat(_SCALE, axis=3), bunch.target))


def _npz(wanted: Wanted) -> Data:
    arrays = _members(wanted.path, ("data", "label"), ("x", "y"), ("x_train", "y_train"))
    with np.load(wanted.path, allow_pickle=False) as file:
        apart = (file["x_test"], file["y_test"]) if {"x_test", "y_test"} <= set(file.files) else None
    return _in_memory(wanted, arrays, apart)


def _members(path: str, *pairs: tuple[str, str]) -> Arrays:
    """The first of these pairs of arrays that a .npz file holds."""
    with np.load(path, allow_pickle=False) as file:
        for x, y in pairs:
            if {x, y} <= set(file.files):
                return file[x], file[y]
        held = ", ".join(sorted(file.files)) or "nothing"
    raise ValueError(f"{path} holds {held}, expected {', or '.join(f'{x} and {y}' for x, y in pairs)}")


def _csv(wanted: Wanted) -> Data:
    return _in_memory(wanted, _table(wanted.path))


def _table(path: str) -> Arrays:
    """The rows of a file and, from its last column, the labels; a first line without numbers is a heading."""
    lines = [line for line in Path(path).read_text("utf-8").splitlines() if line.strip()]
    rows_of = lines if lines and _is_numbers(lines[0]) else lines[1:]
    if not rows_of:
        raise ValueError(f"{path} has no rows, expected numbers between commas, the label last")
    try:
        rows = np.loadtxt(rows_of, np.float32, delimiter=",", ndmin=2)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; expected numbers between commas, the label last") from None
    if rows.shape[1] < 2:
        raise ValueError(f"{path} has {rows.shape[1]} column, expected those of a row, and the label last")
    return rows[:, :-1], rows[:, -1]


def _is_numbers(line: str) -> bool:
    try:
        return bool([float(cell) for cell in line.split(",")])
    except ValueError:
        return False


def _in_memory(wanted: Wanted, arrays: Arrays, apart: Arrays | None = None) -> Data:
    if wanted.validation:
        apart = _arrays_of(wanted.validation)
    train, validation = (arrays, apart) if apart is not None else _split(wanted, arrays)
    shape = wanted.shape or tuple(train[0].shape[1:])
    size = min(wanted.batch_size, len(train[0]))

    def batches(of: Arrays, shuffle: bool) -> io.NDArrayIter:
        rows = of[0].reshape(len(of[0]), *shape).astype(np.float32)
        return io.NDArrayIter(rows, of[1].astype(np.float32), size, shuffle, "discard" if shuffle else "pad")

    classes = _classes(wanted, [train[1], validation[1]])
    return Data(
        batches(train, True), batches(validation, False) if len(validation[0]) else None, shape, classes,
        len(train[0]) // size,
    )  # fmt: skip


def _classes(wanted: Wanted, labels: Sequence[np.ndarray[Any, Any]]) -> int:
    """The number of classes, where all labels are class indices."""
    known = np.concatenate([each.reshape(-1) for each in labels])
    if not len(known):
        raise ValueError(f"{wanted.path} has no rows")
    classes = wanted.classes or (int(known.max()) + 1 if np.isfinite(known).all() else 1)
    wrong = known[~((known >= 0) & (known < classes) & (known == np.floor(known)))]
    if len(wrong):
        raise ValueError(f"{wanted.path} has the label {wrong[0]:g}, expected ints from 0 to {classes - 1}")
    return classes


def _arrays_of(path: str) -> Arrays:
    """The validation arrays from a file of their own."""
    if path.endswith(".csv"):
        return _table(path)
    if path.endswith(".npz"):
        return _members(path, ("data", "label"), ("x", "y"), ("x_test", "y_test"))
    raise ValueError(f"--validation {path}: expected a .csv file, or a .npz file with data and label")


def _split(wanted: Wanted, arrays: Arrays) -> tuple[Arrays, Arrays]:
    """A part to train on, and one drawn at random to validate on."""
    if not 0 <= wanted.held_out < 1:
        raise ValueError(f"--held-out is {wanted.held_out}, expected a part from 0 to less than 1")
    data, labels = arrays
    if len(data) != len(labels) or not len(data):
        raise ValueError(f"{wanted.path} has {len(data)} rows and {len(labels)} labels, expected as many, and some")
    order = np.random.default_rng(wanted.seed).permutation(len(data))
    count = int(len(data) * wanted.held_out)
    return (data[order[count:]], labels[order[count:]]), (data[order[:count]], labels[order[:count]])


# -- images in RecordIO files ----------------------------------------------------------------------------------


def _rec(wanted: Wanted) -> Data:
    shape = wanted.shape or (3, 224, 224)
    if wanted.classes is None:
        raise ValueError(f"--data {wanted.path}: the number of classes is not known: give --classes")
    if len(shape) != 3 or shape[0] != 3:
        raise ValueError(f"--shape is {shape}, expected 3 channels, height and width of an image")
    common: dict[str, Any] = {
        "data_shape": shape, "batch_size": wanted.batch_size, "seed": wanted.seed,
        "resize": round(min(shape[1:]) * 8 / 7),
        **{f"mean_{channel}": value for channel, value in zip("rgb", (123.68, 116.78, 103.94), strict=True)},
        **{f"std_{channel}": _DEVIATION for channel in "rgb"},
    }  # fmt: skip
    train = io.ImageRecordIter(
        path_imgrec=wanted.path, shuffle=True, rand_crop=True, rand_mirror=True, round_batch=False, **common
    )
    validation = io.ImageRecordIter(path_imgrec=wanted.validation, **common) if wanted.validation else None
    return Data(train, validation, shape, wanted.classes, None)


SOURCES: dict[str, Callable[[Wanted], Data]] = {"digits": _digits, ".npz": _npz, ".csv": _csv, ".rec": _rec}
"""Readers of data, by name or file suffix."""

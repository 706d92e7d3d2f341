"""Lists of images (.lst): a line has the index of an image, its labels and its path, separated by tabs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flowmx.errors import DataError, raised_as_mxnet


class Item(NamedTuple):
    """A line of a list."""

    number: int
    path: str
    labels: tuple[float, ...]


def lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, str, list[str]]]:
    """Iterate over the lines that are not blank: (line number, text, the parts between tabs).

    Raises:
        OSError: the file cannot be read.
    """
    with Path(path).open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            text = line.strip()
            if text:
                yield number, text, [part.strip() for part in text.split("\t")]


def labels_and_path(entry: Sequence[object]) -> tuple[Any, Any]:
    """Split ``[label, ..., path]`` or ``[[label, ...], path]`` into labels, float64 (number,), and the path.

    Raises:
        ValueError: a label is not a number.
    """
    *labels, path = entry
    return np.array(labels[0] if len(labels) == 1 else labels, np.float64).reshape(-1), path


def read(path: str | os.PathLike[str]) -> Iterator[Item | str]:
    """Iterate over the items of a list; an invalid line yields the text of an error message.

    Raises:
        OSError: the file cannot be read.
    """
    for number, text, parts in lines(path):
        try:
            if len(parts) < 3:
                raise ValueError(f"it has {len(parts)} parts")
            yield Item(int(parts[0]), parts[-1], tuple(map(float, parts[1:-1])))
        except ValueError as error:
            expected = f"expected an index, labels and a path, separated by tabs ({error})"
            yield f"line {number} of {os.fspath(path)!r} is {text[:80]!r}, {expected}"


def format_line(item: Item) -> str:
    """Format an item as a line, with its line end."""
    return f"{item.number}\t" + "".join(f"{label:f}\t" for label in item.labels) + f"{item.path}\n"


@raised_as_mxnet(OSError)
def read_labels(path: str | os.PathLike[str], width: int) -> dict[int, Any]:
    """Read the labels of a list: float32 arrays of ``width`` numbers, by the number of the image.

    Any white space separates the parts, as in MXNet's `ImageRecordIter`.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line has too few numbers.
    """
    return dict(_labels(path, width, f"{width} label(s)"))


@raised_as_mxnet(OSError)
def read_all_labels(path: str | os.PathLike[str]) -> dict[int, Any]:
    """Read the labels of a list in which an image may have any number of labels, between its number and its path.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line has no labels.
    """
    return dict(_labels(path, -1, "labels"))


def _labels(path: str | os.PathLike[str], width: int, expected: str) -> Iterator[tuple[int, Any]]:
    for number, text, _ in lines(path):
        words = text.split(maxsplit=width + 1 if width > 0 else -1)
        try:
            labels = np.array(
                [float(word) for word in (words[1 : width + 1] if width > 0 else words[1:-1])], np.float32
            )
            if len(labels) < max(width, 1):
                raise ValueError("too few numbers")
            yield int(words[0]), labels
        except ValueError as error:
            raise DataError(
                f"line {number} of {os.fspath(path)!r} is {text[:80]!r}, expected the number of an image, {expected} "
                "and a path"
            ) from error

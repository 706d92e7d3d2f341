"""Lists of the images in a folder."""

from __future__ import annotations

import os
import random
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from flowmx.data.image_lists import Item, format_line

SHUFFLE_SEED = 100
"""MXNet's: the same folder makes the same list."""


def find_images(root: str, recursive: bool, extensions: Collection[str]) -> tuple[list[Item], dict[str, int]]:
    """The images in a folder, in the order of their names.

    Args:
        root: the folder.
        recursive: look into the folders in it too, and label the images by the folder they are in; else the label is 0.
        extensions: the suffixes of image files, in lower case.

    Returns:
        the images, and the label of each folder (empty unless recursive).
    """
    found: list[Item] = []
    labels: dict[str, int] = {}
    for folder, inner, names in os.walk(root, followlinks=True):
        inner.sort()
        for name in sorted(names):
            path = Path(folder, name)
            if path.suffix.lower() in extensions and path.is_file():
                label = labels.setdefault(os.path.relpath(folder, root), len(labels)) if recursive else 0
                found.append(Item(len(found), os.path.relpath(path, root), (float(label),)))
        if not recursive:
            break
    return found, labels


def write_lists(
    prefix: str, items: Sequence[Item], chunks: int, train_ratio: float, test_ratio: float, shuffle: bool
) -> list[str]:  # fmt: skip
    """Write lists of images: in so many parts, and each for training, testing and validation.

    Returns:
        the files' paths.

    Raises:
        ValueError: no parts, or ratios that are none.
        OSError: a file can not be written.
    """
    if chunks < 1:
        raise ValueError(f"im2rec: --chunks is {chunks}, expected at least 1")
    if not (0 <= train_ratio <= 1 and 0 <= test_ratio <= 1 and train_ratio + test_ratio <= 1 + 1e-9):
        raise ValueError(
            f"im2rec: --train-ratio is {train_ratio} and --test-ratio {test_ratio}, expected shares that are together "
            "at most 1"
        )
    items = list(items)
    if shuffle:
        random.Random(SHUFFLE_SEED).shuffle(items)
    size = -(-len(items) // chunks)
    written = []
    for number in range(chunks):
        name = f"{prefix}_{number}" if chunks > 1 else prefix
        for ending, part in _split(items[number * size : (number + 1) * size], size, train_ratio, test_ratio):
            written.append(f"{name}{ending}.lst")
            Path(written[-1]).write_text("".join(map(format_line, part)), "utf-8")
    return written


def _split(
    items: Sequence[Item], size: int, train_ratio: float, test_ratio: float
) -> Iterator[tuple[str, Sequence[Item]]]:
    train, test = int(size * train_ratio), int(size * test_ratio)
    if train_ratio == 1.0:
        yield "", items
        return
    if test_ratio:
        yield "_test", items[:test]
    if train_ratio + test_ratio < 1.0:
        yield "_val", items[test + train :]
    yield "_train", items[test : test + train]

"""Writes lists of the images in a folder."""

from __future__ import annotations

import os
import random
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from flowmx.data.image_lists import Item, format_line
from flowmx.serialization.atomic import replace_file

SHUFFLE_SEED = 100
"""MXNet's seed: the same folder gives the same list."""


def find_images(root: str, recursive: bool, extensions: Collection[str]) -> tuple[list[Item], dict[str, int]]:
    """Return the images in a folder, sorted by name.

    Args:
        root: the folder.
        recursive: whether to search subfolders and label images by their folder; else the label is 0.
        extensions: the suffixes of image files, in lower case.

    Returns:
        the images, and the label of each folder (empty unless recursive).
    """
    items: list[Item] = []
    labels: dict[str, int] = {}
    for folder, subfolders, names in os.walk(root, followlinks=True):
        subfolders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            if path.suffix.lower() in extensions and path.is_file():
                label = labels.setdefault(os.path.relpath(folder, root), len(labels)) if recursive else 0
                items.append(Item(len(items), os.path.relpath(path, root), (float(label),)))
        if not recursive:
            break
    return items, labels


def write_lists(
    prefix: str, items: Sequence[Item], chunks: int, train_ratio: float, test_ratio: float, shuffle: bool
) -> list[str]:  # fmt: skip
    """Write lists of images: ``chunks`` parts, each split into training, test and validation lists.

    Returns:
        the paths of the lists.

    Raises:
        ValueError: ``chunks`` or a ratio is out of range.
        OSError: a file cannot be written.
    """
    if chunks < 1:
        raise ValueError(f"im2rec: --chunks is {chunks}, expected at least 1")
    if not (0 <= train_ratio <= 1 and 0 <= test_ratio <= 1 and train_ratio + test_ratio <= 1 + 1e-9):
        raise ValueError(
            f"im2rec: --train-ratio is {train_ratio} and --test-ratio {test_ratio}, expected ratios with a sum of "
            "at most 1"
        )
    items = list(items)
    if shuffle:
        random.Random(SHUFFLE_SEED).shuffle(items)
    size = -(-len(items) // chunks)
    paths = []
    for number in range(chunks):
        name = f"{prefix}_{number}" if chunks > 1 else prefix
        for ending, part in _split(items[number * size : (number + 1) * size], size, train_ratio, test_ratio):
            paths.append(f"{name}{ending}.lst")
            replace_file(paths[-1], ["".join(map(format_line, part)).encode()])
    return paths


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

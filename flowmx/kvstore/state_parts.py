"""Optimizer states of keys that are stored in parts: joining the states of the parts, and merging their progress.

States are trees (see :mod:`flowmx.optimizer.states_file`). An array with one element per element merge the weight is
joined and cut as the weight is; any other array is the same for all parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["join", "merge_progress", "merge_trees"]


def merge_trees(trees: Sequence[object], merge: Callable[[list[Any]], Any]) -> Any:
    """Merge trees of one structure into one: `merge` merges the arrays at the same position."""
    first = trees[0]
    if isinstance(first, (tuple, list)):
        return type(first)(merge_trees(list(children), merge) for children in zip(*trees, strict=True))
    return merge(list(trees)) if hasattr(first, "shape") else first


def join(arrays: Sequence[object], sizes: Sequence[int]) -> np.ndarray[Any, Any] | None:
    """Concatenate the flattened arrays of the parts; return None if their sizes differ from `sizes`."""
    flat = [np.asarray(array).reshape(-1) for array in arrays]
    return np.concatenate(flat) if [array.size for array in flat] == list(sizes) else None


def merge_progress(progress: dict[str, Any], other: Mapping[str, Any]) -> dict[str, object]:
    """Merge the optimizer's progress (update counts) of two parts."""
    counts = {device: dict(table) for device, table in progress.get("counts", [])}
    for device, table in other["counts"]:
        merged = counts.setdefault(device, {})
        # A part resumed from a file has older counts for the other parts.
        merged.update((index, max(count, merged.get(index, 0))) for index, count in dict(table).items())
    updates = max(progress.get("num_update", 0), other["num_update"])
    tables = [[device, list(table.items())] for device, table in counts.items()]
    return {**progress, **other, "num_update": updates, "counts": tables}

"""Geometry of boxes: NumPy arrays whose last axis is left, top, right, bottom."""

from __future__ import annotations

from typing import Any

import numpy as np


def areas(boxes: Any) -> Any:
    """Return the areas of boxes; 0 for those whose edges are in the wrong order."""
    return np.maximum(0, boxes[:, 2] - boxes[:, 0]) * np.maximum(0, boxes[:, 3] - boxes[:, 1])


def intersection_areas(boxes: Any, left: float, top: float, right: float, bottom: float) -> Any:
    """Return the areas of the intersections of boxes with another box."""
    return areas(
        np.stack([
            np.maximum(boxes[:, 0], left), np.maximum(boxes[:, 1], top),
            np.minimum(boxes[:, 2], right), np.minimum(boxes[:, 3], bottom),
        ], 1)
    )  # fmt: skip


def mirror(boxes: Any) -> None:
    """Mirror boxes left to right, in place; they are fractions of the image's sides."""
    boxes[:, [0, 2]] = 1 - boxes[:, [2, 0]]

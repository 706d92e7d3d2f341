"""The memory of a bound network as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flowmx.graph.reports import picture


def plot_memory(plan: Any, path: str | Path | None = None) -> str:
    """Draw where the values of a bound network lie in memory, over the steps of its run.

    A bar is a place in memory for a while: its bytes upwards, the steps in which they are needed to the right. Blue are
    values of the forward pass, orange those of the backward pass, green what is only work space. The line is the sum
    of what is alive, and the dashed one its greatest, below which no plan can be.

    Args:
        plan: an executor, or its plan.
        path: where to write the picture: ``.svg``, or ``.png`` where matplotlib is installed.

    Returns:
        the picture as SVG text.

    Raises:
        TypeError: it has no plan.
        ValueError: the path has another ending.
        ImportError: a PNG was asked for without matplotlib.
    """
    return picture.draw(getattr(plan, "plan", plan), path)

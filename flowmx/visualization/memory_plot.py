"""Plots of the memory of a bound network."""

from __future__ import annotations

from pathlib import Path

from flowmx.graph.plan import Plan


def plot_memory(plan: object, path: str | Path | None = None) -> str:
    """Plot the memory blocks of a bound network over the steps of a run.

    The horizontal axis is the step and the vertical axis the address; a bar is a block during its lifetime. Values of
    the forward pass are blue, those of the backward pass orange, work space is green. The line is the sum of the live
    bytes. The dashed line is its maximum, the lower bound of any plan.

    Args:
        plan: an executor, or its plan.
        path: a file to write: ``.svg``, or ``.png`` if matplotlib is installed.

    Returns:
        the plot as SVG text.

    Raises:
        TypeError: the argument has no plan.
        ValueError: the path has another suffix.
        ImportError: the path is a ``.png``, and matplotlib is not installed.
    """
    memory_plan = getattr(plan, "plan", plan)
    if not isinstance(memory_plan, Plan):
        raise TypeError(f"plot_memory: {type(memory_plan).__name__} was passed, expected an Executor or its plan")
    return memory_plan.picture(path)

"""Workspaces of kernels: memory for copies in other layouts, and scratch memory.

A kernel reports the bytes it needs for arrays in the plan's layouts; the plan assigns it a place in the arena for its
step.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from flowmx.graph.graph import Options
from flowmx.graph.node import Entry, Node
from flowmx.ops.compiled.sliced import Sliced
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.kernels import PLANNED, ArrayLayout, workspace_of
from flowmx.ops.registry.operators import Shape

if TYPE_CHECKING:
    from flowmx.graph.plan import Plan


def workspaces(plan: Plan, steps: Sequence[Node], options: Options) -> dict[int, int]:
    """Return the workspace size in bytes of each step that needs a workspace, by position."""
    result = {}
    cache: dict[object, int] = {}
    for position, node in enumerate(steps):
        assert node.op is not None
        if isinstance(node.op, Sliced):
            result[position] = max(PLANNED, node.op.plan.arena.size)
            continue
        context = plan.graph.context(node)
        query = workspace_of(options.device_type if context is None else context.kernels, node.op)
        if query is not None:
            inputs = [value_layout(plan, entry) for entry in node.inputs]
            outputs = [value_layout(plan, Entry(node, index)) for index in range(node.outputs())]
            key = (query, node.op, *inputs, *outputs)  # equal steps share it, as in an unrolled network
            nbytes = cache.get(key)
            if nbytes is None:
                nbytes = cache[key] = query(node.op, inputs, outputs)
            if nbytes >= PLANNED:
                result[position] = nbytes
    return result


def value_layout(plan: Plan, entry: Entry) -> ArrayLayout:
    """Return the memory layout of a value: shape, strides and dtype."""
    return array_layout(plan.graph.shapes[entry], entry in plan.channels_last, plan.graph.dtypes[entry])


@lru_cache(4096)
def array_layout(shape: Shape, channels_last: bool, dtype: DType) -> ArrayLayout:
    """Return the memory layout of an array in C order, or with axis 1 innermost."""
    return ArrayLayout(shape, strides(shape, channels_last), dtype)


@lru_cache(4096)
def strides(shape: Shape, channels_last: bool) -> Shape:
    """Return the strides of an array in elements: in C order, or with axis 1 innermost."""
    order: Collection[int] = (0, *range(2, len(shape)), 1) if channels_last else range(len(shape))
    result, step = [0] * len(shape), 1
    for axis in reversed(list(order)):
        result[axis] = step
        step *= max(1, shape[axis])
    return tuple(result)

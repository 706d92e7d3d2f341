"""Workspace bytes of kernels: room for copies in other layouts, and scratch memory.

A kernel says how many, for arrays that lie as the plan lets them lie; the plan gives it a place in the arena for that
one step.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from flowmx.graph.graph import Options
from flowmx.graph.node import Entry, Node
from flowmx.ops.compiled.sliced import Sliced
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import PLANNED, Laid, Shape, workspace_of

if TYPE_CHECKING:
    from flowmx.graph.plan import Plan


def workspaces(plan: Plan, steps: Sequence[Node], options: Options) -> dict[int, int]:
    """The bytes of workspace of each step that needs any, by its position."""
    found = {}
    known: dict[object, int] = {}
    for position, node in enumerate(steps):
        assert node.op is not None
        if isinstance(node.op, Sliced):
            found[position] = max(PLANNED, node.op.plan.arena.size)
            continue
        context = plan.graph.context(node)
        ask = workspace_of(options.device_type if context is None else context.kernels, node.op)
        if ask is not None:
            inputs = [laid(plan, entry) for entry in node.inputs]
            outputs = [laid(plan, Entry(node, index)) for index in range(node.outputs())]
            key = (ask, node.op, *inputs, *outputs)  # others are like it, as in an unrolled network
            nbytes = known.get(key)
            if nbytes is None:
                nbytes = known[key] = ask(node.op, inputs, outputs)
            if nbytes >= PLANNED:
                found[position] = nbytes
    return found


def laid(plan: Plan, entry: Entry) -> Laid:
    """The memory layout of a value: shape, strides and dtype."""
    return lying(plan.graph.shapes[entry], entry in plan.channels_last, plan.graph.dtypes[entry])


@lru_cache(4096)
def lying(shape: Shape, channels_last: bool, dtype: DType) -> Laid:
    """The memory layout of an array in C order, or with axis 1 innermost."""
    return Laid(shape, strides(shape, channels_last), dtype)


@lru_cache(4096)
def strides(shape: Shape, channels_last: bool) -> Shape:
    """The strides of an array, counted in elements: in C order, or with axis 1 innermost."""
    order: Collection[int] = (0, *range(2, len(shape)), 1) if channels_last else range(len(shape))
    made, step = [0] * len(shape), 1
    for axis in reversed(list(order)):
        made[axis] = step
        step *= max(1, shape[axis])
    return tuple(made)

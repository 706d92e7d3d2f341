"""Predictions on devices with separate memory, such as GPUs: the whole batch if it fits, else slices.

A GPU is fastest with the whole batch: its kernels are best used, and nothing is launched or read twice. So the whole
batch runs if its internal values fit into

* the budget (``FLOWMX_EXEC_MEMORY_BUDGET``), if there is one, and
* the device memory that is free when the graph is compiled, minus :data:`SPARE` for allocations of kernels, and minus
  memory that is planned and not allocated yet.

Otherwise steps in sequence, without concurrent branches, are tried, and then slices. For a budget, slices are just
small enough, since each additional one costs time. If the device memory is too small, they use a quarter of the whole
or less: later graphs need free memory too, and the first halvings cost the least. Among the choices that fit,
:class:`DeviceCosts` finds the cheapest, whatever it costs: otherwise the prediction could not run at all.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np

from flowmx.errors import BudgetError
from flowmx.graph.graph import Graph, Options
from flowmx.graph.node import Entry, Node
from flowmx.graph.plan import Plan, make_plan
from flowmx.graph.planning import slices
from flowmx.graph.planning.cost import ProcessorCosts
from flowmx.graph.planning.live_bytes import Shapes, nbytes
from flowmx.graph.planning.order import Schedule
from flowmx.graph.reports.sizes import format_bytes
from flowmx.ops.registry.traits import BatchParts

SPARE = 0.1
"""The part of the free memory that is left to kernels."""
_LAUNCH_NS = 5_000
"""The minimum nanoseconds of a step, for its launch."""
_NS_PER_BYTE = 0.001
"""Nanoseconds for each byte of device memory that is read or written."""
_FLOPS_PER_NS = 20_000
_ATTEMPTS = 4
"""The number of attempts, each with a lower aim, since plans differ slightly from the estimate; the last aim is 0."""
_LOWERING = 0.97
"""The factor by which an aim is lowered, in addition to the error of the last attempt."""


class DeviceCosts:
    """Time estimates of steps that are launched on a device with separate memory.

    Each slice launches all steps, and reads whole inputs, such as weights, again. The figures are those of a typical
    GPU; they only rank choices, and need not be exact.
    """

    def nanoseconds(self, node: Node, form: Shapes) -> float:
        assert node.op is not None
        flops, _ = node.op.cost(*form)
        return flops / _FLOPS_PER_NS

    def with_memory_traffic(self, costs: Any, moved: Any, part: Any = 1) -> Any:
        launches = np.where(np.asarray(moved) > 0, _LAUNCH_NS / part, 0)
        return np.maximum(np.maximum(costs, np.asarray(moved) * _NS_PER_BYTE), launches)

    def repetition(self, graph: Graph, node: Node, parts: BatchParts) -> float:
        whole = [nbytes(graph, entry) for index, entry in enumerate(node.inputs) if index not in parts.inputs]
        return _NS_PER_BYTE * sum(whole)

    def reorder_cost(self, graph: Graph, node: Node) -> float:
        return 0  # kernels need no reordered weights


def fit(
    graph: Graph, schedule: Schedule, external: Collection[Entry], strided: Collection[Node], options: Options,
    plan: Plan,
) -> Plan:  # fmt: skip
    """Return the plan of a prediction that fits into the budget and the device memory.

    Args:
        graph: after all passes.
        schedule: its operators, in execution order.
        external: the entries with external memory.
        strided: the variables whose arrays are not dense in C order.
        options: the compiler options; ``room`` is the free memory of the device in bytes, ``budget`` the limit.
        plan: its plan without a limit.

    Returns:
        the smallest plan that was found, if the device memory is too small.

    Raises:
        BudgetError: no plan within the budget was found.
    """
    room, budget = options.room, options.budget
    limits = [limit for limit in (room, budget) if limit is not None]
    if not limits or plan.internal_bytes() <= min(limits):
        return plan
    if options.slice < 0:
        plan = _find_smaller_plan(graph, schedule, external, strided, options, plan, min(limits))
    if budget is not None and plan.internal_bytes() > budget:
        raise BudgetError(
            f"the internal values do not fit into a budget of {budget} bytes: in slices of the batch, they take at "
            f"least {plan.internal_bytes()} bytes; raise FLOWMX_EXEC_MEMORY_BUDGET to that, or use a "
            "smaller batch, which makes every value smaller"
        )
    return plan


def _find_smaller_plan(
    graph: Graph, schedule: Schedule, external: Collection[Entry], strided: Collection[Node], options: Options,
    best: Plan, limit: int,
) -> Plan:  # fmt: skip
    """Return a plan without branches, or in slices, of at most ``limit`` bytes; the smallest one if none fits."""
    options = replace(options, workers=1)
    plain = make_plan(graph, external, strided, options, schedule[:2])
    if plain.internal_bytes() <= limit:
        return plain
    best, whole = min(plain, best, key=Plan.internal_bytes), plain.internal_bytes()
    graph = graph.with_notes(
        f"the whole batch would take {format_bytes(whole)}, and {format_bytes(limit)} are free: it runs in slices"
    )
    is_full = options.room is not None and whole > options.room
    aim = target = min(limit, slices.AIM * whole) if is_full else limit
    costs = ProcessorCosts() if options.room is None else DeviceCosts()
    for attempts in reversed(range(_ATTEMPTS)):
        if not attempts and best.internal_bytes() <= limit:
            break
        slice_aim = slices.Aim(
            aim if attempts else 0, costs, max_loss=math.inf, time_weight=0, min_length=1, min_saved=1
        )
        cut = slices.cut(graph, schedule, external, strided, options, slice_aim)
        if cut is None:
            break
        plan = make_plan(cut.graph, cut.external, strided, options, (cut.order, []))
        if plan.internal_bytes() < best.internal_bytes():
            best = plan
        if best.internal_bytes() <= target:
            break
        aim = _LOWERING * min(aim, cut.peak) * target / plan.internal_bytes()
    return best

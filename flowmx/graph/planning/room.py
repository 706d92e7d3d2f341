"""Predictions on devices with memory of their own, such as GPUs: the whole batch where that fits, else slices.

What is chosen follows from one rule. A GPU is fastest with the whole batch: its kernels then have the most to do, and
nothing is launched or read twice. So whole batches run wherever their internal values fit into

* the budget (``FLOWMX_EXEC_MEMORY_BUDGET``), if there is one, and
* what of the device's memory is free when the graph is compiled, less :data:`SPARE` for what kernels allocate
  meanwhile, and less what is planned and not allocated yet.

Where they do not, steps in a row, without branches at the same time, come next, and then slices. These come down to the
budget and not further, since each more costs time; but where the memory is not enough, to a quarter of the whole, or
further: free memory is what the next graphs need, too, and the first halvings cost the least. Of what comes down to
that, the cheapest is chosen by :class:`Launching`, whatever it costs: else it would not run at all.
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
from flowmx.graph.planning.cost import Processor
from flowmx.graph.planning.live import Shapes, nbytes
from flowmx.graph.planning.order import Ordered
from flowmx.graph.reports.sizes import in_words
from flowmx.ops.registry.traits import BatchParts

SPARE = 0.1
"""The part of the free memory that is left to kernels."""
_LAUNCH_NS = 5_000
"""Nanoseconds that a step takes at least, since it is launched."""
_NS_A_BYTE = 0.001
"""Nanoseconds for each byte of the device's memory that is read or written."""
_FLOPS_A_NS = 20_000
_TRIES = 4
"""Aims that are tried, each lower than the one before: plans differ a little from what was estimated. The last is 0."""
_LOWER = 0.97
"""The factor by which an aim is lower still than by what the last one missed."""


class Launching:
    """The costs of steps that are launched on a device with memory of its own.

    Each slice launches all steps, and reads what lies whole, such as weights, once more. The figures are those of a
    usual GPU; they order choices, and need not be exact for that.
    """

    def nanoseconds(self, node: Node, form: Shapes) -> float:
        assert node.op is not None
        flops, _ = node.op.cost(*form)
        return flops / _FLOPS_A_NS

    def in_memory(self, costs: Any, moved: Any, part: Any = 1) -> Any:
        launches = np.where(np.asarray(moved) > 0, _LAUNCH_NS / part, 0)
        return np.maximum(np.maximum(costs, np.asarray(moved) * _NS_A_BYTE), launches)

    def once_more(self, graph: Graph, node: Node, parts: BatchParts) -> float:
        whole = [nbytes(graph, entry) for at, entry in enumerate(node.inputs) if at not in parts.inputs]
        return _NS_A_BYTE * sum(whole)

    def ordering(self, graph: Graph, node: Node) -> float:
        return 0  # kernels read weights as they lie


def fit(
    graph: Graph, schedule: Ordered, external: Collection[Entry], strided: Collection[Node], options: Options,
    made: Plan,
) -> Plan:  # fmt: skip
    """The plan of a prediction that fits into the budget and the device's memory.

    Args:
        graph: after all passes.
        schedule: its operators, in the order to run them in.
        external: the entries that get memory from outside.
        strided: the variables whose arrays do not lie densely in C order.
        options: how; ``room`` says how many bytes are free on the device, ``budget`` how many may be taken.
        made: its plan where any size will do.

    Returns:
        the smallest that was found, where the device's memory is not enough.

    Raises:
        BudgetError: nothing that was found fits into the budget.
    """
    room, budget = options.room, options.budget
    limits = [each for each in (room, budget) if each is not None]
    if not limits or made.internal_bytes() <= min(limits):
        return made
    if options.slice < 0:
        made = _smaller(graph, schedule, external, strided, options, made, min(limits))
    if budget is not None and made.internal_bytes() > budget:
        raise BudgetError(
            f"the internal values do not fit into a budget of {budget} bytes: the least that was found is "
            f"{made.internal_bytes()} bytes, in slices of the batch; raise FLOWMX_EXEC_MEMORY_BUDGET to that, or use a "
            "smaller batch, which makes every value smaller"
        )
    return made


def _smaller(
    graph: Graph, schedule: Ordered, external: Collection[Entry], strided: Collection[Node], options: Options,
    made: Plan, most: int,
) -> Plan:  # fmt: skip
    """A plan without branches, or else in slices, that takes so many bytes; the smallest one where there is none."""
    options = replace(options, workers=1)
    plain = make_plan(graph, external, strided, options, schedule[:2])
    if plain.internal_bytes() <= most:
        return plain
    made, whole = min(plain, made, key=Plan.internal_bytes), plain.internal_bytes()
    graph = graph.with_notes(
        f"the whole batch would take {in_words(whole)}, and there is room for {in_words(most)}: it runs in slices"
    )
    is_full = options.room is not None and whole > options.room
    aim = wanted = min(most, slices.AIM * whole) if is_full else most
    costs = Processor() if options.room is None else Launching()
    for left in reversed(range(_TRIES)):
        if not left and made.internal_bytes() <= most:
            break
        how = slices.Aim(aim if left else 0, costs, most_loss=math.inf, worth=0, shortest=1, least=1)
        cut = slices.cut(graph, schedule, external, strided, options, how)
        if cut is None:
            break
        plan = make_plan(cut.graph, cut.external, strided, options, (cut.order, []))
        if plan.internal_bytes() < made.internal_bytes():
            made = plan
        if made.internal_bytes() <= wanted:
            break
        aim = _LOWER * min(aim, cut.peak) * wanted / plan.internal_bytes()
    return made

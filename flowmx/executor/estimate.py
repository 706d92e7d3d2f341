"""Estimate of the memory that ``simple_bind`` would allocate; for :meth:`flowmx.sym.Symbol.memory_estimate`."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flowmx import devices
from flowmx.devices import Context
from flowmx.errors import DeviceError
from flowmx.executor.binding import requests_of, used_groups
from flowmx.graph import collector, infer
from flowmx.graph.compiler import compile_graph, graph_of, in_room, options_of
from flowmx.graph.node import Entry, Node
from flowmx.graph.reports.estimate import MemoryEstimate, estimate
from flowmx.graph.running.memory import expected
from flowmx.ops.registry.dtypes import DType, as_dtype
from flowmx.ops.registry.operators import Shape
from flowmx.symbol.symbol import Symbol

StateBytes = Callable[[int, Shape, DType], int]
"""The bytes for a parameter, by its position, shape and dtype."""


@collector.paused()
def memory_estimate(
    symbol: Symbol, ctx: Any, grad_req: Any, type_dict: Mapping[str, Any] | None, group2ctx: Any,
    budget: int | None, shapes: Mapping[str, Sequence[int]], state: StateBytes,
) -> MemoryEstimate:  # fmt: skip
    """See :meth:`flowmx.sym.Symbol.memory_estimate`; ``state`` says what an optimizer keeps for a parameter."""
    context = Context(ctx) if ctx is not None else devices.current_context()
    arguments, auxiliary = symbol._variables()
    found = symbol._infer_shape((), shapes)
    variables = zip((*arguments, *auxiliary), (*found[0], *found[2]), strict=True)
    known = {node: infer.known_shape(shape, f"{node.name!r}") for node, shape in variables}
    all_shapes = infer.known_shapes(symbol._nodes(), known)
    given = {name: as_dtype(value) for name, value in (type_dict or {}).items()}
    all_dtypes = infer.infer_types(symbol._nodes(), {node: given.get(node.name) for node in known})
    requests = requests_of([node.name for node in arguments], grad_req)
    wanted = [node for node in arguments if requests[node.name] != "null"]
    groups = used_groups(context, group2ctx, symbol)
    graph = graph_of(symbol._entries, wanted, all_shapes, all_dtypes, bool(wanted), context, groups)
    straight = [node for node in wanted if requests[node.name] == "write"]
    options = replace(options_of(context.kernels), budget=budget, joint=True)
    if not (wanted or groups):
        bound = {*graph.outputs, *[Entry(node, 0) for node in (*arguments, *auxiliary)]}
        coming = sum(math.prod(all_shapes[entry]) * all_dtypes[entry].itemsize for entry in bound)
        with contextlib.suppress(DeviceError):  # it need not be there to be planned for
            device = devices.get(context)
            options = in_room(options, device, coming + expected(device))
    plan = compile_graph(graph, straight, options=options)
    position = {node: index for index, node in enumerate(arguments)}

    def state_of(node: Node) -> int:
        return state(position[node], all_shapes[Entry(node, 0)], all_dtypes[Entry(node, 0)])

    inputs = {node.name for node in arguments if node.name in shapes or node.name.endswith("label")}
    return estimate(graph, plan, arguments, auxiliary, inputs, wanted, state_of)

"""Estimate the memory that ``simple_bind`` would allocate; for :meth:`flowmx.sym.Symbol.memory_estimate`."""

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
from flowmx.graph.compiler import compile_graph, graph_of, options_of, with_memory_limit
from flowmx.graph.node import Entry, Node
from flowmx.graph.reports.estimate import MemoryEstimate, estimate
from flowmx.graph.running.arenas import expected
from flowmx.ops.registry.dtypes import DType, as_dtype
from flowmx.ops.registry.operators import Shape
from flowmx.symbol.symbol import Symbol

StateBytes = Callable[[int, Shape, DType], int]
"""Returns the bytes of a parameter's optimizer state, from its position, shape and dtype."""


@collector.paused()
def memory_estimate(
    symbol: Symbol, ctx: Context | None, grad_req: object, type_dict: Mapping[str, Any] | None, group2ctx: Any,
    budget: int | None, shapes: Mapping[str, Sequence[int]], state: StateBytes,
) -> MemoryEstimate:  # fmt: skip
    """See :meth:`flowmx.sym.Symbol.memory_estimate`; ``state`` returns the bytes of an optimizer's state."""
    context = Context(ctx) if ctx is not None else devices.current_context()
    arguments, auxiliary = symbol._variables()
    inferred = symbol._infer_shape((), shapes)
    variables = zip((*arguments, *auxiliary), (*inferred[0], *inferred[2]), strict=True)
    variable_shapes = {node: infer.known_shape(shape, f"{node.name!r}") for node, shape in variables}
    all_shapes = infer.known_shapes(symbol.nodes(), variable_shapes)
    declared = {name: as_dtype(value) for name, value in (type_dict or {}).items()}
    all_dtypes = infer.infer_types(symbol.nodes(), {node: declared.get(node.name) for node in variable_shapes})
    requests = requests_of([node.name for node in arguments], grad_req)
    grad_nodes = [node for node in arguments if requests[node.name] != "null"]
    groups = used_groups(context, group2ctx, symbol)
    graph = graph_of(symbol.entries, grad_nodes, all_shapes, all_dtypes, bool(grad_nodes), context, groups)
    direct = [node for node in grad_nodes if requests[node.name] == "write"]
    options = replace(options_of(context.kernels), budget=budget, joint=True)
    if not (grad_nodes or groups):
        bound = {*graph.outputs, *[Entry(node, 0) for node in (*arguments, *auxiliary)]}
        expected_bytes = sum(math.prod(all_shapes[entry]) * all_dtypes[entry].itemsize for entry in bound)
        with contextlib.suppress(DeviceError):  # the device need not exist to plan for it
            device = devices.get(context)
            options = with_memory_limit(options, device, expected_bytes + expected(device))
    plan = compile_graph(graph, direct, options=options)
    position = {node: index for index, node in enumerate(arguments)}

    def state_of(node: Node) -> int:
        return state(position[node], all_shapes[Entry(node, 0)], all_dtypes[Entry(node, 0)])

    inputs = {node.name for node in arguments if node.name in shapes or node.name.endswith("label")}
    return estimate(graph, plan, arguments, auxiliary, inputs, grad_nodes, state_of)

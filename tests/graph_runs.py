"""Run an operator and its gradient's graph on any array namespace, step by step and without the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from flowmx.graph.compiler import graph_of
from flowmx.graph.graph import Graph
from flowmx.graph.node import Entry, Node
from flowmx.ops.registry.operators import Operator, Run, lookup
from tests.cupy_stand_in.arrays import wrap
from tests.op_cases.case import Case

Array = Any


class Result(NamedTuple):
    """The results of a table row."""

    outputs: list[Array]
    gradients: list[Array]
    inputs: list[Array]
    """The inputs after the call, since some operators write them."""


def operator_of(case: Case) -> Operator:
    """Return the operator of a row, with its parameters."""
    cls = lookup(case.op)
    parameters = dict(case.params)
    if cls.variadic and cls.variadic not in parameters:
        times, more = cls.inputs_counted
        parameters[cls.variadic] = (len(case.inputs) - more) // times
    return cls.create(**parameters)


def graph_for(op: Operator, arrays: Sequence[Array], wrt: Sequence[int], train: bool) -> tuple[Graph, list[Node]]:
    """Return the graph of the operator and its gradients, and its input variables."""
    variables = [Node(None, name) for name in (*op.inputs(), *op.auxiliary)]
    entries = tuple(Entry(node, 0) for node in variables)
    node = Node(op, "op", entries)
    spec = op.spec(tuple(array.shape for array in arrays), tuple(array.dtype for array in arrays))
    outputs = [Entry(node, index) for index in range(len(spec.shapes))]
    shapes = dict(zip((*entries, *outputs), (*(array.shape for array in arrays), *spec.shapes), strict=True))
    dtypes = dict(zip((*entries, *outputs), (*(array.dtype for array in arrays), *spec.dtypes), strict=True))
    shown = outputs[: op.visible_outputs()]
    return graph_of(shown, [variables[position] for position in wrt], shapes, dtypes, train), variables


def evaluate(
    graph: Graph, arrays_of: dict[Node, Array], run: Run, call: Callable[..., None] | None = None
) -> dict[Entry, Array]:
    """Return the values of all entries."""
    values = {Entry(node, 0): array for node, array in arrays_of.items()}
    for node in graph.nodes():
        if node.op is None:
            continue
        entries = [Entry(node, index) for index in range(node.outputs())]
        outputs = [run.xp.empty(graph.shapes[entry], graph.dtypes[entry]) for entry in entries]
        inputs = [values[entry] for entry in node.inputs]
        if any(output.size for output in outputs) or node.op.writes_inputs():
            (call or _forward)(node.op, run, inputs, outputs)
        values.update(zip(entries, outputs, strict=True))
    return values


def _forward(op: Operator, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    op.forward(run, inputs, outputs)


def device(xp: Any, kernels: str = "", seed: int = 0) -> Any:
    """Return an object with the attributes of a device that forwards use."""
    context = SimpleNamespace(device_type="cpu" if xp is np else "gpu")
    generator = SimpleNamespace(bits=np.random.default_rng(seed))
    return SimpleNamespace(xp=xp, generator=generator, context=context, kernels=kernels, view=_view)


def _view(array: Any, shape: tuple[int, ...], dtype: Any, offset: int, strides: tuple[int, ...]) -> Any:
    if isinstance(array, np.ndarray):
        return np.ndarray(shape, dtype, array, offset, strides)
    return wrap(np.ndarray(shape, dtype, array._host, offset, strides))


def run_case(
    case: Case, xp: Any, dtype: str | None = None, call: Callable[..., None] | None = None, kernels: str = ""
) -> Result:
    """Return the outputs and gradients of a row as NumPy arrays.

    Args:
        case: the row.
        xp: the array namespace.
        dtype: instead of float32.
        call: how an operator is run; its forward where None.
        kernels: the device type whose kernels it uses.
    """
    op = operator_of(case)
    host = [array.astype(dtype) if dtype and array.dtype == np.float32 else array for array in case.call_inputs()]
    graph, variables = graph_for(op, host, case.differentiable(), case.train)
    arrays = [xp.asarray(array.copy()) for array in host]
    rng = np.random.default_rng(7)
    heads = [
        rng.standard_normal(graph.shapes[Entry(head, 0)]).astype(graph.dtypes[Entry(head, 0)]) for head in graph.heads
    ]
    arrays_of = dict(zip(variables, arrays, strict=True)) | dict(zip(graph.heads, map(xp.asarray, heads), strict=True))
    with np.errstate(all="ignore"):
        values = evaluate(graph, arrays_of, Run(device(xp, kernels), case.train), call)
    fetch = (lambda array: array.get()) if xp is not np else (lambda array: array)
    return Result(
        [fetch(values[entry]) for entry in graph.outputs],
        [fetch(values[graph.gradients[v]]) for v in variables if v in graph.gradients],
        list(map(fetch, arrays)),
    )

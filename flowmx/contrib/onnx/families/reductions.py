"""Reductions, sorting and cumulative sums."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from flowmx.contrib.onnx.converters import Unsupported, counterparts, exports, imports
from flowmx.contrib.onnx.node_export import NodeExport
from flowmx.contrib.onnx.node_import import NodeImport
from flowmx.ops.math.reduce import ArgReduction, Reduction
from flowmx.symbol import Symbol


def reduce_axes(n: NodeExport, kind: str, x: str) -> str:
    """Reduce the operator's axes. A reduction of all axes has shape (1,) in MXNet."""
    axes = n.op.axes(n.rank())
    result = n.reduce(kind, x, axes, n.op.keepdims) if len(axes) else n.add("Identity", x)
    if len(axes) == n.rank() and not n.op.keepdims:
        return n.add("Reshape", result, [1])
    return result


@exports(Reduction)
def _reduction(n: NodeExport) -> str:
    return reduce_axes(n, n.op.onnx, n.inputs[0])


@exports("nansum", "nanprod")
def _without_nan(n: NodeExport) -> str:
    kind, neutral = ("ReduceSum", 0) if n.op.name == "nansum" else ("ReduceProd", 1)
    x = n.inputs[0]
    return reduce_axes(n, kind, n.add("Where", n.add("IsNaN", x), n.number(neutral), x))


@exports("norm")
def _norm(n: NodeExport) -> str:
    if n.op.ord not in (1, 2):
        raise Unsupported(f"its ord is {n.op.ord}, expected 1 or 2")
    result = reduce_axes(n, f"ReduceL{n.op.ord}", n.inputs[0])
    return result if n.out_dtype() == n.dtype() else n.cast(result, n.out_dtype())


@exports("moments")
def _moments(n: NodeExport) -> list[str]:
    x, rank = n.inputs[0], n.rank()
    axes = [axis % rank for axis in n.op.axes] if n.op.axes else list(range(rank))
    mean = n.reduce("ReduceMean", x, axes)
    centered = n.add("Sub", x, mean)
    variance = n.reduce("ReduceMean", n.add("Mul", centered, centered), axes)
    if n.op.keepdims:
        return [mean, variance]
    return [n.reshape(value, (), n.out_dims(index)) for index, value in enumerate((mean, variance))]


@imports(Reduction, "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")
def _import_reduction(n: NodeImport) -> Symbol:
    axes, keepdims = n.ints(1, "axes"), bool(n.attr("keepdims", 1))
    if not axes and n.attr("noop_with_empty_axes", 0):
        return n.make("_copy", n.symbol(0))
    axis = tuple(axes) if axes else None
    if n.kind in counterparts():
        return n.make(counterparts()[n.kind].name, n.symbol(0), axis=axis, keepdims=keepdims)
    if n.kind in ("ReduceL1", "ReduceL2"):
        x = n.symbol(0) if n.kind == "ReduceL2" else n.make("abs", n.symbol(0))
        x = n.make("square", x) if n.kind == "ReduceL2" else x
        total = n.make("sum", x, axis=axis, keepdims=keepdims)
        return n.make("sqrt", total) if n.kind == "ReduceL2" else total
    if n.kind == "ReduceLogSumExp":
        return _log_sum_exp(n, axis, keepdims)
    x = n.make("square", n.symbol(0)) if n.kind == "ReduceSumSquare" else n.symbol(0)
    total = n.make("sum", x, axis=axis, keepdims=keepdims)
    return n.make("log", total) if n.kind == "ReduceLogSum" else total


def _log_sum_exp(n: NodeImport, axis: Sequence[int] | None, keepdims: bool) -> Symbol:
    """Subtract the maximum first, to avoid overflow."""
    x = n.symbol(0)
    top = n.make("max", x, axis=axis, keepdims=True)
    total = n.make("sum", n.make("exp", n.make("broadcast_sub", x, top)), axis=axis, keepdims=True)
    result = n.make("elemwise_add", n.make("log", total), top)
    return result if keepdims else n.make("sum", result, axis=axis)


@exports("argmax_channel")
def _of_channels(n: NodeExport) -> str:
    return n.cast(n.add("ArgMax", n.inputs[0], axis=1, keepdims=0), n.out_dtype())


@exports(ArgReduction)
def _position(n: NodeExport) -> str:
    kind, axis, keepdims = n.op.onnx, n.op.axis, n.op.keepdims
    if axis is None:
        result = n.add(kind, n.add("Reshape", n.inputs[0], [-1]), axis=0, keepdims=1)
        result = n.add("Reshape", result, [1] * n.rank()) if keepdims else result
    else:
        result = n.add(kind, n.inputs[0], axis=axis, keepdims=int(keepdims))
        result = n.add("Reshape", result, [1]) if n.rank() == 1 and not keepdims else result
    return n.cast(result, n.out_dtype())


@imports(ArgReduction)
def _import_position(n: NodeImport) -> Symbol:
    n.expect("select_last_index", 0)
    result = n.make(
        counterparts()[n.kind].name, n.symbol(0), axis=n.attr("axis", 0), keepdims=bool(n.attr("keepdims", 1))
    )
    return n.make("Cast", result, dtype="int64")


# -- sorting -----------------------------------------------------------------------------------------------


def _axis_and_length(n: NodeExport) -> tuple[str, int, int | str]:
    """Return the input, its axis, and the axis length: a number, or a value if it varies."""
    x, axis = n.inputs[0], n.op.axis
    if axis is not None:
        axis %= n.rank()
        length = n.dims()[axis]
        return x, axis, length if isinstance(length, int) else n.shape((length,))
    count = math.prod(n.fixed(length, "the number of elements") for length in n.dims())
    return n.add("Reshape", x, [-1]), 0, count


@exports("sort", "argsort", "topk")
def _sort(n: NodeExport) -> list[str] | str:
    op, (x, axis, length) = n.op, _axis_and_length(n)
    count = op.k if op.name == "topk" and op.k > 0 else length
    largest = int(not op.is_ascend)
    values, positions = n.add_many(
        "TopK", 2, x, count if isinstance(count, str) else [count], axis=axis, largest=largest
    )
    kind = {"sort": "value", "argsort": "indices"}.get(op.name) or op.ret_typ
    if kind == "mask":
        raise Unsupported("its ret_typ is 'mask', expected values or positions")
    if kind == "value":
        return values
    cast = n.cast(positions, op.dtype)
    return cast if kind == "indices" else [values, cast]


@imports("TopK")
def _import_topk(n: NodeImport) -> Symbol:
    (count,) = n.ints(1) or (1,)
    return n.make("topk", n.symbol(0), axis=n.attr("axis", -1), k=count, ret_typ="both",
                  is_ascend=not n.attr("largest", 1), dtype="int64")  # fmt: skip


@exports("_np_cumsum")
def _cumsum(n: NodeExport) -> str:
    x = n.inputs[0] if n.out_dtype() == n.dtype() else n.cast(n.inputs[0], n.out_dtype())
    x = n.add("Reshape", x, [-1]) if n.op.axis is None else x
    return n.add("CumSum", x, np.asarray(n.op.axis or 0, np.int64))


@imports("CumSum")
def _import_cumsum(n: NodeImport) -> Symbol:
    n.expect("exclusive", 0)
    axis = int(n.array(1).reshape(()))
    x = n.symbol(0)
    if not n.attr("reverse", 0):
        return n.make("_np_cumsum", x, axis=axis)
    return n.make("reverse", n.make("_np_cumsum", n.make("reverse", x, axis=axis), axis=axis), axis=axis)

"""Binary elementwise operators: arithmetic, comparisons and logic, with arrays and with numbers."""

from __future__ import annotations

import numpy as np

from flowmx.contrib.onnx.converters import Unsupported, exports, imports
from flowmx.contrib.onnx.node_export import NodeExport, Value
from flowmx.contrib.onnx.node_import import NodeImport
from flowmx.contrib.onnx.opsets import definition
from flowmx.ops.math.binary import TABLE, Pair, Scalar
from flowmx.symbol import Symbol

ROWS = {row.onnx: row for row in TABLE if row.onnx}


def _pair(n: NodeExport) -> tuple[Value, Value]:
    """Return the two operands, one of which may be a number."""
    if len(n.inputs) == 2:
        return n.inputs[0], n.inputs[1]
    number = np.asarray(n.op.scalar).astype(n.dtype())
    return (number, n.inputs[0]) if n.op.number_first else (n.inputs[0], number)


@exports(Pair, Scalar)
def _arithmetic(n: NodeExport) -> str:
    left, right = _pair(n)
    if n.op.onnx != "Mod" or n.dtype().kind in "iu":
        return n.equivalent(left, right)
    # The remainder has the sign of the divisor; in ONNX only for ints.
    return n.add("Sub", left, n.add("Mul", n.add("Floor", n.add("Div", left, right)), right))


@exports("broadcast_not_equal", "_not_equal", "_not_equal_scalar")
def _not_equal(n: NodeExport) -> str:
    return n.truth(n.add("Not", n.add("Equal", *_pair(n))))


@exports("broadcast_hypot", "_hypot", "_hypot_scalar")
def _hypot(n: NodeExport) -> str:
    left, right = _pair(n)
    return n.add("Sqrt", n.add("Add", n.add("Mul", left, left), n.add("Mul", right, right)))


# -- reading ---------------------------------------------------------------------------------------------------

MIRRORED = {"Greater": "Less", "GreaterOrEqual": "LessOrEqual", "Less": "Greater", "LessOrEqual": "GreaterOrEqual"}


@imports(Pair)
def _import_pair(n: NodeImport) -> Symbol:
    row = ROWS[n.kind]
    if n.kind == "Mod" and n.attr("fmod", 0):
        return _remainder(n)
    reversed_scalar = row.reversed_scalar or ROWS[MIRRORED.get(n.kind, n.kind)].scalar
    for names, number, other in ((row.scalar, n.scalar(1), 0), (reversed_scalar, n.scalar(0), 1)):
        if number is not None:
            return n.make(names[0], n.symbol(other), scalar=number)
    pair = [n.symbol(0), n.symbol(1)]
    if definition(n.kind, n.opset).inputs[0].types == {"tensor(bool)"}:
        pair = [n.as_number(operand) for operand in pair]
    is_elementwise = row.elementwise[0].startswith("elemwise_") and n.have_same_shape()
    return n.make((row.elementwise if is_elementwise else row.broadcast)[0], *pair)


def _remainder(n: NodeImport) -> Symbol:
    """Compute C's remainder, with the sign of the dividend."""
    left, right = n.symbol(0), n.symbol(1)
    size = n.make("broadcast_mod", n.make("abs", left), n.make("abs", right))
    if not n.have_same_shape():
        raise Unsupported("its attribute fmod is 1, expected inputs of the same shape with it")
    return n.make("elemwise_mul", n.make("sign", left), size)


@imports("Sum", "Mean")
def _import_sum(n: NodeImport) -> Symbol:
    parts = n.symbols()
    if n.have_same_shape():
        total = n.make("add_n", *parts) if len(parts) > 1 else parts[0]
    else:
        total = parts[0]
        for part in parts[1:]:
            total = n.make("broadcast_add", total, part)
    if n.kind == "Mean":
        return n.make("_div_scalar", total, scalar=len(parts))
    return total if len(parts) > 1 else n.make("_copy", total)


@imports("Max", "Min")
def _import_extreme(n: NodeImport) -> Symbol:
    row = ROWS[n.kind]
    numbers = [n.scalar(index) for index in range(len(n))]
    arrays = [n.symbol(index) for index, number in enumerate(numbers) if number is None]
    total = arrays[0]
    for array in arrays[1:]:
        total = n.make(row.broadcast[0], total, array)
    for number in numbers:
        total = total if number is None else n.make(row.scalar[0], total, scalar=number)
    return total if len(n) > 1 else n.make("_copy", total)


@exports("where")
def _where(n: NodeExport) -> str:
    condition = n.condition(0)
    if n.rank(0) < n.rank(1):  # one condition for each row
        ones = (1,) * (n.rank(1) - 1)
        condition = n.reshape(condition, n.dims(0), (*n.dims(0), *ones))
    return n.add("Where", condition, n.inputs[1], n.inputs[2])


@imports("Where")
def _import_where(n: NodeImport) -> Symbol:
    if n.have_same_shape():
        return n.make("where", *n.symbols())
    condition = n.make("_not_equal_scalar", n.symbol(0), scalar=0)
    sides = n.symbols()[1:]
    shape = n.make("broadcast_add", *[n.make("zeros_like", side) for side in sides])
    flags = n.make("Cast", n.make("zeros_like", condition), dtype=n.dtype(1).name)
    shape = n.make("broadcast_add", shape, flags)
    condition = n.make("broadcast_add", n.make("Cast", condition, dtype=n.dtype(1).name), shape)
    return n.make("where", condition, *[n.make("broadcast_add", side, shape) for side in sides])

"""Unary elementwise operators."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from flowmx.contrib.onnx.converters import exports, imports, need_onnx
from flowmx.contrib.onnx.graph_builder import tensor_type
from flowmx.contrib.onnx.node_export import NodeExport
from flowmx.contrib.onnx.node_import import NodeImport
from flowmx.ops.registry.dtypes import name_of
from flowmx.ops.registry.operators import Operator
from flowmx.symbol import Symbol

COMPOSED: dict[str, Callable[[NodeExport, str], str]] = {
    "degrees": lambda n, x: n.add("Mul", x, n.number(180 / math.pi)),
    "radians": lambda n, x: n.add("Mul", x, n.number(math.pi / 180)),
    "log2": lambda n, x: n.add("Div", n.add("Log", x), n.number(math.log(2))),
    "log10": lambda n, x: n.add("Div", n.add("Log", x), n.number(math.log(10))),
    "log1p": lambda n, x: n.add("Log", n.add("Add", x, n.number(1))),
    "expm1": lambda n, x: n.add("Sub", n.add("Exp", x), n.number(1)),
    "square": lambda n, x: n.add("Mul", x, x),
    "rsqrt": lambda n, x: n.add("Reciprocal", n.add("Sqrt", x)),
    "rint": lambda n, x: n.add("Ceil", n.add("Sub", x, n.number(0.5))),
}
"""Operators that are composed of several ONNX operators."""


@exports(*COMPOSED)
def _compose(n: NodeExport) -> str:
    return COMPOSED[n.op.name](n, n.inputs[0])


@exports("_square_sum")
def _square_sum(n: NodeExport) -> str:
    return n.reduce("ReduceSum", n.add("Mul", n.inputs[0], n.inputs[0]), n.op.axis, n.op.keepdims)


@exports(Operator)
def _same(n: NodeExport) -> str:
    return n.equivalent(*n.inputs)


@imports(Operator)
def _back(n: NodeImport) -> Symbol:
    return n.equivalent()


@imports("Identity")
def _copy(n: NodeImport) -> Symbol:
    return n.make("_copy", n.symbol(0))


@exports("cbrt", "rcbrt")
def _cube_root(n: NodeExport) -> str:
    root = n.add("Pow", n.add("Abs", n.inputs[0]), n.number(1 / 3))
    signed = n.add("Mul", n.add("Sign", n.inputs[0]), root)
    return signed if n.op.name == "cbrt" else n.add("Reciprocal", signed)


@exports("round", "_contrib_round_ste", "trunc", "fix")
def _towards_zero(n: NodeExport) -> str:
    """Round ties away from 0, or round towards 0."""
    size = n.add("Abs", n.inputs[0])
    if "round" in n.op.name:
        size = n.add("Add", size, n.number(0.5))
    return n.add("Mul", n.add("Sign", n.inputs[0]), n.add("Floor", size))


@imports("Round")
def _round(n: NodeImport) -> Symbol:
    return to_even(n, n.symbol(0))


def to_even(n: NodeImport, symbol: Symbol) -> Symbol:
    """Round ties to even: round ties up, then subtract 1 if that gave an odd number."""
    raised = n.make("_plus_scalar", symbol, scalar=0.5)
    up = n.make("floor", raised)
    odd = n.make("elemwise_mul", n.make("_equal", raised, up), n.make("_mod_scalar", up, scalar=2))
    return n.make("elemwise_sub", up, odd)


@imports("HardSwish")
def _import_hard_swish(n: NodeImport) -> Symbol:
    gate = n.make("hard_sigmoid", n.symbol(0), alpha=1 / 6, beta=0.5)
    return n.make("elemwise_mul", n.symbol(0), gate)


@exports("clip")
def _clip(n: NodeExport) -> str:
    return n.add("Clip", n.inputs[0], n.number(n.op.a_min), n.number(n.op.a_max))


@imports("Clip")
def _import_clip(n: NodeImport) -> Symbol:
    low, high = n.number(1, n.attr("min")), n.number(2, n.attr("max"))
    if low is not None and high is not None:
        return n.make("clip", n.symbol(0), a_min=low, a_max=high)
    if low is None and high is None:
        return n.make("_copy", n.symbol(0))
    name = "_minimum_scalar" if low is None else "_maximum_scalar"
    return n.make(name, n.symbol(0), scalar=high if low is None else low)


@exports("Cast", "amp_cast")
def _cast(n: NodeExport) -> str:
    return n.cast(n.inputs[0], n.op.dtype)


@exports("_cast_like")
def _cast_like(n: NodeExport) -> str:
    return n.cast(n.inputs[0], n.out_dtype())


@imports("Cast", "CastLike")
def _import_cast(n: NodeImport) -> Symbol:
    if n.kind == "CastLike":
        return n.make("Cast", n.symbol(0), dtype=name_of(n.dtype(1)))
    dtype = np.dtype(need_onnx().helper.tensor_dtype_to_np_dtype(n.attr("to")))
    if dtype == np.dtype(bool):
        return n.make("_not_equal_scalar", n.symbol(0), scalar=0)
    return n.make("Cast", n.symbol(0), dtype=name_of(dtype))


@exports("zeros_like", "ones_like")
def _like(n: NodeExport) -> str:
    value = np.array([n.op.name == "ones_like"], n.out_dtype())
    tensor = need_onnx().numpy_helper.from_array(value)
    return n.add("ConstantOfShape", n.add("Shape", n.inputs[0]), value=tensor)


@exports("smooth_l1")
def _smooth_l1(n: NodeExport) -> str:
    """(σx)²/2 where |x| < 1/σ², else |x| - 1/(2σ²)."""
    x, square = n.inputs[0], float(n.op.scalar) ** 2
    size = n.add("Abs", x)
    inside = n.add("Mul", n.add("Mul", x, x), n.number(0.5 * square))
    outside = n.add("Sub", size, n.number(0.5 / square))
    return n.add("Where", n.add("Less", size, n.number(1 / square)), inside, outside)


@imports("IsNaN")
def _is_nan(n: NodeImport) -> Symbol:
    return n.make("_not_equal", n.symbol(0), n.symbol(0))


@imports("Softplus")
def _softplus(n: NodeImport) -> Symbol:
    return n.make("Activation", n.symbol(0), act_type="softrelu")


@imports("Mish")
def _mish(n: NodeImport) -> Symbol:
    gate = n.make("tanh", n.make("Activation", n.symbol(0), act_type="softrelu"))
    return n.make("elemwise_mul", n.symbol(0), gate)


@exports("_contrib_quadratic")
def _quadratic(n: NodeExport) -> str:
    x = n.inputs[0]
    steep = n.add("Add", n.add("Mul", x, n.number(n.op.a)), n.number(n.op.b))
    return n.add("Add", n.add("Mul", steep, x), n.number(n.op.c))


@exports("amp_multicast")
def _multicast(n: NodeExport) -> list[str]:
    return [n.add("Cast", value, to=tensor_type(n.out_dtype(index))) for index, value in enumerate(n.inputs)]


@imports("IsInf")
def _is_infinite(n: NodeImport) -> Symbol:
    if not n.attr("detect_negative", 1) and not n.attr("detect_positive", 1):
        return n.make("zeros_like", n.symbol(0))
    if not n.attr("detect_negative", 1):
        return n.make("_equal_scalar", n.symbol(0), scalar=math.inf)
    if not n.attr("detect_positive", 1):
        return n.make("_equal_scalar", n.symbol(0), scalar=-math.inf)
    return n.make("_equal_scalar", n.make("abs", n.symbol(0)), scalar=math.inf)


@imports("Bernoulli")
def _bernoulli(n: NodeImport) -> Symbol:
    n.expect("dtype", None, 1)
    return n.make("broadcast_lesser", n.make("_random_uniform_like", n.symbol(0)), n.symbol(0))

"""Operators of two inputs, and of an input and a number: one row each, three operators from it.

A row such as ``add`` gives ``broadcast_add`` (arrays, broadcast against each other), ``elemwise_add``
(arrays of one shape) and ``_plus_scalar`` / ``_rminus_scalar`` (an array and a number). Comparisons give
1 and 0 in the inputs' dtype, as MXNet does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowmx.errors import ShapeError
from flowmx.ops.arrays.linear import InferredTypes
from flowmx.ops.formulas.activations import smooth_l1
from flowmx.ops.formulas.arrays import OnArrays
from flowmx.ops.registry.dtypes import DType, is_floating
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, described, lookup, operator, option
from flowmx.ops.registry.traits import BatchWise, Neutral, Precision, Quantization

_INT64: DType = np.dtype(np.int64)
_FLOAT64: DType = np.dtype(np.float64)

Derivative = Callable[[Any, Any, Any, Any, Any], Any]


class Row(NamedTuple):
    """One operator of two operands; ``a`` or ``b`` may be a number in its scalar forms."""

    name: str
    function: Callable[..., Any]
    """Called as ``function(xp, a, b, out)``."""
    left: Derivative | None
    """The gradient of a, of (F, a, b, y, g), before broadcasting is undone."""
    right: Derivative | None
    """The gradient of b."""
    needs: str
    """Those of a, b and y that the derivatives read (the others may have been changed since)."""
    doc: str
    broadcast: tuple[str, ...]
    elementwise: tuple[str, ...] = ()
    scalar: tuple[str, ...] = ()
    reversed_scalar: tuple[str, ...] = ()
    onnx: str = ""
    """The operator of ONNX, as in :class:`Operator`."""
    precision: Precision = Precision.WIDEST
    """Of two arrays; an array and a number are as given where this is the widest."""
    reversed_precision: Precision | None = None
    neutral: Neutral | None = None
    factor: Callable[[float], float] | None = None
    """For a number that b may be: what a is then multiplied by."""
    quantized: str = ""
    """The operator that does the same on quantized arrays of one shape."""


def ufunc(name: str) -> Callable[..., Any]:
    """The namespace's ufunc of that name."""

    def call(xp: Any, a: Any, b: Any, out: Array) -> None:
        getattr(xp, name)(a, b, out=out, casting="unsafe")

    call.ufunc = name  # type: ignore[attr-defined]
    return call


# Operators that keep integer dtypes.
_WHOLE = {"add", "subtract", "multiply", "maximum", "minimum", "equal", "not_equal", "greater", "greater_equal", "less",
          "less_equal"}  # fmt: skip


def _direct(row: Row, xp: Any, dtype: DType, number: float | None = None) -> tuple[Callable[..., Any], Any] | None:
    """The row as one ufunc call, for floating inputs, or whole ones where the ufunc keeps their dtype."""
    name = "divide" if row.function is _divide else getattr(row.function, "ufunc", None)
    whole = dtype.kind in "iu" and name in _WHOLE and (number is None or float(number).is_integer())
    if name is None or not (dtype.kind == "f" or whole):
        return None
    try:
        if number is None:
            return getattr(xp, name), None
        value: Any = int(number) if whole else number
        # An array of no axes is what NumPy takes fastest; CuPy would make it on some device, here at the push.
        return getattr(xp, name), np.asarray(value, dtype) if xp is np else dtype.type(value)
    except OverflowError:
        return None


def _divide(xp: Any, a: Any, b: Any, out: Array) -> None:
    if is_floating(out.dtype):
        xp.divide(a, b, out=out, casting="unsafe")
    else:  # integers: towards zero, and 0 where the divisor is 0
        with_zero = xp.where(xp.equal(b, 0), 1, b)
        out[...] = xp.where(xp.equal(b, 0), 0, xp.trunc(xp.true_divide(a, with_zero)))


def _mod(xp: Any, a: Any, b: Any, out: Array) -> None:
    # MXNet's sign rule is the divisor's, as NumPy's; a divisor of 0 gives 0.
    xp.copyto(out, xp.where(xp.equal(b, 0), 0, xp.mod(a, xp.where(xp.equal(b, 0), 1, b))), casting="unsafe")


def _log(F: Any, a: Any) -> Any:
    return (math.log(a) if a > 0 else math.nan) if isinstance(a, float) else F.log(a)


TABLE = [
    Row("add", ufunc("add"), lambda F, a, b, y, g: g, lambda F, a, b, y, g: g, "", "a + b",
        ("broadcast_add", "broadcast_plus"), ("elemwise_add", "_add", "_plus", "_Plus", "_grad_add"),
        ("_plus_scalar", "_PlusScalar"), onnx="Add", neutral=Neutral(-0.0, (0, 1)),
        quantized="_contrib_quantized_elemwise_add"),
    Row("sub", ufunc("subtract"), lambda F, a, b, y, g: g, lambda F, a, b, y, g: -g, "", "a - b",
        ("broadcast_sub", "broadcast_minus"), ("elemwise_sub", "_sub", "_minus", "_Minus"),
        ("_minus_scalar", "_MinusScalar"), ("_rminus_scalar", "_RMinusScalar"), onnx="Sub",
        neutral=Neutral(0.0)),
    Row("mul", ufunc("multiply"), lambda F, a, b, y, g: g * b, lambda F, a, b, y, g: g * a, "ab", "a · b",
        ("broadcast_mul",), ("elemwise_mul", "_mul", "_Mul"), ("_mul_scalar", "_MulScalar"), onnx="Mul",
        neutral=Neutral(1.0, (0, 1)), factor=lambda b: b, quantized="_contrib_quantized_elemwise_mul"),
    Row("div", _divide, lambda F, a, b, y, g: g / b, lambda F, a, b, y, g: -(g * y) / b, "by", "a / b",
        ("broadcast_div",), ("elemwise_div", "_div", "_Div"), ("_div_scalar", "_DivScalar"),
        ("_rdiv_scalar", "_RDivScalar"), onnx="Div", reversed_precision=Precision.FLOAT32,
        neutral=Neutral(1.0, kinds="f"), factor=lambda b: 1 / b if b else 0.0),
    Row("mod", _mod, lambda F, a, b, y, g: g, lambda F, a, b, y, g: -(g * F.floor(a / b)), "ab",
        "a mod b, with the sign of b",
        ("broadcast_mod",), ("_mod", "_Mod"), ("_mod_scalar", "_ModScalar"), ("_rmod_scalar", "_RModScalar"),
        onnx="Mod"),
    Row("power", ufunc("power"), lambda F, a, b, y, g: g * b * a ** (b - 1.0), lambda F, a, b, y, g: g * y * _log(F, a),
        "aby", "a to the power b", ("broadcast_power",), ("_power", "_Power"), ("_power_scalar", "_PowerScalar"),
        ("_rpower_scalar", "_RPowerScalar"), "Pow", Precision.FLOAT32, Precision.FLOAT32,
        Neutral(1.0, kinds="f", itemsize=4)),
    Row("maximum", ufunc("maximum"), lambda F, a, b, y, g: g * (a >= b), lambda F, a, b, y, g: g * (a < b), "ab",
        "the larger of a and b", ("broadcast_maximum",), ("_maximum", "_Maximum"),
        ("_maximum_scalar", "_MaximumScalar"), onnx="Max"),
    Row("minimum", ufunc("minimum"), lambda F, a, b, y, g: g * (a <= b), lambda F, a, b, y, g: g * (a > b), "ab",
        "the smaller of a and b", ("broadcast_minimum",), ("_minimum", "_Minimum"),
        ("_minimum_scalar", "_MinimumScalar"), onnx="Min"),
    Row("hypot", ufunc("hypot"), lambda F, a, b, y, g: g * a / y, lambda F, a, b, y, g: g * b / y, "aby",
        "√(a² + b²)", ("broadcast_hypot",), ("_hypot", "_Hypot"), ("_hypot_scalar", "_HypotScalar"),
        precision=Precision.FLOAT32),
    Row("equal", ufunc("equal"), None, None, "", "1 where a = b", ("broadcast_equal",), ("_equal", "_Equal"),
        ("_equal_scalar", "_EqualScalar"), onnx="Equal"),
    Row("not_equal", ufunc("not_equal"), None, None, "", "1 where a ≠ b", ("broadcast_not_equal",),
        ("_not_equal", "_Not_Equal"), ("_not_equal_scalar", "_NotEqualScalar")),
    Row("greater", ufunc("greater"), None, None, "", "1 where a > b", ("broadcast_greater",),
        ("_greater", "_Greater"), ("_greater_scalar", "_GreaterScalar"), onnx="Greater"),
    Row("greater_equal", ufunc("greater_equal"), None, None, "", "1 where a ≥ b", ("broadcast_greater_equal",),
        ("_greater_equal", "_Greater_Equal"), ("_greater_equal_scalar", "_GreaterEqualScalar"), onnx="GreaterOrEqual"),
    Row("lesser", ufunc("less"), None, None, "", "1 where a < b", ("broadcast_lesser",), ("_lesser", "_Lesser"),
        ("_lesser_scalar", "_LesserScalar"), onnx="Less"),
    Row("lesser_equal", ufunc("less_equal"), None, None, "", "1 where a ≤ b", ("broadcast_lesser_equal",),
        ("_lesser_equal", "_Lesser_Equal"), ("_lesser_equal_scalar", "_LesserEqualScalar"), onnx="LessOrEqual"),
    Row("logical_and", ufunc("logical_and"), None, None, "", "1 where both are not 0", ("broadcast_logical_and",),
        ("_logical_and", "_Logical_And"), ("_logical_and_scalar", "_LogicalAndScalar"), onnx="And"),
    Row("logical_or", ufunc("logical_or"), None, None, "", "1 where one is not 0", ("broadcast_logical_or",),
        ("_logical_or", "_Logical_Or"), ("_logical_or_scalar", "_LogicalOrScalar"), onnx="Or"),
    Row("logical_xor", ufunc("logical_xor"), None, None, "", "1 where exactly one is not 0",
        ("broadcast_logical_xor",), ("_logical_xor", "_Logical_Xor"), ("_logical_xor_scalar", "_LogicalXorScalar"),
        onnx="Xor"),
]  # fmt: skip


def broadcast_shapes(op: Operator, one: ShapeOrNone, other: ShapeOrNone) -> ShapeOrNone:
    """The shape that two shapes broadcast to, as far as it is known.

    Raises:
        ShapeError: they do not broadcast.
    """
    if one is None or other is None:
        return None
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    padded = (1,) * (len(longer) - len(shorter)) + shorter
    result = []
    for a, b in zip(longer, padded, strict=True):
        if a != b and 1 not in (a, b) and -1 not in (a, b):
            raise ShapeError(
                f"{op.name}: shapes {one} and {other} do not broadcast: each axis must be equal, or 1 in one of them"
            )
        result.append(b if a == 1 else a if b == 1 else max(a, b))
    return tuple(result)


def sum_to(F: Any, gradient: Any, inputs: Any, position: int) -> Any:
    """Undo broadcasting: sum a gradient to the shape of the input that it belongs to."""
    # Only its shape matters, so an input that was changed since is no error here.
    like = getattr(inputs, "unchecked", inputs.__getitem__)(position)
    shape = getattr(gradient, "shape", None)
    if shape is not None and shape == getattr(like, "shape", None):
        return gradient
    return F.op("_sum_like", gradient, like)


class Pair(Operator, keeps_layout=True, in_place=((0, 0), (1, 0)), batch_wise=BatchWise.ALL):
    """Base of operators of two arrays."""

    arguments = ("lhs", "rhs")


class Broadcasting(Pair):
    """Base of operators on two arrays that are broadcast against each other."""

    input_docs = described(
        lhs="any shape, any dtype",
        rhs="a shape that broadcasts with that of lhs, the dtype of lhs",
    )
    output_doc = "The broadcast shape, the dtype of lhs"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        return shapes, [broadcast_shapes(self, shapes[0], shapes[1])]


class Scalar(Operator, keeps_layout=True, in_place=((0, 0),), batch_wise=BatchWise.ALL):
    """Base of operators of an array and a number."""

    input_docs = described(data="any shape, any dtype")
    output_doc = "The shape and dtype of data; int64 for bool, and float64 for integers with is_int=False"
    scalar: float
    is_int: bool
    number_first = False
    """True where the number is the left operand."""

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        given = dtypes[0]
        if given is None or is_floating(given):
            return dtypes, dtypes
        if self.is_int:
            return dtypes, [_INT64 if given.kind == "b" else given]
        return dtypes, [_FLOAT64]


def _number(op: Any, x: Array) -> float | int:
    """The scalar as a Python number of the array's kind, which then takes the array's dtype."""
    value: float = op.scalar
    return value if is_floating(x.dtype) or not (op.is_int and math.isfinite(value)) else int(value)


def _register(row: Row) -> None:
    def forward(self: Operator, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        row.function(run.xp, inputs[0], inputs[1], outputs[0])

    def scalar_forward(self: Operator, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        row.function(run.xp, inputs[0], _number(self, inputs[0]), outputs[0])

    def reversed_forward(self: Operator, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        row.function(run.xp, _number(self, inputs[0]), inputs[0], outputs[0])

    def derive(which: str, F: Any, a: Any, b: Any, outputs: Any, head: Any) -> Any:
        derivative = row.left if which == "left" else row.right
        assert derivative is not None
        return derivative(F, a, b, outputs[0] if "y" in row.needs else None, head)

    def needed(inputs: Any, position: int, operand: str) -> Any:
        return inputs[position] if operand in row.needs else None

    def plain_gradient(self: Operator, F: Any, inputs: Any, outputs: Any, heads: Any) -> list[Any]:
        a, b = needed(inputs, 0, "a"), needed(inputs, 1, "b")
        return [derive(which, F, a, b, outputs, heads[0]) for which in ("left", "right")]

    def broadcast_gradient(self: Operator, F: Any, inputs: Any, outputs: Any, heads: Any) -> list[Any]:
        both = plain_gradient(self, F, inputs, outputs, heads)
        return [sum_to(F, each, inputs, position) for position, each in enumerate(both)]

    def scalar_gradient(self: Any, F: Any, inputs: Any, outputs: Any, heads: Any) -> list[Any]:
        return [derive("left", F, needed(inputs, 0, "a"), self.scalar, outputs, heads[0])]

    def reversed_gradient(self: Any, F: Any, inputs: Any, outputs: Any, heads: Any) -> list[Any]:
        return [derive("right", F, self.scalar, needed(inputs, 0, "b"), outputs, heads[0])]

    def direct(self: Operator, xp: Any, dtype: DType) -> tuple[Callable[..., Any], Any] | None:
        return _direct(row, xp, dtype)

    def scalar_direct(self: Any, xp: Any, dtype: DType) -> tuple[Callable[..., Any], Any] | None:
        return _direct(row, xp, dtype, self.scalar) if self.is_int or is_floating(dtype) else None

    def reversed_direct(self: Any, xp: Any, dtype: DType) -> tuple[Callable[..., Any], Any] | None:
        direct = scalar_direct(self, xp, dtype)
        if direct is None:
            return None
        straight, number = direct
        return lambda x, n, out: straight(n, x, out=out), number

    def make(names: tuple[str, ...], base: type[Operator], doc: str, compute: Any, derive: Any, **traits: Any) -> None:
        if not names:
            return
        body: dict[str, Any] = {"__doc__": doc, "__module__": __name__, "forward": compute, "onnx": row.onnx}
        if row.left is not None:
            body["gradient"] = derive
        if compute is reversed_forward:
            body |= {"as_ufunc": reversed_direct, "number_first": True}
        else:
            body["as_ufunc"] = scalar_direct if base is Scalar else direct
        if base is Scalar:
            body["__annotations__"] = {"scalar": float, "is_int": bool}
            body["scalar"] = option(1.0, "The number.")
            body["is_int"] = option(True, "Keep integer dtypes; otherwise integers become float64.")
            if compute is scalar_forward and (factor := row.factor) is not None:
                body["multiplier"] = lambda self, shape: factor(self.scalar)
        operator(names[0], *names[1:])(type(names[0], (base,), body, no_gradient=row.left is None, **traits))

    arrays, scalar = row.precision, None if row.precision is Precision.WIDEST else row.precision
    make(row.broadcast, Broadcasting, f"Elementwise {row.doc}, with broadcasting.", forward, broadcast_gradient,
         precision=arrays, neutral=row.neutral)  # fmt: skip
    quantized = Quantization(row.quantized) if row.quantized else None
    make(row.elementwise, Pair, f"Elementwise {row.doc}, for arrays of one shape.", forward, plain_gradient,
         precision=arrays, neutral=row.neutral, quantized=quantized)  # fmt: skip
    make(row.scalar, Scalar, f"Elementwise {row.doc}, where b is a number.", scalar_forward, scalar_gradient,
         precision=scalar, neutral=row.neutral)  # fmt: skip
    make(row.reversed_scalar, Scalar, f"Elementwise {row.doc}, where a is a number.", reversed_forward,
         reversed_gradient, precision=row.reversed_precision)  # fmt: skip


for _row in TABLE:
    _register(_row)

SUMS = (lookup("elemwise_add"), lookup("broadcast_add"))
"""The sums of two arrays."""


_SMOOTH_L1 = OnArrays(smooth_l1)


@operator("smooth_l1")
class SmoothL1(Operator, precision=Precision.FLOAT32, batch_wise=BatchWise.ALL):
    """Elementwise smooth L1: (σx)²/2 where |x| < 1/σ², |x| - 1/(2σ²) elsewhere."""

    scalar: float = option(1.0, "σ.")

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        _SMOOTH_L1.run(run.xp, _SMOOTH_L1.numbers(self, inputs[0].dtype), inputs, outputs)

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        s2 = self.scalar**2
        return [heads[0] * F.clip(inputs[0] * s2, a_min=-1.0, a_max=1.0)]
